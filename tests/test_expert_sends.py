"""Copies of a token for several experts of a rank or a domain that travel there once, by hand.

A token goes to k of 64 experts, drawn without repetition: of n ranks they reach
R = n (1 - C(64 - 64/n, k) / C(64, k)). A link of 100 GB/s inside domains of 4, one of 10 GB/s
between them; the system has no figures of dispatch kernels.
"""

from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from samples import GB
from shardwise import Model, estimate
from shardwise.config.strategy_table import Table
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import Machine, operation_cost
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import Collective, CollectiveKind, Phase
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

fast = examples(80)
DOMAIN = 4
WAYS: list[dict[str, Any]] = [{"dispatcher": "all_to_all"}, {"dispatcher": "deepep"}]
SYSTEM = samples.system(
    node=DOMAIN,
    network=[samples.tier("inside", domain=DOMAIN), samples.tier("between", bandwidth=10 * GB)],
)


def mixture(top_k: int, experts: int = 64, groups: int | None = None) -> Model:
    """One layer of experts."""
    moe = {"experts": experts, "top_k": top_k, "ffn": 32, "activation": "swiglu"}
    limited = {} if groups is None else {"top_groups": groups}
    return samples.llama(layers=[samples.layer(count=1) | {"mlp": None, "moe": moe | limited}])


def swaps(model: Model, ep: int) -> tuple[list[float], Collective]:
    """Forward all-to-all of dispatch, each copy on its own and once; and what it sends."""
    ways = [way["dispatcher"] for way in WAYS]
    columns = {"dp": ep, "ep": ep, "mbs": 1, "gbs": ep, "stack": samples.stack()}
    table = Table.of(model, columns | {"dispatcher": ways})
    machine = Machine.of(SYSTEM, table)
    times = CollectiveTimes(Links.of(SYSTEM, table, place(SYSTEM, table)))
    operations = layer_operations(model, model.layers[0], rank_work(table))
    dispatch = next(o for o in operations if o.name == "moe.dispatch")
    found = next(
        e
        for e in operation_cost(dispatch, machine, times).collectives
        if e.collective.phase is Phase.FORWARD and e.collective.kind is CollectiveKind.ALL_TO_ALL
    )
    return found.time_s.tolist(), found.collective


def reached(places: int, top_k: int, experts: int = 64) -> float:
    """Expected places with some of the experts drawn."""
    return places * (1 - comb(experts - experts // places, top_k) / comb(experts, top_k))


def test_inside_a_domain_by_hand() -> None:
    """4 copies to 4 ranks of 16 experts reach 4 (1 - 194,580 / 635,376) = 2.775 of them."""
    (each, once), sent = swaps(mixture(4), 4)
    assert sent.bytes[0] == 4 * 32 * 128  # copies of 32 tokens of 128 bytes
    assert each == pytest.approx(3 / 4 * 4 * 32 * 128 / 1e11)
    assert once == pytest.approx(4 * (1 - 194_580 / 635_376) / 4 * each)


def test_between_domains_by_hand() -> None:
    """Of 2 domains 2 (1 - 35,960 / 635,376) are reached; each of 4 copies crosses on its own.

    Half of what is sent crosses, at a tenth of the rate, and takes longest.
    """
    (each, once), sent = swaps(mixture(4), 8)
    crossing = sent.bytes[0] / 2
    assert each == pytest.approx(crossing / 1e10)
    assert once == pytest.approx(2 * (1 - 35_960 / 635_376) / 4 * crossing / 1e10)


def test_routing_that_is_limited_to_domains() -> None:
    """Of 8 domains 2 are allowed: those of 16 experts, of which 8 are on each."""
    (each, once), sent = swaps(mixture(4, groups=2), 32)
    crossing = sent.bytes[0] * 7 / 8
    assert each == pytest.approx(crossing / 1e10)
    assert once == pytest.approx(reached(2, 4, 16) / 4 * crossing / 1e10)
    (_, open_once), _ = swaps(mixture(4), 32)
    assert open_once == pytest.approx(reached(8, 4) / 4 * crossing / 1e10)
    (_, one), _ = swaps(mixture(4, groups=1), 32)
    assert one == pytest.approx(crossing / 4 / 1e10)


def test_one_copy_travels_as_it_is() -> None:
    """With one expert for each token there is nothing to send once."""
    (each, once), _ = swaps(mixture(1), 16)
    assert each == once > 0


def test_one_rank_sends_nothing() -> None:
    """And no part of nothing is undefined."""
    (each, once), _ = swaps(mixture(4), 1)
    assert each == once == 0
    model = mixture(4)
    for way in WAYS:
        columns = {"dp": 1, "mbs": 1, "gbs": 1, "stack": samples.stack(), **way}
        assert np.isfinite(estimate(model, SYSTEM, columns).step_time_s)


@fast
@given(
    st.sampled_from([2, 4, 8, 16, 32]), st.integers(1, 16), st.one_of(st.none(), st.integers(1, 8))
)
def test_limits_of_what_is_sent_once(ep: int, top_k: int, groups: int | None) -> None:
    """Never longer than each on its own, nor shorter than one copy for all."""
    (each, once), _ = swaps(mixture(top_k, groups=groups), ep)
    assert each / top_k * (1 - 1e-12) <= once <= each * (1 + 1e-12)


@fast
@given(st.sampled_from([8, 16, 32]), st.integers(2, 16), st.integers(1, 7))
def test_more_domains_allowed_never_take_less(ep: int, top_k: int, groups: int) -> None:
    """Up to as many as there are, which is no limit."""
    assume(groups < ep // DOMAIN)
    (_, fewer), _ = swaps(mixture(top_k, groups=groups), ep)
    (_, more), _ = swaps(mixture(top_k, groups=groups + 1), ep)
    assert fewer <= more * (1 + 1e-12)
    (_, every), _ = swaps(mixture(top_k, groups=ep // DOMAIN), ep)
    (_, free), _ = swaps(mixture(top_k), ep)
    assert every == free


def test_many_more_ranks_than_copies_are_each_on_their_own() -> None:
    """2 copies over 16 domains of 4 experts meet on one of them 3 times in 63."""
    (each, once), _ = swaps(mixture(2), 64)
    domains = (1 + 60 / 63) / 2
    assert once / each == pytest.approx(domains)
    assert 1 - domains < 1 / 16
