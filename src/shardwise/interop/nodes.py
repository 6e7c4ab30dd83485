"""Nodes that a plan runs on, and its comments, for launch commands."""

from collections.abc import Iterable

from shardwise.config.system import System


def nodes_of(system: System, gpus: int) -> tuple[int, int]:
    """Return the nodes of a plan and the accelerators that it uses of each.

    Parameters
    ----------
    system
        Nodes are its own; a plan that fills them unevenly uses fewer accelerators of each.
    gpus
        Accelerators of the plan.
    """
    per_node = min(system.node.accelerators, gpus)
    while gpus % per_node:
        per_node -= 1
    return gpus // per_node, per_node


def as_comments(lines: Iterable[str]) -> str:
    """Return lines as comments of a shell script, Python or YAML."""
    return "".join(f"# {part}".rstrip() + "\n" for line in lines for part in line.splitlines())
