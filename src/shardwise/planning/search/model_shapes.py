"""Shapes of dense GPTs of any size, in the proportions of published ones."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from shardwise.config.model import Model

__all__ = ["depths", "shape_of", "widths"]

_HEAD_DIM = 128
_FFN_PER_HIDDEN = 4
_VOCAB = 51200
# The largest of the models that depth follows, how depth grows with width, and how far from that
# line any of them lies.
_HIDDEN_OF_1T, _LAYERS_OF_1T, _GROWTH, _SCATTER = 25600, 128, 0.7, 0.2
# Numbers of heads are 4 to 7, of layers 8 to 15, times a power of two, for tensor and pipeline
# parallelism to split.
_HEADS, _LAYERS = range(4, 8), range(8, 16)


def widths() -> Iterator[int]:
    """Yield numbers of heads in ascending order, without end: 1 2 3, 4 5 6 7, 8 10 12 14 ..."""
    yield from range(1, _HEADS.start)
    yield from _scaled(_HEADS)


def depths(heads: int) -> list[int]:
    """Numbers of layers that a GPT of so many heads may have, in ascending order.

    Within a fifth of L = 128 (hidden / 25600)^0.7, hidden = 128 heads. So are the ten models, from
    1.7 B (hidden 2304, 24 layers) to 1 T (25600, 128), that Megatron-LM was scaled up through
    (arXiv 2104.04473, Narayanan et al., 2021, table 1), with 48 layers for 58 the farthest off.
    """
    line = _LAYERS_OF_1T * (_HEAD_DIM * heads / _HIDDEN_OF_1T) ** _GROWTH
    least, most = (1 - _SCATTER) * line, (1 + _SCATTER) * line
    few = [layers for layers in range(1, _LAYERS.start) if least <= layers <= most]
    many = takewhile(lambda layers: layers <= most, _scaled(_LAYERS))
    return few + [layers for layers in many if layers >= least]


def _scaled(numbers: range) -> Iterator[int]:
    """Yield some numbers, their doubles, the doubles of these, without end."""
    scale = 1
    while True:
        yield from (scale * number for number in numbers)
        scale *= 2


def shape_of(heads: int, layers: int, seq_len: int) -> Model:
    """Return a GPT: heads of 128 and ffn = 4 hidden as GPT-3 (arXiv 2005.14165, table 2.1).

    Parameters
    ----------
    seq_len
        Tokens per sequence, and rows of the position table.
    """
    hidden = _HEAD_DIM * heads
    attention = {"heads": heads, "kv_heads": heads, "head_dim": _HEAD_DIM, "bias": "all"}
    mlp = {"ffn": _FFN_PER_HIDDEN * hidden, "activation": "gelu", "bias": True}
    text = "proportions of the models of arXiv 2104.04473, table 1; heads of 128 as GPT-3"
    fields: dict[str, Any] = {
        "name": f"gpt-{hidden}x{layers}",
        "hidden": hidden,
        "vocab": _VOCAB,
        "seq_len": seq_len,
        "layers": [{"count": layers, "attention": attention, "mlp": mlp}],
        "norm": "layernorm",
        "position": "learned",
        "tied_embeddings": True,
        "dropout": True,
        "sources": {"": {"kind": "assumed", "text": text}},
    }
    return Model.validated(fields, source="shape")
