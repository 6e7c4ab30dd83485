"""Options of Megatron-LM in YAML: `MODEL_ARGS` of its functional tests, Primus and FlagScale.

FlagScale has arguments by their Python names in the sections system, model and data. Primus of AMD
(examples/megatron/configs and primus/configs/modules/megatron) names a trainer, a model and
overrides, which are such arguments, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwise import catalog
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron.arguments import WrittenOption
from shardwise.launchers.megatron.core_model import model_fields
from shardwise.launchers.megatron.core_stack import Value

_MOST_BYTES = 2**21
_MODEL_ARGS = re.compile(r"(?m)^MODEL_ARGS:\s*(?:#.*)?$")
_PRIMUS = re.compile(r"(?m)^\s+framework:\s*['\"]?(\w+)")
_MODULES = re.compile(r"(?m)^modules:\s*(?:#.*)?$")
_FLAGSCALE = tuple(
    re.compile(rf"(?m)^{line}")
    for line in (r"system:", r"model:", r"\s+tensor_model_parallel_size:", r"\s+num_layers:")
)
_PARAMETER = re.compile(r"\$\{([A-Za-z_]\w*)(?::([^{}]*))?\}")
PRIMUS_STACK = "primus-2026"
PRIMUS_DEFAULTS: Mapping[str, Value] = {
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
    "bf16": True,
    "overlap_p2p_comm": True,
    "attention_backend": "flash",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}
"""Of primus/configs/modules/megatron, pre_trainer.yaml and trainer_base.yaml (main, 2026-08)."""
_OWN_NEUTRAL = re.compile(
    r"--(?:.*log.*|stderr-sink-level|disable-last-saving|auto-continue-train|enable-primus-turbo"
    r"|use-turbo-.*|trainable|sink-level|file-sink-level|num-workers|patch-.*|profile.*|no-shared-fs)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataForm:
    """Options that a YAML file sets."""

    written: tuple[WrittenOption, ...]
    defaults: Mapping[str, Value]
    """Fields of the trainer and of the model that the file names."""
    model: Model | None = None
    fork: str = ""
    stack: str | None = None


def is_data_form(text: str, source: str) -> bool:
    """Whether a text is YAML with options of Megatron-LM."""
    if not source.removesuffix(".gz").endswith((".yaml", ".yml")):
        return False
    return _MODEL_ARGS.search(text) is not None or _is_primus(text) or is_flagscale(text)


def is_flagscale(text: str) -> bool:
    """Whether a text has the sections of FlagScale."""
    return all(one.search(text) for one in _FLAGSCALE)


def _is_primus(text: str) -> bool:
    found = _PRIMUS.search(text) if _MODULES.search(text) else None
    return found is not None and found[1] == "megatron"


def read_data_form(
    text: LaunchText, as_option: Callable[[str, str], Iterator[WrittenOption]]
) -> DataForm:
    """Read the options of a YAML file.

    Parameters
    ----------
    as_option
        Option of an argument by its Python name and value.

    Raises
    ------
    InputError
        If it is no YAML, a variable has no value, or the model is not known.
    """
    data = parse(_filled_in(text), ".yaml", text.source, most_bytes=_MOST_BYTES, aliases=True)
    data = data if isinstance(data, Mapping) else {}
    if "MODEL_ARGS" in data:
        section = _mapping(data["MODEL_ARGS"], "MODEL_ARGS", text.source)
        written = [one for flag, value in section.items() for one in _words(str(flag), value)]
        return DataForm(written=tuple(written), defaults={})
    if "system" in data:
        return _flagscale(data, as_option)
    modules = _mapping(data.get("modules"), "modules", text.source)
    module = next((one for one in modules.values() if isinstance(one, Mapping)), {})
    overrides = _mapping(module.get("overrides") or {}, "overrides", text.source)
    model = text.model or _model(str(module.get("model", "")), text.source)
    options = [
        one
        for name, value in overrides.items()
        for one in as_option(str(name), _printed(value))
        if not _OWN_NEUTRAL.fullmatch(one[0])
    ]
    fields = {name: one for name, one in model_fields(model).items() if one is not None}
    return DataForm(
        written=tuple(options),
        defaults={**fields, **PRIMUS_DEFAULTS},
        model=model,
        fork="Primus",
        stack=PRIMUS_STACK,
    )


def _flagscale(
    data: Mapping[object, object], as_option: Callable[[str, str], Iterator[WrittenOption]]
) -> DataForm:
    """Arguments of all sections; the width of a gated block may be a multiple of a number."""
    leaves = dict(_leaves({name: data.get(name) for name in ("system", "model", "data")}))
    multiple = leaves.pop("multiple_of", None)
    hidden, factor = leaves.get("hidden_size"), leaves.pop("hidden_dim_multiplier", 1)
    numbers = (multiple, hidden, factor)
    if "ffn_hidden_size" not in leaves and all(isinstance(one, (int, float)) for one in numbers):
        unit, width, times = (float(str(one)) for one in numbers)
        leaves["ffn_hidden_size"] = int(-(-int(times * int(width * 8 / 3)) // unit) * unit)
    written = (
        one
        for name, value in leaves.items()
        for one in as_option(name.replace("-", "_"), _printed(value))
        if not _OWN_NEUTRAL.fullmatch(one[0])
    )
    return DataForm(written=tuple(written), defaults={}, fork="FlagScale")


def _leaves(section: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield str(name), value


def _filled_in(text: LaunchText) -> str:
    """The text with ${NAME:default} replaced; what nobody sets stays, and is refused if used."""

    def value(found: re.Match[str]) -> str:
        own = text.variables.get(found[1], found[2])
        return found[0] if own is None else own

    return _PARAMETER.sub(value, text.text)


def _mapping(value: object, name: str, source: str) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise InputError(Fault(source=source, field=name, problem="must be a mapping of options"))
    return value


def _model(name: str, source: str) -> Model:
    """The model of the catalog that a file of Primus stands for."""
    stem = re.sub(r"\.ya?ml$", "", name)
    plain = stem.replace("_", "-")
    if catalog.find("models", plain) is not None:
        return Model.load(plain)
    problem = "is a file of Primus that shardwise does not have; set a model"
    raise InputError(Fault.of("model", name, problem, source))


def _printed(value: object) -> str:
    """A value as a run prints it."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def _words(flag: str, value: object) -> Iterator[WrittenOption]:
    """Words of an option of a command line."""
    if value is True:
        yield flag, ()
    elif isinstance(value, (list, tuple)):
        yield flag, tuple(map(str, value))
    elif value is not None and value is not False:
        yield flag, (str(value),)
