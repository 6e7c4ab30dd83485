"""The choice of a cluster, as a table."""

from rich.table import Table
from rich.text import Text

from shardwise.analysis.training_run.results import Amount
from shardwise.analysis.training_run.time import DAY_S
from shardwise.planning.cluster_choice import ClusterChoice, ClusterOption
from shardwise.report.console import chance, count, gpu_count, percent, plain_table, show
from shardwise.report.tables.methods import break_even_lines
from shardwise.report.tables.strategy_line import briefly

_FULL_DIGITS = 99.5
_MILLION = 1e6
_CHEAPEST, _FASTEST, _FRONT = "cheapest", "fastest", "Pareto"
"""Words for the answers and the front."""
_CHOICE = "choice"


def print_cluster(found: ClusterChoice) -> None:
    """Print the two answers, every option by its days, and what is not known."""
    table, common = _table(found)
    notes = [*([common] if common else []), *_notes(found)]
    show(_headline(found), table, Text("\n".join(notes), style="dim"))


def closing(found: ClusterChoice) -> list[str]:
    """Why nothing meets deadline and budget, and what comes nearest."""
    if found.feasible:
        return []
    if not any(one.days is not None for one in found.options):
        return ["nothing is feasible with any system and size", *_from(found)]
    lines = []
    if found.nearest_in_time is not None:
        nearest = _named(found, found.nearest_in_time)
        lines.append(f"nothing meets the deadline of {_deadline(found)}; nearest: {nearest}")
    if found.nearest_in_budget is not None:
        nearest = _named(found, found.nearest_in_budget)
        lines.append(f"nothing is within the budget of {_budget(found)}; nearest: {nearest}")
    if not lines:
        lines.append(f"nothing meets both {_deadline(found)} and {_budget(found)}")
    return lines


def _from(found: ClusterChoice) -> list[str]:
    """From how many GPUs on anything is feasible, for systems on which nothing is."""
    return [
        f"{system}: nothing is feasible below {gpu_count(gpus)}"
        for system, gpus in found.smallest.items()
    ]


def days(value: float) -> str:
    """Days with three digits."""
    return f"{value:,.0f}" if value >= _FULL_DIGITS else f"{value:.3g}"


def dollars(value: float | None) -> str:
    """An amount of money; a dash if it is unknown."""
    if value is None:
        return "-"
    return f"${value / _MILLION:,.3g} M" if value >= _MILLION else f"${value:,.0f}"


def _deadline(found: ClusterChoice) -> str:
    number = days((found.deadline_s or 0.0) / DAY_S)
    return f"{number} day" if number == "1" else f"{number} days"


def _budget(found: ClusterChoice) -> str:
    return dollars(found.budget_usd)


def _headline(found: ClusterChoice) -> Text:
    text = Text("\n")
    tokens = f"{count(found.tokens)} tokens"
    text.append(f"{found.model} on {tokens}: {', '.join(found.systems)}", style="bold")
    if not found.complete:
        text.append("\ninterrupted: these systems are done", style="bold red")
    for line in closing(found):
        text.append(f"\n{line}", style="bold red")
    within = "" if found.deadline_s is None else f" within {_deadline(found)}"
    if found.cheapest is not None:
        text.append(f"\ncheapest{within}: {_named(found, found.cheapest)}", style="bold")
    within = "" if found.budget_usd is None else f" for up to {_budget(found)}"
    if found.fastest is not None:
        text.append(f"\nfastest{within}: {_named(found, found.fastest)}", style="bold")
    text.append("\n")
    return text


def _named(found: ClusterChoice, position: int) -> str:
    """An option in a few words."""
    one = found.options[position]
    size = f"{one.gpus:,} x {one.system}"
    batches = {other.global_batch_size for other in found.options}
    size += f", batch {one.global_batch_size:,}" if len(batches) > 1 else ""
    price = "" if one.usd is None else f", {dollars(one.usd)}"
    return f"{size}, {days(one.days or 0.0)} days{price}"


