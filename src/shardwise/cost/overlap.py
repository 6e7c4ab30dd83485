"""What compute hides: communication of replicas and of experts, and transfers of offload.

Weights, saved activations and optimizer state of the layers may be stored in the second tier (host
memory behind a link, as in arXiv 2101.06840). Copies are asynchronous and from and to pinned
memory. Both directions of the link may be busy at once; `HostMemory.duplex` says how much of their
rates is left then.
"""

from functools import partial

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.system import FULL_DUPLEX, HostMemory, Memory, System
from shardwise.cost.collective import collective_time
from shardwise.cost.curve import share_at
from shardwise.cost.layer_cost import (
    LayerCommunication,
    LayerCost,
    LayerWork,
    passes_with_host,
)
from shardwise.ops.operation import CollectiveKind
from shardwise.records import dataclass, replace


def with_expert_overlap(
    layer: LayerCost,
    work: LayerWork,
    communication: LayerCommunication,
    *,
    training: Bools,
    rows: Bools,
    by_nodes: Bools,
    processor_share: Floats,
) -> LayerCost:
    """Hide communication of a layer's experts behind compute of paired micro-batches.

    The forward pass of one micro-batch runs with the backward pass of another; what of the
    communication of each is exposed behind the other's compute is that of `exposed_behind`. In
    DualPipe the window is all compute of both passes (arXiv 2412.19437, section 3.2.1), and the
    exposed time is divided in proportion. Megatron-Core hides phase by phase (`exposed_by_phase`),
    and its host launches each layer as nodes, which takes `LayerWork.nodes_s` each way. The host
    runs ahead only during what stays exposed.

    Parameters
    ----------
    rows
        Rows that overlap communication of experts; shape (n,).
    by_nodes
        Those of them that do so node by node; shape (n,).
    processor_share
        u, share of the processor; shape (n,).
    """
    if not np.any(rows):
        return layer
    times = layer.times
    hosted = partial(
        passes_with_host,
        work,
        communication,
        training=training,
        nodes_s=np.where(by_nodes, work.nodes_s, 0.0),
    )
    sent = times.exposed_forward_s.ep, times.exposed_backward_s.ep
    windows = _windows(work, hosted(expert_shares=(0.0, 0.0)), times.recompute_s)
    by_phase = exposed_by_phase(sent, *windows, processor_share=processor_share)
    compute = total(windows, times.recompute_s)
    all_sent = total(sent, times.recompute_s)
    together = _share(exposed_behind(all_sent, compute, processor_share), all_sent)
    shares = [
        np.where(rows, np.where(by_nodes, _share(own, one), together), 1.0)
        for own, one in zip(by_phase, sent, strict=True)
    ]
    forward_s, backward_s = hosted(expert_shares=shares)
    exposed = [
        replace(side, ep=side.ep * share)
        for side, share in zip(
            (times.exposed_forward_s, times.exposed_backward_s), shares, strict=True
        )
    ]
    times = replace(
        times,
        forward_s=forward_s,
        backward_s=backward_s,
        weight_grad_s=backward_s * work.weight_grad_share,
        exposed_forward_s=exposed[0],
        exposed_backward_s=exposed[1],
    )
    return replace(layer, times=times)


def _share(part: Floats, all_of_it: Floats) -> Floats:
    return part / np.where(all_of_it > 0, all_of_it, 1.0)


def _windows(
    work: LayerWork, passes: tuple[Floats, Floats], recompute_s: Floats
) -> tuple[Floats, Floats, Floats]:
    """Compute of attention forward, of experts both ways, and of attention backward [s].

    Each takes the share of its kernels of its pass with the host. Recompute runs with attention.
    """
    forward_s, backward_s = passes
    attention_s = forward_s * _share(work.dense_forward_s, work.forward.kernels_s)
    attention_back_s = backward_s * _share(work.dense_backward_s, work.backward.kernels_s)
    experts_s = forward_s - attention_s + backward_s - attention_back_s
    return attention_s, experts_s, attention_back_s + recompute_s


