"""`search --for`: every listed plan of every launcher is exported, and read back."""

import json
import shlex
from pathlib import Path

import pytest

import shardwise as shardwise_package
from launch_plans import legal_plans
from profiles import drawn
from shardwise import CannotExportError, InputError, Model, Stack, estimate, export, search
from shardwise.errors import Fault
from shardwise.launchers.cli import export as export_launch
from shardwise.launchers.export import command_of
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.registry import LAUNCHERS, read_by, recognised_launcher

ROOT = Path(__file__).parents[2]
CASES = [
    ("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 64, "micro_batch_size": 1}),
    ("qwen3-30b-a3b", "b200-sxm", {"gpus": 16, "gbs": 64, "micro_batch_size": 1, "pp": [1, 2]}),
]
MORE = [
    ("llama3.2-1b", "b200-sxm", {"gpus": 8, "gbs": 64, "micro_batch_size": 2}),
    ("llama3-8b", "h100-sxm", {"gpus": 64, "gbs": 128}),
    ("deepseek-v2-lite", "h100-sxm", {"gpus": 16, "gbs": 64, "micro_batch_size": 1, "tp": [1, 2]}),
]


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.nightly) for case in MORE)],
    ids=lambda case: case[0],
)
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_listed_plans_can_be_exported(launcher, case):
    """Without a fault; the file is recognized and read, with the same model, as a legal plan."""
    model, system, fields = case
    found = search(model, system, launcher=launcher.name, top=drawn(4), **fields)
    assert found.space["stack"] == (launcher.stack,)
    for plan in found.best:
        written = export(launcher, model, system, plan.strategy)
        assert written.changes == ()
        assert written.estimate.step_time_s == plan.step_time_s
        first = written.files[0]
        source = f"run{first.ending}"
        assert recognised_launcher(first.text, source) is launcher
        own = {"model": Model.load(model), "gpus": plan.strategy["gpus"]}
        launch = read_by(launcher, LaunchText(source=source, text=first.text, **own))
        assert launch.model == own["model"]
        work = {"global_batch_size": fields["gbs"], "gpus": fields["gpus"]}
        assert estimate(model, system, work | dict(launch.strategy)).step_time_s > 0


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_the_command_of_a_plan_sets_every_field(shardwise, monkeypatch, launcher):
    """Flags of the command in the comments give the same strategy, field by field."""
    found = []

    def caught(_, model, system, strategy, **__):
        resolved = strategy.model_copy(update={"stack": Stack.load(launcher.stack)})
        found.append((model, system, resolved.resolved(Model.load(model))))
        raise InputError(Fault(problem="enough"))

    monkeypatch.setattr(export_launch, "export", caught)
    for plan in legal_plans(launcher, drawn(12)):
        names = [plan.model.name, plan.system.name]
        words = command_of(launcher, plan, names, None)
        code, _, err = shardwise(*shlex.split(" ".join(words))[1:])
        assert (code, err) == (2, "error: enough\n")
        assert found.pop() == (*names, plan.strategy)


def _size(path):
    return path.stat().st_size


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_only_its_own_launcher_recognizes_a_file(launcher):
    """So that the order of the launchers does not matter."""
    for ending in launcher.endings:
        plan = {"gpus": 8, "gbs": 64, "tp": 2}
        found = export(launcher, "llama3-8b", "h100-sxm", plan, ending=ending, nearest=True)
        text = found.files[0].text
        assert [one.name for one in LAUNCHERS if one.recognise(text, f"a{ending}")] == [
            launcher.name
        ]


def test_files_of_shardwise_and_other_tools_are_no_launch_files():
    """Catalog, documentation and files of predecessors; tables of runs quote launchers' words."""
    places = (Path(shardwise_package.__file__).parent / "catalog", ROOT / "docs", ROOT / "tests")
    endings = (".yaml", ".yml", ".json", ".toml")
    every = [path for place in places for path in place.rglob("*") if path.suffix in endings]
    facts = (
        "public_launch_files",
        "trainer_files",
        "software_names",
    )  # what launch files say, in our own form
    others = [path for path in every if path.stem not in facts and "measured" not in path.parts]
    small = [path for path in others if _size(path) < 2**20]
    assert len(small) > 150
    found = {
        str(path.relative_to(ROOT)): launcher.name
        for path in small
        if (launcher := recognised_launcher(path.read_text(encoding="utf-8"), str(path)))
    }
    assert found == {}


def test_a_launcher_runs_no_plan_of_software_that_it_is_not(tmp_path, monkeypatch, shardwise):
    """A stack that is named sets the times; the launcher's own release must run the plan, too.

    The stack of another trainer's launch file gives way to that of the launcher.
    """
    monkeypatch.chdir(tmp_path)
    own = {"gpus": 16, "gbs": 64, "tp": 2, "zero": 2, "recompute": "selective"}
    plan = own | {"recompute_parts": ["every_other"], "stack": "torchtitan-2025"}
    with pytest.raises(
        CannotExportError, match=r"megatron-lm-2026 .* supports recompute_parts core_attention"
    ):
        export("megatron", "llama3-8b", "h100-sxm", plan)
    written = export("torchtitan", "llama3-8b", "h100-sxm", plan)
    Path("run.toml").write_text(written.files[0].text)
    code, _, err = shardwise(
        "export", "megatron", "run.toml", "h100-sxm", "--nearest", "-o", "a.sh"
    )
    assert (code, err.startswith("written with recompute")) == (0, True)
    words = ("run.toml", "h100-sxm", "--fix", "mbs=1,tp=2,pp=1,cp=1,zero=1", "--json")
    found = json.loads(shardwise("search", *words, "--for", "megatron")[1])
    assert found["space"]["stack"] == ["megatron-lm-2026"]
