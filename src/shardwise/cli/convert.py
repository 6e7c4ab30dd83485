"""`shardwise convert`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise import catalog, files
from shardwise.cli.options import OutputOption, emit_json, refuse_given
from shardwise.comparison import (
    calculon_case,
    known_reference,
    model_for_calculon,
    system_for_calculon,
)
from shardwise.errors import Fault, InputError, nearest
from shardwise.formats.calculon_files import looks_like
from shardwise.model import Model
from shardwise.noun import Noun
from shardwise.stack import Stack
from shardwise.strategy import Strategy
from shardwise.system import System

_NOUNS: dict[str, type[Noun]] = {
    "model": Model,
    "system": System,
    "strategy": Strategy,
    "stack": Stack,
}
_OF_CALCULON = {"model": "model", "system": "system", "execution": "strategy"}
_UNUSED = "is for a strategy that is written --to calculon alone; leave it out"


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A file of ours or of Calculon's, recognised by its content."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="Write another system's file: calculon."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="|".join(_NOUNS),
            help="What the file holds, where its keys leave it open.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Of a strategy that is written for Calculon.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="Of a strategy that is written for Calculon.")
    ] = None,
    output: OutputOption = None,
) -> int:
    """Write a model, system or strategy as a file of ours, or of another system.

    Files of ours have units as people write them. Without --output it goes to standard output.
    """
    found = _kind(file) if kind is None else _known_kind(kind)
    if to is None or found != "strategy":
        refuse_given(_UNUSED, model=model, system=system)
    if to is None:
        noun = _NOUNS[found].load(file)
        if output is not None:
            noun.to_file(output)
        else:
            sys.stdout.write(files.as_yaml(noun.to_dict(units=True)))
        return 0
    known_reference(to, "to")
    emit_json(_for_calculon(found, file, model, system), output)
    return 0


def _for_calculon(kind: str, file: str, model: str | None, system: str | None) -> dict[str, Any]:
    if kind == "model":
        return model_for_calculon(file).to_dict()
    if kind == "system":
        return system_for_calculon(file).to_dict()
    if kind == "strategy" and model is not None and system is not None:
        return calculon_case(model, system, file).execution.to_dict()
    if kind == "strategy":
        problem = "is a strategy, whose networks depend on both: give --model and --system"
    else:
        problem = f"holds a {kind}, for which Calculon has no file"
    raise InputError(Fault(source=file, problem=problem))


def _known_kind(kind: str) -> str:
    if kind in _NOUNS:
        return kind
    problem = f"allowed: {', '.join(_NOUNS)}{nearest(kind, list(_NOUNS))}"
    raise InputError(Fault(field="kind", value=kind, has_value=True, problem=problem))


def _kind(file: str) -> str:
    """Tell what a file or catalog name stands for."""
    for name, noun in _NOUNS.items():
        if noun.CATALOG is not None and catalog.find(noun.CATALOG, file.strip()) is not None:
            return name
    data = files.read_mapping(file)
    theirs = looks_like(data)
    if theirs is not None:
        return _OF_CALCULON[theirs]
    shares = {name: _share(noun, data) for name, noun in _NOUNS.items()}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] == 0:
        problem = f"is none of {', '.join(_NOUNS)}, ours or Calculon's; say which by --kind"
        raise InputError(Fault(source=file, problem=problem))
    return best


def _share(noun: type[Noun], data: Mapping[str, Any]) -> float:
    """Share of a file's keys that a noun has, names and sources apart, which several have."""
    keys = set(data) - {"name", "description", "sources"}
    known = set(noun.model_fields) | {"mbs", "gbs"}
    return len(keys & known) / len(keys) if keys else 0.0
