"""Tables of measured kernels and collectives: their columns, reading and validation.

A table is a Parquet or CSV file (also gzipped) of one kind of measurement, times in microseconds,
sizes in bytes. A folder has any of them, each named by its kind.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config import files
from shardwise.errors import InputError, shorten

ENDINGS = (".parquet", ".csv", ".csv.gz")
_MIB = 2**20
_TRAINED = ("bf16", "fp16", "fp32")
# The largest published table has some 30 MB and 400,000 rows.
_MOST_BYTES, _MOST_ROWS = 2**28, 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Columns of one kind of table."""

    words: tuple[str, ...]
    """Columns of text."""
    sizes: tuple[str, ...]
    """Columns of numbers above 0."""
    counts: tuple[str, ...] = ()
    """Columns of numbers that may be 0."""
    times: tuple[str, ...] = ("latency_us",)
    """Measured times, above 0."""
    optional: Mapping[str, Any] | None = None
    """Further columns of text, with their defaults."""
    options: Mapping[str, float] | None = None
    """Further columns of numbers that may be 0, with their defaults."""
    allowed: Mapping[str, tuple[str, ...]] | None = None
    """Allowed words of some columns."""


KINDS: dict[str, _Kind] = {
    "gemm": _Kind(
        words=("gpu", "dtype"),
        sizes=("m", "n", "k"),
        optional={"mode": "burst"},
        allowed={"mode": ("burst", "sustained")},
    ),
    "attention": _Kind(
        words=("gpu", "dtype"),
        sizes=("batch", "seq", "heads", "kv_heads", "head_dim", "head_dim_v"),
        counts=("causal",),
        optional={"kernel": ""},
    ),
    "moe": _Kind(
        words=("gpu", "dtype", "distribution"),
        sizes=("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"),
        counts=("gated",),
        optional={"kernel": ""},
    ),
    "collective": _Kind(
        words=("gpu", "op"),
        sizes=("nodes", "gpus_per_node", "size_bytes"),
        optional={"source": ""},
        allowed={
            "op": (
                *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall"),
                *("p2p", "broadcast", "reduce"),
            ),
        },
    ),
    "moe_alltoall": _Kind(
        words=("gpu",),
        sizes=("nodes", "tokens", "hidden", "topk", "experts"),
        times=("dispatch_us", "combine_us"),
        optional={"kernel": "deepep"},
        options={"sms": 20.0, "gpus_per_node": 0.0},
        allowed={"kernel": ("deepep", "hybridep")},
    ),
    "cast_fp8": _Kind(words=("gpu",), sizes=("m", "k"), times=("cast_us",)),
    "train_gemm": _Kind(
        words=("gpu", "layout", "out_dtype"),
        sizes=("groups", "m", "n", "k"),
        counts=("accumulate",),
        optional={"dtype": "bf16"},
        allowed={
            "dtype": _TRAINED,
            "layout": (
                *("TN", "NN", "NT"),
                *("grouped_fwd", "grouped_bwd_grad_act", "grouped_bwd_grad_w"),
            ),
            "out_dtype": ("bf16", "fp16", "fp32"),
        },
    ),
    "train_attention": _Kind(
        words=("gpu", "direction"),
        sizes=("batch", "seq", "heads", "kv_heads", "head_dim", "head_dim_v"),
        optional={"dtype": "bf16", "kernel": "best"},
        allowed={"direction": ("fwd", "bwd"), "dtype": _TRAINED},
    ),
    "elementwise": _Kind(words=("gpu", "kernel"), sizes=("bytes",), options={"flops": 0.0}),
}
"""By the names of files and tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Rows of one kind, as columns."""

    kind: str
    source: str
    """The file."""
    columns: Mapping[str, Any]
    """Words as arrays of text, the others as floats."""

    def __len__(self) -> int:
        return len(self.columns["gpu"])

    @property
    def times(self) -> tuple[str, ...]:
        """Names of the measured columns."""
        return KINDS[self.kind].times

    def take(self, rows: Bools) -> "KernelTable":
        """Select rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return KernelTable(kind=self.kind, source=self.source, columns=columns)

    @property
    def large(self) -> Bools | None:
        """Rows of training sizes; None if the kind has no such distinction."""
        of = self.columns
        large: Bools
        if self.kind == "gemm":
            large = (of["m"] >= 1024) & (of["n"] >= 512) & (of["k"] >= 512)  # noqa: PLR2004
        elif self.kind == "attention":
            large = (of["seq"] >= 1024) & (of["batch"] * of["heads"] >= 8)  # noqa: PLR2004
        elif self.kind == "moe":
            large = of["tokens"] >= 2048  # noqa: PLR2004
        elif self.kind == "moe_alltoall":
            large = of["tokens"] >= 1024  # noqa: PLR2004
        elif self.kind in ("collective", "elementwise"):
            large = of["size_bytes" if self.kind == "collective" else "bytes"] >= _MIB
        else:
            return None
        return large


def read_folder(folder: str | Path) -> list[KernelTable]:
    """Read every table of a folder, in the order of `KINDS`.

    Raises
    ------
    InputError
        If the folder has none, or one is invalid.
    """
    place = Path(folder)
    if not files.is_folder(place):
        raise InputError.at(place, "no such folder")
    names = [(kind, place / f"{kind}{ending}") for kind in KINDS for ending in ENDINGS]
    found = [(kind, path) for kind, path in names if files.exists(path)]
    twice = [
        path for (kind, path), (before, _) in zip(found[1:], found, strict=False) if kind == before
    ]
    if twice:
        raise InputError.at(twice[0], "its table is there in another format too")
    if not found:
        endings = ", ".join(ENDINGS)
        raise InputError.at(place, f"holds no table; allowed: {', '.join(KINDS)}, each {endings}")
    return [read_table(path, kind) for kind, path in found]


def read_table(path: str | Path, kind: str | None = None) -> KernelTable:
    """Read and validate one table.

    Parameters
    ----------
    path
        A Parquet or CSV file.
    kind
        A key of `KINDS`; None: by the name of the file.

    Raises
    ------
    InputError
        Naming file, column and what is allowed.
    """
    import polars as pl  # noqa: PLC0415 - heavy; only where tables are read

    place = Path(path)
    if not place.name.endswith(ENDINGS):
        raise InputError.at(place, f"cannot tell the format; allowed endings: {', '.join(ENDINGS)}")
    kind = place.name.split(".")[0] if kind is None else kind
    if kind not in KINDS:
        raise InputError.at(
            place, f"no table is called {shorten(kind)}; allowed: {', '.join(KINDS)}"
        )
    try:
        if place.name.endswith(".parquet"):
            content = files.read_bytes(place, most_bytes=_MOST_BYTES)
            frame = pl.read_parquet(io.BytesIO(content), n_rows=_MOST_ROWS + 1)
        else:
            text = files.read_text(place, most_bytes=_MOST_BYTES)
            frame = pl.read_csv(
                io.BytesIO(text.encode()), infer_schema_length=None, n_rows=_MOST_ROWS + 1
            )
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError.at(place, f"cannot be read: {str(error).splitlines()[0]}") from None
    if frame.height > _MOST_ROWS:  # a small Parquet file can hold any number of equal rows
        raise InputError.at(place, f"has more than {_MOST_ROWS:,} rows")
    if frame.height == 0:
        raise InputError.at(place, "has no rows")
    return KernelTable(kind=kind, source=str(place), columns=_checked(place, frame, KINDS[kind]))


def table_of(source: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> KernelTable:
    """Make a table of rows, each with the columns of its kind.

    Raises
    ------
    InputError
        Naming source, column and what is allowed.
    """
    import polars as pl  # noqa: PLC0415 - heavy; only where tables are read

    frame = pl.DataFrame(rows, infer_schema_length=None)
    return KernelTable(kind=kind, source=source, columns=_checked(Path(source), frame, KINDS[kind]))


def _checked(place: Path, frame: Any, kind: _Kind) -> dict[str, Any]:
    """The known columns of a table, each of its type."""
    numbers = (*kind.sizes, *kind.counts, *kind.times)
    needed = (*kind.words, *numbers)
    if lacking := [name for name in needed if name not in frame.columns]:
        problem = f"is missing; allowed: {', '.join(needed)}"
        raise InputError.at(place, problem, f"column {lacking[0]}")
    columns: dict[str, Any] = {}
    for name in numbers:
        least = "from 0" if name in kind.counts else "above 0"
        columns[name] = _numbers(place, name, frame[name], least)
    for name, usual in (kind.options or {}).items():
        known = name in frame.columns
        columns[name] = (
            _numbers(place, name, frame[name], "from 0") if known else np.full(frame.height, usual)
        )
    optional = kind.optional or {}
    for name in (*kind.words, *optional):
        if name not in frame.columns:
            columns[name] = np.full(frame.height, optional[name])
            continue
        words = frame[name].cast(str, strict=False).fill_null("").to_numpy().astype(str)
        allowed = (kind.allowed or {}).get(name)
        if allowed is not None and (wrong := np.flatnonzero(~np.isin(words, allowed))).size:
            word = shorten(str(words[wrong[0]]))
            problem = f"row {wrong[0] + 1} has {word}; allowed: {', '.join(allowed)}"
            raise InputError.at(place, problem, f"column {name}")
        columns[name] = words
    return columns


def _numbers(place: Path, name: str, column: Any, least: str) -> Floats:
    import polars as pl  # noqa: PLC0415 - heavy; only where tables are read

    values: Floats = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    low = values >= 0 if least == "from 0" else values > 0
    wrong = np.flatnonzero(~(low & np.isfinite(values)))
    if wrong.size:
        found = column[int(wrong[0])]
        problem = f"row {wrong[0] + 1} has {shorten(found)}; allowed: numbers {least}"
        raise InputError.at(place, problem, f"column {name}")
    return values
