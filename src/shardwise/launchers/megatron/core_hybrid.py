"""Hybrid models as Megatron-Core's layer pattern: one symbol for each mixer and each MLP.

`M` is Mamba-2, `G` the gated delta rule, `*` attention, `+` latent attention, `D` latent attention
with an indexer, `-` an MLP and `E` a mixture of experts; `|` stands between the stages of a
pipeline and `/` before each module of multi-token prediction (core/models/hybrid, Megatron-LM
d98e8a64 of 2026-08-22).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from shardwise.config.enums import NormPlacement
from shardwise.config.mixer import GatedDelta, Mamba2
from shardwise.config.model import Layer, Model
from shardwise.launchers.megatron.core_stack import CoreReading, Value

PATTERN = "hybrid_layer_pattern"
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
"""Values of --spec with which layers follow the pattern."""
_MAMBA, _DELTA, _ATTENTION, _LATENT, _SPARSE, _MLP, _EXPERTS = "MG*+D-E"
_MIXERS, _FEED_FORWARD = frozenset("MG*+D"), frozenset("-E")
_USUAL_CONV = 4
_MAMBA_FIELDS = {
    "heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "state": "mamba_state_dim",
    "groups": "mamba_num_groups",
}
_DELTA_FIELDS = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "conv": "linear_conv_kernel_dim",
}
_INDEXER_FIELDS = {
    "heads": "dsa_indexer_n_heads",
    "head_dim": "dsa_indexer_head_dim",
    "top_k": "dsa_indexer_topk",
}
_DEFAULTS = {
    "mamba_head_dim": 64,
    "mamba_state_dim": 128,
    "mamba_num_groups": 8,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": _USUAL_CONV,
}
"""Of Megatron-Core, where a configuration has none."""


def is_hybrid(model: Model) -> bool:
    """Whether a model needs a pattern: it has mixers, layers of one block or an indexer."""
    return any(
        not layer.is_transformer or layer.own_attention.indexer is not None
        for layer in model.layers
    )


def blocks_of_layers(model: Model) -> int:
    """Symbols of a layer: 2 in a pattern of pairs, and 1 in other patterns and without one."""
    return max(len(_symbols(layer)) for layer in model.layers) if is_hybrid(model) else 1


# --- Writing --------------------------------------------------------------------------------------


def hybrid_faults(model: Model) -> Iterator[tuple[str, object, str]]:
    """Yield what no symbol or option says: field, value, problem."""
    for number, layer in enumerate(model.layers):
        for field, value, problem in _layer_faults(layer):
            yield f"layers.{number}.{field}", value, problem
    kinds = [layer.mixer for layer in model.layers if layer.mixer is not None]
    for kind in (Mamba2, GatedDelta):
        if len({one for one in kinds if isinstance(one, kind)}) > 1:
            yield "layers", None, "mixers of one kind are alike"
    symbols = {symbol for layer in model.layers for symbol in _symbols(layer)}
    if _ATTENTION in symbols and symbols & {_LATENT, _SPARSE}:
        yield "layers", None, "plain and latent attention are not in one pattern"
    if not symbols & {_ATTENTION, _LATENT, _SPARSE}:
        yield "layers", None, "a pattern without attention has no number of heads"


def _layer_faults(layer: Layer) -> Iterator[tuple[str, object, str]]:
    mixer, attention = layer.mixer, layer.attention
    if layer.side_by_side:
        yield "mixer", layer.mixer.kind if layer.mixer else None, "no mixer next to attention"
    elif mixer is not None and not isinstance(mixer, (Mamba2, GatedDelta)):
        yield "mixer", mixer.kind, "no symbol for it; allowed: mamba2, gated_delta"
    if isinstance(mixer, Mamba2) and mixer.conv != _USUAL_CONV:
        yield "mixer.conv", mixer.conv, f"no option; allowed: {_USUAL_CONV}"
    if isinstance(mixer, Mamba2) and (mixer.bias or not mixer.conv_bias or not mixer.gated_norm):
        yield "mixer", mixer.kind, "its convolution alone has a bias, and its output a norm"
    if attention is not None and attention.indexer is not None:
        indexer = attention.indexer
        if attention.latent is None or indexer.shared or indexer.pool > 1 or indexer.block > 1:
            yield "attention.indexer", None, "selects single keys of latent attention in each layer"
    if layer.norms != NormPlacement.PRE:
        yield "norms", layer.norms, "norms stand before blocks; allowed: pre"


def _symbols(layer: Layer) -> str:
    """Symbols of the blocks of a layer."""
    found = ""
    if layer.mixer is not None:
        found = _DELTA if isinstance(layer.mixer, GatedDelta) else _MAMBA
    elif layer.attention is not None:
        latent = _ATTENTION if layer.attention.latent is None else _LATENT
        found = latent if layer.attention.indexer is None else _SPARSE
    if layer.moe is not None:
        return found + _EXPERTS
    return found + _MLP if layer.mlp is not None else found


def hybrid_fields(model: Model) -> dict[str, Value]:
    """The pattern and the sizes of mixers and indexers of a model without `hybrid_faults`."""
    modules = "".join(map(_symbols, model.mtp_layers))
    fields: dict[str, Value] = {
        "num_layers": None,
        "mtp_num_layers": None,
        PATTERN: pattern_of(model) + f"/{modules}" * model.mtp,
    }
    sizes: list[tuple[object, dict[str, str]]] = [
        (one, _MAMBA_FIELDS if isinstance(one, Mamba2) else _DELTA_FIELDS) for one in model.mixers
    ]
    indexers = (one.indexer for one in model.attentions if one.indexer is not None)
    sizes += [(one, _INDEXER_FIELDS) for one in indexers]
    for one, names in sizes:
        fields |= {core: getattr(one, own) for own, core in names.items()}
    return fields


def pattern_of(model: Model, counts: Sequence[int] = ()) -> str:
    """Symbols of all layers, first to last; with counts, in as many stages with bars between."""
    blocks = [_symbols(model.layers[kind]) for kind in model.order]
    if len(counts) <= 1:
        return "".join(blocks)
    ends = (0, *accumulate(counts))
    return "|".join("".join(blocks[start:end]) for start, end in pairwise(ends))


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern in its parts."""

    stages: tuple[str, ...]
    modules: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "_Pattern":
        main, *modules = text.split("/")
        return cls(stages=tuple(main.split("|")), modules=tuple(modules))

    @property
    def main(self) -> str:
        return "".join(self.stages)

    @property
    def of_pairs(self) -> bool:
        """Whether each stage and module is of pairs of a mixer and an MLP or experts."""
        return all(
            len(part) % 2 == 0 and set(part[::2]) <= _MIXERS and set(part[1::2]) <= _FEED_FORWARD
            for part in (*self.stages, *self.modules)
        )


