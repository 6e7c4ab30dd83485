"""Fields of a strategy as keywords: what they override, what is refused, and their types."""

import importlib.util
from pathlib import Path
from typing import get_type_hints

import polars as pl
import pytest

import shardwise
from generated import check
from shardwise import InputError, Space, Strategy, estimate, estimate_many
from shardwise.config.keywords import StrategyColumns, StrategyKeywords
from shardwise.config.strategy_fields import COLUMNS, SHORT_NAMES
from shardwise.planning.search.keywords import SpaceKeywords

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
RUN = {"gpus": 16, "tp": 4, "gbs": 16}


def _script():
    path = Path(__file__).parent.parent / "scripts" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_types_are_those_of_the_fields():
    """Type checkers and editors read them from these files."""
    for path, text in _script().FILES.items():
        check(path, text())


def test_every_field_is_a_keyword():
    """With its short name, and nothing else."""
    fields = {*Strategy.model_fields, *SHORT_NAMES}
    assert {*get_type_hints(StrategyKeywords)} == fields
    assert {*get_type_hints(StrategyColumns)} == fields
    assert {*get_type_hints(SpaceKeywords)} == {*Space.model_fields, *COLUMNS, *SHORT_NAMES}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A strategy file."""
    path = tmp_path_factory.mktemp("strategy") / "plan.yaml"
    path.write_text("gpus: 16\ntp: 4\ngbs: 16\n")
    return path


def test_keywords_are_a_strategy():
    """As a mapping is, in every function that has a strategy."""
    assert estimate(MODEL, SYSTEM, **RUN) == estimate(MODEL, SYSTEM, RUN)
    for name, more in {
        "estimate_training_time": {"tokens": "1B"},
        "graph_of": {},
        "trace": {},
    }.items():
        verb = getattr(shardwise, name)
        assert verb(MODEL, SYSTEM, **RUN, **more).to_dict() == (
            verb(MODEL, SYSTEM, RUN, **more).to_dict()
        )
    made = [
        shardwise.export("megatron", MODEL, SYSTEM, **RUN),
        shardwise.export("megatron", MODEL, SYSTEM, RUN),
    ]
    assert made[0].files == made[1].files


@pytest.mark.parametrize("base", ["mapping", "object", "file", "text"])
def test_keywords_override(base, file):
    """Fields of a mapping, an object, or a file; by either name of a field."""
    strategy = {"mapping": RUN, "object": Strategy(**RUN), "file": file, "text": str(file)}[base]
    expected = estimate(MODEL, SYSTEM, {"gpus": 16, "tp": 8, "global_batch_size": 32})
    assert estimate(MODEL, SYSTEM, strategy, tp=8, gbs=32) == expected
    assert estimate(MODEL, SYSTEM, strategy, tp=8, global_batch_size=32) == expected


def test_levels_stay_levels():
    """A keyword changes one field of a strategy with degrees by level."""
    by_level = {"dp": "2x2", "tp": 4, "gbs": 16}
    found = estimate(MODEL, SYSTEM, by_level, zero=3)
    assert found.strategy["extents"] == estimate(MODEL, SYSTEM, by_level).strategy["extents"]
    assert found.strategy["zero"] == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "strategy: is missing: set its fields"),
        ({"tpp": 4}, "strategy: tpp: unknown key; did you mean 'tp'"),
        ({"gpus": 8, "gbs": 8, "global_batch_size": 8}, "is set twice, by two names"),
        ({"gpus": 8, "tp": "many", "gbs": 8}, "strategy: tp: 'many'"),
    ],
)
def test_wrong_keywords_are_refused(fields, message):
    """In one line that names the field."""
    with pytest.raises(InputError, match=message):
        estimate(MODEL, SYSTEM, **fields)


def test_a_degree_that_contradicts_the_others_is_refused():
    """A resolved strategy has dp and gpus; another tp does not silently change them."""
    found = estimate(MODEL, SYSTEM, RUN)
    with pytest.raises(InputError, match=r"gpus: 16: must equal tp 8 x cp 1 x pp 1 x dp 4 = 32"):
        estimate(MODEL, SYSTEM, found.strategy, tp=8)
    assert estimate(MODEL, SYSTEM, found.strategy, tp=8, dp=2).strategy["dp"] == 2


def test_columns_are_keywords_too():
    """A list is a value for each row; over a mapping or a frame they override columns."""
    table = estimate_many(MODEL, SYSTEM, gpus=16, tp=[4, 8], gbs=16).to_frame()
    columns = {"gpus": [16, 16], "tp": [1, 1], "global_batch_size": [16, 16]}
    for strategies in (columns, pl.DataFrame(columns)):
        found = estimate_many(MODEL, SYSTEM, strategies, tp=[4, 8], gbs=16).to_frame()
        assert found.equals(table, null_equal=True)
    with pytest.raises(InputError, match="strategies: tp: columns go with a mapping"):
        estimate_many(MODEL, SYSTEM, [Strategy(**RUN)], tp=8)
    with pytest.raises(InputError, match="is missing: set its fields"):
        estimate_many(MODEL, SYSTEM)
