"""The layers: what each computes, moves, stores and communicates, and its time (sections 3, 4).

Sizes are in elements: b sequences of L tokens on one accelerator. Of products and attention,
gradients of input and weights are both in the backward pass. Of the other layers, N = rows x width
of the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.predecessors.nersc.files import NerscSystem
from shardwise.predecessors.nersc.reference.inputs import Columns

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
