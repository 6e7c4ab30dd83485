"""Kinds of layers: norms, positions, sinks; their weights, FLOPs and recompute."""

from typing import Any

import pytest

import samples
from described_layers import gqa, model, moe, runs
from rows import each_row
from samples import dropped, embedding, exchanges, flops, head, held, moved, operations, saved
from shardwise.analysis.features import model_features
from shardwise.config.enums import CpExchange, RecomputePart
from shardwise.config.model import Model
from shardwise.ops.layer import layer_operations, mtp_operations
from shardwise.ops.operation import Operation, Phase
from shardwise.ops.param_count import REPLICATED, count_parameters, flops_per_token

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD
TOKENS, SIZE = 64, 2


def grouped(**fields: Any) -> Model:
    """Llama's kind with other heads."""
    kept = {name: fields.pop(name) for name in ("norms", "parallel") if name in fields}
    gated = {"activation": "swiglu", "bias": False}
    layer = samples.layer(attention={"kv_heads": 2, "bias": "none"} | fields, mlp=gated)
    return samples.llama(layers=[layer | kept])


def test_norms_before_after_and_both() -> None:
    """Each norm after a block stands before its residual, over the same tokens as one before."""
    names = {
        norms: [n for n in operations(grouped(norms=norms)) if "norm" in n or "residual" in n]
        for norms in ("pre", "post", "both")
    }
    before, after = ["attention.norm", "mlp.norm"], ["attention.post_norm", "mlp.post_norm"]
    ends = ["attention.residual", "mlp.residual"]
    assert names["pre"] == [before[0], ends[0], before[1], ends[1]]
    assert names["post"] == [after[0], ends[0], after[1], ends[1]]
    assert names["both"] == [before[0], after[0], ends[0], before[1], after[1], ends[1]]
    split = operations(grouped(norms="both"), tp=4, sequence_parallel=True)
    for name in (*before, *after):
        assert saved([split[name]]) == TOKENS / 4 * 64 * SIZE
        assert held([split[name]]) == 64
    assert list(operations(grouped(norms="post")))[-2:] == ["mlp.post_norm", "mlp.residual"]


@each_row(("kind", "weights", "split"), [("head", 16, 16), ("width", 80, 24), ("unweighted", 0, 0)])
def test_kinds_of_query_key_norms(kind: str, weights: int, split: int) -> None:
    """Weights of one head each, of all 8 + 2 heads (4 ranks: 2 + 1), or none; the same work."""
    one = operations(grouped(qk_norm=kind))["attention.qk_norm"]
    four = operations(grouped(qk_norm=kind), tp=4)["attention.qk_norm"]
    assert (held([one]), held([four])) == (weights, split)
    assert saved([one]) == TOKENS * 10 * 8 * SIZE
    assert moved(one, FORWARD) == 2 * saved([one])
    # Over the whole width, two fp32 sums per token are added over the ranks.
    summed = [("all_reduce", phase, TOKENS * 2 * 4) for phase in ("forward", "input_grad")]
    assert exchanges(four) == (summed if kind == "width" else [])
    assert exchanges(one) == []


def test_sinks_are_one_weight_per_head() -> None:
    """8, split with the heads."""
    assert held([operations(grouped(sinks=True))["attention.core"]]) == 8
    assert held([operations(grouped(sinks=True), tp=4)["attention.core"]]) == 2
    swapped = {"cp": 4, "cp_exchange": CpExchange.ALL_TO_ALL.code}
    assert held([operations(grouped(sinks=True), **swapped)["attention.core"]]) == 8
    assert held([operations(grouped())["attention.core"]]) == 0


def test_part_of_each_head_may_turn() -> None:
    """4 of 8: half the work; 0: none, as in every fourth layer of Llama 4."""
    whole = operations(grouped())["attention.rope"]
    half = operations(grouped(rotary_dim=4))["attention.rope"]
    assert moved(half, FORWARD) == moved(whole, FORWARD) / 2
    assert [float(k.flops[0]) * 2 for k in half.kernels] == [
        float(k.flops[0]) for k in whole.kernels
    ]
    assert "attention.rope" not in operations(grouped(rotary_dim=0))


