"""Shapes of dense GPTs by size, in the proportions of published models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import Any

from shardwise.config.model import Model
from shardwise.errors import check_word
from shardwise.ops.param_count import count_parameters


def _ladder(most: float, *, beyond: int, seq_len: int) -> tuple[list[Model], int]:
    """Return models by size, and how many of them have at most `most` parameters.

    The list has at least `beyond` larger ones.
    """
    found: list[tuple[int, Model]] = []
    for heads in widths():
        models = [gpt_model(heads, layers, seq_len) for layers in depths(heads)]
        sized = [(count_parameters(model).total, model) for model in models]
        least = sized[0][0]
        if sum(most < size < least for size, _ in found) >= beyond:
            break
        found += sized
    found.sort(key=itemgetter(0))
    return [model for _, model in found], sum(size <= most for size, _ in found)


def _calculon_ladder(most: float, *, beyond: int, seq_len: int) -> tuple[list[Model], int]:
    """Return the shapes of Calculon's study, and how many have at most `most` parameters."""
    del beyond  # there are only these
    models = [
        gpt_model(heads, layers, seq_len, hidden=hidden, head_dim=round(hidden / heads))
        for hidden, heads, layers in calculon_shapes()
    ]
    return models, sum(count_parameters(model).total <= most for model in models)


def calculon_shapes() -> list[tuple[int, int, int]]:
    """Width, heads and layers of the shapes of Calculon's study of huge models, by size.

    128 to 576 layers in steps of 32, as many heads, and the multiple of 1024 whose ratio to the
    layers is closest to one that grows from 192 by 32/3 for each step: those that Calculon 0.1.0
    (scripts/find_huge.py) lists for its search for systems that train them.
    """
    found = []
    for step, layers in enumerate(range(128, 577, 32)):
        target = layers * (192 + step * 32 / 3)
        found.append((1024 * round(target / 1024), layers, layers))
    return found


def calculon_rows() -> list[dict[str, Any]]:
    """Return the shapes of Calculon's study with their parameters and ratio of width to depth."""
    models = _calculon_ladder(0.0, beyond=0, seq_len=_FAMILIES["calculon"].seq_len)[0]
    return [
        {
            "name": model.name,
            "parameters": count_parameters(model).total,
            "layers": model.depth,
            "hidden": model.hidden,
            "heads": model.layers[0].attention.heads,
            "head_dim": model.layers[0].attention.head_dim,
            "ffn": model.layers[0].feed_forward.ffn,
            "seq_len": model.seq_len,
            "ratio": model.hidden / model.depth,
        }
        for model in models
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of shapes, and the tokens that they are trained on unless set."""

    ladder: Callable[..., tuple[list[Model], int]]
    """Models by size, and how many of them have at most a number of parameters."""
    seq_len: int
    batch: int | None = None
    """None: one sequence for each accelerator."""


_FAMILIES = {
    "gpt": Family(ladder=_ladder, seq_len=2048),
    "calculon": Family(ladder=_calculon_ladder, seq_len=8192, batch=3072),
}


def family_of(name: str) -> Family:
    """Return the family of shapes of a name."""
    check_word("shapes", name, tuple(_FAMILIES))
    return _FAMILIES[name]


_HEAD_DIM = 128
_FFN_PER_HIDDEN = 4
_VOCAB = 51200
# Depth by width: the largest of the published models, the exponent of the growth, and the largest
# relative distance of any of them from that line.
_HIDDEN_OF_1T, _LAYERS_OF_1T, _GROWTH, _SCATTER = 25600, 128, 0.7, 0.2
# Heads are 4 to 7 and layers 8 to 15 times a power of two, for TP and PP to split.
_HEADS, _LAYERS = range(4, 8), range(8, 16)


def widths() -> Iterator[int]:
    """Yield numbers of heads in ascending order, endlessly: 1 2 3, 4 5 6 7, 8 10 12 14 ..."""
    yield from range(1, _HEADS.start)
    yield from _scaled(_HEADS)


def depths(heads: int) -> list[int]:
    """Numbers of layers that a GPT of so many heads may have, in ascending order.

    Within a fifth of L = 128 (hidden / 25600)^0.7, hidden = 128 heads. So are the ten models, from
    1.7 B (hidden 2304, 24 layers) to 1 T (25600, 128), that Megatron-LM was scaled up through
    (arXiv 2104.04473, Narayanan et al., 2021, table 1), farthest 48 layers for 58.
    """
    line = _LAYERS_OF_1T * (_HEAD_DIM * heads / _HIDDEN_OF_1T) ** _GROWTH
    least, most = (1 - _SCATTER) * line, (1 + _SCATTER) * line
    few = [layers for layers in range(1, _LAYERS.start) if least <= layers <= most]
    many = takewhile(lambda layers: layers <= most, _scaled(_LAYERS))
    return few + [layers for layers in many if layers >= least]


def _scaled(numbers: range) -> Iterator[int]:
    """Yield some numbers times every power of two, endlessly."""
    scale = 1
    while True:
        yield from (scale * number for number in numbers)
        scale *= 2


def gpt_model(
    heads: int, layers: int, seq_len: int, *, hidden: int | None = None, head_dim: int = _HEAD_DIM
) -> Model:
    """Return a GPT: heads of 128 and ffn = 4 hidden as GPT-3 (arXiv 2005.14165, table 2.1)."""
    hidden = head_dim * heads if hidden is None else hidden
    attention = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "bias": "all"}
    mlp = {"ffn": _FFN_PER_HIDDEN * hidden, "activation": "gelu", "bias": True}
    text = "proportions of the models of arXiv 2104.04473, table 1; heads of 128 as GPT-3"
    fields: dict[str, object] = {
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
