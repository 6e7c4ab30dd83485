"""The pages for users of other tools: each place that a table names exists; each key has a row."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import shardwise
from cli_options import options
from rows import each_row
from shardwise import catalog
from shardwise.cli import VERBS
from shardwise.cli.schema import SCHEMAS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.launchers.cli.export import THINGS
from shardwise.launchers.registry import LAUNCHERS
from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.predecessors.amped.files import KNOWN
from shardwise.predecessors.amped.reference import LABELS
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonMemory,
    CalculonModel,
    CalculonNetwork,
    CalculonProcessor,
    CalculonSystem,
)
from shardwise.predecessors.fsdp_ilp.files import _Orders, _Statistics
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.tables import NERSC
from shardwise.predecessors.simumax import files as simumax
from shardwise.validate import COLLECTIONS, SUITES

FOLDER = Path(__file__).parents[2] / "docs" / "from"
PAGES = [page for page in sorted(FOLDER.glob("*.md")) if page.stem not in ("index", "features")]
HEAD = "| there | here |"
# A place that is none, and says so.
NONE = ("no effect", "not needed", "no place", "refused", "the same", "always")
_CODE = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"[\w.-]+")
_VALUE = re.compile(r"[A-Z0-9=.,:x*~/+-]+|.*\.(?:json|yaml|csv|npy|html|txt|pickle|parquet|gz|log)")


def _rows(page: Path) -> list[tuple[str, str]]:
    """Both cells of every row of the tables of features."""
    found, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line != HEAD and not line.startswith("|---"):
            there, here = re.split(r"(?<!\\)\|", line)[1:3]
            found.append((there.strip(), here.strip().replace("\\|", "|")))
    return found


def _names_of(schema: Any) -> Iterator[str]:
    """Properties and values of a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (word for word in schema.get("enum", ()) if isinstance(word, str))
        yield from (schema["const"],) if isinstance(schema.get("const"), str) else ()
        for value in schema.values():
            yield from _names_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _names_of(value)


@cache
def _names() -> frozenset[str]:
    """Fields and their values, results, entries of the catalog, suites, verbs and Python names."""
    found = {*VERBS, *shardwise.__all__, *OBJECTIVES, *SUITES, *COLLECTIONS}
    found.update(TIME_PARTS, THINGS, (one.name for one in LAUNCHERS))
    for kind, config in SCHEMAS.items():
        modes = ("validation", "serialization") if kind == "estimate" else ("validation",)
        for mode in modes:
            found.update(_names_of(config.model_json_schema(mode=mode)))
    system = shardwise.System.load("h100-sxm")
    found.update(tier.name for tier in (*system.network, *system.accelerator.memory))
    found.update(("inner", "outer"))  # tiers of any system, in a sweep
    found.update(NerscSystem.model_fields, ("nics",))  # what a sweep varies
    for kind in ("models", "systems", "stacks"):
        found.update(catalog.names(kind))
    return frozenset(found)


def _unknown(code: str) -> Iterator[str]:
    """Words of one inline code that no verb, flag, field, value or entry has."""
    words = code.replace("[]", "").split()
    verb = words[0] if words[0] in VERBS else ""
    flags, help_of = options()[verb], ""
    for word in words[bool(verb) :]:
        if word.startswith("-"):
            name = word.split("=")[0]
            if name not in flags:
                yield f"{verb} {name}"
            help_of = flags.get(name, "")
        elif not (_VALUE.fullmatch(word) or word in help_of):
            yield from (part for part in re.findall(_WORD, word) if not _known(part))


def _known(word: str) -> bool:
    names = _names()
    return word[0].isdigit() or word in names or all(part in names for part in word.split("."))


def test_every_page_has_tables_of_features():
    """One page for each tool whose keys are known."""
    assert {page.stem for page in PAGES} == set(KEYS)
    assert all(len(_rows(page)) > 40 for page in PAGES)


@each_row("page", PAGES)
def test_each_place_exists(page):
    """Verbs, their flags, fields, values, entries of the catalog; a row without one says why."""
    wrong = []
    for there, here in _rows(page):
        codes = _CODE.findall(here)
        wrong += [f"{there}: {word}" for code in codes for word in _unknown(code)]
        if not codes and "](" not in here and not here.startswith(NONE):
            wrong.append(f"{there}: no place")
    assert wrong == []


def _fields(*configs: Any) -> set[str]:
    return {name for config in configs for name in config.model_fields}


KEYS = {
    "amped": {*KNOWN, *LABELS},
    "calculon": _fields(
        *(CalculonModel, CalculonExecution, CalculonSystem),
        *(CalculonProcessor, CalculonMemory, CalculonNetwork),
    ),
    "fsdp-ilp": _fields(_Orders, _Statistics),
    "nersc": _fields(NerscModel, NerscSystem) | {row.name for row in NERSC},
    "simumax": _fields(
        *(simumax.SimumaxModel, simumax.SimumaxStrategy, simumax.SimumaxSystem),
        *(simumax.SimumaxNetworks, simumax.SimumaxAccelerator, simumax.SimumaxCollective),
    ),
}


@each_row("page", KEYS)
def test_each_key_of_their_files_has_a_row(page):
    """Fields of inputs and outputs that the readers know."""
    named = {name for there, _ in _rows(FOLDER / f"{page}.md") for name in _CODE.findall(there)}
    assert sorted(KEYS[page] - named) == []


# Flags, arguments, fields and results, as scripts/predecessor_names.py finds them in their code.
FILE = Path(__file__).parents[1] / "data" / "predecessor_names.yaml"
NAMES = {
    tool: {name for names in found["names"].values() for name in names}
    for tool, found in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
}


@each_row("page", KEYS)
def test_each_name_of_their_code_is_on_the_page(page):
    """A search of the site for a word of theirs finds the page, in a left cell of a table."""
    lines = (FOLDER / f"{page}.md").read_text(encoding="utf-8").splitlines()
    left = [line.split("|")[1] for line in lines if line.startswith("|")]
    codes = {code for cell in left for code in _CODE.findall(cell)}
    words = {word for code in codes for word in re.findall(r"[\w-]+", code)}
    assert sorted(NAMES[page] - codes - words) == []
