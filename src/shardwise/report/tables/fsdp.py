"""A plan of FSDP2 units as tables."""

import math
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from shardwise.fsdp.planner.evaluate import Evaluated
from shardwise.fsdp.planner.planner import Planned
from shardwise.fsdp.result import Checked, FsdpPlan
from shardwise.report.console import percent, plain_table, seconds, show
from shardwise.report.tables.fsdp_units import collapsed, ranges
from shardwise.report.tables.fsdp_words import CATEGORY_WORDS, run_words, summary
from shardwise.units import readable

__all__ = ["print_plan"]

_BAR = 24
_NOTHING_S = 1e-9
_MOST_NAMES = 4
_LEAST_SHARE = 5e-4


def print_plan(result: FsdpPlan) -> None:
    """Print the plan, its units, its memory and what it is compared with."""
    show(_headline(result))
    if result.planned is None:
        show(Text(f"{result.reason}\n", style="bold red"))
    else:
        plan = result.planned.plan
        show(_summary(result, result.planned), _units(plan), _memory(plan))
    show(_comparison(result))
    if result.front is not None:
        show(_front(result, result.front))
    if result.verified is not None:
        show(_checked(result.verified))
    show(Text("\n".join(_closing(result)), style="dim"))


def _headline(result: FsdpPlan) -> Text:
    text = Text("\n")
    text.append(result.model, style="bold")
    text.append(f"\n{run_words(result)}\n")
    return text


def _summary(result: FsdpPlan, planned: Planned) -> Text:
    plan = planned.plan
    step = f"{seconds(plan.compute_s)} of compute"
    if plan.recompute_s:
        step += f", {seconds(plan.recompute_s)} of it recomputation,"
    share = plan.exposed_s / plan.step_s if plan.step_s else 0.0
    step += f" and {seconds(plan.exposed_s)} of exposed communication ({percent(share)})"
    rows = [
        ("step", seconds(plan.step_s), step),
        ("peak", _size(plan.peak.total_bytes), _budget(result)),
        ("units", f"{len(plan.wrapping.units)} + root", _checkpointed(plan)),
        ("proof", *_proof(planned)),
    ]
    return summary(rows)


def _budget(result: FsdpPlan) -> str:
    if math.isinf(result.budget_bytes):
        return f"no budget ({result.budget_from.removeprefix('none: ')})"
    source = "" if result.budget_from == "given" else f", {result.budget_from}"
    return f"of {_size(result.budget_bytes)}{source}"


def _checkpointed(plan: Evaluated) -> str:
    names = plan.wrapping.checkpointed
    if not names:
        return ""
    told = ranges(names)
    more = f", and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"checkpointed: {', '.join(told[:_MOST_NAMES])}{more}"


def _proof(planned: Planned) -> tuple[str, str]:
    if planned.optimal:
        return "optimal", "no wrapping of the space that fits costs less"
    gap = f"{percent(1 - planned.bound_s / planned.cost_s)} gap"
    return gap, f"none that fits costs less than {seconds(planned.bound_s)} plus compute"


def _units(plan: Evaluated) -> Table:
    """Units in the order they run; those that differ in their layer's number alone as one row."""
    heads = ("unit", "", "gathered", "gather", "reduce", "exposed forward", "backward", "then")
    table = plain_table(*heads, goes=("reduce", "gather"), wraps=("unit",))
    for row in collapsed(plan.units):
        unit = row.unit
        table.add_row(
            row.name,
            f"x{row.times}" if row.times > 1 else "",
            readable(unit.parameter_bytes, "bytes") if unit.parameter_bytes else "-",
            _time(unit.gather_s),
            _time(unit.reduce_s),
            _time(unit.exposed_forward_s),
            _time(unit.exposed_backward_s),
            "freed" if unit.reshard_after_forward else "kept",
        )
    if plan.exposed_end_s > _NOTHING_S:
        end = seconds(plan.exposed_end_s)
        table.add_row("after all compute", *[""] * 5, end, "", style="dim")
    return table


