"""What recipes of Megatron-Bridge set where a file sets nothing."""

from collections.abc import Mapping

from shardwise.config.enums import Position
from shardwise.config.model import Model
from shardwise.launchers.megatron.core_model import model_fields
from shardwise.launchers.megatron.core_options import CORE_DEFAULTS
from shardwise.launchers.megatron.core_reading import Fields, Value

BRIDGE_DEFAULTS: Fields = {
    **CORE_DEFAULTS,
    "bf16": True,
    "grad_reduce_in_fp32": True,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "gradient_accumulation_fusion": True,
    "cross_entropy_loss_fusion": True,
    "bias_activation_fusion": True,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
}
"""Of the base recipe of pre-training (recipes/common.py:60-130) and GPTModelProvider."""
_OF_LIBRARY: Mapping[str, Value] = {"cross_entropy_fusion_impl": "te"}
"""Of the recipes of models (recipes/, Megatron-Bridge 067f987d)."""


def recipe_defaults(model: Model | None) -> Fields:
    """Return what a recipe sets for a model of the catalog; None: the recipe is not known."""
    if model is None:
        return BRIDGE_DEFAULTS
    fields = {name: value for name, value in model_fields(model).items() if value is not None}
    fields["sequence_parallel"] = True  # with tensor parallelism, as all of them
    if model.position == Position.ROPE:
        fields.setdefault("position_embedding_type", "rope")
    if model.seq_len is not None:
        fields["seq_length"] = model.seq_len
    if model.has_experts:
        fields["expert_tensor_parallel_size"] = 1
    return {**BRIDGE_DEFAULTS, **_OF_LIBRARY, **fields}
