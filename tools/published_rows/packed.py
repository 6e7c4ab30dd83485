"""Files of published rows: packed files, which write shared values once, and plain rows.

A packed file has the rows of one group: `common` has the defaults of all rows and their sections,
`shared` has sections and notes that rows refer to by name, `rows` the rest. Each row and each
shared section is one line, so that a change of one changes one line.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from published_rows.row import Run, RunFault
from shardwise.config import files
from shardwise.config.base import ConfigBase, unfold
from shardwise.config.plain import as_json
from shardwise.errors import Fault, InputError

Row = Mapping[str, Any]

_FORMAT = "shardwise-measured-runs-1"
# Sections that rows refer to by name if several have the same; others differ in almost every row.
_SHARED = ("source", "model", "hardware", "software", "recompute", "features", "notes")
_SECTIONS = (*_SHARED[:-1], "parallelism", "measured", "derived")
# The field that a shared section is named after, so that a row can be read without a lookup.
_NAMED_AFTER = {"model": "name", "hardware": "accelerator", "software": "framework"}
# A thousand rows with all their keys are 2 MB.
_MOST_BYTES = 2**28
_MOST_FAULTS = 100
_ALLOWED = "allowed: a JSON list or lines of rows with an id, or a packed file of measured runs"


class _Packed(ConfigBase):
    """A packed file."""

    model_config = ConfigDict(str_strip_whitespace=False)  # keys stay as they are

    format: Literal["shardwise-measured-runs-1"]
    group: str
    common: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    shared: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...]


def pack(rows: Iterable[Row]) -> dict[str, str]:
    """Pack rows: the text of one file for each group, by the name of the file.

    `unpack` returns the rows, equal in every key and value.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    return {_file_name(group): _text(group, some) for group, some in groups.items()}


