"""`shardwise schema`."""

from typing import Annotated, Any

import typer

from shardwise.cli.options import emit_json
from shardwise.errors import Fault, InputError, nearest
from shardwise.model import Model
from shardwise.parameters.schema import with_figures
from shardwise.reliability import Reliability
from shardwise.results import Estimate
from shardwise.scenarios.scenario import Scenario
from shardwise.searcher.space import Space
from shardwise.stack import Stack
from shardwise.strategy import Strategy
from shardwise.system import System

NOUNS: dict[str, Any] = {
    "model": Model,
    "system": System,
    "strategy": Strategy,
    "stack": Stack,
    "space": Space,
    "reliability": Reliability,
    "scenario": Scenario,
    "estimate": Estimate,
}


def command(
    noun: Annotated[str, typer.Argument(metavar="NOUN", help=", ".join(NOUNS))],
) -> int:
    """Print the JSON Schema of a noun, such as model, strategy, scenario or estimate."""
    if noun not in NOUNS:
        problem = f"no such noun; allowed: {', '.join(NOUNS)}{nearest(noun, NOUNS)}"
        raise InputError(Fault(source="command line", value=noun, has_value=True, problem=problem))
    mode = "serialization" if noun == "estimate" else "validation"
    schema = NOUNS[noun].model_json_schema(mode=mode)
    if NOUNS[noun].__dict__.get("FIGURES"):
        schema = with_figures(schema)
    emit_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return 0
