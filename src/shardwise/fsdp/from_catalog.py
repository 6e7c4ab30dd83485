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

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.model import Model, ModelLike
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
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

_SEGMENT_ROWS = 6
"""Rows of `_Component.segments`: times forward and backward [s]; peak and end of the forward
segment, peak and end of the backward segment [byte], without gradients of weights and beyond what
is resident before the component."""

_CONTAINERS = {
    "self_attn": "Attention",
    "mlp": "MLP",
    "shared_experts": "MLP",
    "experts": "Experts",
    "transformer_layer": "DecoderLayer",
}

STACK = "torchtitan-2025"
"""Default software: FSDP2 with compiled layers and loss."""
OVERRIDES = (
    "attention",
    "document_len",
    "expert_capacity",
    "expert_imbalance",
    "fused_activation",
)
"""Strategy fields that change what a data-parallel rank computes, and may be set."""

# Tokens and labels are integers of 64 bits in PyTorch.
_INPUT_BYTES = 2 * 8
_ASSUMED = (
    "kernel times and bytes are shardwise's estimate, not a trace",
    "queries, keys and values, as gate and up, share the time of one product by their widths",
    "between these all transient bytes of the product are resident",
    "what one operation hands to the next counts while they run, not between them",
)
_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComponentModule:
    """A module of a component; positions and segments count from the component's beginning."""

    path: tuple[str, ...]
    kind: str
    parent: int
    """-1: the module that contains the component."""
    width: float
    reduced_last: bool
    shared: bool
    first: int
    """Segment it begins with."""
    end: int = 0
    after: int = 0
    """Segment after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    """A kind of layer, the embedding, a multi-token prediction module, or the head."""

    modules: tuple[_ComponentModule, ...]
    weights: tuple[tuple[int, int, Weight], ...]
    """Each with its module and segment."""
    segments: Floats
    """Shape (6, segments), rows as in `_SEGMENT_ROWS`."""
    saved_bytes: float
    """Saved until backward by the full component."""


def _build_component(
    pieces: Sequence[Piece], segments: Floats, saved_bytes: float, *, is_module: bool
) -> _Component:
    """Find the modules in which pieces run one after the other.

    A module begins where its path first appears, and ends where another path continues.

    Parameters
    ----------
    pieces
        The piece of an operation that runs in each segment.
    segments
        Shape (6, segments), rows as in `_SEGMENT_ROWS`.
    saved_bytes
        Saved until backward by the full component.
    is_module
        Whether the component is a module itself.
    """
    modules: list[_ComponentModule] = []
    weights: list[tuple[int, int, Weight]] = []
    open_: list[int] = []

    def begin(path: tuple[str, ...], piece: Piece, segment: int) -> None:
        parent = open_[-1] if open_ else -1
        if path[-1:] == ("experts",):
            modules[parent] = replace(modules[parent], kind="MoE")
        open_.append(len(modules))
        leaf = path == piece.path
        kind = _CONTAINERS.get(path[-1], "Module") if path else ""
        modules.append(
            _ComponentModule(
                path=path,
                kind=piece.kind if leaf and piece.kind else kind,
                parent=parent,
                width=piece.width if leaf else 0.0,
                reduced_last=leaf and piece.reduced_last,
                shared=leaf and piece.shared,
                first=segment,
            )
        )

    def close(depth: int, segment: int) -> None:
        while len(open_) > depth:
            position = open_.pop()
            modules[position] = replace(modules[position], end=len(modules), after=segment)

    if is_module:
        begin((), Piece(path=()), 0)
    for segment, piece in enumerate(pieces):
        same = 0
        names = [modules[position].path[-1] for position in open_[is_module:]]
        while same < min(len(names), len(piece.path)) and names[same] == piece.path[same]:
            same += 1
        close(same + is_module, segment)
        for depth in range(same, len(piece.path)):
            begin(piece.path[: depth + 1], piece, segment)
        weights += [(open_[-1], segment, weight) for weight in piece.weights]
    close(0, len(pieces))
    return _Component(
        modules=tuple(modules),
        weights=tuple(weights),
        segments=segments,
        saved_bytes=saved_bytes,
    )


@dataclass(slots=True, kw_only=True)
class _Tensor:
    """A tensor of weights and the modules that hold it."""

    name: str
    weight: Weight
    holders: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """Of backward, in which its gradient is accumulated."""


@dataclass(slots=True, kw_only=True)
class _Assembly:
    """Builds a profile from components that run one after the other, then backward.

    Forward segment s of F runs backward as segment 2 F - 1 - s. The gradient of a tensor is
    resident from the first segment that accumulates it, and complete in the last.
    """

    components: Sequence[tuple[str, str, _Component]]
    """Name, class and contents of each; modules of one without a name belong to the root."""
    tokens: int
    """Of one rank."""
    hidden: int
    """Numbers of a module's output for each token, unless it has another width."""
    element_bytes: float
    """Of one number."""
    total: int = 0
    """F."""
    modules: list[ProfiledModule] = field(default_factory=list)
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def profile(
        self, *, name: str, source: str, fixed_bytes: float, assumed: tuple[str, ...]
    ) -> Profile:
        """Assemble all components."""
        counts = [component.segments.shape[1] for _, _, component in self.components]
        self.total = sum(counts)
        root = ProfiledModule(
            name="",
            kind="Model",
            parent=-1,
            end=1 + sum(len(component.modules) for _, _, component in self.components),
            forward=(0, self.total),
            backward=(self.total, 2 * self.total),
            reduced_last=True,
        )
        self.modules.append(root)
        starts = np.cumsum([0, *counts]).tolist()[:-1]
        for (prefix, kind, component), start in zip(self.components, starts, strict=True):
            self._add(prefix, kind, component, start)
        rows = np.concatenate([component.segments for _, _, component in self.components], axis=1)
        before = np.cumsum([0.0, *(one.saved_bytes for _, _, one in self.components)])[:-1]
        rows[2:] += np.repeat(before, counts)
        gradients = self._gradient_bytes()
        return Profile(
            name=name,
            source=source,
            modules=tuple(self.modules),
            parameters=tuple(self._parameter(tensor) for tensor in self.tensors.values()),
            forward_segments=self.total,
            seconds=np.concatenate([rows[0], rows[1, ::-1]]),
            resident_bytes=gradients + np.concatenate([rows[2], rows[4, ::-1]]),
            end_bytes=gradients + np.concatenate([rows[3], rows[5, ::-1]]),
            fixed_bytes=fixed_bytes,
            assumed=assumed,
        )

    def _add(self, prefix: str, kind: str, component: _Component, start: int) -> None:
        """Add the modules and weights of a component that begins with a segment."""
        at, last = len(self.modules), 2 * self.total
        for module in component.modules:
            path = ".".join(module.path)
            name = path if module.shared or not prefix else f"{prefix}.{path}".rstrip(".")
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
        for position, segment, weight in component.weights:
            self._add_weight(at + position, weight, last - 1 - start - segment)

    def _add_weight(self, holder: int, weight: Weight, segment: int) -> None:
        """Note a module that holds a tensor, and the segment that accumulates its gradient."""
        name = weight.tied_to or f"{self.modules[holder].name}.{weight.name}".lstrip(".")
        key = weight.name if weight.once else name
        tensor = self.tensors.setdefault(key, _Tensor(name=name, weight=weight))
        tensor.segments.append(segment)
        if not (weight.once and tensor.holders):
            tensor.holders.append(holder)

    def _gradient_bytes(self) -> Floats:
        """Gradients of weights, partial or complete, at the end of each segment [byte]."""
        added = np.zeros(2 * self.total)
        for tensor in self.tensors.values():
            if tensor.weight.graded:
                size = np.prod(tensor.weight.shape) * self.element_bytes
                added[min(tensor.segments)] += size
        return np.cumsum(added)

    def _parameter(self, tensor: _Tensor) -> Parameter:
        weight = tensor.weight
        return Parameter(
            name=tensor.name,
            shape=weight.shape,
            holders=tuple(tensor.holders),
            element_bytes=self.element_bytes,
            gradient_segment=max(tensor.segments) if weight.graded else -1,
        )


