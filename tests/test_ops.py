"""What the operations of a layer do, worked out by hand for small layers.

GPT sample: width 64, 8 heads of 8, 256 wide GELU, 1000 words; 2 sequences of 32 tokens in 2 bytes,
so 64 tokens and 64 x 64 activations.
"""

import pytest

import samples
from rows import each_row
from samples import dropped, embedding, exchanges, flops, head, held, moved, operations, saved
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.ops.embedding import embedding_operations
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import FlashAttention, Matmul, MemoryBound, Operation, Phase
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
FUSED = {"fused_activation": True}


@each_row(("kv_heads", "outputs"), [(8, 64 + 2 * 64), (2, 64 + 2 * 16), (1, 80)])
def test_query_key_value_projection_has_three_equal_products(kv_heads: int, outputs: int) -> None:
    """Multi-head, grouped and multi-query: 2 x 64 tokens x 64 x (8 + 2 kv) 8 FLOPs, three times."""
    model = samples.model(samples.layer(attention={"kv_heads": kv_heads}))
    projection = operations(model)["attention.qkv"]
    for phase in Phase:
        assert flops(projection, phase) == 2 * 64 * 64 * outputs
    assert held([projection]) == 64 * outputs + outputs


def test_head_width_need_not_match_hidden() -> None:
    """8 heads of 16 over 64: the projections are 64 x 384 and 128 x 64."""
    ops = operations(samples.model(samples.layer(attention={"head_dim": 16, "bias": "none"})))
    assert held([ops["attention.qkv"]]) == 64 * 3 * 128
    assert held([ops["attention.out"]]) == 128 * 64
    assert flops(ops["attention.out"], FORWARD) == 2 * 64 * 128 * 64


@each_row(("causal", "half"), [(True, 0.5), (False, 1.0)])
def test_flash_attention_does_two_and_five_products(causal: bool, half: float) -> None:
    """Of 2 x 8 heads x 32^2 scores x 8 each, halved when causal; K and V read per kv head."""
    model = samples.model(samples.layer(attention={"causal": causal, "kv_heads": 2}))
    core = operations(model)["attention.core"]
    product = 2 * (2 * 8) * 32**2 * 8 * half
    assert flops(core, FORWARD) == 2 * product
    assert flops(core, INPUT_GRAD) == 5 * product
    assert flops(core, WEIGHT_GRAD) == 0
    read_and_written = 64 * (8 + 2 + 2 + 8) * 8 * 2
    assert moved(core, FORWARD, FlashAttention) == read_and_written
    assert moved(core, INPUT_GRAD, FlashAttention) == 2 * read_and_written


def test_unfused_attention_multiplies_all_scores() -> None:
    """Two products forward and four backward over all 32 x 32 scores of each head, unhalved."""
    ops = operations(samples.model(), flash=False)
    core, softmax = ops["attention.core"], ops["attention.softmax"]
    product = 2 * (2 * 8) * 32 * 32 * 8
    assert flops(core, FORWARD) == 2 * product
    assert flops(core, INPUT_GRAD) == 4 * product
    scores = 2 * 8 * 32 * 32
    # Softmax reads and writes 2-byte scores; dropout reads, writes, and writes a mask byte.
    assert moved(softmax, FORWARD) == scores * (4 + 4 + 1)
    # Dropout reads a gradient and the mask, writes; softmax reads two and writes one.
    assert moved(softmax, INPUT_GRAD) == scores * (4 + 1 + 6)


def test_flash_attention_stores_no_scores() -> None:
    """Fused, softmax moves nothing and keeps 4 bytes a row; unfused, the flash kernel is idle."""
    fused, apart = operations(samples.model()), operations(samples.model(), flash=False)
    softmax = fused["attention.softmax"]
    assert moved(softmax, FORWARD) == moved(softmax, INPUT_GRAD) == 0
    assert saved([softmax]) == 4 * 64 * 8
    assert all(
        k.flops[0] == 0 for k in apart["attention.core"].kernels if isinstance(k, FlashAttention)
    )
    assert all(k.flops[0] == 0 for k in fused["attention.core"].kernels if isinstance(k, Matmul))


def test_without_dropout_softmax_keeps_only_its_output() -> None:
    """No mask and no dropped copy: 2 of the 5 bytes per score, and one kernel each way."""
    softmax = operations(samples.model(dropout=False), flash=False)["attention.softmax"]
    scores = 2 * 8 * 32 * 32
    assert saved([softmax]) == 2 * scores
    assert moved(softmax, FORWARD) == 4 * scores
    assert moved(softmax, INPUT_GRAD) == 6 * scores


