"""Layers over the chunks of a pipeline: the least critical stage, against every split."""

import random
from collections.abc import Iterator

import pytest

from shardwise.parallel.chunk_layout import LayerTimes, balanced_chunks, stage_times


def _splits(layers: int, places: int) -> Iterator[tuple[int, ...]]:
    """Every way to give consecutive layers to chunks."""
    if places == 1:
        yield (layers,)
        return
    for first in range(layers + 1):
        for rest in _splits(layers - first, places - 1):
            yield (first, *rest)


@pytest.mark.parametrize("seed", range(60))
def test_the_critical_stage_is_that_of_the_best_of_all_splits(seed: int) -> None:
    """Kinds in any order, with an embedding, a head, limits of stages and of chunks."""
    draw = random.Random(seed)  # noqa: S311 - test data
    layers, stages = draw.randint(1, 7), draw.randint(2, 4)
    chunks = draw.randint(1, 3 if stages == 2 else 2 if layers < 6 else 1)
    kinds = draw.randint(1, 3)
    times = LayerTimes(
        order=tuple(draw.randrange(kinds) for _ in range(layers)),
        layers=tuple(draw.choice((1.0, 0.7, 2.2, 0.1 + draw.random())) for _ in range(kinds)),
        embedding=draw.choice((0.0, 0.1, 1.3)),
        head=draw.choice((0.0, 0.4, 2.6, 5.0)),
    )
    most = draw.choice((None, [draw.randint(0, layers) for _ in range(stages)]))
    sizes = draw.choice((None, None, (0, 2), (1, 2), (1, 4), (2, 3)))

    def fits(split: tuple[int, ...]) -> bool:
        on_stages = [sum(split[stage::stages]) for stage in range(stages)]
        within = most is None or all(a <= b for a, b in zip(on_stages, most, strict=True))
        least, largest = sizes or (0, layers)
        even = max(split) <= largest and all(size >= least for size in split[1:-1])
        return within and even

    every = [
        max(stage_times(times, split, stages))
        for split in _splits(layers, stages * chunks)
        if fits(split)
    ]
    found = balanced_chunks(times, stages, chunks, most=most, sizes=sizes)
    if not every:
        assert found is None
        return
    assert found is not None
    assert found.exact
    assert fits(found.sizes)
    assert sum(found.sizes) == layers
    assert found.critical_s == max(stage_times(times, found.sizes, stages))
    assert found.critical_s <= min(every) * (1 + 2e-6)


def test_a_head_of_two_layers_takes_two_layers_from_the_last_stage() -> None:
    """61 layers, 3 of them dense: 8 stages of 8 but for the last one, which has 5 and the head."""
    order = (0,) * 3 + (1,) * 58
    times = LayerTimes(order=order, layers=(1.0, 1.0), embedding=0.0, head=2.5)
    found = balanced_chunks(times, 8, 2)
    assert found is not None
    assert found.critical_s == 8.0
    assert sum(found.sizes[7::8]) == 5
