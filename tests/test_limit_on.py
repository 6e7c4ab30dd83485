"""`limit_on`: whether reserved or allocated memory must fit into an accelerator."""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import System, estimate, explain, search, sweep
from shardwise.config.stack import Stack
from shardwise.errors import InputError

pytestmark = pytest.mark.any_software

LOOSE = {"allocator_slack": 1.25, "runtime_memory": 1e5}
SPACE: dict[str, Any] = {
    "gpus": 8,
    "gbs": 16,
    "tp": [1, 2],
    "pp": [1, 2, 4],
    "zero": [0, 1],
    "mbs": [1, 2],
    "recompute": ["none", "full"],
}


def machine(capacity: float, limit: str = "reserved") -> System:
    """The sample with so many bytes."""
    memory = [{"name": "hbm", "capacity": capacity, "bandwidth": 1e12}]
    return samples.system(memory=memory).limited_on(limit)


def stack(*, loose: bool) -> Stack:
    """Software with a slack of a quarter and a runtime of 0.1 MB, or without both."""
    return samples.stack(**(LOOSE if loose else {}))


def test_an_estimate_fits_by_what_is_limited() -> None:
    """Between allocated and reserved bytes the model fits by the former alone."""
    strategy = {"dp": 1, "mbs": 2, "gbs": 2, "stack": stack(loose=True)}
    size = estimate(samples.model(), machine(1e9), strategy).memory_bytes
    between = (size.total + size.reserved) / 2
    assert size.needed == size.reserved > size.total
    for limit, fits in (("reserved", False), ("allocated", True)):
        for system, limit_on in ((machine(between), limit), (machine(between, limit), None)):
            found = estimate(samples.model(), system, strategy, limit_on=limit_on)
            assert found.fits is fits
            assert found.memory_bytes.limit_on == limit
            assert found.memory_bytes.needed == (size.total if fits else size.reserved)
            assert (found.memory_bytes.total, found.step_time_s) == (size.total, found.step_time_s)


@each_row("capacity", [0.9e6, 1.2e6, 2e6, 6e6])
def test_a_search_limits_allocated_memory(capacity: float) -> None:
    """As with software that reserves what it allocates: the same plans and counts of GPUs."""
    plain, loose = (
        search(
            samples.model(),
            machine(capacity),
            SPACE | {"stack": stack(loose=is_loose)},
            limit_on="allocated" if is_loose else None,
            counts=True,
            all_variants=True,
            top=5,
        )
        for is_loose in (False, True)
    )
    assert (plain.feasible, plain.rejected) == (loose.feasible, loose.rejected)
    assert [one.step_time_s for one in plain.best] == [one.step_time_s for one in loose.best]
    assert all(one.fits for one in loose.best)
    assert (plain.smallest is None) == (loose.smallest is None)
    if plain.smallest is not None and loose.smallest is not None:
        assert plain.smallest.gpus == loose.smallest.gpus


def test_a_sweep_follows_the_limit_of_its_system() -> None:
    """Where the memory holds what is allocated, the plan fits by the limit on that alone."""
    strategy = SPACE | {"tp": 1, "pp": 1, "mbs": 1, "zero": 0, "recompute": "none"}
    strategy |= {"stack": stack(loose=True)}
    size = estimate(samples.model(), machine(1e9), {**strategy, "recompute": "none"}).memory_bytes
    for limit, fits in (("reserved", False), ("allocated", True)):
        found = sweep(
            samples.model(),
            machine(1e9, limit),
            vary={"hbm.capacity": [size.total * 1.01]},
            space=strategy,
            fits=None,
        )
        assert bool(found.points[0].best) is fits


def test_an_explanation_says_what_is_lacking_of_allocated_memory() -> None:
    """Parts without the runtime and the slack."""
    mine = {"tp": 1, "pp": 1, "mbs": 2, "zero": 0, "recompute": "none", "stack": stack(loose=True)}
    case = samples.model(), machine(1.2e6), SPACE | {"stack": mine["stack"]}, mine
    for limit in ("reserved", "allocated"):
        (lack,) = explain(*case, limit_on=limit).shortages
        assert ("runtime" in lack.parts) is (limit == "reserved")
        assert lack.excess_bytes == pytest.approx(sum(lack.parts.values()) - 1.2e6)


def test_other_limits_are_refused() -> None:
    """A word that is none; a limit of the second tier; a limit for another model."""
    with pytest.raises(InputError, match="limit_on: 'most': allowed: reserved, allocated"):
        machine(1e9).limited_on("most")
    tiers = [
        {"name": "hbm", "capacity": 1e9, "bandwidth": 1e12},
        {"name": "host", "capacity": 1e9, "bandwidth": 1e9, "limit_on": "allocated"},
    ]
    with pytest.raises(InputError, match=r"memory\[1\].limit_on: has an effect on the first tier"):
        samples.system(memory=tiers)
    with pytest.raises(InputError, match="limit_on: has no effect with reference"):
        estimate("llama3-8b", "h100-sxm", gpus=8, gbs=8, limit_on="allocated", reference="calculon")


def test_the_flag_reaches_estimate_and_search(shardwise: Any) -> None:
    """`--limit-on allocated`: a batch that only fits without the slack of the allocator."""
    case = ("llama3-8b", "a100-80gb-sxm", "--gpus", "8", "--gbs", "64", "--pp", "1", "--mbs", "2")
    size = estimate("llama3-8b", "a100-80gb-sxm", gpus=8, gbs=64, pp=1, mbs=2, zero=3).memory_bytes
    assert size.total < size.reserved
    for verb in ("estimate", "search"):
        code, out, err = shardwise(verb, *case, "--zero", "3", "--limit-on", "most")
        assert code == 2
        assert "--limit-on: 'most': allowed: reserved, allocated" in err, out
    out = shardwise("estimate", *case, "--zero", "3", "--limit-on", "allocated", "--json")[1]
    assert '"limit_on": "allocated"' in out
