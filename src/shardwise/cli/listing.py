"""Verbs that list a folder of the catalog or show one entry of it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from shardwise import catalog
from shardwise.cli.options import emit_json
from shardwise.noun import Noun

__all__ = ["NameArgument", "list_or_show"]

N = TypeVar("N", bound=Noun)

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Catalog name or file; all if omitted.")
]


def list_or_show(
    noun: type[N],
    name: str | None,
    *,
    json: bool,
    output: str | None,
    record: Callable[[N], dict[str, Any]],
    print_all: Callable[[Sequence[N]], None],
    print_one: Callable[[N], None],
) -> int:
    """Print all entries or one, as tables or JSON; or write them to a file.

    Parameters
    ----------
    record
        What JSON says of an entry.
    print_all, print_one
        What people see of all entries, and of one.
    """
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


def _names(noun: type[Noun]) -> list[str]:
    return catalog.names(noun.CATALOG or "")
