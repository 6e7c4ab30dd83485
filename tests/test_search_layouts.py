"""Which layouts a search tries: what decides whether they are legal, and where they sit."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import samples
from naive_search import OFFLOADS, ORDERS, USUAL
from rows import each_row
from shardwise import System
from shardwise.config.enums import PLACED_AXES
from shardwise.config.strategy_fields import CHOICE_FIELDS, COLUMNS, LAYOUT_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.placement import place
from shardwise.planning.search.candidates import OPTION_FIELDS
from shardwise.planning.search.layouts import layouts_of
from shardwise.planning.search.space import Space
from strategy_values import values_of

pytestmark = pytest.mark.any_software

MODEL = samples.model()


def keys(table: Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Fields of each row."""
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


@each_row("rule", [r for r in CONSTRAINTS if r.layout_only])
def test_rules_of_layouts_read_nothing_else(rule):
    """Another value of any option or choice leaves the verdict as it is."""
    random = np.random.default_rng(3)
    sizes = {name: [1, 2, 3, 4, 8] for name in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")}
    sizes["tp2"] = [1, 1, 1, 2]
    sizes |= {"micro_batch_size": [1, 2, 3], "global_batch_size": [4, 6, 8], "gpus": [8, 16, 24]}
    ends = dict.fromkeys(("first_stage_layers", "last_stage_layers"), (None, None, None, 1, 2))
    flags = dict.fromkeys(("embedding_as_layer", "loss_as_layer"), (False, False, True))
    tiers = {f"{axis}_tier": [None, None, 0, 1, 5] for axis in PLACED_AXES}
    words = {"placement": ORDERS, "schedule": [*USUAL["schedule"], "zb-v", "dualpipe"]}
    values = {**sizes, **ends, **flags, **tiers, **words, "dp_shard": [None, None, 1, 2, 3]}
    drawn = {n: random.choice(np.array(v, object), 400) for n, v in values.items()}
    lists = [None, None, (4,), (1, 3), (2, 2), (1, 1, 2)]
    drawn |= {name: drawn[name].astype(np.bool_) for name in flags}
    seats = [None, None, None, "tp=2", "tp=2+dp=2+ep=2", "pp=4/dp=2", "tp=3+tp2=2"]
    drawn["extents"] = [seats[i] for i in random.integers(len(seats), size=400)]
    drawn["stage_layers"] = [lists[i] for i in random.integers(len(lists), size=400)]
    assert {*drawn} == {*LAYOUT_FIELDS}
    table = Table.of(MODEL, {**drawn, "seq_len": 32})
    machine = System.load("calculon-a100-80g")
    other = {**OTHER, **dict.fromkeys(OFFLOADS, True)}
    broken = rule.violated(MODEL, machine, table)
    for changed in (other, {**other, "zero": 2, "tp_exchange": "rs_ag", "recompute": "selective"}):
        perturbed = Table.of(MODEL, {**drawn, **changed})
        assert np.array_equal(rule.violated(MODEL, machine, perturbed), broken)


# Of every option and choice a value that is not the default.
OTHER: dict[str, Any] = {
    name: next(
        value for value in reversed(values_of(COLUMNS[name])) if value != COLUMNS[name].default
    )
    for name in (*OPTION_FIELDS, *CHOICE_FIELDS)
} | {"seq_len": 30, "document_len": 16}


NETWORKS = [
    samples.system(),
    samples.system(
        node=4,
        network=[
            samples.tier("inside", domain=4),
            samples.tier("rack", domain=12, bandwidth=2e10),
            samples.tier("all", bandwidth=5e9),
        ],
    ),
    System.load("gb200-nvl72"),
]


@each_row("machine", NETWORKS)
@each_row("tiers", [{}, {"tp_tier": [None, 0]}, {"dp_tier": "all", "tp_tier": 0}])
def test_placements_count_once_exactly_where_extents_agree(machine, tiers):
    """Of all placements of the same degrees, one of each kind of extents is kept, the first."""
    space = {"gpus": 24, "gbs": 24, "mbs": 1, "vpp": 1, "placement": "all"} | tiers
    found = layouts_of(MODEL, machine, Space.validated(space), {"seq_len": 32}, 24, 24)
    whole = Table.joined([found.legal, found.illegal])
    values = Space.validated(space)
    names = ("placement", "tp_tier", "dp_tier")
    tried = list(product(*(values.values(name, machine) or (None,) for name in names)))
    degrees = {*keys(whole, PLACED_AXES)}
    assert len(degrees) > 8
    for one in degrees:
        several = Table.of(
            MODEL,
            {
                **dict(zip(PLACED_AXES, one, strict=True)),
                "gbs": 24,
                **{name: [row[i] for row in tried] for i, name in enumerate(names)},
            },
        )
        kept = whole.take(np.array([key == one for key in keys(whole, PLACED_AXES)]))
        expected = dict(zip(reversed(seats(machine, several)), reversed(tried), strict=True))
        assert len(seats(machine, kept)) == len({*seats(machine, kept)})
        first = [row.placement for row in map(kept.strategy, range(len(kept)))]
        by_seat = dict(zip(seats(machine, kept), first, strict=True))
        assert by_seat == {seat: row[0] for seat, row in expected.items()}


@each_row("machine", [*NETWORKS[:2], System.load("calculon-a100-80g")])
def test_rules_of_the_network_depend_on_extents_alone(machine):
    """Placements with the same extents are all legal or break the same rule: one stands for all."""
    tried = list(product(ORDERS, [None, 0, 1], [None, 0], [None, 1]))
    fields = ("placement", "tp_tier", "dp_tier", "pp_tier")
    columns = {field: [row[i] for row in tried] for i, field in enumerate(fields)}
    rules = [rule for rule in CONSTRAINTS if rule.reason in ("tier_size", "tier_filled")]
    found = set()
    for tp, dp, pp in product((1, 3, 4, 8), (1, 2, 6), (1, 4)):
        degrees = {"tp": tp, "dp": dp, "pp": pp, "gbs": 24}
        table = Table.of(MODEL, {**columns, **degrees})
        verdict = first_violation(MODEL, machine, table, rules).tolist()
        pairs = set(zip(seats(machine, table), verdict, strict=True))
        assert len(pairs) == len({seat for seat, _ in pairs})
        found |= set(verdict)
    assert len(found) > 1


def seats(machine: System, table: Table) -> list[tuple[int, ...]]:
    """Extents of all axes on all tiers, row by row."""
    extents = place(machine, table)
    every = np.concatenate([getattr(extents, axis) for axis in PLACED_AXES])
    return [tuple(column) for column in every.T.tolist()]


def test_an_order_of_axes_that_are_all_placed_otherwise_is_none():
    """Every axis has a tier of its own, even one that there is not: one layout, whatever order."""
    space = {"gpus": 8, "gbs": 8, "tp": 2, "pp": 2, "mbs": 1, "vpp": 1, "placement": "all"}
    for tier, refused in ((1, 0), (7, 1)):
        own = dict.fromkeys(("tp_tier", "dp_tier", "pp_tier"), tier)
        found = layouts_of(MODEL, NETWORKS[0], Space.validated(space | own), {"seq_len": 32}, 8, 8)
        assert (len(found.legal), len(found.illegal)) == (1 - refused, refused)
