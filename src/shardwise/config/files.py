"""Reading and writing the files people keep their models, systems and strategies in.

YAML, JSON and TOML, each also gzipped. Every failure is an `InputError` that names the file.
"""

import gzip
import io
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise._version import __version__
from shardwise.config.parse import parse
from shardwise.config.plain import as_json, as_yaml
from shardwise.errors import InputError, kind_of, shorten
from shardwise.records import dataclass, field

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
WRITER = "shardwise"
"""Key of a result that says which version wrote it."""
RESULT_SCHEMA = 1
"""Number of the form of results as JSON; it rises when a key that exists changes."""
_SCHEMAS = "https://shardwise.github.io/shardwise/reference/schema"
_WITH_SCHEMA = ("model", "system", "strategy", "stack", "space", "reliability", "recipe")
_WRITTEN = (".json", ".yaml", ".yml")

# The largest catalog file is a few kilobytes; a description of a machine or a model that is larger
# than this is some other file given by mistake.
_MAX_BYTES = 8 * 2**20


_catalog_only: ContextVar[bool] = ContextVar("_catalog_only", default=False)


@contextmanager
def catalog_only() -> Iterator[None]:
    """Refuse to read any file but those of the catalog while the block runs.

    For questions that come over a network: they name entries of the catalog or bring their data.
    """
    token = _catalog_only.set(True)
    try:
        yield
    finally:
        _catalog_only.reset(token)


@contextmanager
def from_anywhere() -> Iterator[None]:
    """Read files that the owner of this process set, even within `catalog_only`."""
    token = _catalog_only.set(False)
    try:
        yield
    finally:
        _catalog_only.reset(token)


def is_catalog_only() -> bool:
    """Whether only files of the catalog may be read now."""
    return _catalog_only.get()


def is_file_name(name: str) -> bool:
    """Tell whether a name that the user wrote means a file rather than a catalog entry."""
    if any(map(has_known_ending, (name, name.rpartition("#")[0]))) or file_and_name(name)[1]:
        return True
    if os.sep in name or "/" in name:
        return True
    return not is_catalog_only() and exists(name)


def file_and_name(path: str | Path) -> tuple[str, str]:
    """Return a file and the name of what is meant in it: FILE.py:NAME; "" where none is named."""
    file, colon, name = str(path).rpartition(":")
    if colon and file.endswith(".py") and name.isidentifier() and not exists(path):
        return file, name
    return str(path), ""


def exists(path: str | Path) -> bool:
    """Tell whether there is a file or folder; never for names that none can have: too long, a zero.

    As are the two below.
    """
    return os.path.exists(path)  # noqa: PTH110 - `Path` raises for such names


def is_file(path: str | Path) -> bool:
    """Tell whether there is a file."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def is_folder(path: str | Path) -> bool:
    """Tell whether there is a folder."""
    return os.path.isdir(path)  # noqa: PTH112 - as above


def has_known_ending(path: str | Path) -> bool:
    """Tell whether the ending of a file names a format that `read_mapping` reads."""
    return _kind(path) in SUFFIXES


def _kind(path: str | Path) -> str:
    return Path(str(_in_folder(path)).removesuffix(".gz")).suffix.lower()


def _in_folder(path: str | Path) -> str | Path:
    """Return the config.json in a folder of a Hugging Face model; any other path as it is."""
    if is_catalog_only() or not is_folder(path):
        return path
    inside = Path(path) / "config.json"
    return inside if is_file(inside) else path


def safe_name(text: str) -> str:
    """Return a text as the name of a file, in no folder, that shells need not quote."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:100] or "file"


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
        A larger file is refused before it is read completely.

    Raises
    ------
    InputError
        If the file cannot be read, is too large, empty, or not a mapping.
    """
    kind = _kind(path)
    check_input_path(path)
    if kind not in SUFFIXES:
        problem = f"cannot tell the format; allowed endings: {', '.join(SUFFIXES)}, each also .gz"
        raise InputError.at(path, problem)
    text = read_text(path, most_bytes=most_bytes)
    data = parse(text, kind, path, most_bytes=most_bytes)
    if not isinstance(data, dict):
        raise InputError.at(path, f"holds {kind_of(data)}, not a mapping of fields to values")
    for key in data:
        if not isinstance(key, str):
            raise InputError.at(path, f"key {shorten(key)} is not text")
    return without_writer(data, str(path))


def with_writer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the version that writes it, and the number of its schema, first."""
    return {WRITER: {"version": __version__, "schema": RESULT_SCHEMA}} | dict(data)


