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
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    data = _parse(read_text(path, most_bytes=most_bytes), kind, path)
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
    _refuse_irregular(path)
    text = _read_text(path, most_bytes)
    if not text.strip():
        raise _fault(path, "the file is empty")
    return text


def parse_json(text: str, path: str | Path, *, first_line: int = 1) -> Any:
    """Return the value of a JSON text; faults name the file and the line.

    Parameters
    ----------
    first_line
        Where in the file the text begins.
    """
    return _parse("\n" * (first_line - 1) + text, ".json", path)


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


def _read_text(path: str | Path, most_bytes: int) -> str:
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
    if b"\0" in content:
        raise _fault(path, "is not text (it holds zero bytes)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _fault(path, f"is not UTF-8 text (byte {error.start})") from None


def _parse(text: str, kind: str, path: str | Path) -> Any:
    try:
        if kind == ".json":
            return json.loads(text, object_pairs_hook=_without_duplicates)
        if kind == ".toml":
            return tomllib.loads(text)
        return _parse_yaml(text)
    except _DuplicateKeyError as error:
        raise _fault(path, f"key {shorten(error.args[0])} is given twice") from None
    except json.JSONDecodeError as error:
        raise _fault(path, f"line {error.lineno}: not JSON: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise _fault(path, f"not TOML: {error}") from None
    except RecursionError:
        raise _fault(path, "is nested too deeply") from None
    except ValueError as error:  # e.g. a YAML date or an integer of thousands of digits
        raise _fault(path, f"cannot be read: {error}") from None


class _DuplicateKeyError(Exception):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKeyError(key)
        result[key] = value
    return result


def _parse_yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - only where used: `--help` must not wait for it

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """Refuses duplicate keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            pairs = [
                (self.construct_object(key, deep=True), self.construct_object(value, deep=deep))
                for key, value in node.value
            ]
            seen = [key for key, _ in pairs]
            for key in seen:
                if seen.count(key) > 1:
                    raise _DuplicateKeyError(key)
            return dict(pairs)

        def construct_yaml_map(self, node: Any) -> Any:
            return self.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_yaml_map)
    try:
        for event in yaml.parse(text, Loader=base):
            if isinstance(event, yaml.AliasEvent):  # a few can unfold into gigabytes
                line = event.start_mark.line + 1  # type: ignore[union-attr]  # parsed, so marked
                raise ValueError(f"line {line}: YAML aliases are not supported")  # noqa: TRY004
        return yaml.load(text, Loader=Loader)  # noqa: S506 - derived from SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


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
