"""`shardwise fsdp` of models, as people call it, without torch; and the same from Python."""

import json
from importlib.util import find_spec

import pytest

from fsdp_words import CONFIG, FAST, OPERATIONS, timeless
from remembered import remembered
from shardwise import InputError, plan_fsdp
from shardwise.errors import ShardwiseError
from shardwise.fsdp import sources


@pytest.fixture(scope="module", autouse=True)
def _once():
    """The same plan is made once."""
    with remembered("shardwise.fsdp.api.plan_fsdp"):
        yield


class TestBudget:
    def test_a_budget_above_the_memory_is_lowered_to_it(self, plan):
        """The record says so."""
        _, record = plan(*OPERATIONS, "--memory-budget", "600GiB", *FAST)
        _, all_memory = plan(*OPERATIONS, *FAST)
        whole = "all memory of NVIDIA H100 80GB HBM3"
        assert record["memory_budget_bytes"] == all_memory["memory_budget_bytes"]
        assert record["memory_budget_from"] == f"{whole}, less than the 600 GiB set"
        assert all_memory["memory_budget_from"] == whole


class TestOwnWrapping:
    def test_it_is_worked_out_beside_the_best(self, plan):
        _, record = plan(*OPERATIONS, "--units", "layers.*")
        own = record["own"]
        blocks = next(one for one in record["usual"] if one["name"] == "every block")
        assert own["units"] == [f"layers.{i}" for i in range(16)]
        assert own["exposed_s"] == blocks["exposed_s"]
        assert own["step_s"] >= record["step_s"]

    def test_groups_and_units_that_stay(self, plan):
        """Two flags are two parts of one list."""
        units = ("--units", "layers.*.self_attn+layers.*.mlp", "--units", "norm:keep")
        _, record = plan(*OPERATIONS, *units)
        groups = [[f"layers.{i}.self_attn", f"layers.{i}.mlp"] for i in range(16)]
        assert record["own"]["units"] == [*groups, "norm"]

    def test_the_plan_itself_comes_back_from_its_file(self, shardwise, plan, tmp_path):
        """With what stays gathered and what is checkpointed."""
        file = tmp_path / "plan.json"
        words = (*OPERATIONS, "--checkpoint", "choose", "--memory-budget", "8GiB", *FAST)
        code, out, _ = shardwise("fsdp", *words, "--output", file)
        assert (code, out) == (0, "")
        _, record = plan(*words, "--units", file)
        assert record["checkpointed"]
        assert record["own"]["exposed_s"] == record["exposed_s"]
        assert record["own"]["peak_memory_bytes"] == record["peak_memory_bytes"]

    def test_a_file_of_lines(self, plan, tmp_path):
        file = tmp_path / "mine.txt"
        file.write_text("# ours\nlayers.*\n\nnorm  # the last\n")
        _, record = plan(*OPERATIONS, "--units", file)
        assert len(record["own"]["units"]) == 17


