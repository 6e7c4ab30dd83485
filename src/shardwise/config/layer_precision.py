"""First and last layers that a low-precision recipe leaves in 16 bits.

Recipes leave some layers at the ends of a model in the type of the strategy
(`first_last_layers_bf16` of Megatron-Core; the last 14 blocks of Nemotron 3 Super in nvfp4).
"""

from collections.abc import Sequence

from shardwise.config.model import Layer, Model
from shardwise.errors import Fault, InputError

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def with_16_bit_ends(model: Model, first: int = 0, last: int = 0) -> Model:
    """Return the model with so many layers at its start and its end that no recipe quantizes.

    Modules of multi-token prediction are quantized: Megatron-Core enters the recipe for them
    without the number of a layer (core/transformer/multi_token_prediction.py, Megatron-LM d98e8a6).

    Parameters
    ----------
    first, last
        Layers as the model counts them: in a hybrid pattern, its blocks.

    Raises
    ------
    InputError
        If the model has fewer layers.
    """
    for field, count in {"first": first, "last": last}.items():
        if not 0 <= count <= model.depth:
            problem = f"must be at most the {model.depth} layers of {model.name}"
            raise InputError(Fault.of(f"{field} layers in 16 bits", count, problem))
    inside = range(first, model.depth - last)
    return _grouped(model, [at in inside for at in range(model.depth)])


def with_all_quantized(model: Model) -> Model:
    """Return the model with all of its layers quantized."""
    return _grouped(model, [True] * model.depth)


def ends_in_16_bits(model: Model) -> tuple[int, int] | None:
    """Layers at the start and the end that are not quantized; None if others are not, either.

    Of a model without quantized layers, all are at the start.
    """
    flags = [model.layers[kind].quantized for kind in model.order]
    if not any(flags):
        return len(flags), 0
    first, last = flags.index(True), flags[::-1].index(True)
    return (first, last) if all(flags[first : len(flags) - last]) else None


def _grouped(model: Model, quantized: Sequence[bool]) -> Model:
    """The model with its layers quantized or not, equal ones as one group with a symbol.

    Quantized groups have the symbols of the model. Without them, groups that follow one another and
    are all quantized have none.
    """
    now = [model.layers[kind].quantized for kind in model.order]
    if now == list(quantized):
        return model
    layers = [_quantized(model.layers[kind]) for kind in model.order]
    kinds = list(dict.fromkeys(map(_quantized, model.layers)))
    modules = list(map(_quantized, model.mtp_layers)) if model.mtp else []
    keys = list(zip(layers, quantized, strict=True))
    groups = [(one, flag) for one in kinds for flag in (True, False) if (one, flag) in keys]
    symbols = _symbols(model, groups)
    of_modules = "".join(symbols.get((one, True)) or symbols[one, False] for one in modules)
    places = [groups.index(key) for key in keys]
    plain = all(quantized) and places == sorted(places)
    plain = plain and of_modules in ("", symbols[groups[-1]])
    fields: dict[str, object] = {
        "layers": tuple(
            one.model_copy(
                update={
                    "count": keys.count((one, flag)),
                    "symbol": None if plain else symbols[one, flag],
                    "quantized": flag,
                }
            )
            for one, flag in groups
        ),
        "interleave": None,
        "pattern": None if plain else "".join(symbols[key] for key in keys),
        "mtp_pattern": None if plain else of_modules or None,
    }
    return model.model_copy(update=fields)


def _quantized(layer: Layer) -> Layer:
    """A layer without its count, symbol and precision."""
    return layer.model_copy(update={"count": 1, "symbol": None, "quantized": True})


def _symbols(model: Model, groups: Sequence[tuple[Layer, bool]]) -> dict[tuple[Layer, bool], str]:
    """A character for each group: that of the model for quantized ones, where it has one."""
    own = {_quantized(one): one.symbol for one in model.layers if one.quantized and one.symbol}
    free = (one for one in _SYMBOLS if one not in own.values())
    found = {(one, flag): own.get(one) if flag else None for one, flag in groups}
    return {key: symbol or next(free) for key, symbol in found.items()}