def without_writer(data: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Return a result without the version that wrote it.

    Raises
    ------
    InputError
        If that has a newer schema than this one reads.
    """
    writer = data.get(WRITER)
    if not isinstance(writer, Mapping) or writer.keys() != {"version", "schema"}:
        return dict(data)
    number = writer["schema"]
    if not isinstance(number, int) or number > RESULT_SCHEMA:
        problem = (
            f"was written by shardwise {shorten(writer['version'])}; shardwise {__version__} "
            f"reads results up to schema {RESULT_SCHEMA}"
        )
        raise InputError.of(f"{WRITER}.schema", number, problem, source)
    return {name: value for name, value in data.items() if name != WRITER}


def read_text(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> str:
    """Read a file of text, gzipped or not, that is not empty.

    Raises
    ------
    InputError
        If the file cannot be read, is too large or empty.
    """
    content = read_bytes(path, most_bytes=most_bytes)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError.at(path, "is UTF-16 text; save it as UTF-8")
    if b"\0" in content:
        raise InputError.at(path, "is a binary file, not text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError.at(path, f"is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise InputError.at(path, "the file is empty")
    return text


def read_bytes(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> bytes:
    """Read a file, gzipped or not, without unpacking more than the limit.

    Raises
    ------
    InputError
        If the file cannot be read or is too large.
    """
    check_input_path(path)
    try:
        with Path(_in_folder(path)).open("rb") as stream:
            raw: io.BufferedIOBase = stream
            if str(path).endswith(".gz"):
                raw = gzip.GzipFile(fileobj=stream)
            content = raw.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError.at(path, f"cannot be read: {reason}") from None
    if len(content) > most_bytes:
        raise InputError.at(
            path, f"is larger than {most_bytes // 2**20} MiB; not a file of shardwise"
        )
    return content


def parse_json(text: str, path: str | Path, *, first_line: int = 1) -> Any:
    """Return the value of a JSON text; faults name the file and the line."""
    return parse(text, ".json", path, most_bytes=_MAX_BYTES, first_line=first_line)


def check_input_path(path: str | Path) -> None:
    """Refuse what cannot be read completely: directories, devices, pipes that may never end."""
    if is_catalog_only() and not catalog.holds(path):
        raise InputError.at(
            path, "files cannot be named here; name an entry of the catalog, or send data"
        )
    try:
        mode = Path(_in_folder(path)).stat().st_mode
    except FileNotFoundError:
        raise InputError.at(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise InputError.at(
            path, f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if stat.S_ISDIR(mode):
        raise InputError.at(path, "is a directory, not a file")
    if not stat.S_ISREG(mode):
        raise InputError.at(path, "is not a regular file")
    note_input(path)


def write_mapping(path: str | Path, data: Mapping[str, Any], *, kind: str = "") -> None:
    """Write a mapping as YAML or JSON, by the ending of the file; `.gz` compresses.

    Parameters
    ----------
    kind
        Kind of config, such as model: YAML names its JSON Schema, by which editors check it.
    """
    check_writable_ending(path)
    is_json = _kind(path) == ".json"
    text = as_json(data, indent=2) + "\n" if is_json else _schema_line(kind) + as_yaml(data)
    write_text(path, text)


def _schema_line(kind: str) -> str:
    """Return the comment that names the JSON Schema of a config; empty if it has none."""
    if kind not in _WITH_SCHEMA:
        return ""
    return f"# yaml-language-server: $schema={_SCHEMAS}/{kind}.json\n"


TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")


def is_table_file(path: str | Path) -> bool:
    """Whether a file has the suffix of a table."""
    return str(path).lower().endswith(TABLE_ENDINGS)


def write_table(frame: Any, path: str | Path) -> None:
    """Write a data frame of polars as .csv, .csv.gz or .parquet, by the ending of the file."""
    if str(path).lower().endswith(".parquet"):
        content = io.BytesIO()
        frame.write_parquet(content)
        write_bytes(path, content.getvalue())
    else:
        write_text(path, frame.write_csv())


def check_result_ending(path: str | Path) -> None:
    """Raise an `InputError` as `check_writable_ending` does, but allow tables, too."""
    if is_table_file(path):
        check_output_path(path)
    else:
        check_writable_ending(path)


def check_writable_ending(path: str | Path) -> None:
    """Raise an `InputError` if `write_mapping` cannot tell a format by the ending of a file.

    For a verb to call before it computes something that takes long.
    """
    if _kind(path) not in _WRITTEN:
        raise InputError.at(path, "cannot be written; allowed endings: .json, .yaml, each also .gz")
    check_output_path(path)


def check_output_path(path: str | Path) -> None:
    """Raise an `InputError` if a file cannot be where it is to be written.

    Links are followed. Refused are folders, pipes and devices, read-only files, and what the
    command reads (see `keeping_inputs`).
    """
    try:
        _check_target(path)
    except (FileNotFoundError, NotADirectoryError):
        _check_folder(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError.at(path, f"cannot be written: {reason}") from None
    if command := _command.get():
        if role := command.inputs.get(_identity(path)):
            raise InputError.at(path, f"is {role} of the same command; {_ANOTHER}")
        command.outputs.add(_identity(path))


def _check_target(path: str | Path) -> None:
    """Check what is to be replaced; raises `FileNotFoundError` if nothing is there."""
    place = os.path.abspath(path)  # noqa: PTH100 - without following links
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError.at(path, "is a directory, not a file")
    if place.startswith(_STREAMS) or not stat.S_ISREG(mode):
        problem = "is not a regular file; to print, omit the option or use --json"
        raise InputError.at(path, problem)
    if not os.access(path, os.W_OK) or not mode & _ANY_WRITE:
        raise InputError.at(path, "cannot be written: it is read-only")
    _check_folder(path)


_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
_ANY_WRITE = 0o222  # the superuser may write without it
_ANOTHER = "choose another file"


def _check_folder(path: str | Path) -> None:
    """Check the folder that a file, or what a link names, is in."""
    try:
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise InputError.at(path, f"cannot be written: no such folder: {folder.name}")
        if not os.access(folder, os.W_OK):
            raise InputError.at(path, "cannot be written: its folder is read-only")
    except OSError as error:
        raise InputError.at(path, f"cannot be written: {error.strerror}") from None


_Identity = tuple[int, int] | str
"""Device and inode of a file, or the path of one that does not exist."""


@dataclass(frozen=True, slots=True)
class _Command:
    """Files of a command by identity: equal for all links and relative paths."""

    inputs: dict[_Identity, str] = field(default_factory=dict)
    """What each is: an input, or the log."""
    outputs: set[_Identity] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    """Inputs that are no files of the package, as they were named."""


_command: ContextVar[_Command | None] = ContextVar("_command", default=None)


@contextmanager
def keeping_inputs() -> Iterator[None]:
    """Refuse an output that is read while the block runs, whichever comes first."""
    token = _command.set(_Command())
    try:
        yield
    finally:
        _command.reset(token)


def note_log(path: str | Path) -> None:
    """Note that a command appends to a file, which no other option may write."""
    if command := _command.get():
        command.inputs[_identity(path)] = "the log"


def note_input(path: str | Path) -> None:
    """Note that a command reads a file.

    Raises
    ------
    InputError
        If it is to be written by the same command.
    """
    if command := _command.get():
        if _identity(path) in command.outputs:
            raise InputError.at(path, f"is an input and an output of the same command; {_ANOTHER}")
        command.inputs[_identity(path)] = "an input"
        if catalog.is_own(Path(path).resolve()):
            command.names.append(str(path))


def last_input() -> str:
    """Return the file that the command began to read last, for a fault; empty without one."""
    command = _command.get()
    return command.names[-1] if command and command.names else ""


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths are of one file, which need not exist."""
    return _identity(one) == _identity(other)


def _identity(path: str | Path) -> _Identity:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def write_text(path: str | Path, text: str) -> None:
    """Write text as `write_bytes` does."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write all of a file or nothing: a full disk or an interrupt leaves the old one intact.

    Links are followed; a file that exists keeps its mode, owner and other names.

    Raises
    ------
    InputError
        If `check_output_path` refuses the file, or the disk is full.
    """
    check_output_path(path)
    if Path(path).name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    target = target_of(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        put_in_place(temporary, target)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise InputError.at(path, f"cannot be written: {error.strerror}") from None


def target_of(path: str | Path) -> Path:
    """Return the file that a path names, through links."""
    return Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)


def put_in_place(complete: str | Path, path: str | Path) -> None:
    """Move a complete file of the same disk to where another is or is to be.

    Raises
    ------
    OSError
        If that fails; the other file is intact then.
    """
    new, target = Path(complete), target_of(path)
    try:
        old = target.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o666 & ~umask)
        new.replace(target)
        return
    with suppress(PermissionError, AttributeError):  # only the superuser may; not on Windows
        os.chown(new, old.st_uid, old.st_gid)
    new.chmod(stat.S_IMODE(old.st_mode))
    if old.st_nlink > 1:
        shutil.copyfile(new, target)
        new.unlink()
    else:
        new.replace(target)
