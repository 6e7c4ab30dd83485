"""Muon, by hand for the Llama sample; state and passes of every optimizer as in their papers.

The sample: width 64, 8 heads over 2, SwiGLU of 192, 1000 words, 4 layers.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import column
from shardwise import Model, estimate_many
from shardwise.analysis.results import Estimate
from shardwise.config.enums import Optimizer
from shardwise.config.strategy_table import Table
from shardwise.cost.optimizer import (
    TrainedWeights,
    least_state_bytes,
    newton_schulz_flops,
    state_bytes,
)
from shardwise.ops.quantization import weight_sizes

pytestmark = pytest.mark.any_software

WORDS = 64 * 1000
MATRICES = 4 * (64 * 96 + 64 * 64 + 64 * 384 + 192 * 64)
NORMS = 9 * 64
OTHERS = 2 * WORDS + NORMS
WHOLE = MATRICES + OTHERS


def iterations(rows: float, columns: float) -> float:
    return float(newton_schulz_flops(column(rows), column(columns))[0])


SHAPES = ((64, 96), (64, 64), (64, 384), (192, 64))
FLOPS = 4 * sum(iterations(*shape) for shape in SHAPES)


def run(model: Model | None = None, **columns: Any) -> Estimate:
    given: dict[str, Any] = {"zero": 0, "optimizer": "muon"} | columns
    return samples.run(model or samples.llama(), **given)


def rate(width: int = 64) -> float:
    """Of a product of square matrices in 2 bytes [FLOP/s]."""
    time = samples.product(width, width, width, 3 * 2 * width**2)
    return 2 * width**3 / float(time[0])


def test_iterations_by_hand() -> None:
    """2 x 3: each of five multiplies 2x3x2, 2x2x2 and 2x2x3, whichever way round it stands."""
    assert iterations(2, 3) == iterations(3, 2) == 5 * 2 * (2 * 3 * 2 + 2 * 2 * 2 + 2 * 2 * 3)
    assert iterations(64, 64) == 5 * 6 * 64**3
    assert newton_schulz_flops(column(2, 1), column(3, 1)).tolist() == [5 * (48 + 16), 5 * 6]


def test_an_update_by_hand() -> None:
    """Matrices: 4 of gradient, 2 x (4 + 4), 2; the rest 4 + 2 x (8 + 4) + 2; 6 for sweeps."""
    result = run()
    moved = MATRICES * (22 + 6) + OTHERS * (30 + 6)
    assert result.time_s["optimizer"] == pytest.approx(moved / 1e12 + FLOPS / rate())
    (layer,) = result.layers
    assert layer.optimizer.matrix_flops == pytest.approx(FLOPS / 4)
    assert layer.optimizer.bytes == pytest.approx((MATRICES * 28 + 8 * 64 * 36) / 4)
    assert layer.optimizer.time_s == pytest.approx(
        layer.optimizer.compute_s + layer.optimizer.memory_s
    )
    assert layer.optimizer_bytes == (8 * MATRICES + 12 * 8 * 64) / 4


def test_the_update_as_a_row_of_operations() -> None:
    """Bytes and products apart; they add up to its time."""
    rows = {o.operation: o for o in run(operations=True).operations or ()}
    products = rows.pop("optimizer.newton_schulz")
    assert products.flops == pytest.approx(FLOPS)
    assert (products.compute_s, products.bound) == (products.time_s, "compute")
    moved = [row for name, row in rows.items() if name.startswith("optimizer.")]
    assert sum(row.bytes for row in moved) == pytest.approx(MATRICES * 28 + OTHERS * 36)
    assert {(row.flops, row.memory_s - row.time_s, row.bound) for row in moved} == {
        (0, 0, "memory")
    }
    plain = run(operations=True, optimizer="adamw").operations or ()
    assert "optimizer.newton_schulz" not in {row.operation for row in plain}


def test_state_by_hand() -> None:
    """Momentum and copy of matrices; AdamW's for embedding, head and norms."""
    assert run().memory_bytes.optimizer == 8 * MATRICES + 12 * OTHERS
    assert run(zero=1, dp=4, gbs=8).memory_bytes.optimizer == (8 * MATRICES + 12 * OTHERS) / 4
    stages = run(pp=2, gbs=4).stages
    assert [stage.optimizer for stage in stages] == [
        4 * MATRICES + 12 * (WORDS + 4 * 64),
        4 * MATRICES + 12 * (WORDS + 5 * 64),
    ]


