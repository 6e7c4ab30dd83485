"""Exchanges by direction and level, what experts add, and the report of one term a line."""

import json
import re

import numpy as np
import pytest

from rows import each_row
from shardwise import estimate
from shardwise.analysis.communication import inside_share
from shardwise.cli import run
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.ops.operation import CollectiveKind
from shardwise.report.breakdown_text import breakdown_text

pytestmark = pytest.mark.any_software

CASES = [
    ("llama3-8b", {"gpus": 16, "tp": 16, "gbs": 16}),
    ("llama3-8b", {"gpus": 32, "tp": 2, "cp": 2, "pp": 2, "gbs": 32, "recompute": "full"}),
    ("llama3-8b", {"gpus": 16, "gbs": 32, "zero": 3, "dp_shard": 8}),
    ("llama3-8b", {"gpus": 16, "gbs": 32, "zero": 2, "optimizer": "muon"}),
    ("mixtral-8x7b", {"gpus": 64, "tp": 2, "pp": 2, "ep": 8, "gbs": 64, "recompute": "selective"}),
    ("llama3-8b", {"gpus": 8, "tp": 8, "gbs": 8, "training": False}),
]


@each_row(("model", "plan"), CASES)
def test_the_parts_of_an_axis_add_up_to_it(model, plan):
    """Levels, directions and things exchanged: nothing is lost and nothing twice."""
    found = estimate(model, "h100-sxm", plan)
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        own = [share for share in found.breakdown.exchanges if share.axis == axis]
        assert sum(s.total_s for s in own) == pytest.approx(found.comm_s[axis].total)
        assert sum(s.exposed_s for s in own) == pytest.approx(found.comm_s[axis].exposed)
        assert found.comm_s[axis].exposed <= found.comm_s[axis].total * (1 + 1e-9)
    if not plan.get("training", True):
        assert {share.direction for share in found.breakdown.exchanges} == {"forward"}


def test_every_virtual_stage_sends_a_message_each_way():
    """Two stages of a V on each rank: twice the messages of 1f1b; as chunks, as many each."""
    plan = {"gpus": 4, "pp": 4, "gbs": 8}

    def messages(**more):
        return estimate("llama3-8b", "h100-sxm", plan | more).comm_s["pp"].total

    assert messages(schedule="zb-v") == pytest.approx(2 * messages())
    assert messages(vpp=4) == pytest.approx(4 * messages())


def test_what_stays_in_a_domain_is_intra():
    """Eight GPUs are one domain; with one member in each, all is inter."""
    inside = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "tp": 4, "gbs": 8}).breakdown
    assert {share.level for share in inside.exchanges} == {"intra"}
    across = estimate("llama3-8b", "h100-sxm", {"gpus": 16, "tp": 8, "gbs": 16}).breakdown
    levels = {share.axis: share.level for share in across.exchanges}
    assert levels == {"tp": "intra", "dp": "inter"}


def test_a_group_on_both_levels_is_split_by_what_the_inner_one_takes_alone():
    """16 members, 8 in a domain: an all-reduce of 8, and of an all-to-all the half that stays."""
    system = System.load("h100-sxm")
    reach, near = np.array([[8], [16]]), np.array([[8], [8]])
    size = np.array([1e9])
    kinds = {CollectiveKind.ALL_REDUCE: 1.0, CollectiveKind.ALL_TO_ALL: 0.5}
    for kind, stays in kinds.items():
        alone = collective_time(system, kind, stays * size, near)
        whole = collective_time(system, kind, size, reach)
        assert inside_share(system, kind, size, reach) == pytest.approx(alone / whole)
    assert inside_share(system, CollectiveKind.P2P, size, reach) == 0.0
    assert inside_share(system, CollectiveKind.ALL_GATHER, size, near) == 1.0
    assert inside_share(system, CollectiveKind.ALL_GATHER, size, np.array([[1], [4]])) == 0.0


def test_weights_are_gathered_again_with_zero_3():
    """Forward and backward alike; ZeRO 1 gathers once, ZeRO 0 never."""

    def gathers(zero):
        plan = {"gpus": 16, "gbs": 32, "zero": zero}
        shares = estimate("llama3-8b", "h100-sxm", plan).breakdown.exchanges
        return {s.direction for s in shares if s.what == "weights"}

    assert gathers(0) == set()
    assert gathers(1) == {"forward"}
    assert gathers(3) == {"forward", "backward"}


PLAN = {"gpus": 64, "tp": 2, "ep": 8, "gbs": 64}


def test_what_experts_add():
    """Exchanges as in the step's parts; the sum is the sum; nothing for a dense model."""
    found = estimate("mixtral-8x7b", "h100-sxm", PLAN)
    moe = found.breakdown.moe
    exchange = moe.exchange_forward_s + moe.exchange_backward_s
    assert exchange == pytest.approx(found.time_s["ep_comm"])
    parts = moe.to_dict()
    assert parts.pop("total_s") == pytest.approx(sum(parts.values()))
    assert moe.imbalance_s == 0
    rows = estimate("mixtral-8x7b", "h100-sxm", PLAN, operations=True).operations
    router = sum(
        row.time_s * row.count
        for row in rows
        if row.operation in ("moe.router", "moe.top_k") and row.phase == "forward"
    )
    assert moe.gating_forward_s == pytest.approx(found.micro_batches * router)
    assert estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8}).breakdown.moe is None


