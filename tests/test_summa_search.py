"""Searches of 2D products find what plain loops find, over both axes and several panels."""

from typing import Any

import numpy as np
import pytest

import samples
from naive_search import FEW, FIELDS, everything
from rows import each_row
from samples import GB, layer, system, tier
from shardwise import search
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

WIDE = samples.model(layer(count=2, attention={"head_dim": 128}, mlp={"ffn": 2048}), hidden=1024)
SPACES: list[dict[str, Any]] = [
    {"tp_exchange": ["summa"], "gpus": [8], "zero": [1], "recompute": ["none", "full"]},
    {"tp_exchange": ["all_reduce", "summa"], "gpus": [12], "tp2": [1, 2, 4]},
    {"tp_exchange": ["summa", "rs_ag"], "gpus": [4], "summa_panels": [2, 3, 4, None]},
    {"tp_exchange": ["summa"], "gpus": [16], "tp": [4], "tp_overlap": ["stack", "ring"]},
]


@each_row("space", SPACES)
def test_a_search_finds_what_plain_loops_find(space):
    """Candidates once each, what becomes of them, and the best."""
    few = {"dp_overlap": [True], "fused_activation": [False], "placement": ["tp-cp-dp-pp"]}
    space = {
        "scope": "full",
        **FEW,
        "zero": [1],
        "recompute": ["none"],
        "vpp": [1],
        "global_batch_size": [24],
        **few,
        **space,
    }
    machine = system(network=[tier("inside", domain=4), tier("between", bandwidth=10 * GB)])
    naive = everything(WIDE, machine, space, machine.accelerator.memory[0].capacity)
    candidates = Candidates.of(WIDE, machine, Space.validated(space))
    table = candidates.strategies(np.arange(len(candidates)))
    names = [name for name in FIELDS if name != "stack"]
    keys = [
        set(zip(*(getattr(t, name).tolist() for name in names), strict=True))
        for t in (table, naive.strategies)
    ]
    assert len(table) == len(keys[0]) > 20
    assert keys[0] == keys[1]
    found = search(WIDE, machine, space, all_variants=True, counts=True)
    assert found.feasible == len(naive.feasible)
    assert found.rejected == dict(naive.rejected)
    best = naive.estimates.step_time_s[naive.feasible].min()
    assert found.best[0].step_time_s == best
    assert {int(n) for n in table.tp2} > {1}
    assert {int(n) for n in table.summa_panels} > {0}


def test_all_panels_are_the_least_and_these_doubled():
    """Down to 128 columns of 1024; the least stands for itself."""
    space = {"tp": [1], "tp2": [1, 2], "gpus": 2, "gbs": 2, "tp_exchange": "summa", "zero": 1}
    candidates = Candidates.of(WIDE, system(), Space.validated(space))
    table = candidates.strategies(np.arange(len(candidates)))
    cut = {(int(a), int(b)) for a, b in zip(table.tp2, table.summa_panels, strict=True)}
    assert cut == {(1, 0), (2, 0), (2, 4), (2, 8)}
    # Of 1028 rows no eighth is whole.
    odd = samples.model(layer(attention={"head_dim": 128}, mlp={"ffn": 1028}), hidden=1024)
    candidates = Candidates.of(odd, system(), Space.validated(space))
    table = candidates.strategies(np.arange(len(candidates)))
    assert {int(panels) for panels in table.summa_panels} == {0, 4}
