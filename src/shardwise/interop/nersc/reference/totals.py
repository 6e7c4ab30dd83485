"""A step: layers, micro-batches, stages and replicas together; and memory (sections 4 and 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints, total
from shardwise.interop.nersc.reference.block import Block
from shardwise.interop.nersc.reference.collectives import collective_time, message_times
from shardwise.interop.nersc.reference.columns import Columns
from shardwise.interop.nersc.reference.inputs import Method, NerscModel, NerscSystem
from shardwise.interop.nersc.reference.layer import LayerTime, layer_time

__all__ = ["BlockTime", "Memory", "Step", "block_time", "memory_of", "step_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """One transformer layer, one micro-batch: sums over its layers."""

    fwd: Floats
    """[s]."""
    bwd: Floats
    comp: Floats
    mem: Floats
    comm: Floats
    weights: Floats
    """[GB]."""
    boundary: Floats
    """What one stage hands to the next [GB]."""


def block_time(block: Block, columns: Columns, system: NerscSystem) -> BlockTime:
    """Time of a transformer layer; of the columns only b, m1, m2, nb, t1 and t2 count."""
    times = [layer_time(layer, columns, system) for layer in block.layers]
    return BlockTime(
        fwd=_sum(times, lambda time: time.fwd.total),
        bwd=_sum(times, lambda time: time.bwd.total),
        comp=_sum(times, lambda time: time.fwd.comp + time.bwd.comp),
        mem=_sum(times, lambda time: time.fwd.mem + time.bwd.mem),
        comm=_sum(times, lambda time: time.fwd.comm + time.bwd.comm),
        weights=block.weights,
        boundary=block.boundary,
    )


def _sum(times: Sequence[LayerTime], figure: Callable[[LayerTime], Floats]) -> Floats:
    columns = [figure(time) for time in times]
    return total(columns, columns[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one accelerator [GB]."""

    weights: Floats
    gradients: Floats
    """In the type of the weights."""
    optimizer: Floats
    activations: Floats

    @property
    def total(self) -> Floats:
        """All there is: no workspace, buffer, embedding or head."""
        return self.weights + self.gradients + self.optimizer + self.activations


def memory_of(
    model: NerscModel,
    method: Method,
    columns: Columns,
    microbatches: Ints,
    stored: Floats,
    weights: Floats,
) -> Memory:
    """Memory of one accelerator of the first stage, with a distributed optimizer.

    With W = weights of its d = depth // pp layers: W, gradients W, master weights and two moments
    6 W / shards; activations of d layers of min(pp, nm) micro-batches.

    Parameters
    ----------
    stored, weights
        Of one transformer layer [GB].
    """
    layers = model.depth // columns.pp
    held = weights * layers
    return Memory(
        weights=held,
        gradients=held,
        optimizer=6 * held / _replicas(method, columns),
        activations=stored * layers * np.minimum(columns.pp, microbatches),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Time of a step by what it is spent on [s]."""

    layers: Ints
    """Of a stage."""
    microbatches: Ints
    passes: Floats
    """Layers, forward and backward."""
    messages: Floats
    """Between stages, one direction."""
    bubble: Floats
    dp_fwd: Floats
    """Exposed gathering of weights."""
    dp_bwd: Floats
    """Exposed reduction of gradients."""

    @property
    def total(self) -> Floats:
        """Time of the step."""
        return self.passes + 2 * self.messages + self.bubble + (self.dp_fwd + self.dp_bwd)


def step_of(
    model: NerscModel,
    system: NerscSystem,
    method: Method,
    columns: Columns,
    microbatches: Ints,
    block: BlockTime,
) -> Step:
    """Time of a step of nm micro-batches on d = depth // pp layers of a stage (1F1B).

    Layers (fwd + bwd) nm d; then T0 = layers + messages, and a bubble of (pp - 1) T0 / nm.
    """
    layers = model.depth // columns.pp
    passes = (block.fwd + block.bwd) * microbatches * layers
    messages = microbatches * _message(block.boundary, columns, system)
    gathered, reduced = (
        _dp_time(kind, hidden, method, columns, layers, block.weights, system)
        for kind, hidden in (("allgather", block.fwd), ("reducescatter", block.bwd))
    )
    return Step(
        layers=layers,
        microbatches=microbatches,
        passes=passes,
        messages=messages,
        bubble=(columns.pp - 1) * (passes + 2 * messages) / microbatches,
        dp_fwd=gathered,
        dp_bwd=reduced,
    )


def _replicas(method: Method, columns: Columns) -> Ints:
    """Ranks that hold the same weights."""
    return columns.dp * columns.m2 if method == "2d-seqp" else columns.dp


def _dp_time(
    kind: str,
    hidden: Floats,
    method: Method,
    columns: Columns,
    layers: Ints,
    weights: Floats,
    system: NerscSystem,
) -> Floats:
    """Exposed exchange among replicas: c + (d - 1) max(c - T, 0), with c that of one layer [s].

    Fault: T, the pass of one layer of one micro-batch that hides it, includes its own exchanges.
    """
    inside = columns.t_dp * columns.t2 if method == "2d-seqp" else columns.t_dp
    one = collective_time(kind, weights, _replicas(method, columns), inside, system)
    return one + (layers - 1) * np.maximum(one - hidden, 0.0)


def _message(boundary: Floats, columns: Columns, system: NerscSystem) -> Floats:
    """Mean time of a message between two stages [s].

    Fault: where some stages share a domain, messages between domains cost nothing; they are
    pp // t_pp - 1 of the pp - 1.
    """
    slow, fast = message_times(boundary, system)
    links = columns.pp - 1
    between = columns.pp // columns.t_pp - 1
    mean = (links - between) * fast / np.maximum(links, 1)
    return np.where(links == 0, 0.0, np.where(columns.t_pp == 1, slow, mean))
