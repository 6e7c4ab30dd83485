"""What AMPeD is compared with: which rows are within its own criterion, and why others are not."""

import json
from dataclasses import replace

import pytest

from shardwise import System, estimate
from shardwise.cli import run
from shardwise.config.stack import Stack
from shardwise.predecessors.validate.amped import Published
from shardwise.report.tables.validate import print_scoreboard
from shardwise.validate import Criterion, validate


@pytest.fixture(scope="module")
def board():
    return validate("amped")


@pytest.fixture(scope="module")
def parts(board):
    return {part.name: part for part in board.parts}


def test_the_rows_are_those_of_the_papers(parts):
    """Ten sizes of table 1, table 2 by framework, GPipe but for what is 1 by definition."""
    sizes = {name: len(part.rows) for name, part in parts.items()}
    assert sizes == {
        "table1_step_time": 10,
        "table2_ptdp_step_time": 5,
        "table2_zero3_step_time": 5,
        "gpipe_gpu": 2,
    }
    assert [row.reference for row in parts["gpipe_gpu"].rows] == [1.8, 3.3]


def test_measured_times_follow_from_printed_rates(parts):
    """1T on 3,072 GPUs at 163 TFLOP/s each, by the paper's count: 102.6 s. By hand."""
    hidden, layers, heads_seq, vocab, batch = 25600, 128, 2048, 51200, 3072
    flops = 96 * batch * heads_seq * layers * hidden**2
    flops *= 1 + heads_seq / (6 * hidden) + vocab / (16 * layers * hidden)
    row = next(row for row in parts["table1_step_time"].rows if row.case == "1008.0b")
    assert row.reference == pytest.approx(flops / (3072 * 163e12), rel=2e-3)
    assert row.status == "confirmed"


def test_megatron_and_gpipe_are_within_the_criterion(parts):
    """But the smallest model; steps of ZeRO-3 are not, and we say by how much."""
    for name in ("table1_step_time", "table2_ptdp_step_time", "gpipe_gpu"):
        assert parts[name].ours.max < 0.15, name
        assert parts[name].ours.mape < 0.08, name
    assert parts["table2_zero3_step_time"].ours.bias < -0.3


def test_what_lies_beyond_is_explained_and_nothing_else(board):
    """No row without a reason, no reason for a row that is within."""
    assert board.criterion is not None
    assert board.criterion.limit == 0.12
    assert set(board.beyond) == set(board.criterion.why)
    declared = Published.load("amped").beyond
    names = {*board.beyond, *(f"{name.split('/')[0]}/*" for name in board.beyond)}
    assert set(declared) <= names


def test_throughput_is_that_of_the_plain_estimate(parts):
    """GPipe's K = 8 over K = 2, from two estimates; slower than stages without a head would be."""
    gpipe = Published.load("amped").gpipe
    model = gpipe.model | {"sources": {"": {"kind": "published", "text": "here"}}}
    base = {"dp": 1, "mbs": 1, "gbs": 32, "dtype": "fp32", "schedule": "gpipe"}
    base |= {"recompute": "full", "stack": "gpipe-2019"}
    two, eight = (estimate(model, "p100-pcie", base | {"pp": stages}) for stages in (2, 8))
    assert two.fits
    row = parts["gpipe_gpu"].rows[-1]
    assert row.ours == pytest.approx(two.step_time_s / eight.step_time_s, rel=1e-12)
    assert row.ours < 8 / (1 + 7 / 32) / (2 / (1 + 1 / 32))


def test_messages_of_the_old_server_go_through_the_host():
    """Twice over PCIe 3.0 at three quarters of it; no tensor cores, no bf16."""
    system = System.load("p100-pcie")
    p2p = system.network[0].rates_of("p2p").efficiency
    assert p2p[2] * system.network[0].bandwidth == pytest.approx(6e9)
    assert system.accelerator.matrix["fp16"] == pytest.approx(
        2 * system.accelerator.matrix["fp32"], rel=0.01
    )
    assert Stack.load("gpipe-2019").attention_kernel == "unfused"


def test_the_suite_prints_its_criterion(board, capsys):
    """Who set it, how many rows are within, and by reason which are not."""
    assert run(["validate", "amped", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    beyond = told["criterion"]["beyond"]
    assert told["criterion"]["within"] + len(beyond) == told["criterion"]["n"] == 22
    assert all(one["why"] for one in beyond)
    assert {row["status"] for row in told["rows"]} == {"confirmed", "recalled"}
    print_scoreboard(board, rows=True)
    out = " ".join(capsys.readouterr().out.split())
    assert "Criterion: at most 12 % (abstract of AMPeD" in out
    assert out.count("beyond: ") == len(Published.load("amped").beyond)
    assert "shardwise error AMPeD error" in out


def test_its_own_answers_stand_beside_ours(parts):
    """Without recompute every step is too short; without a bubble throughput is too high."""
    for name, part in parts.items():
        errors = [row.their_error for row in part.rows]
        assert all(error > 0.1 if name == "gpipe_gpu" else error < -0.15 for error in errors), name
    assert parts["gpipe_gpu"].rows[-1].theirs == pytest.approx(3.979, abs=1e-3)
    assert parts["table1_step_time"].rows[-1].theirs == pytest.approx(81.14, abs=1e-2)


def test_all_within_is_said(board, capsys):
    """And a row beyond it without a reason is told as such."""
    print_scoreboard(replace(board, criterion=Criterion(limit=1.0, source="us")))
    out = " ".join(capsys.readouterr().out.split())
    assert "22 of 22 rows, all of them, are within." in out
    print_scoreboard(replace(board, criterion=Criterion(limit=0.7, source="us")))
    assert "no reason is known" in " ".join(capsys.readouterr().out.split())
