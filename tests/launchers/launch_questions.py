"""Questions whose answers must be plans that can be launched."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher_rules import launch_faults, stack_name
from shardwise import InputError, Model, Stack, Strategy, search


@dataclass(frozen=True)
class Question:
    """Which plans are the ten best for a model on so many accelerators of a system?"""

    model: str
    system: str
    gpus: int
    gbs: int
    fixed: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        fixed = "".join(f" {name}={value}" for name, value in self.fixed)
        return f"{self.model} on {self.gpus} x {self.system}, gbs {self.gbs}{fixed}"


def asked(model: str, system: str, gpus: int, gbs: int, **fixed: Any) -> Question:
    return Question(model, system, gpus, gbs, tuple(fixed.items()))


QUESTIONS = (
    # Dense models on NVIDIA.
    asked("llama3-8b", "h100-sxm", 8, 128),
    asked("llama3-8b", "a100-80gb-sxm", 16, 64, stack="deepspeed-2024"),
    asked("llama3-8b", "b200-sxm", 8, 128, quantization="mxfp8"),
    asked("llama3-70b", "h100-sxm", 64, 128),
    asked("llama3-70b", "h100-sxm", 512, 1024),
    asked("llama3-70b", "h200-sxm", 64, 256, quantization="fp8_tensor"),
    asked("llama3-70b", "gb200-nvl72", 72, 288, stack="megatron-bridge-2026"),
    asked("llama3-405b", "h100-sxm", 1024, 1536),
    asked("gpt3-175b", "a100-80gb-sxm", 256, 1536),
    asked("qwen3-32b", "h800-sxm", 32, 128),
    asked("qwen2.5-72b", "h100-sxm", 128, 256, seq_len=32768),
    asked("mistral-7b", "h100-pcie", 8, 64, stack="huggingface-2024"),
    asked("gemma2-27b", "h100-sxm", 16, 128),
    asked("llama3.2-1b", "a100-40gb-sxm", 8, 128),
    asked("llama2-13b", "v100-sxm-32gb", 32, 128, dtype="fp16"),
    # Mixtures of experts on NVIDIA.
    asked("mixtral-8x7b", "h100-sxm", 64, 256),
    asked("mixtral-8x22b", "h200-sxm", 128, 256),
    asked("qwen3-30b-a3b", "h100-sxm", 16, 256),
    asked("qwen3-30b-a3b", "gb200-nvl72", 8, 256, stack="megatron-bridge-2026"),
    asked("qwen3-235b-a22b", "h100-sxm", 256, 2048),
    asked("qwen3-235b-a22b", "gb300-nvl72", 72, 576, stack="megatron-bridge-2026"),
    asked("deepseek-v3", "h800-sxm", 1024, 4096),
    asked("deepseek-v3", "gb200-nvl72", 256, 2048, stack="megatron-bridge-2026"),
    asked("deepseek-v2-lite", "h100-sxm", 16, 128),
    asked("gpt-oss-120b", "h100-sxm", 64, 1280, stack="megatron-bridge-2026"),
    asked("glm4.5-air", "b200-sxm", 64, 512, stack="megatron-bridge-2026"),
    asked("kimi-k2", "b200-sxm", 256, 2048, stack="megatron-bridge-2026"),
    asked("llama4-scout", "h100-sxm", 128, 512),
    # Other trainers.
    asked("llama3-8b", "h100-sxm", 8, 64, stack="torchtitan-2025"),
    asked("llama3-70b", "h100-sxm", 128, 256, stack="torchtitan-2025"),
    asked("llama3-70b", "b200-sxm", 64, 256, stack="torchtitan-2025"),
    asked("deepseek-v2-lite", "h100-sxm", 32, 128, stack="torchtitan-2025"),
    asked("qwen3-30b-a3b", "h100-sxm", 32, 256, stack="torchtitan-eager"),
    asked("llama3-8b", "a100-80gb-sxm", 32, 128, stack="maxtext-2024"),
    # Other accelerators.
    asked("llama3-8b", "mi300x", 8, 128, stack="primus-2026"),
    asked("llama3-70b", "mi300x", 64, 256, stack="primus-2026"),
    asked("qwen3-30b-a3b", "mi355x", 16, 256, stack="primus-2026"),
    asked("llama3-70b", "tpu-v5p", 128, 256),
    asked("mixtral-8x7b", "tpu-v6e", 256, 512),
    asked("llama2-7b", "gaudi2", 8, 64),
)
assert len(QUESTIONS) == 40


@cache
def best_plans(question: Question) -> tuple[dict[str, Any], ...]:
    """Strategies of the ten best plans, all fields filled in; none where nothing fits."""
    try:
        found = search(
            question.model,
            question.system,
            gpus=question.gpus,
            gbs=question.gbs,
            top=10,
            **dict(question.fixed),
        )
    except InputError as error:
        raise AssertionError(f"{question}: {error}") from None
    return tuple(estimate.to_dict()["strategy"] for estimate in found.best)


def named(strategy: dict[str, Any]) -> str:
    """A plan in a line: its stack, and what it sets off the defaults of a strategy."""
    usual = Strategy().to_dict() | {"tp_exchange": "rs_ag", "schedule": "1f1b"}
    skipped = ("stack", "gpus", "sequence_parallel", "seq_len", "global_batch_size")
    words = [
        f"{name}={value}"
        for name, value in strategy.items()
        if name not in skipped and value != usual.get(name)
    ]
    return f"{stack_name(strategy)}: {' '.join(words)}"


def faults_of(question: Question) -> dict[str, list[str]]:
    """Plans of an answer that their launcher refuses, and why."""
    model = Model.load(question.model)
    refused = {}
    for strategy in best_plans(question):
        facts = {
            "graphs": Stack.load(stack_name(strategy)).cuda_graphs,
            "machine": question.system,
        }
        faults = launch_faults(model, strategy, **facts)
        if faults:
            refused[named(strategy)] = faults
    return refused


def as_text(faults_by_plan: dict[str, list[str]]) -> str:
    """Plans and what is wrong with them, a line each, for the message of a failed test."""
    return "\n".join(f"{plan}: {'; '.join(faults)}" for plan, faults in faults_by_plan.items())
