"""A compute graph in a file: JSON, DOT, Mermaid, or a picture that graphviz draws from DOT."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from shardwise.analysis.graph.records import (
    ComponentGraph,
    ComputeGraph,
    GraphEdge,
    GraphNode,
    StageNode,
)
from shardwise.config import files
from shardwise.config.plain import as_json
from shardwise.config.strategy_fields import RANK_DEGREES
from shardwise.errors import InputError
from shardwise.report.console import count, gpu_count, seconds
from shardwise.report.tables.gemms import flop_count
from shardwise.units import readable

_PICTURES = (".svg", ".png", ".pdf")
_SUFFIXES = (".json", ".dot", ".mmd", ".mermaid", *_PICTURES)
NO_GRAPHVIZ = (
    "graphviz draws this file and is not installed (https://graphviz.org/download); "
    ".dot and .mmd need nothing"
)

_PHASES = {
    "forward": "forward",
    "input_grad": "gradient of input",
    "weight_grad": "gradient of weights",
    "recompute": "recompute",
}
_PASSES = {
    "F": ("forward",),
    "B": ("input_grad", "weight_grad"),
    "R": ("recompute",),
}
# Fill and border of a box by its kind.
_COLORS = {
    "product": ("#dbe9fb", "#7aa5dd"),
    "kernel": ("#f1f3f6", "#c0c7d1"),
    "exchange": ("#fdecd2", "#e0a04e"),
    "end": ("#ffffff", "#9aa3af"),
    "stages": ("#eef3fa", "#a9bcd6"),
}
# Style of an arrow by the kind of its edge.
_DOT_ARROWS = {
    "residual": ' color="#2a9d8f" style=bold',
    "adapter": " style=dashed",
    "stage": ' color="#e0a04e" style=bold',
}
_MERMAID_ARROWS = {"residual": "==>", "adapter": "-.->", "stage": "==>"}


def graph_json(graph: ComputeGraph) -> str:
    """Return every node, edge and sum as JSON."""
    return as_json(files.with_writer(graph.to_dict()), indent=2) + "\n"


def graph_dot(graph: ComputeGraph) -> str:
    """Return a graph in the DOT language: the model and each of its components as a cluster."""
    lines = [
        f"digraph {_dot_string(graph.model)} {{",
        f'  label={_dot_string(_title(graph))} labelloc=t fontname="sans-serif"',
        '  node [shape=box style="rounded,filled" fontname="sans-serif" fontsize=10]',
        '  edge [fontname="sans-serif" fontsize=8 color="#8a94a3"]',
    ]
    for number, cluster in enumerate(_clusters(graph)):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_dot_string(cluster.title)}"]
        for box in cluster.boxes:
            fill, border = _COLORS[box.kind]
            lines.append(
                f"    {_dot_string(box.id)} [label={_dot_string(box.label)} "
                f'fillcolor="{fill}" color="{border}" tooltip={_dot_string(box.details)}]'
            )
        for arrow in cluster.arrows:
            ends = f"{_dot_string(arrow.source)} -> {_dot_string(arrow.target)}"
            look = _DOT_ARROWS.get(arrow.kind, "")
            lines.append(f"    {ends} [label={_dot_string(arrow.label)}{look}]")
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def graph_mermaid(graph: ComputeGraph) -> str:
    """Return a graph as a Mermaid flowchart: the model and each of its components as a subgraph."""
    title = as_json(f"{graph.model} on {graph.system}")
    lines = ["---", f"title: {title}", "---", "flowchart TB"]
    for number, cluster in enumerate(_clusters(graph)):
        lines.append(f"  subgraph c{number} [{_mermaid_string(cluster.title)}]")
        ids = {box.id: f"c{number}n{place}" for place, box in enumerate(cluster.boxes)}
        lines += [
            f"    {ids[box.id]}[{_mermaid_string(box.label)}]:::{box.kind}_box"
            for box in cluster.boxes
        ]
        for arrow in cluster.arrows:
            look = _MERMAID_ARROWS.get(arrow.kind, "-->")
            label = f"|{_mermaid_string(arrow.label)}|"
            lines.append(f"    {ids[arrow.source]} {look}{label} {ids[arrow.target]}")
        lines.append("  end")
    for kind, (fill, border) in _COLORS.items():
        lines.append(f"  classDef {kind}_box fill:{fill},stroke:{border},color:#1f2937")
    return "\n".join(lines) + "\n"


def has_graphviz() -> bool:
    """Whether graphviz is there to draw pictures."""
    return shutil.which("dot") is not None


def check_graph_file(path: str | Path) -> None:
    """Check that a graph can be written to a file, before the graph is made."""
    suffix = _suffix(path)
    if suffix not in _SUFFIXES:
        problem = f"cannot be written; allowed endings: {', '.join(_SUFFIXES)}, each also .gz"
        raise InputError.at(path, problem)
    files.check_output_path(path)
    if suffix in _PICTURES and not has_graphviz():
        raise InputError.at(path, NO_GRAPHVIZ)


def write_graph(graph: ComputeGraph, path: str | Path) -> None:
    """Write a graph in the format that the suffix names; graphviz draws pictures."""
    check_graph_file(path)
    suffix = _suffix(path)
    if suffix in _PICTURES:
        files.write_bytes(path, _drawn(graph_dot(graph), suffix.removeprefix("."), path))
    else:
        text_of = {".json": graph_json, ".dot": graph_dot}.get(suffix, graph_mermaid)
        files.write_text(path, text_of(graph))


def _suffix(path: str | Path) -> str:
    return Path(str(path).lower().removesuffix(".gz")).suffix


def _drawn(dot: str, picture: str, path: str | Path) -> bytes:
    program = shutil.which("dot") or "dot"
    done = subprocess.run(  # noqa: S603 - graphviz, on a text of ours
        [program, f"-T{picture}"], input=dot.encode(), capture_output=True, check=False
    )
    if done.returncode or not done.stdout:
        reason = " ".join(done.stderr.decode(errors="replace").split()) or "no output"
        raise InputError.at(path, f"graphviz failed: {reason}")
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A box of the drawing."""

    id: str
    """Unique in the drawing."""
    label: str
    kind: str
    """Key of `_COLORS`."""
    details: str
    """Shown when the mouse rests on it."""


