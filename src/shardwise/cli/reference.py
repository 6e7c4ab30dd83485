"""Answers of other models (Calculon, NERSC's model, AMPeD) for `estimate`."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.cli.amped import Inputs
from shardwise.cli.flags import strategy_of
from shardwise.cli.output import emit_json, note
from shardwise.errors import InputError
from shardwise.interop.amped.translation import (
    AmpedCase,
    amped_case,
    amped_case_of_parameters,
    amped_case_with,
)
from shardwise.interop.calculon.translation import CalculonCase, calculon_case
from shardwise.interop.nersc.translation import NerscCase, nersc_case

Case = CalculonCase | NerscCase | AmpedCase

_NAMES = {CalculonCase: "calculon", NerscCase: "nersc", AmpedCase: "amped"}


def case_of(reference: str, inputs: Inputs) -> Case:
    """Translate the inputs for another model.

    Calculon reads a strategy file without flags itself, since it may be in its own format; AMPeD
    reads its own configuration, with the flags over it.
    """
    model, system, strategy, flags = inputs.model, inputs.system, inputs.strategy, inputs.flags
    if reference == "amped" and inputs.config is not None:
        config = inputs.config
        words: dict[str, Any] = {"rows": config.row_names(), "source": config.source}
        if not inputs.changed:
            return amped_case_of_parameters(config.read_values(), fill=True, **words)
        read = strategy_of(strategy, flags)
        return amped_case_with(
            config.read_values(), model, system, read, changed=inputs.changed, **words
        )
    if reference != "calculon":
        read, source = strategy_of(strategy, flags), strategy or "strategy"
        if reference == "nersc":
            return nersc_case(model, system, read, source=source)
        return amped_case(model, system, read, source=source)
    if strategy is not None and not flags:
        return calculon_case(model, system, strategy)
    return calculon_case(model, system, strategy_of(strategy, flags), source=strategy or "")


def texts_of(case: Case) -> dict[str, str]:
    """Text files that the other model writes, by name."""
    if not isinstance(case, AmpedCase):
        return {}
    return {
        "amped_config_summary.txt": case.summary_text(),
        "amped_training_time_breakdown.txt": case.breakdown_text(),
    }


def show_reference(case: Case, *, ops: bool, json: bool, output: str | None) -> int:
    """Print the statistics of another model under its own names; exit code 1 if infeasible."""
    record = case.answer()
    statistics = record.keys() - {"infeasible", "message"}
    if ops and statistics:
        record["layers"] = case.layers()
    if "infeasible" in record and "message" in record and (json or output is not None):
        note(record["message"])
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        tables = _tables(_NAMES[type(case)])
        if isinstance(case, CalculonCase):
            tables.print_question(case)
        if statistics:
            tables.print_statistics({name: record[name] for name in record if name in statistics})
        if "message" in record:
            tables.print_refusal(record["message"])
        if "layers" in record:
            tables.print_layers(record["layers"])
    return 1 if "infeasible" in record else 0


def show_despite(
    refusal: InputError,
    reference: str,
    inputs: Inputs,
    *,
    ops: bool,
    json: bool,
    output: str | None,
) -> int:
    """Print the answer of another model to a run that shardwise refuses; exit code 1.

    Raises
    ------
    InputError
        The refusal, if the other model refuses the inputs, too.
    """
    try:
        case = case_of(reference, inputs)
        answer = case.answer()
    except InputError:
        raise refusal from None
    refused = [str(fault) for fault in refusal.faults]
    record = {"refused": refused, "also": {reference: answer}}
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        for fault in refused:
            sys.stderr.write(f"shardwise refuses this run: {fault}\n")
        show_reference(case, ops=ops, json=False, output=None)
    return 1


def show_comparison(
    case: Case, result: Estimate, answer: Mapping[str, object], *, all_: bool
) -> None:
    """Print the estimate next to the answer of another model."""
    tables = _tables(_NAMES[type(case)])
    if set(answer) - {"infeasible", "message"}:
        of = (case,) if isinstance(case, NerscCase) else ()
        tables.print_comparison(*of, result, answer, everything=all_)
    if "message" in answer:
        tables.print_refusal(answer["message"])
    if isinstance(case, CalculonCase) and case.execution.datatype == "float8":
        tables.print_float8()


def _tables(reference: str) -> ModuleType:
    """Module that prints the tables of another model."""
    if reference == "nersc":
        from shardwise.report.tables import nersc as reference_nersc  # noqa: PLC0415 - slow to import

        return reference_nersc
    if reference == "amped":
        from shardwise.report.tables import amped as reference_amped  # noqa: PLC0415 - slow to import

        return reference_amped
    from shardwise.report.tables import calculon as reference_calculon  # noqa: PLC0415 - slow to import

    return reference_calculon
