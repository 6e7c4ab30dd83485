"""What a search found, as tables."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from shardwise.analysis.coverage import coverage_of
from shardwise.config.accelerator import tier_words
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS, RANK_DEGREES
from shardwise.frozen import FrozenDict
from shardwise.parallel.constraints import CONSTRAINTS, Constraint
from shardwise.planning.search.results import (
    Cell,
    LevelsPlan,
    Plan,
    RankedPlan,
    ScaleResult,
    SearchResult,
    SmallestGpus,
    Ties,
    TrainingRuns,
)
from shardwise.report.console import (
    chance,
    count,
    gib,
    percent,
    plain_table,
    seconds,
    show,
    table_of,
)
from shardwise.report.tables.advice import avoided_lines, recommendation_lines
from shardwise.report.tables.cluster import dollars
from shardwise.report.tables.strategy_line import (
    ALWAYS_SHOWN,
    DEGREE_HEADS,
    FOLLOWS,
    MORE_DEGREES,
    SWITCHES,
    briefly,
    in_brief,
    in_common,
    interval_words,
    measured_words,
    options_in_brief,
    word,
    work_in_common,
)
from shardwise.units import readable

_LEVEL_AXES = (*RANK_DEGREES, "ep")


# Fields that columns or `options_in_brief` show, or that others follow from.
_SHOWN_OF_LEVELS = frozenset(
    {
        *(*_LEVEL_AXES, "etp", "vpp", "micro_batch_size", "gpus", "global_batch_size", "seq_len"),
        *("extents", "placement", "dtype", "recompute", "recompute_layers", "zero"),
        "dispatcher",
        *(
            "tp_exchange",
            "tp_overlap",
            "summa_panels",
            "sequence_parallel",
            "attention_kernel",
            "schedule",
            *SWITCHES,
        ),
    }
)


def levels_table(found: Sequence[LevelsPlan]) -> Table:
    """One combination a line, best first, with the options that are best for it."""
    axes = [
        axis
        for axis in _LEVEL_AXES
        if axis in ALWAYS_SHOWN
        or any(any(part != "1" for part in one.levels[axis].split("x")) for one in found)
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
        *("tokens" if n == "seq_len" else FIELDS[n].short for n in plain),
    )
    figures = ("step time", "tokens/s", "MFU", "memory GiB", "fits", "with")
    optional = ("vpp", "memory GiB", "MFU")
    table = plain_table(
        *("", *heads, *figures), left=0, texts=("with",), optional=optional, wraps=("with",)
    )
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
            chance(plan.fits_probability),
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
_OPTIONAL = ("8 of 10 runs", "tokens/s/GPU", "variants", "MFU")
_P80 = "p80: 8 of 10 such plans take no longer; it orders the plans (--objective: others)"
_VARIANTS = "variants: nearly equal strategies of the same layout (--all-variants lists all)"


def best_table(result: SearchResult) -> Table:
    """Return the best plans, one a line; where columns do not fit, what differs as one text."""
    strategies = [plan.strategy for plan in result.rows]
    fields = columns_of(strategies)
    heads = [short(field).replace("_", " ") for field in fields]
    cells = [[_cell(strategy, field) for field in fields] for strategy in strategies]
    texts = [_strategy_words(fields, heads, row) for row in cells]
    figures = [_figures(plan) for plan in result.rows]
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
    alike, measured = result.alike, measured_words(result.rows[0].interval)
    shown = [head for head in figures[0] if any(row[head] for row in figures)]
    table = plain_table(
        *("", *heads, *shown),
        left=0,
        optional=[head for head in _OPTIONAL if head in shown],
        texts=("recompute", "strategy"),
        wraps=("recompute", "strategy"),
        notes={
            **({} if alike is None else {"": _ties_note(result, alike)}),
            **({"step time": measured} if measured else {}),
            **({} if not result.advised else {"p80": _P80}),
            **({} if result.all_variants else {"variants": _VARIANTS}),
        },
        otherwise=otherwise,
    )
    for rank, (own, row) in enumerate(zip(cells, figures, strict=True), start=1):
        table.add_row(str(rank), *own, *(row[head] for head in shown))
    return table


def _figures(plan: RankedPlan) -> dict[str, str]:
    """Cells of the figures by head; empty where there is nothing to say."""
    return {
        "step time": seconds(plan.step_time_s),
        "p80": "" if plan.step_time_p80_s is None else seconds(plan.step_time_p80_s),
        "8 of 10 runs": interval_words(plan.interval) if plan.interval else "",
        "tokens/s/GPU": f"{plan.tokens_per_s_per_gpu:,.0f}",
        "MFU": percent(plan.mfu),
        "memory GiB": gib(plan.memory_bytes.reserved),
        "fits": "" if plan.fits_probability is None else chance(plan.fits_probability),
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


def _strategy_words(fields: Sequence[str], heads: Sequence[str], cells: Sequence[str]) -> str:
    """Fields of a strategy as text: degrees first."""
    words = [f"{head} {cell}" for head, cell in zip(heads, cells, strict=True)]
    degrees = [field in DEGREE_HEADS or field in MORE_DEGREES for field in fields]
    first = " ".join(text for text, is_one in zip(words, degrees, strict=True) if is_one)
    return ", ".join([first, *(t for t, is_one in zip(words, degrees, strict=True) if not is_one)])


def tied(result: SearchResult) -> list[bool]:
    """Return for each plan of the table whether measurements cannot separate it from the first."""
    within = 0.0 if result.alike is None else result.alike.within
    first = result.rows[0].step_time_s if result.rows else 1.0
    return [abs(plan.step_time_s / first - 1) < within for plan in result.rows]


def _ties_note(result: SearchResult, found: Ties) -> str:
    """How many plans are so close that predictions cannot separate them."""
    near = tied(result)
    return (
        f"the predictions of {sum(near)} of these {len(near)} plans are within "
        f"{percent(found.within)} of plan 1: measurements cannot separate them"
    )


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
    strategies = [plan.strategy for plan in result.rows]
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
    value = _cell(strategy, field)
    value = "by default of the software" if value == "stack" else value
    return f"{DEGREE_HEADS.get(field, field).replace('_', ' ')} {value}"


def short(field: str) -> str:
    """Return the head of a column of a field."""
    return DEGREE_HEADS.get(field) or _SHORT.get(field, field)


def _rule_words(rule: Constraint) -> str:
    """What a rule refuses, where there is no sentence of its own."""
    name, field = rule.reason.replace("_", " "), rule.field.replace("_", " ")
    return f"break a rule of {field}" + ("" if name == field else f" ({name})")


_REASONS = {
    "memory": "do not fit in memory",
    "may_not_fit": "are less likely to fit than required",
    "second_memory": "do not fit in host memory",
    **{rule.reason: _rule_words(rule) for rule in CONSTRAINTS},
    "reported": "avoided: reported broken or slower",
    "batch": "the replicas cannot share the batch",
    "tier_size": "a network tier has too few accelerators",
    "tier_filled": "a network tier would not be filled",
    "layers": "stages or chunks do not divide the layers",
    "sequence": "tp x cp does not divide the sequence",
    "context": "2 x cp does not divide the sequence",
    "ep": "ep does not divide the experts",
    "etp": "etp does not divide the width of an expert",
    "expert_ranks": "ep x etp does not divide tp x cp x dp",
    "routing": "experts with tp need sequence parallelism",
    "more_recompute": "fewer recomputed layers fit, too",
    "smaller_micro_batch": "a larger micro-batch fits, too",
    "slower_stages": "other layers of the stages are faster",
    "dtype": "the accelerator has no rate for the type",
    "heads": "tp does not divide the heads",
    "software": "not supported by the software",
    "ffn": "tp does not divide the width of the MLP",
}
_PREDICATES = ("do not fit", "are less", "break a", "avoided", "not supported")
"""Begin texts of reasons that say what strategies do; others say why they are rejected."""
_COUNTED_REASON = re.compile(r"\b([a-z]\w*) ([\d,]*\d)\b")
_MOST_PARETO = 40
_COUNTED_IN_FULL = 1_000_000
_MOST_LEFT_OUT = 4
_IN_BRIEF = (
    *("recompute", "recompute_layers", "zero", "tp_exchange", "tp_overlap", "schedule"),
    "dispatcher",
    *("stage_layers", "first_stage_layers", "last_stage_layers"),
)
_EMPTY = "0 strategies: no degrees and chunks of the space use exactly these GPUs"


def print_search(result: SearchResult) -> None:
    """Print the best strategies, what else was requested, and why the others were rejected."""
    show(_headline(result))
    if result.best and result.best[0].strategy["training"]:
        show(f"{coverage_of(result.best[0])[1]}\n", style="dim")
    if result.recommended is not None and not result.levels:
        show(Text("\n".join(recommendation_lines(result)) + "\n"))
    if result.levels:
        show(levels_table(result.levels), Text(levels_note(result.levels) + "\n"))
    elif result.rows:
        show(best_table(result), Text(agreed(result) + "\n"))
    if len(result.scales) > 1:
        _print_with_common(*_scales(result.scales))
    if result.runs is not None and result.runs.runs:
        show(_runs_table(result.runs), Text(_runs_note(result.runs) + "\n"))
    if result.pareto is not None:
        _print_with_common(*_pareto(result.pareto, result.pareto_against or "memory"))
    if result.cells:
        show(_cells(result.cells))
    if note := _scope_note(result):
        show(Text(note + "\n"))
    show(Text("\n".join(closing(result)), style="dim" if result.rows else ""))


def print_notes(result: SearchResult) -> None:
    """Print what a page shows below plans and charts: what they share, runs, and what was left."""
    if result.rows:
        show(Text(agreed(result)))
    if result.runs is not None and result.runs.runs:
        show(_runs_table(result.runs), Text(_runs_note(result.runs)))
    if note := _scope_note(result):
        show(Text(note))
    if result.rows:
        show(Text("\n".join(closing(result))))


def _print_with_common(table: Table, common: str) -> None:
    """Print a table of plans, and what all of them have in common."""
    show(table, *([Text(common + "\n")] if common else []))


def print_count(candidates: int, rejected: Mapping[str, int]) -> None:
    """Print the size of a space."""
    legal = candidates - sum(rejected.values())
    show(f"{candidates:,} strategies, {legal:,} obey the rules" if candidates else _EMPTY)
    if rejected:
        show(_reasons(rejected))


def _headline(result: SearchResult) -> Text:
    text = Text("\n")
    text.append(f"{result.model} on {result.system}", style="bold")
    counts = f"{result.candidates:,} strategies, "
    counts += "" if result.complete else f"{result.looked_at:,} of them evaluated, "
    counts += "at least " if _leaves_out(result) else ""
    counts += f"{result.feasible:,} {'of them ' if result.complete else ''}feasible"
    counts += "" if result.objective == "step_time" else f"; best by {result.objective}"
    text.append(f"\n{counts}\n")
    if _leaves_out(result):
        text.append(f"{_timed_note(result)}\n")
    if not result.complete:
        text.append("interrupted: the best so far\n", style="bold red")
    return text


def _leaves_out(result: SearchResult) -> bool:
    """Whether bounds left out strategies, so that counts are lower bounds."""
    return result.complete and not result.counts_exact


def _timed_note(result: SearchResult) -> str:
    """How many strategies were timed, and why that is enough."""
    total = result.candidates
    of = f"{total:,}" if total < _COUNTED_IN_FULL else count(total)
    more = result.pareto is not None or result.cells or result.levels
    best = len(result.rows)
    where = "in any of these tables" if more else f"among the {best} best"
    where = "better" if best == 1 and not more else where
    return f"{result.timed:,} of {of} timed; the rest cannot be {where}"


def _scope_note(result: SearchResult) -> str:
    """What the space left out, and what it was widened by."""
    lines = list(result.software)
    if result.widened:
        lines.append(f"no plan fits without offload, so also tried: {', '.join(result.widened)}")
    if result.not_tried:
        left_out = "; ".join(_left_out(*item) for item in result.not_tried.items())
        how = "add with --allow FIELD or FIELD=VALUE, or --space full"
        lines.append(f"not tried: {left_out} ({how})")
    how = "name a value to try it, as in --allow FIELD=VALUE"
    return "\n".join([*lines, *avoided_lines(result, how)])


def _left_out(field: str, values: Sequence[object]) -> str:
    """Values of a field that were not tried, or how many there are."""
    if list(values) == [True]:
        return field
    if len(values) > _MOST_LEFT_OUT:
        return f"{field} ({len(values)} more)"
    return f"{field} {', '.join(map(_plain_value, values))}"


def _plain_value(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else word(value)


def _scales(scales: Sequence[ScaleResult]) -> tuple[Table, str]:
    """The best of each number of GPUs, and what all of them have in common."""
    heads = ("step time", "tokens/s", "per GPU", "speed-up", "efficiency", "MFU", "best")
    table = plain_table(
        *("GPUs", "batch", *heads),
        left=0,
        texts=("best",),
        title="By scale",
        optional=("per GPU", "efficiency", "tokens/s"),
        wraps=("best",),
    )
    lines, common = briefly([one.best.strategy for one in scales if one.best is not None])
    words = iter(lines)
    for scale in scales:
        plan = scale.best
        if plan is None:
            blank = [""] * 6
            table.add_row(f"{scale.gpus:,}", f"{scale.global_batch_size:,}", *blank, "nothing fits")
            continue
        table.add_row(
            f"{scale.gpus:,}",
            f"{plan.strategy['global_batch_size']:,}",
            seconds(plan.step_time_s),
            f"{plan.tokens_per_s:,.0f}",
            f"{plan.tokens_per_s_per_gpu:,.0f}",
            f"{scale.speedup:.2f}x",
            percent(scale.efficiency or 0.0),
            percent(plan.mfu),
            next(words),
        )
    return table, common


def _pareto(plans: Sequence[Plan], against: str) -> tuple[Table, str]:
    title = f"Pareto front: time and {against}, {len(plans)} strategies"
    step = -(-len(plans) // _MOST_PARETO)
    # Fields that differ and that a strategy in brief does not name.
    strategies = [plan.strategy for plan in plans]
    named = ("gpus", *DEGREE_HEADS, *MORE_DEGREES, *_IN_BRIEF, *SWITCHES)
    unnamed = [f for f in columns_of(strategies) if f not in named] if strategies else []
    plans = [plan for i, plan in enumerate(plans) if i % step == 0 or i == len(plans) - 1]
    lines, common = briefly([plan.strategy for plan in plans])
    words = iter(lines)
    table = table_of(
        plans,
        {
            "memory GiB": lambda plan: gib(plan.memory_reserved_bytes),
            "fits": lambda plan: chance(plan.fits_probability),
            "GPUs": lambda plan: f"{plan.strategy['gpus']:,}",
            "step time": lambda plan: seconds(plan.step_time_s),
            "$/B tokens": lambda plan: (
                "-"
                if plan.usd_per_billion_tokens is None
                else f"{plan.usd_per_billion_tokens:,.0f}"
            ),
            "strategy": lambda plan: ", ".join([next(words), *_more(plan.strategy, unnamed)]),
        },
        left=0,
        texts=("strategy",),
        title=title,
        wraps=("strategy",),
    )
    return table, common


def _more(strategy: Mapping[str, Any], unnamed: Sequence[str]) -> Iterator[str]:
    """What a strategy in brief does not name."""
    if strategy["recompute"] == "selective":
        yield f"recompute parts {word(strategy['recompute_parts'])}"
    yield from (f"{short(field).replace('_', ' ')} {word(strategy[field])}" for field in unnamed)


def _cells(cells: Sequence[Cell]) -> Table:
    """Step time of the best of every cell, the first axis down, the second across."""
    down, *across = cells[0].values
    if len(across) != 1:
        heads = (*cells[0].values, "step time", "best")
        table = plain_table(*heads, left=0, texts=("best",), wraps=("best",))
        for cell in cells:
            words = [word(value) for value in cell.values.values()]
            table.add_row(*words, seconds(cell.plan.step_time_s), in_brief(cell.plan.strategy))
        return table
    rows = list(dict.fromkeys(cell.values[down] for cell in cells))
    columns = sorted({cell.values[across[0]] for cell in cells}, key=_order)
    times = {tuple(c.values.values()): seconds(c.plan.step_time_s) for c in cells}
    named = [f"{short(across[0])} {word(value)}" for value in columns]
    table = plain_table("", *named, title="Step time of the best of each")
    for row in rows:
        found = [times.get((row, column), "") for column in columns]
        table.add_row(f"{short(down)} {word(row)}", *found)
    return table


def _order(value: object) -> tuple[bool, object]:
    return (False, value) if isinstance(value, (int, float)) else (True, str(value))


def _reasons(rejected: Mapping[str, int]) -> Table:
    heads = ("rejected", "strategies", "because")
    table = plain_table(*heads, texts=("because",), wraps=("because",))
    for reason, number in rejected.items():
        table.add_row(reason, f"{number:,}", _REASONS.get(reason, ""))
    return table


def closing(result: SearchResult) -> list[str]:
    """Why strategies were rejected, and what is nearest if all were."""
    rejected = ", ".join(reason_words(reason, f"{n:,}") for reason, n in result.rejected.items())
    least = ", at least" if _leaves_out(result) else ""
    lines = [f"not possible{least}: {rejected}"] if rejected else []
    if not result.candidates:
        lines.append(_EMPTY)
    if result.rows:
        return [*lines, result.best[0].cost.price_line] if result.best else lines
    lines.append("nothing is feasible" if result.complete else "nothing feasible was found so far")
    if result.nearest is not None:
        nearest = result.nearest
        lack = f"{readable(nearest.excess_bytes, 'bytes')} more {tier_words(nearest.tier)}"
        lines.append(f"nearest: {in_brief(nearest.strategy)}, which needs {lack}{_odds(result)}")
    if result.nearest_batches:
        lines.append(_batch_remedy(result.nearest_batches, result.space))
    if result.smallest is not None:
        lines.append(_smallest(result.smallest))
    return lines


def _odds(result: SearchResult) -> str:
    """How likely the nearest plan fits, and how to accept it."""
    likely = None if result.nearest is None else result.nearest.fits_probability
    if likely is None or result.fits_required is None:
        return ""
    required = f"for {chance(result.fits_required)}; it fits with {chance(likely)}"
    least = math.floor(100 * likely)
    return f" {required}" + (f" (--fits {least}% accepts it)" if least >= 1 else "")


def _batch_remedy(batches: Sequence[int], space: Mapping[str, Any]) -> str:
    """Flags with which replicas can share the batch."""
    words = f"the replicas can share --gbs {' or '.join(map(str, batches))}"
    is_open = space.get("batch") != "largest"
    if is_open and batches[0] < max(space["global_batch_size"]):
        words += "; --batch largest takes the largest batch that they can"
    return words


def _smallest(found: SmallestGpus) -> str:
    if found.gpus is None:
        return f"more GPUs would not help: {_COUNTED_REASON.sub(_in_words, found.problem or '')}"
    words = f"the smallest number of GPUs that would do: {found.gpus:,}"
    return words if found.strategy is None else f"{words}, such as {in_brief(found.strategy)}"


def _in_words(found: re.Match[str]) -> str:
    """A reason and how often it was met, in words."""
    return reason_words(found[1], found[2]) if found[1] in _REASONS else found[0]


def reason_words(reason: str, number: str) -> str:
    """Return how many strategies are rejected, and why."""
    words = _REASONS.get(reason, reason)
    return f"{number} {words}" if words.startswith(_PREDICATES) else f"{number} because {words}"


def _runs_table(found: TrainingRuns) -> Table:
    """One run a line, in the order of the calendar."""
    tokens = count(found.runs[0].run.tokens_asked)
    failing = found.runs[0].run.goodput is not None
    heads = ["GPUs", "batch", "step time", "days", "GPU-hours", "price"]
    if failing:
        heads += ["failures", "goodput", "effective days", "effective price"]
    table = plain_table(
        *("", *heads, "degrees"),
        left=0,
        texts=("degrees",),
        title=f"Time to train on {tokens} tokens, shortest first",
        optional=("GPU-hours", "failures", "batch", "price"),
    )
    for rank, one in enumerate(found.runs, start=1):
        run = one.run
        row = [
            f"{run.gpus:,}",
            f"{one.strategy['global_batch_size']:,}",
            seconds(run.step_time_s),
            _number(run.days.expected),
            _number(run.gpu_hours.expected),
            dollars(None if run.usd is None else run.usd.expected),
        ]
        if run.goodput is not None:
            row += [
                _number(run.goodput.failures),
                percent(run.goodput.goodput),
                _number(run.effective_days),
                dollars(run.effective_usd),
            ]
        cheapest = " $" if found.cheapest == rank - 1 else ""
        table.add_row(f"{rank}{cheapest}", *row, in_brief(one.strategy).split(",")[0])
    return table


def _runs_note(found: TrainingRuns) -> str:
    """What was ranked, and what failures do to the order."""
    of = {
        "scales": "each is the best of its number of GPUs and batch",
        "best": "these are the best that were found",
    }
    notes = [of[found.of] + ("; $ is the cheapest" if found.cheapest is not None else "")]
    if found.runs[0].run.goodput is None:
        notes.append("failures and checkpoints are unknown: set --reliability")
    elif found.order_is_of_steps:
        notes.append("failures lengthen all of them by one factor, and do not change the order")
    unknown = found.runs[0].run.unknown.get("waiting")
    if unknown is not None:
        notes.append(f"waiting for repairs is unknown and left out: {unknown}")
    return "; ".join(notes)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if not np.isfinite(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"  # noqa: PLR2004
