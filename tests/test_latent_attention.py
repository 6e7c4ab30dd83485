"""Multi-head latent attention by hand, and beside SimuMax's operations of DeepSeek V2 and V3.

Sample: width 64, 8 heads of 8 + 4 (rotated) for queries and keys and 8 for values, queries through
24, keys and values through 16; 2 sequences of 32 tokens in 2 bytes.
"""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import dropped, exchanges, flash, flops, held, moved, operations, saved
from shardwise import InputError
from shardwise.config.model import Model
from shardwise.ops.operation import FlashAttention, Matmul, Phase

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
TOKENS, SIZE = 64, 2


def latent(q_rank: int | None = 24, **attention: Any) -> Model:
    """GPT of width 64 with latent attention."""
    widths = {"head_dim": 12, "v_head_dim": 8, "bias": "none"}
    narrow = {"q_rank": q_rank, "kv_rank": 16, "rope_dim": 4}
    layer = samples.layer(attention=widths | {"latent": narrow} | attention)
    return samples.llama(layers=[layer])


def test_latent_weights() -> None:
    """Down 64 x 24 and 64 x (16 + 4), norms 24 and 16, up 24 x 96 and 16 x 8 (8 + 8), out 64^2."""
    ops = operations(latent())
    assert {name: held([o]) for name, o in ops.items() if held([o]) and "mlp" not in name} == {
        "attention.norm": 64,
        "attention.q_down": 64 * 24,
        "attention.q_norm": 24,
        "attention.q_up": 24 * 96,
        "attention.kv_down": 64 * 20,
        "attention.kv_norm": 16,
        "attention.kv_up": 16 * 8 * 16,
        "attention.out": 64 * 64,
    }
    for name in ("attention.q_down", "attention.q_up", "attention.kv_down", "attention.kv_up"):
        assert [flops(ops[name], phase) for phase in Phase] == [2 * TOKENS * held([ops[name]])] * 3
    # A LayerNorm has a bias too.
    layer = latent(qk_norm="head").to_dict()["layers"][0]
    biased = operations(samples.model(layer, position="rope"))
    norms = ("attention.q_norm", "attention.kv_norm", "attention.qk_norm")
    assert [held([biased[name]]) for name in norms] == [2 * 24, 2 * 16, 2 * 2 * 12]


def test_queries_may_be_projected_at_once() -> None:
    """64 x 96 in place of both query projections, and the block's input gathered for it."""
    ops = operations(latent(q_rank=None), tp=2, sequence_parallel=True)
    assert held([ops["attention.q"]]) == 64 * 96 / 2
    assert len(exchanges(ops["attention.q"])) == 3
    assert not {"attention.q_down", "attention.q_norm", "attention.q_up"} & set(ops)
    # The block's input is kept in parts, once; gathered whole, the part is kept for keys too.
    assert saved([ops["attention.q"], ops["attention.kv_down"]]) == TOKENS / 2 * 64 * SIZE
    whole = operations(latent(q_rank=None), tp=2, sequence_parallel=True, regather=False)
    assert saved([whole["attention.q"]]) == TOKENS * 64 * SIZE
    assert saved([whole["attention.kv_down"]]) == TOKENS / 2 * 64 * SIZE


def test_latent_biases() -> None:
    """The narrow projections and the output have them: 24, 20 and 64."""
    ops = operations(latent(bias="all"))
    assert held([ops["attention.q_down"]]) == 65 * 24
    assert held([ops["attention.kv_down"]]) == 65 * 20
    assert held([ops["attention.q_up"]]) == 24 * 96
    assert held([ops["attention.out"]]) == 64 * 64 + 64
    assert held([operations(latent(bias="qkv"))["attention.out"]]) == 64 * 64


def test_values_narrower_than_keys() -> None:
    """Forward 12 + 8 per score, backward 3 x 12 + 2 x 8; half of 2 x 8 x 32^2 scores."""
    core = operations(latent())["attention.core"]
    scores = 2 * 8 * 32**2 / 2
    assert flops(core, FORWARD) == 2 * scores * 20
    assert flops(core, INPUT_GRAD) == 2 * scores * (36 + 16)
    assert moved(core, FORWARD, FlashAttention) == TOKENS * 2 * 8 * (12 + 8) * SIZE
    unfused = operations(latent(), flash=False)["attention.core"]
    assert flops(unfused, FORWARD) == 2 * 2 * scores * 20
    assert flops(unfused, INPUT_GRAD) == 2 * 2 * scores * (2 * 12 + 2 * 8)
    shapes = [(k.phase, k.m[0], k.n[0], k.k[0]) for k in unfused.kernels if isinstance(k, Matmul)]
    assert shapes == [
        (FORWARD, 32, 32, 12),
        (FORWARD, 32, 8, 32),
        (INPUT_GRAD, 32, 32, 8),
        (INPUT_GRAD, 32, 8, 32),
        (INPUT_GRAD, 32, 12, 32),
        (INPUT_GRAD, 32, 12, 32),
    ]


