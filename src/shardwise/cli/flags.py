"""Flags of a strategy and of a training run, generated from the fields that they set."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_args, get_origin

from shardwise.cli.help import RELIABILITY, TRAINING_RUN
from shardwise.cli.options import COMMAND_LINE, expand, opt, refuse_options
from shardwise.config.base import unfold, words_of
from shardwise.config.degrees import LEVELLED_AXES
from shardwise.config.fine_tuning import SHORTHANDS, words_of_shorthand
from shardwise.config.reliability import Reliability
from shardwise.config.roles import Section
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS, SHORT_NAMES, Kind
from shardwise.config.strategy_input import explicit_fields
from shardwise.config.system import Site
from shardwise.errors import Fault, refuse
from shardwise.units import Dimension

if TYPE_CHECKING:
    from shardwise.planning.training_time import TrainingRun


_METAVARS = {"stack": "STACK", "placement": "AXIS-AXIS-...", "extents": "AXIS=N+AXIS=N/..."}

_SITE = {"carbon_intensity": "carbon_intensity", "pue": "pue"}
# Flags of a `Reliability`, and the field that each sets.
_RELIABILITY = {
    "mtbf": "accelerator_mtbf",
    "node_mtbf": "node_mtbf",
    "restart_time": "restart_time",
    "checkpoint_time": "checkpoint_time",
    "storage_bandwidth": "storage_bandwidth",
    "checkpoint_interval": "checkpoint_interval",
    "checkpoint_stall": "checkpoint_stall",
    "spares": "spares",
    "repair_time": "repair_time",
    "async_checkpoints": "asynchronous",
}
RUN_FLAGS = ("tokens", *_SITE, "reliability", *_RELIABILITY)
_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][-+]?\d+)?")
_NEEDS_TOKENS = "needs --tokens: it applies to a training run"
_RUN_HELP = {
    "tokens": "Tokens to train on, such as 300B: adds days, price, energy and CO2 of the run.",
    "reliability": "Reliability file: failures, checkpoints, restarts; flags override its fields.",
}


def with_strategy_flags(
    function: Callable[..., object], *, needs_batch: bool = True
) -> Callable[..., object]:
    """Expand the parameter `flags` of a verb into one flag per field of `Strategy`.

    Flags and their help are generated, so a new field has its flag at once.
    """
    flag = partial(_strategy_flag, needs_batch=needs_batch)
    return _with_flags(function, "flags", (*Strategy.model_fields, *SHORTHANDS), flag)


def with_space_flags(function: Callable[..., object]) -> Callable[..., object]:
    """Expand the parameter `flags` of a verb into one flag per field that it has no option of.

    Each sets the values of the field that a search tries.
    """
    taken = {SHORT_NAMES.get(name, name) for name in inspect.signature(function).parameters}
    names = [name for name in (*Strategy.model_fields, "finetune") if name not in taken]
    return _with_flags(function, "flags", names, _space_flag)


def with_run_flags(function: Callable[..., object]) -> Callable[..., object]:
    """Expand the parameter `run` of a verb into the flags of a training run."""
    return _with_flags(function, "run", RUN_FLAGS, _run_flag)


def _with_flags(
    function: Callable[..., object],
    name: str,
    flags: Iterable[str],
    parameter: Callable[[str], inspect.Parameter],
) -> Callable[..., object]:
    return expand(
        function,
        name,
        {flag: parameter(flag) for flag in flags},
        lambda values: {flag: value for flag, value in values.items() if value is not None},
    )


def _flag(
    name: str, kind: object, section: str, help_text: str, *also: str, metavar: str
) -> inspect.Parameter:
    """One flag; a bool has a switch for on and off."""
    dashed = name.replace("_", "-")
    is_switch = kind is bool
    names = f"--{dashed}/--no-{dashed}" if is_switch else " ".join((*also, f"--{dashed}", metavar))
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=opt(names, help_text, section),
        annotation=bool | None if is_switch else str | None,
    )


def _shorthand_flag(name: str) -> inspect.Parameter:
    """A flag that sets several fields."""
    words = "METHOD" if name == "finetune" else "|".join(words_of_shorthand(name))
    return _flag(name, str, Section.MODEL, SHORTHANDS[name], metavar=words)


def _strategy_flag(name: str, *, needs_batch: bool) -> inspect.Parameter:
    if name in SHORTHANDS:
        return _shorthand_flag(name)
    default = Strategy.model_fields[name].default
    description = _description(name).replace("; None:", "; if not set:")
    description += " NxN: inside x across network domains." if name in LEVELLED_AXES else ""
    description += "" if default is None else f" Default: {_as_entered(default)}."
    if name == "global_batch_size" and needs_batch:
        description += " Required unless a file or recipe sets it."
    metavar = "N|NxN" if name in LEVELLED_AXES else _metavar_of(name)
    return _field_flag(name, description, metavar)


def _space_flag(name: str) -> inspect.Parameter:
    """A flag of the values that a search tries: one, or a list; without it, those of the space."""
    if name in SHORTHANDS:
        return _shorthand_flag(name)
    metavar = _metavar_of(name).removesuffix(",...")
    together = FIELDS[name].kind is Kind.SET or name == "stage_layers"
    metavar = f"{metavar}+{metavar}" if together else metavar
    return _field_flag(name, searched_help(name), f"{metavar},...")


@cache
def flag_words(name: str) -> tuple[str, str]:
    """Return what the value of a field is and what the field is, as the help of its flag says."""
    flag = _run_flag(name) if name in RUN_FLAGS else _strategy_flag(name, needs_batch=False)
    return flag.default.metavar or "on|off", str(flag.default.help)


def searched_help(name: str) -> str:
    """Return what a field is, for a search, which has no default value of it."""
    return re.sub(r"; None:[^.]*", "", _description(name))


def _description(name: str) -> str:
    """What a field is, and of a list what it may contain."""
    parts = FIELDS[name].words if FIELDS[name].kind is Kind.SET else ()
    description = " ".join(Strategy.descriptions().get(name, "").split())
    return description + (f" Of: {', '.join(parts)}." if parts else "")


def _field_flag(name: str, description: str, metavar: str) -> inspect.Parameter:
    kind = bool if bool in unfold(Strategy.model_fields[name].annotation) else str
    field = FIELDS[name]
    short = [f"--{field.short}"] if field.short != name else []
    return _flag(name, kind, FIELDS[name].role.section, description, *short, metavar=metavar)


def _metavar_of(name: str) -> str:
    """Placeholder of the value of a field."""
    if name in _METAVARS:
        return _METAVARS[name]
    if FIELDS[name].kind is Kind.WHOLE and FIELDS[name].role.every:
        return "|".join(map(str, FIELDS[name].role.every))
    return _metavar(list(unfold(Strategy.model_fields[name].annotation)))


def _metavar(kinds: Sequence[object]) -> str:
    """Placeholder of a value of some types: a number, the allowed words, a list, a name."""
    for kind in kinds:
        if get_origin(kind) is tuple:
            inside = _metavar(list(unfold(get_args(kind))))
            return f"{inside},..." if inside == "N" else "PART,..."
    if int in kinds:
        return "N"
    return "X" if float in kinds else "|".join(words_of(tuple(kinds))) or "NAME"


def _as_entered(default: object) -> str:
    """A default in the form of the command line."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _run_flag(name: str) -> inspect.Parameter:
    panel = TRAINING_RUN if name in ("tokens", *_SITE) else RELIABILITY
    if name in _RUN_HELP:
        metavar = "N" if name == "tokens" else "FILE"
        return _flag(name, str, panel, _RUN_HELP[name], metavar=metavar)
    config = Site if name in _SITE else Reliability
    name_there = (_SITE | _RELIABILITY)[name]
    field = config.model_fields[name_there]
    kinds = list(unfold(field.annotation))
    help_text = " ".join(config.descriptions().get(name_there, "").split()).replace("`", "")
    for other in ("node_mtbf", "storage_bandwidth"):
        help_text = help_text.replace(other, "--" + other.replace("_", "-"))
    help_text = help_text.replace("None:", "if not set:").replace(". if", "; if")
    return _flag(
        name,
        bool if bool in kinds else str,
        panel,
        help_text,
        *(["--accelerator-mtbf"] if name == "mtbf" else []),
        metavar="X" if name == "pue" else "QUANTITY" if float in kinds else "N",
    )


