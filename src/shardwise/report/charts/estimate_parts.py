"""What the step and the memory of an estimate are made of: trees of parts that add up."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.analysis.results import Estimate, OperationEstimate
from shardwise.config.strategy_fields import COUNTED_WITH
from shardwise.report.console import GIB, percent, seconds
from shardwise.report.tables.estimate import PART_NAMES

TIME_GROUPS = {
    "compute": ("forward", "backward", "recompute", "optimizer"),
    "exchange": ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload"),
    "waiting": ("bubble",),
    "other": ("other",),
}
"""What a rank does in a step, and the parts of its time that this is."""
MEMORY_GROUPS = {
    "weights and their state": ("weights", "gradients", "optimizer"),
    "activations and buffers": ("activations", "buffers"),
    "allocator and runtime": ("runtime",),
    "free": ("free",),
}
MEMORY_NAMES = {
    "optimizer": "optimizer state",
    "runtime": "allocator and runtime",
}
NO_LIMIT = 2.0**50
"""Bytes of a tier that stand for one without limit; of that no share can be free."""
# Schedules in which the first rank has both ends of the model.
_BOTH_ENDS = ("zb-v", "dualpipe")
# Axes whose communication counts as another's.
_PASSES = {
    "forward": "forward",
    "input_grad": "backward",
    "weight_grad": "backward",
    "recompute": "recompute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component of a total."""

    key: str
    """Unique: its own name, after that of the component it belongs to."""
    name: str
    group: str
    value: float
    """In seconds or bytes."""
    hover: str
    """Text on hovering over it, as lines of HTML."""


def time_parts(result: Estimate) -> list[Part]:
    """Return the parts of the step, which add up to it; parts that take no time are left out."""
    return [
        Part(
            key=part,
            name=PART_NAMES[part],
            group=group,
            value=result.time_s[part],
            hover=_time_hover(result, part),
        )
        for group, parts in TIME_GROUPS.items()
        for part in parts
        if result.time_s[part] > 0
    ]


def _time_hover(result: Estimate, part: str) -> str:
    time_s = result.time_s[part]
    lines = [
        f"<b>{PART_NAMES[part]}</b>",
        f"{seconds(time_s)}, {percent(time_s / result.step_time_s)} of the step",
    ]
    moved = result.comm_s.get(part.removesuffix("_comm"))
    if moved is not None and moved.total > 0:
        hidden = moved.total - moved.exposed
        lines.append(f"alone it would take {seconds(moved.total)}")
        lines.append(f"{seconds(hidden)} of that is hidden" if hidden > 0 else "none is hidden")
    return "<br>".join(lines)


def comm_part(axis: str) -> str:
    """The part of the step that is the exposed communication of an axis, or offload."""
    return axis if axis in PART_NAMES else f"{axis}_comm"


def memory_parts(result: Estimate) -> list[Part]:
    """Return the memory of the peak-memory stage by component, free memory included.

    If it does not fit, nothing is free, and the parts add up to what is needed.
    """
    memory = result.memory_bytes
    sizes = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer")}
    sizes |= {name: getattr(memory, name) for name in ("activations", "buffers")}
    sizes["runtime"] = memory.reserved - memory.total
    unlimited = memory.capacity >= NO_LIMIT
    sizes["free"] = 0.0 if unlimited else max(0.0, memory.capacity - memory.reserved)
    total = sum(sizes.values())
    return [
        Part(
            key=name,
            name=MEMORY_NAMES.get(name, name),
            group=group,
            value=sizes[name],
            hover=f"<b>{MEMORY_NAMES.get(name, name)}</b><br>{sizes[name] / GIB:.2f} GiB, "
            f"{percent(sizes[name] / total)} of {total / GIB:.2f} GiB",
        )
        for group, names in MEMORY_GROUPS.items()
        for name in names
        if sizes[name] > 0
    ]


def operation_parts(result: Estimate) -> list[Part]:
    """Return what every operation has of each part of the step; the group is that part.

    Operations are listed for one layer of each kind. How many of it the critical stage runs
    follows from its number of layers; where several kinds share the stages, each stage is assumed
    to have them in the shares of the model. What the operations of a part take is then scaled to
    that part, so that parts add up: where the stage is known, by what the host adds to kernels.
    """
    exposed: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in result.operations or ():
        part = _part_of(row)
        if part in result.time_s:
            name = (
                row.operation if row.part in ("step", "layer") else f"{row.part}: {row.operation}"
            )
            exposed[part][name.replace("_", " ")] += _copies(result, row) * row.exposed_s
    return [
        piece
        for part, times in exposed.items()
        if result.time_s[part] > 0
        for piece in _scaled(result, part, times)
    ]


def _part_of(row: OperationEstimate) -> str:
    """The part of the step that an operation's row is of."""
    if row.part == "step" and row.operation in ("optimizer", "offload"):
        return row.operation
    axis = COUNTED_WITH.get(row.axis, row.axis)
    return f"{axis}_comm" if axis else _PASSES.get(row.phase, row.phase)


def _scaled(result: Estimate, part: str, times: Mapping[str, float]) -> Iterator[Part]:
    """What operations have of a part, the longest first."""
    total = sum(times.values())
    for name, time_s in sorted(times.items(), key=lambda item: -item[1]):
        value = result.time_s[part] * time_s / total if total > 0 else 0.0
        if value > 0:
            share = percent(value / result.step_time_s)
            hover = f"<b>{name}</b>, {PART_NAMES[part]}<br>{seconds(value)}, {share} of the step"
            yield Part(key=f"{part}/{name}", name=name, group=part, value=value, hover=hover)


def _copies(result: Estimate, row: OperationEstimate) -> float:
    """How many of a row's part of the model the critical stage runs for a micro-batch."""
    if row.part == "step":
        return 1.0
    critical = max(result.stages, key=lambda stage: stage.micro_batch_s)
    if row.part == "layer":
        return critical.layers * row.count / sum(layer.count for layer in result.layers)
    last = len(result.stages) - 1
    both = last == 0 or (result.strategy["schedule"] in _BOTH_ENDS and critical.stage == 0)
    place = 0 if row.part == "embedding" else last
    return float(row.count * (both or critical.stage == place))