def exposed_behind(time_s: Floats, window_s: Floats, processor_share: Floats) -> Floats:
    """Exposed time of communication t behind compute W, of which it uses the share u [s].

    t - (1 - u) min(t, W / (1 - u))

    Parameters
    ----------
    time_s
        t, the communication alone [s]; shape (n,).
    window_s
        W, the compute alone [s]; shape (n,).
    processor_share
        u; shape (n,).
    """
    return time_s - np.minimum(time_s * (1 - processor_share), window_s)


def exposed_by_phase(
    sent: tuple[Floats, Floats],
    attention_s: Floats,
    experts_s: Floats,
    attention_back_s: Floats,
    *,
    processor_share: Floats,
) -> tuple[Floats, Floats]:
    """Exposed communication of experts forward and backward, hidden phase by phase [s].

        communication | combine backward  | dispatch forward, dispatch backward | combine forward
        compute       | attention forward | experts backward, experts forward   | attention backward

    Each phase exposes what `exposed_behind` says. Dispatch and combine take half of the
    communication of their pass each. Order of Megatron-Core (model_chunk_schedule_plan.py,
    `TransformerLayerSchedulePlan.run`) and of arXiv 2412.19437, figure 4.

    Parameters
    ----------
    sent
        Communication of experts forward and backward, alone [s]; each of shape (n,).
    attention_s, experts_s, attention_back_s
        Compute of the phases [s]; shape (n,).
    processor_share
        Share of the processor that communication uses; shape (n,).
    """
    forward, backward = sent
    behind = partial(exposed_behind, processor_share=processor_share)
    dispatch_s = (forward + backward) / 2
    share = _share(behind(dispatch_s, experts_s), dispatch_s)
    return (
        share * forward / 2 + behind(forward / 2, attention_back_s),
        share * backward / 2 + behind(backward / 2, attention_s),
    )


def gradient_communication(
    system: System,
    *,
    gradient_bytes: Floats,
    weight_bytes: Floats,
    sharded: Bools,
    extents: Ints,
) -> tuple[Floats, Floats]:
    """Time of reducing gradients, and of gathering weights, among replicas of a stage, alone [s].

    Unsharded: all-reduce of the gradients. Sharded optimizer state (ZeRO-1, arXiv 1910.02054):
    reduce-scatter of the gradients, each member updates its shard, all-gather of the weights.

    Parameters
    ----------
    extents
        Of the replicas; shape (tiers, rows).
    """

    def time(kind: CollectiveKind, buffer: Floats) -> Floats:
        return collective_time(system, kind, buffer, extents)

    zero = np.zeros_like(gradient_bytes)
    reduced = zero if sharded.all() else time(CollectiveKind.ALL_REDUCE, gradient_bytes)
    scattered, gathered = zero, zero
    if sharded.any():
        scattered = time(CollectiveKind.REDUCE_SCATTER, gradient_bytes)
        gathered = time(CollectiveKind.ALL_GATHER, weight_bytes)
    return np.where(sharded, scattered, reduced), np.where(sharded, gathered, 0.0)


def exposed_communication(
    time_s: Floats,
    window_s: Floats,
    *,
    contention: Floats,
    tail: Floats,
    processor_share: Floats,
) -> Floats:
    """Exposed time of communication that runs behind compute [s].

    Behind compute it runs at `contention` of its speed, so a window W hides at most contention x W
    of it; of what is hidden, the share `tail` (first and last bucket) finds nothing to hide behind.
    While it runs it uses the share u of the processor, and the compute takes longer.
    hidden = min(t, contention W / (1 - u)) (1 - tail); exposed = t - hidden + u hidden.

    Parameters
    ----------
    time_s
        t, the communication alone [s]; shape (n,).
    window_s
        W, compute that it may run behind [s]; shape (n,).
    contention
        Share of its speed that communication reaches behind compute; shape (n,).
    tail
        Share of the hidden time in the first and the last bucket; shape (n,).
    processor_share
        u.
    """
    window_s = window_s / (1 - processor_share)
    hidden = np.minimum(time_s, contention * window_s) * (1 - tail)
    return time_s - hidden * (1 - processor_share)


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
