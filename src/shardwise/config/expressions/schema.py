"""JSON Schema of files whose figures may be looked up, calculated or left to a base."""

from collections.abc import Mapping
from typing import Any

from shardwise.config.expressions.records import BASE, PARAMETERS

_NUMBERS = {"integer", "number"}
_NOTES = ("title", "description", "default", "examples")
# Words, not figures.
_WORDS = ("name", "description", "sources")
_FORMULA = {
    "type": "string",
    "pattern": "^\\s*=",
    "description": "A formula, such as `= 2 * base` or `= hidden / heads`.",
}
_FIGURE = {
    "type": "object",
    "description": "A figure in its long form; forms that are written together must agree.",
    "properties": {
        "value": {"description": "As it is written."},
        "lookup": {"type": "string", "description": "An entry of the catalog, or a file."},
        "field": {"type": "string", "description": "Path of a field in it."},
        "times": {"type": "number", "description": "Repeated so many times."},
        "formula": {"type": "string"},
        "description": {"type": "string"},
        "source": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    },
    "anyOf": [
        {"required": ["value"]},
        {"required": ["lookup", "field"]},
        {"required": ["formula"]},
    ],
    "dependentRequired": {"field": ["lookup"], "times": ["lookup"], "lookup": ["field"]},
    "additionalProperties": False,
}


def with_figures(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Let the schema of a config type accept every way of stating a figure.

    Of a file with a base only its keys are checked: what must be there, the base has.
    """
    definitions = {name: _opened(one) for name, one in schema.get("$defs", {}).items()}
    full = {key: item for key, item in schema.items() if key != "$defs"}
    anywhere = {
        BASE: {
            "type": "string",
            "description": "Entry or file that has all absent fields.",
        },
        PARAMETERS: {
            "type": "object",
            "description": "Figures that formulas use.",
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
            "additionalProperties": {
                "anyOf": [{"type": "number"}, {"type": "string"}, {"$ref": "#/$defs/Figure"}]
            },
        },
    }
    strict = _opened(full)
    strict["properties"] = {
        **strict["properties"],
        **{word: full["properties"][word] for word in _WORDS if word in full["properties"]},
        PARAMETERS: {},
    }
    named = [word for word in ("name",) if word in full["properties"]]
    instead = [word for word in (BASE, "pools") if word in {**full["properties"], BASE: {}}]
    return {
        **{key: full[key] for key in ("title", "description", "type") if key in full},
        "properties": {
            **{name: _notes(one) for name, one in full["properties"].items()},
            **anywhere,
        },
        "patternProperties": {r"\+$": {"type": ["array", "object"]}},
        "additionalProperties": False,
        "anyOf": [{"$ref": "#/$defs/Whole"}, *({"required": [*named, one]} for one in instead)],
        "$defs": {**definitions, "Formula": _FORMULA, "Figure": _FIGURE, "Whole": strict},
    }


def _opened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose members may each be a figure."""
    result = dict(schema)
    if "properties" in result:
        result["properties"] = {k: _figure(one) for k, one in result["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), Mapping):
            result[key] = _figure(result[key])
    if "anyOf" in result:
        result["anyOf"] = [_opened(one) for one in result["anyOf"]]
    return result


def _figure(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What may stand in a place: as it is, in the long form of a figure or, a number, a formula."""
    inner = {key: item for key, item in _opened(schema).items() if key not in _NOTES}
    members = inner.pop("anyOf") if inner.keys() == {"anyOf"} else [inner]
    if any(member.get("type") in _NUMBERS for member in members):
        members = [*members, {"$ref": "#/$defs/Formula"}]
    return {**_notes(schema), "anyOf": [*members, {"$ref": "#/$defs/Figure"}]}


def _notes(schema: Mapping[str, object]) -> dict[str, Any]:
    return {key: schema[key] for key in _NOTES if key in schema}