def strategy_of(path: str | None, flags: Mapping[str, object]) -> Strategy:
    """Read the strategy file, if any; flags override its fields."""
    if path is None:
        return Strategy.validated(flags, source=COMMAND_LINE)
    Strategy.validated(flags, source=COMMAND_LINE)
    return Strategy.validated(explicit_fields(path) | dict(flags), source=path)


def training_run(flags: Mapping[str, object]) -> "TrainingRun | None":
    """The training run that flags describe; None without --tokens, which the others need."""
    if "tokens" not in flags:
        refuse_options(_NEEDS_TOKENS, **flags)
        return None
    from shardwise.planning.training_time import TrainingRun  # noqa: PLC0415 - slow to import

    fields = {"tokens": flags["tokens"], "reliability": _reliability(flags)}
    site = {field: flags[name] for name, field in _SITE.items() if name in flags}
    if site:  # validated here, so that faults name the flags
        fields["site"] = Site.validated(site, source=COMMAND_LINE)
    return TrainingRun.validated(fields, source=COMMAND_LINE)


def _is_time(field: str) -> bool:
    """Whether a field of a `Reliability` is a time."""
    kinds = get_args(Reliability.model_fields[field].annotation)
    marks = [
        *Reliability.model_fields[field].metadata,
        *(m for kind in kinds for m in get_args(kind)),
    ]
    return any(isinstance(mark, Dimension) and mark.name == "seconds" for mark in marks)


def _reliability(flags: Mapping[str, Any]) -> Reliability | None:
    """Fields of the file, overridden by flags."""
    fields = {field: flags[name] for name, field in _RELIABILITY.items() if name in flags}
    refuse(
        Fault.of(field, value, "has no unit; write it, as in 300s, 10min or 50000h", COMMAND_LINE)
        for field, value in fields.items()
        if _is_time(field) and _NUMBER.fullmatch(str(value).strip())
    )
    if "reliability" not in flags:
        return Reliability.validated(fields, source=COMMAND_LINE) if fields else None
    saved = Reliability.load(flags["reliability"])
    if not fields:
        return saved
    # Of these pairs only one field may be set: a flag replaces both.
    pairs = (("accelerator_mtbf", "node_mtbf"), ("checkpoint_time", "storage_bandwidth"))
    replaced = {name for pair in pairs for name in pair if set(pair) & set(fields)}
    explicit = saved.model_dump(mode="json", exclude_unset=True)
    explicit = {name: value for name, value in explicit.items() if name not in replaced}
    return Reliability.validated(explicit | fields, source=flags["reliability"])
