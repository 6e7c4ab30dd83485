"""Rows of measured runs in files: ours, in which what rows share is written once, and plain rows.

A file of ours holds the rows of one group: `common` says what holds in each row and part that does
not say otherwise, `shared` has parts and notes that rows refer to by name, `rows` the rest. Each
row and each shared part is a line, so that a change of one is a change of one line.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase, unfold
from shardwise.errors import Fault, InputError
from shardwise.validate.measured.run import Run

__all__ = ["load_runs", "pack", "read_runs", "shipped", "unpack"]

Row = Mapping[str, Any]

_FORMAT = "shardwise-measured-runs-1"
# What rows refer to by name where several have it; other parts differ in almost every row.
_SHARED = ("source", "model", "hardware", "software", "recompute", "features", "notes")
_PARTS = (*_SHARED[:-1], "parallelism", "measured", "derived")
# What a shared part is called after, so that a row can be read without looking it up.
_CALLED = {"model": "name", "hardware": "accelerator", "software": "framework"}
# A thousand rows with all their keys are 2 MB.
_MOST_BYTES = 2**28
_ALLOWED = "allowed: a JSON list or lines of rows with an id, or a file of measured runs of ours"


class _Packed(ConfigBase):
    """A file of our form."""

    model_config = ConfigDict(str_strip_whitespace=False)  # keys come back as they are

    format: Literal["shardwise-measured-runs-1"]
    group: str
    common: dict[str, dict[str, Any]] = Field(default_factory=dict)
    shared: dict[str, dict[str, Any]] = Field(default_factory=dict)
    rows: tuple[dict[str, Any], ...]


def pack(rows: Iterable[Row]) -> dict[str, str]:
    """Write rows in our form: text of a file for each group, by the name of the file.

    `unpack` gives the rows back, equal in every key and value.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    return {_file_name(group): _text(group, some) for group, some in groups.items()}


