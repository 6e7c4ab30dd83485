"""Architectures that torchtitan has as flavors, and those that it builds.

The modules `llama3` and `qwen3` of v0.3.0 have functions that make equal layers; the embedding, the
last norm and the head are written out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from shardwise.config.enums import Activation, Norm, NormPlacement, Position, QkNorm
from shardwise.config.model import Layer, Model, other_fields, uncommon_fields

TOML_RELEASE, PYTHON_RELEASE = "0.2.2", "0.3.0"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flavor:
    """An architecture that torchtitan trains by name."""

    family: str
    """Name of its module, `model.name` in TOML."""
    flavor: str
    releases: tuple[str, ...] = (TOML_RELEASE, PYTHON_RELEASE)
    catalog: str = ""
    """Model of the catalog with this architecture; empty: `fields` describe it."""
    fields: Mapping[str, object] | None = None
    """Fields of `Model`, in place of those of a catalog model or of all of them."""

    def __str__(self) -> str:
        return f"{self.family} {self.flavor}"


def _tiny(layers: int, hidden: int, tied: bool, **block: object) -> dict[str, object]:
    """Fields of a model of equal layers with a vocabulary of 2048."""
    return {
        "hidden": hidden,
        "vocab": 2048,
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": tied,
        "layers": [{"count": layers, **block}],
    }


# Dimensions: torchtitan v0.2.2, models/*/__init__.py, and v0.3.0, the same files.
_DEBUG_LLAMA = _tiny(
    6,
    256,
    False,
    attention={"heads": 16, "kv_heads": 16, "head_dim": 16},
    mlp={"ffn": 768, "activation": "swiglu"},
)
_DEBUG_QWEN = _tiny(
    8,
    256,
    True,
    attention={"heads": 16, "kv_heads": 8, "head_dim": 128, "qk_norm": True},
    mlp={"ffn": 3072, "activation": "swiglu"},
)
_LATENT = {
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 192,
    "v_head_dim": 128,
    "latent": {"kv_rank": 512, "rope_dim": 64},
}
_DEBUG_DEEPSEEK = _tiny(6, 256, False) | {
    "layers": [
        {"count": 1, "attention": _LATENT, "mlp": {"ffn": 1024, "activation": "swiglu"}},
        {
            "count": 5,
            "attention": _LATENT,
            "moe": {
                "experts": 8,
                "top_k": 3,
                "ffn": 256,
                "activation": "swiglu",
                "shared_ffn": 512,
            },
        },
    ]
}
_TOML_ONLY, _PYTHON_ONLY = (TOML_RELEASE,), (PYTHON_RELEASE,)

FLAVORS: tuple[Flavor, ...] = (
    Flavor(family="llama3", flavor="8B", catalog="llama3-8b"),
    Flavor(family="llama3", flavor="70B", catalog="llama3-70b"),
    Flavor(family="llama3", flavor="405B", catalog="llama3-405b"),
    Flavor(family="llama3", flavor="1B", catalog="llama3.2-1b", releases=_PYTHON_ONLY),
    Flavor(family="llama3", flavor="3B", catalog="llama3.2-3b", releases=_PYTHON_ONLY),
    Flavor(family="llama4", flavor="17bx16e_irope", catalog="llama4-scout", releases=_TOML_ONLY),
    Flavor(
        family="llama4", flavor="17bx128e_irope", catalog="llama4-maverick", releases=_TOML_ONLY
    ),
    Flavor(family="deepseek_v3", flavor="16B", catalog="deepseek-v2-lite"),
    Flavor(family="deepseek_v3", flavor="236B", catalog="deepseek-v2"),
    Flavor(family="deepseek_v3", flavor="671B", catalog="deepseek-v3", fields={"mtp": 0}),
    Flavor(family="qwen3", flavor="0.6B", catalog="qwen3-0.6b"),
    Flavor(family="qwen3", flavor="1.7B", catalog="qwen3-1.7b"),
    Flavor(family="qwen3", flavor="4B", catalog="qwen3-4b"),
    Flavor(family="qwen3", flavor="8B", catalog="qwen3-8b"),
    Flavor(family="qwen3", flavor="14B", catalog="qwen3-14b"),
    Flavor(family="qwen3", flavor="32B", catalog="qwen3-32b"),
    Flavor(family="qwen3", flavor="30B-A3B", catalog="qwen3-30b-a3b"),
    Flavor(family="qwen3", flavor="235B-A22B", catalog="qwen3-235b-a22b"),
    Flavor(family="gpt_oss", flavor="20b", catalog="gpt-oss-20b"),
    Flavor(family="gpt_oss", flavor="120b", catalog="gpt-oss-120b"),
    Flavor(family="llama3", flavor="debugmodel", fields=_DEBUG_LLAMA),
    Flavor(family="qwen3", flavor="debugmodel", fields=_DEBUG_QWEN),
    Flavor(family="deepseek_v3", flavor="debugmodel", fields=_DEBUG_DEEPSEEK),
)

SUFFIXES = ("_flex_attn", "_varlen_attn", "_flex", "_varlen")
"""Endings of flavors that mask attention by document."""

LONGEST_SEQUENCES: Mapping[str, int] = {
    "llama3": 131072,
    "deepseek_v3": 16384,
    "qwen3": 40960,
    "gpt_oss": 131072,
}
"""Tokens of the rotary table of a family in v0.3.0, which refuses longer sequences."""

# Fields of a model that say nothing of its architecture, or less than others.
_NOT_ARCHITECTURE = {
    "name",
    "description",
    "sources",
    "seq_len",
    "left_out",
    "layers",
    "interleave",
    "pattern",
    "max_positions",
}


_OF_GROUPS: dict[str, Any] = {"count": True, "symbol": True}


def flavor_of(model: Model, release: str) -> Flavor | None:
    """Flavor of a release that has the architecture of a model; None: there is none."""
    wanted = _architecture(model)
    for one in FLAVORS:
        if release in one.releases and _architecture(model_of(one)) == wanted:
            return one
    return None


def python_flavor(model: Model) -> Flavor | None:
    """Flavor of v0.3.0, which adds modules of multi-token prediction to those of deepseek_v3."""
    found = flavor_of(model, PYTHON_RELEASE)
    if found is None and model.mtp:
        found = flavor_of(model.model_copy(update={"mtp": 0}), PYTHON_RELEASE)
    return found if found is None or not model.mtp or found.family == "deepseek_v3" else None


def find_flavor(family: str, flavor: str) -> Flavor | None:
    """Flavor by the names that torchtitan gives it, whatever the release."""
    for one in FLAVORS:
        if (one.family, one.flavor) == (family, flavor):
            return one
    return None


@cache
def model_of(flavor: Flavor) -> Model:
    """Our model of a flavor."""
    fields = dict(flavor.fields or {})
    if not flavor.catalog:
        name = str(flavor).replace(" ", "-").replace("_", "-")
        return Model.validated({"name": name} | fields)
    return Model.load(flavor.catalog).model_copy(update=fields)


def listed(release: str) -> str:
    """Flavors of a release, for people."""
    families: dict[str, list[str]] = {}
    for one in FLAVORS:
        if release in one.releases and one.flavor != "debugmodel":
            families.setdefault(one.family, []).append(one.flavor)
    return "; ".join(f"{family} {', '.join(names)}" for family, names in families.items())


def _architecture(model: Model) -> object:
    """What decides the shapes of all weights, and which tokens attention sees."""
    kinds = [_layer(layer) for layer in model.layers]
    fields = model.model_dump(exclude=_NOT_ARCHITECTURE)
    return fields, [kinds[kind] for kind in model.order]


def _layer(layer: Layer) -> dict[str, object]:
    """One layer, but for what torchtitan decides itself and has no weights or products.

    It leaves out Llama 4's norm of queries and keys without weights, and balances all experts by a
    bias that no gradient reaches (components/optimizer.py).
    """
    fields: dict[str, object] = layer.model_dump(
        exclude=_OF_GROUPS | ({"moe": {"selection_bias"}} if layer.moe else {})
    )
    if layer.attention is not None and layer.attention.qk_norm == QkNorm.UNWEIGHTED:
        without = layer.attention.model_copy(update={"qk_norm": QkNorm.NONE})
        fields["attention"] = without.model_dump()
    return fields


_THETA = 500000  # of Llama 3; a model of shardwise has none, and no time depends on it
_POSITIONS = 131072
Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A function of torchtitan that makes the layers of a model."""

    family: str
    function: str
    model_class: str
    rope_class: str
    parallelize: str
    adapter: str
    hook: str | None = None
    """Function after the optimizer is made (balance of experts)."""


