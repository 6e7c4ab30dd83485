"""Charts of a sweep show its figures, each where it belongs: lines and columns."""

import pytest

from shardwise import InputError
from shardwise.report.charts.sweep import heat_map
from shardwise.report.charts.sweep_lines import optima, ratio, scaling, trend
from shardwise.report.charts.sweep_points import only
from swept_by_hand import BATCH, GPUS, SEQ_LEN, axis, mapped_sweep, plan, scaled_sweep, swept, trace

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")

TOKENS = BATCH * SEQ_LEN


def traces(figure, name):
    """All traces of a name."""
    return [each for each in figure.data if each.name == name]


@pytest.fixture(scope="module")
def scaled():
    """Two systems over three numbers of GPUs; the old one has nothing on the smallest."""
    return scaled_sweep()


@pytest.fixture(scope="module")
def mapped():
    """Step time over capacity and bandwidth: nothing fits into the least capacity."""
    return mapped_sweep()


def test_scaling_shows_time_and_relative_throughput_over_gpus(scaled):
    """Above the step time, below what a GPU does over one of the old system's 16."""
    figure = scaling(scaled)
    above, below = traces(figure, "old")
    assert list(above.x) == list(below.x) == [16, 32]
    assert list(above.y) == [48, 30]
    assert list(below.y) == pytest.approx([1, 0.8])
    above, below = traces(figure, "new")
    assert list(above.x) == [8, 16, 32]
    assert list(above.y) == [16, 8, 5]
    assert list(below.y) == pytest.approx([6, 6, 4.8])
    assert figure.layout.xaxis2.type == figure.layout.yaxis.type == "log"
    assert "below: relative to a GPU of old with 16" in figure.layout.title.text


def test_ideal_scaling_starts_at_the_first_point_of_each_line(scaled):
    """Dashed: inversely proportional to the GPUs."""
    old, new = trace(scaling(scaled), "ideal old"), trace(scaling(scaled), "ideal new")
    assert (list(old.x), list(old.y)) == ([16, 32], [48, 24])
    assert (list(new.x), list(new.y)) == ([8, 16, 32], [16, 8, 4])
    assert old.line.dash == new.line.dash == "dash"


def test_lines_have_the_colour_of_their_system_and_marks_of_their_own():
    """Nine lines are told apart by three colours and three marks; each colour has one ideal."""
    sizes = (axis("domain", [4, 8, 64]), [4, 8, 64])
    figure = scaling(
        swept([GPUS, sizes], lambda _, n, __: plan(8 / n, gpus=n), systems=tuple("abc"))
    )
    looks = {
        each.name: (each.line.color, each.marker.symbol)
        for each in figure.data
        if each.mode == "lines+markers"
    }
    assert len(looks) == len(set(looks.values())) == 9
    assert len({colour for colour, _ in looks.values()}) == 3
    assert looks["a, domain 8"][1] == looks["c, domain 8"][1]
    ideal = [each.name for each in figure.data if each.name.startswith("ideal")]
    assert ideal == [f"ideal {system}, domain 4" for system in "abc"]


def test_days_are_those_of_so_many_tokens(scaled):
    """Tokens over tokens per second, in days."""
    above, _ = traces(scaling(scaled, tokens=864e9), "new")
    assert list(above.y) == pytest.approx([864e9 / (TOKENS / s) / 86400 for s in (16, 8, 5)])
    title = scaling(scaled, tokens=2e12).layout.yaxis.title.text
    assert title == "time to train on 2 trillion tokens [days]"


def test_points_without_a_strategy_are_crossed_with_the_reason(scaled):
    """On 8 GPUs of the old system nothing fits, says the cross."""
    cross = trace(scaling(scaled), "nothing old")
    assert list(cross.x) == [8]
    assert "nothing fits (accelerator memory 7, tp heads 2)" in cross.customdata[0]
    assert not traces(scaling(scaled), "nothing new")


def test_scaling_needs_an_axis_of_gpus(mapped):
    """The error names the axes that there are."""
    with pytest.raises(InputError) as caught:
        scaling(mapped)
    told = "charts: the sweep has not an axis gpus; it has hbm.capacity, hbm.bandwidth"
    assert str(caught.value) == told


def test_nothing_feasible_is_refused(scaled):
    """No chart of lines or maps is drawn of nothing."""
    nothing = only(scaled, systems="old", at={"gpus": "8"})
    told = "charts: the sweep has not a feasible point; give it more memory or more GPUs"
    for draw in (scaling, lambda r: trend(r, "gpus"), lambda r: heat_map(r, ("system", "gpus"))):
        with pytest.raises(InputError) as caught:
            draw(nothing)
        assert str(caught.value) == told
    with pytest.raises(InputError, match="not a strategy at any point"):
        optima(nothing)


