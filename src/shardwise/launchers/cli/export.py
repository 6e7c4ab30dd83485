"""`shardwise export`: the configuration of a trainer for a plan; GEMMs, graph or shapes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import registry
from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.reference_results import known_reference
from shardwise.analysis.results import Estimate
from shardwise.analysis.saved_plan import SavedPlan, find_plan
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
from shardwise.cli.output import check_different_files, emit_json, log, note
from shardwise.cli.recipes import Chosen
from shardwise.config import files
from shardwise.config.arguments import one_of
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate
from shardwise.launchers.export import CannotExportError, Export, change_words, export, file_names
from shardwise.launchers.launch import Launcher
from shardwise.launchers.registry import launcher_names, launcher_of
from shardwise.launchers.writing import known_release
from shardwise.planning.nearest import NearestPlan
from shardwise.report.deepflow import deepflow_text, shapes_text
from shardwise.report.graph import check_graph_file, write_graph
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv
from shardwise.units import readable

_LAUNCHER = "Launchers"
# Fields of a resolved strategy that follow from others, which flags may change.
_READABLE = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of an export to a launcher."""

    release: str | None = opt("--release R", "Release whose options to write.", _LAUNCHER)
    nearest: bool = opt(
        "--nearest",
        "Write the nearest plan that fits and that the launcher can run, if this one does not.",
        _LAUNCHER,
    )


def export_launch(
    name: str,
    options: LaunchOptions,
    *,
    model: str | None,
    system: str | None,
    strategy: str | None,
    flags: Mapping[str, Any],
    output: str | None,
) -> int:
    """Write the files of a launcher; return the exit code.

    Parameters
    ----------
    output
        The launch file; other files stand next to it. None: it is printed, alone.
    """
    launcher = launcher_of(name, "what")
    known_release(launcher, options.release)
    ending = None if output is None else _ending(launcher, output)
    case: tuple[Any, Any, Strategy]
    saved = None if model is None or strategy is not None else find_plan(model)
    if saved is not None:
        case = _of_plan(saved, launcher, system, flags)
    else:
        found = chosen_inputs(model, system, strategy, flags, launcher=launcher.name)
        case = found.model, found.system, strategy_of(found.strategy, found.fields)
    arguments: dict[str, Any] = {"release": options.release, "ending": ending}
    try:
        written = export(launcher, *case, nearest=options.nearest, **arguments)
    except CannotExportError as error:
        if error.too_large:
            note(str(error))
        if error.nearest is not None:
            note(_offer(launcher, error.nearest))
        if error.too_large:
            return 1
        raise
    if written.changes:
        seconds = readable(written.estimate.step_time_s, "seconds")
        note(f"written with {change_words(written.changes)}; step time {seconds}")
    _write(written, output)
    for line in (*written.read_back.lines(written.estimate), f"still to set: {launcher.yours}"):
        note(line)
    return 0


def _offer(launcher: Launcher, near: NearestPlan) -> str:
    seconds = readable(near.step_time_s, "seconds")
    return (
        f"nearest plan that {launcher.title} can run: {change_words(near.changes)}; step time "
        f"{seconds} (--nearest writes it)"
    )


def chosen_inputs(
    model: str | None,
    system: str | None,
    strategy: str | None,
    flags: Mapping[str, Any],
    tables: str | None = None,
    launcher: str | None = None,
) -> Inputs:
    """Return the inputs of an export, of which a launch file may set model and strategy."""
    named = {"model": model, "system": system, "strategy": strategy}
    chosen = Chosen.of(None, **named, gpus=flags.get("gpus"), optional_with="")
    return chosen.inputs(flags, tables=tables, launcher=launcher)


def _of_plan(
    saved: SavedPlan,
    launcher: Launcher,
    system: str | None,
    flags: Mapping[str, Any],
) -> tuple[str, str, Strategy]:
    """Model, system and strategy of a saved plan; what is entered has precedence."""
    model = saved.model().name
    own, stack = saved.fields(flags), saved.estimate.software.stack
    if "stack" not in flags and stack != launcher.stack:
        note(f"{saved.source}: is of stack {stack}; rules and times are of {launcher.stack}")
    left_out = {"stack", "any_software"} - flags.keys()
    fields = {name: value for name, value in own.items() if name not in left_out}
    return model, system or saved.system(), strategy_of(None, fields)


def _ending(launcher: Launcher, output: str) -> str:
    """The ending of a file that a launcher can write; the file must be one that can be written."""
    fitting = [one for one in launcher.endings if output.lower().endswith(one)]
    if not fitting:
        problem = f"cannot be written for {launcher.title}; allowed endings: "
        raise InputError(Fault(source=output, problem=problem + ", ".join(launcher.endings)))
    files.check_output_path(output)
    return max(fitting, key=len)


def _write(written: Export, output: str | None) -> None:
    """Write all files, or print the first."""
    if output is None:
        sys.stdout.write(written.files[0].text)
        if len(written.files) > 1:
            others = ", ".join(f"*{one.ending}" for one in written.files[1:])
            note(f"-o FILE also writes {others}")
        return
    named = file_names(output, written.files)
    for path in named:
        files.check_output_path(path)
    for path, one in named.items():
        files.write_text(path, one.text)
        if one.executable:
            mode = Path(path).stat().st_mode
            Path(path).chmod(mode | (mode & _READABLE) >> 2)
        log.info("wrote %s", path)
    if len(named) > 1:
        note("wrote " + ", ".join(named))


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


def exported_things() -> tuple[str, ...]:
    """Return what the verb writes."""
    return (*THINGS, *launcher_names())


@with_help(
    "nearest output gpus tp pp micro_batch_size global_batch_size",
    examples=["shardwise export megatron llama3-8b h100-sxm --gpus 8 --tp 2 --gbs 64"],
)
@with_strategy_flags
@with_options
def command(
    *,
    what: str = arg("WHAT", f"{', '.join(THINGS)}, or a launcher: {', '.join(launcher_names())}."),
    model: str | None = arg(
        "MODEL",
        "As for `estimate`; a launch file, too; FILE#N: plan N of a saved search, on its system.",
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
        "their own endings. Default: standard output, as for -.",
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
    what = one_of("what", what, exported_things())
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
        case = registry.function("reference_answers").case_of("amped", inputs)
        _write_text(shapes_text(case.shapes()), output)
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
        _write_text(deepflow_text(the_model, the_strategy), output)
        if csv is not None:
            _write_text(gemms_csv(result, SHAPE_COLUMNS), csv)
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


def _write_text(text: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    files.write_text(path, text)
    log.info("wrote %s", path)


def _write_gemms(result: Estimate, path: str | None) -> None:
    if path is None or path.lower().endswith(_CSV):
        _write_text(gemms_csv(result), path)
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
