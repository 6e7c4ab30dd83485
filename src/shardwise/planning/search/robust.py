"""Rank candidates by the step time that they keep with 80 % probability.

score = objective(c) x q, with the counted step time c and the quantile q of measured over predicted
time of the class of the candidate (`analysis.plan_classes`).

A candidate of a class that nobody measured may claim more than was ever measured. Faster than the
ceiling, the highest MFU that was measured of the model, precision and generation of accelerators
(`analysis.measured_plans.best_measured`), it counts as at the ceiling,

    c = t,                    t >= ceiling
    c = ceiling - e (ceiling - t),    t < ceiling

with a small e that keeps the order among such candidates. Both rise with the step time t, so bounds
of step times bound scores, and the best by score are found with certainty.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from shardwise.analysis.measured_plans import MeasuredPlan, MeasuredRow, best_measured
from shardwise.analysis.plan_classes import class_codes, class_evidence
from shardwise.analysis.validated_runs import precision_of
from shardwise.arrays import Bools, Floats
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS, EXPERT_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows
from shardwise.estimator import ideal_step_time
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.ranking import Ranking
from shardwise.records import dataclass, replace

CLAIM = 1.15
"""A plan with more than this times the highest measured MFU says so in its first line."""
# Share of a claim beyond the ceiling that counts: enough to order such candidates.
_BEYOND = 1e-3
PRODUCTS = ("dtype", "quantization")
"""Fields that determine the precision of matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustRanking(Ranking):
    """Ranks candidates of one model and system by the quantile of their time."""

    ceilings: Mapping[str, MeasuredPlan]
    """Best measured run by precision."""

    @classmethod
    def of(
        cls, model: Model, system: System, objective: str, precisions: Iterable[str]
    ) -> "RobustRanking":
        """Look up the best measured runs of some precisions."""
        return cls(
            model=model,
            system=system,
            objective=objective,
            ceilings=measured_ceilings(model, system, precisions),
        )

    def scores(self, step_time_s: Floats, table: Table) -> Floats:
        """Return the scores of step times; shape (rows,) or (choices, rows)."""
        factor, proven = self._evidence(table)
        ceiling_s = self._ceiling_s(table, proven)
        beyond = ceiling_s - _BEYOND * (ceiling_s - step_time_s)
        counted = np.where(step_time_s < ceiling_s, beyond, step_time_s)
        return Ranking.scores(self, counted, table) * factor

    def longest(self, score: Floats | float, table: Table) -> Floats:
        """Return the longest step time of each row that has a score, with any of its choices."""
        factor, proven = self._evidence(table)
        counted = Ranking.longest(self, score, table) / factor
        ceiling_s = self._ceiling_s(table, proven)
        claimed = ceiling_s - (ceiling_s - counted) / _BEYOND
        longest = np.where(counted < ceiling_s, claimed, counted)
        return longest.reshape(-1, len(table)).max(axis=0)

    def least_factor(self, box: Box) -> Floats:
        """Return the least quantile of measured over predicted time of each layout of a box."""
        columns = [np.minimum(box.layouts.ep * box.layouts.etp, _domain(self.system) + 1)]
        columns += [box.layouts.pp > 1, box.layouts.schedule]
        firsts, position = distinct_rows(columns)
        options = box.options_with_choices()
        factors = np.empty(firsts.size)
        for place, first in enumerate(firsts.tolist()):
            own = {name: getattr(box.layouts, name)[first] for name in (*EXPERT_DEGREES, "pp")}
            own["schedule"] = box.layouts.schedule[first]
            every = {name: np.full(len(options), value) for name, value in own.items()}
            factors[place] = self._evidence(options.changed(**every))[0].min()
        return factors[position]

    def _evidence(self, table: Table) -> tuple[Floats, Bools]:
        """Quantile of measured over predicted time, and whether the class was measured."""
        codes, found = class_codes(self.model, self.system, table), class_evidence()
        # No runs were measured forward only.
        factor = np.where(table.training, found.quantile_factor()[codes], 1.0)
        return factor, found.configurations[codes] > 0

    def _ceiling_s(self, table: Table, proven: Bools) -> Floats:
        """Step time below which a claim is beyond the ceiling; 0 without a ceiling [s]."""
        if not self.ceilings:
            return np.zeros(proven.shape)
        return np.where(proven, 0.0, ceiling_step_time(self, table))


def _domain(system: System) -> int:
    """Accelerators of the innermost domain; 1 where it has no limit."""
    return system.network[0].domain or 1 if system.network else 1


def measured_ceilings(
    model: Model, system: System, precisions: Iterable[str]
) -> dict[str, MeasuredPlan]:
    """Return the best measured run of a model on accelerators of a generation, by precision."""
    usual = Strategy(gpus=1, global_batch_size=1, seq_len=model.seq_len or 1)
    row, found = MeasuredRow.of(model, system, usual), {}
    for precision in precisions:
        best = best_measured(replace(row, precision=precision))
        if best is not None:
            found[precision] = best
    return found


def ceiling_step_time(ranking: RobustRanking, table: Table) -> Floats:
    """Return the step time at the best measured MFU; 0 where none was measured [s].

    Adapters and forward passes have no ceiling.
    """
    codes, position = distinct_rows([getattr(table, name) for name in PRODUCTS])
    mfu = np.full(codes.size, np.inf)
    for place, row in enumerate(codes.tolist()):
        words = (COLUMNS[name].words[int(getattr(table, name)[row])] for name in PRODUCTS)
        best = ranking.ceilings.get(precision_of(*words))
        if best is not None:
            mfu[place] = best.mfu
    trains_all = table.training & (table.lora_rank <= 0)
    ideal_s = ideal_step_time(ranking.model, ranking.system, table)
    return np.where(trains_all, ideal_s / mfu[position], 0.0)
