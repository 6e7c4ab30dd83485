"""Reading and writing the files people keep their models, systems and strategies in.

YAML, JSON and TOML, each also gzipped. Every failure is an `InputError` that names the file.
"""

import gzip
import io
import json
import math
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError, kind_of, shorten

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_WRITTEN = (".json", ".yaml", ".yml")

# The largest catalog file is a few kilobytes; a description of a machine or a model that is larger
# than this is some other file given by mistake.
_MAX_BYTES = 8 * 2**20


def is_file_name(name: str) -> bool:
    """Tell whether a name given by the user means a file rather than a catalog entry."""
    if _kind(name) in SUFFIXES or os.sep in name or "/" in name:
        return True
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _kind(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def entry_name(path: str | Path) -> str:
    """Return the name of a file without its endings, as names of the catalog are written."""
    name = Path(path).name.removesuffix(".gz")
    for ending in SUFFIXES:
        name = name.removesuffix(ending)
    return name.lower().replace("_", "-").replace(" ", "-") or "file"


def read_mapping(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Read a YAML, JSON or TOML file, gzipped or not, whose top level is a mapping.

    Parameters
    ----------
    most_bytes
        A larger file is refused before it is read whole.

    Raises
    ------
    InputError
        If the file cannot be read, is too large, empty, or not a mapping.
    """
    kind = _kind(path)
    _refuse_irregular(path)
    if kind not in SUFFIXES:
        problem = f"cannot tell the format; allowed endings: {', '.join(SUFFIXES)}, each also .gz"
        raise _fault(path, problem)
    text = read_text(path, most_bytes=most_bytes)
    data = parse(text, kind, path, most_bytes=most_bytes)
    if not isinstance(data, dict):
        raise _fault(path, f"holds {kind_of(data)}, not a mapping of fields to values")
    for key in data:
        if not isinstance(key, str):
            raise _fault(path, f"key {shorten(key)} is not text")
    return data


def read_text(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> str:
    """Read a file of text, gzipped or not, that is not empty.

    Raises
    ------
    InputError
        If the file cannot be read, is too large or empty.
    """
    content = read_bytes(path, most_bytes=most_bytes)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _fault(path, "is UTF-16 text; save it as UTF-8")
    if b"\0" in content:
        raise _fault(path, "is not text (it holds zero bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _fault(path, f"is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise _fault(path, "the file is empty")
    return text


def read_bytes(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> bytes:
    """Read a file, gzipped or not, without unpacking more than the limit.

    Raises
    ------
    InputError
        If the file cannot be read or is too large.
    """
    _refuse_irregular(path)
    try:
        with Path(path).open("rb") as stream:
            raw: io.BufferedIOBase = stream
            if str(path).endswith(".gz"):
                raw = gzip.GzipFile(fileobj=stream)
            content = raw.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _fault(path, f"cannot be read: {reason}") from None
    if len(content) > most_bytes:
        raise _fault(path, f"is larger than {most_bytes // 2**20} MiB; not a file of shardwise")
    return content


def parse_json(text: str, path: str | Path, *, first_line: int = 1) -> Any:
    """Return the value of a JSON text; faults name the file and the line.

    Parameters
    ----------
    first_line
        Where in the file the text begins.
    """
    return parse(text, ".json", path, most_bytes=_MAX_BYTES, first_line=first_line)


def _refuse_irregular(path: str | Path) -> None:
    """Refuse what cannot be read as a whole: directories, devices, pipes that may never end."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise _fault(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise _fault(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise _fault(path, "is a directory, not a file")
    if not stat.S_ISREG(mode):
        raise _fault(path, "is not a regular file")


def _fault(path: str | Path, problem: str) -> InputError:
    return InputError(Fault(source=str(path), problem=problem))


def write_mapping(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a mapping as YAML or JSON, by the ending of the file; `.gz` compresses."""
    check_writable_ending(path)
    if _kind(path) == ".json":
        text = json.dumps(finite(data), indent=2, allow_nan=False) + "\n"
    else:
        text = as_yaml(data)
    write_text(path, text)


def check_writable_ending(path: str | Path) -> None:
    """Raise an `InputError` if `write_mapping` cannot tell a format by the ending of a file.

    For a verb to call before it computes something that takes long.
    """
    if _kind(path) not in _WRITTEN:
        raise _fault(path, "cannot be written; allowed endings: .json, .yaml, each also .gz")
    check_output_path(path)


def check_output_path(path: str | Path) -> None:
    """Raise an `InputError` if a file cannot be where it is to be written."""
    try:
        if Path(path).is_dir():
            raise _fault(path, "is a directory, not a file")
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise _fault(path, f"cannot be written: no such folder: {folder.name}")
        if not os.access(folder, os.W_OK):
            raise _fault(path, "cannot be written: its folder is read-only")
    except OSError as error:
        raise _fault(path, f"cannot be written: {error.strerror}") from None


def as_yaml(data: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order."""
    import yaml  # noqa: PLC0415 - only where used

    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)


def write_text(path: str | Path, text: str) -> None:
    """Write text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all: a full disk or an interrupt leaves the old one intact."""
    target = Path(path)
    if target.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise _fault(path, f"cannot be written: {error.strerror}") from None


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
