"""What users write, for type checkers: `.ci/run` checks it with mypy and with strict Pyright.

A line with two ignores is a mistake that both must report.
"""

from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
import polars as pl

import shardwise
from shardwise import (
    CannotExportError,
    ClusterChoice,
    Comparison,
    Diagnosis,
    Estimate,
    EstimateTable,
    Explanation,
    Export,
    FsdpPlan,
    InputError,
    LargestModel,
    Launch,
    Model,
    RecipeEstimate,
    ReferenceEstimate,
    ReferenceSearch,
    SearchResult,
    Space,
    Stack,
    Strategy,
    SweepPoint,
    SweepResult,
    System,
    Trace,
    TrainingTime,
    choose_cluster,
    compare,
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
    plan_fsdp,
    read_launch,
    recipes,
    search,
    sweep,
    trace,
    validate_suite,
)

result = estimate("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128, recompute="full")
assert_type(result, Estimate)
assert_type(result.step_time_s, float)
assert_type(result.fits, bool)
assert_type(result.memory_bytes.reserved, float)
assert_type(result.strategy, Mapping[str, Any])
assert_type(result.stages[0].peak.operation, str)
if result.interval is not None:
    print(result.interval.low_s, result.interval.nearest)
print(result.explain())
result.plot("memory").write_html("estimate.html")  # pyright: ignore[reportUnknownMemberType] - plotly has no types
assert_type(result.compare(result, names=["a", "b"]), Comparison)

estimate("llama3-70b", "h100-sxm", {"gpus": 64, "tp": 8, "gbs": 128}, zero=3, dp_overlap=False)
estimate("model.yaml", System.load("h100-sxm"), Strategy(gpus=8, gbs=8), stack="torchtitan")
estimate("llama3-8b", "h100-sxm", gpus=8, gbs=8, tpp=4)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
estimate("llama3-8b", "h100-sxm", gpus=8, gbs=8, recompute="some")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
estimate("llama3-8b", "h100-sxm", gpus="8", gbs=8)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
shardwise.estimat()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

theirs = estimate("gpt3-175b", "nersc-b200", gpus=64, tp=8, gbs=64, reference="nersc")
assert_type(theirs, ReferenceEstimate)
assert_type(theirs.statistics, Mapping[str, Any])
estimate("gpt3-175b", "h100-sxm", gpus=8, gbs=8, reference="calculn")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
assert_type(estimate("config.json", rows={"accelerator": "H100 PCIe"}), Estimate)

table = estimate_many(
    "llama3-70b", "h100-sxm", gpus=64, tp=[2, 4, 8], pp=np.array([1, 2, 2]), gbs=128
)
assert_type(table, EstimateTable)
assert_type(table.to_frame(), pl.DataFrame)
assert_type(table.reason(0), str | None)
print(table.step_time_s.min(), table.fits.any(), len(table))
estimate_many("llama3-70b", ["h100-sxm", "b200-sxm"], [Strategy(gpus=64, tp=8, gbs=128)])
frame = table.to_frame().filter(pl.col("fits")).sort("step_time_s")
print(frame.select("tp", "step_time_s").rows())

found = search("llama3-8b", "h100-sxm", gpus="8..64", gbs=[64, 128], tp=[1, 2], recompute="all")
assert_type(found, SearchResult)
assert_type(found.best[0].step_time_s, float)
found.plot()
assert_type(found.to_frame(), pl.DataFrame)
search("llama3-8b", "h100-sxm", gpus=8, top="many")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
search("llama3-8b", "h100-sxm", gpu=8)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
by_calculon = search(
    "gpt3-175b", "calculon-a100-80g", reference="calculon", gpus=[64, 128], gbs=64, tp_overlap=False
)
assert_type(by_calculon, ReferenceSearch)
assert_type(by_calculon.best[0]["execution"], Any)
search("gpt3-175b", "nersc-b200", reference="nersc", gpus=64, gbs=64, method=["1d", "2d"])
search("gpt3-175b", "nersc-b200", reference="nersc", gpus=64, levels=True)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
assert_type(search("config.json", top=3), SearchResult)
search("llama3-8b", "h100-sxm", Space(gpus="8..64", batch="largest"), levels=True)
mine = explain("llama3-8b", "h100-sxm", {"pp": 1}, {"tp": 8, "zero": 0}, gpus=8, gbs=64)
assert_type(mine, Explanation)
assert_type(mine.rank, int | None)

swept = sweep("llama3-8b", "h100-sxm", gpus=16, gbs=64, vary={"fabric.bandwidth": "0.5x,1x,2x"})
assert_type(swept, SweepResult)
assert_type(swept.points[0], SweepPoint)
assert_type(swept.to_frame(), pl.DataFrame)

both = compare(result, "other.yaml", names=["a", "b"])
assert_type(both.to_frame(), pl.DataFrame)
assert_type(both.changes[0].delta_s, float)

run = estimate_training_time("llama3-8b", "h100-sxm", gpus=64, gbs=512, tokens="100B")
assert_type(run, TrainingTime)
assert_type(run.effective_days, float)
estimate_training_time("config.json", rows={"accelerator": "H100 PCIe"})

choice = choose_cluster("llama3-8b", ["h100-sxm"], tokens="1T", deadline="30d", gpus=[64, 128])
assert_type(choice, ClusterChoice)
if choice.cheapest is not None:
    assert_type(choice.options[choice.cheapest].days, float | None)

biggest = largest_model("h100-sxm", gpus=8, zero=[2, 3])
assert_type(biggest, LargestModel)

plan = plan_fsdp("llama3-8b", "h100-sxm", gpus=8, memory_budget="60 GiB")
assert_type(plan, FsdpPlan)
assert_type(plan.emitted().text, str)

try:
    made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    assert_type(made, Export)
    print(made.files[0].text)
except CannotExportError as error:
    print(error.nearest)
except InputError as error:
    print([fault.field for fault in error.faults])

launch = read_launch("train.sh", gpus=64)
assert_type(launch, Launch)
diagnosis = diagnose(launch, "h100-sxm", log="train.log")
assert_type(diagnosis, Diagnosis)
assert_type(diagnosis.findings[0].gain_s, float)

line = trace("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
assert_type(line, Trace)
line.to_file("step.json")
print(graph_of("llama3-8b", "h100-sxm", gpus=8, gbs=8).parts[0].name)

assert_type(convert("model.json"), Model | System | Strategy | Stack)
assert_type(convert("strategy.yaml", to="calculon", model="m", system="s"), dict[str, Any])
assert_type(validate_suite("seqsel").title, str)
print(validate_suite("runs", grade="A").overall, validate_suite("kernels", data="mine").tables)

for recipe in recipes():
    assert_type(estimate_recipe(recipe), RecipeEstimate)
model = Model.load("llama3-70b")
assert_type(model, Model)
