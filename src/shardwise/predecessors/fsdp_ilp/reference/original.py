"""The published program as it was written: 17 n + 2 variables, implications by a big M.

Source of all constraints: sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py (section 1.3).

The same program without a big M: which size the next unit has, as a flow along the modules.

In place of a time that jumps, each place of an order carries for each distinct size of units the
0-1 quantity "the next unit has this size"; a unit uses it, any other module passes it on. The
optimum is that of the original where its M is no limit; the linear relaxation is nearly tight.
Costs are those of fsdp_ilp.py (sanketpurandare/scyther, commit 9cd9397; section 3.1).
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Distinct sizes of units; the first is of nothing, which stands in where no unit follows."""

    of: Ints
    """Size of each module."""
    gather: Floats
    """All-gather of each size [ms]."""
    scatter: Floats
    """Reduce-scatter of each size [ms]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The sizes of next units along one order."""

    first: Ints
    """Columns "the first unit of the order has size c"."""
    next_size: Ints
    """Columns "module i is a unit, and the next one has size c": (modules, sizes)."""


def flow(
    info: ModuleInfo, comm: CommTimes, world_size: int, budget_gib: float, *, allowed: Bools
) -> tuple[Milp, Ints]:
    """Return the program in GiB and ms, and the columns of x, one for each module."""
    builder = Builder()
    # Modules that could be a unit if all others needed nothing.
    states = info.parameter_bytes + info.gradient_bytes + _most_inside(info, world_size)
    fits: Bools = states + 2 * info.parameter_bytes <= (budget_gib + 1e-6) * GIB
    able = allowed & fits
    able[0] = False  # the root is one in any case; its terms are written apart
    # What each unit saves of the root's collectives: P / ba + G / br [ms].
    gather = info.parameter_bytes / comm.all_gather.bytes_per_ms
    scatter = info.gradient_bytes / comm.reduce_scatter.bytes_per_ms
    x = builder.columns(able.size, upper=able, integer=True, cost=-gather - scatter)
    _antichain_and_memory(builder, info, world_size, budget_gib, x)
    sizes = _sizes(info, comm, able)
    forward = np.flatnonzero(able)
    backward = walk_backward(info)
    backward = backward[able[backward]]
    forward_chain = _flow_chain(builder, x, sizes, forward)
    backward_chain = _flow_chain(builder, x, sizes, backward)
    last = able.size - 1, int(walk_backward(info)[-1])
    _costs(builder, info, sizes, x[forward], forward, forward_chain, backward_chain, last)
    # The root's own collectives do not depend on any variable but x, whose cost is its gain.
    root = comm.all_gather.time_ms(info.parameter_bytes[0])
    root += comm.reduce_scatter.time_ms(info.gradient_bytes[0])
    builder.columns(1, cost=root, lower=1.0, upper=1.0)
    return builder.build(), x


def _most_inside(info: ModuleInfo, world_size: int) -> Floats:
    """Max of C over each subtree [bytes]."""
    static = static_bytes(info, world_size)
    return np.array([static[i:end].max() for i, end in enumerate(info.end.tolist())])


def _sizes(info: ModuleInfo, comm: CommTimes, able: Bools) -> _Sizes:
    pairs = np.column_stack([info.parameter_bytes, info.gradient_bytes])
    pairs[~able] = 0.0
    distinct, of = np.unique(np.vstack([[0.0, 0.0], pairs]), axis=0, return_inverse=True)
    return _Sizes(
        of=of.ravel()[1:],
        gather=comm.all_gather.time_ms(distinct[:, 0]),
        scatter=comm.reduce_scatter.time_ms(distinct[:, 1]),
    )


