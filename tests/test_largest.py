"""The largest model that fits: its shape, that nothing larger fits, and its best strategy."""

import json

import polars as pl
import pytest
import yaml

from remembered import remembered
from rows import each_row, first_of
from shardwise import InputError, Model, System, search
from shardwise.config.stack import Stack
from shardwise.ops.param_count import count_parameters
from shardwise.planning.search.largest_model import (
    calculon_shapes,
    depths,
    gpt_model,
    largest_model,
    widths,
)
from written import record_of

pytestmark = pytest.mark.any_software

GIB = 2.0**30
# Hidden and layers of the models of arXiv 2104.04473, table 1.
SCALED_UP = [
    (2304, 24),
    (3072, 30),
    (4096, 36),
    (6144, 40),
    (8192, 48),
    (10240, 60),
    (12288, 80),
    (16384, 96),
    (20480, 105),
    (25600, 128),
]
HERE = {f"offload_{part}": False for part in ("weights", "activations", "optimizer")}
# What decides whether anything fits: enough where the best strategy is not looked at.
FEW = {
    "placement": "tp-cp-dp-pp",
    "cp": 1,
    "stage_layers": "none",
    "tp_overlap": "stack",
    "dp_overlap": True,
    "fused_activation": False,
    "vpp": 1,
    "mbs": 1,
}
# Where the strategies do not matter at all.
ONE = HERE | FEW | {"recompute": "full", "zero": 0}


@pytest.fixture(scope="module", autouse=True)
def _once():
    """The same command is answered once, whatever it prints."""
    with remembered("shardwise.planning.search.largest_model.largest_model"):
        yield


def line(hidden):
    """Layers that the published models scatter around."""
    return 128 * (hidden / 25600) ** 0.7


def first(count):
    """The first numbers of heads."""
    several = widths()
    return [next(several) for _ in range(count)]


@each_row(("hidden", "layers"), SCALED_UP)
def test_published_models_lie_within_a_fifth_of_the_line(hidden, layers):
    """The proportions are those of models that were trained."""
    assert abs(layers / line(hidden) - 1) <= 0.2


def test_shapes_lie_within_a_fifth_of_the_line():
    """Whatever the width, some depths do, and none beyond."""
    for heads in first(60):
        found = depths(heads)
        assert found == sorted(set(found))
        assert found
        assert all(abs(layers / line(128 * heads) - 1) <= 0.2 for layers in found)


def test_heads_and_layers_are_rich_in_divisors():
    """4 to 7 and 8 to 15 times a power of two, with none left out."""
    assert first(15) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28]
    assert depths(96) == [64, 72, 80, 88]
    assert depths(192) == [104, 112, 120, 128, 144]


def test_a_shape_of_gpt3s_width_has_its_parameters():
    """96 heads of 128 and 96 layers are GPT-3, but for the vocabulary."""
    ours, published = gpt_model(96, 96, 2048), Model.load("gpt3-175b")
    more = (ours.vocab - published.vocab) * 12288
    assert count_parameters(ours).total == count_parameters(published).total + more


@pytest.mark.parametrize(
    ("system", "gpus", "batches", "seq_len", "capacity", "fields"),
    first_of(
        1,
        [
            ("h100-sxm", 2, 1, 333, 8, {"tp_exchange": "p2p_rs_ag"}),
            ("calculon-h100-80g-nvl8", 2, 2, 1024, 6, {"training": False}),
            ("a100-40gb-pcie", 1, 1, 1024, 9, {}),
            ("calculon-h100-80g-nvl8", 3, 1, 333, 0.25, {"stack": "calculon"}),
            ("h100-sxm", 6, 2, 333, 9, {}),
            ("a100-40gb-pcie", 3, 1, 1024, 6, {"recompute": "none"}),
            ("a100-40gb-pcie", 4, 2, 1024, 9, {"schedule": "interleaved"}),
            ("calculon-h100-80g-nvl8", 4, 1, 1024, 4, {"stack": "calculon", "batch": "largest"}),
        ],
    ),
)
def test_a_shape_fits_if_a_search_of_the_whole_space_finds_something(
    system, gpus, batches, seq_len, capacity, fields
):
    """Micro-batches, chunks, overlaps and placements that are left out make nothing fit.

    Where nothing fits, the least lack of all strategies is the lack that is fields_set.
    """
    space = HERE | fields | {"gbs": gpus * batches, "seq_len": seq_len, "dtype": "fp16"}
    space |= {"scope": "full", "any_software": True}
    memory = {"max_memory": f"{capacity} GiB"}

    def whole(model):
        return search(model, system, space | {"gpus": gpus}, top=1, fits=None, **memory)

    try:
        found = largest_model(system, space=space, gpus=gpus, count=2, **memory)
    except InputError:  # nothing is legal
        assert whole(gpt_model(8, 12, seq_len)).evaluated == 0
        return
    for shape in found.ladder:
        every = whole(gpt_model(shape.heads, shape.layers, seq_len))
        assert shape.fits == (every.feasible > 0)
        if every.nearest is not None:
            assert shape.spare_bytes == -every.nearest.excess_bytes


