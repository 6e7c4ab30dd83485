"""Charts of a search show its figures, each where it belongs."""

import json
from math import log10

import numpy as np
import pytest

from shardwise import InputError, search
from shardwise.report.charts.common import log_axis, write
from shardwise.report.charts.plans import ordered_values, rounded
from shardwise.report.charts.search import (
    best_memory,
    best_time,
    charts,
    front,
    heat_map,
    rejections,
    scaling,
    write_charts,
)
from shardwise.report.console import chance

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")

GIB = 2.0**30
SMALL = {
    "seq_len": 2048,
    "placement": "tp-cp-dp-pp",
    "tp_overlap": "stack",
    "dp_overlap": True,
    "offload_weights": False,
    "offload_activations": False,
    "offload_optimizer": False,
    "fused_activation": False,
}


@pytest.fixture(scope="module")
def found():
    """Sixteen accelerators, of whose memory so little may be used that some degrees do not fit."""
    space = SMALL | {"gpus": 16, "gbs": 64, "tp": [1, 2, 3, 4, 8], "vpp": 1}
    axes = ("tp", "pp")
    more = {"axes": axes, "pareto": "memory", "max_memory": "30 GiB", "all_variants": True}
    return search("llama3-8b", "h100-sxm", space, **more)


@pytest.fixture(scope="module")
def scaled():
    """Several scales, on the smallest of which nothing fits, with batches of their own."""
    space = SMALL | {"gpus": [1, 16, 32, 8], "gbs": [64, 128], "vpp": 1, "recompute": "none"}
    space |= {"scope": "full"}
    axes = ("recompute", "tp_regather", "zero", "tp")
    asked = {"objective": "step_time", "axes": axes, "pareto": "gpus", "top": 3}
    return search("llama3-8b", "h100-sxm", space, **asked)


@pytest.fixture(scope="module")
def nothing():
    """A model that does not fit."""
    space = SMALL | {"gpus": 1, "gbs": 1}
    return search("gpt3-175b", "h100-sxm", space, axes=("tp", "pp"), pareto="memory")


def trace(figure, name):
    """The trace of a name."""
    (one,) = [each for each in figure.data if each.name == name]
    return one


def cell(figure, values, name):
    """What a trace of a heat map holds at two values."""
    rows, columns = list(figure.layout.yaxis.ticktext), list(figure.layout.xaxis.ticktext)
    row, column = (axis.index(str(v)) for axis, v in zip((rows, columns), values, strict=True))
    return {part: trace(figure, name)[part][row][column] for part in ("z", "text", "customdata")}


def test_a_cell_shows_the_step_time_of_its_best_plan(found):
    """Down is the first axis, across the second; colour, label and hover are the plan's."""
    figure = heat_map(found)
    assert len(found.cells) > 4
    for each in found.cells:
        shown = cell(figure, each.values.values(), "step time")
        assert shown["z"] == each.plan.step_time_s
        assert shown["text"] == rounded(each.plan.step_time_s)
        told = f"memory {each.plan.memory_reserved_bytes / GIB:.1f} of 30.0 GiB"
        assert told in shown["customdata"]


