"""What `estimate` shows of a predecessor's answer."""

from collections.abc import Mapping
from typing import Any

from shardwise.cli.options import emit_json, given_strategy
from shardwise.comparison import CalculonCase, calculon_case, known_reference
from shardwise.reference.calculon import Infeasible
from shardwise.results import Estimate

__all__ = ["answer", "case_of", "known_reference", "show_beside", "show_reference"]


def case_of(
    model: str, system: str, strategy: str | None, flags: Mapping[str, Any]
) -> CalculonCase:
    """Say a run of the command line in Calculon's words.

    A strategy file alone is handed on as it is: it may be the predecessor's own.
    """
    if strategy is not None and not flags:
        return calculon_case(model, system, strategy)
    return calculon_case(model, system, given_strategy(strategy, flags), source=strategy or "")


def answer(case: CalculonCase) -> dict[str, Any]:
    """Calculon's statistics, or why it refuses the run."""
    try:
        return case.statistics()
    except Infeasible as refusal:
        return {"infeasible": refusal.reason, "message": refusal.sentence}


def show_reference(case: CalculonCase, *, ops: bool, json: bool, output: str | None) -> int:
    """Print Calculon's statistics under its own names; exit code 1 if it refuses the run."""
    record = answer(case)
    feasible = "infeasible" not in record
    if ops and feasible:
        record["layers"] = case.layers()
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        from shardwise.report.reference import (  # noqa: PLC0415 - slow to import
            print_layers,
            print_refusal,
            print_statistics,
        )

        layers = record.pop("layers", None)
        if feasible:
            print_statistics(record, "Calculon 0.1.0")
        else:
            print_refusal(record["message"])
        if layers is not None:
            print_layers(layers)
    return 0 if feasible else 1


def show_beside(result: Estimate, said: dict[str, Any], *, everything: bool) -> None:
    """Print Calculon's figures beside ours."""
    from shardwise.report.reference import (  # noqa: PLC0415 - slow to import
        print_beside,
        print_refusal,
    )

    if "infeasible" in said:
        print_refusal(said["message"])
    else:
        print_beside(result, said, everything=everything)
