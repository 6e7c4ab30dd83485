"""Save the rows of a search into one file, so that an interruption loses nothing.

Every piece of the search becomes a part in the folder ``FILE.parts``: its rows (`Rows`) and its
findings. A part is written under another name and renamed once it is complete, so a part that
exists is finished, even if the process was killed. At the end the parts are streamed into one
file, which is renamed into its place, and the folder is removed.
"""

import contextlib
import gzip
import hashlib
import io
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.plain import as_json, plain
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import (
    CHOICE_FIELDS,
    LAYOUT_FIELDS,
    LINE_FIELDS,
    Kind,
    names_of,
)
from shardwise.config.strategy_table import Table
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import InputError
from shardwise.estimator import rates
from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.planning.search.candidates import OPTION_FIELDS, Box
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import Ranked
from shardwise.planning.search.scan import (
    MAY_NOT_FIT,
    MEMORY,
    NOT_SELECTED,
    SECOND_MEMORY,
    Evaluated,
    Findings,
    Timed,
)
from shardwise.records import dataclass, fields

if TYPE_CHECKING:
    import polars as pl


ENDINGS = (".parquet", ".csv", ".csv.gz")
# Twice as fast as the default, a fifth larger.
_FAST_GZIP = 4
_MANIFEST, _LOCK, _HEAD, _WHOLE = "search.json", "lock", "head.parquet", "whole"


def check_file(file: str | Path) -> None:
    """Raise an `InputError` if rows cannot be written to a file, before anything is computed."""
    if not isinstance(file, (str, PathLike)):
        raise InputError.of("save", file, f"must be a file, ending in {', '.join(ENDINGS)}")
    path = Path(file)
    if not path.name.lower().endswith(ENDINGS):
        raise InputError.at(path, f"cannot be written; allowed endings: {', '.join(ENDINGS)}")
    files.check_output_path(path)


@dataclass(slots=True, kw_only=True)
class Store:
    """The parts of one file; a context, within which no other process may write them."""

    file: Path
    fingerprint: Mapping[str, Any]
    """All that determines the rows, under names that an error message can show."""
    pieces: int
    finished: frozenset[int] = frozenset()
    """Pieces whose part exists."""
    _lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin, or continue where the same search was interrupted."""
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = _locked(self.folder / _LOCK)
        except OSError as error:
            raise InputError.at(self.folder, f"cannot be written: {error.strerror}") from None
        if self._lock is None:
            raise InputError.at(self.folder, "is being written by another search; wait for its end")
        try:
            self._begin()
        except BaseException:
            if not (self.folder / _MANIFEST).exists():
                with contextlib.suppress(OSError):  # only an empty folder goes
                    (self.folder / _LOCK).unlink()
                    self.folder.rmdir()
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock; parts stay until `finish`."""
        if self._lock is not None:
            self._lock.close()

    @property
    def folder(self) -> Path:
        """Folder of the parts."""
        return self.file.with_name(f"{self.file.name}.parts")

    def _begin(self) -> None:
        record = plain({"search": self.fingerprint, "pieces": self.pieces})
        manifest = self.folder / _MANIFEST
        if not manifest.exists():
            strangers = [path for path in self.folder.iterdir() if path.name != _LOCK]
            if strangers:
                raise InputError.at(self.folder, f"holds no parts of a search; {_WAY_OUT}")
            files.write_text(manifest, as_json(record, indent=2))
        before = _read(manifest)
        if before is None:
            raise InputError.at(self.folder, f"holds no parts of a search; {_WAY_OUT}")
        if before != record:
            names = _differences(before.get("search"), record["search"]) or ["pieces"]
            problem = f"holds parts of another search, which differs in {', '.join(names)}"
            raise InputError.at(self.folder, f"{problem}; {_WAY_OUT}")
        done = (number for number in range(self.pieces) if self._is_finished(number))
        self.finished = frozenset(done)

    def _is_finished(self, number: int) -> bool:
        # After a power loss a file may have its name but not its content: compare the digest of
        # the rows as they were written.
        record = _read(self._findings_file(number))
        return isinstance(record, Mapping) and record.get("rows") == _digest(
            self._rows_file(number)
        )

    def findings(self, number: int) -> Findings:
        """Findings of a finished piece."""
        record = _read(self._findings_file(number))
        assert record is not None  # noqa: S101 - it existed when `finished` was computed
        return _findings(record)

    def add(self, number: int, findings: Findings, rows: bytes) -> None:
        """Write the part of a piece; with its rows it is finished."""
        record = _record(findings) | {"rows": hashlib.blake2b(rows).hexdigest()}
        with self._resumable():
            files.write_text(self._findings_file(number), json.dumps(record))
            files.write_bytes(self._rows_file(number), rows)

    def finish(self, head: bytes) -> None:
        """Join all parts into the file and remove them."""
        with self._resumable():
            files.write_bytes(self.folder / _HEAD, head)
            parts = [self.folder / _HEAD, *map(self._rows_file, range(self.pieces))]
            joined = self.folder / _WHOLE
            _join(parts, joined, self.file.name.lower())
            files.put_in_place(joined, self.file)
        self._remove()

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Raise an `InputError` that says what remains if the disk is full."""
        import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

        try:
            yield
        except (InputError, OSError, pl.exceptions.PolarsError) as error:
            faults = getattr(error, "faults", ())
            reason = faults[0].problem if faults else getattr(error, "strerror", None) or str(error)
            (self.folder / _WHOLE).unlink(missing_ok=True)
            problem = f"{reason.removeprefix(_CANNOT)}; finished parts stay in {self.folder.name}: "
            problem += "the same command resumes"
            raise InputError.at(self.file, f"{_CANNOT}{problem}") from None

    def _remove(self) -> None:
        """Remove the folder, its manifest last: until then a search recognizes the folder."""
        last = (_MANIFEST, _LOCK)
        with contextlib.suppress(OSError):  # the file is complete; leftovers do no harm
            for path in self.folder.iterdir():
                if path.name not in last:
                    path.unlink()
            for name in last:
                (self.folder / name).unlink()
            self.folder.rmdir()

    def _rows_file(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    def _findings_file(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"


_CANNOT = "cannot be written: "
_WAY_OUT = "delete it, or choose another file"


def _locked(path: Path) -> IO[bytes] | None:
    """Open a file that no other process has open; the lock ends with the process."""
    handle = path.open("ab")
    try:
        import fcntl  # noqa: PLC0415 - not on every system; without it nothing is locked

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    except (ImportError, OSError):  # nor does every file system lock
        pass
    return handle


def _digest(path: Path) -> str | None:
    """Digest of a file, or None if there is none."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, hashlib.blake2b).hexdigest()
    except OSError:
        return None


