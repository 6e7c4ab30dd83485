"""What a search found, as tables."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from shardwise.analysis.features import feature_words
from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.planning.search.results import (
    Cell,
    Plan,
    RankedPlan,
    ScaleResult,
    SearchResult,
    SmallestGpus,
    Ties,
    TrainingRuns,
)
from shardwise.report.console import count, gib, gpu_count, percent, plain_table, seconds, show
from shardwise.report.tables.search_levels import levels_note, levels_table
from shardwise.report.tables.strategy_line import (
    DEGREE_HEADS,
    FOLLOWS,
    MORE_DEGREES,
    SWITCHES,
    briefly,
    in_brief,
    interval_words,
    word,
)
from shardwise.units import readable

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
# It follows from another one.
_DERIVED = ("sequence_parallel",)
# Listed below the table where all strategies agree.
_COMMON = ("dtype", "recompute", "zero", "tp_exchange", "tp_overlap", "dp_overlap", "placement")
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
    *("stage_layers", "first_stage_layers", "last_stage_layers"),
)
_EMPTY = "0 strategies: no degrees and chunks of the space make up the GPUs"
_ALWAYS_SHOWN = ("tp", "pp", "dp")


def print_search(result: SearchResult) -> None:
    """Print the best strategies, what else was requested, and why the others were rejected."""
    show(_headline(result))
    if result.levels:
        show(levels_table(result.levels), Text(levels_note(result.levels) + "\n"))
    elif result.best:
        show(
            _best(result.best, result.alike), Text(_agreed(result) + "\n" + _variants_note(result))
        )
        if result.alike is not None:
            show(Text(_ties_note(result, result.alike) + "\n"))
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


def _variants_note(result: SearchResult) -> str:
    """What a line stands for."""
    if result.all_variants or not any(plan.variants for plan in result.best):
        return ""
    return (
        "variants: strategies of the same degrees, micro-batch and recompute within 0.5 % of the "
        "best of them; the line is the simplest (--all-variants lists all)\n"
    )


def _scope_note(result: SearchResult) -> str:
    """What the space left out, and what it was widened by."""
    lines = []
    if result.widened:
        lines.append(f"nothing fits without offload; also tried: {', '.join(result.widened)}")
    if result.not_tried:
        left_out = "; ".join(_left_out(*item) for item in result.not_tried.items())
        lines.append(f"not tried: {left_out} (add with --allow FIELD, or --space full)")
    return "\n".join(lines)


def _left_out(field: str, values: Sequence[object]) -> str:
    """Values of a field that were not tried, or how many there are."""
    if list(values) == [True]:
        return field
    if len(values) > _MOST_LEFT_OUT:
        return f"{field} ({len(values)} more)"
    return f"{field} {', '.join(map(_plain_value, values))}"


def _plain_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _ties_note(result: SearchResult, found: Ties) -> str:
    """Plans that cannot be separated, their order, and why another one is safer than the first."""
    order = "ordered by features that measured runs have used, then by simplicity"
    text = f"Plans 1 to {found.plans} cannot be separated (within {percent(found.within)})"
    text += f"; {order} (numbers are ranks by the objective)." if found.order else "."
    number = found.safer + 1
    if number == 1:
        return f"{text} Plan 1 is also the safest."
    if found.untried:
        reason = f"relies on {feature_words(found.untried)}, which no measured run has used"
        return f"{text} Plan {number} is safer: plan 1 {reason}."
    if found.order and found.safer < len(result.best):
        settings = [len(result.best[i].settings) for i in (0, found.safer)]
        reason = f"plan 1 has {settings[0]} settings that are not defaults, it has {settings[1]}"
        return f"{text} Plan {number} is simpler: {reason}."
    share = percent(found.uncertain)
    return f"{text} Plan {number} is safer: communication and waiting take {share} of its step."


def _best(best: Sequence[RankedPlan], alike: Ties | None) -> Table:
    strategies = [estimate.strategy for estimate in best]
    fields = _columns(strategies)
    heads = [DEGREE_HEADS.get(f) or _SHORT.get(f, f.replace("_", " ")) for f in fields]
    figures = ["step time", *(["8 of 10 runs"] if best[0].interval else [])]
    figures += ["tokens/s/GPU", "MFU", "memory GiB"]
    several = any(estimate.variants for estimate in best)
    figures += ["variants"] if several else []
    required = (*DEGREE_HEADS, "gpus", "global_batch_size")
    options = [head for field, head in zip(fields, heads, strict=True) if field not in required]
    optional = ("tokens/s/GPU", *reversed(options), "MFU", "8 of 10 runs")
    table = plain_table("", *heads, *figures, left=0, optional=optional)
    first = [] if alike is None else [place for place in alike.order if place < len(best)]
    for position in (*first, *(i for i in range(len(best)) if i not in first)):
        rank, estimate = position + 1, best[position]
        row = [word(estimate.strategy[field]) for field in fields]
        tied = alike is not None and rank <= alike.plans
        table.add_row(
            f"~{rank}" if tied else str(rank),
            *row,
            seconds(estimate.step_time_s),
            *([interval_words(estimate.interval)] if best[0].interval else []),
            f"{estimate.tokens_per_s_per_gpu:,.0f}",
            percent(estimate.mfu),
            gib(estimate.memory_bytes.reserved),
            *([f"+ {estimate.variants:,}" if estimate.variants else ""] if several else []),
        )
    return table


def _columns(strategies: Sequence[Mapping[str, object]]) -> list[str]:
    """Degrees, and whatever differs."""
    differing = [
        field
        for field in strategies[0]
        if field not in (*DEGREE_HEADS, *_DERIVED)
        and any(strategy[field] != strategies[0][field] for strategy in strategies)
        and (field != "schedule" or any(one["schedule"] not in FOLLOWS for one in strategies))
    ]
    first = [field for field in ("gpus", "global_batch_size") if field in differing]
    return [*first, *DEGREE_HEADS, *(field for field in differing if field not in first)]


def _agreed(result: SearchResult) -> str:
    """What all strategies have in common and no column shows, if the space has it vary."""
    strategies = [estimate.strategy for estimate in result.best]
    shown = _columns(strategies)
    first = strategies[0]
    shared = []
    if "gpus" not in shown:
        shared.append(gpu_count(first["gpus"]))
    if "global_batch_size" not in shown:
        shared.append(f"global batch {first['global_batch_size']} x {first['seq_len']} tokens")
    placed = first["extents"] is not None  # and so not by placement
    common = [f for f in _COMMON if f not in shown and not (f == "placement" and placed)]
    shared += [f"{f.replace('_', ' ')} {word(first[f])}" for f in common]
    shared += [label for f, label in SWITCHES.items() if f not in shown and first[f]]
    shared += [f"{f} {first[f]}" for f in MORE_DEGREES if f not in shown and first[f] > 1]
    listed = (*shown, *_COMMON, *SWITCHES, *(f for f in MORE_DEGREES if first[f] > 1))
    named = [f for f in result.space if f not in listed and first.get(f) is not None]
    named = [f for f in named if f not in ("gpus", "global_batch_size", "seq_len")]
    shared += [f"{f.replace('_', ' ')} {word(first[f])}" for f in named]
    return "all of them: " + ", ".join(shared)


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
            table.add_row(str(scale.gpus), str(scale.global_batch_size), *blank, "nothing fits")
            continue
        table.add_row(
            str(scale.gpus),
            str(plan.strategy["global_batch_size"]),
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
            str(plan.strategy["gpus"]),
            seconds(plan.step_time_s),
            "-" if usd is None else f"{usd:,.0f}",
            ", ".join([line, *(_option(plan.strategy, field) for field in unnamed)]),
        )
    return table, common


def _unnamed(strategies: Sequence[Mapping[str, object]]) -> list[str]:
    """Fields that differ and that a strategy in brief does not name."""
    named = ("gpus", *DEGREE_HEADS, *MORE_DEGREES, *_IN_BRIEF, *SWITCHES)
    return [f for f in _columns(strategies) if f not in named] if strategies else []


def _option(strategy: Mapping[str, object], field: str) -> str:
    return f"{_short(field)} {word(strategy[field])}"


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
    heads = [f"{_short(across[0])} {word(value)}" for value in columns]
    table = plain_table("", *heads, title="Step time of the best of each")
    for row in rows:
        found = [times.get((row, column), "") for column in columns]
        table.add_row(f"{_short(down)} {word(row)}", *found)
    return table


def _order(value: object) -> tuple[bool, object]:
    return (False, value) if isinstance(value, (int, float)) else (True, str(value))


def _short(field: str) -> str:
    return DEGREE_HEADS.get(field) or _SHORT.get(field, field)


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
    if result.smallest is not None:
        lines.append(_smallest(result.smallest))
    return lines


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
            str(one.strategy["global_batch_size"]),
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
