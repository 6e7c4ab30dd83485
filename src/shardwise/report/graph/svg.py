"""A compute graph as a picture: one file of SVG that any browser shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shardwise.analysis.graph.records import ComponentGraph, ComputeGraph, GraphNode
from shardwise.report.console import gpu_count, seconds
from shardwise.report.graph.layout import Layout, Point, layered
from shardwise.report.graph.shapes import CSS, Panel, box, line, path, text, text_width
from shardwise.report.graph.stages import stage_panel
from shardwise.report.graph.words import edge_words, node_details, node_words, part_title
from shardwise.report.tables.gemms import flop_count
from shardwise.units import readable

__all__ = ["graph_svg"]

_MARGIN = 28.0
_BETWEEN = 44.0
_HEAD = 92.0
_TITLE = 30.0
_LINE = 13.0
_PADDING = 9.0
_LANE = 26.0
_SMALL = ("embedding", "head")
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
    'orient="auto-start-reverse" markerUnits="userSpaceOnUse">'
    '<path d="M0 0.8L7.5 4L0 7.2Z" fill="context-stroke"/></marker></defs>'
)


def graph_svg(graph: ComputeGraph) -> str:
    """Draw a graph: the stages of the model, then a layer of each kind operation by operation.

    Boxes tell FLOPs, bytes, times of the passes (F forward, B backward, R recompute), weights and
    what is kept; edges the tensors between them. Details of a box show when the mouse rests on it.
    """
    columns = [[stage_panel(graph)]]
    small = [part for part in graph.parts if part.name in _SMALL and part.nodes]
    others = [part for part in graph.parts if part.name not in _SMALL]
    longest = max((_busy(node) for part in graph.parts for node in part.nodes), default=0.0)
    columns += [[_part_panel(part, longest)] for part in others]
    columns.append([_part_panel(part, longest) for part in small])
    drawn, x, bottom = [], _MARGIN, 0.0
    for column in columns:
        y = _HEAD
        for panel in column:
            drawn.append(f'<g transform="translate({x:.1f} {y:.1f})">{panel.drawing}</g>')
            y += panel.height + _BETWEEN
        x += max(panel.width for panel in column) + _BETWEEN
        bottom = max(bottom, y)
    width = max(x - _BETWEEN + _MARGIN, 900.0)
    height = bottom - _BETWEEN + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(graph.model)} on {escape(graph.system)}</title>",
            f"<style>{CSS}</style>",
            _TIP,
            '<rect class="page" width="100%" height="100%"/>',
            *_head(graph),
            *drawn,
            "</svg>\n",
        ]
    )


def _head(graph: ComputeGraph) -> Iterator[str]:
    s, totals = graph.strategy, graph.totals
    degrees = " x ".join(f"{a} {s[a]}" for a in ("tp", "tp2", "cp", "pp", "dp", "ep") if s[a] > 1)
    told = gpu_count(s["gpus"]) + (f" = {degrees}" if degrees else "")
    told += f", micro-batch {s['micro_batch_size']}, global batch {s['global_batch_size']}"
    sums = (
        f"A step on one rank of every stage: {flop_count(totals.matrix_flops)} matrix FLOPs, "
        f"kernels {seconds(totals.kernel_s)}, exchanges inside layers "
        f"{readable(totals.volume_bytes, 'bytes')} in {seconds(totals.exchange_s)} "
        f"({seconds(totals.exposed_s)} exposed). Boxes: one micro-batch on one rank."
    )
    yield text(_MARGIN, 32, f"{graph.model} on {graph.system}", "h1")
    yield text(_MARGIN, 50, f"{told} x {s['seq_len']} tokens, {s['dtype']}", "sub")
    yield text(_MARGIN, 66, sums, "sub")
    x = _MARGIN
    for kind, name in (
        ("product", "matrix product"),
        ("other", "other kernel"),
        ("exchange", "exchange"),
    ):
        yield box(x, 74, 14, 10, kind)
        yield text(x + 19, 83, name, "key")
        x += 32 + text_width(name, 10)
    for kind, name in (("residual", "residual stream"), ("stage", "between stages")):
        yield line((x, 79), (x + 18, 79), f"edge {kind}")
        yield text(x + 23, 83, name, "key")
        x += 38 + text_width(name, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A box with its lines of text."""

    node: GraphNode
    lines: list[str]
    width: float
    height: float


def _busy(node: GraphNode) -> float:
    return sum(work.time_s for work in node.phases.values())


