"""Settings of a training job: a file of options, or a command with options, files and launchers.

A command has three groups of words: those of the launcher (accelerate, torchrun, deepspeed), the
program, and its options `--key value` or `key=value`. Files that it names are read next to it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from shardwise.config import files
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.ranks import parse_job, ranks_of
from shardwise.launchers.sections import Found
from shardwise.launchers.shell import Script, names_in, shown
from shardwise.units import read_whole

_MOST_BYTES = 2**20
_MOST_FOLDERS = 6
"""Folders above a file in which the files that it names are looked for."""
_KEY = re.compile(r"^([A-Za-z_]\w*)[ \t]*:(?=[ \t\n]|$)", re.MULTILINE)
_JSON_KEY = re.compile(r'"([A-Za-z_]\w*)"\s*:')
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*)")
Settings = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Job:
    """What a file or a command sets."""

    source: str
    settings: Settings
    folder: Path | None = None
    """Where the files lie that it names; None: they are not read."""
    program: str = ""
    """First word of the command; empty for a file of options."""
    verb: str = ""
    """Word of the command that says what is done, such as `sft`; empty for a file of options."""
    launcher: Settings = field(default_factory=dict)
    """Options of `accelerate launch`, as its configuration has them."""
    gpus: int | None = None
    """Ranks that the command starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    """Variables without a value, by the setting that needs them."""


def top_keys(text: str) -> frozenset[str]:
    """Return the keys of a file of options, be it damaged; empty for anything else."""
    start = text.lstrip()[:1]
    if start == "{":
        return frozenset(_JSON_KEY.findall(text))
    return frozenset(_KEY.findall(text))


def flags_in(text: str) -> frozenset[str]:
    """Return the names of options `--name` in a text, with underscores."""
    return frozenset(name.replace("-", "_") for name in _FLAG.findall(text))


def is_mapping(text: str) -> bool:
    """Whether a text is a file of options, not a script."""
    if text.lstrip().startswith("{"):
        return True
    lines = (line for line in text.splitlines() if line.strip())
    first = next((line for line in lines if not line.lstrip().startswith(("#", "---"))), "")
    return _KEY.match(first) is not None


def read_settings(text: str, source: str) -> Settings:
    """Read a file of options in YAML or JSON.

    Raises
    ------
    InputError
        If it is not of that format, or no mapping.
    """
    kind = ".json" if text.lstrip().startswith("{") else ".yaml"
    data = parse(text, kind, source, most_bytes=_MOST_BYTES, aliases=True)
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise InputError(Fault(source=source, problem="must be a mapping of options"))
    return dict(data)


def companion(name: str, folder: Path | None) -> Path | None:
    """Return a file that another names, from its folder or one of those above it.

    Paths in files of trainers begin at the folder where the trainer is started.

    Parameters
    ----------
    folder
        Of the other file; None: no files are read.
    """
    path = PurePath(name)
    if folder is None or "\0" in name or not name.strip() or ".." in path.parts:
        return None
    places = [folder.absolute(), *folder.absolute().parents[:_MOST_FOLDERS]]
    if path.is_absolute():
        return None
    return next((place / path for place in places if files.is_file(place / path)), None)


def read_companion(name: str, job: "Job", option: str) -> Settings:
    """Read the options of a file that another one names.

    Raises
    ------
    InputError
        If it is not there.
    """
    place = companion(name, job.folder)
    if place is None:
        problem = "no such file from here or from a folder above this file, and it is needed"
        raise InputError(Fault.of(option, shown(name), problem, job.source))
    return read_settings(files.read_text(place), str(place))


