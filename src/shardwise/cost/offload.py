"""Transfers between the accelerator's memory and the second tier, and what hides them.

Weights, kept activations and optimizer state of the layers may wait in the second tier (host
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
    """One layer with the transfers that bring its weights and take its activations away.

    While a layer computes, the weights of the next one come in and the activations of the one
    before go out, both at once; in backward weights and activations come in. What takes longer
    than the pass is exposed: max(0, t - pass).

    Parameters
    ----------
    layer
        Cost of one layer and one micro-batch.
    weight_bytes
        Weights of the layer on one rank [byte].
    training
        Rows that go backward; in others nothing comes back.
    weights, activations
        Rows that offload them; of activations what `LayerBytes.movable_bytes` says.
    """
    fetched = np.where(weights, weight_bytes, 0.0)
    kept = np.where(activations, layer.bytes.movable_bytes, 0.0)
    ahead = np.maximum(link_time(system, fetched), link_time(system, kept))
    back = np.where(training, link_time(system, fetched + kept), 0.0)
    times = layer.times
    transfers = replace(
        times,
        offload_forward_s=ahead,
        offload_backward_s=back,
        offload_forward_exposed_s=np.maximum(0.0, ahead - times.forward_pass_s),
        offload_backward_exposed_s=np.maximum(0.0, back - times.backward_pass_s),
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
    """Time of updating what waits in the second tier, alone and exposed [s].

    Once a step the optimizer state of a stage comes in and goes back, layer by layer, and updated
    weights that wait there go back too; alone that takes as long as the way back, the fuller one.
    Both ways run behind the last backward pass, as far as it leaves them idle, and what follows it
    (the exposed exchange among replicas, the update):
    exposed = max(0, t(state) - idle in, t(state + weights) - idle out).

    Parameters
    ----------
    state_bytes, weight_bytes
        Offloaded optimizer state, and offloaded weights, on one rank [byte].
    idle_in_s, idle_out_s
        Time for which each way of the link stands idle meanwhile [s].
    """
    alone = link_time(system, state_bytes + weight_bytes)
    late = np.maximum(link_time(system, state_bytes) - idle_in_s, alone - idle_out_s)
    return alone, np.maximum(0.0, late)