def test_imbalance_is_what_the_step_computes_more():
    """Experts' products and moved tokens of the fullest rank explain the longer passes."""
    even = estimate("mixtral-8x7b", "h100-sxm", PLAN)
    uneven = estimate("mixtral-8x7b", "h100-sxm", PLAN | {"expert_imbalance": 1.3})
    one, other = even.breakdown.moe, uneven.breakdown.moe
    moved = other.permute_forward_s + other.permute_backward_s
    moved -= one.permute_forward_s + one.permute_backward_s
    longer = sum(uneven.time_s[part] - even.time_s[part] for part in ("forward", "backward"))
    assert other.imbalance_s > 0
    assert "TFLOP of a step, executed, if every rank" in breakdown_text(uneven)
    assert other.imbalance_s + moved == pytest.approx(longer, rel=0.02)


def _lines(text):
    return dict(line.split(" ----- ", 1) for line in text.splitlines())


@each_row(("model", "plan"), CASES)
def test_every_line_of_the_report_is_one_term(model, plan):
    """The disjoint ones add up to the step."""
    found = estimate(model, "h100-sxm", plan)
    lines = _lines(breakdown_text(found))

    def seconds(label):
        number, unit = lines[label].split()
        assert unit == "s"
        return float(number)

    parts = (
        "Total computation time",
        "Total communication time",
        "Waiting time due to pipeline bubbles",
        "Transfers to and from the second memory tier",
        "Fixed overhead and stragglers",
    )
    assert sum(map(seconds, parts)) == pytest.approx(found.step_time_s, rel=1e-4)
    assert seconds("Time of a step") == pytest.approx(found.step_time_s, rel=1e-5)
    axes = [label for label in lines if re.fullmatch(r"Communication \w+ parallel total", label)]
    whole = seconds("Total communication time")
    assert sum(map(seconds, axes)) == pytest.approx(whole, rel=1e-4, abs=1e-9)
    levels = seconds("Total communication time intra") + seconds("Total communication time inter")
    assert levels == pytest.approx(whole, rel=1e-4, abs=1e-9)
    assert all(re.fullmatch(r"\S.* ----- \S.*", f"{k} ----- {v}") for k, v in lines.items())
    assert "unknown" in lines["Total time to train"]
    assert ("MoE overhead" in lines) == (found.breakdown.moe is None)


def test_rates_of_the_report():
    """Executed FLOPs are two for each MAC; the peak is that of the data sheet."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "tp": 2, "gbs": 8})
    lines = _lines(breakdown_text(found))
    macs = float(lines["MACs of a step, executed"])
    assert 2 * macs == pytest.approx(found.matrix_flops * 8, rel=1e-5)
    assert float(lines["TFLOP/s per GPU at peak"].split()[0]) == pytest.approx(989.4, rel=1e-4)


FLAGS = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "2", "--gbs", "64"]


def test_the_report_goes_to_a_file_or_the_terminal(tmp_path, capsys):
    """Tables stay beside a file; a dash puts the report in their place."""
    path = tmp_path / "report.txt"
    assert run([*FLAGS, "--tokens", "1B", "--report", str(path)]) == 0
    assert "where the step goes" in capsys.readouterr().out
    assert run([*FLAGS, "--tokens", "1B", "--report", "-"]) == 0
    out = capsys.readouterr().out
    assert out == path.read_text()
    assert re.search(r"^Total time to train ----- \S+ years$", out, re.MULTILINE)
    assert run([*FLAGS, "--report", "-", "--json"]) == 2
    assert "report" in capsys.readouterr().err
    assert run([*FLAGS, "--report", str(tmp_path / "no" / "report.txt")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert run([*FLAGS, "--report", str(tmp_path / "report.json")]) == 2
    assert "allowed: .html, .txt" in capsys.readouterr().err


def test_collectives_name_the_network_that_they_cross(shardwise):
    """The outermost tier, its bandwidth for one accelerator, and volume over time, as a table."""
    words = ["llama3-8b", "h100-sxm", "--gpus", 32, "--tp", 4, "--pp", 2, "--gbs", 32, "--ops"]
    rows = json.loads(shardwise("estimate", *words, "--json")[1])["operations"]
    crossed = {(row["axis"], row["network"], row["link_bandwidth"]) for row in rows if row["axis"]}
    assert crossed == {("tp", "nvlink", 450e9), ("pp", "fabric", 50e9), ("dp", "fabric", 50e9)}
    assert all(not row["network"] for row in rows if not row["axis"])
    out = shardwise("estimate", *words)[1]
    table = out.partition("Collectives")[2].splitlines()
    gather = next(line.split() for line in table if line.split()[:2] == ["all-gather", "tp"])
    row = next(row for row in rows if row["kind"] == "all_gather" and row["axis"] == "tp")
    assert gather[1:8] == ["tp", "4", "/", "4", "nvlink", "450", "GB/s"]
    rates = System.load("h100-sxm").network[0].rates_of("all_gather")
    in_step = Stack.load("megatron-core-2025").exchange_time_factor
    empty_s = in_step * (rates.latency + 2 * rates.latency_per_member)
    assert row["latency_s"] == pytest.approx(empty_s)
    assert all(0 < row["latency_s"] < row["time_s"] for row in rows if row["axis"])
    assert float(gather[-2]) == pytest.approx(row["volume_bytes"] / row["time_s"] / 1e9, rel=0.01)
