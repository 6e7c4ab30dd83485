"""What `measure` trains: models that `modules` builds, and strategies that `worker` runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.config.base import ConfigBase
from shardwise.config.enums import ZERO_WEIGHTS, QkNorm
from shardwise.config.model import OWN_KIND, Attention, Latent, Layer, Mlp, Model, Moe, other_fields
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError

_KNOWN: Mapping[type[ConfigBase], tuple[str, ...]] = {
    Model: (
        *("hidden", "vocab", "seq_len", "layers", "interleave", "pattern", "norm", "norm_bias"),
        *("norm_weight", "final_norm", "position", "max_positions", "tied_embeddings", "head_bias"),
        *("name", "description", "sources", "left_out"),
    ),
    Layer: ("count", "symbol", "attention", "mlp", "moe", "parallel", "kind", "norms"),
    Attention: (
        *("heads", "kv_heads", "head_dim", "v_head_dim", "latent", "causal", "bias", "qk_norm"),
        "rotary_dim",
    ),
    Latent: ("q_rank", "kv_rank", "rope_dim"),
    Mlp: ("ffn", "activation", "bias"),
    Moe: (
        *("experts", "top_k", "ffn", "activation", "bias", "shared_ffn", "shared_gate"),
        "router_bias",
    ),
}
"""Fields of a model that `modules` reads; all others must be at their defaults."""

_WORDS: Mapping[tuple[type[ConfigBase], str], tuple[object, ...]] = {
    (Model, "position"): ("rope", "learned"),
    (Layer, "norms"): ("pre", "post", "both"),
    (Layer, "kind"): (OWN_KIND,),
    (Attention, "qk_norm"): (QkNorm.NONE, QkNorm.HEAD),
    (Mlp, "activation"): ("gelu", "relu", "silu", "relu2", "swiglu", "geglu", "reglu"),
    (Moe, "activation"): ("gelu", "relu", "silu", "relu2", "swiglu", "geglu", "reglu"),
}

ACCELERATED_STACK = "pytorch-cuda"
"""Software that comes nearest to plain PyTorch on an accelerator, where the user names none."""

_OPEN = frozenset(
    {
        *("gpus", "dp", "tp", "pp", "micro_batch_size", "global_batch_size", "seq_len", "stack"),
        *("any_software", "attention_kernel", "expert_imbalance", "fsdp_reshard"),
        *("sequence_parallel", "dp_overlap"),
    }
)
_STRATEGY: Mapping[str, tuple[object, ...]] = {
    "dtype": ("fp32", "bf16"),
    "zero": (0, 2, 3),
    "recompute": ("none", "full"),
    "schedule": ("1f1b", "gpipe"),
    "tp_exchange": ("all_reduce", "rs_ag"),
    "optimizer": ("adamw", "sgd", "sgd-momentum"),
    "loss": ("eager", "loss_parallel"),
    "expert_kernel": ("loop",),
    "compile": ("none",),
    "cuda_graphs": ("none",),
    "weight_dtype": ("fp32",),
    "gradient_dtype": ("fp32",),
    "grad_sync": ("micro_batch",),
}
"""Values of strategy fields that `worker` runs, the default first; others must be at theirs."""


def model_faults(model: Model) -> Iterator[Fault]:
    """Find what the builder does not know of a model, by field."""
    if not model.vocab:
        yield Fault.of("vocab", 0, "cannot be built; allowed: at least 1", model.name)
    for number, layer in enumerate(model.layers):
        if not layer.is_transformer and layer.mixer is None:
            problem = "cannot be built; allowed: attention with mlp or moe"
            yield Fault(source=model.name, field=f"layers[{number}]", problem=problem)
    for prefix, part in _parts(model):
        for name, value in other_fields(part, _KNOWN[type(part)]).items():
            shown = value if isinstance(value, (bool, int, str)) else name
            usual = type(part).model_fields[name].get_default(call_default_factory=True)
            problem = f"cannot be built; allowed: {_listed((usual,))}"
            yield Fault.of(f"{prefix}{name}", shown, problem, model.name)
        for (kind, name), words in _WORDS.items():
            if type(part) is kind and (value := getattr(part, name)) not in words:
                problem = f"cannot be built; allowed: {_listed(words)}"
                yield Fault.of(f"{prefix}{name}", value, problem, model.name)


def _parts(model: Model) -> Iterator[tuple[str, ConfigBase]]:
    """Yield the model and what it is described by, each with the beginning of its fields."""
    yield "", model
    for number, layer in enumerate(model.layers):
        place = f"layers[{number}]."
        attention = layer.attention
        yield place, layer
        inside: dict[str, ConfigBase | None] = {
            "attention": attention,
            "attention.latent": attention.latent if attention is not None else None,
            "mlp": layer.mlp,
            "moe": layer.moe,
        }
        for name, part in inside.items():
            if part is not None:
                yield f"{place}{name}.", part


def trained_strategy(model: Model, strategy: Strategy, *, device: str) -> Strategy:
    """Return the strategy as it is trained: what the user left open is set as `worker` does it.

    Raises
    ------
    InputError
        Naming what of the model or the strategy cannot be built, and what is allowed.
    """
    own = strategy.model_fields_set
    fields = {name: getattr(strategy, name) for name in own}
    usual: dict[str, object] = {name: values[0] for name, values in _STRATEGY.items()}
    usual |= {"any_software": True}
    if device == "cuda":
        usual |= {"stack": ACCELERATED_STACK, "dtype": "bf16"}
        if strategy.gpus == 1:  # FSDP2 casts weights for products without a stream in fp32
            usual["zero"] = ZERO_WEIGHTS
    if strategy.tp > 1:
        usual["loss"] = "loss_parallel"
    if strategy.tp == 1 or own & {"sequence_parallel", "tp_exchange"}:
        del usual["tp_exchange"]
    if not model.has_experts:
        del usual["expert_kernel"]
    chosen = Strategy.validated(usual | fields)
    faults = [*model_faults(model), *_strategy_faults(model, chosen, own)]
    if faults:
        raise InputError(faults)
    return chosen


def _strategy_faults(model: Model, strategy: Strategy, own: set[str]) -> Iterator[Fault]:
    """Find what the trainer does not run."""
    for name in sorted(own - _OPEN):
        usual = Strategy.model_fields[name].get_default(call_default_factory=True)
        allowed = _STRATEGY.get(name, (usual,))
        value = getattr(strategy, name)
        if value not in allowed and value is not None:
            problem = f"is not trained by measure; allowed: {_listed(allowed)}"
            yield Fault.of(name, value, problem, "strategy")
    split = [name for name in ("tp", "pp", "dp") if (getattr(strategy, name) or 1) > 1]
    tied, normed = model.tied_embeddings, any(x.qk_norm != "none" for x in model.attentions)
    rules = {
        ("dp", "tp or pp above 1"): "dp" in split and len(split) > 1,
        ("pp", "tp above 1"): split[:2] == ["tp", "pp"],
        ("pp", "tied embeddings"): strategy.pp > 1 and tied,
        ("tp", "tied embeddings"): strategy.tp > 1 and tied,
        ("tp", "experts"): strategy.tp > 1 and model.has_experts,
        ("tp", "latent attention"): strategy.tp > 1 and any(x.latent for x in model.attentions),
        ("tp", "norms of heads"): strategy.tp > 1 and normed,
        ("zero", "tp or pp above 1"): strategy.zero > 0 and {"tp", "pp"} & {*split},
    }
    for (name, other), broken in rules.items():
        if broken:
            problem = f"is not trained by measure with {other}; allowed: {int(name != 'zero')}"
            yield Fault.of(name, getattr(strategy, name), problem, "strategy")


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(str(one).lower() if one in (None, True, False) else str(one) for one in values)
