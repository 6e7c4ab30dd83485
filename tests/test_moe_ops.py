"""Mixture of experts by hand, and beside SimuMax's operations of DeepSeek V2 and V3.

Sample: width 64, 8 experts of 32 (SwiGLU), 2 for each token; 2 sequences of 32 tokens in 2 bytes,
so 64 tokens and 128 copies, 16 for each expert.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import dropped, exchanges, flops, held, moved, operations, rank_work, saved
from shardwise.config.model import Model, Moe
from shardwise.ops.moe import routed
from shardwise.ops.operation import MemoryBound, Operation, Phase
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_gather", "reduce_scatter", "all_to_all"
ROW = 64 * 2  # bytes of a token
GROUPED = ("moe.up", "moe.activation", "moe.down")


def mixture(**fields: Any) -> Model:
    """One kind of layer with 8 experts."""
    moe = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"} | fields
    layer = samples.layer(attention={"bias": "none"}) | {"moe": moe}
    return samples.llama(layers=[{key: item for key, item in layer.items() if key != "mlp"}])


def block(model: Model, **work: Any) -> dict[str, Operation]:
    """Operations of the mixture alone."""
    return {n: o for n, o in operations(model, **work).items() if n.startswith("moe.")}


def test_names_and_weights() -> None:
    """Router 64 x 8; each expert 64 x 2 x 32 and 32 x 64; nothing else has weights."""
    ops = block(mixture())
    assert list(ops) == ["moe.router", "moe.top_k", "moe.dispatch", *GROUPED, "moe.combine"]
    assert {n: held([o]) for n, o in ops.items() if held([o])} == {
        "moe.router": 64 * 8,
        "moe.up": 8 * 64 * 64,
        "moe.down": 8 * 32 * 64,
    }
    assert {n for n, o in ops.items() if o.expert} == {"moe.up", "moe.down"}
    assert held([block(mixture(activation="gelu"))["moe.up"]]) == 8 * 64 * 32


def test_biases() -> None:
    """Experts: 64 and 64 each; router: 8, and 8 more that balance the selection."""
    ops = block(mixture(bias=True, router_bias=True, selection_bias=True))
    assert held([ops["moe.up"]]) == 8 * 65 * 64
    assert held([ops["moe.down"]]) == 8 * (32 * 64 + 64)
    assert held([ops["moe.router"]]) == 64 * 8 + 8 + 8
    assert held([block(mixture(router_bias=True))["moe.router"]]) == 65 * 8
    # Their gradient reads the rows of all experts once.
    assert moved(ops["moe.up"], WEIGHT_GRAD) == 128 * 64 * 2
    split = block(mixture(bias=True), ep=2, etp=4)
    assert held([split["moe.up"]]) == 4 * 65 * 64 / 4
    assert held([split["moe.down"]]) == 4 * (32 / 4 * 64 + 64)


def test_grouped_products() -> None:
    """128 copies in all through one expert each, in each of three passes; 16 rows per product."""
    ops = block(mixture())
    for phase in Phase:
        assert flops(ops["moe.up"], phase) == 2 * 128 * 64 * 64
        assert flops(ops["moe.down"], phase) == 2 * 128 * 32 * 64
        assert flops(ops["moe.router"], phase) == 2 * 64 * 64 * 8
    up = ops["moe.up"].kernels[0]
    assert (up.batch[0], up.m[0], up.n[0], up.k[0]) == (8, 16, 64, 64)
    assert moved(ops["moe.activation"], FORWARD) == 3 * 128 * 32 * 2


def test_expert_parallelism_gives_each_rank_fewer_experts_and_more_rows_of_each() -> None:
    """Over 4 ranks: 2 experts each, 64 rows per expert: as many rows as the rank sends."""
    ops = block(mixture(), ep=4)
    up = ops["moe.up"].kernels[0]
    assert (up.batch[0], up.m[0], up.n[0], up.k[0]) == (2, 64, 64, 64)
    assert held([ops["moe.up"]]) == 2 * 64 * 64
    assert flops(ops["moe.up"], FORWARD) == 2 * 128 * 64 * 64


def test_expert_tensor_parallelism_splits_experts_and_gathers_rows() -> None:
    """2 x 2 ranks: 4 experts of half the width, twice the rows: the same FLOPs."""
    ops = block(mixture(), ep=2, etp=2)
    up = ops["moe.up"].kernels[0]
    assert (up.batch[0], up.m[0], up.n[0], up.k[0]) == (4, 64, 32, 64)
    assert flops(ops["moe.up"], FORWARD) == 2 * 128 * 64 * 64
    assert flops(ops["moe.down"], FORWARD) == 2 * 128 * 32 * 64
    assert held([ops["moe.down"]]) == 4 * 16 * 64


def test_collectives_are_mirrored() -> None:
    """Out: 128 rows swapped over ep, 256 gathered over etp; the reverse back; both in backward."""
    ops = block(mixture(), ep=2, etp=2)
    out = [(ALL_TO_ALL, 128 * ROW), (ALL_GATHER, 256 * ROW)]
    home = [(REDUCE_SCATTER, 256 * ROW), (ALL_TO_ALL, 128 * ROW)]

    def of(name: str, phase: Phase) -> list[tuple[str, float]]:
        return [(kind, size) for kind, at, size in exchanges(ops[name]) if at == phase.value]

    assert of("moe.dispatch", FORWARD) == of("moe.combine", INPUT_GRAD) == out
    assert of("moe.combine", FORWARD) == of("moe.dispatch", INPUT_GRAD) == home
    axes = {(c.kind.value, c.axis) for c in ops["moe.dispatch"].collectives}
    assert axes == {(ALL_TO_ALL, "ep"), (ALL_GATHER, "etp"), (REDUCE_SCATTER, "etp")}
    assert [exchanges(o) for o in block(mixture()).values()] == [[]] * 7
    assert exchanges(block(mixture(), ep=4)["moe.dispatch"], "etp") == []
    assert exchanges(block(mixture(), etp=4)["moe.dispatch"], "ep") == []


def test_layout_kernels() -> None:
    """Copying reads 64 rows and writes 128, sorting reads and writes 128; sums on the way back."""
    ops = block(mixture())
    for name in ("moe.dispatch", "moe.combine"):
        assert moved(ops[name], FORWARD) == moved(ops[name], INPUT_GRAD) == (64 + 3 * 128) * ROW
        one_each = block(mixture(), ep=8)[name]
        assert moved(one_each, FORWARD) == (64 + 128) * ROW

    def added(name: str) -> list[float]:
        return [
            sum(float(k.flops[0]) for k in ops[name].kernels if k.phase is phase)
            for phase in (FORWARD, INPUT_GRAD)
        ]

    assert (added("moe.dispatch"), added("moe.combine")) == ([0, 128 * 64], [128 * 64, 0])


def test_choice_of_experts_moves_fp32_logits() -> None:
    """Read and write 4 bytes for each of 64 x 8 logits; backward read two and write one."""
    chosen = block(mixture())["moe.top_k"]
    logits = 64 * 8
    assert (moved(chosen, FORWARD), moved(chosen, INPUT_GRAD)) == (8 * logits, 12 * logits)
    kernels = [k for k in chosen.kernels if isinstance(k, MemoryBound)]
    assert [float(k.flops[0]) for k in kernels] == [6 * logits, 4 * logits]
    assert saved([chosen]) == 8 * logits


def test_sequence_parallelism_routes_a_part() -> None:
    """4 ranks route 16 tokens each; without it, each routes all 64."""
    split = block(mixture(), tp=4, sequence_parallel=True)
    whole = block(mixture(), tp=4)
    for name in split:
        assert saved([split[name]]) == saved([whole[name]]) / 4
        assert held([split[name]]) == held([whole[name]])
    assert flops(split["moe.router"], FORWARD) == 2 * 16 * 64 * 8
    assert flops(split["moe.up"], FORWARD) == flops(whole["moe.up"], FORWARD) / 4


def test_imbalance_adds_load_to_one_rank() -> None:
    """1.5 times the rows in products, kept bytes and exchanges; its own copies are the same."""
    even, uneven = block(mixture(), ep=2), block(mixture(), ep=2, imbalance=1.5)
    for name in GROUPED:
        assert saved([uneven[name]]) == 1.5 * saved([even[name]])
        assert flops(uneven[name], FORWARD) == 1.5 * flops(even[name], FORWARD)
    assert [e[2] for e in exchanges(uneven["moe.dispatch"])] == [1.5 * 128 * ROW] * 2
    assert moved(uneven["moe.dispatch"], FORWARD) == (64 + 128 + 2 * 192) * ROW
    assert saved([uneven["moe.router"]]) == saved([even["moe.router"]])


def test_no_rank_gets_more_than_there_is() -> None:
    """2 of 8 experts: on one rank of 2 all 64 tokens meet both of theirs there, twice an even load;

    on one of 8 every token of all ranks, four times; unsplit nothing is uneven.
    """
    for ep, most in ((1, 1), (2, 2), (8, 4)):
        even, full = block(mixture(), ep=ep), block(mixture(), ep=ep, imbalance=4)
        assert flops(full["moe.up"], FORWARD) == most * flops(even["moe.up"], FORWARD)


def test_capacity_gives_each_expert_places() -> None:
    """1.25 x 16 = 20 places each, however uneven; 1.3 x 16 = 20.8 makes 21; half drops half."""
    for capacity, places in ((1.25, 20), (1.3, 21), (0.5, 8)):
        ops = block(mixture(), ep=2, capacity=capacity, imbalance=3)
        assert flops(ops["moe.up"], FORWARD) == 2 * 8 * places * 64 * 64
        assert saved([ops["moe.up"]]) == 8 * places * ROW
        assert exchanges(ops["moe.dispatch"])[0][2] == 8 * places * ROW
        assert moved(ops["moe.dispatch"], FORWARD) == (64 + 3 * 8 * places) * ROW


DEGREES = st.sampled_from([1, 2, 4, 8])


@examples(60)
@given(ep=DEGREES, etp=DEGREES, tp=DEGREES, top_k=st.integers(1, 8), data=st.data())
def test_no_token_and_no_weight_is_lost(
    ep: int, etp: int, tp: int, top_k: int, data: st.DataObject
) -> None:
    """Over all ranks: every copy meets one whole expert, and experts add up to the model's."""
    sequences = data.draw(st.integers(1, 5))
    model = mixture(top_k=top_k)
    work = {"ep": ep, "etp": etp, "tp": tp, "sequence_parallel": True, "sequences": sequences}
    ops, one = block(model, **work), block(model)
    moe = model.layers[0].moe
    assert isinstance(moe, Moe)
    load = routed(moe, rank_work(**work))
    ranks = ep * etp
    assert load.rows * ep == pytest.approx(ranks * load.tokens * top_k)
    assert load.per_expert * load.experts == pytest.approx(load.rows)
    for name in ("moe.up", "moe.down"):
        assert held([ops[name]]) * ranks == pytest.approx(held([one[name]]))
        whole = 2 * load.tokens[0] * top_k * held([one[name]]) / 8
        assert flops(ops[name], FORWARD) == pytest.approx(whole)


