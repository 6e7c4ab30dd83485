"""Bytes held on a rank, by hand for the GPT sample, and what must hold for any strategy.

The sample: width 64, 4 layers, 1000 words, 32 positions, tied; micro-batches of 2 x 32 tokens in
2 bytes, so one activation of s b h = 64 x 64 elements.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import Model, estimate, estimate_many
from shardwise.analysis.results import Estimate
from shardwise.config.enums import Recompute
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.schedule.in_flight import peak_of_uneven_chunks, peak_of_uneven_ends

pytestmark = pytest.mark.any_software

SBH = 64 * 64
LAYER = 12 * 64**2 + 13 * 64
EMBEDDING, HEAD, NORM = (1000 + 32) * 64, 1000 * 64, 2 * 64
FLASH = 34 * SBH + 4 * 64 * 8
MASK = SBH
# Fullest in the backward of the last product of the last layer: its input and output, or their
# gradients, in 2 bytes, when all that the layer keeps is still there but the mask after it.
WORKING = 64 * (256 + 64) * 2 - MASK
# Fullest when forward turns to backward: inputs of final norm and head, logits at 4 bytes. The
# product with the words runs when the logits are gone, and needs less: its input and output.
LOSS = 2 * 2 * SBH + 4 * 64 * 1000


def run(
    model: Model | None = None, software: dict[str, Any] | None = None, **columns: Any
) -> Estimate:
    """Estimate on the sample system: one micro-batch of 2 sequences, unsharded, by default."""
    given = {"dp": 1, "mbs": 2, "gbs": 2, "zero": 0, "stack": samples.stack(**(software or {}))}
    return estimate(model or samples.model(), samples.system(), given | columns)


def test_one_stage_by_hand() -> None:
    """2 bytes of weights, 4 of gradients, 12 of state each; kept bytes of 4 layers; the loss."""
    held = run().memory_bytes
    parameters = 4 * LAYER + NORM + EMBEDDING
    assert held.weights == 2 * parameters
    assert held.gradients == 4 * parameters
    assert held.optimizer == 12 * parameters
    assert held.activations == 4 * FLASH + SBH
    assert held.buffers == LOSS
    assert held.total == 18 * parameters + 4 * FLASH + SBH + LOSS
    assert held.capacity == 80e9


def test_four_stages_by_hand() -> None:
    """Embedding first, head with its copy of the words last; 4, 3, 2, 1 micro-batches in flight."""
    stages = run(pp=4, gbs=16).stages
    assert [stage.layers for stage in stages] == [1, 1, 1, 1]
    parameters = [LAYER + EMBEDDING, LAYER, LAYER, LAYER + NORM + HEAD]
    assert [stage.parameters for stage in stages] == parameters
    assert [stage.weights for stage in stages] == [2 * n for n in parameters]
    kept = [4 * (FLASH + SBH), 3 * FLASH, 2 * FLASH, FLASH]
    assert [stage.activations for stage in stages] == kept
    assert [stage.buffers for stage in stages] == [WORKING, WORKING, WORKING, LOSS]
    assert [stage.peak.bytes for stage in stages] == [s.total for s in stages]
    assert [stage.peak.operation for stage in stages] == ["mlp.down"] * 3 + ["loss"]


def test_one_buffer_for_each_shape_of_weights() -> None:
    """Four products in a layer differ, and the head's: 2 bytes an element, once for all layers."""
    software = {"weight_gradient_buffers": True}
    four = (3 * 64 + 64 + 256 + 256) * 64 * 2
    assert run(software=software).memory_bytes.buffers == LOSS + four + 2 * HEAD
    first, last = run(software=software, pp=2, gbs=4).stages
    assert (first.buffers, last.buffers) == (WORKING + four, LOSS + four + 2 * HEAD)
    square = samples.model(samples.layer(mlp={"ffn": 64}))  # out, up and down are alike
    working = 64 * (64 + 64) * 2 - MASK
    assert run(square, software, pp=2, gbs=4).stages[0].buffers == working + (3 + 1) * 64**2 * 2


