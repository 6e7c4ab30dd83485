"""Transfers between the accelerator's memory and the second tier, and how much of them is hidden.

Weights, saved activations and optimizer state of the layers may be stored in the second tier (host
memory behind a link, as in arXiv 2101.06840). Copies are asynchronous and from and to pinned
memory. Both directions of the link may be busy at once; `HostMemory.duplex` says how much of their
rates is left then.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.system import FULL_DUPLEX, HostMemory, Memory, System
from shardwise.cost.curve import share_at
from shardwise.cost.layer_cost import LayerCost

_SECOND = 1


def link_rate(bandwidth: Floats, efficiency: Floats, shared_by: Floats) -> Floats:
    """Rate of one accelerator's copies in one direction while all accelerators copy [byte/s].

    r = B e / n

    Parameters
    ----------
    bandwidth
        B, raw rate of the link in one direction [byte/s].
    efficiency
        e, share of it that pinned copies reach.
    shared_by
        n, accelerators that share the link.
    """
    return bandwidth * efficiency / shared_by


def both_ways_time(in_s: Floats, out_s: Floats, duplex: Floats) -> Floats:
    """Time of copies in both directions at once [s].

    t = max(t_in, t_out, (t_in + t_out) / d)

    Each direction runs at its own rate at most, and the shares of their rates that both have at a
    time sum to d at most.

    Parameters
    ----------
    in_s, out_s
        t_in and t_out, time of each direction alone [s]; shape (n,).
    duplex
        d, from 1 (they take turns) to 2 (they do not slow each other down).
    """
    return np.maximum(np.maximum(in_s, out_s), (in_s + out_s) / duplex)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """What one accelerator gets of the link to a memory tier while all accelerators copy."""

    h2d: Floats
    """From the tier into the accelerator [byte/s]."""
    d2h: Floats
    """From the accelerator into the tier [byte/s]."""
    duplex: Floats
    """Progress of both directions at once over that of one, from 1 to 2."""

    @classmethod
    def of(cls, tier: Memory) -> "LinkRates":
        """Rates of a tier behind a link, of transfers as large as its `efficiency` needs."""
        host = tier.host or HostMemory()
        h2d, d2h = (
            link_rate(np.asarray(tier.bandwidth), np.asarray(share), np.asarray(host.shared_by))
            for share in (host.h2d_efficiency, host.d2h_efficiency)
        )
        return cls(h2d=h2d, d2h=d2h, duplex=np.asarray(host.duplex))


def h2d_time(system: System, moved_bytes: Floats) -> Floats:
    """Time of moving bytes from the second tier into the accelerator, alone [s].

    t = S / (r e(S)), with the rate r of the link (`link_rate`) and the tier's efficiency e for
    transfers of S bytes.

    Parameters
    ----------
    system
        Its accelerator's second memory tier is behind the link; without one the time is 0.
    moved_bytes
        S, bytes of one transfer [byte]; shape (n,).
    """
    return _time(system, moved_bytes, "h2d")


def d2h_time(system: System, moved_bytes: Floats) -> Floats:
    """Time of moving bytes from the accelerator into the second tier, alone [s]: as `h2d_time`."""
    return _time(system, moved_bytes, "d2h")


def _time(system: System, moved_bytes: Floats, direction: str) -> Floats:
    tiers = system.accelerator.memory
    if len(tiers) <= _SECOND:
        return np.zeros_like(moved_bytes)
    tier = tiers[_SECOND]
    rate: Floats = getattr(LinkRates.of(tier), direction)
    if tier.efficiency:
        rate = rate * share_at(tier.efficiency, moved_bytes)
    return moved_bytes / rate


def link_duplex(system: System) -> Floats:
    """Return the `duplex` of the link to the second tier; `FULL_DUPLEX` without one."""
    tiers = system.accelerator.memory
    return LinkRates.of(tiers[_SECOND]).duplex if len(tiers) > _SECOND else np.asarray(FULL_DUPLEX)


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
    activations
        Rows that offload activations, `LayerBytes.movable_bytes` of them; shape (n,).
    """
    fetched = np.where(weights, weight_bytes, 0.0)
    saved = np.where(activations, layer.bytes.movable_bytes, 0.0)
    forward_s = both_ways_time(
        h2d_time(system, fetched), d2h_time(system, saved), link_duplex(system)
    )
    backward_s = np.where(training, h2d_time(system, fetched + saved), 0.0)
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
    updated offloaded weights go out too; alone this takes as long as both directions at once. Both
    run while they are idle during the last backward pass and what follows it (the exposed
    data-parallel communication, the update). With t_in = t(state), t_out = t(state + weights) and
    busy = idle out - idle in, for which the backward pass uses the way in:

        exposed = max(0, t_in - idle in, t_out - idle out,
                      (t_in + t_out + busy) / d - idle out),

    the last for a duplex d below 2 alone.

    Parameters
    ----------
    system
        Its accelerator's second memory tier is behind the link.
    idle_in_s
        Time for which the link to the accelerator is idle meanwhile [s]; shape (n,).
    idle_out_s
        Time for which the link to the second tier is idle meanwhile [s]; shape (n,).
    """
    in_s, out_s = h2d_time(system, state_bytes), d2h_time(system, state_bytes + weight_bytes)
    duplex = link_duplex(system)
    late = np.maximum(in_s - idle_in_s, out_s - idle_out_s)
    busy_s = np.maximum(0.0, idle_out_s - idle_in_s)
    both_late = (in_s + out_s + busy_s) / duplex - idle_out_s
    late = np.where(duplex < FULL_DUPLEX, np.maximum(late, both_late), late)
    return both_ways_time(in_s, out_s, duplex), np.maximum(0.0, late)
