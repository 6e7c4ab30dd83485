"""One layer: what it computes, moves, keeps and exchanges; and how long that takes (section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.nersc.reference.collectives import collective_time
from shardwise.interop.nersc.reference.columns import Columns
from shardwise.interop.nersc.reference.inputs import NerscSystem

__all__ = ["Exchange", "Layer", "LayerTime", "PassTime", "layer_time"]

_START = 20e-6
"""Charged to every pass of every layer, whatever it computes [s] (section 3)."""
_EFFICIENCY = 0.8
"""Share of either peak that a layer reaches (section 3)."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective of a pass."""

    kind: str
    volume: Floats
    """The whole buffer [GB]."""
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
    """Kept from forward to backward [GB]."""
    weights: Floats
    """[GB]."""
    fwd: Sequence[Exchange] = ()
    bwd: Sequence[Exchange] = ()
    vector: bool = True
    """Whether the vector units run it; if not, the matrix units."""
    panels: bool = False
    """Whether it exchanges panel by panel beside its product (SUMMA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Time of one pass by what it is spent on [s]."""

    comp: Floats
    mem: Floats
    """What memory takes longer than compute."""
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

    def one(flops: Floats, moved: Floats, exchanges: Sequence[Exchange]) -> PassTime:
        comp = _START + flops / (_EFFICIENCY * peak)
        memory = moved / system.hbm_bandwidth
        mem = np.maximum(memory - comp, 0.0)
        comm = np.zeros_like(comp)
        for exchange in exchanges:
            comm = comm + _exchange_time(exchange, layer, columns, system)
        if layer.panels:
            comm = comm + np.maximum(columns.nb * comm - (comp + mem), 0.0)
        return PassTime(comp=comp, mem=mem, comm=comm, intensity=comp / memory)

    return LayerTime(
        fwd=one(layer.flops_fwd, layer.moved_fwd, layer.fwd),
        bwd=one(layer.flops_bwd, layer.moved_bwd, layer.bwd),
    )


def _exchange_time(
    exchange: Exchange, layer: Layer, columns: Columns, system: NerscSystem
) -> Floats:
    """Time of an exchange, or of one panel of it [s]."""
    first = exchange.axis == 1
    members, inside = (columns.m1, columns.t1) if first else (columns.m2, columns.t2)
    volume = exchange.volume / columns.nb if layer.panels else exchange.volume
    return collective_time(exchange.kind, volume, members, inside, system)
