"""2D products by hand, operation by operation, and beside NERSC's transformer-perf-estimates.

Of the sample (width 64, 8 heads of 8, 256 inside, 1000 words, two sequences of 32 tokens) on
2 x 4 ranks: one has T = 2 x 8 tokens, half of the columns and a quarter of the rows of weights, in
2 bytes and 8 panels.
"""

from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import exchanges, flops, moved, operations, rank_work
from shardwise.config.model import Model
from shardwise.ops.embedding import head_operations
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import with_accumulation
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase

pytestmark = pytest.mark.any_software

GRID: dict[str, Any] = {"tp": 2, "tp2": 4, "summa": True, "panels": 8, "seq_len": 8}
GRID["document_len"] = 32
T = 16
FORWARD, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD


def products(model: Model, **work: Any) -> dict[str, Operation]:
    """Operations of the first layer and of the head by name, with their accumulation."""
    columns = rank_work(**(GRID | work))
    found = layer_operations(model, model.layers[0], columns)
    found += head_operations(model, columns, holds_copy=np.array([True]))
    return {o.name: o for o in with_accumulation(found, columns)}


# Width of the input, columns of this rank (of queries, keys and values 4 heads), and its biases.
SHAPES = {
    "attention.qkv": (64, 3 * 32, 3 * 32),
    "attention.out": (64, 32, 32),
    "mlp.up": (64, 128, 128),
    "mlp.down": (256, 32, 32),
    "head": (64, 500, 0),
}


@each_row("name", SHAPES)
def test_products(name):
    """2 T k f FLOPs each way; k f / 4 weights; T k / 2 elements kept; all of X and W exchanged."""
    k, f, bias = SHAPES[name]
    one = products(samples.model())[name]
    assert [flops(one, phase) for phase in Phase] == [2 * T * k * f] * 3
    assert one.parameters == k * f / 4 + bias
    assert one.saved_bytes == T * k / 2 * 2
    x, w = 2 * T * k, 2 * k * f
    assert exchanges(one) == [
        ("broadcast", "forward", x),
        ("broadcast", "forward", w),
        ("broadcast", "input_grad", w),
        ("reduce", "input_grad", x),
        ("broadcast", "weight_grad", x),
        ("reduce", "weight_grad", w),
    ]
    axes = [c.axis for c in one.collectives if c.bytes > 0]
    assert axes == ["tp", "tp2", "tp2", "tp", "tp", "tp2"]
    assert all(c.panels == 8 for c in one.collectives if c.bytes > 0)
    y = 2 * T * f
    assert moved(one, FORWARD, Matmul) == x + w + (2 * 8 - 1) * y
    assert moved(one, INPUT, Matmul) == x + w + 8 * y
    assert moved(one, WEIGHT, Matmul) == x + w + 8 * y


def test_gradients_of_weights_are_added_up_where_they_stay():
    """Of a quarter of 64 x 128: read in 2 bytes, added to what is read and written in 4."""
    up = products(samples.model())["mlp.up"]
    bias = 2 * T * 128
    assert moved(up, WEIGHT, MemoryBound) == bias + 64 * 128 / 4 * (2 + 2 * 4)
    unfused = products(samples.model(), fused_accumulation=False)["mlp.up"]
    assert moved(unfused, WEIGHT, MemoryBound) == moved(up, WEIGHT, MemoryBound)
    # On one row of ranks there is no sum, and the product adds to them itself.
    row = products(samples.model(), tp2=1, panels=2, seq_len=32)["mlp.up"]
    assert moved(row, WEIGHT, MemoryBound) == 2 * 4 * T * 128
    assert moved(row, WEIGHT, Matmul) == 2 * (4 * T * 64 + 2 * 4 * T * 128) + 64 * 128 * 8


