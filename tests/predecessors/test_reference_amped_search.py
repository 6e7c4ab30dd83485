"""AMPeD's search: all permutations, the best as one by one."""

import itertools

import pytest

from amped_runs import SMALL
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.amped.reference import count, search
from shardwise.predecessors.amped.reference.optimum import DEGREES
from shardwise.predecessors.amped.translation import amped_case_of_parameters

_FIXED = {
    name: value
    for name, value in SMALL.items()
    if name not in (*DEGREES, "batch_size", "number_of_microbatches_per_minibatch")
    and name != "number_of_accelerators_per_node"
}


def _one_by_one(accelerators, per_node, batches):
    """Time of every permutation, by loops."""
    divisors = [d for d in range(1, accelerators + 1) if accelerators % d == 0]
    candidates, times = 0, {}
    for batch in batches:
        for degrees in itertools.product(divisors, repeat=6):
            if _product(degrees) != accelerators:
                continue
            candidates += 1
            inside = _product(degrees[::2])
            if per_node % inside:
                continue
            named = dict(zip(DEGREES, map(float, degrees), strict=True))
            row = {"batch_size": batch, "number_of_accelerators_per_node": inside}
            case = amped_case_of_parameters(_FIXED | named | row)
            times[batch, degrees] = case.answer()["Total time to train (s)"]
    return candidates, times


def _product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def test_the_best_are_those_found_one_by_one():
    """Twelve accelerators in nodes of four, two batch sizes."""
    candidates, times = _one_by_one(12, 4, [8, 16])
    limits = {"accelerators": 12, "per_node": 4, "batch_sizes": [8, 16]}
    found = search(_FIXED, **limits, top_n=len(times) + 5)
    assert (found.candidates, found.good) == (candidates, len(times)) == count(**limits)
    assert [one.time_s for one in found.best] == pytest.approx(sorted(times.values()))
    for one in found.best:
        degrees = tuple(one.degrees[name] for name in DEGREES)
        assert one.time_s == pytest.approx(times.pop((one.batch_size, degrees)))
    assert not times
    few = search(_FIXED, **limits, top_n=3)
    assert few.best == found.best[:3]


def test_pieces_of_a_search_are_one_search(monkeypatch):
    """Chunks change nothing."""
    limits = {"accelerators": 8, "per_node": 4, "batch_sizes": [4, 8]}
    whole = search(_FIXED, **limits)
    monkeypatch.setattr("shardwise.predecessors.amped.reference.optimum._CHUNK", 7)
    assert search(_FIXED, **limits) == whole


@each_row(("accelerators", "ways"), [(1, 1), (7, 6), (8, 56), (1024, 3003)])
def test_permutations_are_counted_by_their_primes(accelerators, ways):
    """C(e + 5, 5) for each prime; with nodes that hold all, every one is valid."""
    limits = {"accelerators": accelerators, "per_node": accelerators, "batch_sizes": [1]}
    assert count(**limits) == (ways, ways)


def test_limits_without_sense_are_refused():
    """All of them at once."""
    with pytest.raises(InputError) as error:
        count(accelerators=0, per_node=1 << 21, batch_sizes=[0])
    assert [fault.field for fault in error.value.faults] == [
        "accelerators",
        "per_node",
        "batch_sizes",
    ]
