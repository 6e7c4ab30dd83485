"""Reports: one page with question, answer, charts, tables, assumptions, sources and the command."""

import base64
import gzip
import html
import json
import re
import shlex
from html.parser import HTMLParser

import pytest

from rows import each_row
from shardwise import Model, compare, estimate, search, sweep
from shardwise.report.page import compare as compare_page
from shardwise.report.page import estimate as estimate_page
from shardwise.report.page import search as search_page
from shardwise.report.page import sweep as sweep_page
from shardwise.report.page.html import Chart, DataTable, Facts, Page, Section, packed, page_html
from shardwise.report.page.printed import joined, printed_blocks
from shardwise.report.page.shared import write_report
from shardwise.report.tables.estimate import print_estimate

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")

WORK = ("--gpus", 16, "--gbs", 32)
SECTIONS = [
    "Question",
    "Charts",
    "Results",
    "Assumptions and evidence",
    "Reproduce",
    "Sources of figures",
]
VERBS = {
    "estimate": ("estimate", "llama3-8b", "h100-sxm", *WORK, "--tp", 4, "--ops"),
    "search": ("search", "llama3-8b", "h100-sxm", *WORK, "--fix", "recompute=none", "--pareto"),
    "sweep": (
        *("sweep", "llama3-8b", "h100-sxm", *WORK, "--fixed", "--tp", 2),
        *("--vary", "nvlink.bandwidth=1x,2x"),
    ),
}


class Elements(HTMLParser):
    """Elements of a page in order, with their attributes; text of headings."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.headings = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note it."""
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        """It closes what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Note headings."""
        if self.open and re.fullmatch("h[1-6]", self.open[-1]):
            self.headings.append((self.open[-1], data))

    def named(self, tag):
        """Attributes of the elements of a name."""
        return [attributes for name, attributes in self.found if name == tag]


def unpacked(page, name):
    """What a page has packed, by the alphabet of Python's base 85."""
    (data,) = re.findall(rf'id="packed-{name}">([^<]*)<', page)
    letters = data.encode().translate(bytes.maketrans(b",.:", b"<>&"))
    return gzip.decompress(base64.b85decode(letters))


