"""`shardwise export`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.results import Estimate
from shardwise.cli.amped import given_case
from shardwise.cli.options import (
    ModelArgument,
    StrategyOption,
    SystemOrNone,
    TablesOption,
    emit_json,
    given_strategy,
    log,
    refuse_options,
    with_strategy_flags,
)
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest
from shardwise.estimator import estimate
from shardwise.report.deepflow import deepflow_text
from shardwise.report.graph import check_graph_file, graph_json, write_graph
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv

_THINGS = ("gemms", "graph", "deepflow")
_CSV = (".csv", ".csv.gz")
_JSON = (".json", ".json.gz")
_TOLD = ("model", "system", "strategy", "matrix_flops", "gemms")
_NO_SHAPES = "is for `export deepflow`; `export gemms` writes shapes itself"


@with_strategy_flags
def command(
    what: Annotated[
        str, typer.Argument(metavar="|".join(_THINGS), help="What to write of the strategy.")
    ],
    model: ModelArgument,
    flags: Mapping[str, Any],
    system: SystemOrNone = None,
    strategy: StrategyOption = None,
    tables: TablesOption = None,
    csv: Annotated[
        str | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Beside DeepFlow's six lines: the shapes of all products as CSV.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="gemms: .csv, .json; graph: .json, .dot, .mmd, .svg; deepflow: any name. Standard "
            "output if omitted, or for -: CSV, JSON, text.",
        ),
    ] = None,
) -> int:
    """Write what a strategy runs for other tools: products, their graph, or DeepFlow's shapes.

    gemms: every matrix product of a step with its shape, count, FLOPs and time. graph: operations
    and exchanges with the tensors between them. deepflow: one layer as six lines of rows, inner,
    columns; tokens are divided by dp and pp, tensor parallelism is left to DeepFlow.
    """
    if what not in _THINGS:
        problem = f"allowed: {', '.join(_THINGS)}{nearest(what, _THINGS)}"
        raise InputError(
            Fault(source="command line", value=what, has_value=True, field="what", problem=problem)
        )
    output = None if output == "-" else output
    if what != "deepflow":
        refuse_options(_NO_SHAPES, csv=csv)
    told = given_case(model, system, strategy=strategy, flags=flags, run={}, tables=tables)
    the_model, the_system = Model.load(told.model), System.load(told.system)
    given = given_strategy(told.strategy, told.flags)
    if what == "graph":
        _write_graph(the_model, the_system, given, output)
    elif what == "gemms":
        _check(output, (*_CSV, *_JSON))
        _write_gemms(estimate(the_model, the_system, given, gemms=True), output)
    else:
        _check(csv, _CSV)
        _check(output, ())
        if csv is not None and output is not None:
            from shardwise.cli.search_own import different_files  # noqa: PLC0415 - slow to import

            different_files({"output": output, "csv": csv})
        result = estimate(the_model, the_system, given, gemms=True)
        _write(deepflow_text(the_model, given), output)
        if csv is not None:
            _write(gemms_csv(result, SHAPE_COLUMNS), csv)
    return 0


def _check(path: str | None, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path is None:
        return
    if endings and not path.lower().endswith(endings):
        problem = f"cannot be written; allowed endings: {', '.join(endings)}"
        raise InputError(Fault(source=path, problem=problem))
    files.check_output_path(path)


def _write(text: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    files.write_text(path, text)
    log.info("wrote %s", path)


def _write_gemms(result: Estimate, path: str | None) -> None:
    if path is None or path.lower().endswith(_CSV):
        _write(gemms_csv(result), path)
        return
    record = result.to_dict()
    emit_json({name: record[name] for name in _TOLD}, path)


def _write_graph(model: Model, system: System, strategy: Strategy, path: str | None) -> None:
    if path is not None:
        check_graph_file(path)
    graph = graph_of(model, system, strategy)
    if path is None:
        sys.stdout.write(graph_json(graph))
        return
    write_graph(graph, path)
    log.info("wrote %s", path)
