"""Sparse attention: keys that an indexer selects, compressed keys; by hand and by its laws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from described_layers import model, moe, runs
from profiles import examples
from rows import each_row
from samples import dropped, exchanges, flops, held, operations, rank_work, saved
from shardwise import Strategy, estimate, estimate_many
from shardwise.config.enums import CpExchange
from shardwise.config.model import Model
from shardwise.errors import InputError
from shardwise.ops.layer import layer_operations
from shardwise.ops.operation import Phase, SelectedAttention
from shardwise.ops.param_count import count_parameters, flops_per_token
from shardwise.ops.sparse import mean_selected, sparse_flops

pytestmark = pytest.mark.any_software

V32 = {
    "heads": 128,
    "kv_heads": 128,
    "head_dim": 192,
    "v_head_dim": 128,
    "latent": {"q_rank": 1536, "kv_rank": 512, "rope_dim": 64},
    "indexer": {"heads": 64, "head_dim": 128, "top_k": 2048},
}
V4 = {
    "heads": 64,
    "kv_heads": 1,
    "head_dim": 512,
    "window": 128,
    "sinks": True,
    "rotary_dim": 64,
}
NARROW = {"q_rank": 1024, "output_groups": 8, "output_rank": 1024}
FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD


def of(attention: dict[str, Any], hidden: int = 64, **fields: Any) -> Model:
    """Two layers of one attention with an MLP."""
    block = {"mlp": {"ffn": 128, "activation": "swiglu"}}
    layer = runs(2, {"attention": attention}, block)
    return model(hidden, 128, layer, **({"seq_len": 4096} | fields))


def core_flops(attention: dict[str, Any], seq_len: int) -> tuple[float, float]:
    """MFLOP of a token in the core and in the indexer, forward, as the operations have them."""
    ops = operations(of(attention), sequences=1.0, seq_len=seq_len, document_len=seq_len)
    per_token = 1e6 * seq_len
    core = flops(ops["attention.core"], FORWARD) / per_token
    scores = ops.get("attention.index_scores")
    return core, 0.0 if scores is None else flops(scores, FORWARD) / per_token


@each_row(
    ("seq_len", "core", "indexer"),
    [(4096, 427.9, 33.8), (16384, 534.8, 135.3), (65536, 561.5, 541.1), (131072, 566.0, 1082.1)],
)
def test_flops_of_deepseek_v32(seq_len: int, core: float, indexer: float) -> None:
    """2 x 128 heads x (2 x 512 + 64) for each of k - k (k - 1) / 2 S keys; 2 x 64 x 129 x S / 2."""
    assert core_flops(V32, seq_len) == pytest.approx((core, indexer), rel=1e-3)
    one = of(V32).layers[0].attention
    both = float(sparse_flops(one, np.array([float(seq_len)]))[0])
    assert both / 1e6 == pytest.approx(core + indexer, rel=1e-3)


def test_flops_of_compressed_attention() -> None:
    """A window of 128 of 4096, and 512 of the 1024 keys of 4 tokens, or all 32 of 128 tokens."""
    window = 128 - 128 * 127 / 8192
    chosen = 512 - 512 * 511 / 2048
    index = {"heads": 64, "head_dim": 128, "top_k": 512}
    ratio_4 = V4 | {"compressed": NARROW | {"ratio": 4}, "indexer": index}
    per_key = 4 * 64 * 512 / 1e6
    assert core_flops(ratio_4, 4096) == pytest.approx(
        (per_key * (window + chosen), 2 * 64 * 129 * 512 / 1e6)
    )
    ratio_128 = V4 | {"compressed": NARROW | {"ratio": 128}}
    assert core_flops(ratio_128, 4096) == pytest.approx((per_key * (window + 16), 0))
    assert core_flops(V4 | {"compressed": NARROW}, 4096) == pytest.approx((per_key * window, 0))


def test_recompute_of_the_up_projection_of_compressed_attention() -> None:
    """As mla_up_proj in recipes of Megatron-Bridge for DeepSeek-V4: queries run again.

    Saved no more are queries and keys at the core, 64 and 1 of 512, one key of 4 tokens, and the
    input of the norm of queries.
    """
    index = {"heads": 64, "head_dim": 128, "top_k": 512}
    attention = V4 | {"compressed": NARROW | {"ratio": 4}, "indexer": index}
    ops = operations(of(attention), sequences=1.0, seq_len=4096, document_len=4096)
    again = {name for name, one in ops.items() if "mla_up" in one.reruns_with}
    assert again == {"attention.q_up", "attention.qk_norm", "attention.rope"}
    per_token = dropped(ops.values(), "mla_up") / 4096
    core = 2 * 512 * (64 + 1 + 1 / 4) + 4 * 512 + 4 * 64
    assert per_token == core + 2 * 512 * 64


def test_flops_of_selected_blocks() -> None:
    """16 blocks of 128 of 64 heads; 4 heads of the indexer see all earlier keys."""
    heads = {"heads": 64, "kv_heads": 4, "head_dim": 128}
    blocks = heads | {"indexer": {"heads": 4, "head_dim": 128, "top_k": 16, "block": 128}}
    chosen = 2048 - 2048 * 2047 / 16384
    assert core_flops(blocks, 8192) == pytest.approx(
        (4 * 64 * 128 * chosen / 1e6, 2 * 4 * 129 * 4096 / 1e6)
    )


def test_backward_flops() -> None:
    """Five products to two; the indexer's own loss twice its scores, and those of attention."""
    ops = operations(of(V32), sequences=1.0, seq_len=4096, document_len=4096)
    core, scores = ops["attention.core"], ops["attention.index_scores"]
    assert flops(core, INPUT_GRAD) == flops(core, FORWARD) * (3 * 576 + 2 * 512) / (576 + 512)
    teacher = flops(core, FORWARD) * 576 / 1088
    assert flops(scores, WEIGHT_GRAD) == pytest.approx(2 * flops(scores, FORWARD) + teacher)
    assert flops(scores, INPUT_GRAD) == 0
    for name in ("attention.index", "attention.index_q"):
        assert flops(ops[name], INPUT_GRAD) == 0
        assert flops(ops[name], WEIGHT_GRAD) == flops(ops[name], FORWARD)


