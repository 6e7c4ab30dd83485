"""`estimate --out DIR`: an estimate as files of one folder whose names begin with a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.expressions.records import Resolved
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.report.breakdown_text import breakdown_text
from shardwise.report.console import written
from shardwise.report.deepflow import deepflow_text
from shardwise.report.graph import NO_GRAPHVIZ, has_graphviz, write_graph
from shardwise.report.tables.catalog import explained_figures
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv

_CHARTS = "charts.html"


@dataclass(frozen=True, slots=True)
class Written:
    """A file of the folder."""

    path: Path
    problem: str = ""
    """Why it was not written; empty if it was."""


def check_folder(path: str | Path) -> None:
    """Check that files can be written to a folder, or that it can be made, before any work."""
    if str(path) in ("", "-"):
        problem = "must be the name of a folder for the files"
        raise InputError(Fault(source="out", value=str(path), has_value=True, problem=problem))
    existing = Path(path)
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except OSError as error:  # a name that is too long
        raise _cannot_be_made(path, error) from None
    if not existing.is_dir():
        parent = "" if existing == Path(path) else f"cannot be made: {existing} "
        raise InputError.at(path, f"{parent}is a file, not a folder")
    files.check_output_path(existing / _CHARTS)


def _cannot_be_made(path: str | Path, error: OSError) -> InputError:
    return InputError.at(path, f"cannot be made: {error.strerror}")


def write_folder(
    path: str | Path,
    result: Estimate,
    strategy: Strategy,
    *,
    model: tuple[Model, Resolved],
    system: tuple[System, Resolved],
    record: Mapping[str, object],
    texts: Mapping[str, str],
    now: datetime,
) -> tuple[Written, ...]:
    """Write report, configuration, matrix products, graph, DeepFlow's shapes and charts.

    Parameters
    ----------
    result
        With its matrix products (`estimate(..., gemms=True)`).
    model, system
        With the origin of their figures, as `ConfigBase.explained` returns them.
    record
        Content of the estimate's JSON file.
    texts
        Further files, by name.
    now
        Names the files: no existing file is overwritten.

    Returns
    -------
    Every file; those that could not be written have a problem.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(path, error) from None
    prefix = _prefix(Path(path), now)
    contents = {
        "report.txt": breakdown_text(result),
        "config_summary.txt": _summary_text(result, model, system),
        "gemms.csv": gemms_csv(result),
        "shapes.csv": gemms_csv(result, SHAPE_COLUMNS),
        **texts,
    }
    done = []
    for name, text in contents.items():
        done.append(Written(Path(f"{prefix}_{name}")))
        files.write_text(done[-1].path, text)
    done.append(Written(Path(f"{prefix}_estimate.json")))
    files.write_mapping(done[-1].path, files.with_writer(record))
    graph = graph_of(model[0], system[0], strategy)
    for suffix in (".json", ".dot", ".mmd", ".svg"):
        drawable = suffix != ".svg" or has_graphviz()
        done.append(Written(Path(f"{prefix}_graph{suffix}"), "" if drawable else NO_GRAPHVIZ))
        if drawable:
            write_graph(graph, done[-1].path)
    done.append(_write_deepflow(Path(f"{prefix}_mat_dims.txt"), model[0], strategy))
    done.append(_write_charts(Path(f"{prefix}_{_CHARTS}"), result))
    return tuple(done)


def _prefix(folder: Path, now: datetime) -> Path:
    """A beginning of names that no file of the folder has."""
    stamp = f"{now:%Y-%m-%d_%H-%M-%S}"
    names = {path.name for path in folder.iterdir()}
    number, prefix = 1, stamp
    while any(name.startswith(f"{prefix}_") for name in names):
        number += 1
        prefix = f"{stamp}-{number}"
    return folder / prefix


def _write_deepflow(path: Path, model: Model, strategy: Strategy) -> Written:
    """Write DeepFlow's shapes, where its format can express them."""
    try:
        text = deepflow_text(model, strategy)
    except InputError as error:
        return Written(path, "; ".join(fault.problem for fault in error.faults))
    files.write_text(path, text)
    return Written(path)


def _write_charts(path: Path, result: Estimate) -> Written:
    """Draw the charts where plotly is installed."""
    if find_spec("plotly") is None:
        return Written(path, "plotly is not installed: pip install 'shardwise[plots]'")
    from shardwise.report.charts.estimate import write_charts  # noqa: PLC0415 - an extra

    write_charts(result, path)
    return Written(path)


def _summary_text(
    result: Estimate, model: tuple[Model, Resolved], system: tuple[System, Resolved]
) -> str:
    """Every figure on a line, ``name : value  # origin``, by config type; sources at the end."""
    notes: dict[str, int] = {}
    sections = {
        "MODEL": list(_figures(explained_figures(*model), notes)),
        "SYSTEM": list(_figures(explained_figures(*system), notes)),
        "STRATEGY": list(_strategy(result)),
    }
    lines = [f"Model: {result.model} | System: {result.system}"]
    for number, (title, figures) in enumerate(sections.items(), start=1):
        width = max(len(name) for name, _, _ in figures)
        reach = max(len(value) for _, value, _ in figures)
        lines += ["", f"{number}: {title}"]
        lines += [f"{n:{width}} : {value:{reach}}  # {why}" for n, value, why in figures]
    sources = [f"[{number}] {text}" for text, number in notes.items()]
    return "\n".join([*lines, "", *sources]) + "\n"


def _figures(
    explained: Iterable[Mapping[str, Any]], notes: dict[str, int]
) -> Iterator[tuple[str, str, str]]:
    """Name, value and origin of each figure; sources are numbered in order of appearance."""
    for figure in explained:
        origin = [figure["origin"], figure["by"], figure["description"]]
        if figure["source"] is not None:
            text = " ".join(figure["source"]["text"].split())
            number = notes.setdefault(text, len(notes) + 1)
            origin.append(f"{figure['source']['kind']} [{number}]")
        yield figure["field"], written(figure["written"]), ", ".join(o for o in origin if o)


def _strategy(result: Estimate) -> Iterator[tuple[str, str, str]]:
    for field, value in result.strategy.items():
        named = value.get("base") or value.get("name") if isinstance(value, Mapping) else value
        yield field, written(named), "assumed" if field in result.assumed else "given"