def test_small_gradients_are_copied_in_the_update() -> None:
    """2-byte gradients need 4 bytes more per owned weight, where nothing else is held."""
    model = samples.model(samples.layer(count=400), vocab=10)
    software = {"gradient_dtype": "compute"}
    result = run(model, software, recompute="full")
    parameters = result.parameters
    held = result.memory_bytes
    assert (held.activations, held.buffers) == (0, 4 * parameters)
    assert held.total == 20 * parameters
    assert result.stages[0].peak.phase == "update"
    sharded = run(model, software, recompute="full", dp=4, gbs=8, zero=1)
    assert sharded.memory_bytes.buffers == parameters
    assert run(model, recompute="full").stages[0].peak.phase == "backward"


def test_the_update_decides_where_little_is_in_flight() -> None:
    """4 bytes for each of 116,032 weights: less than 4 micro-batches keep, more than one."""
    software = {"gradient_dtype": "compute"}
    first = run(software=software, pp=4, gbs=16).stages[0]
    assert 4 * (FLASH + SBH) + WORKING > 4 * (LAYER + EMBEDDING) > FLASH + SBH + WORKING
    assert (first.activations, first.buffers) == (4 * (FLASH + SBH), WORKING)
    assert first.peak.phase == "backward"
    first = run(software=software, pp=4, gbs=2).stages[0]
    assert (first.activations, first.buffers) == (0, 4 * (LAYER + EMBEDDING))
    assert first.peak.phase == "update"


def test_fewer_micro_batches_than_stages() -> None:
    """Two micro-batches through four stages: no stage holds more than two."""
    stages = run(pp=4, gbs=4).stages
    kept = [2 * (FLASH + SBH), 2 * FLASH, 2 * FLASH, FLASH]
    assert [stage.activations for stage in stages] == kept


def test_interleaved_stages_hold_more() -> None:
    """2 stages of 2 chunks hold 5 and 3 chunks of one layer; never more than there are."""
    model = samples.model(dropout=False)
    kept = FLASH - 2 * SBH
    stages = run(model, pp=2, vpp=2, gbs=16).stages
    assert [stage.activations for stage in stages] == [5 * kept, 3 * kept]
    stages = run(model, pp=2, vpp=2, gbs=4).stages
    assert [stage.activations for stage in stages] == [4 * kept, 3 * kept]


@each_row(("recompute", "kept"), [("none", 34 + 5 * 8 * 32 / 64), ("selective", 34), ("full", 2)])
@each_row("tp", [1, 2, 8])
def test_recompute_keeps_what_the_paper_says(recompute: str, kept: float, tp: int) -> None:
    """arXiv 2205.05198, table 2, with sequence parallelism: s b h / t times so much per layer."""
    columns = {"tp": tp, "sequence_parallel": True, "recompute": recompute, "dtype": "fp16"}
    held = run(software={"attention_kernel": "unfused"}, **columns).memory_bytes
    assert held.activations == pytest.approx((4 * kept + 1) * SBH / tp, rel=1e-12)


def test_full_recompute_rebuilds_one_layer() -> None:
    """What a layer keeps lives for a moment, with the largest working set; here beyond the loss."""
    model = samples.model(vocab=10)
    kept = 34 * SBH + 5 * 8 * 32 * SBH / 64
    # Its input is held already.
    full = run(model, {"attention_kernel": "unfused"}, recompute="full").memory_bytes.buffers
    assert full == kept - 2 * SBH + WORKING


@each_row("seq_len", [32, 128])
def test_the_core_is_rebuilt_when_what_follows_it_is_gone(seq_len: int) -> None:
    """Scores of 4 sequences of 32 tokens are less than what follows kept; those of 128 more.

    5 a s / h = s 40 / 64 bytes a element are rebuilt, with the gradient of scores beside them;
    meanwhile 24 of the 34 bytes that the layer keeps are released: all that stands behind.
    """
    model, activation = samples.model(vocab=10, seq_len=seq_len), 2 * seq_len * 64
    result = run(model, {"attention_kernel": "unfused"}, recompute="selective")
    scores = 8 * seq_len / 64 * activation
    later = (2 * 320 / 64 - 1) * activation
    core = 5 * scores + 2 * scores - 24 * activation
    assert result.memory_bytes.buffers == max(core, later)
    assert (core > later) is (seq_len > 32)
    assert result.stages[0].peak.operation == ("mlp.down" if seq_len == 32 else "attention.softmax")


