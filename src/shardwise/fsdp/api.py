"""`plan_fsdp`: check a request, profile the model, and find the best wrapping with its proof."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import numpy as np

from shardwise.config.base import MOST
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, allowed_words, check_flags, check_function
from shardwise.fsdp.plan import Checkpointing, Dtype, Optimizer, Reshard, Setting
from shardwise.fsdp.planner.collectives import CollectiveTimes, Comm, collective_times
from shardwise.fsdp.planner.planner import (
    NamedPlan,
    Planner,
    compare_common_wrappings,
    front,
    largest_batch,
    smallest_gpus,
)
from shardwise.fsdp.profile import Profile
from shardwise.fsdp.result import FsdpPlan, WhatIf
from shardwise.fsdp.sources import Kind, ShardableModel, find_model
from shardwise.fsdp.wrappings import parse_wrapping
from shardwise.predecessors.fsdp_ilp.comm import CommTimes
from shardwise.units import parse_memory, readable

Progress = Callable[[str, int, int], None]
"""Called with the task, how many items are done, and how many there are (0: unknown)."""
DEFAULT_SYSTEM = "h100-sxm"
"""Used where times need a system and none is set."""

_ALIASES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_WORDS: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "stored_dtype": get_args(Dtype),
    "reduce_dtype": get_args(Dtype),
    "optimizer": get_args(Optimizer),
    "reshard": get_args(Reshard),
    "checkpoint": get_args(Checkpointing),
}
_LEAST_RANKS = 2
_MOST_GROUPED = 64
# For the fewest GPUs, every number of nodes up to 128 is tried, then 8 powers of two times that.
_NODE, _NODES_ONE_BY_ONE, _DOUBLED = 8, 128, 8


def plan_fsdp(
    source: object,
    system: SystemLike | None = None,
    *,
    gpus: int,
    gpus_per_node: int | None = None,
    replicas: int | None = None,
    memory_budget: float | str | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    dtype: str | None = None,
    stored_dtype: str | None = None,
    reduce_dtype: str | None = None,
    optimizer: str | None = None,
    reshard: str = "choose",
    checkpoint: str = "none",
    group: int = 2,
    units: object = None,
    comm: Comm | None = None,
    traced: bool = True,
    pareto: bool = False,
    what_if: bool = False,
    verify: bool = False,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> FsdpPlan:
    """Choose the units of FSDP2 with the least exposed communication within a memory budget.

    Parameters
    ----------
    source
        A file of module statistics (`GPT_modules_info.json`); ``package.module:factory``, a torch
        module or a callable that makes one; a `config.json` of Hugging Face or its folder; a model
        of the catalog, a file of one or a `Model`.
    system
        Accelerator and network: a `System`, a catalog name or a file. Statistics need none: they
        have times, and without a system collectives follow fsdp_ilp's rule. Else: ``h100-sxm``.
    gpus, gpus_per_node, replicas
        All ranks; those of a node where there is no system (8); groups of ranks with the same
        weights (hybrid sharding; 1: none).
    memory_budget
        Bytes or text such as ``"60 GiB"``; without it the accelerator's memory.
    batch, seq_len
        Sequences on a GPU (1) and tokens of each.
    dtype, stored_dtype, reduce_dtype, optimizer
        Types of gathered weights (bf16), sharded weights (fp32) and the gradient reduction (fp32);
        and ``adamw``, ``sgd`` or ``none``. For statistics: fp32, and none.
    reshard
        Whether units are freed after forward: ``always``, ``never``, or what is best for each.
    checkpoint
        Activation checkpointing of blocks: ``none``, ``all``, or as many as is best (``choose``).
    group
        Most modules in one call of `fully_shard`.
    units
        A wrapping to compare with; see `parse_wrapping`.
    comm
        Latency and bandwidth of collectives in place of the system's; see `parse_comm`.
    traced
        Whether a config of Hugging Face is traced with torch, or read as a `Model`.
    pareto, what_if
        Whether to also find the front of memory and time; the fewest GPUs and the largest batch.
    verify
        Whether to also run the plan with PyTorch's FSDP2 on fake tensors; needs a torch module.
    seconds
        Time after which a proof is cut short [s].
    progress
        Called before each task.

    Returns
    -------
    FsdpPlan
        The units, their times and memory; `help(shardwise.FsdpPlan)` lists its fields.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong.

    Examples
    --------
    >>> from shardwise import plan_fsdp
    >>> plan = plan_fsdp("llama3-8b", "h100-sxm", gpus=8, memory_budget="60 GiB")
    >>> plan.feasible, plan.best().optimal
    (True, True)
    """
    check_flags(traced=traced, pareto=pareto, what_if=what_if, verify=verify)
    check_function("progress", progress)
    if comm is not None and not isinstance(comm, (CommTimes, Mapping, str, Path)):
        raise InputError.of("comm", comm, "must be latencies and bandwidths, or a file")
    found = find_model(source, traced=traced)
    request = _request(
        found.kind,
        system,
        {
            "gpus": gpus,
            "gpus_per_node": gpus_per_node,
            "replicas": replicas,
            "batch": batch,
            "seq_len": seq_len,
            "group": group,
        },
        {
            "dtype": dtype,
            "stored_dtype": stored_dtype,
            "reduce_dtype": reduce_dtype,
            "optimizer": optimizer,
            "reshard": reshard,
            "checkpoint": checkpoint,
        },
        memory_budget=memory_budget,
        comm=comm,
        seconds=seconds,
    )
    if verify and found.kind != "module":
        problem = "needs a torch module: package.module:factory, or a config that is traced"
        raise InputError(Fault(field="verify", problem=problem))
    report: Progress = (lambda *_: None) if progress is None else progress
    model = found.shardable(
        request.system, batch=request.batch, seq_len=seq_len, dtype=request.setting.compute_dtype
    )
    report("profile", 0, 0)
    began = perf_counter()
    profile = model.profile(request.batch)
    profile_s = perf_counter() - began
    planner = request.planner(profile)
    own = None if units is None else planner.evaluate(parse_wrapping(units, planner))
    report("proof", 0, 0)
    planned = planner.best(request.budget_bytes)
    result = FsdpPlan(
        kind=model.kind,
        system=None if request.system is None else request.system.name,
        batch=None if model.kind == "statistics" else request.batch,
        seq_len=model.seq_len,
        planner=planner,
        budget_bytes=request.budget_bytes,
        budget_from=request.budget_from,
        planned=planned,
        usual=compare_common_wrappings(planner),
        own=None if own is None else NamedPlan(name="yours", plan=own),
        front=front(planner, progress=lambda *done: report("front", *done)) if pareto else None,
        what_if=_what_if(request, model, report) if what_if else None,
        load=model.load,
        assumed=(*request.assumed, *model.assumed, *profile.assumed),
        profile_s=profile_s,
    )
    if not verify or planned is None:
        return result
    report("verification", 0, 0)
    return replace(result, verified=result.verify())


@dataclass(frozen=True, eq=False, kw_only=True)
class _Request:
    """Checked arguments of `plan_fsdp`."""

    system: System | None
    setting: Setting
    batch: int
    reshard: Reshard
    checkpoint: Checkpointing
    group: int
    seconds: float
    budget_bytes: float
    budget_from: str
    """Where the budget comes from, for people."""
    collectives: Callable[[Setting], CollectiveTimes]
    assumed: tuple[str, ...]
    """Defaults that were used, for people."""

    def planner(self, profile: Profile, *, gpus: int | None = None) -> Planner:
        """The space to search, also on another number of GPUs."""
        setting = self.setting
        if gpus is not None:
            setting = replace(setting, shards=gpus // setting.replicas)
        return Planner(
            profile=profile,
            setting=setting,
            collectives=self.collectives(setting),
            reshard=self.reshard,
            checkpoint=self.checkpoint,
            most_grouped=self.group,
            seconds=self.seconds,
        )


def _request(
    kind: Kind,
    system: SystemLike | None,
    numbers: Mapping[str, int | None],
    words: Mapping[str, str | None],
    *,
    memory_budget: float | str | None,
    comm: Comm | None,
    seconds: float,
) -> _Request:
    """Check the arguments of `plan_fsdp`; None: not set."""
    statistics = kind == "statistics"
    faults = _number_faults(numbers)
    if not (isinstance(seconds, (int, float)) and 0 < seconds < np.inf):
        problem = "must be a number above 0"
        faults.append(Fault.of("seconds", seconds, problem))
    choices, wrong = _choices(words)
    faults += wrong
    if statistics and choices.get("dtype", "fp32") in ("bf16", "fp16"):
        problem = "statistics count weights in numbers of 4 bytes; allowed: fp32"
        faults.append(Fault.of("dtype", words["dtype"], problem))
    budget = None
    try:
        budget = None if memory_budget is None else _budget_bytes(memory_budget)
    except InputError as error:
        faults += error.faults
    if faults:
        raise InputError(faults)
    assumed = [] if statistics or numbers["batch"] else ["1 sequence on each GPU"]
    if system is None and not statistics:
        system = DEFAULT_SYSTEM
        assumed.append(f"system {DEFAULT_SYSTEM}")
    the_system = None if system is None else System.load(system)
    setting = _setting(numbers["gpus"] or 0, numbers["replicas"] or 1, choices, statistics)
    collectives, notes = collective_times(
        the_system, setting, gpus_per_node=numbers["gpus_per_node"] or 0, comm=comm
    )
    capacity = np.inf if the_system is None else the_system.accelerator.memory[0].capacity
    if budget is not None and budget <= capacity:
        budget_bytes, budget_from = budget, "given"
    elif the_system is None:
        budget_bytes, budget_from = np.inf, "none: set --memory-budget or --system"
    else:
        budget_bytes = capacity
        budget_from = f"all memory of {the_system.accelerator.name}"
        if budget is not None:
            budget_from += f", less than the {readable(budget, 'bytes')} set"
    return _Request(
        system=the_system,
        setting=setting,
        batch=numbers["batch"] or 1,
        reshard=choices.get("reshard") or "choose",  # type: ignore[arg-type] # checked
        checkpoint=choices.get("checkpoint") or "none",  # type: ignore[arg-type] # checked
        group=numbers["group"] or 2,
        seconds=seconds,
        budget_bytes=budget_bytes,
        budget_from=budget_from,
        collectives=collectives,
        assumed=(*assumed, *notes),
    )


def _number_faults(numbers: Mapping[str, int | None]) -> list[Fault]:
    """Counts that are not whole numbers, and too few ranks to shard over."""
    faults = []
    for field, number in numbers.items():
        most = _MOST_GROUPED if field == "group" else MOST
        is_integer = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_integer and 1 <= number <= most):
            problem = f"must be a whole number from 1 to {most}"
            faults.append(Fault.of(field, number, problem))
    if faults:
        return faults
    gpus, replicas = numbers["gpus"], numbers["replicas"] or 1
    if gpus is None:
        return [Fault(field="gpus", problem="is missing: weights are sharded over so many")]
    if gpus < _LEAST_RANKS:
        problem = "FSDP shards over two ranks or more; on one there is nothing to plan"
        return [Fault.of("gpus", gpus, problem)]
    if gpus % replicas or gpus // replicas < _LEAST_RANKS:
        problem = f"must divide the {gpus} GPUs into groups of two or more to shard over"
        return [Fault.of("replicas", replicas, problem)]
    return []


def _choices(words: Mapping[str, str | None]) -> tuple[dict[str, str], list[Fault]]:
    """Words in their canonical form, and faults of those that are not allowed."""
    found, faults = {}, []
    for field, word in words.items():
        if word is None:
            continue
        known = _WORDS[field]
        plain = _ALIASES.get(str(word).strip().lower(), str(word).strip().lower())
        if plain not in known:
            problem = allowed_words(plain, known)
            faults.append(Fault.of(field, word, problem))
        found[field] = plain
    return found, faults


def _budget_bytes(text: float | str) -> float:
    """Bytes of ``60GiB``."""
    try:
        budget = parse_memory(text)
    except ValueError as error:
        raise InputError.of("memory_budget", text, str(error)) from None
    if not 0 < budget < np.inf:
        raise InputError.of("memory_budget", text, "must be above 0")
    return budget


def _setting(gpus: int, replicas: int, choices: Mapping[str, Any], statistics: bool) -> Setting:
    """Settings of FSDP2; statistics are in 4 bytes, without an optimizer."""
    default = ("fp32", "fp32", "fp32", "none") if statistics else ("bf16", "fp32", "fp32", "adamw")
    fields = ("compute_dtype", "stored_dtype", "reduce_dtype", "optimizer")
    own = {"compute_dtype": choices["dtype"]} if "dtype" in choices else {}
    own |= {name: choices[name] for name in fields if name in choices}
    words: dict[str, Any] = dict(zip(fields, default, strict=True)) | own
    return Setting(shards=gpus // replicas, replicas=replicas, **words)


def _what_if(request: _Request, model: ShardableModel, report: Progress) -> WhatIf:
    """Fewest GPUs and largest batch that some wrapping fits."""
    budget = request.budget_bytes
    if not np.isfinite(budget):
        why = "without a budget everything fits"
        return WhatIf(gpus=None, batch=None, tried=(), notes=(why,))
    profile = model.profile(request.batch)
    tried = _candidates(request)
    report("fewest GPUs", 0, 0)
    gpus = smallest_gpus(lambda number: request.planner(profile, gpus=number), budget, tried)
    if model.kind == "statistics":
        why = "statistics are those of one batch"
        return WhatIf(gpus=gpus, batch=None, tried=tried, notes=(why,))
    report("largest batch", 0, 0)
    one, two = (float(model.profile(size).resident_bytes.max()) for size in (1, 2))
    if one == two:
        why = "the module makes its own inputs, of one size"
        return WhatIf(gpus=gpus, batch=None, tried=tried, notes=(why,))
    batch = largest_batch(lambda size: request.planner(model.profile(size)), budget)
    return WhatIf(gpus=gpus, batch=batch, tried=tried)


def _candidates(request: _Request) -> tuple[int, ...]:
    """Numbers of GPUs to try: powers of two in a node, then full nodes, with so many replicas."""
    node = _NODE if request.system is None else request.system.node.accelerators
    outermost = None if request.system is None else request.system.network[-1].domain
    inside = [2**power for power in range(1, 1 + node.bit_length()) if 2**power < node]
    nodes = [*range(1, _NODES_ONE_BY_ONE + 1)]
    nodes += [_NODES_ONE_BY_ONE * 2**power for power in range(1, _DOUBLED + 1)]
    replicas = request.setting.replicas
    return tuple(
        number
        for number in (*inside, *(node * count for count in nodes))
        if number % replicas == 0
        and number // replicas > 1
        and (outermost is None or number <= outermost)
    )
