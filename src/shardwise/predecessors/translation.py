"""What the translations into predecessors' words share: their names, and what they refuse."""

from collections.abc import Callable, Iterator, Mapping

from shardwise.config.enums import NormPlacement, QkNorm
from shardwise.config.model import OWN_KIND, Attention, Layer, Model, uncommon_fields
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.system import System
from shardwise.errors import Fault

PLAIN: Mapping[str, object] = {
    "etp": 1,
    "vpp": 1,
    "document_len": None,
    "data_lengths": None,
    "quantization": "none",
    "quantized_weights": False,
    "recompute": "none",
    "dp_shard": None,
    "optimizer": "adamw",
    "frozen": (),
    "lora_rank": None,
    "task": "pretrain",
    "loss_tokens": 1.0,
    "checkpoint_place": "device",
    "first_stage_layers": None,
    "last_stage_layers": None,
    "stage_layers": None,
    "attention_kernel": "stack",
    "embedding_as_layer": False,
    "loss_as_layer": False,
    "training": True,
    "fused_activation": False,
    "offload_weights": False,
    "offload_activations": False,
    "offload_optimizer": False,
}
"""Strategy fields that NERSC's model and AMPeD do not know, with the only value they may have."""


def with_dtype_of(system: System, strategy: Strategy) -> Strategy:
    """A strategy; if it names no dtype, with one that the system has a rate for."""
    rates = system.accelerator.matrix
    if "dtype" in strategy.model_fields_set or strategy.dtype in rates:
        return strategy
    dtype = next((word for word in COLUMNS["dtype"].words if word in rates), strategy.dtype)
    return strategy.model_copy(update={"dtype": dtype})


def unsupported_fields(
    strategy: Strategy, only: Mapping[str, object], tool: str, source: str
) -> Iterator[Fault]:
    """Yield a fault for each strategy field that a tool does not know."""
    for field, value in only.items():
        if (own := getattr(strategy, field)) != value:
            allowed = ("on" if value else "off") if isinstance(value, bool) else value or "none"
            problem = f"{tool} does not know it; allowed: {allowed}"
            yield Fault.of(field, own, problem, source)


def layer_lacks(
    model: Model, layer: Layer, where: str, width: str
) -> Iterator[tuple[str, object, str]]:
    """Yield what a plain ungated transformer layer has no word for: field, value, problem."""
    for field, value in uncommon_fields(model).items():
        if field.startswith(where) or "." not in field:
            yield field, value, "does not know it"
    if (beyond := layer.beyond_transformer) is not None:
        field, value, what = beyond
        yield f"{where}.{field}", value, f"knows no {what}"
        return
    mlp = layer.feed_forward
    for field, lacks, value, problem in (
        ("kind", layer.kind != OWN_KIND, layer.kind, "knows transformers only"),
        ("mlp.activation", mlp.gated, mlp.activation, "knows no gated MLP"),
        ("parallel", layer.parallel, True, "knows no parallel blocks"),
        ("norms", layer.norms != NormPlacement.PRE, layer.norms, "knows norms before blocks only"),
    ):
        if lacks:
            yield f"{where}.{field}", value, problem
    yield from _attention_lacks(model, layer.own_attention, f"{where}.attention", width)


def _attention_lacks(
    model: Model, attention: Attention, where: str, width: str
) -> Iterator[tuple[str, object, str]]:
    for name in ("latent", "v_head_dim", "window", "chunk", "sinks"):
        value = getattr(attention, name)
        if value not in (None, False):
            yield f"{where}.{name}", value, "does not know it"
    if attention.qk_norm != QkNorm.NONE:
        yield f"{where}.qk_norm", attention.qk_norm, "knows no norm of queries and keys"
    if attention.kv_heads != attention.heads:
        problem = f"has keys and values of its own for each head; allowed: {attention.heads}"
        yield f"{where}.kv_heads", attention.kv_heads, problem
    if attention.latent is None and attention.heads * attention.head_dim != model.hidden:
        yield f"{where}.head_dim", attention.head_dim, width


def refusals_of(tool: str) -> Callable[[str, str, object, str], Fault]:
    """Return what makes the fault of something that a tool does not know.

    It takes the source, the field, its value and what the tool does instead.
    """
    return lambda source, field, value, does: Fault.of(field, value, f"{tool} {does}", source)