def test_saved_bytes_of_deepseek_v32() -> None:
    """Of a token: queries of 128 absorbed heads, the latent, 8 KB of places, sums of rows."""
    work = {"sequences": 1.0, "seq_len": 4096, "document_len": 4096}
    ops = operations(of(V32), **work)
    per_token = saved([ops["attention.core"]]) / 4096
    assert per_token == 2 * 128 * 576 + 2 * 576 + 4 * 2048 + 4 * 128
    assert saved([ops["attention.out_absorb"]]) / 4096 == 2 * 128 * 512
    again = operations(of(V32 | {"indexer": V32["indexer"] | {"shared": True}}), **work)
    assert saved([again["attention.core"]]) / 4096 == per_token - 4 * 2048
    assert not [name for name in again if "index" in name]


def test_masks_in_place_of_selected_keys() -> None:
    """As dense latent attention without a triangle, a mask, and an indexer without gradients.

    Scores of all 64 heads of the indexer in fp32 are written, read and written, and read.
    """
    work = {"sequences": 1.0, "seq_len": 1024, "document_len": 1024}
    dense = operations(of(V32 | {"indexer": None}), **work)
    ops = operations(of(V32), masked_selection=True, **work)
    assert {name for name in ops if "index" not in name} == {*dense}
    assert flops(ops["attention.core"], FORWARD) == 2 * flops(dense["attention.core"], FORWARD)
    mask = 2 * 1024**2
    assert saved([ops["attention.core"]]) == saved([dense["attention.core"]]) + mask
    index = [one for name, one in ops.items() if "index" in name]
    assert held(index) == held([one for n, one in operations(of(V32)).items() if "index" in n])
    assert saved(index) == sum(float(one.trained[0]) for one in index) == 0
    assert {kernel.phase for one in index for kernel in one.kernels} == {FORWARD}
    scores = ops["attention.index_scores"]
    assert flops(scores, FORWARD) == 2 * 64 * 129 * 1024**2
    assert float(scores.kernels[1].bytes[0]) == 4 * (3 * 64 + 4) * 1024**2 + mask


