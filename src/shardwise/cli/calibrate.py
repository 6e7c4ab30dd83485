"""`shardwise calibrate`."""

from typing import Any

from shardwise import registry
from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.options import JSON_FLAG, arg, flag_fault, missing_flag, opt, refuse_options
from shardwise.cli.output import Stopwatch, emit_json, log, printed
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.config.system import System
from shardwise.errors import InputError, one_line
from shardwise.validate.calibrate.tables import KernelTable, read_folder, read_table

_MEASURE = "measure"
_MOST_MINUTES = 600
_ON_MACHINE = "Measure this machine"


@with_help(
    examples=[
        "shardwise calibrate h100-sxm --from-runs runs.json --out calibrated.yaml",
        "shardwise calibrate measure --quick --ranks 2 -o my-system.yaml",
    ]
)
def command(
    system: str = arg("SYSTEM", "System to calibrate, or `measure`: measure this machine."),
    from_table: str | None = opt(
        "--from-table FILE",
        "Measured kernels (.parquet, .csv, .csv.gz, named gemm, attention, moe or "
        "collective), a folder of them, or a system of SimuMax.",
    ),
    from_nccl_tests: str | None = opt(
        "--from-nccl-tests FILES", "Output of nccl-tests, of one file or several: A,B."
    ),
    from_trace: str | None = opt(
        "--from-trace FILE",
        "Trace of PyTorch's profiler with record_shapes (.json, .json.gz).",
    ),
    from_runs: str | None = opt(
        "--from-runs FILE",
        "At least three measured runs on the system: model, strategy fields and "
        "step_time_s or tokens_per_s_per_gpu of each (.yaml, .toml, .csv), or rows of measured "
        "runs (.json, .jsonl); also .gz.",
    ),
    gpu: str | None = opt("--gpu NAME", "Rows of this GPU, for tables with several."),
    folds: str | None = opt("--folds N", "N fits, each without 1/N of the configurations."),
    device: str | None = opt("--device WORD", "cpu or cuda; default: cuda, if any.", _ON_MACHINE),
    ranks: str | None = opt(
        "--ranks N",
        "Local processes; default: one for each accelerator, or one.",
        _ON_MACHINE,
    ),
    minutes: str | None = opt("--minutes M", "When to stop; default: 5, or 1.25.", _ON_MACHINE),
    quick: bool = opt("--quick", "Fewer sizes and rounds: about a minute.", _ON_MACHINE),
    base: str | None = opt("--base SYSTEM", "System with what is not measured.", _ON_MACHINE),
    out: str | None = opt("--out -o FILE", "Write the calibrated system.", OUTPUT),
    json: bool = JSON_FLAG,
) -> int:
    """Fit parameters of a system to measurements, each with its source and error.

    The new system differs from SYSTEM only in what was fitted: with --from-runs one speed factor,
    with others efficiencies of kernels. `calibrate measure` runs benchmarks here and writes samples
    next to --out; a second call goes on. Needs pip install 'shardwise[calibrate,torch]'.
    """
    sources = {"from_runs": from_runs, "from_table": from_table}
    sources |= {"from_nccl_tests": from_nccl_tests, "from_trace": from_trace}
    if out is not None:
        files.check_writable_ending(out)
    if system == _MEASURE:
        refuse_options("is not for calibrate measure", **sources, gpu=gpu, folds=folds)
        options = {"device": device, "ranks": whole_number("ranks", ranks), "quick": quick}
        return _measure(out, json=json, minutes=_minutes(minutes), base=base, **options)
    on_machine = {"device": device, "ranks": ranks, "minutes": minutes, "quick": quick}
    refuse_options("is for calibrate measure only", **on_machine, base=base)
    used = [name for name, value in sources.items() if value is not None]
    if len(used) != 1:
        names = "--from-runs, --from-table, --from-nccl-tests and --from-trace"
        raise missing_flag("from_runs", f"use one of {names}")
    if from_runs is not None:
        refuse_options("is not for --from-runs", gpu=gpu, folds=folds)
        return _from_runs(system, from_runs, out=out, json=json)
    return _from_tables(system, sources, gpu=gpu, folds=folds, out=out, json=json)


