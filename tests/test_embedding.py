"""Embedding, head and loss by hand, and the parameters and FLOPs of a whole model.

GPT sample: width 64, 4 layers, 1000 words, 32 positions; 2 sequences of 32 tokens in 2 bytes.
"""

import pytest

import samples
from rows import each_row
from samples import embedding, exchanges, flops, head, held, moved, operations, saved
from shardwise import InputError, estimate, estimate_many
from shardwise.ops.operation import Phase
from shardwise.ops.param_count import count_parameters, flops_per_token

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"


def test_embedding_is_split_along_the_vocabulary() -> None:
    """1000 words over 3 ranks: 334 rows each, and all 32 positions; backward adds gradients."""
    model = samples.model()
    assert held([embedding(model)]) == (1000 + 32) * 64
    assert held([embedding(model, tp=3)]) == (334 + 32) * 64
    assert held([embedding(samples.model(max_positions=48))]) == (1000 + 48) * 64
    assert held([embedding(samples.llama())]) == 1000 * 64
    size = 64 * 64 * 2
    assert moved(embedding(model), FORWARD) == 2 * size
    assert moved(embedding(model), WEIGHT_GRAD) == size + 2 * 64 * 64 * 4
    assert saved([embedding(model)]) == 64 * 64
    assert saved([embedding(samples.model(dropout=False))]) == 0
    assert exchanges(embedding(model, tp=2)) == [(ALL_REDUCE, "forward", size)]
    split = embedding(model, tp=2, sequence_parallel=True)
    assert moved(split, WEIGHT_GRAD) == moved(embedding(model), WEIGHT_GRAD)
    added = [float(k.flops[0]) for k in split.kernels if k.phase is WEIGHT_GRAD]
    assert added == [64 * 64]
    assert saved([split]) == 64 * 64 / 2
    assert sorted(exchanges(split)) == [
        (ALL_GATHER, "input_grad", size),
        (REDUCE_SCATTER, "forward", size),
    ]


def test_a_dense_gradient_sweeps_the_full_table() -> None:
    """Of 334 + 32 rows of 64: zeroed in 2 bytes, read in 2 and added in 4; 64 tokens of 64 read and
    added in 2 bytes.
    """
    model = samples.model()
    rows, tokens = (334 + 32) * 64, 64 * 64
    plain, dense = (embedding(model, tp=3, dense_table=value) for value in (False, True))
    assert moved(dense, WEIGHT_GRAD) == rows * 2 + tokens * 3 * 2 + rows * (2 + 2 * 4)
    assert moved(dense, FORWARD) == moved(plain, FORWARD)
    assert dense.working_bytes == plain.working_bytes


def test_sweeps_over_a_dense_gradient_are_never_slower_than_their_bytes() -> None:
    """Element-wise kernels move twice their bytes here; a sweep moves its own, 12 per weight."""
    model, machine = samples.model(vocab=100_000), samples.system()
    fields = {"dp": 1, "mbs": 1, "gbs": 1, "seq_len": 32}
    times = [
        estimate(
            model,
            machine,
            fields
            | {"stack": samples.stack(memory_traffic_factor=2, dense_embedding_gradient=dense)},
        ).time_s["backward"]
        for dense in (False, True)
    ]
    kernels = machine.accelerator.memory_bound
    rate = kernels.efficiency * machine.accelerator.memory[0].bandwidth
    swept = (100_000 + 32) * 64 * 12 / rate + 2 * kernels.launch
    tokens = 32 * 64 * (3 * 2 - 10) * 2 / rate
    assert times[1] - times[0] == pytest.approx(swept + tokens)


