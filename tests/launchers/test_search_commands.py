"""What a search says to run next: its launcher writes the plan, or the search says why not."""

import json
import shlex
from collections.abc import Callable

from rows import each_row
from shardwise import export, search
from shardwise.launchers.stacks import launcher_of_stack

Run = Callable[..., tuple[int, str, str]]
SIZES = "--gpus 8 --gbs 64 --seq-len 4096"


@each_row(
    ("case", "launcher"),
    [
        ("llama3-8b h100-sxm --stack torchtitan", "torchtitan"),
        ("llama3-8b h100-sxm --stack trl --finetune full --cp 1", "trl"),
        ("llama3-8b h100-sxm --stack automodel --pp 1", "automodel"),
        ("llama3-8b h100-sxm --stack llama-factory", "llama-factory"),
        ("llama3-8b h100-sxm --stack axolotl --tp 1", "axolotl"),
        ("llama3-8b h100-sxm", "megatron-bridge"),
    ],
)
def test_the_next_command_writes_the_plan(shardwise: Run, case: str, launcher: str) -> None:
    _, found, _ = shardwise("search", *f"{case} {SIZES} --json".split())
    plan = json.loads(found)["recommended"]
    assert plan["not_written"] == ""
    words = shlex.split(plan["commands"]["export"])
    assert words[:3] == ["shardwise", "export", launcher]
    if plan["strategy"]["recompute"] != "selective":
        assert "--recompute-parts" not in words
    code, _, said = shardwise(*words[1:-2])
    assert code == 0
    assert "is the plan" in said


@each_row(
    ("stack", "launcher"),
    [
        ("TRL 1.9", "trl"),
        ("HF Trainer, DeepSpeed ZeRO-3", "trl"),
        ("LLaMA-Factory 0.9.4, DeepSpeed ZeRO-2", "llama-factory"),
        ("Megatron-LM core 0.16", "megatron"),
        ("deepspeed-2024", "deepspeed"),
        ("verl", None),
        ("unknown", None),
        ("mine.yaml", None),
    ],
)
def test_the_launcher_of_software_is_that_of_its_trainer(stack: str, launcher: str | None) -> None:
    """Whatever engine it runs with."""
    assert launcher_of_stack(stack) == launcher


@each_row(
    ("case", "why", "others"),
    [
        ("llama3-8b h100-sxm --stack trl --finetune full --cp 2", "cp: 2: TRL and the", True),
        ("llama3-8b h100-sxm --stack axolotl --tp 2", "tp: 2: no option sets it", True),
        ("gemma3-4b h100-sxm", "Megatron-Core: norms stand before blocks", False),
    ],
)
def test_why_a_plan_is_not_written(shardwise: Run, case: str, why: str, others: bool) -> None:
    """Other plans help only where the model is not the reason."""
    code, found, _ = shardwise("search", *f"{case} {SIZES} --json".split())
    plan = json.loads(found)["recommended"]
    assert code == 0
    assert list(plan["commands"]) == ["estimate"]
    assert why in plan["not_written"]
    assert ("lists plans that it can" in plan["not_written"]) is others
    _, printed, _ = shardwise("search", *f"{case} {SIZES}".split())
    assert "\nfile:     " in printed


def test_a_file_of_described_software_is_written_again_by_its_command(shardwise: Run) -> None:
    """Fields that the description has other defaults of are named: trl alone would be DDP."""
    words = "trl llama3-8b h100-sxm --gpus 8 --gbs 64 --zero 3 --recompute full --task sft"
    _, first, said = shardwise("export", *words.split(), "--stack", "trl")
    command = next(line for line in first.splitlines() if "shardwise export" in line)
    again = shlex.split(command.lstrip("# "))
    assert again[-2:] == ["--stack", "trl"]
    assert again[again.index("--zero") + 1] == "3"
    code, second, _ = shardwise(*again[1:])
    assert (code, second) == (0, first)
    assert "the file, read back as trl, is the plan" in said


def test_adapters_of_mixers_are_read_back() -> None:
    """`in_proj` and `out_proj` of Mamba layers."""
    fields = {"gpus": 8, "gbs": 64, "stack": "trl", "task": "sft", "lora_rank": 16}
    made = export("trl", "nemotron-h-4b", "h100-sxm", lora_targets="all-linear", **fields)
    assert made.read_back.differences == ()


def test_stages_of_deepspeed_are_those_that_it_cuts() -> None:
    """No plan lists layers of stages, which its configuration cannot."""
    found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, stack="deepspeed", pp=2)
    assert found.recommended is not None
    assert "export" in found.recommended.commands


def test_a_search_for_a_launcher_has_its_command() -> None:
    found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, launcher="torchtitan")
    assert found.recommended is not None
    assert "export" in found.recommended.commands
