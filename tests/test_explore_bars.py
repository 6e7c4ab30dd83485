"""Bars of the explorer: widths are shares, texts are escaped."""

import re
from html.parser import HTMLParser

import pytest

from shardwise import Model, estimate
from shardwise.web.bars import memory_html, time_html

RUN = {"gpus": 64, "tp": 4, "pp": 4, "gbs": 128}


def widths(text, number):
    """Widths of the pieces of a bar [%]."""
    bars = re.findall(r'<div class="sw-bar.*?</div>', text)
    return [float(one) for one in re.findall(r"width:([\d.]+)%", bars[number])]


def test_pieces_of_the_time_bar_add_up_to_the_step():
    """On the scale of the upper end of the interval."""
    found = estimate("llama3-70b", "h100-sxm", RUN)
    scale = max(found.step_time_s, found.interval.high_s)
    text = time_html(found)
    assert sum(widths(text, 0)) == pytest.approx(100 * found.step_time_s / scale, abs=0.01)
    hidden = sum(one.total - one.exposed for one in found.comm_s.values())
    assert sum(widths(text, 1)) == pytest.approx(100 * hidden / scale, rel=0.02)


def test_memory_has_a_bar_for_each_stage():
    """The longest is the capacity, or what is needed where that is more."""
    for fields, fits in ((RUN, True), (RUN | {"tp": 2}, False)):
        found = estimate("llama3-70b", "h100-sxm", fields)
        assert found.fits == fits
        text = memory_html(found)
        longest = max(found.memory_bytes.capacity, *(stage.reserved for stage in found.stages))
        for stage in found.stages:
            share = 100 * stage.reserved / longest
            assert sum(widths(text, stage.stage)) == pytest.approx(share, abs=0.02)


def test_names_are_text_and_not_html():
    """A model that is named like a script changes nothing."""
    model = Model.load("llama3-8b").model_copy(update={"name": "<script>alert(1)</script>"})
    found = estimate(model, "h100-sxm", {"gpus": 8, "gbs": 8})
    text = time_html(found) + memory_html(found)
    assert "<script" not in text
    HTMLParser().feed(text)