def unpack(texts: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the rows of packed files; the inverse of `pack`."""
    return [row for name, text in texts.items() for row in _rows(json.loads(text), source=name)]


@cache
def load_rows() -> tuple[Run, ...]:
    """Return the rows that the runs of the catalog are translated from, file by file."""
    return tuple(run for name, text in kept().items() for run in _runs(json.loads(text), name))


def kept() -> dict[str, str]:
    """Return the files of these rows: text by name, in order."""
    folder = Path(__file__).parent.parent / "rows"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}


def read_rows(path: str | Path) -> tuple[Run, ...]:
    """Read a JSON list of rows, JSON lines or a packed file; a wrong row is a `RunFault`.

    Raises
    ------
    InputError
        If the file holds no rows or none of them is valid, with one fault for each thing that is
        wrong, which names the file, the row and the field.
    """
    documents = _documents(files.read_text(path, most_bytes=_MOST_BYTES), path)
    first, second = next(documents), next(documents, None)
    if second is None and isinstance(first, Mapping) and "format" in first:
        return _runs(first, str(path))
    several = [first] if second is None else chain((first, second), documents)
    rows = first if second is None and isinstance(first, list) else several
    found = _validated(_with_id(rows, path), str(path), every=False)
    if not found:
        raise _no_runs(path)
    return found


def _with_id(rows: Iterable[object], path: str | Path) -> Iterator[Row]:
    """Yield rows until one is none."""
    for row in rows:
        if not isinstance(row, Mapping) or "id" not in row:
            raise _no_runs(path)
        yield row


def _no_runs(path: str | Path) -> InputError:
    return InputError(Fault(source=str(path), problem=f"holds no measured runs; {_ALLOWED}"))


def _documents(text: str, path: str | Path) -> Iterator[object]:
    """The value of a JSON file, or of each line if the first line is a value."""
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) > 1 and lines[0][1].rstrip().endswith("}"):
        yield from (files.parse_json(line, path, first_line=number) for number, line in lines)
    else:
        yield files.parse_json(text, path)


def _runs(packed: Mapping[str, object], source: str) -> tuple[Run, ...]:
    return _validated(_rows(packed, source=source), source)


def _validated(rows: Iterable[Row], source: str, *, every: bool = True) -> tuple[Run, ...]:
    """Validate rows, each shared section once.

    Parameters
    ----------
    rows, source
        What is read, and where it stands.
    every
        Whether all must be valid; else those that are not become a `RunFault`.

    Raises
    ------
    InputError
        With the faults of all, up to a limit, if rows must be valid or none is.
    """
    faults: list[Fault] = []
    sections: dict[int, ConfigBase] = {}
    runs: dict[str, Run] = {}
    valid = False
    seen = []  # alive, so that no later section has the id of an earlier one
    for number, row in enumerate(rows, start=1):
        seen.append(row)
        if len(faults) >= _MOST_FAULTS and not valid:
            break
        place = f"{source}: {row.get('id')}"
        try:
            run = _validated_row(row, place, sections, runs)
        except InputError as error:
            faults.extend(error.faults)
            refused = RunFault.of(str(row["id"]), error)
            runs[f"{refused.id}: row {number}"] = refused
            continue
        runs[run.id], valid = run, True
    if faults and (every or not valid):
        raise InputError(faults)
    return tuple(runs.values())


def _validated_row(
    row: Row, place: str, sections: dict[int, ConfigBase], others: Mapping[str, Run]
) -> Run:
    """Validate one row of an id that no other has; its sections are added to the valid ones."""
    shared = {name: sections[id(row[name])] for name in _SECTIONS if id(row.get(name)) in sections}
    run = Run.validated({**row, **shared}, source=place)
    for name in _SECTIONS:
        section = getattr(run, name)
        if isinstance(row.get(name), Mapping) and isinstance(section, ConfigBase):
            sections[id(row[name])] = section
    if run.id in others:
        raise InputError(Fault(source=place, field="id", problem="is set twice"))
    return run


def _rows(data: Mapping[str, object], *, source: str) -> list[dict[str, Any]]:
    """Full rows of a packed file; shared sections are the same objects."""
    packed = _Packed.validated(data, source=source)
    common = packed.common
    shared = {
        name: {
            called: _with_defaults(section, common.get(name, {}))
            for called, section in sections.items()
        }
        for name, sections in packed.shared.items()
    }
    rows = []
    for packed_row in packed.rows:
        row = {"group": packed.group, **common.get("row", {}), **packed_row}
        for name in {*_SECTIONS, *_SHARED}.intersection(row):
            section = row[name]
            if not isinstance(section, str):
                row[name] = _with_defaults(section, common.get(name, {}))
            elif section in shared.get(name, {}):
                row[name] = shared[name][section]
            else:
                place = f"{source}: {row.get('id')}"
                problem = "no section of that name in `shared`"
                raise InputError(
                    Fault(source=place, field=name, value=section, has_value=True, problem=problem)
                )
        rows.append(row)
    return rows


def _with_defaults(section: object, common: Row) -> object:
    return {**common, **section} if isinstance(section, Mapping) else section


def _file_name(group: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-") + ".json"


def _text(group: str, rows: Sequence[Row]) -> str:
    rest = [
        {
            k: dict(v) if k in _SECTIONS and v is not None else v
            for k, v in row.items()
            if k != "group"
        }
        for row in rows
    ]
    shared = {name: _extract_shared(name, rest) for name in _SHARED}
    common = {}
    for name in _SECTIONS:
        inside = [row[name] for row in rest if isinstance(row.get(name), Mapping)]
        figures = name not in ("measured", "derived")
        common[name] = _extract_common([*shared.get(name, {}).values(), *inside], figures=figures)
    common["row"] = _extract_common(rest, figures=True)
    lines = [
        f'"format": {_line(_FORMAT)}',
        f'"group": {_line(group)}',
        f'"common": {_block({name: some for name, some in common.items() if some}, 1)}',
        f'"shared": {_block({name: some for name, some in shared.items() if some}, 2)}',
        '"rows": [\n' + ",\n".join(_line(row) for row in rest) + "\n]",
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _extract_shared(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Replace sections that several rows have, and texts, by names; return the sections."""
    uses = Counter(_line(row[name]) for row in rows if name in row)
    named: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    shared: dict[str, Any] = {}
    for row in rows:
        section = row.get(name)
        key = _line(section)
        if section is None or (isinstance(section, Mapping) and uses[key] == 1):
            continue
        if key not in named:
            called = (section.get(_NAMED_AFTER[name]) if name in _NAMED_AFTER else None) or name
            numbers[called] += 1
            named[key] = f"{called}-{numbers[called]}"
            shared[named[key]] = section
        row[name] = named[key]
    return shared


def _extract_common(sections: Sequence[dict[str, object]], *, figures: bool) -> dict[str, Any]:
    """Remove values that several sections share, of fields that all of them have; return these.

    Parameters
    ----------
    parts
        Sections, changed in place.
    figures
        Whether numbers may be removed; measured values stay in their row.
    """
    common: dict[str, object] = {}
    first, *others = sections or [{}]
    for field in [name for name in first if all(name in other for other in others)]:
        counts = Counter(_line(section[field]) for section in sections)
        (most, uses), *_ = counts.most_common(1)
        if uses > 1 and most[0] != "{" and (figures or most[0] in 'n"'):
            common[field] = json.loads(most)
            for section in sections:
                if _line(section[field]) == most:
                    del section[field]
    return common


def _block(sections: Mapping[str, Any], depth: int) -> str:
    """Sections by name, one per line."""
    if depth == 0:
        return _line(sections)
    lines = (f"{_line(name)}: {_block(section, depth - 1)}" for name, section in sections.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _line(value: object) -> str:
    return as_json(_in_order(value))


def _in_order(value: object) -> object:
    """Sort the keys of mappings: in the order of the fields of `Run`, then by name."""
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value, key=_place)}
    return value


def _place(key: str) -> tuple[int, str]:
    return _FIELDS.get(key, len(_FIELDS)), key


def _field_names(config: type[ConfigBase]) -> Iterator[str]:
    """Names of the fields of a config type, each followed by those inside it."""
    for name, field in config.model_fields.items():
        yield name
        for kind in unfold(field.annotation):
            if isinstance(kind, type) and issubclass(kind, ConfigBase):
                yield from _field_names(kind)


_FIELDS = {name: place for place, name in enumerate(dict.fromkeys(_field_names(Run)))}
_FIELDS["notes"] = len(_FIELDS)
