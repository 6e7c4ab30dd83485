"""A profile from shardwise's own operations: a model of the catalog, or any `Model`, without torch.

Times are those of an estimate of one data-parallel rank. Bytes follow the rules of
`cost.activation_walk` without recompute: an operation needs its transient bytes in addition to what
earlier operations saved, then saves its own; in backward, in reverse order, it needs them in
addition to what is still saved.

The model is cut into components (embedding, layers, multi-token prediction, head). Equal layers
share one component, so that the work is done once for each kind of layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from shardwise.fsdp.catalog_modules import (
    Piece,
    Weight,
    embedding_pieces,
    head_pieces,
    layer_pieces,
    mtp_pieces,
)
from shardwise.fsdp.plan import DTYPE_BYTES, Dtype
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule, check
from shardwise.ops.operation import Phase
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.placement import place

__all__ = ["FIGURES", "OVERRIDES", "STACK", "Assembly", "Part", "part_of", "profile_of"]

FIGURES = ("forward_s", "backward_s", "held_ahead", "left_ahead", "held_back", "left_back")
"""Of a segment: times [s]; what is held at the fullest moment and left at the end of its forward
and its backward, without gradients of weights, beyond what is there before its part [byte]."""

_CONTAINERS = {
    "self_attn": "Attention",
    "mlp": "MLP",
    "shared_experts": "MLP",
    "experts": "Experts",
    "transformer_layer": "DecoderLayer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartModule:
    """A module of a part of the model; positions and segments count from the part's beginning."""

    path: tuple[str, ...]
    kind: str
    parent: int
    """-1: what the part stands in."""
    width: float
    reduced_last: bool
    shared: bool
    first: int
    """Segment it begins with."""
    end: int = 0
    after: int = 0
    """Segment after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer of a kind, or the embedding, a module of prediction, the head: alike each time."""

    modules: tuple[PartModule, ...]
    weights: tuple[tuple[int, int, Weight], ...]
    """With each, its module and segment."""
    figures: Floats
    """Rows of `FIGURES`, a column for each segment."""
    saved: float
    """Kept by all of it till backward [byte]."""


def part_of(run: Sequence[Piece], figures: Floats, saved: float, *, own: bool) -> Part:
    """Find the modules in which pieces run one after the other.

    One begins where its path appears, and ends where another path goes on.

    Parameters
    ----------
    run
        What is done in each segment.
    figures
        `FIGURES` as rows, a column for each segment.
    saved
        Kept by all of it till backward [byte].
    own
        Whether the part is a module itself.
    """
    modules: list[PartModule] = []
    weights: list[tuple[int, int, Weight]] = []
    open_: list[int] = []

    def begin(path: tuple[str, ...], piece: Piece, segment: int) -> None:
        parent = open_[-1] if open_ else -1
        if path[-1:] == ("experts",):
            modules[parent] = replace(modules[parent], kind="MoE")
        open_.append(len(modules))
        modules.append(_begun(path, piece, parent, segment))

    def close(keep: int, segment: int) -> None:
        while len(open_) > keep:
            place = open_.pop()
            modules[place] = replace(modules[place], end=len(modules), after=segment)

    if own:
        begin((), Piece(path=()), 0)
    for segment, piece in enumerate(run):
        same = 0
        names = [modules[place].path[-1] for place in open_[own:]]
        while same < min(len(names), len(piece.path)) and names[same] == piece.path[same]:
            same += 1
        close(same + own, segment)
        for depth in range(same, len(piece.path)):
            begin(piece.path[: depth + 1], piece, segment)
        weights += [(open_[-1], segment, weight) for weight in piece.weights]
    close(0, len(run))
    return Part(modules=tuple(modules), weights=tuple(weights), figures=figures, saved=saved)


def _begun(path: tuple[str, ...], piece: Piece, parent: int, segment: int) -> PartModule:
    """A module as it begins: the one that does the piece, or one above it."""
    kind = _CONTAINERS.get(path[-1], "Module") if path else ""
    does = path == piece.path
    return PartModule(
        path=path,
        kind=piece.kind if does and piece.kind else kind,
        parent=parent,
        width=piece.width if does else 0.0,
        reduced_last=does and piece.reduced_last,
        shared=does and piece.shared,
        first=segment,
    )


@dataclass(slots=True, kw_only=True)
class _Held:
    """A tensor of weights and where it was met."""

    name: str
    weight: Weight
    holders: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """Of backward, in which parts of its gradient are made."""