def test_rows_that_mask_and_rows_that_gather() -> None:
    """Rows of both kinds of software in one table have what each has alone."""
    work = {"sequences": 1.0, "seq_len": 512, "document_len": 512}
    both = rank_work(**work, masked_selection=[False, True], tp=[1.0, 1.0])
    described = of(V32)
    joined = layer_operations(described, described.layers[0], both)
    for row, masks in enumerate((False, True)):
        alone = operations(described, masked_selection=masks, **work).values()
        for total in ("parameters", "saved_bytes", "trained"):
            found = sum(float(np.broadcast_to(getattr(one, total), 2)[row]) for one in joined)
            assert found == sum(float(getattr(one, total)[0]) for one in alone)
        for phase in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
            kernels = [k for one in joined for k in one.kernels if k.phase is phase]
            found = sum(float(np.broadcast_to(kernel.flops, 2)[row]) for kernel in kernels)
            expected = sum(float(k.flops[0]) for o in alone for k in o.kernels if k.phase is phase)
            assert found == pytest.approx(expected)


def test_adapters_where_only_some_rows_have_their_product() -> None:
    """Keys are projected up where software masks: adapters of that product communicate there."""
    common = {"tp": 2, "dp": 4, "gbs": 4, "mbs": 1, "lora_rank": 8, "any_software": True}
    rows = [
        Strategy.validated(common | {"stack": stack})
        for stack in ("automodel-2025", "megatron-bridge-2025")
    ]

    def times(rows: list[Strategy]) -> list[float]:
        """Of a model of its own, of which nothing is known yet."""
        return estimate_many(of(V32), "h800-sxm", rows).step_time_s.tolist()

    assert times(rows) == pytest.approx([*times(rows[:1]), *times(rows[1:])], rel=1e-12)


def test_places_of_fewer_keys_than_top_k() -> None:
    """A sequence of 512 tokens selects 512 of 2,048 (`topk_k` of Megatron-LM's dsa.py)."""
    ops = operations(of(V32), sequences=1.0, seq_len=512, document_len=512)
    per_token = saved([ops["attention.core"]]) / 512
    assert per_token == 2 * 128 * 576 + 2 * 576 + 4 * 512 + 4 * 128


def test_software_that_masks() -> None:
    """Transformers and AutoModel score all pairs: backward is no slow kernel, memory is squared."""
    two = {"gpus": 8, "gbs": 8, "mbs": 1, "any_software": True, "seq_len": 4096}
    masked, gathered = (
        estimate(of(V32), "h800-sxm", stack={"base": "automodel-2025", **own}, **two)
        for own in ({}, {"masked_selection": False})
    )
    assert masked.step_time_s < gathered.step_time_s
    assert masked.memory_bytes.total > gathered.memory_bytes.total
    assert masked.parameters == gathered.parameters
    with pytest.raises(InputError, match=r"cp: 2: .*masks keys"):
        estimate(
            of(V32), "h800-sxm", cp=2, cp_exchange="all_gather",
            stack={"base": "automodel-2025"}, **two,
        )  # fmt: skip


def test_absorbed_products_are_those_of_the_up_projection() -> None:
    """As many weights and FLOPs: 512 x 128 for queries and values of each head."""
    dense = operations(of(V32 | {"indexer": None}))
    sparse = operations(of(V32))
    pair = [sparse["attention.q_absorb"], sparse["attention.out_absorb"]]
    assert held(pair) == held([dense["attention.kv_up"]])
    assert sum(flops(one, FORWARD) for one in pair) == flops(dense["attention.kv_up"], FORWARD)


@each_row(
    ("attention", "hidden", "weights"),
    [
        (V32["indexer"], 64, 1536 * 64 * 128 + 64 * 128 + 2 * 128 + 64 * 64),
        (
            V32["indexer"] | {"pool": 16},
            64,
            1536 * 64 * 128 + 2 * 64 * 128 + 2 * 128 + 64 * 64 + 16 * 128,
        ),
        (V32["indexer"] | {"shared": True}, 64, 0),
    ],
)
def test_weights_of_an_indexer(attention: dict[str, Any], hidden: int, weights: int) -> None:
    """q H D + h D + 2 D + h H; a pool of 16 has 16 D + D h more; a shared one none."""
    counted = count_parameters(of(V32 | {"indexer": attention}, hidden)).breakdown
    assert sum(n for name, n in counted.items() if "index" in name) == 2 * weights


