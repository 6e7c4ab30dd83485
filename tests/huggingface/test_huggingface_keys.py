"""Keys of a config.json that are misspelt, foreign, left out or out of range."""

import json
from pathlib import Path

import pytest

from rows import each_row
from shardwise import InputError, Model
from shardwise.huggingface.keys import (
    EXPERTS,
    MATTERS,
    OF_EXPERTS,
    TEXT_TYPES,
    class_defaults,
    is_without_effect,
)
from shardwise.huggingface.readers import MODEL_TYPES, READERS
from shardwise.ops.param_count import count_parameters

FOLDER = Path(__file__).parents[1] / "data" / "huggingface"
LLAMA, MIXTRAL, QWEN3 = "LlamaForCausalLM", "MixtralForCausalLM", "Qwen3ForCausalLM"


def _changed(name, **changes):
    """A published file with keys changed, or removed if they are `...`."""
    data = json.loads((FOLDER / f"{name}.json").read_text()) | changes
    return {key: value for key, value in data.items() if value is not ...}


def _faults(name, **changes):
    with pytest.raises(InputError) as caught:
        Model.load(_changed(name, **changes))
    return [line.removeprefix("model: ") for line in str(caught.value).splitlines()]


@each_row(
    ("name", "given", "meant"),
    [
        ("llama3-8b", "num_key_value_head", "num_key_value_heads"),
        ("llama3-8b", "num_key_values_heads", "num_key_value_heads"),
        ("llama3-8b", "tie_word_embedding", "tie_word_embeddings"),
        ("llama3-8b", "mlp_biass", "mlp_bias"),
        ("qwen3-8b", "layer_type", "layer_types"),
        ("deepseek-v3", "n_groups", "n_group"),
        ("gemma3-1b", "sliding_window_patern", "sliding_window_pattern"),
        ("gpt2", "n_iner", "n_inner"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_one_meant(name, given, meant):
    """It would have left the default in force without a word."""
    message = _faults(name, **{given: 4, meant: ...})
    assert f"{given}: unknown key; did you mean {meant!r}?" in message


@each_row("name", ["llama3-8b", "deepseek-v3", "starcoder2-3b", "gpt2"])
@each_row("letter", ["first", "last"])
def test_a_key_that_is_needed_and_misspelt_is_told_both_ways(name, letter):
    """As missing, and as the unknown one."""
    needed = "vocab_size"
    wrong = needed[1:] if letter == "first" else needed[:-1]
    message = _faults(name, **{wrong: 1, needed: ...})

    assert f"{needed}: is missing and has no default" in message
    assert f"{wrong}: unknown key; did you mean {needed!r}?" in message


def test_a_key_that_is_alike_but_beside_the_right_one_is_no_typing_error():
    """Only what was looked for and not found can have been meant."""
    model = Model.load(_changed("llama3-8b", num_key_value_head=4))

    assert model.layers[0].attention.kv_heads == 8
    assert model.sources[""].text.endswith("; keys not used: num_key_value_head")


@each_row("key", ["attention_out_bias", "num_kv_heads", "hidden_sizes_of_towers"])
def test_a_key_that_is_somewhat_like_another_is_not_taken_for_it(key):
    """It may well be one of its own."""
    absent = {"num_key_value_heads": ..., "attention_bias": ...}
    model = Model.load(_changed("llama3-8b", **absent, **{key: 1}))
    assert model.sources[""].text.endswith(f"; keys not used: {key}")


@each_row(
    "keys",
    [
        {"_sliding_window_pattern": 6},  # as newer files of Gemma 3 have it
        {"qk_head_dim": 192, "rope_interleave": True},  # newer files of DeepSeek V3
        {"bos_token_id": 1, "eos_token_ids": [2], "image_token_index": 3},
        {"transformers_version": "4.57.0", "torch_dtype": "bfloat16", "use_cache": True},
    ],
)
@each_row("name", ["llama3-8b", "deepseek-v3", "gemma3-1b"])
def test_keys_that_are_known_to_change_nothing_are_not_told(name, keys):
    """They stand in most files."""
    changed = Model.load(_changed(name, **keys))

    assert changed == Model.load(_changed(name))
    assert "not used" not in changed.sources[""].text


def test_keys_that_nobody_knows_are_told_with_the_source():
    """Published files carry whatever their authors liked."""
    model = Model.load(_changed("qwen2-7b", foo_bar=3, author={"name": "x"}, foo=None))

    assert model.sources[""].text == (
        "Hugging Face's config.json of model; keys not used: author, foo, foo_bar"
    )
    assert model.layers == Model.load(_changed("qwen2-7b")).layers


@each_row("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_published_files_have_no_key_that_nobody_knows(name):
    """Those of the models that are tried here."""
    assert "not used" not in Model.load(FOLDER / f"{name}.json").sources[""].text


@each_row(
    ("key", "value", "why"),
    [
        ("n_shared_experts", 2, "shared experts: not modeled for {}"),
        ("n_shared_experts", 1, "shared experts: not modeled for {}"),
        ("num_experts", 8, "experts: not modeled for {}"),
        ("moe_intermediate_size", 512, "of experts, which {} has not"),
        ("num_experts_per_tok", 4, "of experts, which {} has not"),
        ("first_k_dense_replace", 3, "of experts, which {} has not"),
    ],
)
@each_row(("name", "architecture"), [("llama3-8b", LLAMA), ("qwen3-8b", QWEN3)])
def test_a_dense_architecture_has_no_keys_of_experts(name, architecture, key, value, why):
    """They describe another model."""
    assert _faults(name, **{key: value}) == [f"{key}: {value}: {why.format(architecture)}"]


def test_keys_of_experts_that_say_there_are_none_are_taken():
    """Nothing, or one of each."""
    none = {"num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": None}
    none |= {"n_shared_experts": 0, "decoder_sparse_step": 1}

    assert Model.load(_changed("llama3-8b", **none)) == Model.load(_changed("llama3-8b"))


def test_experts_without_shared_ones_have_no_keys_of_these():
    """Mixtral's class reads none."""
    message = _faults("mixtral-8x7b", n_shared_experts=1)
    assert message == [f"n_shared_experts: 1: shared experts: not modeled for {MIXTRAL}"]
    Model.load(_changed("qwen3-coder-480b-a35b", shared_expert_intermediate_size=0))


def test_norms_that_a_class_always_has_may_be_told():
    """Qwen3-Coder does, though its class does not read it."""
    message = _changed("qwen3-coder-480b-a35b", use_qk_norm=True)
    assert Model.load(message) == Model.load(_changed("qwen3-coder-480b-a35b"))
    assert _faults("qwen3-8b", use_qk_norm=False) == [
        "use_qk_norm: false: must be true: the class has these norms always"
    ]


NAMES = "must be a list of names"


@each_row(
    ("name", "changes", "message"),
    [
        ("llama3-8b", {"architectures": "abc"}, f"architectures: 'abc': {NAMES}"),
        ("llama3-8b", {"architectures": 3}, f"architectures: 3: {NAMES}"),
        ("llama3-8b", {"architectures": [3]}, f"architectures: [3]: {NAMES}"),
        (
            "llama3-8b",
            {"architectures": "x", "model_type": ...},
            f"architectures: 'x': {NAMES}",
        ),
        (
            "llama3-8b",
            {"architectures": None, "model_type": ...},
            "architectures: is missing, and so is model_type",
        ),
        ("llama3-8b", {"model_type": 3}, "model_type: 3: must be a name"),
        (
            "llama3-8b",
            {"model_type": "mixtral"},
            f"model_type: 'mixtral': is the type of {MIXTRAL}; architectures says {LLAMA}",
        ),
        ("llama3-8b", {"rope_scaling": "abc"}, "rope_scaling: 'abc': must be a mapping"),
        ("llama3-8b", {"rope_parameters": [8]}, "rope_parameters: [8]: must be a mapping"),
        (
            "deepseek-v3",
            {"n_group": "2"},
            "n_group: '2': must be an integer from 0 to 2147483648",
        ),
        (
            "deepseek-v3",
            {"n_group": 1.5},
            "n_group: 1.5: must be an integer from 0 to 2147483648",
        ),
        ("deepseek-v3", {"n_group": 7}, "n_group: 7: must divide n_routed_experts 256"),
        ("ling-1t", {"n_group": 7}, "n_group: 7: must divide num_experts 256"),
        ("deepseek-v3", {"topk_group": 9}, "topk_group: 9: must be at most n_group 8"),
        (
            "deepseek-v3",
            {"n_group": None, "topk_group": 2},
            "topk_group: 2: must be at most n_group 1",
        ),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [0, 48]},
            "mlp_only_layers: [0, 48]: must be layers from 0 to 47",
        ),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [-1]},
            "mlp_only_layers: [-1]: must be layers from 0 to 47",
        ),
        (
            "deepseek-v3",
            {"first_k_dense_replace": 62},
            "first_k_dense_replace: 62: must be at most num_hidden_layers 61",
        ),
    ],
)
def test_what_is_out_of_range_is_refused(name, changes, message):
    """By its own key, and with what it goes against."""
    assert _faults(name, **changes) == [message]


