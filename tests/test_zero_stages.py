"""ZeRO 2 and 3 and hybrid sharding by hand: what a rank holds, and how long exchanges take.

The sample of GPT with 10 words on one stage: 4 layers, embedding, final norm, in 2 bytes, gradients
in 4, 12 bytes of optimizer state; links of 100 GB/s that start at once.
"""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Estimate, Model, estimate
from shardwise.analysis.results import Memory
from shardwise.config.strategy_table import Table

pytestmark = pytest.mark.any_software

GB = 1e9
SBH = 64 * 64
LAYER = 12 * 64**2 + 13 * 64
ENDS = (10 + 32) * 64 + 2 * 64
WHOLE = 4 * LAYER + ENDS
WORKING = 2 * 64 * 320 - SBH
LINK = 100 * GB


def run(
    software: dict[str, Any] | None = None, architecture: Model | None = None, **columns: Any
) -> Estimate:
    """8 replicas of the sample, two micro-batches each, nothing hidden."""
    model = architecture or samples.model(vocab=10)
    machine = samples.system(network=[samples.tier(bandwidth=LINK)])
    given = {"dp": 8, "gbs": 32, "dp_overlap": False} | columns
    return samples.run(model, software, machine, **given)


def held(software: dict[str, Any] | None = None, **columns: Any) -> Memory:
    return run(software, **columns).memory_bytes


def test_each_stage_splits_one_thing_more() -> None:
    """Optimizer state, gradients, weights; the last are gathered from fp32 shards, which are all
    that is stored of them.

    Split gradients are whole for one layer; split weights for the layer that computes and the one
    gathered ahead.
    """
    bare = {0: (2, 4, 12), 1: (2, 4, 12 / 8), 2: (2, 4 / 8, 12 / 8), 3: (4 / 8, 4 / 8, 8 / 8)}
    live = {0: 0, 1: 0, 2: 4 * LAYER, 3: (4 + 2 * 2) * LAYER}
    for zero, sizes in bare.items():
        found = held(zero=zero)
        each = (found.weights, found.gradients, found.optimizer)
        assert each == pytest.approx([size * WHOLE for size in sizes])
        assert found.buffers == WORKING + live[zero]
        assert found.activations == held(zero=0).activations


def test_shards_with_the_fp32_copy() -> None:
    """DeepSpeed keeps 16-bit shards too; with fp32 weights there is no other copy."""
    assert held({"gathers_master": False}, zero=3).weights == pytest.approx(2 * WHOLE / 8)
    assert held(zero=3, dtype="fp32").weights == pytest.approx(4 * WHOLE / 8)
    assert held(zero=3, training=False).weights == pytest.approx(2 * WHOLE / 8)


def test_weights_that_are_not_released_stay_unsharded() -> None:
    """All 2 bytes from forward to backward, and no other layer; next to shards, in fp32 if weights
    are gathered from these."""
    kept = held(zero=3, fsdp_reshard=False)
    assert kept.weights == pytest.approx(2 * WHOLE + 4 * WHOLE / 8)
    assert kept.buffers == WORKING + 4 * LAYER
    beside = held({"gathers_master": False}, zero=3, fsdp_reshard=False)
    assert beside.weights == pytest.approx(2 * WHOLE + 2 * WHOLE / 8)


@each_row("tied", [True, False])
def test_head_is_unsharded_in_the_loss_and_its_gradient_after_it(tied: bool) -> None:
    """With 128 tokens the head's weights are there, and a layer gathered ahead of it, in the loss;
    the gradient is not. With 32 tokens the backward of the head, with its gradient, needs more.

    On one stage a tied head works with the embedding's table, positions included.
    """
    found = [
        [
            run(
                architecture=samples.model(vocab=20_000, tied_embeddings=tied, seq_len=seq_len),
                zero=zero,
                seq_len=seq_len,
            )
            for zero in (1, 2, 3)
        ]
        for seq_len in (128, 32)
    ]
    long, short = ([one.memory_bytes.buffers for one in of_length] for of_length in found)
    peaks = [[one.stages[0].peak.operation for one in of_length] for of_length in found]
    assert peaks == [["loss"] * 3, ["loss", "head", "head"]]
    head = 64 * 20_000 + 2 * 64

    def positions(seq_len: int) -> int:
        return 64 * seq_len if tied else 0

    assert long[1] == long[0]
    assert long[2] - long[0] == 2 * (head + positions(128)) + 2 * LAYER
    whole = 4 * (head + positions(32))
    assert max(short[0], whole) < short[1] < short[0] + whole
    assert short[2] - short[1] == 2 * (head + positions(32)) + 2 * LAYER