def test_biases_are_no_matrices() -> None:
    """GPT's: 64 x 192, 64 x 64, 64 x 256, 256 x 64 in each layer; a tied head is AdamW's too."""
    matrices = 4 * 12 * 64**2
    result = run(samples.model())
    assert result.memory_bytes.optimizer == 8 * matrices + 12 * (result.parameters - matrices)


def test_experts_are_matrices_each() -> None:
    """8 of 64 x 64 and 32 x 64 in each of 4 layers, and the router of 64 x 8."""
    moe = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"}
    plain = samples.layer(attention={"bias": "none"}) | {"moe": moe}
    model = samples.llama(layers=[{key: item for key, item in plain.items() if key != "mlp"}])
    (layer,) = run(model).layers
    experts = 8 * (iterations(64, 64) + iterations(32, 64))
    dense = iterations(64, 192) + iterations(64, 64) + iterations(64, 8)
    assert layer.optimizer.matrix_flops == pytest.approx(experts + dense)
    split = run(model, dp=4, ep=2, gbs=8, zero=1).layers[0].optimizer.matrix_flops
    assert split == pytest.approx(experts / 2 / 2 + dense / 4)


def test_ranks_that_share_the_state_share_the_work() -> None:
    """Four ranks: a quarter each with ZeRO, all of it without; hybrid shards: a half."""
    given = {"dp": 4, "gbs": 8}
    times = [run(**given | way).layers[0].optimizer for way in ({}, {"zero": 1}, {"zero": 3})]
    assert [t.matrix_flops for t in times] == pytest.approx([FLOPS / 4, FLOPS / 16, FLOPS / 16])
    hybrid = run(**given, zero=1, dp_shard=2).layers[0].optimizer
    assert hybrid.matrix_flops == pytest.approx(FLOPS / 8)


def test_a_rank_orthogonalises_its_part() -> None:
    """Two tensor-parallel ranks: halves of columns, or of rows."""
    halves = ((64, 48), (32, 64), (64, 192), (96, 64))
    expected = sum(iterations(*shape) for shape in halves)
    assert run(tp=2).layers[0].optimizer.matrix_flops == pytest.approx(expected)


def test_momenta_are_gathered_where_they_are_split() -> None:
    """2 bytes of each matrix among 4 ranks at 100 GB/s, hidden by nothing; not without ZeRO."""
    more = 3 / 4 * 2 * MATRICES / 100e9
    for way in ({"zero": 1}, {"zero": 2}, {"zero": 3}):
        muon, adamw = (run(dp=4, gbs=8, **way, optimizer=o).comm_s["dp"] for o in ("muon", "adamw"))
        assert muon.total - adamw.total == pytest.approx(more)
        assert muon.exposed - adamw.exposed == pytest.approx(more)
    whole = [run(dp=4, gbs=8, optimizer=o).comm_s["dp"] for o in ("muon", "adamw")]
    assert whole[0] == whole[1]


def test_gathering_is_at_most_a_quarter_of_communication_in_fp32() -> None:
    """4 bytes scattered and 4 gathered: 2 more (arXiv 2502.16982, section 2.3)."""
    given = {"dp": 4, "gbs": 8, "zero": 1, "dtype": "fp32", "dp_overlap": False}
    muon, adamw = (run(**given, optimizer=o).comm_s["dp"].total for o in ("muon", "adamw"))
    assert 1 < muon / adamw < 1.25
    assert muon / adamw == pytest.approx((8 * WHOLE + 2 * MATRICES) / (8 * WHOLE))


