"""Ranks and communication groups, by hand, against Megatron's numbering, and for any degrees."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.config.enums import PLACEMENTS
from shardwise.config.strategy_table import Table
from shardwise.parallel.placement import place
from shardwise.parallel.process_groups import axis_groups, peers_of, rank_coordinates
from shardwise.report.tables.process_groups import as_ranges

pytestmark = pytest.mark.any_software

AXES = ("tp", "cp", "dp", "pp")


def cluster(*domains, node=8):
    """A network of tiers with these domains."""
    return samples.system(network=[samples.tier(domain=domain) for domain in domains], node=node)


def found(machine=None, model=None, **fields):
    """Peers of a strategy of the sample model: 8 heads, 4 layers."""
    strategy = Strategy.validated({"gbs": 64} | fields)
    return peers_of(model or samples.model(), machine or cluster(8, None), strategy)


def numbered(machine, degrees, placement="tp-cp-dp-pp"):
    """Extents and coordinates of any degrees, legal or not."""
    columns = dict(zip(AXES, degrees, strict=True)) | {"gbs": 1, "placement": placement}
    placed = place(machine, Table.of(samples.model(), columns))
    extents = {axis: getattr(placed, axis)[:, 0] for axis in AXES}
    return extents, rank_coordinates(extents, placement.split("-"))


def groups(peers, axis):
    """Groups of an axis as plain lists."""
    return peers.axes[axis].groups.tolist()


def test_the_example_of_megatron():
    """16 GPUs, tp 2, pp 4: the groups that Megatron-LM's initialize_model_parallel documents."""
    peers = found(gpus=16, tp=2, pp=4)
    assert groups(peers, "tp") == [[i, i + 1] for i in range(0, 16, 2)]
    assert groups(peers, "pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    data = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert groups(peers, "dp") == data
    assert groups(peers, "cp") == [[rank] for rank in range(16)]
    assert peers.node.tolist() == [0] * 8 + [1] * 8


def test_the_order_of_the_axes_decides():
    """Pipeline before data (Megatron's use-tp-pp-dp-mapping): stages are neighbours."""
    peers = found(gpus=16, tp=2, pp=2, placement="tp-pp-dp")
    assert groups(peers, "pp")[:3] == [[0, 2], [1, 3], [4, 6]]
    assert groups(peers, "dp")[0] == [0, 4, 8, 12]


def test_nodes_inside_a_rack():
    """Nodes of 4 in a domain of 72: a group of 8 is in two of them."""
    peers = found(cluster(72, None, node=4), tp=8, dp=2)
    assert peers.node.tolist() == [rank // 4 for rank in range(16)]
    assert peers.to_dict()["nodes"] == 4


def test_an_axis_that_leaves_its_domain_half_way():
    """12 over nodes of 8: 4 of a tp group share a node with 4 of the other replica."""
    _, coordinates = numbered(cluster(8, None), (12, 1, 2, 1))
    inside, across = [0, 1, 2, 3], [8, 9, 10, 11]
    first = [*inside, *across, 16, 17, 18, 19]
    assert axis_groups(coordinates, "tp").tolist() == [first, [rank + 4 for rank in first]]
    assert axis_groups(coordinates, "dp")[:5].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12]]


def test_three_tiers():
    """Domains of 4 and 16, dp first: rank = dp % 4 + 4 (dp // 4) + 8 (tp % 2) + 16 (tp // 2)."""
    _, at = numbered(cluster(4, 16, None), (8, 1, 8, 1), "dp-tp-cp-pp")
    ranks = at["dp"] % 4 + 4 * (at["dp"] // 4) + 8 * (at["tp"] % 2) + 16 * (at["tp"] // 2)
    assert ranks.tolist() == list(range(64))
    # tp first: 4 of tp inside, then 2 of tp and 2 of dp, then 4 of dp.
    _, at = numbered(cluster(4, 16, None), (8, 1, 8, 1))
    assert (at["tp"] + 8 * at["dp"]).tolist() == list(range(64))


def test_an_axis_with_a_tier_of_its_own():
    """Tensor parallelism between nodes: its members are one node apart, replicas fill the nodes."""
    peers = found(tp=2, dp=16, tp_tier=1)
    assert peers.axes["tp"].extents == (1, 2)
    assert groups(peers, "tp")[:2] == [[0, 8], [1, 9]]
    assert groups(peers, "dp")[0] == [*range(8), *range(16, 24)]


def test_neighbours_in_the_pipeline():
    """The first stage has nobody before it and the last nobody after it."""
    peers = found(gpus=16, tp=2, pp=4)
    assert peers.next_rank.tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1]
    assert peers.previous_rank.tolist() == [-1, -1, -1, -1, *range(12)]
    alone = found(gpus=4)
    assert set(alone.next_rank.tolist()) == set(alone.previous_rank.tolist()) == {-1}


