"""Answers of other models (Calculon, NERSC's model, AMPeD) for `estimate`."""

import sys
from collections.abc import Mapping
from types import ModuleType

from shardwise.analysis.results import Estimate
from shardwise.cli.flags import strategy_of
from shardwise.cli.output import emit_json, note
from shardwise.config.inputs import Inputs
from shardwise.errors import InputError
from shardwise.predecessors import cases as references
from shardwise.predecessors.amped.translation import AmpedCase
from shardwise.predecessors.calculon.translation import CalculonCase
from shardwise.predecessors.cases import Case
from shardwise.predecessors.nersc.translation import NerscCase
from shardwise.registry import load

_NAMES = {CalculonCase: "calculon", NerscCase: "nersc", AmpedCase: "amped"}


def case_of(reference: str, inputs: Inputs) -> Case:
    """Translate the inputs for another model; faults name the strategy file or the flags."""
    if inputs.fields:
        strategy_of(inputs.strategy, inputs.fields)
    return references.case_of(reference, inputs)


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
    found = references.estimated(_NAMES[type(case)], case, layers=ops)
    record = found.to_dict()
    if found.message is not None and (json or output is not None):
        note(found.message)
    if json or output is not None:
        emit_json(record, output, written=False)
    else:
        tables = _tables(_NAMES[type(case)])
        if isinstance(case, CalculonCase):
            tables.print_question(case)
        if found.statistics:
            tables.print_statistics(found.statistics)
        if found.message is not None:
            load("predecessors.tables").print_refusal(_NAMES[type(case)], found.message)
        if found.layers is not None:
            tables.print_layers(found.layers)
    return 0 if found.infeasible is None else 1


def show_despite(
    refusal: InputError,
    reference: str,
    inputs: Inputs,
    *,
    ops: bool,
    json: bool,
    output: str | None,
) -> int:
    """Print the answer of another model to a run that shardwise refuses; exit code 1."""
    try:
        case = case_of(reference, inputs)
        answer = case.answer()
    except InputError:
        raise refusal from None
    refused = [str(fault) for fault in refusal.faults]
    record = {"refused": refused, "also": {reference: answer}}
    if json or output is not None:
        emit_json(record, output)
    else:
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
        load("predecessors.tables").print_refusal(_NAMES[type(case)], answer["message"])
    if isinstance(case, CalculonCase) and case.execution.datatype == "float8":
        tables.print_float8()


def _tables(reference: str) -> ModuleType:
    """Module that prints the tables of another model, which is slow to import."""
    found: ModuleType = load(f"predecessors.{reference}.tables")
    return found
