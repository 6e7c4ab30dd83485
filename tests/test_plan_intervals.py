"""Plans of searches and sweeps have the prediction interval of their estimate."""

import pytest

from shardwise import estimate, search, sweep

pytestmark = pytest.mark.any_software

WORK = {"gpus": 16, "gbs": 32}


def test_plans_of_a_front_have_the_interval_of_their_estimate():
    """Also where a plan has a feature that no measured run used, which widens it."""
    space = {**WORK, "recompute": "none", "tp_overlap": ("stack", "none", "ring"), "tp": (2, 4)}
    found = search("llama3-8b", "h100-sxm", space, pareto="memory", any_software=True)
    assert len(found.pareto) > 1
    for plan in found.pareto:
        interval = estimate("llama3-8b", "h100-sxm", plan.strategy).interval
        assert plan.interval_s == pytest.approx((interval.low_s, interval.high_s))


def test_points_of_a_sweep_have_it_too():
    """At the original figures that of the estimate, elsewhere as wide."""
    vary = {"nvlink.bandwidth": "1x,2x"}
    strategy = {**WORK, "tp": 4}
    first, second = sweep("llama3-8b", ["h100-sxm"], strategy=strategy, vary=vary).points
    interval = estimate("llama3-8b", "h100-sxm", strategy).interval
    assert first.best[0].interval_s == pytest.approx((interval.low_s, interval.high_s))
    faster = second.best[0]
    assert faster.step_time_s < first.best[0].step_time_s
    factors = [end / first.best[0].step_time_s for end in (interval.low_s, interval.high_s)]
    assert faster.interval_s == pytest.approx([faster.step_time_s * f for f in factors])


def test_forward_only_there_is_none():
    """No run was measured that only runs forward."""
    space = {**WORK, "training": False, "tp": 4}
    found = search("llama3-8b", "h100-sxm", space, pareto="memory")
    assert found.pareto
    assert all(plan.interval_s is None for plan in found.pareto)
