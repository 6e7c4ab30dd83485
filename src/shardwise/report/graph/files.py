"""A compute graph as text or in a file: JSON, DOT or SVG."""

import json
from pathlib import Path

from shardwise.analysis.graph.records import ComputeGraph
from shardwise.config import files
from shardwise.errors import Fault, InputError
from shardwise.report.graph.dot import graph_dot
from shardwise.report.graph.svg import graph_svg

__all__ = ["GRAPH_ENDINGS", "check_graph_file", "graph_json", "write_graph"]

GRAPH_ENDINGS = (".json", ".dot", ".svg")


def graph_json(graph: ComputeGraph) -> str:
    """Every node, edge and sum as JSON."""
    return json.dumps(files.finite(graph.to_dict()), indent=2, ensure_ascii=False) + "\n"


def check_graph_file(path: str | Path) -> None:
    """Raise an `InputError` if a graph cannot be written to a file, before it is made."""
    if _ending(path) not in GRAPH_ENDINGS:
        problem = f"cannot be written; allowed endings: {', '.join(GRAPH_ENDINGS)}, each also .gz"
        raise InputError(Fault(source=str(path), problem=problem))
    files.check_output_path(path)


def write_graph(graph: ComputeGraph, path: str | Path) -> None:
    """Write a graph as JSON, DOT (for graphviz) or SVG (for a browser), by the ending."""
    check_graph_file(path)
    written = {".json": graph_json, ".dot": graph_dot, ".svg": graph_svg}[_ending(path)]
    files.write_text(path, written(graph))


def _ending(path: str | Path) -> str:
    return Path(str(path).lower().removesuffix(".gz")).suffix
