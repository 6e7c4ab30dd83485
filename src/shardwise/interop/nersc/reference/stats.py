"""Statistics of configurations, and of each of their layers, under their published names."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.nersc.reference.block import block_of
from shardwise.interop.nersc.reference.columns import Columns
from shardwise.interop.nersc.reference.inputs import (
    Method,
    NerscConfiguration,
    NerscModel,
    NerscSystem,
    check_together,
)
from shardwise.interop.nersc.reference.layer import Exchange, Layer, LayerTime, layer_time
from shardwise.interop.nersc.reference.totals import block_time, memory_of, step_of

__all__ = ["configuration_words", "layer_statistics", "placement", "statistics", "statistics_of"]

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
    """All statistics of one configuration.

    Raises
    ------
    InputError
        If model, system and configuration do not go together.
    """
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
    words = {"dp": c.dp, "tp": c.m1 * c.m2}
    if c.method != "1d":
        words |= {"tp1": c.m1, "tp2": c.m2}
    words |= {"pp": c.pp, "mbs": c.b}
    return words | {"nb": c.nb} if c.method == "2d" else words


def layer_statistics(
    model: NerscModel, system: NerscSystem, configuration: NerscConfiguration
) -> list[dict[str, Any]]:
    """Figures of each layer of one micro-batch, then of the exchanges among replicas and stages.

    The last two, `dp_comms` and `pp_comms`, have the volume of one layer and of one message, and
    times of a whole step.

    Raises
    ------
    InputError
        If model, system and configuration do not go together.
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
        _exchange("dp_comms", layer.weights, *replicas),
        _exchange("pp_comms", layer.boundary, *messages),
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


def _volumes(name: str, exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Volume and kind of the exchanges of a pass: lists where there are several."""
    volumes = [float(one.volume[0]) for one in exchanges] or [0.0]
    kinds = [one.kind for one in exchanges] or ["none"]
    several = len(volumes) > 1
    return {
        f"comm_{name}": volumes if several else volumes[0],
        f"comm_{name}_type": kinds if several else kinds[0],
    }


def _exchange(
    name: str, volume: Floats, fwd: tuple[str, Floats], bwd: tuple[str, Floats]
) -> dict[str, Any]:
    """An exchange as a layer that does nothing else."""
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