def _minutes(text: str | None) -> float | None:
    """Read a time in minutes."""
    try:
        found = None if text is None else float(text)
    except ValueError:
        found = 0.0
    if found is not None and not 0 < found <= _MOST_MINUTES:
        problem = f"must be a number of minutes above 0, at most {_MOST_MINUTES}"
        raise flag_fault("minutes", text, problem)
    return found


def _measure(out: str | None, *, json: bool, **options: Any) -> int:
    """Measure this machine, write its system and print how well it fits."""
    found = registry.function("measured_machine")(out, **options)
    if found is None:  # another rank of torchrun
        return 0
    calibration, samples = found
    target = out or f"{calibration.system.name}.yaml"
    if samples.refused:
        names = ", ".join(sorted({f"{why} ({name})" for name, why in samples.refused.items()}))
        log.warning("not measured: %s", one_line(names))
    log.info("%d rounds, spread %.1f %%", samples.rounds, 100 * samples.spread)
    return _write(calibration, "print_calibration", out=target, json=json)


def _from_runs(system: str, path: str, *, out: str | None, json: bool) -> int:
    from shardwise.validate.calibrate.from_runs import calibrated_by_runs  # noqa: PLC0415 - numpy

    watch = Stopwatch()
    found = calibrated_by_runs(System.load(system), path)
    log.info("fitted the speed to %d runs in %s", len(found.runs), watch)
    return _write(found, "print_calibrated", out=out, json=json)


def _write(found: Any, table: str, *, out: str | None, json: bool) -> int:
    """Write the calibrated system; print what was fitted."""
    if out is not None:
        found.system.to_file(out)
        log.info("wrote %s", out)
    if json:
        emit_json(found.to_dict())
    else:
        printed(f"calibration:{table}", found)()
    return 0


def _from_tables(
    system: str,
    sources: dict[str, str | None],
    *,
    gpu: str | None,
    folds: str | None,
    out: str | None,
    json: bool,
) -> int:
    from shardwise.validate.calibrate.fit import calibrated  # noqa: PLC0415 - numpy and scipy

    parts = whole_number("folds", folds)
    if parts == 1:
        raise missing_flag("folds", "must be a whole number of at least 2")
    base = System.load(system)
    (name,) = [name for name, value in sources.items() if value is not None]
    tables = _tables(name, str(sources[name]), base)
    watch = Stopwatch()
    found = calibrated(base, _of_gpu(tables, base, gpu), parts=parts)
    log.info("fitted %d kinds of kernels in %s", len(found.fits), watch)
    return _write(found, "print_calibration", out=out, json=json)


def _tables(name: str, path: str, base: System) -> list[KernelTable]:
    """Read the tables of a file of measurements, by the option that names it."""
    from shardwise.validate.calibrate import shapes  # noqa: PLC0415 - polars

    if name == "from_nccl_tests":
        return [shapes.nccl_tests_table(path.split(","))]
    if name == "from_trace":
        tables: list[KernelTable] = registry.function("tables_of_trace")(path, base)
        return tables
    if path.endswith((".parquet", ".csv", ".csv.gz")):
        return [read_table(path)]
    return read_folder(path) if files.is_folder(path) else shapes.tables_of_shapes(path)


def _of_gpu(tables: list[KernelTable], system: System, gpu: str | None) -> list[KernelTable]:
    """Rows of one GPU: the one selected, the only one, or the one of this system."""
    from shardwise.validate.kernels import gpu_system  # noqa: PLC0415

    names = sorted({str(name) for table in tables for name in set(table.columns["gpu"].tolist())})
    fitting = [name for name in names if gpu_system(name) == system.name]
    chosen = gpu or (names[0] if len(names) == 1 else fitting[0] if len(fitting) == 1 else None)
    if chosen not in names:
        problem = f"select a GPU with --gpu; allowed: {', '.join(names)}"
        raise InputError.at(tables[0].source, problem, "column gpu")
    some = [table.take(table.columns["gpu"] == chosen) for table in tables]
    return [table for table in some if len(table)]
