"""The line below a table of plans says only what is the same in all rows."""

from functools import cache
from typing import Any

import pytest

import samples
from shardwise import search
from shardwise.config.strategy_fields import FIELDS
from shardwise.planning.search.results import LevelsPlan, SearchResult
from shardwise.report.tables.search import agreed, levels_note, levels_table

pytestmark = pytest.mark.any_software


@cache
def found() -> SearchResult:
    """A search that finds one plan."""
    return search(samples.model(), samples.system(), gpus=4, gbs=8, tp=2, pp=1, top=1)


@cache
def level() -> LevelsPlan:
    """The best plan by levels."""
    space = {"gpus": 4, "gbs": 8, "tp": 2, "pp": 1}
    levels = search(samples.model(), samples.system(), space, levels=True, top=1).levels
    assert levels
    return levels[0]


LENGTHS = (512, 2048, 8192)


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if value is None or isinstance(value, bool):
        return 2 if value is None else not value
    if isinstance(value, (int, float)):
        return value + 1
    return [*value, "other"] if isinstance(value, (list, tuple)) else "other"


def with_rows(*strategies: dict[str, Any]) -> SearchResult:
    """A search whose space sets every field, and that found these strategies."""
    plans = [found().best[0].model_copy(update={"strategy": one}) for one in strategies]
    update = {"best": tuple(plans), "advised": (), "space": dict.fromkeys(FIELDS)}
    return found().model_copy(update=update)


def levels_of(*strategies: dict[str, Any]) -> list[LevelsPlan]:
    """Levels that have these strategies."""
    first = level()
    plans = [first.plan.model_copy(update={"strategy": one}) for one in strategies]
    return [first.model_copy(update={"plan": plan}) for plan in plans]


def facts(line: str) -> list[str]:
    """What a line says of all rows, one text for each."""
    every = line.rpartition("all of them: ")[2].split(", ")
    return [one.removeprefix("sequences of ") for one in every]


@pytest.mark.parametrize("field", FIELDS)
def test_what_varies_is_not_common(field: str) -> None:
    """Whatever is said of two plans that differ in a field is said of each of them alone."""
    for plan, line in ((found().best[0], agreed), (level().plan, levels_note)):
        one = plan.strategy
        other = {**one, field: LENGTHS if field == "data_lengths" else changed(one[field])}
        of_rows: Any = with_rows if line is agreed else levels_of
        both, first, second = (line(of_rows(*rows)) for rows in ((one, other), (one,), (other,)))
        for fact in facts(both):
            assert fact in first, field
            assert fact in second, field


def test_lengths_and_batches_that_vary() -> None:
    """One of them may vary without the other; a table of levels then has a column."""
    one = found().best[0].strategy
    longer, more = {**one, "seq_len": 128}, {**one, "global_batch_size": 16}
    assert agreed(with_rows(one)).startswith("all of them: 4 GPUs, global batch 8 x 32 tokens, ")
    assert agreed(with_rows(one, longer)).startswith("all of them: 4 GPUs, global batch 8, dtype")
    assert ", sequences of 32 tokens, dtype" in agreed(with_rows(one, more))
    assert "sequences of" not in levels_note(levels_of(one, longer))
    assert "tokens" in [column.header for column in levels_table(levels_of(one, longer)).columns]
