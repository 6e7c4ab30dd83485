"""What the step and the memory of an estimate are made of: trees of parts that add up."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.analysis.results import Estimate, OperationEstimate
from shardwise.report.console import GIB, percent, seconds
from shardwise.report.tables.estimate import PART_NAMES

__all__ = [
    "MEMORY_GROUPS",
    "MEMORY_NAMES",
    "NO_LIMIT",
    "TIME_GROUPS",
    "Part",
    "memory_parts",
    "operation_parts",
    "time_parts",
]

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
# Axes whose exchanges count as another's.
_COUNTED_WITH = {"tp2": "tp", "etp": "ep"}
_PASSES = {
    "forward": "forward",
    "input_grad": "backward",
    "weight_grad": "backward",
    "recompute": "recompute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a whole."""

    key: str
    """Unique: its own word, with that of the part it belongs to before it."""
    name: str
    group: str
    value: float
    """In seconds or bytes."""
    told: str
    """What hovering over it tells, as lines of HTML."""


def time_parts(result: Estimate) -> list[Part]:
    """Return the parts of the step, which add up to it; parts that take no time are left out."""
    return [
        Part(
            key=part,
            name=PART_NAMES[part],
            group=group,
            value=result.time_s[part],
            told=_time_told(result, part),
        )
        for group, parts in TIME_GROUPS.items()
        for part in parts
        if result.time_s[part] > 0
    ]


def _time_told(result: Estimate, part: str) -> str:
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


def memory_parts(result: Estimate) -> list[Part]:
    """Return what the fullest stage holds, with what is free there: together what there is.

    If it does not fit, nothing is free, and the parts add up to what is needed.
    """
    memory = result.memory_bytes
    held = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer")}
    held |= {name: getattr(memory, name) for name in ("activations", "buffers")}
    held["runtime"] = memory.reserved - memory.total
    unlimited = memory.capacity >= NO_LIMIT
    held["free"] = 0.0 if unlimited else max(0.0, memory.capacity - memory.reserved)
    whole = sum(held.values())
    return [
        Part(
            key=name,
            name=MEMORY_NAMES.get(name, name),
            group=group,
            value=held[name],
            told=f"<b>{MEMORY_NAMES.get(name, name)}</b><br>{held[name] / GIB:.2f} GiB, "
            f"{percent(held[name] / whole)} of {whole / GIB:.2f} GiB",
        )
        for group, names in MEMORY_GROUPS.items()
        for name in names
        if held[name] > 0
    ]


def operation_parts(result: Estimate) -> list[Part]:
    """Return what every operation has of each part of the step; the group is that part.

    Operations are listed for one layer of each kind. How many of it the slowest stage runs is
    told by its number of layers; where several kinds share the stages, each stage is taken to have
    them as the model has. What the operations of a part take is then scaled to that part, so that
    parts add up (by 1, where the stage is known).
    """
    taken: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in result.operations or ():
        part = _part_of(row)
        if part in result.time_s:
            name = (
                row.operation if row.part in ("step", "layer") else f"{row.part}: {row.operation}"
            )
            taken[part][name.replace("_", " ")] += _copies(result, row) * row.exposed_s
    return [
        piece
        for part, times in taken.items()
        if result.time_s[part] > 0
        for piece in _scaled(result, part, times)
    ]


def _part_of(row: OperationEstimate) -> str:
    """The part of the step that an operation's row is of."""
    if row.part == "step" and row.operation in ("optimizer", "offload"):
        return row.operation
    axis = _COUNTED_WITH.get(row.axis, row.axis)
    return f"{axis}_comm" if axis else _PASSES.get(row.phase, row.phase)


def _scaled(result: Estimate, part: str, times: Mapping[str, float]) -> Iterator[Part]:
    """What operations have of a part, the longest first."""
    whole = sum(times.values())
    for name, time_s in sorted(times.items(), key=lambda item: -item[1]):
        value = result.time_s[part] * time_s / whole if whole > 0 else 0.0
        if value > 0:
            share = percent(value / result.step_time_s)
            told = f"<b>{name}</b>, {PART_NAMES[part]}<br>{seconds(value)}, {share} of the step"
            yield Part(key=f"{part}/{name}", name=name, group=part, value=value, told=told)


def _copies(result: Estimate, row: OperationEstimate) -> float:
    """How many of a row's part of the model the slowest stage runs for a micro-batch."""
    if row.part == "step":
        return 1.0
    slowest = max(result.stages, key=lambda stage: stage.micro_batch_s)
    if row.part == "layer":
        return slowest.layers * row.count / sum(layer.count for layer in result.layers)
    last = len(result.stages) - 1
    both = last == 0 or (result.strategy["schedule"] in _BOTH_ENDS and slowest.stage == 0)
    place = 0 if row.part == "embedding" else last
    return float(row.count * (both or slowest.stage == place))