def test_transformer_xl_scores_positions_too() -> None:
    """Three products forward, six backward; 32 sinusoids projected; u and v beside the weights."""
    ops = operations(samples.model(position="relative-xl"), flash=False)
    product = 2 * (2 * 8) * 32 * 32 * 8
    assert flops(ops["attention.core"], FORWARD) == 3 * product
    assert flops(ops["attention.core"], INPUT_GRAD) == 6 * product
    assert flops(ops["attention.relative"], FORWARD) == 2 * 32 * 64 * 64
    assert held([ops["attention.relative"]]) == 64 * 64 + 2 * 64


def test_t5_shares_one_table_of_32_buckets_per_head() -> None:
    """8 heads x 32 buckets in all, whatever the depth; split with the heads."""
    model = samples.model(position="relative-bias")
    assert held([operations(model)["attention.relative"]]) * 4 == 8 * 32
    assert held([operations(model, tp=4)["attention.relative"]]) * 4 == 8 * 32 / 4
    assert count_parameters(model).breakdown["attention.relative"] == 8 * 32
    # Looked up once in a step of the layers for each of 32 x 32 pairs, in 2 bytes.
    for phase in (FORWARD, WEIGHT_GRAD):
        assert moved(operations(model)["attention.relative"], phase) * 4 == 8 * 32**2 * 2


def test_rope_rotates_queries_and_keys() -> None:
    """Read and write 64 tokens x (8 + 2) heads x 8 x 2 bytes, forward and back; nothing is kept."""
    rope = operations(samples.llama())["attention.rope"]
    assert moved(rope, FORWARD) == moved(rope, INPUT_GRAD) == 2 * 64 * 80 * 2
    assert saved([rope]) == held([rope]) == 0
    assert "attention.rope" not in operations(samples.llama(position="alibi"))


def test_qk_norm_weighs_one_head_of_queries_and_of_keys() -> None:
    """2 x 8 weights for all heads; (8 + 2) heads of 64 tokens are normed and kept."""
    attention = {"kv_heads": 2, "bias": "none", "qk_norm": True}
    ops = operations(samples.llama(layers=[samples.layer(attention=attention)]))
    normed = ops["attention.qk_norm"]
    assert held([normed]) == 2 * 8
    assert saved([normed]) == 64 * 10 * 8 * 2
    assert moved(normed, FORWARD) == 2 * saved([normed])
    assert moved(normed, INPUT_GRAD) == 3 * saved([normed])


@each_row(("bias", "qkv", "out"), [("none", 0, 0), ("qkv", 192, 0), ("all", 192, 64)])
def test_attention_biases(bias: str, qkv: int, out: int) -> None:
    """`qkv` adds 3 x 64, `all` the output's 64 too; their gradient reads the output's once."""
    ops = operations(samples.model(samples.layer(attention={"bias": bias})))
    assert held([ops["attention.qkv"]]) == 64 * 192 + qkv
    assert held([ops["attention.out"]]) == 64 * 64 + out
    assert moved(ops["attention.qkv"], WEIGHT_GRAD) == 64 * qkv * 2
    assert moved(ops["attention.out"], WEIGHT_GRAD) == 64 * out * 2


@each_row(("activation", "gates"), [("gelu", 1), ("relu", 1), ("swiglu", 2)])
def test_mlp_widens_once_per_gate(activation: str, gates: int) -> None:
    """Up is 64 x 256 per gate, down 256 x 64; both gates are read, and kept for backward."""
    ops = operations(samples.model(samples.layer(mlp={"activation": activation})))
    up, middle, down = ops["mlp.up"], ops["mlp.activation"], ops["mlp.down"]
    for phase in Phase:
        assert flops(up, phase) == 2 * 64 * 64 * 256 * gates
        assert flops(down, phase) == 2 * 64 * 256 * 64
    assert held([up]) == (64 + 1) * 256 * gates
    assert held([down]) == 256 * 64 + 64
    inner = 64 * 256 * 2
    assert moved(middle, FORWARD) == (gates + 1) * inner
    assert moved(middle, INPUT_GRAD) == (2 * gates + 1) * inner
    assert saved([middle]) == gates * inner
    assert saved([down]) == inner
    fused = operations(samples.model(samples.layer(mlp={"activation": activation})), **FUSED)
    assert moved(fused["mlp.activation"], FORWARD) == (gates + 1) * inner
    assert moved(fused["mlp.activation"], INPUT_GRAD) == (2 * gates + 2) * inner
    assert saved([fused["mlp.activation"]]) == gates * inner
    assert saved([fused["mlp.down"]]) == 0


