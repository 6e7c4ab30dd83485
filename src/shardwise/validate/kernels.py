"""Measured kernels and collectives of a folder of tables, compared with the formulas of `cost`.

The tables are the user's: any of those in `calibrate.tables.KINDS`. Errors are by GPU, type and
kind, over all rows and over rows of training sizes.
"""

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import catalog, registry
from shardwise.arrays import Bools, Floats
from shardwise.config import files
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, shorten
from shardwise.validate.calibrate.predictions import Predictions, predictions
from shardwise.validate.calibrate.tables import KernelTable, read_folder
from shardwise.validate.scores import Score

GPU_SYSTEMS = {
    "a100_sxm": "a100-80gb-sxm",
    "a100_pcie": "a100-80gb-pcie",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}
"""Names of GPUs in tables and in the catalog, where they differ in more than dashes."""
_PERLMUTTER = "a100_perlmutter"
_ENDINGS = (".parquet", ".csv", ".csv.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are scored together."""

    table: str
    gpu: str
    dtype: str
    kind: str
    """Mode of a product, mask of attention, routing of experts, operation of a collective."""
    region: str
    """`all` rows, or the `large` ones, of training sizes."""
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Rows that could not be predicted."""

    table: str
    gpu: str
    dtype: str
    reason: str
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScores:
    """Predictions of the rows of some tables, and their errors by group."""

    tables: tuple[tuple[KernelTable, Predictions], ...]
    """Each measured column with its predictions."""
    groups: tuple[Group, ...]
    refused: tuple[Refused, ...]

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Return plain values, ready for JSON; with `rows` also each row."""
        summary: dict[str, object] = {}
        for name in dict.fromkeys(table.kind for table, _ in self.tables):
            signed = np.concatenate([_errors(p) for t, p in self.tables if t.kind == name])
            scored = [group for group in self.groups if group.table == name]
            summary[name] = {
                **(_plain(Score.of(signed.tolist())) if signed.size else {"n": 0}),
                "refused": sum(r.n for r in self.refused if r.table == name),
                "groups": [
                    {"gpu": g.gpu, "dtype": g.dtype, "kind": g.kind, "region": g.region}
                    | _plain(g.score)
                    for g in scored
                ],
            }
        record: dict[str, object] = {
            "suite": "kernels",
            "summary": summary,
            "refused": [asdict(refused) for refused in self.refused],
        }
        return record | ({"rows": list(self._rows())} if rows else {})

    def _rows(self) -> Iterator[dict[str, Any]]:
        for table, result in self.tables:
            columns = {n: v.tolist() for n, v in table.columns.items() if n not in table.times}
            for number in range(len(table)):
                measured = float(result.measured_us[number])
                predicted = float(result.predicted_us[number])
                row: dict[str, object] = {"id": f"{table.kind}/{number}", "table": table.kind}
                row |= {name: values[number] for name, values in columns.items()}
                row |= {"kind": str(result.kind[number]), "measured_us": measured}
                if result.reason[number]:
                    yield row | {"refused": str(result.reason[number])}
                else:
                    yield row | {
                        "predicted_us": predicted,
                        "error": predicted / measured - 1,
                    }


def kernel_scores(folder: str | Path) -> KernelScores:
    """Predict every row of every table of a folder.

    Raises
    ------
    InputError
        If there are no tables, or one is not as it should be.
    """
    tables = read_folder(folder)
    names = {str(gpu) for table in tables for gpu in np.unique(table.columns["gpu"])}
    systems = {name: _system_of(name) for name in names}
    result = [(table, some) for table in tables for some in predictions(table, systems)]
    return KernelScores(
        tables=tuple(result),
        groups=tuple(group for table, some in result for group in _groups(table, some)),
        refused=tuple(refused for table, some in result for refused in _refused(table, some)),
    )


def check_rows_file(path: str | Path) -> None:
    """Raise an `InputError` if rows cannot be written to a file, before anything is computed."""
    if not str(path).endswith(_ENDINGS):
        problem = f"cannot be written; allowed endings: {', '.join(_ENDINGS)}"
        raise InputError(Fault(source=str(path), problem=problem))
    files.check_output_path(path)


def save_rows(scores: KernelScores, path: str | Path) -> None:
    """Write the measured and predicted time of every row as Parquet or CSV.

    Raises
    ------
    InputError
        If the ending is neither.
    """
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    check_rows_file(path)
    frames = []
    for table, result in scores.tables:
        large = np.ones(len(table), dtype=np.bool_) if table.large is None else table.large
        frames.append(
            pl.DataFrame(
                {
                    "table": [table.kind] * len(table),
                    "row": np.arange(len(table)),
                    "gpu": table.columns["gpu"],
                    "dtype": result.dtype,
                    "kind": result.kind,
                    "large": large,
                    "measured_us": result.measured_us,
                    "predicted_us": result.predicted_us,
                    "refused": result.reason.astype(str),
                }
            )
        )
    frame = pl.concat(frames)
    if str(path).endswith(".parquet"):
        content = io.BytesIO()
        frame.write_parquet(content)
        files.write_bytes(path, content.getvalue())
    else:
        files.write_text(path, frame.write_csv())


def gpu_system(gpu: str) -> str:
    """Catalog name of the system of a GPU in a table."""
    return GPU_SYSTEMS.get(gpu, gpu.replace("_", "-"))


def _system_of(gpu: str) -> System | str:
    if gpu == _PERLMUTTER:
        machine: System = registry.function("perlmutter")()
        return machine
    name = gpu_system(gpu)
    if catalog.find("systems", name) is None:
        return f"the catalog has no system for gpu {shorten(gpu)}"
    return System.load(name)


def _errors(result: Predictions) -> Floats:
    known = np.isfinite(result.predicted_us)
    errors: Floats = result.predicted_us[known] / result.measured_us[known] - 1
    return errors


def _plain(score: Score) -> dict[str, float]:
    record = asdict(score)
    return {name: record[name] for name in ("n", "mape", "median_ape", "bias", "p90", "max")}


def _keys(table: KernelTable, result: Predictions) -> Iterator[tuple[tuple[str, str, str], Bools]]:
    """Groups by GPU, type and kind, in their order."""
    parts = np.char.add(np.char.add(table.columns["gpu"], "|"), result.dtype)
    names, place = np.unique(np.char.add(np.char.add(parts, "|"), result.kind), return_inverse=True)
    for number, name in enumerate(names.tolist()):
        gpu, dtype, kind = name.split("|")
        yield (gpu, dtype, kind), place == number


def _groups(table: KernelTable, result: Predictions) -> Iterator[Group]:
    known = np.isfinite(result.predicted_us)
    large = table.large
    for (gpu, dtype, kind), rows in _keys(table, result):
        regions = {"all": rows & known}
        if large is not None:
            regions["large"] = rows & known & large
        for region, some in regions.items():
            if some.any():
                signed = result.predicted_us[some] / result.measured_us[some] - 1
                yield Group(
                    table=table.kind,
                    gpu=gpu,
                    dtype=dtype,
                    kind=kind,
                    region=region,
                    score=Score.of(signed.tolist()),
                )


def _refused(table: KernelTable, result: Predictions) -> Iterator[Refused]:
    for (gpu, dtype, _), rows in _keys(table, result):
        reasons, counts = np.unique(result.reason[rows].astype(str), return_counts=True)
        for reason, count in zip(reasons.tolist(), counts.tolist(), strict=True):
            if reason:
                yield Refused(table=table.kind, gpu=gpu, dtype=dtype, reason=reason, n=count)
