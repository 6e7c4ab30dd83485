"""How many accelerators of each system fine-tuning needs: models x systems x methods x lengths."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from shardwise import catalog
from shardwise.analysis import Result
from shardwise.analysis.fit_probability import SURE, mixed_probability
from shardwise.config.fine_tuning import METHODS
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.estimator import estimate_many
from shardwise.planning.break_even import break_even
from shardwise.planning.ways import evaluated, ways_for
from shardwise.shown import Charted

COUNTS = tuple(2**power for power in range(10))
"""Numbers of accelerators that are tried."""
_UNSHARDED, _SHARDED = 0, 3
_SAVINGS = 2
_SECONDS_PER_HOUR = 3600
_MILLION = 1e6
# Systems whose figures are those of another model of performance.
_OF_OTHERS = ("calculon-", "nersc-", "simumax-", "amped-")


class MethodPlan(Result):
    """The fewest accelerators of a system on which a model can be fine-tuned so."""

    model: str
    system: str
    finetune: str
    seq_len: int
    gpus: int | None
    """Fewest accelerators on which it surely fits (with 90 %); None: none of `COUNTS`."""
    fits_probability: float | None
    reserved_bytes: float
    """Reserved memory of an accelerator [byte]; without `gpus` of the most of them."""
    limited_by: str
    """The largest part of the memory."""
    zero: int
    step_time_s: float
    tokens_per_s: float
    usd_per_million_tokens: float | None
    """None: the system has no price."""
    price: str = ""
    """Price of a GPU-hour with provider, region, term and date."""
    break_even_usd: float | None = None
    """Price of a GPU-hour at which it costs as much as the same on the cheapest other system."""
    problem: str = ""
    """Why no strategy is legal."""


class Saving(Result):
    """A change of a plan that lowers its memory."""

    name: str
    """What it changes, in words."""
    flags: str
    """Flags of `estimate` that make it."""
    reserved_bytes: float
    """Reserved memory with it [byte]."""


class MethodTable(Charted, Result):
    """Plans of several models, systems, methods and lengths.

    Examples
    --------
    >>> from shardwise import compare_methods
    >>> found = compare_methods(["qwen3-1.7b"], ["l40s"], finetune=["full", "lora"])
    >>> best = found.cheapest()
    >>> best.finetune if best else None
    'lora'
    """

    plans: tuple[MethodPlan, ...]
    lowered_by: tuple[Saving, ...] = ()
    """The changes that lower the memory of the first plan most, the best first, each of a kind of
    its own: with them smaller systems are enough."""
    mbs: int
    """Sequences of a micro-batch, one of each replica in a step."""

    def cheapest(self) -> MethodPlan | None:
        """Return the plan with the lowest price of a token, of systems with a price."""
        priced = [one for one in self.plans if one.gpus and one.usd_per_million_tokens]
        return min(priced, key=lambda one: one.usd_per_million_tokens or 0.0, default=None)


def compare_methods(
    models: Sequence[ModelLike],
    systems: Sequence[SystemLike],
    *,
    finetune: Sequence[str] = ("lora",),
    seq_lens: Sequence[int] = (2048,),
    mbs: int = 1,
    **fields: Any,
) -> MethodTable:
    """Find the fewest accelerators for each model, system, method and length.

    Data parallelism alone, each step one micro-batch of each replica; full replicas, or sharded by
    ZeRO-3, whichever fits and is faster.

    Parameters
    ----------
    finetune
        Methods, words of the field `finetune`.
    **fields
        Other fields of the strategies.

    Returns
    -------
    MethodTable
        A plan of each; `help(shardwise.MethodTable)` lists its fields.

    Raises
    ------
    InputError
        If a method is unknown, or any other input is wrong.

    Examples
    --------
    >>> from shardwise import compare_methods
    >>> found = compare_methods(["qwen3-1.7b"], ["l40s"], finetune=["full", "lora"])
    >>> [(plan.finetune, plan.gpus) for plan in found.plans]
    [('full', 1), ('lora', 1)]
    """
    lists = {"models": models, "systems": systems, "finetune": finetune, "seq_lens": seq_lens}
    for name, value in lists.items():
        if not isinstance(value, list | tuple) or not value:
            raise InputError.of(name, value, "must be a list with at least one item")
    for name, number in [*(("seq_lens", length) for length in seq_lens), ("mbs", mbs)]:
        if not isinstance(number, int) or number < 1:
            raise InputError.of(name, number, "must be a whole number of at least 1")
    for method in finetune:
        if not isinstance(method, str) or method not in METHODS:
            raise InputError(Fault.of("finetune", method, allowed_words(method, tuple(METHODS))))
    own = {"mbs": mbs} | fields
    several = [System.load(system) for system in systems]
    plans: list[MethodPlan] = []
    for model in map(Model.load, models):
        for length, method in product(seq_lens, finetune):
            plans += _with_break_even(
                [_plan(model, system, method, length, own) for system in several]
            )
    return MethodTable(plans=tuple(plans), mbs=mbs)


def _with_break_even(plans: Sequence[MethodPlan]) -> Iterator[MethodPlan]:
    """Plans of the same work with the price at which each costs as much as on another system."""
    costs = [
        (one.system, one.usd_per_million_tokens)
        for one in plans
        if one.usd_per_million_tokens is not None
    ]
    hours = {
        one.system: one.gpus * _MILLION / one.tokens_per_s / _SECONDS_PER_HOUR
        for one in plans
        if one.gpus is not None
    }
    found = break_even(costs, hours)
    for one in plans:
        yield one.model_copy(update={"break_even_usd": found.get(one.system)})


def systems_for(
    model: ModelLike, *, finetune: str = "lora", seq_len: int = 2048, mbs: int = 1, **fields: Any
) -> MethodTable:
    """Find the fewest accelerators of every system of the catalog, and list the fewest first.

    Of as many accelerators, those with the lowest price of a token come first, then those with less
    memory. Systems on which it does not fit are left out.
    """
    names = [name for name in catalog.names("systems") if not name.startswith(_OF_OTHERS)]
    found = compare_methods(
        [model], names, finetune=[finetune], seq_lens=[seq_len], mbs=mbs, **fields
    )

    def order(plan: MethodPlan) -> tuple[float, ...]:
        price = plan.usd_per_million_tokens
        return (plan.gpus or 0, np.inf if price is None else price, plan.reserved_bytes)

    fitting = sorted((one for one in found.plans if one.gpus is not None), key=order)
    update: dict[str, Any] = {"plans": tuple(fitting)}
    if fitting:
        update["lowered_by"] = _savings(fitting[0], {"mbs": mbs} | fields)
    return found.model_copy(update=update)


def _savings(plan: MethodPlan, fields: Mapping[str, Any]) -> tuple[Saving, ...]:
    """The changes of a plan that lower its memory most."""
    model, system = Model.load(plan.model), System.load(plan.system)
    requested = _strategy(plan.finetune, plan.gpus or 1, plan.seq_len, plan.zero, fields)
    base = requested.resolved(model, system)
    ways = ways_for(base, any_stack=True)
    found = evaluated(model, system, base, [way.fields for way in ways])
    sizes = np.where(found.refused < 0, found.memory_reserved_bytes, np.inf)
    best: dict[str, Saving] = {}
    for row in np.argsort(sizes, kind="stable").tolist():
        size, way = float(sizes[row]), ways[row]
        if size < plan.reserved_bytes and way.name not in best:
            flags = " ".join(way.flags)
            best[way.name] = Saving(name=way.name, flags=flags, reserved_bytes=size)
    return tuple(best.values())[:_SAVINGS]


def _plan(
    model: Model, system: System, method: str, seq_len: int, fields: Mapping[str, Any]
) -> MethodPlan:
    """The plan with the fewest accelerators of one system."""
    about = {"model": model.name, "system": system.name, "finetune": method, "seq_len": seq_len}
    try:
        requested = list(_strategies(method, seq_len, fields))
        strategies = [one.resolved(model, system) for one in requested]
        found = estimate_many(model, system, strategies)
        sure = mixed_probability(model, system, requested)
    except InputError as error:
        return _refused(about, str(error.faults[0]))
    legal = found.refused < 0
    fits = legal & (sure >= SURE)
    gpus = np.array([one.gpus for one in strategies])
    fewest = int(gpus[fits].min()) if fits.any() else None
    rows = np.flatnonzero(fits & (gpus == fewest)) if fits.any() else np.flatnonzero(legal)[-1:]
    if not rows.size:
        return _refused(about, found.reason(0) or "")
    row = int(rows[np.argmin(found.step_time_s[rows])])
    price = system.price
    tokens_per_s = float(found.tokens_per_s[row])
    usd = None
    if price is not None and fewest is not None:
        per_s = price.usd_per_accelerator_hour * fewest / _SECONDS_PER_HOUR
        usd = per_s / tokens_per_s * _MILLION
    parts = {name: float(size[row]) for name, size in found.memory_bytes.items()}
    return MethodPlan(
        **about,
        gpus=fewest,
        fits_probability=float(sure[row]),
        reserved_bytes=float(found.memory_reserved_bytes[row]),
        limited_by=max(parts, key=lambda name: parts[name]),
        zero=int(found.table.zero[row]),
        step_time_s=float(found.step_time_s[row]),
        tokens_per_s=tokens_per_s,
        usd_per_million_tokens=usd,
        price="" if price is None else price.in_words,
    )


def _refused(about: Mapping[str, Any], problem: str) -> MethodPlan:
    """A plan of a system that can run no strategy."""
    return MethodPlan(
        **about,
        **dict.fromkeys(("gpus", "fits_probability", "usd_per_million_tokens")),
        **dict.fromkeys(("reserved_bytes", "step_time_s", "tokens_per_s"), 0.0),
        limited_by="",
        zero=0,
        problem=problem,
    )


def _strategies(method: str, seq_len: int, fields: Mapping[str, Any]) -> Iterator[Strategy]:
    """Strategies of each number of accelerators: full replicas and sharded ones."""
    for gpus in COUNTS:
        for zero in (_UNSHARDED, _SHARDED) if gpus > 1 else (_UNSHARDED,):
            yield _strategy(method, gpus, seq_len, zero, fields)


def _strategy(
    method: str, gpus: int, seq_len: int, zero: int, fields: Mapping[str, Any]
) -> Strategy:
    """A strategy; a single accelerator leaves sharding to the software."""
    own: dict[str, Any] = {"finetune": method, "gpus": gpus, "seq_len": seq_len}
    own |= {"zero": zero} if gpus > 1 else {}
    return Strategy.validated(own | dict(fields))
