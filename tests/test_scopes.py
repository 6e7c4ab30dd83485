"""A wider space contains every narrower one."""

from pathlib import Path
from typing import Any

import pytest

import shardwise
from profiles import sampled
from shardwise import Model, System, search
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.space import SPACE_FIELDS, Space
from uneven_splits import legal_splits

STACKS = sorted(file.stem for file in Path(shardwise.__file__).parent.glob("catalog/stacks/*.yaml"))
# Dense, dense and too long for one rank, experts, experts with latent attention.
MODELS = ("llama3-8b", "gpt3-175b", "qwen3-235b-a22b", "deepseek-v3")
DEFAULT: dict[str, Any] = {}
FULL, ANY = {"scope": "full"}, {"any_software": True}
WIDER = ((DEFAULT, FULL), (DEFAULT, ANY), (FULL, FULL | ANY), (ANY, FULL | ANY))


@pytest.mark.parametrize("stack", sampled(STACKS, part=8))
def test_a_wider_space_tries_what_a_narrower_one_does(stack: str) -> None:
    """Every value of every field, degrees as large, and uneven stages."""
    system = System.load("gb200-nvl72").model_copy(update={"stack": stack})
    for model in map(Model.load, MODELS):
        for some in ({}, {"seq_len": 131_072}):
            for fields in WIDER:
                narrow, wide = (Space(**some, **one).settled(model, system) for one in fields)
                few, many = (legal_splits(model, system, one, 8) for one in (narrow, wide))
                assert few.keys() <= many.keys(), fields
                for name in set(SPACE_FIELDS) - {"any_software", *SHORT_NAMES}:
                    assert narrow.most(name, model, system) <= wide.most(name, model, system)
                    tried, more = narrow.values(name, system), wide.values(name, system)
                    contains = tried == more or more is None or set(tried or ("all",)) <= set(more)
                    assert contains, (name, fields)


@pytest.mark.parametrize("stack", sampled(STACKS))
def test_every_scope_is_small_enough_to_search(stack: str) -> None:
    """The limit of options is for spaces that people write."""
    system = System.load("gb200-nvl72").model_copy(update={"stack": stack})
    few = {"gpus": 1, "gbs": 1, "scope": "full", "any_software": True}
    assert len(Candidates.of(Model.load("deepseek-v3"), system, Space.validated(few)))


@pytest.mark.parametrize(
    ("model", "system", "fields"),
    [
        ("mixtral-8x7b", "h100-sxm", {"gpus": 16, "tp": 2, "pp": 1, "ep": 8, "mbs": 1}),
        ("llama3.2-1b", "calculon-a100-80g", {"gpus": 8, "tp": 2, "pp": 1, "dtype": "fp16"}),
    ],
)
def test_a_wider_space_has_a_best_that_is_no_slower(
    model: str, system: str, fields: dict[str, Any]
) -> None:
    """Of searches that all have the same degrees."""
    some = fields | {"gbs": 16, "cp": 1, "placement": "tp-cp-dp-pp", "offload_activations": False}
    for one in WIDER:
        narrow, wide = (search(model, system, some | more, top=1).best[0] for more in one)
        assert wide.step_time_s <= narrow.step_time_s * (1 + 1e-12)
