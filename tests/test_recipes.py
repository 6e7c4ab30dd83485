"""Published recipes: their files, our estimates of them, and `--recipe` of the verbs."""

import json
import statistics

import pytest

from launcher_rules import launch_faults
from shardwise import (
    Recipe,
    Stack,
    Strategy,
    System,
    catalog,
    estimate,
    estimate_recipe,
    recipes,
    search,
)
from shardwise.cli import run
from shardwise.cli.schema import SCHEMAS
from shardwise.config.base import ConfigBase
from shardwise.config.files import write_mapping
from shardwise.config.model import Model
from shardwise.config.reliability import Reliability
from shardwise.errors import InputError
from shardwise.planning.recipes import measured_step_time_s

NAMES = catalog.names("recipes")
# Largest error of the step time, and of the median, by kind. Tuned recipes of NVIDIA's containers;
# rows of papers, whose software and layers of stages are not published, in addition.
BOUNDS = {"dense": (0.145, 0.08), "moe": (0.24, 0.10), "paper": (0.20, 0.05)}
EXAMPLE = {
    "name": "mine",
    "model": "llama3-8b",
    "system": "h100-sxm",
    "strategy": {"gpus": 8, "gbs": 16, "seq_len": 4096},
    "measured": {"tokens_per_s_per_gpu": 8192},
    "source": {"title": "a page", "ref": "page.example"},
}


def kind_of(recipe):
    """Kind of a recipe in `BOUNDS`."""
    if "arXiv" in recipe.source.ref:
        return "paper"
    return "moe" if Model.load(recipe.model).has_experts else "dense"


@pytest.fixture(scope="module")
def estimates():
    """All recipes with their estimates, by name."""
    return {one.name: one for one in map(estimate_recipe, recipes())}


def test_at_least_32_tuned_recipes_from_h100_to_gb300():
    """Dense models and mixtures of experts, each on several accelerators."""
    tuned = [recipe for recipe in recipes() if kind_of(recipe) != "paper"]
    assert len(tuned) >= 32
    machines = {"h100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72"}
    assert {r.system for r in tuned if kind_of(r) == "moe"} == machines
    assert len({r.system for r in tuned if kind_of(r) == "dense"}) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_files_are_plain_and_complete(name):
    """The name is that of the file; model, system and stack are of the catalog; no dp is fixed."""
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.model in catalog.names("models")
    assert recipe.system in catalog.names("systems")
    assert recipe.source.title
    assert recipe.source.ref
    assert recipe.description
    assert {"gpus", "global_batch_size", "zero", "stack"} <= recipe.fields().keys()
    assert Recipe.load(recipe.to_dict()) == recipe


def test_every_recipe_fits_its_machine(estimates):
    """They were run on it."""
    assert [name for name, one in estimates.items() if not one.estimate.fits] == []


def test_every_recipe_obeys_its_launcher(estimates):
    """By rules read in the sources of the launchers, which ours do not share."""
    faults = {
        name: launch_faults(Model.load(one.recipe["model"]), one.estimate.strategy)
        for name, one in estimates.items()
    }
    assert {name: found for name, found in faults.items() if found} == {}


def test_mixtures_of_experts_name_their_dispatcher():
    """Where experts are on several accelerators; no other recipe has one."""
    for recipe in recipes():
        sends = Model.load(recipe.model).has_experts and recipe.strategy.ep > 1
        assert ("dispatcher" in recipe.fields()) == sends


@pytest.mark.parametrize("kind", BOUNDS)
def test_step_times_are_near_the_measured_ones(estimates, kind):
    """Each within the bound of its kind, and the median within the tighter one."""
    errors = {r.name: estimates[r.name].error for r in recipes() if kind_of(r) == kind}
    largest, median = BOUNDS[kind]
    assert {name: error for name, error in errors.items() if abs(error) > largest} == {}
    assert statistics.median(map(abs, errors.values())) <= median


