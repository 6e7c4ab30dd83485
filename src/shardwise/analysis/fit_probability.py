"""How likely a plan fits into the memory of its accelerators.

The measured peak of tensors is log-normal: its median is the prediction T, and each side has the
size of its interval (`analysis.memory_interval`). An allocator that runs out of memory frees its
cached blocks and tries again, so only a part of its slack s, fragmentation, counts at the limit:

    needed = T (1 + f (s - 1)) + runtime,    f = 1 / 10
    P(fits) = Phi(ln((capacity - runtime) / (T (1 + f (s - 1)))) / sigma)

with the sigma of the side that the capacity is on. Experts of a plan get an uneven load
(`EXPERT_IMBALANCE`) unless the user states one: a router balances the load over many steps, but
memory must hold the worst one.
"""

import math
from collections.abc import Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from functools import cache
from statistics import NormalDist
from typing import Self

import numpy as np

from shardwise.analysis.memory_interval import (
    MemoryFeatures,
    levels_of,
    memory_runs,
    memory_spread,
)
from shardwise.analysis.results import Verdict
from shardwise.analysis.variation import LEVEL
from shardwise.arrays import Floats
from shardwise.config.enums import MemoryLimit
from shardwise.config.model import Model
from shardwise.config.software.resolve import match_of
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import known_bytes
from shardwise.engine.evaluate import PeakMemory, peak_memory
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.pipeline_layout import distinct_stage_groups
from shardwise.records import dataclass, replace