def _flow_chain(builder: Builder, x: Ints, sizes: _Sizes, order: Ints) -> _Chain:
    """Flow of the sizes from the end of an order to its beginning.

    With y(k, c) "the first unit at place k or after it has size c", z(k, c) what the unit at
    place k uses, and i the module at k, of size c(i):

        y(k + 1, c) = z(k, c) + y(k, c) - [c = c(i)] x_i;  sum over c of z(k, c) = x_i
        y(k, c(i)) >= x_i;  at the end the size of nothing

    For x_i of 0 or 1 it follows that z = x_i y(k + 1) and y(k) = y(k + 1) or the size of i itself.
    """
    places, kinds = order.size, sizes.gather.size
    end = np.arange(kinds) == 0
    lower, upper = np.zeros((places + 1, kinds)), np.ones((places + 1, kinds))
    lower[-1] = upper[-1] = end
    y = builder.columns((places + 1, kinds), lower=lower, upper=upper)
    z = builder.columns((places, kinds), upper=1.0)
    next_size = np.full((x.size, kinds), -1, dtype=np.int64)
    next_size[order] = z
    if places:
        own = sizes.of[order][:, None] == np.arange(kinds)
        unit = np.broadcast_to(x[order][:, None], own.shape)
        entries = np.stack([y[1:], z, y[:-1], unit], axis=-1).reshape(-1, 4)
        factors = np.ones((places, kinds, 4)) * [1.0, -1.0, -1.0, 0.0]
        factors[..., 3] = own
        builder.rows(entries, factors.reshape(-1, 4), lower=0.0, upper=0.0)
        builder.rows(np.column_stack([z, x[order]]), [1.0] * kinds + [-1.0], lower=0.0, upper=0.0)
        reached = y[np.arange(places), sizes.of[order]]
        builder.rows(np.column_stack([reached, x[order]]), [1.0, -1.0], lower=0.0)
    return _Chain(first=y[0], next_size=next_size)


def _costs(
    builder: Builder,
    info: ModuleInfo,
    sizes: _Sizes,
    x: Ints,
    able: Ints,
    forward_chain: _Chain,
    backward_chain: _Chain,
    last: tuple[int, int],
) -> None:
    """Exposed time of the first unit, of forward and of backward passes [ms].

        first       A(c) + R(c) of the first unit's size
        forward     sum over c of z(i, c) max(0, A(c) - F_i)
        backward    e_i >= sum over c of z'(i, c) A(c) + sum over c of z(i, c) R(c) - B_i x_i

    with z along the forward, z' along the backward order. What follows the last module of either
    order has no time, not even a latency (an artifact of the original).
    """
    if last[0] > 0:  # the root alone has nothing to fetch
        builder.pay(forward_chain.first, sizes.gather + sizes.scatter)
    if not able.size:
        return
    gather = np.tile(sizes.gather, (able.size, 1))
    scatter = np.tile(sizes.scatter, (able.size, 1))
    back = gather.copy()
    gather[able == last[0], 0] = scatter[able == last[0], 0] = 0.0
    back[able == last[1], 0] = 0.0
    z, backward_z = forward_chain.next_size[able], backward_chain.next_size[able]
    builder.pay(z, np.maximum(0.0, gather - info.forward_ms[able][:, None]))
    e = builder.columns(able.size, cost=1.0)
    compute = info.backward_ms[able]
    entries = np.column_stack([e, backward_z, z, x])
    builder.rows(
        entries, np.column_stack([np.ones(able.size), -back, -scatter, compute]), lower=0.0
    )


def _antichain_and_memory(
    builder: Builder, info: ModuleInfo, world_size: int, budget: float, x: Ints
) -> None:
    """No unit inside another, and the budget [GiB], by one row for each path to a leaf.

        sum of x_j <= 1;  s >= sum of P_j x_j;  s >= p_0
        h >= sum of max(0, P_j + G_j + max C inside j - max C) x_j;  p_0, g_0 >= 0
        p_0 + g_0 + max C + h + 2 s <= M

    over the j of the path, of which at most one is a unit.
    """
    parameters, gradients = info.parameter_bytes / GIB, info.gradient_bytes / GIB
    inside = _most_inside(info, world_size) / GIB
    over = np.maximum(0.0, parameters + gradients + inside - inside[0])
    largest, excess = builder.column(), builder.column()
    for path in _paths(info):
        columns = x[path]
        builder.rows(columns, 1.0, upper=1.0)
        builder.rows([largest, *columns], [1.0, *-parameters[path]], lower=0.0)
        builder.rows([excess, *columns], [1.0, *-over[path]], lower=0.0)
    builder.rows([largest, *x[1:]], [1.0, *parameters[1:]], lower=parameters[0])
    builder.rows(x[1:], parameters[1:], upper=parameters[0])
    builder.rows(x[1:], gradients[1:], upper=gradients[0])
    rest = parameters[0] + gradients[0] + inside[0]
    owned = -(parameters + gradients)[1:]
    builder.rows([excess, largest, *x[1:]], [1.0, 2.0, *owned], upper=budget - rest)


def _paths(info: ModuleInfo) -> list[list[int]]:
    """Modules on the path to each leaf, without the root."""
    paths: list[list[int]] = []
    open_: list[int] = []
    for i, end in enumerate(info.end.tolist()):
        open_ = [j for j in open_ if info.end[j] > i]
        if i > 0:
            open_.append(i)
        if end == i + 1 and open_:
            paths.append(list(open_))
    return paths
