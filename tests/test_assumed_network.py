"""Network cards of a cluster that nobody stated: said, and part of the range of a step."""

import math

import pytest

from rows import each_row
from shardwise import System, catalog, estimate
from shardwise.report.tables.estimate import closing_lines

ZERO = {"zero": 3, "gbs": 64, "mbs": 1, "seq_len": 4096}


def _with_cards(name, factor=1.0, spread=1.0):
    system = System.load(name)
    *inside, tier = system.network
    figures = {"bandwidth": tier.bandwidth * factor, "rate_spread": spread}
    changed = tier.model_copy(update=figures)
    return system.model_copy(update={"network": (*inside, changed)})


def test_other_cards_are_timed_and_widen_the_range():
    """By the steps with half and twice the rate, next to the error of measured runs."""
    found = estimate("llama3-8b", "h100-sxm", gpus=16, **ZERO)
    network = found.assumed_network
    assert network is not None
    assert (network.links_per_node, network.link_rate, network.spread) == (8, 50e9, 2)
    slow, fast, known = (
        estimate("llama3-8b", _with_cards("h100-sxm", factor), gpus=16, **ZERO)
        for factor in (0.5, 2.0, 1.0)
    )
    assert network.slower_step_s == pytest.approx(slow.step_time_s)
    assert network.faster_step_s == pytest.approx(fast.step_time_s)
    assert known.assumed_network is None
    assert found.interval is not None
    assert known.interval is not None
    step = found.step_time_s
    above, below = math.log(known.interval.high_s / step), math.log(step / known.interval.low_s)
    lost, gained = math.log(slow.step_time_s / step), math.log(step / fast.step_time_s)
    assert lost > gained > 0
    assert math.log(found.interval.high_s / step) == pytest.approx(math.hypot(above, lost))
    assert math.log(step / found.interval.low_s) == pytest.approx(math.hypot(below, gained))


def test_the_answer_says_what_is_assumed():
    """Number and rate, and the step with others; nothing inside a node."""
    lines = closing_lines(estimate("llama3-8b", "h100-sxm", gpus=16, **ZERO))
    (line,) = [line for line in lines if "network cards" in line]
    assert line.startswith("network cards assumed: 8 x 400 Gbit/s per node; step time with 1/2 of")
    alone = estimate("llama3-8b", "h100-sxm", gpus=8, **ZERO)
    assert alone.assumed_network is None
    assert not any("network cards" in line for line in closing_lines(alone))


@each_row("name", catalog.names("systems"))
def test_only_cards_between_nodes_are_assumed(name):
    """Links inside a server are those of its kind."""
    *inside, _ = System.load(name).network
    assert all(tier.rate_spread == 1 for tier in inside)