def test_matmul_moves_operands_and_result_once() -> None:
    """Down 64 x 256 x 64 in 2 bytes; the 4-byte gradient of the weights is read and written."""
    down = operations(samples.model())["mlp.down"]
    forward = 2 * (64 * 256 + 256 * 64 + 64 * 64)
    assert moved(down, FORWARD, Matmul) == forward
    assert moved(down, INPUT_GRAD, Matmul) == forward
    assert moved(down, WEIGHT_GRAD, Matmul) == 2 * (64 * 256 + 64 * 64) + 8 * 256 * 64


def test_norms_and_residuals_move_full_activations() -> None:
    """Norm 2 and 3 activations of 64 x 64 x 2 bytes; residual 3 and 5 with dropout and its mask."""
    ops, size = operations(samples.model()), 64 * 64 * 2
    norm, added = ops["mlp.norm"], ops["mlp.residual"]
    assert (moved(norm, FORWARD), moved(norm, INPUT_GRAD)) == (2 * size, 3 * size)
    mask = 64 * 64
    assert (moved(added, FORWARD), moved(added, INPUT_GRAD)) == (3 * size + mask, 5 * size + mask)
    without = operations(samples.model(dropout=False))["mlp.residual"]
    assert (moved(without, FORWARD), moved(without, INPUT_GRAD)) == (3 * size, 3 * size)
    assert saved([without]) == 0


@each_row(("norm", "each"), [("layernorm", 128), ("rmsnorm", 64)])
def test_norm_parameters(norm: str, each: int) -> None:
    """A LayerNorm holds a weight and a bias per channel, an RMSNorm a weight."""
    ops = operations(samples.model(norm=norm))
    assert held([ops["attention.norm"]]) == held([ops["mlp.norm"]]) == each
    weights_only = samples.model(norm="layernorm", norm_bias=False)
    assert held([operations(weights_only)["mlp.norm"]]) == 64


VECTOR = {
    # Elements of a pass, and vector FLOPs of each forward and backward.
    "attention.norm": (64 * 64, 8, 14),
    "attention.qk_norm": (64 * 16 * 8, 8, 14),
    "attention.rope": (64 * 16 * 8, 3, 3),
    "attention.softmax": (2 * 8 * 32 * 32, 6 + 1, 4 + 1),
    "attention.residual": (64 * 64, 2, 2),
    "mlp.activation": (64 * 256, 8, 13),
    "loss": (64 * 1000, 4, 2),
}


def test_vector_flops() -> None:
    """Per element; dropout of scores and of residuals multiplies with a mask."""
    heads = {"qk_norm": True}
    model = samples.model(samples.layer(attention=heads), position="rope")
    ops = operations(model, flash=False) | head(model)
    for name, (elements, forward, backward) in VECTOR.items():
        kernels = [k for k in ops[name].kernels if isinstance(k, MemoryBound)]
        done = {
            phase: sum(float(k.flops[0]) for k in kernels if k.phase is phase) for phase in Phase
        }
        assert (done[FORWARD], done[INPUT_GRAD]) == (elements * forward, elements * backward), name
    biases = [k for k in ops["mlp.up"].kernels if isinstance(k, MemoryBound)]
    assert [float(k.flops[0]) for k in biases] == [64 * 256]


def test_working_sets_of_backward() -> None:
    """Gradients of input and output of an operation; of attention, those of q, k, v, o and o."""
    size, inner, heads = 64 * 64 * 2, 64 * 256 * 2, 64 * 8 * 8 * 2
    expected = {
        "attention.norm": 2 * size,
        "attention.qkv": size + 3 * heads,
        "attention.rope": 2 * heads,
        "attention.core": 3 * heads + 2 * heads,
        "attention.softmax": 2 * 8 * 32 * 32 * 2,
        "attention.out": heads + size,
        "attention.residual": size,
        "mlp.norm": 2 * size,
        "mlp.up": size + inner,
        "mlp.activation": 2 * inner,
        "mlp.down": inner + size,
        "mlp.residual": size,
    }
    ops = operations(samples.model(position="rope"), flash=False)
    assert {name: float(o.working_bytes[0]) for name, o in ops.items()} == expected
    last = head(samples.model())
    assert float(last["final_norm"].working_bytes[0]) == 2 * size
    assert float(last["head"].working_bytes[0]) == size + 64 * 1000 * 2


