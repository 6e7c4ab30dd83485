"""The best plan of each combination of levels, as a table."""

from collections.abc import Mapping, Sequence
from functools import cache

from rich.table import Table

from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import RANK_DEGREES
from shardwise.frozen import FrozenDict
from shardwise.planning.search.results import LevelsPlan
from shardwise.report.console import gib, percent, plain_table, seconds
from shardwise.report.tables.strategy_line import (
    ALWAYS_SHOWN,
    SWITCHES,
    in_common,
    options_in_brief,
    word,
    work_in_common,
)

_LEVEL_HEADS = {"micro_batch_size": "mbs", "seq_len": "tokens"}
_LEVEL_AXES = (*RANK_DEGREES, "ep")


# Fields that columns or `options_in_brief` show, or that others follow from.
_SHOWN_OF_LEVELS = frozenset(
    {
        *(*_LEVEL_AXES, "etp", "vpp", "micro_batch_size", "gpus", "global_batch_size", "seq_len"),
        *("extents", "placement", "dtype", "recompute", "recompute_layers", "zero"),
        "dispatcher",
        *("tp_exchange", "tp_overlap", "summa_panels", "sequence_parallel", "schedule", *SWITCHES),
    }
)


def levels_table(found: Sequence[LevelsPlan]) -> Table:
    """One combination a line, best first, with the options that are best for it."""
    axes = [
        axis
        for axis in _LEVEL_AXES
        if axis in ALWAYS_SHOWN or any(_is_split(one, axis) for one in found)
    ]
    common = _common_options(found)
    same = in_common([one.plan.strategy for one in found])
    several = "gpus" not in same
    plain = ["etp"] if any(one.plan.strategy["etp"] > 1 for one in found) else []
    plain += ["vpp", "micro_batch_size", *(f for f in ("seq_len", "dtype") if f not in same)]
    heads = (
        *(("GPUs",) if several else ()),
        "batch",
        *axes,
        *(_LEVEL_HEADS.get(n, n) for n in plain),
    )
    figures = ("step time", "tokens/s", "MFU", "memory GiB", "with")
    optional = ("vpp", "memory GiB", "MFU")
    table = plain_table("", *heads, *figures, left=0, optional=optional, wraps=("with",))
    table.columns[-1].justify = "left"
    for rank, one in enumerate(found, start=1):
        plan, strategy = one.plan, one.plan.strategy
        table.add_row(
            str(rank),
            *([f"{strategy['gpus']:,}"] if several else []),
            f"{strategy['global_batch_size']:,}",
            *(one.levels[axis] for axis in axes),
            *(str(strategy[name]) for name in plain),
            seconds(plan.step_time_s),
            f"{plan.tokens_per_s:,.0f}",
            percent(plan.mfu),
            gib(plan.memory_reserved_bytes),
            ", ".join(option for option in _level_options(strategy) if option not in common),
        )
    return table


def levels_note(found: Sequence[LevelsPlan]) -> str:
    """What the columns mean, and what all lines have in common."""
    same = in_common([one.plan.strategy for one in found])
    words = work_in_common({f: v for f, v in same.items() if f != "global_batch_size"})
    words += [f"dtype {same['dtype']}"] if "dtype" in same else []
    return (
        "levels: members in a domain of the innermost tier x across; each line is the best of its "
        f"levels and batch\nall of them: {', '.join([*words, *_common_options(found)])}"
    )


def _common_options(found: Sequence[LevelsPlan]) -> list[str]:
    """Options of the first that all have."""
    every = [_level_options(one.plan.strategy) for one in found]
    return [option for option in every[0] if all(option in options for options in every)]


def _level_options(strategy: Mapping[str, object]) -> list[str]:
    """Options of a strategy that neither levels nor columns show."""
    more = [
        f"{name.removeprefix('tp_').replace('_', ' ')} {word(strategy[name])}"
        for name, usual in _defaults().items()
        if name not in _SHOWN_OF_LEVELS and strategy[name] != usual
    ]
    return [*options_in_brief(strategy), *more]


@cache
def _defaults() -> Mapping[str, object]:
    """Defaults of all fields."""
    return FrozenDict(Strategy().to_dict())


def _is_split(one: LevelsPlan, axis: str) -> bool:
    """Whether an axis has several members."""
    return any(part != "1" for part in one.levels[axis].split("x"))
