"""Explanations of samples, held against a search that counts changes one by one."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive_effects import has_effect
from naive_search import AXES, FEW, everything
from profiles import examples
from rows import first_of
from samples import GB, model, system, tier
from shardwise import estimate
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.parallel.placement import place
from shardwise.planning.search import explain as explaining
from shardwise.planning.search import scan as judging
from shardwise.planning.search.explain import UserStrategy, explain
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

MODEL = model()
SYSTEM = system(network=[tier("in", domain=4), tier("out", bandwidth=10 * GB)], node=4)
# Half of this space fits: the runtime of the stack holds 2 GiB, the rest a megabyte or so.
CAPACITY = 2.1486e9
SPACE = {
    "scope": "full",
    **FEW,
    "gpus": [8, 16],
    "global_batch_size": [8],
    "recompute": ["none", "full"],
    "tp_overlap": ["stack", "ring"],
    "tp_regather": [True],
    "dp_overlap": [True],
    "fused_activation": [False],
}
# Everything but what decides how far one strategy is from another is left out here.
COUNTED = (
    *("gpus", "tp", "pp", "vpp", "micro_batch_size", "global_batch_size", "recompute", "zero"),
    *("tp_exchange", "tp_overlap", "tp_regather", "dp_overlap", "fused_activation"),
)


def ask(strategy, space=SPACE, **words):
    return explain(MODEL, SYSTEM, space, strategy, **{"max_memory": CAPACITY} | words)


@cache
def naive():
    """Every strategy of the space, and those that are feasible with their times."""
    found = everything(MODEL, SYSTEM, SPACE, CAPACITY)
    rows = found.feasible
    strategies = [found.strategies.strategy(row).to_dict() for row in rows]
    return found, strategies, found.estimates.step_time_s[rows]


def seats(strategies, placement):
    """Where the members of every strategy sit under a placement (None: its own)."""
    names = (*AXES, "placement")
    columns = {name: [one[name] for one in strategies] for name in names}
    if placement is not None:
        columns["placement"] = [placement] * len(strategies)
    extents = place(SYSTEM, Table.of(MODEL, {**columns, "gbs": 1}))
    return np.concatenate([getattr(extents, axis) for axis in AXES])


def naive_distances(found, said, strategies):
    """How many fields one changes to get to each strategy, by plain counting.

    A field that breaks a rule is changed even where it has no effect.
    """
    ours, blamed = found.strategy, {rule.field for rule in found.broken}.intersection(said)
    moved = np.any(seats(strategies, None) != seats(strategies, ours["placement"]), axis=0)
    found = []
    for one, elsewhere in zip(strategies, moved.tolist(), strict=True):
        own = dict(ours)
        if "tp_exchange" not in said:
            own["tp_exchange"] = "rs_ag" if one["tp"] > 1 else "all_reduce"
        changed = [
            n
            for n in COUNTED
            if one[n] != own[n] and (n in blamed or has_effect(MODEL, one, own[n], n))
        ]
        found.append(len(changed) + elsewhere)
    return np.array(found)


FIELDS = {
    "gpus": [8, 16],
    "tp": [1, 2, 3, 4, 8],
    "pp": [1, 2, 3, 4],
    "vpp": [1, 2],
    "micro_batch_size": [1, 2, 8],
    "recompute": ["none", "full", "selective"],
    "zero": [0, 1, 2, 4],
    "tp_exchange": ["all_reduce", "rs_ag", "p2p_rs_ag"],
    "tp_overlap": ["stack", "ring", "pipe"],
    "tp_regather": [False, True],
    "placement": ["tp-cp-dp-pp", "dp-pp-cp-tp", "pp-tp-cp-dp"],
}
STRATEGIES = st.fixed_dictionaries(
    {"gpus": st.sampled_from(FIELDS["gpus"])},
    optional={name: st.sampled_from(values) for name, values in FIELDS.items() if name != "gpus"},
)
PICK = random.Random(0)  # noqa: S311 - samples, no secrets
SAMPLES = [
    {
        name: PICK.choice(values)
        for name, values in FIELDS.items()
        if name == "gpus" or PICK.random() < share
    }
    for share in [0.25] * 8 + [0.6] * 3
]
SAMPLES.append(
    {"gpus": 8, "tp": 8, "recompute": "none", "tp_overlap": "pipe"}
)  # 1 change: slower than none
FIRST = 6
# Of the first, one with several levels.
CUT = 6
samples = pytest.mark.parametrize("position", first_of(FIRST, reversed(range(len(SAMPLES)))))


@cache
def sample(position):
    return ask(SAMPLES[position])


def check_distances(found, said):
    """At each number of changes: the same time as the least over all that far, up to the best."""
    _, strategies, times = naive()
    distances = naive_distances(found, said, strategies)
    expected = {int(d): times[distances == d].min() for d in np.unique(distances)}
    if found.rank is not None:
        expected.pop(0, None)
    reached = [d for d, best in expected.items() if best <= times.min() * (1 + 1e-6)]
    expected = {d: best for d, best in expected.items() if d <= min(reached, default=0)}
    told = {change.changes: change.plan.step_time_s for change in found.changes}
    assert told == pytest.approx(expected, rel=1e-12)


@examples(4)
@given(STRATEGIES)
def test_every_distance_has_its_best_as_plain_counting_finds_it(said):
    """The best with 1, 2, ... changes are those of a search that counts changes one by one."""
    check_distances(ask(said), said)


@samples
def test_samples_have_the_best_at_every_distance(position):
    """The same for strategies with few and with many fields given."""
    check_distances(sample(position), SAMPLES[position])


@samples
def test_the_rank_is_the_place_among_all_that_is_feasible(position):
    """As many are better as have a shorter step; there is a rank exactly if it is feasible."""
    found = sample(position)
    _, strategies, times = naive()
    assert found.feasible == len(strategies)
    assert (found.rank is not None) == bool(found.legal and found.fits)
    if found.rank is not None:
        better = int(np.count_nonzero(times < found.estimate.step_time_s * (1 - 1e-9)))
        assert (found.rank, found.better) == (better + 1, better)


@samples
def test_a_change_names_what_turns_one_strategy_into_the_other(position):
    """The fields named, put over what was given, are the strategy that is shown, and the best."""
    found, said = sample(position), SAMPLES[position]
    named = [(change.fields, change.plan.strategy) for change in found.changes[:2]]
    named.append((found.differs, found.best.strategy))
    for fields, target in named:
        put = {**said, **{field.field: field.value for field in fields}}
        again = (
            UserStrategy.of(MODEL, SYSTEM, Space.validated(SPACE), put).row.strategy(0).to_dict()
        )
        assert not [n for n in COUNTED if has_effect(MODEL, target, again[n], n)]
        assert all(field.given == found.strategy[field.field] for field in fields)
    assert [len(change.fields) for change in found.changes] == [c.changes for c in found.changes]


@samples
def test_a_change_improves_if_nothing_nearer_is_as_good(position):
    """Each change is held against what was given, if feasible, and all with fewer changes."""
    found = sample(position)
    least = found.estimate.step_time_s if found.rank is not None else np.inf
    for change in found.changes:
        assert change.improves == (change.plan.step_time_s < least * (1 - 1e-6))
        least = min(least, change.plan.step_time_s)


@samples
def test_broken_rules_are_what_an_estimate_refuses(position):
    """The same fields, values and problems, where the degrees make up the accelerators."""
    found = sample(position)
    faults = set()
    try:
        estimate(MODEL, SYSTEM, found.strategy)
    except InputError as error:
        faults = {(fault.field, fault.value, fault.problem) for fault in error.faults}
    assert found.legal == (not faults)
    if "degrees" not in {rule.reason for rule in found.broken}:
        assert {(rule.field, rule.value, rule.problem) for rule in found.broken} == faults


@samples
def test_a_legal_strategy_is_in_the_space_if_the_space_has_the_same_run(position):
    """Outside exactly if no strategy of the space, feasible or not, is at no distance."""
    found = sample(position)
    if not found.legal:
        return
    table = naive()[0].strategies
    same = np.all([getattr(table, n) == found.strategy[n] for n in (*AXES, "vpp")], axis=0)
    every = [table.strategy(row).to_dict() for row in np.flatnonzero(same)]
    nearest = min(naive_distances(found, ["tp_exchange"], every), default=1)
    assert found.in_space == (nearest == 0)


def test_the_samples_are_legal_and_illegal_feasible_and_not_inside_and_outside():
    """So that the tests above test all of it."""
    every = [sample(position) for position in range(len(SAMPLES))[-FIRST:]]
    assert {found.legal for found in every} == {True, False}
    assert {found.fits for found in every} == {True, False, None}
    assert {found.in_space for found in every} == {True, False}
    assert {change.improves for found in every for change in found.changes} == {True, False}


def test_it_does_not_matter_how_the_space_is_cut(monkeypatch):
    """Candidates looked at in small pieces and chunks: the same levels, counts and best."""
    whole = sample(CUT)
    monkeypatch.setattr(explaining, "PIECE_ROWS", 64)
    monkeypatch.setattr(judging, "_CHUNK", 16)
    cut = ask(SAMPLES[CUT])
    assert cut.model_copy(update={"elapsed_s": whole.elapsed_s}) == whole
