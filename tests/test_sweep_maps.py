"""Maps of a sweep: the best of every pair of values, as cells, and contours."""

from math import log10

import pytest

from shardwise import InputError
from shardwise.report.charts.sweep import contour, heat_map
from swept_by_hand import GIB, GPUS, axis, mapped_sweep, plan, scaled_sweep, swept, trace

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def scaled():
    """Two systems over three numbers of GPUs; the old one has nothing on the smallest."""
    return scaled_sweep()


@pytest.fixture(scope="module")
def mapped():
    """Step time over capacity and bandwidth: nothing fits into the least capacity."""
    return mapped_sweep()


def test_a_cell_shows_the_best_of_its_values(mapped):
    """Down is the first axis; grey cells tell why there is nothing; the best is framed."""
    figure = heat_map(mapped)
    shown, empty = trace(figure, "step time"), trace(figure, "infeasible")
    assert [list(row) for row in shown.text] == [
        ["", "", ""],
        ["11.0", "6.00", "1.62"],
        ["10.5", "5.50", "1.12"],
    ]
    assert shown.z[1] == pytest.approx([log10(11), log10(6), log10(1.625)])
    assert list(empty.z[0]) == [1, 1, 1]
    assert "nothing fits" in empty.customdata[0][0]
    assert "hbm.capacity 40 GiB, hbm.bandwidth 0.5x" in empty.customdata[0][0]
    assert set(empty.z[1]) == {None}
    (frame,) = figure.layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (1.5, 2.5, 1.5, 2.5)
    assert list(figure.layout.yaxis.ticktext) == ["40 GiB", "80 GiB", "1x"]


def test_the_system_as_it_is_and_named_points_are_marked(mapped):
    """Where both labels are 1x, and where values are those of the mark."""
    marks = {
        "next": {"hbm.capacity": 80 * 2**30, "hbm.bandwidth": 16e12},
        "far": {"hbm.capacity": 1.0},
    }
    drawn = heat_map(mapped, marks=marks).layout.annotations
    assert [(a.text, a.x, a.y) for a in drawn] == [("<b>next</b>", 2, 1), ("<b>as it is</b>", 1, 2)]
    drawn = contour(mapped, marks=marks).layout.annotations
    place = {a.text: (a.x, a.y) for a in drawn}
    assert place["<b>as it is</b>"] == pytest.approx((log10(2000), 160))
    assert place["<b>next</b>"] == pytest.approx((log10(16000), 80))
    assert len(place) == 2
    same = {
        "mine": {"hbm.capacity": 160 * GIB, "hbm.bandwidth": 2e12},
        "half": {"hbm.capacity": 1.0},
    }
    for figure in (heat_map(mapped, marks=same), contour(mapped, marks=same)):
        assert [a.text for a in figure.layout.annotations] == ["<b>mine</b>"]


def test_systems_may_stand_on_an_axis_of_a_map(scaled):
    """The first system on top."""
    figure = heat_map(scaled, ("system", "gpus"))
    assert list(figure.layout.yaxis.ticktext) == ["old", "new"]
    assert figure.layout.yaxis.autorange == "reversed"
    assert [list(row) for row in trace(figure, "step time").text] == [
        ["", "48.0", "30.0"],
        ["16.0", "8.00", "5.00"],
    ]


def test_a_map_shows_the_best_over_axes_that_are_left_out():
    """Whichever comes first; what does not fit takes no place from what does."""
    zero = (axis("zero", [0, 1], kind="strategy"), [0, 1])

    def best(_, gpus, zero):
        return None if (gpus, zero) == (8, 1) else plan(10 - zero, gpus=gpus)

    both = swept([GPUS, zero], best, systems=("old", "new"))
    turned = both.model_copy(update={"points": both.points[::-1]})
    for figure in (heat_map(result, ("gpus", "system")) for result in (both, turned)):
        shown = trace(figure, "step time").text
        assert [list(row) for row in shown] == [["10.0"] * 2, ["9.00"] * 2, ["9.00"] * 2]
        assert "each the best over zero" in figure.layout.title.text


@pytest.mark.parametrize("axes", [("gpus",), ("gpus", "gpus"), ("gpus", "system", "gpus")])
def test_a_map_needs_two_axes(scaled, axes):
    """The error names those that may be given."""
    with pytest.raises(InputError) as caught:
        heat_map(scaled, axes)
    told = "charts: the sweep has not two axes to draw over; name two of system, gpus"
    assert str(caught.value) == told


def test_contours_are_over_numbers_and_leave_holes(mapped, scaled):
    """Axes in units people use; where nothing fits a cross says why."""
    figure = contour(mapped)
    plane, holes = trace(figure, "step time"), trace(figure, "infeasible")
    assert list(plane.x) == [1000, 2000, 16000]
    assert list(plane.y) == [40, 80, 160]
    assert list(plane.z[0]) == [None] * 3
    assert plane.z[2] == pytest.approx([log10(10.5), log10(5.5), log10(1.125)])
    assert list(zip(holes.x, holes.y, strict=True)) == [(1000, 40), (2000, 40), (16000, 40)]
    assert "nothing fits" in holes.customdata[0]
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.yaxis.type is None
    with pytest.raises(InputError) as caught:
        contour(scaled, ("system", "gpus"))
    told = "charts: the sweep has not 3 numbers on each of system and gpus; "
    assert str(caught.value) == told + "draw a heat map, or the part of one system"
