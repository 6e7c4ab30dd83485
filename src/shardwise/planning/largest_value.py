"""The longest sequence, the largest micro-batch or the highest rank of adapters that fits.

Memory grows with each of these, so the answer is found by bisection: on each round several values
of all variants of the plan are evaluated as one table.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwise.analysis import Result
from shardwise.analysis.fit_probability import SURE, plan_probability, software_of
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import MOST
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.engine.evaluate import evaluate
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.estimator import estimate
from shardwise.parallel.constraints import first_violation, refuse_illegal
from shardwise.planning.search.described import Described
from shardwise.planning.search.results import Plan
from shardwise.planning.search.run import search
from shardwise.planning.search.space import Space
from shardwise.planning.ways import Way, columns_for, evaluated, field_of, ways_for

LARGEST = ("seq_len", "micro_batch_size", "lora_rank")
"""Fields of which the largest value is sought."""
_STEPS = {"seq_len": 64, "micro_batch_size": 1, "lora_rank": 1}
_POINTS = 9
_MOST = {"seq_len": 1 << 24, "micro_batch_size": 1 << 16, "lora_rank": 1 << 14}
_LIKELY = 0.5
_RAISED = 2
_COARSE = 1 / 64
_NEAR = np.array([1, 1.125, 1.5, 2, 4, 8, 32])
_FIXED = {"seq_len": "shorter sequences", "micro_batch_size": "micro-batch", "lora_rank": ""}
_PART_WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "saved activations",
    "buffers": "transient tensors",
}


class Raise(Result):
    """A change of a plan that raises the largest value, and that value."""

    name: str
    """What it changes, in words."""
    flags: str
    """Flags of the command line that make it."""
    value: int | None
    """Largest value with which it surely fits; None: none."""


class LargestValue(Result):
    """The largest value of a field with which a plan fits."""

    model: str
    system: str
    field: str
    value: int | None
    """Largest value that surely fits (with 90 %); None: not even the least does."""
    likely: int | None
    """Largest value that fits with 50 %."""
    predicted: int | None
    """Largest value whose predicted memory is within the capacity."""
    step: int
    """Values are multiples of it."""
    fits_probability: float | None
    """Probability that it fits at `value`."""
    limited_by: str
    """What of the memory limits it: the part that grows most."""
    limit_bytes: float
    """Size of that part at the limit."""
    raised_by: tuple[Raise, ...]
    """The changes that raise it most, the larger first."""
    strategy: Mapping[str, Any]
    """The plan at `value`, else at the least value."""
    step_time_s: float
    tokens_per_s: float


def largest_value(
    model: ModelLike, system: SystemLike, strategy: Strategy, field: str
) -> LargestValue:
    """Find the largest value of a field of a plan with which the plan fits.

    Parameters
    ----------
    strategy
        The plan; its own value of the field does not matter. The global batch is one micro-batch of
        each replica where micro-batches are sought.
    field
        ``seq-len``, ``mbs`` or ``lora-rank``.

    Raises
    ------
    InputError
        If the field is another one, or the plan is not legal.
    """
    name = _sought(field)
    if name == "lora_rank" and strategy.lora_rank is None:
        raise InputError(Fault.of("largest", field, "needs adapters: set --finetune lora or qlora"))
    the_model, the_system = Model.load(model), System.load(system)
    step = _STEPS[name] * (strategy.cp * strategy.tp if name == "seq_len" else 1)
    named = strategy.model_copy(update=_at(strategy, name, step))
    software = [
        (weight, named.model_copy(update={"stack": stack}).resolved(the_model, the_system))
        for weight, stack in software_of(the_model, the_system, named)
    ]
    base = software[0][1]
    open_ways = ways_for(base, any_stack=strategy.stack is None)
    ways = [one for one in open_ways if one.name != _FIXED[name]]
    bisection = _Bisection(the_model, the_system, software, name, step)
    sure, likely, predicted = (bisection.largest([{}], one)[0] for one in (SURE, _LIKELY, None))
    raised = bisection.largest([way.fields for way in ways], SURE, _COARSE, near=int(sure))
    shown = int(sure) or int(predicted) or step
    result = estimate(the_model, the_system, named.model_copy(update=_at(base, name, shown)))
    part, size = _limit(bisection, shown)
    if part == "transient tensors" and result.stages:
        part = f"{part} of {result.stages[0].peak.operation}"
    return LargestValue(
        model=the_model.name,
        system=the_system.name,
        field=name,
        value=int(sure) or None,
        likely=int(likely) or None,
        predicted=int(predicted) or None,
        step=step,
        fits_probability=result.fits_probability,
        limited_by=part,
        limit_bytes=size,
        raised_by=_raises(ways, int(sure), raised),
        strategy=result.strategy,
        step_time_s=result.step_time_s,
        tokens_per_s=result.tokens_per_s,
    )


def _sought(field: str) -> str:
    """Name of the field that is sought."""
    name = field_of(field)
    if name not in LARGEST:
        allowed = ("seq-len", "mbs", "lora-rank")
        raise InputError(Fault.of("largest", field, allowed_words(field, allowed)))
    return name


def _raises(ways: Sequence[Way], own: int, raised: Ints) -> tuple[Raise, ...]:
    """The changes of each kind that raise a value most."""
    by_name: dict[str, tuple[int, Way]] = {}
    for way, value in zip(ways, raised.tolist(), strict=True):
        if value > max(own, by_name.get(way.name, (0, way))[0]):
            by_name[way.name] = value, way
    best = sorted(by_name.values(), key=lambda one: (-one[0], one[1].rank))[:_RAISED]
    return tuple(
        Raise(name=way.name, flags=" ".join(way.flags), value=value) for value, way in best
    )


def _at(strategy: Strategy, name: str, value: int) -> dict[str, Any]:
    """The field at a value, with a batch that goes with it."""
    if name != "micro_batch_size":
        return {name: value}
    replicas = strategy.dp or max(
        (strategy.gpus or 1) // (strategy.tp * strategy.cp * strategy.pp), 1
    )
    return {name: value, "global_batch_size": value * replicas}


class _Bisection:
    """Largest values of a field of several variants of a plan at once."""

    def __init__(
        self,
        model: Model,
        system: System,
        software: Sequence[tuple[float, Strategy]],
        name: str,
        step: int,
    ) -> None:
        self._model, self._system, self._software = model, system, software
        self._base, self._name, self._step = software[0][1], name, step

    def largest(
        self,
        variants: Sequence[Mapping[str, Any]],
        sure: float | None,
        resolution: float = 0.0,
        near: int = 0,
    ) -> Ints:
        """Return the largest value of each variant that fits; 0: none.

        Parameters
        ----------
        sure
            Probability with which it must fit; None: its predicted memory must.
        resolution
            Share of the value by which it may be too small, if more than a step.
        near
            A value to start from, where it is known to be of that size; 0: it is not.
        """
        if not variants:
            return np.zeros(0, dtype=np.int64)
        most = min(_MOST[self._name], MOST) // self._step
        powers = np.unique(np.minimum(2 ** np.arange(most.bit_length() + 1), most))
        if near:
            powers = np.unique(np.clip(near // self._step * _NEAR, 1, most).astype(np.int64))
        fits = self._fits(variants, np.tile(powers, (len(variants), 1)), sure)
        count = fits.sum(axis=1)
        low = np.where(count > 0, powers[np.maximum(count - 1, 0)], 0)
        high = np.where(count < len(powers), powers[np.minimum(count, len(powers) - 1)], most + 1)
        while np.any(high - low > np.maximum(1, resolution * low)):
            share = np.arange(1, _POINTS + 1) / (_POINTS + 1)
            points = low[:, None] + ((high - low)[:, None] * share).astype(np.int64)
            points = np.clip(points, np.maximum(low, 1)[:, None], high[:, None] - 1)
            points = np.maximum(np.minimum(points, most), 1)
            fits = self._fits(variants, points, sure)
            best = np.where(fits, points, low[:, None]).max(axis=1)
            worst = np.where(fits, high[:, None], points).min(axis=1)
            low, high = np.maximum(low, best), np.where(worst > low, np.minimum(high, worst), high)
            high = np.maximum(high, low + 1)
        return low * self._step

    def _fits(
        self, variants: Sequence[Mapping[str, Any]], counts: Ints, sure: float | None
    ) -> Bools:
        """Whether variants fit at several multiples of the step; shape (variants, values).

        Where a value does not fit, neither do larger ones.
        """
        rows = [
            {**self._of(fields, int(count)), **fields}
            for fields, own in zip(variants, counts, strict=True)
            for count in own.tolist()
        ]
        predicted = sure is None or not self._base.training
        sums, total = np.zeros((2, len(rows)))
        for weight, base in self._software[: 1 if predicted else None]:
            table = Table.of(self._model, columns_for(self._model, base, rows), self._system)
            legal = first_violation(self._model, self._system, table) < 0
            if not legal.any():
                continue
            some = table.take(legal)
            found = evaluate(self._model, self._system, some)
            fits = found.fits.astype(np.float64)
            if not predicted:
                fits = plan_probability(self._model, self._system, some, found)
            sums[legal] += weight * fits
            total[legal] += weight
        if not variants[0] and not total.any():
            refuse_illegal(self._model, self._system, table.take(np.array([0])))
        within = np.divide(sums, total, out=np.zeros(len(rows)), where=total > 0)
        by_variant = (within >= (_LIKELY if predicted else sure)).reshape(counts.shape)
        return np.logical_and.accumulate(by_variant, axis=1)

    def _of(self, fields: Mapping[str, Any], count: int) -> dict[str, Any]:
        base = self._base
        if "zero" in fields and base.dp:
            base = base.model_copy(update={"zero": fields["zero"]})
        return _at(base, self._name, count * self._step)

    def parts(self, values: Sequence[int]) -> dict[str, Floats]:
        """Memory of the plan by part at several values [byte]."""
        rows = [_at(self._base, self._name, value) for value in values]
        found = evaluated(self._model, self._system, self._base, rows)
        return dict(found.memory_bytes)


def _limit(bisection: _Bisection, value: int) -> tuple[str, float]:
    """The part of the memory that grows most with the value, in words, and its size."""
    parts = bisection.parts([value, 2 * value])
    grows: Callable[[str], float] = lambda name: float(parts[name][1] - parts[name][0])  # noqa: E731 - used once
    name = max(parts, key=grows)
    return _PART_WORDS.get(name, name), float(parts[name][0])


# --- Over the best strategies ---------------------------------------------------------------------

_PARTS = 8


def largest_in_search(
    model: ModelLike, system: SystemLike, space: Space, field: str
) -> LargestValue | None:
    """Find the largest value of a field with which some strategy of a space fits; None: with none.

    Powers of two are tried first, then eighths between the last that fits and the next; among the
    strategies that fit then, the one with the least memory says how much more fits. Micro-batches
    are divisors of the global batch, which stays. Offload is tried if nothing fits without it.

    Parameters
    ----------
    space
        What the field is there does not matter.
    field
        As in `largest_value`.
    """
    name = _sought(field)
    case = Model.load(model), System.load(system)
    if name == "micro_batch_size":
        batches = space.global_batch_size
        if not isinstance(batches, tuple):
            raise InputError(Fault.of("largest", field, "needs a global batch: set --gbs"))
        batch = int(max(batches))
        found = _fitting(*case, space, name, [n for n in range(1, batch + 1) if batch % n == 0])
    else:
        most = _MOST[name]
        found = _fitting(*case, space, name, [2**n for n in range(most.bit_length())])
        if found is not None and (low := found[0]) >= _PARTS:
            between = [low * n // _PARTS for n in range(_PARTS + 1, 2 * _PARTS)]
            found = _fitting(*case, space, name, between) or found
    if found is None:
        return None
    value, plan = found
    strategy = _as_described(space, *case, plan.strategy)
    largest = largest_value(*case, strategy, field)
    if name != "micro_batch_size" and (largest.value or 0) >= value:
        return largest
    fixed = estimate(*case, strategy)
    own = {"value": value, "likely": None, "predicted": None, "strategy": fixed.strategy}
    own |= {n: getattr(fixed, n) for n in ("fits_probability", "step_time_s", "tokens_per_s")}
    return largest.model_copy(update=own)


def _as_described(
    space: Space, model: Model, system: System, fields: Mapping[str, Any]
) -> Strategy:
    """A plan of a search with its software in the words of the space, if it may be one of several.

    What the space leaves to the software is left to each that it may be.
    """
    described = Described.of(space, model, system)
    if described is None or len(space.stack or ()) > 1:
        return Strategy.validated(fields)
    left = {*described.left, "stack"}
    own = {name: value for name, value in fields.items() if value is not None and name not in left}
    return Strategy.validated(own | {"stack": described.texts[0][1]})


def _fitting(
    model: Model, system: System, space: Space, name: str, values: Sequence[int]
) -> tuple[int, Plan] | None:
    """The largest of some values with which a strategy fits, and that with the least memory."""
    tried = space.fixed({name: tuple(values)}, source="largest")
    cells = search(model, system, tried, axes=(name,), fits=SURE, top=1).cells
    if not cells:
        return None
    value = max(int(str(cell.values[name])) for cell in cells)
    last = space.fixed({name: value}, source="largest")
    front = search(model, system, last, pareto="memory", fits=SURE, top=1).pareto
    return (value, min(front, key=lambda plan: plan.memory_reserved_bytes)) if front else None