def test_the_last_layer_of_a_kind_decides() -> None:
    """4 narrow layers and 4 of twice the width: when a wide one goes backward, it is the last.

    What layers behind it kept is released by then: 4 times 34.5 bytes an element, more than a
    wide one needs; under full recompute 4 times the 2 bytes of their inputs, which is less.
    """
    narrow, wide = samples.layer(), samples.layer(mlp={"ffn": 512})
    working = 64 * (512 + 64) * 2 - MASK
    # The wider keeps 2 x 2 bytes more for each of 256 more inner channels.
    more = 64 * 256 * 2 * 2
    again = FLASH + more - 2 * SBH + working
    for kinds, kept, rebuilt in (
        ((narrow, wide), working, again),
        ((wide, narrow), WORKING, again - 4 * 2 * SBH),
    ):
        model = samples.model(*kinds, vocab=1)
        held = run(model).memory_bytes
        assert held.buffers == kept
        assert held.activations == 8 * FLASH + 4 * more + SBH
        assert run(model, recompute="full").memory_bytes.buffers == rebuilt


def test_kinds_that_alternate() -> None:
    """One wide layer after each narrow one: the last is wide; or the other way round."""
    narrow, wide = samples.layer(), samples.layer(mlp={"ffn": 512})
    working = 64 * (512 + 64) * 2 - MASK
    model = samples.model(narrow, wide, vocab=1, interleave=(1, 1))
    assert run(model).memory_bytes.buffers == working
    model = samples.model(wide, narrow, vocab=1, interleave=(1, 1))
    assert run(model).memory_bytes.buffers == WORKING
    again = run(model, recompute="full").memory_bytes.buffers
    assert again == FLASH + 64 * 256 * 2 * 2 - 2 * SBH + working - 2 * SBH


def test_more_recompute_saves_less() -> None:
    """Full below selective below none, in activations and in all."""
    columns = {"recompute": list(Recompute), "dp": 1, "mbs": 2, "gbs": 2}
    table = estimate_many(
        samples.model(samples.layer(count=24)),
        samples.system(),
        columns | {"stack": samples.stack(attention_kernel="unfused")},
    )
    none, selective, full = table.memory_bytes["activations"]
    assert none > selective > full
    none, selective, full = table.memory_total_bytes
    assert none > selective > full


def test_zero_1_splits_the_optimizer_over_replicas() -> None:
    """An eighth of 12 bytes per weight on each of 8 replicas; weights and gradients are whole."""
    whole, split = run(dp=8, gbs=16).memory_bytes, run(dp=8, gbs=16, zero=1).memory_bytes
    assert split.optimizer == whole.optimizer / 8
    assert (split.weights, split.gradients) == (whole.weights, whole.gradients)
    assert run(zero=1).memory_bytes.optimizer == whole.optimizer


@each_row(
    ("dtype", "gradients", "expected"),
    [
        ("bf16", "fp32", (2, 4, 12)),
        ("fp16", "compute", (2, 2, 12)),
        ("fp32", "fp32", (4, 4, 8)),
        ("fp32", "compute", (4, 4, 8)),
    ],
)
def test_bytes_per_parameter(
    dtype: str, gradients: str, expected: tuple[float, float, float]
) -> None:
    """Weight, gradient, two moments; a master copy only where weights are smaller than fp32."""
    result = run(software={"gradient_dtype": gradients}, dtype=dtype)
    held = result.memory_bytes
    each = (held.weights, held.gradients, held.optimizer)
    assert each == tuple(size * result.parameters for size in expected)


def test_reserved_adds_slack_and_the_runtime() -> None:
    """A quarter more, and 1000 bytes beside; it fits up to the last byte of the capacity."""
    software = {"allocator_slack": 1.25, "runtime_memory": 1000}
    held = run(software=software).memory_bytes
    assert held.reserved == held.total * 1.25 + 1000
    columns = {"dp": 1, "mbs": 2, "gbs": 2, "zero": 0, "stack": samples.stack(**software)}
    for spare, fits in ((0, True), (-1, False)):
        memory = [{"name": "hbm", "capacity": held.reserved + spare, "bandwidth": 1e12}]
        assert estimate(samples.model(), samples.system(memory=memory), columns).fits is fits


