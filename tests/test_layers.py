"""Imports go one way: config, operations, costs, one step, analysis, other tools, verbs."""

import ast
from functools import cache
from pathlib import Path

import pytest

import shardwise
from shardwise.registry import PACKAGES

PACKAGE = Path(shardwise.__file__).parent

# From the bottom up; a module imports from its own row and the rows above it here. `__init__` names
# where the public names live, of the packages around the core, too.
LAYERS = [
    [
        "_version",
        "errors",
        "registry",
        "catalog",
        "arrays",
        "distinct",
        "frozen",
        "records",
        "shown",
        "units",
    ],
    ["config"],
    ["ops"],
    ["parallel"],
    ["cost"],
    ["engine"],
    ["analysis"],
    ["estimator", "foreign"],
    ["planning", "validate"],
    ["report"],
    ["cli"],
    list(PACKAGES),
    ["__main__"],
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
MATHS = {"arrays", "ops", "parallel", "cost", "engine"}
IMPURE = {"os", "sys", "time", "random", "logging", "pathlib", "Path"}
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"
)


def _room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def _imports(path):
    """Statements that import, which several tests look at."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]


def _imported(path):
    for node in _imports(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise"):
            if node.module == "shardwise":
                yield from (alias.name for alias in node.names if alias.name in RANK)
            else:
                yield node.module.split(".")[1]


def test_a_module_imports_only_from_below():
    """The maths knows nothing of tables and verbs; the core, of no package around it."""
    upward = {
        (str(path.relative_to(PACKAGE)), name)
        for path in MODULES
        for name in _imported(path)
        if RANK[name] > RANK[_room(path)]
    }
    assert upward == set()


@pytest.mark.needs("predecessors")
def test_every_package_has_its_place():
    """A new package at the top level takes a row of its own in the chain."""
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__"} == set(RANK)


def test_the_maths_does_not_print_read_or_log():
    """Operations, layouts, costs and the step are pure: no files, no output, no clock."""
    impure = {}
    for path in MODULES:
        names = {alias.name.split(".")[0] for node in _imports(path) for alias in node.names}
        if _room(path) in MATHS and names & IMPURE:
            impure[str(path.relative_to(PACKAGE))] = names & IMPURE
    assert impure == {}


def test_files_stay_small():
    """A file holds one idea, at most 900 lines, be it of tests."""
    places = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    long = {path: len(path.read_text().splitlines()) for path in places}
    assert {path: lines for path, lines in long.items() if lines > 900} == {}
