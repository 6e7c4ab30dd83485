"""Shapes of one layer's matrix products in DeepFlow's format, and what it cannot express.

DeepFlow (nanocad-lab) takes six lines for one layer, each of three integers: rows, inner, columns.
Attention products have their heads in the columns, projections to queries, keys and values all
three in the rows. That gives the right FLOPs, but not the right shapes: those are in `gemms`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardwise.config.enums import Position
from shardwise.config.model import OWN_KIND, Model, ModelLike, uncommon_fields
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError

_SOURCE = "DeepFlow"


def deepflow_text(model: ModelLike, strategy: Strategy | Mapping[str, object] | str | Path) -> str:
    """Return one layer's matrix products in DeepFlow's format: six lines of rows, inner, columns.

    Raises
    ------
    InputError
        If the format cannot express the model or the strategy, or rows are no whole number.
    """
    return shapes_text(deepflow_rows(model, strategy))


def shapes_text(shapes: Sequence[tuple[int, int, int]]) -> str:
    """Return products as lines of rows, inner, columns."""
    return "".join(f"{m} {k} {n}\n" for m, k, n in shapes)


def deepflow_rows(
    model: ModelLike, strategy: Strategy | Mapping[str, object] | str | Path
) -> tuple[tuple[int, int, int], ...]:
    """Rows, inner, columns of the six products of a layer, for one replica and stage.

    With T = batch x tokens / (dp pp) rows, s tokens of a sequence, H heads of width a, g of them
    with keys and values, width d, f inside: (3 T, d, a H), (T, a, s H), (T, s, a H), (T, a H, d),
    (T, d, f), (T, f, d). Grouped queries have T (H + 2 g) / H instead of 3 T rows, a gated
    activation 2 f columns in the fifth. Tensor parallelism is left to DeepFlow. All scores count,
    causal or not.
    """
    the_model = Model.load(model)
    resolved = Strategy.load(strategy).resolved(the_model)
    the_model = the_model.with_attention(resolved.attention)
    faults = [*_of_model(the_model), *_of_strategy(resolved)]
    if faults:
        raise InputError(faults)
    layer = the_model.layers[0]
    attention, mlp = layer.own_attention, layer.mlp
    assert mlp is not None  # noqa: S101 - refused before
    assert resolved.dp is not None  # noqa: S101 - resolved
    assert resolved.seq_len is not None  # noqa: S101 - resolved
    assert resolved.global_batch_size is not None  # noqa: S101 - resolved
    sequence, heads, width = resolved.seq_len, attention.heads, attention.head_dim
    tokens = resolved.global_batch_size * sequence
    split = resolved.dp * resolved.pp
    formula = f"{tokens} tokens / (dp {resolved.dp} x pp {resolved.pp})"
    rows = _quotient(tokens, split, formula)
    groups = heads + 2 * attention.kv_heads
    grouped = f"{formula} x (heads + 2 kv_heads) / heads = {groups}/{heads}"
    projected = _quotient(tokens * groups, split * heads, grouped)
    hidden, inner = the_model.hidden, heads * width
    return (
        (projected, hidden, inner),
        (rows, width, sequence * heads),
        (rows, sequence, heads * attention.value_dim),
        (rows, heads * attention.value_dim, hidden),
        (rows, hidden, (2 if mlp.gated else 1) * mlp.ffn),
        (rows, mlp.ffn, hidden),
    )


def _quotient(dividend: int, divisor: int, formula: str) -> int:
    rows, rest = divmod(dividend, divisor)
    if rest:
        problem = f"rows of a product must be an integer in {_SOURCE}'s format: {formula} is not"
        raise InputError.at("strategy", problem, "global_batch_size")
    return rows


def _of_model(model: Model) -> Iterator[Fault]:
    """What six plain products cannot express of a model."""
    layer = model.layers[0]
    attention, beyond = layer.attention, layer.beyond_transformer
    if attention is None or beyond is not None:
        problem = f"{_SOURCE}'s six products cannot express {beyond[2] if beyond else ''}"
        yield Fault(source=f"model {model.name}", field="layers", problem=problem)
        return
    for field in uncommon_fields(model):
        problem = f"{_SOURCE}'s six products cannot express it; see `export gemms`"
        yield Fault(source=f"model {model.name}", field=field, problem=problem)
    lacks = {
        "layers": (len(model.layers) > 1, f"{len(model.layers)} kinds of layers"),
        "layers.kind": (layer.kind != OWN_KIND, f"layers of the kind {layer.kind}"),
        "layers.moe": (model.has_experts, "a mixture of experts"),
        "layers.attention.latent": (attention.latent is not None, "latent attention"),
        "layers.attention.window": (attention.window is not None, "a window"),
        "layers.attention.chunk": (attention.chunk is not None, "chunks of attention"),
        "position": (model.position == Position.RELATIVE_XL, "a product with relative positions"),
    }
    for field, (found, what) in lacks.items():
        if found:
            problem = f"{_SOURCE}'s six products cannot express {what}; see `export gemms`"
            yield Fault(source=f"model {model.name}", field=field, problem=problem)


def _of_strategy(strategy: Strategy) -> Iterator[Fault]:
    """What they cannot express of a strategy."""
    lacks = {
        "cp": (strategy.cp > 1, strategy.cp),
        "document_len": (strategy.document_len is not None, strategy.document_len),
        "lora_rank": (bool(strategy.lora_rank), strategy.lora_rank),
    }
    for field, (found, value) in lacks.items():
        if found:
            problem = f"{_SOURCE}'s six products cannot express it; see `export gemms`"
            yield Fault.of(field, value, problem, "strategy")
