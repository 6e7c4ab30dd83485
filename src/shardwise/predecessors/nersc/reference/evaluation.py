"""A step, its memory and its statistics under their published names (sections 4 and 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, total
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reference.block import Block, block_of
from shardwise.predecessors.nersc.reference.inputs import (
    Columns,
    Method,
    NerscConfiguration,
    check_together,
)
from shardwise.predecessors.nersc.reference.layers import (
    Collective,
    Layer,
    LayerTime,
    collective_time,
    layer_time,
    message_times,
)


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
    """What one stage sends to the next [GB]."""


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
    weights_gb = weights * layers
    return Memory(
        weights=weights_gb,
        gradients=weights_gb,
        optimizer=6 * weights_gb / _replicas(method, columns),
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
    """Ranks that have the same weights."""
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
    """Exposed data-parallel communication: c + (d - 1) max(c - T, 0), with c that of one layer [s].

    Fault: T, the pass of one layer of one micro-batch that hides it, includes its own
    communication.
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


_SHARES = {
    "comp_frac": "t_comp",
    "tp_comm_frac": "t_tp_comm",
    "dp_comm_frac": "t_dp_comm",
    "pp_comm_frac": "t_pp_comm",
    "bubble_frac": "t_bubble",
    "mem_frac": "t_mem",
}


def statistics_of(
    model: NerscModel,
    system: NerscSystem,
    method: Method,
    columns: Columns,
    global_batch: int,
) -> dict[str, Floats]:
    """Statistics of a step as columns: seconds, GB, and TFLOP of one accelerator.

    FLOPs count vector work as if the matrix units did it in the same time, so they depend on the
    system (a fault).
    """
    batches = global_batch // columns.dp // columns.b
    block = block_of(model, system, method, columns)
    layer = block_time(block, columns, system)
    step = step_of(model, system, method, columns, batches, layer)
    memory = memory_of(model, method, columns, batches, block.stored, block.weights)
    repeated = batches * step.layers
    found = {
        "t": step.total,
        "flops_per_gpu": block.flops * repeated,
        "mem": memory.total,
        "t_comp": layer.comp * repeated,
        "t_mem": layer.mem * repeated,
        "t_tp_comm": layer.comm * repeated,
        "t_dp_comm": step.dp_fwd + step.dp_bwd,
        "t_pp_comm": 2 * step.messages,
        "t_bubble": step.bubble,
    }
    return {
        **found,
        **{name: found[part] / step.total for name, part in _SHARES.items()},
        "wts_mem": memory.weights,
        "wts_grad_mem": memory.gradients,
        "wts_optimizer_states_mem": memory.optimizer,
        "acts_mem": memory.activations,
    }


def statistics(
    model: NerscModel, system: NerscSystem, configuration: NerscConfiguration
) -> dict[str, float | int]:
    """All statistics of one configuration."""
    check_together(model, system, configuration)
    method, columns = configuration.method, Columns.of([configuration])
    found = statistics_of(model, system, method, columns, configuration.global_batch)
    return {name: float(value[0]) for name, value in found.items()} | placement(configuration)


def placement(configuration: NerscConfiguration) -> dict[str, int]:
    """Members of each group in one domain, under the published names."""
    c = configuration
    tensor = {"nv_tp": c.t1} if c.method == "1d" else {"nv_tp1": c.t1, "nv_tp2": c.t2}
    return {**tensor, "nv_dp": c.t_dp, "nv_pp": c.t_pp}


def configuration_words(configuration: NerscConfiguration) -> dict[str, int]:
    """Degrees, micro-batch and panels of a configuration, under the published names."""
    c = configuration
    published = {"dp": c.dp, "tp": c.m1 * c.m2}
    if c.method != "1d":
        published |= {"tp1": c.m1, "tp2": c.m2}
    published |= {"pp": c.pp, "mbs": c.b}
    return published | {"nb": c.nb} if c.method == "2d" else published


def layer_statistics(
    model: NerscModel, system: NerscSystem, configuration: NerscConfiguration
) -> list[dict[str, Any]]:
    """Figures of each layer of one micro-batch, then of data-parallel and pipeline communication.

    The last two, `dp_comms` and `pp_comms`, have the volume of one layer and of one message, and
    times of a step.
    """
    check_together(model, system, configuration)
    method, columns = configuration.method, Columns.of([configuration])
    block = block_of(model, system, method, columns)
    records = [_layer(one, layer_time(one, columns, system)) for one in block.layers]
    batches = configuration.global_batch // columns.dp // columns.b
    layer = block_time(block, columns, system)
    step = step_of(model, system, method, columns, batches, layer)
    replicas = ("allgather", step.dp_fwd), ("reducescatter", step.dp_bwd)
    messages = ("p2p", step.messages), ("p2p", step.messages)
    return [
        *records,
        _communication_record("dp_comms", layer.weights, *replicas),
        _communication_record("pp_comms", layer.boundary, *messages),
    ]


def _layer(layer: Layer, time: LayerTime) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "name": layer.name,
        "weights_mem": layer.weights,
        "weights_grad_mem": layer.weights,
        "flops_fwd": layer.flops_fwd,
        "activation_buffer": layer.stored,
        **_volumes("fwd", layer.fwd),
        "flops_bwd": layer.flops_bwd,
        **_volumes("bwd", layer.bwd),
    }
    for name, one in (("fwd", time.fwd), ("bwd", time.bwd)):
        figures |= {
            f"t_{name}": one.total,
            f"t_{name}_comm": one.comm,
            f"t_{name}_comp": one.comp,
            f"t_{name}_mem": one.mem,
            f"intensity_{name}": one.intensity,
        }
    return _plain(figures | {"t": time.fwd.total + time.bwd.total})


def _volumes(name: str, collectives: Sequence[Collective]) -> dict[str, Any]:
    """Volume and kind of the collectives of a pass: lists where there are several."""
    volumes = [float(one.volume[0]) for one in collectives] or [0.0]
    kinds = [one.kind for one in collectives] or ["none"]
    several = len(volumes) > 1
    return {
        f"comm_{name}": volumes if several else volumes[0],
        f"comm_{name}_type": kinds if several else kinds[0],
    }


def _communication_record(
    name: str, volume: Floats, fwd: tuple[str, Floats], bwd: tuple[str, Floats]
) -> dict[str, Any]:
    """Communication as a layer that does nothing else."""
    figures: dict[str, Any] = {"name": name} | dict.fromkeys(
        ("weights_mem", "weights_grad_mem", "flops_fwd", "activation_buffer"), 0.0
    )
    figures |= {"comm_fwd": volume, "comm_fwd_type": fwd[0], "flops_bwd": 0.0}
    figures |= {"comm_bwd": volume, "comm_bwd_type": bwd[0]}
    for side, (_, time) in (("fwd", fwd), ("bwd", bwd)):
        figures |= {f"t_{side}": time, f"t_{side}_comm": time, f"t_{side}_comp": 0.0}
        figures |= {f"t_{side}_mem": 0.0, f"intensity_{side}": 0.0}
    return _plain(figures | {"t": fwd[1] + bwd[1]})


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Columns of one row as numbers."""
    return {
        name: float(value[0]) if isinstance(value, np.ndarray) else value
        for name, value in figures.items()
    }
