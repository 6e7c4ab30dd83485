"""Which inputs bear on which part of the step: a table, and what it says of a difference.

The table says only what an input acts on, never how much of a difference is its own: inputs that
change together are named together. It holds what the formulas read (`step.step_times` and what it
calls); a test changes inputs one by one and finds no part that differs without a reason here.
"""

from collections.abc import Collection
from dataclasses import dataclass

from shardwise.config.roles import (
    ALL_TIME,
    COMMUNICATION,
    COMPUTE,
    INSIDE_LAYERS,
    ONCE_PER_STEP,
    STAGES,
)
from shardwise.config.strategy_fields import FIELDS
from shardwise.engine.step_time import TIME_PARTS

FOLDED = ("zb-v", "dualpipe")
"""Schedules that lay the stages out there and back."""


@dataclass(frozen=True, slots=True)
class Input:
    """What an input is in plain words, and the parts of the step it acts on."""

    words: str
    parts: tuple[str, ...]


INPUTS = {
    "model": Input("the architecture", ALL_TIME),
    "parameters": Input("the architecture, though it has the same name", ALL_TIME),
    "system": Input("rates, networks and memory of the machine", ALL_TIME),
    "flops_convention": Input("what MFU counts; no time", ()),
    "micro_batches": Input(
        "micro-batches of a replica, one after the other",
        (*COMPUTE, *COMMUNICATION, "offload", "bubble"),
    ),
    "tokens_per_step": Input(
        "tokens of all sequences, which share what is done once per step",
        (*ONCE_PER_STEP, "bubble", "other"),
    ),
    "stage_layout": Input("which layers of the model are on which rank", STAGES),
} | {name: Input(field.about, field.role.acts_on) for name, field in FIELDS.items()}
"""Every field of `Strategy` and what else changes the step: what an input is, what it acts on."""

PER_TOKEN = {"dp": STAGES, "micro_batches": ("dp_comm", "offload", "bubble")}
"""What some inputs act on where times are those of tokens: twice the replicas take twice as many
in the same time; twice the passes make a step longer but not a token."""

FOLLOWS = {
    "bubble": (*COMPUTE, *INSIDE_LAYERS, "pp_comm", "offload"),
    "pp_comm": COMPUTE,
    "dp_comm": (*COMPUTE, *INSIDE_LAYERS, "pp_comm"),
    "offload": (*COMPUTE, *INSIDE_LAYERS, "pp_comm", "dp_comm", "optimizer"),
    "other": tuple(part for part in TIME_PARTS if part != "other"),
}
"""Parts that change where others do: stages wait for each other's passes, collectives and transfers
hide behind work, overheads are a share of all."""


def bearing_on(part: str, changed: Collection[str], *, per_token: bool = False) -> tuple[str, ...]:
    """Return the changed inputs that act on a part, in the order of the inputs."""
    instead = PER_TOKEN if per_token else {}
    acts = {name: instead.get(name, INPUTS[name].parts) for name in changed if name in INPUTS}
    return tuple(name for name, parts in acts.items() if part in parts)


def followed_by(part: str, changed: Collection[str]) -> tuple[str, ...]:
    """Return the changed parts that a part changes with."""
    return tuple(other for other in FOLLOWS.get(part, ()) if other in changed)