def test_words_on_cells_have_contrast(found):
    """Black or white, 4.5:1 or more against the color of the cell (WCAG 2.1, 1.4.3)."""

    def light(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    def channels(color):
        return [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]

    figure = heat_map(found)
    cells, words = trace(figure, "step time"), trace(figure, "values")
    places, colors = zip(*cells.colorscale, strict=True)
    stops = list(zip(*map(channels, colors), strict=True))
    assert len(words.text) == len(found.cells)
    for row, column, ink in zip(words.y, words.x, words.textfont.color, strict=True):
        share = (cells.z[row][column] - cells.zmin) / (cells.zmax - cells.zmin)
        color = [np.interp(share, places, stop) for stop in stops]
        pair = light(color), light(channels(ink))
        assert max(pair) / min(pair) >= 4.5


def test_cells_without_a_plan_are_drawn_as_infeasible(found):
    """A cell has a colour of the scale, or the grey of what is infeasible: never both or none."""
    figure = heat_map(found)
    plans, empty = trace(figure, "step time").z, trace(figure, "infeasible").z
    flags = [
        (a is None, b is None)
        for p, e in zip(plans, empty, strict=True)
        for a, b in zip(p, e, strict=True)
    ]
    assert set(flags) == {(True, False), (False, True)}
    assert flags.count((False, True)) == len(found.cells)


def test_a_declared_value_with_which_nothing_fits_has_a_row(found):
    """tp 3 was asked for and does not divide the GPUs: its row is there, and empty."""
    figure = heat_map(found)
    assert list(figure.layout.yaxis.ticktext) == ["1", "2", "3", "4", "8"]
    row = list(figure.layout.yaxis.ticktext).index("3")
    assert set(trace(figure, "step time").z[row]) == {None}


def test_hovering_tells_the_whole_strategy(found):
    """Degrees, batch, and every field that is not as by default."""
    each = found.cells[0]
    hover = cell(heat_map(found), each.values.values(), "step time")["customdata"]
    strategy = each.plan.strategy
    for axis in ("tp", "pp", "dp"):
        assert strategy[axis] == 1 or f"{axis} {strategy[axis]}" in hover
    assert f"micro-batch {strategy['micro_batch_size']}, global batch 64 x 2048 tokens" in hover
    assert f"recompute {strategy['recompute']}" in hover
    assert "stack megatron-core-2025" in hover
    assert f"fits with {chance(each.plan.fits_probability)}<br>" in hover


def with_plan(found, values, **changed):
    """The same search with another plan in one cell."""
    cells = [
        each.model_copy(update={"plan": each.plan.model_copy(update=changed)})
        if each.values == values
        else each
        for each in found.cells
    ]
    return found.model_copy(update={"cells": tuple(cells)})


def test_the_best_cell_is_framed(found):
    """The frame is around the shortest step, wherever it is."""
    for values in ({"tp": 8, "pp": 1}, {"tp": 2, "pp": 8}):
        figure = heat_map(with_plan(found, values, step_time_s=1e-3))
        (frame,) = figure.layout.shapes
        row, column = round(frame.y0 + 0.5), round(frame.x0 + 0.5)
        assert (frame.y1, frame.x1) == (row + 0.5, column + 0.5)
        assert trace(figure, "step time").z[row][column] == 1e-3


def test_good_is_bright_whichever_way_is_better(found):
    """The bright end of the scale is a short step, or a high rate."""
    map_of_times = trace(heat_map(found), "step time")
    by_rate = found.model_copy(update={"objective": "tokens_per_s_per_gpu"})
    map_of_rates = trace(heat_map(by_rate), "tokens/s per GPU")
    brightness = [
        [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for _, colour in each.colorscale]
        for each in (map_of_times, map_of_rates)
    ]
    assert brightness[0][0] > brightness[0][-1]
    assert brightness[1][0] < brightness[1][-1]
    rates = {value for row in map_of_rates.z for value in row} - {None}
    assert rates == {each.plan.tokens_per_s_per_gpu for each in found.cells}
    by_price = found.model_copy(update={"objective": "tokens_per_dollar"})
    prices = {value for row in heat_map(by_price).data[1].z for value in row} - {None}
    expected = [1e3 / each.plan.usd_per_billion_tokens for each in found.cells]
    assert sorted(prices) == pytest.approx(sorted(expected))


def test_colours_end_at_three_times_the_best(found):
    """One very slow cell does not make all the others look the same."""
    values = found.cells[0].values
    drawn = heat_map(with_plan(found, values, step_time_s=1e6))
    best = min(each.plan.step_time_s for each in found.cells)
    assert trace(drawn, "step time").zmin == best
    assert trace(drawn, "step time").zmax == 3 * best
    assert "3 times worse or more: darkest" in drawn.layout.title.text
    assert "darkest" not in heat_map(_two_cells(found)).layout.title.text
    by_rate = found.model_copy(update={"objective": "tokens_per_s_per_gpu"})
    drawn = heat_map(with_plan(by_rate, values, tokens_per_s_per_gpu=1e-6))
    best = max(each.plan.tokens_per_s_per_gpu for each in found.cells)
    assert trace(drawn, "tokens/s per GPU").zmin == best / 3
    assert trace(drawn, "tokens/s per GPU").zmax == best


def _two_cells(found):
    """The same search with its two best cells only."""
    ranked = sorted(found.cells, key=lambda each: each.plan.step_time_s)
    return found.model_copy(update={"cells": tuple(ranked[:2])})


def test_words_stand_in_the_order_of_the_strategy(scaled):
    """Words as `Strategy` lists them, false before true, both as words."""
    assert ordered_values("recompute", ["full", "none", "full"]) == ["none", "full"]
    assert ordered_values("tp_tier", [1, None, 0]) == [None, 0, 1]
    figure = heat_map(scaled, ("zero", "tp_regather"))
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "2", "3"]
    assert list(figure.layout.xaxis.ticktext) == ["no", "yes"]


