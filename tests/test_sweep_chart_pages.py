"""Charts of a sweep's strategies, fronts and sensitivities; pages, files and the command line."""

import json
import sys
from types import SimpleNamespace

import pytest

from shardwise import InputError
from shardwise.report.charts import common as figures
from shardwise.report.charts.common import write
from shardwise.report.charts.sweep import (
    charts,
    design_space,
    front,
    limit,
    only,
    runners_up,
    tornado,
    write_charts,
)
from swept_by_hand import GIB, axis, influence, plan, swept

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")

GPUS = (axis("gpus", [8, 16, 32], kind="strategy"), [8, 16, 32])


def trace(figure, name):
    """The trace of a name."""
    (one,) = [each for each in figure.data if each.name == name]
    return one


def best_three(*_):
    """The best and two that take a quarter and a half more, each limited by something else."""
    return (
        plan(4, tp=4, parts={"bubble": 0.25, "tp_comm": 0.125}),
        plan(5, tp=2, used=60, parts={"dp_comm": 0.25}),
        plan(6, tp=2, recompute="full", parts={"other": 0.05}),
    )


@pytest.fixture(scope="module")
def ranked():
    """One point with its three best."""
    return swept([], best_three)


@pytest.fixture(scope="module")
def scaled():
    """Two systems with prices over three numbers of GPUs."""

    def best(system, gpus):
        per_gpu = {"old": 96, "new": 16}[system]
        return plan(per_gpu * 8 / gpus, gpus=gpus, usd=gpus * 10.0 + per_gpu, used=gpus)

    return swept([GPUS], best, systems=("old", "new"))


@pytest.fixture(scope="module")
def answered():
    """One point that says what would help, once with another search."""
    found = swept([], lambda *_: plan(1))
    influences = (
        influence("matrix", -0.8, 0.4, best_step_time_s=0.5, best_saved=0.5, best_lost=0.6),
        influence("nvlink.bandwidth", -0.1, 0.05),
        influence("launch", 0.9, 0.1, factor=0.5, kind="constant"),
        influence("nothing", 0.0, 0.0),
        influence(
            "capacity", 0.0, 0.0, best_step_time_s=0.9, best_saved=0.1, worse_fits=False, lost=0.0
        ),
    )
    point = found.points[0].model_copy(update={"sensitivity": influences})
    return found.model_copy(update={"points": (point,)})


def test_the_limit_is_the_largest_part_beside_the_work():
    """Work itself where all else is less than a tenth."""
    assert [limit(one) for one in best_three()] == ["bubble", "dp_comm", "work"]


def test_runners_up_are_told_by_what_they_take_beyond_the_best(ranked):
    """In per cent, a colour for each limit, the best on top."""
    figure = runners_up(ranked)
    shown = {each.name: (list(each.x), list(each.text)) for each in figure.data}
    assert shown == {
        "pipeline bubble": ([0], ["the best"]),
        "dp communication": ([25], ["+25.00 %"]),
        "work": ([50], ["+50.00 %"]),
    }
    names = figure.layout.yaxis.categoryarray
    assert [name.split("<")[0] for name in names] == [
        "1  tp 4 · dp 2",
        "2  tp 2 · dp 4",
        "3  tp 2 · dp 4",
    ]
    assert "recompute full" in names[2]
    assert "recompute none" in names[1]
    assert figure.layout.yaxis.autorange == "reversed"


def test_runners_up_are_those_of_one_point(scaled):
    """Several points, or one strategy, are refused with the way out."""
    alone = swept([], lambda *_: plan(1))
    for given, told in (
        (scaled, "one point only; name one: only(result, systems=..., at={axis: label})"),
        (alone, "several strategies at the point; sweep with top=10"),
    ):
        with pytest.raises(InputError) as caught:
            runners_up(given)
        assert str(caught.value) == f"charts: the sweep has not {told}"
    with pytest.raises(InputError, match="not several strategies; vary fields of the strategy"):
        design_space(alone)


