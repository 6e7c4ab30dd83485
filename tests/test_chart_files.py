"""Where charts go: endings of files, and what is said where plotly is missing."""

import sys

import pytest

from shardwise import InputError
from shardwise.report.figures import check_chart_file


@pytest.mark.parametrize("name", ["chart.png", "chart.svg", "chart.pdf"])
def test_a_static_image_is_refused_with_the_way_to_one(name):
    """Charts are pages; the browser saves an image of one."""
    with pytest.raises(InputError, match=rf"{name}: charts are written as .html or .json; for a"):
        check_chart_file(name)


@pytest.mark.parametrize("name", ["chart", "chart.csv", "chart.html.gz"])
def test_other_endings_are_refused(name):
    """The error names the file and the endings that are allowed."""
    with pytest.raises(InputError, match=rf"^{name}: charts are written as .html or .json$"):
        check_chart_file(name)


def test_a_missing_plotly_names_the_extra_to_install(monkeypatch):
    """Charts are an extra; without it the error says how to get it."""
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(InputError) as caught:
        check_chart_file("chart.html")
    assert "pip install 'shardwise[plots]'" in str(caught.value)