SURE, UNLIKELY = 0.9, 0.1
"""Probabilities from which a plan fits, and up to which it does not; between them it is on the
edge."""
EXPERT_IMBALANCE = 1.5
"""Load of the most loaded rank's experts over an even one, where none is stated. Training with
natural routing is measured 8 to 20 % slower than with forced balance, predicted 7 to 18 % slower at
this imbalance; benchmarks force an even load."""
# Share of the allocator's slack that stays when memory runs out. PyTorch then frees all cached
# blocks without live tensors (torch.cuda.memory documentation; c10/cuda/CUDACachingAllocator.cpp,
# release_cached_blocks) and cannot free those with some. Nine messages of training that ran out of
# memory state what is reserved but unallocated: 0.1 to 3.9 % of what is allocated, 0.7 % in the
# median and 1.1 % in the mean, where slack is 5 to 20 % (simplescaling/s1 issue 61,
# tatsu-lab/stanford_alpaca 76, andimarafioti/florence2-finetuning 17, mistralai/mistral-finetune
# 69, pixeli99/SVD_Xtend 39, deepspeedai/DeepSpeed 2899, hiyouga/LLaMA-Factory 7532,
# Instruction-Tuning-with-GPT-4/GPT-4-LLM 16, microsoft/unilm 137).
FRAGMENTATION = 0.1
_LOAD = "expert_imbalance"
_STANDARD = NormalDist()
# Standard deviations to the end of an interval, which a tenth of peaks exceed on each side.
_END = _STANDARD.inv_cdf((1 + LEVEL) / 2)
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def fits_probability(
    total_bytes: Floats, capacity_bytes: Floats | float, margins: "Margins"
) -> Floats:
    """Return the probability that the peak of tensors fits; shape of `total_bytes`.

    Parameters
    ----------
    total_bytes
        Predicted peak of tensors [byte].
    capacity_bytes
        What the accelerator has [byte].

    Examples
    --------
    >>> import numpy as np
    >>> m = Margins(*(np.array([one]) for one in (0.1, 0.1, 1.0, 2.0)))
    >>> [fits_probability(np.array([100.0]), room, m).round(3) for room in (102, 112.52)]
    [array([0.5]), array([0.9])]
    """
    room = np.maximum(capacity_bytes - margins.runtime_bytes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        over = np.log(room / (total_bytes * margins.fragmentation))
        deviations = over * _END / np.where(over > 0, margins.more, margins.less)
    fits = room >= total_bytes * margins.fragmentation
    # Without a spread, or without tensors or room: certain.
    sure = np.where(fits, np.inf, -np.inf)
    deviations = np.where(np.isfinite(deviations), deviations, sure)
    return np.asarray(_ERFC(-deviations / math.sqrt(2)) / 2, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Margins:
    """What the memory that is needed at the limit depends on; one value per row."""

    more: Floats
    """Error of log memory that a tenth of peaks exceed above the prediction."""
    less: Floats
    """The same below the prediction."""
    fragmentation: Floats
    """Bytes that the allocator needs at the limit over those of tensors."""
    runtime_bytes: Floats
    """Memory of the runtime [byte]."""

    @classmethod
    def of(cls, system: System, table: Table) -> Self:
        """Return the margins of the rows of a table.

        No peaks of forward passes were measured: these fit, or not, as predicted.
        """
        training = table.training
        by_stack = np.array([[_sizes(stack, a) for a in (False, True)] for stack in table.stacks])
        sizes = by_stack[table.stack, (table.lora_rank > 0).astype(np.int64)]
        more, less = (np.where(training, sizes[..., side], 0.0) for side in (0, 1))
        if system.accelerator.memory[0].limit_on == MemoryLimit.ALLOCATED:
            return cls(more, less, np.ones(len(table)), np.zeros(len(table)))
        slack = table.by_stack(lambda stack: stack.allocator_slack) - 1
        stays = np.where(training, FRAGMENTATION, 1.0)
        runtime = table.by_stack(lambda stack: stack.runtime_memory)
        return cls(more, less, 1 + stays * slack, runtime)

    def needed(self, total_bytes: Floats, probability: float) -> Floats:
        """Return the least capacity that tensors fit into with a probability [byte].

        Parameters
        ----------
        total_bytes
            Predicted peak of tensors [byte].
        """
        deviations = _STANDARD.inv_cdf(probability) / _END
        size = self.more if deviations > 0 else self.less
        return total_bytes * self.fragmentation * np.exp(deviations * size) + self.runtime_bytes


def _sizes(stack: Stack, adapters: bool) -> tuple[float, float]:
    """Errors of log memory that a tenth of peaks exceed: above and below the prediction."""
    features = replace(MemoryFeatures.of(stack, Strategy(), reserved=False), adapters=adapters)
    return _sizes_of(features)


@cache
def _sizes_of(features: MemoryFeatures) -> tuple[float, float]:
    known = memory_runs()
    names = MemoryFeatures.__dataclass_fields__
    columns = {name: np.array([getattr(features, name)]) for name in names}
    more, less = memory_spread(known).sizes(levels_of(columns, known))
    return float(more[0]), float(less[0])


def loaded_unevenly(model: Model, table: Table, *, stated: bool) -> Table:
    """Return the strategies with the load of experts that memory must hold.

    Parameters
    ----------
    stated
        Whether the user states the load.
    """
    if stated or not model.has_experts:
        return table
    load = np.maximum(table.expert_imbalance, EXPERT_IMBALANCE)
    return table.changed(expert_imbalance=load)


def plan_probability(
    model: Model,
    system: System,
    table: Table,
    holding: PeakMemory | None = None,
    *,
    stated: bool = False,
) -> Floats:
    """Return the probability that each legal strategy fits; NaN forward only.

    0 where what it offloads exceeds the second memory tier.

    Parameters
    ----------
    holding
        Memory of the strategies as they are, if already computed.
    stated
        Whether the user states the load of experts.
    """
    loaded = loaded_unevenly(model, table, stated=stated)
    if loaded is not table or holding is None:
        stages = distinct_stage_groups(model, loaded)
        holding = peak_memory(loaded, known_bytes(model, loaded), stages)
    tiers = table.on(system).accelerator.memory
    found = fits_probability(holding.memory.total, tiers[0].capacity, Margins.of(system, table))
    if len(tiers) > 1:
        found = np.where(holding.memory.offloaded <= tiers[1].usable_bytes, found, 0.0)
    return np.where(table.training, found, np.nan)


def software_of(
    model: Model, system: System, strategy: Strategy
) -> tuple[tuple[float, Stack], ...]:
    """Return the stacks that a strategy may mean, each with its weight."""
    match = match_of(strategy.stack, system, model, strategy.stated_options)
    return tuple((one.weight, one.stack) for one in match.candidates)


def mixed_probability(
    model: Model, system: System, strategies: Sequence[Strategy], *, stated: bool = False
) -> Floats:
    """Return the probability that each strategy fits with the software that it describes.

    That may be one of several: the mean over those that can run it, by their weights; 0 with none.
    NaN forward only.

    Parameters
    ----------
    strategies
        As users write them, not resolved.
    stated
        Whether the user states the load of experts.
    """
    several = [
        (row, weight, one.model_copy(update={"stack": stack}).resolved(model, system))
        for row, one in enumerate(strategies)
        for weight, stack in software_of(model, system, one)
    ]
    position, weights = (np.array([one[place] for one in several]) for place in (0, 1))
    table = Table.of(model, [one for *_, one in several])
    legal = first_violation(model, system, table) < 0
    if not legal.any():
        return np.zeros(len(strategies))
    position, weights = position[legal], weights[legal]
    each = plan_probability(model, system, table.take(legal), stated=stated)
    sums, total = (
        np.bincount(position, values, minlength=len(strategies))
        for values in (weights * each, weights)
    )
    return np.divide(sums, total, out=np.zeros(len(strategies)), where=total > 0)


def states_load(strategy: Strategy) -> bool:
    """Return whether a user states the load of experts.

    A strategy with all fields is a result: what is at its default there was not stated.
    """
    even = strategy.expert_imbalance == FIELDS[_LOAD].default
    return _is_stated(strategy.model_fields_set, even=even)


def states_load_in(strategies: object) -> bool:
    """Return whether columns, or a list of strategies, state the load of experts."""
    if isinstance(strategies, Sequence) and not isinstance(strategies, str):
        return any(states_load(one) for one in strategies if isinstance(one, Strategy))
    if isinstance(strategies, Mapping):
        even = np.all(np.asarray(strategies.get(_LOAD)) == FIELDS[_LOAD].default)
        return _is_stated(strategies.keys(), even=bool(even))
    columns = frozenset(getattr(strategies, "columns", ()) if isinstance(strategies, Sized) else ())
    return _is_stated(columns, even=columns >= FIELDS.keys())


def _is_stated(own: AbstractSet[str], *, even: bool) -> bool:
    return _LOAD in own and not (even and own >= FIELDS.keys())


def verdict_of(probability: float | None, *, fits: bool) -> Verdict:
    """Return whether a plan fits, in words.

    Parameters
    ----------
    probability
        None where it is unknown.
    fits
        Whether it fits as predicted.
    """
    if probability is None:
        return "fits" if fits else "does not fit"
    if probability >= SURE:
        return "fits"
    return "does not fit" if probability <= UNLIKELY else "on the edge"
