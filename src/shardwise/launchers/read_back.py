"""What a written launch file says of a plan: read again, estimated and compared by field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.software.resolve import is_description
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS
from shardwise.errors import InputError
from shardwise.estimator import estimate
from shardwise.launchers.launch import Launcher, LaunchFile, LaunchPlan, LaunchText
from shardwise.launchers.registry import read_by
from shardwise.launchers.software import described_as
from shardwise.units import readable

_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDifference:
    """A field whose value in a launch file, read again, is not that of the plan.

    Examples
    --------
    >>> from shardwise import export
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8, stack="nemo-2025")
    >>> print(made.read_back.differences[0])
    stack: nemo-2025 in the plan, megatron-lm-2026 in the file
    """

    field: str
    """Of the strategy; `stack.` and a field of the stack; or `model`."""
    plan: Any
    file: Any
    in_file: bool
    """Whether the file sets it; if not, `file` is the default."""

    def __str__(self) -> str:
        where = "in the file" if self.in_file else "by default: the file does not set it"
        return f"{self.field}: {self.plan} in the plan, {self.file} {where}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: getattr(self, name) for name in ("field", "plan", "file", "in_file")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """A plan as its launch file has it, without what a command sets next to the file."""

    estimate: Estimate | None
    """Of the file; None: see `problem`."""
    differences: tuple[FileDifference, ...] = ()
    """Fields that make step time or memory differ; without any, both are those of the plan."""
    problem: str = ""
    """Why the file alone has no estimate."""
    described: str = ""
    """Software that the file was read with, where the user describes it."""

    def lines(self, planned: Estimate) -> list[str]:
        """Return lines for people."""
        if self.estimate is None:
            return [f"the file alone has no estimate: {self.problem}", *map(str, self.differences)]
        seconds = readable(self.estimate.step_time_s, "seconds")
        read = f"read back as {self.described}" if self.described else "read back"
        if not self.differences:
            return [f"the file, {read}, is the plan: step time {seconds}"]
        more = self.estimate.step_time_s / planned.step_time_s - 1
        first = f"the file, {read}, has step time {seconds} ({more:+.1%}):"
        return [first, *(f"  {one}" for one in self.differences)]


def read_back(
    plan: LaunchPlan,
    planned: Estimate,
    launcher: Launcher,
    file: LaunchFile,
    software: str | None = None,
) -> ReadBack:
    """Read a launch file again and compare it with the plan that it was written for.

    Parameters
    ----------
    software
        The stack as the user names it; a description is that of the file, too.
    """
    gpus, name = plan.strategy.gpus, f"plan{file.ending}"
    own = LaunchText(source=name, text=file.text, model=plan.model, gpus=gpus)
    launch = read_by(launcher, own)
    if software is not None and is_description(software):
        text = str(software)
        found = _compared(plan, planned, described_as(launch, text), text)
        if found.estimate is not None:
            return found
    return _compared(plan, planned, launch, "")


def _compared(plan: LaunchPlan, planned: Estimate, launch: Launch, described: str) -> ReadBack:
    """Estimate what was read, and compare it with the plan."""
    own, model = plan.strategy, launch.model or plan.model
    required = {"global_batch_size": own.global_batch_size}
    if model.seq_len is None:
        required["seq_len"] = own.seq_len
    stack = {"stack": plan.system.stack}
    strategy = Strategy.validated(stack | required | dict(launch.strategy))
    strategy = strategy.resolved(model, plan.system)
    problem, found = "", None
    try:
        found = estimate(model, plan.system, strategy)
    except InputError as error:
        problem = str(error)
    if found is not None and _are_same(found, planned):
        return ReadBack(estimate=found, described=described)
    every = list(_differences(plan, model, strategy, launch.strategy))
    alone = [one for one, variant in every if _has_effect(plan, planned, *variant)]
    differences = tuple(alone or (one for one, _ in every))
    return ReadBack(estimate=found, differences=differences, problem=problem, described=described)


def _differences(
    plan: LaunchPlan, model: Model, strategy: Strategy, written: Mapping[str, object]
) -> Iterator[tuple[FileDifference, tuple[Model, Strategy]]]:
    """Yield differences, each with the plan that has the value of the file in this field alone."""
    own, stack, read = plan.strategy, plan.strategy.loaded_stack(), strategy.loaded_stack()
    if model.name != plan.model.name:
        one = FileDifference(field="model", plan=plan.model.name, file=model.name, in_file=True)
        yield one, (model, own)
    plain, other = own.to_dict(), strategy.to_dict()
    for name in COLUMNS:
        if name in ("stack", "any_software") or plain[name] == other[name]:
            continue
        one = FileDifference(
            field=name, plan=_plain(plain[name]), file=_plain(other[name]), in_file=name in written
        )
        changed = {name: getattr(strategy, name)}
        yield one, (plan.model, own.model_copy(update=changed))
    changed = {"stack": read}
    if stack.name != read.name:
        one = FileDifference(field="stack", plan=stack.name, file=read.name, in_file=True)
        yield one, (plan.model, own.model_copy(update=changed))
        return
    figures, others = stack.to_dict(), read.to_dict()
    for name in Stack.model_fields:
        if name != "sources" and figures[name] != others[name]:
            changed = {"stack": stack.model_copy(update={name: getattr(read, name)})}
            one = FileDifference(
                field=f"stack.{name}", plan=figures[name], file=others[name], in_file=True
            )
            yield one, (plan.model, own.model_copy(update=changed))


def _plain(value: object) -> object:
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _has_effect(plan: LaunchPlan, planned: Estimate, model: Model, strategy: Strategy) -> bool:
    """Whether a variant of a plan has another step time or memory, or none."""
    try:
        found = estimate(model, plan.system, strategy)
    except InputError:
        return True
    return not _are_same(found, planned)


def _are_same(one: Estimate, other: Estimate) -> bool:
    pairs = (
        (one.step_time_s, other.step_time_s),
        (one.memory_bytes.reserved, other.memory_bytes.reserved),
    )
    return all(isclose(a, b, rel_tol=_SAME) for a, b in pairs)
