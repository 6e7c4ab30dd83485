"""What a search found, as tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.planning.search.results import (
    Cell,
    Plan,
    ScaleResult,
    SearchResult,
    SmallestGpus,
    TrainingRuns,
)
from shardwise.report.console import count, gib, percent, plain_table, seconds, show
from shardwise.report.tables.search_best import agreed, best_table, columns_of, short
from shardwise.report.tables.search_levels import levels_note, levels_table
from shardwise.report.tables.strategy_line import (
    DEGREE_HEADS,
    MORE_DEGREES,
    SWITCHES,
    briefly,
    in_brief,
    word,
)
from shardwise.units import readable

_REASONS = {
    "memory": "more than the accelerator's memory",
    "second_memory": "more than the usable host memory",
    **{rule.reason: f"{rule.field}, by the rule {rule.reason}" for rule in CONSTRAINTS},
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
    "software": "the stack cannot run it",
    "ffn": "tp does not divide the width of the MLP",
}
_COUNTED_REASON = re.compile(r"\b([a-z]\w*) ([\d,]*\d)\b")
_MOST_PARETO = 40
_COUNTED_IN_FULL = 1_000_000
_MOST_LEFT_OUT = 4
_IN_BRIEF = (
    *("recompute", "recompute_layers", "zero", "tp_exchange", "tp_overlap", "schedule"),
    "dispatcher",
    *("stage_layers", "first_stage_layers", "last_stage_layers"),
)
_EMPTY = "0 strategies: no degrees and chunks of the space make up the GPUs"


def print_search(result: SearchResult) -> None:
    """Print the best strategies, what else was requested, and why the others were rejected."""
    show(_headline(result))
    if result.levels:
        show(levels_table(result.levels), Text(levels_note(result.levels) + "\n"))
    elif result.best:
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
    show(Text("\n".join(closing(result)), style="dim" if result.best else ""))


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
    best = len(result.best)
    where = "in any of these tables" if more else f"among the {best} best"
    where = "better" if best == 1 and not more else where
    return f"{result.timed:,} of {of} timed; the rest cannot be {where}"


def _scope_note(result: SearchResult) -> str:
    """What the space left out, and what it was widened by."""
    lines = []
    if result.widened:
        lines.append(f"nothing fits without offload; also tried: {', '.join(result.widened)}")
    if result.not_tried:
        left_out = "; ".join(_left_out(*item) for item in result.not_tried.items())
        how = "add with --allow FIELD or FIELD=VALUE, or --space full"
        lines.append(f"not tried: {left_out} ({how})")
    return "\n".join(lines)


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
    more: dict[str, Any] = {"optional": ("per GPU", "efficiency", "tokens/s"), "wraps": ("best",)}
    table = plain_table("GPUs", "batch", *heads, left=0, title="By scale", **more)
    table.columns[-1].justify = "left"
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
    heads = ("memory GiB", "GPUs", "step time", "$/B tokens", "strategy")
    table = plain_table(*heads, left=0, title=title, wraps=("strategy",))
    table.columns[-1].justify = "left"
    step = -(-len(plans) // _MOST_PARETO)
    unnamed = _unnamed([plan.strategy for plan in plans])
    plans = [plan for i, plan in enumerate(plans) if i % step == 0 or i == len(plans) - 1]
    lines, common = briefly([plan.strategy for plan in plans])
    for line, plan in zip(lines, plans, strict=True):
        usd = plan.usd_per_billion_tokens
        table.add_row(
            gib(plan.memory_reserved_bytes),
            f"{plan.strategy['gpus']:,}",
            seconds(plan.step_time_s),
            "-" if usd is None else f"{usd:,.0f}",
            ", ".join([line, *_more(plan.strategy, unnamed)]),
        )
    return table, common


def _unnamed(strategies: Sequence[Mapping[str, object]]) -> list[str]:
    """Fields that differ and that a strategy in brief does not name."""
    named = ("gpus", *DEGREE_HEADS, *MORE_DEGREES, *_IN_BRIEF, *SWITCHES)
    return [f for f in columns_of(strategies) if f not in named] if strategies else []


def _more(strategy: Mapping[str, Any], unnamed: Sequence[str]) -> Iterator[str]:
    """What a strategy in brief does not name."""
    if strategy["recompute"] == "selective":
        yield f"recompute parts {word(strategy['recompute_parts'])}"
    yield from (f"{short(field).replace('_', ' ')} {word(strategy[field])}" for field in unnamed)


def _cells(cells: Sequence[Cell]) -> Table:
    """Step time of the best of every cell, the first axis down, the second across."""
    down, *across = cells[0].values
    if len(across) != 1:
        table = plain_table(*cells[0].values, "step time", "best", left=0, wraps=("best",))
        table.columns[-1].justify = "left"
        for cell in cells:
            words = [word(value) for value in cell.values.values()]
            table.add_row(*words, seconds(cell.plan.step_time_s), in_brief(cell.plan.strategy))
        return table
    rows = list(dict.fromkeys(cell.values[down] for cell in cells))
    columns = sorted({cell.values[across[0]] for cell in cells}, key=_order)
    times = {tuple(c.values.values()): seconds(c.plan.step_time_s) for c in cells}
    heads = [f"{short(across[0])} {word(value)}" for value in columns]
    table = plain_table("", *heads, title="Step time of the best of each")
    for row in rows:
        found = [times.get((row, column), "") for column in columns]
        table.add_row(f"{short(down)} {word(row)}", *found)
    return table


def _order(value: object) -> tuple[bool, object]:
    return (False, value) if isinstance(value, (int, float)) else (True, str(value))


def _reasons(rejected: Mapping[str, int]) -> Table:
    table = plain_table("rejected", "strategies", "because", wraps=("because",))
    table.columns[-1].justify = "left"
    for reason, number in rejected.items():
        table.add_row(reason, f"{number:,}", _REASONS.get(reason, ""))
    return table


def closing(result: SearchResult) -> list[str]:
    """Why strategies were rejected, and what is nearest if all were."""
    rejected = ", ".join(
        f"{_REASONS.get(reason, reason)} {number:,}" for reason, number in result.rejected.items()
    )
    least = " at least" if _leaves_out(result) else ""
    lines = [f"rejected{least}: {rejected}"] if rejected else []
    if not result.candidates:
        lines.append(_EMPTY)
    if result.best:
        return lines
    lines.append("nothing is feasible" if result.complete else "nothing feasible was found so far")
    if result.nearest is not None:
        nearest = result.nearest
        lack = f"{readable(nearest.excess_bytes, 'bytes')} of {nearest.tier}"
        lines.append(f"nearest: {in_brief(nearest.strategy)}, which lacks {lack}")
    if result.nearest_batches:
        lines.append(_batch_remedy(result.nearest_batches, result.space))
    if result.smallest is not None:
        lines.append(_smallest(result.smallest))
    return lines


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
    words = _REASONS.get(found[1])
    return found[0] if words is None else f"{words} ({found[2]} strategies)"


def _runs_table(found: TrainingRuns) -> Table:
    """One run a line, in the order of the calendar."""
    tokens = count(found.runs[0].run.tokens_asked)
    failing = found.runs[0].run.goodput is not None
    heads = ["GPUs", "batch", "step time", "days", "GPU-hours", "price"]
    if failing:
        heads += ["failures", "goodput", "effective days", "effective price"]
    table = plain_table(
        "",
        *heads,
        "degrees",
        left=0,
        title=f"Time to train on {tokens} tokens, shortest first",
        optional=("GPU-hours", "failures", "batch", "price"),
    )
    table.columns[-1].justify = "left"
    for rank, one in enumerate(found.runs, start=1):
        run = one.run
        row = [
            f"{run.gpus:,}",
            f"{one.strategy['global_batch_size']:,}",
            seconds(run.step_time_s),
            _number(run.days.expected),
            _number(run.gpu_hours.expected),
            _dollars(None if run.usd is None else run.usd.expected),
        ]
        if run.goodput is not None:
            row += [
                _number(run.goodput.failures),
                percent(run.goodput.goodput),
                _number(run.effective_days),
                _dollars(run.effective_usd),
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


def _dollars(value: float | None) -> str:
    if value is None:
        return "-"
    return f"${value / 1e6:,.3g} M" if value >= 1e6 else f"${value:,.0f}"  # noqa: PLR2004