def test_panels_wait_in_pairs():
    """Backward holds dY, half of dX, and of X and W (or their gradients) two of eight panels.

    And the gradient of a rank's part of the weights, until it is added.
    """
    up = products(samples.model())["mlp.up"]
    x, w = 2 * T * 64, 2 * 64 * 128
    working = x / 2 + 2 * T * 128 + 2 / 8 * (x + w)
    assert up.working_bytes == working + w / 4
    assert up.forward_working_bytes == working
    alone = operations(samples.model(), **GRID | {"tp2": 1, "seq_len": 32, "panels": 2})["mlp.up"]
    x = 4 * x
    assert alone.working_bytes == x / 2 + 2 * 4 * T * 128 + 2 / 2 * x
    column = operations(samples.model(), **GRID | {"tp": 1, "panels": 4})["mlp.up"]
    assert column.working_bytes == 2 * T * (64 + 256) + 2 / 4 * 2 * w


@each_row(("panels", "kernels"), [(8, 8), (32, 32)])
def test_a_panel_is_a_kernel(panels, kernels):
    """Cut along the width of the input: the reduction forward, the result backward."""
    up = products(samples.model(), panels=panels)["mlp.up"]
    by_phase = {k.phase: k for k in up.kernels if isinstance(k, Matmul)}
    cut = {phase: kernel.panel(kernel.panels) for phase, kernel in by_phase.items()}
    wide = 64 / kernels
    for phase, shape in {
        FORWARD: (T, 128, wide),
        INPUT: (T, wide, 128),
        WEIGHT: (wide, 128, T),
    }.items():
        one = cut[phase]
        assert (one.m, one.n, one.k) == shape
        assert kernels * one.bytes == by_phase[phase].bytes
        assert kernels * one.flops == by_phase[phase].flops


def test_norms_share_their_statistics():
    """Half the width of all tokens and half the weights; two sums of 4 bytes per token, or one."""
    norm = products(samples.model())["attention.norm"]
    assert norm.parameters == 2 * 32
    assert norm.saved_bytes == T * 32 * 2
    assert moved(norm, FORWARD) == 2 * T * 32 * 2
    size = T * 2 * 4
    assert exchanges(norm, "tp") == [
        ("all_reduce", "forward", size),
        ("all_reduce", "input_grad", size),
    ]
    rms = products(samples.llama())
    for name in ("attention.norm", "mlp.norm", "final_norm"):
        assert rms[name].parameters == 32
        assert exchanges(rms[name]) == [
            ("all_reduce", "forward", T * 4),
            ("all_reduce", "input_grad", T * 4),
        ]
    assert exchanges(products(samples.llama(), tp=1, panels=4)["mlp.norm"]) == []


def test_what_stands_between_products_has_half_the_width():
    """Residual of 64 / 2 with a mask of a byte; activation of 256 / 2."""
    every = products(samples.model())
    residual, activation = every["mlp.residual"], every["mlp.activation"]
    assert residual.saved_bytes == T * 32
    assert moved(residual, FORWARD) == 3 * T * 32 * 2 + T * 32
    assert activation.saved_bytes == T * 128 * 2
    assert exchanges(residual) == exchanges(activation) == []


def test_keys_of_the_full_sequence_are_gathered():
    """4 heads of 8 tokens' queries meet 32 keys; keys and values gathered twice, and scattered."""
    core = products(samples.model())["attention.core"]
    kernel = core.kernels[0]
    assert (kernel.seq_len, kernel.keys, kernel.heads) == (8, 32, 4)
    assert flops(core, FORWARD) == 2 * 2 * 4 * 8 * 32 / 2 * 16
    whole = 2 * 32 * 4 * 16 * 2
    assert exchanges(core, "tp2") == exchanges(core)
    assert exchanges(core) == [
        ("all_gather", "forward", whole),
        ("all_gather", "input_grad", whole),
        ("reduce_scatter", "input_grad", whole),
    ]
    held = T * 4 * 8 * 3 * 2
    assert core.saved_bytes == held
    assert core.working_bytes == held + 2 * T * 4 * 8 * 2 + 2 * whole
    assert exchanges(products(samples.model(), tp2=1, seq_len=32)["attention.core"]) == []