def test_sequence_parallelism_splits_what_is_between_the_products() -> None:
    """Norms, residuals and kept inputs are a quarter; products and logits see every token."""
    whole = {"tp": 4, "sequence_parallel": False, "flash": False}
    split = whole | {"sequence_parallel": True}
    model = samples.model(samples.layer(attention={"qk_norm": True}), position="rope")
    before = operations(model, **whole) | head(model, **whole)
    after = operations(model, **split) | head(model, **split)
    between = {n for n in after if n.endswith((".norm", "final_norm", "residual"))}
    kept = between | {"attention.qkv", "mlp.up", "head"}
    for name in after:
        for phase in Phase:
            assert flops(after[name], phase) == flops(before[name], phase)
            part = 4 if name in between else 1
            assert moved(after[name], phase) == moved(before[name], phase) / part
            assert moved(after[name], phase, Matmul) == moved(before[name], phase, Matmul)
        assert saved([after[name]]) == saved([before[name]]) / (4 if name in kept else 1), name


def test_parallel_block_shares_norm_all_reduce_and_residual() -> None:
    """One norm, one residual, one exchange before and one after; the input is kept once."""
    layer = samples.layer(parallel=True)
    ops = operations(samples.model(layer), tp=4, sequence_parallel=True)
    assert [name for name in ops if "norm" in name or "residual" in name] == ["norm", "residual"]
    assert exchanges(ops["mlp.up"]) == exchanges(ops["mlp.down"]) == []
    assert len(exchanges(ops["attention.qkv"])) == 3
    assert saved([ops["mlp.up"]]) == 0
    sequential = operations(samples.model(), tp=4, sequence_parallel=True)
    products = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    assert [flops(ops[n], FORWARD) for n in products] == [
        flops(sequential[n], FORWARD) for n in products
    ]


def test_a_second_norm_of_a_parallel_block_has_an_input_and_collectives_of_its_own() -> None:
    """GPT-NeoX: one tensor enters both norms and is saved once; what they write is saved twice."""
    split = {"tp": 4, "sequence_parallel": True}
    one = operations(samples.model(samples.layer(parallel=True)), **split)
    two = operations(samples.model(samples.layer(parallel=True, second_norm=True)), **split)
    assert set(two) - set(one) == {"mlp.norm"}
    assert exchanges(two["mlp.up"]) == exchanges(two["attention.qkv"])
    assert exchanges(two["mlp.down"]) == []
    assert saved([two["mlp.norm"]]) == 0
    assert saved([two["mlp.up"]]) == saved([two["attention.qkv"]])
    assert held([two["mlp.norm"]]) == 2 * 64
    assert moved(two["mlp.norm"], FORWARD) == moved(two["norm"], FORWARD)
    unfused = operations(
        samples.model(samples.layer(parallel=True, second_norm=True)), fused_norm=False
    )
    assert saved([unfused["norm"]]) - saved([unfused["mlp.norm"]]) == saved([one["norm"]]) * 4


def test_an_embedding_may_be_normalized() -> None:
    """BLOOM: one more norm with its weights, which saves what was looked up."""
    plain, normed = samples.model(), samples.model(embedding_norm=True)
    _, norm = embedding_operations(normed, samples.rank_work())
    assert norm.name == "embedding_norm"
    before = count_parameters(plain)
    assert count_parameters(normed).total - before.total == 2 * 64
    assert count_parameters(normed).embedding == before.embedding


def test_a_head_may_have_a_bias() -> None:
    """One number for each word, tied or not, whose gradient is summed over tokens."""
    for tied in (True, False):
        plain, biased = (
            samples.model(head_bias=bias, tied_embeddings=tied) for bias in (False, True)
        )
        assert count_parameters(biased).total - count_parameters(plain).total == 1000
    added = moved(head(biased)["head"], WEIGHT_GRAD) - moved(head(plain)["head"], WEIGHT_GRAD)
    assert added > 0


