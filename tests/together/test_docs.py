"""Everything the documentation shows is run, and shows what it shows."""

import doctest
import importlib
import pkgutil
import re
from contextlib import redirect_stdout
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

import shardwise
from cli_options import options
from generated import check
from rows import each_row
from shardwise.cli import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages and modules whose examples take seconds; .ci/run looks at them too.
SLOW = [
    ROOT / "docs" / name
    for name in (
        "guides/cluster.md",
        "guides/fit.md",
        "guides/fsdp-units.md",
        "guides/layout.md",
        "guides/slow-run.md",
        "guides/time-and-cost.md",
        "reference/co-design.md",
        "reference/largest-model.md",
        "reference/search.md",
        "reference/search-space.md",
        "reference/sweep.md",
    )
]
SLOW_MODULES = (
    "shardwise.fsdp.api",
    "shardwise.fsdp.result",
    "shardwise.planning.cluster_choice",
    "shardwise.planning.cluster_choice",
    "shardwise.launchers.diagnose.results",
    "shardwise.launchers.diagnose.run",
    "shardwise.planning.search.explain",
    "shardwise.planning.search.largest_model",
    "shardwise.planning.search.results",
    "shardwise.planning.search.run",
    "shardwise.validate",
)
NEEDS_TORCH = ("shardwise.measure.modules", "shardwise.measure.worker")
GLOBAL = ("--verbose", "--log")  # may stand after the verb, too
CONSOLE = re.compile(r"```console\n\$ shardwise (.*)\n((?:.*\n)*?)```")


@cache
def _output(command):
    out = StringIO()
    with redirect_stdout(out):
        run(command.split())
    lines = [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def _name(page):
    return str(page.relative_to(ROOT))


def _each(cases, slow, name=str):
    """Parameters of a test; those that take seconds are left to .ci/run."""
    return [
        pytest.param(one, marks=pytest.mark.nightly if one in slow else (), id=name(one))
        for one in cases
    ]


@pytest.mark.parametrize("page", _each(PAGES, SLOW, _name))
def test_commands_print_what_the_page_shows(page):
    """Each `$ shardwise ...` of a page prints exactly the lines below it."""
    text = page.read_text(encoding="utf-8")
    check(page, CONSOLE.sub(lambda m: f"```console\n$ shardwise {m[1]}\n{_output(m[1])}```", text))


@pytest.mark.parametrize("page", _each(PAGES, SLOW, _name))
def test_python_examples_give_what_the_page_shows(page):
    """Each `>>>` of a page gives the lines below it."""
    text = page.read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report = StringIO()
    result = doctest.DocTestRunner(verbose=False).run(examples, out=report.write)
    assert result.failed == 0, report.getvalue()


@pytest.mark.parametrize("slow", _each((False, True), (True,)))
def test_docstring_examples_hold(slow):
    """Each `>>>` in a docstring of the package gives what it shows."""
    names = [m.name for m in pkgutil.walk_packages(shardwise.__path__, "shardwise.")]
    assert set(SLOW_MODULES) <= set(names)
    if find_spec("nicegui") is None:  # an extra
        names = [name for name in names if not name.startswith("shardwise.web.")]
    if find_spec("torch") is None:
        names = [name for name in names if name not in NEEDS_TORCH]
    modules = [importlib.import_module(one) for one in names if (one in SLOW_MODULES) == slow]
    shown = [m for m in modules if ">>>" in Path(m.__file__).read_text(encoding="utf-8")]
    results = [doctest.testmod(module) for module in shown]
    assert sum(result.attempted for result in results) > 0
    assert sum(result.failed for result in results) == 0


def test_links_between_pages_lead_somewhere():
    """Relative links point at files that exist."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{_name(page)}: {target}"


def test_slow_pages_exist():
    """A page that moves is moved in the list of slow pages too."""
    assert [page for page in SLOW if not page.exists()] == []


BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@each_row("page", PAGES)
def test_commands_have_the_options_that_the_page_shows(page):
    """Each `shardwise VERB --flag` of a block that is not run."""
    text = page.read_text(encoding="utf-8")
    shown = "\n".join(block for kind, block in BLOCK.findall(text) if kind in ("", "sh", "bash"))
    lines = shown.replace("\\\n", " ").splitlines()
    for line in (line.split(" #")[0] for line in lines):
        words = line.split()
        if words[:1] == ["shardwise"] and re.match("[a-z]", words[1]):
            assert words[1] in options(), line
            flags = {word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
            assert flags <= {*options()[words[1]], *GLOBAL}, line