def _read(path: Path) -> Any:
    """Content of a JSON file, or None if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _differences(before: object, now: Mapping[str, object]) -> list[str]:
    if not isinstance(before, Mapping):
        return []
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]


def _join(parts: list[Path], file: Path, name: str) -> None:
    """Stream parts into one file; only some rows are in memory at a time."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    if name.endswith(".parquet"):
        pl.scan_parquet(parts, glob=False).sink_parquet(file, maintain_order=True)
        return
    with contextlib.ExitStack() as stack:
        text: Any = stack.enter_context(file.open("wb"))
        if name.endswith(".gz"):  # mtime=0: equal bytes at any time
            packed = gzip.GzipFile("", "wb", _FAST_GZIP, fileobj=text, mtime=0)
            text = stack.enter_context(packed)
        for number, part in enumerate(parts):
            pl.read_parquet(part, glob=False).write_csv(text, include_header=number == 0)


@contextlib.contextmanager
def streamed(
    file: str | Path, names: Sequence[str]
) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield a function that adds rows, as columns of these names, to a file.

    The file appears once all rows are written; only some of them are in memory at a time.
    """
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    place, parts = files.target_of(file), list[Path]()
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as folder:

        def add(columns: Mapping[str, Any]) -> None:
            parts.append(Path(folder) / f"{len(parts):06}.parquet")
            frame = pl.DataFrame([pl.Series(name, column) for name, column in columns.items()])
            frame = frame.with_columns(pl.col(pl.Float64).replace([math.inf, math.nan], None))
            frame.write_parquet(parts[-1], compression="lz4")

        try:
            yield add
            if not parts:
                add({name: [] for name in names})
            joined = Path(folder) / _WHOLE
            _join(parts, joined, place.name.lower())
            files.put_in_place(joined, place)
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError.at(place, f"cannot be written: {reason}") from None


_RANKED = ("best", "advised", "front", "cells", "nearest")
_KEYS = ("best_keys", "advised_keys")


def _record(findings: Findings) -> dict[str, Any]:
    """Findings as plain values; numbers come back bit for bit."""
    record = {f.name: getattr(findings, f.name) for f in fields(Findings)}
    for name in _RANKED:
        record[name] = {f.name: getattr(record[name], f.name).tolist() for f in fields(Ranked)}
    cells = findings.cell_values
    keys = {name: getattr(findings, name).tolist() for name in _KEYS}
    return record | keys | {"axes": cells.shape[1], "cell_values": cells.tolist()}


def _findings(record: Mapping[str, Any]) -> Findings:
    """Findings of a record."""
    plain = {k: v for k, v in record.items() if k not in (*_RANKED, "axes", "rows")}
    ranked = {name: _ranked(record[name]) for name in _RANKED}
    values = np.array(record["cell_values"], dtype=np.int64)
    shape = len(ranked["cells"]), record["axes"]
    arrays = {"cell_values": values.reshape(shape)}
    for name in _KEYS:
        arrays[name] = np.array(record[name], dtype=np.int64).reshape(-1, len(LINE_FIELDS))
    return Findings(**plain | ranked | arrays | {"rejected": Counter(record["rejected"])})


def _ranked(record: Mapping[str, Sequence[float]]) -> Ranked:
    numbers = np.array(record["number"], dtype=np.int64)
    others = {k: np.array(v, dtype=np.float64) for k, v in record.items() if k != "number"}
    return Ranked(number=numbers, **others)


_RATES = ("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")
FIGURES = (
    *_RATES,
    *(f"{part}_s" for part in TIME_PARTS),
    *(f"{part}_bytes" for part in (*MEMORY_PARTS, "total", "reserved", "offloaded")),
)
"""Columns of results: times, rates and memory."""

# Reasons by code: the rule that a row breaks, the memory tier that is too small, why it is not
# selected, or None for a feasible row.
_TOO_FULL = (MEMORY, MAY_NOT_FIT, SECOND_MEMORY)
_REASONS = (*(rule.reason for rule in CONSTRAINTS), *_TOO_FULL, *NOT_SELECTED, None)
_MEMORY, _MAY_NOT_FIT, _SECOND_MEMORY, _NOT_SELECTED = range(len(CONSTRAINTS), len(CONSTRAINTS) + 4)
_FEASIBLE = len(_REASONS) - 1


class Rows:
    """Rows of the candidates of a box, collected during a scan (a `scan.Observer`)."""

    def __init__(self, query: SearchQuery, box: Box, *, rejected: bool) -> None:
        self._query, self._box, self._rejected = query, box, rejected
        self._numbers: list[Ints] = []
        self._codes: list[Ints] = []
        self._figures: list[dict[str, Floats]] = []

    def illegal_layouts(self) -> None:
        """Add all candidates of a box whose layouts break a rule."""
        numbers = self._box.start + np.arange(len(self._box))
        self._add(numbers, np.repeat(self._box.broken, self._box.width), {})

    def options(self, broken: Ints) -> None:
        """Add the candidates whose options or choices break a rule."""
        if self._rejected:
            row, choice = np.nonzero(broken.T >= 0)
            self._add(self._box.numbers(row, choice), broken[choice, row], {})

    def evaluated(self, chunk: Evaluated) -> None:
        """Add the candidates of a chunk."""
        added = chunk.legal if self._rejected else chunk.feasible
        row, choice = np.nonzero(added.T)
        capacity = self._query.capacity_bytes
        full = chunk.over_capacity(capacity)
        predicted = chunk.over_as_predicted(self._query.system, capacity)
        code = np.where(full, np.where(predicted, _MEMORY, _MAY_NOT_FIT), _SECOND_MEMORY)
        code = np.where(chunk.feasible, _FEASIBLE, code)
        code = np.where(chunk.rejected >= 0, _NOT_SELECTED + chunk.rejected, code)
        figures = _memory(chunk)
        if chunk.timed is not None:
            figures |= _times(chunk.timed, added.shape)
        here = {name: column[choice, row] for name, column in figures.items()}
        self._add(self._box.numbers(chunk.rows[row], choice), code[choice, row], here)

    def _add(self, numbers: Ints, codes: Ints, figures: dict[str, Floats]) -> None:
        self._numbers.append(numbers)
        self._codes.append(codes)
        self._figures.append(figures)

    def frame(self) -> "pl.DataFrame":
        """Return the rows by number of the candidate."""
        numbers = np.concatenate([*self._numbers, np.empty(0, np.int64)])
        order = np.argsort(numbers, kind="stable")
        codes = np.concatenate([*self._codes, np.empty(0, np.int64)])
        figures = {name: self._column(name)[order] for name in FIGURES}
        strategies = _strategies(self._box, numbers[order])
        return _joined(strategies, numbers[order], figures, codes[order])

    def _column(self, name: str) -> Floats:
        """One figure of all rows; NaN where it was not computed."""
        parts = [
            part.get(name, np.full(len(numbers), np.nan))
            for part, numbers in zip(self._figures, self._numbers, strict=True)
        ]
        return np.concatenate([*parts, np.empty(0)])

    def parquet(self) -> bytes:
        """Return the rows as a Parquet file."""
        return _parquet(self.frame())


def no_rows(model: Model) -> bytes:
    """Return a Parquet file of the same columns without a row."""
    none = np.empty(0, np.int64)
    one = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1})
    figures = dict.fromkeys(FIGURES, np.empty(0))
    return _parquet(_joined(_as_words(one).clear(), none, figures, none))


def _parquet(frame: "pl.DataFrame") -> bytes:
    content = io.BytesIO()
    frame.write_parquet(content, compression="lz4")  # fast: it is read once
    return content.getvalue()


def _joined(
    strategies: "pl.DataFrame", numbers: Ints, figures: dict[str, Floats], codes: Ints
) -> "pl.DataFrame":
    """Columns of a file: number, strategy, figures and reason; null where not computed."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    return strategies.select(
        pl.Series("candidate", numbers),
        pl.all(),
        *(pl.Series(name, column).fill_nan(None) for name, column in figures.items()),
        pl.Series("rejected", _REASONS, dtype=pl.String).gather(codes),
    )


