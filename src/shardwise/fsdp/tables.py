"""A plan of FSDP2 units as tables, and the answer of fsdp_ilp."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from shardwise.fsdp.planner.evaluate import Evaluated, UnitCost
from shardwise.fsdp.planner.planner import Planned
from shardwise.fsdp.result import FsdpPlan
from shardwise.report.console import gpu_count, percent, plain_table, seconds, show
from shardwise.units import readable

if TYPE_CHECKING:
    from shardwise.predecessors.fsdp_ilp.reference import FsdpIlpResult


_BAR = 24
_NOTHING_S = 1e-9
_MOST_NAMES = 4
_LEAST_SHARE = 5e-4
_NUMBER = re.compile(r"(?<![^.])\d{1,9}(?![^.])")
_LONGEST_PERIOD = 24
_DIGITS = 3
CATEGORY_WORDS = {
    "sharded_weights": "sharded weights",
    "optimizer": "optimizer state",
    "sharded_gradients": "sharded gradients",
    "unsharded_weights": "gathered weights",
    "gradients": "gradients",
    "all_gather_buffers": "all-gather buffers",
    "reduce_scatter_buffers": "reduce-scatter buffers",
    "activations": "activations",
    "fixed": "buffers and inputs",
}
_MIB = 2**20
_MS_PER_S = 1e3
_FIGURES = ("p", "g", "a", "m", "ag", "rs", "fw_ag", "bw_ag", "bw_rs", "fcp", "bcp", "fw_e", "bw_e")
_OPTIONAL_FIGURES = ("bw_rs", "bw_ag", "fw_ag", "rs", "ag", "g", "a", "fcp", "bcp")


def print_plan(result: FsdpPlan) -> None:
    """Print the plan, its units, its memory and what it is compared with."""
    text = Text("\n")
    text.append(result.model, style="bold")
    text.append(f"\n{run_words(result)}\n")
    show(text)
    if result.planned is None:
        show(Text(f"{result.reason}\n", style="bold red"))
    else:
        plan = result.planned.plan
        show(_summary(result, result.planned), _units(plan), _memory(plan))
    show(_comparison(result))
    if result.front is not None:
        show(_front(result, result.front))
    if result.verified is not None:
        found = result.verified
        words = f"verified with torch on fake tensors: peak {_size(found.tracked_bytes)}, in "
        words += f"{found.phase} ({found.place}); predicted {_size(found.predicted_bytes)}, "
        show(Text(f"{words}{100 * found.error:+.1f} %"))
    show(Text("\n".join(_closing(result)), style="dim"))


def _summary(result: FsdpPlan, planned: Planned) -> Text:
    plan = planned.plan
    step = f"{seconds(plan.compute_s)} of compute"
    if plan.recompute_s:
        step += f", {seconds(plan.recompute_s)} of it recomputation,"
    share = plan.exposed_s / plan.step_s if plan.step_s else 0.0
    step += f" and {seconds(plan.exposed_s)} of exposed communication ({percent(share)})"
    proof = "optimal", "no wrapping of the space that fits costs less"
    if not planned.optimal:
        gap = f"{percent(1 - planned.bound_s / planned.cost_s)} gap"
        proof = gap, f"none that fits costs less than {seconds(planned.bound_s)} plus compute"
    rows = [
        ("step", seconds(plan.step_s), step),
        ("peak", _size(plan.peak.total_bytes), _budget(result)),
        ("units", f"{len(plan.wrapping.units)} + root", _checkpointed(plan)),
        ("proof", *proof),
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
    listed = ranges(names)
    more = f", and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return f"checkpointed: {', '.join(listed[:_MOST_NAMES])}{more}"


def _units(plan: Evaluated) -> Table:
    """Units in the order they run; those that differ in their layer's number alone as one row."""
    heads = ("unit", "", "gathered", "gather", "reduce", "exposed forward", "backward", "then")
    table = plain_table(*heads, optional=("reduce", "gather"), wraps=("unit",))
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
    """What is resident at the moment of peak memory."""
    peak = plan.peak
    where = f"{peak.phase}, {peak.module or 'root'}"
    title = f"Memory at the peak: {where}"
    table = plain_table("", "size", "share", " ", title=title)
    table.columns[-1].justify = "left"
    for name, words in CATEGORY_WORDS.items():
        size = peak.bytes[name]
        share = size / peak.total_bytes
        if share >= _LEAST_SHARE:
            table.add_row(words, _size(size), percent(share), "█" * round(_BAR * share))
    table.add_row("total", _size(peak.total_bytes), "", "", style="bold")
    return table


