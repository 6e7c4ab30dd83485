"""What is common to readers of fine-tuning files: model, types, batch, origins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.enums import Batching
from shardwise.config.launch import Effect, Launch, Origin
from shardwise.config.model import Model
from shardwise.errors import InputError, refuse
from shardwise.launchers.fine_tuning.engines import Engine, Given, engine_of
from shardwise.launchers.fine_tuning.jobs import (
    Job,
    Settings,
    check_variables,
    companion,
    read_job,
)
from shardwise.launchers.fine_tuning.methods import DTYPES, Method, flag_of
from shardwise.launchers.fine_tuning.options import WHY
from shardwise.launchers.launch import LaunchText, origins_of
from shardwise.launchers.sections import Found, Section
from shardwise.launchers.shell import names_in, shown
from shardwise.units import read_whole

_DEGREES = ("tp", "cp", "pp")
LENGTHS = (
    "is a maximum: the lengths of the data are not in the file (shardwise lengths measures them), "
    "and all rows are predicted as that long"
)


@dataclass(slots=True, kw_only=True)
class Reading:
    """A file on its way to a strategy."""

    text: LaunchText
    job: Job
    found: Found
    top: Section
    model: Model | None = None
    fields: dict[str, object] = field(default_factory=dict)
    """What the options of the trainer say, next to method and engine."""
    decided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Options that decide a field, where these are not the defaults of all trainers."""
    origins: dict[str, Origin] = field(default_factory=dict)


def reading_of(
    text: LaunchText,
    starts: Sequence[tuple[str, ...]],
    renamed: Callable[[Settings], Settings] = dict,
) -> Reading:
    """Return a reading of a file or a command; settings that are null are not set.

    Parameters
    ----------
    starts
        As in `read_job`.
    renamed
        Settings by the names that a reader knows.
    """
    found = Found(text.source)
    job = read_job(text, starts, found)
    job.settings = {key: one for key, one in renamed(job.settings).items() if one is not None}
    return Reading(text=text, job=job, found=found, top=Section(job.settings, found))


def engine_of_trainer(
    reading: Reading, sizes: "Sizes", dtype: str | None, *, version: int = 2
) -> Engine:
    """Return the engine by the options of transformers' Trainer, as `engine_of`."""
    micro, steps, gpus = sizes.micro, sizes.steps, reading.job.gpus
    given = Given(dtype=dtype, micro=micro, steps=steps, gpus=gpus, model=reading.model)
    return engine_of(reading.job, reading.top, given, version=version)


def read_model(reading: Reading, key: str) -> None:
    """Find the model that an option names: a folder, the catalog, or the Hugging Face hub."""
    name = reading.top.value(key)
    reading.model = reading.text.model
    if reading.model is not None or not isinstance(name, str):
        return
    if missing := names_in(name):
        because = f"the variable {missing[0]} has no value here: name the model, or --set it"
        reading.found.leave(reading.top.name(key), shown(name), because)
        return
    local = companion(f"{name}/config.json", reading.text.folder)
    try:
        if local is not None:
            reading.model = Model.load(str(local))
        elif catalog.find("models", name) is not None or _is_hub_name(name):
            reading.model = Model.load(name)
        else:
            reading.top.leave(key, "no model of the catalog, and no folder here: name the model")
    except InputError as error:
        problem = error.faults[0].problem if error.faults else str(error)
        reading.top.leave(key, f"name the model: {problem}")


def _is_hub_name(name: str) -> bool:
    """Whether a name may be that of a model on the hub: owner and name, no path."""
    is_path = name.startswith((".", "/", "~")) or name.endswith(files.SUFFIXES)
    return name.count("/") == 1 and not is_path


def type_named(top: Section, key: str) -> str | None:
    """Return the type of weights that an option names; None: the one of the checkpoint."""
    value = top.value(key)
    if value in (None, "auto", ""):
        return None
    found = DTYPES.get(str(value))
    if found is None:
        top.wrong(key, f"allowed: auto, {', '.join(DTYPES)}")
    return found


def half_type(top: Section, *, default: str | None) -> str | None:
    """Return the type of products by `bf16` and `fp16`; the default where neither is set."""
    on = {name: top.data.get(name) for name in ("bf16", "fp16")}
    for name, value in on.items():
        if value == "auto":
            top.ignore(name)
        elif value is not None:
            on[name] = top.flag(name, texts=True)
    if on["fp16"] is True and on["bf16"] in (True, "auto"):
        top.wrong("fp16", "bf16 and fp16 exclude each other")
    if on["fp16"] is True:
        return "fp16"
    if on["bf16"] in (True, "auto"):
        return "bf16"
    return "fp32" if on["bf16"] is False else default


def set_batching(
    reading: Reading, key: str, word: Batching = Batching.PACKED, section: Section | None = None
) -> None:
    """Set how sequences make a micro-batch, as an option says."""
    where = section or reading.top
    reading.fields["batching"] = str(word)
    reading.decided["batching"] = (where.name(key),)
    where.leave(key, "attention is predicted as of one document per row: set data_lengths")


