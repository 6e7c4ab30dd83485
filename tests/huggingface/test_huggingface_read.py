"""What each key of a `config.json` becomes: fields and order of layers, or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from huggingface_configs import CONFIGS, compared, load
from profiles import examples
from rows import each_row
from shardwise import Model

fast = examples(60)


@each_row(
    ("name", "windows"),
    [
        ("gemma2-2b", [4096, None] * 13),
        ("gemma3-1b", ([512] * 5 + [None]) * 4 + [512] * 2),
        ("gemma3-4b", ([1024] * 5 + [None]) * 5 + [1024] * 4),
        ("gpt-oss-20b", [128, None] * 12),
        ("mistral-7b", [4096] * 32),
        ("olmo3-7b", [4096, 4096, 4096, None] * 8),
        ("phi3-mini", [2047] * 32),
        ("qwen2-7b", [None] * 28),
    ],
)
def test_windows_stand_where_the_file_has_them(name, windows):
    """In the order of the layers."""
    assert _windows(load(name)) == windows


def _windows(model):
    return [model.layers[kind].attention.window for kind in model.order]


def test_llama4_maverick_alternates_experts_and_positions():
    """Odd layers have experts; each fourth has neither chunks, positions nor norms of them."""
    model = load("llama4-maverick")
    layers = [model.layers[kind] for kind in model.order]

    assert [layer.moe is not None for layer in layers] == [False, True] * 24
    assert [layer.attention.chunk for layer in layers] == [8192, 8192, 8192, None] * 12
    assert [layer.attention.rotary_dim for layer in layers] == [None, None, None, 0] * 12
    assert {layer.attention.qk_norm for layer in layers} == {"none"}
    assert [layer.feed_forward.ffn for layer in layers] == [16_384, 8192] * 24


def test_llama4_scout_norms_what_it_rotates():
    """Queries and keys without positions have no norm."""
    norms = [layer.attention.qk_norm for layer in load("llama4-scout").layers]

    assert norms == ["unweighted", "none"]


def _text(name, **changes):
    return {"text_config": CONFIGS[name]["text_config"] | changes}


@each_row(
    ("name", "changes", "read"),
    [
        ("llama3-8b", {"attention_bias": True}, {"attention": {"bias": "all"}}),
        ("llama3-8b", {"mlp_bias": True}, {"mlp": {"bias": True}}),
        ("llama3-8b", {"hidden_act": "gelu"}, {"mlp": {"activation": "geglu"}}),
        ("llama3-8b", {"head_dim": 64}, {"attention": {"head_dim": 64}}),
        ("llama3-8b", {"num_key_value_heads": ...}, {"attention": {"kv_heads": 32}}),
        (
            "llama3-8b",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            {"attention": {"rotary_dim": 64}},
        ),
        ("qwen3-8b", {"attention_bias": True}, {"attention": {"bias": "all"}}),
        ("qwen2-7b", {}, {"attention": {"bias": "qkv"}}),
        ("qwen2-57b-a14b", {"qkv_bias": False}, {"attention": {"bias": "none"}}),
        ("qwen2-57b-a14b", {}, {"moe": {"shared_gate": True}, "attention": {"bias": "qkv"}}),
        ("deepseek-moe-16b", {"attention_bias": True}, {"attention": {"bias": "all"}}),
        ("deepseek-v2-lite", {}, {"attention": {"head_dim": 192, "v_head_dim": 128}}),
        ("deepseek-v2-lite", {"first_k_dense_replace": 0}, {"moe": {"selection_bias": False}}),
        ("deepseek-v3", {"first_k_dense_replace": 0}, {"moe": {"selection_bias": True}}),
        ("glm4.5", {}, {"attention": {"bias": "qkv", "rotary_dim": 64, "qk_norm": "head"}}),
        ("glm4.5-air", {}, {"attention": {"qk_norm": "none"}}),
        ("ling-1t", {"use_qkv_bias": True}, {"attention": {"bias": "qkv"}}),
        ("ling-1t", {"use_bias": True}, {"attention": {"bias": "all"}}),
        ("gpt-oss-20b", {}, {"attention": {"sinks": True, "bias": "all"}}),
        ("gpt-oss-20b", {}, {"moe": {"bias": True, "router_bias": True, "activation": "swiglu"}}),
        ("olmo2-7b", {}, {"attention": {"qk_norm": "width"}, "norms": "post"}),
        ("gemma2-2b", {}, {"mlp": {"activation": "geglu"}, "norms": "both"}),
        ("gemma-7b", {}, {"mlp": {"activation": "geglu"}, "norms": "pre"}),
        ("gpt2", {"n_inner": 1000}, {"mlp": {"ffn": 1000, "activation": "gelu", "bias": True}}),
        ("pythia-6.9b", {}, {"attention": {"rotary_dim": 32, "bias": "all"}, "parallel": True}),
        ("pythia-6.9b", {"use_parallel_residual": False}, {"parallel": False}),
        ("falcon-7b", {}, {"attention": {"kv_heads": 1, "head_dim": 64}, "parallel": True}),
        ("falcon-7b", {"multi_query": False}, {"attention": {"kv_heads": 71}}),
        (
            "falcon-7b",
            {"parallel_attn": False, "bias": True},
            {"parallel": False, "mlp": {"bias": True}},
        ),
        (
            "falcon-7b",
            {"new_decoder_architecture": True, "num_kv_heads": 71},
            {"attention": {"kv_heads": 71}},
        ),
        (
            "starcoder2-3b",
            {"use_bias": False},
            {"attention": {"bias": "none"}, "mlp": {"bias": False}},
        ),
        ("command-r", {}, {"parallel": True, "mlp": {"activation": "swiglu"}}),
    ],
)
def test_a_key_is_read(name, changes, read):
    """As a field of the first kind of layers."""
    layer = load(name, **changes).layers[0].model_dump()
    for field, value in read.items():
        found = layer[field]
        assert (found | value if isinstance(value, dict) else value) == found


@each_row(
    ("name", "changes", "field", "value"),
    [
        ("llama3-8b", {"tie_word_embeddings": ...}, "tied_embeddings", False),
        ("gemma-7b", {"tie_word_embeddings": ...}, "tied_embeddings", True),
        ("gemma3-4b", {}, "tied_embeddings", True),
        ("gemma3-4b", {"tie_word_embeddings": False}, "tied_embeddings", False),
        ("gpt2", {}, "tied_embeddings", True),
        ("gpt2", {}, "dropout", True),
        (
            "gpt2",
            {"attn_pdrop": 0, "embd_pdrop": 0.0, "resid_pdrop": 0, "summary_first_dropout": 0.1},
            "dropout",
            False,
        ),
        ("llama3-8b", {"attention_dropout": 0.1}, "dropout", True),
        ("llama3-8b", {"classifier_dropout": 0.1}, "dropout", False),
        ("gpt2", {}, "max_positions", 1024),
        ("gpt2", {}, "position", "learned"),
        ("falcon-7b", {"alibi": True}, "position", "alibi"),
        ("falcon-7b", {}, "position", "rope"),
        ("falcon-7b", {}, "left_out", ()),
        ("pythia-6.9b", {"use_parallel_residual": False}, "left_out", ()),
        ("command-r", {}, "norm_bias", False),
        ("command-r", {}, "norm", "layernorm"),
        ("deepseek-v3", {}, "mtp", 1),
        ("deepseek-v3", {"num_nextn_predict_layers": ...}, "mtp", 0),
        (
            "gemma2-2b",
            {"attn_logit_softcapping": None},
            "left_out",
            ("soft-capping of output logits",),
        ),
        (
            "llama4-scout",
            {},
            "left_out",
            ("vision tower llama4_vision_model: 34 layers of width 1408, about 0.81 B parameters",),
        ),
        ("qwen2-7b", {"audio_config": {"model_type": "a"}}, "left_out", ("audio tower a",)),
    ],
)
def test_a_key_of_the_whole_is_read(name, changes, field, value):
    """As a field of the model."""
    assert value == getattr(load(name, **changes), field)


@each_row(
    ("name", "changes", "counts"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, {(1, 1): (24, 24)}),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 1]}, {None: (2, 46)}),
        ("qwen3-30b-a3b", {"mlp_only_layers": [47]}, {None: (47, 1)}),
        ("deepseek-v2", {"moe_layer_freq": 2, "first_k_dense_replace": 0}, {(1, 1): (30, 30)}),
        ("deepseek-v2", {"moe_layer_freq": 30, "first_k_dense_replace": 0}, {(1, 29): (2, 58)}),
        (
            "llama4-scout",
            _text("llama4-scout", no_rope_layers=[0] * 24 + [1] * 24),
            {None: (24, 24)},
        ),
        (
            "llama4-scout",
            _text("llama4-scout", moe_layers=[0]),
            {None: (1, 35, 12)},
        ),
        ("llama4-scout", _text("llama4-scout", moe_layers=[]), {(3, 1): (36, 12)}),
        ("qwen2-7b", {"use_sliding_window": True, "max_window_layers": 20}, {None: (20, 8)}),
        ("gemma3-1b", {"sliding_window_pattern": 13}, {(12, 1): (24, 2)}),
        ("gpt-oss-20b", {"layer_types": None}, {(1, 1): (12, 12)}),
        ("olmo3-7b", {"layer_types": None}, {(3, 1): (24, 8)}),
    ],
)
def test_unequal_layers_become_runs(name, changes, counts):
    """Runs one after the other where that takes no more than there are kinds, else turns."""
    model = load(name, **changes)

    assert counts == {model.interleave: tuple(layer.count for layer in model.layers)}


@fast
@given(st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=1, max_size=30))
def test_any_order_of_layers_is_kept(kinds):
    """Whatever the file lists, the model has in that order."""
    model = load("gpt-oss-20b", layer_types=kinds, num_hidden_layers=len(kinds))

    assert _windows(model) == [128 if kind == "sliding_attention" else None for kind in kinds]
    assert model.depth == len(kinds)


@fast
@given(period=st.lists(st.booleans(), min_size=1, max_size=6), depth=st.integers(1, 40))
def test_layers_that_alternate_have_no_more_runs_than_a_period(period, depth):
    """A pattern that repeats is told once."""
    kinds = [
        "sliding_attention" if period[i % len(period)] else "full_attention" for i in range(depth)
    ]
    model = load("gpt-oss-20b", layer_types=kinds, num_hidden_layers=depth)

    assert [window is not None for window in _windows(model)] == [
        kind == "sliding_attention" for kind in kinds
    ]
    assert len(model.layers) <= len(period)


def test_keys_that_change_nothing_are_ignored():
    """Types, ids and what no one knows."""
    same = {"layer_types": ["full_attention"] * 32, "num_local_experts": 1, "sliding_window": None}
    same |= {"torch_dtype": "float32", "dtype": "x", "bos_token_id": 7, "x": {}, "use_cache": False}

    assert compared(load("llama3-8b", **same)) == compared(load("llama3-8b"))


def test_a_file_without_its_architecture_is_known_by_its_type():
    """As language models nested in others are."""
    for name in ("llama3-8b", "kimi-k2", "gpt-oss-20b", "gpt2"):
        assert compared(load(name, architectures=...)) == compared(load(name))
        assert compared(load(name, architectures=[])) == compared(load(name))


def test_images_in_front_of_a_flat_language_model_are_left_out():
    """Qwen2-VL keeps the keys of its language model beside the tower."""
    tower = {"model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280}
    changes = {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": tower}
    model = load("qwen2-7b", **changes)

    assert compared(model) | {"left_out": ()} == compared(load("qwen2-7b"))
    told = "vision tower qwen2_vl: 32 layers of width 1280, about 0.63 B parameters"
    assert model.left_out == (told,)


def test_a_nested_language_model_may_be_of_any_family():
    """Mistral 3 wraps a Mistral."""
    wrapped = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": CONFIGS["mistral-7b"],
    }

    assert compared(Model.load(wrapped)) == compared(load("mistral-7b"))

    wrapped = {"model_type": "mistral3", "text_config": CONFIGS["mistral-7b"]}
    assert compared(Model.load(wrapped)) == compared(load("mistral-7b"))
