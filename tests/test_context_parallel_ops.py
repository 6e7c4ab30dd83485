"""Attention over parts of a sequence: windows, chunks, documents, and context parallelism.

Sample: width 64, 8 heads of 8 (2 of keys and values where grouped); 2 sequences of 32 tokens on
each rank in 2 bytes.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import column, dropped, exchanges, flash, flops, held, moved, operations, saved
from shardwise.config.enums import CpExchange
from shardwise.config.model import Attention, Model
from shardwise.ops.attention import keys_met
from shardwise.ops.operation import FlashAttention, Matmul, Operation, Phase
from shardwise.ops.param_count import flops_per_token

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD
RING, GATHER, SWAP = (CpExchange(way).code for way in ("ring", "all_gather", "all_to_all"))
ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_gather", "reduce_scatter", "all_to_all"
KV = 2 * 32 * 2 * (8 + 8) * 2  # bytes of a rank's keys and values, two heads of 8


def attention(**fields: Any) -> Attention:
    """8 heads of 8."""
    return Attention.validated({"heads": 8, "kv_heads": 8, "head_dim": 8} | fields)


def met(sequence: float, document: float | None = None, **fields: Any) -> float:
    """Keys that the formula gives."""
    length = column(sequence if document is None else document)
    return float(keys_met(attention(**fields), column(sequence), length)[0])


def grouped(**fields: Any) -> Model:
    """8 heads over 2."""
    return samples.llama(layers=[samples.layer(attention={"kv_heads": 2, "bias": "none"} | fields)])


def core(model: Model, **work: Any) -> Operation:
    """Return the core of its first layer."""
    return operations(model, **work)["attention.core"]


def test_triangles_are_as_long_as_the_shortest_of_their_bounds() -> None:
    """The sequence, a chunk, a document; masks or not."""
    assert met(4096) == 4096
    assert met(4096, chunk=1024) == 1024
    assert met(512, chunk=1024) == 512
    assert met(4096, 600) == 600
    assert met(4096, 600, chunk=512) == 512
    assert met(4096, 600, causal=False) == 600


def test_windows_leave_a_band() -> None:
    """2 w - w^2 / L when causal, 2 w - 1 if not; a window as long as the sequence is none."""
    assert met(4096, window=1024) == 2 * 1024 - 256
    assert met(4096, window=4096) == met(4096, window=5000) == 4096
    assert met(4096, 2048, window=1024) == 2 * 1024 - 512
    assert met(4096, 512, window=1024) == 512
    assert met(4096, window=100, causal=False) == 199
    assert met(150, window=100, causal=False) == 150


@examples(60)
@given(length=st.integers(1, 300), window=st.integers(1, 300))
def test_keys_of_a_window_count_its_pairs(length: int, window: int) -> None:
    """Half of queries x keys: pairs below the diagonal, and those on it by half."""
    queries = np.arange(length)
    pairs = np.minimum(queries + 1, window).sum()
    by_keys = length * met(length, window=window) / 2
    assert by_keys == pytest.approx(pairs - min(window, length) / 2)


def test_flash_attention_skips_what_is_out_of_reach() -> None:
    """A window of 8 over 32: 14 keys in place of 32; a chunk of 8: 8; documents of 16: 16."""
    whole = flops(core(grouped()), FORWARD)
    assert flops(core(grouped(window=8)), FORWARD) == whole * 14 / 32
    assert flops(core(grouped(chunk=8)), INPUT_GRAD) == 2.5 * whole * 8 / 32
    assert flops(core(grouped(), document_len=16), FORWARD) == whole / 2


def test_flops_of_windows_and_chunks() -> None:
    """6 x 8 heads x (8 + 8) over half the keys: 14 of a window of 8, 8 of a chunk."""
    dense = flops_per_token(grouped(), 32, "parameters")
    per_key = 4 * 6 * 8 * 16 / 2
    for fields, keys in (({}, 32), ({"window": 8}, 14), ({"chunk": 8}, 8)):
        described = grouped(**fields)
        assert flops_per_token(described, 32) == dense + per_key * keys
        assert flops_per_token(described, 32, "full-attention") == dense + 2 * per_key * 32
    one_way = grouped(window=8, causal=False)
    assert flops_per_token(one_way, 32) == dense + 2 * per_key * 15


def test_unfused_attention_masks_what_is_out_of_reach() -> None:
    """All pairs are multiplied, stored and kept."""
    plain = operations(grouped(), flash=False)
    for model, work in ((grouped(window=8), {}), (grouped(), {"document_len": 16})):
        masked = operations(model, flash=False, **work)
        assert flops(masked["attention.core"], FORWARD) == flops(plain["attention.core"], FORWARD)
        assert saved(masked.values()) == saved(plain.values())


def test_time_of_a_kernel_follows_its_keys() -> None:
    """Tiles of 128 queries: the mean one meets (k + 128) / 2 keys of k."""
    whole = flash(1, 1024, 8)
    assert flash(1, 1024, 8, keys=3 * 1024) == pytest.approx(whole * (3072 + 128) / (1024 + 128))
    assert flash(1, 1024, 8, keys=256) == pytest.approx(whole * (256 + 128) / (1024 + 128))


@each_row("way", [RING, GATHER, SWAP])
def test_work_of_the_core_is_split_evenly(way: int) -> None:
    """Four ranks with 32 tokens each of 128: the FLOPs of a quarter of 128^2 scores."""
    whole = core(grouped(), seq_len=128)
    part = core(grouped(), cp=4, cp_exchange=way)
    for phase in (FORWARD, INPUT_GRAD):
        assert flops(part, phase) == flops(whole, phase) / 4
    unfused = core(grouped(), cp=4, cp_exchange=way, flash=False)
    all_unfused = core(grouped(), seq_len=128, flash=False)
    for phase in (FORWARD, INPUT_GRAD):
        assert flops(unfused, phase) == flops(all_unfused, phase) / 4


def test_unfused_shapes_of_a_part() -> None:
    """32 queries meet 128 keys."""
    kernels = [k for k in core(grouped(), cp=4, flash=False).kernels if isinstance(k, Matmul)]
    assert [(k.m[0], k.n[0], k.k[0]) for k in kernels] == [
        (32, 128, 8),
        (32, 8, 128),
        (32, 128, 8),
        (128, 8, 32),
        (32, 8, 128),
        (128, 8, 32),
    ]


def test_ring_passes_keys_and_values_on() -> None:
    """Three times a rank's own, behind the core; backward with their gradients."""
    ring = core(grouped(), cp=4, cp_exchange=RING)
    passes = [("p2p", "forward", 3 * KV), ("p2p", "input_grad", 2 * 3 * KV)]
    assert exchanges(ring, "cp") == exchanges(ring) == passes
    assert [c.behind for c in ring.collectives if c.bytes[0] > 0] == [FORWARD, INPUT_GRAD]
    alone = core(grouped())
    assert saved([ring]) == saved([alone])
    assert ring.working_bytes[0] == alone.working_bytes[0] + 4 * KV


