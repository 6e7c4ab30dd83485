"""What one layer adds up to, and the bandwidths that would hide what is exposed, as tables."""

from rich.table import Table

from shardwise.analysis.results import Estimate, LayerTotals
from shardwise.report.console import count, plain_table, seconds
from shardwise.units import readable

__all__ = ["bandwidth_table", "layer_table"]

_PASSES = {
    "forward": "forward",
    "recompute": "recompute",
    "input_grad": "gradient of inputs",
    "weight_grad": "gradient of weights",
    "optimizer": "optimizer, per step",
}
_EXCHANGES = {
    "tp_forward": "exchanges forward",
    "tp_backward": "exchanges backward",
    "tp_again": "exchanges again",
    "cp": "context exchanges, all passes",
    "ep": "experts' exchanges, all passes",
}
_NEEDED = {
    "tp_overlap": "tensor-parallel communication behind GEMMs",
    "dp_chunks": "gradients of all chunks but the last",
    "dp_tail": "gradients of the last chunk",
    "offload_weights": "weights in the second tier",
    "offload_activations": "activations in the second tier",
    "offload_optimizer": "optimizer state in the second tier",
    "offload": "all that is offloaded, together",
}


def layer_table(layer: LayerTotals) -> Table:
    """One layer, one micro-batch, one rank."""
    table = plain_table(
        "pass",
        "FLOPs",
        "bytes",
        "volume",
        "compute",
        "memory",
        "time",
        "exposed",
        title=f"One layer of {layer.count}, added up",
        goes=("compute", "memory", "bytes"),
    )
    for name, label in _PASSES.items():
        done = getattr(layer, name)
        if done.time_s:
            parts = (seconds(done.compute_s), seconds(done.memory_s), seconds(done.time_s))
            table.add_row(label, count(done.flops), readable(done.bytes, "bytes"), "-", *parts, "-")
    for name, label in _EXCHANGES.items():
        moved = getattr(layer, name)
        if moved.time_s:
            volume = readable(moved.volume_bytes, "bytes")
            times = (seconds(moved.time_s), seconds(moved.exposed_s))
            table.add_row(label, "-", "-", volume, "-", "-", *times)
    return table


def bandwidth_table(result: Estimate) -> Table:
    """Least bandwidths that would hide transfers behind compute."""
    table = plain_table("to hide", "bandwidth needed")
    for name, label in _NEEDED.items():
        rate = getattr(result.required_bandwidth, name)
        if rate != 0:
            needed = "none would do" if rate is None else readable(rate, "byte/s")
            table.add_row(label, needed)
    return table
