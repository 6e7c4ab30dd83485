"""Registered kinds of layers and the operations they consist of."""

from collections.abc import Callable
from importlib.metadata import entry_points

from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.ops.operation import Operation, RankWork

LayerOperations = Callable[[Model, Layer, RankWork], list[Operation]]

_ENTRY_POINTS = "shardwise.layers"
_registered: dict[str, LayerOperations] = {}


def register_layer(name: str, operations: LayerOperations) -> None:
    """Register a kind of layer: its operations on one rank, as columns.

    A layer of a model names it as its `kind`. A package registers one for the command line, too, as
    an entry point of the group `shardwise.layers`.

    Parameters
    ----------
    name
        Value of `Layer.kind`.
    operations
        Called with the model, the layer (its `options` are the kind's own) and the work of a rank;
        returns the operations in forward order.

    Raises
    ------
    InputError
        If another function is registered under the name.

    Examples
    --------
    >>> from shardwise.ops.registry import register_layer
    >>> from shardwise.ops.linear import linear
    >>> def mixer(model, layer, work):
    ...     width = layer.options["width"] / work.tp
    ...     return [linear("mixer", work, tokens=work.tokens, inputs=model.hidden, outputs=width)]
    >>> register_layer("mixer", mixer)
    """
    registered = _registered.get(name, operations) is not operations
    if name == OWN_KIND or registered:
        problem = "is registered already" if registered else "is the built-in kind"
        raise InputError(Fault(field="name", value=name, has_value=True, problem=problem))
    _registered[name] = operations


def operations_of_kind(name: str) -> LayerOperations:
    """Operations of a registered kind of layer.

    Raises
    ------
    InputError
        If the kind is not registered.
    """
    if name not in _registered:
        for entry in entry_points(group=_ENTRY_POINTS, name=name):
            _registered[name] = entry.load()
    if name not in _registered:
        offered = {entry.name for entry in entry_points(group=_ENTRY_POINTS)}
        known = sorted({OWN_KIND, *_registered, *offered})
        problem = f"no such kind of layer; {allowed_words(name, known)}"
        raise InputError(
            Fault(source="model", field="layers.kind", value=name, has_value=True, problem=problem)
        )
    return _registered[name]