def _comparison(result: FsdpPlan) -> Table:
    """The plan, the usual wrappings and those of the user."""
    best = None if result.planned is None else result.planned.plan
    rows = [] if best is None else [("best", best)]
    rows += [(one.name, one.plan) for one in result.usual]
    rows += [] if result.own is None else [(result.own.name, result.own.plan)]
    versus = () if best is None else ("versus best",)
    heads = ("wrapping", "units", "step", *versus, "exposed", "peak", "")
    table = plain_table(
        *heads, title="Comparison with other wrappings", optional=("units", "exposed")
    )
    for name, plan in rows:
        longer = 0.0 if best is None else 100 * (plan.step_s / best.step_s - 1)
        more = [] if best is None else ["" if best.step_s == plan.step_s else f"{longer:+.1f} %"]
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


def _size(value: float) -> str:
    return readable(value, "bytes", 4)


def _front(result: FsdpPlan, plans: Sequence[Planned]) -> Table:
    """Best wrappings from the fastest to the least memory."""
    recomputes = any(one.plan.wrapping.checkpointed for one in plans)
    more = ("checkpointed",) if recomputes else ()
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
            *([str(len(plan.wrapping.checkpointed))] if recomputes else []),
            marks if one.optimal else ", ".join(filter(None, (marks, "not proved"))),
        )
    return table


def _closing(result: FsdpPlan) -> Iterator[str]:
    """What would fit, and what was assumed."""
    found = result.what_if
    if found is not None:
        if found.tried:
            least = f"{found.gpus:,} GPUs" if found.gpus else f"not even {found.tried[-1]:,} GPUs"
            yield f"fewest that fit: {least}"
        if found.batch is not None:
            yield f"largest batch that fits: {found.batch} on each GPU"
        elif not found.notes:
            yield "largest batch that fits: not even 1"
        yield from (f"note: {note}" for note in found.notes)
    if result.verified is not None:
        yield from (f"note: {note}" for note in result.verified.notes)
    yield from (f"assumed: {line}" for line in result.assumed)


def run_words(result: FsdpPlan) -> str:
    """The setting in a line."""
    setting = result.setting
    gpus = gpu_count(setting.gpus)
    if setting.replicas > 1:
        gpus += f" = {setting.replicas} replicas of {setting.shards} shards"
    words = [gpus if result.system is None else f"{gpus} of {result.system}"]
    if result.batch is not None:
        words.append(f"{result.batch:,} x {result.seq_len:,} tokens on each")
    words.append(f"weights {setting.stored_dtype}, gathered {setting.compute_dtype}")
    words.append(f"gradients reduced in {setting.reduce_dtype}")
    words.append(f"optimizer {setting.optimizer}")
    return ", ".join(words)


