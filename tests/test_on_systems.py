"""Rows on several systems at once: their times, and the bounds that a sweep passes rows over by."""

import numpy as np
import pytest

from rows import each_row
from shardwise import Model, System, estimate_many
from shardwise.config.system_columns import SystemColumns, figures_of, with_figures
from shardwise.cost.component_costs import PlacedCosts
from shardwise.engine.evaluate import OnSystems
from shardwise.parallel.constraints import first_violation
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

SPACES = {
    "dense": ("llama3-8b", "h100-sxm", {"cp": "1,2", "offload_weights": "all"}),
    "experts": ("mixtral-8x7b", "gb200-nvl72", {"expert_overlap": "all", "training": "all"}),
    "curves": ("gpt3-175b", "calculon-a100-80g", {"dtype": "fp16"}),
}


@each_row("name", SPACES)
def test_times_are_those_of_each_system_and_no_bound_is_above_them(name):
    model, base, more = SPACES[name]
    the_model, the_system = Model.load(model), System.load(base)
    draw = np.random.default_rng(7)
    space = {"gpus": 64, "gbs": 64, "zero": "0,1,2,3", "schedule": "all"} | more
    candidates = Candidates.of(the_model, the_system, Space.validated(space))
    legal = sum(map(len, candidates.legal))
    table = candidates.strategies(np.sort(draw.choice(legal, 400, replace=False)))
    table = table.take(first_violation(the_model, the_system, table) < 0)
    systems = []
    for _ in range(3):
        drawn = {
            path: value * draw.uniform(0.3, 1)
            for path, value in figures_of(the_system).items()
            if isinstance(value, float) and path[-1] != "offset"
        }
        systems.append(with_figures(the_system, drawn))
    placed = PlacedCosts.of(the_model, the_system, table)
    columns = SystemColumns.of(systems)
    on_each = OnSystems.of(the_model, the_system, table, placed, columns)
    rows, on = np.arange(len(table)), draw.integers(0, 3, len(table))
    whole = on_each.step_times(rows, on)[0]
    alone = estimate_many(the_model, [systems[place] for place in on], table)
    np.testing.assert_allclose(whole, alone.step_time_s, rtol=1e-12)
    without_waits = on_each.step_times(rows, on, waits=False)[0]
    assert np.all(without_waits <= whole)
    assert np.all(on_each.pass_times(rows, on) <= without_waits * (1 + 1e-12))
    assert np.any(without_waits < whole)
