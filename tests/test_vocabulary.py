"""README, pages, help, messages and catalog use the words of the field, as the glossary does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rows import each_row

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "shardwise"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Descriptions and sources of the catalog, which its pages show; examples, notebooks, scripts.
DATA = [
    *sorted((PACKAGE / "catalog").rglob("*.yaml")),
    *sorted((ROOT / "docs").rglob("*.yaml")),
    *sorted((ROOT / "docs").rglob("*.ipynb")),
]
CODE = [
    *sorted({path.parent for path in PACKAGE.glob("*/__init__.py")}),
    *sorted(PACKAGE.glob("*.py")),
    *(ROOT / name for name in ("scripts", "benchmarks", "tools")),
]

# What is not written, and the word that is meant.
WRITE = {
    r"exchang(?:es?|ed|ing)": "communication, collective, or the name of the collective",
    r"told": "set, specified",
    r"given": "set, specified",
    r"ask(?:ed|s)": "requested, required",
    r"held": "resident, stored",
    r"kept": "saved, resident",
    r"taken": "used, chosen",
    r"whole": "full, total; `training run`",
    r"beside": "next to, in addition to",
    r"ahead": "forward",
    r"forward (?:and|or|,) back": "forward and backward",
    r"back pass(?:es)?": "backward pass",
    r"fullest": "peak-memory stage",
    r"slowest stages?": "critical stage",
    r"runs? of (?:\w+ )?(?:stages|layers)": "stage group",
    r"dear(?:er|est)?": "expensive, slow",
    r"cheap(?:er|est)?": "fast",
    r"seat(?:s|ed)?": "placement, placed",
    r"blocks? of costs?|placed blocks?": "layer cost",
    r"judg(?:es?|ed|ing)": "evaluate",
    r"(?:a|one|the|each) look": "scan",
    r"near": "close to; nearest",
    r"spreads? of (?:\w+ )?layers": "layer split",
    r"nouns?": "config type, or its name",
    r"of ours": "of shardwise",
    r"akin": "similar",
    r"unsaid": "not set",
    r"each is shown by": "to see each:",
    r"is the safer": "is safer",
    r"(?:un|re)?(?:model|label)l(?:ed|ing)": "one l, as Americans do",
    r"(?:re)?(?:optim|normal|quant|recogn|util|minim|maxim|summar|organ|initial|general|special"
    r"|serial|factor|real|synchron|parallel|vector)is(?:e[sd]?|ing|ations?)": "-ize",
    r"(?:colou|neighbou|behaviou|favou|honou|labou)r\w*": "-or",
    r"licences?|centres?|grey|catalogues?|programmes?|artefacts?|analyse[sd]?|defence": "American",
}

# Where one of these words is the right one: the words around it, and why.
RIGHT = {
    "whole numbers?": "a number without a fraction",
    "whole GB": "a size rounded to a gigabyte",
    "as a whole": "an idiom",
    "runs? ahead of": "the host queues kernels before the accelerator needs them",
    "host runs ahead": "the same",
    "near (?:and|backwards|forward|ones|stages)": "of DualPipe, where the others are the far ones",
    "cheapest": "of money",
    "[tc]p exchange": "the strategy fields `tp_exchange` and `cp_exchange` in tables",
    "permanent labelling": "a title",
    "given, looked up": "AMPeD's words for the origin of a figure",
    "(?:value: |layers, |loss, |compile: )whole|whole: 0": "a word of the field `compile`",
}

_WORDS = "|".join(rf"(?P<w{i}>{words})" for i, words in enumerate(WRITE))
_WORD = re.compile(rf"\b(?:{_WORDS})\b", re.IGNORECASE)
_RIGHT = re.compile("|".join(rf"\b(?:{words})\b" for words in RIGHT), re.IGNORECASE)
_CODE = re.compile(
    r"```.*?```|``[^`]*``|`[^`]*`|<!--.*?-->|\]\([^)]*\)|^ {4,}.*?$", re.DOTALL | re.MULTILINE
)


def wrong_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and complaint for each word that is not written."""
    prose = _CODE.sub(lambda m: re.sub(r"[^\n]", "`", m[0]), text)
    allowed = [match.span() for match in _RIGHT.finditer(prose)]
    for match in _WORD.finditer(prose):
        start, end = match.span()
        attached = prose[max(0, start - 1) : start] in set("_-.`") or prose[end : end + 1] in set(
            "_-`"
        )
        if attached or any(low <= start and end <= high for low, high in allowed):
            continue
        write = list(WRITE.values())[int(match.lastgroup[1:])]
        line = prose.count("\n", 0, start) + 1
        around = " ".join(text[max(0, start - 40) : end + 30].split())
        yield line, f"{match[0]!r} in {around!r}: write {write}"


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings and messages: constants of several words."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@each_row("page", PAGES)
def test_pages_use_the_words_of_the_field(page):
    """Prose, without code."""
    found = [f"{line}: {why}" for line, why in wrong_words(page.read_text(encoding="utf-8"))]
    assert found == []


def test_the_catalog_uses_the_words_of_the_field():
    """Data files, examples and notebooks, with their comments."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in DATA
        for line, why in wrong_words(path.read_text(encoding="utf-8"))
    ]
    assert len(DATA) > 100
    assert found == []


@pytest.mark.parametrize("place", CODE, ids=lambda place: place.name)
def test_messages_and_docstrings_use_the_words_of_the_field(place):
    """Help, messages, labels of tables and charts, and the reference pages made of docstrings."""
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in files
        for line, text in strings_of(path)
        for _, why in wrong_words(text)
    ]
    assert found == []