def summary(rows: Sequence[tuple[str, str, str]]) -> Text:
    """Lines of a name, a figure and what there is to say of it; they may wrap."""
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"{name:<{first}}   {figure:<{second}}   {remark}" for name, figure, remark in rows]
    return Text("\n".join(line.rstrip() for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """Units that are alike but for the number of their layer."""

    name: str
    times: int
    unit: UnitCost
    """The first of them."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What a unit is but for the number of its layer, and that number."""

    kind: tuple[object, ...]
    number: int


def name_of(modules: Sequence[str]) -> str:
    """The modules of a call, for people; those that share a parent after it in brackets."""
    if not modules:
        return "root"
    parents = {name.rpartition(".")[0] for name in modules}
    (parent,) = parents if len(parents) == 1 else ("",)
    if len(modules) == 1 or not parent:
        return " + ".join(modules)
    return f"{parent}.({' + '.join(name.rpartition('.')[2] for name in modules)})"


def collapsed(units: Sequence[UnitCost]) -> list[UnitRow]:
    """Rows for units in the order they run; each begins where as many as possible are alike."""
    keys = [_key(unit) for unit in units]
    rows: list[UnitRow] = []
    at = 0
    while at < len(units):
        period, times, step = _best(keys, at)
        for place in range(at, at + period):
            unit = units[place]
            name = _range(unit.modules, step, times) if times > 1 else name_of(unit.modules)
            rows.append(UnitRow(name=name, times=times, unit=unit))
        at += period * times
    return rows


def ranges(names: Sequence[str]) -> list[str]:
    """Names in order, those that differ in the number of a layer as one."""
    found: list[str] = []
    at = 0
    keys = [_Key(kind, number) for kind, number in (_numbered((name,)) for name in names)]
    while at < len(names):
        period, times, step = _best(keys, at)
        found += [
            _range((names[place],), step, times) if times > 1 else names[place]
            for place in range(at, at + period)
        ]
        at += period * times
    return found


def _key(unit: UnitCost) -> _Key:
    kind, number = _numbered(unit.modules)
    times = (unit.gather_s, unit.reduce_s, unit.exposed_forward_s, unit.exposed_backward_s)
    shown = tuple(f"{time:.{_DIGITS}g}" if time > 1e-9 else "0" for time in times)  # noqa: PLR2004
    return _Key((*kind, unit.reshard_after_forward, unit.parameter_bytes, *shown), number)


def _numbered(modules: Sequence[str]) -> tuple[tuple[object, ...], int]:
    """Names with the first number of each made relative to the least; -1 without one."""
    numbers = [int(found[0]) if (found := _NUMBER.search(name)) else -1 for name in modules]
    if not numbers or min(numbers) < 0:
        return tuple(modules), -1
    least = min(numbers)
    kinds = (_NUMBER.sub("*", name, count=1) for name in modules)
    return tuple(zip(kinds, (number - least for number in numbers), strict=True)), least


def _best(keys: Sequence[_Key], at: int) -> tuple[int, int, int]:
    """Length of what repeats from a place on, how often it does, and the step of its numbers."""
    best = 1, 1, 1
    # A pattern of several units begins where a layer does.
    begins = at == 0 or keys[at - 1].number != keys[at].number
    longest = min(_LONGEST_PERIOD if begins else 1, (len(keys) - at) // 2)
    for period in range(1, longest + 1):
        if keys[at + period - 1].number < 0:
            break
        step = keys[at + period].number - keys[at].number
        times = 1
        while step > 0 and _repeats(keys, at, period, times, step):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times, step
    return best


def _repeats(keys: Sequence[_Key], at: int, period: int, times: int, step: int) -> bool:
    start = at + period * times
    if start + period > len(keys):
        return False
    return all(
        keys[start + i].kind == keys[at + i].kind
        and keys[at + i].number >= 0
        and keys[start + i].number == keys[at + i].number + step * times
        for i in range(period)
    )


def _range(modules: Sequence[str], step: int, times: int) -> str:
    """Names of all, such as `layers.0..30`, with the step if it is not 1."""
    last = (times - 1) * step
    by = "" if step == 1 else f"/{step}"
    ranged = [
        _NUMBER.sub(lambda found: f"{found[0]}..{int(found[0]) + last}{by}", name, count=1)
        for name in modules
    ]
    return name_of_ranges(ranged)


def name_of_ranges(names: Sequence[str]) -> str:
    """As `name_of`, of names whose numbers are ranges."""
    if len(names) == 1:
        return names[0]
    # A range has dots of its own; hide them from what looks for parents.
    hidden = [name.replace("..", "\0") for name in names]
    return name_of(hidden).replace("\0", "..")


def print_reference(result: "FsdpIlpResult", record: Mapping[str, object]) -> None:
    """Print the units and what they cost, and every module if the record has them."""
    show(_reference_headline(result, record))
    if result.objective_ms is None:
        show(Text(_reference_reason(result, record), style="bold red"))
    else:
        show(_reference_summary(result, record))
        units = [f"  {name}" for name in ranges(result.units)]
        show(Text("\n".join(["", *units, ""])))
    if "modules" in record:
        show(_reference_modules(record))


def _reference_headline(result: "FsdpIlpResult", record: Mapping[str, object]) -> Text:
    text = Text("\n")
    text.append(f"{record['model']} by fsdp_ilp", style="bold")
    how = f"{result.solver}, {result.formulation}" if result.formulation else result.solver
    setting = f"{result.world_size} GPUs, budget {result.budget_gib:.6g} GiB"
    text.append(f"\n{setting}{', ' if how else ''}{how}\n")
    return text


def _reference_reason(result: "FsdpIlpResult", record: Mapping[str, Any]) -> str:
    reason = result.reason
    if (least := record.get("least_memory_budget_bytes")) is not None:
        reason += f"; the least that one keeps is {math.ceil(least / _MIB)} MiB"
    return reason


def _reference_summary(result: "FsdpIlpResult", record: Mapping[str, Any]) -> Text:
    before = record["without_fsdp"]
    compute = seconds(before["compute_ms"] / _MS_PER_S)
    exposed = seconds((result.objective_ms or 0.0) / _MS_PER_S)
    plain = f"{before['peak_gib']:.4g} GiB without FSDP and recompute"
    root = f"{result.root_parameter_gib or 0.0:.4g} GiB of parameters stay with the root"
    reason = result.reason
    if reason and result.bound_ms is not None:
        reason += f"; none takes less than {result.bound_ms:.6g} ms"
    rows = [
        ("exposed", exposed, f"plus {compute} of compute without recompute"),
        ("peak", f"{result.peak_gib or 0.0:.4g} GiB", plain),
        ("units", str(len(result.units)), root),
        ("status", "set by --units" if result.status == "given" else result.status, reason),
    ]
    return summary(rows)


def _reference_modules(record: Mapping[str, Any]) -> Table:
    """Every module: GiB for p, g, a and m, ms for the others."""
    title = "p, g, a, m [GiB]; the others [ms]"
    table = plain_table(
        "module", "unit", *_FIGURES, title=title, optional=_OPTIONAL_FIGURES, wraps=("module",)
    )
    for row in record["modules"]:
        figures = [f"{row[name]:.4g}" for name in _FIGURES]
        table.add_row(row["name"], "x" if row["unit"] else "", *figures)
    return table