def test_the_design_space_has_a_column_for_each_field_that_differs(ranked, scaled):
    """Degrees by their logarithms, words by place, time with the least on top, limits as colour."""
    (lines,) = design_space(ranked).data
    columns = {each.label: each for each in lines.dimensions}
    assert list(columns) == ["tp", "dp", "recompute", "memory [GiB]", "time [s]"]
    assert list(columns["tp"]["values"]) == [2, 1, 1]
    assert list(columns["tp"].ticktext) == ["2", "4"]
    assert list(columns["tp"].tickvals) == [1, 2]
    assert list(columns["recompute"]["values"]) == [0, 0, 1]
    assert list(columns["recompute"].ticktext) == ["none", "full"]
    assert list(columns["memory [GiB]"]["values"]) == [40, 60, 40]
    assert list(columns["time [s]"]["values"]) == [4, 5, 6]
    assert list(columns["time [s]"].range) == [6, 4]
    limits = lines.line.colorbar.ticktext
    assert [limits[int(place)] for place in lines.line.color] == [
        "pipeline bubble",
        "dp communication",
        "work",
    ]
    (lines,) = design_space(scaled).data
    columns = {each.label: each for each in lines.dimensions}
    assert list(columns)[:2] == ["system", "GPUs"]
    assert list(columns["system"]["values"]) == [0, 0, 0, 1, 1, 1]
    assert list(columns["time [s]"].range) == pytest.approx([1.982, 0.602], abs=1e-3)
    assert list(columns["time [s]"].ticktext) == ["5", "10", "20", "50"]


def test_figures_of_the_system_are_columns_of_the_design_space():
    """By the place of their values."""
    links = (axis("nvlink.bandwidth", ["1x", "4x"], unit="byte/s"), [1e9, 4e9])
    (lines,) = design_space(swept([links], lambda _, rate: plan(8e9 / rate))).data
    assert lines.dimensions[0].label == "nvlink.bandwidth"
    assert list(lines.dimensions[0]["values"]) == [0, 1]
    assert list(lines.dimensions[0].ticktext) == ["1x", "4x"]


def test_the_front_joins_points_that_none_beats_on_both(scaled):
    """Of all systems; their points have colours of their own."""
    figure = front(scaled, "gpus")
    line = trace(figure, "none is better on both")
    assert list(zip(line.x, line.y, strict=True)) == [(8, 16), (16, 8), (32, 4)]
    assert list(trace(figure, "old").y) == [96, 48, 24]
    small, large = set(trace(figure, "old").marker.size), set(trace(figure, "new").marker.size)
    assert max(small) < min(large)
    assert trace(figure, "old").marker.color != trace(figure, "new").marker.color
    assert list(figure.layout.xaxis.ticktext) == ["8", "16", "32"]
    line = trace(front(scaled, "cost"), "none is better on both")
    assert list(zip(line.x, line.y, strict=True)) == [(96, 16), (176, 8), (336, 4)]
    dear = swept([GPUS], lambda _, n: plan(8 + n, gpus=n, usd=float(n)), systems=("old", "new"))
    assert list(trace(front(dear, "cost"), "none is better on both").x) == [8]
    flat = swept([GPUS], lambda _, n: plan(5, gpus=n))
    assert list(trace(front(flat, "gpus"), "none is better on both").x) == [8]
    assert list(trace(front(scaled), "new").x) == [8, 16, 32]


def test_a_front_needs_something_to_stand_against(scaled, ranked):
    """Prices that there are, and words that are known."""
    for given, told in (
        ((ranked, "cost"), "a price at every point; give the systems usd_per_accelerator_hour"),
        ((scaled, "heat"), "a front against heat; allowed: memory, gpus, cost"),
        (
            (swept([], lambda *_: None),),
            "a feasible point; give it more memory or more GPUs",
        ),
    ):
        with pytest.raises(InputError) as caught:
            front(*given)
        assert str(caught.value) == f"charts: the sweep has not {told}"