def test_plain_heads_may_have_narrower_values_too() -> None:
    """8 heads: queries and keys of 12, values of 8; the output projection is 64 x 64."""
    attention = {"head_dim": 12, "v_head_dim": 8, "bias": "none"}
    ops = operations(samples.llama(layers=[samples.layer(attention=attention)]))
    assert held([ops["attention.qkv"]]) == 64 * 8 * (12 + 12 + 8)
    assert held([ops["attention.out"]]) == 64 * 64


def test_rotated_parts() -> None:
    """Queries turn in place; keys and values are read as 8 (8 + 8) + 4, written as 8 (12 + 8)."""
    rope = operations(latent())["attention.rope"]
    elements = 2 * 8 * 4 + (8 * 16 + 4) + 8 * 20
    assert moved(rope, FORWARD) == moved(rope, INPUT_GRAD) == TOKENS * elements * SIZE
    assert [float(k.flops[0]) for k in rope.kernels] == [3 * TOKENS * (32 + 4)] * 2
    with pytest.raises(InputError, match="must be rope with latent attention"):
        samples.model(latent().to_dict()["layers"][0])


@each_row("split", [False, True])
def test_narrow_projections_are_unsplit_on_every_rank(split: bool) -> None:
    """4 ranks: down projections keep their weights and see a part of a split sequence."""
    ops = operations(latent(), tp=4, sequence_parallel=split)
    one = operations(latent())
    tokens = TOKENS / 4 if split else TOKENS
    for what in ("q", "kv"):
        for name in (f"attention.{what}_down", f"attention.{what}_norm"):
            assert held([ops[name]]) == held([one[name]])
            assert exchanges(ops[name]) == []
        down, up = ops[f"attention.{what}_down"], ops[f"attention.{what}_up"]
        assert flops(down, FORWARD) == 2 * tokens * held([down])
        assert held([up]) == held([one[up.name]]) / 4
        assert flops(up, FORWARD) == 2 * TOKENS * held([up])
    assert held([ops["attention.out"]]) == 64 * 64 / 4


def test_latents_are_gathered_not_the_input() -> None:
    """24, 16 and the rotated 4 wide, in place of 64."""
    split = operations(latent(), tp=4, sequence_parallel=True)
    for name, width in (("attention.q_up", 24), ("attention.kv_up", 16)):
        size = TOKENS * width * SIZE
        assert sorted(exchanges(split[name])) == [
            (ALL_GATHER, "forward", size),
            (ALL_GATHER, "weight_grad", size),
            (REDUCE_SCATTER, "input_grad", size),
        ]
    assert exchanges(split["attention.rope"]) == [
        (ALL_GATHER, "forward", TOKENS * 4 * SIZE),
        (REDUCE_SCATTER, "input_grad", TOKENS * 4 * SIZE),
    ]
    whole = operations(latent(), tp=4)
    assert exchanges(whole["attention.q_up"]) == [(ALL_REDUCE, "input_grad", TOKENS * 24 * SIZE)]
    assert exchanges(whole["attention.rope"]) == [(ALL_REDUCE, "input_grad", TOKENS * 4 * SIZE)]
    assert exchanges(operations(latent())["attention.rope"]) == []


def test_latent_attention_keeps() -> None:
    """Input once, both latents before and after their norm, heads of q, k, v and o, statistics."""
    ops = operations(latent())
    block = [o for name, o in ops.items() if name.startswith("attention.") and "resid" not in name]
    per_token = SIZE * (2 * 64 + 2 * 24 + 2 * 16 + 8 * (12 + 12 + 8) + 64) + 8 * 4
    assert saved(block) == TOKENS * per_token
    assert ops["attention.rope"].working_bytes[0] == TOKENS * (2 * 8 * 16 + 8 * 4) * SIZE
    assert dropped(block, "core_attention") == TOKENS * 8 * 4
    assert dropped(block, "mla_up") == TOKENS * 8 * (12 + 12 + 8) * SIZE
    assert dropped(block, "attention_norm") == TOKENS * 64 * SIZE
    # All but the input of the norm before the block and that of its first projections.
    assert dropped(block, "attention") == saved(block) - TOKENS * 2 * 64 * SIZE
    ups = {"attention.q_up", "attention.kv_up", "attention.rope"}
    assert {n for n, o in ops.items() if "mla_up" in o.reruns_with} == ups


