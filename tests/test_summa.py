"""2D products in estimates and searches: what they equal, what they hold, what a search finds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from naive_search import everything
from shardwise import Model, System, estimate, estimate_many, peers, search
from shardwise.searcher.candidates import Candidates
from shardwise.searcher.space import Space
from shardwise.system import Collective
from shardwise.table import Table

WIDE = samples.model(
    samples.layer(count=2, attention={"head_dim": 64}, mlp={"ffn": 2048}), hidden=512
)


def test_search():
    for space in (
        {"gpus": [8], "global_batch_size": [8], "tp_exchange": ["summa"], "recompute": ["none", "full"], "zero":[1], "placement":["tp-cp-dp-pp","dp-tp-cp-pp"], "dp_overlap":[True],"fused_activation":[False]},
    ):
        model, system = WIDE, samples.system()
        candidates = Candidates.of(model, system, Space.validated(space))
        naive = everything(model, system, space, np.inf)
        table = candidates.strategies(np.arange(len(candidates)))
        print(len(candidates), len(naive.reasons), len(naive.feasible), naive.rejected)
        assert 0
