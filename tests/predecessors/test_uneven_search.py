"""Searches where the stages cannot share the layers evenly, and what other searches find."""

from math import ceil, inf, log2
from pathlib import Path
from typing import Any

import pytest

import shardwise
from rows import each_row
from shardwise import Estimate, InputError, Model, System, estimate, explain, export, search
from shardwise.config.plain import joined
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints.software import can_run
from shardwise.planning.search.explain import UserStrategy
from shardwise.planning.search.space import Space
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.reader import strategy_fields
from shardwise.report.charts.plans import value_word
from shardwise.report.tables.compare import in_words
from shardwise.report.tables.strategy_line import word
from uneven_splits import STAGES, legal_splits

STACKS = sorted(file.stem for file in Path(shardwise.__file__).parent.glob("catalog/stacks/*.yaml"))
MEANS = dict(zip(STAGES, (1, 1, True, True, (1,)), strict=True))
TURING, A100 = Model.load("turing-530b"), System.load("calculon-a100-80g")


def deep(depth: int) -> Model:
    """Turing NLG with another number of layers, and a head of its own."""
    layer = TURING.layers[0].model_copy(update={"count": depth})
    return TURING.model_copy(update={"layers": (layer,), "tied_embeddings": False})


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_that_can_spread_layers_unevenly_tries_it(name: str) -> None:
    """105 layers on 8 stages, 14 on the largest; stacks that cannot run it try none."""
    stack, system = Stack.load(name), A100.model_copy(update={"stack": name})
    has_means = can_run(stack, "pp", 8) and any(can_run(stack, n, v) for n, v in MEANS.items())
    found = legal_splits(deep(105), system, Space(), 8)
    assert bool(found) >= has_means
    assert {(len(layers), sum(layers), max(layers)) for layers in found} <= {(8, 105, 14)}


@each_row(
    ("depth", "pp", "vpp", "space", "layers"),
    [
        (61, 16, 1, {}, {(4 - n, *[4] * 14, 1 + n) for n in range(4)}),
        (61, 2, 1, {}, {(31, 30), (30, 31)}),
        (61, 16, 1, {"first_stage_layers": 3}, {(3, *[4] * 14, 2)}),
        (61, 16, 1, {"stage_layers": "none"}, {(4 - n, *[4] * 14, 1 + n) for n in range(4)}),
        (61, 16, 1, {"first_stage_layers": "none", "last_stage_layers": "none"}, set()),
        (105, 8, 7, {}, {(*[2] * 7, 1) * 7, (1, *[2] * 7) * 7}),
        (118, 8, 5, {}, {(2, *[3] * 38, 2)}),
        (118, 8, 5, {"loss_as_layer": False}, set()),
        (64, 8, 4, {}, {(2,) * 32}),
    ],
)
def test_stages_of_megatron_core(
    depth: int, pp: int, vpp: int, space: dict[str, Any], layers: set[tuple[int, ...]]
) -> None:
    """First and last stages of fewer layers, in whole chunks; embedding and loss as layers."""
    assert legal_splits(deep(depth), A100, Space.validated(space), pp, vpp).keys() == layers


def test_a_pipeline_that_does_not_divide_the_layers_is_found_explained_and_exported() -> None:
    """105 layers on 8 stages of 7 chunks: 18.8 s; without a pipeline it takes 32.3 s."""
    run = {"gpus": 4096, "gbs": 2048, "dtype": "fp16", "tp": 8, "zero": 1, "recompute": "none"}
    found = search(TURING, A100, run, top=1, fits=None)
    best = found.best[0]
    ends = {"first_stage_layers": 14, "last_stage_layers": 7}
    assert {name: best.strategy[name] for name in ends} == ends
    assert found.not_tried["stage_layers"] == ("balanced",)
    mine = explain(TURING, A100, run, {"tp": 8, "pp": 8, "vpp": 7})
    assert {change.field: change.value for change in mine.changes[-1].fields} == ends
    assert mine.changes[-1].plan.step_time_s == best.step_time_s
    assert {outside.field for outside in mine.outside} == ends.keys()
    script = export("megatron", TURING, A100, best.strategy)
    assert {name: script.read_back.estimate.strategy[name] for name in ends} == ends