def unpack(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of files of our form, as `pack` was given them."""
    return [row for name, text in texts.items() for row in _rows(json.loads(text), source=name)]


@cache
def load_runs() -> tuple[Run, ...]:
    """Return all runs that come with shardwise, by the names of their files, then in order."""
    return tuple(run for name, text in shipped().items() for run in _runs(json.loads(text), name))


def shipped() -> dict[str, str]:
    """Return the files that come with shardwise: text by name, in order."""
    folder = Path(catalog.__file__).parent / "measured"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}


def read_runs(path: str | Path) -> tuple[Run, ...]:
    """Read a file of runs: a JSON list of rows, JSON lines, or our form; also gzipped.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong, which names the file, the row and the field.
    """
    documents = list(_documents(files.read_text(path, most_bytes=_MOST_BYTES), path))
    first = documents[0]
    if len(documents) == 1 and isinstance(first, Mapping) and "format" in first:
        return _runs(first, str(path))
    rows = first if len(documents) == 1 and isinstance(first, list) else documents
    if not rows or not all(isinstance(row, Mapping) and "id" in row for row in rows):
        raise InputError(Fault(source=str(path), problem=f"holds no measured runs; {_ALLOWED}"))
    return _validated(rows, str(path))


def _documents(text: str, path: str | Path) -> Iterator[Any]:
    """The values of a JSON file, or of each line where the first is a value of its own."""
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) > 1 and lines[0][1].rstrip().endswith("}"):
        yield from (files.parse_json(line, path, first_line=number) for number, line in lines)
    else:
        yield files.parse_json(text, path)


def _runs(packed: Mapping[str, Any], source: str) -> tuple[Run, ...]:
    return _validated(_rows(packed, source=source), source)


def _validated(rows: Sequence[Row], source: str) -> tuple[Run, ...]:
    """Make nouns of rows, of a part that several share one, with the faults of all."""
    faults: list[Fault] = []
    parts: dict[int, ConfigBase] = {}
    runs: dict[str, Run] = {}
    for row in rows:
        place = f"{source}: {row.get('id')}"
        try:
            shared = {name: parts[id(row[name])] for name in _PARTS if id(row.get(name)) in parts}
            run = Run.validated({**row, **shared}, source=place)
        except InputError as error:
            faults.extend(error.faults)
            continue
        nouns = {name: getattr(run, name) for name in _PARTS if isinstance(row.get(name), Mapping)}
        parts |= {
            id(row[name]): noun for name, noun in nouns.items() if isinstance(noun, ConfigBase)
        }
        if run.id in runs:
            faults.append(Fault(source=place, field="id", problem="is given twice"))
        runs[run.id] = run
    if faults:
        raise InputError(faults)
    return tuple(runs.values())


def _rows(data: Mapping[str, Any], *, source: str) -> list[dict[str, Any]]:
    """Rows of a file of our form, whole; parts that they share are the same objects."""
    packed = _Packed.validated(data, source=source)
    common = packed.common
    shared = {
        name: {called: _whole(part, common.get(name, {})) for called, part in parts.items()}
        for name, parts in packed.shared.items()
    }
    rows = []
    for given in packed.rows:
        row = {"group": packed.group, **common.get("row", {}), **given}
        for name in {*_PARTS, *_SHARED}.intersection(row):
            part = row[name]
            if not isinstance(part, str):
                row[name] = _whole(part, common.get(name, {}))
            elif part in shared.get(name, {}):
                row[name] = shared[name][part]
            else:
                place = f"{source}: {row.get('id')}"
                problem = "no part of that name in `shared`"
                raise InputError(
                    Fault(source=place, field=name, value=part, has_value=True, problem=problem)
                )
        rows.append(row)
    return rows


def _whole(part: Any, common: Row) -> Any:
    return {**common, **part} if isinstance(part, Mapping) else part


def _file_name(group: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-") + ".json"


def _text(group: str, rows: Sequence[Row]) -> str:
    rest = [
        {k: dict(v) if k in _PARTS and v is not None else v for k, v in row.items() if k != "group"}
        for row in rows
    ]
    shared = {name: _take_shared(name, rest) for name in _SHARED}
    common = {}
    for name in _PARTS:
        inside = [row[name] for row in rest if isinstance(row.get(name), Mapping)]
        figures = name not in ("measured", "derived")
        common[name] = _take_common([*shared.get(name, {}).values(), *inside], figures=figures)
    common["row"] = _take_common(rest, figures=True)
    lines = [
        f'"format": {_line(_FORMAT)}',
        f'"group": {_line(group)}',
        f'"common": {_block({name: some for name, some in common.items() if some}, 1)}',
        f'"shared": {_block({name: some for name, some in shared.items() if some}, 2)}',
        '"rows": [\n' + ",\n".join(_line(row) for row in rest) + "\n]",
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _take_shared(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put names in the place of a part that several rows have, or of a text; return the parts."""
    uses = Counter(_line(row[name]) for row in rows if name in row)
    named: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    shared: dict[str, Any] = {}
    for row in rows:
        part = row.get(name)
        key = _line(part)
        if part is None or (isinstance(part, Mapping) and uses[key] == 1):
            continue
        if key not in named:
            called = (part.get(_CALLED[name]) if name in _CALLED else None) or name
            numbers[called] += 1
            named[key] = f"{called}-{numbers[called]}"
            shared[named[key]] = part
        row[name] = named[key]
    return shared


def _take_common(parts: Sequence[dict[str, Any]], *, figures: bool) -> dict[str, Any]:
    """Take from parts what several of them say, of fields that all of them have.

    Parameters
    ----------
    figures
        Whether numbers may be taken; what was measured stays with its row.
    """
    common: dict[str, Any] = {}
    for field in set(parts[0]).intersection(*parts) if parts else ():
        said = Counter(_line(part[field]) for part in parts)
        (most, uses), *_ = said.most_common(1)
        if uses > 1 and most[0] != "{" and (figures or most[0] in 'n"'):
            common[field] = json.loads(most)
            for part in parts:
                if _line(part[field]) == most:
                    del part[field]
    return common


def _block(parts: Mapping[str, Any], depth: int) -> str:
    """Parts by name, each on a line of its own."""
    if depth == 0:
        return _line(parts)
    lines = (f"{_line(name)}: {_block(part, depth - 1)}" for name, part in parts.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _line(value: Any) -> str:
    return json.dumps(_in_order(value), ensure_ascii=False)


def _in_order(value: Any) -> Any:
    """Sort the keys of mappings: as the nouns have their fields, then by name."""
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value, key=_place)}
    return value


def _place(key: str) -> tuple[int, str]:
    return _FIELDS.get(key, len(_FIELDS)), key


def _field_names(noun: type[ConfigBase]) -> Iterator[str]:
    """Names of a noun's fields, each followed by those inside it."""
    for name, field in noun.model_fields.items():
        yield name
        for kind in unfold(field.annotation):
            if isinstance(kind, type) and issubclass(kind, ConfigBase):
                yield from _field_names(kind)


_FIELDS = {name: place for place, name in enumerate(dict.fromkeys(_field_names(Run)))}
_FIELDS["notes"] = len(_FIELDS)