def test_every_tensor_rank_has_the_indexer() -> None:
    """It runs for all tokens, gathers its input, and its weights are whole; heads are split."""
    one, split = (operations(of(V32), tp=tp, sequence_parallel=tp > 1) for tp in (1, 8))
    for name in ("attention.index", "attention.index_q"):
        assert held([split[name]]) == held([one[name]])
        assert flops(split[name], FORWARD) == flops(one[name], FORWARD)
    first = [
        kernel for kernel in split["attention.index_scores"].kernels if kernel.phase is FORWARD
    ]
    assert flops(one["attention.core"], FORWARD) == 8 * flops(split["attention.core"], FORWARD)
    assert isinstance(first[0], SelectedAttention)
    assert first[0].heads[0] == 64
    assert [(kind, phase) for kind, phase, _ in exchanges(split["attention.index"], "tp")] == [
        ("all_gather", "forward")
    ]


def test_context_parallel_ranks_gather_the_latent() -> None:
    """576 numbers of a token and 128 of the indexer, of all ranks; gradients are reduced."""
    code = CpExchange.ALL_GATHER.code
    ops = operations(of(V32), cp=4, cp_exchange=code, seq_len=32, sequences=1.0)
    size = 32 * 4 * (576 + 128) * 2
    assert exchanges(ops["attention.core"], "cp") == [
        ("all_gather", "forward", size),
        ("all_gather", "input_grad", size),
        ("reduce_scatter", "input_grad", size),
    ]
    with pytest.raises(InputError, match=r"selects keys of the full sequence.*all_gather"):
        estimate(
            of(V32), "h800-sxm", gpus=8, cp=2, cp_exchange="ring", global_batch_size=8,
            any_software=True,
        )  # fmt: skip


@examples(30)
@given(length=st.integers(2, 300), top_k=st.integers(1, 300))
def test_mean_of_selected_keys(length: int, top_k: int) -> None:
    """The mean of min(t, k) over all places t, up to half a key where all are seen."""
    found = float(mean_selected(np.array([float(length)]), float(top_k))[0])
    exact = np.minimum(np.arange(1, length + 1), top_k).mean()
    assert exact - 0.5 <= found <= exact + 1e-9
    if top_k < length:
        assert found == pytest.approx(exact)


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, Any]:
    """Latent, compressed or grouped attention with or without an indexer."""
    heads = draw(st.sampled_from([4, 8]))
    width = 2 * draw(st.integers(2, 9))
    index = {"heads": draw(st.integers(1, 5)), "head_dim": width, "top_k": draw(st.integers(1, 40))}
    kind = draw(st.sampled_from(["latent", "compressed", "blocks"]))
    if kind == "blocks":
        block = draw(st.sampled_from([2, 4]))
        return {
            "heads": heads,
            "kv_heads": 2,
            "head_dim": width,
            "indexer": index | {"block": block},
        }
    if kind == "latent":
        latent = {"q_rank": 11, "kv_rank": draw(st.integers(3, 20)), "rope_dim": 2}
        plain = {"heads": heads, "kv_heads": heads, "head_dim": width, "v_head_dim": width + 1}
        pool = draw(st.sampled_from([1, 4]))
        return plain | {"latent": latent, "indexer": index | {"pool": pool}}
    ratio = draw(st.sampled_from([None, 4, 16]))
    narrow = {"q_rank": 11, "ratio": ratio, "output_groups": 4, "output_rank": 5}
    plain = {"heads": heads, "kv_heads": 1, "head_dim": width, "window": draw(st.integers(1, 40))}
    return plain | {"compressed": narrow, "indexer": index if ratio == 4 else None}