def test_deepseek_v3_fits_and_trains_as_fast_as_reported(estimates):
    """Its 2,048 H800 did 14.8T tokens in 2.664M hours: 1,543 tokens/s each, within 8 %."""
    one = estimates["deepseek-v3-h800-2048"]
    assert one.measured_tokens_per_s_per_gpu == pytest.approx(14.8e12 / (2.664e6 * 3600), rel=1e-3)
    assert one.estimate.fits
    assert one.estimate.tokens_per_s_per_gpu == pytest.approx(1543, rel=0.08)


def test_measured_values_are_converted_by_hand():
    """16 x 4,096 tokens on 8 GPUs: 1 s at 8,192 tokens/s; as FLOP/s, 6 N and attention."""
    recipe = Recipe.load(EXAMPLE)
    result = estimate(recipe.model, recipe.system, recipe.strategy)
    assert measured_step_time_s(recipe, result) == 1.0
    parameters = 8_030_261_248 - 128_256 * 4096  # without the input embedding
    attention = 32 * 12 * 4096 * 4096 / 2  # layers x 12 x width x keys, half of them causal
    for convention, seen in (("causal", attention), ("full-attention", 2 * attention)):
        flops = (6 * parameters + seen) * 8192
        measured = {"model_tflops_per_gpu": flops / 1e12, "flops_convention": convention}
        as_flops = Recipe.load(EXAMPLE | {"measured": measured})
        assert measured_step_time_s(as_flops, result) == pytest.approx(1.0, rel=1e-4)
    printed = Recipe.load(EXAMPLE | {"measured": EXAMPLE["measured"] | {"step_time_s": 3}})
    assert measured_step_time_s(printed, result) == 3.0


def test_the_error_is_signed():
    """Estimated over measured, less one; the rate is that of the measured step."""
    one = estimate_recipe(Recipe.load(EXAMPLE))
    assert one.error == pytest.approx(one.estimate.step_time_s / 1.0 - 1)
    assert one.measured_tokens_per_s_per_gpu == pytest.approx(8192)
    slow = Recipe.load(EXAMPLE | {"measured": {"step_time_s": one.estimate.step_time_s / 2}})
    assert estimate_recipe(slow).error == pytest.approx(1.0)


def test_the_question_of_a_recipe_leaves_the_layout_open():
    """What is trained and with what stays; degrees, recompute and schedule do not."""
    recipe = Recipe.load("deepseek-v3-b200-256-mxfp8")
    assert set(recipe.question()) == {
        "gpus",
        "global_batch_size",
        "quantization",
        "quantized_weights",
        "stack",
    }
    assert {"pp", "ep", "recompute", "stage_layers"} <= recipe.fields().keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measured": {}}, "needs step_time_s, tokens_per_s_per_gpu or model_tflops_per_gpu"),
        ({"measured": {"step_time_s": 0}}, "greater than 0"),
        ({"strategy": {"gpus": 8}}, "strategy.global_batch_size is missing"),
        ({"strategy": {"gpus": 8, "gbs": 8, "zeroo": 2}}, "unknown key; did you mean 'zero'"),
        ({"source": {"title": "a page"}}, "source.ref: is missing"),
        ({"mesured": {}}, "unknown key; did you mean 'measured'"),
    ],
)
def test_faults_of_files_name_the_field(change, message):
    """One clear line."""
    with pytest.raises(InputError, match=message):
        Recipe.load(EXAMPLE | change)


def test_an_unknown_name_gets_a_suggestion(capsys):
    """As for every folder of the catalog."""
    assert run(["estimate", "--recipe", "llama3-8b-h100-8-bf61"]) == 2
    assert "did you mean 'llama3-8b-h100-8-bf16'" in capsys.readouterr().err


