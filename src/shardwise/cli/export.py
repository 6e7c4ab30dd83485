"""`shardwise export`."""

import sys
from collections.abc import Mapping

from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.results import Estimate
from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.options import (
    STRATEGY_OPTION,
    SYSTEM_OR_NONE,
    TABLES_OPTION,
    arg,
    opt,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import check_different_files, emit_json, log
from shardwise.config import files
from shardwise.config.arguments import one_of
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate
from shardwise.launchers.cli.export import (
    LaunchOptions,
    chosen_inputs,
    export_launch,
    launcher_names,
)
from shardwise.predecessors.amped.translation import AmpedCase
from shardwise.predecessors.cli.estimate import case_of
from shardwise.predecessors.translation import known_reference
from shardwise.report.deepflow import deepflow_text, shapes_text
from shardwise.report.graph import check_graph_file, write_graph
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv

THINGS = ("gemms", "graph", "deepflow")
_FOR_LAUNCHERS = "is for `export LAUNCHER`"
_NOT_FOR_LAUNCHERS = "has no effect on a launcher's configuration"
_CSV = (".csv", ".csv.gz")
_JSON = (".json", ".json.gz")
_NOT_TEXT = (*_CSV, *_JSON, ".yaml", ".yml", ".toml", ".parquet")
_GEMM_FIELDS = ("model", "system", "strategy", "matrix_flops", "gemms")
_NO_REFERENCE = "is for `export deepflow`: the shapes that AMPeD writes for it"
_OUR_SHAPES = "has no effect with --reference: it writes the shapes of shardwise"
_NO_SHAPES = "is for `export deepflow`; `export gemms` writes shapes without it"


@with_help(
    *("plan", "nearest", "output", "gpus", "tp", "pp", "micro_batch_size", "global_batch_size"),
    examples=[
        "shardwise export megatron llama3-8b h100-sxm --gpus 8 --tp 2 --gbs 64",
    ],
)
@with_strategy_flags
@with_options
def command(
    *,
    what: str = arg("WHAT", f"{', '.join(THINGS)}, or a launcher: {', '.join(launcher_names())}."),
    model: str | None = arg(
        "MODEL",
        "As for `estimate`; a launch file, too. Optional for a launcher with --plan.",
        default=None,
    ),
    system: str | None = SYSTEM_OR_NONE,
    strategy: str | None = STRATEGY_OPTION,
    tables: str | None = TABLES_OPTION,
    csv: str | None = opt(
        "--csv FILE",
        "In addition to the six lines of DeepFlow: shapes of all products as CSV.",
        OUTPUT,
    ),
    reference: str | None = opt(
        "--reference amped",
        "deepflow: the shapes that AMPeD writes, not divided by dp and pp.",
        OTHER_MODELS,
    ),
    output: str | None = opt(
        "--output -o FILE",
        "gemms: .csv, .json; graph: .json, .dot, .mmd, .svg; deepflow: .txt; launchers: "
        "their own endings, more files next to it. Default: standard output, as for -.",
        OUTPUT,
    ),
    launch: LaunchOptions,
    flags: Mapping[str, object],
) -> int:
    """Write a plan as a launcher's configuration, or its GEMMs, graph or shapes.

    Exit code 1 if a launcher's plan does not fit in memory.

    The configuration has the predicted step time and memory as comments. A plan that the launcher
    cannot run is refused, with the nearest one that it can (--nearest writes that).

    gemms: every matrix product of a step with its shape, count, FLOPs and time. graph: operations
    and collectives with the tensors between them. deepflow: one layer as six lines of rows, inner,
    columns; tokens are divided by dp and pp, tensor parallelism is left to DeepFlow.
    """
    what = one_of("what", what, (*THINGS, *launcher_names()))
    output = None if output == "-" else output
    if what not in THINGS:
        others = {"csv": csv, "reference": reference, "tables": tables}
        refuse_options(_NOT_FOR_LAUNCHERS, **others)
        return export_launch(
            what,
            launch,
            model=model,
            system=system,
            strategy=strategy,
            flags=flags,
            output=output,
        )
    refuse_options(_FOR_LAUNCHERS, **used(launch))
    if what != "deepflow":
        refuse_options(_NO_SHAPES, csv=csv)
        refuse_options(_NO_REFERENCE, reference=reference)
    inputs = chosen_inputs(model, system, strategy, flags, tables)
    if reference is not None:
        known_reference(reference, "reference", ("amped",))
        refuse_options(_OUR_SHAPES, csv=csv)
        _check_text(output)
        case = case_of("amped", inputs)
        assert isinstance(case, AmpedCase)  # noqa: S101 - of that name
        _write(shapes_text(case.shapes()), output)
        return 0
    the_model, the_system = Model.load(inputs.model), System.load(inputs.system)
    the_strategy = strategy_of(inputs.strategy, inputs.fields)
    if what == "graph":
        _write_graph(the_model, the_system, the_strategy, output)
    elif what == "gemms":
        _check(output, (*_CSV, *_JSON))
        _write_gemms(estimate(the_model, the_system, the_strategy, gemms=True), output)
    else:
        _check(csv, _CSV)
        check_different_files(output=output, csv=csv)
        _check_text(output)
        result = estimate(the_model, the_system, the_strategy, gemms=True)
        _write(deepflow_text(the_model, the_strategy), output)
        if csv is not None:
            _write(gemms_csv(result, SHAPE_COLUMNS), csv)
    return 0


def _check_text(path: str | None) -> None:
    """Refuse the ending of another format for DeepFlow's lines of text."""
    if path is None:
        return
    files.check_output_path(path)
    if path.lower().endswith(_NOT_TEXT):
        problem = "cannot be written; DeepFlow's shapes are text, as in .txt"
        raise InputError(Fault(source=path, problem=problem))


def _check(path: str | None, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path is None:
        return
    if not path.lower().endswith(endings):
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
    emit_json({name: record[name] for name in _GEMM_FIELDS}, path)


def _write_graph(model: Model, system: System, strategy: Strategy, path: str | None) -> None:
    if path is not None:
        check_graph_file(path)
    graph = graph_of(model, system, strategy)
    if path is None:
        emit_json(graph.to_dict())
        return
    write_graph(graph, path)
    log.info("wrote %s", path)
