"""What plain PyTorch does next to the collectives of sharded weights, by hand."""

from typing import Any

import numpy as np
import pytest

import samples
import shardwise
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.cost.operations import ShardingWork

COPIES = {"sharding_copies": True, "sharding_calls": 7.0, "sharded_weight_calls": 2.0}
CALL_S = np.array([10e-6])


def work(stack: dict[str, Any] | None = None, **fields: Any) -> ShardingWork:
    """Work of one strategy in a stack with copies."""
    strategy = Strategy(
        gpus=4, global_batch_size=16, micro_batch_size=1, zero=3,
        stack=samples.stack(**COPIES | (stack or {})),
    )  # fmt: skip
    chosen = strategy.model_copy(update=fields).resolved(samples.llama(), samples.system())
    return ShardingWork.of(Table.of(samples.llama(), [chosen]), CALL_S)


def test_bytes_of_four_shards() -> None:
    """In bf16: a quarter is cast, 6 / 4; weights are split, 4; gradients are joined, 6."""
    found = work()
    assert found.forward_bytes == pytest.approx(5.5)
    assert found.backward_bytes == pytest.approx(5.5 + 6)
    assert found.host_s == pytest.approx(70e-6)
    assert found.weight_s == pytest.approx(20e-6)


def test_one_shard_is_copied_by_its_collectives_too() -> None:
    """4 more of each gather, 8 of the reduction."""
    found = work(gpus=1)
    assert found.forward_bytes == pytest.approx(6 + 4 + 4)
    assert found.backward_bytes == pytest.approx(14 + 6 + 8)


def test_weights_that_stay_are_split_once() -> None:
    """Not again in backward; with ZeRO-2 in one of the four micro-batches."""
    assert work(fsdp_reshard=False).backward_bytes == pytest.approx(6)
    assert work(zero=2).forward_bytes == pytest.approx(5.5 / 4)
    assert work(zero=2).backward_bytes == pytest.approx(6)


def test_ddp_copies_gradients_into_buckets_once_a_step() -> None:
    """8 bytes a weight, of the last of four micro-batches; no calls of FSDP."""
    found = work(zero=0)
    assert (found.forward_bytes, found.host_s, found.weight_s) == (0, 0, 0)
    assert found.backward_bytes == pytest.approx(8 / 4)
    assert work(zero=0, gpus=1).backward_bytes == 0


def test_stacks_with_fitted_figures_have_none() -> None:
    """Nothing of the row is read."""
    assert work(dict.fromkeys(COPIES, 0)) == ShardingWork()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_estimate_has_them(asynchronous: bool) -> None:
    """Copies take their bytes at the rate of memory; a processor calls them in sequence."""
    system = samples.system()
    chip = system.accelerator.model_copy(update={"asynchronous": asynchronous})
    system = system.model_copy(update={"accelerator": chip})
    fields: dict[str, Any] = {"gpus": 4, "global_batch_size": 4, "zero": 3, "dp_overlap": False}
    plain, both = (
        shardwise.estimate(samples.llama(), system, stack=stack, **fields)
        for stack in (samples.stack(), samples.stack(**COPIES, host_call=1e-6))
    )
    without = shardwise.estimate(
        samples.llama(), system, stack=samples.stack(host_call=1e-6), **fields
    )
    more = {name: both.time_s[name] - without.time_s[name] for name in both.time_s}
    assert plain.step_time_s < without.step_time_s < both.step_time_s
    changed = {name for name, seconds in more.items() if abs(seconds) > 1e-12}
    assert changed == {"forward", "backward", "optimizer"}
    assert min(more[name] for name in changed) > 0