class TestOperations:
    def test_the_table(self, shardwise):
        code, out, err = shardwise("fsdp", *OPERATIONS)
        assert code == 0
        assert "llama3.2-1b\n8 GPUs of h100-sxm, 1 x " in out
        assert "no wrapping of the space that fits costs less" in out
        assert "of 79.65 GiB, all memory of" in out
        assert "assumed: system h100-sxm" in out
        assert "x1" in out  # layers that are alike are one row
        assert err.startswith("196 modules, ")

    def test_checkpointing_fits_less_memory(self, plan):
        """The first blocks, and no more than are needed."""
        words = (*OPERATIONS, "--memory-budget", "12GiB", *FAST)
        assert plan(*words)[0] == 1
        code, record = plan(*words, "--checkpoint", "choose")
        count = len(record["checkpointed"])
        assert code == 0
        assert record["checkpointed"] == [f"layers.{i}" for i in range(count)]
        assert 0 < count < 16
        assert record["recompute_s"] > 0
        _, every = plan(*words, "--checkpoint", "all")
        assert every["recompute_s"] == pytest.approx(record["recompute_s"] * 16 / count)
        assert every["peak_memory_bytes"] < record["peak_memory_bytes"]

    def test_hybrid_sharding(self, plan):
        """Fewer shards hold more, and the rest of the wire goes to the replicas."""
        _, whole = plan("llama3.2-1b", "--gpus", 16, *FAST)
        _, hybrid = plan("llama3.2-1b", "--gpus", 16, "--replicas", 2, *FAST)
        assert hybrid["setting"]["shards"] == 8
        assert hybrid["setting"]["replicas"] == 2
        assert hybrid["peak_memory_bytes"] > whole["peak_memory_bytes"]

    def test_a_config_needs_torch_or_not(self, plan, shardwise, tmp_path, monkeypatch):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        words = (tmp_path, "--gpus", 8, "--seq-len", 1024, "--seconds", 0.1)
        _, record = plan(*words, "--no-trace")
        assert record["kind"] == "operations"
        monkeypatch.setattr(sources, "find_spec", lambda _: None)
        code, _, err = shardwise("fsdp", *words)
        assert code == 2
        assert "'shardwise[torch]' transformers; or give --no-trace" in err

    def test_a_file_of_a_model(self, plan, shardwise, tmp_path):
        file = tmp_path / "mine.yaml"
        assert shardwise("models", "llama3.2-1b", "--output", file)[0] == 0
        _, own = plan(file, "--gpus", 8)
        _, same = plan("llama3.2-1b", "--gpus", 8)
        assert own["exposed_s"] == same["exposed_s"]

    def test_the_front_falls(self, plan):
        _, record = plan(*OPERATIONS, "--pareto")
        front = record["front"]
        peaks = [one["peak_memory_bytes"] for one in front]
        steps = [one["step_s"] for one in front]
        assert peaks == sorted(peaks, reverse=True)
        assert steps == sorted(steps)
        assert front[0]["step_s"] == pytest.approx(record["step_s"])

    @pytest.mark.nightly
    def test_what_would_just_fit(self, plan, statistics):
        """One sequence more does not; of statistics the batch is not known."""
        budget = ("--memory-budget", "20GiB", *FAST)
        _, record = plan(*OPERATIONS, *budget, "--what-if")
        most = record["what_if"]["batch"]
        assert record["what_if"]["gpus"] <= 8
        assert plan(*OPERATIONS, *budget, "--batch", most)[0] == 0
        assert plan(*OPERATIONS, *budget, "--batch", most + 1)[0] == 1
        _, record = plan(statistics / "tiny12.json", "--gpus", 4, *budget, "--what-if")
        assert record["what_if"]["batch"] is None
        assert record["what_if"]["notes"]

    def test_charts(self, shardwise, tmp_path):
        pytest.importorskip("plotly")
        page, file = tmp_path / "page.html", tmp_path / "charts.json"
        words = (*OPERATIONS, "--units", "layers.*", "--memory-budget", "15.5GiB")
        for place in (page, file):
            code, _, err = shardwise("fsdp", *words, "--plot", place)
            assert code == 0, err
        charts = json.loads(file.read_text())
        names = [trace["name"] for trace in charts["front"]["data"]]
        assert names[0] == "best wrappings"
        assert {"root only", "every block", "yours", "best within the budget"} <= set(names)
        assert set(charts) == {"front", "held"}
        assert "FSDP2 units of llama3.2-1b" in page.read_text()

    def test_without_the_extra_charts_are_refused_first(self, shardwise, tmp_path):
        if find_spec("plotly") is not None:
            pytest.skip("plotly is installed")
        code, _, err = shardwise("fsdp", *OPERATIONS, "--plot", tmp_path / "a.html")
        assert code == 2
        assert "shardwise[plots]" in err


class TestCode:
    def test_code_alone_goes_to_standard_output(self, shardwise):
        code, out, err = shardwise("fsdp", *OPERATIONS, "--emit", "python")
        assert code == 0
        compile(out, "emitted", "exec")
        assert "fully_shard(model, **shared)" in out
        assert "note: names are those of a decoder" in err

    @pytest.mark.parametrize("form", ["python", "torchtitan", "huggingface"])
    def test_code_in_a_file_leaves_the_table(self, shardwise, tmp_path, form):
        file = tmp_path / "shard.py"
        _, out, _ = shardwise("fsdp", *OPERATIONS, "--emit", form, "--output", file)
        compile(file.read_text(), "emitted", "exec")
        assert "Comparison with other wrappings" in out

    def test_code_in_json(self, plan):
        _, record = plan(*OPERATIONS, "--emit", "huggingface")
        assert record["emitted"]["form"] == "huggingface"
        assert "fsdp_plan = {" in record["emitted"]["text"]
        assert record["emitted"]["notes"]
        assert record["units"]


class TestPython:
    def test_the_function_is_the_command(self, plan):
        _, record = plan(*OPERATIONS, "--memory-budget", "15.5GiB")
        result = plan_fsdp("llama3.2-1b", gpus=8, memory_budget="15.5 GiB")
        assert timeless(result.to_dict()) == timeless(record)
        assert result.feasible
        assert result.best().optimal
        assert result.fits(result.best().plan)

    def test_nothing_fits(self):
        result = plan_fsdp("llama3.2-1b", gpus=8, memory_budget=1e9)
        assert not result.feasible
        with pytest.raises(InputError, match="no wrapping fits"):
            result.best()
        with pytest.raises(ShardwiseError, match="no wrapping fits"):
            result.emitted()

    def test_wrappings_in_python(self):
        units = [["norm", "lm_head"], {"modules": ["layers.*"], "reshard_after_forward": False}]
        result = plan_fsdp("llama3-8b", gpus=8, units=units)
        own = result.own.plan.wrapping.units
        assert own[0].modules == ("norm", "lm_head")
        assert len(own) == 33
        assert not own[1].reshard_after_forward
        with pytest.raises(InputError, match="must be names of modules"):
            plan_fsdp("llama3.2-1b", gpus=8, units=3)
        with pytest.raises(InputError, match="must be the name of a module"):
            plan_fsdp("llama3.2-1b", gpus=8, units=[3])
