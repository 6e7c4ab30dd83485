"""Hugging Face's config.json: what is refused, and how it is said."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.huggingface.formats import looks_like

FOLDER = Path(__file__).parents[1] / "data" / "huggingface"


def _published(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def text_of(name, **changes):
    """The nested language model of a published file, with keys changed."""
    return {"text_config": _published(name)["text_config"] | changes}


def faults_of(name, **changes):
    """What is wrong with a published file with keys changed, or removed if they are `...`."""
    data = _published(name) | changes
    with pytest.raises(InputError) as caught:
        Model.load({key: value for key, value in data.items() if value is not ...})
    return str(caught.value).splitlines()


STATES = "Mamba layers of this class are not modeled"
GATED = "silu, swish, situ, swigluoai, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2"
CODEBOOKS = "local codebooks and depth decoders are not modeled"
ZAMBA_SHAPE = "54 layers, hidden 2560, vocabulary 32000"
ZAMBA = {
    "architectures": ["Zamba2ForCausalLM"],
    "num_hidden_layers": 54,
    "hidden_size": 2560,
    "vocab_size": 32000,
}


@each_row(
    ("data", "message"),
    [
        (
            ZAMBA,
            f"architectures: 'Zamba2ForCausalLM': {STATES}; understood: {ZAMBA_SHAPE}",
        ),
        (
            {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"},
            "architectures: 'RwkvForCausalLM': linear attention is not modeled",
        ),
        (
            {"model_type": "t5", "d_model": 512},
            "model_type: 't5': encoder-decoder models are not modeled; understood: hidden 512",
        ),
        (
            {"architectures": ["NewForConditionalGeneration"], "is_encoder_decoder": True},
            "architectures: 'NewForConditionalGeneration': encoder-decoder models are not modeled",
        ),
        (
            {"architectures": ["NewForCausalLM"], "mamba_expand": 2, "n_layer": 4},
            f"architectures: 'NewForCausalLM': {STATES}; understood: 4 layers",
        ),
        (
            {"architectures": ["JetMoeForCausalLM"]},
            "architectures: 'JetMoeForCausalLM': experts of the attention are not modeled",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: 'LlamaForSequenceClassification': is not read; allowed: the arch",
        ),
        (
            {"architectures": ["LLamaForCausalLM"]},
            "architectures: 'LLamaForCausalLM': is not read; did you mean 'LlamaForCausalLM'?",
        ),
        (
            {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30"},
            "_class_name: 'UNet2DConditionModel': diffusion models are not modeled",
        ),
        (
            {
                "architectures": ["LlavaForConditionalGeneration"],
                "text_config": {"model_type": "zamba2", "hidden_size": 4096},
            },
            f"text_config.model_type: 'zamba2': {STATES}; understood: hidden 4096",
        ),
        (
            {
                "architectures": ["MoshiForConditionalGeneration"],
                "text_config": {"model_type": "moshi"},
            },
            f"architectures: 'MoshiForConditionalGeneration': {CODEBOOKS}",
        ),
        (
            {"architectures": ["Llama4ForConditionalGeneration"], "hidden_size": 5120},
            "text_config: is missing and has no default",
        ),
    ],
)
def test_what_is_not_modeled_is_refused_by_name(data, message):
    """With the reason, and what was understood."""
    with pytest.raises(InputError) as caught:
        Model.load(data)
    (fault,) = str(caught.value).splitlines()
    assert fault.startswith(f"model: {message}")
    assert "allowed" in message or fault == f"model: {message}"


@each_row(
    "architecture",
    [
        "HrmTextForCausalLM",
        "JetMoeForCausalLM",
        "LongcatFlashForCausalLM",
        "ZambaForCausalLM",
        "Zamba2ForCausalLM",
        "RecurrentGemmaForCausalLM",
        "BartForConditionalGeneration",
        "T5ForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "BertForSequenceClassification",
        "Inkling2LoopForCausalLM",
    ],
)
def test_other_kinds_of_layers_are_refused_with_a_reason(architecture):
    """Not as a name that was never heard of."""
    (fault,) = faults_of("llama3-8b", architectures=[architecture])

    assert "not modeled; understood: 32 layers, hidden 4096, 32 heads" in fault


MISSING = "is missing and has no default"
WORDS = "must be a list of 34 words, one for each layer"
LINEAR = ["linear_attention"] * 36
V3, LLAMA = "DeepseekV3ForCausalLM", "LlamaForCausalLM"
LEAST = "must be an integer from 1 to 2147483648"
WRONG = [
    ("llama3-8b", {"hidden_size": ...}, f"hidden_size: {MISSING}"),
    ("llama3-8b", {"hidden_size": 0}, f"hidden_size: 0: {LEAST}"),
    ("llama3-8b", {"vocab_size": True}, f"vocab_size: true: {LEAST}"),
    ("llama3-8b", {"vocab_size": 2.5}, f"vocab_size: 2.5: {LEAST}"),
    (
        "llama3-8b",
        {"num_hidden_layers": 10**6},
        "num_hidden_layers: 1000000: must be at most 10000",
    ),
    (
        "llama3-8b",
        {"num_attention_heads": 7, "num_key_value_heads": 7},
        "num_attention_heads: 7: must divide hidden_size 4096",
    ),
    (
        "llama3-8b",
        {"hidden_act": "tanh"},
        f"hidden_act: 'tanh': allowed: {GATED}",
    ),
    ("llama3-8b", {"mlp_bias": "no"}, "mlp_bias: 'no': must be true or false"),
    ("llama3-8b", {"attention_dropout": 2}, "attention_dropout: 2: must be a number from 0 to 1"),
    (
        "llama3-8b",
        {"sliding_window": 4096},
        f"sliding_window: 4096: sliding windows: not modeled for {LLAMA}",
    ),
    (
        "llama3-8b",
        {"num_local_experts": 8},
        f"num_local_experts: 8: experts: not modeled for {LLAMA}",
    ),
    (
        "llama3-8b",
        {"layer_types": ["mamba"]},
        f"layer_types: ['mamba']: kinds of layers: not modeled for {LLAMA}",
    ),
    (
        "llama3-8b",
        {"is_encoder_decoder": True},
        f"is_encoder_decoder: true: an encoder next to the decoder: not modeled for {LLAMA}",
    ),
    ("mistral-7b", {"intermediate_size": ...}, f"intermediate_size: {MISSING}"),
    ("mixtral-8x7b", {"num_local_experts": ...}, f"num_local_experts: {MISSING}"),
    (
        "qwen3-8b",
        {"layer_types": LINEAR},
        "layer_types: 'linear_attention': not modeled; allowed: full_attention, sliding_attention",
    ),
    ("qwen3-30b-a3b", {"mlp_only_layers": "0"}, "mlp_only_layers: '0': must be a list of integers"),
    (
        "deepseek-v3",
        {"topk_method": "x"},
        "topk_method: 'x': allowed: greedy, group_limited_greedy, noaux_tc",
    ),
    (
        "deepseek-v3",
        {"attention_bias": True},
        f"attention_bias: true: biases of the attention: not modeled for {V3}",
    ),
    (
        "deepseek-v3",
        {"index_topk": 2048},
        f"index_topk: 2048: sparse attention: not modeled for {V3}",
    ),
    (
        "deepseek-v3",
        {"num_key_value_heads": 8},
        "num_key_value_heads: 8: must be num_attention_heads 128: latent attention has no groups",
    ),
    ("deepseek-v3", {"moe_layer_freq": [0, 1]}, f"moe_layer_freq: [0, 1]: {LEAST}"),
    (
        "gemma3-4b",
        text_of("gemma3-4b", layer_types=["full_attention"]),
        f"text_config.layer_types: ['full_attention']: {WORDS}",
    ),
    ("gemma3-4b", text_of("gemma3-4b", hidden_size="x"), f"text_config.hidden_size: 'x': {LEAST}"),
    (
        "llama4-scout",
        text_of("llama4-scout", no_rope_layers=[1, 0]),
        "text_config.no_rope_layers: [1, 0]: must be a list of 48 integers, one for each layer",
    ),
    (
        "command-r",
        {"use_qk_norm": True},
        "use_qk_norm: true: norms of queries and keys: not modeled for CohereForCausalLM",
    ),
    (
        "gpt2",
        {"add_cross_attention": True},
        "add_cross_attention: true: cross-attention: not modeled for GPT2LMHeadModel",
    ),
    ("gpt2", {"n_head": 7}, "n_head: 7: must divide n_embd 768"),
]


@each_row(("name", "changes", "message"), WRONG)
def test_a_bad_key_is_one_clear_line(name, changes, message):
    """Where it is, what it is, and what is allowed."""
    assert faults_of(name, **changes) == [f"model: {message}"]


def test_all_that_is_wrong_is_told_at_once():
    """One line for each."""
    faults = faults_of("llama3-8b", hidden_size=..., vocab_size=-1, num_experts=4)

    assert [fault.split(": ")[1] for fault in faults] == [
        "hidden_size",
        "vocab_size",
        "num_experts",
    ]


def test_what_our_model_refuses_is_an_error_too():
    """9 heads in groups of 2."""
    (fault,) = faults_of("llama3-8b", num_attention_heads=9, head_dim=128, num_key_value_heads=2)

    assert fault == "model: layers[0].attention: kv_heads 2 must divide heads 9"


@each_row("noun", [System, Strategy])
def test_a_model_is_no_other_noun(noun):
    """The message names the kind of file."""
    with pytest.raises(InputError, match="holds a Hugging Face model, not a"):
        noun.load(_published("llama3-8b"))


@each_row(
    "data",
    [
        {"model_type": "dense", "hidden_size": 1, "head_num": 1},
        {"hidden": 1, "layers": []},
        {"name": "x"},
        {},
    ],
)
def test_files_of_others_are_not_taken_for_hugging_faces(data):
    """SimuMax's have a `model_type` too."""
    assert not looks_like(data)


NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
JUNK = [None, 0, -1, 0.5, "x", "", [], {}, True, 2**40, 10**400, [1], [None], {"a": 1}]


@examples(200)
@given(st.data())
def test_whatever_a_key_holds_it_is_read_or_refused(data):
    """Never a traceback of another kind."""
    config = _published(data.draw(st.sampled_from(NAMES)))
    nested = [key for key in ("text_config", "vision_config") if key in config]
    place = data.draw(st.sampled_from(["", *nested]))
    inner = config[place] if place else config
    key = data.draw(st.sampled_from([*sorted(inner), "layer_types", "rope_parameters"]))
    inner[key] = data.draw(st.sampled_from(JUNK))
    with suppress(InputError):
        model = Model.load(config)
        assert len(model.order) == model.depth