def test_norms_without_weights_move_the_same_bytes() -> None:
    """OLMo: nothing but the parameters differs."""
    plain, bare = samples.model(), samples.model(norm_weight=False)
    assert count_parameters(plain).total - count_parameters(bare).total == (2 * 4 + 1) * 2 * 64
    norms = [operations(model)["mlp.norm"] for model in (plain, bare)]
    assert moved(norms[0], FORWARD) == moved(norms[1], FORWARD)


def test_norms_of_the_stream_follow_the_additions() -> None:
    """BERT: as many norms with the same bytes, in another order; none is run again with a block."""
    before, stream = (samples.model(samples.layer(norms=norms)) for norms in ("pre", "stream"))
    names = list(operations(stream))
    assert names.index("attention.stream_norm") == names.index("attention.residual") + 1
    assert names[-2:] == ["mlp.residual", "mlp.stream_norm"]
    assert count_parameters(stream).total == count_parameters(before).total
    sums = [saved(operations(model).values()) for model in (before, stream)]
    assert sums[0] == sums[1]
    assert not operations(stream)["mlp.stream_norm"].reruns_with


def test_a_head_may_be_transformed_first() -> None:
    """BERT: a linear layer of width 64 with a bias, GELU, and a norm, on each rank's tokens."""
    plain, changed = samples.model(), samples.model(head_transform=True)
    added = count_parameters(changed).total - count_parameters(plain).total
    assert added == 64 * 64 + 64 + 2 * 64
    ops = head(changed, tp=4, sequence_parallel=True)
    assert (
        flops(ops["head.transform"], FORWARD) == flops(head(changed)["head.transform"], FORWARD) / 4
    )
    assert held([ops["head.transform"]]) == 64 * 64 + 64
    assert list(ops)[1:5] == ["head.transform", "head.activation", "head.norm", "head"]


def test_types_of_tokens_have_a_table() -> None:
    """One row for each."""
    plain, typed = samples.model(), samples.model(token_types=3)
    assert count_parameters(typed).embedding - count_parameters(plain).embedding == 3 * 64


def test_xielu_has_two_scalars_in_each_layer() -> None:
    """Apertus; all else is as with GELU."""
    plain, learned = (
        samples.model(samples.layer(mlp={"activation": activation}))
        for activation in ("gelu", "xielu")
    )
    assert count_parameters(learned).total - count_parameters(plain).total == 4 * 2
    assert saved(operations(learned).values()) == saved(operations(plain).values())


