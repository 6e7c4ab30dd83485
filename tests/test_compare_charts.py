"""Charts of scenarios side by side show each part where it belongs."""

from math import fsum

import pytest

from shardwise import compare, estimate
from shardwise.report.charts.common import TIME_COLORS
from shardwise.report.charts.compare import charts, memory, times, waterfall

pytest.importorskip("plotly")

GIB = 2.0**30
RUN = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 32}


@pytest.fixture(scope="module")
def found():
    """Three ways, of as many tokens a step."""
    ways = (RUN, RUN | {"tp": 4}, RUN | {"recompute": "full"})
    return compare(*(estimate("llama3-8b", "h100-sxm", way) for way in ways))


def test_bars_add_up_to_the_step(found):
    """One for each scenario, of parts in the colours of the other charts."""
    figure = times(found)
    for place, outcome in enumerate(found.scenarios):
        whole = fsum(trace.x[place] for trace in figure.data if trace.type == "bar")
        assert whole == pytest.approx(outcome.step_time_s, rel=1e-12)
        assert figure.data[0].y[place] == outcome.name
    assert figure.data[0].marker.color == TIME_COLORS["forward"]
    assert {trace.name for trace in figure.data} >= {"recompute", "tensor-parallel comm"}


def test_each_step_has_its_interval(found):
    """A mark at the step, with whiskers to both ends."""
    mark = times(found).data[-1]
    for place, outcome in enumerate(found.scenarios):
        assert mark.x[place] == pytest.approx(outcome.step_time_s)
        high = mark.x[place] + mark.error_x.array[place]
        assert high == pytest.approx(outcome.interval.high_s)


def test_memory_stands_beside_what_the_accelerator_has(found):
    """Parts up to what is reserved; the mark is the capacity."""
    *parts, mark = memory(found).data
    for place, outcome in enumerate(found.scenarios):
        held = fsum(trace.x[place] for trace in parts)
        assert held == pytest.approx(outcome.memory_bytes.reserved / GIB, rel=1e-12)
        assert mark.x[place] == outcome.memory_bytes.capacity / GIB


def test_a_waterfall_goes_from_one_step_to_the_other(found):
    """First level, changes that are not none, last level; the axis shows all of them."""
    change = found.changes[0]
    figure = waterfall(change)
    (trace,) = figure.data
    assert trace.measure == ("absolute", *["relative"] * (len(trace.x) - 2), "total")
    assert fsum(trace.x[:-1]) == pytest.approx(trace.x[-1], rel=1e-12)
    assert list(trace.x[1:-1]) == [part.delta_s for part in change.parts if part.delta_s]
    low, high = figure.layout.xaxis.range
    levels = [fsum(trace.x[: end + 1]) for end in range(len(trace.x) - 1)]
    assert low < min(levels)
    assert high > max(levels)
    assert ("begins beyond 0" in figure.layout.title.text) == (low > 0)


def test_a_waterfall_of_nothing_has_two_levels():
    """Equal scenarios; the axis is no point."""
    one = estimate("llama3-8b", "h100-sxm", RUN)
    (trace,) = waterfall(compare(one, one).changes[0]).data
    assert len(trace.x) == 2


def test_a_large_change_is_drawn_from_zero(found):
    """Half of the step is much."""
    change = found.changes[0]
    halved = [
        part.model_copy(update={"delta_s": -part.before_s / 2, "after_s": part.before_s / 2})
        for part in change.parts
    ]
    after = change.before_s / 2
    update = {"parts": tuple(halved), "after_s": after, "delta_s": -after, "share": -0.5}
    assert waterfall(change.model_copy(update=update)).layout.xaxis.range[0] == 0


def test_a_long_name_leaves_room_for_bars(found):
    """It is cut into lines, whole."""
    name = "a-very-long-name-of-a-scenario"
    first = found.scenarios[0].model_copy(update={"name": name})
    figure = times(found.model_copy(update={"scenarios": (first, *found.scenarios[1:])}))
    label = figure.data[0].y[0]
    assert label.replace("<br>", "") == name
    assert max(map(len, label.split("<br>"))) <= 14


def test_names_are_no_markup():
    """A name of people's own is shown whole."""
    one = estimate("llama3-8b", "h100-sxm", RUN)
    drawn = times(compare(one, one, names=("a <b>", "c")))
    assert drawn.data[0].y[0] == "a &lt;b&gt;"


def test_the_command_writes_a_page(shardwise, tmp_path):
    """With what was asked, what changed, and what is best."""
    for name, tp in (("one", 2), ("two", 4)):
        words = ("--gpus", 16, "--tp", tp, "--pp", 2, "--gbs", 32)
        file = tmp_path / f"{name}.json"
        assert shardwise("estimate", "llama3-8b", "h100-sxm", *words, "-o", file)[0] == 0
    files = (tmp_path / "one.json", tmp_path / "two.json")
    page = tmp_path / "page.html"
    code, out, err = shardwise("compare", *files, "--plot", page)
    assert (code, err) == (0, "")
    assert "inputs that differ" in out
    text = page.read_text()
    assert "<h1>one and two side by side</h1>" in text
    assert "differences: tp 2 / 4; dp 4 / 2; micro batches 8 / 16</p>" in text
    assert "best by step time, tokens/s" in text
    assert text.count("<figure") == 3

    code, _, err = shardwise("compare", *files, "--plot", "a.json", "-o", "a.json")
    assert (code, err) == (2, "error: --plot: 'a.json': is also the file of output\n")
    assert shardwise("compare", *files, "--plot", "a.txt")[0] == 2


def test_every_change_has_its_chart(found):
    """One from the first scenario to each other."""
    assert list(charts(found)) == ["times", "memory", "change-2", "change-3"]
