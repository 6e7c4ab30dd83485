"""`shardwise schema`."""

from typing import Annotated, Any

import typer

from shardwise.analysis.results import Estimate
from shardwise.cli.options import emit_json
from shardwise.config.expressions.schema import with_figures
from shardwise.config.model import Model
from shardwise.config.reliability import Reliability
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.compare.scenario import Scenario
from shardwise.planning.search.space import Space

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
