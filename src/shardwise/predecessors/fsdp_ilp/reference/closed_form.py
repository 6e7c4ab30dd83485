"""What a choice of units costs: exposed communication and peak memory, without a solver.

Modules are numbered in forward pre-order, 0 the root; column i of each array is module i, and each
row is one plan. All follow from the constraints of fsdp_ilp.py (sanketpurandare/scyther, commit
9cd9397), whose variables are fixed once the units are; nested units are counted as it counts them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.fsdp_ilp.comm import CommTimes
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All figures of each module under each plan: (plans, modules) arrays."""

    unit: Bools
    """Whether the module is a unit; the root always is."""
    p: Floats
    """Parameters that a unit gathers [GiB]; the root's are what no other unit has."""
    g: Floats
    """Gradients that a unit scatters [GiB]."""
    a: Floats
    """Activations and their gradients at the module [GiB]."""
    m: Floats
    """All memory at the module, without the prefetched unit [GiB]."""
    ag: Floats
    """All-gather of what the module gathers [ms]; its latency where that is nothing."""
    rs: Floats
    """Reduce-scatter of what the module scatters [ms]."""
    fw_ag: Floats
    """All-gather prefetched while a unit's forward pass computes [ms]."""
    bw_ag: Floats
    """The same of its backward pass [ms]; 0 for the root, where the original leaves it open."""
    bw_rs: Floats
    """Reduce-scatter while a unit's backward pass computes [ms]."""
    fcp: Floats
    """Compute time of the forward pass of the module [ms]."""
    bcp: Floats
    """Compute time of the backward pass of the module [ms]."""
    fw_e: Floats
    """Communication that the unit's forward pass does not hide [ms]."""
    bw_e: Floats
    """Communication that the unit's backward pass does not hide [ms]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A step without sharding and without recompute."""

    peak_gib: float
    compute_ms: float


def plain(info: ModuleInfo) -> Plain:
    """Peak memory and compute time of a step without sharding and without recompute.

        peak = max_i (P_0 + TG_i + AG_i + TA_i) [GiB];  time = F_0 + B_0 [ms]

    Source: sanketpurandare/scyther, commit 9cd9397, ilp_utils.py.
    """
    states = (
        info.gradient_total_bytes + info.activation_gradient_bytes + info.activation_total_bytes
    )
    return Plain(
        peak_gib=float((info.parameter_bytes[0] + states).max()) / GIB,
        compute_ms=float(info.forward_ms[0] + info.backward_ms[0]),
    )


def static_bytes(info: ModuleInfo, world_size: int) -> Floats:
    """Memory at each module whatever the units are [bytes].

        C_i = (P_0 + TG_i) / W + TA_i + AG_i

    Source: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py.
    """
    sharded = (info.parameter_bytes[0] + info.gradient_total_bytes) / world_size
    return sharded + info.activation_total_bytes + info.activation_gradient_bytes


def owned_bytes(total: Floats, units: Bools) -> Floats:
    """Parameters, or gradients, that each unit has [bytes]: (plans, modules).

        p_i = P_i x_i;  p_0 = P_0 - sum of the others

    The root's share is negative where shared tensors count twice; such a plan is not allowed.
    Source: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py.
    """
    own = np.where(units, total, 0.0)
    own[:, 0] = total[0] - own[:, 1:].sum(axis=1)
    return own


def walk_backward(info: ModuleInfo) -> Ints:
    """Modules in backward pre-order: forward post-order reversed, the root first."""
    return np.argsort(info.post_position)[::-1]


def columns(info: ModuleInfo, comm: CommTimes, world_size: int, units: ArrayLike) -> Columns:
    """Everything that the original's variables are, for many plans at once.

        ag_i = la + p_i / ba;  rs_i = lr + g_i / br
        fw_ag_i = x_i ag of the next unit in pre-order;  bw_rs_i = x_i rs of the same
        bw_ag_i = x_i ag of the next unit in backward pre-order
        fw_e_i = max(0, fw_ag_i - F_i);  bw_e_i = max(0, bw_ag_i + bw_rs_i - B_i);  0 for the root
        m_i = C_i + sum over i and its ancestors j of (p_j + g_j)

    Where no unit follows, the last module of the order stands for it, with a latency alone; what
    follows the last module itself takes nothing. Both are artifacts of the original.
    Source: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py (sections 1.3 and 1.4).

    Parameters
    ----------
    units
        Which modules are units, (plans, modules) or one plan; the root's entry is not looked at.
    """
    chosen = np.atleast_2d(np.array(units, dtype=np.bool_))
    chosen[:, 0] = True
    p = owned_bytes(info.parameter_bytes, chosen)
    g = owned_bytes(info.gradient_bytes, chosen)
    ag, rs = comm.all_gather.time_ms(p), comm.reduce_scatter.time_ms(g)
    order = np.arange(len(info.names))
    fw_ag = _of_next(ag, chosen, order)
    bw_rs = _of_next(rs, chosen, order)
    bw_ag = _of_next(ag, chosen, walk_backward(info))
    bw_ag[:, 0] = 0.0
    fw_e = np.where(chosen, np.maximum(0.0, fw_ag - info.forward_ms), 0.0)
    bw_e = np.where(chosen, np.maximum(0.0, bw_ag + bw_rs - info.backward_ms), 0.0)
    fw_e[:, 0] = bw_e[:, 0] = 0.0
    activations = info.activation_total_bytes + info.activation_gradient_bytes
    return Columns(
        unit=chosen,
        p=p / GIB,
        g=g / GIB,
        a=np.broadcast_to(activations / GIB, p.shape),
        m=(static_bytes(info, world_size) + _along_ancestors(p + g, info.end)) / GIB,
        ag=ag,
        rs=rs,
        fw_ag=fw_ag,
        bw_ag=bw_ag,
        bw_rs=bw_rs,
        fcp=np.broadcast_to(info.forward_ms, p.shape),
        bcp=np.broadcast_to(info.backward_ms, p.shape),
        fw_e=fw_e,
        bw_e=bw_e,
    )


def _of_next(times: Floats, units: Bools, order: Ints) -> Floats:
    """For each unit the time of the unit after it in an order; 0 for all else."""
    last = order.size - 1
    places = np.where(units[:, order], np.arange(order.size), last)
    upcoming = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    result = np.zeros_like(times)
    following = np.take_along_axis(times, order[upcoming[:, 1:]], axis=1)
    result[:, order[:last]] = np.where(units[:, order[:last]], following, 0.0)
    return result


def _along_ancestors(own: Floats, end: Ints) -> Floats:
    """Sum over each module and its ancestors."""
    steps = np.zeros((own.shape[1] + 1, own.shape[0]))
    steps[:-1] = own.T
    np.subtract.at(steps, end, own.T)
    return np.cumsum(steps, axis=0)[:-1].T


def exposed_ms(found: Columns) -> Floats:
    """Communication that no compute hides, of each plan [ms].

        sum of fw_e and bw_e + ag_0 + rs_0 + fw_ag_0 + bw_rs_0

    Source: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py.
    """
    units: Floats = (found.fw_e + found.bw_e).sum(axis=1)
    root: Floats = (found.ag + found.rs + found.fw_ag + found.bw_rs)[:, 0]
    return units + root


def peak_gib(found: Columns) -> Floats:
    """Peak memory of each plan [GiB].

        max_i m_i + 2 max_i p_i

    The second term is for the prefetched unit, and for its buffers.
    Source: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py.
    """
    most: Floats = found.m.max(axis=1)
    largest: Floats = found.p.max(axis=1)
    return most + 2 * largest
