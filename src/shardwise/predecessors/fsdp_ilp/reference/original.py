"""The published program as it was written: 17 n + 2 variables, implications by a big M.

Source of all constraints: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py (section 1.3).
"""

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.fsdp_ilp.comm import CommTimes, Line
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo
from shardwise.predecessors.fsdp_ilp.reference.closed_form import GIB, static_bytes, walk_backward
from shardwise.predecessors.fsdp_ilp.reference.milp import Builder, Milp

BIG_M = 1000.0
"""[ms]. Fault reproduced (1.8.2): plans with a longer collective are cut off."""


def original(
    info: ModuleInfo,
    comm: CommTimes,
    world_size: int,
    budget_gib: float,
    *,
    allowed: Bools,
    fixed: Bools | None = None,
) -> tuple[Milp, Ints]:
    """Return the program in GiB and ms, and the columns of x, one for each module.

    Parameters
    ----------
    allowed
        Modules that may be units; x of the others is 0.
    fixed
        The units, if they are set; nested ones are not refused then (fault reproduced, 1.8.11).
    """
    builder = Builder()
    size = len(info.names)
    low = np.zeros(size) if fixed is None else fixed.astype(np.float64)
    high = allowed.astype(np.float64) if fixed is None else low.copy()
    low[0] = high[0] = 1.0
    x = builder.columns(size, lower=low, upper=high, integer=True)
    if fixed is None:
        _no_nesting(builder, info, x)
    p = _owned(builder, info.parameter_bytes / GIB, x)
    g = _owned(builder, info.gradient_bytes / GIB, x)
    _memory(builder, info, world_size, budget_gib, p, g)
    ag = _collective(builder, comm.all_gather, p)
    rs = _collective(builder, comm.reduce_scatter, g)
    forward, backward = np.arange(size), walk_backward(info)
    fw_ag = _chain(builder, x, ag, forward)
    bw_ag = _chain(builder, x, ag, backward, with_root=False)
    bw_rs = _chain(builder, x, rs, forward)
    _exposed(builder, x, [fw_ag], info.forward_ms)
    _exposed(builder, x, [bw_ag, bw_rs], info.backward_ms)
    return builder.build(), x


def _no_nesting(builder: Builder, info: ModuleInfo, x: Ints) -> None:
    """x_i + x_j <= 1 for each module j inside module i, without the root."""
    for i in range(1, x.size):
        inside = x[i + 1 : info.end[i]]
        if inside.size:
            pairs = np.column_stack([np.full(inside.size, x[i]), inside])
            builder.rows(pairs, 1.0, upper=1.0)


def _owned(builder: Builder, total: Floats, x: Ints) -> Ints:
    """p_i = P_i x_i; p_0 = P_0 - sum of the others [GiB]."""
    own = builder.columns(x.size)
    if x.size > 1:
        factors = np.column_stack([np.ones(x.size - 1), -total[1:]])
        builder.rows(np.column_stack([own[1:], x[1:]]), factors, lower=0.0, upper=0.0)
    builder.rows(own, 1.0, lower=total[0], upper=total[0])
    return own


def _memory(
    builder: Builder, info: ModuleInfo, world_size: int, budget: float, p: Ints, g: Ints
) -> None:
    """m_i = C_i + owned along the ancestors; max_m >= m_i; max_p >= p_i; max_m + 2 max_p <= M."""
    size = p.size
    a, m = builder.columns(size), builder.columns(size)
    max_m, max_p = builder.column(), builder.column()
    activations = (info.activation_total_bytes + info.activation_gradient_bytes) / GIB
    builder.rows(a[:, None], 1.0, lower=activations, upper=activations)
    states = static_bytes(info, world_size) / GIB - activations
    for i in range(size):
        above = [j for j in range(i + 1) if info.end[j] > i]
        entries = np.concatenate([[m[i], a[i]], p[above], g[above]])
        factors = np.concatenate([[1.0, -1.0], np.full(2 * len(above), -1.0)])
        builder.rows(entries, factors, lower=states[i], upper=states[i])
    builder.rows(_pairs(max_m, m), [1.0, -1.0], lower=0.0)
    builder.rows(_pairs(max_p, p), [1.0, -1.0], lower=0.0)
    builder.rows([max_m, max_p], [1.0, 2.0], upper=budget)


def _collective(builder: Builder, line: Line, own: Ints) -> Ints:
    """ag_i = la + p_i / ba [ms]; the root's is part of the objective."""
    time = builder.columns(own.size, cost=np.arange(own.size) == 0)
    factors = [1.0, -GIB / line.bytes_per_ms]
    entries = np.column_stack([time, own])
    builder.rows(entries, factors, lower=line.latency_ms, upper=line.latency_ms)
    return time


def _chain(builder: Builder, x: Ints, time: Ints, order: Ints, *, with_root: bool = True) -> Ints:
    """Time of the unit after each unit in an order, 0 for modules that are none.

    t = time_i if x_i else t of the next module, whose last is time itself; then hidden = x_i t of
    the next module, 0 for the last. Each by two or four rows with the big M.
    """
    size = order.size
    cost = (np.arange(size) == 0) & with_root
    t, hidden = builder.columns(size), builder.columns(size, cost=cost)
    last = order[-1]
    builder.rows([t[last], time[last]], [1.0, -1.0], lower=0.0, upper=0.0)
    here, after = order[1:-1], order[2:]
    if here.size:
        passed = np.column_stack([t[here], t[after], x[here]])
        builder.rows(passed, [1.0, -1.0, -BIG_M], upper=0.0)
        builder.rows(passed, [1.0, -1.0, BIG_M], lower=0.0)
        own = np.column_stack([t[here], time[here], x[here]])
        builder.rows(own, [1.0, -1.0, BIG_M], upper=BIG_M)
        builder.rows(own, [1.0, -1.0, -BIG_M], lower=-BIG_M)
    builder.rows([hidden[last]], 1.0, lower=0.0, upper=0.0)
    first = 0 if with_root else 1
    here, after = order[first:-1], order[first + 1 :]
    if here.size:
        _product(builder, x[here], t[after], hidden[here])
    return hidden


def _product(builder: Builder, x: Ints, factor: Ints, result: Ints) -> None:
    """Result = x factor, for a factor of at most M."""
    builder.rows(np.column_stack([result, x]), [1.0, -BIG_M], upper=0.0)
    builder.rows(np.column_stack([result, factor]), [1.0, -1.0], upper=0.0)
    above = np.column_stack([result, factor, x])
    builder.rows(above, [1.0, -1.0, -BIG_M], lower=-BIG_M)


def _exposed(builder: Builder, x: Ints, hidden: list[Ints], compute: Floats) -> None:
    """e_i = x_i max(0, hidden_i - compute_i), summed up in the objective; 0 for the root."""
    size = x.size
    t = builder.columns(size)
    e = builder.columns(size, cost=np.arange(size) > 0)
    builder.rows([e[0]], 1.0, lower=0.0, upper=0.0)
    if size > 1:
        entries = np.column_stack([t, *hidden])[1:]
        factors = [1.0, *[-1.0] * len(hidden)]
        builder.rows(entries, factors, lower=-compute[1:])
        _product(builder, x[1:], t[1:], e[1:])


def _pairs(one: int, many: Ints) -> Ints:
    return np.column_stack([np.full(many.size, one), many])