def test_gathered_keys_and_values() -> None:
    """All of them, forward and again in backward; their gradients are reduced and scattered."""
    gathered = core(grouped(), cp=4, cp_exchange=GATHER)
    assert exchanges(gathered, "cp") == [
        (ALL_GATHER, "forward", 4 * KV),
        (ALL_GATHER, "input_grad", 4 * KV),
        (REDUCE_SCATTER, "input_grad", 4 * KV),
    ]
    assert all(c.behind is None for c in gathered.collectives if c.bytes[0] > 0)
    assert saved([gathered]) == saved([core(grouped())])
    assert gathered.working_bytes[0] == core(grouped()).working_bytes[0] + 8 * KV


def test_heads_swapped_for_the_sequence() -> None:
    """Two ranks: 4 query heads and 1 of keys and values over 64 tokens; all swapped both ways."""
    swapped = core(grouped(), cp=2, cp_exchange=SWAP)
    inputs, output = 2 * 64 * (4 + 2) * 8 * 2, 2 * 64 * 4 * 8 * 2
    assert exchanges(swapped, "cp") == [
        (ALL_TO_ALL, "forward", inputs),
        (ALL_TO_ALL, "forward", output),
        (ALL_TO_ALL, "input_grad", output),
        (ALL_TO_ALL, "input_grad", inputs),
    ]
    kernel = swapped.kernels[0]
    assert isinstance(kernel, FlashAttention)
    shape = (kernel.seq_len[0], kernel.keys[0], kernel.heads[0], kernel.kv_heads[0])
    assert shape == (64, 64, 4, 1)
    assert saved([swapped]) == saved([core(grouped())]) == inputs
    # The output of the core is kept before it is swapped back, beside 4 bytes a row.
    softmax = operations(grouped(), cp=2, cp_exchange=SWAP)["attention.softmax"]
    assert saved([softmax]) == dropped([softmax], "core_attention") == output + 4 * 2 * 64 * 4


