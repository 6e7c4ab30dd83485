"""Predecessors refuse models with mixers or layers of one block, whatever their layout."""

import pytest

from rows import each_row
from shardwise import InputError, Model, catalog
from shardwise.predecessors.amped.translation import model_for_amped
from shardwise.predecessors.calculon.translation import model_for_calculon
from shardwise.predecessors.nersc.translation import model_for_nersc
from shardwise.report.deepflow import deepflow_rows

HYBRIDS = [n for n in catalog.names("models") if any(Model.load(n).mixers)]
READERS = [
    model_for_amped,
    model_for_calculon,
    model_for_nersc,
    lambda model: deepflow_rows(model, {"gpus": 1, "global_batch_size": 1}),
]


def alone(name: str) -> list[Model]:
    """Each kind of layer of a model in a model of its own."""
    known = Model.load(name)
    fields = known.to_dict() | {"mtp": 0, "mtp_pattern": None, "pattern": None, "interleave": None}
    kinds = [layer.to_dict() | {"count": 2} for layer in known.layers if not layer.is_transformer]
    return [Model.load(fields | {"layers": [kind]}) for kind in kinds]


@each_row("name", HYBRIDS)
def test_hybrids_are_refused(name: str) -> None:
    """With a message, never an error of the program; also where all layers are equal."""
    for model in (Model.load(name), *alone(name)):
        for read in READERS:
            with pytest.raises(InputError):
                read(model)
