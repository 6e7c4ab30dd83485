"""What plain PyTorch does next to the collectives of sharded weights, by hand."""

from typing import Any

import pytest

import samples
import shardwise
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.data_parallel import sharding_work
from shardwise.engine.evaluate import evaluate
from shardwise.engine.step import Step

COPIES, CALLS = {"sharding_copies": True}, {"sharding_calls": 7.0, "sharded_weight_calls": 2.0}
MODEL = samples.llama(vocab=128)
WEIGHTED = 4 * (2 + 2 + 2) + 1 + 2
"""Operations with weights: four layers of two norms and four products, embedding, norm and head."""


def system(*, asynchronous: bool = True) -> System:
    """One with a processor as its accelerator, or not."""
    found = samples.system()
    chip = found.accelerator.model_copy(update={"asynchronous": asynchronous})
    return found.model_copy(update={"accelerator": chip})


def step(stack: dict[str, Any], *, asynchronous: bool = True, **fields: Any) -> Step:
    """One step of four micro-batches on four GPUs."""
    usual: dict[str, Any] = {"gpus": 4, "global_batch_size": 16, "micro_batch_size": 1, "zero": 3}
    strategy = Strategy(**usual | {"stack": samples.stack(**stack)} | fields)
    machine = system(asynchronous=asynchronous)
    table = Table.of(MODEL, [strategy.resolved(MODEL, machine)], machine)
    return evaluate(MODEL, machine, table).step


def bytes_of_weights(**fields: Any) -> dict[str, float]:
    """Bytes that are copied for a weight in the step, by direction."""
    one = step(COPIES, **fields)
    every = one.largest.all_trained.weights * 1.0
    return {
        name: float(time_s[0] * one.costs.memory_rate[0] / every[0])
        for name, time_s in sharding_work(one).items()
    }


def test_bytes_of_four_shards() -> None:
    """In bf16: a quarter is cast, 6 / 4; weights are split, 4; gradients are joined, 6."""
    found = bytes_of_weights()
    assert found == {
        "weights_forward": pytest.approx(4 * 5.5),
        "gradients": pytest.approx(4 * (5.5 + 6)),
    }


def test_one_shard_is_copied_by_its_collectives_too() -> None:
    """4 more of each gather, 8 of the reduction."""
    found = bytes_of_weights(gpus=1, global_batch_size=4)
    assert found == {
        "weights_forward": pytest.approx(4 * (6 + 4 + 4)),
        "gradients": pytest.approx(4 * (14 + 6 + 8)),
    }


def test_weights_that_stay_are_split_once() -> None:
    """Not again in backward; with ZeRO-2 once a step."""
    stays = bytes_of_weights(fsdp_reshard=False)
    assert stays["gradients"] == pytest.approx(4 * 6)
    found = bytes_of_weights(zero=2)
    assert found == {"weights_forward": pytest.approx(5.5), "gradients": pytest.approx(4 * 6)}


def test_ddp_copies_gradients_into_buckets_once_a_step() -> None:
    """Those in fp32: 8 bytes a weight."""
    assert bytes_of_weights(zero=0) == {"weights_forward": 0, "gradients": pytest.approx(8)}
    alone = bytes_of_weights(zero=0, gpus=1, global_batch_size=4)
    assert alone == {"weights_forward": 0, "gradients": 0}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_calls_of_the_host(asynchronous: bool) -> None:
    """Of four layers, embedding and head, and of each operation with weights, each way.

    Kernels hide them unless the host is slower; those of a processor do not.
    """
    one = step(CALLS | {"host_call": 10.0}, asynchronous=asynchronous)
    found = sharding_work(one)
    calls_s = 4 * 10.0 * (7 * 6 + 2 * WEIGHTED)
    for time_s in found.values():
        assert float(time_s[0]) == pytest.approx(calls_s, rel=1e-6 if not asynchronous else 0.02)
    hidden = sharding_work(step(CALLS | {"host_call": 1e-12}))
    assert sum(float(time_s[0]) for time_s in hidden.values()) == pytest.approx(0, abs=1e-9)


def test_stacks_with_fitted_figures_have_none() -> None:
    """Nothing is added."""
    assert sharding_work(step({})) == {}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_estimate_has_them(asynchronous: bool) -> None:
    """With communication of replicas, and the calls of updates."""
    fields: dict[str, Any] = {"gpus": 4, "global_batch_size": 4, "zero": 3}
    machine = system(asynchronous=asynchronous)
    less, more = (
        shardwise.estimate(MODEL, machine, stack=samples.stack(host_call=1e-6, **one), **fields)
        for one in ({}, COPIES | CALLS)
    )
    changed = {n for n in more.time_s if abs(more.time_s[n] - less.time_s[n]) > 1e-12}
    assert changed == {"dp_comm", "optimizer"}
    assert more.step_time_s > less.step_time_s


@pytest.mark.parametrize("stages", [[0, 2, 3], [2, 3], [3]])
def test_a_search_counts_them_for_each_stage_of_zero(stages: list[int]) -> None:
    """Stages are choices of one layout, which a search evaluates together."""
    stack = samples.stack(host_call=1e-6, **COPIES | CALLS)
    found = shardwise.search(
        MODEL, system(), gpus=4, global_batch_size=16, zero=stages, stack=[stack], fits=None
    )
    for plan in found.best:
        alone = shardwise.estimate(MODEL, system(), plan.strategy)
        assert plan.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
