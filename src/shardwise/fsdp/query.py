"""What a plan is asked for, checked: setting, collectives, budget, and what nobody said."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shardwise.config.base import MOST
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest
from shardwise.fsdp.plan import Checkpointing, Dtype, Optimizer, Reshard, Setting
from shardwise.fsdp.planner.collectives import CollectiveTimes, LinearTime, LinearTimes, SystemTimes
from shardwise.fsdp.planner.planner import Planner
from shardwise.fsdp.profile import Profile
from shardwise.fsdp.sources import Kind
from shardwise.interop.fsdp_ilp.comm import CommTimes, comm_times, parse_comm, read_comm
from shardwise.units import parse_quantity, readable

__all__ = ["DEFAULT_SYSTEM", "Asked", "Comm"]

DEFAULT_SYSTEM = "h100-sxm"
"""Where times need one and none is given."""
Comm = CommTimes | Mapping[str, Any] | str | Path
"""Latency and bandwidth of collectives: typed, as a mapping, or a file."""

_ALIASES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_WORDS: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "stored_dtype": get_args(Dtype),
    "reduce_dtype": get_args(Dtype),
    "optimizer": get_args(Optimizer),
    "reshard": get_args(Reshard),
    "checkpoint": get_args(Checkpointing),
}
_NODE = 8
_LEAST_RANKS = 2
_MOST_GROUPED = 64
_MS_PER_S = 1e3
_NO_REPLICAS = "collectives on straight lines say nothing of the all-reduce among replicas"


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """A request, checked."""

    kind: Kind
    system: System | None
    setting: Setting
    batch: int
    reshard: Reshard
    checkpoint: Checkpointing
    group: int
    seconds: float
    budget_bytes: float
    budget_from: str
    """Whence the budget is, for people."""
    links_of: Callable[[Setting], CollectiveTimes]
    assumed: tuple[str, ...]
    """What nobody said, for people."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        system: System | str | Path | None,
        numbers: Mapping[str, int | None],
        words: Mapping[str, str | None],
        *,
        memory_budget: float | str | None,
        comm: Comm | None,
        seconds: float,
    ) -> "Asked":
        """Check a request.

        Parameters
        ----------
        numbers
            gpus, gpus_per_node, replicas, batch and group; None: not given.
        words
            dtype, stored_dtype, reduce_dtype, optimizer, reshard and checkpoint; None: not given.

        Raises
        ------
        InputError
            With one fault for each thing that is wrong.
        """
        statistics = kind == "statistics"
        faults = [*_number_faults(numbers), *_seconds_faults(seconds)]
        said, wrong = _words(words)
        faults += wrong
        if statistics and said.get("dtype", "fp32") in ("bf16", "fp16"):
            problem = "statistics count weights in numbers of 4 bytes; allowed: fp32"
            faults.append(
                Fault(field="dtype", value=words["dtype"], has_value=True, problem=problem)
            )
        budget = None
        try:
            budget = None if memory_budget is None else _budget(memory_budget)
        except InputError as error:
            faults += error.faults
        if faults:
            raise InputError(faults)
        given = {name: 0 if number is None else number for name, number in numbers.items()}
        assumed = [] if statistics or given["batch"] else ["1 sequence on each GPU"]
        if system is None and not statistics:
            system = DEFAULT_SYSTEM
            assumed.append(f"system {DEFAULT_SYSTEM}")
        the_system = None if system is None else System.load(system)
        setting = _setting(statistics, given["gpus"], max(given["replicas"], 1), said)
        links_of, told = _links(the_system, setting, given["gpus_per_node"], comm)
        return cls(
            kind=kind,
            system=the_system,
            setting=setting,
            batch=given["batch"] or 1,
            reshard=said.get("reshard") or "choose",  # type: ignore[arg-type] # checked
            checkpoint=said.get("checkpoint") or "none",  # type: ignore[arg-type] # checked
            group=given["group"] or 2,
            seconds=seconds,
            links_of=links_of,
            assumed=(*assumed, *told),
            **_room(the_system, budget),
        )

    def planner(self, profile: Profile, *, gpus: int | None = None) -> Planner:
        """The space to search, on another number of GPUs too."""
        setting = self.setting
        if gpus is not None:
            setting = replace(setting, shards=gpus // setting.replicas)
        return Planner(
            profile=profile,
            setting=setting,
            collectives=self.links_of(setting),
            reshard=self.reshard,
            checkpoint=self.checkpoint,
            most_grouped=self.group,
            seconds=self.seconds,
        )


def _number_faults(numbers: Mapping[str, int | None]) -> list[Fault]:
    """Counts that are none, and ranks that shard nothing."""
    faults = []
    for field, number in numbers.items():
        most = _MOST_GROUPED if field == "group" else MOST
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (whole and 1 <= number <= most):
            problem = f"must be a whole number from 1 to {most}"
            faults.append(Fault(field=field, value=number, has_value=True, problem=problem))
    if faults:
        return faults
    gpus, replicas = numbers["gpus"], numbers["replicas"] or 1
    if gpus is None:
        return [Fault(field="gpus", problem="is missing: weights are sharded over so many")]
    if gpus < _LEAST_RANKS:
        problem = "FSDP shards over two ranks or more; on one there is nothing to plan"
        return [Fault(field="gpus", value=gpus, has_value=True, problem=problem)]
    if gpus % replicas or gpus // replicas < _LEAST_RANKS:
        problem = f"must divide the {gpus} GPUs into groups of two or more to shard over"
        return [Fault(field="replicas", value=replicas, has_value=True, problem=problem)]
    return []


def _seconds_faults(seconds: float) -> list[Fault]:
    if isinstance(seconds, (int, float)) and 0 < seconds < np.inf:
        return []
    problem = "must be a number above 0"
    return [Fault(field="seconds", value=seconds, has_value=True, problem=problem)]


def _words(words: Mapping[str, str | None]) -> tuple[dict[str, str], list[Fault]]:
    """Words in their canonical form, and those that are not allowed."""
    found, faults = {}, []
    for field, word in words.items():
        if word is None:
            continue
        known = _WORDS[field]
        plain = _ALIASES.get(str(word).strip().lower(), str(word).strip().lower())
        if plain not in known:
            problem = f"allowed: {', '.join(known)}{nearest(plain, known)}"
            faults.append(Fault(field=field, value=word, has_value=True, problem=problem))
        found[field] = plain
    return found, faults


def _budget(given: float | str) -> float:
    """Bytes of ``60GiB``."""
    try:
        budget = parse_quantity(given, "bytes")
    except ValueError as error:
        fault = Fault(field="memory_budget", value=given, has_value=True, problem=str(error))
        raise InputError(fault) from None
    if not 0 < budget < np.inf:
        problem = "must be above 0"
        raise InputError(Fault(field="memory_budget", value=given, has_value=True, problem=problem))
    return budget


def _room(system: System | None, budget: float | None) -> dict[str, Any]:
    """The budget and whence it is."""
    if budget is not None:
        return {"budget_bytes": budget, "budget_from": "given"}
    if system is None:
        return {"budget_bytes": np.inf, "budget_from": "none: give --memory-budget or --system"}
    memory = system.accelerator.memory[0].capacity
    return {"budget_bytes": memory, "budget_from": f"all memory of {system.accelerator.name}"}


def _setting(statistics: bool, gpus: int, replicas: int, said: Mapping[str, str]) -> Setting:
    """How FSDP2 is set up; of statistics all is in 4 bytes, and the optimizer is not known."""
    usual = ("fp32", "fp32", "fp32", "none") if statistics else ("bf16", "fp32", "fp32", "adamw")
    fields = ("dtype", "stored_dtype", "reduce_dtype", "optimizer")
    compute, stored, reduce, optimizer = (
        said.get(field, word) for field, word in zip(fields, usual, strict=True)
    )
    return Setting(
        shards=gpus // replicas,
        replicas=replicas,
        stored_dtype=stored,  # type: ignore[arg-type] # checked
        compute_dtype=compute,  # type: ignore[arg-type] # checked
        reduce_dtype=reduce,  # type: ignore[arg-type] # checked
        optimizer=optimizer,  # type: ignore[arg-type] # checked
    )


def _links(
    system: System | None, setting: Setting, per_node: int, comm: Comm | None
) -> tuple[Callable[[Setting], CollectiveTimes], Sequence[str]]:
    """Times of collectives by setting, and where they are from."""
    ruled = comm is None and system is None
    if per_node and not ruled:
        problem = "has no effect beside a system or a file of collectives' times"
        raise InputError(
            Fault(field="gpus_per_node", value=per_node, has_value=True, problem=problem)
        )
    if setting.replicas > 1 and (comm is not None or ruled):
        problem = f"{_NO_REPLICAS}; give a system"
        raise InputError(
            Fault(field="replicas", value=setting.replicas, has_value=True, problem=problem)
        )
    if comm is not None:
        lines = _lines(_comm_of(comm))
        return (lambda _setting: lines), [_in_words("collectives as given", lines)]
    if system is None:
        node = per_node or _NODE

        def by_rule(changed: Setting) -> CollectiveTimes:
            return _lines(comm_times(changed.gpus, node))

        title = f"collectives by fsdp_ilp's rule for nodes of {node}"
        return by_rule, [_in_words(title, _lines(comm_times(setting.gpus, node)))]
    return (lambda changed: SystemTimes(system=system, setting=changed)), []


def _comm_of(comm: Comm) -> CommTimes:
    if isinstance(comm, CommTimes):
        return comm
    return parse_comm(comm) if isinstance(comm, Mapping) else read_comm(comm)


def _lines(comm: CommTimes) -> LinearTimes:
    """The planner's own lines [s, byte/s]."""
    gather, scatter = (
        LinearTime(latency_s=line.latency_ms / _MS_PER_S, bytes_per_s=line.bytes_per_ms * _MS_PER_S)
        for line in (comm.all_gather, comm.reduce_scatter)
    )
    return LinearTimes(all_gather=gather, reduce_scatter=scatter)


def _in_words(title: str, lines: LinearTimes) -> str:
    gather, scatter = (
        f"{readable(line.latency_s, 'seconds')} + bytes / {readable(line.bytes_per_s, 'byte/s')}"
        for line in (lines.all_gather, lines.reduce_scatter)
    )
    told = gather if gather == scatter else f"gather {gather}, reduce-scatter {scatter}"
    return f"{title}: {told}"
