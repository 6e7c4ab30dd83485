"""Fields that a launcher has no option for are refused, whichever they are."""

from typing import Any

import samples
from rows import each_row
from shardwise.config.model import Model, uncommon_fields
from shardwise.launchers.accelerate.tensor_plan import missing_modules
from shardwise.launchers.megatron.core_model import model_faults
from shardwise.launchers.torchtitan.models import builder_of
from shardwise.report.deepflow import _of_model

INDEX = {"heads": 2, "head_dim": 8, "top_k": 2, "block": 8}
GATED = {"activation": "swiglu", "bias": False}
MOE = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"}


def llama(attention: dict[str, Any] | None = None, **fields: Any) -> Model:
    """Llama's kind with other attention, MLP or experts."""
    heads = {"kv_heads": 8, "bias": "none"} | (attention or {})
    layer = samples.layer(attention=heads, mlp=GATED | fields.pop("mlp", {}))
    if (moe := fields.pop("moe", None)) is not None:
        layer = {key: value for key, value in layer.items() if key != "mlp"} | {"moe": MOE | moe}
    layer["more_parameters"] = fields.pop("more_of_layer", 0)
    return samples.llama(layers=[layer], **fields)


MODELS = {
    "layers[0].attention.gate": llama({"gate": "head"}),
    "layers[0].attention.indexer": llama({"indexer": INDEX}),
    "layers[0].attention.tied_values": llama({"tied_values": True}),
    "layers[0].attention.shared_keys": llama({"shared_keys": True}),
    "layers[0].attention.out_norm": llama({"out_norm": True}),
    "layers[0].mlp.inner_norm": llama(mlp={"inner_norm": True}),
    "layers[0].moe.hashed": llama(moe={"hashed": True}),
    "layers[0].moe.norms": llama(moe={"norms": "output"}),
    "streams": llama(streams=2),
    "layer_embedding": llama(layer_embedding=8),
    "more_parameters": llama(more_parameters=8),
    "layers[0].more_parameters": llama(more_of_layer=8),
}


@each_row("field", MODELS)
def test_a_field_without_an_option_is_refused_by_name(field: str) -> None:
    """By Megatron-Core with the field, by torchtitan, accelerate's plan and DeepFlow at all."""
    model = MODELS[field]
    assert list(uncommon_fields(model)) == [field]
    last = field.rpartition(".")[2]
    assert any(str(fault.field).endswith(last) for fault in model_faults(model))
    assert builder_of(model) is None
    assert missing_modules(model)
    assert list(_of_model(model))


def test_plain_models_have_no_such_fields() -> None:
    """Nor does Megatron-Core refuse gates of the query projection and latent experts."""
    assert uncommon_fields(llama()) == {}
    for model in (llama({"gate": "full"}), llama(moe={"latent": 16})):
        assert uncommon_fields(model)
        assert list(model_faults(model)) == []
