"""What `estimate` shows of a predecessor's answer."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.cli.amped import Given
from shardwise.cli.options import emit_json, given_strategy
from shardwise.interop.amped.translation import (
    AmpedCase,
    amped_case,
    amped_case_of_parameters,
    amped_case_with,
)
from shardwise.interop.calculon.translation import CalculonCase, calculon_case
from shardwise.interop.nersc.translation import NerscCase, nersc_case
from shardwise.interop.translation import known_reference

Case = CalculonCase | NerscCase | AmpedCase

_NAMES = {CalculonCase: "calculon", NerscCase: "nersc", AmpedCase: "amped"}

__all__ = ["case_of", "known_reference", "show_beside", "show_reference", "texts_of"]


def case_of(reference: str, run: Given) -> Case:
    """Say a run of the command line in a predecessor's words.

    A strategy file alone is handed on to Calculon as it is, it may be its own; to AMPeD so are the
    parameters of a configuration that tells model, system and strategy, with flags over them.
    """
    model, system, strategy, flags = run.model, run.system, run.strategy, run.flags
    if reference == "amped" and run.config is not None:
        config = run.config
        words: dict[str, Any] = {"rows": config.row_names(), "source": config.source}
        if not run.changed:
            return amped_case_of_parameters(config.told(), fill=True, **words)
        given = given_strategy(strategy, flags)
        return amped_case_with(config.told(), model, system, given, changed=run.changed, **words)
    if reference != "calculon":
        given, source = given_strategy(strategy, flags), strategy or "strategy"
        if reference == "nersc":
            return nersc_case(model, system, given, source=source)
        return amped_case(model, system, given, source=source)
    if strategy is not None and not flags:
        return calculon_case(model, system, strategy)
    return calculon_case(model, system, given_strategy(strategy, flags), source=strategy or "")


def texts_of(case: Case) -> dict[str, str]:
    """Texts that a predecessor writes of a run, under its own names of the files."""
    if not isinstance(case, AmpedCase):
        return {}
    return {
        "amped_config_summary.txt": case.summary_text(),
        "amped_training_time_breakdown.txt": case.breakdown_text(),
    }


def show_reference(case: Case, *, ops: bool, json: bool, output: str | None) -> int:
    """Print a predecessor's statistics under its own names; exit code 1 if they do not fit."""
    record = case.answer()
    told = set(record) - {"infeasible", "message"}
    if ops and told:
        record["layers"] = case.layers()
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        tables = _tables(_NAMES[type(case)])
        if told:
            tables.print_statistics({name: record[name] for name in record if name in told})
        if "message" in record:
            tables.print_refusal(record["message"])
        if "layers" in record:
            tables.print_layers(record["layers"])
    return 1 if "infeasible" in record else 0


def show_beside(
    reference: str, result: Estimate, said: Mapping[str, Any], *, everything: bool
) -> None:
    """Print a predecessor's figures beside ours."""
    tables = _tables(reference)
    if set(said) - {"infeasible", "message"}:
        tables.print_beside(result, said, everything=everything)
    if "message" in said:
        tables.print_refusal(said["message"])


def _tables(reference: str) -> ModuleType:
    """What prints a predecessor's figures."""
    if reference == "nersc":
        from shardwise.report.tables import nersc as reference_nersc  # noqa: PLC0415 - slow to import

        return reference_nersc
    if reference == "amped":
        from shardwise.report.tables import amped_reference as reference_amped  # noqa: PLC0415 - slow to import

        return reference_amped
    from shardwise.report.tables import calculon as reference_calculon  # noqa: PLC0415 - slow to import

    return reference_calculon