def test_the_best_strategy_is_the_best_of_the_whole_space():
    """Degrees with which nothing fits are left out of the search; the answer is the same."""
    few = {"mbs": 1, "placement": "tp-cp-dp-pp", "tp_overlap": "stack"}
    found = largest_model("h100-sxm", gpus=4, seq_len=512, count=1, space=few)
    space = few | {"gpus": 4, "gbs": 4, "seq_len": 512, "scope": "full", "any_software": True}
    asked = {"top": 1, "all_variants": True, "fits": None}
    whole = search(Model.validated(found.model), "h100-sxm", space, **asked)
    assert found.best.strategy == whole.best[0].strategy
    assert found.best.step_time_s == whole.best[0].step_time_s
    assert found.candidates <= whole.candidates


@pytest.mark.nightly
def test_nothing_larger_fits():
    """Of all shapes up to those that are twice as large, it is the largest that fits."""
    memory = {"max_memory": "5 GiB"}
    found = largest_model("h100-sxm", gpus=2, space=HERE | FEW, seq_len=512, count=1, **memory)
    beyond = [
        model
        for heads in first(12)
        for model in (gpt_model(heads, layers, 512) for layers in depths(heads))
        if found.largest.parameters < count_parameters(model).total < 2 * found.largest.parameters
    ]
    assert len(beyond) > 5
    for model in beyond:
        few = HERE | FEW | {"gpus": 2, "gbs": 2}
        fitting = search(model, "h100-sxm", few, fits=None, **memory)
        assert fitting.feasible == 0, model.name
    assert found.largest.fits


@pytest.mark.nightly
def test_a_larger_shape_may_fit_where_a_smaller_one_does_not():
    """Heads and layers have the better divisors for 28 GPUs: the search is not a bisection."""
    even = {"stage_layers": "none", "first_stage_layers": "none", "last_stage_layers": "none"}
    even |= {"embedding_as_layer": False, "loss_as_layer": False}
    space = FEW | even | {"recompute": "full", "zero": 1}
    ladder = largest_model("a100-40gb-pcie", gpus=28, space=space, count=7).ladder
    fits = [shape.fits for shape in ladder]
    assert fits != sorted(fits, reverse=True)
    assert [shape.heads for shape in ladder if shape.fits][-1] == 112


def test_the_ladder_is_sorted_around_the_limit():
    """Smaller shapes, the largest that fits, and as many beyond it."""
    found = largest_model("h100-sxm", gpus=1, space=ONE, count=6)
    sizes = [shape.parameters for shape in found.ladder]
    assert len(sizes) == 6
    assert sizes == sorted(sizes)
    assert found.ladder[2] == found.largest
    assert not any(shape.fits for shape in found.ladder[3:])
    assert len(largest_model("h100-sxm", gpus=1, space=ONE, count=1).ladder) == 1


def test_spare_room_is_that_of_the_roomiest_strategy():
    """What an estimate of it leaves of the accelerator's memory."""
    found = largest_model("h100-sxm", gpus=8, space=HERE | FEW, reserve="10 GiB", count=1)
    shape = found.largest
    space = {n: v for n, v in shape.roomiest.items() if n not in ("sequence_parallel", "stack")}
    (best,) = search(Model.validated(found.model), "h100-sxm", space, fits=None).best
    assert shape.spare_bytes == found.capacity_bytes - best.memory_bytes.reserved
    assert found.capacity_bytes == best.memory_bytes.capacity - 10 * GIB
    assert shape.tightest_tier == "hbm"
    assert found.best.memory_bytes.reserved <= found.capacity_bytes


