"""A launch file read back takes as long as the plan that it was written for, or says why not."""

from collections import Counter
from dataclasses import replace

import pytest

from launch_plans import is_legal, legal_plans
from profiles import drawn
from shardwise import Estimate, Model, Stack, Strategy, System, estimate, export
from shardwise.launchers.launch import Launcher, LaunchPlan, LaunchText, captured_graphs
from shardwise.launchers.read_back import ReadBack, read_back
from shardwise.launchers.registry import LAUNCHERS, launcher_of, read_by
from shardwise.launchers.writing import faults_of_plan, written_by_release

OTHERS = ("megatron-core-2025", "nemo-2025", "torchtitan-eager", "deepspeed-2024")
"""Stacks whose plans a launcher may be written for, next to its own."""
SAME = 1e-9


def returned(launcher: Launcher, plan: LaunchPlan) -> tuple[Estimate, ReadBack]:
    """The estimates of a plan and of its file."""
    planned = estimate(plan.model, plan.system, plan.strategy)
    _, files = written_by_release(launcher, plan)
    return planned, read_back(plan, planned, launcher, files[0])


def with_stack(plan: LaunchPlan, name: str) -> LaunchPlan:
    """The same plan with another stack."""
    strategy = plan.strategy.model_copy(update={"stack": Stack.load(name)})
    return replace(plan, strategy=strategy)


def all_plans(launcher: Launcher) -> list[LaunchPlan]:
    """Plans of the launcher's stack, and the same ones of other stacks that can run them."""
    own = [*legal_plans(launcher, drawn(30, 8))]
    others = [with_stack(plan, name) for plan in own for name in OTHERS]
    return [*own, *(p for p in others if is_legal(p.model, p.system, p.strategy))]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_a_file_takes_as_long_as_its_plan_or_lists_what_differs(launcher: Launcher) -> None:
    """Of any stack; a listed field has another value, and what is not listed changes nothing."""
    seen: Counter[bool] = Counter()
    for plan in all_plans(launcher):
        if faults_of_plan(launcher, plan):
            continue
        planned, found = returned(launcher, plan)
        seen[bool(found.differences)] += 1
        assert all(one.plan != one.file for one in found.differences)
        if found.differences:
            continue
        assert found.estimate is not None
        pairs = [(one.step_time_s, one.memory_bytes.reserved) for one in (planned, found.estimate)]
        assert pairs[0] == pytest.approx(pairs[1], rel=SAME)
    assert seen.total() > 3


@pytest.mark.parametrize("launcher", ["megatron", "megatron-bridge"])
def test_a_plan_without_sequence_parallelism_is_its_file(launcher: str) -> None:
    """tp_comm_overlap is of sequence parallelism; without it all-reduces of backward run behind
    weight gradients all the same, so that a file that does not set it loses nothing."""
    fields = {"gpus": 16, "tp": 8, "gbs": 32, "sequence_parallel": False}
    found = export(launcher, "llama3-8b", "h100-sxm", fields)
    assert found.read_back.differences == ()
    assert found.read_back.estimate is not None
    assert found.read_back.estimate.step_time_s == pytest.approx(
        found.estimate.step_time_s, rel=SAME
    )
    assert found.estimate.comm_s["tp"].exposed < found.estimate.comm_s["tp"].total


def test_lines_name_each_field_that_counts() -> None:
    """With its value in the plan, and in the file or by default."""
    fields = {"gpus": 16, "gbs": 32, "seq_len": 4096, "recompute": "full"}
    found = export("deepspeed", "llama3-8b", "h100-sxm", fields)
    first, *rest = found.read_back.lines(found.estimate)
    assert first.startswith("the file, read back, has step time ")
    assert rest == [
        "  seq_len: 4096 in the plan, 8192 by default: the file does not set it",
        "  recompute: full in the plan, none by default: the file does not set it",
    ]


def test_a_stack_of_ones_own_is_compared_figure_by_figure() -> None:
    """A figure that no option of the launcher sets is listed."""
    stack = {"base": launcher_of("megatron").stack, "tp_hidden": 0.1}
    found = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8, stack=stack)
    [one] = found.read_back.differences
    assert (one.field, one.plan) == ("stack.tp_hidden", 0.1)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
@pytest.mark.parametrize("graphs", ["partial", "full"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_graphs_of_a_stack_are_written_or_refused(
    launcher: Launcher, graphs: str, recompute: str
) -> None:
    """A launch file has the graphs of the estimate, also where the stack decides them.

    Graphs of layers exclude full recompute: the estimate is without them, and the file too.
    """
    stack = Stack.load({"base": launcher.stack, "name": "own", "cuda_graphs": graphs})
    words = {"gpus": 8, "zero": 3, "gbs": 8, "recompute": recompute}
    strategy = Strategy.load({**words, "dtype": "bf16", "stack": stack})
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    plan = LaunchPlan(model=model, system=system, strategy=strategy.resolved(model, system))
    timed = captured_graphs(plan.model, plan.strategy)
    assert timed == ("none" if (graphs, recompute) == ("partial", "full") else graphs)
    if faults := faults_of_plan(launcher, plan):
        assert timed != "none"
        assert [(one.field, one.value) for one in faults] == [("cuda_graphs", timed)]
        return
    _, files = written_by_release(launcher, plan)
    text = LaunchText(source=f"plan{files[0].ending}", text=files[0].text, model=model, gpus=8)
    required = {"stack": launcher.stack, "global_batch_size": 8}
    read = Strategy.validated(required | dict(read_by(launcher, text).strategy))
    assert captured_graphs(model, read.resolved(model, system)) == timed
