"""A compute graph as text for graphviz."""

from collections.abc import Iterator

from shardwise.analysis.graph.records import ComponentGraph, ComputeGraph, GraphEdge
from shardwise.report.graph.words import edge_words, node_words, part_title

__all__ = ["graph_dot"]

_FILLS = {"operation": "#e6effa", "exchange": "#fdebd3", "input": "#ffffff", "output": "#ffffff"}
_EDGES = {"residual": ' color="#2a9d8f" style=bold', "adapter": " style=dashed"}


def graph_dot(graph: ComputeGraph) -> str:
    """Write a graph in the DOT language: the model and each of its parts as a cluster."""
    lines = [
        f"digraph {_quoted(graph.model)} {{",
        f"  label={_quoted(f'{graph.model} on {graph.system}')} labelloc=t",
        '  node [shape=box style="rounded,filled" fontname="sans-serif" fontsize=10]',
        '  edge [fontname="sans-serif" fontsize=8 color="#8a94a3"]',
        *_model(graph),
    ]
    for number, part in enumerate(graph.parts):
        lines += _part(number, part)
    return "\n".join([*lines, "}"]) + "\n"


def _model(graph: ComputeGraph) -> Iterator[str]:
    yield "  subgraph cluster_model {"
    yield f"    label={_quoted(graph.model)}"
    for node in graph.stages:
        label = f"{node.name}\nstage {node.stage}, rank {node.rank}"
        yield f'    {_quoted(node.id)} [label={_quoted(label)} fillcolor="#f3f4f6"]'
    for edge in graph.edges:
        yield f"    {_edge(edge, '')}"
    yield "  }"


def _part(number: int, part: ComponentGraph) -> Iterator[str]:
    yield f"  subgraph cluster_{number} {{"
    yield f"    label={_quoted(part_title(part))}"
    for node in part.nodes:
        label = "\n".join([node.name, *node_words(node)])
        name = _quoted(f"{part.name}/{node.id}")
        yield f'    {name} [label={_quoted(label)} fillcolor="{_FILLS[node.kind]}"]'
    for edge in part.edges:
        yield f"    {_edge(edge, f'{part.name}/')}"
    yield "  }"


def _edge(edge: GraphEdge, prefix: str) -> str:
    ends = " -> ".join(_quoted(prefix + end) for end in (edge.source, edge.target))
    return f"{ends} [label={_quoted(edge_words(edge))}{_EDGES.get(edge.kind, '')}]"


def _quoted(text: str) -> str:
    """A string of DOT: quotes and backslashes escaped, lines broken."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
