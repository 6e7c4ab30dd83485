"""The stack of each launcher: its own software, in the release that its files are written for."""

from shardwise.analysis.validated_runs import software_of
from shardwise.config.software.resolve import is_description
from shardwise.config.software.words import software_of as described

STACKS = {
    "llama-factory": "accelerate-2026",
    "axolotl": "accelerate-2026",
    "trl": "accelerate-2026",
    "automodel": "automodel-2025",
    "deepspeed": "deepspeed-2026",
    "accelerate": "accelerate-2026",
    "torchtitan": "torchtitan-2025",
    "megatron-bridge": "megatron-bridge-2026",
    "megatron": "megatron-lm-2026",
}
"""By launcher, in the order in which they recognize a file; read without importing a launcher."""


# Trainers whose launchers have other names.
_OF_TRAINERS = {"megatron-lm": "megatron", "transformers": "trl"}


def launcher_of_stack(stack: str) -> str | None:
    """Return the name of the launcher of a stack, by its name or as software is described."""
    if stack in STACKS:
        return stack
    if is_description(stack):
        trainer = described(stack).trainer
        name = _OF_TRAINERS.get(trainer, trainer)
        return name if name in STACKS else None
    software = software_of(stack)
    return next((name for name, one in STACKS.items() if software_of(one) == software), None)