def test_shared_experts_are_a_dense_block() -> None:
    """Width 96 over 2 ranks, tensor-parallel as any MLP; its input is the router's."""
    work = {"tp": 2, "sequence_parallel": True}
    ops = block(mixture(shared_ffn=96), **work)
    dense = samples.layer(mlp={"ffn": 96, "activation": "swiglu", "bias": False})
    mlp = operations(samples.llama(layers=[dense]), **work)
    for part in ("up", "activation", "down"):
        ours, theirs = ops[f"moe.shared_{part}"], mlp[f"mlp.{part}"]
        assert held([ours]) == held([theirs])
        assert exchanges(ours) == exchanges(theirs)
        assert [flops(ours, phase) for phase in Phase] == [flops(theirs, phase) for phase in Phase]
        assert not ours.expert
    assert saved([ops["moe.shared_up"]]) == 0
    assert saved([ops["moe.router"]]) == 32 * ROW
    gathered = block(mixture(shared_ffn=96), **work, regather=False)
    assert saved([gathered["moe.shared_up"]]) == 64 * ROW
    assert saved([block(mixture(shared_ffn=96), regather=False)["moe.shared_up"]]) == 0
    # Read both outputs and write their sum; the gradients of the common input are added.
    assert moved(ops["moe.add"], FORWARD) == moved(ops["moe.add"], INPUT_GRAD) == 3 * 32 * ROW
    assert saved([ops["moe.add"]]) == 0