def test_the_embedding_is_unsharded_while_it_is_looked_up() -> None:
    """On the first of two stages, where little else is needed."""
    words = samples.model(samples.layer(count=2), vocab=200_000, tied_embeddings=False)
    bare, weights = (
        run(architecture=words, zero=zero, pp=2, grad_sync="micro_batch").stages[0]
        for zero in (1, 3)
    )
    table = 64 * (200_000 + 32)
    assert bare.peak.operation != "embedding"
    assert weights.peak.operation == "embedding"
    whole = (4 + 2) * table + 2 * LAYER
    assert whole <= weights.buffers <= whole + bare.buffers


@each_row("prefetch", [0, 1, 3])
def test_prefetched_layers_are_unsharded(prefetch: int) -> None:
    """So many and the one that computes; the wider kind where there are two."""
    ahead = 4 + 2 * (1 + prefetch)
    assert held(zero=3, fsdp_prefetch=prefetch).buffers == WORKING + ahead * LAYER
    wide = samples.layer(mlp={"ffn": 512})
    architecture = samples.model(samples.layer(count=1), wide, vocab=10)
    wider = LAYER + 256 * (2 * 64 + 1)
    working = 2 * 64 * (512 + 64) - SBH
    columns: dict[str, Any] = {"architecture": architecture, "zero": 3, "fsdp_prefetch": prefetch}
    assert held(**columns).buffers == working + ahead * wider


def test_context_parallel_ranks_are_replicas_too() -> None:
    """2 replicas of 2 ranks each share as 4 do."""
    for zero in (1, 2, 3):
        two, four = held(zero=zero, dp=2, cp=2, gbs=8), held(zero=zero, dp=4, gbs=16)
        assert (two.weights, two.gradients, two.optimizer) == pytest.approx(
            (four.weights, four.gradients, four.optimizer)
        )


@each_row(("shard", "zero"), [(1, 1), (2, 1), (2, 2), (4, 3), (8, 3)])
def test_hybrid_sharding_splits_among_a_part(shard: int, zero: int) -> None:
    """What 8 replicas would split by 8 they split by the size of a group."""
    found = held(zero=zero, dp_shard=shard)
    moments = 8 if zero == 3 else 12  # and fp32 copies, which are the weights of ZeRO 3
    assert found.optimizer == pytest.approx(moments * WHOLE / shard)
    assert found.gradients == pytest.approx(4 * WHOLE / (shard if zero > 1 else 1))
    assert found.weights == pytest.approx(4 * WHOLE / shard if zero == 3 else 2 * WHOLE)
    # Of 2 x 4 ranks of a replica too: every other replica and both halves of its context.
    split = held(zero=zero, dp_shard=shard, cp=2)
    assert split.optimizer == pytest.approx(moments * WHOLE / shard / 2)


def spent(**columns: Any) -> float:
    """Bytes that would take as long as the exchange at the rate of the link."""
    result = run(**columns)
    assert result.comm_s["dp"].total == pytest.approx(result.time_s["dp_comm"])
    return result.time_s["dp_comm"] * LINK


def test_zero_2_scatters_gradients_of_every_micro_batch() -> None:
    """2 x 7/8 of 4 bytes, and once 7/8 of 2 bytes; ZeRO 1 does both once."""
    assert spent(zero=1) == pytest.approx(7 / 8 * (4 + 2) * WHOLE)
    assert spent(zero=2) == pytest.approx(7 / 8 * (2 * 4 + 2) * WHOLE)
    assert spent(zero=2, gbs=64) == pytest.approx(7 / 8 * (4 * 4 + 2) * WHOLE)


def test_zero_3_gathers_weights_forward_and_backward() -> None:
    """2 x 7/8 of 2 + 2 + 4 bytes; kept from forward to backward they are gathered once."""
    assert spent(zero=3) == pytest.approx(2 * 7 / 8 * 8 * WHOLE)
    assert spent(zero=3, fsdp_reshard=False) == pytest.approx(2 * 7 / 8 * 6 * WHOLE)
    assert spent(zero=3, training=False) == pytest.approx(2 * 7 / 8 * 2 * WHOLE)
    assert spent(zero=2, training=False) == 0


@each_row("zero", [2, 3])
def test_gradients_synchronized_once_are_unsharded_until_then(zero: int) -> None:
    """4 bytes of all weights, and none of one layer besides; weights are as they were."""
    once, each = held(zero=zero, grad_sync="step"), held(zero=zero, grad_sync="micro_batch")
    assert once.gradients == 4 * WHOLE
    assert each.gradients == pytest.approx(4 * WHOLE / 8)
    assert once.buffers == each.buffers - 4 * LAYER
    assert (once.weights, once.optimizer) == (each.weights, each.optimizer)
    # A single micro-batch accumulates nothing.
    alone = held(zero=zero, grad_sync="step", gbs=16)
    assert alone == held(zero=zero, grad_sync="micro_batch", gbs=16)


