"""Answers of other models (Calculon, NERSC's model, AMPeD) to the question of an estimate."""

from pathlib import Path
from typing import Any, cast

from shardwise.analysis.reference_results import Reference, ReferenceEstimate, known_reference
from shardwise.config.inputs import Inputs
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import strategy_of
from shardwise.predecessors.amped.translation import (
    AmpedCase,
    amped_case,
    amped_case_of_parameters,
    amped_case_with,
)
from shardwise.predecessors.calculon.translation import CalculonCase, calculon_case
from shardwise.predecessors.nersc.translation import NerscCase, nersc_case

Case = CalculonCase | NerscCase | AmpedCase

_REFUSAL = ("infeasible", "message")


def case_of(reference: object, inputs: Inputs) -> Case:
    """Translate inputs for another model.

    Calculon reads a strategy file without other fields itself, since it may be in its own format;
    AMPeD reads its own configuration, with other fields over it.
    """
    name = known_reference(reference, "reference")
    model, system, strategy, fields = inputs.model, inputs.system, inputs.strategy, inputs.fields
    config = inputs.config if name == "amped" else None
    words: dict[str, Any] = {}
    if config is not None:
        words = {"rows": config.row_names(), "source": config.source}
        if not inputs.changed:
            return amped_case_of_parameters(config.read_values(), fill=True, **words)
    source = str(strategy) if isinstance(strategy, (str, Path)) else ""
    if name == "calculon" and strategy is not None and not fields:
        return calculon_case(model, system, strategy)
    read = Strategy() if strategy is None and not fields else strategy_of(strategy, fields)
    if config is not None:
        changed = inputs.changed
        return amped_case_with(config.read_values(), model, system, read, changed=changed, **words)
    if name == "calculon":
        return calculon_case(model, system, read, source=source)
    translated = nersc_case if name == "nersc" else amped_case
    return translated(model, system, read, source=source or "strategy")


def reference_estimate(name: str, inputs: Inputs, *, layers: bool) -> ReferenceEstimate:
    """Return the answer of another model to inputs."""
    return estimated(name, case_of(name, inputs), layers=layers)


def estimated(reference: object, case: Case, *, layers: bool) -> ReferenceEstimate:
    """Return the answer of another model."""
    answer = case.answer()
    statistics = {name: value for name, value in answer.items() if name not in _REFUSAL}
    return ReferenceEstimate(
        reference=cast("Reference", known_reference(reference, "reference")),
        statistics=statistics,
        infeasible=answer.get("infeasible"),
        message=answer.get("message"),
        layers=case.layers() if layers and statistics else None,
    )