def leave_rest(section: Section, *neutral: str, effect: Effect = Effect.COST) -> None:
    """List what a section sets and no reader has read, but for options that cost nothing."""
    section.ignore(*neutral)
    section.leave_unread({}, "is not modeled", effect)


def read_fp8(reading: Reading) -> None:
    """Read `fp8` of accelerate and what goes with it."""
    if reading.top.flag("fp8", texts=True):
        reading.fields["quantization"] = "fp8_tensor"
    if reading.top.flag("fp8_enable_fsdp_float8_all_gather", texts=True):
        because = "is not modeled: shards of fp32 weights are gathered in 16 bits"
        reading.top.leave("fp8_enable_fsdp_float8_all_gather", because, Effect.COST)


def read_batching(reading: Reading) -> None:
    """Read `packing` and `padding_free`."""
    packed, flat = (flag_of(reading.top, key, default=False) for key in ("packing", "padding_free"))
    if packed:
        set_batching(reading, "packing")
    elif flat:
        set_batching(reading, "padding_free", Batching.PADDING_FREE)


@dataclass(slots=True, kw_only=True)
class Sizes:
    """Batch of a rank: keys, defaults and values."""

    micro_key: str
    steps_key: str
    micro: int
    steps: int | None


def sizes_of(top: Section, micro_key: str, micro: int, steps_key: str, steps: int | None) -> Sizes:
    """Return micro-batch and accumulation, or the defaults of a trainer."""
    return Sizes(
        micro_key=micro_key,
        steps_key=steps_key,
        micro=top.count(micro_key) or micro,
        steps=top.count(steps_key) or steps,
    )


def launch_of_reading(
    reading: Reading,
    launcher: str,
    parts: tuple[Method, Engine, Sizes],
    *,
    seq_key: str,
    known: tuple[Iterable[str], Mapping[str, object]],
    release: str | None = None,
) -> Launch:
    """Return what was read; raise what is wrong.

    Parameters
    ----------
    known
        Options that cost nothing; and those that do and have no word here, with their defaults.

    Raises
    ------
    InputError
        If a value is wrong.
    """
    top, found = reading.top, reading.found
    (method, engine, sizes), costly, neutral = parts, known[1], frozenset(known[0])
    if "optimizer" in engine.fields:  # that of DeepSpeed's JSON counts
        reading.fields["optimizer"] = engine.fields["optimizer"]
    optimizer = reading.fields.get("optimizer")
    fields = {**engine.fields, **method.fields(engine.kind, optimizer), **reading.fields}
    fields["micro_batch_size"] = sizes.micro
    if optimizer == "muon" and engine.kind != "deepspeed":
        fields["any_software"] = True  # code of the trainer, which its stack does not list
    threads = read_whole(reading.job.environment.get("OMP_NUM_THREADS", ""))
    if threads and fields.get("offload_optimizer"):
        fields["host_threads"] = threads
    origins = _add_batch(reading, fields, sizes)
    used = frozenset(key for key in top.data if top.has_read(key)).union(costly)
    refuse(check_variables(reading.job, found.faults, used - neutral))
    if seq_key in top and "seq_len" in fields:
        top.leave(seq_key, LENGTHS)
    top.ignore(*neutral)
    top.leave_unread(costly, WHY, Effect.COST)
    decided = {
        "micro_batch_size": (sizes.micro_key,),
        "seq_len": (seq_key,),
        "task": (),
        **reading.decided,
    }
    written = set(_paths(reading.job.settings))
    given = origins_of(fields, decided, written, {**engine.origins, **origins, **reading.origins})
    return Launch(
        launcher=launcher,
        release=release,
        source=reading.text.source,
        model=reading.model,
        strategy=fields,
        not_understood=tuple(found.not_understood),
        origins={**given, "stack": Origin.ASSUMED},
    )


def _paths(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Paths of all options that are set, with dots between sections and keys."""
    for key, value in settings.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")


def _add_batch(reading: Reading, fields: dict[str, object], sizes: Sizes) -> dict[str, Origin]:
    """Add GPUs and the global batch: micro-batch x accumulation x replicas."""
    top = reading.top
    gpus = fields.get("gpus") or reading.job.gpus
    product = 1
    for name in _DEGREES:
        product *= int(str(fields.get(name) or 1))
    if not isinstance(gpus, int):
        because = "times the micro-batch and the replicas it is the global batch: set gpus"
        key = sizes.steps_key
        if key:
            reading.found.leave(top.name(key), top.data.get(key, "default"), because)
        return {}
    fields["gpus"] = gpus
    if gpus % product:
        reading.found.wrong("gpus", gpus, f"must be a multiple of the {product} of one replica")
        return {}
    replicas = gpus // product
    steps = sizes.steps
    if steps is None:  # ms-swift: the smallest that makes a batch of 16
        steps = -(-16 // (sizes.micro * replicas))
    fields.setdefault("global_batch_size", sizes.micro * steps * replicas)
    return {"global_batch_size": Origin.DERIVED}
