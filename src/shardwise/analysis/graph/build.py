"""`graph_of`: the compute graph of one strategy."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwise.analysis.components import Component, components_of
from shardwise.analysis.graph.layer import RECOMPUTE, part_graph
from shardwise.analysis.graph.records import (
    ComponentGraph,
    ComputeGraph,
    GraphEdge,
    StageNode,
    StepTotals,
)
from shardwise.analysis.graph.tensors import Tensors
from shardwise.analysis.layer_totals import update_flops
from shardwise.config.enums import Schedule
from shardwise.config.model import Layer, Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentOperations, operation_costs
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.ops.layer import rank_work
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.pipeline_layout import layers_on_ranks
from shardwise.parallel.placement import place

__all__ = ["graph_of"]

_BOTH_WAYS = ("zb-v", "dualpipe")


def graph_of(
    model: Model | str | Path,
    system: System | str | Path,
    strategy: Strategy | Mapping[str, Any] | str | Path,
) -> ComputeGraph:
    """Draw what one strategy runs: a layer of each kind, embedding and head, and the whole model.

    Nodes are operations and exchanges, edges the tensors between them; sums are those of
    `estimate`.

    Parameters
    ----------
    model, system
        Nouns, catalog names or files.
    strategy
        A `Strategy`, its fields as a mapping, or a file.

    Raises
    ------
    InputError
        If anything given is wrong; one fault for each thing.

    Examples
    --------
    >>> from shardwise import graph_of
    >>> graph = graph_of("llama3-8b", "h100-sxm", {"gpus": 8, "tp": 8, "gbs": 8})
    >>> [part.name for part in graph.parts]
    ['embedding', 'layer 0', 'head']
    """
    the_model, the_system = Model.load(model), System.load(system)
    resolved = Strategy.load(strategy).resolved(the_model)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    costs = operation_costs(the_model, the_system, table, place(the_system, table))
    evaluation = evaluate(the_model, the_system, table, costs)
    parts = tuple(_parts(the_model, table, evaluation, costs))
    stages = tuple(_stages(the_model, table))
    boundary = evaluation.boundary
    return ComputeGraph(
        model=the_model.name,
        system=the_system.name,
        strategy=resolved.to_dict(),
        parts=parts,
        stages=stages,
        edges=tuple(_between(the_model, table, stages, float(boundary.handed_bytes[0]))),
        transfer_s=float(boundary.time_s[0]),
        totals=_totals(table, evaluation, costs, parts),
    )


def _parts(
    model: Model, table: Table, evaluation: Evaluation, costs: Sequence[ComponentOperations]
) -> Iterator[ComponentGraph]:
    work = rank_work(table)
    for part in components_of(table, evaluation, costs):
        yield part_graph(
            part,
            Tensors.of(model, _layer(model, part), work, int(table.dtype[0])),
            evaluation.extents,
            training=bool(table.training[0]),
            checkpoint_bytes=float(evaluation.blocks.boundary_bytes[0]),
        )


def _layer(model: Model, part: Component) -> Layer | None:
    """The kind of layer in a part: a module of prediction has one of the last kind."""
    if part.part == "mtp":
        return model.layers[-1]
    return model.layers[part.kind] if part.part == "layer" else None


def _stages(model: Model, table: Table) -> Iterator[StageNode]:
    """The model from first to last, cut where its pipeline is."""
    sizes = layers_on_ranks(model.depth, table, 0)
    start = 0
    for stage, size in enumerate(sizes):
        kinds = model.order[start : start + size]
        start += size
        layers = {f"layer {kind}": kinds.count(kind) for kind in dict.fromkeys(kinds)}
        ends = {"embedding": {"embedding": 1}} if stage == 0 else {}
        ends["layers"] = layers
        if stage == len(sizes) - 1:
            ends |= {"mtp": {"mtp": model.mtp}, "head": {"head": 1}}
        for name, holds in ends.items():
            if any(holds.values()):
                yield StageNode(
                    id=f"stage {stage}/{name}",
                    name=", ".join(_counted(part, number) for part, number in holds.items()),
                    stage=stage,
                    rank=_rank(table, stage, len(sizes)),
                    holds=holds,
                )


def _counted(part: str, number: int) -> str:
    return part if number == 1 else f"{number} x {part}"


def _rank(table: Table, stage: int, stages: int) -> int:
    """The pipeline rank of a stage: round in turns, or there and back."""
    ranks = int(table.pp[0])
    back = Schedule.from_code(int(table.schedule[0])) in _BOTH_WAYS and stage >= ranks
    return stages - 1 - stage if back else stage % ranks


def _between(
    model: Model, table: Table, stages: Sequence[StageNode], handed_bytes: float
) -> Iterator[GraphEdge]:
    """The stream from part to part; between stages as much of it as a rank hands over."""
    tensors = Tensors.of(model, None, rank_work(table), int(table.dtype[0]))
    stream = tensors.stream()
    for one, other in pairwise(stages):
        crosses = one.stage != other.stage
        yield GraphEdge(
            source=one.id,
            target=other.id,
            kind="stage" if crosses else "data",
            tensor=stream.name,
            shape=stream.shape,
            dtype=stream.dtype,
            bytes=handed_bytes if crosses else stream.bytes,
        )


def _totals(
    table: Table,
    evaluation: Evaluation,
    costs: Sequence[ComponentOperations],
    parts: Sequence[ComponentGraph],
) -> StepTotals:
    """Sums over a step; matrix FLOPs without rounding on the way."""
    exact = update_flops(table, evaluation, costs)
    for part in parts:
        for name, work in ((name, w) for node in part.nodes for name, w in node.phases.items()):
            exact += Fraction(_runs(part, name)) * Fraction(work.matrix_flops)

    def phases(name: str) -> float:
        return sum(
            _runs(p, phase) * getattr(w, name) for p in parts for phase, w in p.phases.items()
        )

    def exchanges(name: str) -> float:
        every = [(part, e) for part in parts for node in part.nodes for e in node.exchanges]
        return sum(_runs(part, one.phase) * getattr(one, name) for part, one in every)

    held = {part.name: part.copies for part in components_of(table, evaluation, costs)}
    return StepTotals(
        flops=phases("flops"),
        matrix_flops=round(exact),
        kernel_s=phases("time_s"),
        volume_bytes=exchanges("volume_bytes"),
        exchange_s=exchanges("time_s"),
        exposed_s=exchanges("exposed_s"),
        parameters=sum(held[part.name] * part.parameters for part in parts),
    )


def _runs(part: ComponentGraph, phase: str) -> float:
    return part.reruns if phase == RECOMPUTE else part.runs
