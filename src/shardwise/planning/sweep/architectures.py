"""Changes of a model in proportion: its depth, its width, the length of its sequences."""

from collections.abc import Callable

from shardwise.config.model import Layer, Model

__all__ = ["MODEL_FIGURES"]


def _with_depth(model: Model, depth: int) -> Model:
    """The same model with so many layers, each kind in proportion.

    Raises
    ------
    ValueError
        If some kind would have a part of a layer.
    """
    counts = [
        _scaled(layer.count, depth, model.depth, "layers of a kind") for layer in model.layers
    ]
    layers = tuple(
        layer.model_copy(update={"count": count})
        for layer, count in zip(model.layers, counts, strict=True)
    )
    return model.model_copy(update={"layers": layers})


def _with_hidden(model: Model, hidden: int) -> Model:
    """The same model of another width: heads stay as wide, heads and inner widths in proportion.

    Raises
    ------
    ValueError
        If there would be a part of a head.
    """

    def wider(layer: Layer) -> Layer:
        def scaled(number: int, what: str) -> int:
            return _scaled(number, hidden, model.hidden, what)

        attention = layer.attention.model_copy(
            update={
                "heads": scaled(layer.attention.heads, "heads"),
                "kv_heads": scaled(layer.attention.kv_heads, "key-value heads"),
            }
        )
        changed: dict[str, object] = {"attention": attention}
        if layer.mlp is not None:
            ffn = scaled(layer.mlp.ffn, "inner width")
            changed["mlp"] = layer.mlp.model_copy(update={"ffn": ffn})
        if layer.moe is not None:
            inner = {n: scaled(getattr(layer.moe, n), "inner width") for n in ("ffn", "shared_ffn")}
            changed["moe"] = layer.moe.model_copy(update=inner)
        return layer.model_copy(update=changed)

    layers = tuple(wider(layer) for layer in model.layers)
    return model.model_copy(update={"hidden": hidden, "layers": layers})


def _with_seq_len(model: Model, seq_len: int) -> Model:
    """The same model for sequences so long; a table of learned positions grows with them."""
    positions = model.max_positions
    longer = None if positions is None else max(positions, seq_len)
    return model.model_copy(update={"seq_len": seq_len, "max_positions": longer})


def _scaled(number: int, to: int, of: int, what: str) -> int:
    if number * to % of:
        raise ValueError(f"leaves {number * to / of:g} {what} of {number}; must be whole")
    return number * to // of


MODEL_FIGURES: dict[str, Callable[[Model, int], Model]] = {
    "seq_len": _with_seq_len,
    "depth": _with_depth,
    "hidden": _with_hidden,
}
"""Figures of a model that may be varied, by name."""