def mixed() -> Model:
    """Latent attention over a mixture with shared experts, and one module of prediction."""
    heads = {"heads": 8, "kv_heads": 8, "head_dim": 12, "v_head_dim": 8}
    latent = {"q_rank": 24, "kv_rank": 16, "rope_dim": 4}
    experts = moe(8, 2, 32, shared_ffn=64, shared_gate=True, selection_bias=True)
    last = runs(2, {"attention": heads | {"latent": latent}}, experts)
    return model(64, 1024, last, mtp=1, seq_len=32)


def latent_experts(width: int | None) -> Model:
    """8 experts that read 16 of 64, next to a shared one that reads all of it."""
    experts = moe(8, 2, 32, shared_ffn=64, latent=width)
    return model(64, 1024, runs(2, gqa(8, 2, 8), experts), seq_len=32)


def test_gates_of_the_output_of_attention() -> None:
    """64 more outputs of 64 inputs, in the query projection or apart; or one for each head."""
    plain = operations(grouped())
    for gate, values in {"full": 64, "value": 64, "head": 8}.items():
        ops = operations(grouped(gate=gate))
        more = held(ops.values()) - held(plain.values())
        assert more == 64 * values
        assert ("attention.gate" in ops) == (gate != "full")
        assert ops["attention.out"].parameters == plain["attention.out"].parameters
        scaled = ops["attention.gated"]
        assert moved(scaled, FORWARD) == TOKENS * (64 + 64 + values) * SIZE
        assert moved(scaled, INPUT_GRAD) == TOKENS * (3 * 64 + 2 * values) * SIZE
        # The output of the core and the gate; what is read next is a tensor of its own.
        assert saved(ops.values()) - saved(plain.values()) == TOKENS * (64 + values) * SIZE
        assert flops_per_token(grouped(gate=gate), 32) - flops_per_token(grouped(), 32) == (
            6 * grouped().depth * more
        )


def test_experts_in_a_latent_width() -> None:
    """Weights, products and rows sent are a quarter; two projections of 64 x 16 are added."""
    plain, ops = (operations(latent_experts(width), ep=4) for width in (None, 16))
    for name in ("moe.up", "moe.down"):
        assert held([ops[name]]) == held([plain[name]]) / 4
        assert flops(ops[name], FORWARD) == flops(plain[name], FORWARD) / 4
    for name in ("moe.dispatch", "moe.combine"):
        assert [size * 4 for *_, size in exchanges(ops[name])] == [
            size for *_, size in exchanges(plain[name])
        ]
    for name in ("moe.latent_down", "moe.latent_up"):
        assert held([ops[name]]) == 64 * 16
        assert flops(ops[name], FORWARD) == TOKENS * 2 * 64 * 16
    assert saved([ops["moe.latent_down"]]) == 0  # the router's input
    assert saved([ops["moe.latent_up"]]) == TOKENS * 16 * SIZE
    for name in ("moe.router", "moe.shared_up", "moe.shared_down"):
        assert held([ops[name]]) == held([plain[name]])


def selected(seq_len: int = 32, **index: Any) -> Model:
    """Latent attention over 5 keys of each query that 4 heads of 8 select."""
    indexer = {"heads": 4, "head_dim": 8, "top_k": 5} | index
    heads = {"heads": 8, "kv_heads": 8, "head_dim": 12, "v_head_dim": 8, "indexer": indexer}
    latent = {"q_rank": 24, "kv_rank": 16, "rope_dim": 4}
    block = {"mlp": {"ffn": 192, "activation": "swiglu"}}
    layer = runs(2, {"attention": heads | {"latent": latent}}, block)
    return model(64, 1024, layer, seq_len=seq_len)


