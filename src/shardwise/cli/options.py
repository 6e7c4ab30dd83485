"""Arguments and options that verbs share, and checks of what was entered."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import typer

from shardwise import units
from shardwise.cli.help import INPUT, OUTPUT
from shardwise.config.base import MISSING
from shardwise.config.enums import MemoryLimit
from shardwise.config.roles import Section
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import Fault, InputError
from shardwise.records import asdict, fields, is_dataclass

COMMAND_LINE = "command line"
"""Source of faults of flags."""

_FILES = "Files (YAML, JSON, TOML; also .gz): shardwise, Calculon, SimuMax, NERSC"
_MODELS = (
    f"Catalog name, owner/name on the Hugging Face hub, or file. {_FILES}, AMPeD or Hugging Face "
    "format, or launch file of a trainer, which sets strategy and software, too, or FILE#3, plan 3 "
    "of a saved search."
)
_SYSTEMS = f"Catalog name or file. {_FILES} or AMPeD format."


def opt(names: str, help_text: str, section: str | None = None, *, default: Any = None) -> Any:
    """Declare an option, as the default value of its parameter.

    Parameters
    ----------
    names
        Its names and what its value is, as in ``--output -o FILE``; a switch has only names.
    help_text
        What it does.
    section
        Heading of the help.
    default
        Value where it is not used; of a switch False.
    """
    *dashed, last = names.split()
    metavar = None if last.startswith("-") else last
    if metavar is None:
        dashed.append(last)
        default = default if "/" in last else False
    return typer.Option(default, *dashed, metavar=metavar, help=help_text, rich_help_panel=section)


def arg(metavar: str, help_text: str, *, default: Any = ...) -> Any:
    """Declare an argument, as the default value of its parameter; required without a default."""
    return typer.Argument(default, metavar=metavar, help=help_text)


MODEL_ARGUMENT = arg("MODEL", _MODELS)
MODEL_OR_NONE = arg("MODEL", f"{_MODELS} Optional with --recipe.", default=None)
SYSTEM_ARGUMENT = arg("SYSTEM", _SYSTEMS)
SYSTEM_OR_NONE = arg(
    "SYSTEM",
    f"{_SYSTEMS} Optional with --recipe, or if MODEL is an AMPeD configuration or a saved plan.",
    default=None,
)


def name_argument(metavar: str) -> Any:
    """Return an argument for the name of an entry of the catalog."""
    return arg(metavar, "Catalog name or file; all if omitted.", default=None)


def limit_on_option(panel: str) -> Any:
    """Option of what must fit into the memory of an accelerator, in a panel of the help."""
    return opt(
        f"--limit-on {'|'.join(MemoryLimit)}",
        "Memory that must fit: reserved (default), which includes the allocator's slack and "
        "the runtime, or allocated by tensors alone.",
        panel,
    )


TABLES_OPTION = opt(
    "--tables FILE",
    "Lookup tables of an AMPeD configuration. Default: lookup_tables.json in its folder.",
    INPUT,
)
JSON_FLAG = opt("--json", "Print everything as JSON.", OUTPUT)
OUTPUT_OPTION = opt(
    "--output -o FILE",
    "Write to FILE (.json, .yaml; tables also .csv, .parquet; also .gz).",
    OUTPUT,
)
VARIABLES_OPTION = opt(
    "--set NAME=VALUE",
    "Set a variable that the script leaves undefined. Repeat for several.",
    INPUT,
)
PLOT_OPTION = opt(
    "--plot FILE",
    "Write charts to FILE (.html, .json), or one (.png, .svg, .pdf): the first, or FILE#NAME.",
    OUTPUT,
)
REPORT_OPTION = opt(
    "--report FILE",
    "Write a page with question, answer, charts, tables, assumptions, sources and the "
    "command to FILE (.html).",
    OUTPUT,
)
LARGEST_OPTION = opt(
    "--largest seq-len|mbs|lora-rank",
    "Find the longest sequence, the largest micro-batch or the highest rank that fits, what "
    "limits it and what raises it most.",
    Section.MEMORY,
)
STRATEGY_OPTION = opt(
    "--strategy FILE",
    "Strategy file (shardwise, SimuMax or AMPeD format), Calculon execution file or "
    "launch file of a trainer; flags override its fields.",
    INPUT,
)


SEARCH_STRATEGY_OPTION = opt(
    "--strategy FILE",
    "Strategy or launch file that sets GPUs, batch, sequence, types and software; flags "
    "override them, and everything else is searched.",
    INPUT,
)


def expand(
    function: Callable[..., object],
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    collect: Callable[[dict[str, object]], object],
) -> Callable[..., object]:
    """Replace one parameter of a verb by several flags."""

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
    return InputError.of(flag, value, problem, COMMAND_LINE)


def missing_flag(flag: str, problem: str | None = None) -> InputError:
    """A fault of a flag that was not used."""
    if problem is None:
        problem = MISSING.get(SHORT_NAMES.get(flag, flag), "is missing: set it")
    return InputError.at(COMMAND_LINE, problem, flag)


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