def test_sensitivities_stand_by_their_size(answered):
    """Elasticities at the left, gains and losses at the right; the hardware before constants."""
    figure = tornado(answered)
    names = ["matrix", "nvlink.bandwidth", "capacity", "launch"]
    assert list(figure.layout.yaxis.categoryarray) == names
    left, right = [each for each in figure.data if each.name == "old"]
    assert list(left.y) == names
    assert list(left.x) == [-0.8, -0.1, 0, 0.9]
    assert list(right.x) == [40, 5, 0, 10]
    assert list(right.text) == ["2x: 40.0 %", "2x: 5.0 %", "2x: 0.0 %", "0.5x: 10.0 %"]
    assert figure.layout.xaxis2.range[1] > 50
    assert figure.layout.xaxis2.range[0] < -60
    (costs,) = [each for each in figure.data if each.name == "old: costs"]
    assert list(costs.x) == [-40, -5, 0, -10]
    assert list(costs.text) == ["0.5x: 40.0 %", "0.5x: 5.0 %", "0.5x: does not fit", "2x: 10.0 %"]
    gains, losses = [each for each in figure.data if each.name == "with the best strategy then"]
    assert (list(gains.x), list(gains.y)) == ([50, 10], ["matrix", "capacity"])
    assert (list(losses.x), list(losses.y)) == ([-60, 0], ["matrix", "capacity"])
    assert (
        "2x saves 40.0 %, 50.0 % with the best strategy then; 0.5x costs 40.0 %, 60.0 % with"
        in left.customdata[0]
    )
    assert "0.5x costs 0.0 % and does not fit, nothing fits then" in left.customdata[2]
    words = [note.text for note in figure.layout.annotations]
    assert words == ["<i>hardware</i>", "<i>constants of the model</i>"]


def test_sensitivities_of_several_points_stand_side_by_side(answered, scaled):
    """A colour for each; too many or none are refused."""
    two = answered.model_copy(
        update={
            "systems": ("old", "new"),
            "points": tuple(
                answered.points[0].model_copy(update={"system": name}) for name in ("old", "new")
            ),
        }
    )
    names = [name for each in ("old", "new") for name in (each, each, f"{each}: costs")]
    assert [each.name for each in tornado(two).data] == names
    many = answered.model_copy(update={"points": answered.points * 7})
    part = "only(result, systems=..., at={axis: label})"
    for given, told in (
        (scaled, "sensitivities; sweep with sensitivity=True"),
        (
            many,
            f"sensitivities of so few points that 6 colors show them; draw a part: {part}",
        ),
    ):
        with pytest.raises(InputError) as caught:
            tornado(given)
        assert str(caught.value) == f"charts: the sweep has not {told}"
    assert "sensitivities" not in charts(many)


def test_charts_are_those_of_what_was_varied(scaled, ranked, answered):
    """What does not fit a sweep is left out."""
    assert list(charts(scaled)) == [
        "scaling",
        "optima",
        "by-system-gpus",
        "front-gpus",
        "front-cost",
        "front-memory",
    ]
    assert list(charts(ranked)) == ["optima", "runners-up", "design-space"]
    assert list(charts(answered)) == ["optima", "sensitivities"]
    assert charts(swept([GPUS], lambda *_: None)) == {}
    held = swept([], lambda *_: plan(1, used=90))
    assert list(charts(held)) == ["optima"]


def test_time_against_price_counts_what_hardware_costs():
    """Without a price that differs, faster hardware would be cheaper: there is no such chart."""
    rates = (axis("nvlink.bandwidth", [1, 2, 3]), [1, 2, 3])

    def at(per_hour):
        # $ per billion tokens of a second, for 8 GPUs and 100,000 tokens a step
        return lambda _, rate: plan(1 / rate, usd=per_hour(rate) * 8 * (1 / rate) / 100_000)

    assert "front-cost" not in charts(swept([rates], at(lambda _: 2.0)))
    assert "front-cost" in charts(swept([rates], at(lambda rate: 2.0 + rate)))
    prices = (axis("price", [1, 2, 3]), [1, 2, 3])
    paid = swept([prices], lambda _, usd: plan(1, usd=float(usd)))
    assert "front-cost" in charts(paid)


