"""`plan_fsdp`: from what a user calls a model to the best wrapping, with its proof."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.fsdp.planner.alternatives import (
    NamedPlan,
    front,
    largest_batch,
    smallest_gpus,
    usual,
)
from shardwise.fsdp.planner.planner import Planned, Planner
from shardwise.fsdp.query import Asked, Comm
from shardwise.fsdp.result import FsdpPlan, WhatIf
from shardwise.fsdp.sources import ShardableModel, find_model
from shardwise.fsdp.wrappings import parse_wrapping

__all__ = ["Progress", "plan_fsdp"]

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it is, and how much there is (0: nobody knows)."""

# Whole nodes are tried one by one up to here; beyond, twice as many each time.
_NODE, _NODES_ONE_BY_ONE, _DOUBLED = 8, 128, 8


def plan_fsdp(
    source: object,
    system: System | str | Path | None = None,
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
        Accelerator and network; a noun, a catalog name or a file. Statistics need none: they have
        times, and without one collectives follow fsdp_ilp's rule. Else: ``h100-sxm``.
    gpus, gpus_per_node, replicas
        All ranks; those of a node where there is no system (8); groups of ranks that hold the same
        weights (hybrid sharding; 1: none).
    memory_budget
        Bytes or text such as ``"60 GiB"``; without it the accelerator's memory.
    batch, seq_len
        Sequences on a GPU (1) and tokens of each.
    dtype, stored_dtype, reduce_dtype, optimizer
        Types of gathered weights (bf16), sharded ones (fp32) and the sum of gradients (fp32); and
        ``adamw``, ``sgd`` or ``none``. Of statistics: fp32, and none.
    reshard
        Whether units are freed after forward: ``always``, ``never``, or as is best for each.
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
        Whether to find the front of memory and time, too; the fewest GPUs and the largest batch.
    verify
        Whether to run the plan with PyTorch's FSDP2 on fake tensors, too; needs a torch module.
    seconds
        Time after which a proof is cut short.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong.
    """
    found = find_model(source, traced=traced)
    asked = Asked.of(
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
    tell: Progress = (lambda *_: None) if progress is None else progress
    model = found.source(
        asked.system, batch=asked.batch, seq_len=seq_len, dtype=asked.setting.compute_dtype
    )
    tell("profile", 0, 0)
    began = perf_counter()
    profile = model.profile(asked.batch)
    profile_s = perf_counter() - began
    planner = asked.planner(profile)
    own = None if units is None else planner.evaluated(parse_wrapping(units, planner))
    tell("proof", 0, 0)
    planned = planner.best(asked.budget_bytes)
    result = FsdpPlan(
        kind=model.kind,
        system=None if asked.system is None else asked.system.name,
        batch=None if model.kind == "statistics" else asked.batch,
        seq_len=model.seq_len,
        planner=planner,
        budget_bytes=asked.budget_bytes,
        budget_from=asked.budget_from,
        planned=planned,
        usual=usual(planner),
        own=None if own is None else NamedPlan(name="yours", plan=own),
        front=_front(planner, tell) if pareto else None,
        what_if=_what_if(asked, model, tell) if what_if else None,
        load=model.load,
        assumed=(*asked.assumed, *model.assumed, *profile.assumed),
        profile_s=profile_s,
    )
    if not verify or planned is None:
        return result
    tell("verification", 0, 0)
    return replace(result, verified=result.verify())


def _front(planner: Planner, tell: Progress) -> tuple[Planned, ...]:
    return front(planner, progress=lambda done, of: tell("front", done, of))


def _what_if(asked: Asked, model: ShardableModel, tell: Progress) -> WhatIf:
    """Fewest GPUs and largest batch that some wrapping fits."""
    budget = asked.budget_bytes
    if not np.isfinite(budget):
        why = "without a budget everything fits"
        return WhatIf(gpus=None, batch=None, tried=(), notes=(why,))
    profile = model.profile(asked.batch)
    tried = _candidates(asked)
    tell("fewest GPUs", 0, 0)
    gpus = smallest_gpus(lambda number: asked.planner(profile, gpus=number), budget, tried)
    if model.kind == "statistics":
        why = "statistics are those of one batch"
        return WhatIf(gpus=gpus, batch=None, tried=tried, notes=(why,))
    tell("largest batch", 0, 0)
    if _same_work(model):
        why = "the module makes its own inputs, of one size"
        return WhatIf(gpus=gpus, batch=None, tried=tried, notes=(why,))
    batch = largest_batch(lambda size: asked.planner(model.profile(size)), budget)
    return WhatIf(gpus=gpus, batch=batch, tried=tried)


def _same_work(model: ShardableModel) -> bool:
    """Whether the batch changes nothing."""
    one, two = model.profile(1), model.profile(2)
    return bool(one.resident_bytes.max() == two.resident_bytes.max())


def _candidates(asked: Asked) -> tuple[int, ...]:
    """Numbers of GPUs to try: powers of two in a node, then whole nodes, with so many replicas."""
    node = _NODE if asked.system is None else asked.system.node.accelerators
    outermost = None if asked.system is None else asked.system.network[-1].domain
    inside = [2**power for power in range(1, 1 + node.bit_length()) if 2**power < node]
    nodes = [*range(1, _NODES_ONE_BY_ONE + 1)]
    nodes += [_NODES_ONE_BY_ONE * 2**power for power in range(1, _DOUBLED + 1)]
    replicas = asked.setting.replicas
    return tuple(
        number
        for number in (*inside, *(node * count for count in nodes))
        if number % replicas == 0
        and number // replicas > 1
        and (outermost is None or number <= outermost)
    )
