"""How often each component of the model runs in a step, and what recompute repeats of it.

A component is the embedding, a layer of one kind, a multi-token-prediction module or the head.
`cost.layer_cost` applies the same recompute rules to full columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.config.enums import Recompute, RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.cost.operations import OperationCost
from shardwise.engine.evaluate import Evaluation
from shardwise.parallel.pipeline_layout import by_stage

FULL_LAYER = frozenset({"full"})
"""Value of `recomputed_parts` for full recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component of the model and how often a rank of every stage runs it in a step."""

    name: str
    """`layer N` for a layer, with the number of its kind; otherwise the same as `part`."""
    part: str
    """embedding, layer, mtp or head."""
    kind: int
    """Number of the kind of layer; 0 for other components."""
    count: int
    """How often it occurs in the model."""
    costs: Sequence[OperationCost]
    recomputed: frozenset[str]
    """What recompute repeats of it (`recomputed_parts`)."""
    runs: float
    """Times that a micro-batch passes it, in a step of one replica."""
    reruns: float
    """Those of `runs` that recompute repeats; 0 where it repeats nothing of this component."""
    copies: float
    """How many copies of its weights the stages hold."""


def components_of(evaluation: Evaluation) -> list[Component]:
    """Components of a table of one row, counted over all pipeline stages."""

    def over_stages(name: str) -> list[float]:
        counts = [
            [float(run.length[0] * count[0]) for count in getattr(run, name)]
            for run in evaluation.step.groups
        ]
        return [sum(column) for column in zip(*counts, strict=True)]

    return list(_counted(evaluation, over_stages("work"), over_stages("resident")))


def critical_stage_components(evaluation: Evaluation) -> list[Component]:
    """Components of a table of one row, as often as the critical stage runs them."""
    work = [float(np.broadcast_to(count, (1,))[0]) for count in evaluation.step.critical.work]
    return list(_counted(evaluation, work, work))


def stage_components(evaluation: Evaluation, stage: int | None) -> list[Component]:
    """Components of a table of one row, as often as one stage runs them; None: the critical one."""
    if stage is None:
        return critical_stage_components(evaluation)
    stages = by_stage(evaluation.step.groups)
    work, resident = (
        [float(count[stage]) for count in counts] for counts in (stages.work, stages.resident)
    )
    return list(_counted(evaluation, work, resident))


def _counted(
    evaluation: Evaluation, work: Sequence[float], resident: Sequence[float]
) -> Iterator[Component]:
    """Count components in the order of `ComponentCosts.parts`.

    That order is: each kind of layer with recompute, each kind without it, mtp, embedding, head.
    """
    table, parts = evaluation.step.table, evaluation.parts
    kinds = sum(part == "layer" for part, _, _ in parts)
    positions = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    micro_batches = float(table.micro_batches[0])
    kind = 0
    for part, count, costs in parts:
        is_layer = part == "layer"
        places = [kind, kinds + kind] if is_layer else [positions[part]]
        recomputed = recomputed_parts(table, part)
        runs = [micro_batches * work[place] for place in places]
        yield Component(
            name=f"layer {kind}" if is_layer else part,
            part=part,
            kind=kind if is_layer else 0,
            count=count,
            costs=costs,
            recomputed=recomputed,
            runs=sum(runs),
            reruns=runs[0] if recomputed else 0.0,
            copies=sum(resident[place] for place in places),
        )
        kind += is_layer


def recomputed_parts(table: Table, component: str) -> frozenset[str]:
    """Names of what is recomputed of a component, in a table of one row.

    Empty without recompute, for embedding and head, and forward only; `FULL_LAYER`, or some of
    `enums.RecomputePart`.
    """
    if component not in ("layer", "mtp") or not table.training[0]:
        return frozenset()
    mode = Recompute.from_code(int(table.recompute[0]))
    if mode == "selective":
        return frozenset(RecomputePart.from_bits(int(table.recompute_parts[0])))
    return FULL_LAYER if mode == "full" else frozenset()


def rerun_share(cost: OperationCost, recomputed: frozenset[str]) -> float:
    """Share of an operation's forward kernels that runs again before its backward."""
    rerunning = recomputed & cost.operation.reruns_with
    if rerunning == {"every_other"}:
        return cost.operation.rerun_share
    return float(recomputed == FULL_LAYER or bool(rerunning))


def repeats_collectives(cost: OperationCost, recomputed: frozenset[str]) -> bool:
    """Whether its forward collectives run again too: `every_other` saves their results."""
    return recomputed == FULL_LAYER or bool(
        recomputed & cost.operation.reruns_with - {"every_other"}
    )


def saved_activation_bytes(cost: OperationCost, recomputed: frozenset[str]) -> float:
    """Activations of an operation saved for backward [byte].

    0 with full recompute, which saves the input of the layer alone.
    """
    if recomputed == FULL_LAYER:
        return 0.0
    return float(cost.operation.saved_bytes[0] - cost.operation.rebuilt_by(recomputed)[0])
