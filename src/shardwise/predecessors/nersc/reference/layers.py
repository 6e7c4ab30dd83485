"""The layers: what each computes, moves, stores and communicates, and its time (sections 3, 4).

Sizes are in elements: b sequences of L tokens on one accelerator. Of products and attention,
gradients of input and weights are both in the backward pass. Of the other layers, N = rows x width
of the input.

The fourteen layers of one transformer layer, by method (section 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from shardwise.arrays import Floats, Ints, total
from shardwise.config.base import ConfigBase, Count
from shardwise.errors import Fault, refuse
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem

Method = Literal["1d", "2d", "2d-seqp"]
METHODS: tuple[Method, ...] = ("1d", "2d", "2d-seqp")
"""Tensor parallelism of Megatron with sequence parallelism; SUMMA; with context parallelism."""


class NerscConfiguration(ConfigBase):
    """One way to run a model."""

    method: Method
    global_batch: Count
    """Sequences per step."""
    b: Count
    """Sequences per micro-batch."""
    m1: Count
    """Tensor-parallel dimension over heads and widths; all of it in 1d."""
    m2: Count = 1
    """Tensor-parallel dimension over the sequence."""
    nb: Count = 1
    """SUMMA panels."""
    dp: Count
    pp: Count
    t1: Count
    """Members of a group of m1 in one domain of the fast network."""
    t2: Count = 1
    t_dp: Count
    t_pp: Count

    @model_validator(mode="after")
    def _groups_hold_their_parts(self) -> Self:
        for part, group in (("t1", "m1"), ("t2", "m2"), ("t_dp", "dp"), ("t_pp", "pp")):
            inside, members = getattr(self, part), getattr(self, group)
            if members % inside:
                raise ValueError(f"{part} {inside} must divide {group} {members}")
        if self.method == "1d" and self.m2 > 1:
            raise ValueError(f"m2 {self.m2}: must be 1 in 1d")
        if self.global_batch // self.dp // self.b < 1:
            raise ValueError(
                f"b {self.b} x dp {self.dp} is more than global_batch {self.global_batch}"
            )
        return self

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.m1 * self.m2 * self.dp * self.pp


def check_together(
    model: NerscModel,
    system: NerscSystem,
    configuration: NerscConfiguration,
    source: str = "configuration",
) -> None:
    """Check a configuration against what it runs."""
    inside = configuration.t1 * configuration.t2 * configuration.t_dp * configuration.t_pp
    wrong = {
        "m1": (configuration.m1, model.h % configuration.m1 > 0, f"must divide h {model.h}"),
        "m2": (configuration.m2, configuration.m2 > model.l, f"must be at most l {model.l}"),
        "pp": (
            configuration.pp,
            model.depth % configuration.pp > 0,
            f"must divide depth {model.depth}",
        ),
        "t1 x t2 x t_dp x t_pp": (
            inside,
            inside > system.nvlink_size,
            f"must be at most nvlink_size {system.nvlink_size}",
        ),
    }
    faults = [
        Fault.of(field, value, problem, source)
        for field, (value, bad, problem) in wrong.items()
        if bad
    ]
    refuse(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The numbers of configurations of one method that have passed `NerscConfiguration`."""

    b: Ints
    m1: Ints
    m2: Ints
    nb: Ints
    dp: Ints
    pp: Ints
    t1: Ints
    t2: Ints
    t_dp: Ints
    t_pp: Ints

    def __len__(self) -> int:
        return int(self.b.size)

    @classmethod
    def of(cls, configurations: Sequence[NerscConfiguration]) -> "Columns":
        """Return configurations as columns."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.array([getattr(c, n) for c in configurations]) for n in names})

    def row(self, index: int, method: Method, global_batch: int) -> NerscConfiguration:
        """Return one row as a configuration."""
        numbers = {field.name: int(getattr(self, field.name)[index]) for field in fields(self)}
        return NerscConfiguration(method=method, global_batch=global_batch, **numbers)


_WHOLE_BUFFER = frozenset({"broadcast", "reduce"})


def collective_time(
    kind: str, volume: Floats, members: Ints, inside: Ints, system: NerscSystem
) -> Floats:
    """Time of one collective [s] (section 3).

    With n members, t of them in one domain of the fast network, D = n // t domains, and c V bytes
    that pass each member, c = (n - 1) / n, or 1 for broadcast and reduce:

        t = 1         ls (n - 1) + c V / bs
        D = 1         lf (n - 1) + c V / bf
        otherwise     a max(c V / (nic_factor t bs), c V / bf) + ls (D - 1) + lf (n - D)

    with a = 2 for an all-reduce. Faults: the all-reduce has its factor 2 in the last case alone,
    and nic_factor is ignored in the first.

    Parameters
    ----------
    kind
        The collective's name.
    volume
        V, the full buffer [GB].
    """
    slow, fast = _rates(system)
    passing = volume if kind in _WHOLE_BUFFER else (members - 1) / members * volume
    domains = members // inside
    factor = 2.0 if kind == "allreduce" else 1.0
    steps = system.ib_latency * (domains - 1) + system.nvlink_latency * (members - domains)
    nics = system.nic_factor * inside * slow
    mixed = factor * np.maximum(passing / nics, passing / fast) + steps
    alone = system.ib_latency * (members - 1) + passing / slow
    one_domain = system.nvlink_latency * (members - 1) + passing / fast
    time = np.where(inside == 1, alone, np.where(domains == 1, one_domain, mixed))
    return np.where((members == 1) | (volume == 0), 0.0, time)


def message_times(volume: Floats, system: NerscSystem) -> tuple[Floats, Floats]:
    """Time of a message between two accelerators, on the slow and on the fast network [s]."""
    slow, fast = _rates(system)
    return system.ib_latency + volume / slow, system.nvlink_latency + volume / fast


def _rates(system: NerscSystem) -> tuple[float, float]:
    """Bs and bf, what the networks reach [GB/s]."""
    slow = system.ib_bandwidth * system.ib_eff
    return slow, system.nvlink_bandwidth * system.nvlink_eff


_START = 20e-6
"""Charged to every pass of every layer, whatever it computes [s] (section 3)."""
_EFFICIENCY = 0.8
"""Share of either peak that a layer reaches (section 3)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a pass."""

    kind: str
    volume: Floats
    """The full buffer [GB]."""
    axis: Literal[1, 2] = 1
    """Whether the group is that of m1 or of m2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of one micro-batch on one accelerator."""

    name: str
    flops_fwd: Floats
    """[TFLOP]."""
    flops_bwd: Floats
    moved_fwd: Floats
    """Memory traffic [GB]."""
    moved_bwd: Floats
    stored: Floats
    """Saved from forward to backward [GB]."""
    weights: Floats
    """[GB]."""
    fwd: Sequence[Collective] = ()
    bwd: Sequence[Collective] = ()
    vector: bool = True
    """Whether the vector units run it; if not, the matrix units."""
    panels: bool = False
    """Whether it communicates panel by panel during its product (SUMMA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Time of one pass by what it is spent on [s]."""

    comp: Floats
    mem: Floats
    """Time of memory beyond that of compute."""
    comm: Floats
    intensity: Floats
    """Time of compute over time of memory."""

    @property
    def total(self) -> Floats:
        """Time of the pass."""
        return self.comp + self.mem + self.comm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Both passes of one layer."""

    fwd: PassTime
    bwd: PassTime


def layer_time(layer: Layer, columns: Columns, system: NerscSystem) -> LayerTime:
    """Time of both passes of one layer."""
    peak = system.vector_flops_fp16 if layer.vector else system.matrix_flops_fp16

    def one(flops: Floats, moved: Floats, collectives: Sequence[Collective]) -> PassTime:
        comp = _START + flops / (_EFFICIENCY * peak)
        memory = moved / system.hbm_bandwidth
        mem = np.maximum(memory - comp, 0.0)
        comm = np.zeros_like(comp)
        for collective in collectives:
            comm = comm + _collective_time(collective, layer, columns, system)
        if layer.panels:
            comm = comm + np.maximum(columns.nb * comm - (comp + mem), 0.0)
        return PassTime(comp=comp, mem=mem, comm=comm, intensity=comp / memory)

    return LayerTime(
        fwd=one(layer.flops_fwd, layer.moved_fwd, layer.fwd),
        bwd=one(layer.flops_bwd, layer.moved_bwd, layer.bwd),
    )


def _collective_time(
    collective: Collective, layer: Layer, columns: Columns, system: NerscSystem
) -> Floats:
    """Time of a collective, or of one panel of it [s]."""
    first = collective.axis == 1
    members, inside = (columns.m1, columns.t1) if first else (columns.m2, columns.t2)
    volume = collective.volume / columns.nb if layer.panels else collective.volume
    return collective_time(collective.kind, volume, members, inside, system)


def column_split(name: str, tokens: Floats, k: float, width: Floats, system: NerscSystem) -> Layer:
    """Product (b L, k) x (k, F) of a weight split by columns, F = `width` on each of m1.

    FLOPs b L F (2 k - 1), and b L k (2 F - 1) + k F (2 b L - 1). Backward reduces and scatters the
    gradient of the input; the gathered input is saved.
    """
    size, data, weight = system.element_size, tokens * k, k * width
    flops = tokens * width * (2 * k - 1), data * (2 * width - 1) + weight * (2 * tokens - 1)
    reduced = data * size
    return Layer(
        name=name,
        flops_fwd=flops[0] * system.flops_units,
        flops_bwd=flops[1] * system.flops_units,
        moved_fwd=(data + tokens * width + weight) * size,
        moved_bwd=(2 * weight + 2 * data + 2 * tokens * width) * size,
        stored=data * size,
        weights=weight * size,
        fwd=(Collective("reducescatter", np.zeros_like(reduced)),),
        bwd=(Collective("reducescatter", reduced),),
        vector=False,
    )


def row_split(name: str, tokens: Floats, width: Floats, e: float, system: NerscSystem) -> Layer:
    """Product (b L, K) x (K, e) of a weight split by rows, K = `width` on each of m1.

    FLOPs b L e (2 K - 1), and b L K (2 e - 1) + K e (2 b L - 1). Forward reduces and scatters the
    result.
    """
    size, data, weight = system.element_size, tokens * width, width * e
    flops = tokens * e * (2 * width - 1), data * (2 * e - 1) + weight * (2 * tokens - 1)
    reduced = tokens * e * size
    return Layer(
        name=name,
        flops_fwd=flops[0] * system.flops_units,
        flops_bwd=flops[1] * system.flops_units,
        moved_fwd=(data + tokens * e + weight) * size,
        moved_bwd=(2 * weight + 2 * data + 2 * tokens * e) * size,
        stored=data * size,
        weights=weight * size,
        fwd=(Collective("reducescatter", reduced),),
        bwd=(Collective("reducescatter", np.zeros_like(reduced)),),
        vector=False,
    )


def summa(
    name: str,
    tokens: Floats,
    k: float,
    width: Floats,
    parts: tuple[Floats, Floats],
    panels: Floats,
    system: NerscSystem,
) -> Layer:
    """Product (b L, k) x (k, F) in panels, both operands split over m1 x m2.

    FLOPs 2 b L F k, and b L k (2 F - 1) + k F (2 b L - 1); the result passes memory once per panel.

    Parameters
    ----------
    parts
        Rows of the saved input, k // m1, and of the stored weight, k // m2.
    panels
        How many.
    """
    size, data, weight = system.element_size, tokens * k, k * width
    across, along = Collective("broadcast", data * size), Collective("broadcast", weight * size, 2)
    reduced = Collective("reduce", data * size), Collective("reduce", weight * size, 2)
    moved = data + weight + tokens * width * panels
    return Layer(
        name=name,
        flops_fwd=2 * tokens * width * k * system.flops_units,
        flops_bwd=(data * (2 * width - 1) + weight * (2 * tokens - 1)) * system.flops_units,
        moved_fwd=moved * size,
        moved_bwd=2 * moved * size,
        stored=tokens * parts[0] * size,
        weights=parts[1] * width * size,
        fwd=(across, along),
        bwd=(along, reduced[0], across, reduced[1]),
        vector=False,
        panels=True,
    )


def attention(
    b: Floats,
    heads: Floats,
    queries: Floats,
    keys: float,
    width: float,
    system: NerscSystem,
    *,
    gathers: bool,
) -> Layer:
    """Fused attention of H heads of width q: L queries on l keys, none masked.

    With X = b H L l scores and k = matrix over vector rate, which inflates vector FLOPs so that all
    can be timed at the matrix rate: forward b H L l (2 q - 1) + b H L q (2 l - 1) + k (4 X - b H
    L); backward four products, the forward's first product again, and k (5 X - b H L) + k (4 X - b
    H L).
    """
    units, size = system.flops_units, system.element_size
    inflated = system.matrix_flops_fp16 / system.vector_flops_fp16
    rows = b * heads * queries
    scores, data, columns = rows * keys, rows * width, b * heads * keys * width
    softmax = 3 * scores - rows
    forward = scores * (2 * width - 1) + data * (2 * keys - 1) + inflated * (softmax + scores)
    again = scores * (2 * width - 1) + inflated * (softmax + scores)
    backward = (
        data * (2 * keys - 1)
        + columns * (2 * queries - 1)
        + scores * (2 * width - 1)
        + columns * (2 * queries - 1)
        + inflated * (4 * scores - rows + scores)
        + again
    )
    stored = 4 * data + 2 * rows
    both = 2 * columns * size
    gathered = Collective("allgather", both, 2)
    return Layer(
        name="fusedla",
        flops_fwd=forward * units,
        flops_bwd=backward * units,
        moved_fwd=(2 * data + 2 * columns + rows) * size,
        moved_bwd=(2 * columns + 2 * data + stored) * size,
        stored=stored * size,
        weights=np.zeros_like(rows),
        fwd=(gathered,) if gathers else (),
        bwd=(gathered, Collective("reducescatter", both, 2)) if gathers else (),
        vector=False,
    )


def bias(name: str, rows: Floats, width: Floats, system: NerscSystem) -> Layer:
    """Bias: N FLOPs and N + width elements moved, forward and backward."""
    n, size = rows * width, system.element_size
    flops, moved = n * system.flops_units, (n + width) * size
    return Layer(
        name=name,
        flops_fwd=flops,
        flops_bwd=flops,
        moved_fwd=moved,
        moved_bwd=moved,
        stored=np.zeros_like(n),
        weights=width * size,
    )


def gelu(name: str, n: Floats, system: NerscSystem) -> Layer:
    """GELU: 8 N and 13 N FLOPs, 2 N and 3 N elements moved, its input saved."""
    return Layer(
        name=name,
        flops_fwd=8 * n * system.flops_units,
        flops_bwd=13 * n * system.flops_units,
        moved_fwd=2 * n * system.element_size,
        moved_bwd=3 * n * system.element_size,
        stored=n * system.element_size,
        weights=np.zeros_like(n),
    )


def dropout(name: str, n: Floats, system: NerscSystem) -> Layer:
    """Dropout: N FLOPs, 2 N elements and N of the mask moved, in either pass; the mask saved."""
    mask = n * system.mask_element_size
    flops, moved = n * system.flops_units, 2 * n * system.element_size + mask
    return Layer(
        name=name,
        flops_fwd=flops,
        flops_bwd=flops,
        moved_fwd=moved,
        moved_bwd=moved,
        stored=mask,
        weights=np.zeros_like(n),
    )


def layer_norm(
    name: str,
    rows: Floats,
    width: Floats,
    system: NerscSystem,
    *,
    fwd: Sequence[Collective],
    bwd: Sequence[Collective],
) -> Layer:
    """Layer norm over R rows of width w.

    FLOPs 9 R w and 8 R w + 4 R (w - 1); moved 2 R w + 2 R + 2 w and 5 R w + 2 w; the input saved.
    """
    n, size = rows * width, system.element_size
    return Layer(
        name=name,
        flops_fwd=9 * n * system.flops_units,
        flops_bwd=(8 * n + 4 * rows * (width - 1)) * system.flops_units,
        moved_fwd=(2 * n + 2 * rows + 2 * width) * size,
        moved_bwd=(5 * n + 2 * width) * size,
        stored=n * size,
        weights=2 * width * size,
        fwd=fwd,
        bwd=bwd,
    )


@dataclass(frozen=True, slots=True)
class Block:
    """Layers of one transformer layer, of one micro-batch on one accelerator."""

    mlp: tuple[Layer, ...]
    attention: tuple[Layer, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, in the published order."""
        return self.mlp + self.attention

    @property
    def boundary(self) -> Floats:
        """What one stage sends to the next: what the MLP's norm saves [GB]."""
        return self.mlp[-1].stored

    @property
    def stored(self) -> Floats:
        """Saved from forward to backward [GB]."""
        return total((layer.stored for layer in self.layers), self.boundary)

    @property
    def weights(self) -> Floats:
        """[GB]."""
        return total((layer.weights for layer in self.layers), self.boundary)

    @property
    def flops(self) -> Floats:
        """Forward and backward [TFLOP]."""
        passes = (layer.flops_fwd + layer.flops_bwd for layer in self.layers)
        return total(passes, self.boundary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Floor divisions of the model's dimensions, as floats."""

    b: Floats
    tokens: Floats
    """b L, L = l // m2."""
    queries: Floats
    """L."""
    heads: Floats
    ffn: Floats
    """f // m1."""
    e: Floats
    """E // m1."""
    qkv: Floats
    """3 e // m1."""


def _sizes(model: NerscModel, columns: Columns) -> _Sizes:
    length = model.l // columns.m2
    return _Sizes(
        b=_float(columns.b),
        tokens=_float(columns.b * length),
        queries=_float(length),
        heads=_float(model.h // columns.m1),
        ffn=_float(model.ffn // columns.m1),
        e=_float(model.e // columns.m1),
        qkv=_float(3 * model.e // columns.m1),
    )


def _float(column: Ints) -> Floats:
    return column.astype(np.float64)


def block_of(model: NerscModel, system: NerscSystem, method: Method, columns: Columns) -> Block:
    """Layers of one transformer layer; of the columns only b, m1, m2 and nb count."""
    sizes = _sizes(model, columns)
    if method == "2d":
        return _summa_block(model, system, columns, sizes)
    return _split_block(model, system, columns, sizes, context=method == "2d-seqp")


def _core(model: NerscModel, system: NerscSystem, sizes: _Sizes, *, gathers: bool) -> Layer:
    """Attention of the queries on one accelerator to all keys."""
    keys, width = float(model.l), float(model.e // model.h)
    return attention(sizes.b, sizes.heads, sizes.queries, keys, width, system, gathers=gathers)


def _split_block(
    model: NerscModel, system: NerscSystem, columns: Columns, sizes: _Sizes, *, context: bool
) -> Block:
    """Weights split over m1, and with `context` the sequence over m2 (1d and 2d-seqp).

    Faults: 1d adds its biases after the row split to unsplit rows; 2d-seqp adds that of the
    attention to widths of e // m1.
    """
    e, size = float(model.e), system.element_size
    width = np.full_like(sizes.e, e)
    part = _float(columns.b * (model.l // columns.m2 // columns.m1))
    gathered = (Collective("allgather", sizes.tokens * e * size),)
    scattered = (Collective("reducescatter", sizes.tokens * e * size),)
    norm = {"fwd": gathered, "bwd": scattered}
    inner = sizes.tokens * sizes.ffn
    mlp = (
        column_split("fc1", sizes.tokens, e, sizes.ffn, system),
        bias("fc1-bias", sizes.tokens, sizes.ffn, system),
        gelu("act1", inner, system),
        dropout("dpr1", inner, system),
        row_split("fc2", sizes.tokens, sizes.ffn, e, system),
        bias("fc2-bias", part if context else sizes.tokens, width, system),
        dropout("dpr2", part * e, system),
        layer_norm("ln1", part, width, system, **norm),
    )
    added = bias("vproj-bias", sizes.tokens, sizes.e if context else width, system)
    return Block(
        mlp,
        (
            column_split("qkv", sizes.tokens, e, sizes.qkv, system),
            _core(model, system, sizes, gathers=context),
            row_split("vproj", sizes.tokens, sizes.e, e, system),
            added,
            dropout("dpr_v", part * e, system),
            layer_norm("ln2", part, width, system, **norm),
        ),
    )


def _summa_block(model: NerscModel, system: NerscSystem, columns: Columns, sizes: _Sizes) -> Block:
    """Products by SUMMA, attention with context parallelism over m2 (2d).

    Fault: the norms are l // m1 wide, which should be e // m1.
    """
    e, f, size = float(model.e), float(model.ffn), system.element_size
    panels = _float(columns.nb)
    of_e = sizes.e, _float(model.e // columns.m2)
    of_f = sizes.ffn, _float(model.ffn // columns.m2)
    outer = sizes.tokens * sizes.e
    statistics = 2 * sizes.tokens
    gradients = 2 * model.e // columns.m1 + 2 * columns.b * model.l // columns.m2
    narrow = _float(model.l // columns.m1)
    norm = {
        "fwd": (Collective("allreduce", statistics * size),),
        "bwd": (Collective("allreduce", _float(gradients) * size),),
    }

    def product(name: str, k: float, width: Floats, parts: tuple[Floats, Floats]) -> Layer:
        return summa(name, sizes.tokens, k, width, parts, panels, system)

    mlp = (
        product("fc1", e, sizes.ffn, of_e),
        bias("fc1-bias", sizes.tokens, sizes.ffn, system),
        gelu("act1", sizes.tokens * sizes.ffn, system),
        dropout("dpr1", sizes.tokens * sizes.ffn, system),
        product("fc2", f, sizes.e, of_f),
        bias("fc2-bias", sizes.tokens, sizes.e, system),
        dropout("dpr2", outer, system),
        layer_norm("ln1", sizes.tokens, narrow, system, **norm),
    )
    return Block(
        mlp,
        (
            product("qkv", e, sizes.qkv, of_e),
            _core(model, system, sizes, gathers=True),
            product("vproj", e, sizes.e, of_e),
            bias("vproj-bias", sizes.tokens, sizes.e, system),
            dropout("dpr_v", outer, system),
            layer_norm("ln2", sizes.tokens, narrow, system, **norm),
        ),
    )
