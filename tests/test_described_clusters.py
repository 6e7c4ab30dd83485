"""Clusters described in a few lines: fabric, added items, pools, and the drawing of the network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, Model, Strategy, System, estimate
from shardwise.cli import run
from shardwise.cost.collective import collective_time
from shardwise.ops.operation import CollectiveKind
from shardwise.parallel.process_groups import peers_of

EXAMPLE = Path("docs/examples/my-fabric.yaml")
LEAVES = {"nic_gbps": 400, "rails": 8, "leaf": 32, "spine_oversubscription": 2}


def h100(**fields: Any) -> System:
    """A system based on h100-sxm."""
    return System.load({"name": "mine", "base": "h100-sxm", **fields})


def test_a_cluster_takes_ten_lines_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Task 5: 8-GPU servers with 400G InfiniBand, 2:1 oversubscribed, in one command."""
    assert len([line for line in EXAMPLE.read_text().splitlines() if line[0] != "#"]) <= 10
    code = run(["estimate", "llama3-8b", str(EXAMPLE), *["--gpus", "64", "--gbs", "128", "--json"]])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["system"] == "my-fabric"
    tiers = [(t.name, t.domain, t.bandwidth) for t in System.load(EXAMPLE).network[1:]]
    assert tiers == [("leaf", 256, 50e9), ("spine", 1024, 25e9)]


@each_row(
    ("fabric", "domains", "rates"),
    [
        ({"nic_gbps": 200}, [8, None], [450, 25]),
        ({"nics": 4}, [8, None], [450, 25]),
        ({"nics": 2, "nic_gbps": 800}, [8, None], [450, 25]),
        ({"servers": 16}, [8, 128], [450, 50]),
        (LEAVES, [8, 256, None], [450, 50, 25]),
        # One leaf switch for all NICs of a server: its 32 ports are 4 servers.
        ({**LEAVES, "rails": 1, "nics": 8}, [8, 32, None], [450, 50, 25]),
        # NICs shared by two GPUs each; 32 ports of 4 rails are 32 servers.
        ({**LEAVES, "rails": 4}, [8, 256, None], [450, 25, 12.5]),
        ({**LEAVES, "spine_oversubscription": 4, "servers": 64}, [8, 256, 512], [450, 50, 12.5]),
    ],
)
def test_every_figure_of_a_fabric_reaches_the_tiers(
    fabric: dict[str, Any], domains: list[int | None], rates: list[float]
) -> None:
    """Rate per GPU in GB/s: Gbit/s / 8 x NICs / 8 GPUs, beyond leaf switches / oversubscription."""
    system = h100(fabric=fabric)
    assert [tier.domain for tier in system.network] == domains
    found = [system.tier_bandwidth(place) / 1e9 for place in range(len(domains))]
    assert found == pytest.approx(rates)
    assert {tier.rate_spread for tier in system.network[1:]} == {1.0}
    assert System.load(system.to_dict()) == system


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_a_spine_without_oversubscription_is_one_tier(kind: CollectiveKind) -> None:
    """Leaf and spine with full bandwidth time as one tier; with 2:1 nothing is faster."""
    extents = [[8, 8, 1, 1, 8], [256, 16, 32, 1, 64], [1024, 32, 32, 16, 64]]
    size = np.full(5, 64e6)
    one, full, half = (
        collective_time(system, kind, size, np.array(rows))
        for system, rows in (
            (h100(fabric={}), [extents[0], extents[2]]),
            (h100(fabric={**LEAVES, "spine_oversubscription": 1}), extents),
            (h100(fabric=LEAVES), extents),
        )
    )
    assert full == pytest.approx(one, rel=1e-12)
    assert (half >= full).all()
    assert half[3] > 1.5 * full[3], "one member under each leaf switch"
    assert half[4] == full[4], "all members under one leaf switch"