def test_gate_of_shared_experts() -> None:
    """64 weights, one product per token; the output it scales is kept and read again."""
    ops = block(mixture(shared_ffn=96, shared_gate=True))
    assert held([ops["moe.shared_gate"]]) == 64
    assert flops(ops["moe.shared_gate"], FORWARD) == 2 * 64 * 64
    assert saved([ops["moe.shared_gate"]]) == 0
    assert saved([ops["moe.add"]]) == 64 * ROW
    assert moved(ops["moe.add"], INPUT_GRAD) == 6 * 64 * ROW
    assert "moe.shared_gate" not in block(mixture(shared_ffn=96))


def test_what_a_mixture_keeps_and_rebuilds() -> None:
    """Input once, routing, rows of each grouped product, both halves of the activation."""
    ops = block(mixture(shared_ffn=96)).values()
    routing, rows, shared = 64 * 8 * 8, 128 * (ROW + 3 * 32 * 2), 64 * 3 * 96 * 2
    assert saved(ops) == 64 * ROW + routing + rows + shared
    assert dropped(ops, "moe") == routing + rows + shared
    assert dropped(ops, "mlp_norm") == 64 * ROW
    assert dropped(ops, "activation") == 128 * 32 * 2 + 64 * 96 * 2
    assert dropped(ops, "mlp") == 0
    assert all("moe" in o.reruns_with for o in ops)
    again = {o.name for o in ops if "activation" in o.reruns_with}
    assert again == {"moe.activation", "moe.shared_activation"}
    whole = block(mixture(shared_ffn=96), tp=2, sequence_parallel=True, regather=False).values()
    assert saved(whole) - dropped(whole, "moe") == 32 * ROW
    fused = block(mixture(shared_ffn=96), fused_activation=True).values()
    assert saved(fused) == saved(ops) - dropped(ops, "activation")
    assert dropped(fused, "activation") == 0