def test_part_of_a_name_lists_the_recipes_that_contain_it(capsys):
    """In any case; of a name that no recipe contains, an error says how to list all."""
    assert run(["recipes", "Kimi", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [n for n in NAMES if "kimi" in n]
    assert run(["recipes", "llama9"]) == 2
    error = "error: recipe: 'llama9': no such recipe; to list them: shardwise recipes\n"
    assert capsys.readouterr().err == error


def test_the_list_and_one_recipe(capsys, estimates, monkeypatch):
    """Tables for people, everything as JSON."""
    known = lambda recipe: estimates[getattr(recipe, "name", recipe)]  # noqa: E731
    monkeypatch.setattr("shardwise.planning.recipes.estimate_recipe", known)
    assert run(["recipes"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in NAMES)
    assert run(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == NAMES
    name = "llama3-70b-h100-64-bf16"
    assert run(["recipes", name]) == 0
    text = capsys.readouterr().out
    assert "measured 14.7 s" in " ".join(text.split()).replace("step 14.7", "measured 14.7")
    assert "dgxc-benchmarking" in text
    assert run(["recipes", name, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["measured_step_time_s"] == 14.66
    assert one["recipe"]["strategy"]["cp"] == 2
    assert one["error"] == listed[name]["error"]
    assert one["estimate"]["strategy"]["dp"] == 2


def estimated(capsys, *arguments):
    """Exit code and JSON of `estimate`."""
    code = run(["estimate", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_estimate_takes_a_recipe_and_flags_override_it(capsys):
    """The plain recipe is next to the measured step; a changed one says what was changed."""
    name = "llama3-70b-h100-64-bf16"
    code, plain = estimated(capsys, "--recipe", name)
    assert code == 0
    assert plain["step_time_s"] == estimate_recipe(name).estimate.step_time_s
    assert plain["recipe"]["error"] == pytest.approx(plain["step_time_s"] / 14.66 - 1)
    same = estimated(capsys, "llama3-70b", "h100_sxm", "--recipe", name)[1]
    assert same == plain
    code, changed = estimated(capsys, "--recipe", name, "--gpus", "128", "--gbs", "256")
    assert code == 0
    assert changed["strategy"]["dp"] == 4
    assert changed["recipe"] == {"name": name, "changed": ["global_batch_size", "gpus"]}


def test_fields_that_follow_from_a_flag_are_left_out_aloud(capsys):
    """Stages of another pp and parts of another recompute make no sense."""
    name = "deepseek-v3-h100-1024-bf16"
    changed = ["--pp", "8", "--recompute", "full", "--any-software"]
    assert run(["estimate", "--recipe", name, *changed, "--json"]) == 0
    out = capsys.readouterr()
    left_out = ("first_stage_layers", "last_stage_layers", "recompute_parts")
    said = [line.split(" of recipe")[0] for line in out.err.splitlines()[:3]]
    assert said == [f"note: {field}" for field in left_out]
    strategy = json.loads(out.out)["strategy"]
    assert strategy["pp"] == 8
    assert strategy["first_stage_layers"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["estimate"], "Missing argument 'MODEL'"),
        (["search", "--gpus", "8"], "Missing argument 'MODEL'"),
        (["sweep"], "Missing argument 'MODEL'"),
        (["sweep", "llama3-8b"], "Missing argument SYSTEM"),
        (["estimate", "llama3-8b", "--recipe", "NAME"], "is of model llama3-70b"),
        (["search", "llama3-70b", "b200-sxm", "--recipe", "NAME"], "is of system h100-sxm"),
        (["estimate", "--recipe", "NAME", "--strategy", "a.yaml"], "strategy"),
        (["search", "--recipe", "NAME", "--reference", "calculon"], "recipe"),
    ],
)
def test_contradictions_are_one_line(capsys, arguments, message):
    """Another model, another system, another strategy, or none."""
    words = [word.replace("NAME", "llama3-70b-h100-64-bf16") for word in arguments]
    assert run(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_search_takes_the_question_of_a_recipe(capsys):
    """GPUs, batch, types and software; flags and --fix override and narrow it."""
    name = "llama3-8b-b200-8-mxfp8"
    narrow = ["--fix", "tp=1,pp=1,zero=1,recompute=none", "--gbs", "64", "--json"]
    assert run(["search", "--recipe", name, *narrow]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["best"][0]["strategy"]
    recipe = Recipe.load(name)
    fields = {"tp": 1, "pp": 1, "zero": 1, "recompute": "none", "global_batch_size": 64}
    in_python = search(recipe.model, recipe.system, recipe.question() | fields)
    assert in_python.best[0].step_time_s == found["best"][0]["step_time_s"]
    assert best["quantization"] == "mxfp8"
    changed = {"cuda_graphs": "full", "released": "2025-11"}
    assert best["stack"] == {"base": "megatron-bridge-2025"} | changed
    assert best["global_batch_size"] == 64


def test_sweep_varies_a_recipe(capsys):
    """Fixed, the strategy of the recipe; a varied field is not fixed by it."""
    arguments = ["--recipe", "llama3-8b-b200-8-mxfp8", "--fixed", "--vary", "gpus=8,16", "--json"]
    assert run(["sweep", *arguments]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    steps = [point["best"][0]["step_time_s"] for point in points]
    assert steps[0] == estimate_recipe("llama3-8b-b200-8-mxfp8").estimate.step_time_s
    assert steps[1] < 0.6 * steps[0]


def test_machines_of_recipes_have_the_memory_that_they_need(estimates):
    """The estimate's capacity is that of the system of the recipe."""
    for one in estimates.values():
        system = System.load(one.recipe["system"])
        assert one.estimate.memory_bytes.capacity == system.accelerator.memory[0].capacity


def test_a_recipe_of_the_user_works_in_every_verb(capsys, tmp_path, monkeypatch):
    """Its own files are found next to it; other verbs say what the file is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    Model.load("llama3-8b").to_file("own/small.yaml")
    System.load("h100-sxm").to_file("own/gpus.yaml")
    (tmp_path / "own" / "runtime.yaml").write_text("name: runtime\nbase: megatron-core-2025\n")
    files = {"model": "small.yaml", "system": "gpus.yaml"}
    strategy = EXAMPLE["strategy"] | {"stack": "runtime.yaml"}
    write_mapping("own/mine.yaml", EXAMPLE | files | {"strategy": strategy})
    figures = []
    fix = ["--top", "1", *(f"--fix={axis}=1" for axis in ("tp", "pp", "cp", "micro_batch_size"))]
    for words in (["recipes"], ["estimate", "--recipe"], ["search", *fix, "--recipe"]):
        assert run([*words, "own/mine.yaml", "--json"]) in (0, 1)
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["estimate"]["step_time_s"] == figures[1]["step_time_s"]
    assert figures[1]["recipe"]["name"] == figures[0]["recipe"]["name"] == "mine"
    assert figures[2]["best"][0]["strategy"]["global_batch_size"] == 16
    assert run(["estimate", "own/mine.yaml", "h100-sxm"]) == 2
    assert "own/mine.yaml: is a recipe: set it with --recipe" in capsys.readouterr().err


CONFIGS = [kind for kind in SCHEMAS.values() if issubclass(kind, ConfigBase)]


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_a_file_of_any_kind_is_read_or_refused_as_any_other(kind, tmp_path):
    """No config type is missing in a table of those whose files are recognized."""
    held = [Model.load("llama3-8b"), System.load("h100-sxm"), Stack.load("nemo-2025")]
    held += [
        Recipe.load(EXAMPLE),
        Reliability(accelerator_mtbf="1 d", checkpoint_time="1 s", restart_time="1 s"),
        Strategy.load({"gpus": 8, "gbs": 8}),
    ]
    for one in held:
        path = tmp_path / f"{type(one).__name__}.yaml"
        write_mapping(path, one.to_dict())
        if isinstance(one, kind):
            assert isinstance(kind.load(path), kind)
        else:
            with pytest.raises(InputError):
                kind.load(path)
