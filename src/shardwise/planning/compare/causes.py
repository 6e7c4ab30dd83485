"""Which inputs bear on which part of the step: a table, and what it says of a difference.

The table tells only what an input acts on, never how much of a difference is its own: inputs that
change together are named together. It holds what the formulas read (`step.step_times` and what it
calls); a test changes inputs one by one and finds no part that differs without a reason here.
"""

from collections.abc import Collection
from dataclasses import dataclass

from shardwise.engine.step_time import TIME_PARTS

__all__ = ["FOLDED", "FOLLOWS", "INPUTS", "PER_TOKEN", "Input", "bearing_on", "followed_by"]

_WORK = ("forward", "backward", "recompute")
_INSIDE = ("tp_comm", "cp_comm", "ep_comm")
_EXCHANGES = (*_INSIDE, "pp_comm", "dp_comm")
_STATE = ("optimizer", "dp_comm", "offload")
_ONCE = (*_STATE, "bubble")
_STAGES = (*_WORK, *_EXCHANGES, "optimizer", "offload", "bubble")
_SPLIT = (*_WORK, *_EXCHANGES, "optimizer", "offload")

FOLDED = ("zb-v", "dualpipe")
"""Schedules that lay the stages out there and back."""


@dataclass(frozen=True, slots=True)
class Input:
    """What an input is in plain words, and the parts of the step it acts on."""

    words: str
    parts: tuple[str, ...]


_LAYERS_OF_STAGES = Input("layers of the stages, and so which one is the slowest", _STAGES)
_AGAIN = ("recompute", *_INSIDE, "offload")
_OFFLOAD = Input("what waits in the second memory tier", ("offload",))
_SEATS = Input("networks that the exchanges of the axes run over", _EXCHANGES)
_ADAPTERS = Input("adapters trained in place of all weights", _SPLIT)
_SHARDS = Input("what replicas share out and gather again", _STATE)
_GATHERS = Input("when sharded weights are gathered", ("dp_comm",))
_BALANCE = Input("tokens on the fullest rank of experts", (*_WORK, "ep_comm"))

