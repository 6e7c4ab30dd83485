"""AMPeD's search space."""

import math
from typing import Any

from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.predecessors.amped import reference as amped
from shardwise.predecessors.amped.inputs import configuration_of
from shardwise.predecessors.amped.translation import (
    BITS,
    amped_case_of_parameters,
    free_parameters,
    model_for_amped,
    system_for_amped,
)
from shardwise.predecessors.search import TOP, ReferenceQuery, number, required
from shardwise.predecessors.translation import with_dtype_of

_NO_LAYERS = "AMPeD's search lists no layers; use estimate --reference amped --ops"


def search_amped(query: ReferenceQuery) -> dict[str, Any]:
    """Every batch size and the six degrees of AMPeD.

    Batch sizes are compared by the time of the same tokens: one batch of the largest.
    """
    if query.layers:
        raise InputError(Fault(field="layers", problem=_NO_LAYERS))
    parameters = _parameters(query)
    scale = _scale(query.model)
    gpus = number("gpus", query.gpus or scale.get("gpus"))
    if gpus > amped.MOST_ACCELERATORS:
        problem = f"must be at most {amped.MOST_ACCELERATORS:,}: more have too many permutations"
        raise InputError(Fault.of("gpus", query.gpus, problem))
    batch_sizes = required("gbs", query.gbs or scale.get("gbs"))
    batches = [number("gbs", text) for text in batch_sizes.split(",")]
    tokens = max(batches) * parameters["context"]
    limits: dict[str, Any] = {
        "accelerators": gpus,
        "per_node": int(parameters.pop("number_of_accelerators_per_node")),
        "batch_sizes": list(dict.fromkeys(batches)),
    }
    record: dict[str, Any] = {"gpus": gpus, "tokens_to_train": int(tokens)}
    if query.count:
        record["candidates"], record["good"] = amped.count(**limits)
        return record
    parameters |= {"tokens_to_train": tokens}
    found = amped.search(parameters, **limits, top_n=query.top or TOP)
    record |= {"candidates": found.candidates, "good": found.good}
    record["best"] = [
        {
            "time_s": one.time_s,
            "step_time_s": one.time_s * one.batch_size / max(batches),
            "batch_size": one.batch_size,
            "degrees": one.degrees,
        }
        for one in found.best
    ]
    return record


def _scale(model: object) -> dict[str, str]:
    """Accelerators and batch of a configuration, by the argument that would set them."""
    config = configuration_of(model)
    if config is None:
        return {}
    parameters = config.read_values()
    degrees = [parameters[name] for name in amped.DEGREES if name in parameters]
    found = {"gpus": math.prod(degrees)} if degrees else {}
    found |= {"gbs": parameters["batch_size"]} if "batch_size" in parameters else {}
    return {name: str(value).removesuffix(".0") for name, value in found.items()}


def _parameters(query: ReferenceQuery) -> dict[str, float]:
    """Parameters of model and system that the search does not vary."""
    model, system, dtype = query.model, query.system, query.dtype
    strategy = Strategy.validated({} if dtype is None else {"dtype": dtype})
    config = configuration_of(model) if str(model).strip() == str(system).strip() else None
    if config is None:
        kind = with_dtype_of(System.load(system), strategy).dtype
        return model_for_amped(model, dtype=kind) | system_for_amped(system, dtype=kind)
    case = amped_case_of_parameters(config.read_values(), fill=True, source=config.source)
    types = ("weight_precision", "activation_precision") if dtype is not None else ()
    varied = {*amped.DEGREES, "batch_size", "number_of_microbatches_per_minibatch"}
    varied |= {"samples", "number_of_batches"}
    free = free_parameters(case.parameters) | dict.fromkeys(types, float(BITS[strategy.dtype]))
    return {name: value for name, value in free.items() if name not in varied}
