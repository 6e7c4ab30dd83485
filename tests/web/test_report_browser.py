"""Pages in a browser: charts are drawn in both themes and widths, and nothing is requested."""

import pytest

from shardwise import compare, estimate, search, sweep
from shardwise.report.charts.estimate import write_charts
from shardwise.report.page import compare as compare_page
from shardwise.report.page import estimate as estimate_page
from shardwise.report.page import search as search_page
from shardwise.report.page import sweep as sweep_page
from shardwise.report.page.shared import write_report

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")
playwright = pytest.importorskip("playwright.sync_api")

STRATEGY = {"gpus": 16, "tp": 4, "gbs": 32}
READY = "document.documentElement.dataset.ready === 'true'"
# What the driver of a machine without a graphics card says of the canvas.
HARMLESS = ("GPU stall", "willReadFrequently", "WebGL")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A page of charts, and a report of each verb."""
    folder = tmp_path_factory.mktemp("pages")
    result = estimate("llama3-8b", "h100-sxm", STRATEGY, operations=True)
    other = estimate("llama3-8b", "h100-sxm", STRATEGY | {"tp": 2})
    found = search(
        "llama3-8b", "h100-sxm", gpus=(16, 32), gbs=32, axes=("tp", "pp"), pareto="memory"
    )
    vary = {"nvlink.bandwidth": "0.5x,1x,2x", "hbm.capacity": "0.75x,1x,1.5x"}
    swept = sweep("llama3-8b", ["h100-sxm"], {"gpus": 16, "gbs": 32}, vary=vary)
    write_charts(result, folder / "charts.html")
    reports = {
        "estimate": estimate_page.report_of(result, "shardwise"),
        "search": search_page.report_of(found, "shardwise"),
        "sweep": sweep_page.report_of(swept, "shardwise", []),
        "compare": compare_page.report_of(compare(result, other), "shardwise"),
    }
    for name, report in reports.items():
        write_report(report, str(folder / f"{name}.html"))
    return {file.stem: file for file in folder.iterdir()}


class Visit:
    """A page that is open, with what it requested and what its console said."""

    def __init__(self, browser, file, *, width, theme, script=""):
        self.requests, self.messages = [], []
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme
        )
        self.page = self.context.new_page()
        if script:
            self.page.add_init_script(script)
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("pageerror", lambda one: self.messages.append(str(one)))
        self.page.on("console", lambda one: self.messages.append(one.text))
        self.page.goto(file.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("name", ["charts", "estimate", "search", "sweep", "compare"])
@pytest.mark.parametrize(("width", "theme"), [(400, "light"), (1600, "dark")])
def test_all_charts_are_drawn(browser, files, name, width, theme):
    """In the theme, in a window that does not scroll sideways, without request or error."""
    with Visit(browser, files[name], width=width, theme=theme) as visit:
        visit.page.wait_for_function(READY)
        boxes = visit.page.locator("[data-chart]")
        assert boxes.count() > 1
        for number in range(boxes.count()):
            box = boxes.nth(number)
            assert box.get_attribute("data-drawn") == theme
            assert box.locator("svg").count() > 0
        wide = visit.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        assert visit.requests == [files[name].as_uri()]
        bad = [m for m in visit.messages if not any(word in m for word in HARMLESS)]
        assert bad == []
        assert visit.page.locator("[data-failure]").is_hidden()


def test_charts_keep_their_height_on_narrow_screens(browser, files):
    """Legends and labels add to it instead of taking from it."""
    with Visit(browser, files["search"], width=400, theme="light") as visit:
        visit.page.wait_for_function(READY)
        lacks = visit.page.evaluate(
            """[...document.querySelectorAll('[data-chart]')].map(
              (box) => box._fullLayout._size.h - box._fullLayout.meta.inner_height)"""
        )
        assert lacks
        assert all(abs(one) <= 2 for one in lacks)


def test_a_change_of_the_theme_draws_again(browser, files):
    """Text of charts is readable on both."""
    with Visit(browser, files["charts"], width=800, theme="light") as visit:
        visit.page.wait_for_function(READY)
        color = "document.querySelector('[data-chart]')._fullLayout.font.color"
        before = visit.page.evaluate(color)
        visit.page.emulate_media(color_scheme="dark")
        visit.page.wait_for_function(
            "[...document.querySelectorAll('[data-chart]')].every(b => b.dataset.drawn === 'dark')"
        )
        assert (before, visit.page.evaluate(color)) == ("#22272e", "#e6edf3")


def test_a_browser_that_cannot_unpack_says_so(browser, files):
    """Tables and text are there; the message names browsers that can."""
    old = "delete window.DecompressionStream"
    with Visit(browser, files["estimate"], width=800, theme="light", script=old) as visit:
        note = visit.page.locator("[data-failure]")
        note.wait_for(state="visible")
        assert "DecompressionStream" in note.inner_text()
        assert visit.page.locator("table").count() > 0


def test_tables_scroll_by_keyboard(browser, files):
    """In boxes that the tab key reaches."""
    with Visit(browser, files["estimate"], width=400, theme="light") as visit:
        visit.page.wait_for_function(READY)
        boxes = visit.page.locator("div.scroll[role=region]")
        most = max(
            boxes.nth(n).evaluate("box => box.scrollWidth - box.clientWidth")
            for n in range(boxes.count())
        )
        assert most > 0
        for n in range(boxes.count()):
            boxes.nth(n).focus()
            assert boxes.nth(n).evaluate("box => box === document.activeElement")
