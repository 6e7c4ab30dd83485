"""Hugging Face's config.json: what is read, what is left out, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import huggingface_counts as counts
from shardwise import Model, catalog
from shardwise.formats.huggingface_families import MODEL_TYPES, READERS
from shardwise.ops.parameters import count_parameters

FOLDER = Path(__file__).parent / "data" / "huggingface"
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
NOT_COMPARED = {"name", "description", "sources", "seq_len"}
# The catalog describes its window as full attention.
OTHERWISE = {"mistral-7b"}
IN_CATALOG = sorted(set(CONFIGS) & set(catalog.names("models")) - OTHERWISE)

fast = settings(deadline=None, max_examples=60)


def _load(name, **changes):
    """The model of a published file, with keys changed, or removed if they are `...`."""
    return Model.load(_changed(name, **changes))


def _changed(name, **changes):
    data = CONFIGS[name] | changes
    return {key: value for key, value in data.items() if value is not ...}


def _fields(model):
    return model.model_dump(exclude=NOT_COMPARED)


@pytest.mark.parametrize("name", IN_CATALOG)
def test_a_file_gives_the_model_of_the_catalog(name):
    """All but its sequences, which a config.json does not say."""
    model = Model.load(FOLDER / f"{name}.json")

    assert model.seq_len is None
    assert _fields(Model.load(name)) == _fields(model)


def test_every_family_has_a_file():
    """Each reader is tried on what was published."""
    tried = {MODEL_TYPES.get(c["model_type"]) for c in CONFIGS.values() if "text_config" not in c}
    tried |= {
        MODEL_TYPES[c["text_config"]["model_type"]] for c in CONFIGS.values() if "text_config" in c
    }

    assert tried - {None} | {"BailingMoeV2ForCausalLM"} == set(READERS)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_tensors(name):
    """Counted from the modules of each architecture, apart from the package."""
    model = _load(name)
    norms_left_out = 2 * model.hidden * model.depth if "second norm" in str(model.left_out) else 0

    assert counts.language_model(CONFIGS[name]) - norms_left_out == count_parameters(model).total


# Sizes of checkpoints on the hub, in parameters, of what is not in the catalog.
CHECKPOINTS = [
    ("command-r", 34_980_831_232),
    ("falcon-7b", 6_921_720_704),
    ("gemma-7b", 8_537_680_896),
    ("gpt2", 124_439_808),
    ("olmo3-7b", 7_298_011_136),
    ("phi3-mini", 3_821_079_552),
    ("starcoder2-3b", 3_030_371_328),
]


@pytest.mark.parametrize(("name", "published"), CHECKPOINTS)
def test_parameters_are_those_of_the_checkpoint(name, published):
    """To the last one."""
    assert count_parameters(_load(name)).total == published


def test_the_norm_that_is_left_out_is_all_that_is_missing():
    """Pythia 6.9B has 6,857,302,016 parameters; its MLPs have norms of their own."""
    model = _load("pythia-6.9b")

    assert count_parameters(model).total == 6_857_302_016 - 32 * 2 * 4096
    assert model.left_out == ("the second norm of every layer, before its MLP",)


@pytest.mark.parametrize(
    ("name", "published", "tower"),
    [
        ("llama4-scout", 108_641_793_536, counts.vision_of_llama4),
        ("llama4-maverick", 401_583_781_376, counts.vision_of_llama4),
        ("gemma3-4b", 4_300_079_472, counts.siglip_with_projector),
        ("gemma3-12b", 12_187_325_040, counts.siglip_with_projector),
        ("gemma3-27b", 27_432_406_640, counts.siglip_with_projector),
        ("llava-1.5-7b", 7_063_427_072, counts.clip_with_projector),
    ],
)
def test_language_model_and_tower_are_the_checkpoint(name, published, tower):
    """What is described and what is left out are all there is."""
    assert count_parameters(_load(name)).total + tower(CONFIGS[name]) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("deepseek-v3", 684_531_386_000),
        ("glm4.5", 358_337_791_296),
        ("glm4.5-air", 110_468_824_832),
    ],
)
def test_the_module_for_prediction_is_the_rest_of_the_checkpoint(name, published):
    """One more layer, two norms, a projection, a head norm, both tables; in 8 bits also scales."""
    model = _load(name)
    h, last = model.hidden, model.layers[-1]
    one = model.model_copy(update={"layers": (last.model_copy(update={"count": 1}),), "mtp": 0})
    layer = count_parameters(one).total - 2 * model.vocab * h - h
    module = layer + 2 * h + 2 * h * h + h + 2 * model.vocab * h
    scales = counts.block_scales(CONFIGS[name], modules=1) if name == "deepseek-v3" else 0

    assert model.mtp == 1
    assert count_parameters(model).total + module + scales == published


@pytest.mark.parametrize(
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
    assert _windows(_load(name)) == windows


def _windows(model):
    return [model.layers[kind].attention.window for kind in model.order]


def test_llama4_maverick_alternates_experts_and_positions():
    """Odd layers have experts; each fourth has neither chunks, positions nor norms of them."""
    model = _load("llama4-maverick")
    layers = [model.layers[kind] for kind in model.order]

    assert [layer.moe is not None for layer in layers] == [False, True] * 24
    assert [layer.attention.chunk for layer in layers] == [8192, 8192, 8192, None] * 12
    assert [layer.attention.rotary_dim for layer in layers] == [None, None, None, 0] * 12
    assert {layer.attention.qk_norm for layer in layers} == {"none"}
    assert [layer.feed_forward.ffn for layer in layers] == [16_384, 8192] * 24


def test_llama4_scout_norms_what_it_rotates():
    """Queries and keys without positions have no norm."""
    norms = [layer.attention.qk_norm for layer in _load("llama4-scout").layers]

    assert norms == ["unweighted", "none"]


def _text(name, **changes):
    return {"text_config": CONFIGS[name]["text_config"] | changes}


@pytest.mark.parametrize(
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
    layer = _load(name, **changes).layers[0].model_dump()
    for field, value in read.items():
        found = layer[field]
        assert (found | value if isinstance(value, dict) else value) == found


@pytest.mark.parametrize(
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
    assert value == getattr(_load(name, **changes), field)


@pytest.mark.parametrize(
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
            {None: (1, 2, 1, 3) + (1, 3) * 10 + (1,)},
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
    model = _load(name, **changes)

    assert counts == {model.interleave: tuple(layer.count for layer in model.layers)}


@fast
@given(st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=1, max_size=30))
def test_any_order_of_layers_is_kept(kinds):
    """Whatever the file lists, the model has in that order."""
    model = _load("gpt-oss-20b", layer_types=kinds, num_hidden_layers=len(kinds))

    assert _windows(model) == [128 if kind == "sliding_attention" else None for kind in kinds]
    assert model.depth == len(kinds)


@fast
@given(period=st.lists(st.booleans(), min_size=1, max_size=6), depth=st.integers(1, 40))
def test_layers_that_alternate_have_no_more_runs_than_a_period(period, depth):
    """A pattern that repeats is told once."""
    kinds = [
        "sliding_attention" if period[i % len(period)] else "full_attention" for i in range(depth)
    ]
    model = _load("gpt-oss-20b", layer_types=kinds, num_hidden_layers=depth)

    assert [window is not None for window in _windows(model)] == [
        kind == "sliding_attention" for kind in kinds
    ]
    assert len(model.layers) <= len(period)


def test_keys_that_change_nothing_are_ignored():
    """Types, ids and what no one knows."""
    same = {"layer_types": ["full_attention"] * 32, "num_local_experts": 1, "sliding_window": None}
    same |= {"torch_dtype": "float32", "dtype": "x", "bos_token_id": 7, "x": {}, "use_cache": False}

    assert _fields(_load("llama3-8b", **same)) == _fields(_load("llama3-8b"))


def test_a_file_without_its_architecture_is_known_by_its_type():
    """As language models nested in others are."""
    for name in ("llama3-8b", "kimi-k2", "gpt-oss-20b", "gpt2"):
        assert _fields(_load(name, architectures=...)) == _fields(_load(name))
        assert _fields(_load(name, architectures=[])) == _fields(_load(name))


def test_images_in_front_of_a_flat_language_model_are_left_out():
    """Qwen2-VL keeps the keys of its language model beside the tower."""
    tower = {"model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280}
    changes = {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": tower}
    model = _load("qwen2-7b", **changes)

    assert _fields(model) | {"left_out": ()} == _fields(_load("qwen2-7b"))
    told = "vision tower qwen2_vl: 32 layers of width 1280, about 0.63 B parameters"
    assert model.left_out == (told,)


def test_a_nested_language_model_may_be_of_any_family():
    """Mistral 3 wraps a Mistral."""
    wrapped = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": CONFIGS["mistral-7b"],
    }

    assert _fields(Model.load(wrapped)) == _fields(_load("mistral-7b"))

    wrapped = {"model_type": "mistral3", "text_config": CONFIGS["mistral-7b"]}
    assert _fields(Model.load(wrapped)) == _fields(_load("mistral-7b"))


def test_a_file_is_named_by_its_folder_or_by_what_it_says(tmp_path):
    """All of them are called config.json."""
    folder = tmp_path / "My_Model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIGS["gpt2"]))
    assert Model.load(file).name == "my-model"

    file.write_text(json.dumps(CONFIGS["gpt2"] | {"_name_or_path": "openai-community/gpt2-XL"}))
    assert Model.load(file).name == "gpt2-xl"
    assert Model.load(CONFIGS["gpt2"]).name == "model"

    # Dots that are no ending stay, as in names of the catalog.
    other = tmp_path / "Llava-1.5_7b.json"
    other.write_text(json.dumps(CONFIGS["gpt2"]))
    assert Model.load(other).name == "llava-1.5-7b"
    with gzip.open(tmp_path / "v0.1.json.gz", "wt") as packed:
        json.dump(CONFIGS["gpt2"], packed)
    assert Model.load(tmp_path / "v0.1.json.gz").name == "v0.1"


def test_what_was_read_is_written_and_read_again(tmp_path):
    """A model of the hub is one of ours from then on."""
    for name in ("llama4-maverick", "deepseek-v2-lite", "gemma3-4b"):
        model = _load(name)
        model.to_file(tmp_path / "m.yaml")
        assert Model.load(tmp_path / "m.yaml") == model