def compressed(ratio: int | None, **index: int) -> Model:
    """8 heads of 16 over one key, a window of 6, and keys of `ratio` tokens."""
    narrow = {"q_rank": 24, "ratio": ratio, "output_groups": 4, "output_rank": 12}
    heads = {"heads": 8, "kv_heads": 1, "head_dim": 16, "window": 6, "sinks": True}
    attention = heads | {"compressed": narrow, "indexer": index or None, "rotary_dim": 4}
    block = {"mlp": {"ffn": 192, "activation": "swiglu"}}
    return model(64, 1024, runs(2, {"attention": attention}, block), seq_len=32)


def replaced(**fields: Any) -> Model:
    """Llama's kind with fields of the model."""
    return samples.llama(**fields)


def with_more(layer: int, outside: int = 0) -> Model:
    """Llama's kind with parameters of no field in each layer and outside the layers."""
    plain = samples.llama()
    layers = [one.model_copy(update={"more_parameters": layer}) for one in plain.layers]
    return plain.model_copy(update={"layers": tuple(layers), "more_parameters": outside})


GEMMA = {"norms": "branches", "router_scale": True}
KINDS = {
    "gpt": samples.model(samples.layer(attention={"bias": "none"}, mlp={"bias": False})),
    "parallel": samples.model(samples.layer(parallel=True, attention={"qk_norm": True})),
    "llama": grouped(),
    "post": grouped(norms="post", qk_norm="width"),
    "both": grouped(norms="both", window=8, sinks=True),
    "latent": mixed(),
    "moe": model(64, 1024, runs(2, gqa(8, 2, 8), moe(8, 2, 32)), seq_len=32),
    **{gate: grouped(gate=gate) for gate in ("full", "value", "head")},
    "gate bias": grouped(gate="value", gate_bias=True, out_norm=True),
    "latent experts": latent_experts(16),
    "selected": selected(),
    "shared selection": selected(shared=True),
    "pooled": selected(pool=4, seq_len=64),
    "window": compressed(None),
    "compressed": compressed(8),
    "compressed and selected": compressed(4, heads=4, head_dim=8, top_k=3),
    "blocks": grouped(indexer={"heads": 2, "head_dim": 8, "top_k": 2, "block": 8}),
    "streams": replaced(streams=4, streams_joined=True),
    "few shares": replaced(streams=3, streams_mixed=False),
    "layer embedding": replaced(layer_embedding=8),
    "more": with_more(100),
    "tied values": grouped(tied_values=True, v_norm=True, qk_norm="unweighted"),
    "shared keys": grouped(shared_keys=True, qk_norm="unweighted"),
    "branches": model(
        64, 1024, runs(2, gqa(8, 2, 8), moe(8, 2, 32, shared_ffn=64, **GEMMA)), seq_len=32
    ),
}


def named(described: Model, **work: Any) -> dict[str, Operation]:
    """Operations of a layer, and of a module of multi-token prediction where there is one."""
    columns = samples.rank_work(**work)
    ops = layer_operations(described, described.layers[0], columns)
    ops += mtp_operations(described, columns) if described.mtp else []
    return {o.name: o for o in ops}


def test_parameters_of_no_field_are_counted() -> None:
    """100 in each layer, which every token uses, and 7 with the embedding; no kernel is added.

    No measured run has them, so that intervals are wider.
    """
    assert model_features(with_more(0)) == ()
    for one in (with_more(100), with_more(0, 7)):
        assert model_features(one) == ("untimed_parameters",)
    plain, more = (count_parameters(one) for one in (with_more(0), with_more(100, 7)))
    depth = with_more(0).depth
    assert (more.total - plain.total, more.active - plain.active) == (100 * depth + 7,) * 2
    assert more.embedding - plain.embedding == 7
    assert not named(with_more(100))["more"].kernels
    flops = [flops_per_token(one, 32) for one in (with_more(0), with_more(100, 7))]
    assert flops[1] - flops[0] == 6 * 100 * depth