def test_an_oversubscribed_spine_slows_what_crosses_it() -> None:
    """Experts over all leaf switches exchange tokens through the spine; one server does not."""
    plan = {"gpus": 64, "ep": 64, "gbs": 64, "mbs": 1}
    small = {**LEAVES, "leaf": 2}
    slow, fast = (
        estimate("qwen3-30b-a3b", h100(fabric={**small, "spine_oversubscription": r}), plan)
        for r in (4, 1)
    )
    assert slow.step_time_s > 1.05 * fast.step_time_s
    plan = {"gpus": 8, "ep": 8, "gbs": 64, "mbs": 1}
    slow, fast = (
        estimate("qwen3-30b-a3b", h100(fabric={**small, "spine_oversubscription": r}), plan)
        for r in (4, 1)
    )
    assert slow.step_time_s == fast.step_time_s


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"fabric": {"leaf": 32}}, "fabric: leaf, rails and spine_oversubscription must be set togeth"),
    ({"fabric": {"spine_oversubscription": 2}}, "fabric: leaf, rails and spine_oversubscription"),
    ({"fabric": {**LEAVES, "rails": 3, "nics": 8}}, "fabric.rails: 3 must divide the NICs of a"),
    ({"fabric": {**LEAVES, "leaf": 1}}, "8 accelerators; must be a larger multiple of 8"),
    ({"fabric": {**LEAVES, "rails": 1, "nics": 8, "leaf": 12}}, "must be full servers"),
    ({"fabric": {**LEAVES, "servers": 40}}, "40 must be a larger multiple of the 32 under a leaf"),
    ({"fabric": {"spine_oversubscription": 0.5}}, "must be at least 1"),
    ({"fabric": {"leafs": 3}}, "fabric.leafs: unknown key; did you mean 'leaf'?"),
    (
        {"fabric": {"nic_gbps": 200}, "network": {"fabric": {"bandwidth": "25 GB/s"}}},
        "network[1].bandwidth: contradicts fabric, which sets it; leave one of them out",
    ),
    ({"network+": [{"name": "fabric"}]}, "network+: the base has an item 'fabric'"),
    ({"network+": [{"like": "fabrik"}]}, "network+: like: there is no item 'fabrik'; did you mean"),
    ({"network+": {"rack": 1}}, "network+: must be a list, not a mapping"),
    (
        {"accelerator": {"matrix+": {"bf16": 1}}},
        "the base has 'bf16'; set it in accel",
    ),
    ({"accelerator": {"matrix+": [1]}}, "accelerator.matrix+: must be a mapping, not a list"),
    ({"board_power+": [1]}, "board_power+: only lists and mappings have items"),
    ({"pools": [{"system": "h100-sxm", "servers": 2}]}, "pools: has a base and pools"),
]


@each_row(("fields", "problem"), FAULTS)
def test_contradictions_are_one_clear_line(fields: dict[str, Any], problem: str) -> None:
    """Each names the field and what is allowed."""
    with pytest.raises(InputError) as error:
        h100(**fields)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fabric_needs_a_base() -> None:
    """Without one there is no tier to replace."""
    with pytest.raises(InputError, match="fabric: needs a base, whose outermost tier it replaces"):
        System.load({"name": "mine", "fabric": {"nics": 4}})


def test_items_are_added_to_lists_and_mappings_of_a_base() -> None:
    """A tier like another, and a type of numbers; the base keeps its own."""
    base = System.load("h100-sxm")
    lookup = {"lookup": "h100-sxm", "field": "accelerator.matmul.fp8"}
    core = {"name": "core", "like": "fabric", "bandwidth": "= 10 * '1 GB/s'", "domain": None}
    mine = h100(
        **{"network": {"fabric": {"domain": 256}}, "network+": [core]},
        accelerator={"matrix+": {"fp4": "4000 TFLOP/s"}, "matmul+": {"fp4": lookup}},
    )
    assert [tier.domain for tier in mine.network] == [8, 256, None]
    assert mine.network[2].bandwidth == 10e9
    assert mine.network[2].collectives == base.network[1].collectives
    assert mine.accelerator.matrix == {**base.accelerator.matrix, "fp4": 4e15}
    assert mine.accelerator.matmul["fp4"] == base.accelerator.matmul["fp8"]
    layers = Model.load("llama2-7b").to_dict()["layers"]
    longer = Model.load({"name": "m", "base": "llama2-7b", "layers+": layers})
    assert longer.depth == 2 * Model.load("llama2-7b").depth


