"""Whether launch file, log, trace and system are of the same run on the same machine."""

import re
from collections.abc import Iterator

import numpy as np

from shardwise.config.launch import Launch
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault
from shardwise.launchers.kineto.steps import TracedSteps
from shardwise.launchers.logs import RunLog
from shardwise.report.console import seconds

_MOST_APART = 3.0
"""A profiler slows steps down, but not more often than this; a log has means with stalls."""
_PRODUCT = re.compile(r"(?<![A-Z0-9])(?:GB|GH|MI|[ABHVLTP])\d{2,4}[A-Z]{0,2}(?![A-Z0-9])")


def product_of(name: str) -> str:
    """Return the product in a name: A100 of NVIDIA A100-SXM4-80GB; empty: none is known.

    A superchip counts as its accelerator: GB200 has B200.
    """
    found = _PRODUCT.search(name.upper().replace("GAUDI", ""))
    return "" if found is None else found[0].removeprefix("G")


def trace_faults(trace: TracedSteps, system: System, median_s: float) -> Iterator[Fault]:
    """Yield why a trace is not one of the run that was logged, or of the system."""
    own, traced = product_of(system.accelerator.name), product_of(trace.device)
    if own and traced and own != traced:
        problem = f"{system.name} has {system.accelerator.name}: the trace is of another machine"
        yield Fault.of("deviceProperties", trace.device, problem, source=trace.source)
    ratio = trace.step_s / median_s
    if not 1 / _MOST_APART <= ratio <= _MOST_APART:
        problem = (
            f"its steps take {seconds(trace.step_s)}, those of the log {seconds(median_s)}: the "
            "trace is of another run"
        )
        yield Fault(source=trace.source, problem=problem)


def exceeds_node(launch: Launch, own: Strategy, changed: Strategy) -> bool:
    """Whether a change puts a tensor-parallel group on more ranks than a node of the file has."""
    per_node = launch.per_node
    return per_node is not None and changed.tp > max(own.tp, per_node)


def notes(launch: Launch, log: RunLog, system: System, own: Strategy) -> Iterator[str]:
    """Yield in what the inputs differ, where it is no reason to refuse them."""
    per_node, gpus = launch.per_node, int(own.gpus or 1)
    node = min(system.node.accelerators, gpus)
    if per_node is not None and per_node != node:
        yield (
            f"{launch.source} starts {per_node} ranks on a node, and {system.name} has {node} "
            "accelerators in one: is it the system? Changes with tp above "
            f"{per_node} are left out"
        )
    batches = log.global_batch[~np.isnan(log.global_batch)]
    if batches.size and (last := int(batches[-1])) != own.global_batch_size:
        yield (
            f"{log.source} has a global batch of {last}, and the launch file "
            f"{own.global_batch_size}: is the log of another run? Set --gbs"
        )
