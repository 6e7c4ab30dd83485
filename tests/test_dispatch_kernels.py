"""Where tokens go, and the kernels that send them, by hand and by enumeration."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from samples import GB
from shardwise import Model, System, estimate
from shardwise.config.network import SendKernel
from shardwise.config.strategy_table import Table
from shardwise.cost.links import dispatch_processor_share, reached_places, send_time
from shardwise.errors import InputError
from shardwise.ops.operation import Routing

pytestmark = pytest.mark.any_software

fast = examples(60)
KERNEL = {"latency": 1e-5, "rate": 10 * GB, "link_efficiency": 0.5, "fabric_efficiency": 0.8}
NETWORK = [samples.tier("inside", domain=4), samples.tier("between", bandwidth=10 * GB)]
SYSTEM = samples.system(node=4, network=NETWORK)


def enumerated(places: int, routing: Routing) -> float:
    """Mean number of places over all choices of groups and experts."""
    groups = routing.groups or 1
    each = routing.experts // groups
    found = []
    for drawn in combinations(range(groups), routing.top_groups or groups):
        candidates = [e for group in drawn for e in range(group * each, (group + 1) * each)]
        sets = combinations(candidates, routing.top_k)
        found += [len({e * places // routing.experts for e in chosen}) for chosen in sets]
    return float(np.mean(found))


@pytest.mark.parametrize("places", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("groups", "drawn"), [(None, None), (4, 2), (4, 1), (8, 3), (2, 2)])
def test_places_are_those_of_all_choices(
    places: int, groups: int | None, drawn: int | None
) -> None:
    """Of 16 experts 2, in some of the groups: as counted."""
    routing = Routing(experts=16, top_k=2, groups=groups, top_groups=drawn)
    (found,) = reached_places(np.array([float(places)]), np.array([1.0]), routing)
    assert found == pytest.approx(enumerated(places, routing))


def test_deepseek_v3_reaches_three_of_eight_ranks() -> None:
    """4 of 8 groups of 32 experts, one group to a rank: 4 (1 - C(96, 8) / C(128, 8)) = 3.63."""
    routing = Routing(experts=256, top_k=8, groups=8, top_groups=4)
    found = reached_places(np.array([8.0, 4.0]), np.array([1.0, 1.0]), routing)
    assert found[0] == pytest.approx(3.6290, abs=1e-4)
    assert found[1] == pytest.approx(2.92, abs=0.01)


@fast
@given(st.integers(1, 16), st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.integers(1, 8))
def test_limits_of_places(top_k: int, places: int, drawn: int) -> None:
    """At least one place, at most all and as many as experts; a limit never adds any."""
    limited = Routing(experts=128, top_k=top_k, groups=8, top_groups=drawn)
    free = Routing(experts=128, top_k=top_k)
    one, ranks = np.array([1.0]), np.array([float(places)])
    (few,), (many,) = reached_places(ranks, one, limited), reached_places(ranks, one, free)
    assert 1 - 1e-9 <= few <= many + 1e-9 <= min(places, top_k) + 2e-9


def sent(ranks: int, tokens: float = 1e4, **figures: Any) -> float:
    """Time of tokens of 1,000 bytes to 1 of 16 experts, by 10 multiprocessors [us]."""
    (time,) = send_time(
        SYSTEM,
        SendKernel(**KERNEL | figures),
        tokens=np.array([tokens]),
        row_bytes=np.array([1000.0]),
        routing=Routing(experts=16, top_k=1),
        multiprocessors=10,
        extents=np.array([[min(ranks, 4)], [ranks]]),
    )
    return float(1e6 * time)


def test_kernels_by_hand() -> None:
    """10 MB: 100 us of multiprocessors, 150 us of links for three of four, 12 of those beyond."""
    assert sent(4) == pytest.approx(10 + (100**3 + 150**3) ** (1 / 3))
    far = 1e7 / 2 / 8e3  # half of it to the other of two domains, at 0.8 of 10 GB/s
    joined = (200**3 + 150**3 + far**3) ** (1 / 3)
    assert sent(8, relay_factor=2, latency_per_doubling=3e-6) == pytest.approx(13 + joined)
    extra = (1e7 + 1e4 * (500 + 250) + 1e7) / 1e5
    own = {"row_bytes": 500, "token_bytes": 250, "token_share": 1}
    assert sent(4, **own) == pytest.approx(10 + (extra**3 + 150**3) ** (1 / 3))
    assert sent(1) == sent(8, tokens=0) == 0


def with_kernels(**libraries: Any) -> System:
    """The system with equal figures for both directions of some libraries."""
    both = ("dispatch", "combine")
    figures = {name: dict.fromkeys(both, KERNEL | f) for name, f in libraries.items()}
    return System.validated(SYSTEM.to_dict() | {"expert_kernels": figures}, source="x")


def mixture(**more: Any) -> Model:
    """Layers of 8 experts."""
    moe = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"} | more
    return samples.llama(layers=[samples.layer() | {"moe": moe, "mlp": None}])


def communication(system: System, dispatcher: str, **stack: Any) -> float:
    """Expert communication of a step [s]."""
    fields = {"dp": 8, "ep": 8, "mbs": 1, "gbs": 8, "dispatcher": dispatcher}
    strategy = fields | {"stack": samples.stack(**stack)}
    return estimate(mixture(), system, strategy).time_s["ep_comm"]


def test_estimates_use_the_kernels_of_their_library() -> None:
    """Four sends a layer; others stay all-to-alls; more multiprocessors are faster."""
    system = with_kernels(deepep={})
    for word in ("all_to_all", "hybridep"):
        assert communication(system, word) == communication(SYSTEM, word)
    slow, quick = (
        communication(system, "deepep", deepep_multiprocessors=count) for count in (1, 20)
    )
    assert slow > quick != communication(SYSTEM, "deepep")
    (one,) = send_time(
        system,
        SendKernel(**KERNEL),
        tokens=np.array([32.0]),
        row_bytes=np.array([128.0]),
        routing=Routing(experts=8, top_k=2),
        multiprocessors=20,
        extents=np.array([[4], [8]]),
    )
    assert quick == pytest.approx(4 * mixture().depth * one)


def test_overlap_takes_the_multiprocessors_of_the_library() -> None:
    """20 of the chip's, or what the stack says where the system has no figures."""
    columns = {"dp": 8, "ep": 8, "mbs": 1, "gbs": 8, "stack": samples.stack()}
    table = Table.of(mixture(), columns | {"dispatcher": ["all_to_all", "deepep", "hybridep"]})
    chip = SYSTEM.accelerator.multiprocessors
    assert chip is not None
    stack = table.stacks[0].expert_overlap_processors
    found = dispatch_processor_share(with_kernels(deepep={}), table)
    assert found.tolist() == pytest.approx([stack, min(20 / chip, 0.9), stack])
    assert dispatch_processor_share(SYSTEM, table).tolist() == [stack] * 3


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"groups": 4}, "top_groups must say"),
        ({"groups": 3, "top_groups": 2}, "must divide the experts"),
        ({"groups": 4, "top_groups": 5}, "more than groups 4"),
        ({"groups": 8, "top_groups": 1}, "more than the experts of 1 groups"),
    ],
)
def test_groups_that_no_routing_has(fields: dict[str, int], problem: str) -> None:
    """Groups without a limit, unequal ones, too few of them."""
    with pytest.raises(InputError, match=problem):
        mixture(**fields)