# Models of Calculon, NERSC's perf-estimates and SimuMax on their systems, on two numbers of GPUs.
_OWNERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "calculon": (
        "fp16",
        ("a100-80g", "h100-80g-nvl8"),
        (
            *("palm-540b", "turing-530b", "megatron-126m", "megatron-5b", "megatron-22b"),
            *("megatron-40b", "megatron-1t", "gpt3-13b", "gpt3-175b", "anthropic-52b"),
            *("chinchilla", "lamda", "gopher-280b"),
        ),
    ),
    "nersc": ("fp16", ("a100", "b200"), ("gpt3-175b", "gpt3-1t", "vit-era5")),
    "simumax": (
        "bf16",
        ("a100-pcie", "b200"),
        (
            *("llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "deepseek-v2-lite"),
            *("mixtral-8x7b", "deepseek-v2", "deepseek-v3", "kimi-k2"),
        ),
    ),
}
_BYTES_OF_A_PARAMETER, _ROOM = 20, 60e9
CASES = [
    (owner, name if owner == "simumax" or name == "vit-era5" else f"{owner}-{name}", system, more)
    for owner, (_, systems, names) in _OWNERS.items()
    for name in names
    for system in systems
    for more in (1, 8)
]
# A depth that no pipeline divides, and one that many do.
DRAWN = {("calculon-turing-530b", "a100-80g", 8), ("llama3-8b", "b200", 1)}


@pytest.mark.parametrize(
    ("owner", "name", "of", "more"),
    [pytest.param(*c, marks=[] if c[1:] in DRAWN else pytest.mark.nightly) for c in CASES],
)
def test_no_other_search_finds_a_faster_plan_of_what_the_default_tries(
    owner: str, name: str, of: str, more: int
) -> None:
    """Whatever is faster has a value that the default search lists as not tried.

    Others are the search for balanced stages, the full scope, and the optimum of Calculon or NERSC
    with our stack. Only stages that share the layers evenly are not balanced.
    """
    model, system = Model.load(name), System.load(f"{owner}-{of}")
    needed = count_parameters(model).total * _BYTES_OF_A_PARAMETER / _ROOM
    gpus = more * max(8, 1 << max(0, ceil(log2(needed))))
    run = {"gpus": gpus, "gbs": gpus, "dtype": _OWNERS[owner][0]}
    found = search(model, system, run, top=1)
    wider = [{"stage_layers": "balanced"}, *([] if model.has_experts else [{"scope": "full"}])]
    rivals = [plan for one in wider for plan in search(model, system, run | one, top=1).best]
    rivals += optima(owner, model, system, run)
    least = found.best[0].step_time_s * (1 - 1e-9) if found.best else inf
    for plan in rivals:
        if plan.step_time_s < least:
            space = Space.validated(run)
            outside = UserStrategy.of(model, system, space, plan.strategy).outside(space).keys()
            assert outside & {*found.not_tried, *STAGES}, plan.strategy
            assert outside - {*STAGES} or model.depth % plan.strategy["pp"] == 0, plan.strategy


def optima(owner: str, model: Model, system: System, run: dict[str, Any]) -> list[Estimate]:
    """The degrees, batch and recompute of a predecessor's best plan, timed with our stack."""
    if owner not in ("calculon", "nersc"):
        return []
    more = run if owner == "calculon" else {name: run[name] for name in ("gpus", "gbs")}
    best = search(model, system, reference=owner, **more).to_dict()["best"]
    if not best:
        return []
    if owner == "calculon":
        fields = strategy_fields(CalculonExecution.validated(best[0]["execution"]))
        own = ("tp", "pp", "vpp", "micro_batch_size", "recompute")
        fields = {name: fields[name] for name in own if name in fields}
    else:
        config = best[0]["config"]
        fields = {"tp": config["tp"], "pp": config["pp"], "mbs": config["mbs"]}
    try:
        plan = estimate(model, system, run | fields)
    except InputError:  # our stack cannot run it
        return []
    return [plan] if plan.fits else []


@each_row(
    ("layers", "text"),
    [
        ((1, *[3] * 38, 0), "1+3x38+0"),
        ((4, 4), "4x2"),
        ((3, 4, 3), "3+4+3"),
        (("mla_up", "mlp"), "mla_up+mlp"),
        ((), "none"),
    ],
)
def test_equal_neighbors_of_a_list_are_counted(layers: tuple[object, ...], text: str) -> None:
    """In tables and charts, and as users write them."""
    assert joined(layers) == text == word(layers) == value_word(layers) == in_words(layers)
    if layers and isinstance(layers[0], int):
        assert Strategy.validated({"stage_layers": text}).stage_layers == layers


@pytest.mark.parametrize("text", ["4x99999", "4x", "x4", "1234567x2", "3x0", "4x9999+4x9999"])
def test_counts_that_are_none_are_refused(text: str) -> None:
    """A count has four digits at most, and all together are no more than 10,000."""
    with pytest.raises(InputError, match="stage_layers"):
        estimate("llama3-8b", "h100-sxm", gpus=8, gbs=8, pp=2, stage_layers=text)


def test_what_is_not_tried_has_a_name() -> None:
    """Values of fields, none of them unset, also of software without rules."""
    model, system = Model.load("mixtral-8x7b"), A100.model_copy(update={"stack": "simumax"})
    found = Space().not_tried(model, system)
    assert found["dispatcher"] == ("all_gather",)
    assert not [field for field, values in found.items() if None in values]
