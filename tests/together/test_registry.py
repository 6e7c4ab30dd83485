"""What is imported by name, where it is used, exists."""

import ast
from pathlib import Path

import pytest

import shardwise
from shardwise import registry
from shardwise.errors import InputError

PACKAGE = Path(shardwise.__file__).parent
PREFIXES = {"load": "", "printed": "report.tables."}


def _calls():
    """Names of functions that are called, with their first argument if that is a text."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                yield getattr(node.func, "attr", getattr(node.func, "id", "")), node.args[0].value


def test_all_that_packages_add_can_be_imported():
    """Verbs, formats, views, saved results, suites and functions."""
    homes = [home for one in registry.additions() for home in one.formats]
    homes += [verb.home for _, verb in registry.added("verbs")]
    homes += [home for kind in ("views", "functions") for _, home in registry.added(kind)]
    homes += [home for kind in ("saved", "suites") for _, (_, home) in registry.added(kind)]
    assert len(homes) > 30
    assert [home for home in homes if registry.load(home) is None] == []


def test_what_the_code_names_can_be_imported():
    """Tables, charts and reports that verbs import late, and functions of other packages."""
    calls = list(_calls())
    homes = [PREFIXES[name] + text for name, text in calls if name in PREFIXES and ":" in text]
    assert len(homes) > 30
    assert [home for home in homes if registry.load(home) is None] == []
    named = {text for name, text in calls if name in ("function", "find") and text.islower()}
    added = dict(registry.added("functions"))
    assert {name for name in named if "_" in name} <= set(added)


def test_a_function_that_no_package_adds_is_refused():
    """It says which packages could add it."""
    with pytest.raises(InputError, match=r"^nothing: is not installed: it comes with one of "):
        registry.function("nothing")