def test_forward_only_updates_nothing() -> None:
    """No iterations, no gather."""
    result = run(dp=4, gbs=8, zero=1, training=False)
    assert result.time_s["optimizer"] == result.comm_s["dp"].total == 0
    assert result.layers[0].optimizer.matrix_flops == 0


def test_adapters_are_matrices_too() -> None:
    """Rank 2: eight narrow ones in a layer, and nothing else."""
    (layer,) = run(lora_rank=2).layers
    widths = (64, 96, 64, 64, 64, 384, 192, 64)
    expected = sum(iterations(2, width) for width in widths)
    assert layer.optimizer.matrix_flops == pytest.approx(expected)
    assert run(lora_rank=2).memory_bytes.optimizer == 8 * 4 * 2 * sum(widths)


@each_row(
    ("optimizer", "matrix", "other", "moved"),
    [
        ("adamw", 12, 12, 4 + 16 + 8 + 2),  # arXiv 1412.6980, algorithm 1
        ("adamw-8bit", 6.03125, 6.03125, 4 + 4.0625 + 8 + 2),  # arXiv 2110.02861, section 2
        ("adamw-bf16", 8, 8, 4 + 8 + 8 + 2),  # arXiv 2412.19437, section 3.3.3
        ("adafactor", 4, 4, 12 + 12 + 2),  # arXiv 1804.04235, algorithm 4
        ("muon", 8, 12, 4 + 8 + 8 + 2),  # arXiv 2502.16982, section 2.1
        ("sgd-momentum", 8, 8, 4 + 8 + 8 + 2),
        ("sgd", 4, 4, 4 + 8 + 2),
    ],
)
def test_state_and_passes(optimizer: str, matrix: float, other: float, moved: float) -> None:
    """Bytes of state with the fp32 copy; bytes an update of a matrix moves, 4 of gradient each."""
    code = np.array([Optimizer(optimizer).code])
    for matrices, expected in ((10, matrix), (0, other)):
        some = TrainedWeights(
            weights=column(10),
            matrices=column(matrices),
            quantized=column(0),
            newton_schulz_flops=column(0),
        )
        table = Table.of(samples.model(), {"gpus": 1, "gbs": 1, "optimizer": optimizer})
        sizes = weight_sizes(table, column(2))
        assert state_bytes(code, sizes, some) == pytest.approx(10 * expected)
    assert least_state_bytes(code, sizes.master, sizes.moment) == pytest.approx(matrix)
    update = run(optimizer=optimizer).layers[0].optimizer
    rest = 8 * 64 / 4 * 2 * (other - matrix)
    assert update.bytes == pytest.approx((MATRICES / 4 + 2 * 64) * (moved + 6) + rest)


def test_optimizers_side_by_side() -> None:
    """Rows of one table are the single estimates."""
    given: dict[str, Any] = {"dp": 2, "mbs": 2, "gbs": 8, "zero": 1, "stack": samples.stack()}
    table = estimate_many(samples.llama(), samples.system(), given | {"optimizer": Optimizer})
    for row, optimizer in enumerate(Optimizer):
        one = samples.run(samples.llama(), **(given | {"optimizer": optimizer}))
        assert table.step_time_s[row] == pytest.approx(one.step_time_s, rel=1e-12)
        assert table.memory_total_bytes[row] == one.memory_bytes.total
    slowest = Optimizer.MUON.code
    assert np.argmax(table.step_time_s) == slowest


def test_larger_matrices_take_more_than_their_weights() -> None:
    """Iterations grow with the cube of the width, updates with its square."""
    widths = [iterations(width, width) / width**2 for width in (64, 128, 256)]
    assert [b / a for a, b in pairwise(widths)] == [2, 2]
