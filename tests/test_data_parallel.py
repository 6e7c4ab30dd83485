"""Exchange of gradients and weights among replicas, by hand."""

import numpy as np
import pytest

import samples
from samples import column
from shardwise.cost.overlap import exposed_communication, gradient_communication

pytestmark = pytest.mark.any_software


def test_gradients_are_reduced_or_scattered_and_gathered() -> None:
    """10^9 weights among 4: all-reduce of 4 GB; or scatter of 4 GB and gather of 2 GB."""
    times = gradient_communication(
        samples.system(network=[samples.tier()]),
        gradient_bytes=np.full(3, 4e9),
        weight_bytes=np.full(3, 2e9),
        sharded=np.array([False, True, True]),
        extents=np.array([[4, 4, 1]]),
    )
    gradients, weights = times
    np.testing.assert_allclose(gradients, [2 * 3 / 100, 3 / 100, 0])
    np.testing.assert_allclose(weights, [0, 1.5 / 100, 0])


def test_absent_collectives_cost_no_latency() -> None:
    """A second for each: one without sharding, two with it, none for a single replica."""
    times = gradient_communication(
        samples.system(network=[samples.tier(latency=1)]),
        gradient_bytes=np.full(4, 4e-9),
        weight_bytes=np.full(4, 2e-9),
        sharded=np.array([False, True, True, False]),
        extents=np.array([[4, 4, 1, 1]]),
    )
    np.testing.assert_allclose(times, [[1, 1, 0, 0], [0, 1, 0, 0]], rtol=1e-6)


def test_communication_hides_behind_compute_at_reduced_speed() -> None:
    """Of 10 s at half speed, a window of 8 s hides 4, but a tenth of what it hides is the tail."""
    windows = column(0, 8, 20, 1000)
    rates = {"contention": column(0.5), "tail": column(0.1)}
    times = exposed_communication(column(10), windows, **rates, processor_share=column(0))
    assert times == pytest.approx([10, 10 - 3.6, 1, 1])


def test_hidden_communication_slows_concurrent_compute() -> None:
    """A quarter is lost to it: 8 s of compute last 10.67, which hide 4.8; 20 s hide 9 of 10."""
    rates = {"contention": column(0.5), "tail": column(0.1)}
    times = exposed_communication(
        column(10), column(0, 8, 20), **rates, processor_share=column(0.25)
    )
    assert times == pytest.approx([10, 10 - 4.8 * 0.75, 10 - 9 * 0.75])