@pytest.mark.parametrize(
    ("ranks", "dispatch", "combine"), [(8, 153, 158), (16, 43, 43), (32, 58, 57), (64, 51, 50)]
)
def test_deepep_on_h800_as_its_makers_print_it(ranks: int, dispatch: int, combine: int) -> None:
    """4,096 tokens, 8 of 256 experts in 4 nodes: GB/s of the copies, one for each rank or node.

    Published by deepseek-ai/DeepEP (commit dd758ca, docs of V1), dispatch in fp8 with a scale for
    128 values, combine in bf16, 24 multiprocessors; met within 11 % on up to 8 nodes.
    """
    system, tokens, hidden = System.load("h800-sxm"), 4096.0, 7168
    kernels = system.expert_kernels["deepep"]
    nodes = ranks // 8
    routing = Routing(experts=256, top_k=8, top_groups=min(nodes, 4) if nodes > 1 else None)
    places = float(ranks if nodes == 1 else nodes)
    copies = tokens * reached_places(np.array([places]), np.array([float(nodes)]), routing)[0]
    for kernel, row, rate in (
        (kernels.dispatch, hidden * (1 + 4 / 128), dispatch),
        (kernels.combine, hidden * 2.0, combine),
    ):
        seconds = send_time(
            system,
            kernel,
            tokens=np.array([tokens]),
            row_bytes=np.array([row]),
            routing=routing,
            multiprocessors=24,
            extents=np.array([[8], [ranks]]),
        )[0]
        assert copies * row / seconds / GB == pytest.approx(rate, rel=0.11)
