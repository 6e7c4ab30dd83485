"""How a tool's folder describes the files that it reads to the registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwise.config.base import ConfigBase
from shardwise.config.readers import Kind

T = TypeVar("T", bound=ConfigBase)
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """One kind of file of another tool."""

    tool: str
    content: str
    """What it is, in the tool's words."""
    kinds: tuple[Kind, ...]
    """What `read` can return the fields of."""
    recognise: Callable[[Mapping[str, Any]], bool]
    """Whether a parsed file is of this kind by its keys, be its other keys and values wrong."""
    read: Callable[[Kind, Mapping[str, Any], str, str], Fields]
    """Return shardwise fields, from the requested kind, the parsed file, a name for a model or
    system that has none in it, and the source that faults name."""


def typed_format(
    tool: str,
    content: str,
    kind: Kind,
    looks_like: Callable[[Mapping[str, object]], str | None],
    file_type: type[T],
    fields: Callable[[T, str, str], Fields],
) -> FileFormat:
    """Return the format of a file that is validated by a type and holds one kind.

    Parameters
    ----------
    looks_like
        Returns which of the tool's files a mapping is, as in `content`.
    fields
        Returns the shardwise fields from the validated file, a name and the source.
    """

    def read(_: Kind, data: Mapping[str, object], name: str, source: str) -> Fields:
        return fields(file_type.validated(data, source=source), name, source)

    return FileFormat(
        tool=tool,
        content=content,
        kinds=(kind,),
        recognise=lambda data: looks_like(data) == content,
        read=read,
    )
