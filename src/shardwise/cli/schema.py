"""`shardwise schema`."""

from typing import Any

from pydantic.json_schema import JsonSchemaMode

from shardwise.analysis.results import Estimate
from shardwise.cli.help import with_help
from shardwise.cli.options import COMMAND_LINE, arg
from shardwise.cli.output import emit_json
from shardwise.config.expressions.schema import with_figures
from shardwise.config.model import Model
from shardwise.config.recipe import Recipe
from shardwise.config.reliability import Reliability
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError, allowed_words
from shardwise.planning.compare import Scenario
from shardwise.planning.search.space import Space

SCHEMAS: dict[str, Any] = {
    "model": Model,
    "system": System,
    "strategy": Strategy,
    "stack": Stack,
    "space": Space,
    "reliability": Reliability,
    "recipe": Recipe,
    "scenario": Scenario,
    "estimate": Estimate,
}


@with_help(examples=["shardwise schema strategy"])
def command(
    name: str = arg("SCHEMA", ", ".join(SCHEMAS)),
) -> int:
    """Print the JSON Schema of a config file or result: model, strategy, scenario, estimate ..."""
    if name not in SCHEMAS:
        problem = f"no such schema; {allowed_words(name, SCHEMAS)}"
        raise InputError.of("", name, problem, COMMAND_LINE)
    emit_json(schema_of(name), written=False)
    return 0


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one of `SCHEMAS`."""
    schema = record_schema(name)
    if SCHEMAS[name].__dict__.get("FIGURES"):
        schema = with_figures(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def record_schema(name: str) -> dict[str, Any]:
    """Return the same without the ways to look up or calculate a figure."""
    mode: JsonSchemaMode = "serialization" if name == "estimate" else "validation"
    schema: dict[str, Any] = SCHEMAS[name].model_json_schema(mode=mode)
    return schema
