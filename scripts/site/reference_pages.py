"""Reference pages: commands, fields of strategies and files, and the Python API."""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import shardwise
from shardwise.cli import VERB_GROUPS, VERBS
from shardwise.cli.help import verb_help
from shardwise.cli.schema import SCHEMAS, record_schema, schema_of
from shardwise.config.base import ConfigBase
from shardwise.config.roles import Section, Tries
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS, SHORT_NAMES, Kind, StrategyField
from shardwise.report.console import written
from shardwise.units import EXAMPLES
from tables import anchor, cell, page, table

_UNIT_OF = {example: unit for unit, example in EXAMPLES.items()}
_DEFINITIONS = "#/$defs/"
_MOST_WORDS = 12
_TRIED = {
    Tries.DEFAULT: "the default",
    Tries.ALL: "all values",
    Tries.DIVISORS: "all that divide",
    Tries.DEFAULT_DIVISOR: "the default",
}
_CONTAINERS = {"array": "list", "object": "mapping"}
_PLAIN = {"integer": "whole number", "boolean": "true or false", "string": "text"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the page of each command, file format and group of the API."""
    for verb in VERBS:
        yield f"reference/commands/{verb}.md", _command(verb)
    for name in SCHEMAS:
        yield f"reference/schema/{name}.md", _schema(name)
        yield f"reference/schema/{name}.json", json.dumps(schema_of(name), indent=2) + "\n"
    for group, names in _api_groups().items():
        members = "\n".join(f"::: shardwise.{name}\n" for name in names)
        yield f"reference/api/{anchor(group)}.md", page(group, f"# {group}\n\n{members}")


def commands() -> str:
    """Return the table of all commands, by what they are for."""
    parts = []
    for purpose, verbs in VERB_GROUPS.items():
        rows = [[f"[`{verb}`](commands/{verb}.md)", cell(about)] for verb, about in verbs.items()]
        parts.append(f"## {purpose}\n\n{table(('command', 'what it does'), rows)}")
    return "\n".join(parts)


def _command(verb: str) -> str:
    """Return the page of a command: usage, examples, arguments, options by section."""
    found = verb_help(verb)
    examples = "".join(f"{example}\n" for example in found.examples)
    parts = [
        f"# shardwise {verb}\n\n```text\n{found.usage}\n```\n",
        _paragraphs(found.description),
        f"```sh\n{examples}```\n" if examples else "",
    ]
    for heading, entries in {"Arguments": found.arguments, **found.sections}.items():
        rows = [[_code(entry.names), cell(entry.help)] for entry in entries]
        if rows:
            parts.append(f"## {heading}\n\n{table(('', 'what it is'), rows)}")
    return page(verb, "\n".join(parts))


def _code(text: str) -> str:
    return f"`{text}`"


def _paragraphs(text: str) -> str:
    return "\n\n".join(cell(paragraph) for paragraph in inspect.cleandoc(text).split("\n\n")) + "\n"


def strategy() -> str:
    """Return the tables of the fields of `Strategy`, by section."""
    sections: dict[str, list[list[str]]] = {}
    for name, field in FIELDS.items():
        sections.setdefault(field.role.section, []).append(_strategy_field(name, field))
    heads = ("field", "option", "values", "default", "search tries", "what it is")
    return "\n".join(
        f"## {section}\n\n{table(heads, sections[section])}"
        for section in Section
        if section in sections
    )


def _strategy_field(name: str, field: StrategyField) -> list[str]:
    short = {own: alias for alias, own in SHORT_NAMES.items()}.get(name)
    options = [f"`--{one.replace('_', '-')}`" for one in (short, name) if one]
    values = ("on", "off") if field.kind is Kind.FLAG else field.words
    tries = field.role.tries if field.role.practical is None else field.role.practical
    return [
        f"`{name}`",
        ", ".join(options),
        ", ".join(f"`{value}`" for value in values) or field.kind.value,
        cell(written(field.default)),
        _TRIED[tries] if isinstance(tries, Tries) else cell(written(tries)),
        cell(Strategy.descriptions().get(name, "")),
    ]


def schema() -> str:
    """Return the table of all file formats."""
    rows = [
        [f"[{name}](schema/{name}.md)", cell(_about(config)), f"[JSON Schema](schema/{name}.json)"]
        for name, config in SCHEMAS.items()
    ]
    return table(("file", "what it is", ""), rows)


def _about(config: type) -> str:
    return (inspect.getdoc(config) or "").partition("\n\n")[0]


def _schema(name: str) -> str:
    """Return the page of a file format: a table of fields for each of its records."""
    full = record_schema(name)
    own = {config.__name__: known for known, config in SCHEMAS.items() if known != name}
    parts = [f"# {name}\n\n{cell(_about(SCHEMAS[name]))}\n\n`shardwise schema {name}`\n"]
    parts.append(_fields(full, own))
    for title, definition in _reachable(full, own):
        about = _paragraphs(definition.get("description", ""))
        parts.append(f"## {title}\n\n{about}\n{_fields(definition, own)}")
    return page(name, "\n".join(parts))


def _reachable(
    full: Mapping[str, Any], own: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records that a format has inside, without those with a page of their own."""
    definitions = full.get("$defs", {})
    found: list[str] = []
    waiting = [full.get("properties", {})]
    while waiting:
        for title in _references(waiting.pop(0)):
            if title not in found and title not in own:
                found.append(title)
                waiting.append(definitions[title].get("properties", {}))
    for title in found:
        yield title, definitions[title]


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield str(value["$ref"]).removeprefix(_DEFINITIONS)
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _fields(record: Mapping[str, Any], own: Mapping[str, str]) -> str:
    required = record.get("required", ())
    rows = []
    for name, field in record.get("properties", {}).items():
        description = field.get("description", "")
        units = [_UNIT_OF[one] for one in _examples(field) if one in _UNIT_OF]
        default = "required" if name in required else cell(written(field.get("default")))
        rows.append(
            [
                f"`{name}`",
                _type(field, own),
                ", ".join(dict.fromkeys(units)),
                default,
                "" if description.endswith("or text with a unit") else cell(description),
            ]
        )
    heads = ("field", "type", "unit", "default", "what it is")
    return table(heads, rows) if rows else ""


def _examples(field: object) -> Iterator[object]:
    if isinstance(field, Mapping):
        yield from field.get("examples", ())
        for key in ("anyOf", "items", "additionalProperties"):
            yield from _examples(field.get(key))
    elif isinstance(field, list):
        for one in field:
            yield from _examples(one)


def _type(field: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """Return what a field may hold, in a few words."""
    kind, words = field.get("type"), field.get("enum", [field["const"]] if "const" in field else [])
    members = field.get("anyOf", field.get("oneOf", ()))
    inside = field.get("additionalProperties" if kind == "object" else "items")
    if "$ref" in field:
        title = str(field["$ref"]).removeprefix(_DEFINITIONS)
        text = f"[{title}]({own[title]}.md)" if title in own else f"[{title}](#{anchor(title)})"
    elif any(one in _UNIT_OF for one in field.get("examples", ())):
        text = "quantity"
    elif words:
        more = ["..."] if len(words) > _MOST_WORDS else []
        text = ", ".join([*(f"`{written(word)}`" for word in words[:_MOST_WORDS]), *more])
    elif members:
        types = [_type(one, own) for one in members if one.get("type") != "null"]
        text = " or ".join(dict.fromkeys(types))
    elif kind in _CONTAINERS:
        text = _CONTAINERS[kind]
        text += f" of {_type(inside, own)}" if isinstance(inside, Mapping) else ""
    else:
        text = _PLAIN.get(str(kind), str(kind or "any"))
    return text


def api() -> str:
    """Return the table of all names of the package."""
    parts = []
    for group, names in _api_groups().items():
        path = f"api/{anchor(group)}.md"
        rows = [[f"[`{n}`]({path}#shardwise.{n})", cell(_about(_object(n)))] for n in names]
        parts.append(f"## {group}\n\n{table(('name', 'what it is'), rows)}")
    return "\n".join(parts)


def _api_groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {
        "Functions": [],
        "Results": [],
        "Configurations": [],
        "Errors": [],
    }
    for name in shardwise.__all__:
        value = _object(name)
        if inspect.isfunction(value):
            groups["Functions"].append(name)
        elif isinstance(value, type) and issubclass(value, Exception):
            groups["Errors"].append(name)
        elif isinstance(value, type) and issubclass(value, ConfigBase):
            groups["Configurations"].append(name)
        elif isinstance(value, type):
            groups["Results"].append(name)
    return groups


def _object(name: str) -> Any:
    return getattr(shardwise, name)
