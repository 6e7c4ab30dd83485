"""The script that compares recipes with the best plans of the search."""

import importlib.util
from pathlib import Path

import pytest

from shardwise import Recipe, estimate, search
from shardwise.planning.search.query import load_space

SCRIPT = Path(__file__).parent.parent / "scripts" / "recipes_table.py"
NARROW = {"vpp": 1, "micro_batch_size": [1, 2], "zero": [0, 1], "placement": "tp-cp-dp-pp"}
NARROW |= {"offload_weights": False, "offload_activations": False, "offload_optimizer": False}
NARROW |= {"tp_overlap": "stack", "dp_overlap": True, "fused_activation": False}


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("recipes_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own(**strategy):
    """A recipe of one server."""
    fields = {"gpus": 8, "gbs": 64, "seq_len": 4096, "stack": "nemo-2025"} | strategy
    return Recipe.load(
        {
            "name": "mine",
            "model": "llama3-8b",
            "system": "h100-sxm",
            "strategy": fields,
            "measured": {"step_time_s": 1},
            "source": {"title": "a page", "ref": "page.example"},
        }
    )


def test_a_recipe_in_the_space_is_no_faster_than_its_best(script):
    """The gap is the recipe's step over that of the search's best, which has the same batch."""
    recipe = own(tp=2, pp=2, zero=1)
    row = script.compare(recipe, narrowed=NARROW)
    assert row["outside"] == []
    assert row["complete"]
    fields = recipe.question() | NARROW
    best = search(recipe.model, recipe.system, fields).best[0]
    mine = estimate(recipe.model, recipe.system, recipe.strategy)
    assert row["best_s"] == best.step_time_s
    assert row["recipe_s"] == mine.step_time_s
    assert row["gap"] == pytest.approx(mine.step_time_s / best.step_time_s - 1)
    assert row["gap"] > 0.02


def test_a_recipe_outside_the_space_says_by_which_field(script):
    """ZeRO-3 is not tried here, and selective recompute has other parts."""
    recipe = own(zero=3, recompute="selective", recompute_parts=["mlp"])
    space = load_space(recipe.question() | NARROW, {})
    said = script.outside(recipe, space)
    assert {"zero 3", "recompute_parts mlp"} <= set(said)
    assert set(said) <= {"zero 3", "recompute_parts mlp", "recompute selective"}


def test_stages_with_both_ends_as_layers_are_those_with_a_layer_less(script):
    """30 layers over 4 stages of 8, ends counted, are 7+8+8+7, which the space tries."""
    fields = {"pp": 4, "embedding_as_layer": True, "loss_as_layer": True}
    assert script.in_counts(fields, 30) == {"pp": 4, "stage_layers": [7, 8, 8, 7]}
    assert script.in_counts(fields, 31) == fields
    assert script.in_counts({"pp": 4}, 30) == {"pp": 4}


def test_a_search_that_takes_too_long_is_stopped_and_marked(script):
    """At the first report of progress; what it found until then counts."""
    row = script.compare(own(zero=1), seconds=0.0, narrowed=NARROW | {"tp": "all", "pp": "all"})
    assert row["seconds"] < 5
    line = script.table([row | {"gap": 0.031, "complete": False, "best": "tp 8"}]).splitlines()[-1]
    assert line.startswith("| mine | yes | ")
    assert "| tp 8 (stopped) | " in line
    assert "| +3.1% | " in line
    assert line.endswith(f" | - | - | {row['seconds']:.1f} |")


def test_risks_of_a_plan_are_those_of_its_memory_and_launcher(script):
    """Natural routing needs more memory; Megatron-Bridge writes the plan, NeMo has no launcher."""
    fields = {"gpus": 8, "ep": 8, "micro_batch_size": 1, "gbs": 64, "seq_len": 4096}
    plan = estimate("qwen3-30b-a3b", "b200-sxm", fields, stack="megatron-bridge-2026")
    recipe = Recipe.load("qwen3-30b-a3b-b200-8-mxfp8")
    natural = estimate("qwen3-30b-a3b", "b200-sxm", {**plan.strategy, "expert_imbalance": 1.5})
    row = script.risks(recipe, plan)
    assert row["memory"] == plan.memory_bytes.reserved / plan.memory_bytes.capacity
    assert row["fits_natural"] == natural.fits
    assert row["export"] is True
    dense = estimate("llama3-8b", "h100-sxm", fields | {"ep": 1}, stack="nemo-2025")
    none = script.risks(own(), dense)
    assert (none["fits_natural"], none["export"]) == (None, None)


def test_the_page_has_one_place_for_the_table(script):
    """What stands around it stays."""
    page = script.PAGE.read_text(encoding="utf-8")
    renewed = script.with_table(page, "| new |")
    before, after = page.split(script.START)[0], page.split(script.END)[1]
    assert renewed.startswith(before)
    assert renewed.endswith(after)
    assert "| new |" in renewed
    with pytest.raises(SystemExit, match="has no lines"):
        script.with_table("nothing", "| new |")
