"""`export`: a plan as the files of a launcher, or the nearest plan that the launcher can run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from shardwise._version import __version__
from shardwise.analysis.results import Estimate
from shardwise.config.files import safe_name
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Model, ModelLike
from shardwise.config.plain import joined
from shardwise.config.software.resolve import stack_on
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import StrategyLike, strategy_of
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_flags
from shardwise.estimator import estimate
from shardwise.launchers.launch import Launcher, LaunchFile, LaunchPlan
from shardwise.launchers.read_back import ReadBack, read_back
from shardwise.launchers.registry import launcher_of
from shardwise.launchers.writing import faults_of_plan, known_release, written_by_release
from shardwise.parallel.constraints.software import LIFTS
from shardwise.planning.nearest import (
    NearestPlan,
    blamed_fields,
    flag_words,
    nearest_plan,
    set_fields,
    with_possible_degrees,
)
from shardwise.planning.search.results import FieldChange
from shardwise.shown import Brief
from shardwise.units import readable


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Export(Brief):
    """A plan as files of a launcher.

    Examples
    --------
    >>> from shardwise import export
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> made.estimate.fits, [file.ending for file in made.files]
    (True, ['.sh'])
    """

    launcher: str
    release: str
    files: tuple[LaunchFile, ...]
    """The first is the launch file; the others have its name with their own endings."""
    estimate: Estimate
    """Of the plan that was written."""
    read_back: ReadBack
    """The launch file read again: its estimate, and in what it differs from the plan."""
    changes: tuple[FieldChange, ...] = ()
    """Fields that differ from the requested strategy."""


class CannotExportError(InputError):
    """A launcher cannot run a plan: the reasons, and the nearest plan that it can run.

    Examples
    --------
    >>> from shardwise import CannotExportError, export
    >>> try:
    ...     export("torchtitan", "llama3-8b", "h100-sxm", gpus=8, tp=2, zero=1, gbs=8)
    ... except CannotExportError as error:
    ...     if error.nearest is not None:
    ...         print(error.nearest.strategy["zero"])
    2
    """

    def __init__(
        self,
        faults: "Fault | tuple[Fault, ...]",
        nearest: NearestPlan | None = None,
        *,
        too_large: bool = False,
    ) -> None:
        super().__init__(faults)
        self.nearest = nearest
        """None if there is none with a few changes."""
        self.too_large = too_large
        """Whether memory is the only reason."""

    def __reduce__(self) -> tuple[object, ...]:  # type: ignore[override]
        """Pickle what it was made of."""
        return _error, (self.faults, self.nearest, self.too_large)


def _error(
    faults: tuple[Fault, ...], nearest: NearestPlan | None, too_large: bool
) -> CannotExportError:
    return CannotExportError(faults, nearest, too_large=too_large)


def export(
    launcher: str | Launcher,
    model: ModelLike,
    system: SystemLike,
    strategy: StrategyLike | None = None,
    *,
    release: str | None = None,
    ending: str | None = None,
    nearest: bool = False,
    **fields: Unpack[StrategyKeywords],
) -> Export:
    """Write a plan as the configuration of a launcher.

    Parameters
    ----------
    launcher
        ``megatron``, ``megatron-bridge``, ``torchtitan``, ``deepspeed``, ``accelerate``, ``trl``,
        ``llama-factory``, ``axolotl`` or ``automodel``.
    model, system, strategy, **fields
        As for `estimate`. Without a stack the strategy has that of the launcher, whose rules apply
        and whose times are predicted.
    release
        Release whose options are written; by default the first, of those that the launcher lists,
        that can express the plan.
    ending
        Ending of the launch file, which selects its format; by default the launcher's first.
    nearest
        Whether to write the nearest plan that the launcher can run, if it cannot run this one.

    Returns
    -------
    Export
        The files to write and their notes; `help(shardwise.Export)` lists its fields.

    Raises
    ------
    InputError
        If an input is wrong. `CannotExportError`, with the nearest plan, if the launcher cannot
        express the strategy or the strategy does not fit in memory.

    Examples
    --------
    >>> from shardwise import export
    >>> made = export("torchtitan", "llama3-8b", "h100-sxm", gpus=8, zero=3, gbs=8)
    >>> made.files[0].ending, "data_parallel_shard_degree" in made.files[0].text
    ('.toml', True)
    """
    check_flags(nearest=nearest)
    used = launcher if isinstance(launcher, Launcher) else launcher_of(launcher)
    target = _Target(
        launcher=used,
        model=Model.load(model),
        system=System.load(system),
        release=None if release is None else known_release(used, release),
        ending=ending,
    )
    requested = strategy_of(strategy, fields)
    if requested.any_software:
        problem = "has no effect on an export: what is written runs on the launcher's release"
        raise InputError(Fault.of("any_software", True, problem))
    if requested.stack is None:
        own, usual = Stack.load(used.stack), stack_on(None, target.system, target.model)
        same = usual.release == own.release  # that of the system, where it is of the launcher
        requested = requested.model_copy(update={"stack": usual if same else own})
    changes: tuple[FieldChange, ...] = ()
    try:
        result, plan = target.checked(requested)
    except CannotExportError as error:
        if not nearest or error.nearest is None:
            raise
        changes = error.nearest.changes
        result, plan = target.checked(Strategy.validated(error.nearest.strategy))
    names = [_entered(model, plan.model.name), _entered(system, plan.system.name)]
    software = requested.stack if isinstance(requested.stack, str) else None
    lines = comments(used, plan, result, changes, names, release, software)
    number, written = target.written(replace(plan, comments=tuple(lines)))
    return Export(
        launcher=used.name,
        release=number,
        files=written,
        estimate=result,
        read_back=read_back(plan, result, used, written[0], software),
        changes=changes,
    )


def _entered(argument: object, name: str) -> str:
    """A model or system as a command names it."""
    return str(argument).strip() if isinstance(argument, (str, Path)) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What a strategy is exported for."""

    launcher: Launcher
    model: Model
    system: System
    release: str | None
    ending: str | None

    def written(self, plan: LaunchPlan) -> tuple[str, tuple[LaunchFile, ...]]:
        """The release and the files of a plan."""
        return written_by_release(self.launcher, plan, release=self.release, ending=self.ending)

    def plan(self, resolved: Strategy) -> LaunchPlan:
        """A plan without comments."""
        return LaunchPlan(model=self.model, system=self.system, strategy=resolved)

    def faults(self, resolved: Strategy) -> tuple[Fault, ...]:
        """Why the launcher cannot express a strategy that its stack can run."""
        return faults_of_plan(
            self.launcher, self.plan(resolved), release=self.release, ending=self.ending
        )

    def checked(self, strategy: Strategy) -> tuple[Estimate, LaunchPlan]:
        """Estimate a plan that the launcher can run.

        Raises
        ------
        CannotExportError
            If it cannot.
        """
        resolved = with_possible_degrees(strategy).resolved(self.model, self.system)
        faults = list(self.launcher.faults(self.model, resolved))
        result: Estimate | None = None
        try:
            result = estimate(self.model, self.system, strategy)
        except InputError as error:
            known = {fault.field for fault in error.faults}
            broken = [replace(f, problem=f.problem.removesuffix(LIFTS)) for f in error.faults]
            faults = [*broken, *(fault for fault in faults if fault.field not in known)]
        if result is not None and not faults:
            faults = list(self.faults(resolved))
            if not faults and result.fits:
                return result, self.plan(resolved)
        too_large = result is not None and not faults
        if result is not None and too_large:
            faults = [_memory_fault(result)]
        raise CannotExportError(
            tuple(faults), self._nearest(strategy, InputError(faults)), too_large=too_large
        )

    def _nearest(self, strategy: Strategy, error: InputError) -> NearestPlan | None:
        """The nearest plan that can be written; None where the model is the reason."""
        fields = {fault.field for fault in error.faults} - {""}
        if not fields <= Strategy.model_fields.keys():
            return None
        return nearest_plan(
            self.model,
            self.system,
            strategy,
            lambda candidate: not self.faults(candidate),
            at_fault=blamed_fields(error),
        )