def profile_of(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: int,
    seq_len: int | None = None,
    dtype: Dtype = "bf16",
    stack: Stack | str = STACK,
    strategy: Mapping[str, object] | None = None,
) -> Profile:
    """Profile one unsharded step of a model: data parallelism alone, no recompute.

    Parameters
    ----------
    model, system
        A `Model` and a `System`, catalog names or files.
    batch
        Sequences of one rank.
    seq_len
        Tokens of each; None: those of the model.
    dtype
        That it computes in.
    stack
        Software: a `Stack`, a catalog name or a file.
    strategy
        Some of `OVERRIDES`.

    Raises
    ------
    InputError
        If an argument is wrong or not part of an unsharded step.
    """
    the_system = System.load(system)
    the_model = Model.load(model)
    resolved = _strategy(the_model, batch, seq_len, dtype, stack, strategy or {})
    the_model = the_model.with_attention(resolved.attention)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    extents = place(the_system, table)
    machine = Machine.of(the_system, table)
    costs = operation_costs(the_model, the_system, table, extents)
    tokens = batch * int(table.seq_len[0])
    assembly = _Assembly(
        components=_components(the_model, costs, machine),
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
    overrides: Mapping[str, object],
) -> Strategy:
    problem = f"cannot change an unsharded step; allowed: {', '.join(OVERRIDES)}"
    faults = [
        Fault(source="strategy", field=name, value=value, has_value=True, problem=problem)
        for name, value in overrides.items()
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
    return Strategy.load(fields | dict(overrides)).resolved(model)


def _refuse_miscounted(model: Model, profile: Profile) -> None:
    """Refuse models whose modules and operations have different numbers of weights."""
    counted = count_parameters(model)
    operations = counted.total + counted.mtp
    modules = sum(parameter.numel for parameter in profile.parameters)
    if operations != modules:
        problem = f"its operations hold {operations} weights, its modules {modules}"
        raise InputError(Fault(source=model.name, field="layers", problem=problem))


def _components(
    model: Model, costs: Sequence[ComponentOperations], machine: Machine
) -> list[tuple[str, str, _Component]]:
    """Name, class and contents of every component in the order in which they run."""
    layer_kinds = []
    layers = iter(model.layers)
    found: dict[str, _Component] = {}
    for name, _, operations in costs:
        if name == "layer":
            layer = next(layers)
            pieces = [layer_pieces(model, layer, cost.operation) for cost in operations]
            layer_kinds.append(_component(operations, pieces, machine, is_module=True))
            continue
        by = {"embedding": embedding_pieces, "mtp": mtp_pieces, "head": head_pieces}[name]
        pieces = [by(model, cost.operation) for cost in operations]
        found[name] = _component(operations, pieces, machine, is_module=name == "mtp")
    causal = [layer.attention.causal for layer in model.layers]
    classes = ["DecoderLayer" if one else "EncoderLayer" for one in causal]
    return [
        ("", "", found["embedding"]),
        *((f"layers.{i}", classes[kind], layer_kinds[kind]) for i, kind in enumerate(model.order)),
        *((f"mtp.layers.{i}", "MultiTokenPrediction", found["mtp"]) for i in range(model.mtp)),
        ("", "", found["head"]),
    ]


def _component(
    costs: Sequence[OperationCost],
    pieces: Sequence[Sequence[Piece]],
    machine: Machine,
    *,
    is_module: bool,
) -> _Component:
    """Cut a component into segments, one for each piece of an operation."""
    work = layer_work(costs, machine)
    # What the host adds to a component's kernels is divided among them by their times.
    forward_factor = _host_factor(costs, (Phase.FORWARD,), work.forward.compute_s(0.0))
    backward_factor = _host_factor(costs, _BACKWARD, work.backward.compute_s(0.0))
    columns: list[tuple[float, ...]] = []
    in_order: list[Piece] = []
    before = 0.0
    for cost, some in zip(costs, pieces, strict=True):
        # A fresh gradient of the weights, which an estimate may count as transient, is not among
        # these bytes: gradients of weights are counted separately.
        step = step_of(cost.operation)
        saved, transient = float(step.saved[0]), float(step.forward[0])
        forward = forward_factor * _kernel_s(cost, (Phase.FORWARD,))
        backward = backward_factor * _kernel_s(cost, _BACKWARD)
        if not (forward or backward or saved or transient or any(p.weights for p in some)):
            continue
        forward_peak = before + max(saved, transient)
        backward_peak = before + saved + transient
        for i, piece in enumerate(some):
            forward_end = forward_peak if i + 1 < len(some) else before + saved
            backward_end = backward_peak if i > 0 else before
            times = piece.share * forward, piece.share * backward
            columns.append((*times, forward_peak, forward_end, backward_peak, backward_end))
            in_order.append(piece)
        before += saved
    segments = np.array(columns, dtype=np.float64).reshape(-1, _SEGMENT_ROWS).T
    return _build_component(in_order, segments, before, is_module=is_module)


def _kernel_s(cost: OperationCost, phases: Sequence[Phase]) -> float:
    return sum(float(cost.kernel_s(phase)[0]) for phase in phases)


def _host_factor(costs: Sequence[OperationCost], phases: Sequence[Phase], total_s: Floats) -> float:
    """Time of one direction of a component over that of its kernels."""
    kernels_s = sum(_kernel_s(cost, phases) for cost in costs)
    return float(total_s[0]) / kernels_s if kernels_s > 0 else 0.0
