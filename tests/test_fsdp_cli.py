"""`shardwise fsdp` as people call it, without torch."""

import json
from importlib.util import find_spec

import pytest

from shardwise import InputError, plan_fsdp
from shardwise.cli import fsdp_reference
from shardwise.errors import ShardwiseError
from shardwise.fsdp import sources
from shardwise.fsdp.evaluate import UnitCost
from shardwise.report.fsdp_units import collapsed, ranges
from test_fsdp_ilp_files import GOLDEN, flat, nested

GIB = 2**30
OPERATIONS = ("llama3.2-1b", "--gpus", 8)
SOLVER = "highs" if find_spec("highspy") else "scipy"
FAST = ("--reshard", "always", "--seconds", 10)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.fixture(scope="module")
def statistics(tmp_path_factory):
    """Files of module statistics by name of the model, in both layouts."""
    folder = tmp_path_factory.mktemp("statistics")
    for name in GOLDEN["module_infos"]:
        (folder / f"{name}.json").write_text(json.dumps(flat(name)))
        (folder / f"{name}-torch.json").write_text(json.dumps(nested(name)))
    return folder


@pytest.fixture
def plan(shardwise):
    """Run `shardwise fsdp ... --json`; return exit code and record."""

    def call(*words):
        code, out, err = shardwise("fsdp", *words, "--json")
        assert not err.startswith("error"), err
        return code, json.loads(out)

    return call


def timeless(record):
    """A record without what differs from run to run, and without where it was read."""
    left_out = ("elapsed_s", "profile_s", "source")
    return {name: value for name, value in record.items() if name not in left_out}


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
        assert any(line.startswith("collectives as given: 10 us") for line in given["assumed"])


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
        assert "Beside other wrappings" in out

    def test_code_in_json(self, plan):
        _, record = plan(*OPERATIONS, "--emit", "huggingface")
        assert record["emitted"]["form"] == "huggingface"
        assert "fsdp_plan = {" in record["emitted"]["text"]
        assert record["emitted"]["notes"]
        assert record["units"]


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