@dataclass(slots=True, kw_only=True)
class Assembly:
    """A profile in the making: parts that run one after the other, then back.

    Segment s of 2 F goes back in segment 2 F - 1 - s. The gradient of a tensor is held from the
    segment on in which the first part of it is made, and complete in that of the last.
    """

    parts: Sequence[tuple[str, str, Part]]
    """Name, class and contents of each; what has no name stands in the root."""
    tokens: int
    """Of one rank."""
    hidden: int
    """Numbers of a module's output for each token, unless it says otherwise."""
    element_bytes: float
    """One number."""
    total: int = 0
    """F."""
    modules: list[ProfiledModule] = field(default_factory=list)
    held: dict[str, _Held] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def profile(
        self, *, name: str, source: str, fixed_bytes: float, assumed: tuple[str, ...]
    ) -> Profile:
        """Put all parts together."""
        counts = [part.figures.shape[1] for _, _, part in self.parts]
        self.total = sum(counts)
        self.modules.append(self._root())
        starts = np.cumsum([0, *counts])
        for (called, kind, part), start in zip(self.parts, starts.tolist()[:-1], strict=True):
            self._add(called, kind, part, start)
        figures = np.concatenate([part.figures for _, _, part in self.parts], axis=1)
        before = np.cumsum([0.0, *(part.saved for _, _, part in self.parts)])[:-1]
        figures[2:] += np.repeat(before, counts)
        made = self._made()
        return Profile(
            name=name,
            source=source,
            modules=tuple(self.modules),
            parameters=tuple(self._parameter(held) for held in self.held.values()),
            forward_segments=self.total,
            seconds=np.concatenate([figures[0], figures[1, ::-1]]),
            resident_bytes=made + np.concatenate([figures[2], figures[4, ::-1]]),
            end_bytes=made + np.concatenate([figures[3], figures[5, ::-1]]),
            fixed_bytes=fixed_bytes,
            assumed=assumed,
        )

    def _root(self) -> ProfiledModule:
        return ProfiledModule(
            name="",
            kind="Model",
            parent=-1,
            end=1 + sum(len(part.modules) for _, _, part in self.parts),
            forward=(0, self.total),
            backward=(self.total, 2 * self.total),
            reduced_last=True,
        )

    def _add(self, called: str, kind: str, part: Part, start: int) -> None:
        """Add the modules and weights of a part that begins with a segment."""
        at, last = len(self.modules), 2 * self.total
        for module in part.modules:
            path = ".".join(module.path)
            alone = module.shared or not called
            name = path if alone else f"{called}.{path}".rstrip(".")
            run = self.runs.get(name, 0)
            self.runs[name] = run + 1
            first, after = start + module.first, start + module.after
            self.modules.append(
                ProfiledModule(
                    name=name,
                    kind=module.kind or kind,
                    parent=at + module.parent if module.parent >= 0 else 0,
                    end=at + module.end,
                    forward=(first, after),
                    backward=(last - after, last if module.reduced_last else last - first),
                    output_bytes=(module.width or self.hidden) * self.tokens * self.element_bytes,
                    reduced_last=module.reduced_last,
                    run=run,
                )
            )
        for module_index, segment, weight in part.weights:
            self._meet(at + module_index, weight, last - 1 - start - segment)

    def _meet(self, holder: int, weight: Weight, segment: int) -> None:
        """Take note of a module that holds a tensor, and of the segment that makes its gradient."""
        name = weight.tied_to or f"{self.modules[holder].name}.{weight.name}".lstrip(".")
        key = weight.name if weight.once else name
        held = self.held.setdefault(key, _Held(name=name, weight=weight))
        held.segments.append(segment)
        if not (weight.once and held.holders):
            held.holders.append(holder)

    def _made(self) -> Floats:
        """Gradients of weights, begun or complete, at the end of each segment [byte]."""
        made = np.zeros(2 * self.total)
        for held in self.held.values():
            if held.weight.graded:
                made[min(held.segments)] += np.prod(held.weight.shape) * self.element_bytes
        return np.cumsum(made)

    def _parameter(self, held: _Held) -> Parameter:
        weight = held.weight
        return Parameter(
            name=held.name,
            shape=weight.shape,
            holders=tuple(held.holders),
            element_bytes=self.element_bytes,
            gradient_segment=max(held.segments) if weight.graded else -1,
        )


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