def test_interleaved_chunks_go_around():
    """From the last stage the next chunk starts on the first."""
    peers = found(gpus=16, tp=2, pp=2, vpp=2)
    assert peers.next_rank.tolist() == [*range(8, 16), *range(8)]
    assert peers.previous_rank.tolist() == [*range(8, 16), *range(8)]
    three = found(model=samples.model(samples.layer(count=6)), gpus=3, pp=3, vpp=2)
    assert three.next_rank.tolist() == [1, 2, 0]
    assert three.previous_rank.tolist() == [2, 0, 1]


def test_tied_embeddings_join_first_and_last_stage():
    """Only they hold a copy; untied, or on one stage, nobody does."""
    peers = found(gpus=8, tp=2, pp=4)
    assert peers.embedding_groups.tolist() == [[0, 6], [1, 7]]
    partners = [row["embedding_peer"] for row in peers.to_dict()["ranks"]]
    assert partners == [6, 7, None, None, None, None, 0, 1]
    untied = samples.model(tied_embeddings=False)
    assert found(model=untied, gpus=8, tp=2, pp=4).embedding_groups.tolist() == []
    assert found(gpus=8, tp=2).embedding_groups.tolist() == []
    predicting = samples.model(tied_embeddings=False, mtp=1)
    assert found(model=predicting, gpus=8, tp=2, pp=4).embedding_groups.tolist() == [[0, 6], [1, 7]]
    assert found(gpus=4, pp=2, schedule="zb-v").embedding_groups.tolist() == []


def test_one_rank_and_its_peers():
    """Where rank 9 of 16 sits and whom it exchanges with."""
    one = found(gpus=16, tp=2, pp=4).of(9)
    assert one.to_dict() == {
        "rank": 9,
        "node": 1,
        "stage": 2,
        "tp": 1,
        "tp2": None,
        "cp": 0,
        "dp": 0,
        "pp": 2,
        "tp_peers": [8],
        "tp2_peers": [],
        "cp_peers": [],
        "dp_peers": [11],
        "pp_peers": [1, 5, 13],
        "etp": None,
        "ep": None,
        "edp": None,
        "etp_peers": [],
        "ep_peers": [],
        "edp_peers": [],
        "previous_rank": 5,
        "next_rank": 13,
        "embedding_peer": None,
    }


def test_the_whole_names_groups_by_position():
    """Every rank's group is the one that holds it, and says the same as the rank alone."""
    peers = found(tp=2, pp=4, dp=6, gbs=6)
    whole = peers.to_dict()
    assert [row["rank"] for row in whole["ranks"]] == list(range(48))
    assert (whole["nodes"], whole["accelerators_per_node"], len(whole["tiers"])) == (6, 8, 2)
    assert whole["strategy"]["gpus"] == 48
    for row in whole["ranks"]:
        alone = peers.of(row["rank"]).to_dict()
        for axis in AXES:
            members = whole["axes"][axis]["groups"][row[f"{axis}_group"]]
            assert members[row[axis]] == row["rank"]
            assert [rank for rank in members if rank != row["rank"]] == alone[f"{axis}_peers"]
        shared = row.keys() & alone.keys()
        assert {name: row[name] for name in shared} == {name: alone[name] for name in shared}


def test_what_cannot_be_listed_is_refused():
    """Illegal strategies as for an estimate, ranks there are none of, and far too many."""
    with pytest.raises(InputError, match="tp: 3: must divide the heads of the model, 8"):
        found(tp=3, dp=1)
    with pytest.raises(InputError, match="ep: 2: sample has no experts; allowed: 1"):
        found(gpus=8, ep=2)
    for rank in (-1, 8):
        with pytest.raises(InputError, match=f"rank: {rank}: no such rank; allowed: 0 to 7"):
            found(gpus=8).of(rank)
    with pytest.raises(InputError, match="gpus: 2097152: too many ranks to list"):
        found(dp=2**21, gbs=2**21)


@each_row(
    ("ranks", "shown"),
    [
        ([5], "5"),
        ([0, 1], "0, 1"),
        (range(8), "0-7"),
        ([0, 8, 16, 24, 32], "0, 8, 16, 24, 32"),
        (range(0, 64, 8), "0, 8, 16, ... 56"),
        ([0, 1, 2, 3, 8, 9, 10, 11], "0-3, 8-11"),
        ([0, 1, 4, 5], "0, 1, 4, 5"),
    ],
)
def test_ranks_in_a_few_words(ranks, shown):
    """Runs of three and more are ranges; long lists show their ends."""
    assert as_ranges(list(ranks)) == shown


degree = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12, 16])
power = st.sampled_from([1, 2, 4, 8, 16])
networks = st.sampled_from(
    [(8, None), (72, None), (4, 16, None), (2, 8, 24, None), (None,), (1, 4, None), (8, 1 << 30)]
)