@pytest.mark.nightly
def test_less_memory_never_fits_a_larger_model():
    """The largest model grows with what may be used, of either tier."""
    few = {"space": FEW | HERE, "gpus": 1, "count": 1}
    sizes = [
        largest_model("h100-sxm", max_memory=f"{size} GiB", **few).largest.parameters
        for size in (10, 30, 80)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    system = System.load("h100-sxm").to_dict()
    system["accelerator"]["memory"][1]["host"]["reserved"] = 0
    few["space"] |= {"offload_optimizer": True}
    found = []
    for size in (20, 100):
        system["accelerator"]["memory"][1]["capacity"] = f"{size} GiB"
        found.append(largest_model(System.load(system), **few))
    assert [one.second_capacity_bytes for one in found] == [20 * GIB, 100 * GIB]
    assert found[0].largest.parameters < sizes[-1] < found[1].largest.parameters


def test_the_tier_that_is_too_small_is_named():
    """With little memory beside the accelerator, that is what a larger model lacks."""
    system = System.load("h100-sxm").to_dict()
    system["accelerator"]["memory"][1]["capacity"] = "40 GiB"
    always = {f"offload_{part}": True for part in ("weights", "activations", "optimizer")}
    found = largest_model(System.load(system), gpus=1, space=ONE | always, count=2)
    assert found.ladder[-1].tightest_tier == "host"
    assert found.ladder[-1].spare_bytes < 0


def test_a_space_gives_batch_and_length():
    """What is not given beside it is taken from the space, then from the defaults."""
    few = {"gpus": 2, "count": 1, "max_memory": "20 GiB"}
    fields_set = ONE | {"gbs": 12, "seq_len": 4096}
    found = largest_model("h100-sxm", space=fields_set, **few)
    assert (found.global_batch_size, found.seq_len) == (12, 4096)
    assert found.best.strategy["global_batch_size"] == 12
    assert found.model["seq_len"] == 4096
    found = largest_model("h100-sxm", space=ONE | {"seq_len": 4096}, **few)
    assert (found.global_batch_size, found.seq_len) == (2, 4096)


def test_the_verb_prints_the_ladder_and_writes_the_model(shardwise, tmp_path):
    """A table for people, JSON for scripts, and a model to go on with."""
    path = tmp_path / "largest.yaml"
    space = tmp_path / "space.yaml"
    space.write_text(yaml.safe_dump(FEW | {"recompute": "full", "zero": 0}), encoding="utf-8")
    words = ("models", "--largest-for", "h100-sxm", "--gpus", 1, "--count", 2, "--space", space)
    code, out, err = shardwise(*words)
    assert (code, err) == (0, "")
    found = largest_model("h100-sxm", gpus=1, count=2, space=space)
    for fit in (found, found.practical):
        assert all(shape.name in out for shape in fit.ladder)
        assert f"MFU {100 * fit.best.mfu:.1f} %" in out
    _, out, _ = shardwise(*words, "--json", "--output", path)
    assert record_of(out) | {"elapsed_s": 0} == found.to_dict() | {"elapsed_s": 0}
    assert count_parameters(Model.load(path)).total == found.practical.largest.parameters


@pytest.mark.nightly
def test_the_practical_answer_is_that_of_its_own_space():
    """TP within the domain, nothing offloaded: what a search finds by default, below the limit."""
    few = FEW | {"recompute": "full", "zero": [0, 1]}
    found = largest_model("h100-sxm", gpus=16, seq_len=1024, count=2, space=few)
    practical = found.practical
    for shape in practical.ladder:
        model = gpt_model(shape.heads, shape.layers, 1024)
        every = search(model, "h100-sxm", HERE | few, gpus=16, gbs=16, top=1, fits=None)
        assert shape.fits == (every.feasible > 0)
        assert shape.roomiest["tp"] <= 8
        assert not shape.roomiest["offload_weights"]
    assert practical.best.fits
    assert practical.best.strategy["tp"] <= 8
    assert practical.largest.parameters < found.largest.parameters
    assert not practical.ladder[-1].fits
    assert found.best.strategy["offload_weights"]


def test_what_the_space_sets_is_the_same_for_both_answers():
    """A practical answer offloads where it is asked to, and a fixed tp may cross domains."""
    asked = {"offload_optimizer": True, "tp": 16, "any_software": True}
    found = largest_model("h100-sxm", gpus=16, space=FEW | asked, count=1)
    for fit in (found, found.practical):
        assert fit.best.strategy["offload_optimizer"]
        assert fit.best.strategy["tp"] == 16
    assert not found.practical.best.strategy["offload_weights"]
    only = HERE | FEW | {"tp": 1, "pp": 1, "tp_exchange": "rs_ag", "tp_regather": True}
    only |= {"scope": "full", "any_software": True}
    found = largest_model("h100-sxm", gpus=2, space=only, count=1)
    assert found.practical.largest == found.largest
    assert found.practical.best.strategy == found.best.strategy


def test_nothing_practical_fits_is_said_next_to_the_limit(shardwise, tmp_path):
    """The limit stands, the model of the limit is written, and the exit code is 0."""
    path = tmp_path / "largest.yaml"
    space = tmp_path / "space.yaml"
    space.write_text("tp: 64\nvpp: 1\nmbs: 1\ntp_overlap: stack\nplacement: tp-cp-dp-pp\n")
    scale = ("--gpus", 64, "--gbs", 64, "--seq-len", 2048, "--count", 1)
    words = ("models", "--largest-for", "h100-sxm", "--shapes", "calculon", *scale)
    words = (*words, "--space", space)
    code, out, _ = shardwise(*words)
    assert code == 0
    assert "practical: none of these shapes fits" in out
    assert "limit:     gpt-24576x128" in out
    code, _, err = shardwise(*words, "--output", path)
    assert code == 0
    assert "fits the limit only, not in practice" in err
    assert path.exists()


def test_no_model_fits_is_an_answer(shardwise):
    """Exit code 1, with the smallest shapes and what they lack."""
    few = ("--max-memory", "10 MiB", "--count", 3)
    words = ("models", "--largest-for", "h100-sxm", "--gpus", 1, *few)
    code, out, _ = shardwise(*words)
    assert code == 1
    assert "none of these shapes fits on 1 x h100-sxm" in out
    assert "gpt-128x3" in out
    code, out, _ = shardwise(*words, "--json")
    record = json.loads(out)
    assert (code, record["largest"], record["best"], record["model"]) == (1, None, None, None)
    assert all(shape["spare_bytes"] < 0 for shape in record["ladder"])


@each_row(
    ("words", "fields_set"),
    [
        ((), "--gpus is missing: number of GPUs"),
        (("--gpus", "8..16", "--gbs", 8), "--gpus: has several values"),
        (("--gpus", "x"), "--gpus: 'x': must be a whole number"),
        (("--gpus", 8, "--gbs", 0), "--gbs: '0': must be at least 1"),
        (("--gpus", 8, "--seq-len", "1k"), "--seq-len: '1k': must be a whole number"),
        (("--gpus", 8, "--reserve", "90 GiB"), "reserve: '90 GiB': leaves nothing"),
        (("--gpus", 8, "--space", "none.yaml"), "none.yaml: no such file"),
        (("--gpus", 8, "--output", "x.csv"), "x.csv: cannot be written; allowed endings"),
        (("llama3-8b", "--gpus", 8), "name: 'llama3-8b': has no effect with --largest-for"),
        (("--gpus", 8, "--shapes", "calculom"), "shapes: 'calculom': allowed: gpt, calculon; did"),
        (("--gpus", 8, "--dtype", "fp99"), "dtype: 'fp99': allowed: bf16, fp16, fp32"),
    ],
)
def test_bad_input_is_one_line(shardwise, words, fields_set):
    """Each fault names the flag and what is allowed."""
    code, out, err = shardwise("models", *words, "--largest-for", "h100-sxm")
    assert (code, out) == (2, "")
    assert fields_set in err
    assert err.count("\n") == 1


def test_a_space_without_a_legal_strategy_says_why(shardwise):
    """No model of any size has one: the message names the rule, not that nothing fits."""
    few = ("--max-memory", "100 MiB", "--count", 1, "--dtype", "bf16")
    code, _, err = shardwise("models", "--largest-for", "v100-sxm-16gb", "--gpus", 1, *few)
    assert code == 2
    assert "dtype: 'bf16'" in err
    assert "has no matrix rate for it; allowed: fp16, fp32" in err
    with pytest.raises(InputError, match="is empty: none of its degrees and chunks use exactly 4"):
        largest_model("h100-sxm", gpus=4, space={"tp": 3})


def test_a_system_without_bf16_uses_its_own_type(shardwise):
    """With a note, as if it had been set; one with bf16 says nothing."""
    few = {"gpus": 1, "count": 1, "max_memory": "100 MiB", "space": ONE}
    found = largest_model("v100-sxm-16gb", **few)
    assert found.space["dtype"] == ("fp16",)
    assert found.notes == ("dtype fp16: v100-sxm-16gb has no matrix rate for bf16",)
    fields_set = largest_model("v100-sxm-16gb", dtype="fp16", **few)
    assert fields_set.notes == largest_model("h100-sxm", **few).notes == ()
    assert fields_set.ladder == found.ladder
    words = ("--gpus", 1, "--count", 1, "--max-memory", "100 MiB")
    code, out, err = shardwise("models", "--largest-for", "calculon-a100-80g", *words)
    assert (code, err) == (1, "")  # nothing fits, in its type
    assert "dtype fp16: calculon-a100-80g has no matrix rate for bf16" in out


def test_the_shapes_of_calculons_study_are_the_closest_to_its_ratios():
    """As its script finds them: of all widths, the least relative distance; 0.9 to 268 trillion."""
    for step, (hidden, heads, layers) in enumerate(calculon_shapes()):
        assert layers == heads == 128 + 32 * step
        ratio = 192 + (320 - 192) / 12 * step
        widths_tried = range(24 * 1024, 192 * 1024 + 1, 1024)
        closest = min(widths_tried, key=lambda wide: abs(wide / layers / ratio - 1))
        assert hidden == closest
    assert len(calculon_shapes()) == 15
    assert calculon_shapes()[-1][0] == 192 * 1024


def test_the_largest_of_calculons_shapes_trains_on_its_tokens():
    """Its sequences and batch unless set; heads need not be as wide as the model."""
    words = {"space": FEW, "tp": [16, 32], "recompute": "full", "count": 2}
    found = largest_model("calculon-h100-80g-nvl8", gpus=512, shapes="calculon", **words)
    assert (found.seq_len, found.global_batch_size) == (8192, 3072)
    assert all(shape.layers == shape.heads for shape in found.ladder)
    model = Model.validated(found.model)
    layers = model.depth
    assert model.layers[0].attention.head_dim == round(model.hidden / layers)
    products = 12 * layers * model.hidden**2
    assert count_parameters(model).total == pytest.approx(products, rel=0.01)


def test_flags_need_the_search_that_they_are_for(shardwise):
    """Without --largest-for they would do nothing."""
    code, _, err = shardwise("models", "--gpus", 8, "--count", 3)
    assert code == 2
    assert "gpus: '8': needs --largest-for SYSTEM" in err
    assert "count: '3': needs --largest-for SYSTEM" in err


@each_row("shapes", ["calculom", 5, None, ["gpt"]])
def test_shapes_are_one_of_the_families(shapes):
    """Whatever the type."""
    with pytest.raises(InputError, match=r"shapes: .*allowed: gpt, calculon"):
        largest_model("h100-sxm", gpus=8, shapes=shapes)


@each_row("count", [0, True, 2.5])
def test_the_number_of_shapes_is_a_whole_number(count):
    """At least one."""
    with pytest.raises(InputError, match=r"count: .*must be a whole number from 1"):
        largest_model("h100-sxm", gpus=8, count=count)


def test_a_choice_that_breaks_a_rule_makes_nothing_fit():
    """Where there is no second memory tier, asking for offload to it changes nothing."""
    system = System.load("h100-sxm").to_dict()
    del system["accelerator"]["memory"][1]
    tried, never = (
        largest_model(
            System.load(system), gpus=1, space=ONE | {"offload_optimizer": values}, count=2
        )
        for values in ("all", False)
    )
    assert tried.ladder == never.ladder
    assert tried.second_capacity_bytes == 0


@each_row(
    ("differs", "fields", "factor"),
    [
        ("frozen_weights: nf4", {"lora_rank": 4}, 2.0),
        ("update_in_backward: true\nmaster_weights: false", {"optimizer": "sgd"}, 2.0),
    ],
)
def test_software_that_needs_less_memory_fits_larger_models(tmp_path, differs, fields, factor):
    """The bound from which the search descends knows 4-bit weights and early updates."""
    stacks = []
    for name, more in (("usual", ""), ("small", differs)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: {name}\nbase: megatron-core-2025\n{more}\n")
        stacks.append(Stack.load(path))
    usual, small = (
        largest_model(
            "h100-sxm",
            gpus=1,
            space=HERE | FEW | fields | {"stack": stack, "recompute": "full", "zero": 0},
            seq_len=512,
            count=1,
            max_memory="10 GiB",
        ).largest.parameters
        for stack in stacks
    )
    assert small > factor * usual


def test_the_shapes_of_calculon_are_listed_without_a_system(shardwise, tmp_path):
    """Rows of its find_huge: width, heads and depth; the ratio grows from 192 by 32/3 a step."""
    path = tmp_path / "huge.csv"
    assert shardwise("models", "--shapes", "calculon", "-o", path)[:2] == (0, "")
    found = pl.read_csv(path)
    assert found.height == 15
    assert found.row(0, named=True)["hidden"] == 24_576
    assert found.row(14)[2:6] == (576, 196_608, 576, 341)
    steps = [ratio - 192 - step * 32 / 3 for step, ratio in enumerate(found["ratio"])]
    assert max(map(abs, steps)) < 512 / 128  # half a step of the width over the least depth
    assert "gpt-196608x576" in shardwise("models", "--shapes", "calculon")[1]
    assert "needs --largest-for" in shardwise("models", "--shapes", "gpt")[2]
