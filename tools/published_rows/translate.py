"""Translate a published row: what ran, what was measured, what is assumed and what is ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from published_rows.architecture import model_of, with_experts
from published_rows.hardware import system_of
from published_rows.recompute import ignored_recompute
from published_rows.remarks import ignored_remarks
from published_rows.row import Run, RunFault
from published_rows.software import ignored_software, stack_of, typed_software, unknown_stack
from published_rows.strategy import strategy_of, unstated
from published_rows.words import Read, ignored_words
from shardwise.config.model import Model
from shardwise.config.software.record import Software
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.validate.measured.runs import NotModeledError
from shardwise.validate.measured.runs import Run as MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A row as arguments of an estimate."""

    model: Model
    system: System
    strategy: Strategy
    assumed: tuple[str, ...] = ()
    """Assumptions where the row is silent."""
    ignored: tuple[str, ...] = ()
    """What the row says and the translation does not use."""
    software: Software
    """What the row says of its software."""
    unstated: tuple[str, ...] = ()
    """Fields of the strategy that follow from the software and that the row does not state."""


def translate(run: Run, *, unknown_software: bool = False) -> Translation:
    """Translate a row to a model, a system and a strategy.

    Parameters
    ----------
    run
        The row.
    unknown_software
        Whether to ignore which software it is of.

    Raises
    ------
    NotModeledError
        If that is impossible.
    """
    if isinstance(run, RunFault):
        raise NotModeledError(run.fault)
    if run.task == "pretrain-total":
        raise NotModeledError("the total of a project, with its restarts, is not a step")
    assumed: list[str] = []
    features = Read(run.features)
    run = run.model_copy()
    run.__dict__["features"] = features  # records what the translation looks up
    try:
        model = model_of(run, assumed)
        run.__dict__["model"] = with_experts(run.model, model)
        system = system_of(run, assumed)
        stack = stack_of(run, assumed, system, model)
        stack = unknown_stack(run) if unknown_software else stack
        strategy = strategy_of(run, model, system, stack, assumed)
    except InputError as error:
        raise NotModeledError("; ".join(str(fault) for fault in error.faults)) from None
    ignored = (
        *ignored_software(run),
        *ignored_recompute(run),
        *ignored_words(run, frozenset(features.seen)),
        *ignored_remarks(run),
    )
    return Translation(
        model=model,
        system=system,
        strategy=strategy,
        assumed=tuple(assumed),
        ignored=ignored,
        software=typed_software(run, system, model),
        unstated=unstated(run, strategy),
    )


def measured_run(run: Run, *, unknown_software: bool = False) -> MeasuredRun:
    """Translate a row to a measured run; one that cannot be predicted has the reason."""
    fields: dict[str, Any] = facts_of(run) | {"measured": figures_of(run)}
    fields |= {"seq_len": run.model.seq_len, "global_batch_size": run.global_batch}
    try:
        found = translate(run, unknown_software=unknown_software)
    except NotModeledError as reason:
        return MeasuredRun.validated(fields | {"refused": str(reason)}, source=run.id)
    what = {name: getattr(found, name) for name in ("model", "system", "strategy")}
    said = {name: getattr(found, name) for name in ("assumed", "ignored", "software", "unstated")}
    return MeasuredRun.validated(fields | what | said, source=run.id)


def facts_of(run: Run) -> dict[str, Any]:
    """What a row says of itself and of the groups that it belongs to."""
    software = " ".join(filter(None, (run.software.framework, run.software.version)))
    setup = "; ".join(filter(None, (run.hardware.variant, software, run.precision)))
    facts = {
        "id": run.id,
        "source": run.study,
        "title": run.source.title,
        "ref": run.source.ref,
        "grade": run.grade,
        "task": run.task,
        "setup": setup or None,
        "accelerator": run.accelerator,
        "precision": run.precision_class,
        "kind": run.kind,
        "gpus": run.hardware.count,
    }
    return {name: value for name, value in facts.items() if value is not None}


def figures_of(run: Run) -> Mapping[str, Any]:
    """What a row has that was measured; the time of a step is the most exact that is printed."""
    printed, derived = run.measured, run.derived
    times = (printed.step_time_s, derived.step_time_s_from_tflops, derived.step_time_s)
    time = next((found for found in times if found is not None), None)
    figures: dict[str, Any] = {"step_time_s": time, "tflops_per_gpu": printed.tflops_per_gpu}
    if time is None:
        figures["tokens_per_s_per_gpu"] = printed.tokens_per_s_per_gpu
    if printed.tflops_per_gpu is not None:
        figures["flops_convention"] = _convention(run)
    else:
        figures["mfu"] = printed.mfu
    if run.measured_memory_gib is not None:
        unit = _memory_unit(run)
        figures |= {"memory": f"{run.measured_memory_gib!r} {unit}", "memory_unit": unit}
        figures |= {"memory_metric": metric_of(run)}
        if on_last_rank(run):
            figures |= {"memory_rank": "last"}
    return {name: value for name, value in figures.items() if value not in (None, "GiB", "causal")}


def _convention(run: Run) -> str:
    """What a source counts as FLOPs."""
    text = run.measured.flops_type or ""
    if "hybrid" in (run.model.arch or "") and "Megatron" in (run.software.framework or ""):
        return "megatron-hybrid"
    if text.startswith("hardware"):
        return "hardware"
    full = "non-causal" in text or "not discounted" in text or "full attention" in text
    return "full-attention" if full else "causal"


def metric_of(run: Run) -> str:
    """What the memory of a row counts; an unknown tool counts all of the accelerator's memory.

    Sources count peak memory in three ways: allocated by tensors (torch.cuda.max_memory_allocated),
    reserved by the allocator (max_memory_reserved), or used on the device (nvidia-smi).
    """
    text = (run.measured.mem_metric or "").lower()
    if run.measured.peak_mem_gib is None:
        return "reserved"
    if "allocated" in text or "memory active" in text:  # blocks in use, as allocated ones
        return "allocated"
    # torchtune logs peak_memory_active, Megatron-Bridge mem-max-allocated-gigabytes.
    logs = any(name in (run.software.framework or "") for name in ("torchtune", "Megatron-Bridge"))
    if logs and "reserved" not in text:
        return "allocated"
    return "reserved" if "reserved" in text else "device"


def _memory_unit(run: Run) -> str:
    """Unit of a row's memory (Megatron-Bridge, train_utils.py: bytes / 1e9)."""
    text = run.measured.mem_metric or ""
    logged = "Megatron-Bridge" in (run.software.framework or "") and "GB" in text
    return "GB" if logged and "GiB" not in text else "GiB"


def on_last_rank(run: Run) -> bool:
    """Whether the row is of the rank that logs, which in Megatron-LM is the last one."""
    return "logging rank" in (run.measured.mem_metric or "")