@examples(80)
@given(
    networks,
    st.tuples(degree, degree, degree, degree),
    st.sampled_from(PLACEMENTS),
)
def test_groups_of_any_degrees(domains, degrees, placement):
    """Groups of an axis partition the ranks, and lie in the domains as the extents say."""
    extents, coordinates = numbered(cluster(*domains), degrees, placement)
    ranks = np.arange(prod(degrees))
    places = np.stack([coordinates[axis] for axis in AXES])
    assert len(np.unique(places, axis=1).T) == len(ranks)
    for axis, size in zip(AXES, degrees, strict=True):
        found = axis_groups(coordinates, axis)
        assert found.shape == (len(ranks) // size, size)
        assert np.array_equal(np.sort(found.ravel()), ranks)
        assert (np.diff(found, axis=1) > 0).all()
        assert (np.diff(found[:, 0]) > 0).all()
        assert (coordinates[axis][found] == np.arange(size)).all()
        for other in set(AXES) - {axis}:
            assert (coordinates[other][found] == coordinates[other][found[:, :1]]).all()
        for tier, domain in enumerate(domains):
            together = prod(int(extents[name][tier]) for name in AXES)
            assert domain is None or together <= domain
            # Members in their group's own order fall into blocks of consecutive ranks.
            inside = int(extents[axis][tier])
            blocks = (found // together).reshape(-1, size // inside, inside)
            assert (blocks == blocks[:, :, :1]).all()
            assert (np.diff(blocks[:, :, 0], axis=1) > 0).all()


@examples(80)
@given(
    st.sampled_from([(8, None), (4, 16, None), (2, 8, 32, None), (None,), (64, None)]),
    st.tuples(power, power, power, power),
    st.permutations(AXES),
)
def test_powers_of_two_are_numbered_as_megatron_does(domains, degrees, order):
    """Axes that fill domains one after the other: rank = a + A (b + B (c + C d))."""
    sizes = dict(zip(AXES, degrees, strict=True))
    _, coordinates = numbered(cluster(*domains), degrees, "-".join(order))
    rank = 0
    for axis in reversed(order):
        rank = rank * sizes[axis] + coordinates[axis]
    assert np.array_equal(rank, np.arange(prod(degrees)))


@examples(40)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 9), st.booleans())
def test_neighbours_agree(tp, pp, dp, interleaved):
    """The one after me has me before it, on the next stage with all other coordinates the same."""
    vpp = 2 if interleaved and pp == 2 else 1  # 4 layers
    peers = found(tp=tp, pp=pp, dp=dp, gbs=dp, vpp=vpp)
    has_next = peers.next_rank >= 0
    assert has_next.sum() == len(peers) // pp * (pp if vpp > 1 else pp - 1)
    me, after = np.flatnonzero(has_next), peers.next_rank[has_next]
    assert (peers.previous_rank[after] == me).all()
    at = peers.coordinates
    assert (at["pp"][after] == (at["pp"][me] + 1) % pp).all()
    assert all((at[axis][after] == at[axis][me]).all() for axis in ("tp", "cp", "dp"))


def test_a_node_holds_what_the_tiers_given_leave_it():
    """tp 4 in a node of 8, dp told to meet between nodes: 4 ranks in each of 2 nodes."""
    given = {"gpus": 8, "tp": 4, "dp": 2, "gbs": 8, "dtype": "fp16"}
    model, machine = Model.load("calculon-gpt3-175b"), System.load("calculon-a100-80g")
    apart = peers_of(model, machine, Strategy(**given, tp_tier=0, dp_tier=1))
    assert apart.node.tolist() == [0] * 4 + [1] * 4
    assert apart.axes["dp"].extents == (1, 2)
    assert apart.accelerators_per_node == 4
    together = peers_of(model, machine, Strategy(**given))
    assert together.node.tolist() == [0] * 8
    assert together.axes["dp"].extents == (2, 2)


def test_experts_lie_over_the_ranks_of_a_stage() -> None:
    """32 ranks, tp 2 x dp 8 on each of 2 stages: experts over 4, in 2 parts, held twice."""
    machine = System.load("h100-sxm")
    given = {"gpus": 32, "tp": 2, "pp": 2, "ep": 4, "etp": 2, "gbs": 64}
    found = peers_of(Model.load("deepseek-v2-lite"), machine, Strategy.validated(given))
    groups = {axis: found.axes[axis].groups.tolist() for axis in ("etp", "ep", "edp")}
    assert groups["etp"][:2] == [[0, 1], [2, 3]]
    assert groups["ep"][:3] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14]]
    assert groups["edp"][:2] == [[0, 8], [1, 9]]
    assert groups["edp"][-1] == [23, 31]
    for every in groups.values():
        assert sorted(rank for group in every for rank in group) == list(range(32))
        assert all(len({rank // 16 for rank in group}) == 1 for group in every)
    one = found.of(11)
    assert (one.etp, one.ep, one.edp) == (1, 1, 1)
    assert one.ep_peers == (9, 13, 15)
    assert found.to_dict()["ranks"][11]["ep_group"] == 3


def test_without_experts_there_are_no_groups_of_them() -> None:
    """None, and no axis."""
    plain = {"gpus": 8, "gbs": 8, "seq_len": 128}
    found = peers_of(Model.load("llama3-8b"), System.load("h100-sxm"), Strategy.validated(plain))
    assert set(found.axes) == {"tp", "cp", "dp", "pp"}
    assert (found.of(0).ep, found.of(0).ep_peers) == (None, ())
