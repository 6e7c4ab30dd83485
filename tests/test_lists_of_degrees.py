"""Degrees are listed in `config`, with the fields; all other code derives its lists from there."""

import ast
from pathlib import Path

import pytest

from shardwise import config
from shardwise.config.strategy_fields import DEGREES

ROOT = Path(config.__file__).parents[1]
# Other tools have their own words and options for degrees.
ELSEWHERE = ("config", "predecessors", "launchers", "huggingface")
ALLOWED = {
    "analysis/coverage.py": "the features that pages and tables list",
    "cli/peers.py": "the flags that a short help lists first",
    "measure/buildable.py": "what it trains",
    "measure/training.py": "what it trains, in the name of a run",
    "parallel/constraints/software.py": "the columns that a rule reads",
    "parallel/effects.py": "arguments of a formula, by name",
    "report/tables/recipes.py": "columns in the order that publications print",
    "web/views.py": "columns in the order of the page",
}
MOST = 2


def hand_lists(text: str) -> list[tuple[int, set[str]]]:
    """Lines and degrees of literals and patterns that list three degrees or more."""
    found = []
    for node in ast.walk(ast.parse(text)):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
        if isinstance(node, ast.MatchOr):
            items = [one.value for one in node.patterns if isinstance(one, ast.MatchValue)]
        named = {one.value for one in items if isinstance(one, ast.Constant)} & {*DEGREES}
        if len(named) > MOST:
            found.append((node.lineno, named))
    return found


@pytest.mark.needs("web")
def test_modules_derive_lists_of_degrees_from_the_fields() -> None:
    """No tuple, list, set or mapping outside `config` names three degrees or more."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{line}": sorted(names)
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ELSEWHERE
        and path.relative_to(ROOT).as_posix() not in ALLOWED
        for line, names in hand_lists(path.read_text(encoding="utf-8"))
    }
    assert found == {}, "derive it from shardwise.config.strategy_fields"


@pytest.mark.parametrize(
    "text",
    [
        'a = ("tp", "pp", "dp")',
        'a = [*b, "tp", "cp", "ep"]',
        'a = {"tp", "pp", "dp", "zero"}',
        'a = {"tp": 1, "pp": 2, "vpp": 3, **b}',
        'match a:\n    case "tp" | "pp" | "ep":\n        pass',
    ],
)
def test_every_form_of_a_list_is_found(text: str) -> None:
    """As are displays with unpacked items and alternatives of a pattern."""
    assert hand_lists(text)
    assert not hand_lists(text.replace('"tp"', '"zero"'))
