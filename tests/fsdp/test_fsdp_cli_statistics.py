"""`shardwise fsdp` of files of module statistics, by our planner and by the reference."""

import json

import pytest

from fsdp_ilp_samples import SOLVER, flat
from fsdp_words import timeless
from shardwise.fsdp import cli_reference as fsdp_reference

GIB = 2**30


class TestStatistics:
    def test_the_contract(self, plan, statistics):
        """What checks outside this suite read."""
        gpt = statistics / "seed_gpt6.json"
        code, record = plan(gpt, "--gpus", 8, "--memory-budget", "15.4GiB")
        assert code == 0
        assert record["feasible"]
        assert record["optimal"]
        assert 0 < record["peak_memory_bytes"] <= 15.4 * GIB
        assert record["bound_s"] == pytest.approx(record["exposed_s"], rel=1e-9)
        assert record["elapsed_s"] > 0
        assert record["kind"] == "statistics"
        details = record["unit_details"]
        assert details[0]["modules"] == []
        named = [one if isinstance(one, list) else [one] for one in record["units"]]
        own = [[f"GPT.{name}" for name in one["modules"]] for one in details[1:]]
        assert own == named  # in the words of the file
        parts = [one["exposed_forward_s"] + one["exposed_backward_s"] for one in details]
        assert sum(parts) + record["exposed_end_s"] == pytest.approx(record["exposed_s"])
        memory = record["memory"]
        assert sum(memory["bytes"].values()) == pytest.approx(record["peak_memory_bytes"])
        assert {one["name"] for one in record["usual"]} >= {"root only", "every block"}
        for one in record["usual"]:
            assert one["fits"] == (one["peak_memory_bytes"] <= 15.4 * GIB)
            if one["fits"]:
                assert one["step_s"] >= record["step_s"]

    def test_both_layouts_plan_the_same(self, plan, statistics):
        words = ("--gpus", 4)
        one, other = (plan(statistics / f"tiny12{n}.json", *words)[1] for n in ("", "-torch"))
        assert timeless(one) == timeless(other)

    def test_what_a_file_does_not_know_is_told(self, plan, statistics):
        """Its numbers have 4 bytes, it knows no optimizer, and there is no machine."""
        _, record = plan(statistics / "tiny12.json", "--gpus", 4)
        assert record["setting"] == {
            "shards": 4,
            "replicas": 1,
            "stored_dtype": "fp32",
            "compute_dtype": "fp32",
            "reduce_dtype": "fp32",
            "optimizer": "none",
        }
        assert record["memory_budget_bytes"] is None
        assert "--memory-budget" in record["memory_budget_from"]
        assert any("fsdp_ilp's rule" in line for line in record["assumed"])

    def test_a_system_gives_memory_and_network_not_times(self, plan, statistics):
        tiny = statistics / "tiny12.json"
        _, alone = plan(tiny, "--gpus", 4)
        _, there = plan(tiny, "--gpus", 4, "--system", "h100-sxm")
        assert there["memory_budget_bytes"] == pytest.approx(79.65 * GIB, rel=1e-3)
        assert there["compute_s"] == alone["compute_s"]
        assert there["exposed_s"] != alone["exposed_s"]

    def test_below_the_minimum_the_least_budget_is_named(self, plan, shardwise, statistics):
        """And it suffices."""
        tiny = statistics / "tiny12.json"
        code, record = plan(tiny, "--gpus", 4, "--memory-budget", "1GiB")
        least = record["least_memory_budget_bytes"]
        assert code == 1
        assert not record["feasible"]
        assert record["units"] == []
        assert f"{-(-int(least) // 2**20)} MiB" in record["reason"]
        assert plan(tiny, "--gpus", 4, "--memory-budget", least * (1 + 1e-12))[0] == 0
        assert plan(tiny, "--gpus", 4, "--memory-budget", least - 1e4)[0] == 1
        code, out, _ = shardwise("fsdp", tiny, "--gpus", 4, "--memory-budget", "1GiB")
        assert code == 1
        assert record["reason"] in " ".join(out.split())
        code, out, err = shardwise(
            *("fsdp", tiny, "--gpus", 4, "--memory-budget", "1GiB", "--emit", "python")
        )
        assert (code, out) == (1, "")
        assert record["reason"] in err

    def test_measured_collectives_replace_the_rule(self, plan, statistics, tmp_path):
        """Ten times slower ones are exposed longer."""
        tiny, file = statistics / "tiny12.json", tmp_path / "comm.yaml"
        line = "{latency: 10 us, bandwidth: 10 GB/s}"
        file.write_text(f"all_gather: {line}\nreduce_scatter: {line}\n")
        _, ruled = plan(tiny, "--gpus", 4)
        _, given = plan(tiny, "--gpus", 4, "--comm", file)
        assert given["exposed_s"] > ruled["exposed_s"]
        assert any(line.startswith("collectives as set: 10 us") for line in given["assumed"])


