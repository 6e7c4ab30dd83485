"""`shardwise search --reference amped`: every batch size and the six degrees of AMPeD."""

import time
from collections.abc import Mapping
from typing import Any

from shardwise.cli.amped import configuration_of
from shardwise.cli.options import refuse_options, whole_number
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.interop.amped import reference as amped
from shardwise.interop.amped.translation import (
    amped_case_of_parameters,
    free_parameters,
    model_for_amped,
    system_for_amped,
)
from shardwise.interop.amped.writer import BITS
from shardwise.units import readable

__all__ = ["print_amped", "search_amped"]

_COMMAND_LINE = "command line"
_TOP = 10
_NO_LAYERS = "AMPeD's search shows no layers; ask estimate --reference amped --ops of one"


def search_amped(
    model: str,
    system: str,
    *,
    gpus: str | None,
    gbs: str | None,
    dtype: str | None,
    top: int | None,
    count: bool,
    layers: bool,
) -> dict[str, Any]:
    """Search all permutations, or count them; the record to show.

    Batch sizes are compared by the time of the same tokens: one batch of the largest.
    """
    refuse_options(_NO_LAYERS, layers=layers)
    parameters = _parameters(model, system, dtype)
    accelerators = _number("gpus", gpus)
    batches = [_number("gbs", part) for part in _given("gbs", gbs).split(",")]
    tokens = max(batches) * parameters["context"]
    limits: dict[str, Any] = {
        "accelerators": accelerators,
        "per_node": int(parameters.pop("number_of_accelerators_per_node")),
        "batch_sizes": list(dict.fromkeys(batches)),
    }
    started = time.perf_counter()
    record: dict[str, Any] = {"reference": "amped", "tokens_to_train": int(tokens)}
    if count:
        record["candidates"], record["good"] = amped.count(**limits)
    else:
        found = amped.search(parameters | {"tokens_to_train": tokens}, **limits, top_n=top or _TOP)
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
    return record | {"elapsed_s": time.perf_counter() - started}


def _parameters(model: str, system: str, dtype: str | None) -> dict[str, float]:
    """Parameters of a model and a system; those of a configuration that is both, as it tells them.

    What a search varies is not among them.
    """
    kind = Strategy.validated({} if dtype is None else {"dtype": dtype}).dtype
    same = model.strip() == system.strip()
    config = configuration_of(model) if same else None
    if config is None:
        return model_for_amped(model, dtype=kind) | system_for_amped(system, dtype=kind)
    told = amped_case_of_parameters(config.told(), fill=True, source=config.source).parameters
    types = ("weight_precision", "activation_precision") if dtype is not None else ()
    varied = {*amped.DEGREES, "batch_size", "number_of_microbatches_per_minibatch"}
    varied |= {"samples", "number_of_batches"}
    free = free_parameters(told) | dict.fromkeys(types, float(BITS[kind]))
    return {name: value for name, value in free.items() if name not in varied}


def _number(flag: str, value: str | None) -> int:
    number = whole_number(flag, _given(flag, value))
    assert number is not None  # noqa: S101 - given
    most = amped.MOST_ACCELERATORS
    if flag == "gpus" and number > most:
        problem = f"must be at most {most:,}: beyond, there are too many permutations to hold"
        raise InputError(
            Fault(source=_COMMAND_LINE, field=flag, value=value, has_value=True, problem=problem)
        )
    return number


def _given(flag: str, value: str | None) -> str:
    if value is None:
        raise InputError(Fault(source=_COMMAND_LINE, field=flag, problem="is missing: give it"))
    return value


def print_amped(record: Mapping[str, Any]) -> None:
    """Print the counts and the best permutations."""
    from shardwise.report.tables.amped_reference import print_permutations  # noqa: PLC0415 - slow

    summary = f"AMPeD's permutations: {record['candidates']:,}, of which {record['good']:,} fit "
    summary += "nodes"
    if "best" in record:
        summary += f"; all timed in {readable(record['elapsed_s'], 'seconds')}"
        summary += f"\ntime: of {record['tokens_to_train']:,} tokens"
    print_permutations(record.get("best", []), summary)
