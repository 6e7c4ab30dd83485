"""The best plans of a search as a table, and what it says of them below."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from shardwise.analysis.features import feature_words
from shardwise.planning.search.results import RankedPlan, SearchResult, Ties
from shardwise.report.console import gib, percent, plain_table, seconds
from shardwise.report.tables.strategy_line import (
    ALWAYS_SHOWN,
    DEGREE_HEADS,
    FOLLOWS,
    MORE_DEGREES,
    SWITCHES,
    in_common,
    interval_words,
    word,
    work_in_common,
)

_SHORT = {
    "global_batch_size": "gbs",
    "fused_activation": "fused act.",
    "tp_exchange": "tp exchange",
    "tp_overlap": "tp overlap",
    "tp_regather": "regather",
    "dp_overlap": "dp overlap",
    "offload_weights": "offl. weights",
    "offload_activations": "offl. act.",
    "offload_parts": "offl. parts",
    "offload_optimizer": "offl. optimizer",
    "placement": "placement",
    "extents": "extents",
}
# They follow from another one, or stand with it.
_DERIVED = ("sequence_parallel", "recompute_parts")
# Listed below the table where all strategies agree.
_COMMON = (
    *("dtype", "vpp", "micro_batch_size"),
    *("recompute", "zero", "tp_exchange", "tp_overlap", "dp_overlap", "placement"),
)
# What a narrow table omits before anything that distinguishes plans.
_OPTIONAL = ("tokens/s/GPU", "variants", "MFU", "8 of 10 runs")
_OBJECTIVES = {
    "step_time": "step time",
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "tokens_per_dollar": "tokens per dollar",
}
_VARIANTS = (
    "variants: strategies of the same degrees, micro-batch and recompute within 0.5 % of the best "
    "of them; the line is the simplest (--all-variants lists all)"
)


def best_table(result: SearchResult) -> Table:
    """Return the best plans, one a line; where columns do not fit, what differs as one text."""
    strategies = [plan.strategy for plan in result.best]
    fields = columns_of(strategies)
    heads = [short(field).replace("_", " ") for field in fields]
    cells = [[_cell(strategy, field) for field in fields] for strategy in strategies]
    texts = [_in_words(fields, heads, row) for row in cells]
    figures = [_figures(plan) for plan in result.best]
    needed = [
        {head: text for head, text in row.items() if head not in _OPTIONAL} for row in figures
    ]
    narrow = _table(result, ["strategy"], [[text] for text in texts], needed)
    return _table(result, heads, cells, figures, otherwise=narrow)


def _table(
    result: SearchResult,
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    figures: Sequence[Mapping[str, str]],
    otherwise: Table | None = None,
) -> Table:
    """Plans in their order, with columns of the strategy and then of figures."""
    alike = result.alike
    shown = [head for head in figures[0] if any(row[head] for row in figures)]
    table = plain_table(
        *("", *heads, *shown),
        left=0,
        optional=[head for head in _OPTIONAL if head in shown],
        wraps=("recompute", "strategy"),
        notes={
            **({} if alike is None else {"": _ties_note(result, alike)}),
            **({} if result.all_variants else {"variants": _VARIANTS}),
        },
        otherwise=otherwise,
    )
    for column in table.columns:
        if column.header in ("recompute", "strategy"):
            column.justify = "left"
    for place in _listed(alike, len(result.best)):
        tied = alike is not None and place < alike.plans
        rank = f"~{place + 1}" if tied else str(place + 1)
        table.add_row(rank, *cells[place], *(figures[place][head] for head in shown))
    return table


def _listed(alike: Ties | None, plans: int) -> list[int]:
    """Positions of plans in the order of the table."""
    first = [] if alike is None else [place for place in alike.order if place < plans]
    return [*first, *(place for place in range(plans) if place not in first)]


def _figures(plan: RankedPlan) -> dict[str, str]:
    """Cells of the figures by head; empty where there is nothing to say."""
    return {
        "step time": seconds(plan.step_time_s),
        "8 of 10 runs": interval_words(plan.interval) if plan.interval else "",
        "tokens/s/GPU": f"{plan.tokens_per_s_per_gpu:,.0f}",
        "MFU": percent(plan.mfu),
        "memory GiB": gib(plan.memory_bytes.reserved),
        "variants": f"+ {plan.variants:,}" if plan.variants else "",
    }


def _cell(strategy: Mapping[str, object], field: str) -> str:
    return _recompute(strategy) if field == "recompute" else word(strategy[field])


def _recompute(strategy: Mapping[str, object]) -> str:
    """The kind of recompute, and its parts where it is selective and they are not the default."""
    parts = strategy["recompute_parts"]
    if strategy["recompute"] != "selective" or not isinstance(parts, (list, tuple)):
        return word(strategy["recompute"])
    return "selective" if list(parts) == ["core_attention"] else f"selective ({' + '.join(parts)})"


def _in_words(fields: Sequence[str], heads: Sequence[str], cells: Sequence[str]) -> str:
    """Fields of a strategy as text: degrees first."""
    words = [f"{head} {cell}" for head, cell in zip(heads, cells, strict=True)]
    degrees = [field in DEGREE_HEADS or field in MORE_DEGREES for field in fields]
    first = " ".join(text for text, is_one in zip(words, degrees, strict=True) if is_one)
    return ", ".join([first, *(t for t, is_one in zip(words, degrees, strict=True) if not is_one)])


def _ties_note(result: SearchResult, found: Ties) -> str:
    """What the mark of plans means, their order, and which is safer or simpler than the first."""
    text = f"~ within {percent(found.within)} of the best: the prediction cannot separate these"
    text += f" {found.plans} plans"
    if found.order:
        ranks = _OBJECTIVES.get(result.objective, result.objective)
        text += "; listed by how well measured runs cover them, then by simplicity; numbers are "
        text += f"ranks by {ranks}"
    return f"{text}. {_safer(result, found)}"


def _safer(result: SearchResult, found: Ties) -> str:
    number = found.safer + 1
    if number == 1:
        return "Plan 1 is also the safest."
    if found.untried:
        reason = f"relies on {feature_words(found.untried)}, which no measured run has used"
        return f"Plan {number} is safer: plan 1 {reason}."
    if found.order and found.safer < len(result.best):
        first, own = (len(result.best[place].settings) for place in (0, found.safer))
        words = f"{own} non-default setting{'' if own == 1 else 's'}"
        return f"Plan {number} is simpler: {words}, plan 1 has {first}."
    share = percent(found.uncertain)
    return f"Plan {number} is safer: communication and waiting take {share} of its step."


def columns_of(strategies: Sequence[Mapping[str, object]]) -> list[str]:
    """Return tp, pp, dp and whatever differs; recompute stands with its parts."""
    first = strategies[0]
    differing = [
        field
        for field in first
        if field not in _DERIVED
        and any(_differs(strategy, first, field) for strategy in strategies)
        and (field != "schedule" or any(one["schedule"] not in FOLLOWS for one in strategies))
    ]
    sizes = [field for field in ("gpus", "global_batch_size") if field in differing]
    degrees = [f for f in DEGREE_HEADS if f in ALWAYS_SHOWN or f in differing]
    rest = [field for field in differing if field not in (*sizes, *degrees)]
    more = [field for field in rest if field in MORE_DEGREES]
    return [*sizes, *degrees, *more, *(field for field in rest if field not in more)]


def _differs(one: Mapping[str, object], other: Mapping[str, object], field: str) -> bool:
    if field == "recompute":
        return _recompute(one) != _recompute(other)
    return one[field] != other[field]


def agreed(result: SearchResult) -> str:
    """Return what all plans have in common and no column shows, if the space has it vary."""
    strategies = [plan.strategy for plan in result.best]
    shown, same = columns_of(strategies), in_common(strategies)
    placed = any(one["extents"] is not None for one in strategies)  # and so not by placement
    common = [f for f in _COMMON if f not in shown and not (f == "placement" and placed)]
    shared = [_named(strategies[0], field) for field in common if field in same]
    shared += [label for f, label in SWITCHES.items() if same.get(f)]
    shared += [f"{f} {same[f]}" for f in MORE_DEGREES if same.get(f, 1) > 1]
    listed = (*shown, *_COMMON, *SWITCHES, *MORE_DEGREES, *_DERIVED)
    listed = (*listed, "gpus", "global_batch_size", "seq_len")
    named = [f for f in result.space if f not in listed and same.get(f) is not None]
    words = [*work_in_common(same), *shared, *(_named(strategies[0], field) for field in named)]
    return "all of them: " + ", ".join(words)


def _named(strategy: Mapping[str, object], field: str) -> str:
    return f"{DEGREE_HEADS.get(field, field).replace('_', ' ')} {_cell(strategy, field)}"


def short(field: str) -> str:
    """Return the head of a column of a field."""
    return DEGREE_HEADS.get(field) or _SHORT.get(field, field)