def test_grouped_queries_have_their_own_key_heads():
    """8 query heads over 2 of keys: a rank of two has 4 over 1."""
    every = products(samples.llama())
    assert every["attention.qkv"].parameters == 64 * (32 + 2 * 8) / 4
    assert exchanges(every["attention.core"])[0] == ("all_gather", "forward", 2 * 32 * 16 * 2)
    assert every["mlp.up"].parameters == 64 * 192 / 4  # gate and up, 96 columns each


def test_embedding():
    """Half of 1000 words and 32 positions, a quarter of the width; columns swapped for tokens."""
    table = samples.embedding(samples.model(), **GRID)
    assert table.parameters == (500 + 16) * 64 / 4
    size = T * 64 * 2
    assert exchanges(table, "tp") == [
        ("reduce_scatter", "forward", size),
        ("all_gather", "input_grad", size),
    ]
    assert exchanges(table, "tp2") == [
        ("all_to_all", "forward", size),
        ("all_to_all", "input_grad", size),
    ]
    assert moved(table, FORWARD) == 2 * size
    assert moved(table, WEIGHT) == T * 64 * 2 * 4 + size
    assert table.saved_bytes == T * 32  # a mask


def test_loss_sums_over_the_columns_of_the_vocabulary():
    """500 logits of each token of a rank; three sums of a number each over tp."""
    every = products(samples.model())
    assert every["loss"].saved_bytes == T * 500 * 4
    assert exchanges(every["loss"]) == [("all_reduce", "forward", T * 4)] * 3
    tied = {
        o.name: o
        for o in head_operations(samples.model(), rank_work(**GRID), holds_copy=np.array([False]))
    }
    assert tied["head"].parameters == 0


def test_fused_activation_keeps_nothing_of_the_second_product():
    """As it does elsewhere."""
    assert products(samples.model(), fused_activation=True)["mlp.down"].saved_bytes == 0


def test_what_tp_regather_says_has_no_effect():
    """A rank keeps its part of an input, which is broadcast again in any case."""
    for name in SHAPES:
        kept = [products(samples.model(), regather=r)[name].saved_bytes for r in (True, False)]
        assert kept[0] == kept[1]


def test_rows_with_another_tp_exchange_are_untouched():
    """In one table: what a row says of itself alone."""
    rows: list[dict[str, Any]] = [
        GRID,
        {"tp": 4, "seq_len": 32, "sequence_parallel": True},
        {"tp": 2, "seq_len": 32},
        GRID | {"tp": 1, "panels": 4},
        {"seq_len": 32},
        GRID | {"tp2": 1, "panels": 2, "seq_len": 32},
    ]
    plain = {"tp": 1, "tp2": 1, "summa": False, "panels": 1, "sequence_parallel": False}
    full = [plain | {"document_len": 32} | row for row in rows]
    table = rank_work(**{name: [row[name] for row in full] for name in full[0]})
    model = samples.model()
    together = layer_operations(model, model.layers[0], table)
    together += head_operations(model, table, holds_copy=np.ones(len(rows), dtype=np.bool_))
    for place, row in enumerate(full):
        work = rank_work(**row)
        alone = layer_operations(model, model.layers[0], work)
        alone += head_operations(model, work, holds_copy=np.array([True]))
        for several, one in zip(together, alone, strict=True):
            assert several.parameters[place] == one.parameters[0]
            assert several.saved_bytes[place] == one.saved_bytes[0]
            assert several.working_bytes[place] == one.working_bytes[0]
            here = [
                (c.kind.value, c.phase.value, float(c.bytes[place]))
                for c in several.collectives
                if c.bytes[place] > 0
            ]
            assert here == exchanges(one)
            for phase in Phase:
                kernels = [k for k in several.kernels if k.phase is phase]
                assert sum(k.flops[place] for k in kernels) == pytest.approx(
                    sum(k.flops[0] for k in one.kernels if k.phase is phase)
                )
                assert sum(k.bytes[place] for k in kernels) == pytest.approx(
                    sum(k.bytes[0] for k in one.kernels if k.phase is phase)
                )