def read_pattern_stages(reading: CoreReading, pp: int) -> int | None:
    """Read the stages between the bars of a pattern; returns chunks per stage, None without."""
    given = reading.fields.get(PATTERN)
    if not isinstance(given, str) or "|" not in given:
        return None
    pattern = _Pattern.of(given)
    if len(pattern.stages) % pp:
        problem = f"has {len(pattern.stages)} stages between bars; must be a multiple of {pp}"
        reading.fault(PATTERN, given, problem)
        return 1
    each = 2 if pattern.of_pairs else 1
    reading.set("stage_layers", tuple(len(stage) // each for stage in pattern.stages))
    return len(pattern.stages) // pp


def hybrid_attention(reading: CoreReading, attention: dict[str, object]) -> dict[str, object]:
    """Attention of a pattern with `D`, whose indexer has options of its own."""
    pattern = reading.fields.get(PATTERN)
    if not isinstance(pattern, str) or _SPARSE not in pattern:
        return attention
    sizes = {own: reading.positive(core) for own, core in _INDEXER_FIELDS.items()}
    return attention | {"indexer": sizes}


def pattern_layers(
    reading: CoreReading,
    attention: dict[str, object],
    mlp: dict[str, object],
    experts: dict[str, object],
) -> dict[str, object]:
    """Fields of a model for its pattern: layers, their order, modules of multi-token prediction.

    A pattern of pairs of a mixer and an MLP or experts, such as `GE*E`, is read as layers of both.
    """
    given = str(reading.value(PATTERN))
    pattern = _Pattern.of(given)
    main, modules = pattern.main, pattern.modules
    blocks: dict[str, dict[str, object]] = {
        _MAMBA: {"mixer": {"kind": "mamba2", "conv": _USUAL_CONV}},
        _DELTA: {"mixer": {"kind": "gated_delta"}},
        **{symbol: {"attention": attention} for symbol in (_ATTENTION, _LATENT, _SPARSE)},
        _MLP: {"mlp": mlp},
        _EXPERTS: {"moe": experts},
    }
    odd = next((one for one in main + "".join(modules) if one not in blocks), None)
    if odd is not None or not main:
        allowed = " ".join(blocks)
        problem = "is empty" if odd is None else f"has {odd!r}, which is not read"
        reading.fault(PATTERN, given, f"{problem}; allowed: {allowed} | /")
        return {}
    for symbol, names in ((_MAMBA, _MAMBA_FIELDS), (_DELTA, _DELTA_FIELDS)):
        mixer = blocks[symbol]["mixer"]
        assert isinstance(mixer, dict)  # noqa: S101 - made above
        sizes = {own: _size(reading, core) for own, core in names.items() if symbol in main}
        mixer.update(sizes)
    if len(set(modules)) > 1:
        reading.fault(PATTERN, given, "has modules of multi-token prediction that differ")
    if pattern.of_pairs:
        return _of_pairs(main, modules, blocks)
    used = dict.fromkeys(main + "".join(modules[:1]))
    layers = [{"symbol": one, **blocks[one]} for one in used]
    fields: dict[str, object] = {"layers": layers, "pattern": main, "mtp": len(modules)}
    return fields | ({"mtp_pattern": modules[0]} if modules else {})


def _of_pairs(
    main: str, modules: Sequence[str], blocks: dict[str, dict[str, object]]
) -> dict[str, object]:
    """Layers of a mixer and an MLP or experts each."""
    pairs = [main[at : at + 2] for at in range(0, len(main), 2)]
    letters = dict(zip(dict.fromkeys((*pairs, *modules)), "abcdefghij", strict=False))
    layers = [
        {"symbol": letter, **blocks[pair[0]], **blocks[pair[1]]} for pair, letter in letters.items()
    ]
    fields: dict[str, object] = {
        "layers": layers,
        "pattern": "".join(letters[pair] for pair in pairs),
        "mtp": len(modules),
    }
    return fields | ({"mtp_pattern": letters[modules[0]]} if modules else {})


def _size(reading: CoreReading, name: str) -> int:
    found = reading.whole(name)
    if found is None and name not in _DEFAULTS:
        # Megatron-Core: heads of Mamba fill twice the hidden width.
        width = 2 * reading.positive("hidden_size")
        return max(1, width // _size(reading, "mamba_head_dim"))
    return reading.positive(name, _DEFAULTS.get(name, 1))
