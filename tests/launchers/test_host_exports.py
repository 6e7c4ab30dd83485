"""What a plan says of the host: threads in scripts, updates of DeepSpeed on host and drives."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise import InputError, estimate, export, read_launch
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.registry import launcher_of, read_by

ON_HOST = {"gpus": 8, "gbs": 8, "seq_len": 2048, "zero": 3, "offload_optimizer": True}
BOTH = ON_HOST | {"offload_weights": True, "recompute": "full"}
LAUNCHERS = {
    **dict.fromkeys(("trl", "llama-factory", "axolotl", "automodel", "accelerate"), BOTH),
    "torchtitan": BOTH,
    "deepspeed": ON_HOST,
    "megatron": ON_HOST | {"zero": 1, "tp": 2},
    "megatron-bridge": ON_HOST | {"zero": 1, "tp": 2},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_threads_are_next_to_the_command_that_starts_the_ranks(launcher: str) -> None:
    """As OMP_NUM_THREADS, which torchrun sets to 1 otherwise; not where a plan leaves them open."""
    plan = LAUNCHERS[launcher]
    made = export(launcher, "llama3-8b", "h100-sxm", plan | {"host_threads": 6})
    assert any("OMP_NUM_THREADS=6" in file.text for file in made.files)
    plain = export(launcher, "llama3-8b", "h100-sxm", plan)
    assert not any("OMP_NUM_THREADS=6" in file.text for file in plain.files)


def test_threads_of_a_command_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the optimizer is on the host."""
    monkeypatch.chdir(tmp_path)
    made = export("axolotl", "llama3-8b", "h100-sxm", BOTH | {"host_threads": 6})
    for file, name in zip(made.files, ("plan.yaml", "plan.sh"), strict=True):
        Path(name).write_text(file.text)
    found = read_launch("plan.sh", variables={"CONFIG": "plan.yaml"}).strategy
    assert (found["offload_optimizer"], found["host_threads"]) == (True, 6)


def test_deepspeed_updates_early() -> None:
    """super_offload is written and read."""
    plan = ON_HOST | {"cpu_optimizer": "superoffload", "host_threads": 4}
    made = export("deepspeed", "llama3-8b", "h100-sxm", plan)
    zero = json.loads(made.files[0].text)["zero_optimization"]
    assert zero["offload_optimizer"]["super_offload"] is True
    text = LaunchText(source="plan.json", text=made.files[0].text, gpus=8)
    assert read_by(launcher_of("deepspeed"), text).strategy["cpu_optimizer"] == "superoffload"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"stack": "megatron-lm-2026", "zero": 1, "cpu_optimizer": "superoffload"}, "superoffload"),
        ({"stack": "torchtitan-2025", "offload_weights": True, "offload_nvme": True}, "nvme"),
        ({"stack": "accelerate-2026", "offload_weights": True, "offload_nvme": True}, "nvme"),
        ({"stack": "deepspeed-2024", "cpu_optimizer": "superoffload"}, "superoffload"),
        ({"stack": "deepspeed-2026", "zero": 2, "cpu_optimizer": "superoffload"}, "ZeRO 3"),
        ({"stack": "deepspeed-2026", "zero": 2, "offload_nvme": True}, "ZeRO 3"),
    ],
)
def test_only_deepspeed_updates_early_or_from_drives(fields: dict[str, Any], problem: str) -> None:
    """With ZeRO 3; other software has neither, and says so."""
    with pytest.raises(InputError, match=problem):
        estimate("llama3-8b", "h100-sxm", ON_HOST | fields)
