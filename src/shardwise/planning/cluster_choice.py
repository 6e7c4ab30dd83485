"""`choose_cluster`: which system, size and plan train a model in time and within a budget.

The fastest plan of a size is also its cheapest, because a size costs the same per hour whatever
runs on it; so each size of each system has one option.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from shardwise.config.base import MISSING, Source
from shardwise.config.model import Model, ModelLike
from shardwise.config.reliability import Reliability
from shardwise.config.system import Price, Site, System, SystemLike
from shardwise.errors import Fault, InputError, check_function, nearest
from shardwise.estimator import estimate
from shardwise.planning.cluster_options import (
    ClusterChoice,
    ClusterOption,
    choice_within,
    limits_of,
    refuse_unpriced,
)
from shardwise.planning.search.evaluate import MEMORY, SECOND_MEMORY
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.progress import BestSoFar
from shardwise.planning.search.progress import Progress as SearchProgress
from shardwise.planning.search.query import load_space
from shardwise.planning.search.results import Plan, SearchResult
from shardwise.planning.search.run import search
from shardwise.planning.search.space import Space
from shardwise.planning.training_time import TrainingRun, with_training

Progress = Callable[[float, int, str], None]
"""Called with the systems searched, partial ones included, their number, and what is searched."""

_REASONS_SHOWN = 3
_BATCH_TOKENS = 2.0**23
_BATCH_SOURCE = "Llama 3 405B had 4 to 16 M tokens: arXiv 2407.21783, section 3.4.1"
_NEVER = "the run never finishes: failures undo its work"
_MOST_DAYS = 1e6
"""A run of thousands of years never finishes: its mean is finite up to 1e300."""


def choose_cluster(
    model: ModelLike,
    systems: Sequence[SystemLike] | SystemLike,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    tokens: float | str,
    deadline: float | str | None = None,
    budget: float | str | None = None,
    prices: Mapping[str, float] | None = None,
    reliability: Reliability | Mapping[str, object] | str | Path | None = None,
    site: Site | Mapping[str, object] | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    jobs: int | None = None,
    backend: str = "loky",
    progress: Progress | None = None,
    **fixed: Unpack[SpaceKeywords],
) -> ClusterChoice:
    """Choose a cluster: the cheapest that meets a deadline, the fastest within a budget.

    Parameters
    ----------
    systems
        Systems to compare, or one.
    space, **fixed
        Strategies to try, as in `search`; with one or more ``gpus`` and ``gbs``. Without ``gbs``
        the batch has about 8 Mi tokens.
    tokens
        Tokens to train on, as for `estimate_training_time`.
    deadline
        Longest run: seconds, or text such as ``"30d"``, ``"12h"``, ``"6w"``. Calendar days count,
        with failures and checkpoints where `reliability` is known.
    budget
        Highest price of the run: USD, or text such as ``"5M"``, ``"250k"``.
    prices
        USD per accelerator-hour by system, in place of those of the systems.
    reliability, site
        As for `estimate_training_time`.
    max_memory, reserve, jobs, backend
        As for `search`.
    progress
        See `Progress`.

    Returns
    -------
    ClusterChoice
        Every system and size with days and price, the cheapest and the fastest;
        `help(shardwise.ClusterChoice)` lists its fields.

    Raises
    ------
    InputError
        If an argument is wrong, or a system has no price and there is a budget.

    Examples
    --------
    >>> from shardwise import choose_cluster
    >>> found = choose_cluster(
    ...     "llama3-8b", ["h100-sxm", "a100-80gb-sxm"], gpus="64,128", gbs=512, tokens="100B",
    ...     deadline="10d", tp=[1, 2], pp=1, zero=1, recompute="none",
    ... )
    >>> assert found.cheapest is not None
    >>> best = found.options[found.cheapest]
    >>> best.system, best.gpus, best.meets_deadline
    ('h100-sxm', 64, True)
    """
    started = time.perf_counter()
    check_function("progress", progress)
    the_model = Model.load(model)
    several = _systems(systems, {} if prices is None else prices)
    run = TrainingRun.load({"tokens": tokens, "reliability": reliability, "site": site})
    limits = limits_of(deadline, budget)
    unpriced = tuple(one.name for one in several if one.price is None)
    refuse_unpriced(unpriced, limits)
    declared = load_space(space, fixed)
    if declared.gpus is None:
        raise InputError.at("cluster", MISSING["gpus"], "gpus")
    declared, notes = _with_batch(declared, the_model)
    options: list[ClusterOption] = []
    smallest: dict[str, int] = {}
    complete = True
    for position, system in enumerate(several):
        found = search(
            the_model,
            system,
            declared,
            objective="tokens_per_s_per_gpu",
            top=1,
            max_memory=max_memory,
            reserve=reserve,
            jobs=jobs,
            backend=backend,
            counts=True,
            progress=_progress(progress, position, several),
        )
        if not found.complete:
            complete = False
            break
        options += _options(the_model, system, declared, found, run)
        if found.smallest is not None and found.smallest.gpus is not None:
            smallest[system.name] = found.smallest.gpus
    return ClusterChoice(
        model=the_model.name,
        systems=tuple(system.name for system in several),
        tokens=run.tokens,
        space=declared.model_dump(mode="json", exclude_unset=True),
        **choice_within(options, limits),
        unpriced=unpriced,
        smallest=smallest,
        notes=notes,
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


def _with_batch(space: Space, model: Model) -> tuple[Space, tuple[str, ...]]:
    """Return the space with a batch, and a note if it is assumed: a power of two of sequences."""
    if space.global_batch_size is not None:
        return space, ()
    length = space.seq_len[0] if isinstance(space.seq_len, tuple) else model.seq_len
    if length is None:
        raise InputError(Fault(field="global_batch_size", problem=MISSING["global_batch_size"]))
    batch = 2 ** max(0, round(math.log2(_BATCH_TOKENS / length)))
    note = f"global batch {batch} x {length} tokens, assumed ({_BATCH_SOURCE}); set --gbs"
    return space.fixed({"global_batch_size": batch}, source="cluster"), (note,)


def _systems(
    systems: Sequence[SystemLike] | SystemLike, prices: Mapping[str, float]
) -> tuple[System, ...]:
    """Load the systems, each once, with the prices that replace theirs; one is a list of one."""
    systems = [systems] if isinstance(systems, (str, Path, System)) else systems
    if not isinstance(systems, (list, tuple)) or not systems:
        raise InputError.at("systems", "is missing: name one or more")
    found = [System.load(system) for system in systems]
    names = [system.name for system in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError.at("systems", "is listed twice", name)
    if not isinstance(prices, Mapping):
        raise InputError.of("prices", prices, "must be USD per accelerator-hour by system")
    for name in prices:
        if name not in names:
            problem = f"is none of the systems: {', '.join(names)}{nearest(str(name), names)}"
            raise InputError.at("prices", problem, str(name))
    return tuple(
        _priced(system, prices[system.name]) if system.name in prices else system
        for system in found
    )


def _priced(system: System, usd: float) -> System:
    """Return the system with another price."""
    as_of = date.min if system.price is None else system.price.as_of
    try:
        price = Price.validated(
            {"usd_per_accelerator_hour": usd, "as_of": as_of.isoformat(), "source": "set"}
        )
    except InputError as error:
        fault = replace(error.faults[0], source="prices", field=system.name)
        raise InputError(fault) from None
    others = {name: one for name, one in system.sources.items() if name != "price.source"}
    given = {"price.usd_per_accelerator_hour": Source(kind="assumed", text="set for this choice")}
    return system.model_copy(update={"price": price, "sources": others | given})


def _progress(
    progress: Progress | None, position: int, systems: Sequence[System]
) -> SearchProgress | None:
    """Report the share of the search of one system as a share of all."""
    if progress is None:
        return None

    def report(done: int, total: int, best: BestSoFar | None) -> None:
        del best
        share = done / max(total, 1)
        progress(position + share, len(systems), systems[position].name)

    return report


@dataclass(frozen=True, slots=True)
class _Size:
    """What a search found with one number of accelerators and one batch."""

    gpus: int
    global_batch_size: int
    candidates: int
    """Strategies of the space."""
    feasible: int
    rejected: Mapping[str, int]
    best: Mapping[str, Any] | None
    """Fields of the best strategy."""


def _sizes(space: Space, found: SearchResult) -> list[_Size]:
    """What a search found at each number of accelerators and batch, in the order of the space."""
    gpus, batches = space.gpus, space.global_batch_size
    assert isinstance(gpus, tuple)  # noqa: S101 - neither has an `all`
    assert isinstance(batches, tuple)  # noqa: S101
    if not found.scales:
        best = found.best[0].strategy if found.best else None
        return [_Size(gpus[0], batches[0], found.candidates, found.feasible, found.rejected, best)]
    known = {(scale.gpus, scale.global_batch_size): scale for scale in found.scales}
    sizes = []
    for number, batch in product(gpus, batches):
        scale = known.get((number, batch))
        if scale is None:
            sizes.append(_Size(number, batch, 0, 0, {}, None))
            continue
        best = None if scale.best is None else scale.best.strategy
        sizes.append(_Size(number, batch, scale.candidates, scale.feasible, scale.rejected, best))
    return sizes


def _options(
    model: Model,
    system: System,
    space: Space,
    found: SearchResult,
    run: TrainingRun,
) -> list[ClusterOption]:
    """The options of one system."""
    options = []
    for size in _sizes(space, found):
        answer: dict[str, Any] = dict.fromkeys(("days", "usd", "plan", "run", "software"))
        answer["problem"] = _why_none(size) if size.best is None else None
        if size.best is not None:
            best = with_training(estimate(model, system, size.best), system, run)
            assert best.whole_run is not None  # noqa: S101 - set by `with_training`
            ends = best.whole_run.effective_days <= _MOST_DAYS
            answer["days"] = best.whole_run.effective_days if ends else None
            answer["usd"] = best.whole_run.effective_usd if ends else None
            answer["plan"], answer["run"] = (
                Plan(
                    strategy=best.strategy,
                    step_time_s=best.step_time_s,
                    tokens_per_s=best.tokens_per_s,
                    tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
                    mfu=best.mfu,
                    memory_reserved_bytes=best.memory_bytes.reserved,
                    usd_per_billion_tokens=best.cost.usd_per_billion_tokens,
                ),
                best.whole_run,
            )
            answer["software"] = best.software
            answer["problem"] = None if ends else _NEVER
        options.append(
            ClusterOption(
                system=system.name,
                gpus=size.gpus,
                global_batch_size=size.global_batch_size,
                **answer,
                meets_deadline=None,
                within_budget=None,
                on_front=False,
                candidates=size.candidates,
                feasible=size.feasible,
                rejected=dict(size.rejected),
            )
        )
    return options


def _why_none(size: _Size) -> str:
    """Why nothing is feasible with a number of accelerators and a batch."""
    reasons = Counter(size.rejected)
    split = f"a batch of {size.global_batch_size:,} over {size.gpus:,} GPUs"
    if not reasons or set(reasons) == {"batch"}:
        return f"no degrees of the space split {split}"
    full = reasons[MEMORY] + reasons[SECOND_MEMORY]
    if full:
        return f"nothing fits: {full:,} of {size.candidates:,} strategies need more memory"
    shown = ", ".join(f"{reason} {n:,}" for reason, n in reasons.most_common(_REASONS_SHOWN))
    return f"every strategy breaks a rule: {shown}"
