"""Families of transformers: parameters of default and odd sizes, and reasons for refusals.

Stored figures are those of models that transformers 5.23 builds on the meta device;
`tests/pytorch/test_huggingface_transformers.py` compares with transformers itself.
"""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from huggingface_configs import CONFIGS, FAMILIES, changed
from rows import each_row
from shardwise import InputError, Model
from shardwise.cli import run
from shardwise.huggingface import modules
from shardwise.huggingface.readers import READERS
from shardwise.huggingface.refusals import REFUSED
from shardwise.ops.param_count import count_parameters

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-families.md"
READ = {k: row for k, row in FAMILIES.items() if not row.keys() & {"refused", "modules"}}
COUNTED = [
    (kind, which, row[count])
    for kind, row in READ.items()
    for which, count in (("default", "parameters"), ("small", "small_parameters"))
    if row.get(count) is not None and f"{which}_refused" not in row
]


def refusal(data):
    """The one fault of a file."""
    with pytest.raises(InputError) as caught:
        Model.load(data)
    (fault,) = str(caught.value).splitlines()
    return fault


@each_row(("kind", "which", "parameters"), COUNTED)
def test_parameters_are_those_of_transformers(kind, which, parameters):
    """To the last one, by default and with odd sizes, tied and untied."""
    assert count_parameters(Model.load(READ[kind][which])).total == parameters


def test_most_families_are_counted_both_ways():
    """Those of which transformers cannot build the defaults are few."""
    assert len(READ) >= 160
    assert len(COUNTED) >= 2 * len(READ) - 15


@each_row("kind", [kind for kind, row in FAMILIES.items() if "refused" in row])
def test_other_families_are_refused_by_what_is_not_modeled(kind):
    """By class and by type."""
    row = FAMILIES[kind]
    assert row["architecture"] not in READERS
    if row["refused"] in REFUSED:  # others only with transformers, by their modules
        assert row["refused"] in refusal({"architectures": [row["architecture"]]})


@pytest.mark.parametrize("kind", [kind for kind, row in FAMILIES.items() if row.get("modules")])
def test_families_without_a_record_need_transformers(kind, monkeypatch):
    """The message says which extra to install."""
    monkeypatch.setattr(modules, "is_installed", lambda: False)
    fault = refusal(FAMILIES[kind]["default"])
    assert "; with the extra torch, others that transformers knows by their model_type" in fault


def test_the_page_lists_every_family_with_its_parameters():
    """As the script wrote it."""
    lines = PAGE.read_text().splitlines()
    for kind, row in FAMILIES.items():
        size = f"{row['parameters']:,}" if row["parameters"] else ""
        note = row.get("refused", row.get("default_refused", ""))
        note = "read from its modules" if row.get("modules") else note
        assert f"| `{kind}` | `{row['architecture']}` | {size} | {note} |" in lines


@each_row("kind", [kind for kind, row in READ.items() if "text_config" not in row["default"]])
def test_a_type_alone_names_its_family(kind):
    """Files of language models inside others have no architecture."""
    data = {key: value for key, value in READ[kind]["default"].items() if key != "architectures"}
    if "default_refused" not in READ[kind]:
        assert Model.load(data).layers == Model.load(READ[kind]["default"]).layers


