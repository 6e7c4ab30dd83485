"""What trainers refuse, as read in their sources; an oracle for the plans that we recommend.

It shares nothing with the rules of shardwise: a plan is a strategy as JSON, of a model it reads
facts of the architecture only. Sources, with `file:line` of Megatron-LM in the messages' comments
(A = `megatron/training/arguments.py`, T = `megatron/core/transformer/transformer_config.py`,
M = `megatron/core/model_parallel_config.py`, P = `megatron/core/parallel_state.py`,
S = `megatron/core/pipeline_parallel/schedules.py`): Megatron-LM d98e8a64 and Megatron-Bridge
067f987d, torchtitan b5bcd76c and v0.2.2, DeepSpeed edaa7221, accelerate 16cb6eb8, Primus fd1eeabb,
MaxText e591f30c, all of August 2026.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from launcher_rules.deepspeed import deepspeed_faults
from launcher_rules.huggingface import huggingface_faults
from launcher_rules.maxtext import maxtext_faults
from launcher_rules.megatron import megatron_faults
from launcher_rules.plan import Plan, release_numbers
from launcher_rules.torchtitan import torchtitan_faults

__all__ = [
    "LAUNCHERS",
    "Launcher",
    "Plan",
    "deepspeed_faults",
    "huggingface_faults",
    "launch_faults",
    "maxtext_faults",
    "megatron_faults",
    "release_numbers",
    "stack_name",
    "torchtitan_faults",
]


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A trainer and its release, as a stack of the catalog stands for it."""

    name: str
    release: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def faults(self, model: Any, strategy: Mapping[str, Any], **facts: Any) -> list[str]:
        """Rules that a plan breaks; `graphs` and `machine` count where the launcher looks."""
        check = _CHECKS[self.name]
        known = facts if self.name in ("megatron", "bridge", "primus") else {}
        return check(model, strategy, self.release, **self.options, **known)


_CHECKS: Mapping[str, Callable[..., list[str]]] = {
    "megatron": megatron_faults,
    "bridge": partial(megatron_faults, bridge=True),
    "primus": partial(megatron_faults, primus=True),
    "torchtitan": torchtitan_faults,
    "deepspeed": deepspeed_faults,
    "huggingface": huggingface_faults,
    "maxtext": maxtext_faults,
}

LAUNCHERS: Mapping[str, Launcher] = {
    "accelerate-2026": Launcher(name="huggingface", release="1.14"),
    "deepspeed-2024": Launcher(name="deepspeed", release="0.16.2"),
    "deepspeed-2026": Launcher(name="deepspeed", release="0.19.5"),
    "huggingface-2024": Launcher(name="huggingface", release="1.2"),
    "llama-factory-2024": Launcher(name="huggingface", release="1.2"),
    "maxtext-2024": Launcher(name="maxtext", release="main"),
    "megatron-bridge-2025": Launcher(name="bridge", release="0.16"),
    "megatron-bridge-flex": Launcher(name="bridge", release="0.16"),
    "megatron-bridge-fused": Launcher(name="bridge", release="0.19"),
    "megatron-bridge-2026": Launcher(name="bridge", release="0.19"),
    "megatron-core-2025": Launcher(name="megatron", release="0.12"),
    "megatron-lm-2026": Launcher(name="megatron", release="0.19"),
    "nemo-2025": Launcher(name="bridge", release="0.13"),
    "primus-2026": Launcher(name="primus", release="0.16"),
    "torchtitan-2024": Launcher(name="torchtitan", release="0.1"),
    "torchtitan-2025": Launcher(name="torchtitan", release="0.2.2"),
    "torchtitan-eager": Launcher(name="torchtitan", release="0.2.2", options={"compiled": False}),
}
"""Launcher of each stack whose sources were read; of the others nothing is known here."""


def stack_name(strategy: Mapping[str, Any]) -> str:
    """Catalog name of the stack of a strategy, of its base where fields differ."""
    stack = strategy["stack"]
    return stack if isinstance(stack, str) else stack.get("base") or stack["name"]


def launch_faults(model: Any, strategy: Mapping[str, Any], **facts: Any) -> list[str]:
    """Rules of its stack's launcher that a plan breaks; none where the stack has none here."""
    launcher = LAUNCHERS.get(stack_name(strategy))
    return [] if launcher is None else launcher.faults(model, strategy, **facts)