# NERSC transformer-perf-estimates, commit 54278b0, run unmodified: GPT-3 1T, 8 sequences of 2048
# tokens on 8 x 4 ranks in 8 panels on B200. Weights, input kept, X and W broadcast [GB], forward
# FLOPs [TFLOP], compute time over memory time forward and backward.
NERSC = {
    "mlp.up": (0.16384, 0.0262144, 0.2097152, 0.65536, 2.68435456, 6.395438701923077, 6.347980889),
    "mlp.down": (0.16384, 0.1048576, 0.8388608, 0.65536, 2.68435456, 6.3954387019, 6.3476116587),
    "attention.qkv": (0.12288, 0.0262144, 0.2097152, 0.49152, 2.01326592, 6.17346828818, 6.1128080),
    "attention.out": (0.04096, 0.0262144, 0.2097152, 0.16384, 0.67108864, 4.8765625, 4.738764396),
}
GB = 1e9


@pytest.fixture(scope="module")
def nersc():
    """The same operations here."""
    model = Model.load("gpt3-1t")
    size = {"sequences": 8, "seq_len": 512, "document_len": 2048}
    work = rank_work(tp=8, tp2=4, summa=True, panels=8, gradient_bytes=2, **size)
    found = with_accumulation(layer_operations(model, model.layers[0], work), work)
    return {o.name: o for o in found}


@pytest.mark.parametrize("name", NERSC)
def test_products_are_those_of_nersc(nersc, name):
    """Weights, what is kept, what is broadcast and reduced, and forward FLOPs are equal.

    Backward it counts 2 k - 1 FLOPs for a sum of k products. Forward its traffic leaves out that a
    panel reads the sum of those before it.
    """
    weights, kept, x, w, tflop, forward, backward = NERSC[name]
    one = nersc[name]
    product = next(k for k in one.kernels if isinstance(k, Matmul))
    assert 2 * product.k * product.n / 4 == pytest.approx(weights * GB)
    assert one.saved_bytes == pytest.approx(kept * GB)
    sizes = [size for _, _, size in exchanges(one)]
    assert sizes == pytest.approx([b * GB for b in (x, w, w, x, x, w)])
    assert flops(one, FORWARD) == pytest.approx(tflop * 1e12)

    def traffic(flop: float, intensity: float) -> float:
        return (20e-6 + flop / (0.8 * 2500e12)) / intensity * 8000 * GB

    read_again = 7 * float((product.m * product.n)[0]) * 2
    ours = moved(one, FORWARD, Matmul) - read_again
    assert ours == pytest.approx(traffic(tflop * 1e12, forward), rel=1e-8)
    both = moved(one, INPUT, Matmul) + moved(one, WEIGHT, Matmul)
    assert both == pytest.approx(traffic(2 * tflop * 1e12, backward), rel=1e-3)


def test_the_rest_of_the_layer_against_nersc(nersc):
    """Keys and values, activations and masks are equal.

    A norm there has the width 2048 / 8, the sequence for the model, where it is 25600 / 8; its sums
    are in 2 bytes.
    """
    gathered = 0.2097152 * GB
    assert [b for _, _, b in exchanges(nersc["attention.core"])] == [gathered] * 3
    assert nersc["mlp.activation"].saved_bytes == 0.1048576 * GB
    assert nersc["mlp.residual"].saved_bytes == 0.0131072 * GB
    norm = nersc["mlp.norm"]
    assert norm.saved_bytes * 256 / 3200 == 0.002097152 * GB
    assert exchanges(norm)[0][2] == 2 * 1.6384e-5 * GB
