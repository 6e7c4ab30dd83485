"""Charts of measured runs show each run where it belongs."""

import pytest

from measured_samples import predicted, refused
from shardwise import InputError
from shardwise.report.charts.measured import against_measured, charts, spread, write_charts
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.scoreboard import scoreboard

pytest.importorskip("plotly")

A100 = {"hardware": {"accelerator": "A100", "count": 8}}


@pytest.fixture(scope="module")
def board():
    """Three runs on two accelerators in two sources, one of them far off, and one refused."""
    far = predicted("c", 1.0, 9.0, source="logs", model={"name": "m", "experts": 8})
    one = predicted("a<b", 10.0, 11.0, interval=(9.0, 12.0))
    told = Prediction(
        run=one.run, step_time_s=11.0, interval=(9.0, 12.0), assumed=("TP < 8", "no recompute")
    )
    return scoreboard([told, predicted("b", 20.0, 13.0, **A100), far, refused("d", "why")])


def _trace(figure, name):
    (one,) = [each for each in figure.data if each.name == name]
    return one


def test_each_run_stands_at_its_times(board):
    """Across what was measured, up what is predicted, both logarithmic; colours by group."""
    figure = against_measured(board)
    h100, a100 = _trace(figure, "H100"), _trace(figure, "A100")
    assert (h100.x, h100.y) == ((10.0, 1.0), (11.0, 9.0))
    assert (a100.x, a100.y) == ((20.0,), (13.0,))
    assert h100.marker.color != a100.marker.color
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    by_source = against_measured(board, "source")
    assert {_trace(by_source, "paper").x, _trace(by_source, "logs").x} == {(10.0, 20.0), (1.0,)}
    assert "3 runs" in figure.layout.title.text


def test_a_run_tells_its_figures_and_assumptions(board):
    """In full, with nothing that a browser would take for markup."""
    (told, _) = _trace(against_measured(board), "H100").customdata
    assert told.split("<br>") == [
        "<b>a&lt;b</b>",
        "paper, grade A",
        "H100, bf16, dense, 1-8 accelerators",
        "measured 10 s, predicted 11 s (+10.0%)",
        "between 9 and 12 s",
        "assumed: TP &lt; 8",
        "assumed: no recompute",
    ]


def test_the_band_is_ten_percent_around_equal(board):
    """From end to end of the chart."""
    low, high, equal = against_measured(board).data[:3]
    assert low.x == high.x == equal.x == equal.y
    assert low.x[0] < 1.0
    assert low.x[1] > 20.0
    assert low.y == pytest.approx([0.9 * x for x in low.x])
    assert high.y == pytest.approx([1.1 * x for x in low.x])
    assert (high.fill, high.name) == ("tonexty", "within 10%")


def test_more_groups_than_colours_have_marks_of_their_own():
    """Colour and mark together tell them apart."""
    rows = [predicted(str(n), 1.0, 1.0 + n / 9, source=f"s{n:02}") for n in range(12)]
    figure = against_measured(scoreboard(rows), "source")
    looks = {(each.marker.color, each.marker.symbol) for each in figure.data[3:]}
    assert len(looks) == 12


def test_errors_stand_in_bars(board):
    """In percent, by kind; what is beyond the ends is in the bars there."""
    figure = spread(board)
    assert _trace(figure, "dense").x == pytest.approx((10.0, -35.0))
    assert _trace(figure, "moe").x == pytest.approx((97.5,))
    assert (figure.data[0].xbins.start, figure.data[0].xbins.end, figure.data[0].xbins.size) == (
        -100,
        100,
        5,
    )
    assert figure.layout.barmode == "stack"


def test_nothing_to_draw_is_an_error():
    """Rather than an empty chart."""
    with pytest.raises(InputError) as raised:
        charts(scoreboard([refused("d", "why")]))
    assert str(raised.value) == (
        "charts: the scoreboard has not a run with a measured and a predicted time; score others"
    )


def test_charts_stand_on_one_page(board, tmp_path):
    """With what was predicted and refused above."""
    write_charts(board, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "4 runs: 3 predicted, 1 refused" in page
    assert all(f'id="{name}"' in page for name in charts(board))