def read_job(text: LaunchText, starts: Sequence[tuple[str, ...]], found: Found) -> Job:
    """Read a file of options, or a script with a command of a trainer.

    Parameters
    ----------
    starts
        Patterns of the words that start the trainer, such as `("llamafactory-cli", "train")`.

    Raises
    ------
    InputError
        If it is neither.
    """
    if is_mapping(text.text):
        settings = read_settings(text.text, text.source)
        return Job(source=text.source, settings=settings, folder=text.folder, gpus=text.gpus)
    script = parse_job(text.text, text.variables)
    commands = [
        (words, at) for words in script.commands if (at := _start(words, starts)) is not None
    ]
    if not commands:
        problem = "has no command of a trainer that is known"
        raise InputError(Fault(source=text.source, problem=problem))
    words, (begin, end) = commands[0]
    if len(commands) > 1:
        problem = f"the first of {len(commands)} training commands is read"
        found.leave("command", shown(" ".join(words[: end + 1])), problem)
    job = Job(source=text.source, settings={}, folder=text.folder)
    names = {name: words[0] for name, words in script.variables.items() if len(words) == 1}
    job.environment = names | dict(script.exported)
    job.program, job.verb = words[begin].rpartition("/")[2], shown(words[end - 1])
    _read_options(job, words[end:])
    job.launcher = _accelerate_options(words[:begin], job)
    job.gpus = text.gpus or _ranks(script, words, begin, text.source) or _processes(job)
    return job


def _start(words: Sequence[str], starts: Sequence[tuple[str, ...]]) -> tuple[int, int] | None:
    """Where the words that start a trainer begin and end."""
    plain = [word.rpartition("/")[2] if not word.startswith("-") else word for word in words]
    if plain[:1] in (["echo"], ["printf"]):
        return None
    for pattern in starts:
        for at in range(len(plain) - len(pattern) + 1):
            some = plain[at : at + len(pattern)]
            if all(map(fnmatchcase, some, pattern)):
                return at, at + len(pattern)
    return None


def _read_options(job: Job, words: Sequence[str]) -> None:
    """Read what follows the program: a file of options, `--key value` and `key=value`."""
    options = list(_options(job, words))
    base = next((v for n, v in options if n == "config" and isinstance(v, str)), None)
    if base is not None:
        job.settings = read_companion(base, job, "config")
    for name, value in options:
        if name != "config":
            _set(job, name, value)