def test_a_trend_has_a_line_for_each_value_of_the_other_axis(mapped):
    """Numbers are in the units people use; infeasible ones are crosses with what they are."""
    figure = trend(mapped, "hbm.bandwidth")
    line = trace(figure, "hbm.capacity 80 GiB")
    assert list(line.x) == [1000, 2000, 16000]
    assert list(line.y) == pytest.approx([11, 6, 1.625])
    assert figure.layout.xaxis.title.text == "hbm.bandwidth [GB/s]"
    assert figure.layout.yaxis.type == "log"
    assert list(trace(figure, "nothing hbm.capacity 40 GiB").x) == [1000, 2000, 16000]
    over = trend(mapped, "hbm.capacity")
    assert list(trace(over, "hbm.bandwidth 1x").x) == [80, 160]
    assert over.layout.xaxis.title.text == "hbm.capacity [GiB]"


def test_two_points_are_bars_from_zero():
    """With the interval of each; of several systems side by side, also where nothing fits."""
    rates = (axis("nvlink.bandwidth", ["1x", "2x"], unit="byte/s"), [4e11, 8e11])

    def found(*_):
        ends = {"interval_low_s": 9.0, "interval_high_s": 12.0}
        return plan(10).model_copy(update=ends)

    figure = trend(swept([rates], found))
    (bars,) = figure.data
    assert bars.type == "bar"
    assert (list(bars.x), list(bars.y)) == (["1x", "2x"], [10, 10])
    assert (list(bars.error_y.array), list(bars.error_y.arrayminus)) == ([2, 2], [1, 1])
    assert figure.layout.yaxis.rangemode == "tozero"
    assert "does not start at 0" not in figure.layout.title.text
    assert "whiskers: range of 8 in 10 runs" in figure.layout.title.text
    figure = trend(
        swept([rates], lambda s, v: plan(10) if (s, v) == ("b", 4e11) else None, systems=("a", "b"))
    )
    assert [list(each.y) for each in figure.data] == [[None, None], [10, None]]
    assert "whiskers" not in figure.layout.title.text
    assert list(figure.data[1].text) == ["10.0", "nothing fits"]


def test_an_axis_that_does_not_start_at_zero_says_so():
    """As where three points differ little; not where they differ much."""
    sizes = (axis("domain", [4, 8, 64]), [4, 8, 64])
    near = trend(swept([sizes], lambda _, n: plan(200 - n)))
    assert "the axis does not start at 0" in near.layout.title.text
    far = trend(swept([sizes], lambda _, n: plan(100 / n)))
    assert "the axis does not start at 0" not in far.layout.title.text


def test_a_trend_asks_which_axis_and_for_numbers(mapped):
    """Several axes, an unknown one, and one of words."""
    words = swept(
        [(axis("recompute", ["none", "full"], kind="strategy"), ["none", "full"])],
        lambda _, word: plan(1, recompute=word),
    )
    for given, told in (
        ((mapped,), "one axis only; name one of hbm.capacity, hbm.bandwidth"),
        ((mapped, "tp"), "an axis tp; it has hbm.capacity, hbm.bandwidth"),
        ((words,), "numbers on the axis recompute; draw it as bars or as a heat map"),
    ):
        with pytest.raises(InputError) as caught:
            trend(*given)
        assert str(caught.value) == f"charts: the sweep has not {told}"


def test_a_rate_is_drawn_where_it_was_the_objective(mapped):
    """What was asked to be best is shown, unless days are."""
    by_rate = mapped.model_copy(update={"objective": "tokens_per_s_per_gpu"})
    line = trace(trend(by_rate, "hbm.bandwidth"), "hbm.capacity 80 GiB")
    assert list(line.y) == pytest.approx([TOKENS / s / 8 for s in (11, 6, 1.625)])
    line = trace(trend(by_rate, "hbm.bandwidth", tokens=1e9), "hbm.capacity 80 GiB")
    assert line.y[0] == pytest.approx(1e9 * 11 / TOKENS / 86400)


def test_steps_of_unlike_size_are_compared_by_tokens():
    """Where the batch is varied, a step is not the same work."""
    batch = (axis("global_batch_size", [100, 200], kind="strategy"), [100, 200])
    figure = trend(swept([batch], lambda _, size: plan(10, global_batch_size=size)))
    assert list(figure.data[0].y) == [100, 50]
    assert figure.layout.yaxis.title.text == "time of a million tokens [s]"


