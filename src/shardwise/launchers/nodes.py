"""Nodes that a plan runs on, and its comments, for launch commands."""

from collections.abc import Iterable, Iterator

from shardwise.config.strategy import Strategy
from shardwise.config.system import System


def nodes_of(system: System, gpus: int) -> tuple[int, int]:
    """Return the nodes of a plan and the accelerators that it uses of each.

    Parameters
    ----------
    system
        Nodes are its own; a plan that fills them unevenly uses fewer accelerators of each.
    """
    per_node = min(system.node.accelerators, gpus)
    while gpus % per_node:
        per_node -= 1
    return gpus // per_node, per_node


def as_comments(lines: Iterable[str]) -> str:
    """Return lines as comments of a shell script, Python or YAML."""
    return "".join(f"# {part}".rstrip() + "\n" for line in lines for part in line.splitlines())


def trained_in_code(strategy: Strategy) -> Iterator[str]:
    """Yield what the code of the model decides about trained weights, not its launch file."""
    if strategy.lora_rank is not None:
        parts = ", ".join(strategy.lora_parts)
        yield f"LoRA adapters of rank {strategy.lora_rank} on {parts}: PEFT wraps the model"
    if strategy.frozen:
        yield f"frozen: {', '.join(strategy.frozen)}: requires_grad_(False) in the model's code"
