"""AMPeD: its configuration files, its statistics and its formulas."""

from collections.abc import Mapping
from typing import NoReturn

from shardwise.config.formats import FileFormat
from shardwise.config.readers import Kind
from shardwise.errors import Fault, InputError
from shardwise.predecessors.amped.files import looks_like, read_config
from shardwise.predecessors.amped.import_record import fields_of

__all__ = ["FORMATS"]


def _refuse_tables(_kind: Kind, _data: Mapping[str, object], _name: str, source: str) -> NoReturn:
    problem = "holds AMPeD's lookup tables; give the configuration that looks them up"
    raise InputError(Fault(source=source, problem=problem))


_ALL: tuple[Kind, ...] = ("model", "system", "strategy")
FORMATS = (
    FileFormat(
        tool="AMPeD",
        content="configuration",
        kinds=_ALL,
        recognise=lambda data: looks_like(data) == "configuration",
        read=lambda kind, data, name, source: fields_of(kind, read_config(data, source), name),
    ),
    FileFormat(
        tool="AMPeD",
        content="lookup tables",
        kinds=_ALL,
        recognise=lambda data: looks_like(data) == "lookup tables",
        read=_refuse_tables,
    ),
)