INPUTS = {
    "model": Input("the architecture", TIME_PARTS),
    "parameters": Input("the architecture, though it has the same name", TIME_PARTS),
    "system": Input("rates, networks and memory of the machine", TIME_PARTS),
    "flops_convention": Input("what MFU counts; no time", ()),
    "gpus": Input("accelerators in all; acts through the degrees", ()),
    "tp": Input("ranks that split each layer", _SPLIT),
    "tp2": Input("ranks that split each layer a second time", _SPLIT),
    "pp": Input("stages, and so the layers of each", _STAGES),
    "cp": Input("ranks that split each sequence", _SPLIT),
    "ep": Input("ranks that share the experts", (*_WORK, *_STATE, "ep_comm")),
    "etp": Input("ranks that split each expert", (*_WORK, *_STATE, "ep_comm")),
    "dp": Input("replicas, which share the batch and exchange gradients", _STATE),
    "vpp": Input("chunks of layers on each stage", ("bubble", "pp_comm")),
    "micro_batch_size": Input(
        "sequences in a pass, and so the shapes of kernels and messages",
        (*_WORK, *_INSIDE, "pp_comm", "offload"),
    ),
    "global_batch_size": Input("sequences of a step; acts through the micro-batches", ()),
    "micro_batches": Input(
        "passes of a replica, one after the other",
        (*_WORK, *_EXCHANGES, "offload", "bubble"),
    ),
    "tokens_per_step": Input(
        "tokens of all sequences, which share what is done once a step", (*_ONCE, "other")
    ),
    "seq_len": Input("tokens of a sequence", (*_WORK, *_EXCHANGES, "offload")),
    "dtype": Input("type of weights, activations and products", _SPLIT),
    "quantization": Input("type of the products, and casts to it", _SPLIT),
    "quantized_weights": Input("type in which weights are held and gathered", _STATE),
    "document_len": Input("tokens that attention looks at", (*_WORK, "cp_comm")),
    "attention": Input("heads of keys and values", _SPLIT),
    "recompute": Input("how much backward computes again instead of keeping it", _AGAIN),
    "recompute_parts": Input("parts of layers that selective recompute runs again", _AGAIN),
    "recompute_layers": Input("layers of a rank that recompute applies to", _AGAIN),
    "zero": _SHARDS,
    "dp_shard": _SHARDS,
    "fsdp_reshard": _GATHERS,
    "fsdp_prefetch": _GATHERS,
    "optimizer": Input("update rule and its state", _STATE),
    "frozen": Input("weights that are not trained", ("backward", *_INSIDE, *_STATE, "bubble")),
    "lora_rank": _ADAPTERS,
    "lora_parts": _ADAPTERS,
    "schedule": Input("order of the micro-batches", ("bubble", "pp_comm", "ep_comm")),
    "stage_layout": Input("which layers of the model stand on which rank", _STAGES),
    "first_stage_layers": _LAYERS_OF_STAGES,
    "last_stage_layers": _LAYERS_OF_STAGES,
    "stage_layers": _LAYERS_OF_STAGES,
    "embedding_as_layer": _LAYERS_OF_STAGES,
    "loss_as_layer": _LAYERS_OF_STAGES,
    "training": Input("whether there is a backward pass and an update", TIME_PARTS),
    "sequence_parallel": Input("short for tp_exchange", ()),
    "tp_exchange": Input("how ranks that split a layer share activations", _SPLIT),
    "tp_overlap": Input("what hides exchanges inside layers", ("tp_comm",)),
    "summa_panels": Input("pieces of 2D products", (*_WORK, "tp_comm")),
    "tp_regather": Input(
        "whether inputs are gathered again in backward or kept", ("tp_comm", "offload")
    ),
    "cp_exchange": Input("how ranks share keys and values", (*_WORK, "cp_comm")),
    "expert_capacity": _BALANCE,
    "expert_imbalance": _BALANCE,
    "dispatch_dtype": Input(
        "type of tokens on their way to experts", ("forward", "recompute", "ep_comm")
    ),
    "expert_overlap": Input("what hides exchanges among experts", ("ep_comm",)),
    "dp_overlap": Input("whether the exchange of gradients is hidden", ("dp_comm",)),
    "fused_activation": Input(
        "whether activations are computed again or kept", ("forward", "backward", "offload")
    ),
    "offload_weights": _OFFLOAD,
    "offload_activations": _OFFLOAD,
    "offload_parts": _OFFLOAD,
    "offload_optimizer": _OFFLOAD,
    "placement": _SEATS,
    "extents": _SEATS,
    "tp_tier": _SEATS,
    "cp_tier": _SEATS,
    "dp_tier": _SEATS,
    "pp_tier": _SEATS,
    "stack": Input("software: kernels, overlap and overheads", TIME_PARTS),
}
"""Every field of `Strategy`, and what stands beside it: what an input is, and what it acts on."""

PER_TOKEN = {"dp": _STAGES, "micro_batches": ("dp_comm", "offload", "bubble")}
"""What some inputs act on where times are those of tokens: twice the replicas take twice as many
in the same time; twice the passes make a step longer but not a token."""

FOLLOWS = {
    "bubble": (*_WORK, *_INSIDE, "pp_comm", "offload"),
    "pp_comm": _WORK,
    "dp_comm": (*_WORK, *_INSIDE, "pp_comm"),
    "offload": (*_WORK, *_INSIDE, "pp_comm", "dp_comm", "optimizer"),
    "other": tuple(part for part in TIME_PARTS if part != "other"),
}
"""Parts that change where others do: stages wait for each other's passes, exchanges and transfers
hide behind work, overheads are a share of all."""


def bearing_on(part: str, changed: Collection[str], *, per_token: bool = False) -> tuple[str, ...]:
    """Return the changed inputs that act on a part, in the order they are given.

    Parameters
    ----------
    per_token
        Whether times are those of tokens and not of steps.
    """
    instead = PER_TOKEN if per_token else {}
    acts = {name: instead.get(name, INPUTS[name].parts) for name in changed if name in INPUTS}
    return tuple(name for name, parts in acts.items() if part in parts)


def followed_by(part: str, changed: Collection[str]) -> tuple[str, ...]:
    """Return the changed parts that a part changes with."""
    return tuple(other for other in FOLLOWS.get(part, ()) if other in changed)
