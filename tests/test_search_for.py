"""`search --for`: every listed plan of every launcher is exported, and read back."""

import pytest

from shardwise import Model, estimate, export, search
from shardwise.interop.launch import LaunchText
from shardwise.interop.launchers import LAUNCHERS, read_by, recognised_launcher

CASES = [
    ("llama3-8b", "h100-sxm", {"gpus": 16, "gbs": 64, "micro_batch_size": 1}),
    ("llama3.2-1b", "b200-sxm", {"gpus": 8, "gbs": 64, "micro_batch_size": 2}),
    ("qwen3-30b-a3b", "h100-sxm", {"gpus": 32, "gbs": 64, "micro_batch_size": 1, "pp": [1, 2]}),
    ("deepseek-v2-lite", "h100-sxm", {"gpus": 16, "gbs": 64, "micro_batch_size": 1, "tp": [1, 2]}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_listed_plans_can_be_exported(launcher, case):
    """Without a fault; the file is recognized and read, with the same model, as a legal plan."""
    model, system, fields = case
    found = search(model, system, launcher=launcher.name, top=6, **fields)
    assert found.space["stack"] == [launcher.stack]
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
        work = {"global_batch_size": 64, "gpus": fields["gpus"]}
        assert estimate(model, system, work | dict(launch.strategy)).step_time_s > 0