def test_two_figures_of_the_system_make_a_map_and_a_plane():
    """One for each system; over fields of the strategy there are no slopes."""
    sizes = (axis("hbm.capacity", [1, 2, 3], unit="bytes"), [GIB, 2 * GIB, 3 * GIB])
    rates = (axis("hbm.bandwidth", [1, 2, 3], unit="byte/s"), [1e9, 2e9, 3e9])
    degrees = (axis("tp", [1, 2, 4], kind="strategy"), [1, 2, 4])
    of = lambda _, a, b: plan(a / GIB + b / 1e9)  # noqa: E731 - one line, used twice
    drawn = charts(swept([sizes, rates], of, systems=("old", "new")))
    assert [name for name in drawn if name.startswith(("by", "contour"))] == [
        f"{kind}-hbm.capacity-hbm.bandwidth-{system}"
        for system in ("old", "new")
        for kind in ("by", "contour")
    ]
    assert {"over-hbm.capacity", "over-hbm.bandwidth", "optima"} < set(drawn)
    drawn = charts(swept([sizes, degrees], lambda _, a, tp: plan(a / GIB / tp, tp=tp)))
    assert [name for name in drawn if name.startswith(("by", "contour"))] == ["by-hbm.capacity-tp"]
    assert "design-space" in drawn
    three = swept([sizes, rates, degrees], lambda _, a, b, tp: plan(a / b, tp=tp))
    drawn = charts(three)
    assert "by-hbm.capacity-hbm.bandwidth" in drawn
    assert "by-hbm.capacity-tp" not in drawn
    assert "by-hbm.capacity-tp" in charts(only(three, at={"hbm.bandwidth": "1"}))


def test_the_page_tells_points_and_what_was_assumed(scaled, tmp_path):
    """Library and charts are in one file; a name cannot break it."""
    path = tmp_path / "charts.html"
    told = {"assumed": ("node 4 <of> 8",), "complete": False, "model": "<img src=x>"}
    write_charts(scaled.model_copy(update=told), path, tokens=1e12)
    page = path.read_text(encoding="utf-8")
    for name in charts(scaled):
        assert page.count(f'id="{name}"') == 1
    assert "<script src=" not in page
    assert "6 points, 6 of them feasible; 9 strategies in 1.0 s" in page
    assert "Changed along with what was requested: node 4 &lt;of&gt; 8." in page
    assert "Interrupted: this is what was found at a part of the points." in page
    assert "days" in page
    assert "<img" not in page


def test_every_chart_is_plain_json(scaled, ranked, answered, tmp_path):
    """By name, for other programs."""
    for result in (scaled, ranked, answered):
        write_charts(result, tmp_path / "charts.json")
        every = json.loads((tmp_path / "charts.json").read_text(encoding="utf-8"))
        assert list(every) == list(charts(result))


def test_images_are_drawn_by_kaleido(scaled, tmp_path, monkeypatch):
    """Into the file that was named, the first chart or one by name; without a browser in a line."""
    monkeypatch.setattr(figures, "find_spec", lambda _: SimpleNamespace())
    asked = []

    def image(figure, **words):
        asked.append(words["format"])
        return figure.layout.title.text.encode()

    one = front(scaled)
    monkeypatch.setattr(type(one), "to_image", image)
    write(one, tmp_path / "one.svg")
    write_charts(scaled, tmp_path / "all.png")
    write_charts(scaled, f"{tmp_path / 'memory.pdf'}#{list(charts(scaled))[1]}")
    assert (tmp_path / "one.svg").read_bytes().startswith(b"<b>Time against memory</b>")
    titles = [drawn.layout.title.text.encode() for drawn in charts(scaled).values()]
    assert (tmp_path / "all.png").read_bytes() == titles[0]
    assert (tmp_path / "memory.pdf").read_bytes() == titles[1]
    assert len(list(tmp_path.iterdir())) == 3
    assert asked == ["svg", "png", "pdf"]
    with pytest.raises(InputError, match=r"all.png: chart: 'fron': allowed: .*"):
        write_charts(scaled, f"{tmp_path / 'all.png'}#fron")

    def broken(_, **__):
        raise RuntimeError("\nKaleido requires Google Chrome to be installed.\nSee there")

    monkeypatch.setattr(type(one), "to_image", broken)
    with pytest.raises(InputError) as caught:
        write(one, tmp_path / "one.svg")
    told = "one.svg: no image was drawn: Kaleido requires Google Chrome to be installed."
    assert str(caught.value) == f"{tmp_path}/{told}"


SMALL = ("--gbs", 16, "--recompute", "none", "--zero", 1, "--tp", 2, "--pp", 1, "--vary")


