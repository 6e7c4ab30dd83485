"""What Calculon's search found, as charts: the best sample rate by two fields of its executions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, kind_of, refuse
from shardwise.predecessors.calculon.reference import WORDS
from shardwise.report.charts.common import Figure, chart_error, write_page
from shardwise.report.charts.maps import Map
from shardwise.report.charts.plans import Quantity
from shardwise.units import readable

_RATE = Quantity(title="samples/s of Calculon", lower_is_better=False)
_AXES_OF_A_MAP = 2
# What is read of the statistics of a cell.
_FIGURES = ("sample_rate", "total_time", "proc_mem_tier1_cap_req")
_Cell = Mapping[str, Mapping[str, Any]]


def check(record: Mapping[str, object], source: str) -> None:
    """Raise unless a saved search has what a heat map is drawn from."""
    axes, cells = record["axes"], record["cells"]
    faults = []
    if not (isinstance(axes, list) and all(isinstance(axis, str) for axis in axes)):
        faults.append(Fault(source=source, field="axes", problem="must be a list of text"))
    elif not isinstance(cells, list):
        faults.append(Fault(source=source, field="cells", problem="must be a list"))
    else:
        needed = [("execution", name) for name in axes] + [("stats", name) for name in _FIGURES]
        kinds = {place: Counter(_kind(cell, *place) for cell in cells) for place in needed}
        for index, cell in enumerate(cells):
            for part, name in needed:
                usual = "a number" if part == "stats" else kinds[part, name].most_common(1)[0][0]
                if _kind(cell, part, name) not in {usual} - {"nothing"}:
                    place = f"cells[{index}].{part}.{name}"
                    faults.append(Fault(source=source, field=place, problem=f"must be {usual}"))
    faults += [
        Fault(source=source, field=name, problem="must be a number")
        for name in ("good", "candidates")
        if kind_of(record.get(name)) != "a number"
    ]
    refuse(faults)


def _kind(cell: object, part: str, name: str) -> str:
    """Type of a figure of a cell in words; `nothing` where it has none."""
    inside = cell.get(part) if isinstance(cell, Mapping) else None
    value = inside.get(name) if isinstance(inside, Mapping) else None
    unknown = part == "execution" and name in WORDS and value not in WORDS[name]
    return "nothing" if unknown else kind_of(value)


def heat_map(record: Mapping[str, object], axes: Sequence[str] = ()) -> Figure:
    """Draw the best sample rate of every combination of two fields' values."""
    drawn = _map_of(record, axes)
    counts = f"{record['good']:,} of {record['candidates']:,} candidates are feasible"
    return drawn.heat_map(f"{counts}; {drawn.best_words}", upwards=True)


def write_charts(record: Mapping[str, Any], path: str | Path) -> None:
    """Write the heat map, by the ending of the file: .html, .json, .png or .svg."""
    figures = {"map": heat_map(record)}
    write_page(path, "Calculon's search", [], figures)


def _map_of(record: Mapping[str, Any], axes: Sequence[str]) -> Map:
    names = list(axes or record.get("axes", ()))[:_AXES_OF_A_MAP]
    cells: Sequence[_Cell] = record.get("cells", ())
    if len(names) < _AXES_OF_A_MAP or not cells:
        raise chart_error("the best by two fields", "search with --axes tp,pp")
    down, across = names
    best: dict[tuple[Any, Any], _Cell] = {}
    for cell in sorted(cells, key=lambda cell: -cell["stats"]["sample_rate"]):
        best.setdefault((cell["execution"][down], cell["execution"][across]), cell)
    labels = _values(down, [at[0] for at in best]), _values(across, [at[1] for at in best])
    rows = [[best.get((row, column)) for column in labels[1]] for row in labels[0]]
    return Map(
        names=(down, across),
        labels=([str(value) for value in labels[0]], [str(value) for value in labels[1]]),
        shown=_RATE,
        values=[
            [None if cell is None else float(cell["stats"]["sample_rate"]) for cell in row]
            for row in rows
        ],
        hover=[["nothing fits" if cell is None else _hover(cell) for cell in row] for row in rows],
    )


def _values(field: str, values: Sequence[Any]) -> list[Any]:
    """Distinct values: numbers by size, words as Calculon lists them."""
    words = WORDS.get(field, ())
    return sorted(set(values), key=words.index if words else None)


def _hover(cell: _Cell) -> str:
    """The execution of a cell, its time and memory, in lines."""
    stats = cell["stats"]
    lines = [f"{name.replace('_', ' ')} {value}" for name, value in cell["execution"].items()]
    lines.append(f"<b>{stats['sample_rate']:.6g} samples/s</b>")
    lines.append(f"step {readable(stats['total_time'], 'seconds')}")
    lines.append(f"memory {readable(stats['proc_mem_tier1_cap_req'], 'bytes')}")
    return "<br>".join(lines)