@dataclass(frozen=True, slots=True)
class _Arrow:
    """An arrow between two boxes of a cluster."""

    source: str
    target: str
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A frame with a title: the model, or one of its components."""

    title: str
    boxes: list[_Box]
    arrows: list[_Arrow]


def _clusters(graph: ComputeGraph) -> Iterator[_Cluster]:
    yield _model_cluster(graph)
    for component in graph.parts:
        name = component.name
        yield _Cluster(
            name if component.count == 1 else f"{name} (x {component.count})",
            [_component_box(component, node) for node in component.nodes],
            [
                _Arrow(f"{name}/{e.source}", f"{name}/{e.target}", e.kind, _tensor(e))
                for e in component.edges
            ],
        )


def _model_cluster(graph: ComputeGraph) -> _Cluster:
    """The model from first to last; equal stages that follow each other are one group."""
    boxes: list[_Box] = []
    starts: set[str] = set()
    for nodes, title in _stage_groups(graph.stages):
        starts.add(nodes[0].id)
        boxes += [
            _Box(id=n.id, label=f"{n.name}\n{title}", kind="stages", details=n.id) for n in nodes
        ]
    inside = next((e for e in graph.edges if e.kind == "data"), None)
    across = next((e for e in graph.edges if e.kind == "stage"), None)
    arrows = []
    for one, other in pairwise(boxes):
        if across is not None and other.id in starts:
            label = f"{_tensor(across)}\n{readable(across.bytes, 'bytes')}, "
            label += seconds(graph.transfer_s)
            arrows.append(_Arrow(one.id, other.id, "stage", label))
        elif inside is not None:
            arrows.append(_Arrow(one.id, other.id, "data", _tensor(inside)))
    return _Cluster(graph.model, boxes, arrows)


def _stage_groups(nodes: tuple[StageNode, ...]) -> Iterator[tuple[list[StageNode], str]]:
    """Nodes of the first of several equal stages, and which stages they are."""
    stages = [list(stage) for _, stage in groupby(nodes, key=lambda node: node.stage)]
    for _, equal in groupby(stages, key=lambda stage: [node.holds for node in stage]):
        group = list(equal)
        first, last = group[0][0], group[-1][0]
        if len(group) == 1:
            yield group[0], f"stage {first.stage}, rank {first.rank}"
        else:
            yield group[0], f"stages {first.stage} to {last.stage}, each"


def _component_box(component: ComponentGraph, node: GraphNode) -> _Box:
    kind = {"input": "end", "output": "end"}.get(node.kind, node.kind)
    if kind == "operation":
        products = any(work.matrix_flops for work in node.phases.values())
        kind = "product" if products else "kernel"
    return _Box(
        id=f"{component.name}/{node.id}",
        label="\n".join([node.name, *_figures(node)]),
        kind=kind,
        details="\n".join([node.id, *_details(node)]),
    )


def _title(graph: ComputeGraph) -> str:
    """Model, system, strategy and the sums of a step."""
    s, totals = graph.strategy, graph.totals
    degrees = [f"{axis} {s[axis]}" for axis in (*RANK_DEGREES, "ep") if s[axis] > 1]
    gpus = gpu_count(s["gpus"]) + (f" = {' x '.join(degrees)}" if degrees else "")
    batch = f"micro-batch {s['micro_batch_size']}, global batch {s['global_batch_size']}"
    sums = (
        f"A step on one rank of every stage: {flop_count(totals.matrix_flops)} matrix FLOPs, "
        f"kernels {seconds(totals.kernel_s)}, collectives inside layers "
        f"{readable(totals.volume_bytes, 'bytes')} in {seconds(totals.exchange_s)} "
        f"({seconds(totals.exposed_s)} exposed)"
    )
    lines = [
        f"{graph.model} on {graph.system}",
        f"{gpus}, {batch} x {s['seq_len']} tokens, {s['dtype']}",
        sums,
        "Boxes: one micro-batch on one rank; F forward, B backward, R recompute",
    ]
    return "\n".join(lines)


def _figures(node: GraphNode) -> list[str]:
    """Lines below the name of a node: FLOPs, times by pass, weights and saved bytes."""
    lines = []
    if node.exchanges:
        volume = sum(one.volume_bytes for one in node.exchanges)
        time = sum(one.time_s for one in node.exchanges)
        exposed = sum(one.exposed_s for one in node.exchanges)
        group = "/".join(dict.fromkeys(str(one.group) for one in node.exchanges))
        lines.append(f"{readable(volume, 'bytes')} among {group}, {seconds(time)}")
        lines.append(f"{seconds(exposed)} exposed" if exposed else "all hidden")
    if node.phases:
        flops = sum(work.flops for work in node.phases.values())
        moved = readable(sum(work.bytes for work in node.phases.values()), "bytes")
        lines.append(f"{count(flops)} FLOPs, {moved}" if flops else moved)
        times = {
            letter: sum(node.phases[phase].time_s for phase in phases if phase in node.phases)
            for letter, phases in _PASSES.items()
        }
        lines.append(" · ".join(f"{one} {seconds(time)}" for one, time in times.items() if time))
    memory = []
    if node.parameters:
        memory.append(f"{count(node.parameters)} weights")
    if node.saved_bytes:
        memory.append(f"saves {readable(node.saved_bytes, 'bytes')}")
    return [*lines, ", ".join(memory)] if memory else lines


def _details(node: GraphNode) -> list[str]:
    """A line for every phase and collective."""
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


def _tensor(edge: GraphEdge) -> str:
    """Name, shape and type of the tensor on an edge."""
    sides = (f"{side:,}" if isinstance(side, int) else f"{side:,.1f}" for side in edge.shape)
    return f"{edge.tensor}  {' x '.join(sides)}  {edge.dtype}"


def _dot_string(text: str) -> str:
    """A DOT string: quotes and backslashes escaped, lines broken."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _mermaid_string(text: str) -> str:
    """A Mermaid string: entities instead of characters that Mermaid or HTML would interpret."""
    escaped = re.sub(r"[\"#&<>`\\]", lambda found: f"#{ord(found[0])};", text)
    return '"' + escaped.replace("\n", "<br/>") + '"'