def test_experts_alone_are_rebuilt_from_their_saved_input() -> None:
    """Neither dispatch nor combine runs again; shared experts are a part of their own."""
    ops = block(mixture(shared_ffn=96, shared_gate=True)).values()
    assert {o.name for o in ops if "experts" in o.reruns_with} == set(GROUPED)
    assert dropped(ops, "experts") == 128 * 3 * 32 * 2
    again = {o.name.removeprefix("moe.shared_") for o in ops if "shared_experts" in o.reruns_with}
    assert again == {"up", "activation", "down", "gate"}
    assert dropped(ops, "shared_experts") == 64 * 3 * 96 * 2 + 64 * ROW
    gathered = block(mixture(shared_ffn=96), tp=2, sequence_parallel=True, regather=False)
    assert dropped([gathered["moe.shared_up"]], "shared_experts") == 64 * ROW
    fused = block(mixture(), fused_activation=True).values()
    assert dropped(fused, "experts") == 128 * 2 * 32 * 2


def test_working_sets_of_backward() -> None:
    """Gradients of input and output; rows before and after they are sorted and sent."""
    ops = block(mixture(shared_ffn=96, shared_gate=True), ep=2, etp=2)
    assert {name: float(o.working_bytes[0]) for name, o in ops.items()} == {
        "moe.shared_up": 64 * (64 + 192) * 2,
        "moe.shared_activation": 3 * 64 * 96 * 2,
        "moe.shared_down": 64 * (96 + 64) * 2,
        "moe.shared_gate": 64 * (64 + 1) * 2,
        "moe.router": 64 * (64 + 8) * 2,
        "moe.top_k": 8 * 64 * 8,
        "moe.dispatch": (128 + 256) * ROW,
        "moe.up": 256 * (64 + 32) * 2,
        "moe.activation": 3 * 256 * 16 * 2,
        "moe.down": 256 * (16 + 64) * 2,
        "moe.combine": (128 + 256) * ROW,
        "moe.add": 64 * ROW,
    }


