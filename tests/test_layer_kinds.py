"""Kinds of layers that are registered: what they do counts everywhere, unknown ones are refused."""

import numpy as np
import pytest

import samples
from shardwise import InputError, Model, estimate, estimate_many
from shardwise.config.model import Layer
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import linear
from shardwise.ops.operation import Operation, RankWork
from shardwise.ops.param_count import count_parameters
from shardwise.ops.registry import operations_of_kind, register_layer


def widened(model: Model, layer: Layer, work: RankWork) -> list[Operation]:
    """Our layer and one more product, split over the tensor-parallel ranks."""
    plain = layer.model_copy(update={"kind": "transformer", "options": {}})
    width = float(layer.options["width"]) / work.tp
    more = linear("more", work, tokens=work.tokens, inputs=model.hidden, outputs=width)
    return [*layer_operations(model, plain, work), more]


register_layer("widened", widened)


def model(width: float = 128, **layer: object) -> Model:
    """The GPT sample with a product of 64 x width more in each of its 4 layers."""
    fields = samples.model().to_dict()
    fields["layers"][0] |= {"kind": "widened", "options": {"width": width}} | layer
    return Model.validated(fields)


def test_its_operations_count_in_parameters_time_and_memory() -> None:
    """64 x 128 weights more in each layer, and a product that takes time and keeps its input."""
    strategy = {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack()}
    plain, more = (estimate(m, samples.system(), strategy) for m in (samples.model(), model()))
    assert more.parameters - plain.parameters == 4 * 64 * 128
    assert more.memory_bytes.activations - plain.memory_bytes.activations == 4 * 64 * 64 * 2
    added = 4 * 3 * 2 * 64 * 64 * 128 / 100e12
    assert more.step_time_s - plain.step_time_s > 0.9 * added
    assert more.layers[0].parameters - plain.layers[0].parameters == 64 * 128


def test_it_works_on_every_row() -> None:
    """A table of degrees: each rank has its part of the product."""
    table = estimate_many(
        model(), samples.system(), {"tp": [1, 2, 4], "dp": 1, "gbs": 2, "stack": samples.stack()}
    )
    assert np.all(np.isfinite(table.step_time_s))
    one = estimate(
        model(), samples.system(), {"tp": 4, "dp": 1, "gbs": 2, "stack": samples.stack()}
    )
    assert table.step_time_s[2] == one.step_time_s


def test_unknown_kinds_are_refused() -> None:
    """With what there is, and what it may have meant."""
    with pytest.raises(InputError, match=r"layers.kind: 'widend': no such kind .* mean 'widened'"):
        count_parameters(model(kind="widend"))


def test_names_are_used_once() -> None:
    """The same function again is fine, another one is not; the built-in kind is reserved."""
    register_layer("widened", widened)
    assert operations_of_kind("widened") is widened
    with pytest.raises(InputError, match="is registered already"):
        register_layer("widened", layer_operations)
    with pytest.raises(InputError, match="is the built-in kind"):
        register_layer("transformer", widened)


def test_options_are_those_of_a_registered_kind() -> None:
    """A plain layer has none."""
    with pytest.raises(InputError, match="transformer layers have none"):
        model(kind="transformer")
