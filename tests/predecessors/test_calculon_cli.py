"""Calculon's files and its answers on the command line, as its users meet them."""

import gzip
import json
from functools import partial

import pytest
import yaml

from calculon_runs import README, RUNS, system_of, write_files
from rows import each_row
from shardwise import Model, Strategy, System
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.tables import CALCULON
from shardwise.predecessors.calculon.translation import (
    calculon_case,
    model_for_calculon,
    system_for_calculon,
)

STATISTICS = dict(zip(RUNS["stat_fields"], README["stats"], strict=True))
GPT3 = ("calculon-gpt3-175b", "calculon-a100-80g")


@pytest.fixture
def files(tmp_path):
    """Calculon's model, system and execution of its README, each changed as a test likes."""

    return partial(write_files, tmp_path)


def _arguments(paths, verb="estimate"):
    return [verb, paths["model"], paths["system"], "--strategy", paths["execution"]]


def test_its_files_are_estimated_as_they_are(shardwise, files):
    """Model, system and execution give our estimate; the strategy says all that the file said."""
    code, out, err = shardwise(*_arguments(files()), "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    strategy = result["strategy"]
    degrees = {axis: strategy[axis] for axis in ("tp", "pp", "dp", "gpus")}
    assert degrees == {"tp": 4, "pp": 64, "dp": 12, "gpus": 3072}
    assert (strategy["recompute"], strategy["zero"], strategy["dtype"]) == ("full", 1, "fp16")
    assert (strategy["tp_tier"], strategy["pp_tier"], strategy["dp_tier"]) == (0, 1, 1)
    assert (strategy["stack"], strategy["tp_exchange"]) == ("calculon", "rs_ag")
    assert result["comm_s"]["pp"]["total"] == pytest.approx(STATISTICS["pp_comm_link_time"])


def test_flags_change_an_imported_execution(shardwise, files):
    """A flag goes over the field of the file."""
    _, out, _ = shardwise(*_arguments(files()), "--mbs", "2", "--recompute", "none", "--json")
    strategy = json.loads(out)["strategy"]
    assert (strategy["micro_batch_size"], strategy["recompute"], strategy["tp"]) == (2, "none", 4)


def test_reference_prints_its_own_statistics(shardwise, files):
    """The 96 of the README example under their own names; with --ops its operations too."""
    code, out, err = shardwise(*_arguments(files()), "--reference", "calculon", "--ops", "--json")
    answer = json.loads(out)
    layers = answer.pop("layers")
    assert (code, err) == (0, "")
    assert answer == pytest.approx(STATISTICS, rel=1e-9)
    assert len(layers) == 24
    code, out, _ = shardwise(*_arguments(files()), "--reference", "calculon")
    assert code == 0
    assert len([line for line in out.splitlines() if line.strip()]) >= 96


def test_also_prints_both(shardwise, files):
    """Our estimate whole, Calculon's beside it.

    64 stages and 64 micro-batches: all of them on the last stage, with one message each, half of
    Calculon's; one on the 63 others, where 62 activations and 63 gradients come in; the exchange
    of gradients and the update. 69.3 + 64.3 + (64 + 125) x 0.00468 + 0.8 s = 135.3 s.
    """
    code, out, _ = shardwise(*_arguments(files()), "--also", "calculon", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["also"]["calculon"] == pytest.approx(STATISTICS, rel=1e-9)
    times, message = result["time_s"], STATISTICS["pp_comm_link_time"] / 2 / 64
    *others, last = (stage["micro_batch_s"] for stage in result["stages"])
    passes = 64 * last + sum(others) + (64 + 62 + 63) * message
    once = times["dp_comm"] + times["optimizer"]
    assert len(others) == 63
    assert times["pp_comm"] == pytest.approx(64 * message)
    assert result["step_time_s"] == pytest.approx(passes + once)
    code, out, _ = shardwise(*_arguments(files()), "--also", "calculon")
    assert "132 s" in out  # Calculon's total_time
    assert "135 s" in out
    _, everything, _ = shardwise(*_arguments(files()), "--also", "calculon", "--ops")
    shown = [row.name for row in CALCULON if row.name in everything]
    assert len(shown) > 80


def test_what_calculon_refuses_is_said_with_exit_code_1(shardwise, files):
    """Too little memory there: its sentence, and no statistics; our own estimate still stands."""
    paths = files(system=lambda s: s["mem1"].update(GiB=60))
    code, out, err = shardwise(*_arguments(paths), "--reference", "calculon", "--json")
    answer = json.loads(out)
    assert (code, err) == (1, f"{answer['message']}\n")
    assert answer["infeasible"] == "mem_tier1"
    assert "79.55" in answer["message"]
    assert "60" in answer["message"]
    code, out, _ = shardwise(*_arguments(paths), "--also", "calculon")
    assert code == 0
    assert "Calculon refuses this run: mem1 needs 79.55" in out


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("model", lambda m: m.pop("hidden"), ["hidden: is missing"]),
        ("model", lambda m: m.update(hidden="wide"), ["hidden: 'wide'"]),
        ("model", lambda m: m.update(num_blocks=0), ["num_blocks: 0", "at least"]),
        ("execution", lambda e: e.pop("training"), ["training: is missing"]),
        ("execution", lambda e: e.update(tensor_pra=2), ["tensor_pra: unknown key", "tensor_par"]),
        ("execution", lambda e: e.update(num_procs=3000), ["num_procs: 3000", "= 3072"]),
        ("execution", lambda e: e.update(batch_size=3001), ["batch_size: 3001", "data_par 12"]),
        ("execution", lambda e: e.update(datatype="int8"), ["datatype: 'int8'", "float16"]),
        ("execution", lambda e: e.update(training="yes"), ["training: 'yes'", "true or false"]),
        (
            "system",
            lambda s: s["matrix"]["float16"].update(gflops_efficiency=[[1, 0.5], [16, 0.9]]),
            ["matrix.float16.gflops_efficiency", "descend", "row 2"],
        ),
        (
            "system",
            lambda s: s["mem1"].update(MB_efficiency=[[0, 0.3], [1, 0.6]]),
            ["mem1.MB_efficiency", "descend"],
        ),
        (
            "system",
            lambda s: s["mem1"].update(MB_efficiency=[[100, 0.9], [1, 0.6]]),
            ["mem1.MB_efficiency", "threshold 0"],
        ),
        ("system", lambda s: s.pop("mem2"), ["mem2: is missing"]),
        ("system", lambda s: s["networks"].clear(), ["networks: []", "must not be empty"]),
        ("system", lambda s: s["networks"][0].update(speed=1), ["networks[0].speed: unknown key"]),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--reference", "calculon"]], ids=["ours", "theirs"])
def test_a_bad_file_is_one_clear_line(shardwise, files, mode, kind, change, told):
    """File, field, value and what is allowed; exit code 2, nothing on standard output."""
    paths = files(**{kind: change})
    code, out, err = shardwise(*_arguments(paths), *mode)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: {paths[kind]}: ")
    assert [words for words in told if words not in line] == []


def test_swapped_files_are_told_apart(shardwise, files):
    """A system where the model should be."""
    paths = files()
    code, _, err = shardwise("estimate", paths["system"], paths["model"], "--gpus", 8)
    assert code == 2
    assert "holds a Calculon system, not a model" in err


def test_convert_writes_ours_and_theirs_back(shardwise, files, tmp_path):
    """Each file, gzipped too, to ours and back to what it was."""
    paths = files()
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(paths["system"].read_bytes()))
    for source, noun, kind in (
        (paths["model"], Model, "model"),
        (packed, System, "system"),
        (paths["execution"], Strategy, "execution"),
    ):
        native = tmp_path / f"{kind}.yaml"
        assert shardwise("convert", source, "--output", native) == (0, "", "")
        assert noun.load(native).to_dict() == noun.load(source).to_dict() | _name(noun, native)
    for source, kind in ((native_of(tmp_path, "model"), "model"), (packed, "system")):
        code, out, _ = shardwise("convert", source, "--to", "calculon")
        assert (code, json.loads(out)) == (0, json.loads(paths[kind].read_text()))
    words = ["--model", paths["model"], "--system", paths["system"], "--to", "calculon"]
    code, out, _ = shardwise("convert", tmp_path / "execution.yaml", *words)
    assert (code, json.loads(out)) == (0, README["execution"])


def native_of(folder, kind):
    """Path of a converted file."""
    return folder / f"{kind}.yaml"


def _name(noun, path):
    """A converted file keeps the name it was given."""
    return {} if noun is Strategy else {"name": yaml.safe_load(path.read_text())["name"]}


def test_convert_prints_yaml_and_names_what_it_cannot_do(shardwise, tmp_path, files):
    """Catalog names convert too; a strategy for Calculon needs both others; nonsense is refused."""
    code, out, _ = shardwise("convert", "calculon-gpt3-175b")
    assert code == 0
    assert yaml.safe_load(out)["hidden"] == 12288
    code, out, _ = shardwise("convert", "calculon")
    assert (code, yaml.safe_load(out)["attention_kernel"]) == (0, "unfused")
    paths = files()
    for words, told in (
        (
            [paths["execution"], "--to", "calculon"],
            "--system is missing: a strategy for Calculon needs its networks",
        ),
        (["calculon", "--to", "calculon"], "contains a stack"),
        (["h100-sxm", "--to", "calculon"], "calculon-..."),
        (["llama3-8b", "--to", "calculon"], "kv_heads: 8"),
        (["llama3-8b", "--to", "calculom"], "'calculom': allowed: calculon, nersc; did you mean"),
        (["llama3-8b", "--kind", "modle"], "did you mean 'model'"),
        ([tmp_path / "none.json"], "no such file"),
    ):
        code, out, err = shardwise("convert", *words)
        assert (code, out) == (2, "")
        assert told in err
    nonsense = tmp_path / "nonsense.yaml"
    nonsense.write_text("colour: red\n")
    code, _, err = shardwise("convert", nonsense)
    assert code == 2
    assert "is not a model, system, strategy, stack" in err


def test_strategies_convert_to_executions_by_what_they_place():
    """Axes by placement go to the outermost network they span; overlap by the stack is none."""
    flags = {"gpus": 64, "tp": 8, "pp": 4, "gbs": 64, "dtype": "fp16"}
    execution = calculon_case(*GPT3, flags).execution
    networks = (execution.tensor_par_net, execution.pipeline_par_net, execution.data_par_net)
    assert networks == (0, 1, 1)
    assert execution.tensor_par_overlap == "none"
    assert (execution.tensor_par_comm_type, execution.seq_par_ag_redo) == ("rs_ag", True)
    assert execution.data_par_overlap
    alone = calculon_case(*GPT3, {"gpus": 8, "tp": 8, "gbs": 8, "dtype": "fp16"}).execution
    assert not alone.data_par_overlap
    assert not alone.optimizer_sharding
    assert alone.pipeline_par_net == 0


@each_row("case", RUNS["cases"][::7])
def test_executions_survive_the_way_through_our_words(case):
    """Calculon's file as our strategy, and that as Calculon's file: the same 23 keys."""
    if "error" in case:
        return
    model, system = RUNS["models"][case["model"]], system_of(case)
    strategy = Strategy.load(Strategy.load(case["execution"]).to_dict())
    there = calculon_case(model, system, strategy).execution
    assert there == CalculonExecution.parse(case["execution"])
    assert model_for_calculon(Model.load(model)).to_dict() == model
    assert system_for_calculon(System.load(system)).to_dict() == system


def test_multiquery_reaches_the_weights(shardwise, files):
    """One key-value head: fewer parameters, in the estimate and in its model FLOPs."""
    results = {}
    for kind in ("multihead", "multiquery"):
        paths = files(execution=lambda e, kind=kind: e.update(attention_type=kind))
        results[kind] = json.loads(shardwise(*_arguments(paths), "--json")[1])
    many, one = results["multihead"], results["multiquery"]
    heads, hidden, blocks = 160, 25600, 128
    saved = 2 * blocks * (hidden * 160 * (heads - 1) + 160 * (heads - 1))
    assert many["parameters"] - one["parameters"] == saved
    assert one["model_tflops_per_gpu"] / one["samples_per_s"] < (
        many["model_tflops_per_gpu"] / many["samples_per_s"]
    )


def test_search_finds_calculons_optimum(shardwise):
    """Its space and rules, its counts, its best sample rate; ties to its first."""
    words = ["calculon-turing-530b", "calculon-a100-80g", "--reference", "calculon"]
    words += ["--gpus", 5128, "--gbs", 2520, "--dtype", "float16"]
    code, out, err = shardwise("search", *words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["candidates"], found["good"], found["bad"]) == (10_944, 1_080, 9_864)
    assert found["network_feasible"] == 5_472
    assert sum(found["rejected"].values()) == found["bad"]
    assert found["best"][0]["stats"]["sample_rate"] == pytest.approx(111.160499566, rel=1e-9)
    assert found["best"][0]["execution"]["batch_size"] == 1923
    assert found["elapsed_s"] > 0
    code, out, _ = shardwise("search", *words, "--mbs-break", "--json")
    assert json.loads(out)["candidates"] == 8_112
    code, out, _ = shardwise("search", *words, "--count", "--json")
    assert {"candidates": 10_944, "network_feasible": 5_472}.items() <= json.loads(out).items()
    assert "best" not in json.loads(out)


def test_searchs_switches(shardwise):
    """Each narrows or widens the space as it says; top and layers show more."""
    words = ["search", "calculon-megatron-22b", "calculon-a100-80g", "--reference", "calculon"]
    words += ["--gpus", 4, "--gbs", 4]

    def found(*more):
        return json.loads(shardwise(*words, *more, "--json")[1])

    whole = found("--top", 3, "--layers")
    assert len(whole["best"]) == 3
    rates = [entry["stats"]["sample_rate"] for entry in whole["best"]]
    assert rates == sorted(rates, reverse=True)
    assert {len(entry["layers"]) for entry in whole["best"]} <= {17, 24}
    still = found("--no-tp-overlap", "--no-dp-overlap")
    assert still["candidates"] < whole["candidates"]
    best = still["best"][0]["execution"]
    assert (best["tensor_par_overlap"], best["data_par_overlap"]) == ("none", False)
    assert found("--fused-activation", "both")["candidates"] == 2 * whole["candidates"]
    assert found("--fused-activation", "false")["candidates"] == whole["candidates"]
    alone = found("--fused-activation", "--dp-overlap", "--tp-overlap")
    assert alone["candidates"] == whole["candidates"]
    code, out, _ = shardwise(*words, "--top", 2, "--layers")
    assert code == 0
    assert "AttnBlock_LayerNorm" in out
    assert f"{whole['candidates']:,} candidates" in out


def test_a_search_without_a_feasible_run_exits_with_1(shardwise):
    """One processor cannot hold it: the reasons are counted; --ok-if-none makes it 0."""
    words = ["search", "calculon-megatron-1t", "calculon-a100-80g", "--reference", "calculon"]
    words += ["--gpus", 1, "--gbs", 1]
    code, out, _ = shardwise(*words)
    assert code == 1
    assert "0 are feasible" in out
    assert "mem_tier" in out
    code, out, _ = shardwise(*words, "--ok-if-none", "--json")
    assert (code, json.loads(out)["best"]) == (0, [])


@each_row(
    ("name", "command"),
    [
        ("lpc", "models MODEL"),
        ("lv", "validate seqsel"),
        ("loe", "search MODEL SYSTEM --gpus N --gbs N --reference calculon"),
        ("llm-all-executions", "--save all.csv.gz"),
        ("v", "--version"),
    ],
)
def test_a_command_of_calculon_is_refused_with_what_to_type(shardwise, name, command):
    """By its long or short name."""
    code, out, err = shardwise(name, "model.json")
    assert (code, out) == (2, "")
    assert err.rstrip().endswith(command)


def test_a_reference_begins_with_its_question(shardwise):
    """Blocks, processors, degrees, batch and options above the statistics."""
    words = ("--gpus", 3072, "--tp", 8, "--pp", 64, "--mbs", 1, "--gbs", 3072, "--dtype", "fp16")
    case = ("calculon-megatron-1t", "calculon-a100-80g")
    out = shardwise("estimate", *case, *words, "--recompute", "full", "--reference", "calculon")[1]
    assert "128 blocks, hidden 25600, 160 heads, 2,048 tokens" in out
    assert "3,072 processors: T x P x D = 8 x 64 x 6, batch 3072, micro-batch 1" in out