def test_active_parameters_have_two_of_eight_experts() -> None:
    """All but three quarters of the routed experts."""
    counted = count_parameters(mixture(shared_ffn=96))
    assert counted.total - counted.active == 4 * 6 * 3 * 64 * 32
    assert counted.breakdown["moe.up"] == 4 * 8 * 64 * 64


# SimuMax 1.2 (commit 4dcaae5), examples/perf_deepseekv2_layer4_ep4_pp2.py and its B200 row of
# DeepSeek V3 (docs/b200/b200_release_v1.2_summary.json): 4096 tokens in bf16, ep 4, capacity 1.
# FLOPs of each pass, bytes kept for backward, bytes of weights.
SIMUMAX = {
    (5120, 160, 6, 1536, 3072): {
        "moe.shared_activation": (0, 50331648, 0),
        "moe.shared_down": (128849018880, 25165824, 31457280),
        "moe.router": (6710886400, 41943040, 1638400),
        "moe.top_k": (0, 5242880, 0),
        "moe.up": (775107379200, 252313600, 1258291200),
        "moe.activation": (0, 151388160, 0),
        "moe.down": (387553689600, 75694080, 629145600),
    },
    (7168, 256, 8, 2048, 2048): {
        "moe.shared_activation": (0, 33554432, 0),
        "moe.shared_down": (120259084288, 16777216, 29360128),
        "moe.router": (15032385536, 58720256, 3670016),
        "moe.top_k": (0, 8388608, 0),
        "moe.up": (1924145348608, 469762048, 3758096384),
        "moe.activation": (0, 268435456, 0),
        "moe.down": (962072674304, 134217728, 1879048192),
    },
}
# Bytes that its permutation moves forward and backward, and its unpermutation; FLOPs of the first
# shared product, whose input it keeps a second time.
SIMUMAX_LAYOUT = {5120: 798883840, 7168: 1468006400}
SIMUMAX_SHARED = {5120: 257698037760, 7168: 240518168576}


@each_row("shape", SIMUMAX)
def test_operations_of_deepseek_are_those_of_simumax(
    shape: tuple[int, int, int, int, int],
) -> None:
    """All leaves of DeepSeek's mixtures: FLOPs, kept bytes, weights, and rows moved."""
    hidden, experts, top_k, ffn, shared = shape
    layer = mixture(experts=experts, top_k=top_k, ffn=ffn, shared_ffn=shared).layers[0]
    model = samples.llama(hidden=hidden, layers=[layer.to_dict()])
    ops = block(model, sequences=1, seq_len=4096, ep=4, capacity=1)
    ours = {
        name: (flops(ops[name], FORWARD), saved([ops[name]]), 2 * held([ops[name]]))
        for name in SIMUMAX[shape]
    }
    assert ours == SIMUMAX[shape]
    for name in ("moe.dispatch", "moe.combine"):
        for phase in (FORWARD, INPUT_GRAD):
            assert moved(ops[name], phase) == SIMUMAX_LAYOUT[hidden]
    assert flops(ops["moe.shared_up"], FORWARD) == SIMUMAX_SHARED[hidden]