LLAMA = Builder(
    family="llama3",
    function="_build_llama3_layers",
    model_class="Llama3Model",
    rope_class="ComplexRoPE",
    parallelize="parallelize_llama",
    adapter="Llama3StateDictAdapter",
)
_QWEN: dict[str, str] = {
    "family": "qwen3",
    "model_class": "Qwen3Model",
    "rope_class": "CosSinRoPE",
    "parallelize": "parallelize_qwen3",
    "adapter": "Qwen3StateDictAdapter",
    "hook": "register_moe_load_balancing_hook",
}
QWEN = Builder(function="_build_qwen3_layers", **_QWEN)
QWEN_EXPERTS = Builder(function="_build_qwen3_moe_layers", **_QWEN)
BUILDERS: Mapping[str, Builder] = {one.function: one for one in (LLAMA, QWEN, QWEN_EXPERTS)}


def builder_of(model: Model) -> Builder | None:
    """Function that builds the layers of a model; None where there is none."""
    layer = model.layers[0]
    plain = (
        len(model.layers) == 1
        and model.norm == Norm.RMSNORM
        and model.norm_weight
        and model.final_norm
        and model.position == Position.ROPE
        and not (model.mtp or model.embedding_norm or model.head_bias or model.dropout)
        and model.vocab > 0
        and not uncommon_fields(model)
        and _is_plain(layer)
    )
    if not plain:
        return None
    attention = layer.own_attention
    if attention.qk_norm == QkNorm.HEAD:
        return QWEN if layer.moe is None else QWEN_EXPERTS
    fits = attention.heads * attention.head_dim == model.hidden and layer.moe is None
    return LLAMA if fits and attention.qk_norm == QkNorm.NONE else None


