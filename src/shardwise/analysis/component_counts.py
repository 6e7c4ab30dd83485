"""How often each part of the model runs in a step, on one rank of every stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.analysis.recompute import parts_of
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentOperations
from shardwise.cost.operations import OperationCost
from shardwise.engine.evaluate import Evaluation

__all__ = ["ComponentCount", "part_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentCount:
    """A part of the model: the embedding, a layer of a kind, a module of prediction, the head."""

    name: str
    """Of layers with their number among the kinds."""
    part: str
    """embedding, layer, mtp or head."""
    kind: int
    """Number of the kind of layer; of other parts 0."""
    count: int
    """How often it occurs in the model."""
    costs: Sequence[OperationCost]
    again: frozenset[str]
    """What recompute runs again of it (see `recompute`)."""
    runs: float
    """Times that a micro-batch passes it, in a step of one replica."""
    reruns: float
    """Those of them that run again what recompute says; 0 where it says nothing of this part."""
    held: float
    """How often its weights are held."""


def part_runs(
    table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations]
) -> Iterator[ComponentCount]:
    """Count the parts of a table of one row over all of its stages."""
    kinds = sum(part == "layer" for part, _, _ in parts)
    places = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    micro_batches = float(table.micro_batches[0])

    def on_all(name: str, place: int) -> float:
        """How many of a part stand on all stages together."""
        on_each = [(run.length[0], getattr(run, name)[place][0]) for run in evaluation.runs]
        return sum(float(length * number) for length, number in on_each)

    kind = 0
    for part, count, costs in parts:
        own = [kind, kinds + kind] if part == "layer" else [places[part]]
        runs = [micro_batches * on_all("work", place) for place in own]
        again = parts_of(table, part)
        yield ComponentCount(
            name=f"layer {kind}" if part == "layer" else part,
            part=part,
            kind=kind if part == "layer" else 0,
            count=count,
            costs=costs,
            again=again,
            runs=sum(runs),
            reruns=runs[0] if again else 0.0,
            held=sum(on_all("held", place) for place in own),
        )
        kind += part == "layer"
