"""Imports go one way: nouns, operations, costs, schedule and memory, results, reports, verbs."""

import ast
from pathlib import Path

import pytest

import shardwise

PACKAGE = Path(shardwise.__file__).parent

# From the bottom up; a module imports only from its own row and the rows above it here.
LAYERS = [
    ["_version", "errors", "catalog", "arrays", "words"],
    ["seats"],
    ["units", "files"],
    ["parameters"],
    ["noun"],
    ["formats"],
    ["kernels", "model", "network", "stack"],
    ["system"],
    ["system_columns"],
    ["levels"],
    ["strategy"],
    ["strategy_given"],
    ["tabulate"],
    ["table"],
    ["stages"],
    ["placement"],
    ["ops"],
    ["rules"],
    ["peers"],
    ["cost"],
    ["schedule"],
    ["blocks"],
    ["placed_blocks"],
    ["weights"],
    ["memory"],
    ["slowest"],
    ["pipeline"],
    ["replica_windows"],
    ["replicas"],
    ["step"],
    ["evaluate"],
    ["on_systems"],
    ["record"],
    ["goodput", "reliability", "training_time"],
    ["breakdown_record", "gemm_record", "training"],
    ["training_run"],
    ["results"],
    ["uncertainty"],
    ["recompute"],
    ["part_runs"],
    ["detail", "operations", "totals"],
    ["breakdown"],
    ["gemms", "graph"],
    ["timeline"],
    ["estimator"],
    ["whole_run"],
    ["searcher"],
    ["sweeper"],
    ["scenarios"],
    ["fsdp"],
    ["counterparts", "reference"],
    ["comparison"],
    ["measured"],
    ["calibrate"],
    ["validate"],
    ["report"],
    ["cli"],
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
MATHS = {
    "arrays",
    "blocks",
    "cost",
    "evaluate",
    "goodput",
    "on_systems",
    "memory",
    "ops",
    "peers",
    "placed_blocks",
    "placement",
    "schedule",
    "step",
    "system_columns",
    "timeline",
    "training_time",
    "weights",
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def _part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise"):
            if node.module == "shardwise":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path):
    """No module reaches up: the maths knows nothing of tables and verbs."""
    above = {name for name in _imported(path) if RANK[name] > RANK[_part(path)]}
    assert above == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_maths_does_not_print_read_or_log(path):
    """Operations, costs, schedule and memory are pure: no files, no output, no clock."""
    if _part(path) not in MATHS:
        return
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert names & {"os", "sys", "time", "random", "logging", "pathlib", "Path"} == set()


def test_files_stay_small():
    """A file of more than 400 lines holds two ideas, be it of tests."""
    places = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.glob("*.py")]
    long = {path.name: len(path.read_text().splitlines()) for path in places}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