def _time(value: float) -> str:
    return seconds(value) if value > _NOTHING_S else "-"


def _memory(plan: Evaluated) -> Table:
    """What is held at the fullest moment."""
    peak = plan.peak
    where = f"{peak.phase}, {peak.module or 'root'}"
    title = f"Memory at the peak: {where}"
    table = plain_table("", "size", "share", " ", title=title)
    table.columns[-1].justify = "left"
    for name, words in CATEGORY_WORDS.items():
        held = peak.bytes[name]
        share = held / peak.total_bytes
        if share >= _LEAST_SHARE:
            table.add_row(words, _size(held), percent(share), "█" * round(_BAR * share))
    table.add_row("in all", _size(peak.total_bytes), "", "", style="bold")
    return table


def _comparison(result: FsdpPlan) -> Table:
    """The plan, the usual wrappings and those of the user."""
    best = None if result.planned is None else result.planned.plan
    rows = [] if best is None else [("best", best)]
    rows += [(one.name, one.plan) for one in result.usual]
    rows += [] if result.own is None else [(result.own.name, result.own.plan)]
    versus = () if best is None else ("versus best",)
    heads = ("wrapping", "units", "step", *versus, "exposed", "peak", "")
    table = plain_table(*heads, title="Comparison with other wrappings", goes=("units",))
    for name, plan in rows:
        more = [] if best is None else [_more(plan.step_s, best.step_s)]
        table.add_row(
            name,
            str(len(plan.wrapping.units)),
            seconds(plan.step_s),
            *more,
            _time(plan.exposed_s),
            _size(plan.peak.total_bytes),
            "" if result.fits(plan) else "does not fit",
        )
    return table


def _more(one: float, other: float) -> str:
    """How much longer one time is than another."""
    more = 100 * (one / other - 1)
    return "" if one == other else f"{more:+.1f} %"


def _size(value: float) -> str:
    return readable(value, "bytes", 4)


def _front(result: FsdpPlan, plans: Sequence[Planned]) -> Table:
    """Best wrappings from the fastest to the least memory."""
    again = any(one.plan.wrapping.checkpointed for one in plans)
    more = ("checkpointed",) if again else ()
    heads = ("peak", "step", "exposed", "units", *more, "")
    table = plain_table(*heads, left=0, title="What memory buys")
    for one in plans:
        plan = one.plan
        marks = "" if result.fits(plan) else "over the budget"
        table.add_row(
            _size(plan.peak.total_bytes),
            seconds(plan.step_s),
            _time(plan.exposed_s),
            str(len(plan.wrapping.units)),
            *([str(len(plan.wrapping.checkpointed))] if again else []),
            marks if one.optimal else ", ".join(filter(None, (marks, "not proved"))),
        )
    return table


def _checked(found: Checked) -> Text:
    """The peak, and that of PyTorch's FSDP2."""
    told = f"verified with torch on fake tensors: {_size(found.tracked_bytes)} held at most, in "
    told += f"{found.phase} ({found.place}); predicted {_size(found.predicted_bytes)}, "
    told += f"{100 * found.error:+.1f} %"
    return Text(told)


def _closing(result: FsdpPlan) -> Iterator[str]:
    """What would fit, and what was taken for granted."""
    found = result.what_if
    if found is not None:
        if found.tried:
            least = f"{found.gpus} GPUs" if found.gpus else f"not even {found.tried[-1]} GPUs"
            yield f"fewest that fit: {least}"
        if found.batch is not None:
            yield f"largest batch that fits: {found.batch} on each GPU"
        elif not found.notes:
            yield "largest batch that fits: not even 1"
        yield from (f"note: {note}" for note in found.notes)
    if result.verified is not None:
        yield from (f"note: {note}" for note in result.verified.notes)
    yield from (f"assumed: {line}" for line in result.assumed)