def _memory(chunk: Evaluated) -> dict[str, Floats]:
    """Bytes of every candidate of a chunk; shape (choices, rows)."""
    memory, reserved = chunk.holding.memory, chunk.holding.reserved_bytes
    columns = {f"{part}_bytes": getattr(memory, part) for part in (*MEMORY_PARTS, "total")}
    columns |= {"reserved_bytes": reserved, "offloaded_bytes": memory.offloaded}
    return {
        name: np.broadcast_to(column, reserved.shape)[chunk.holding_of]
        for name, column in columns.items()
    }


def _times(timed: Timed, shape: tuple[int, ...]) -> dict[str, Floats]:
    """Times and rates of every feasible candidate, else NaN; shape (choices, rows)."""
    timing, table = timed.timing, timed.table
    per_s = rates(timing, "causal")
    columns = {
        "step_time_s": timing.step_time_s,
        "tokens_per_s": per_s["tokens_per_s"],
        "tokens_per_s_per_gpu": per_s["tokens_per_s"] / table.gpus,
        "mfu": per_s["mfu"],
        **{f"{part}_s": timing.time_s[part] for part in TIME_PARTS},
    }
    found = {}
    for name, column in columns.items():
        found[name] = np.full(shape, np.nan)
        found[name][:, timed.rows] = np.where(timed.feasible, column, np.nan)
    return found


def _strategies(box: Box, numbers: Ints) -> "pl.DataFrame":
    """Candidates by number; only the few layouts, options and choices of a box become words."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    layouts, options, choices = box.positions(numbers)
    parts = (
        (box.layouts, LAYOUT_FIELDS, layouts),
        (box.options, (*OPTION_FIELDS, "sequence_parallel"), options),
        (box.choices, CHOICE_FIELDS, choices),
    )
    columns: dict[str, pl.Series] = {}
    for table, names, rows in parts:
        words = _as_words(table)
        columns |= {name: words[name].gather(rows) for name in names}
    return pl.DataFrame([columns[name] for name in Strategy.model_fields])


def _as_words(table: Table) -> "pl.DataFrame":
    """Strategies as columns of words and numbers; an unset tier is null."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    frame = pl.DataFrame(table.to_columns())
    counts = names_of(Kind.WHOLE, Kind.TIER, optional=True)
    texts = names_of(Kind.LIST, Kind.SET, optional=True)
    return frame.with_columns(
        pl.col(*counts).cast(pl.Float64).fill_nan(None).cast(pl.Int64),
        pl.col("expert_capacity").fill_nan(None),
        pl.col(*texts).replace("", None),
    )
