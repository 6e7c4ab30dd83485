"""A wrong argument of a public function is an `InputError` that names it."""

import inspect
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import shardwise
from rows import each_row
from shardwise import (
    InputError,
    Model,
    Reliability,
    ShardwiseError,
    Space,
    Stack,
    Strategy,
    choose_cluster,
    compare,
    compare_methods,
    convert,
    diagnose,
    estimate,
    estimate_many,
    estimate_recipe,
    estimate_training_time,
    explain,
    export,
    graph_of,
    largest_model,
    load,
    plan_fsdp,
    read_launch,
    recipes,
    search,
    sweep,
    trace,
    validate_suite,
)

pytestmark = pytest.mark.any_software

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
SLOW_RUN = Path(__file__).parents[2] / "docs" / "examples"
RUN = {"gpus": 8, "tp": 8, "gbs": 8}
SPACE = {
    "gpus": 8,
    "gbs": 8,
    "tp": 8,
    "pp": 1,
    "vpp": 1,
    "zero": 1,
    "recompute": "none",
    "micro_batch_size": 1,
    "placement": "tp-cp-dp-pp",
    "tp_overlap": "stack",
    "offload_optimizer": False,
}
ARGUMENTS = {
    estimate: {"model": MODEL, "system": SYSTEM, "strategy": RUN},
    estimate_many: {"model": MODEL, "system": SYSTEM, "strategies": RUN},
    estimate_training_time: {"model": MODEL, "system": SYSTEM, "strategy": RUN, "tokens": "1B"},
    estimate_recipe: {"recipe": "llama3-8b-h100-8-bf16"},
    trace: {"model": MODEL, "system": SYSTEM, "strategy": RUN},
    graph_of: {"model": MODEL, "system": SYSTEM, "strategy": RUN},
    search: {"model": MODEL, "system": SYSTEM, "space": SPACE},
    explain: {"model": MODEL, "system": SYSTEM, "space": SPACE, "strategy": RUN},
    sweep: {"model": MODEL, "system": SYSTEM, "space": SPACE, "vary": {"inner.bandwidth": "1x"}},
    export: {"launcher": "megatron", "model": MODEL, "system": SYSTEM, "strategy": RUN},
    read_launch: {"path": SLOW_RUN / "train.sh"},
    diagnose: {"launch": SLOW_RUN / "train.sh", "system": SYSTEM, "log": SLOW_RUN / "run.log"},
    convert: {"file": MODEL},
    validate_suite: {"suite": "seqsel"},
    largest_model: {"system": SYSTEM, "gpus": 1},
    compare_methods: {"models": [MODEL], "systems": [SYSTEM]},
    choose_cluster: {
        "model": MODEL,
        "systems": [SYSTEM],
        "space": SPACE,
        "gpus": 8,
        "tokens": "1B",
        "deadline": "30d",
    },
}
SLOW = (choose_cluster, search, explain, sweep, largest_model, diagnose)
WRONG = {
    "nothing": None,
    "true": True,
    "list": [],
    "mapping": {},
    "numbered": {1: 2},
    "object": object(),
    "nan": math.nan,
    "infinite": math.inf,
    "negative": -1,
    "empty": "",
    "array": np.array([1, 2]),
    "matrix": np.zeros((2, 2)),
    "ragged": [[], [1]],
    "frame": pl.DataFrame({"a": [1]}),
    "bytes": b"x",
    "nowhere": Path("/nowhere/x.json"),
    "huge": 10**400,
    "zero byte": "a\0b",
    "flag of numpy": np.True_,
}


def parameters(function):
    """Names of the arguments of a function, one of its `**fixed` among them."""
    named = inspect.signature(function).parameters.values()
    return [p.name if p.kind is not p.VAR_KEYWORD else "tp" for p in named]


