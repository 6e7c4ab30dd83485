"""What verbs share: arguments, strategy flags made from the noun, and printing."""

import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import typer

from shardwise.config import files
from shardwise.config.base import unfold, words_of
from shardwise.config.degrees import LEVELLED_AXES
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.strategy_given import explicit_fields
from shardwise.errors import Fault, InputError

__all__ = [
    "JsonFlag",
    "ModelArgument",
    "OutputOption",
    "PlotOption",
    "Stopwatch",
    "StrategyOption",
    "SystemArgument",
    "SystemOrNone",
    "TablesOption",
    "emit_json",
    "given_strategy",
    "log",
    "refuse_options",
    "whole_number",
    "with_strategy_flags",
]

log = logging.getLogger("shardwise")

_NAME_OR_FILE = "Catalog name, or file (YAML, JSON, TOML; also .gz)"
_OF_MODELS = (
    "of ours, Calculon's, SimuMax's, NERSC's, AMPeD's or Hugging Face's; or owner/name on the hub."
)
_OF_SYSTEMS = f"{_NAME_OR_FILE} of ours, Calculon's, SimuMax's, NERSC's or AMPeD's."
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{_NAME_OR_FILE} {_OF_MODELS}")
]
SystemArgument = Annotated[str, typer.Argument(metavar="SYSTEM", help=_OF_SYSTEMS)]
SystemOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="SYSTEM",
        help=f"{_OF_SYSTEMS} May be left out where MODEL is a configuration of AMPeD's.",
    ),
]
TablesOption = Annotated[
    str | None,
    typer.Option(
        "--tables",
        metavar="FILE",
        help="Lookup tables of a configuration of AMPeD's. Default: lookup_tables.json beside it.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE (.json, .yaml; also .gz)."),
]
PlotOption = Annotated[
    str | None,
    typer.Option(
        "--plot", metavar="FILE", help="Write charts to FILE: .html, .json, .png or .svg."
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="FILE",
        help="Strategy file of ours, SimuMax's or AMPeD's, or execution file of Calculon's; flags "
        "override its fields.",
    ),
]

_SHORT = {name: f"--{short}" for short, name in SHORT_NAMES.items()}


def with_strategy_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb one flag for each field of `Strategy`, passed on as `flags`.

    The flags, their help and so their names come from the noun: a new field has its flag at once.
    """

    def called(**words: Any) -> Any:
        flags = {
            name: words.pop(name)
            for name in list(words)
            if name in Strategy.model_fields and words[name] is not None
        }
        for name in Strategy.model_fields:
            words.pop(name, None)
        return function(**words, flags=flags)

    plain = inspect.signature(function).parameters.values()
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in plain if p.name != "flags"]
    for name in Strategy.model_fields:
        annotation = _flag(name)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=annotation))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__ = function.__doc__
    called.__name__ = function.__name__
    return called


def _flag(name: str) -> Any:
    field = Strategy.model_fields[name]
    dashed = "--" + name.replace("_", "-")
    names = [_SHORT[name], dashed] if name in _SHORT else [dashed]
    description = " ".join((field.description or "").split()).replace("; None:", "; if not given:")
    panel = "Strategy"
    kinds = list(unfold(field.annotation))
    parts = words_of(get_args(kinds[0])) if get_origin(kinds[0]) is tuple else ()
    description += f" Of: {', '.join(parts)}." if parts else ""
    description += " NxN: in a network domain x across." if name in LEVELLED_AXES else ""
    description += "" if field.default is None else f" Default: {_told(field.default)}."
    if bool in kinds:
        switch = f"{dashed}/--no-{dashed.removeprefix('--')}"
        option = typer.Option(switch, help=description, rich_help_panel=panel)
        return Annotated[bool | None, option]
    metavar = "N|NxN" if name in LEVELLED_AXES else _metavar(kinds)
    option = typer.Option(*names, metavar=metavar, help=description, rich_help_panel=panel)
    return Annotated[str | None, option]


def _metavar(kinds: Sequence[Any]) -> str:
    """What stands for a value of some types: a number, one of some words, a list, a name."""
    for kind in kinds:
        if get_origin(kind) is tuple:
            inside = _metavar(list(unfold(get_args(kind))))
            return f"{inside},..." if inside == "N" else "PART,..."
    if int in kinds:
        return "N"
    return "X" if float in kinds else "|".join(words_of(tuple(kinds))) or "NAME"


def _told(default: object) -> str:
    """A default as people write it on the command line."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def given_strategy(path: str | None, flags: Mapping[str, Any]) -> Strategy:
    """Read the strategy file, if any, and put the flags over its fields."""
    if path is None:
        return Strategy.validated(flags, source="command line")
    Strategy.validated(flags, source="command line")
    return Strategy.validated(explicit_fields(path) | dict(flags), source=path)


def emit_json(data: Mapping[str, Any], output: str | None = None) -> None:
    """Print JSON, or write it to a file."""
    plain = files.finite(data)
    if output is not None:
        files.write_mapping(output, plain)
        log.info("wrote %s", output)
        return
    sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def refuse_options(problem: str, **words: object) -> None:
    """Refuse options that were given (neither None nor False) where they would do nothing."""
    faults = [
        Fault(
            source="command line",
            field=name,
            value=value,
            has_value=value is not True,
            problem=problem,
        )
        for name, value in words.items()
        if value is not None and value is not False
    ]
    if faults:
        raise InputError(faults)


def whole_number(field: str, text: str | None) -> int | None:
    """Read a flag that counts something; None if it was not given."""
    if text is None:
        return None
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if number < 1:
        problem = "must be a whole number of at least 1"
        raise InputError(
            Fault(source="command line", field=field, value=text, has_value=True, problem=problem)
        )
    return number


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.3f} s"
