"""A profile from our own operations: a model of the catalog, or any `Model`, without torch.

Times are those of an estimate of one data-parallel rank, and bytes follow the rules of `cost.walk`,
without recompute: an operation needs its transient bytes beside what those before it have saved,
then saves its own; backward, in reverse order, it needs them beside what is still saved.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.activation_walk import step_of
from shardwise.cost.component_costs import ComponentOperations, operation_costs
from shardwise.cost.layer_cost import layer_work
from shardwise.cost.operations import Machine, OperationCost
from shardwise.errors import Fault, InputError
from shardwise.fsdp.assembly import FIGURES, Assembly, Part, part_of
from shardwise.fsdp.catalog_modules import (
    Piece,
    embedding_pieces,
    head_pieces,
    layer_pieces,
    mtp_pieces,
)
from shardwise.fsdp.check import check
from shardwise.fsdp.plan import DTYPE_BYTES, Dtype
from shardwise.fsdp.profile import Profile
from shardwise.ops.operation import Phase
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.placement import place

__all__ = ["OVERRIDES", "STACK", "profile_of"]

STACK = "torchtitan-2025"
"""Software unless told otherwise: FSDP2 with compiled layers and loss."""
OVERRIDES = (
    "attention",
    "document_len",
    "expert_capacity",
    "expert_imbalance",
    "fused_activation",
)
"""Fields of a strategy that change what a data-parallel rank computes, and may be given."""

# Tokens and labels are integers of 64 bits in PyTorch.
_INPUT_BYTES = 2 * 8
_ASSUMED = (
    "kernel times and bytes are shardwise's estimate, not a trace",
    "queries, keys and values, as gate and up, share the time of one product by their widths",
    "between these all transient bytes of the product are held",
    "what one operation hands to the next counts while they run, not between them",
)
_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


def profile_of(
    model: Model | str | Path,
    system: System | str | Path,
    *,
    batch: int,
    seq_len: int | None = None,
    dtype: Dtype = "bf16",
    stack: Stack | str = STACK,
    strategy: Mapping[str, Any] | None = None,
) -> Profile:
    """Profile one unsharded step of a model: no parallelism but that of data, no recompute.

    Parameters
    ----------
    model, system
        Nouns, catalog names or files.
    batch
        Sequences of one rank.
    seq_len
        Tokens of each; None: as the model says.
    dtype
        That it computes in.
    stack
        Software; a noun, a catalog name or a file.
    strategy
        Some of `OVERRIDES`.

    Raises
    ------
    InputError
        If anything given is wrong or is no part of an unsharded step.
    """
    the_system = System.load(system)
    the_model = Model.load(model)
    resolved = _strategy(the_model, batch, seq_len, dtype, stack, strategy or {})
    the_model = the_model.with_attention(resolved.attention)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    extents = place(the_system, table)
    machine = Machine.of(the_system, table, extents)
    costs = operation_costs(the_model, the_system, table, extents)
    tokens = batch * int(table.seq_len[0])
    assembly = Assembly(
        parts=_parts(the_model, costs, machine),
        tokens=tokens,
        hidden=the_model.hidden,
        element_bytes=float(DTYPE_BYTES[resolved.dtype]),
    )
    profile = assembly.profile(
        name=the_model.name,
        source=f"{the_model.name} on {the_system.name}: {batch} x {table.seq_len[0]} tokens,"
        f" {resolved.dtype}, {table.stacks[0].name}",
        fixed_bytes=float(tokens * _INPUT_BYTES) if the_model.vocab else 0.0,
        assumed=_ASSUMED,
    )
    _refuse_miscounted(the_model, profile)
    check(profile)
    return profile


def _strategy(
    model: Model,
    batch: int,
    seq_len: int | None,
    dtype: Dtype,
    stack: Stack | str,
    given: Mapping[str, Any],
) -> Strategy:
    faults = [
        Fault(
            source="strategy",
            field=name,
            value=value,
            has_value=True,
            problem=f"cannot change an unsharded step; allowed: {', '.join(OVERRIDES)}",
        )
        for name, value in given.items()
        if name not in OVERRIDES
    ]
    if faults:
        raise InputError(faults)
    fields = {
        "gpus": 1,
        "micro_batch_size": batch,
        "global_batch_size": batch,
        "seq_len": seq_len,
        "dtype": dtype,
        "stack": stack,
    }
    return Strategy.load(fields | dict(given)).resolved(model)


def _refuse_miscounted(model: Model, profile: Profile) -> None:
    """Refuse models whose modules do not hold what their operations do."""
    counted = count_parameters(model)
    operations = counted.total + counted.mtp
    modules = sum(parameter.numel for parameter in profile.parameters)
    if operations != modules:
        problem = f"its operations hold {operations} weights, its modules {modules}"
        raise InputError(Fault(source=model.name, field="layers", problem=problem))


def _parts(
    model: Model, costs: Sequence[ComponentOperations], machine: Machine
) -> list[tuple[str, str, Part]]:
    """Name, class and contents of every part in the order in which they run."""
    kinds = []
    layers = iter(model.layers)
    found: dict[str, Part] = {}
    for name, _, operations in costs:
        if name == "layer":
            layer = next(layers)
            pieces = [layer_pieces(model, layer, cost.operation) for cost in operations]
            kinds.append(_part(operations, pieces, machine, own=True))
            continue
        by = {"embedding": embedding_pieces, "mtp": mtp_pieces, "head": head_pieces}[name]
        pieces = [by(model, cost.operation) for cost in operations]
        found[name] = _part(operations, pieces, machine, own=name == "mtp")
    causal = [layer.attention.causal for layer in model.layers]
    classes = ["DecoderLayer" if one else "EncoderLayer" for one in causal]
    return [
        ("", "", found["embedding"]),
        *((f"layers.{i}", classes[kind], kinds[kind]) for i, kind in enumerate(model.order)),
        *((f"mtp.layers.{i}", "MultiTokenPrediction", found["mtp"]) for i in range(model.mtp)),
        ("", "", found["head"]),
    ]


def _part(
    costs: Sequence[OperationCost],
    pieces: Sequence[Sequence[Piece]],
    machine: Machine,
    *,
    own: bool,
) -> Part:
    """Cut a part into segments, one for each piece of an operation.

    Parameters
    ----------
    own
        Whether the part is a module itself.
    """
    work = layer_work(costs, machine)
    # What the host adds to a part's kernels is spread over them by their times.
    ahead = _stretch(costs, (Phase.FORWARD,), work.forward_s)
    back = _stretch(costs, _BACKWARD, work.backward_s)
    figures: list[tuple[float, ...]] = []
    run: list[Piece] = []
    before = 0.0
    for cost, some in zip(costs, pieces, strict=True):
        saved, transient = _bytes_of(cost)
        forward = ahead * _kernel_s(cost, (Phase.FORWARD,))
        backward = back * _kernel_s(cost, _BACKWARD)
        if not (forward or backward or saved or transient or any(p.weights for p in some)):
            continue
        over, under = before + max(saved, transient), before + saved + transient
        for i, piece in enumerate(some):
            left = over if i + 1 < len(some) else before + saved
            left_back = under if i > 0 else before
            figures.append(
                (piece.share * forward, piece.share * backward, over, left, under, left_back)
            )
            run.append(piece)
        before += saved
    columns = np.array(figures, dtype=np.float64).reshape(-1, len(FIGURES)).T
    return part_of(run, columns, before, own=own)


def _kernel_s(cost: OperationCost, phases: Sequence[Phase]) -> float:
    return sum(float(cost.kernel_s(phase)[0]) for phase in phases)


def _stretch(costs: Sequence[OperationCost], phases: Sequence[Phase], whole_s: Floats) -> float:
    """Time of a direction of a part over that of its kernels."""
    kernels_s = sum(_kernel_s(cost, phases) for cost in costs)
    return float(whole_s[0]) / kernels_s if kernels_s > 0 else 0.0


def _bytes_of(cost: OperationCost) -> tuple[float, float]:
    """What an operation saves till backward, and what lives beside that while it runs [byte].

    Where products do not add to gradients that are there, a fresh gradient of the weights is among
    the transient bytes of backward in an estimate; here gradients of weights are counted apart.
    """
    step = step_of(cost.operation)
    return float(step.saved[0]), float(step.ahead[0])