@pytest.mark.needs("predecessors")
def test_the_verb_draws_what_it_found(shardwise, tmp_path):
    """`--plot` writes the page that `convert` makes of the saved result."""
    result, page, again = (tmp_path / name for name in ("r.json", "page.html", "again.html"))
    words = ("sweep", "llama3-8b", "h100-sxm", *SMALL, "gpus=8,16", "--plot", page, "-o", result)
    code, out, _ = shardwise(*words)
    assert (code, out) == (0, "")
    assert shardwise("convert", result, again)[:2] == (0, "")
    assert page.read_bytes() == again.read_bytes()
    assert 'id="scaling"' in page.read_text(encoding="utf-8")
    assert shardwise("convert", result, tmp_path / "r.csv")[:2] == (0, "")
    head, *rows = (tmp_path / "r.csv").read_text(encoding="utf-8").splitlines()
    assert head.startswith("system,gpus,rank,problem,step_time_s")
    assert [row.split(",")[:3] for row in rows] == [["h100-sxm", n, "1"] for n in ("8", "16")]
    assert shardwise("convert", result)[1].splitlines()[0] == head


def test_the_verb_marks_the_system_on_maps(shardwise, tmp_path):
    """By its name, where its own figures are."""
    drawn = tmp_path / "drawn.json"
    vary = ("gpus=8", "--vary", "hbm.capacity=1x,2x", "--vary", "nvlink.bandwidth=225GB/s,450GB/s")
    words = ("sweep", "llama3-8b", "h100-sxm", *SMALL, *vary, "--plot", drawn)
    assert shardwise(*words)[0] == 0
    figure = json.loads(drawn.read_text())["by-hbm.capacity-nvlink.bandwidth"]
    (mark,) = figure["layout"]["annotations"]
    assert (mark["text"], mark["x"], mark["y"]) == ("<b>h100-sxm</b>", 1, 0)


def test_the_verb_refuses_what_it_cannot_draw_before_it_sweeps(shardwise, tmp_path, monkeypatch):
    """Endings, missing packages and numbers, in a line each."""
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    needs = "needs kaleido, which is not installed: pip install 'shardwise[images]'"
    page = tmp_path / "p.html"
    bad = "must be a number above 0, as in 1e12"
    for words, told in (
        (("--plot", "p.gif"), "p.gif: charts are written as .html, .json, .png, .svg, .pdf"),
        (("--plot", "p.svg"), f"p.svg: .svg {needs}"),
        (("--plot", "x.json", "-o", "x.json"), "plot: 'x.json': is also the file of output"),
        (("--tokens", "1e12"), "--tokens: '1e12': needs --plot FILE"),
        (("--plot", page, "--tokens", "all"), f"--tokens: 'all': {bad}"),
        (("--plot", page, "--tokens", "inf"), f"--tokens: 'inf': {bad}"),
    ):
        code, out, err = shardwise("sweep", "llama3-8b", "h100-sxm", *SMALL, "gpus=8", *words)
        assert (code, out) == (2, ""), words
        assert told in err
        assert err.count("\n") == 1
    assert not page.exists()


@pytest.mark.needs("predecessors")
def test_convert_tells_what_a_saved_sweep_may_become(shardwise, scaled, tmp_path):
    """Other endings, and files that are not whole."""
    saved, broken = tmp_path / "r.json", tmp_path / "broken.json"
    saved.write_text(json.dumps(scaled.to_dict()))
    broken.write_text(json.dumps(scaled.to_dict() | {"points": [1]}))
    for words, told in (
        ((saved, "r.yaml"), "r.yaml: a sweep result can be written as .csv, .csv.gz, .parquet"),
        ((saved, "--rows", "best"), "rows: 'best': has no effect on a sweep: all rows are"),
        ((broken, "r.html"), f"{broken}: points[0]: 1: must be a mapping"),
    ):
        code, out, err = shardwise("convert", *words)
        assert (code, out) == (2, ""), words
        assert told in err


def test_without_plotly_the_extra_is_named(scaled, monkeypatch):
    """As for charts of a search."""
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(InputError, match=r"pip install 'shardwise\[plots\]'"):
        front(scaled)