def _memory_fault(result: Estimate) -> Fault:
    memory = result.memory_bytes
    needed, there = readable(memory.reserved, "bytes"), readable(memory.capacity, "bytes")
    if memory.reserved > memory.capacity:
        return Fault(source="memory", problem=f"needs {needed} of {there}; the plan does not fit")
    needed = readable(memory.offloaded, "bytes")
    there = readable(memory.offload_capacity, "bytes")
    problem = f"offloads {needed} of {there}; the plan does not fit"
    return Fault(source="memory", problem=problem)


def comments(
    launcher: Launcher,
    plan: LaunchPlan,
    result: Estimate,
    changes: tuple[FieldChange, ...],
    names: list[str],
    release: str | None,
    software: str | None = None,
) -> list[str]:
    """Lines for people in a launch file: the prediction, and the command that writes it again."""
    memory, interval = result.memory_bytes, result.interval
    peak = max(result.stages, key=lambda stage: stage.reserved).stage
    step = f"step time {readable(result.step_time_s, 'seconds')}"
    if interval is not None:
        low, high = (readable(one, "seconds") for one in (interval.low_s, interval.high_s))
        step += f", {low} to {high} in 8 of 10 runs"
    size, capacity = (readable(one, "bytes") for one in (memory.reserved, memory.capacity))
    rate = f"{result.tokens_per_s:,.0f} tokens/s, {result.tokens_per_s_per_gpu:,.0f} of each GPU"
    lines = [
        f"{result.model} on {result.system} with {result.software.stack}",
        f"predicted by shardwise {__version__}: {step}",
        f"{rate}, MFU {result.mfu * 100:.1f} %",
        f"memory {size} of {capacity} on stage {peak}, the peak-memory stage",
    ]
    if changes:
        lines.append(f"nearest plan that {launcher.title} can run: {change_words(changes)}")
    lines.append(f"still to set: {launcher.yours}")
    return [*lines, " ".join(command_of(launcher, plan, names, release, software))]


