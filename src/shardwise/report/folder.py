"""All that there is to say of an estimate, as files of one folder whose names begin with a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.report.breakdown_text import breakdown_text
from shardwise.report.config_summary import Explained, summary_text
from shardwise.report.deepflow import deepflow_text
from shardwise.report.graph import NO_GRAPHVIZ, has_graphviz, write_graph
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv

__all__ = ["Written", "check_folder", "write_folder"]

_CHARTS = "charts.html"
_DEEPFLOW = "mat_dims.txt"
# Nothing, as of a variable that is not set, and what elsewhere stands for the standard output.
_NO_FOLDERS = ("", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of one file."""

    path: Path
    problem: str = ""
    """Why it was not written; empty if it was."""


def check_folder(path: str | Path) -> None:
    """Refuse what cannot be a folder for files, or be made one, before there are any.

    Raises
    ------
    InputError
        If it is something else, or cannot be written to, or there is no name.
    """
    if str(path) in _NO_FOLDERS:
        problem = "must be the name of a folder for the files"
        raise InputError(Fault(source="out", value=str(path), has_value=True, problem=problem))
    there = Path(path)
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
    except OSError as error:  # a name that is too long
        raise _cannot_be_made(path, error) from None
    if not there.is_dir():
        within = "" if there == Path(path) else f"cannot be made: {there} "
        raise InputError(Fault(source=str(path), problem=f"{within}is a file, not a folder"))
    files.check_output_path(there / _CHARTS)


def _cannot_be_made(path: str | Path, error: OSError) -> InputError:
    return InputError(Fault(source=str(path), problem=f"cannot be made: {error.strerror}"))


def _made(path: str | Path) -> Path:
    """The folder, made with those around it if there is none."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(path, error) from None
    return Path(path)


def write_folder(
    path: str | Path,
    result: Estimate,
    strategy: Strategy,
    *,
    model: Explained,
    system: Explained,
    record: Mapping[str, Any],
    texts: Mapping[str, str],
    now: datetime,
) -> tuple[Written, ...]:
    """Write report, summary of the configuration, products, graph, DeepFlow's shapes and charts.

    Parameters
    ----------
    result
        With its products (`estimate(..., gemms=True)`).
    record
        The estimate as plain values, with what goes beside it.
    texts
        Further files, by name.
    now
        Names the files: nothing that is there is written over.

    Returns
    -------
    Each file, and of those that could not be written why.
    """
    the_model, the_system = model[0], system[0]
    assert isinstance(the_model, Model)  # noqa: S101 - as loaded
    assert isinstance(the_system, System)  # noqa: S101 - as loaded
    start = _start(_made(path), now)
    graph = graph_of(the_model, the_system, strategy)

    def ours() -> Iterator[tuple[str, Callable[[], str]]]:
        yield "report.txt", lambda: breakdown_text(result)
        yield "config_summary.txt", lambda: summary_text(result, model, system)
        yield "gemms.csv", lambda: gemms_csv(result)
        yield "shapes.csv", lambda: gemms_csv(result, SHAPE_COLUMNS)
        yield _DEEPFLOW, lambda: deepflow_text(the_model, strategy)

    written = [_text(Path(f"{start}_{name}"), make) for name, make in ours()]
    estimate = Path(f"{start}_estimate.json")
    files.write_mapping(estimate, record)
    others = [estimate]
    for suffix in (".json", ".dot", ".mmd", *((".svg",) if has_graphviz() else ())):
        others.append(Path(f"{start}_graph{suffix}"))
        write_graph(graph, others[-1])
    for name, text in texts.items():
        others.append(Path(f"{start}_{name}"))
        files.write_text(others[-1], text)
    written += [Written(path=path) for path in others]
    if not has_graphviz():
        written.append(Written(path=Path(f"{start}_graph.svg"), problem=NO_GRAPHVIZ))
    return (*written, _charts(result, Path(f"{start}_{_CHARTS}")))


def _start(folder: Path, now: datetime) -> Path:
    """A beginning of names that no file of the folder has."""
    stamp = f"{now:%Y-%m-%d_%H-%M-%S}"
    there = {path.name for path in folder.iterdir()}
    number, start = 1, stamp
    while any(name.startswith(f"{start}_") for name in there):
        number += 1
        start = f"{stamp}-{number}"
    return folder / start


def _text(path: Path, make: Callable[[], str]) -> Written:
    """Write a text, unless its format has no words for the run."""
    try:
        files.write_text(path, make())
    except InputError as error:
        if path.name.endswith(_DEEPFLOW) and not path.exists():
            return Written(path=path, problem="; ".join(fault.problem for fault in error.faults))
        raise
    return Written(path=path)


def _charts(result: Estimate, path: Path) -> Written:
    """Draw the charts where plotly is installed."""
    if find_spec("plotly") is None:
        problem = "plotly is not installed: pip install 'shardwise[plots]'"
        return Written(path=path, problem=problem)
    from shardwise.report.charts.estimate import write_charts  # noqa: PLC0415 - an extra

    write_charts(result, path)
    return Written(path=path)