def test_the_ends_of_these_ranges_are_taken():
    """All groups, all layers."""
    assert Model.load(_changed("deepseek-v3", topk_group=8)).layers[1].moe.top_groups == 8
    assert Model.load(_changed("deepseek-v3", n_group=0, topk_group=0)).layers[1].moe
    dense = Model.load(_changed("deepseek-v3", first_k_dense_replace=61))
    assert [layer.moe for layer in dense.layers] == [None]
    kinds = Model.load(_changed("qwen3-30b-a3b", mlp_only_layers=[0, 47])).layers
    assert [(layer.count, layer.moe is None) for layer in kinds] == [(2, True), (46, False)]


def test_the_type_of_the_whole_beside_its_language_model_is_no_contradiction():
    """Language models that were taken out of others keep it."""
    for kind in ("llama4", "gemma3", "unheard_of"):
        Model.load(_changed("llama3-8b", model_type=kind))
    data = _changed("gemma3-4b", model_type="llava")
    with pytest.raises(InputError, match="model_type: 'llava': is the type of LlavaFor"):
        Model.load(data)


def test_llava_is_a_llama_with_the_defaults_of_its_class():
    """Its published file says little more than the size of the vocabulary."""
    model = Model.load(FOLDER / "llava-1.5-7b.json")
    layer = model.layers[0]

    assert (model.hidden, model.depth, model.vocab) == (4096, 32, 32_064)
    assert (layer.attention.heads, layer.attention.kv_heads, layer.mlp.ffn) == (32, 32, 11_008)
    assert count_parameters(model).total == 6_738_415_616 + 64 * 2 * 4096  # 64 more words
    assert model.left_out == (
        "vision tower clip_vision_model: 24 layers of width 1024, about 0.3 B parameters",
    )
    assert model.sources[""].text.endswith(
        "; defaults of its class: hidden_size, intermediate_size, num_attention_heads, "
        "num_hidden_layers"
    )


