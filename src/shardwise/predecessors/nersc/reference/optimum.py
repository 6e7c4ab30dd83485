"""A step, its memory and its statistics under their published names (sections 4 and 5).

The published search: every configuration of a method, the best by throughput (section 6).

The space is tried in the published order; of configurations with the same throughput the first
tried wins.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, combined, divisors, gather, total
from shardwise.config.base import MOST
from shardwise.distinct import distinct_rows
from shardwise.errors import Fault, refuse
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reference.layers import (
    METHODS,
    Block,
    Collective,
    Columns,
    Layer,
    LayerTime,
    Method,
    NerscConfiguration,
    block_of,
    check_together,
    collective_time,
    layer_time,
    message_times,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """One transformer layer, one micro-batch: sums over its layers."""

    fwd: Floats
    """[s]."""
    bwd: Floats
    comp: Floats
    mem: Floats
    comm: Floats
    weights: Floats
    """[GB]."""
    boundary: Floats
    """What one stage sends to the next [GB]."""


def block_time(block: Block, columns: Columns, system: NerscSystem) -> BlockTime:
    """Time of a transformer layer; of the columns only b, m1, m2, nb, t1 and t2 count."""
    times = [layer_time(layer, columns, system) for layer in block.layers]
    return BlockTime(
        fwd=_sum(times, lambda time: time.fwd.total),
        bwd=_sum(times, lambda time: time.bwd.total),
        comp=_sum(times, lambda time: time.fwd.comp + time.bwd.comp),
        mem=_sum(times, lambda time: time.fwd.mem + time.bwd.mem),
        comm=_sum(times, lambda time: time.fwd.comm + time.bwd.comm),
        weights=block.weights,
        boundary=block.boundary,
    )


def _sum(times: Sequence[LayerTime], figure: Callable[[LayerTime], Floats]) -> Floats:
    columns = [figure(time) for time in times]
    return total(columns, columns[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one accelerator [GB]."""

    weights: Floats
    gradients: Floats
    """In the type of the weights."""
    optimizer: Floats
    activations: Floats

    @property
    def total(self) -> Floats:
        """All there is: no workspace, buffer, embedding or head."""
        return self.weights + self.gradients + self.optimizer + self.activations


