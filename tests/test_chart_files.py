"""Where charts go: endings of files, and what is said where plotly is missing."""

import sys

import pytest

from rows import each_row
from shardwise import InputError
from shardwise.report.charts import common as figures
from shardwise.report.charts.common import check_chart_file


@pytest.mark.parametrize("name", ["chart.png", "chart.SVG"])
def test_a_static_image_needs_kaleido(name, monkeypatch):
    """The error names the extra to install."""
    pytest.importorskip("plotly")  # that one is asked for first
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    with pytest.raises(InputError) as caught:
        check_chart_file(name)
    ending = name.removeprefix("chart").lower()
    told = f"{name}: {ending} needs kaleido, which is not installed: pip install "
    assert str(caught.value) == told + "'shardwise[images]'"


@each_row("name", ["chart", "chart.csv", "chart.gif", "chart.html.gz"])
def test_other_endings_are_refused(name):
    """The error names the file and the endings that are allowed."""
    with pytest.raises(InputError) as caught:
        check_chart_file(name)
    assert str(caught.value) == f"{name}: charts are written as .html, .json, .png, .svg, .pdf"


def test_a_missing_plotly_names_the_extra_to_install(monkeypatch):
    """Charts are an extra; without it the error says how to get it."""
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(InputError) as caught:
        check_chart_file("chart.html")
    assert "pip install 'shardwise[plots]'" in str(caught.value)