def change_words(changes: tuple[FieldChange, ...]) -> str:
    """Return changed fields in a line: `tp 16 instead of 12`."""
    return ", ".join(f"{c.field} {_word(c.value)} instead of {_word(c.given)}" for c in changes)


def _word(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return joined(value)
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def command_of(
    launcher: Launcher,
    plan: LaunchPlan,
    names: list[str],
    release: str | None,
    software: str | None = None,
) -> list[str]:
    """Return the words of the command that writes a plan again.

    Parameters
    ----------
    software
        The stack as the user names it.
    """
    words = ["shardwise", "export", launcher.name, *map(shlex.quote, names)]
    plain = plan.strategy.to_dict()
    for name in set_fields(plan.model, plan.strategy, software, plan.system):
        words += flag_words(name, plain[name])
    if plain["stack"] != Stack.load(launcher.stack).to_fields():
        named = software or (plain["stack"] if isinstance(plain["stack"], str) else None)
        words += ["--stack", shlex.quote(named)] if named else ["--strategy", "FILE_WITH_STACK"]
    return [*words, *(["--release", release] if release else [])]


def file_names(output: str, written: Sequence[LaunchFile]) -> dict[str, LaunchFile]:
    """Return the files of an export by path: next to the first, with its name."""
    first, *others = written
    stem = output[: -len(first.ending)] if output.lower().endswith(first.ending) else output
    return {output: first} | {stem + one.ending: one for one in others}


def download_names(model: str, written: Sequence[LaunchFile]) -> dict[str, LaunchFile]:
    """Return the files of an export by name; anyone may have chosen that of the model."""
    return file_names(f"{safe_name(model)}{written[0].ending}", written)
