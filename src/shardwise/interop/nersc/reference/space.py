"""The configurations that a search tries, in the published order (section 6)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Ints, gather, once_per
from shardwise.interop.nersc.reference.columns import Columns
from shardwise.interop.nersc.reference.inputs import Method, NerscModel

__all__ = ["Choices", "Layouts", "Space", "space_of"]

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
    whole: bool
    """Whether one domain holds all accelerators, and so every group."""

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
        inside = groups if self.whole else self.placements.take(layout, place).T
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
    whole = gpus <= domain
    return Space(
        layouts=layouts,
        panels=_panels(model, method, layouts),
        placements=_placements(layouts, 1 if whole else domain),
        whole=whole,
    )


def _layouts(model: NerscModel, method: Method, gpus: int, global_batch: int) -> Layouts:
    """Degrees and micro-batches that divide what they split.

    pp divides n / tp and depth; dp is the rest, and divides the batch.
    """
    m1, m2, pp = _grid(*_degrees(model, method, gpus), np.array(_divisors(model.depth)))
    kept = np.flatnonzero(gpus % (m1 * m2 * pp) == 0)
    m1, m2, pp = m1[kept], m2[kept], pp[kept]
    dp = gpus // (m1 * m2 * pp)
    kept = np.flatnonzero(global_batch % dp == 0)
    row, b = _grid(kept, np.array(_divisors(global_batch)))
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
    every = np.array(_divisors(gpus))
    m1 = every[(model.h % every == 0) & (model.e % every == 0)]
    if method == "1d":
        return m1[3 * model.e // m1 >= _LEAST_WIDTH], np.array([1])
    m2 = every[model.l // every >= _LEAST_WIDTH]
    m2 = m2[model.e % m2 == 0] if method == "2d" else m2
    return m1[model.e // m1 >= _LEAST_WIDTH], m2


def _grid(*values: Ints) -> list[Ints]:
    """Columns of all combinations, the last varying fastest."""
    return [column.ravel() for column in np.meshgrid(*values, indexing="ij")]


def _divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _panels(model: NerscModel, method: Method, layouts: Layouts) -> Choices:
    """Numbers of panels; 1 where nothing has any."""
    start = np.maximum(layouts.m1, layouts.m2) if method == "2d" else np.zeros_like(layouts.m1)

    def some(rows: Ints) -> list[Ints]:
        return [_panel_numbers(model.e, int(s)) if s else np.array([1]) for s in start[rows]]

    return Choices.of(*once_per([start], some), none=start[:0])


def _panel_numbers(e: int, start: int) -> Ints:
    """Of s, 2 s, 4 s, ... those that divide e into wide enough panels; s where none is."""
    most = e // start // _LEAST_PANEL
    numbers = start << np.arange(most.bit_length())
    return numbers[e % numbers == 0] if most else np.array([start])


def _placements(layouts: Layouts, domain: int) -> Choices:
    """Ordered factorisations of a domain whose factors divide their groups."""
    table = _factorisations(domain)
    groups = layouts.m1, layouts.m2, layouts.dp, layouts.pp
    common = np.gcd(np.stack(groups, axis=1), domain)

    def some(rows: Ints) -> list[Ints]:
        fitting = np.all(common[rows, None, :] % table == 0, axis=2)
        return [table[row] for row in fitting]

    return Choices.of(*once_per(list(common.T), some), none=table[:0])


def _factorisations(number: int) -> Ints:
    """All (t1, t2, t_dp, t_pp) whose product it is, t1 varying slowest."""
    t1, t2, t_dp = _grid(*[np.array(_divisors(number))] * 3)
    product = t1 * t2 * t_dp
    whole = np.stack([t1, t2, t_dp, number // product], axis=1)
    return whole[number % product == 0]
