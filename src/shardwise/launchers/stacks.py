"""The stack of each launcher: its own software, in the release that its files are written for."""

from shardwise.analysis.validated_runs import software_of

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


def launcher_of_stack(stack: str) -> str | None:
    """Return the name of the launcher of a stack: that of its software, or of its own name."""
    if stack in STACKS:
        return stack
    software = software_of(stack)
    return next((name for name, one in STACKS.items() if software_of(one) == software), None)
