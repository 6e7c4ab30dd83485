"""Write everything that follows from fields, flags and predictions.

    python scripts/generate.py            # all, with the runs of the catalog; some minutes
    python scripts/generate.py --quick    # types of keywords, completion, launchers: seconds

Type checkers and editors read types from the source, so what `Strategy` and `Space` say is written
out for them. Tests that import `generated` compare the files with what this would write.
"""

import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.config.base import unfold
from shardwise.config.degrees import LEVELLED_AXES
from shardwise.config.enums import Word
from shardwise.config.strategy import Strategy
from shardwise.planning.search.space import Space

_ROOT = Path(__file__).parent.parent
_SOURCE = _ROOT / "src" / "shardwise"
_QUICK = (
    "tests/together/test_completion.py::test_the_table_is_that_of_the_verbs_and_fields",
    "tests/launchers/test_launchers_page.py::test_the_table_of_the_page_is_that_of_the_capabilities",
)
_PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}
# The size of the work, which `largest_model` has as parameters.
_WORK = ("gpus", "global_batch_size", "gbs", "seq_len")
# What Python accepts in addition to what a file may hold.
_IN_PYTHON = {
    "stack": ("Stack",),
    "extents": ("Mapping[str, int]", "Sequence[Mapping[str, int]]"),
}

_HEAD = '''"""{title}

Written by `scripts/generate.py` from `{source}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar
{more}
'''
_STRATEGY_HEAD = """
from numpy.typing import NDArray

from shardwise.config import enums
from shardwise.config.stack import Stack

T = TypeVar("T")
Column: TypeAlias = Sequence[T] | T | NDArray[Any]
\"\"\"One value for all rows, or one for each.\"\"\"
"""
_SPACE_HEAD = """
from shardwise.config import enums
from shardwise.config import keywords as of_strategy
from shardwise.config.stack import Stack

T = TypeVar("T")
Choices: TypeAlias = Sequence[T | str] | T | str | None
\"\"\"One value, several, or text such as ``all`` or ``1,2,4``.\"\"\"
"""


def strategy_module() -> str:
    """Return the types of the keywords of one strategy, and of columns of strategies."""
    fields = Strategy.model_json_schema()["properties"]
    words = dict(_literals(fields))
    lines = [
        _HEAD.format(
            title="Types of the fields of a strategy as keywords, and as columns.",
            source="Strategy.model_fields",
            more=_STRATEGY_HEAD,
        )
    ]
    lines += [
        f"{name} = Literal[\n" + "".join(f'    "{word}",\n' for word in items) + "]\n"
        for items, name in words.items()
    ]
    lines.append(_record("StrategyKeywords", "Fields of a strategy.", _typed(fields, words)))
    plain = _typed(fields, words, levels=False)
    columns = {name: f"Column[{kind}]" for name, kind in plain.items()}
    lines.append(_record("StrategyColumns", "Fields of several strategies.", columns))
    return "\n".join(lines)


def space_module() -> str:
    """Return the types of the keywords of a space."""
    fields = Strategy.model_json_schema()["properties"]
    words = {items: f"of_strategy.{name}" for items, name in _literals(fields)}
    plain = {
        name: f"Choices[{kind}]"
        for name, kind in _typed(fields, words, levels=False).items()
        if name in Space.model_json_schema()["properties"]
    }
    own = Space.model_json_schema()["properties"]
    plain |= {
        name: f"Literal[{', '.join(map(_quoted, field['enum']))}]"
        for name, field in own.items()
        if name not in fields
    }
    head = _HEAD.format(
        title="Types of the fields of a space as keywords.",
        source="Space.model_fields",
        more=_SPACE_HEAD,
    )
    layout = {name: kind for name, kind in plain.items() if name not in _WORK}
    work = {name: plain[name] for name in _WORK}
    return "\n".join(
        [
            head.rstrip() + "\n",
            _record("LayoutKeywords", "Fields of a space but the size of the work.", layout),
            _record("SpaceKeywords", "Fields of a space.", work, base="LayoutKeywords"),
        ]
    )


