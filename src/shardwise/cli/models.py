"""`shardwise models`."""

from typing import Any

from shardwise.cli.listing import NameArgument, list_or_show
from shardwise.cli.options import JsonFlag, OutputOption
from shardwise.model import Model
from shardwise.ops.parameters import count_parameters
from shardwise.report.catalog import print_model, print_models


def command(name: NameArgument = None, json: JsonFlag = False, output: OutputOption = None) -> int:
    """List the models of the catalog, or show one: its shape and its parameters by part.

    With --output, write the model to a file to start one of your own from.
    """
    return list_or_show(
        Model,
        name,
        json=json,
        output=output,
        record=_record,
        print_all=print_models,
        print_one=print_model,
    )


def _record(model: Model) -> dict[str, Any]:
    counted = count_parameters(model)
    return {
        "name": model.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "embedding_parameters": counted.embedding,
        "breakdown": counted.breakdown,
        "model": model.to_dict(),
    }
