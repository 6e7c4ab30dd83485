"""The documentation as a site: built strictly, without broken links, and without another host.

It needs the extra `docs`; what a browser shows, playwright and Debian's Chromium, too.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import shardwise
from rows import each_row

pytest.importorskip("material", reason="needs the extra docs")

ROOT = Path(__file__).parents[2]
TAG = re.compile(r"<([a-z][a-z0-9]*)\s([^>]*)>")
ATTRIBUTE = re.compile(r'\b(id|name|href|src|srcset|data|poster|class)="([^"]*)"')
NARROW, WIDE = 400, 1600
# Guides that answer the questions of the first page.
QUESTIONS = ("fit", "layout", "time-and-cost", "cluster", "slow-run", "fsdp-units")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": paths}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@cache
def tags(path):
    """Each tag of a page that has attributes, with those that name or lead to something."""
    text = path.read_text(encoding="utf-8")
    return [
        (name, {key: unescape(value) for key, value in ATTRIBUTE.findall(attributes)})
        for name, attributes in TAG.findall(text)
    ]


@cache
def anchors(path):
    """Names that links to parts of a page may use."""
    return {found[key] for _, found in tags(path) for key in ("id", "name") if key in found}


def pages(site):
    """All pages but the one for wrong addresses, whose links start at the root of a server."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def test_every_link_leads_somewhere(site):
    """Links and resources inside the site exist, with their anchors, in generated pages too."""
    broken = []
    for page in pages(site):
        for _, found in tags(page):
            for key in ("href", "src"):
                link = urlsplit(found.get(key, ""))
                if key not in found or link.scheme or link.netloc:
                    continue
                target = (page.parent / unquote(link.path)).resolve() if link.path else page
                target = target / "index.html" if target.is_dir() else target
                fragment = unquote(link.fragment)
                exists = target.is_relative_to(site) and target.is_file()
                if exists and fragment and target.suffix == ".html":
                    exists = fragment in anchors(target)
                if not exists:
                    broken.append((page.name, found[key]))
    assert broken == []


def test_no_page_loads_anything_from_another_host(site):
    """Only links that a reader clicks lead elsewhere."""
    foreign = []
    for page in pages(site):
        for name, found in tags(page):
            loads = [found[key] for key in ("src", "srcset", "data", "poster") if key in found]
            loads += [found["href"]] if name != "a" and "href" in found else []
            foreign += [(page.name, one) for one in loads if "//" in one]
            # The script of the theme would load what draws these.
            foreign += [page.name] if "mermaid" in found.get("class", "").split() else []
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        foreign += re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^)'\"]+)", text)
    assert foreign == []


def test_every_public_name_is_documented(site):
    """The pages of the Python API have an anchor for each name of the package."""
    found = set().union(*(anchors(page) for page in (site / "reference/api").glob("*.html")))
    names = {f"shardwise.{name}" for name in shardwise.__all__ if not name.startswith("_")}
    assert names - found == set()


@pytest.fixture
def opened(browser, site):
    """A function that opens an empty page of some width and theme, without a server.

    Errors, and requests that leave the folder of the site, fail the test.
    """
    contexts, wrong = [], []

    def note(sent):
        if not sent.url.startswith((site.as_uri(), "data:", "blob:")):
            wrong.append(sent.url)

    def one(width=WIDE, theme="light"):
        size = {"width": width, "height": 1000}
        context = browser.new_context(viewport=size, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", note)
        return page

    yield one
    for context in contexts:
        context.close()
    assert wrong == []


def test_no_page_scrolls_sideways(opened, site):
    """Wide tables, formulas and console output scroll inside their own blocks."""
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    written = {site / path.with_suffix(".html") for path in sources} & set(pages(site))
    written |= set((site / "notebooks").glob("*.html"))
    one_of_each_folder = set({path.parent: path for path in pages(site)}.values())
    narrow, wide = opened(NARROW, "light"), opened(WIDE, "dark")
    for path in sorted(written | one_of_each_folder):
        fits(narrow, path)
    for path in sorted(one_of_each_folder):
        fits(wide, path)


def fits(page, path):
    """Open a page, and wait until it is no wider than the window, but not for long."""
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth", timeout=5_000)


@pytest.mark.parametrize(
    ("width", "theme", "scheme"), [(NARROW, "dark", "slate"), (WIDE, "light", "default")]
)
def test_search_finds_a_page_without_a_server(opened, site, width, theme, scheme):
    """Words typed into the search lead to the page about them, in the theme of the reader."""
    page = opened(width, theme)
    page.goto((site / "index.html").as_uri())
    assert page.locator("body").get_attribute("data-md-color-scheme") == scheme
    if width == NARROW:
        page.locator("label.md-header__button[for='__search']").click()
    page.locator("input.md-search__input").press_sequentially("max1550-tile")
    first = page.locator(".md-search-result__link").first
    first.wait_for(timeout=30_000)
    first.click()
    page.wait_for_url("**/catalog/systems/max1550-tile.html?*")


@pytest.mark.parametrize("guide", QUESTIONS)
def test_a_question_is_answered_after_three_clicks(opened, site, guide):
    """Links with the text of the question lead from the first page to a command and its answer."""
    title = (ROOT / f"docs/guides/{guide}.md").read_text(encoding="utf-8").splitlines()[0][2:]
    assert title.endswith("?")
    page = opened()
    page.goto((site / "index.html").as_uri())
    for _ in range(3):
        asked = page.get_by_role("link", name=title, exact=True)
        if asked.count():
            asked.first.click()
            break
        page.get_by_role("link", name="Guides", exact=True).first.click()
    page.get_by_role("heading", name=title, level=1).wait_for()
    first = page.locator("article .language-console").first.inner_text()
    command, _, answer = first.partition("\n")
    assert command.startswith("$ shardwise ")
    assert len(answer.splitlines()) > 3


@each_row("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")))
def test_notebooks_are_stored_as_they_are_written(path):
    """Without outputs: the site has those of the last build."""
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_pages_of_notebooks_show_what_their_cells_do(opened, site):
    """Each has tables and drawn charts; the build fails if a cell does."""
    page = opened()
    notebooks = sorted((site / "notebooks").glob("*.html"))
    assert len(notebooks) == 3
    for path in notebooks:
        page.goto(path.as_uri())
        charts = page.locator(".notebook-chart")
        assert charts.count() >= 2
        charts.last.locator("svg.main-svg").first.wait_for()
        assert page.locator(".notebook-output table").count() >= 1