def test_every_public_function_is_here():
    """Classes have tests of their own."""
    public = [getattr(shardwise, name) for name in shardwise.__all__]
    functions = {one for one in public if inspect.isfunction(one)}
    assert functions == {*ARGUMENTS, compare, load, plan_fsdp, recipes}


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, marks=[pytest.mark.nightly] if f in SLOW else []) for f in ARGUMENTS],
    ids=lambda function: function.__name__,
)
def test_a_wrong_argument_is_an_error_of_shardwise(function, tmp_path, monkeypatch):
    """Or it is of use; it never ends in another exception."""
    monkeypatch.chdir(tmp_path)
    refused = 0
    for name in parameters(function):
        for value in WRONG.values():
            try:
                function(**ARGUMENTS[function] | {name: value})
            except ShardwiseError:
                refused += 1
    assert refused > len(parameters(function)) * len(WRONG) / 2


@each_row(
    ("call", "problem"),
    [
        (lambda: Strategy(tp=None), "strategy: tp: null: must be a whole number"),
        (lambda: Space(tp="x"), "space: tp: 'x': must be a whole number"),
        (lambda: Reliability(restart_time=-1), "reliability: restart_time: -1: must be at least 0"),
        (lambda: Stack(name="x"), "stack: attention_kernel: is missing"),
        (lambda: Model(name="x"), "model: hidden: is missing"),
        (lambda: search(MODEL, SYSTEM, SPACE, axes=None), "axes: null: must be a list of fields"),
        (lambda: search(MODEL, SYSTEM, SPACE, save=True), "save: true: must be a file"),
        (
            lambda: search(MODEL, SYSTEM, SPACE, max_memory=math.nan),
            "max_memory: nan: must be",
        ),
        (lambda: search(MODEL, SYSTEM, SPACE, reserve=math.nan), "reserve: nan: must be a finite"),
        (lambda: search(MODEL, SYSTEM, SPACE, levels="x"), "levels: 'x': must be true or false"),
        (lambda: search(MODEL, SYSTEM, SPACE, progress=3), "progress: 3: must be a function"),
        (
            lambda: search(MODEL, SYSTEM, SPACE, objective=np.array([1])),
            "objective: [1]: allowed: step_time, ",
        ),
        (
            lambda: search(MODEL, SYSTEM, SPACE, objective=pl.DataFrame()),
            "objective: a DataFrame: allowed: step_time, ",
        ),
        (lambda: sweep(MODEL, SYSTEM, SPACE, vary={1: 2}), "vary: {1: 2}: must be values by name"),
        (lambda: estimate(MODEL, SYSTEM, RUN, gemms="x"), "gemms: 'x': must be true or false"),
        (
            lambda: estimate_many(MODEL, SYSTEM, RUN | {"stack": np.zeros((2, 2))}),
            "columns: stack: [[0.0, 0.0], [0.0, 0.0]]: a column has one dimension",
        ),
        (lambda: estimate_many(MODEL, SYSTEM, {1: 2}), "columns: 1: "),
        (lambda: estimate_many(MODEL, SYSTEM, RUN | {"tp": [1, "x"]}), "columns: tp: 'x': must be"),
        (lambda: largest_model(SYSTEM, gpus=None), "largest: gpus: is missing: number of GPUs"),
        (lambda: plan_fsdp(MODEL, SYSTEM, gpus=8, pareto="x"), "pareto: 'x': must be true or"),
        (lambda: plan_fsdp(MODEL, SYSTEM, gpus=8, comm=3), "comm: 3: must be latencies and band"),
        (lambda: compare(1, 2), "scenario A: 1: is not an estimate"),
    ],
)
def test_the_error_names_the_argument(call, problem):
    """With its value and what it must be."""
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize("strategies", [[], ()])
def test_a_list_without_strategies_is_refused(strategies) -> None:
    """By the name of the argument; columns without rows are a table without rows."""
    with pytest.raises(InputError, match="strategies: an empty list"):
        estimate_many("llama3-8b", "h100-sxm", strategies)
    assert len(estimate_many("llama3-8b", "h100-sxm", {"gpus": [], "gbs": 8})) == 0


def test_a_name_has_printable_characters() -> None:
    """A terminal would act on the others."""
    named = Model.load("llama3-8b").to_dict() | {"name": "a\x1b[31mb"}
    with pytest.raises(InputError, match=r"name: 'a\\x1b\[31mb': .*printable") as refused:
        Model.validated(named)
    assert "\x1b" not in str(refused.value)