def test_the_ratio_is_that_of_the_times(scaled):
    """First over second: above 1 the second one is faster; where one lacks there is a cross."""
    other = swept([GPUS], lambda _, gpus: plan(100 / gpus, gpus=gpus), systems=("new", "old"))
    figure = ratio(scaled, other, names=("1D", "2D"))
    assert list(trace(figure, "old").x) == [16, 32]
    assert list(trace(figure, "old").y) == pytest.approx([48 / 6.25, 30 / 3.125])
    assert list(trace(figure, "new").y) == pytest.approx([16 / 12.5, 8 / 6.25, 5 / 3.125])
    cross = trace(figure, "nothing old")
    assert list(cross.x) == [8]
    assert cross.customdata[0].startswith("<b>old</b><br>1D: nothing fits")
    assert "2D:" not in cross.customdata[0]
    assert figure.layout.yaxis.title.text == "time of 1D / time of 2D"
    with pytest.raises(InputError, match="not a feasible point in common with the other"):
        ratio(scaled, swept([GPUS], lambda *_: plan(1), systems=("third",)))


def test_columns_of_the_optima_add_up(scaled):
    """Parts of the time are shares of 100 %, parts of memory make what is reserved."""
    figure = optima(scaled)
    times = [each for each in figure.data if each.type == "bar" and each.yaxis == "y2"]
    found = [each for each in times if each.name != "nothing"]
    assert [sum(column) for column in zip(*[each.y for each in found], strict=True)] == [100] * 5
    assert list(trace(figure, "pipeline bubble").y) == [25] * 5
    assert list(trace(figure, "tp communication").y) == [12.5] * 5
    held = [each for each in figure.data if each.type == "bar" and each.yaxis == "y4"]
    assert [sum(column) for column in zip(*[each.y for each in held], strict=True)] == [40] * 5
    assert set(trace(figure, "capacity").y) == {80, None}


def test_a_button_shows_times_as_they_are(scaled):
    """The same parts in seconds, and back."""
    figure = optima(scaled)
    shares, amounts = figure.layout.updatemenus[0].buttons
    places = shares.args[2]
    names = [figure.data[place].name for place in places]
    assert amounts.args[2] == places
    bubble = names.index("pipeline bubble")
    assert list(shares.args[0]["y"][bubble]) == [25] * 5
    assert list(amounts.args[0]["y"][bubble]) == [12, 7.5, 4, 2, 1.25]
    assert amounts.args[1]["yaxis2.range"][1] > 48
    assert amounts.label == "s"


def test_the_whole_time_is_a_line_for_each_system(scaled):
    """It is parted between the systems."""
    line = trace(optima(scaled), "step time")
    assert list(line.y) == [48, 30, None, 16, 8, 5]
    assert line.yaxis == "y3"


def test_the_configuration_stands_above_its_column(scaled):
    """A column of cells for each strategy: its degrees, micro-batches and time."""
    figure = optima(scaled)
    cells = traces(figure, "configuration")
    rows = list(figure.layout.yaxis.ticktext)
    assert rows == ["tp", "pp", "dp", "micro-batch", "micro-batches", "time [s]"]
    shown = [[row[0] for row in cell.text] for cell in cells]
    assert shown[0] == ["4", "2", "2", "1", "50", "48.0"]
    assert shown[4] == ["4", "2", "4", "1", "25", "5.00"]
    assert [row[0] for row in cells[0].z] == [2, 1, 1, 0, pytest.approx(5.64, abs=0.01), 0]
    bars = trace(figure, "forward").x
    assert [cell.x[0] for cell in cells] == list(bars)
    empty = trace(figure, "nothing")
    assert list(empty.x) == [0]
    assert "nothing fits (accelerator" in empty.customdata[0]


def test_cells_without_room_tell_when_hovered_over():
    """Of forty columns no word is written that would run into the next one."""
    many = (axis("x", range(40)), list(range(40)))
    words = {True: "all_reduce", False: "rs_ag"}
    result = swept([many], lambda _, n: plan(1, tp=2, tp_exchange=words[n % 2 == 0]))
    cells = traces(optima(result), "configuration")
    rows = list(optima(result).layout.yaxis.ticktext)
    assert [row[0] for row in cells[0].text] == ["2", "1", "4", "1", "25", "", ""]
    assert cells[0].customdata[rows.index("tp exchange")][0] == "tp exchange all_reduce"


