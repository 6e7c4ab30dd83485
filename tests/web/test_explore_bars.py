"""Bars of the explorer: widths are shares, texts are escaped."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given

from drawn_strategies import machines, models, rows
from profiles import examples
from shardwise import InputError, Model, estimate
from shardwise.analysis.results import CommTime
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.report.charts.common import MEMORY_COLORS, TIME_COLORS
from shardwise.report.charts.estimate import comm_part
from shardwise.report.tables.estimate import PART_NAMES
from shardwise.web.bars import _luminance, ink_on, memory_html, time_html

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
    """The scale ends at the capacity, or where the range of the memory ends if that is more."""
    for fields, fits in ((RUN, True), (RUN | {"tp": 2}, False)):
        found = estimate("llama3-70b", "h100-sxm", fields)
        assert found.fits == fits
        text = memory_html(found)
        high = found.memory_interval.reserved_high
        longest = max(found.memory_bytes.capacity, high, *(s.reserved for s in found.stages))
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


@examples(50)
@given(models, machines, rows())
def test_bars_of_drawn_strategies_add_up(model, machine, fields):
    """Whatever communicates, is offloaded or recomputed, the pieces are those of the estimate."""
    try:
        found = estimate(model, machine, fields | {"any_software": True})
    except InputError:
        assume(False)
    text = time_html(found)
    hidden = [one.total - one.exposed for one in found.comm_s.values()]
    shown = [time for time in hidden if time > 0.07**2 * found.step_time_s]
    high = found.interval.high_s if found.interval else 0.0
    longest = max(found.step_time_s, high, sum(shown))
    assert sum(widths(text, 0)) == pytest.approx(100 * found.step_time_s / longest, rel=0.01)
    assert sum(widths(text, 1) if shown else []) == pytest.approx(
        100 * sum(shown) / longest, rel=0.01
    )
    reserved = [stage.reserved for stage in found.stages]
    reserved += [found.memory_interval.reserved_high] if found.memory_interval else []
    for stage in found.stages:
        share = stage.reserved / max(found.memory_bytes.capacity, *reserved)
        assert sum(widths(memory_html(found), stage.stage)) == pytest.approx(100 * share, abs=0.02)


def test_every_part_of_a_step_has_a_piece():
    """Those that a later release adds too: exposed, and hidden."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8})
    times = dict.fromkeys((*found.time_s, "prefetch"), 1.0)
    comm = {axis: CommTime(total=3.0, exposed=1.0) for axis in (*found.comm_s, "vp")}
    changed = {"time_s": times, "comm_s": comm, "step_time_s": float(len(times)), "interval": None}
    text = time_html(found.model_copy(update=changed))
    assert len(widths(text, 0)) == len(times)
    assert len(widths(text, 1)) == len(comm)
    assert sum(widths(text, 0)) == pytest.approx(
        100 * len(times) / max(len(times), 2 * len(comm)), abs=0.01
    )
    for name in ("prefetch", "offload", "offload, hidden", "vp_comm, hidden"):
        assert f"</i>{name} <b>" in text
    stage = found.stages[0].model_copy(update=dict.fromkeys(MEMORY_PARTS, 1e9))
    assert len(widths(memory_html(found.model_copy(update={"stages": (stage,)})), 0)) == 1 + len(
        MEMORY_PARTS
    )


def test_words_on_bars_can_be_read():
    """Contrast of at least 4.5 on every color; words on hidden communication are black on pale."""
    for color in {*TIME_COLORS.values(), *MEMORY_COLORS.values(), "#000000", "#ffffff", "#767676"}:
        light = sorted(_luminance(one) + 0.05 for one in (color, ink_on(color)))
        assert light[1] / light[0] >= 4.5
    found = estimate("llama3-70b", "h100-sxm", RUN)
    hidden = time_html(found).split("sw-hatched")[1].split("</div>")[0]
    assert set(re.findall(r";color:(#\w+)", hidden)) == {"#000000"}


def test_charts_know_every_part_of_a_step():
    """Parts and axes of an estimate have a name and a color."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8})
    parts = {*found.time_s, *map(comm_part, found.comm_s)}
    assert parts <= set(TIME_COLORS)
    assert parts <= set(PART_NAMES)