@each_row("kind", [kind for kind in KINDS if kind != "parallel"])
@each_row(("tp", "ep", "etp"), [(2, 1, 1), (1, 4, 1), (2, 2, 2), (2, 4, 2)])
def test_weights_of_all_ranks_are_the_models(kind: str, tp: int, ep: int, etp: int) -> None:
    """Experts over ep x etp ranks, all others over tp, those that are whole on each rank once."""
    described = KINDS[kind]
    whole, part = named(described), named(described, tp=tp, ep=ep, etp=etp, sequence_parallel=True)
    for name, operation in part.items():
        ranks = ep * etp if operation.expert else tp
        replicated = name.removeprefix("mtp.") in REPLICATED
        assert held([operation]) * (1 if replicated else ranks) == held([whole[name]]), name


@each_row("kind", KINDS)
@each_row("work", [{}, {"flash": False}, {"tp": 2, "sequence_parallel": True}])
def test_recompute_drops_no_more_than_is_saved(kind: str, work: dict[str, Any]) -> None:
    """What goes was kept, and where something goes something runs again."""
    ops = named(KINDS[kind], **work)
    for part in RecomputePart:
        gone = dropped(ops.values(), part)
        assert 0 <= gone <= saved(ops.values())
        again = {name for name, o in ops.items() if part in o.reruns_with}
        assert bool(again) >= bool(gone), part
        for operation in ops.values():
            assert dropped([operation], part) <= saved([operation])


def test_parts_of_a_dense_layer() -> None:
    """Each part by hand: what runs again, and the bytes that go."""
    ops = operations(grouped(qk_norm="head"))
    heads, inner = TOKENS * 8 * SIZE, TOKENS * 256 * SIZE
    stream = TOKENS * 64 * SIZE
    core = {"attention.core", "attention.softmax"}
    block = core | {"attention.qkv", "attention.qk_norm", "attention.rope", "attention.out"}
    # q, k before and after their norm, v, o, and the statistics.
    whole = heads * (10 + 12 + 8) + TOKENS * 8 * 4
    dense = {"mlp.up", "mlp.activation", "mlp.down"}
    norms = {"attention.norm", "mlp.norm"}
    every_other = norms | {"attention.rope", "attention.out", "mlp.up", "mlp.activation"}
    expected = {
        "core_attention": (core, TOKENS * 8 * 4),
        "attention": (block, whole),
        "attention_norm": ({"attention.norm"}, stream),
        "mla_up": (set[str](), heads * 0),
        "mlp_norm": ({"mlp.norm"}, stream),
        "activation": ({"mlp.activation"}, inner),
        "mlp": (dense, 3 * inner),
        "moe": (set[str](), 0),
        # Inputs of products and of the second norm; k, of two heads; one projection, the product.
        "every_other": (every_other, 3 * stream + 2 * heads + 2 * inner),
        "qkv": ({"attention.qkv", "attention.qk_norm", "attention.rope"}, heads * (10 + 12)),
        "attention_out": ({"attention.out"}, stream),
        "mlp_up": ({"mlp.up"}, 2 * inner),
        "experts": (set(), 0),
        "shared_experts": (set(), 0),
        "mixer_gate": (set(), 0),
        "streams": (set(), 0),
    }
    found = {
        part: ({n for n, o in ops.items() if part in o.reruns_with}, dropped(ops.values(), part))
        for part in RecomputePart
    }
    assert found == expected


def test_first_products_of_experts_run_again_without_the_last() -> None:
    """What only the output of the layer needs does not: down, combine, and what adds them."""
    ops = {name: o for name, o in operations(mixed()).items() if name.startswith("moe.")}
    again = {name for name, o in ops.items() if "mlp_up" in o.reruns_with}
    assert again == {"moe.router", "moe.top_k", "moe.dispatch", "moe.up", "moe.shared_up"}
    kept = {"moe.down", "moe.shared_down", "moe.combine", "moe.add"}
    assert kept <= {name for name, o in ops.items() if "mlp_up" not in o.dropped_with}