class TestReference:
    @pytest.mark.parametrize("solver", [SOLVER, "exact"])
    @pytest.mark.parametrize("budget", [15.8, 15.0])
    def test_all_solvers_agree(self, plan, statistics, solver, budget):
        """On the least exposed time, or that there is none."""
        gpt = statistics / "seed_gpt6.json"
        words = ("--gpus", 8, "--memory-budget", f"{budget}GiB", "--reference", "fsdp-ilp")
        code, record = plan(gpt, *words, "--solver", solver)
        assert record["solver"] == solver
        if budget < 15.1:
            assert code == 1
            assert record["status"] == "infeasible"
            least = record["least_memory_budget_bytes"]
            words = ("--gpus", 8, "--memory-budget", least + 1, "--reference", "fsdp-ilp")
            assert plan(gpt, *words, "--solver", solver)[0] == 0
        else:
            assert code == 0
            assert record["optimal"]
            assert record["objective_ms"] == pytest.approx(1.3123, rel=1e-3)
            assert record["exposed_s"] == pytest.approx(record["objective_ms"] / 1e3)
            assert record["peak_memory_bytes"] <= budget * GIB
        assert record["without_fsdp"]["peak_gib"] == pytest.approx(17.21, rel=1e-3)

    def test_without_a_solver_our_own_search_answers(self, shardwise, statistics, monkeypatch):
        monkeypatch.setattr(fsdp_reference, "find_spec", lambda _: None)
        words = ("--gpus", 4, "--memory-budget", "9GiB", "--reference", "fsdp-ilp", "--json")
        code, out, err = shardwise("fsdp", statistics / "tiny12.json", *words)
        assert code == 0
        assert "neither highspy nor scipy is installed: solver exact" in err
        assert json.loads(out)["solver"] == "exact"

    def test_given_units_and_all_modules(self, shardwise, plan, statistics):
        """With or without the name of the root."""
        words = ("--gpus", 4, "--memory-budget", "9GiB", "--reference", "fsdp-ilp", "--modules")
        tiny = statistics / "tiny12.json"
        code, record = plan(tiny, *words, "--units", "m1.m2,R.m7")
        assert code == 0
        assert record["units"] == ["R.m1.m2", "R.m7"]
        assert record["status"] == "given"
        assert [row["name"] for row in record["modules"]] == flat("tiny12")["fw_pre_order"]
        code, out, _ = shardwise("fsdp", tiny, *words, "--units", "m1.m2,R.m7")
        assert code == 0
        assert "R by fsdp_ilp\n4 GPUs, budget 9 GiB" in out
        assert "status    set by --units\n" in out
        assert "fw_ag" in out
        code, record = plan(tiny, *words, "--units", "m1,m1.m2,m5,m7")
        assert code == 1
        assert "count twice" in record["reason"]

    def test_what_may_not_be_a_unit(self, plan, statistics):
        words = ("--gpus", 4, "--memory-budget", "9GiB", "--reference", "fsdp-ilp")
        for solver in (SOLVER, "exact"):
            _, record = plan(
                *(statistics / "tiny12.json", *words, "--forbid", "m1,m7", "--solver", solver)
            )
            assert not {"R.m1", "R.m7"} & set(record["units"])