def _options(job: Job, words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield options by name; words before the first are what the command does."""
    at, begun = 0, False
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":  # between options of axolotl and of its launcher
            continue
        if _is_option(word):
            name, equals, value = word.lstrip("-").partition("=")
            values = [value] if equals else []
            while not equals and at < len(words) and not _is_option(words[at]):
                values.append(words[at])
                at += 1
            yield _LONG.get(name, name.replace("-", "_")), _value(values)
        elif "=" in word:
            name, _, value = word.lstrip("+~").partition("=")
            yield name, None if word.startswith("~") else _value([value])
        elif word.endswith((".yaml", ".yml", ".json")):
            yield "config", word
        elif not begun:
            job.verb = f"{job.verb} {shown(word)}".strip()
            continue
        begun = True


_LONG = {"c": "config"}
"""Long names of short options."""


def _is_option(word: str) -> bool:
    return word.startswith("--") or (word.startswith("-") and word[1:2].isalpha())


def _set(job: Job, name: str, value: Any) -> None:
    """Set an option, whose dots separate sections."""
    *sections, last = name.split(".")
    inner = job.settings
    for section in sections:
        nested = inner.get(section)
        inner[section] = dict(nested) if isinstance(nested, Mapping) else {}
        inner = inner[section]
    inner[last] = value
    texts = value if isinstance(value, list) else [value]
    missing = [one for text in texts if isinstance(text, str) for one in names_in(text)]
    if missing:
        job.open[name] = missing[0]


def _value(words: Sequence[str]) -> Any:
    """The value of an option: true without one, a list of several."""
    if not words:
        return True
    values = [_scalar(word) for word in words]
    return values[0] if len(values) == 1 else values


def _scalar(word: str) -> Any:
    if "\0" in word or not word:
        return word
    try:
        return parse(word, ".yaml", "", most_bytes=_MOST_BYTES)
    except InputError:
        return word


# --- Launchers ------------------------------------------------------------------------------------

_SECTIONS = {"fsdp": "fsdp_config", "parallelism_config": "parallelism_config"}
_TOP = ("num_processes", "num_machines", "mixed_precision", "machine_rank", "dynamo_backend")
_OF_RANKS = ("main_process_ip", "main_process_port", "main_training_function", "gpu_ids")
_DEEPSPEED = (
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "deepspeed_config_file",
    "gradient_accumulation_steps",
    "zero3_init_flag",
    "zero3_save_16bit_model",
)
_KINDS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}


def _accelerate_options(words: Sequence[str], job: Job) -> Settings:
    """Options of `accelerate launch` before a program, or of --accelerate_config of TRL."""
    own: dict[str, Any] = {}
    plain = [word.rpartition("/")[2] for word in words]
    if "accelerate" in plain and "launch" in plain:
        inner = Job(source=job.source, settings={}, folder=job.folder)
        _read_options(inner, [w for w in words[plain.index("launch") + 1 :] if w != "-m"])
        own = inner.settings
    if job.program == "trl":  # which passes them on
        names = (*_TOP, *_OF_RANKS, *_KINDS)
        own |= {name: job.settings.pop(name) for name in names if name in job.settings}
    named = own.pop("config_file", None) or job.settings.pop("accelerate_config", None)
    settings = _accelerate_file(named, job) if isinstance(named, str) else {}
    for name, value in own.items():
        section = next((s for start, s in _SECTIONS.items() if name.startswith(start)), None)
        if name in _KINDS:
            settings["distributed_type"] = _KINDS[name]
        elif name in _DEEPSPEED:
            settings.setdefault("deepspeed_config", {})[name] = value
        elif section is not None:
            settings.setdefault(section, {})[name] = value
        elif name in _TOP:
            settings[name] = value
    if own and "distributed_type" not in settings:
        several = (read_whole(str(settings.get("num_processes", 1))) or 1) > 1
        settings["distributed_type"] = "MULTI_GPU" if several else "NO"
    return settings


_TRL_CONFIGS: Mapping[str, Settings] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "fsdp1": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}},
    **{
        name: {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}
        for stage in (1, 2, 3)
        for name in (f"zero{stage}", f"deepspeed_zero{stage}")
    },
}
"""Configurations of accelerate that TRL has a name for (examples/accelerate_configs, v1.9.0)."""


def _accelerate_file(name: str, job: Job) -> Settings:
    if name in _TRL_CONFIGS:
        found: Settings = json.loads(json.dumps(_TRL_CONFIGS[name]))
        return found
    return read_companion(name, job, "config_file")


def _ranks(script: Script, words: Sequence[str], at: int, source: str) -> int | None:
    """Ranks that torchrun, deepspeed, `tune run` or srun start."""
    before = [word for word in words[:at] if word]
    plain = [word.rpartition("/")[2] for word in before]
    if "deepspeed" in plain and not any("num_gpus" in word for word in before):
        devices = re.search(r"--include[ =]\S*?:(\d+(?:,\d+)*)", " ".join(before))
        return len(devices[1].split(",")) if devices else None  # else all that are there
    found = ranks_of(script, before or words[:1])
    if found is None:
        return None
    if found.missing:
        name = found.missing[0]
        problem = f"has no value, and says how many ranks there are: --set {name}=N, or --gpus N"
        raise InputError(Fault.of("variable", name, problem, source))
    return found.gpus


def _processes(job: Job) -> int | None:
    """Ranks of `accelerate launch`, or of variables of the environment."""
    launched = [job.settings.pop(name, None) for name in ("nnodes", "nproc_per_node")]
    if isinstance(launched[1], int):
        return launched[1] * (launched[0] if isinstance(launched[0], int) else 1)
    number = job.launcher.get("num_processes")
    if isinstance(number, int) and number > 0:
        return number
    environment = job.environment
    per_node = read_whole(environment.get("NPROC_PER_NODE", ""))
    nodes = read_whole(environment.get("NNODES", "1")) or 1
    if per_node:
        return nodes * per_node
    devices = environment.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)*", devices):
        return nodes * len(devices.split(","))
    return None


def check_variables(job: Job, faults: Sequence[Fault], used: frozenset[str]) -> Iterator[Fault]:
    """Yield faults, and settings that a prediction uses and whose variable has no value."""
    faulty = {fault.field for fault in faults}
    unset = {
        name: variable
        for name, variable in job.open.items()
        if name in faulty or name.partition(".")[0] in used
    }
    yield from (fault for fault in faults if fault.field not in unset)
    for name, variable in unset.items():
        problem = f"the variable {variable} has no value here: --set {variable}=VALUE"
        yield Fault.of(name, f"${variable}", problem, job.source)