# Sizes of checkpoints on the hub, in parameters, by what their files say.
CHECKPOINTS = {
    "bloom-560m": (
        559_214_592,
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16}
        | {"vocab_size": 250_880},
    ),
    "bert-base-uncased": (
        109_514_298,
        {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 768}
        | {"num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
        | {"vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2},
    ),
    "dbrx": (
        131_596_523_520,
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100_352,
        }
        | {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "tie_word_embeddings": False}
        | {"ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4}},
    ),
    "mpt-7b": (
        6_649_286_656,
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50_432},
    ),
    "opt-125m": (
        125_239_296,
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072}
        | {"num_attention_heads": 12, "vocab_size": 50_272, "max_position_embeddings": 2048}
        | {"word_embed_proj_dim": 768},
    ),
    "roberta-large": (
        355_412_057,
        {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "hidden_size": 1024}
        | {"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        | {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "phi-2": (
        2_779_683_840,
        {"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "vocab_size": 51_200}
        | {"num_attention_heads": 32, "intermediate_size": 10_240, "partial_rotary_factor": 0.4},
    ),
}


@each_row("name", CHECKPOINTS)
def test_parameters_are_those_of_the_checkpoint(name):
    """Of files as they were published."""
    parameters, data = CHECKPOINTS[name]
    assert count_parameters(Model.load(data)).total == parameters


def test_the_command_line_reads_a_family(capsys, tmp_path):
    """BLOOM: ALiBi, and a norm of the embedding."""
    file = tmp_path / "bloom.json"
    file.write_text(json.dumps(CHECKPOINTS["bloom-560m"][1]))
    assert run(["models", str(file), "--json"]) == 0
    assert '"parameters": 559214592' in capsys.readouterr().out


def test_experts_are_counted_under_both_names():
    """Transformers 5 writes `num_local_experts`, published files say `num_experts`."""
    published = CONFIGS["qwen3-30b-a3b"]
    renamed = changed("qwen3-30b-a3b", num_experts=...) | {"num_local_experts": 128}
    assert Model.load(renamed).layers == Model.load(published).layers
    both = published | {"num_local_experts": 64}
    assert refusal(both) == (
        "model: num_local_experts: 64: is num_experts under another name, which is 128"
    )


@each_row(
    ("name", "key", "field", "value"),
    [
        ("qwen3-8b", "head_dim", "head_dim", 128),
        ("gemma-7b", "head_dim", "head_dim", 256),
        ("mistral-7b", "num_key_value_heads", "kv_heads", 8),
        ("mistral-7b", "sliding_window", "window", 4096),
        ("glm4.5", "partial_rotary_factor", "rotary_dim", 64),
    ],
)
def test_what_a_class_fills_in_is_filled_in_and_named(name, key, field, value):
    """As transformers does with files that leave it out."""
    model = Model.load(changed(name, **{key: ...}))
    assert getattr(model.layers[0].attention, field) == value
    assert f"defaults of its class: {key}" in model.sources[""].text.replace("rope_parameters.", "")


def test_defaults_of_experts_are_filled_in():
    """How many are chosen, and how many layers are dense."""
    assert Model.load(changed("mixtral-8x7b", num_experts_per_tok=...)).layers[0].moe.top_k == 2
    first = Model.load(changed("deepseek-v3", first_k_dense_replace=...)).layers[0]
    assert (first.count, first.moe) == (3, None)


def test_an_encoder_sees_both_ways():
    """Unless its file makes a decoder of it."""
    data = CHECKPOINTS["bert-base-uncased"][1]
    layer = Model.load(data).layers[0]
    assert (layer.attention.causal, layer.norms) == (False, "stream")
    assert Model.load(data | {"is_decoder": True}).layers[0].attention.causal


def test_layers_of_a_vision_transformer_are_read():
    """ViT-B/16 has 85,800,194 parameters with a head of two classes; what is left out is named."""
    data = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": 224}
    data |= {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    data |= {"intermediate_size": 3072, "patch_size": 16}
    model = Model.load(data)
    patches, positions, classifier = 768 * 3 * 256 + 768, 768 * (197 + 1), 2 * 768 + 2
    assert model.seq_len == 197
    assert not model.layers[0].attention.causal
    assert model.left_out == ("embedding of patches and their positions", "pooler or classifier")
    assert count_parameters(model).total + patches + positions + classifier == 85_800_194
    assert refusal(data | {"image_size": [224]}).startswith("model: image_size: [224]: must be")
    assert refusal(data | {"patch_size": 0}).startswith("model: patch_size: 0: must be")
    assert Model.load(data | {"image_size": [32, 64]}).seq_len == 2 * 4 + 1


@each_row(
    ("given", "meant"),
    [
        ("LamaForCausalLM", "LlamaForCausalLM"),
        ("mistralforcausallm", "MistralForCausalLM"),
        ("Quen3ForCausalLM", "Qwen3ForCausalLM"),
        ("Qwen3MOEForCausalLM", "Qwen3MoeForCausalLM"),
        ("OPTForCausaLM", "OPTForCausalLM"),
    ],
)
def test_a_near_spelling_is_suggested(given, meant):
    """A letter too many or too few."""
    assert f"did you mean {meant!r}?" in refusal({"architectures": [given]})


@each_row(
    "name",
    [
        *("GranitForSomethingLM", "OptimaForCausalLM", "Qwen9ForCausalLM", "GemmiteForCausalLM"),
        *("Llama5ForCausalLM", "PhotonForCausalLM", "HeliosForCausalLM"),
    ],
)
def test_another_family_is_not_suggested(name):
    """A name of its own is no typing error."""
    fault = refusal({"architectures": [name]})
    assert "is not read" in fault
    assert "did you mean" not in fault


@each_row(
    ("kind", "key", "value", "problem"),
    [
        ("opt", "do_layer_norm_before", False, "norms behind the residual additions"),
        ("opt", "word_embed_proj_dim", 512, "an embedding of another width"),
        ("bloom", "apply_residual_connection_post_layernorm", True, "residuals from behind"),
        ("stablelm", "qk_layernorm", True, "norms of single heads"),
        ("mpt", "no_bias", False, "biases"),
        ("ernie4_5_moe", "use_bias", True, "biases"),
        ("bert", "tie_word_embeddings", False, "an untied head"),
        ("bert", "position_embedding_type", "relative_key", "relative positions"),
        ("dots1", "mlp_layer_types", ["dense"], "must be a list of 5 words"),
    ],
)
def test_what_a_family_can_be_but_is_not_modeled_is_refused(kind, key, value, problem):
    """By its own key."""
    fault = refusal(READ[kind]["small"] | {key: value})
    assert fault.startswith(f"model: {key}: ")
    assert problem in fault


@pytest.mark.nightly
@pytest.mark.parametrize("kind", READ)
def test_whatever_a_key_of_a_family_holds_it_is_read_or_refused(kind):
    """Never a traceback of another kind."""
    small = READ[kind].get("small", {})
    for key in (*small, "layer_types", "mlp_layer_types", "no_rope_layers"):
        for value in (None, -1, 0.5, "x", [], [None], {"a": 1}, True, 10**400):
            with suppress(InputError):
                Model.load(small | {key: value})
