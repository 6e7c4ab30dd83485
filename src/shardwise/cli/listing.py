"""Verbs that list a folder of the catalog or show one entry of it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from shardwise import catalog
from shardwise.cli.options import emit_json, refuse_options
from shardwise.config.base import ConfigBase

__all__ = ["ExplainFlag", "NameArgument", "list_or_show"]

N = TypeVar("N", bound=ConfigBase)

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Catalog name or file; all if omitted.")
]
ExplainFlag = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show every figure with its unit, source and origin: given, looked up, calculated "
        "(with the formula) or a default.",
    ),
]


def list_or_show(
    noun: type[N],
    name: str | None,
    *,
    json: bool,
    output: str | None,
    explain: bool,
    record: Callable[[N], dict[str, Any]],
    print_all: Callable[[Sequence[N]], None],
    print_one: Callable[[N], None],
) -> int:
    """Print all entries or one, as tables or JSON; or write them to a file.

    Parameters
    ----------
    explain
        Whether to show how each figure of the one came to be.
    record
        What JSON says of an entry.
    print_all, print_one
        What people see of all entries, and of one.
    """
    if explain:
        return _explain(noun, name, json=json, output=output)
    if name is None:
        entries = [noun.load(known) for known in catalog.names(noun.CATALOG or "")]
        if json or output:
            emit_json(
                {known: record(e) for known, e in zip(_names(noun), entries, strict=True)}, output
            )
        else:
            print_all(entries)
        return 0
    entry = noun.load(name)
    if output is not None:
        entry.to_file(output)
    if json:
        emit_json(record(entry))
    elif output is None:
        print_one(entry)
    return 0


def _explain(noun: type[ConfigBase], name: str | None, *, json: bool, output: str | None) -> int:
    """Print how each figure of one entry came to be, or write it to a file."""
    from shardwise.report.tables.figures import explained_figures, print_explained  # noqa: PLC0415

    if name is None:
        refuse_options("tells of one: give its name or file", explain=True)
        return 0
    entry, resolved = noun.explained(name)
    if json or output is not None:
        called = getattr(entry, "name", name)
        told = {"name": called, "figures": list(explained_figures(entry, resolved))}
        emit_json(told, output)
    else:
        print_explained(entry, resolved)
    return 0


def _names(noun: type[ConfigBase]) -> list[str]:
    return catalog.names(noun.CATALOG or "")
