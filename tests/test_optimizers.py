"""Update rules by hand, on the GPT sample: state per weight, and time of a step.

4 layers of width 64; matrices of a layer: 64 x 192, 64 x 64, 64 x 256, 256 x 64. Elements move at
1 TB/s, products run at 100 TFLOP/s.
"""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise.config.enums import Optimizer
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

# Bytes of moments per weight; 8-bit ones have a scale of 4 bytes for each 256 weights.
MOMENTS = {
    "adamw": 4 + 4,
    "adamw-8bit": 1 + 1 + 2 * 4 / 256,
    "adamw-bf16": 2 + 2,
    "adafactor": 0,
    "muon": 4,
    "sgd-momentum": 4,
    "sgd": 0,
}
WEIGHTS = count_parameters(samples.model()).total
MATRICES = 4 * 12 * 64**2


def test_every_optimizer_is_below() -> None:
    """A new one needs its figures."""
    assert tuple(MOMENTS) == tuple(Optimizer)


def moments(name: str) -> float:
    """Bytes of all moments: what is no matrix of a layer has AdamW's under Muon."""
    others = MOMENTS["adamw"] if name == "muon" else MOMENTS[name]
    return MOMENTS[name] * MATRICES + others * (WEIGHTS - MATRICES)


@each_row("name", Optimizer)
@each_row(("dtype", "copy"), [("bf16", 4), ("fp32", 0)])
def test_state(name: str, dtype: str, copy: int) -> None:
    """Moments, and a copy of 4 bytes where weights have 2; gradients are the same for all."""
    held = samples.run(optimizer=name, dtype=dtype).memory_bytes
    assert held.optimizer == pytest.approx(moments(name) + copy * WEIGHTS)
    assert held.gradients == 4 * WEIGHTS
    split = samples.run(optimizer=name, dtype=dtype, dp=4, gbs=8, zero=1).memory_bytes
    assert split.optimizer == pytest.approx(held.optimizer / 4)


def seconds(**columns: Any) -> float:
    """Time of the update on 4 replicas that share the state."""
    return samples.run(dp=4, gbs=8, **{"zero": 1} | columns).time_s["optimizer"]


# Gradient, fp32 weight read and written, 16-bit weight written; Adafactor reads the gradient three
# times, for its sums and its norm, and the weight once more.
PLAIN = dict.fromkeys(Optimizer, 4 + 8 + 2) | {"adafactor": 3 * 4 + 12 + 2}


@each_row("name", Optimizer)
def test_each_moves_its_own_state(name: str) -> None:
    """For a quarter of the weights, with the moments read and written; 1.5 sweeps of gradients."""
    moved = (PLAIN[name] * WEIGHTS + 2 * moments(name)) / 4 + 1.5 * 4 * WEIGHTS
    if name != "muon":
        assert seconds(optimizer=name) == pytest.approx(moved / 1e12)
        return
    # X of m x n, m <= n: X X^T, its square, and their sum times X; five times, at most at the peak.
    wide = {192: 1, 64: 1, 256: 2}
    flops = 4 * sum(5 * (4 * 64**2 * n + 2 * 64**3) * count for n, count in wide.items())
    assert seconds(optimizer=name) > moved / 1e12 + flops / 4 / 1e14 * (1 - 1e-9)


def test_fp32_weights_are_written_once() -> None:
    """No weight of another type: 2 bytes less, of a quarter."""
    assert seconds() - seconds(dtype="fp32") == pytest.approx(2 * WEIGHTS / 4 / 1e12)


def test_unsharded_state_is_updated_in_full() -> None:
    """Without ZeRO, four times the update and the same sweeps."""
    update = 30 * WEIGHTS / 1e12
    assert seconds(zero=0) - seconds() == pytest.approx(update * 3 / 4)


def test_split_gradients_are_swept_in_parts() -> None:
    """From ZeRO 2 on a rank holds a quarter of the gradients, and sweeps no more."""
    sweeps = 1.5 * 4 * WEIGHTS / 1e12
    for zero in (2, 3):
        assert seconds() - seconds(zero=zero) == pytest.approx(sweeps * 3 / 4)


def test_forward_only_updates_nothing() -> None:
    """No state and no time."""
    result = samples.run(training=False)
    assert result.memory_bytes.optimizer == result.time_s["optimizer"] == 0
