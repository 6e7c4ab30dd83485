"""Configuration files: of Megatron-Bridge, NeMo 2 (as NeMo-Run writes them) and NeMo 1."""

import re
from collections.abc import Mapping

from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError, kind_of
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron_bridge import nemo1, nemo2
from shardwise.launchers.megatron_bridge.files import Job
from shardwise.launchers.megatron_bridge.neutral import is_neutral
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree, resolved

_MOST_BYTES = 8 * 2**20
_MARKS = (
    "_parallel_size",
    "global_batch_size",
    "micro_batch_size",
    "recompute_granularity",
    "use_megatron_fsdp",
    "overlap_grad_reduce",
    "tp_comm_overlap",
)
"""Parts of names that a file has at least one of."""
_SECTIONS = ("model", "train", "ddp", "mixed_precision", "comm_overlap", "trainer", "optimizer")
_OF_OTHERS = ("step_scheduler", "system")
"""Sections of NeMo AutoModel and of FlagScale."""
_ENDINGS = (".yaml", ".yml", ".json")


def is_configuration(text: str, source: str) -> bool:
    """Whether a text is a configuration of Megatron-Bridge or NeMo, by its name and sections."""
    if not source.removesuffix(".gz").endswith(_ENDINGS):
        return False
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    top = {line.partition(":")[0].strip('"{, ') for line in lines if line[:1] not in (" ", "\t")}
    targets = [line for line in lines if TARGET in line]
    if any("megatron.bridge." in line or "nemo.collections.llm" in line for line in targets):
        return True
    own = [name for name in _SECTIONS if name in top]
    if not top.isdisjoint(_OF_OTHERS):
        return False
    if not own or not any(mark in text for mark in _MARKS):
        return False
    return any(_opens(line, name) for name in own for line in lines)


def _opens(line: str, section: str) -> bool:
    """Whether a line begins a section at the top of the file."""
    name, colon, rest = line.partition(":")
    return bool(colon) and name.rstrip().strip('"') == section and rest.strip()[:1] in ("", "{")


def configuration_job(text: LaunchText) -> Job:
    """Return what a configuration file sets.

    Raises
    ------
    InputError
        If it is not YAML, has no sections, or refers to what has no value.
    """
    kind = ".json" if text.source.endswith(".json") else ".yaml"
    data = parse(text.text, kind, text.source, most_bytes=_MOST_BYTES, aliases=True)
    tree = _tree(data, text.source)
    if set(tree) <= {"training", "hydra", "defaults"} and isinstance(tree.get("training"), dict):
        tree = _tree(tree["training"], text.source)
    _refuse_other_models(tree, text.source)
    form = _form(tree)
    found = resolved(
        tree,
        text.source,
        needed=lambda path: not is_neutral(form.path(path)),
        roots=("training", "cfg"),
        variables=text.variables,
    )
    return form.job(found, text.source)


_OTHER_MODELS = re.compile(
    r"mamba|griffin|hyena|hybrid|nemotron_?h(?![a-z])|retro|bert|t5|bart|ul2|clip|diffusion|(?<![a-z])vit"
    r"|speech|neva|llava|nmt",
    re.IGNORECASE,
)
_OTHER_OPTIONS = ("mamba_", "hybrid_", "griffin", "hyena")


def _refuse_other_models(tree: Tree, source: str) -> None:
    """Refuse files of model classes whose options would be read as those of a GPT.

    NeMo 1 names the class of `name`, files of NeMo 2 and Megatron-Bridge have `_target_`; options
    of NeMo 1's Mamba and Griffin are left unset by its GPT.

    Raises
    ------
    InputError
        Naming the key that says so.
    """
    model = tree.get("model")
    model = model if isinstance(model, dict) else {}
    config = model.get("config")
    named: dict[str, Leaf] = {f"model.{TARGET}": model.get(TARGET)}
    named[f"model.config.{TARGET}"] = config.get(TARGET) if isinstance(config, dict) else None
    name = tree.get("name")
    if isinstance(name, str) and name.startswith("megatron_"):
        named["name"] = name
    for key, value in named.items():
        if isinstance(value, str) and _OTHER_MODELS.search(value.rpartition(".")[2]):
            problem = "is no GPT: its layers are not read here"
            raise InputError(Fault.of(key, value, problem, source))
    if isinstance(tree.get("trainer"), dict):
        own = [key for key in model if key.startswith(_OTHER_OPTIONS)]
        if own:
            problem = "is no option of a GPT: other layers are not read here"
            raise InputError(Fault.of(f"model.{own[0]}", model[own[0]], problem, source))


class _Bridge:
    """Form of Megatron-Bridge's own files."""

    @staticmethod
    def path(path: str) -> str:
        return path

    @staticmethod
    def job(tree: Tree, source: str) -> Job:
        del source
        return Job(tree=tree)


def _form(tree: Tree) -> type[_Bridge | nemo1.Form | nemo2.Form]:
    """The form of a file, by its sections."""
    target = str(tree.get(TARGET, ""))
    if target.startswith("nemo."):
        return nemo2.Form
    trainer = tree.get("trainer")
    if isinstance(trainer, dict):
        return nemo2.Form if isinstance(trainer.get("strategy"), dict) else nemo1.Form
    return _Bridge


def _tree(data: object, source: str) -> Tree:
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        problem = f"holds {kind_of(data)}, not sections of a configuration"
        raise InputError(Fault(source=source, problem=problem))
    return {str(key): _checked(value) for key, value in data.items()}


def _checked(value: object) -> Leaf:
    """A value of a file; keys are text."""
    if isinstance(value, Mapping):
        return {str(key): _checked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