@each_row(
    ("fields", "problem"),
    [
        ({"norm_weight": False, "norm_bias": True}, "a norm without a weight has no bias"),
        ({"head_bias": True, "mtp": 1}, "head_bias: not modeled with multi-token prediction"),
        ({"embedding_norm": True, "mtp": 1}, "embedding_norm: not modeled with"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], problem: str) -> None:
    """Each in one line."""
    with pytest.raises(InputError, match=problem):
        samples.model(**fields)


def test_a_second_norm_is_of_parallel_layers() -> None:
    """Others have two norms always."""
    with pytest.raises(InputError, match="second_norm: of parallel layers"):
        samples.model(samples.layer(second_norm=True))


def paper_layer(model: Model, table: dict[str, object]) -> tuple[list[Operation], float]:
    """Operations of a layer under a strategy of the unfused stack in fp16."""
    columns = {
        "dp": 1,
        "gbs": 1,
        "dtype": "fp16",
        "stack": samples.stack(attention_kernel="unfused"),
    }
    work = rank_work(Table.of(model, columns | table))
    return layer_operations(model, model.layers[0], work), float(work.tokens[0]) * model.hidden


@each_row(("micro_batch", "seq_len", "heads"), [(1, 32, 8), (4, 64, 16), (3, 96, 24)])
@each_row("tp", [1, 2, 8])
@each_row("split", [False, True])
def test_saved_bytes_are_those_of_the_paper(
    micro_batch: int, seq_len: int, heads: int, tp: int, split: bool
) -> None:
    """arXiv 2205.05198, table 2: exactly, with and without sequence parallelism and recompute."""
    layer = samples.layer(
        attention={"heads": heads, "kv_heads": heads, "head_dim": 192 // heads},
        mlp={"ffn": 4 * 192},
    )
    model = samples.model(layer, hidden=192, seq_len=seq_len)
    columns = {"tp": tp, "mbs": micro_batch, "gbs": micro_batch, "sequence_parallel": split}
    ops, sbh = paper_layer(model, columns)
    scores = 5 * heads * seq_len / 192
    whole = (34 + scores) / tp if split else 10 + (24 + scores) / tp
    assert saved(ops) == pytest.approx(sbh * whole, rel=1e-12)
    selective = 34 / tp if split else 10 + 24 / tp
    assert saved(ops) - dropped(ops, "core_attention") == pytest.approx(sbh * selective, rel=1e-12)


def test_flash_keeps_a_statistic_instead_of_scores() -> None:
    """34 s b h, and 4 bytes per token and head; recompute of the core drops only those."""
    ops = operations(samples.model())
    assert saved(ops.values()) == 34 * 64 * 64 + 4 * 64 * 8
    assert (
        dropped(ops.values(), "core_attention") == saved([ops["attention.softmax"]]) == 4 * 64 * 8
    )


def test_llama_keeps_grouped_heads_and_gates() -> None:
    """Per token: norms and inputs 8 h, heads of q, k, v, o, and gates and product 3 x 192 x 2."""
    per_token = 8 * 64 + (8 + 2 + 2 + 8) * 8 * 2 + 4 * 8 + 3 * 192 * 2
    assert saved(operations(samples.llama()).values()) == 64 * per_token


def test_more_ranks_than_kv_heads_hold_copies() -> None:
    """4 ranks, 2 kv heads: each holds 2 query heads and one whole kv head."""
    projection = operations(samples.llama(), tp=4)["attention.qkv"]
    assert held([projection]) == 64 * (2 * 8 + 2 * 8)
    assert 4 * held([projection]) == 64 * (8 * 8 + 2 * (2 * 8) * 2)
    assert flops(projection, FORWARD) == 2 * 64 * 64 * 32


def test_tensor_parallelism_splits_products_and_weights() -> None:
    """A quarter of every weight and FLOP; norms and the biases after a sum are whole."""
    one, four = operations(samples.model()), operations(samples.model(), tp=4)
    for name in ("attention.qkv", "attention.core", "attention.out", "mlp.up", "mlp.down"):
        for phase in Phase:
            assert flops(four[name], phase) == flops(one[name], phase) / 4
    assert held([four["attention.qkv"]]) == (64 * 192 + 192) / 4
    assert held([four["attention.out"]]) == 64 * 64 / 4 + 64
    assert held([four["mlp.down"]]) == 256 * 64 / 4 + 64
    assert held([four["mlp.norm"]]) == 128


def test_collectives_without_sequence_parallelism() -> None:
    """Two all-reduces forward (after each block) and two backward (before), of 64 x 64 x 2."""
    ops, size = operations(samples.model(), tp=4), 64 * 64 * 2
    for before, after in (("attention.qkv", "attention.out"), ("mlp.up", "mlp.down")):
        assert exchanges(ops[before]) == [(ALL_REDUCE, "input_grad", size)]
        assert exchanges(ops[after]) == [(ALL_REDUCE, "forward", size)]


def test_collectives_with_sequence_parallelism() -> None:
    """Gather before and scatter after each block; backward the reverse, and gather the input."""
    ops, size = operations(samples.model(), tp=4, sequence_parallel=True), 64 * 64 * 2
    for before, after in (("attention.qkv", "attention.out"), ("mlp.up", "mlp.down")):
        assert sorted(exchanges(ops[before])) == [
            (ALL_GATHER, "forward", size),
            (ALL_GATHER, "weight_grad", size),
            (REDUCE_SCATTER, "input_grad", size),
        ]
        assert sorted(exchanges(ops[after])) == [
            (ALL_GATHER, "input_grad", size),
            (REDUCE_SCATTER, "forward", size),
        ]
    quiet = set(ops) - {"attention.qkv", "attention.out", "mlp.up", "mlp.down"}
    assert all(exchanges(ops[name]) == [] for name in quiet)


@each_row("split", [False, True])
def test_one_rank_communicates_nothing(split: bool) -> None:
    """tp = 1 has no collectives anywhere, with or without sequence parallelism."""
    model, work = samples.model(), {"tp": 1, "sequence_parallel": split}
    everything = [*operations(model, **work).values(), embedding(model, **work)]
    everything += head(model, **work).values()
    assert [exchanges(operation) for operation in everything] == [[]] * len(everything)
    assert saved(everything) == saved(
        [*operations(model).values(), embedding(model), *head(model).values()]
    )
