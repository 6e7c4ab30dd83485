"""Families of models on the Hugging Face hub: the records of `families.json`.

A record has fields of `Family`: the keys of a family's config.json, and what its class fixes;
`decoders` reads files by it. `like` names another record whose fields it has, too; the first
section has what several records share. `is_decoder` makes decoders of BERT's kin; the head of
encoders is that of `ForMaskedLM`, and every word is predicted. What counts and is not timed is in
`more_left_out`.

Sources: the configuration classes and modules of `transformers` 5.23 and 5.24 and of the published
repositories, and the papers that the catalog names; of mixtures of experts arXiv 2401.04088
(Mixtral), 2401.06066, 2405.04434, 2412.19437 and 2512.02556 (DeepSeek), 2407.10671 (Qwen2),
2505.09388 (Qwen3), 2508.06471 (GLM-4.5), 2508.10925 (gpt-oss), 2510.22115 (Ling 2.0); of families
that mix tokens by more than attention arXiv 2504.03624 (Nemotron-H), 2510.26692 (Kimi Linear),
2501.08313 (MiniMax-01), 2403.19887 (Jamba), 2507.22448 (Falcon-H1).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

When = bool | str
"""A fact; or the key of a flag, after an exclamation mark of its opposite; or several keys with
vertical bars between them, any of which says so."""
Names = dict[str, tuple[str, ...]]
"""What the keys that a reader looks up are called in files of a family, the usual name first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Mixture of experts: keys, and what the class fixes."""

    number: str = "num_experts"
    ffn: str = "moe_intermediate_size"
    chosen: str = "num_experts_per_tok"
    shared_ffn: str = ""
    """Key of the width of the shared experts together."""
    shared_number: str = ""
    """Or of how many there are, each as wide as a routed one."""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    selection_bias: When = False
    method: str = ""
    """Default of `topk_method`, which says whether there is such a bias."""
    groups: bool = False
    """Whether `n_group` and `topk_group` limit the choice."""
    sparse: Literal["all", "leading", "steps", "indices", "listed"] = "all"
    """Layers with experts: all; those after `first_k_dense_replace`; each `decoder_sparse_step`-th;
    those between the indices of ERNIE; those that the list `moe_layer_freq` says, without it all
    but the first. `mlp_layer_types` says it instead where it is present."""
    words: tuple[str, ...] = ("dense", "sparse")
    """Those of `mlp_layer_types`; layers of the first have no experts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A family of decoders."""

    kinds: tuple[str, ...] = ()
    """`model_type` of files that do not name an architecture, as those of nested models; its class
    is where defaults are from."""
    names: Names = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    """Keys that must be there: no class fills them in."""
    must: tuple[tuple[str, object, str], ...] = ()
    """Key, the value that is modeled, and what any other means."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is left out where a key has a value."""

    grouped: bool = True
    """Whether `num_key_value_heads` is read."""
    single: When = False
    """Whether all heads share keys and values."""
    causal: When = True
    floors: bool = False
    """Whether heads need not divide the width where `head_dim` is missing."""
    latent: bool = False
    qkv_bias: When = False
    out_bias: When = False
    sinks: bool = False
    gate: Literal["", "full", "value", "head"] = ""
    qk_norm: Literal["none", "head", "width", "unweighted"] = "none"
    qk_normed: When = True
    window: Literal["none", "all", "turns", "qwen"] = "none"
    """Layers inside `sliding_window`: none; all unless it is null; all but some; those that Qwen's
    keys say. `layer_types` says it instead where it is present."""
    full_every: int | str = 1
    """Of how many layers one is outside the window, or the key of that."""
    full_last: bool = True
    """Whether that is the last of them, or the first."""
    words: tuple[str, str] = ("full_attention", "sliding_attention")
    """Those of `layer_types`: outside and inside the window."""
    unrotated: Literal["none", "full", "listed"] = "none"
    """Layers without rotary positions: those outside the window, or those of `no_rope_layers`."""
    position: Literal["rope", "learned", "alibi", "sinusoidal", "relative-bias", "relative-xl"] = (
        "rope"
    )
    more_positions: int = 0
    """Rows of the table in addition to `max_position_embeddings`."""

    gated: bool = True
    activation: str = "silu"
    """Default of `hidden_act`."""
    mlp_bias: When = False
    ffn_ratio: int | str = 0
    """Inner width over the model's where `intermediate_size` is missing, or the key of that."""
    experts: Experts | None = None

    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    norm_bias: When = True
    """Of a LayerNorm."""
    norm_weight: bool = True
    norms: Literal["pre", "post", "both", "stream"] = "pre"
    post_norm: When = False
    """Whether there are norms behind the blocks, too."""
    final_norm: When = True
    embedding_norm: bool = False
    parallel: When = False
    second_norm: bool = False
    head_transform: bool = False
    head_bias: When = False
    images: bool = False
    """Whether patches of images come in, and neither embedding nor head is described."""
    typed: bool = False
    """Whether `type_vocab_size` token types are added to the embedding."""
    mtp: str = ""
    """Key of the number of modules of multi-token prediction."""
    inner_norms: bool = False
    """Whether norms stand before the last product of attention and of the MLP (BitNet)."""
    more_left_out: tuple[str, ...] = ()
    """What is left out of every file."""


_SHARED = "shared"
_NESTED = ("names", "left_out", "experts")


def _read() -> dict[str, dict[str, Family]]:
    """Read the records of each section, by architecture."""
    text = files(__package__).joinpath("families.json").read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, Family]] = {}
    for section, rows in json.loads(text).items():
        found[section] = {}
        for classes, own in rows.items():
            row = _merged(own, known)
            row |= {name: _merged(row[name], known) for name in _NESTED if name in row}
            known |= dict.fromkeys(classes.split(), row)
            if section != _SHARED:
                found[section] |= dict.fromkeys(classes.split(), _family(row))
    return found


def _merged(own: str | Mapping[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A record with the fields of another one that it is like, or a name for one."""
    if isinstance(own, str):
        return known[own]
    row = dict(own)
    return known[row.pop("like")] | row if "like" in row else row


def _family(row: Mapping[str, Any]) -> Family:
    fields = _frozen(row)
    if "experts" in fields:
        fields["experts"] = Experts(**fields["experts"])
    return Family(**fields)


def _frozen(value: Any) -> Any:
    """A value of JSON with tuples for lists."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


SECTIONS = _read()
"""Records by section of the file and architecture."""
FAMILIES = {name: one for rows in SECTIONS.values() for name, one in rows.items()}
"""The record of each architecture."""
ENCODERS = SECTIONS["encoders"]
"""Those of encoders and of decoders of their kin."""