def test_mixed_pools_run_at_the_pace_of_the_slower() -> None:
    """As A100 alone, with the memory of the smaller and the mean price of all servers."""
    pools = [{"system": "h100-sxm", "servers": 4}, {"system": "a100-40gb-sxm", "servers": 12}]
    mine = System.load({"name": "mixed", "pools": pools})
    fast, slow = System.load("h100-sxm"), System.load("a100-40gb-sxm")
    assert mine.accelerator == slow.accelerator
    assert mine.network[1].domain == 128
    assert fast.price is not None
    assert slow.price is not None
    assert mine.price is not None
    usd = 0.25 * fast.price.usd_per_accelerator_hour + 0.75 * slow.price.usd_per_accelerator_hour
    assert mine.price.usd_per_accelerator_hour == pytest.approx(usd)
    plan = {"gpus": 64, "tp": 8, "gbs": 128}
    mixed, alone = (estimate("llama3-8b", one, plan) for one in (mine, slow))
    assert mixed.step_time_s == alone.step_time_s
    with pytest.raises(InputError, match="the network connects at most 128"):
        estimate("llama3-8b", mine, plan | {"gpus": 256, "gbs": 256})


@each_row(
    ("pools", "problem"),
    [
        ([{"system": "h100-sxn", "servers": 4}], "pools[0].system: 'h100-sxn': no such system"),
        ([{"system": "h100-sxm"}], "pools[0].servers: is missing"),
        (
            [{"system": "h100-sxm", "servers": 2}, {"system": "gb200-nvl72", "servers": 4}],
            "pools: accelerators in a server differ: h100-sxm 8, gb200-nvl72 4",
        ),
    ],
)
def test_pools_that_do_not_mix_are_refused(pools: list[Any], problem: str) -> None:
    """Each names the pool and the reason."""
    with pytest.raises(InputError) as error:
        System.load({"name": "mine", "pools": pools})
    assert problem in str(error.value)


def test_peers_show_the_network_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """128 GPUs under 4 leaf switches of 4 servers: the axes that cross each tier, by hand."""
    system = h100(fabric={**LEAVES, "leaf": 4})
    strategy = Strategy(gpus=128, tp=8, cp=4, pp=2, global_batch_size=64)
    found = peers_of(Model.load("llama3-8b"), system, strategy).network
    shown = [(one.name, one.domains, one.domain, one.bandwidth / 1e9) for one in found]
    assert shown == [("nvlink", 16, 8, 450), ("leaf", 4, 32, 50), ("spine", 1, 128, 25)]
    assert [one.carries for one in found] == [("tp",), ("cp",), ("dp", "pp")]
    words = ["peers", "llama3-8b", str(EXAMPLE), *["--gpus", "512", "--tp", "8", "--gbs", "64"]]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert text.index("spine") < text.index("leaf") < text.index("nvlink")


def test_the_network_is_drawn_with_every_rank(tmp_path: Path) -> None:
    """A chart has one box for each domain and rank, and each lies in the box of its domain."""
    pytest.importorskip("plotly")
    path = tmp_path / "network.json"
    words = f"peers llama3-8b {EXAMPLE} --gpus 512 --tp 8 --plot {path}"
    assert run(words.split()) == 0
    (boxes,) = json.loads(path.read_text())["data"]
    ids, parents = boxes["ids"], boxes["parents"]
    assert len(ids) == 1 + 2 + 64 + 512
    assert parents[ids.index("rank 300")] == "0 296"
    assert parents[ids.index("0 296")] == "1 256"


def test_editors_accept_files_of_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON Schema knows fabric, pools in place of a base, and added items of a base."""
    jsonschema = pytest.importorskip("jsonschema")
    assert run(["schema", "system"]) == 0
    accepts = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out)).is_valid
    core = {"network+": [{"name": "core", "like": "fabric"}]}
    assert accepts({"name": "mine", "base": "h100-sxm", "fabric": LEAVES, **core})
    assert accepts({"name": "mine", "pools": [{"system": "h100-sxm", "servers": 2}]})
    assert not accepts({"name": "mine", **core})
    assert not accepts({"name": "mine", "base": "h100-sxm", "pool": []})