def test_gradients_synchronized_once_are_scattered_once() -> None:
    """4 of the bytes that 2 or 4 micro-batches scatter; gathers of released weights stay."""
    once = {"grad_sync": "step"}
    assert spent(zero=2, **once) == pytest.approx(7 / 8 * (4 + 2) * WHOLE)
    assert spent(zero=2, gbs=64, **once) == pytest.approx(7 / 8 * (4 + 2) * WHOLE)
    assert spent(zero=3, **once) == pytest.approx(7 / 8 * (2 * 4 + 4) * WHOLE)
    assert spent(zero=3, fsdp_reshard=False, **once) == pytest.approx(7 / 8 * (2 + 4) * WHOLE)
    assert spent(zero=1, **once) == spent(zero=1)
    among = 2 * 3 / 4 * 4 * WHOLE / 2
    assert spent(zero=2, dp_shard=2, **once) == pytest.approx((4 + 2) / 2 * WHOLE + among)


@each_row(("alone", "piped"), [("step", "micro_batch"), ("micro_batch", "step")])
def test_the_stack_says_when_gradients_are_synchronized(alone: str, piped: str) -> None:
    """With a pipeline and without one; a strategy that names a word overrides it."""
    software = {"grad_sync": alone, "pipeline_grad_sync": piped}
    for pp, word in ((1, alone), (2, piped)):
        columns: dict[str, Any] = {"zero": 2, "pp": pp, "dp": 4}
        assert run(software, **columns).step_time_s == run(grad_sync=word, **columns).step_time_s
        other = "step" if word == "micro_batch" else "micro_batch"
        changed = run(software, grad_sync=other, **columns)
        assert changed.memory_bytes == run(grad_sync=other, **columns).memory_bytes
        assert changed.memory_bytes != run(software, **columns).memory_bytes


def test_hybrid_sharding_adds_up_among_groups_once() -> None:
    """Inside a group of 2 as ever; then half the gradients all-reduced among 4 groups."""
    among = 2 * 3 / 4 * 4 * WHOLE / 2
    assert spent(zero=3, dp_shard=2) == pytest.approx(2 * 1 / 2 * 8 * WHOLE + among)
    assert spent(zero=2, dp_shard=2) == pytest.approx((2 * 4 + 2) / 2 * WHOLE + among)
    # Each replica on its own: nothing is split, whole gradients are added up.
    assert spent(zero=3, dp_shard=1) == pytest.approx(2 * 7 / 8 * 4 * WHOLE)


def test_layers_communicate_one_by_one() -> None:
    """A second for each: 4 layers, embedding and head; 3 exchanges of each in a micro-batch."""
    machine = samples.system(network=[samples.tier(bandwidth=1e30, latency=1)])
    columns = {"dp": 8, "gbs": 32, "dp_overlap": False}

    def seconds(**fields: Any) -> float:
        return samples.run(samples.model(), None, machine, **columns | fields).time_s["dp_comm"]

    assert seconds(zero=3) == pytest.approx(2 * 3 * 6)
    assert seconds(zero=3, fsdp_reshard=False) == pytest.approx(2 * 2 * 6)
    assert seconds(zero=2) == pytest.approx(2 * 6 + 6)
    # Half of the replicas each: also two all-reduces of what all layers hold, dense.
    assert seconds(zero=2, dp_shard=4) == pytest.approx(2 * 6 + 6 + 1)


def overlapped(bandwidth: float, **columns: Any) -> Estimate:
    machine = samples.system(network=[samples.tier(bandwidth=bandwidth)])
    return samples.run(samples.model(vocab=10), None, machine, dp=8, gbs=32, zero=3, **columns)


def test_gathers_run_behind_the_pass_before() -> None:
    """Over slow links, of each micro-batch: what a forward, and a backward pass does not hide."""
    slow = overlapped(1e9)
    forward, backward = (slow.time_s[part] / 2 for part in ("forward", "backward"))
    gather, scatter = (7 / 8 * size * WHOLE / 1e9 for size in (2, 4))
    assert gather > forward
    assert gather + scatter > backward
    exposed = gather - forward + gather + scatter - backward
    assert slow.time_s["dp_comm"] == pytest.approx(2 * exposed)
    # Nothing gathered ahead: gathers wait, scatters still run behind the pass.
    waits = overlapped(1e9, fsdp_prefetch=0).time_s["dp_comm"]
    assert waits == pytest.approx(2 * (gather + gather + max(0, scatter - backward)))
    # Fast links: all of it is hidden, or the gathers alone are not.
    quick = 7 / 8 * 2 * WHOLE / 1e15
    assert overlapped(1e15).time_s["dp_comm"] == pytest.approx(0, abs=1e-18)
    assert overlapped(1e15, fsdp_prefetch=0).time_s["dp_comm"] == pytest.approx(2 * 2 * quick)