def test_rows_of_the_vocabulary_are_padded_on_each_rank() -> None:
    """1000 words over 3 ranks in multiples of 128: ceil(1000 / 384) x 128 = 384 on each."""
    padded = {"tp": 3, "vocab_multiple": 128}
    model = samples.model()
    assert held([embedding(model, **padded)]) == (384 + 32) * 64
    assert held([head(model, **padded)["head"]]) == 384 * 64
    assert saved([head(model, **padded)["loss"]]) == 4 * 64 * 384
    assert held([embedding(model, vocab_multiple=128)]) == (1024 + 32) * 64
    assert held([embedding(model, vocab_multiple=8)]) == (1000 + 32) * 64


def test_head_multiplies_with_this_ranks_words() -> None:
    """64 x 64 x ceil(1000 / 3); weights of its own only where the embedding's are elsewhere."""
    ops = head(samples.model(), tp=3)
    for phase in Phase:
        assert flops(ops["head"], phase) == 2 * 64 * 64 * 334
    assert held([ops["head"]]) == 334 * 64
    assert moved(ops["head"], WEIGHT_GRAD) == 0  # the words have no bias
    assert held([head(samples.model(), copy=False)["head"]]) == 0
    assert held([ops["final_norm"]]) == 128
    assert "final_norm" not in head(samples.model(final_norm=False))
    assert exchanges(ops["head"]) == [(ALL_REDUCE, "input_grad", 64 * 64 * 2)]


def test_loss_moves_and_keeps_bytes_per_logit() -> None:
    """10, 6 and 4 bytes for each of 64 x 500 logits; three fp32 numbers per token exchanged."""
    loss = head(samples.model(), tp=2)["loss"]
    assert moved(loss, FORWARD) == 10 * 64 * 500
    assert moved(loss, INPUT_GRAD) == 6 * 64 * 500
    assert saved([loss]) == 4 * 64 * 500
    assert exchanges(loss) == [(ALL_REDUCE, "forward", 64 * 4)] * 3
    split = head(samples.model(), tp=2, sequence_parallel=True)["loss"]
    assert exchanges(split) == exchanges(loss)


def test_parameters_of_the_gpt_sample() -> None:
    """12 h^2 + 13 h per layer, final norm 2 h, 1000 words and 32 positions, head shared or not."""
    layers = 4 * (12 * 64**2 + 13 * 64) + 2 * 64
    tied = count_parameters(samples.model())
    assert tied.total == tied.active == layers + (1000 + 32) * 64
    assert tied.embedding == (1000 + 32) * 64
    assert sum(tied.breakdown.values()) == tied.total
    assert count_parameters(samples.model(tied_embeddings=False)).total == tied.total + 64000


def test_flops_per_token_by_convention() -> None:
    """6 per parameter with the head but not the embedding; attention 12 s a d, half if causal."""
    dense = 6 * (4 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 1000)
    scores = 12 * 4 * 32 * 64
    for tied in (True, False):
        model = samples.model(tied_embeddings=tied)
        assert flops_per_token(model, 32) == dense + scores / 2
        assert flops_per_token(model, 32, "full-attention") == dense + scores
        assert flops_per_token(model, 32, "parameters") == dense
    both_ways = samples.model(samples.layer(attention={"causal": False}))
    assert flops_per_token(both_ways, 32) == dense + scores


def test_documents_meet_their_own_keys_alone() -> None:
    """8 of 32 tokens; the full-attention convention counts all pairs of a sequence."""
    model = samples.model()
    dense = flops_per_token(model, 32, "parameters")
    scores = flops_per_token(model, 32) - dense
    assert flops_per_token(model, 32, document_len=8) == dense + scores / 4
    packed = flops_per_token(model, 32, "full-attention", document_len=8)
    assert packed == flops_per_token(model, 32, "full-attention")


def test_what_is_dropped_is_not_credited() -> None:
    """Half of the copies for 2 experts' three matrices in 3 layers, and in a module of the last."""
    for modules in (0, 1):
        model = samples.deepseek(mtp=modules)
        whole = flops_per_token(model, 32)
        routed = 6 * (3 + modules) * 2 * 3 * 64 * 32
        assert whole - flops_per_token(model, 32, expert_capacity=0.5) == routed / 2
        assert flops_per_token(model, 32, expert_capacity=1.5) == whole