def test_few_key_value_heads_are_copied_before_they_are_swapped() -> None:
    """Four ranks, two heads: each gets one whole, so 4 x 8 wide keys are sent, not 2 x 8."""
    swapped = core(grouped(), cp=4, cp_exchange=SWAP)
    assert exchanges(swapped, "cp")[0][2] == 2 * 128 * (2 + 2 * 1) * 8 * 2
    split = core(grouped(), cp=2, tp=4, cp_exchange=SWAP)
    assert exchanges(split, "cp")[0][2] == 2 * 64 * (1 + 2 * 1) * 8 * 2


def test_latent_keys_are_communicated_expanded() -> None:
    """8 heads of 12 and 8."""
    widths = {"head_dim": 12, "v_head_dim": 8, "kv_heads": 8}
    narrow = {"latent": {"q_rank": 24, "kv_rank": 16, "rope_dim": 4}}
    model = grouped(**widths, **narrow)
    own = 2 * 32 * 8 * (12 + 8) * 2
    assert exchanges(core(model, cp=4, cp_exchange=GATHER), "cp")[0][2] == 4 * own
    assert exchanges(core(model, cp=4, cp_exchange=RING), "cp")[0][2] == 3 * own
    swapped = exchanges(core(model, cp=4, cp_exchange=SWAP), "cp")
    assert [size for _, _, size in swapped[:2]] == [2 * 128 * 2 * (24 + 8) * 2, 2 * 128 * 2 * 8 * 2]


@each_row("way", [RING, GATHER, SWAP])
def test_one_rank_has_no_collectives(way: int) -> None:
    """cp = 1 is no context parallelism."""
    one, other = operations(grouped(), cp_exchange=way), operations(grouped())
    assert exchanges(one["attention.core"]) == []
    assert saved(one.values()) == saved(other.values())
    for name in one:
        assert (one[name].working_bytes == other[name].working_bytes).all()


def test_nothing_else_knows_of_context_parallelism() -> None:
    """All but the core and tables of pairs depend on a rank's own tokens."""
    for way in (RING, GATHER, SWAP):
        ops, alone = operations(grouped(), cp=4, cp_exchange=way), operations(grouped())
        for name in set(ops) - {"attention.core", "attention.softmax"}:
            assert exchanges(ops[name]) == []
            assert saved([ops[name]]) == saved([alone[name]])
            assert held([ops[name]]) == held([alone[name]])
            assert [flops(ops[name], p) for p in Phase] == [flops(alone[name], p) for p in Phase]


def test_relative_positions_reach_over_the_full_sequence() -> None:
    """T5 looks up 32 x 128 pairs; Transformer-XL projects 128 distances."""
    t5 = samples.model(position="relative-bias")
    name = "attention.relative"
    assert moved(operations(t5, cp=4)[name], FORWARD) == 4 * moved(operations(t5)[name], FORWARD)
    xl = samples.model(position="relative-xl")
    assert flops(operations(xl, cp=4)[name], FORWARD) == 2 * 128 * 64 * 64