BY_REFERENCE = ("--gpus", 8, "--reference", "fsdp-ilp", "--memory-budget", "9GiB")
REFUSED = {
    "one GPU": (("llama3-8b", "--gpus", 1), "gpus: 1: FSDP shards over two ranks or more"),
    "no GPUs": (("llama3-8b",), "gpus: is missing"),
    "replicas": (("llama3-8b", "--gpus", 8, "--replicas", 8), "replicas: 8: must divide"),
    "rule for replicas": (("{tiny}", "--gpus", 8, "--replicas", 2), "give a system"),
    "type": (("llama3-8b", "--gpus", 8, "--dtype", "fp8"), "dtype: 'fp8': allowed: fp32, bf16"),
    "type of a file": (("{tiny}", "--gpus", 8, "--dtype", "bf16"), "numbers of 4 bytes"),
    "word": (("llama3-8b", "--gpus", 8, "--reshard", "nevr"), "did you mean 'never'?"),
    "budget": (("llama3-8b", "--gpus", 8, "--memory-budget", "9 apples"), "unit 'apples'"),
    "no module": (("llama3-8b", "--gpus", 8, "--units", "layer.0"), "did you mean 'layers.0'?"),
    "pattern": (("llama3-8b", "--gpus", 8, "--units", "layer.*"), "did you mean 'layers.*'?"),
    "the root": (("{tiny}", "--gpus", 8, "--units", "m1,m1"), "stands in more than one unit"),
    "no forward": (("llama3-8b", "--gpus", 8, "--units", "layers"), "no forward of its own"),
    "no weights": (
        ("{gpt}", "--gpus", 8, "--units", "transformer.drop"),
        "has no parameters: FSDP2 ignores it",
    ),
    "tied": (
        ("{gpt}", "--gpus", 8, "--units", "lm_head"),
        "shares the parameter 'transformer.wte.weight'",
    ),
    "nothing to verify": (("llama3-8b", "--gpus", 8, "--verify"), "needs a torch module"),
    "code": (("llama3-8b", "--gpus", 8, "--emit", "perl"), "allowed: python, torchtitan"),
    "code alone": (("llama3-8b", "--gpus", 8, "--emit", "python", "--pareto"), "--output FILE"),
    "no model": (("nothing", "--gpus", 8), "no such model in the catalog"),
    "no file": (("nothing.json", "--gpus", 8), "no such file"),
    "no tokens": (("{config}", "--gpus", 8, "--no-trace"), "seq_len: is missing"),
    "no config": (("{folder}", "--gpus", 8), "the folder has no config.json"),
    "node": (("llama3-8b", "--gpus", 8, "--gpus-per-node", 4), "has no effect beside a system"),
    "seconds": (("llama3-8b", "--gpus", 8, "--seconds", 0), "must be a number above 0"),
    "group": (("llama3-8b", "--gpus", 8, "--group", 99), "group: 99: must be"),
    "solver alone": (("{tiny}", "--gpus", 8, "--solver", "highs"), "needs --reference fsdp-ilp"),
    "other reference": (("{tiny}", "--gpus", 8, "--reference", "nersc"), "allowed: fsdp-ilp"),
    "reference of a model": (
        ("llama3-8b", "--gpus", 8, "--reference", "fsdp-ilp"),
        "is no module information",
    ),
    "reference without budget": (
        ("{tiny}", "--gpus", 8, "--reference", "fsdp-ilp"),
        "memory_budget: is missing",
    ),
    "reference with ours": (
        ("{tiny}", "--gpus", 8, "--reference", "fsdp-ilp", "--pareto"),
        "pareto: has no effect beside --reference",
    ),
    "no such solver": (
        ("{tiny}", *BY_REFERENCE, "--solver", "glpk"),
        "allowed: highs, scipy, cbc, exact",
    ),
    "exact without programme": (
        ("{tiny}", *BY_REFERENCE, "--solver", "exact", "--formulation", "flow"),
        "has no effect with the solver exact",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_is_wrong(shardwise, statistics, tmp_path, words, said):
    """In one line, with exit code 2."""
    config = tmp_path / "some.json"
    config.write_text(json.dumps(CONFIG))
    places = {
        "{tiny}": statistics / "tiny12.json",
        "{gpt}": statistics / "seed_gpt6.json",
        "{config}": config,
        "{folder}": statistics,
    }
    code, out, err = shardwise("fsdp", *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


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


def unit(*modules, gather_s=1.0):
    figures = ("reduce_s", "forward_s", "backward_s", "exposed_forward_s", "exposed_backward_s")
    return UnitCost(
        modules=modules,
        reshard_after_forward=True,
        parameter_bytes=1.0,
        gather_s=gather_s,
        **dict.fromkeys(figures, 0.0),
    )


class TestRows:
    def test_layers_that_agree_are_one_row(self):
        layers = [unit(f"h.{i}") for i in range(31)]
        rows = collapsed([unit(), unit("a"), *layers, unit("h.31", gather_s=2.0)])
        assert [(row.name, row.times) for row in rows] == [
            ("root", 1),
            ("a", 1),
            ("h.0..30", 31),
            ("h.31", 1),
        ]

    def test_parts_of_layers_that_agree_are_a_row_each(self):
        """From where a layer begins."""
        parts = [unit(f"h.{i}.{part}") for i in range(4) for part in ("a", "b")]
        rows = collapsed([unit("h.0.a", gather_s=2.0), *parts[1:]])
        assert [(row.name, row.times) for row in rows] == [
            ("h.0.a", 1),
            ("h.0.b", 1),
            ("h.1..3.a", 3),
            ("h.1..3.b", 3),
        ]

    def test_groups_across_layers(self):
        rows = collapsed([unit(f"h.{i}", f"h.{i + 1}") for i in range(0, 8, 2)])
        assert [(row.name, row.times) for row in rows] == [("h.(0..6/2 + 1..7/2)", 4)]

    def test_names(self):
        assert ranges(["a", "h.0", "h.1", "h.2", "b"]) == ["a", "h.0..2", "b"]
        assert ranges(["h.0", "h.2"]) == ["h.0..2/2"]
        assert ranges([]) == []


@pytest.mark.parametrize(
    "words",
    [
        (*OPERATIONS, "--pareto", "--units", "layers.*"),
        ("{tiny}", "--gpus", 4, "--memory-budget", "1GiB"),
        ("{tiny}", "--gpus", 4, "--memory-budget", "9GiB", "--reference", "fsdp-ilp", "--modules"),
    ],
)
def test_narrow_terminals(shardwise, statistics, monkeypatch, words):
    """No line is wider, and nothing is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    places = {"{tiny}": statistics / "tiny12.json"}
    _, out, _ = shardwise("fsdp", *(places.get(word, word) for word in words))
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
