"""Arguments and options that verbs share, and checks of what was entered."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from typing import Annotated, Any

import typer

from shardwise import units
from shardwise.cli.help import INPUT, OUTPUT
from shardwise.config.base import MISSING
from shardwise.config.enums import MemoryLimit
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import Fault, InputError

COMMAND_LINE = "command line"
"""Source of faults of flags."""

_FILES = "Files (YAML, JSON, TOML; also .gz): shardwise, Calculon, SimuMax, NERSC"
_MODELS = (
    f"Catalog name, owner/name on the Hugging Face hub, or file. {_FILES}, AMPeD or Hugging Face "
    "format, or launch file of a trainer, which sets strategy and software, too."
)
_SYSTEMS = f"Catalog name or file. {_FILES} or AMPeD format."
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=_MODELS,
    ),
]
ModelOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{_MODELS} Optional with --recipe.",
    ),
]
SystemArgument = Annotated[str, typer.Argument(metavar="SYSTEM", help=_SYSTEMS)]
SystemOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="SYSTEM",
        help=f"{_SYSTEMS} Optional with --recipe, or if MODEL is an AMPeD configuration.",
    ),
]


def name_argument(metavar: str) -> object:
    """Return an argument for the name of an entry of the catalog."""
    return typer.Argument(metavar=metavar, help="Catalog name or file; all if omitted.")


def limit_on_option(panel: str) -> object:
    """Option of what must fit into the memory of an accelerator, in a panel of the help."""
    return typer.Option(
        "--limit-on",
        metavar="|".join(MemoryLimit),
        help="Memory that must fit: reserved (default), which includes the allocator's slack and "
        "the runtime, or allocated by tensors alone.",
        rich_help_panel=panel,
    )


TablesOption = Annotated[
    str | None,
    typer.Option(
        "--tables",
        metavar="FILE",
        help="Lookup tables of an AMPeD configuration. Default: lookup_tables.json in its folder.",
        rich_help_panel=INPUT,
    ),
]
JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print everything as JSON.",
        rich_help_panel=OUTPUT,
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to FILE (.json, .yaml; also .gz).",
        rich_help_panel=OUTPUT,
    ),
]
VariablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a variable that the script leaves undefined. Repeat for several.",
        rich_help_panel=INPUT,
    ),
]
PlotOption = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Write charts to FILE: .html, .json, .png or .svg.",
        rich_help_panel=OUTPUT,
    ),
]
ReportOption = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a page with question, answer, charts, tables, assumptions, sources and the "
        "command to FILE (.html).",
        rich_help_panel=OUTPUT,
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="FILE",
        help="Strategy file (shardwise, SimuMax or AMPeD format), Calculon execution file or "
        "launch file of a trainer; flags override its fields.",
        rich_help_panel=INPUT,
    ),
]


SearchStrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="FILE",
        help="Strategy or launch file that sets GPUs, batch, sequence, types and software; flags "
        "override them, and everything else is searched.",
        rich_help_panel=INPUT,
    ),
]


def expand(
    function: Callable[..., object],
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    collect: Callable[[dict[str, object]], object],
) -> Callable[..., object]:
    """Replace one parameter of a verb by several flags.

    Parameters
    ----------
    name
        Parameter to replace.
    parameters
        Parameters of the flags, by name.
    collect
        From the values of the flags to the value of the parameter.
    """

    def called(**values: object) -> Any:
        collected = collect({flag: values.pop(flag) for flag in parameters})
        return function(**values, **{name: collected})

    expanded: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == name:
            expanded += parameters.values()
        else:
            expanded.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    called.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    called.__doc__ = function.__doc__
    called.__name__ = function.__name__
    return called


def with_options(function: Callable[..., object]) -> Callable[..., object]:
    """Expand each parameter that is a dataclass of options into one flag per field."""
    for parameter in inspect.signature(function).parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            continue
        flags = {
            field.name: inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
            for field in fields(group)
        }
        function = expand(function, parameter.name, flags, partial(_record, group))
    return function


def _record(group: Callable[..., object], values: Mapping[str, object]) -> object:
    return group(**values)


def used(options: Any, *names: str) -> dict[str, Any]:
    """Options of a dataclass that were used: all, or those named; not None and not empty."""
    values = asdict(options)
    return {n: values[n] for n in names or values if values[n] is not None and values[n] != []}


def refuse_options(problem: str, **values: object) -> None:
    """Refuse options that were used (neither None nor False) where they have no effect."""
    faults = [
        Fault(
            source=COMMAND_LINE,
            field=name,
            value=value,
            has_value=value is not True,
            problem=problem,
        )
        for name, value in values.items()
        if value is not None and value is not False
    ]
    if faults:
        raise InputError(faults)


def flag_fault(flag: str, value: object, problem: str) -> InputError:
    """A fault of a flag's value."""
    return InputError(
        Fault(source=COMMAND_LINE, field=flag, value=value, has_value=True, problem=problem)
    )


def missing_flag(flag: str, problem: str | None = None) -> InputError:
    """A fault of a flag that was not used."""
    if problem is None:
        problem = MISSING.get(SHORT_NAMES.get(flag, flag), "is missing: set it")
    return InputError(Fault(source=COMMAND_LINE, field=flag, problem=problem))


def launch_variables(texts: Sequence[str]) -> dict[str, str]:
    """Names and values of ``--set NAME=VALUE``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise flag_fault("set", text, "must be NAME=VALUE")
        if name.strip() in found:
            raise flag_fault("set", text, f"{name.strip()} is set twice")
        found[name.strip()] = value
    return found


def positive_number(flag: str, text: str | None, example: str = "") -> float | None:
    """Read a number above 0; None without a value."""
    if text is None:
        return None
    number = units.read_number(text) or 0.0
    if number <= 0:
        raise flag_fault(flag, text, f"must be a number above 0{example}")
    return number
