"""`Store`: rows of a search on their way into one file, so that an interruption loses nothing.

Every piece of the search becomes a part in the folder ``FILE.parts``: its rows, and what was found
in it. A file comes into being under another name and is renamed once it is whole, so a part that
exists is finished, whenever the process was killed. At the end the parts are streamed into one
file, which is renamed into its place, and the folder is removed.
"""

import contextlib
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from shardwise.config import files
from shardwise.errors import Fault, InputError
from shardwise.planning.search.best import Ranked
from shardwise.planning.search.scan import Found

__all__ = ["ENDINGS", "Store", "check_file"]

ENDINGS = (".parquet", ".csv", ".csv.gz")
_MANIFEST, _LOCK, _HEAD, _WHOLE = "search.json", "lock", "head.parquet", "whole"


def check_file(file: str | Path) -> None:
    """Raise an `InputError` if rows cannot be written to a file, before anything is computed."""
    path = Path(file)
    if not path.name.lower().endswith(ENDINGS):
        raise _fault(path, f"cannot be written; allowed endings: {', '.join(ENDINGS)}")
    files.check_output_path(path)


@dataclass(slots=True, kw_only=True)
class Store:
    """The parts of one file; a context, within which no other process may write them."""

    file: Path
    fingerprint: Mapping[str, Any]
    """All that decides the rows, by what a person would call it."""
    pieces: int
    finished: frozenset[int] = frozenset()
    """Pieces whose part is there already."""
    _lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin, or go on where the same search was interrupted.

        Raises
        ------
        InputError
            If the folder cannot be written, or holds parts of another search.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = _locked(self.folder / _LOCK)
        except OSError as error:
            raise _fault(self.folder, f"cannot be written: {error.strerror}") from None
        if self._lock is None:
            raise _fault(self.folder, "is being written by another search; wait for its end")
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others write; parts stay until `finish`."""
        if self._lock is not None:
            self._lock.close()

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.file.with_name(f"{self.file.name}.parts")

    def _begin(self) -> None:
        record = json.loads(json.dumps({"search": self.fingerprint, "pieces": self.pieces}))
        manifest = self.folder / _MANIFEST
        if not manifest.exists():
            strangers = [path for path in self.folder.iterdir() if path.name != _LOCK]
            if strangers:
                raise _fault(self.folder, f"holds no parts of a search; {_WAY_OUT}")
            files.write_text(manifest, json.dumps(record, indent=2))
        before = _read(manifest)
        if before is None:
            raise _fault(self.folder, f"holds no parts of a search; {_WAY_OUT}")
        if before != record:
            names = _differences(before.get("search"), record["search"]) or ["pieces"]
            problem = f"holds parts of another search, which differs in {', '.join(names)}"
            raise _fault(self.folder, f"{problem}; {_WAY_OUT}")
        done = (number for number in range(self.pieces) if self._is_finished(number))
        self.finished = frozenset(done)

    def _is_finished(self, number: int) -> bool:
        # After a loss of power a file may have its name before it has its content; the digest is
        # of the rows as they were meant to be.
        record = _read(self._found(number))
        return isinstance(record, Mapping) and record.get("rows") == _digest(self._rows(number))

    def found(self, number: int) -> Found:
        """What was found in a finished piece."""
        record = _read(self._found(number))
        assert record is not None  # noqa: S101 - it was there when `finished` was made
        return _found(record)

    def add(self, number: int, found: Found, rows: bytes) -> None:
        """Write the part of a piece; once its rows are there, it is finished."""
        record = _record(found) | {"rows": hashlib.blake2b(rows).hexdigest()}
        files.write_text(self._found(number), json.dumps(record))
        files.write_bytes(self._rows(number), rows)

    def finish(self, head: bytes) -> None:
        """Join all parts into the file and remove them.

        Parameters
        ----------
        head
            A Parquet file of the same columns without a row.
        """
        import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

        files.write_bytes(self.folder / _HEAD, head)
        parts = [self.folder / _HEAD, *map(self._rows, range(self.pieces))]
        whole = self.folder / _WHOLE
        try:
            _join(parts, whole, self.file.name.lower())
            whole.replace(self.file)
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _fault(self.file, f"cannot be written: {reason}") from None
        self._remove()

    def _remove(self) -> None:
        """Remove the folder, its manifest last: what is left of it is still known as ours."""
        last = (_MANIFEST, _LOCK)
        with contextlib.suppress(OSError):  # the file is there; what stays behind does no harm
            for path in self.folder.iterdir():
                if path.name not in last:
                    path.unlink()
            for name in last:
                (self.folder / name).unlink()
            self.folder.rmdir()

    def _rows(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    def _found(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"


_WAY_OUT = "delete it, or choose another file"


def _fault(path: Path, problem: str) -> InputError:
    return InputError(Fault(source=str(path), problem=problem))


def _locked(path: Path) -> IO[bytes] | None:
    """Open a file that no other process has open; the system lets go of it with the process."""
    handle = path.open("ab")
    try:
        import fcntl  # noqa: PLC0415 - not on every system; there, nothing is locked

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    except (ImportError, OSError):  # nor on every file system
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
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    if not isinstance(before, Mapping):
        return []
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]


def _join(parts: list[Path], whole: Path, name: str) -> None:
    """Stream parts into one file; only some rows are in memory at a time."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    if name.endswith(".parquet"):
        pl.scan_parquet(parts, glob=False).sink_parquet(whole, maintain_order=True)
        return
    with contextlib.ExitStack() as stack:
        text: Any = stack.enter_context(whole.open("wb"))
        if name.endswith(".gz"):  # without a time: the same whenever it is written
            text = stack.enter_context(gzip.GzipFile("", "wb", fileobj=text, mtime=0))
        for number, part in enumerate(parts):
            pl.read_parquet(part, glob=False).write_csv(text, include_header=number == 0)


_RANKED = ("best", "front", "cells", "nearest")


def _record(found: Found) -> dict[str, Any]:
    """What was found, as plain values; numbers come back bit for bit."""
    record = {f.name: getattr(found, f.name) for f in fields(Found)}
    for name in _RANKED:
        record[name] = {f.name: getattr(record[name], f.name).tolist() for f in fields(Ranked)}
    return record | {"axes": found.cell_values.shape[1], "cell_values": found.cell_values.tolist()}


def _found(record: Mapping[str, Any]) -> Found:
    plain = {k: v for k, v in record.items() if k not in (*_RANKED, "axes", "rows")}
    ranked = {name: _ranked(record[name]) for name in _RANKED}
    values = np.array(record["cell_values"], dtype=np.int64)
    shape = len(ranked["cells"]), record["axes"]
    rejected = Counter(record["rejected"])
    return Found(**plain | ranked | {"rejected": rejected, "cell_values": values.reshape(shape)})


def _ranked(record: Mapping[str, Sequence[float]]) -> Ranked:
    numbers = np.array(record["number"], dtype=np.int64)
    others = {k: np.array(v, dtype=np.float64) for k, v in record.items() if k != "number"}
    return Ranked(number=numbers, **others)