def _record(
    name: str, title: str, fields: Mapping[str, str], base: str = "TypedDict, total=False"
) -> str:
    total = "" if "TypedDict" in base else ", total=False"
    lines = "\n".join(f"    {field}: {kind}" for field, kind in fields.items())
    return f'\nclass {name}({base}{total}):\n    """{title}"""\n\n{lines}\n'


def _quoted(word: str) -> str:
    return f'"{word}"'


def _literals(fields: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Words of each field that has some, with the name of their type; equal ones once."""
    found: dict[tuple[str, ...], str] = {}
    for field, schema in fields.items():
        for one in _members(schema):
            items = one.get("items", one)
            if "enum" in items:
                name = "".join(part.capitalize() for part in field.split("_"))
                found.setdefault(tuple(items["enum"]), name)
    yield from found.items()


def _enum_of(items: tuple[str, ...]) -> str:
    """Name of the enum whose words these are, aliases aside."""
    kinds = unfold(tuple(field.annotation for field in Strategy.model_fields.values()))
    items_of = [unfold(typing.get_args(kind) or kind) for kind in kinds]
    found = {
        kind.__name__: len(kind)
        for one in items_of
        for kind in one
        if isinstance(kind, type) and issubclass(kind, Word) and set(kind) <= set(items)
    }
    return max(found, key=lambda name: found[name])


def _members(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return schema.get("anyOf", [schema])


def _typed(
    fields: Mapping[str, Any], words: Mapping[tuple[str, ...], str], *, levels: bool = True
) -> dict[str, str]:
    """The type of each field, in the order of `Strategy`, short names after their fields.

    Parameters
    ----------
    levels
        Whether degrees may be levels, which are text.
    """
    found: dict[str, str] = {}
    for name in _ordered(fields):
        members = [
            one
            for one in _members(fields[name])
            if levels or name not in LEVELLED_AXES or one.get("type") != "string"
        ]
        kinds = [kind for one in members for kind in _kinds(one, words)]
        kinds += _IN_PYTHON.get(name, ())
        found[name] = " | ".join(sorted(dict.fromkeys(kinds), key=lambda kind: kind == "None"))
    return found


def _ordered(fields: Mapping[str, Any]) -> list[str]:
    short = {name: field.validation_alias for name, field in Strategy.model_fields.items()}
    names = []
    for name in Strategy.model_fields:
        aliases = getattr(short[name], "choices", [name])
        names += [str(alias) for alias in aliases if alias in fields]
    return names


def _kinds(schema: Mapping[str, Any], words: Mapping[tuple[str, ...], str]) -> list[str]:
    """Types of one member of a union."""
    if "enum" in schema:
        items = tuple(schema["enum"])
        return [words[items], f"enums.{_enum_of(items)}"]
    kind = schema.get("type")
    if kind == "array":
        return [f"Sequence[{' | '.join(_kinds(schema['items'], words))}]", "str"]
    if kind is None or kind == "object":
        return ["Mapping[str, Any]"]
    return [_PLAIN[kind]]


FILES: dict[Path, Callable[[], str]] = {
    _SOURCE / "config" / "keywords.py": strategy_module,
    _SOURCE / "planning" / "search" / "keywords.py": space_module,
}


def main(arguments: Sequence[str]) -> int:
    """Write the types, then what tests compare with files, in the environment that writes it."""
    for path, text in FILES.items():
        path.write_text(text(), encoding="utf-8")
    every = (_ROOT / "tests").rglob("test_*.py")
    pages = [str(one) for one in every if "from generated import" in one.read_text("utf-8")]
    tests = _QUICK if "--quick" in arguments else sorted(pages)
    if "--quick" not in arguments:  # what a run assumes depends on what fits
        command = [sys.executable, "tools/measured_rows.py", "--catalog"]
        subprocess.run(command, cwd=_ROOT, check=True)  # noqa: S603 - fixed words
    # Two tests may write one page.
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-m", "", *tests]
    environment = os.environ | {"SHARDWISE_UPDATE_DOCS": "1"}
    return subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode  # noqa: S603 - fixed words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