def test_tensor_parallelism_splits_memory() -> None:
    """Weights but norms and summed biases over 8 ranks; activations whole with split sequences."""
    one, eight = run(), run(tp=8, sequence_parallel=True)
    split = 4 * (12 * 64**2 + (3 + 4) * 64) + 1000 * 64
    whole = 4 * 6 * 64 + NORM + 32 * 64
    assert one.memory_bytes.weights == 2 * (split + whole)
    assert eight.memory_bytes.weights == 2 * (split / 8 + whole)
    assert eight.memory_bytes.activations == one.memory_bytes.activations / 8


def test_only_norms_save_full_sequences_without_sequence_parallelism() -> None:
    """10 s b h of a layer's 34 stay whole on 8 ranks."""
    held = run(tp=8, sequence_parallel=False).memory_bytes
    assert held.activations == 4 * ((10 + 24 / 8) * SBH + 4 * 64 * 8 / 8) + SBH


small = st.sampled_from([1, 2, 4])
strategies = st.fixed_dictionaries(
    {
        "tp": small,
        "pp": st.sampled_from([1, 2, 3, 4, 6, 12]),
        "vpp": st.sampled_from([1, 2, 3]),
        "dp": small,
        "mbs": small,
        "gbs": st.sampled_from([8, 16, 48, 96]),
        "recompute": st.sampled_from(Recompute),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute_layers": st.sampled_from([None, None, 1, 3]),
        "last_stage_layers": st.sampled_from([None, None, 2]),
    }
)
vocabularies = st.sampled_from([1, 100, 1000, 50_000])


@examples(30)
@given(st.lists(strategies, min_size=4, max_size=12), vocabularies, st.booleans(), st.booleans())
def test_peak_memory_stage_has_the_most_memory(
    rows: list[dict[str, Any]], vocabulary: int, tied: bool, flash: bool
) -> None:
    """Looking at the first of each run of equal stages misses none; its parts are that stage's."""
    model = samples.model(samples.layer(count=12), vocab=vocabulary, tied_embeddings=tied)
    software = samples.stack(attention_kernel="best" if flash else "unfused")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    machine = samples.system()
    table = Table.of(model, columns | {"stack": software})
    table = table.take(np.flatnonzero(first_violation(model, machine, table) < 0))
    assume(len(table) > 0)
    result = evaluate(model, machine, table)
    for row in range(len(table)):
        every = samples.every_stage(result, table, row)
        assert len(every.total) == table.pp[row]
        assert result.memory.total[row] == every.total.max()
        at = int(result.peak_memory_stage[row])
        assert every.total[at] == result.memory.total[row]
        assert every.activations[at] == result.memory.activations[row]


@examples(20)
@given(st.lists(strategies, min_size=4, max_size=12), st.sampled_from([2, 4, 8]), st.booleans())
def test_more_tensor_parallelism_never_holds_more(
    rows: list[dict[str, Any]], factor: int, split: bool
) -> None:
    """With the other degrees as they are, every stage holds less."""
    model = samples.model(samples.layer(count=12, attention={"heads": 32, "kv_heads": 2}))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns |= {"sequence_parallel": split, "stack": samples.stack()}
    more = [tp * factor for tp in columns["tp"]]
    machine = samples.system()
    one, other = (Table.of(model, columns | {"tp": tp}) for tp in (columns["tp"], more))
    legal = (first_violation(model, machine, one) < 0) & (
        first_violation(model, machine, other) < 0
    )
    assume(legal.any())
    held, less = (evaluate(model, machine, t.take(legal)).memory.total for t in (one, other))
    assert (less < held).all()


@given(
    st.integers(1, 9),
    st.integers(2, 6),
    st.integers(1, 4),
    st.tuples(*[st.floats(0, 3)] * 3),
    st.data(),
)
def test_two_ways_to_add_up_unlike_ends(
    p: int, v: int, groups: int, sizes: tuple[float, float, float], data: st.DataObject
) -> None:
    """Chunks alike but for the first and the last: the few moments at which their numbers turn."""
    first, within, last = sizes
    kept = np.array([first, *[within] * (v - 2), last])[:, np.newaxis]
    stage = data.draw(st.integers(0, p - 1))
    order = {"micro_batches": groups * p, "stages": p, "chunks": v, "stage": stage}
    columns = {name: np.array([value]) for name, value in order.items()}
    every = peak_of_uneven_chunks(kept, **columns)
    turns = peak_of_uneven_ends(kept.sum(axis=0), kept[0], kept[-1], **columns)
    assert turns == pytest.approx(every)