def _card(node: GraphNode) -> _Card:
    lines = node_words(node)
    widths = [text_width(node.name, 11.5, bold=True), *(text_width(one, 10) for one in lines)]
    height = 2 * _PADDING + _LINE * (len(lines) + 1) - 2
    return _Card(node=node, lines=lines, width=max(widths) + 24, height=height)


def _part_panel(part: ComponentGraph, longest_s: float) -> Panel:
    """One part of the model; the residual stream runs past its blocks on the left."""
    cards = {node.id: _card(node) for node in part.nodes}
    sizes = {name: (card.width, card.height) for name, card in cards.items()}
    inside = [edge for edge in part.edges if edge.kind != "residual"]
    layout = layered(sizes, [(edge.source, edge.target) for edge in inside])
    lanes = [edge for edge in part.edges if edge.kind == "residual"]
    left = 16.0 + (_LANE if lanes else 0.0)
    title = part_title(part)
    lines: list[str] = []
    words: list[str] = []
    named: dict[str, set[str]] = {}
    read_at: set[str] = set()
    reach = layout.width
    for edge in inside:
        route = [(x + left, y + _TITLE + 14) for x, y in layout.routes[edge.source, edge.target]]
        lines.append(path(_smooth(route), f"edge {edge.kind}"))
        told, of_source = edge_words(edge), named.setdefault(edge.source, set())
        if told in of_source:
            continue
        # The first tensor is named below its source, another one where it is read: on the right of
        # the arrow or, if one is there already, on its left.
        x, y = route[-1] if of_source else route[1]
        x += -6 - text_width(told, 9) if of_source and edge.target in read_at else 6
        words.append(text(x, y - 10 if of_source else y + 16, told, "tensor"))
        reach = max(reach, x - left + text_width(told, 9))
        if of_source:
            read_at.add(edge.target)
        of_source.add(told)
    for edge in lanes:
        points = _past(layout, sizes, edge.source, edge.target, left)
        lines.append(path(points, "edge residual"))
    for name, card in cards.items():
        x, y = layout.places[name]
        words.append(_drawn(card, x + left, y + _TITLE + 14, longest_s))
    width = max(reach + left + 16, text_width(title, 14, bold=True) + 32)
    height = layout.height + _TITLE + 30
    frame = box(0, 0, width, height, "panel") + text(16, 24, title, "h2")
    return Panel(drawing=frame + "".join([*lines, *words]), width=width, height=height)


def _past(layout: Layout, sizes: dict[str, Point], source: str, target: str, left: float) -> str:
    """From the left side of one box down a lane on the left to that of another."""
    (x1, y1), (x2, y2) = layout.places[source], layout.places[target]
    top, shift = _TITLE + 14, left
    start = (x1 - sizes[source][0] / 2 + shift, y1 + sizes[source][1] / 2 + top)
    end = (x2 - sizes[target][0] / 2 + shift - 1, y2 + sizes[target][1] / 2 + top)
    lane, bend = 16.0, 10.0
    return (
        f"M{start[0]:.1f} {start[1]:.1f}H{lane + bend:.1f}"
        f"Q{lane:.1f} {start[1]:.1f} {lane:.1f} {start[1] + bend:.1f}"
        f"V{end[1] - bend:.1f}Q{lane:.1f} {end[1]:.1f} {lane + bend:.1f} {end[1]:.1f}"
        f"H{end[0]:.1f}"
    )


def _smooth(points: Sequence[Point]) -> str:
    """A path through points that leaves and reaches each of them upright."""
    (x, y), *others = points
    told = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in others:
        middle = (y + next_y) / 2
        straight = abs(next_x - x) < 1
        bent = f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
        told.append(f"V{next_y:.1f}" if straight else bent)
        x, y = (x if straight else next_x), next_y
    return "".join(told)


def _drawn(card: _Card, x: float, y: float, longest_s: float) -> str:
    node = card.node
    products = any(work.matrix_flops for work in node.phases.values())
    kind = "product" if products else "other" if node.kind == "operation" else node.kind
    left = x - card.width / 2
    details = "\n".join([node.id, *node_details(node)])
    drawn = [
        f"<g><title>{escape(details)}</title>",
        box(left, y, card.width, card.height, kind),
        text(x, y + _PADDING + 9, node.name, "name"),
    ]
    for place, words in enumerate(card.lines, start=1):
        drawn.append(text(x, y + _PADDING + 9 + place * _LINE, words, "line"))
    share = _busy(node) / longest_s if longest_s else 0.0
    if share > 0:
        length = max((card.width - 8) * share, 1.5)
        drawn.append(box(left + 4, y + card.height - 4, length, 2.5, "share"))
    return "".join([*drawn, "</g>"])