@each_row("changed", [{"document_len": 8}, {"expert_capacity": 0.25}])
def test_utilisation_credits_what_is_done(changed: dict[str, float]) -> None:
    """One estimate and a table of them, by the same count."""
    model, machine = samples.deepseek(), samples.system()
    given = {"dp": 1, "gbs": 4, "seq_len": 32, "stack": samples.stack()}
    both = [estimate(model, machine, given | more) for more in ({}, changed)]
    done = [one.mfu * one.step_time_s for one in both]
    share = flops_per_token(model, 32, **changed) / flops_per_token(model, 32)
    assert done[1] / done[0] == pytest.approx(share)
    table = estimate_many(
        model, machine, {name: [value] for name, value in (given | changed).items()}
    )
    assert table.mfu[0] == pytest.approx(both[1].mfu)


def test_products_of_a_step_are_six_per_weight() -> None:
    """All products of all layers and the head: 6 tokens x their weights, biases and norms aside."""
    model = samples.model()
    ops = [o for o in operations(model).values() if o.name != "attention.core"]
    done = sum(flops(o, phase) for o in ops for phase in Phase) * 4
    done += sum(flops(o, phase) for o in head(model).values() for phase in Phase)
    assert done == 6 * 64 * (4 * 12 * 64**2 + 64 * 1000)


def test_without_a_vocabulary_both_ends_are_nothing() -> None:
    """Neither words nor products, exchanges nor bytes; the layers and a final norm remain."""
    plain = {"vocab": 0, "position": "sinusoidal", "tied_embeddings": False}
    bare = samples.model(**plain, final_norm=False)
    ends = [embedding(bare, tp=2), *head(bare, tp=2).values()]
    assert [end.name for end in ends] == ["embedding", "head"]
    assert held(ends) == saved(ends) == 0
    assert [(end.kernels, end.collectives) for end in ends] == [((), ())] * 2
    assert list(head(samples.model(**plain))) == ["final_norm", "head"]
    whole = samples.model(position="sinusoidal", tied_embeddings=False, final_norm=False)
    assert count_parameters(bare).total == count_parameters(whole).total - 2 * 1000 * 64
    assert flops_per_token(bare, 32) == flops_per_token(whole, 32) - 6 * 1000 * 64
    strategy = {"gpus": 4, "pp": 2, "tp": 2, "gbs": 4, "stack": samples.stack()}
    ours, theirs = (estimate(model, samples.system(), strategy) for model in (bare, whole))
    assert ours.step_time_s < theirs.step_time_s
    assert ours.stages[0].weights == ours.stages[1].weights


@each_row(
    ("fields", "told"),
    [
        ({"tied_embeddings": True}, "tied_embeddings: there is no embedding with vocab 0"),
        ({"mtp": 1}, "mtp: there is no embedding with vocab 0"),
        ({"position": "learned"}, "position: learned ones are added to an embedding; vocab is 0"),
    ],
)
def test_what_needs_a_vocabulary_is_refused_without(fields: dict[str, object], told: str) -> None:
    """By name."""
    plain = {"vocab": 0, "position": "sinusoidal", "tied_embeddings": False}
    with pytest.raises(InputError) as error:
        samples.model(**plain | fields)
    assert told in str(error.value)


def test_the_output_alone_may_have_a_bias() -> None:
    """Of width 64; with those of query, key and value all of them."""
    counts = {}
    for bias in ("none", "qkv", "output", "all"):
        attention = {"heads": 4, "kv_heads": 4, "head_dim": 16, "bias": bias}
        mlp = {"ffn": 256, "activation": "gelu"}
        model = samples.model({"count": 1, "attention": attention, "mlp": mlp})
        counts[bias] = count_parameters(model).total
    none = counts["none"]
    assert counts["qkv"] == none + 3 * 64
    assert counts["output"] == none + 64
    assert counts["all"] == none + 4 * 64
