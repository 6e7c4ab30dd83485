"""Families against transformers itself, and those that are read from its modules."""

import pytest

from huggingface_configs import FAMILIES
from shardwise import InputError, Model, estimate
from shardwise.ops.param_count import count_parameters

pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = [kind for kind, row in FAMILIES.items() if row.get("small_parameters")]
OF_MODULES = [kind for kind, row in FAMILIES.items() if row.get("modules")]
BIASES = ("e_score_correction_bias", "expert_bias")
TOWERS = ("vision", "visual", "audio", "multi_modal_projector", "embed_tokens_extend")


@pytest.mark.parametrize("kind", SMALL)
def test_stored_parameters_are_those_of_the_modules(kind):
    """With odd sizes, on the meta device."""
    keys = {k: v for k, v in FAMILIES[kind]["small"].items() if k != "model_type"}
    if "time_step_limit" in keys:  # infinity has no JSON
        keys["time_step_limit"] = (0.0, float("inf"))
    config = AutoConfig.for_model(kind, pad_token_id=0, **keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = [
        p
        for n, p in model.named_parameters()
        if (p.requires_grad or n.endswith(BIASES)) and not any(part in n for part in TOWERS)
    ]
    held += [b for n, b in model.named_buffers() if n.endswith(BIASES)]
    assert sum(tensor.numel() for tensor in held) == FAMILIES[kind]["small_parameters"]


@pytest.mark.parametrize("kind", OF_MODULES)
def test_a_family_without_a_record_is_read_from_its_modules(kind):
    """By default, to the last parameter; and its step is estimated."""
    data = FAMILIES[kind]["default"]
    model = Model.load(data)
    assert count_parameters(model).total == FAMILIES[kind]["parameters"]
    assert model.sources[""].text.endswith("read from the modules of transformers")
    strategy = {"gpus": 64, "gbs": 64, "zero": 3, "seq_len": 1024, "recompute": "full"}
    assert estimate(model, "h100-sxm", strategy).step_time_s > 0


def test_modules_say_windows_experts_and_norms():
    """Of families whose layers differ."""
    model = Model.load(FAMILIES["flint"]["default"])
    assert {layer.attention.window is None for layer in model.layers} == {True, False}
    assert {layer.moe is None for layer in model.layers} == {True, False}
    assert all(layer.attention.sinks for layer in model.layers)
    assert all(layer.attention.qk_norm == "head" for layer in model.layers)
    assert Model.load(FAMILIES["kolibri1"]["default"]).layers[0].norms == "both"


def test_a_record_and_the_modules_agree():
    """Layer by layer, of families that have both."""
    from shardwise.huggingface.modules import decoder_of_modules  # noqa: PLC0415
    from shardwise.huggingface.readers import READERS  # noqa: PLC0415

    kinds = ("llama", "qwen2", "qwen3_moe", "gpt2", "gemma3_text", "gpt_oss", "olmo2", "glm4_moe")
    for kind in kinds:
        data = FAMILIES[kind]["default"]
        assert data["architectures"][0] in READERS
        read = Model.load(data)
        fields = decoder_of_modules(kind, data)
        one_by_one = Model.validated(
            fields | {"name": "m", "layers": [{"count": 1, **layer} for layer in fields["layers"]]}
        )
        expected = [read.layers[i].model_copy(update={"count": 1}) for i in read.order]
        assert list(one_by_one.layers) == expected, kind


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            FAMILIES["helium"]["small"],
            "its modules have 144540 parameters, of which 151740 are modeled",
        ),
        ({"model_type": "unheard_of"}, "transformers has no causal language model of this type"),
        (
            {"model_type": "flint", "layer_types": ["linear_attention"], "num_hidden_layers": 1},
            "linear_attention",
        ),
    ],
)
def test_what_modules_cannot_say_is_refused(data, told):
    """In one line."""
    with pytest.raises(InputError) as caught:
        Model.load(data)
    (fault,) = str(caught.value).splitlines()
    assert told in fault
