"""What a compute graph says in words, wherever it is drawn."""

from shardwise.analysis.graph.records import ComponentGraph, GraphEdge, GraphNode
from shardwise.report.console import count, seconds
from shardwise.units import readable

__all__ = ["edge_words", "node_words", "part_title"]

_PHASES = {
    "forward": "forward",
    "input_grad": "gradient of input",
    "weight_grad": "gradient of weights",
    "recompute": "recompute",
}
_PASSES = {
    "forward": ("forward",),
    "backward": ("input_grad", "weight_grad"),
    "recompute": ("recompute",),
}


def part_title(part: ComponentGraph) -> str:
    """The name of a part, with how often it occurs."""
    return part.name if part.count == 1 else f"{part.name} (x {part.count})"


def node_words(node: GraphNode) -> list[str]:
    """Lines below the name of a node: FLOPs, times by pass, weights and what is kept."""
    lines = []
    if node.exchanges:
        volume = sum(one.volume_bytes for one in node.exchanges)
        time = sum(one.time_s for one in node.exchanges)
        exposed = sum(one.exposed_s for one in node.exchanges)
        group = "/".join(dict.fromkeys(str(one.group) for one in node.exchanges))
        lines.append(f"{readable(volume, 'bytes')} among {group}, {seconds(time)}")
        lines.append("all hidden" if not exposed else f"{seconds(exposed)} exposed")
    if node.phases:
        flops = sum(work.flops for work in node.phases.values())
        moved = sum(work.bytes for work in node.phases.values())
        told = f"{count(flops)} FLOPs, " if flops else ""
        lines.append(told + readable(moved, "bytes"))
        lines.append(" · ".join(_times(node)))
    held = []
    if node.parameters:
        held.append(f"{count(node.parameters)} weights")
    if node.saved_bytes:
        held.append(f"keeps {readable(node.saved_bytes, 'bytes')}")
    return [*lines, ", ".join(held)] if held else lines


def _times(node: GraphNode) -> list[str]:
    """Times of the passes, by their first letters: forward, backward, recompute."""
    told = []
    for name, phases in _PASSES.items():
        time = sum(node.phases[phase].time_s for phase in phases if phase in node.phases)
        if time:
            told.append(f"{name[0].upper()} {seconds(time)}")
    return told


def node_details(node: GraphNode) -> list[str]:
    """Every phase and exchange in a line, for who looks closer."""
    lines = [
        f"{_PHASES[name]}: {count(work.flops)} FLOPs, {readable(work.bytes, 'bytes')}, "
        f"{seconds(work.time_s)}"
        for name, work in node.phases.items()
    ]
    lines += [
        f"{_PHASES[one.phase]}: {one.kind.replace('_', '-')} over {one.axis} ({one.group}), "
        f"{readable(one.volume_bytes, 'bytes')}, {seconds(one.time_s)}, "
        f"{seconds(one.exposed_s)} exposed"
        for one in node.exchanges
    ]
    return lines


def edge_words(edge: GraphEdge) -> str:
    """A tensor's name, shape and type."""
    sides = " x ".join(
        f"{side:,}" if isinstance(side, int) else f"{side:,.1f}" for side in edge.shape
    )
    return f"{edge.tensor}  {sides}  {edge.dtype}"
