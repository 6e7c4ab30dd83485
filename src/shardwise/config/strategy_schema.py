"""What the JSON Schema of a strategy accepts in addition to its fields."""

from typing import Any

from pydantic import BaseModel

from shardwise.config.degrees import LEVELLED_AXES, LEVELS_PATTERN
from shardwise.config.enums import DTYPE_ALIASES, TP_EXCHANGE_ALIASES, Dtype, TpExchange
from shardwise.config.expressions.formula import canonical_names


def accept_aliases(schema: dict[str, Any], config: type[BaseModel]) -> None:
    """Let the JSON Schema accept what `load` accepts: short names, aliases, part of a stack."""
    properties = schema["properties"]
    for short, name in canonical_names(config).items():
        properties[short] = {**properties[name], "title": short.capitalize()}
    for axis in LEVELLED_AXES:
        own = {
            key: properties[axis].pop(key)
            for key in ("type", "minimum", "maximum", "anyOf")
            if key in properties[axis]
        }
        levels = {"type": "string", "pattern": LEVELS_PATTERN}
        properties[axis]["anyOf"] = [*own.pop("anyOf", [own]), levels]
    properties["dtype"]["enum"] = [*Dtype, *DTYPE_ALIASES]
    properties["tp_exchange"]["anyOf"][0]["enum"] = [*TpExchange, *TP_EXCHANGE_ALIASES]
    part = {"type": "object", "required": ["base"], "properties": {"base": {"type": "string"}}}
    properties["stack"]["anyOf"].append(part)
