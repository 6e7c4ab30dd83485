"""Ways to use less memory, in the order of what they cost, and the first that makes a plan fit."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from shardwise.analysis.estimate_table import EstimateTable
from shardwise.analysis.fit_probability import SURE
from shardwise.config.fine_tuning import METHODS, without_shorthands
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS, SHORT_NAMES
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.planning.nearest import NearestPlan, flag_words, set_fields
from shardwise.planning.search.results import FieldChange, SearchResult
from shardwise.records import dataclass, field

Fields = Mapping[str, Any]
# Ways that are combined with each other, besides all of them up to one.
_TOGETHER = 3
# Sets with the same most expensive way, and sets in all, that are checked in detail.
_CHECKED, _MOST_CHECKED = 2, 12
_PURE = {
    "weight_dtype": "compute",
    "master_dtype": "none",
    "moment_dtype": "bf16",
    "gradient_dtype": "compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change of some fields that lowers the peak of memory."""

    name: str
    fields: Fields
    method: str = ""
    """Word of `finetune` that stands for the fields."""
    rank: int = field(default=0)
    """Place in the order of cost."""

    @property
    def flags(self) -> list[str]:
        """The flags of the command line that set the fields."""
        if self.method:
            return ["--finetune", self.method]
        return [word for name, value in self.fields.items() for word in flag_words(name, value)]


