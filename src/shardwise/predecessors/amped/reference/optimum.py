"""AMPeD's search: every batch size and all six degrees, the best by time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.errors import Fault, refuse
from shardwise.predecessors.amped.reference.evaluation import (
    EFFICIENCY,
    MicrobatchEfficiency,
    evaluate,
)

DEGREES = (
    "intra_node_data_parallel_degree",
    "inter_node_data_parallel_degree",
    "intra_node_tensor_parallel_degree",
    "inter_node_tensor_parallel_degree",
    "intra_node_pipeline_parallel_degree",
    "inter_node_pipeline_parallel_degree",
)
"""What it permutes besides the batch size."""

MOST_ACCELERATORS = 1 << 20
"""Limit of a search: beyond it there are too many permutations for memory."""
# Candidates timed at a time: their columns use about 50 MB.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One permutation that a search found."""

    time_s: float
    """Of the training run."""
    batch_size: int
    degrees: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    candidates: int
    """Permutations whose degrees multiply to the accelerators."""
    good: int
    """Those whose degrees within a node divide its accelerators."""
    best: tuple[Found, ...]
    """Best first; of equals the first tried, batch sizes in their order."""


def count(*, accelerators: int, per_node: int, batch_sizes: Sequence[int]) -> tuple[int, int]:
    """Count the permutations in all, and those that are valid.

    Six ordered factors of a product of primes p^e: prod of C(e + 5, 5) of them.
    """
    _check(accelerators, per_node, batch_sizes)
    ways = math.prod(math.comb(e + 5, 5) for e in _exponents(accelerators))
    return ways * len(batch_sizes), len(_permutations(accelerators, per_node)[0]) * len(batch_sizes)


def search(
    parameters: Mapping[str, float],
    *,
    accelerators: int,
    per_node: int,
    batch_sizes: Sequence[int],
    top_n: int = 10,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
) -> SearchResult:
    """Find the degrees and the batch size with the least time to train.

    Neither memory nor divisors of layers, heads or batch are checked, as in AMPeD.

    Parameters
    ----------
    parameters
        As for `evaluate`, without degrees, batch size, micro-batches (one for each stage) and
        accelerators of a node (as many as a permutation has within one).
    accelerators
        Product of the six degrees.
    per_node
        Accelerators of a node.
    batch_sizes
        Those to try [sequences].
    top_n
        How many to return.
    """
    _check(accelerators, per_node, batch_sizes, top_n)
    degrees = np.stack(_permutations(accelerators, per_node))
    batches = np.repeat(np.array(batch_sizes, dtype=np.int64), degrees.shape[1])
    rows = np.tile(np.arange(degrees.shape[1]), len(batch_sizes))
    times = np.concatenate(list(_times(parameters, degrees, rows, batches, efficiency)))
    order = np.argsort(times, kind="stable")[:top_n]
    ways = math.prod(math.comb(e + 5, 5) for e in _exponents(accelerators))
    return SearchResult(
        candidates=ways * len(batch_sizes),
        good=times.size,
        best=tuple(
            Found(
                time_s=float(times[row]),
                batch_size=int(batches[row]),
                degrees=dict(zip(DEGREES, degrees[:, rows[row]].tolist(), strict=True)),
            )
            for row in order
        ),
    )


def _times(
    parameters: Mapping[str, float],
    degrees: Ints,
    rows: Ints,
    batches: Ints,
    efficiency: float | MicrobatchEfficiency,
) -> Iterator[Floats]:
    """Time to train of each candidate, some tens of thousands at a time."""
    for start in range(0, rows.size, _CHUNK):
        some = slice(start, start + _CHUNK)
        columns = dict(zip(DEGREES, degrees[:, rows[some]].astype(np.float64), strict=True))
        columns["number_of_accelerators_per_node"] = np.prod(list(columns.values())[::2], axis=0)
        columns["batch_size"] = batches[some].astype(np.float64)
        found = evaluate(
            {**parameters, **columns}, efficiency=efficiency, wanted=["total_time_to_train"]
        )
        yield np.broadcast_to(found["total_time_to_train"], rows[some].shape)


def _permutations(accelerators: int, per_node: int) -> tuple[Ints, ...]:
    """Columns of `DEGREES`: all with this product, the intra product dividing a node.

    Ordered by the product within a node, largest first, then by the degrees as they stand.
    """
    blocks = []
    for inside in reversed(_divisors(math.gcd(accelerators, per_node))):
        intra, inter = _triples(inside), _triples(accelerators // inside)
        first = np.repeat(np.arange(len(intra)), len(inter))
        second = np.tile(np.arange(len(inter)), len(intra))
        block = np.empty((first.size, len(DEGREES)), dtype=np.int64)
        block[:, ::2], block[:, 1::2] = intra[first], inter[second]
        blocks.append(block[np.lexsort(block.T[::-1])])
    return tuple(np.concatenate(blocks).T)


def _triples(number: int) -> Ints:
    """All (a, b, c) whose product it is."""
    divisors = np.array(_divisors(number))
    a, b = (column.ravel() for column in np.meshgrid(divisors, divisors, indexing="ij"))
    fits = number % (a * b) == 0
    return np.stack([a[fits], b[fits], number // (a[fits] * b[fits])], axis=1)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _exponents(number: int) -> list[int]:
    """Exponents of the primes of a number."""
    found, prime = [], 2
    while prime * prime <= number:
        exponent = 0
        while number % prime == 0:
            number //= prime
            exponent += 1
        found.append(exponent)
        prime += 1
    return [*found, 1] if number > 1 else found


def _check(accelerators: int, per_node: int, batch_sizes: Sequence[int], top_n: int = 1) -> None:
    numbers = {"accelerators": accelerators, "per_node": per_node, "top_n": top_n}
    faults = [
        _fault(name, value, f"must be from 1 to {MOST_ACCELERATORS:,}")
        for name, value in numbers.items()
        if not 1 <= value <= MOST_ACCELERATORS
    ]
    faults += [_fault("batch_sizes", b, "must be at least 1") for b in batch_sizes if b < 1]
    if not batch_sizes:
        faults.append(Fault(field="batch_sizes", problem="needs at least one"))
    refuse(faults)


def _fault(field: str, value: object, problem: str) -> Fault:
    return Fault.of(field, value, problem)