def test_llava_next_on_mistral_has_the_heads_of_its_class():
    """As llava-v1.6-mistral-7b-hf is published: a null is a value of its own."""
    text = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32_064}
    text |= {"intermediate_size": 14_336, "num_key_value_heads": 8}
    whole = {"architectures": ["LlavaNextForConditionalGeneration"]}
    model = Model.load(whole | {"text_config": text | {"sliding_window": None}})
    assert (model.layers[0].attention.kv_heads, model.layers[0].attention.window) == (8, None)

    model = Model.load(whole | {"text_config": text})
    assert model.layers[0].attention.window == 4096


# Hidden width, layers, heads, groups, width of the MLP, words: arguments of the classes.
CLASSES = {
    "gemma3_text": (2304, 26, 8, 4, 9216, 262_208),
    "llama": (4096, 32, 32, 32, 11_008, 32_000),
    "mistral": (4096, 32, 32, 8, 14_336, 32_000),
    "qwen2": (4096, 32, 32, 32, 22_016, 151_936),
    "qwen2_vl_text": (8192, 80, 64, 8, 29_568, 152_064),
}


@each_row("kind", CLASSES)
def test_the_defaults_of_every_class_are_a_model(kind):
    """With nothing but its type."""
    wrapper = "LlavaNextForConditionalGeneration"
    model = Model.load({"architectures": [wrapper], "text_config": {"model_type": kind}})
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    heads = (attention.heads, attention.kv_heads)

    assert (model.hidden, model.depth, *heads, mlp.ffn, model.vocab) == CLASSES[kind]


@each_row("whole", TEXT_TYPES)
def test_a_nested_language_model_may_leave_out_its_type(whole):
    """What it is inside implies it."""
    model = Model.load({"architectures": [whole], "text_config": {"vocab_size": 7}})
    assert (model.vocab, model.hidden) == (7, class_defaults(TEXT_TYPES[whole])["hidden_size"])


def test_a_language_model_alone_is_not_filled_in():
    """Its published files say all of it."""
    assert "num_hidden_layers: is missing and has no default" in _faults(
        "llama3-8b", num_hidden_layers=...
    )


def test_a_misspelt_key_is_seen_beside_a_default():
    """The default must not hide it."""
    text = {"model_type": "llama", "num_hidden_layer": 40}
    with pytest.raises(InputError) as caught:
        Model.load({"architectures": ["LlavaForConditionalGeneration"], "text_config": text})
    assert str(caught.value) == (
        "model: text_config.num_hidden_layer: unknown key; did you mean 'num_hidden_layers'?"
    )


def test_a_nested_qwen_may_name_the_whole():
    """As newer files of Qwen2.5-VL do."""
    named = ["Qwen2_5_VLForConditionalGeneration"]
    text = _changed("qwen2-7b", architectures=named, model_type="qwen2_5_vl_text")
    whole = {"architectures": named, "model_type": "qwen2_5_vl", "text_config": text}

    assert Model.load(whole).layers == Model.load(_changed("qwen2-7b")).layers


def test_the_tables_of_keys_do_not_overlap():
    """A key that matters is not one without effect."""
    assert not [key for key in (*MATTERS, *EXPERTS, *OF_EXPERTS) if is_without_effect(key)]
    assert MATTERS.keys() >= EXPERTS
    assert set(MODEL_TYPES.values()) <= READERS.keys()
