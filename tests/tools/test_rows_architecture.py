"""What rows say of their models: each kind of layer, what is assumed, what is refused."""

import pytest
from published_samples import row_of

from published_rows.architecture import model_of
from published_rows.packed import load_rows
from rows import each_row
from shardwise.validate.measured.runs import NotModeledError

DENSE = {
    "name": "m", "layers": 4, "hidden": 1024, "ffn": 4096, "heads": 16, "kv_heads": 4,
    "vocab": 1000, "seq_len": 2048,
}  # fmt: skip
MLA = {
    "attention": "mla", "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16, "v_head_dim": 40, "kv_heads": None,
}  # fmt: skip
EXPERTS = {"experts": 8, "topk": 3, "moe_ffn": 512, "shared_expert_ffn": 256}


def _model(said=None, *, assumed=None, **fields):
    row = {key: value for key, value in (DENSE | fields).items() if value is not None}
    return model_of(row_of("x", model=row, **(said or {})), [] if assumed is None else assumed)


def _refusal(**fields):
    with pytest.raises(NotModeledError) as refused:
        _model(**fields)
    return str(refused.value)


def test_a_dense_model_with_grouped_queries():
    """All sizes; norms and positions are those of today where nothing is said."""
    assumed = []
    model = _model(assumed=assumed)
    (layer,) = model.layers
    assert (model.name, model.hidden, model.vocab, model.seq_len) == ("m", 1024, 1000, 2048)
    assert (layer.count, layer.mlp.ffn, layer.mlp.activation, layer.mlp.bias) == (
        4, 4096, "swiglu", False,
    )  # fmt: skip
    heads = layer.attention
    assert (heads.heads, heads.kv_heads, heads.head_dim, heads.causal) == (16, 4, 64, True)
    assert (heads.bias, heads.sinks, heads.qk_norm, heads.window) == ("none", False, "none", None)
    assert (model.norm, model.position, model.tied_embeddings) == ("rmsnorm", "rope", False)
    assert (model.mtp, model.interleave, model.dropout, assumed) == (0, None, False, [])


def test_keys_and_values_of_each_head_where_no_number_is_told():
    """Multi-head attention; a printed width of heads counts."""
    (layer,) = _model(kv_heads=None, head_dim=80).layers
    assert (layer.attention.kv_heads, layer.attention.head_dim) == (16, 80)


@each_row(
    ("said", "field", "found"),
    [
        ({"norm": "low_precision_layernorm"}, "norm", "layernorm"),
        ({"norm": "LayerNorm"}, "norm", "layernorm"),
        ({"norm": "RMSNorm"}, "norm", "rmsnorm"),
        ({"pos_emb": "learned_abs"}, "position", "learned"),
        (
            {"pos_emb": "learned_abs (param count grows with seq_len*d_model)"},
            "position",
            "learned",
        ),
        ({"pos_emb": "alibi or learned (not stated)"}, "position", "alibi"),
        ({"pos_emb": "rope(yarn)"}, "position", "rope"),
        ({"tied_embeddings": True}, "tied_embeddings", True),
        ({"mtp_layers": 1}, "mtp", 1),
    ],
)
def test_words_of_the_whole_model(said, field, found):
    """As sources write them."""
    assert getattr(_model(**said), field) == found


@each_row(
    ("said", "activation", "bias"),
    [
        ({"mlp": "squared_relu"}, "relu2", False),
        ({"mlp": "gelu", "linear_bias": True}, "gelu", True),
        ({"mlp": "geglu"}, "geglu", False),
        ({"mlp": "swiglu (silu, linear)", "linear_bias": "qkv only"}, "swiglu", False),
    ],
)
def test_words_of_the_mlp(said, activation, bias):
    """Biases where all products have one."""
    (layer,) = _model(**said).layers
    assert (layer.mlp.activation, layer.mlp.bias) == (activation, bias)


@each_row(
    ("said", "field", "found"),
    [
        ({"linear_bias": True}, "bias", "all"),
        ({"linear_bias": "qkv/o bias in InternLM1"}, "bias", "all"),
        ({"linear_bias": "qkv only"}, "bias", "qkv"),
        ({"attention": "gqa + qk-norm"}, "qk_norm", "head"),
        ({"pos_emb": "rope(rotary_percent 0.5)"}, "rotary_dim", 32),
        ({"arch": "encoder (BERT)"}, "causal", False),
    ],
)
def test_words_of_the_attention(said, field, found):
    """As sources write them."""
    (layer,) = _model(**said).layers
    assert getattr(layer.attention, field) == found


def test_latent_attention_with_leading_dense_layers():
    """Queries and keys of 48 + 16, values of 40; one dense layer, then those with experts."""
    model = _model(**MLA, **EXPERTS, dense_layers=1, mtp_layers=1)
    dense, sparse = model.layers
    assert (dense.count, sparse.count, model.interleave, model.mtp) == (1, 3, None, 1)
    heads = sparse.attention
    assert (heads.heads, heads.kv_heads, heads.head_dim, heads.v_head_dim) == (16, 16, 64, 40)
    latent = heads.latent
    assert (latent.q_rank, latent.kv_rank, latent.rope_dim) == (96, 64, 16)
    assert dense.attention == heads
    assert (dense.mlp.ffn, dense.moe, sparse.mlp) == (4096, None, None)
    moe = sparse.moe
    assert (moe.experts, moe.top_k, moe.ffn, moe.shared_ffn, moe.top_groups) == (
        8, 3, 512, 256, None,
    )  # fmt: skip