def test_axes_that_are_left_out_are_chosen_over(scaled):
    """A map of two of several axes shows the best over the others."""
    turned = scaled.model_copy(update={"cells": scaled.cells[::-1]})
    for figure in (heat_map(each, ("zero", "recompute")) for each in (scaled, turned)):
        for zero in (0, 1):
            times = {e.plan.step_time_s for e in scaled.cells if e.values["zero"] == zero}
            assert len(times) > 1
            assert cell(figure, (zero, "none"), "step time")["z"] == min(times)


@pytest.mark.parametrize("axes", [(), ("tp",), ("zero", "dp"), ("zero", "recompute", "dp")])
def test_a_map_needs_two_axes_of_the_search(scaled, axes):
    """The error names the axes that there are."""
    with pytest.raises(InputError, match=r"two axes .*recompute, tp_regather, zero"):
        heat_map(scaled, axes)


def test_the_front_shows_memory_and_time_of_its_plans(found):
    """One point for each plan of the front, and a line at what may be used."""
    (points,) = front(found).data
    expected = {(p.memory_reserved_bytes / GIB, p.step_time_s) for p in found.pareto}
    assert set(zip(points.x, points.y, strict=True)) == expected
    assert list(points.x) == sorted(points.x)
    (limit,) = front(found).layout.shapes
    assert limit.x0 == limit.x1 == 30.0


def test_a_front_over_several_batches_compares_tokens(scaled):
    """Where plans run other batches, a step is not the same work: time is per million tokens."""
    figure = front(scaled)
    assert len({p.strategy["global_batch_size"] for p in scaled.pareto}) == 1
    assert figure.layout.yaxis.title.text == "time of a step [s]"
    assert list(figure.data[0].x) == sorted(p.strategy["gpus"] for p in scaled.pareto)
    first, *options_of = scaled.pareto
    halved = first.model_copy(update={"strategy": first.strategy | {"global_batch_size": 64}})
    mixed = front(scaled.model_copy(update={"pareto": (halved, *options_of)}))
    assert mixed.layout.yaxis.title.text == "time of a million tokens [s]"
    assert set(mixed.data[0].y) == {1e6 / plan.tokens_per_s for plan in scaled.pareto}


def test_a_front_that_was_not_asked_for_is_refused(found):
    """The error says how to ask for it."""
    with pytest.raises(InputError, match="not a Pareto front; search with pareto="):
        front(found.model_copy(update={"pareto": None}))


