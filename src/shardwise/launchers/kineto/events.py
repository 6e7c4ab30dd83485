"""Events of a trace file, one by one: a trace may be larger than memory."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.config import files
from shardwise.errors import Fault, InputError

_CHUNK = 1 << 20
_FAR = 1 << 16
_MOST_VALUE = 1 << 26
"""Characters of one event, or of another value of the file; no trace has larger ones."""
_EVENTS = "traceEvents"
_SPACE = " \t\r\n"


def trace_events(path: str | Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace (.json, .json.gz), in the order of the file.

    Raises
    ------
    InputError
        If the file cannot be read, is no JSON, or has no events.
    """
    files.check_input_path(path)
    try:
        with Path(path).open("rb") as stream:
            raw: io.BufferedReader | gzip.GzipFile = stream
            if stream.read(2) == b"\x1f\x8b":
                stream.seek(0)
                raw = gzip.GzipFile(fileobj=stream)
            else:
                stream.seek(0)
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace")
            yield from _Reader(path=str(path), text=text).events(about)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Fault(source=str(path), problem=f"cannot be read: {reason}")) from None


@dataclass(slots=True, kw_only=True)
class _Reader:
    """A window of the text that moves forward."""

    path: str
    text: io.TextIOWrapper
    buffer: str = ""
    position: int = 0
    passed: int = 0
    """Characters before the buffer."""
    decoder: json.JSONDecoder = field(default_factory=json.JSONDecoder)

    def events(self, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events, and put the other values into `about`."""
        first = self._next()
        if first == "[":  # the short form of the format: events alone
            yield from self._items()
            return
        if first != "{":
            raise self._fault("is no trace: holds no mapping with traceEvents")
        found = False
        while (mark := self._next()) != "}":
            if mark == ",":
                continue
            self.position -= 1
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._fault("is no JSON")
            if key == _EVENTS:
                found = True
                if self._next() != "[":
                    raise self._fault(f"{_EVENTS} must be a list")
                yield from self._items()
            else:
                about[key] = self._value()
        if not found:
            raise self._fault(f"is no trace of PyTorch's profiler: holds no {_EVENTS}")

    def _items(self) -> Iterator[dict[str, Any]]:
        """Yield the mappings of a list whose bracket was read."""
        while (mark := self._next()) != "]":
            if mark == ",":
                continue
            self.position -= 1
            value = self._value()
            if isinstance(value, dict):
                yield value

    def _next(self) -> str:
        """Read the next character that is no space."""
        while True:
            while self.position < len(self.buffer):
                mark = self.buffer[self.position]
                self.position += 1
                if mark not in _SPACE:
                    return mark
            if not self._more():
                raise self._fault("ends in the middle: it was not written completely")

    def _value(self) -> Any:
        """Read a value; more text is read until it is complete."""
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in _SPACE:
                self.position += 1
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                # What is complete and wrong is wrong far from the end of the text; of a text
                # without an end the error is at its start.
                cut = error.msg.startswith("Unterminated") or len(self.buffer) - error.pos < _FAR
                if not cut or not self._more():
                    raise self._fault(f"is no JSON: {error.msg}") from None
                continue
            except RecursionError:
                raise self._fault("is nested too deep") from None
            except ValueError:
                raise self._fault("a number has thousands of digits") from None
            if end < len(self.buffer) or not self._more():  # a number may go on
                self.position = end
                return value

    def _more(self) -> bool:
        """Read more text; drop what was read of it before."""
        chunk = self.text.read(_CHUNK)
        if len(self.buffer) - self.position > _MOST_VALUE:
            raise self._fault(f"a value has more than {_MOST_VALUE >> 20} million characters")
        self.passed += self.position
        self.buffer = self.buffer[self.position :] + chunk
        self.position = 0
        return bool(chunk)

    def _fault(self, problem: str) -> InputError:
        place = f"{problem} (at character {self.passed + self.position})"
        return InputError(Fault(source=self.path, problem=place))