def charts_of(page):
    """The figures of a page."""
    return json.loads(unpacked(page, "charts"))["charts"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report of each verb that searches or estimates, by the command line, and its JSON."""
    from shardwise.cli import run  # noqa: PLC0415 - as users call it

    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name, command in VERBS.items():
        page, plain = folder / f"{name}.html", folder / f"{name}.json"
        words = [str(word) for word in command]
        assert run([*words, "--report", str(page), "--output", str(plain)]) == 0
        found[name] = page.read_text(encoding="utf-8"), json.loads(plain.read_text())
    one, two = (folder / f"{name}.json" for name in ("one", "two"))
    for file, tp in ((one, 2), (two, 4)):
        words = ["estimate", "llama3-8b", "h100-sxm", *map(str, WORK), "--tp", str(tp)]
        assert run([*words, "--output", str(file)]) == 0
    page, plain = folder / "compare.html", folder / "compare.json"
    words = ["compare", str(one), str(two)]
    assert run([*words, "--report", str(page), "--output", str(plain)]) == 0
    found["compare"] = page.read_text(encoding="utf-8"), json.loads(plain.read_text())
    return found


@pytest.fixture(params=["estimate", "search", "sweep", "compare"])
def name(request):
    """Each verb."""
    return request.param


def test_a_report_has_all_sections(pages, name):
    """In order, with one title, an answer and no level of headings left out."""
    elements = Elements(pages[name][0])
    assert elements.open == []
    assert [text for tag, text in elements.headings if tag == "h2"] == SECTIONS
    assert [tag for tag, _ in elements.headings].count("h1") == 1
    assert {tag for tag, _ in elements.headings} == {"h1", "h2", "h3"}
    assert elements.named("html") == [{"lang": "en"}]
    assert sum("answer" in p.get("class", "") for p in elements.named("p")) == 1


def test_a_report_is_small_and_needs_nothing_else(pages, name):
    """Below 2 MB with one library, and a policy that lets a browser load nothing."""
    page = pages[name][0]
    assert len(page.encode()) < 2e6
    assert page.count('id="packed-library"') == 1
    outside = page
    for packed_part in ("library", "charts"):
        outside = re.sub(rf'id="packed-{packed_part}">[^<]*<', "", outside)
    elements = Elements(page)
    for _, attributes in elements.found:
        assert not {"src", "srcset"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    assert "@import" not in outside
    assert "url(" not in outside
    (policy,) = (m["content"] for m in elements.named("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_contents_lead_to_all_sections_and_charts(pages, name):
    """Each link has its target, in the order of the page."""
    elements = Elements(pages[name][0])
    targets = [one["href"].removeprefix("#") for one in elements.named("a")]
    ids = [one["id"] for _, one in elements.found if "id" in one]
    assert targets == [one for one in ids if one.startswith(("section-", "title-"))]
    assert len(targets) == len(SECTIONS) + len(charts_of(pages[name][0]))


def test_the_report_of_an_estimate_has_pipeline_and_roofline(pages):
    """After time and memory."""
    assert {"chart-timeline", "chart-roofline"} <= charts_of(pages["estimate"][0]).keys()


def test_charts_are_named_and_described(pages, name):
    """Each figure has a box, a heading, a description, and can be reached by keyboard."""
    page = pages[name][0]
    elements = Elements(page)
    boxes = [div["data-chart"] for div in elements.named("div") if "data-chart" in div]
    assert boxes == list(charts_of(page))
    described = [div for div in elements.named("div") if div.get("role") == "group"]
    assert len(described) == len(boxes)
    assert all(div["aria-label"].startswith("Chart: ") and "tabindex" in div for div in described)
    headings = [text for tag, text in elements.headings if tag == "h3"]
    for figure in charts_of(page).values():
        assert html.escape(figure["layout"]["meta"]["title"]) in map(html.escape, headings)
        assert "title" not in figure["layout"]


def test_the_library_is_that_of_the_package(pages):
    """Unpacked it is plotly.js, whole."""
    from importlib.resources import files  # noqa: PLC0415

    page = pages["estimate"][0]
    own = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    assert unpacked(page, "library") == own


@each_row("size", [0, 1, 2, 3, 4, 5, 6, 7, 1000])
def test_packed_data_is_unpacked_whole(size):
    """Of any length, and without letters that mean something in HTML."""
    data = bytes(n * 37 % 256 for n in range(size))
    text = packed(data)
    assert not set(text) & set("<>&\"'\n")
    letters = text.encode().translate(bytes.maketrans(b",.:", b"<>&"))
    assert gzip.decompress(base64.b85decode(letters)) == data


def figure_of(record, name):
    """The step times of a saved result."""
    if name == "estimate":
        return record["step_time_s"]
    if name == "search":
        return [one["step_time_s"] for one in record["best"]]
    return [one["best"][0]["step_time_s"] for one in record["points"]]


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_prints_the_same_figures(pages, verb, shardwise):
    """As a shell reads it; it writes no file."""
    page, record = pages[verb]
    (text,) = re.findall("<pre[^>]*><code>(.*?)</code>", page, re.DOTALL)
    program, *words = shlex.split(html.unescape(text))
    assert program == "shardwise"
    assert not {"--report", "--output"} & set(words)
    code, out, _ = shardwise(*words, "--json")
    assert code == 0
    assert figure_of(json.loads(out), verb) == figure_of(record, verb)


def test_the_answer_has_the_interval(pages):
    """Of the step, in words."""
    page, record = pages["estimate"]
    (answer,) = re.findall('<p class="answer">(.*?)</p>', page)
    for time in (record["step_time_s"], *(record["interval"][end] for end in ("low_s", "high_s"))):
        unit, size = ("ms", 1e3) if time < 1 else ("s", 1)
        assert f"{size * time:.3g} {unit}" in answer
    assert "8 of 10 runs" in answer
    for verb in ("search", "sweep", "compare"):
        (answer,) = re.findall('<p class="answer">(.*?)</p>', pages[verb][0])
        assert "8 of 10 runs" in answer


def test_the_tables_are_those_of_the_terminal(pages):
    """Every component of the step, every operation, every source."""
    page, record = pages["estimate"]
    assert record["operations"]
    for row in record["operations"]:
        assert html.escape(row["operation"]) in page
    for source in record["provenance"].values():
        assert html.escape(" ".join(source["text"].split())) in page
    best = pages["search"][1]["best"]
    assert f"~{len(best)}</th>" in pages["search"][0] or f">{len(best)}</th>" in pages["search"][0]


def test_names_are_no_markup(tmp_path):
    """A model of people's own is shown under its name, in text, charts and the command."""
    name = "<script>alert(1)</script>"
    own = Model.validated(Model.load("llama3-8b").to_dict() | {"name": name})
    strategy = {"gpus": 16, "tp": 4, "gbs": 32}
    result = estimate(own, "h100-sxm", strategy)
    found = search(own, "h100-sxm", gpus=16, gbs=32, recompute="none")
    swept = sweep(own, ["h100-sxm"], strategy=strategy, vary={"nvlink.bandwidth": "1x,2x"})
    reports = (
        estimate_page.report_of(result, name),
        search_page.report_of(found, name),
        sweep_page.report_of(swept, name, []),
        compare_page.report_of(compare(result, result, names=(name, "b")), name),
    )
    for number, report in enumerate(reports):
        path = tmp_path / f"{number}.html"
        write_report(report, str(path))
        page = path.read_text(encoding="utf-8")
        assert "<script>alert" not in page
        assert html.escape(name) in page
        scripts = Elements(page).named("script")
        assert [one.get("id") for one in scripts] == ["packed-library", "packed-charts", None]


def test_a_search_that_finds_nothing_has_its_report(shardwise, tmp_path):
    """With the reasons, and exit code 1."""
    path = tmp_path / "none.html"
    words = ("search", "llama3-70b", "h100-sxm", "--gpus", 1, "--gbs", 1)
    assert shardwise(*words, "--report", path)[0] == 1
    (answer,) = re.findall('<p class="answer">(.*?)</p>', path.read_text(encoding="utf-8"))
    assert "nothing is feasible" in answer.lower()


@each_row(
    ("words", "told"),
    [
        (("search", *WORK, "--report", "a.txt"), "report: a report is written as .html"),
        (
            ("search", *WORK, "--report", "a.html", "--plot", "a.html"),
            "is also the file of plot",
        ),
        (("sweep", *WORK, "--report", "a.pdf"), "report: a report is written as .html"),
        (("estimate", *WORK, "--report", "a.pdf"), "allowed: .html, .txt, also .gz, or - to print"),
        (
            ("search", *WORK, "--explain", "tp=2", "--report", "a.html"),
            "report: 'a.html': has no effect with --explain",
        ),
        (("search", *WORK, "--count", "--report", "a.html"), "report: 'a.html': needs a search"),
        (
            ("estimate", *WORK, "--reference", "calculon", "--report", "a.html"),
            "report: 'a.html': has no effect with --reference",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(shardwise, words, told):
    """Before anything is computed, in one line."""
    verb, *flags = words
    code, out, err = shardwise(verb, "llama3-8b", "h100-sxm", *flags)
    assert (code, out) == (2, "")
    assert told in err


def test_destinations_are_left_out_of_the_command(shardwise, tmp_path):
    """In both forms of an option; quoted where a shell needs it."""
    path = tmp_path / "a page.html"
    words = ("estimate", "llama3-8b", "h100-sxm", *WORK, f"--report={path}", "--json")
    assert shardwise(*words, "--strategy", _strategy(tmp_path))[0] == 0
    (text,) = re.findall("<code>(.*?)</code>", path.read_text(encoding="utf-8"))
    command = html.unescape(text)
    file = shlex.quote(str(tmp_path / "my strategy.yaml"))
    assert command == f"shardwise estimate llama3-8b h100-sxm --gpus 16 --gbs 32 --strategy {file}"


def _strategy(folder):
    file = folder / "my strategy.yaml"
    file.write_text("tp: 4\n")
    return file


def test_printed_tables_become_blocks(capsys):
    """Pairs without heads, tables with theirs, and nothing on the terminal."""
    result = estimate("llama3-8b", "h100-sxm", {"gpus": 16, "tp": 4, "gbs": 32})
    blocks = printed_blocks(lambda: print_estimate(result))
    assert capsys.readouterr().out == ""
    (facts,) = (block for block in blocks if isinstance(block, Facts))
    assert ("MFU", f"{100 * result.mfu:.1f} %") in facts.items
    times, *_ = (block for block in blocks if isinstance(block, DataTable))
    assert times.columns == ["where the step goes", "time", "share", "hidden"]
    assert len(times.rows) == sum(time > 0 for time in result.time_s.values())


def test_lines_that_are_indented_continue():
    """As the terminal prints long ones."""
    assert joined(["a:", "  b", "", "c"]) == ["a: b", "c"]


def test_a_page_without_charts_has_no_script():
    """Text and tables alone."""
    table = DataTable(caption="", columns=["a & b"], rows=[["<1>"]])
    page = page_html(Page(title="t", sections=[Section(title="s", blocks=[table])]))
    elements = Elements(page)
    assert elements.named("script") == []
    assert '<th scope="col" class="text">a &amp; b</th>' in page
    assert "&lt;1&gt;" in page


def test_one_chart_alone_has_the_title_of_the_page():
    """It is not repeated."""
    import plotly.graph_objects as go  # noqa: PLC0415 - skipped without it

    from shardwise.report.charts.common import styled  # noqa: PLC0415

    chart = Chart(name="x", figure=styled(go.Figure(go.Bar(x=[1], y=[2], name="n")), "T", "s"))
    assert Elements(page_html(Page(title="T", charts=[chart]))).headings == [("h1", "T")]
    both = Elements(page_html(Page(title="other", charts=[chart]))).headings
    assert both == [("h1", "other"), ("h2", "T")]