def test_scaling_shows_throughput_and_efficiency_by_gpus(scaled):
    """A line for each batch: tokens/s above, efficiency below, by rising number of GPUs."""
    figure = scaling(scaled)
    for batch in (64, 128):
        fitting = [s for s in scaled.scales if s.global_batch_size == batch and s.best]
        fitting.sort(key=lambda scale: scale.gpus)
        above, below = [d for d in figure.data if d.name == f"global batch {batch}"]
        assert list(above.x) == list(below.x) == [scale.gpus for scale in fitting] == [8, 16, 32]
        assert list(above.y) == [scale.best.tokens_per_s for scale in fitting]
        assert list(below.y) == [100 * scale.efficiency for scale in fitting]


def test_the_ideal_is_proportional_to_the_first_scale(scaled):
    """Every GPU does as much as those of the first scale that fits, 16 GPUs here."""
    ideal = trace(scaling(scaled), "ideal")
    first = next(scale.best for scale in scaled.scales if scale.best)
    assert first.strategy["gpus"] == 16
    assert list(ideal.y) == [first.tokens_per_s_per_gpu * n for n in ideal.x]


def test_scales_without_a_plan_are_marked(scaled):
    """On one GPU nothing fits; annotations of a logarithmic axis stand at the logarithm."""
    (mark,) = [a for a in scaling(scaled).layout.annotations if a.text == "nothing fits"]
    assert mark.x == log10(1)


def test_one_number_of_gpus_scales_by_batch(scaled):
    """Where only the batch differs, it is the axis, and nothing is ideal."""
    scales = tuple(scale for scale in scaled.scales if scale.gpus == 16)
    figure = scaling(scaled.model_copy(update={"scales": scales}))
    assert list(figure.data[0].x) == [64, 128]
    assert "ideal" not in {each.name for each in figure.data}


def test_scaling_of_one_scale_is_refused(found):
    """The error says how to search several."""
    with pytest.raises(InputError, match="not several scales"):
        scaling(found)


def test_bars_of_the_best_add_up(found):
    """Parts of the time make the step, parts of memory what is reserved, the best on top."""
    for figure, wanted in (
        (best_time(found), [e.step_time_s for e in found.rows]),
        (best_memory(found), [e.memory_bytes.reserved / GIB for e in found.rows]),
    ):
        parts = [each.x for each in figure.data if each.type == "bar"]
        assert [sum(bar) for bar in zip(*parts, strict=True)] == pytest.approx(wanted)
        assert figure.layout.yaxis.autorange == "reversed"
        assert figure.data[0].y[0].startswith("1  ")


def test_whiskers_are_the_intervals_of_the_plans(found):
    """Of the best as the estimates have them, of the front as its plans."""
    (mark,) = (each for each in best_time(found).data if each.type == "scatter")
    assert list(mark.x) == [e.step_time_s for e in found.rows]
    for place, one in enumerate(found.rows):
        assert mark.x[place] + mark.error_x.array[place] == pytest.approx(one.interval.high_s)
        assert mark.x[place] - mark.error_x.arrayminus[place] == pytest.approx(one.interval.low_s)
    (mark,) = (each for each in best_memory(found).data if each.type == "scatter")
    for place, one in enumerate(found.rows):
        ends = mark.x[place] - mark.error_x.arrayminus[place], one.memory_interval.reserved_low
        assert ends[0] == pytest.approx(ends[1] / GIB)
        high = mark.x[place] + mark.error_x.array[place]
        assert high == pytest.approx(one.memory_interval.reserved_high / GIB)
    (points,) = front(found).data
    for place, one in enumerate(sorted(found.pareto, key=lambda p: p.memory_reserved_bytes)):
        assert points.y[place] + points.error_y.array[place] == pytest.approx(one.interval_high_s)
    best = found.best[0]
    same = [p for p in found.pareto if p.strategy == best.strategy]
    assert [p.interval_low_s for p in same] == pytest.approx([best.interval.low_s] * len(same))


def test_every_candidate_is_feasible_or_rejected(found):
    """The bars of the last chart add up to the space."""
    (bars,) = rejections(found).data
    assert sum(bars.x) == found.candidates
    assert dict(zip(bars.y, bars.x, strict=True))["feasible"] == found.feasible