def _table(found: ClusterChoice) -> tuple[Table, str]:
    """Every option, fastest first; those without a run last; and what all plans have in common."""
    batches = len({one.global_batch_size for one in found.options}) > 1
    failing = any(one.run is not None and one.run.goodput is not None for one in found.options)
    heads = ["system", "GPUs", *(["batch"] if batches else []), "days", "interval", "price"]
    heads += ["goodput"] if failing else []
    likely = ["fits"] if any(one.plan is not None for one in found.options) else []
    table = plain_table(
        *(*heads, "MFU", *likely, _CHOICE, "plan"),
        texts=(_CHOICE, "plan"),
        optional=("MFU", "goodput", "interval"),
        wraps=("plan",),
    )
    planned = [n for n, one in enumerate(found.options) if one.plan is not None]
    lines, common = briefly([one.plan.strategy for one in found.options if one.plan is not None])
    plans = dict(zip(planned, lines, strict=True))
    for position in sorted(range(len(found.options)), key=lambda n: _order(found, n)):
        one = found.options[position]
        row = [one.system, f"{one.gpus:,}"]
        row += [f"{one.global_batch_size:,}"] if batches else []
        row += ["-" if one.days is None else days(one.days), _interval(one), dollars(one.usd)]
        row += [_goodput(one)] if failing else []
        row.append("-" if one.plan is None else percent(one.plan.mfu))
        if likely:
            row.append("-" if one.plan is None else chance(one.plan.fits_probability))
        why = ": ".join(part for part in (plans.get(position), one.problem) if part)
        bold = position in (found.cheapest, found.fastest)
        table.add_row(*row, _marks(found, position), why, style="bold" if bold else "")
    return table, common


def _order(found: ClusterChoice, position: int) -> tuple[bool, float, int]:
    one = found.options[position]
    return one.days is None, one.days or 0.0, position


def _goodput(one: ClusterOption) -> str:
    if one.run is None or one.run.goodput is None:
        return "-"
    return percent(one.run.goodput.goodput)


def _interval(one: ClusterOption) -> str:
    """Days by the errors of similar measured steps."""
    run = one.run
    if run is None:
        return "-"
    known: Amount | None = run.days if run.goodput is None else run.goodput.days
    if known is None or known.low is None or known.high is None:
        return "-"
    return f"{days(known.low)} to {days(known.high)}"


def _marks(found: ClusterChoice, position: int) -> str:
    """What distinguishes an option."""
    marks = {
        _CHEAPEST: position == found.cheapest,
        _FASTEST: position == found.fastest,
        _FRONT: found.options[position].on_front,
    }
    words = [mark for mark, is_set in marks.items() if is_set]
    return ", ".join(words[:-1] if len(words) > 1 and words[-1] == _FRONT else words)


def _legend(found: ClusterChoice) -> str:
    """What the words of a choice mean."""
    limits = []
    if found.deadline_s is not None:
        limits.append(f"{_CHEAPEST}: of those that meet the deadline")
    if found.budget_usd is not None:
        limits.append(f"{_FASTEST}: of those within the budget")
    return "; ".join([*limits, f"{_FRONT}: nothing else is as fast at as low a cost"])


def _software(found: ClusterChoice) -> list[str]:
    """The stack and release of each system's plans."""
    by_system: dict[str, dict[str, None]] = {}
    for one in found.options:
        if one.software is not None:
            release = f" ({one.software.release})" if one.software.release else ""
            by_system.setdefault(one.system, {})[f"{one.software.stack}{release}"] = None
    systems: dict[str, list[str]] = {}
    for system, stacks in by_system.items():
        systems.setdefault(" or ".join(stacks), []).append(system)
    return [f"software: {stack} on {', '.join(names)}" for stack, names in systems.items()]


def _notes(found: ClusterChoice) -> list[str]:
    """What the table does not say."""
    notes = [_legend(found), *found.notes]
    levels = {one.run.level for one in found.options if one.run is not None and one.run.level}
    if levels:
        share = f"{round(10 * max(levels))} of 10 runs"
        notes.append(f"interval: days in {share}; the price varies in proportion")
    notes += _software(found)
    if found.prices:
        notes.append("price: " + "; ".join(f"{n} {text}" for n, text in found.prices.items()))
    notes += break_even_lines(found.break_even)
    if found.unpriced:
        names = ", ".join(found.unpriced)
        notes.append(f"no price, so days only: {names}; set it with --price NAME=USD")
    runs = [one.run for one in found.options if one.run is not None]
    notes += _from(found) if runs else []
    if runs and runs[0].goodput is None:
        notes.append("failures and checkpoints are unknown and left out: set --reliability")
    unknown = {run.unknown["waiting"] for run in runs if "waiting" in run.unknown}
    if unknown:
        notes.append(f"waiting for repairs is unknown and left out: {', '.join(sorted(unknown))}")
    return notes