def test_input_that_no_norm_made_stays() -> None:
    """After OLMo 2's residual stands no norm that could rebuild the input of a block."""
    ops = operations(grouped(norms="post"))
    for part in ("attention_norm", "mlp_norm"):
        assert dropped(ops.values(), part) == 0
        assert not [name for name, o in ops.items() if part in o.reruns_with]
    both = operations(grouped(norms="both"))
    assert dropped(both.values(), "mlp_norm") == TOKENS * 64 * SIZE
    assert {n for n, o in both.items() if "mlp_norm" in o.reruns_with} == {"mlp.norm"}


def test_parallel_blocks_share_the_norm_that_runs_again() -> None:
    """Either part rebuilds the one input."""
    ops = operations(samples.model(samples.layer(parallel=True)))
    for part in ("attention_norm", "mlp_norm"):
        assert dropped(ops.values(), part) == TOKENS * 64 * SIZE
        assert {n for n, o in ops.items() if part in o.reruns_with} == {"norm"}


def test_module_of_multi_token_prediction() -> None:
    """Embedding, two norms, 128 x 64, a layer, norm, head and loss; table and head are shared."""
    described = mixed()
    ops = named(described)
    own = {n.removeprefix("mtp."): o for n, o in ops.items() if n.startswith("mtp.")}
    layer = {n: o for n, o in ops.items() if not n.startswith("mtp.")}
    first = ["embedding", "embedding_norm", "hidden_norm", "projection"]
    assert list(own) == [*first, *layer, "final_norm", "head", "loss"]
    assert held([own["projection"]]) == 2 * 64 * 64
    assert held([own["embedding"]]) == held([own["head"]]) == 0
    assert held([own[n] for n in ("embedding_norm", "hidden_norm", "final_norm")]) == 3 * 64
    assert held(own.values()) == held(layer.values()) + 2 * 64 * 64 + 3 * 64
    assert count_parameters(described).mtp == held(own.values())
    for phase in Phase:
        assert flops(own["projection"], phase) == 2 * TOKENS * 128 * 64
        assert flops(own["head"], phase) == 2 * TOKENS * 64 * 1024
    assert saved([own["projection"]]) == TOKENS * 128 * SIZE
    assert saved([own["loss"]]) == saved([head(described)["loss"]])
    assert moved(own["embedding"], FORWARD) == moved(embedding(described), FORWARD)


def test_projection_of_a_module_is_column_parallel() -> None:
    """Gathered 128 wide before and 64 wide after it; backward the reverse."""
    split = named(mixed(), tp=4, sequence_parallel=True)["mtp.projection"]
    assert held([split]) == 128 * 16
    before, after = TOKENS * 128 * SIZE, TOKENS * 64 * SIZE
    assert sorted(exchanges(split)) == [
        ("all_gather", "forward", after),
        ("all_gather", "forward", before),
        ("all_gather", "input_grad", after),
        ("all_gather", "weight_grad", before),
        ("reduce_scatter", "input_grad", after),
        ("reduce_scatter", "input_grad", before),
    ]
    assert sorted(exchanges(named(mixed(), tp=4)["mtp.projection"])) == [
        ("all_gather", "forward", after),
        ("all_reduce", "input_grad", before),
        ("reduce_scatter", "input_grad", after),
    ]


def test_flops_of_mixtures_and_modules() -> None:
    """Active parameters, with the module's own and the head a second time; narrower values."""
    described = mixed()
    without = described.model_copy(update={"mtp": 0})
    counted = count_parameters(described)
    assert counted.total - counted.active == 2 * 6 * 3 * 64 * 32
    dense = 6 * (counted.active - counted.embedding)
    scores = 2 * 6 * 8 * (12 + 8) * 16
    assert flops_per_token(without, 32) == dense + scores
    module = 6 * (counted.mtp - 6 * 3 * 64 * 32 + 1024 * 64)
    assert flops_per_token(described, 32) == dense + module + scores * 3 / 2
    assert flops_per_token(described, 32, "parameters") == dense + module
