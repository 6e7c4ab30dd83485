"""What Calculon computes of executions, or why it refuses them (section 1.13).

Calculon 0.1.0, commit caa4b11. What Calculon only asserts is a fault of its files: see
`predecessors.calculon.files`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather
from shardwise.errors import ShardwiseError
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    check_together,
)
from shardwise.predecessors.calculon.reference.columns import Columns
from shardwise.predecessors.calculon.reference.statistics import (
    STAT_FIELDS,
    layers_of,
    statistics_of,
)
from shardwise.predecessors.calculon.reference.step import batch_of, memory_use_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a table of executions."""

    verdict: Ints
    """Position in `VERDICTS`; 0 is feasible."""
    values: dict[str, Floats]
    """The 96 statistics by name, in the order of `STAT_FIELDS`.

    NaN where Calculon gives no figure, and in rows that fail before memory is known; a row that
    only lacks memory has them, and `proc_mem_tier1_cap_req` is how much it needs.
    """

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    def row(self, index: int) -> dict[str, float | int | None]:
        """Return one row, with None for NaN."""
        return {name: _plain(float(column[index])) for name, column in self.values.items()}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def evaluate(model: CalculonModel, system: CalculonSystem, executions: Columns) -> Statistics:
    """Evaluate a table of executions that have passed `check_together` with model and system.

    A row is evaluated as if it stood alone, but costs a fraction of a microsecond to a few.
    """
    verdict = placement_verdict(model, system, executions)
    placed = np.flatnonzero(verdict == 0)
    some = gather(executions, placed)
    values = {name: np.full(len(executions), np.nan) for name in STAT_FIELDS}
    if placed.size:
        memory_use = memory_use_of(model, some)
        memory = memory_use.memory
        verdict[placed] = memory_verdict(memory.tier1, memory.tier2, system)
        batch = batch_of(model, system, some, memory_use)
        for name, column in statistics_of(batch, some, system).items():
            values[name][placed] = column
    return Statistics(verdict=verdict, values=values)


def statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> dict[str, float | int | None]:
    """Evaluate one execution.

    Raises
    ------
    InputError
        If the execution does not go with the model and the system.
    Infeasible
        If Calculon refuses it, with its reason.
    """
    check_together(model, system, execution)
    columns = Columns.of([execution])
    found = evaluate(model, system, columns)
    reason = VERDICTS[int(found.verdict[0])]
    if reason:
        needs = {
            "tier1": float(found["proc_mem_tier1_cap_req"][0]),
            "tier2": float(found["proc_mem_tier2_cap_req"][0]),
        }
        raise Infeasible(reason, explain(reason, model, system, execution, needs))
    return found.row(0)


def layer_statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> list[dict[str, Any]]:
    """List the operations of a block as Calculon's `-l`: 48 fields each.

    Inference does not change them: Calculon shows the times of a backward pass.
    """
    statistics(model, system, execution)  # refuses what cannot run
    columns = Columns.of([execution])
    columns = replace(columns, training=np.ones_like(columns.training))
    return layers_of(model, system, columns)


VERDICTS = (
    "",
    "network_too_small",
    "network_not_filled",
    "interleaving_gt_blocks",
    "interleaving_not_factor",
    "offload_needs_3_blocks",
    "mem_tier1",
    "mem_tier2",
)
"""Reasons in the order of Calculon's checks; a verdict is a position, 0 is feasible."""

Axes = tuple[Ints | int, Ints | int, Ints | int]

_LEAST_BLOCKS = 3
_GIB = 2.0**30

_SENTENCES = {
    "network_too_small": "network {network} connects {size} processors, but {placed} are placed "
    "on it (tensor, pipeline and data parallelism: {degrees})",
    "network_not_filled": "network {network} must be filled, but the {placed} processors placed "
    "on it do not divide its {size} (tensor, pipeline and data parallelism: {degrees})",
    "interleaving_gt_blocks": "pipeline_interleaving {chunks} is more than the blocks per "
    "processor, {blocks}",
    "interleaving_not_factor": "pipeline_interleaving {chunks} does not divide the blocks per "
    "processor, {blocks}",
    "offload_needs_3_blocks": "offloading needs at least 3 blocks per processor; there are "
    "{blocks}",
    "mem_tier1": "mem1 needs {tier1_gib:.6g} GiB and has {mem1_gib:.6g} GiB",
    "mem_tier2": "mem2 needs {tier2_gib:.6g} GiB and has {mem2_gib:.6g} GiB",
}


