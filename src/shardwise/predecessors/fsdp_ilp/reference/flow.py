"""The same program without a big M: which size the next unit has, as a flow along the modules.

In place of a time that jumps, each place of an order carries for each distinct size of units the
0-1 quantity "the next unit has this size"; a unit uses it, any other module passes it on. The
optimum is that of the original where its M is no limit; the linear relaxation is nearly tight.
Costs are those of fsdp_ilp.py (sanketpurandare/scyther, commit 9cd9397; section 3.1).
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.fsdp_ilp.comm import CommTimes
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo
from shardwise.predecessors.fsdp_ilp.reference.closed_form import GIB, static_bytes, walk_backward
from shardwise.predecessors.fsdp_ilp.reference.milp import Builder, Milp


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
    able = allowed & _fits_alone(info, world_size, budget_gib)
    able[0] = False  # the root is one in any case; its terms are written apart
    x = builder.columns(able.size, upper=able, integer=True, cost=_gain(info, comm))
    _antichain_and_memory(builder, info, world_size, budget_gib, x)
    sizes = _sizes(info, comm, able)
    forward = np.flatnonzero(able)
    backward = walk_backward(info)
    backward = backward[able[backward]]
    forward_chain = _chain(builder, x, sizes, forward)
    backward_chain = _chain(builder, x, sizes, backward)
    last = able.size - 1, int(walk_backward(info)[-1])
    _costs(builder, info, sizes, x[forward], forward, forward_chain, backward_chain, last)
    # The root's own collectives do not depend on any variable but x, whose cost is its gain.
    root = comm.all_gather.time_ms(info.parameter_bytes[0])
    root += comm.reduce_scatter.time_ms(info.gradient_bytes[0])
    builder.columns(1, cost=root, lower=1.0, upper=1.0)
    return builder.build(), x


def _fits_alone(info: ModuleInfo, world_size: int, budget: float) -> Bools:
    """Modules that could be a unit if all others needed nothing."""
    states = info.parameter_bytes + info.gradient_bytes + _most_inside(info, world_size)
    fits: Bools = states + 2 * info.parameter_bytes <= (budget + 1e-6) * GIB
    return fits


def _most_inside(info: ModuleInfo, world_size: int) -> Floats:
    """Max of C over each subtree [bytes]."""
    static = static_bytes(info, world_size)
    return np.array([static[i:end].max() for i, end in enumerate(info.end.tolist())])


def _gain(info: ModuleInfo, comm: CommTimes) -> Floats:
    """What each unit saves of the root's collectives: P / ba + G / br [ms]."""
    gather = info.parameter_bytes / comm.all_gather.bytes_per_ms
    return -gather - info.gradient_bytes / comm.reduce_scatter.bytes_per_ms


def _sizes(info: ModuleInfo, comm: CommTimes, able: Bools) -> _Sizes:
    pairs = np.column_stack([info.parameter_bytes, info.gradient_bytes])
    pairs[~able] = 0.0
    distinct, of = np.unique(np.vstack([[0.0, 0.0], pairs]), axis=0, return_inverse=True)
    return _Sizes(
        of=of.ravel()[1:],
        gather=comm.all_gather.time_ms(distinct[:, 0]),
        scatter=comm.reduce_scatter.time_ms(distinct[:, 1]),
    )


def _chain(builder: Builder, x: Ints, sizes: _Sizes, order: Ints) -> _Chain:
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
