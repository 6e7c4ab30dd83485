"""The model of a compute graph from first to last, as a panel of its picture."""

from collections.abc import Sequence
from itertools import groupby

from shardwise.analysis.graph.records import ComputeGraph, StageNode
from shardwise.report.console import seconds
from shardwise.report.graph.shapes import Panel, box, line, text, text_width
from shardwise.units import readable

__all__ = ["stage_panel"]

_TITLE = 38.0
_ROW, _GAP = 26.0, 20.0
_BETWEEN = 40.0
_HEAD = 22.0


def stage_panel(graph: ComputeGraph) -> Panel:
    """Parts of the model in a row, framed by stage; equal stages that follow each other are one."""
    groups = _groups(graph.stages)
    names = [node.name for _, nodes in groups for node in nodes]
    inner = max(max(text_width(name, 11.5, bold=True) for name in names) + 28, 130.0)
    transfer = _transfer(graph)
    width = max(inner + 56, 2 * text_width(transfer, 9) + 44)
    middle, y = width / 2, _TITLE
    drawn = []
    for place, (title, nodes) in enumerate(groups):
        height = _HEAD + len(nodes) * _ROW + (len(nodes) - 1) * _GAP + 12
        if place:
            drawn.append(line((middle, y - _BETWEEN), (middle, y), "edge stage"))
            drawn.append(text(middle + 7, y - _BETWEEN / 2 + 4, transfer, "tensor"))
        drawn.append(box(14, y, width - 28, height, "stages"))
        drawn.append(text(22, y + 15, title, "key"))
        for row, node in enumerate(nodes):
            top = y + _HEAD + row * (_ROW + _GAP)
            if row:
                drawn.append(line((middle, top - _GAP), (middle, top), "edge data"))
            drawn.append(box(middle - inner / 2, top, inner, _ROW, "part"))
            drawn.append(text(middle, top + 17, node.name, "name"))
        y += height + _BETWEEN
    height = y - _BETWEEN + 14
    frame = box(0, 0, width, height, "panel") + text(16, 24, "model", "h2")
    return Panel(drawing=frame + "".join(drawn), width=width, height=height)


def _groups(stages: Sequence[StageNode]) -> list[tuple[str, list[StageNode]]]:
    """Stages that hold the same and follow one another, by the first of them, with a title."""
    alone = [list(nodes) for _, nodes in groupby(stages, key=lambda node: node.stage)]
    groups = []
    for _, equal in groupby(alone, key=lambda nodes: [node.holds for node in nodes]):
        alike = list(equal)
        first, last = alike[0][0], alike[-1][0]
        title = f"stage {first.stage}, rank {first.rank}"
        if len(alike) > 1:
            title = f"stages {first.stage} to {last.stage}, each"
        groups.append((title, alike[0]))
    return groups


def _transfer(graph: ComputeGraph) -> str:
    moved = next((edge.bytes for edge in graph.edges if edge.kind == "stage"), 0.0)
    if not moved:
        return ""
    return f"stream {readable(moved, 'bytes')}, {seconds(graph.transfer_s)}"