@examples(15)
@given(attention=attentions(), seq_len=st.sampled_from([16, 32, 64]), streams=st.integers(1, 3))
def test_laws_of_sparse_attention(attention: dict[str, Any], seq_len: int, streams: int) -> None:
    """FLOPs of operations are those of the count; longer sequences have more; weights are split."""
    described = of(attention, streams=streams)
    work = {"sequences": 1.0, "seq_len": float(seq_len), "document_len": float(seq_len)}
    ops = operations(described, **work)
    cores = [ops[name] for name in ("attention.core", "attention.index_scores") if name in ops]
    per_token = (
        sum(
            float(kernel.flops[0])
            for one in cores
            for kernel in one.kernels
            if isinstance(kernel, SelectedAttention) and kernel.phase is FORWARD
        )
        / seq_len
    )
    one = described.layers[0].attention
    assert per_token == pytest.approx(float(sparse_flops(one, np.array([float(seq_len)]))[0]))
    assert flops_per_token(described, seq_len) <= flops_per_token(described, 2 * seq_len)
    split = operations(described, tp=2, sequence_parallel=True, **work)
    core, half = ops["attention.core"], split["attention.core"]
    assert flops(half, FORWARD) == pytest.approx(flops(core, FORWARD) / 2)
    assert all(
        float(o.saved_bytes[0]) >= 0 and float(k.bytes[0]) >= 0
        for o in split.values()
        for k in o.kernels
    )


@each_row(
    ("changes", "message"),
    [
        ({"indexer": {"heads": 4, "head_dim": 8, "top_k": 4, "block": 2}}, "must be 1"),
        ({"window": 8}, "window: selected keys"),
        ({"latent": V32["latent"] | {"q_rank": None}}, "q_rank is not set"),
        ({"latent": None, "v_head_dim": None}, "must exceed 1 without latent"),
        ({"causal": False}, "needs causal true"),
        ({"tied_values": True, "v_head_dim": None}, "not with latent or compressed"),
    ],
)
def test_attention_that_cannot_select(changes: dict[str, Any], message: str) -> None:
    """One line that names the field."""
    with pytest.raises(InputError, match=message):
        of(V32 | changes)


def test_experts_by_hash_still_have_a_router() -> None:
    """Its weights weight the chosen experts; only the selection is gone."""
    plain, hashed = (
        operations(
            model(64, 128, runs(2, {"attention": V32}, moe(8, 2, 16, hashed=flag)), seq_len=64)
        )
        for flag in (False, True)
    )
    assert held([plain["moe.router"]]) == held([hashed["moe.router"]])
    assert plain["moe.top_k"].kernels[0].bytes[0] == 2 * hashed["moe.top_k"].kernels[0].bytes[0]


def core_times(model: Model, system: str) -> dict[str, float]:
    """Milliseconds of the core by pass, one sequence of 4,096 tokens on one rank."""
    found = estimate(
        model, system, gpus=1, mbs=1, gbs=1, seq_len=4096, any_software=True, operations=True
    )
    assert found.operations is not None
    cores = [one for one in found.operations if one.operation == "attention.core"]
    return {one.phase: 1e3 * one.time_s for one in cores if one.kind == "attention"}


INDEX = {"heads": 64, "head_dim": 128, "top_k": 512}


@each_row(
    ("ratio", "index", "forward", "backward"),
    [(None, None, 0.20, 0.67), (4, INDEX, 0.53, 2.55), (128, None, 0.22, 0.78)],
)
def test_times_of_compressed_attention_on_mi355x(
    ratio: int | None, index: dict[str, int] | None, forward: float, backward: float
) -> None:
    """Milliseconds that Primus prints for DeepSeek-V4-Flash, within a quarter."""
    attention = V4 | {"compressed": NARROW | {"ratio": ratio}, "indexer": index}
    times = core_times(of(attention), "mi355x")
    assert times["forward"] == pytest.approx(forward, rel=0.25)
    assert times["input_grad"] == pytest.approx(backward, rel=0.25)


def test_backward_of_selected_keys_is_slow_on_hopper() -> None:
    """TileLang's kernel runs at a sixth of the rate of the forward one: 13 to 17 times as long."""
    times = core_times(of(V32), "h800-sxm")
    assert 13 < times["input_grad"] / times["forward"] < 17
    faster = core_times(of(V32), "b200-sxm")
    assert 3 < faster["input_grad"] / faster["forward"] < 5


def test_estimates_say_that_no_run_used_such_layers() -> None:
    """Their intervals are wider than those of the model without an indexer."""
    sparse, dense = (
        estimate(of(one), "h800-sxm", gpus=8, gbs=8, mbs=1, any_software=True)
        for one in (V32, V32 | {"indexer": None})
    )
    assert "sparse_attention" in sparse.unmeasured_features
    assert sparse.interval is not None
    assert dense.interval is not None
    assert sparse.interval.high_s / sparse.step_time_s > dense.interval.high_s / dense.step_time_s
