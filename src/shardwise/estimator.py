"""`estimate` and `estimate_many`: one strategy in full detail, or a table of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from math import nan
from types import ModuleType
from typing import Any, Unpack, overload

import numpy as np

from shardwise.analysis.assumed_host import assumed_host
from shardwise.analysis.assumed_network import assumed_networks, other_networks
from shardwise.analysis.estimate_table import EstimateTable
from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.fit_probability import (
    EXPERT_IMBALANCE,
    mixed_probability,
    plan_probability,
    states_load,
    states_load_in,
    verdict_of,
)
from shardwise.analysis.memory_interval import memory_interval_of
from shardwise.analysis.mixer_kernels import mixer_kernels
from shardwise.analysis.mixture import mixture_interval
from shardwise.analysis.operations import missed_operations, operation_estimates
from shardwise.analysis.prediction_interval import interval_of, rests_on
from shardwise.analysis.provenance import assumed_fields, cost_of, outermost_tiers, provenance_of
from shardwise.analysis.reference_results import Reference, ReferenceEstimate
from shardwise.analysis.results import (
    AssumedNetwork,
    CommTime,
    Estimate,
    Interval,
    Memory,
    MemoryInterval,
    MixerKernels,
    Software,
    SoftwareCandidate,
)
from shardwise.analysis.row_intervals import interval_factors
from shardwise.analysis.stages import memory_record, stage_estimates
from shardwise.arrays import Floats, Ints, gather
from shardwise.config.enums import EXTENT_AXES, AttentionKind
from shardwise.config.inputs import read_inputs
from shardwise.config.keywords import StrategyColumns, StrategyKeywords
from shardwise.config.model import Model, ModelLike
from shardwise.config.readers import foreign
from shardwise.config.software.resolve import Match, match_of
from shardwise.config.stack import DEFAULT_STACK
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_input import StrategyLike, columns_of, grid_columns, strategy_of
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.config.system_columns import SystemColumns, SystemRows, by_structure
from shardwise.cost.kernels import product_peak
from shardwise.distinct import distinct_rows, evaluate_distinct
from shardwise.engine.evaluate import Evaluation, Timing, evaluate
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError, check_flags, check_word, refuse
from shardwise.ops.lora import Subset
from shardwise.ops.param_count import (
    FLOPS_CONVENTIONS,
    FlopsConvention,
    Parameters,
    count_parameters,
    count_trainable,
    flops_per_token,
)
from shardwise.parallel.constraints import first_violation, refuse_illegal
from shardwise.parallel.constraints.software import reports_of
from shardwise.records import replace

# Backward computes two products for each one forward: gradients of inputs and of weights.
_FORWARD_SHARE = 1 / 3
# Rows evaluated at a time: their columns stay in the cache, and memory in bounds.
_CHUNK = 1 << 16
_SEVERAL = 2


@overload
def estimate(
    model: ModelLike,
    system: SystemLike | None = None,
    strategy: StrategyLike | None = None,
    *,
    operations: bool = False,
    gemms: bool = False,
    flops_convention: FlopsConvention = "causal",
    limit_on: str | None = None,
    rows: Mapping[str, str] | None = None,
    reference: None = None,
    **fields: Unpack[StrategyKeywords],
) -> Estimate: ...


@overload
def estimate(
    model: ModelLike,
    system: SystemLike | None = None,
    strategy: StrategyLike | None = None,
    *,
    operations: bool = False,
    rows: Mapping[str, str] | None = None,
    reference: Reference,
    **fields: Unpack[StrategyKeywords],
) -> ReferenceEstimate: ...


def estimate(
    model: ModelLike,
    system: SystemLike | None = None,
    strategy: StrategyLike | None = None,
    *,
    operations: bool = False,
    gemms: bool = False,
    flops_convention: FlopsConvention = "causal",
    limit_on: str | None = None,
    rows: Mapping[str, str] | None = None,
    reference: Reference | None = None,
    **fields: Unpack[StrategyKeywords],
) -> Estimate | ReferenceEstimate:
    """Estimate step time, memory and cost of one strategy.

    Parameters
    ----------
    model, system
        Config objects, catalog names or files. An AMPeD configuration as `model` also brings system
        and strategy.
    strategy
        A `Strategy`, its fields as a mapping, or a file; or leave it out and set `fields`.
    operations
        Whether to list every kernel and collective.
    gemms
        Whether to list every matrix product.
    flops_convention
        Model FLOPs that count for the MFU: a key of `FLOPS_CONVENTIONS`.
    limit_on
        What must fit into the accelerator's memory: ``reserved`` memory, with the allocator's slack
        and the runtime, or ``allocated`` tensors alone; by default as the system says, which is
        ``reserved``.
    rows
        Rows of the lookup tables of an AMPeD configuration to use in place of its own:
        ``{"accelerator": "H100 PCIe"}``, and `transformer`.
    reference
        Another model that answers under its own names: ``calculon``, ``nersc`` or ``amped``.
    **fields
        Fields of the strategy, which override those of `strategy`: ``gpus=64, tp=8, gbs=128``.
        `help(shardwise.Strategy)` lists all of them.

    Returns
    -------
    Estimate
        Step time, memory by component, MFU, cost; `help(shardwise.Estimate)` lists its fields. With
        `reference` a `ReferenceEstimate`.

    Raises
    ------
    InputError
        If any input is wrong; one fault for each.

    Examples
    --------
    >>> from shardwise import estimate
    >>> result = estimate("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> result.fits, result.micro_batches
    (True, 32)
    >>> slower = estimate("llama3-70b", "h100-sxm", result.strategy, recompute="full")
    >>> slower.step_time_s > result.step_time_s
    True
    """
    check_word("flops_convention", flops_convention, tuple(FLOPS_CONVENTIONS))
    check_flags(operations=operations, gemms=gemms)
    inputs = read_inputs(model, system, strategy, fields, rows=rows)
    if reference is not None:
        ours = {"flops_convention": flops_convention != "causal", "limit_on": limit_on is not None}
        _refuse_ours(gemms=gemms, **ours)
        answer = foreign().reference_estimate(reference, inputs, layers=operations)
        assert isinstance(answer, ReferenceEstimate)  # noqa: S101 - as the protocol says
        return answer
    the_model = Model.load(inputs.model)
    the_system = System.load(inputs.system).limited_on(limit_on)
    requested = strategy_of(inputs.strategy, inputs.fields)
    stated = states_load(requested) or "expert_imbalance" in inputs.fields
    together = _Rows(the_model, the_system, [requested], stated, flops_convention)
    return _estimate_of(together, 0, operations=operations, gemms=gemms)


def estimate_each(
    model: Model, system: System, strategies: Sequence[Strategy], *, stated: bool
) -> list[Estimate]:
    """Return what `estimate` returns of each strategy: formulas are evaluated for all at once.

    And for other networks, too, which each `interval` needs.

    Parameters
    ----------
    stated
        Whether the user states the load of experts.
    """
    if not strategies:
        return []
    rows = _Rows(model, system, strategies, stated, "causal", on_networks=True)
    return [_estimate_of(rows, row) for row in range(len(strategies))]


class _Rows:
    """Strategies that are estimated together, and what formulas find for all of them at once."""

    def __init__(
        self,
        model: Model,
        system: System,
        requested: Sequence[Strategy],
        stated: bool,
        flops_convention: FlopsConvention,
        *,
        on_networks: bool = False,
    ) -> None:
        self.model, self.system, self.requested = model, system, requested
        self.stated, self.flops_convention = stated, flops_convention
        self.matches = [match_of(o.stack, system, model, o.stated_options) for o in requested]
        self.resolved = [one.resolved(model, system) for one in requested]
        self.table = Table.of(model, self.resolved)
        refuse_illegal(model, system, self.table)
        networks = other_networks(system, self.table) if on_networks else None
        self.result = evaluate(model, system, self.table, networks)
        _refuse_overflow(self.result)
        self.per_s = rates(self.result, flops_convention)

    def result_of(self, row: int) -> Evaluation:
        """Return the evaluation of one row, with the costs of each operation."""
        if len(self.table) == 1:
            return self.result
        return evaluate(self.model, self.system, self.table.take(np.array([row])))

    @cached_property
    def networks(self) -> list[AssumedNetwork | None]:
        """Of each row."""
        networks = other_networks(self.system, self.table)
        if networks is None or self.result.network_step_s is not None:
            return assumed_networks(self.result)
        return assumed_networks(evaluate(self.model, self.system, self.table, networks))

    @cached_property
    def mixer_kernels(self) -> list[tuple[MixerKernels, ...]]:
        """Of each row."""
        return mixer_kernels(self.result)

    @cached_property
    def fits_probability(self) -> Floats:
        """Of each row."""
        return plan_probability(
            self.model, self.system, self.table, self.result, stated=self.stated
        )


def _estimate_of(
    rows: _Rows, row: int, *, operations: bool = False, gemms: bool = False
) -> Estimate:
    """Return the estimate of one row."""
    the_model, the_system, result = rows.model, rows.system, rows.result
    requested, resolved, match = rows.requested[row], rows.resolved[row], rows.matches[row]
    table, flops_convention = rows.table, rows.flops_convention
    table = table if len(table) == 1 else table.take(np.array([row]))
    counted_model = the_model.with_attention(resolved.attention)
    counted = count_parameters(counted_model)
    stack = table.stacks[int(table.stack[0])]
    reported = tuple(map(str, reports_of(the_model, the_system, table)))
    memory = memory_record(result.memory, float(result.reserved_bytes[row]), the_system, row)
    step_s = float(result.step_time_s[row])
    per_s = {name: float(column[row]) for name, column in rows.per_s.items()}
    mfu, flops_per_s = per_s["mfu"], per_s["flops_per_s_per_gpu"]

    @cache
    def evaluated() -> Evaluation:
        return rows.result_of(row)

    @cache
    def unmeasured() -> tuple[str, ...]:
        return unmeasured_features(the_model, table)

    on_host = cache(partial(assumed_host, the_model, the_system, table))

    def kernels() -> tuple[MixerKernels, ...]:
        return rows.mixer_kernels[row]

    @cache
    def others() -> tuple[tuple[SoftwareCandidate, Strategy, Memory], ...]:
        return tuple(_candidates(the_model, the_system, requested, match))

    def interval() -> Interval | None:
        counts = counted if counted_model is the_model else None
        more: dict[str, Any] = {"network": rows.networks[row], "host": on_host()}
        more["kernels"] = kernels()
        more["unmeasured"] = len(unmeasured()) + match.conflicts
        own = interval_of(the_model, the_system, resolved, step_s, counts, **more)
        if own is None or len(others()) < _SEVERAL:
            return own
        parts = []
        for one, its_strategy, _ in others():
            time_s = one.step_time_s
            its = interval_of(the_model, the_system, its_strategy, time_s, **more)
            parts += [] if its is None else [(one.weight, its.low_s, time_s, its.high_s)]
        low_s, high_s = mixture_interval(parts)
        return own.model_copy(update={"low_s": low_s, "high_s": high_s})

    def memory_interval() -> MemoryInterval | None:
        own = memory_interval_of(memory, the_system, resolved) if resolved.training else None
        if own is None or len(others()) < _SEVERAL:
            return own
        return _mixed_memory(own, the_system, others())

    formulas: dict[str, Callable[[], Any]] = {
        "mfu_by_convention": lambda: _by_convention(
            the_model, table, counted, mfu, flops_convention
        ),
        "stages": lambda: stage_estimates(evaluated()),
        "layers": lambda: _layer_totals().layer_totals(evaluated()),
        "matrix_flops": lambda: _layer_totals().matrix_flops(evaluated()),
        "breakdown": lambda: _communication().breakdown_of(evaluated()),
        "efficiency": lambda: _layer_totals().efficiency(evaluated(), flops_per_s * step_s),
        "required_bandwidth": lambda: _layer_totals().required_bandwidth(evaluated()),
        "software_candidates": lambda: tuple(one for one, *_ in others()),
        "interval": interval,
        "memory_interval": memory_interval,
        **_fit_formulas(rows, row, others),
        "assumed_network": lambda: rows.networks[row],
        "assumed_host": on_host,
        "mixer_kernels": kernels,
        "unmeasured_features": unmeasured,
        "rests_on": lambda: rests_on(the_system, resolved, outermost_tiers(evaluated())),
        "assumed": lambda: assumed_fields(requested, resolved),
        "provenance": lambda: provenance_of(the_model, the_system, stack, resolved),
        "missed_operations": lambda: missed_operations(evaluated()),
    }
    return Estimate.deferring(
        formulas,
        model=the_model.name,
        system=the_system.name,
        strategy=resolved.to_dict(),
        software=Software(
            stack=stack.name,
            release=stack.release,
            checked=not (stack.capabilities is None or resolved.any_software or reported),
            how=match.how,
            trainer=match.candidates[0].trainer,
            engine=match.candidates[0].engine,
            notes=match.notes,
            reported=reported,
        ),
        parameters=counted.total,
        active_parameters=counted.active,
        trainable_parameters=count_trainable(counted_model, Subset.of(table), counted),
        step_time_s=step_s,
        tokens_per_s=per_s["tokens_per_s"],
        tokens_per_s_per_gpu=per_s["tokens_per_s"] / int(table.gpus[0]),
        samples_per_s=int(table.global_batch_size[0]) / step_s,
        model_tflops_per_gpu=flops_per_s / 1e12,
        mfu=mfu,
        hfu=per_s["hfu"],
        flops_convention=flops_convention,
        fits=bool(result.fits[row]),
        micro_batches=int(table.micro_batches[0]),
        tokens_per_step=int(tokens_per_step(table)[0]),
        time_s={part: float(result.time_s[part][row]) for part in TIME_PARTS},
        comm_s={
            axis: CommTime(total=float(total[row]), exposed=float(exposed[row]))
            for axis, (total, exposed) in result.comm_s.items()
        },
        extents={
            axis: tuple(getattr(result.step.extents, axis)[:, row].tolist()) for axis in EXTENT_AXES
        },
        memory_bytes=memory,
        cost=cost_of(result, row),
        operations=operation_estimates(evaluated()) if operations else None,
        gemms=_layer_totals().gemm_estimates(evaluated()) if gemms else None,
    )


def _mixed_memory(
    own: MemoryInterval,
    system: System,
    candidates: Sequence[tuple[SoftwareCandidate, Strategy, Memory]],
) -> MemoryInterval:
    """The range of the memory of one of several candidates."""
    each = [
        (one.weight, memory, memory_interval_of(memory, system, strategy))
        for one, strategy, memory in candidates
    ]
    total = [(w, of.total_low, its.total, of.total_high) for w, its, of in each]
    reserved = [(w, of.reserved_low, its.reserved, of.reserved_high) for w, its, of in each]
    bounds = (*mixture_interval(total), *mixture_interval(reserved))
    names = ("total_low", "total_high", "reserved_low", "reserved_high")
    return own.model_copy(update=dict(zip(names, bounds, strict=True)))


def _fit_formulas(
    rows: _Rows,
    row: int,
    candidates: Callable[[], Sequence[tuple[SoftwareCandidate, Strategy, Memory]]],
) -> dict[str, Callable[[], Any]]:
    """Formulas of the fields that say whether a row fits."""
    model, system = rows.model, rows.system

    @cache
    def probability() -> float | None:
        if not rows.resolved[row].training:
            return None
        if len(candidates()) < _SEVERAL:
            return float(rows.fits_probability[row])
        mixed = mixed_probability(model, system, [rows.requested[row]], stated=rows.stated)
        return float(mixed[0])

    def assumes() -> dict[str, float]:
        uneven = model.has_experts and not rows.stated and probability() is not None
        return {"expert_imbalance": EXPERT_IMBALANCE} if uneven else {}

    return {
        "fits_probability": probability,
        "fits_assumes": assumes,
        "verdict": lambda: verdict_of(probability(), fits=bool(rows.result.fits[row])),
    }


def _candidates(
    model: Model, system: System, requested: Strategy, match: Match
) -> Iterator[tuple[SoftwareCandidate, Strategy, Memory]]:
    """Estimates with each software that a description may mean, if they are several."""
    for one in match.candidates if len(match.candidates) >= _SEVERAL else ():
        strategy = requested.model_copy(update={"stack": one.stack}).resolved(model, system)
        table = Table.of(model, [strategy])
        if first_violation(model, system, table)[0] >= 0:
            continue
        result = evaluate(model, system, table)
        reserved = float(result.reserved_bytes[0])
        memory = memory_record(result.memory, reserved, system, 0)
        candidate = SoftwareCandidate(
            description=one.described,
            trainer=one.trainer,
            engine=one.engine,
            stack=one.stack.name,
            weight=one.weight,
            step_time_s=float(result.step_time_s[0]),
            reserved_bytes=reserved,
            margin_bytes=memory.capacity - memory.needed,
        )
        yield candidate, strategy, memory


def _refuse_ours(**options: bool) -> None:
    """Refuse options that were used and that no other model has."""
    problem = "has no effect with reference, the answer of another model"
    refuse(Fault(field=name, problem=problem) for name, is_used in options.items() if is_used)


def _layer_totals() -> ModuleType:
    from shardwise.analysis import layer_totals  # noqa: PLC0415 - for details, where they are read

    return layer_totals


def _communication() -> ModuleType:
    from shardwise.analysis import communication  # noqa: PLC0415 - likewise

    return communication


def estimate_many(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike],
    strategies: Mapping[str, object] | Sequence[Strategy] | object | None = None,
    *,
    grid: Mapping[str, object] | None = None,
    intervals: bool = False,
    flops_convention: FlopsConvention = "causal",
    **fields: Unpack[StrategyColumns],
) -> EstimateTable:
    """Estimate a table of strategies through the same functions as `estimate`.

    Parameters
    ----------
    system
        One for all rows, or a list with one for each; a single strategy then runs on each of them.
    strategies
        A mapping of columns (single values apply to all rows), a data frame with such columns, or
        a sequence of strategies. For fields that are sets of words, such as `recompute_parts`, a
        text or one list of words applies to all rows, a list of lists has one set per row.
    grid
        Values by field: all combinations are estimated.
    intervals
        Whether to compute the range of the measured time of each row, which takes some 3 ms a row.
    flops_convention
        Model FLOPs that count for the MFU: a key of `FLOPS_CONVENTIONS`.
    **fields
        Columns or single values, which override those of `strategies`.

    Returns
    -------
    One row per strategy, in order; a row that breaks a rule holds NaN and the rule.

    Examples
    --------
    >>> from shardwise import estimate_many
    >>> table = estimate_many("llama3-70b", "h100-sxm", gpus=64, tp=[2, 4, 8], pp=2, gbs=128)
    >>> table.to_frame().select("tp", "dp", "fits").rows()
    [(2, 16, False), (4, 8, False), (8, 4, True)]
    >>> grid = {"tp": [4, 8], "pp": [1, 2], "zero": [1, 3]}
    >>> len(estimate_many("llama3-70b", "h100-sxm", gpus=64, gbs=128, grid=grid))
    8
    """
    check_word("flops_convention", flops_convention, tuple(FLOPS_CONVENTIONS))
    the_model = Model.load(model)
    stated = "expert_imbalance" in fields or states_load_in(strategies)
    check_flags(intervals=intervals)
    if grid is not None:
        fields |= grid_columns(grid, fields)  # type: ignore[typeddict-item]
    strategies = columns_of(strategies, fields)
    if isinstance(strategies, Sequence) and not strategies:
        problem = "an empty list; provide at least one strategy"
        raise InputError(Fault(field="strategies", problem=problem))
    if isinstance(system, Sequence) and not isinstance(system, str):
        table, groups = _on_systems(the_model, strategies, [System.load(one) for one in system])
        like = np.arange(len(table))
    else:
        the_system = System.load(system)
        table = Table.of(the_model, strategies, the_system)
        firsts, position = distinct_rows([getattr(table, name) for name in COLUMNS])
        like = firsts[position]  # equal rows are evaluated once
        groups = [(np.sort(firsts), the_system, None)]
    refused = np.empty(len(table), dtype=np.int64)
    columns: dict[str, Floats] = {}
    for rows, base, system_columns in groups:
        refused[rows] = first_violation(the_model, base, table.take(rows))
        legal = np.flatnonzero(refused[rows] < 0)
        for start in range(0, len(legal), _CHUNK):
            some = legal[start : start + _CHUNK]
            chunk = table.take(rows[some])
            if system_columns is not None:
                chunk = replace(chunk, systems=SystemRows(columns=system_columns, position=some))
            evaluated = evaluated_columns(
                *(the_model, base, chunk, flops_convention), stated=stated
            )
            if intervals:
                ends = interval_factors(the_model, base, table.take(rows[some]))
                low, high = np.array([(nan, nan) if e is None else e for e in ends]).T
                evaluated["interval_low_s"] = evaluated["step_time_s"] * low
                evaluated["interval_high_s"] = evaluated["step_time_s"] * high
            for name, values in evaluated.items():
                column = columns.setdefault(name, np.full(len(table), np.nan))
                column[rows[some]] = values

    def named(name: str) -> Floats:
        return columns[name][like] if name in columns else np.full(len(table), np.nan)

    return EstimateTable(
        table=table,
        refused=refused[like],
        step_time_s=named("step_time_s"),
        tokens_per_s=named("tokens_per_s"),
        mfu=named("mfu"),
        hfu=named("hfu"),
        fits=named("fits") == 1.0,
        fits_probability=named("fits_probability"),
        interval_low_s=named("interval_low_s"),
        interval_high_s=named("interval_high_s"),
        memory_total_bytes=named("total"),
        memory_reserved_bytes=named("reserved"),
        memory_offloaded_bytes=named("offloaded"),
        time_s={part: named(f"{part}_s") for part in TIME_PARTS},
        memory_bytes={part: named(f"{part}_bytes") for part in MEMORY_PARTS},
    )


def _on_systems(
    model: Model, strategies: Any, systems: Sequence[System]
) -> tuple[Table, list[tuple[Ints, System, SystemColumns | None]]]:
    """Pair rows with systems; return groups of rows whose systems have the same structure."""
    by_software = {(one.stack, one.accelerator.generation): one for one in systems}
    kinds = list(by_software)
    tables = [Table.of(model, strategies, one) for one in by_software.values() or [DEFAULT_STACK]]
    table = tables[0]
    if len(table) == 1:
        table = table.take(np.zeros(len(systems), dtype=np.int64))
    if len(systems) != len(table):
        problem = f"{len(systems)} systems for {len(table)} strategies; provide one for each"
        raise InputError(Fault(source="system", problem=problem))
    if len(kinds) > 1:
        which = np.array([kinds.index((one.stack, one.accelerator.generation)) for one in systems])
        rows = np.broadcast_to(np.arange(len(tables[0])), which.shape)
        table = Table.by_row([one.take(rows) for one in tables], which)
    return table, [(rows, columns.base, columns) for rows, columns in by_structure(systems)]


def evaluated_columns(
    model: Model, system: System, table: Table, convention: FlopsConvention, *, stated: bool = False
) -> dict[str, Floats]:
    """Evaluate legal rows and return the columns of `EstimateTable`, by name.

    Parameters
    ----------
    stated
        Whether the user states the load of experts.
    """
    result = evaluate(model, system, table)
    _refuse_overflow(result)
    per_s = rates(result, convention)
    return {
        "step_time_s": result.step_time_s,
        "tokens_per_s": per_s["tokens_per_s"],
        "mfu": per_s["mfu"],
        "hfu": per_s["hfu"],
        "fits": result.fits.astype(np.float64),
        "fits_probability": plan_probability(model, system, table, result, stated=stated),
        "total": result.memory.total,
        "reserved": result.reserved_bytes,
        "offloaded": result.memory.offloaded,
        **{f"{part}_s": result.time_s[part] for part in TIME_PARTS},
        **{f"{part}_bytes": getattr(result.memory, part) for part in MEMORY_PARTS},
    }


def _refuse_overflow(result: Evaluation) -> None:
    """Refuse what has no finite result: many figures that are each close to their bounds."""
    results = {"step_time_s": result.step_time_s, "memory_bytes": result.reserved_bytes}
    problem = "is no finite number: figures of model, system and strategy are too extreme together"
    refuse(
        Fault.of(name, values[~np.isfinite(values)][0], problem, source="estimate")
        for name, values in results.items()
        if not np.isfinite(values).all()
    )


def rates(
    result: Timing, convention: FlopsConvention, counted: Parameters | None = None
) -> dict[str, Floats]:
    """Throughput and utilization of each row; results have the shape of the step times.

    tokens/s = sequences of a step x seq_len / step time,
    MFU = tokens/s x FLOPs per token / (GPUs x peak), HFU the same with recomputed FLOPs.

    Parameters
    ----------
    convention
        Model FLOPs that count: a key of `FLOPS_CONVENTIONS`.
    counted
        Parameters of the model with the attention of all rows, if already counted.
    """
    table = result.step.table
    per_token = _flops_of_tokens(result.step.model, table, convention, counted)
    peak = product_peak(result.step.system.accelerator, table)
    tokens_per_s = tokens_per_step(table) / result.step_time_s
    flops_per_s = tokens_per_s * per_token / table.gpus
    again = result.recompute_flops / result.step_time_s
    return {
        "tokens_per_s": tokens_per_s,
        "flops_per_s_per_gpu": flops_per_s,
        "mfu": flops_per_s / peak,
        "hfu": (flops_per_s + again) / peak,
    }


def tokens_per_step(table: Table) -> Floats:
    """Tokens that a step trains on, of both answers of pairs; shape (n,).

    Padding counts, but where the lengths of the data are known.
    """
    sequences: Ints = table.global_batch_size * table.sequences_per_sample
    return sequences * table.trained_len


def ideal_step_time(model: Model, system: System, table: Table) -> Floats:
    """Return the step time of each row at an MFU of 1 [s]: MFU = ideal / actual step time."""
    per_token = _flops_of_tokens(model, table, "causal")
    peak = product_peak(system.accelerator, table)
    return tokens_per_step(table) * per_token / (table.gpus * peak)


def _flops_of_tokens(
    model: Model, table: Table, convention: FlopsConvention, counted: Parameters | None = None
) -> Floats:
    """Model FLOPs of a token of each row; a third of them forward only."""

    def flops_of(some: Table) -> Floats:
        kinds = some.attention.tolist()
        models = {kind: model.with_attention(AttentionKind.from_code(kind)) for kind in set(kinds)}
        counts = {kind: counted or count_parameters(one) for kind, one in models.items()}
        subset = Subset.of(some)
        return np.array(
            [
                flops_per_token(
                    models[kind],
                    int(some.seq_len[row]),
                    convention,
                    gather(subset, slice(row, row + 1)),
                    counts[kind],
                    **_dropped_and_packed(some, row),
                )
                for row, kind in enumerate(kinds)
            ]
        )

    per_token = evaluate_distinct(flops_of, table).of_all()
    return per_token * np.where(table.training, 1.0, _FORWARD_SHARE)


def _dropped_and_packed(table: Table, row: int) -> dict[str, Any]:
    """Settings of a row that reduce the FLOPs of a token."""
    return {
        "document_len": int(table.attention_len[row]) or None,
        "expert_capacity": float(table.expert_capacity[row]) or None,
    }


def _by_convention(
    model: Model, table: Table, counted: Parameters, mfu: float, convention: FlopsConvention
) -> dict[str, float]:
    """MFU of one row under every convention."""
    the_model = model.with_attention(AttentionKind.from_code(int(table.attention[0])))
    seq_len, subset, more = int(table.seq_len[0]), Subset.of(table), _dropped_and_packed(table, 0)
    flops = {
        name: flops_per_token(the_model, seq_len, name, subset, counted, **more)
        for name in FLOPS_CONVENTIONS
    }
    return {name: mfu * number / flops[convention] for name, number in flops.items()}
