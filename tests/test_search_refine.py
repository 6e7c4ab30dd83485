"""Better splits of layers for the best plans of a search."""

import pytest

from shardwise import Space, System, estimate_many, search
from shardwise.planning.search.layouts import numbers_of_chunks

ONE = {"dp": 1, "cp": 1, "zero": 1, "recompute": "none", "micro_batch_size": 1}
DEEPSEEK = {"gpus": 256, "gbs": 4096, "tp": 1, "cp": 1, "ep": 32, "pp": 2, "zero": 1}
DEEPSEEK |= {"micro_batch_size": 1, "recompute": "none", "quantization": "mxfp8", "vpp": 8}
DEEPSEEK |= {"dispatcher": "hybridep", "expert_overlap": True, "cuda_graphs": "none"}


def best_of(lists, fields, room):
    """The fastest of some lists of layers that fit, and its step time."""
    table = estimate_many(
        "llama3-8b", "h100-sxm", {**fields, "stage_layers": list(map(list, lists))}
    )
    fits = [
        (step, split)
        for step, held, split in zip(
            table.step_time_s.tolist(), table.memory_reserved_bytes.tolist(), lists, strict=True
        )
        if held <= room
    ]
    return min(fits)


@pytest.mark.parametrize("room", [80e9, 31e9])
def test_two_stages_have_the_fastest_of_all_splits_that_fit(room: float) -> None:
    """Of 32 layers the last stage, which has the head, gets fewer; less memory leaves it more."""
    fields = ONE | {"gpus": 8, "tp": 4, "pp": 2, "gbs": 8, "vpp": 1}
    step, split = best_of([(first, 32 - first) for first in range(10, 23)], fields, room)
    found = search("llama3-8b", "h100-sxm", fields, top=1, max_memory=room, fits=None).best[0]
    assert found.strategy["stage_layers"] == split
    assert found.step_time_s == pytest.approx(step)
    assert found.memory_bytes.reserved <= room


def test_chunks_of_deepseek_are_no_slower_than_the_published_ones() -> None:
    """Embedding and 4 or 5 layers, 14 times 4, and the rest with the loss (Megatron-Bridge)."""
    found = search("deepseek-v3", "gb300-nvl72", DEEPSEEK, top=1, fits=None).best[0]
    lists = [[first, *[4] * 14, 5 - first] for first in (3, 4, 5)]
    published = estimate_many("deepseek-v3", "gb300-nvl72", {**DEEPSEEK, "stage_layers": lists})
    room = System.load("gb300-nvl72").accelerator.memory[0].capacity
    fits = published.memory_reserved_bytes <= room
    assert fits.any()
    assert found.step_time_s <= published.step_time_s[fits].min()
    assert found.fits


def test_a_split_that_the_space_fixes_stays() -> None:
    """A space that names the layers of the stages, or their ends, is searched as it is."""
    fields = ONE | {"gpus": 8, "tp": 4, "pp": 2, "gbs": 8, "vpp": 1}
    for own in ({"stage_layers": "none"}, {"loss_as_layer": False}):
        [plan] = search("llama3-8b", "h100-sxm", Space(**fields, **own), top=1).best
        assert plan.strategy["stage_layers"] is None


def test_stages_that_cannot_share_layers_have_chunks_with_the_ends_counted() -> None:
    """61 layers on 2 stages: 31 have the divisors 1 and 31, 32 with embedding and head more."""
    assert numbers_of_chunks(61, 2) == ((1, 31), (1, 2, 4, 8, 16, 32))
    assert numbers_of_chunks(80, 4) == ((1, 2, 4, 5, 10, 20),)