def test_the_last_pass_hides_what_is_scattered_once() -> None:
    """In what gathers leave of it; gathers of the other pass wait as they do with each."""
    slow = overlapped(1e9, grad_sync="step")
    forward, backward = (slow.time_s[part] / 2 for part in ("forward", "backward"))
    gather, scatter = (7 / 8 * size * WHOLE / 1e9 for size in (2, 4))
    left = max(0.0, backward - gather)
    exposed = 2 * (gather - forward) + 2 * max(0.0, gather - backward) + scatter - left
    assert scatter > left
    assert slow.time_s["dp_comm"] == pytest.approx(exposed)


def test_only_a_part_of_the_pass_hides() -> None:
    """Contention halves what a pass hides, and a tenth of that is the tail."""
    machine = samples.system(network=[samples.tier(bandwidth=1e9)])
    software = {"dp_contention": 0.5, "dp_tail": 0.1}
    result = samples.run(samples.model(vocab=10), software, machine, dp=8, gbs=32, zero=3)
    passes = result.time_s["forward"] + result.time_s["backward"]
    alone = 2 * 7 / 8 * 8 * WHOLE / 1e9
    assert result.comm_s["dp"].total == pytest.approx(alone)
    assert result.time_s["dp_comm"] == pytest.approx(alone - 0.9 * 0.5 * passes)


def test_stages_communicate_as_much_as_the_largest() -> None:
    """2 stages of 2 layers, untied with 1000 words: the last holds the final norm, no positions.

    Both hold words; the first has 32 x 64 positions, more than the norm's 2 x 64.
    """
    architecture = samples.model(tied_embeddings=False)
    first = 2 * LAYER + 1032 * 64
    result = run(architecture=architecture, pp=2, zero=3, gbs=32, grad_sync="micro_batch")
    assert max(stage.parameters for stage in result.stages) == first
    assert result.time_s["dp_comm"] * LINK == pytest.approx(2 * 7 / 8 * 8 * first)
    assert [stage.gradients for stage in result.stages] == pytest.approx(
        [4 * first / 8, 4 * (2 * LAYER + 1000 * 64 + 2 * 64) / 8]
    )


def test_the_update_is_of_the_shard() -> None:
    """24 + 2 + 4 bytes for an eighth, or a quarter, of the weights, and 1.5 sweeps of gradients."""
    sweeps = 1.5 * 4 * WHOLE
    cases: list[tuple[dict[str, Any], float]] = [
        ({"zero": 0}, WHOLE),
        ({"zero": 1}, WHOLE / 8),
        ({"zero": 1, "dp_shard": 4}, WHOLE / 4),
    ]
    for columns, owned in cases:
        assert run(**columns).time_s["optimizer"] * 1e12 == pytest.approx(30 * owned + sweeps)


def test_all_reduced_gradients_stay_where_software_stores_them():
    """As without sharding of gradients; then no layer needs more for its own."""
    whole = held({"unsharded_gradients": True}, zero=2)
    assert whole.gradients == held({}, zero=1).gradients == 4 * WHOLE
    assert whole.buffers == held({}, zero=1).buffers
    assert held({"unsharded_gradients": True}, zero=1) == held({}, zero=1)


def test_zero_2_in_a_pipeline_communicates_as_zero_1() -> None:
    """Once per step and chunk, whatever the micro-batches (MegaScale, arXiv 2402.15627)."""
    columns: dict[str, Any] = {"pp": 2, "vpp": 2, "dp": 4, "gbs": 256}
    assert spent(zero=2, **columns) == pytest.approx(spent(zero=1, **columns))
    assert held(zero=2, **columns).gradients == held(zero=1, **columns).gradients


def test_weights_of_torch_pipelines_stay_gathered_for_the_step() -> None:
    """FSDP2 under torch.distributed.pipelining: 2 bytes of weights and 4 of gradients of a stage,
    unsharded, by default; weights are gathered and gradients reduced once."""
    columns: dict[str, Any] = {"pp": 2, "dp": 4, "gbs": 32, "mbs": 1, "stack": "torchtitan-2025"}
    plain = estimate(samples.model(vocab=10), "h100-sxm", **columns)
    assert plain.strategy["fsdp_reshard"] is False
    count = plain.stages[0].gradients / 4
    assert plain.stages[0].weights == pytest.approx((2 + 4 / 4) * count)
    assert Table.of(samples.model(), {**columns, "gpus": 8}).fsdp_reshard.tolist() == [False]
    assert Table.of(samples.model(), {**columns, "pp": 1}).fsdp_reshard.tolist() == [True]
