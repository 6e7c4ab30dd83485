"""`shardwise calibrate`."""

from typing import Any

from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.options import JSON_FLAG, SYSTEM_ARGUMENT, missing_flag, opt, refuse_options
from shardwise.cli.output import Stopwatch, emit_json, log, printed
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.validate.calibrate.tables import KernelTable, read_folder, read_table


@with_help(examples=["shardwise calibrate h100-sxm --from-runs runs.json --out calibrated.yaml"])
def command(
    system: str = SYSTEM_ARGUMENT,
    from_table: str | None = opt(
        "--from-table FILE",
        "Measured kernels (.parquet, .csv, .csv.gz, named gemm, attention, moe or "
        "collective), or a folder of such tables.",
    ),
    from_runs: str | None = opt(
        "--from-runs FILE",
        "At least three measured runs on the system: model, strategy fields and "
        "step_time_s or tokens_per_s_per_gpu of each (.yaml, .toml, .csv), or rows of measured "
        "runs (.json, .jsonl); also .gz.",
    ),
    gpu: str | None = opt("--gpu NAME", "Rows of this GPU, for tables with several."),
    folds: str | None = opt(
        "--folds N", "Cross-validate: fit N times, each without 1/N of the configurations."
    ),
    out: str | None = opt("--out FILE", "Write the calibrated system.", OUTPUT),
    json: bool = JSON_FLAG,
) -> int:
    """Fit parameters of a system to measurements, each with its source and error.

    The new system differs from SYSTEM only in what was fitted: with --from-runs one speed factor of
    its accelerators; with --from-table the efficiencies of kernels, which needs scipy: pip install
    'shardwise[calibrate]'.
    """
    if (from_table is None) == (from_runs is None):
        raise missing_flag("from_runs", "use either --from-runs FILE or --from-table FILE")
    if out is not None:
        files.check_writable_ending(out)
    if from_runs is not None:
        refuse_options("is for --from-table only", gpu=gpu, folds=folds)
        return _from_runs(system, from_runs, out=out, json=json)
    assert from_table is not None  # noqa: S101 - one of the two is given
    return _from_table(system, from_table, gpu=gpu, folds=folds, out=out, json=json)


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


def _from_table(
    system: str, path: str, *, gpu: str | None, folds: str | None, out: str | None, json: bool
) -> int:
    from shardwise.validate.calibrate.fit import calibrated  # noqa: PLC0415 - numpy and scipy

    parts = whole_number("folds", folds)
    if parts == 1:
        raise missing_flag("folds", "must be a whole number of at least 2")
    base = System.load(system)
    is_table = path.endswith((".parquet", ".csv", ".csv.gz"))
    tables = [read_table(path)] if is_table else read_folder(path)
    watch = Stopwatch()
    found = calibrated(base, _of_gpu(tables, base, gpu), parts=parts)
    log.info("fitted %d kinds of kernels in %s", len(found.fits), watch)
    return _write(found, "print_calibration", out=out, json=json)


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
