"""Rows of hybrid models: by the name of a model of the catalog, or by stated sizes."""

import pytest
from published_samples import row_of

from published_rows.architecture import model_of
from shardwise import Model
from shardwise.config.layer_precision import ends_in_16_bits
from shardwise.validate.measured.runs import NotModeledError

SIZES = {
    "name": "mine",
    "arch": "hybrid-gdn-dense",
    "layers": 12,
    "hidden": 1024,
    "ffn": 4096,
    "vocab": 128256,
    "seq_len": 2048,
    "mlp": "swiglu",
    "attention": "none (gated delta rule in every layer)",
    "linear_key_heads": 4,
    "linear_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "conv_kernel": 4,
}


def test_a_name_of_the_catalog_gives_the_sizes():
    """Nothing but a name and a length is the model of the catalog, which is said."""
    assumed: list[str] = []
    row = row_of("a", model={"name": "Nemotron-H-56B", "seq_len": 4096, "arch": "hybrid-mamba2"})
    model = model_of(row, assumed)
    assert (model.pattern, model.seq_len) == (Model.load("nemotron-h-56b").pattern, 4096)
    assert assumed == ["shape of nemotron-h-56b"]


def test_recipes_of_megatron_bridge_train_two_modules():
    """Nemotron 3 Super has two modules of multi-token prediction there, and none with AutoModel."""
    fields = {"name": "Nemotron-3-Super-120B-A12B", "arch": "hybrid-mamba2-latentmoe"}
    bridge = row_of("a", model=fields, software={"framework": "Megatron-Bridge"})
    assert model_of(bridge, []).mtp == 2
    stated = row_of("b", model=fields | {"mtp_layers": 1})
    assert model_of(stated, []).mtp == 1


def test_recipes_of_megatron_bridge_for_nvfp4_leave_blocks_in_bf16():
    """The last 14 of Nemotron 3 Super; all blocks are quantized in mxfp8."""
    fields = {"name": "Nemotron-3-Super-120B-A12B", "arch": "hybrid-mamba2-latentmoe"}
    bridge = {"model": fields, "software": {"framework": "Megatron-Bridge"}}
    assumed: list[str] = []
    model = model_of(row_of("a", precision="nvfp4", **bridge), assumed)
    assert ends_in_16_bits(model) == (0, 14)
    assert "the last 14 blocks in bf16" in assumed
    assert ends_in_16_bits(model_of(row_of("b", precision="mxfp8", **bridge), [])) == (0, 0)


def test_other_sizes_than_those_of_the_catalog_are_refused():
    """A row that names a model and states another width is not that model."""
    fields = {"name": "Nemotron-H-56B", "arch": "hybrid-mamba2", "hidden": 4096, "ffn": 1}
    with pytest.raises(NotModeledError, match=r"layers is not stated|sizes of its mixers"):
        model_of(row_of("a", model=fields), [])


def test_stated_sizes_of_mixers():
    """Twelve layers of a gated delta rule and an MLP, and the same by a pattern with attention."""
    model = model_of(row_of("a", model=SIZES), [])
    assert [(one.count, one.mixer.kind) for one in model.layers] == [(12, "gated_delta")]
    assert model.layers[0].mlp.ffn == 4096
    pattern = SIZES | {"heads": 16, "attention": "gqa", "layer_pattern": "*-M-M-"}
    model = model_of(row_of("b", model=pattern), [])
    assert (model.pattern, model.attentions[0].heads, model.mixers[0].value_heads) == (
        "*-M-M-",
        16,
        8,
    )


def test_sizes_that_are_not_stated_are_refused():
    """Mixers without their heads are not guessed."""
    with pytest.raises(NotModeledError, match="sizes of its mixers are not stated"):
        model_of(row_of("a", model={**SIZES, "linear_key_heads": None}), [])