def test_latent_heads_are_not_grouped_by_a_strategy() -> None:
    """`attention: multiquery` says nothing of latent attention."""
    for kind in (1, 2):
        for given, plain in zip(
            operations(latent(), attention=kind).values(),
            operations(latent()).values(),
            strict=True,
        ):
            assert held([given]) == held([plain])
            assert saved([given]) == saved([plain])


def test_kernels_lay_out_the_wider_of_two_widths() -> None:
    """4 tile w per key with the wider width w, forward and backward."""
    for backward in (False, True):
        same = flash(2, 1024, 8, head_dim=96.0, backward=backward)
        narrow = flash(2, 1024, 8, head_dim=96.0, v_head_dim=32.0, backward=backward)
        assert narrow == pytest.approx(same)
        assert flash(2, 1024, 8, backward=backward) == pytest.approx(same * 64 / 96)


def test_the_longest_tile_weighs_half_backward() -> None:
    """((T K u / SM)^1.5 + (o k u)^1.5)^(1/1.5), o = 1 forward and 1/2 backward, times 3."""
    unit = 4 * 128 * 64 * 100 / 100e12
    even, longest = 16 * 8 / 100 * (1024 + 128) / 2 * unit, 1024 * unit
    for backward, weight in ((False, 1.0), (True, 0.5)):
        spread = (even**1.5 + (weight * longest) ** 1.5) ** (1 / 1.5)
        found = flash(2, 1024, 8, longest_weight=1, backward=backward)
        assert found == pytest.approx(spread * (3 if backward else 1))


# SimuMax 1.2 (commit 4dcaae5), examples/perf_deepseekv2_layer4_ep4_pp2.py and its B200 row of
# DeepSeek V3 (docs/b200/b200_release_v1.2_summary.json): one sequence of 4096 tokens in bf16 on one
# tensor-parallel rank. FLOPs of each pass, bytes kept for backward, bytes of weights.
SIMUMAX = {
    5120: {
        "attention.norm": (0, 41943040, 10240),
        "attention.q_down": (64424509440, 41943040, 15728640),
        "attention.q_norm": (0, 12582912, 3072),
        "attention.q_up": (309237645312, 12582912, 75497472),
        "attention.kv_down": (24159191040, 0, 5898240),
        "attention.kv_norm": (0, 4194304, 1024),
        "attention.kv_up": (137438953472, 4194304, 33554432),
        "attention.out": (687194767360, 134217728, 167772160),
    },
    7168: {
        "attention.norm": (0, 58720256, 14336),
        "attention.q_down": (90194313216, 58720256, 22020096),
        "attention.q_norm": (0, 12582912, 3072),
        "attention.q_up": (309237645312, 12582912, 75497472),
        "attention.kv_down": (33822867456, 0, 8257536),
        "attention.kv_norm": (0, 4194304, 1024),
        "attention.kv_up": (137438953472, 4194304, 33554432),
        "attention.out": (962072674304, 134217728, 234881024),
    },
}
# Its core: FLOPs of all pairs forward; queries, keys, values and 2 (we: 4) bytes per row.
SIMUMAX_CORE = (1374389534720, 537919488)


@each_row("hidden", SIMUMAX)
def test_operations_of_deepseek_are_those_of_simumax(hidden: int) -> None:
    """All leaves of DeepSeek's attention: FLOPs, kept bytes and weights."""
    attention = {
        "heads": 128,
        "kv_heads": 128,
        "head_dim": 192,
        "v_head_dim": 128,
        "bias": "none",
        "latent": {"q_rank": 1536, "kv_rank": 512, "rope_dim": 64},
    }
    model = samples.llama(hidden=hidden, layers=[samples.layer(attention=attention)])
    ops = operations(model, sequences=1, seq_len=4096)
    ours = {
        name: (flops(ops[name], FORWARD), saved([ops[name]]), 2 * held([ops[name]]))
        for name in SIMUMAX[hidden]
    }
    assert ours == SIMUMAX[hidden]
    products, kept = SIMUMAX_CORE
    assert 2 * flops(ops["attention.core"], FORWARD) == products
    rows = 4096 * 128
    assert saved([ops["attention.core"], ops["attention.softmax"]]) == kept + 2 * rows