def memory_of(
    model: NerscModel,
    method: Method,
    columns: Columns,
    microbatches: Ints,
    stored: Floats,
    weights: Floats,
) -> Memory:
    """Memory of one accelerator of the first stage, with a distributed optimizer.

    With W = weights of its d = depth // pp layers: W, gradients W, master weights and two moments
    6 W / shards; activations of d layers of min(pp, nm) micro-batches.

    Parameters
    ----------
    stored, weights
        Of one transformer layer [GB].
    """
    layers = model.depth // columns.pp
    weights_gb = weights * layers
    return Memory(
        weights=weights_gb,
        gradients=weights_gb,
        optimizer=6 * weights_gb / _replicas(method, columns),
        activations=stored * layers * np.minimum(columns.pp, microbatches),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Time of a step by what it is spent on [s]."""

    layers: Ints
    """Of a stage."""
    microbatches: Ints
    passes: Floats
    """Layers, forward and backward."""
    messages: Floats
    """Between stages, one direction."""
    bubble: Floats
    dp_fwd: Floats
    """Exposed gathering of weights."""
    dp_bwd: Floats
    """Exposed reduction of gradients."""

    @property
    def total(self) -> Floats:
        """Time of the step."""
        return self.passes + 2 * self.messages + self.bubble + (self.dp_fwd + self.dp_bwd)


def step_of(
    model: NerscModel,
    system: NerscSystem,
    method: Method,
    columns: Columns,
    microbatches: Ints,
    block: BlockTime,
) -> Step:
    """Time of a step of nm micro-batches on d = depth // pp layers of a stage (1F1B).

    Layers (fwd + bwd) nm d; then T0 = layers + messages, and a bubble of (pp - 1) T0 / nm.
    """
    layers = model.depth // columns.pp
    passes = (block.fwd + block.bwd) * microbatches * layers
    messages = microbatches * _message(block.boundary, columns, system)
    gathered, reduced = (
        _dp_time(kind, hidden, method, columns, layers, block.weights, system)
        for kind, hidden in (("allgather", block.fwd), ("reducescatter", block.bwd))
    )
    return Step(
        layers=layers,
        microbatches=microbatches,
        passes=passes,
        messages=messages,
        bubble=(columns.pp - 1) * (passes + 2 * messages) / microbatches,
        dp_fwd=gathered,
        dp_bwd=reduced,
    )


def _replicas(method: Method, columns: Columns) -> Ints:
    """Ranks that have the same weights."""
    return columns.dp * columns.m2 if method == "2d-seqp" else columns.dp


def _dp_time(
    kind: str,
    hidden: Floats,
    method: Method,
    columns: Columns,
    layers: Ints,
    weights: Floats,
    system: NerscSystem,
) -> Floats:
    """Exposed data-parallel communication: c + (d - 1) max(c - T, 0), with c that of one layer [s].

    Fault: T, the pass of one layer of one micro-batch that hides it, includes its own
    communication.
    """
    inside = columns.t_dp * columns.t2 if method == "2d-seqp" else columns.t_dp
    one = collective_time(kind, weights, _replicas(method, columns), inside, system)
    return one + (layers - 1) * np.maximum(one - hidden, 0.0)


def _message(boundary: Floats, columns: Columns, system: NerscSystem) -> Floats:
    """Mean time of a message between two stages [s].

    Fault: where some stages share a domain, messages between domains cost nothing; they are
    pp // t_pp - 1 of the pp - 1.
    """
    slow, fast = message_times(boundary, system)
    links = columns.pp - 1
    between = columns.pp // columns.t_pp - 1
    mean = (links - between) * fast / np.maximum(links, 1)
    return np.where(links == 0, 0.0, np.where(columns.t_pp == 1, slow, mean))


_SHARES = {
    "comp_frac": "t_comp",
    "tp_comm_frac": "t_tp_comm",
    "dp_comm_frac": "t_dp_comm",
    "pp_comm_frac": "t_pp_comm",
    "bubble_frac": "t_bubble",
    "mem_frac": "t_mem",
}


def statistics_of(
    model: NerscModel,
    system: NerscSystem,
    method: Method,
    columns: Columns,
    global_batch: int,
) -> dict[str, Floats]:
    """Statistics of a step as columns: seconds, GB, and TFLOP of one accelerator.

    FLOPs count vector work as if the matrix units did it in the same time, so they depend on the
    system (a fault).
    """
    batches = global_batch // columns.dp // columns.b
    block = block_of(model, system, method, columns)
    layer = block_time(block, columns, system)
    step = step_of(model, system, method, columns, batches, layer)
    memory = memory_of(model, method, columns, batches, block.stored, block.weights)
    repeated = batches * step.layers
    found = {
        "t": step.total,
        "flops_per_gpu": block.flops * repeated,
        "mem": memory.total,
        "t_comp": layer.comp * repeated,
        "t_mem": layer.mem * repeated,
        "t_tp_comm": layer.comm * repeated,
        "t_dp_comm": step.dp_fwd + step.dp_bwd,
        "t_pp_comm": 2 * step.messages,
        "t_bubble": step.bubble,
    }
    return {
        **found,
        **{name: found[part] / step.total for name, part in _SHARES.items()},
        "wts_mem": memory.weights,
        "wts_grad_mem": memory.gradients,
        "wts_optimizer_states_mem": memory.optimizer,
        "acts_mem": memory.activations,
    }


def statistics(
    model: NerscModel, system: NerscSystem, configuration: NerscConfiguration
) -> dict[str, float | int]:
    """All statistics of one configuration."""
    check_together(model, system, configuration)
    method, columns = configuration.method, Columns.of([configuration])
    found = statistics_of(model, system, method, columns, configuration.global_batch)
    return {name: float(value[0]) for name, value in found.items()} | placement(configuration)


def placement(configuration: NerscConfiguration) -> dict[str, int]:
    """Members of each group in one domain, under the published names."""
    c = configuration
    tensor = {"nv_tp": c.t1} if c.method == "1d" else {"nv_tp1": c.t1, "nv_tp2": c.t2}
    return {**tensor, "nv_dp": c.t_dp, "nv_pp": c.t_pp}


def configuration_words(configuration: NerscConfiguration) -> dict[str, int]:
    """Degrees, micro-batch and panels of a configuration, under the published names."""
    c = configuration
    published = {"dp": c.dp, "tp": c.m1 * c.m2}
    if c.method != "1d":
        published |= {"tp1": c.m1, "tp2": c.m2}
    published |= {"pp": c.pp, "mbs": c.b}
    return published | {"nb": c.nb} if c.method == "2d" else published


def layer_statistics(
    model: NerscModel, system: NerscSystem, configuration: NerscConfiguration
) -> list[dict[str, Any]]:
    """Figures of each layer of one micro-batch, then of data-parallel and pipeline communication.

    The last two, `dp_comms` and `pp_comms`, have the volume of one layer and of one message, and
    times of a step.
    """
    check_together(model, system, configuration)
    method, columns = configuration.method, Columns.of([configuration])
    block = block_of(model, system, method, columns)
    records = [_layer(one, layer_time(one, columns, system)) for one in block.layers]
    batches = configuration.global_batch // columns.dp // columns.b
    layer = block_time(block, columns, system)
    step = step_of(model, system, method, columns, batches, layer)
    replicas = ("allgather", step.dp_fwd), ("reducescatter", step.dp_bwd)
    messages = ("p2p", step.messages), ("p2p", step.messages)
    return [
        *records,
        _communication_record("dp_comms", layer.weights, *replicas),
        _communication_record("pp_comms", layer.boundary, *messages),
    ]


def _layer(layer: Layer, time: LayerTime) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "name": layer.name,
        "weights_mem": layer.weights,
        "weights_grad_mem": layer.weights,
        "flops_fwd": layer.flops_fwd,
        "activation_buffer": layer.stored,
        **_volumes("fwd", layer.fwd),
        "flops_bwd": layer.flops_bwd,
        **_volumes("bwd", layer.bwd),
    }
    for name, one in (("fwd", time.fwd), ("bwd", time.bwd)):
        figures |= {
            f"t_{name}": one.total,
            f"t_{name}_comm": one.comm,
            f"t_{name}_comp": one.comp,
            f"t_{name}_mem": one.mem,
            f"intensity_{name}": one.intensity,
        }
    return _plain(figures | {"t": time.fwd.total + time.bwd.total})


def _volumes(name: str, collectives: Sequence[Collective]) -> dict[str, Any]:
    """Volume and kind of the collectives of a pass: lists where there are several."""
    volumes = [float(one.volume[0]) for one in collectives] or [0.0]
    kinds = [one.kind for one in collectives] or ["none"]
    several = len(volumes) > 1
    return {
        f"comm_{name}": volumes if several else volumes[0],
        f"comm_{name}_type": kinds if several else kinds[0],
    }


def _communication_record(
    name: str, volume: Floats, fwd: tuple[str, Floats], bwd: tuple[str, Floats]
) -> dict[str, Any]:
    """Communication as a layer that does nothing else."""
    figures: dict[str, Any] = {"name": name} | dict.fromkeys(
        ("weights_mem", "weights_grad_mem", "flops_fwd", "activation_buffer"), 0.0
    )
    figures |= {"comm_fwd": volume, "comm_fwd_type": fwd[0], "flops_bwd": 0.0}
    figures |= {"comm_bwd": volume, "comm_bwd_type": bwd[0]}
    for side, (_, time) in (("fwd", fwd), ("bwd", bwd)):
        figures |= {f"t_{side}": time, f"t_{side}_comm": time, f"t_{side}_comp": 0.0}
        figures |= {f"t_{side}_mem": 0.0, f"intensity_{side}": 0.0}
    return _plain(figures | {"t": fwd[1] + bwd[1]})


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Columns of one row as numbers."""
    return {
        name: float(value[0]) if isinstance(value, np.ndarray) else value
        for name, value in figures.items()
    }


_LEAST_WIDTH = 128
"""Least part of a dimension that is worth a product."""
_LEAST_PANEL = 512
"""Least width of a SUMMA panel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Degrees and micro-batch."""

    m1: Ints
    m2: Ints
    pp: Ints
    dp: Ints
    b: Ints
    microbatches: Ints

    def __len__(self) -> int:
        return int(self.b.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What each layout may choose from."""

    first: Ints
    """Position in `values` of the layout's first choice."""
    count: Ints
    values: Ints

    @classmethod
    def of(cls, lists: Sequence[Ints], position: Ints, none: Ints) -> "Choices":
        """Choices of layouts, each with the list at its position; `none` is an empty list."""
        count = np.array([len(values) for values in lists], dtype=np.int64)
        first = np.cumsum(count) - count
        return cls(
            first=first[position], count=count[position], values=np.concatenate([none, *lists])
        )

    def take(self, rows: Ints, which: Ints) -> Ints:
        """The choice with number `which` of each of some layouts."""
        return self.values[self.first[rows] + which]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Layouts, each with numbers of panels and placements to choose from.

    A candidate is a layout with one of either; the placement varies fastest, the layout slowest.
    """

    layouts: Layouts
    panels: Choices
    placements: Choices
    """(t1, t2, t_dp, t_pp)."""
    one_domain: bool
    """Whether one domain contains all accelerators, and so every group."""

    @property
    def sizes(self) -> Ints:
        """Candidates of each layout."""
        return self.panels.count * self.placements.count

    def candidates(self, rows: Ints) -> Columns:
        """All candidates of some layouts, in order."""
        sizes = self.sizes[rows]
        layout = np.repeat(rows, sizes)
        number = np.arange(layout.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        panel, place = np.divmod(number, self.placements.count[layout])
        chosen = gather(self.layouts, layout)
        groups = chosen.m1, chosen.m2, chosen.dp, chosen.pp
        inside = groups if self.one_domain else self.placements.take(layout, place).T
        return Columns(
            b=chosen.b,
            m1=chosen.m1,
            m2=chosen.m2,
            nb=self.panels.take(layout, panel),
            dp=chosen.dp,
            pp=chosen.pp,
            t1=inside[0],
            t2=inside[1],
            t_dp=inside[2],
            t_pp=inside[3],
        )


def space_of(model: NerscModel, method: Method, gpus: int, global_batch: int, domain: int) -> Space:
    """Everything that a search tries on n accelerators with domains of `domain`."""
    layouts = _layouts(model, method, gpus, global_batch)
    one_domain = gpus <= domain
    return Space(
        layouts=layouts,
        panels=_panels(model, method, layouts),
        placements=_placements(layouts, 1 if one_domain else domain),
        one_domain=one_domain,
    )


def _layouts(model: NerscModel, method: Method, gpus: int, global_batch: int) -> Layouts:
    """Degrees and micro-batches that divide what they split.

    pp divides n / tp and depth; dp is the rest, and divides the batch.
    """
    m1, m2, pp = _grid(*_degrees(model, method, gpus), np.array(divisors(model.depth)))
    fits = np.flatnonzero(gpus % (m1 * m2 * pp) == 0)
    m1, m2, pp = m1[fits], m2[fits], pp[fits]
    dp = gpus // (m1 * m2 * pp)
    fits = np.flatnonzero(global_batch % dp == 0)
    row, b = _grid(fits, np.array(divisors(global_batch)))
    split = {"1d": m1, "2d": m2, "2d-seqp": m1 * m2}[method]
    fits = (global_batch // dp[row] % b == 0) & (b * model.l % split[row] == 0)
    row, b = row[fits], b[fits]
    return Layouts(
        m1=m1[row],
        m2=m2[row],
        pp=pp[row],
        dp=dp[row],
        b=b,
        microbatches=global_batch // dp[row] // b,
    )


def _degrees(model: NerscModel, method: Method, gpus: int) -> tuple[Ints, Ints]:
    """Values of m1 and m2 that leave wide enough parts."""
    every = np.array(divisors(gpus))
    m1 = every[(model.h % every == 0) & (model.e % every == 0)]
    if method == "1d":
        return m1[3 * model.e // m1 >= _LEAST_WIDTH], np.array([1])
    m2 = every[model.l // every >= _LEAST_WIDTH]
    m2 = m2[model.e % m2 == 0] if method == "2d" else m2
    return m1[model.e // m1 >= _LEAST_WIDTH], m2


def _grid(*values: Ints) -> list[Ints]:
    """Columns of all combinations, the last varying fastest."""
    return [column.ravel() for column in np.meshgrid(*values, indexing="ij")]


def _panels(model: NerscModel, method: Method, layouts: Layouts) -> Choices:
    """Numbers of panels; 1 where nothing has any."""
    start = np.maximum(layouts.m1, layouts.m2) if method == "2d" else np.zeros_like(layouts.m1)

    def some(rows: Ints) -> list[Ints]:
        return [_panel_numbers(model.e, int(s)) if s else np.array([1]) for s in start[rows]]

    firsts, position = distinct_rows([start])
    return Choices.of(some(firsts), position, none=start[:0])


def _panel_numbers(e: int, start: int) -> Ints:
    """Of s, 2 s, 4 s, ... those that divide e into wide enough panels; s where none is."""
    most = e // start // _LEAST_PANEL
    numbers = start << np.arange(most.bit_length())
    return numbers[e % numbers == 0] if most else np.array([start])


def _placements(layouts: Layouts, domain: int) -> Choices:
    """Ordered factorizations of a domain whose factors divide their groups."""
    # All (t1, t2, t_dp, t_pp) whose product it is, t1 varying slowest.
    t1, t2, t_dp = _grid(*[np.array(divisors(domain))] * 3)
    product = t1 * t2 * t_dp
    factors = np.stack([t1, t2, t_dp, domain // product], axis=1)
    table = factors[domain % product == 0]
    groups = layouts.m1, layouts.m2, layouts.dp, layouts.pp
    common = np.gcd(np.stack(groups, axis=1), domain)

    def some(rows: Ints) -> list[Ints]:
        fitting = np.all(common[rows, None, :] % table == 0, axis=2)
        return [table[row] for row in fitting]

    firsts, position = distinct_rows(list(common.T))
    return Choices.of(some(firsts), position, none=table[:0])


# Candidates timed at a time: their columns use about 20 MB.
_CHUNK = 1 << 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One configuration that a search found."""

    throughput: float
    """Sequences per second."""
    configuration: NerscConfiguration
    statistics: dict[str, float | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    layouts: int
    """Degrees and micro-batches, before panels and placements are chosen."""
    candidates: int
    feasible: int
    """Those that fit in memory."""
    least_memory: float | None
    """Of all candidates [GB]; None if there are none."""
    best: tuple[Found, ...]
    """Best first."""


def count(model: NerscModel, method: str, *, gpus: int, global_batch: int, domain: int) -> int:
    """Count the configurations that `search` would try, without evaluating any."""
    known = _checked(method, gpus=gpus, global_batch=global_batch, domain=domain)
    return int(space_of(model, known, gpus, global_batch, domain).sizes.sum())


def search(
    model: NerscModel,
    system: NerscSystem,
    method: str,
    *,
    gpus: int,
    global_batch: int,
    domain: int,
    top_n: int = 10,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the configurations with the highest throughput."""
    known = _checked(method, gpus=gpus, global_batch=global_batch, domain=domain, top_n=top_n)
    system = system.model_copy(update={"nvlink_size": domain})
    space = space_of(model, known, gpus, global_batch, domain)
    memory = _memory(model, system, known, space.layouts)
    sizes = space.sizes
    fits = np.flatnonzero((memory <= system.hbm_capacity) & (sizes > 0))
    feasible = int(sizes[fits].sum())
    best = _Best(top_n)
    for rows in _chunks(fits, sizes[fits]):
        columns = space.candidates(rows)
        best.add(_throughput(model, system, known, columns, global_batch), columns)
        if progress is not None:
            progress(best.seen, feasible)
    tried = memory[sizes > 0]
    return SearchResult(
        layouts=len(space.layouts),
        candidates=int(sizes.sum()),
        feasible=feasible,
        least_memory=float(tried.min()) if tried.size else None,
        best=tuple(best.found(model, system, known, global_batch)),
    )


def _checked(method: str, **numbers: int) -> Method:
    """The method, if it and the limits are allowed."""
    faults = [
        Fault.of(name, value, f"must be from 1 to {MOST}")
        for name, value in numbers.items()
        if not 1 <= value <= MOST
    ]
    if method not in METHODS:
        problem = f"allowed: {', '.join(METHODS)}"
        faults.append(Fault.of("method", method, problem))
    refuse(faults)
    return METHODS[METHODS.index(method)]


def _memory(model: NerscModel, system: NerscSystem, method: Method, layouts: Layouts) -> Floats:
    """Memory of each layout [GB]; neither panels nor placement count."""

    def some(rows: Ints) -> tuple[Floats, Floats]:
        block = block_of(model, system, method, _unplaced(gather(layouts, rows)))
        return block.stored, block.weights

    firsts, position = distinct_rows([layouts.b, layouts.m1, layouts.m2])
    stored, weights = some(firsts)
    columns, batches = _unplaced(layouts), layouts.microbatches
    return memory_of(model, method, columns, batches, stored[position], weights[position]).total


def _unplaced(layouts: Layouts) -> Columns:
    """Layouts as configurations of one panel, all groups apart."""
    one = np.ones_like(layouts.b)
    degrees = {name: getattr(layouts, name) for name in ("b", "m1", "m2", "dp", "pp")}
    return Columns(nb=one, t1=one, t2=one, t_dp=one, t_pp=one, **degrees)


def _chunks(rows: Ints, sizes: Ints) -> Iterator[Ints]:
    """Layouts in order, some tens of thousands of candidates at a time."""
    if not rows.size:
        return
    piece = (np.cumsum(sizes) - sizes) // _CHUNK
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    yield from np.split(rows, starts[1:])


def _throughput(
    model: NerscModel, system: NerscSystem, method: Method, columns: Columns, global_batch: int
) -> Floats:
    """Sequences per second of each candidate; layers are timed once for all that share them."""

    def some(rows: Ints) -> Any:
        shared = gather(columns, rows)
        return block_time(block_of(model, system, method, shared), shared, system)

    keys = [columns.b, columns.m1, columns.m2, columns.nb, columns.t1, columns.t2]
    firsts, position = distinct_rows(keys)
    block = some(firsts)
    batches = global_batch // columns.dp // columns.b
    step = step_of(model, system, method, columns, batches, gather(block, position))
    return global_batch / step.total


class _Best:
    """The best candidates so far, in order; the first of equals stays first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen = 0
        self.throughput: Floats = np.empty(0)
        self.columns: Columns | None = None

    def add(self, throughput: Floats, columns: Columns) -> None:
        """Add the best of some more candidates."""
        self.seen += throughput.size
        if throughput.size > self.size:
            least = np.partition(throughput, -self.size)[-self.size]
            better = np.flatnonzero(throughput >= least)
            throughput, columns = throughput[better], gather(columns, better)
        joined = (
            columns
            if self.columns is None
            else combined(lambda *both: np.concatenate(both), self.columns, columns)
        )
        throughput = np.concatenate([self.throughput, throughput])
        order = np.argsort(-throughput, kind="stable")[: self.size]
        self.throughput, self.columns = throughput[order], gather(joined, order)

    def found(
        self, model: NerscModel, system: NerscSystem, method: Method, global_batch: int
    ) -> Iterator[Found]:
        """Configurations with their statistics."""
        if self.columns is None:
            return
        figures = statistics_of(model, system, method, self.columns, global_batch)
        for index, throughput in enumerate(self.throughput.tolist()):
            configuration = self.columns.row(index, method, global_batch)
            numbers = {name: float(column[index]) for name, column in figures.items()}
            yield Found(
                throughput=throughput,
                configuration=configuration,
                statistics=numbers | placement(configuration),
            )
