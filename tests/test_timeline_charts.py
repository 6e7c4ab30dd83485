"""Charts of the pipeline and of the roofline: every pass, and no kernel above the roof."""

import json

import pytest

from shardwise import System, estimate, trace
from shardwise.report.charts.common import plotly
from shardwise.report.charts.roofline import roofline
from shardwise.report.charts.timeline import pipeline_timeline

pytest.importorskip("plotly")

as_plotly = plotly().Figure
RUN = {"gpus": 64, "tp": 4, "pp": 4, "gbs": 128}


def test_the_pipeline_chart_has_every_pass():
    """One bar for each forward and backward of a rank, and what follows the last one."""
    timeline = trace("llama3-70b", "h100-sxm", RUN | {"vpp": 2}).timeline
    figure = as_plotly(pipeline_timeline(timeline))
    bars = {trace.name: trace for trace in figure.data}
    micro_batches = 128 * 4 * 4 // 64
    assert len(bars["forward"].x) == len(bars["backward"].x) == 4 * 2 * micro_batches
    end = max(a + b for a, b in zip(bars["backward"].base, bars["backward"].x, strict=True))
    assert end == pytest.approx(1e3 * timeline.passes_s)
    after = sum(bars[name].x[0] for name in ("dp communication", "optimizer", "overhead"))
    assert end + after == pytest.approx(1e3 * timeline.step_s, rel=1e-6)


def test_long_steps_show_their_first_micro_batches():
    """As many as a browser moves; the title says so, and nothing follows them."""
    fields = {"gpus": 64, "tp": 1, "pp": 16, "gbs": 4096, "zero": 1}
    figure = as_plotly(pipeline_timeline(trace("llama3-8b", "h100-sxm", fields).timeline))
    assert sum(len(trace.x) for trace in figure.data) <= 4000
    assert "the first 125 of 1024 micro-batches" in figure.layout.title.text
    assert {trace.name for trace in figure.data} == {"forward", "backward"}


def test_no_kernel_is_above_the_roof():
    """Rates of matrix products are below the peak and below bandwidth x intensity."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8}, operations=True)
    figure = as_plotly(roofline(found, System.load("h100-sxm")))
    *points, roof = figure.data
    peak = max(roof.y)
    assert peak == pytest.approx(989, rel=0.01)
    slope = roof.y[0] / roof.x[0]
    rates = [(x, y) for trace in points for x, y in zip(trace.x, trace.y, strict=True)]
    assert len(rates) > 10
    assert all(y <= min(peak, slope * x) * 1.001 for x, y in rates)


def test_charts_are_as_plotly_writes_them():
    """The explorer shows them without plotly's objects, which validate them here."""
    timeline = trace("llama3-8b", "h100-sxm", RUN).timeline
    found = estimate("llama3-8b", "h100-sxm", RUN, operations=True)
    for drawn in (pipeline_timeline(timeline), roofline(found, System.load("h100-sxm"))):
        own, theirs = (json.loads(text) for text in (json.dumps(drawn), as_plotly(drawn).to_json()))
        for one in (own, theirs):
            del one["layout"]["template"]
        assert own == theirs
