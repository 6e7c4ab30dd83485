"""Transfers between the accelerator's memory and the second tier, and how much of them is hidden.

Weights, saved activations and optimizer state of the layers may be stored in the second tier (host
memory behind a link, as in arXiv 2101.06840). The link works in both directions at once.
"""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.system import System
from shardwise.cost.curve import share_at
from shardwise.cost.layer_cost import LayerCost

_SECOND = 1


def link_time(system: System, moved_bytes: Floats) -> Floats:
    """Time of moving bytes over the link to the second tier, one direction [s].

    t = S / (B e(S)), with the tier's bandwidth B and its efficiency e for transfers of S bytes.

    Parameters
    ----------
    system
        Its accelerator's second memory tier is the link; without one the time is 0.
    moved_bytes
        S, bytes of one transfer [byte]; shape (n,).
    """
    tiers = system.accelerator.memory
    if len(tiers) <= _SECOND:
        return np.zeros_like(moved_bytes)
    tier = tiers[_SECOND]
    rate = tier.bandwidth * (share_at(tier.efficiency, moved_bytes) if tier.efficiency else 1.0)
    return moved_bytes / rate


def with_offload(
    system: System,
    layer: LayerCost,
    *,
    weight_bytes: Floats,
    training: Bools,
    weights: Bools,
    activations: Bools,
) -> LayerCost:
    """Cost of one layer with the transfers of its weights and activations.

    While a layer computes, the weights of the next one come in and the activations of the previous
    one go out concurrently; in backward weights and activations come in. Time beyond that of the
    pass is exposed: max(0, t - pass).

    Parameters
    ----------
    system
        Its accelerator's second memory tier is the link.
    layer
        Cost of one layer and one micro-batch; columns of shape (n,).
    weight_bytes
        Weights of the layer on one rank [byte]; shape (n,).
    training
        Rows with a backward pass; shape (n,).
    weights
        Rows that offload weights; shape (n,).
    activations
        Rows that offload activations, `LayerBytes.movable_bytes` of them; shape (n,).
    """
    fetched = np.where(weights, weight_bytes, 0.0)
    saved = np.where(activations, layer.bytes.movable_bytes, 0.0)
    forward_s = np.maximum(link_time(system, fetched), link_time(system, saved))
    backward_s = np.where(training, link_time(system, fetched + saved), 0.0)
    times = layer.times
    transfers = replace(
        times,
        offload_forward_s=forward_s,
        offload_backward_s=backward_s,
        offload_forward_exposed_s=np.maximum(0.0, forward_s - times.forward_pass_s),
        offload_backward_exposed_s=np.maximum(0.0, backward_s - times.backward_pass_s),
    )
    return replace(layer, times=transfers)


def optimizer_transfer(
    system: System,
    *,
    state_bytes: Floats,
    weight_bytes: Floats,
    idle_in_s: Floats,
    idle_out_s: Floats,
) -> tuple[Floats, Floats]:
    """Time of the transfers of an offloaded optimizer update, alone and exposed [s].

    Once a step the optimizer state of a stage comes in and goes out again, layer by layer, and
    updated offloaded weights go out too; alone this takes as long as the way out, which moves more
    bytes. Both directions run while they are idle during the last backward pass and what follows it
    (the exposed data-parallel communication, the update):
    exposed = max(0, t(state) - idle in, t(state + weights) - idle out).

    Parameters
    ----------
    system
        Its accelerator's second memory tier is the link.
    state_bytes
        Offloaded optimizer state on one rank [byte]; shape (n,).
    weight_bytes
        Offloaded weights on one rank [byte]; shape (n,).
    idle_in_s
        Time for which the link to the accelerator is idle meanwhile [s]; shape (n,).
    idle_out_s
        Time for which the link to the second tier is idle meanwhile [s]; shape (n,).
    """
    alone = link_time(system, state_bytes + weight_bytes)
    late = np.maximum(link_time(system, state_bytes) - idle_in_s, alone - idle_out_s)
    return alone, np.maximum(0.0, late)