def ways_for(
    strategy: Strategy, *, any_stack: bool = False, own: Collection[str] = ()
) -> tuple[Way, ...]:
    """Return the ways that are open to a resolved strategy, those that cost least first.

    What leaves the result of a step as it is comes first: shards, the loss, smaller micro-batches,
    recompute, checkpoints on the host. Then smaller optimizer state, weights in 16 bits throughout,
    a base in fewer bits, other methods of fine-tuning, offload, and last shorter sequences.

    Parameters
    ----------
    any_stack
        Whether another method of fine-tuning brings the software that it usually runs on.
    own
        Fields that the user sets, which a method leaves as they are.
    """
    found: list[tuple[str, dict[str, Any], str]] = []

    def add(name: str, fields: dict[str, Any], method: str = "") -> None:
        found.append((name, fields, method))

    replicas = strategy.dp or 1
    if replicas > 1:
        add("shards", {"zero": 3})
    for word in ("fused_linear", "chunked_recompute", "chunked", "cut", "in_place"):
        add("loss", {"loss": word})
    batch = strategy.micro_batch_size
    while batch > 1:
        batch = next(n for n in range(batch // 2, 0, -1) if strategy.micro_batch_size % n == 0)
        add("micro-batch", {"micro_batch_size": batch})
    add("recompute", {"recompute": "full"})
    add("checkpoints on the host", {"recompute": "full", "checkpoint_place": "host"})
    add("8-bit optimizer", {"optimizer": "adamw-8bit"})
    add("16-bit weights", dict(_PURE))
    if strategy.lora_rank is not None:
        add("int8 base", {"base_weights": "int8"})
        add("nf4 base", {"base_weights": "nf4"})
    elif not strategy.frozen:
        for method in ("lora", "qlora"):
            fields = without_shorthands(dict(METHODS[method]))
            left = {*own, *(() if any_stack else ("stack",))}
            add(method, {n: v for n, v in fields.items() if n not in left}, method)
    add("optimizer offloaded", {"offload_optimizer": True})
    add("weights and optimizer offloaded", {"offload_optimizer": True, "offload_weights": True})
    length = strategy.seq_len or 1
    for part in (2, 4, 8):
        if length % (part * 64) == 0:
            add("shorter sequences", {"seq_len": length // part})
    return tuple(
        Way(name=name, fields=fields, method=method, rank=place)
        for place, (name, fields, method) in enumerate(found)
        if any(getattr(strategy, n) != value for n, value in fields.items())
    )


def ways_to_fit(
    model: Model, system: System, strategy: Strategy, *, any_stack: bool | None = None
) -> NearestPlan | None:
    """Return the cheapest way, or ways together, with which a plan surely fits; None without one.

    Of sets of ways whose most expensive one costs the same, the one with the fewest ways; of these
    the shortest step.

    Parameters
    ----------
    strategy
        The plan of the user, whose accelerators and batch stay.
    any_stack
        As in `ways_for`; None: if the strategy names no software.
    """
    base = strategy.resolved(model, system)
    free = strategy.stack is None if any_stack is None else any_stack
    sets = list(_sets(ways_for(base, any_stack=free, own=strategy.set_fields())))
    if not sets:
        return None
    rows = [{n: v for way in ways for n, v in way.fields.items()} for ways in sets]
    found = evaluated(model, system, base, rows)
    likely = found.fits_probability
    sure = found.fits if np.isnan(likely).all() else likely >= SURE
    order = sorted(
        np.flatnonzero((found.refused < 0) & sure).tolist(),
        key=lambda row: (sets[row][-1].rank, len(sets[row]), float(found.step_time_s[row])),
    )
    checked: Counter[int] = Counter()
    for row in order:  # described software may be one of several, so that some do not fit
        rank = sets[row][-1].rank
        if checked[rank] >= _CHECKED or checked.total() >= _MOST_CHECKED:
            continue
        checked[rank] += 1
        try:
            result = estimate(model, system, strategy, **rows[row])
        except InputError:  # defaults of other software, which the row above has not
            continue
        if result.verdict == "fits":
            return NearestPlan(
                strategy=result.strategy,
                changes=tuple(_changes(base, rows[row])),
                step_time_s=result.step_time_s,
                fits_probability=result.fits_probability,
                flags=shlex.join([word for way in sets[row] for word in way.flags]),
            )
    return None


def change_of_search(
    model: Model, system: System, found: SearchResult, *, any_stack: bool
) -> NearestPlan | None:
    """Return what makes the nearest plan of a search fit that found none; None if nothing does."""
    if found.best or found.nearest is None or not found.nearest.strategy["training"]:
        return None
    strategy = Strategy.validated(found.nearest.strategy)
    return ways_to_fit(model, system, strategy, any_stack=any_stack)


def _changes(base: Strategy, changed: Fields) -> Iterator[FieldChange]:
    """The changed fields, without the software that a method brings."""
    for name in FIELDS:
        if name in changed and name != "stack":
            given, value = _plain(getattr(base, name)), _plain(changed[name])
            if given != value:
                yield FieldChange(field=name, given=given, value=value)


def _sets(ways: Sequence[Way]) -> Iterator[tuple[Way, ...]]:
    """Ways alone, a few together that set different fields, and all up to one."""
    for number in range(1, _TOGETHER + 1):
        for some in combinations(ways, number):
            if len({way.name for way in some}) == number:
                yield some
    for last in range(_TOGETHER, len(ways)):
        by_name = {way.name: way for way in ways[: last + 1]}
        if len(by_name) > _TOGETHER:
            yield tuple(by_name.values())


def evaluated(
    model: Model, system: System, base: Strategy, rows: Sequence[Fields]
) -> EstimateTable:
    """Estimate a resolved strategy with other values of some fields, one row for each set of them.

    Parameters
    ----------
    rows
        Changed fields.
    """
    return estimate_many(model, system, columns_for(model, base, rows))


def columns_for(model: Model, base: Strategy, rows: Sequence[Fields]) -> dict[str, list[Any]]:
    """Columns of a resolved strategy with other values of some fields, one row for each set."""
    own = {"stack": base.stack} | set_fields(model, base)
    names = dict.fromkeys([*own, *(name for row in rows for name in row)])
    return {name: [row.get(name, getattr(base, name)) for row in rows] for name in names}


def _plain(value: object) -> object:
    """A value as records have it."""
    if isinstance(value, (tuple, list)):
        return [str(one) for one in value]
    return str(value) if isinstance(value, str) else value


def field_of(name: str) -> str:
    """Return the name of a field for its flag or short name: mbs, seq-len."""
    plain = name.strip().lower().replace("-", "_")
    return SHORT_NAMES.get(plain, plain)