def test_routers_that_choose_in_groups_are_known_by_their_sizes():
    """256 experts, 8 a token, with latent attention, whatever the model is called."""
    sizes = {"experts": 256, "topk": 8, "moe_ffn": 512}
    assert _model(**MLA, **sizes).layers[0].moe.top_groups == 4
    assert _model(**sizes).layers[0].moe.top_groups is None
    assert _model(**MLA, **sizes | {"topk": 6}).layers[0].moe.top_groups is None


def test_windows_that_alternate():
    """Every other layer, or five of six, the rest at the end; with experts or without."""
    model = _model(attention="gqa; alternating full / sliding-window-128, sinks", **EXPERTS)
    near, far = model.layers
    assert (near.count, near.attention.window, far.count, far.attention.window) == (2, 128, 2, None)
    assert model.order == (0, 1, 0, 1)
    assert near.attention.sinks
    assert near.moe.experts == far.moe.experts == 8
    model = _model(attention="gqa; 5:1 local(1024):global", layers=14)
    near, far = model.layers
    assert (near.count, near.attention.window, far.count) == (12, 1024, 2)
    assert model.order == (0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0)


def test_windows_of_models_shorter_than_a_turn():
    """Three layers of five to one all have the window."""
    model = _model(attention="gqa; 5:1 local(1024):global", layers=3)
    assert [(layer.count, layer.attention.window) for layer in model.layers] == [(3, 1024)]
    assert model.interleave is None


def test_dense_layers_that_are_half_of_all_alternate_with_the_others():
    """As in Llama 4 Maverick; leading ones do not."""
    model = _model(attention="gqa; iRoPE chunked", dense_layers=2, **EXPERTS)
    assert (model.order, model.layers[0].moe) == ((0, 1, 0, 1), None)
    assert _model(dense_layers=1, **EXPERTS).order == (0, 1, 1, 1)


def test_what_is_not_told_is_assumed_and_said():
    """Heads near 128 wide that tensor parallelism divides, a vocabulary, experts a token."""
    assumed = []
    said = {"parallelism": {"tp": 4}}
    model = _model(said, heads=None, kv_heads=None, vocab=None, assumed=assumed, experts=8)
    assert assumed == ["vocabulary 32000", "8 attention heads", "2 experts a token"]
    assert (model.vocab, model.layers[0].attention.heads, model.layers[0].moe.top_k) == (
        32000, 8, 2,
    )  # fmt: skip
    assert model.layers[0].moe.ffn == 4096
    assert _model({"parallelism": {"tp": 16}}, heads=None).layers[0].attention.heads == 16


def test_dropout_is_that_of_the_software():
    """Megatron-LM's before 2023, as its default; not DeepSpeed's, nor of an unknown year."""

    def drops(framework, year):
        assumed = []
        said = {"software": {"framework": framework}, "year": year}
        dropout = _model(said, assumed=assumed).dropout
        assert assumed == (["dropout"] if dropout else [])
        return dropout

    assert drops("Megatron-LM", 2022)
    assert drops("NeMo-Megatron", 2021)
    assert not drops("Megatron-LM", 2023)
    assert not drops("Megatron-LM", None)
    assert not drops("Megatron-DeepSpeed", 2022)
    assert not drops(None, 2022)


@each_row(
    ("said", "problem"),
    [
        ({"arch": "hybrid-mamba2-moe"}, "the sizes of its mixers are not stated"),
        ({"layers": None}, "model.layers is not stated"),
        ({"hidden": None}, "model.hidden is not stated"),
        ({"ffn": None}, "model.ffn is not stated"),
        ({"ffn": None, "dense_layers": 1, **EXPERTS}, "model.ffn is not stated"),
        ({"hidden": 1021, "heads": None, "said": {"parallelism": {"tp": 4}}},
         "model.heads is not stated"),
        (EXPERTS | {"dense_layers": 2, "attention": "gqa; 5:1 local(1024):global"},
         "leading dense layers with alternating windows are not modeled"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_model_is_refused(said, problem):
    """With the field that lacks."""
    assert _refusal(**said) == problem


def test_the_name_of_a_model_is_of_no_account():
    """Rows under another name are the same model, where they state its sizes."""
    for run in {run.model.name: run for run in load_rows()}.values():
        other = run.model_copy(update={"model": run.model.model_copy(update={"name": "other"})})
        assumed: list[str] = []
        try:
            model = model_of(run, assumed)
        except NotModeledError:
            continue
        if any(one.startswith("shape of ") for one in assumed):
            continue
        assert model_of(other, []) == model.model_copy(update={"name": "other"})
