"""A diagnosis as tables: measured against predicted, findings, changes."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from shardwise.config.strategy_fields import PARALLELISM, RANK_DEGREES
from shardwise.launchers.diagnose.results import (
    Cause,
    Diagnosis,
    Finding,
    ProposedChange,
    StepComponent,
)
from shardwise.report.console import count, gib, percent, plain_table, seconds, show, written

COMPONENT_WORDS = {
    "products": "GEMMs",
    "attention": "attention",
    "other_kernels": "other kernels",
    **{axis: f"{PARALLELISM[axis]}-parallel communication" for axis in RANK_DEGREES},
    "ep": "expert communication",
    "pp": "messages between stages",
    "other": "other communication",
    "memcpy": "copies",
    "idle": "idle",
}
"""Components of a step in words."""
_UNRESOLVED = "below measurement noise"


def print_diagnosis(found: Diagnosis) -> None:
    """Print a diagnosis."""
    title = f"{found.model} on {found.system}, launched by {found.launch} ({found.launcher})"
    show(Text(f"\n{title}\n", style="bold"), _figures(found))
    if found.components:
        show(_components(found))
    if not found.findings:
        show("nothing is slower than the prediction allows\n")
    for finding in found.findings:
        show(*_finding_lines(finding))
    if found.changes:
        show(_changes(found))
        for number, change in enumerate(found.changes, 1):
            show(*_change_lines(number, change))
    for option in found.not_understood:
        show(f"not used: {option}", style="dim")
    for one in found.notes:
        show(one, style="dim")


def _figures(found: Diagnosis) -> Table:
    measured, predicted = found.measured, found.predicted
    table = plain_table("", "measured", "predicted", f"interval ({percent(predicted.level)})")
    table.add_row(
        "step time",
        seconds(measured.step_time_s),
        seconds(predicted.step_time_s),
        f"{seconds(predicted.low_s)} to {seconds(predicted.high_s)}",
    )
    tokens = "tokens/s", count(measured.tokens_per_s), count(predicted.tokens_per_s), ""
    per_gpu = count(measured.tokens_per_s_per_gpu), count(predicted.tokens_per_s_per_gpu), ""
    table.add_row(*tokens)
    table.add_row("tokens/s per GPU", *per_gpu)
    memory = predicted.memory_bytes, predicted.memory_low, predicted.memory_high
    if measured.memory_bytes is not None and all(size is not None for size in memory):
        expected, low, high = (gib(size or 0.0) for size in memory)
        name = f"memory, {measured.memory_kind} (GiB)"
        table.add_row(name, gib(measured.memory_bytes), expected, f"{low} to {high}")
    used = measured.steps - measured.warm_up
    steps = f"{used} of {measured.steps} steps" if measured.steps else "mean of all steps"
    table.caption = (
        f"median of {steps} of a {measured.format} log; spread {percent(measured.spread)}"
    )
    table.caption_justify = "left"
    return table


def _components(found: Diagnosis) -> Table:
    columns = ("component", "measured", "predicted", "ratio", "with hidden", "predicted")
    table = plain_table(*columns, title="components of a step (trace)", optional=columns[4:])
    for one in found.components:
        totals = (one.measured_total_s, one.predicted_total_s)
        table.add_row(
            COMPONENT_WORDS.get(one.name, one.name),
            seconds(one.measured_s),
            seconds(one.predicted_s),
            _ratio(one),
            *("" if total is None else seconds(total) for total in totals),
        )
    return table


def _ratio(one: StepComponent) -> str:
    return f"{one.measured_s / one.predicted_s:.2f}" if one.predicted_s > 0 else "-"


def _finding_lines(finding: Finding) -> Iterator[Text | str]:
    ratio = "" if finding.ratio is None else f", {finding.ratio:.2f} times the predicted time"
    gain = f"gain {seconds(finding.gain_s)} ({percent(finding.gain_share)} of the step)"
    cause = finding.cause.replace("_", " ")
    title = "cause unknown" if finding.cause == Cause.UNKNOWN else cause
    yield Text(f"{title}: {gain}{ratio}", style="bold")
    yield f"  {finding.text}"
    for one in finding.possible:
        how = f"{one.factor:.2f} times" if one.factor is not None else seconds(one.added_s or 0.0)
        more = "the predicted time" if one.factor is not None else "more in a step"
        yield f"  possible single cause: {COMPONENT_WORDS.get(one.what, one.what)}, {how} {more}"
    yield ""


def _changes(found: Diagnosis) -> Table:
    table = plain_table(
        *("", "change", "step time", "gain", " "),
        title="changes of the strategy",
        left=2,
        wraps=("change", " "),
    )
    table.columns[-1].justify = "left"
    for number, change in enumerate(found.changes, 1):
        table.add_row(
            str(number),
            ", ".join(
                f"{one.field} {written(one.current)} -> {written(one.value)}"
                for one in change.fields
            ),
            seconds(change.step_time_s),
            percent(change.gain_share),
            "" if change.resolved else _UNRESOLVED,
        )
    return table


def _change_lines(number: int, change: ProposedChange) -> Iterator[Text | str]:
    yield Text(f"change {number}, gain {seconds(change.gain_s)}", style="bold")
    if change.diff:
        yield Text(change.diff)
    else:
        yield from (f"  {option}" for option in change.options)
    yield from (f"  {other}" for other in change.elsewhere)
    yield ""