class Infeasible(ShardwiseError):  # noqa: N818 - an answer, not a fault
    """Calculon refuses an execution: `reason` of `VERDICTS`, and a sentence with the reason."""

    def __init__(self, reason: str, sentence: str) -> None:
        self.reason = reason
        self.sentence = sentence
        super().__init__(sentence)


def placement_verdict(model: CalculonModel, system: CalculonSystem, columns: Columns) -> Ints:
    """Check networks, interleaving and offload; the first check that fails counts."""
    c = columns
    blocks = -(-model.num_blocks // c.pipeline_par)
    offloads = c.weight_offload | c.activations_offload | c.optimizer_offload
    degrees = (c.tensor_par, c.pipeline_par, c.data_par)
    networks = (c.tensor_par_net, c.pipeline_par_net, c.data_par_net)
    return _first(
        [
            *_network_checks(system, degrees, networks),
            ("interleaving_gt_blocks", c.pipeline_interleaving > blocks),
            ("interleaving_not_factor", blocks % c.pipeline_interleaving > 0),
            ("offload_needs_3_blocks", offloads & (blocks < _LEAST_BLOCKS)),
        ]
    )


def network_verdict(system: CalculonSystem, degrees: Axes, networks: Axes) -> Ints:
    """Check that what is placed on each network fits; axes are tensor, pipeline, data."""
    return _first(_network_checks(system, degrees, networks))


def _network_checks(
    system: CalculonSystem, degrees: Axes, networks: Axes
) -> list[tuple[str, Bools]]:
    checks: list[tuple[str, Bools]] = []
    for index, network in enumerate(system.networks):
        placed = _placed(degrees, networks, index)
        checks.append(("network_too_small", placed > network.size))
        if network.must_be_filled:
            checks.append(("network_not_filled", network.size % placed > 0))
    return checks


def memory_verdict(tier1: Floats, tier2: Floats, system: CalculonSystem) -> Ints:
    """Check the needs of each tier [bytes] against its capacity."""
    return _first(
        [
            ("mem_tier1", tier1 > system.mem1.GiB * _GIB),
            ("mem_tier2", tier2 > system.mem2.GiB * _GIB),
        ]
    )


def _placed(degrees: Axes, networks: Axes, network: int) -> Ints:
    """Product of the degrees placed on a network."""
    placed = np.ones_like(networks[0])
    for degree, net in zip(degrees, networks, strict=True):
        placed = placed * np.where(net == network, degree, 1)
    return placed


def _first(checks: list[tuple[str, Bools]]) -> Ints:
    codes = np.zeros(checks[0][1].shape, dtype=np.int64)
    for name, failed in reversed(checks):
        codes = np.where(failed, VERDICTS.index(name), codes)
    return codes


def explain(
    reason: str,
    model: CalculonModel,
    system: CalculonSystem,
    execution: CalculonExecution,
    memory_bytes: Mapping[str, float],
) -> str:
    """Return why an execution is infeasible; `memory_bytes` are the needs of each tier."""
    e = execution
    degrees = (e.tensor_par, e.pipeline_par, e.data_par)
    facts: dict[str, Any] = {
        "degrees": " x ".join(map(str, degrees)),
        "chunks": e.pipeline_interleaving,
        "blocks": -(-model.num_blocks // e.pipeline_par),
        "mem1_gib": system.mem1.GiB,
        "mem2_gib": system.mem2.GiB,
        "tier1_gib": memory_bytes["tier1"] / _GIB,
        "tier2_gib": memory_bytes["tier2"] / _GIB,
    }
    networks = (e.tensor_par_net, e.pipeline_par_net, e.data_par_net)
    for index, network in enumerate(system.networks):
        used = [d for d, n in zip(degrees, networks, strict=True) if n == index]
        facts |= {"network": index, "size": network.size, "placed": math.prod(used)}
        if facts["placed"] > network.size or (
            network.must_be_filled and network.size % math.prod(used)
        ):
            break
    return _SENTENCES[reason].format(**facts)