def test_names_of_many_groups_do_not_run_into_one_another():
    """Two lines of the usual size where there is room, else a line for each word, and smaller."""
    few, many = 3, 12
    headings = {}
    for count in (few, many):
        outer = (axis("hbm.capacity", [f"{n} GiB" for n in range(count)]), list(range(count)))
        inner = (axis("x", ["1x", "2x"]), [1, 2])
        figure = optima(swept([outer, inner], lambda *_: plan(1)), "x")
        headings[count] = [note for note in figure.layout.annotations if "capacity" in note.text]
    assert [len(notes) for notes in headings.values()] == [few, many]
    assert headings[few][2].text == "<b>hbm.capacity<br>2 GiB</b>"
    assert headings[few][0].font.size == 11
    assert headings[many][11].text == "<b>hbm.capacity<br>11<br>GiB</b>"
    assert headings[many][0].font.size < 9


def test_words_that_differ_are_told_above_the_columns():
    """Recompute is a row where it is not the same everywhere."""
    words = (axis("recompute", ["none", "full"], kind="strategy"), ["none", "full"])
    fields = {"cp": 2, "gpus": 16, "micro_batch_size": 5}
    figure = optima(swept([words], lambda _, word: plan(1, recompute=word, **fields)))
    rows = list(figure.layout.yaxis.ticktext)
    assert rows == ["tp", "cp", "pp", "dp", "micro-batch", "micro-batches", "recompute", "time [s]"]
    none, full = ([row[0] for row in cell.text] for cell in traces(figure, "configuration"))
    assert none == ["1", "2", "1", "8", "5", "2", "none", "1.00"]
    assert full[rows.index("recompute")] == "full"


def test_a_strategy_that_is_held_though_it_does_not_fit_is_told_so():
    """Its column is there, marked; lines and maps have nothing there."""
    held = swept([GPUS], lambda _, n: plan(96 / n, gpus=n, used=1280 / n), searched=False)
    figure = optima(held)
    assert list(figure.layout.xaxis3.ticktext)[1:] == ["16", "32"]
    assert "does not fit" in figure.layout.xaxis3.ticktext[0]
    assert list(trace(figure, "capacity").y)[:2] == [80, 80]
    lines = scaling(held)
    assert list(traces(lines, "old")[0].x) == [16, 32]
    assert "does not fit: 160.0 of 80.0 GiB" in trace(lines, "nothing old").customdata[0]


def test_one_point_alone_has_its_column():
    """A sweep without axes shows its best; so do several systems side by side."""
    figure = optima(swept([], lambda *_: plan(2)))
    assert list(trace(figure, "forward").y) == [25]
    assert "The best strategy" in figure.layout.title.text
    figure = optima(swept([], lambda *_: plan(2), systems=("old", "new")))
    assert list(figure.layout.xaxis3.ticktext) == ["old", "new"]


def test_too_many_columns_are_refused():
    """The error says how to draw a part."""
    many = (axis("x", range(61), unit=None), list(range(61)))
    with pytest.raises(InputError) as caught:
        optima(swept([many], lambda *_: plan(1)))
    told = "charts: the sweep has not so few points that 60 bars show them; draw a part: "
    assert str(caught.value) == told + "only(result, systems=..., at={axis: labels})"


def test_a_part_of_a_sweep_keeps_what_is_named(mapped, scaled):
    """Positions are those among the labels that are left."""
    part = only(mapped, at={"hbm.bandwidth": ["8x", "0.5x"], "hbm.capacity": "1x"})
    assert [axis.labels for axis in part.axes] == [("1x",), ("0.5x", "8x")]
    assert [(p.at, p.best[0].step_time_s) for p in part.points] == [((0, 0), 10.5), ((0, 1), 1.125)]
    assert list(trend(part).data[0].y) == [10.5, 1.125]
    assert {p.system for p in only(scaled, systems="new").points} == {"new"}
    for words, told in (
        ({"systems": "mew"}, "system mew; did you mean 'new'?"),
        ({"at": {"gpus": "9999"}}, "gpus 9999; it has 8, 16, 32"),
        ({"at": {"tp": "1"}}, "an axis tp; it has gpus"),
    ):
        with pytest.raises(InputError) as caught:
            only(scaled, **words)
        assert str(caught.value) == f"charts: the sweep has not {told}"


def test_axes_that_advance_together_are_one(scaled):
    """GPUs and batch that grow together make one line, without the other in its name."""
    batch = axis("global_batch_size", [100, 200, 400], kind="strategy")
    points = tuple(
        p.model_copy(update={"at": (*p.at, *p.at), "values": p.values | {batch.name: 7}})
        for p in scaled.points
    )
    both = scaled.model_copy(update={"axes": (*scaled.axes, batch), "points": points})
    assert [each.name for each in trend(both).data][::2] == ["old", "new"]
    assert list(traces(scaling(both), "new")[0].x) == [8, 16, 32]
    assert list(trace(optima(both), "forward").x) == list(trace(optima(scaled), "forward").x)