def _is_plain(layer: Layer) -> bool:
    if not layer.is_transformer:
        return False
    attention, moe = layer.own_attention, layer.moe
    numbers = ("experts", "top_k", "ffn", "activation", "selection_bias", "groups")
    simple_experts = moe is None or not other_fields(moe, numbers)
    return (
        layer.kind == "transformer"
        and layer.norms == NormPlacement.PRE
        and not layer.parallel
        and not other_fields(attention, ("heads", "kv_heads", "head_dim", "v_head_dim", "qk_norm"))
        and attention.value_dim == attention.head_dim
        and layer.feed_forward.activation == Activation.SWIGLU
        and not layer.feed_forward.bias
        and simple_experts
    )


def layer_numbers(model: Model) -> dict[str, int]:
    """Arguments of the function that builds the layers of a model."""
    layer = model.layers[0]
    attention, moe = layer.own_attention, layer.moe
    numbers = {
        "n_layers": layer.count,
        "dim": model.hidden,
        "n_heads": attention.heads,
        "n_kv_heads": attention.kv_heads,
    }
    if attention.qk_norm == QkNorm.HEAD:
        numbers["head_dim"] = attention.head_dim
    if moe is None:
        return numbers | {"hidden_dim": layer.feed_forward.ffn}
    return numbers | {
        "moe_hidden_dim": moe.ffn,
        "num_experts": moe.experts,
        "top_k": moe.top_k,
    }


def built_model(name: str, builder: Builder, vocab: int, tied: bool, numbers: Numbers) -> Model:
    """Our model of the numbers of a configuration.

    Raises
    ------
    InputError
        If they contradict one another.
    """
    heads = numbers["n_heads"]
    attention: dict[str, object] = {
        "heads": heads,
        "kv_heads": numbers.get("n_kv_heads", heads),
        "head_dim": numbers.get("head_dim", numbers["dim"] // heads),
        "qk_norm": builder is not LLAMA,
    }
    layer: dict[str, object] = {"count": numbers["n_layers"], "attention": attention}
    if builder is QWEN_EXPERTS:
        layer["moe"] = {
            "experts": numbers["num_experts"],
            "top_k": numbers["top_k"],
            "ffn": numbers["moe_hidden_dim"],
            "activation": "swiglu",
        }
    else:
        layer["mlp"] = {"ffn": numbers["hidden_dim"], "activation": "swiglu"}
    fields: dict[str, object] = {
        "name": name,
        "hidden": numbers["dim"],
        "vocab": vocab,
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": tied,
        "layers": [layer],
    }
    return Model.validated(fields)


def rope_arguments(model: Model, seq_len: int) -> dict[str, int]:
    """Arguments of the rotary positions of a model."""
    head_dim = model.layers[0].own_attention.head_dim
    return {"dim": head_dim, "max_seq_len": max(_POSITIONS, seq_len), "theta": _THETA}