def test_charts_are_those_of_what_was_found(found, scaled, nothing):
    """What a search was not asked for, or did not find, has no chart."""
    assert list(charts(found)) == [
        "best-time",
        "best-memory",
        "by-tp-pp",
        "front",
        "candidates",
    ]
    assert [name for name in charts(scaled) if name.startswith("by")] == [
        "by-recompute-tp_regather",
        "by-recompute-zero",
        "by-recompute-tp",
        "by-tp_regather-zero",
        "by-tp_regather-tp",
        "by-zero-tp",
    ]
    assert "scaling" in charts(scaled)
    assert list(charts(nothing)) == ["candidates"]


def test_titles_say_model_system_gpus_and_batch(found, scaled):
    """Each chart says of which run it is."""
    for name, figure in charts(found).items():
        title = figure.layout.title.text
        assert "llama3-8b on h100-sxm, 16 GPUs, global batch 64 x 2048 tokens" in title, name
    assert "1 to 32 GPUs, global batch 64 to 128" in scaling(scaled).layout.title.text


def test_the_page_needs_nothing_from_elsewhere(found, tmp_path):
    """All charts are on one page, with the library once and no address to fetch it from."""
    path = tmp_path / "charts.html"
    write_charts(found, path)
    page = path.read_text(encoding="utf-8")
    for name in charts(found):
        assert page.count(f'id="{name}"') == 1
    assert page.count('id="packed-library"') == 1
    assert "<script src=" not in page
    assert 1.5e6 < len(page) < 2e6
    assert f"{found.candidates:,} strategies, {found.feasible:,} of them feasible" in page


@pytest.mark.needs("predecessors")
def test_a_result_on_file_is_drawn_as_the_search_itself(shardwise, found, tmp_path):
    """`convert` makes the same page of a saved result."""
    saved, again, direct = (tmp_path / name for name in ("r.json", "again.html", "direct.html"))
    saved.write_text(json.dumps(found.to_dict()))
    assert shardwise("convert", saved, again)[:2] == (0, "")
    write_charts(found, direct)
    assert again.read_text(encoding="utf-8") == direct.read_text(encoding="utf-8")


def test_a_page_of_nothing_says_so(nothing, tmp_path):
    """A search that found nothing still has its page, with the reasons."""
    path = tmp_path / "charts.html"
    write_charts(nothing.model_copy(update={"complete": False}), path)
    page = path.read_text(encoding="utf-8")
    assert "Nothing is feasible" in page
    assert "Interrupted" in page


def test_a_name_cannot_break_the_page(found, tmp_path):
    """Names of files of one's own are shown as they are."""
    path = tmp_path / "charts.html"
    write_charts(found.model_copy(update={"model": "<img src=x>"}), path)
    assert "<img" not in path.read_text(encoding="utf-8")


def test_figures_are_written_as_json_too(found, tmp_path):
    """All by name, or one alone as plotly reads it back."""
    import plotly.io  # noqa: PLC0415 - skipped without it

    write_charts(found, tmp_path / "charts.json")
    every = json.loads((tmp_path / "charts.json").read_text(encoding="utf-8"))
    assert list(every) == list(charts(found))
    write(front(found), tmp_path / "front.json")
    assert plotly.io.read_json(tmp_path / "front.json") == front(found)
    write(front(found), tmp_path / "front.html")
    assert "packed-library" in (tmp_path / "front.html").read_text(encoding="utf-8")


def test_ticks_of_a_logarithmic_axis_surround_the_values():
    """1, 2 and 5 of each decade, from below the least to above the most value."""
    axis = log_axis([0.3, 47.0])
    assert [t for t in axis["tickvals"] if 0.3 <= t <= 47] == pytest.approx([0.5, 1, 2, 5, 10, 20])
    assert min(axis["tickvals"]) < 0.3
    assert max(axis["tickvals"]) > 47
    words = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    assert (words[0.5], words[20.0]) == ("0.5", "20")
