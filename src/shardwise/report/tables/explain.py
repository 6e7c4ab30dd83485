"""Why a strategy is not legal, does not fit, or is not the best, as tables."""

from rich.table import Table
from rich.text import Text

from shardwise.config.accelerator import tier_words
from shardwise.planning.search.results import Explanation, Loss
from shardwise.report.console import gpu_count, percent, plain_table, seconds, show, table_of
from shardwise.report.tables.estimate import PART_NAMES
from shardwise.report.tables.strategy_line import in_brief, word
from shardwise.units import readable

_MOST_TRIED = 12


def print_explanation(found: Explanation) -> None:
    """Print the verdict, what stands against it, and the smallest changes."""
    show(_headline(found))
    show(Text("\n".join(_verdict(found)) + "\n"))
    if found.loss is not None and found.better:
        show(_lost(found.loss), _parts(found.loss), _differs(found))
    if any(change.improves for change in found.changes):
        show(_changes(found))
    elif not found.feasible:
        show("nothing of the space is feasible")


def _headline(found: Explanation) -> Text:
    text = Text("\n")
    text.append(f"{found.model} on {found.system}", style="bold")
    text.append(f"\n{gpu_count(found.strategy['gpus'])}: {in_brief(found.strategy)}\n")
    if not found.complete:
        text.append("interrupted: not every candidate was looked at\n", style="bold red")
    return text


def _verdict(found: Explanation) -> list[str]:
    lines = []
    if not found.legal:
        lines.append("not legal:")
        lines += [
            f"  {broken.field} {word(broken.value)}: {broken.problem}" for broken in found.broken
        ]
    for lack in found.shortages:
        lines.append(
            f"does not fit: stage {lack.stage} needs {readable(lack.needed_bytes, 'bytes')} of "
            f"{tier_words(lack.tier)}, of which {readable(lack.usable_bytes, 'bytes')} are usable: "
            f"{readable(lack.excess_bytes, 'bytes')} too much"
        )
        parts = ", ".join(f"{n} {readable(size, 'bytes')}" for n, size in lack.parts.items())
        lines.append(f"  {parts}")
    for outside in found.outside:
        tried = ", ".join(map(word, outside.tried[:_MOST_TRIED]))
        more = ", ..." if len(outside.tried) > _MOST_TRIED else ""
        lines.append(
            f"outside the space: {outside.field} {word(outside.value)}; tried: {tried}{more}"
        )
    lines += [f"avoided by the space: {one}" for one in found.avoided]
    if found.better is not None and found.estimate is not None:
        time = seconds(found.estimate.step_time_s)
        if found.rank is None:
            lines.append(
                f"legal, and it fits: {time}; of the {found.feasible:,} feasible strategies of the "
                f"space {found.better:,} are better by {found.objective}"
            )
        elif found.rank == 1:
            lines.append(f"the best of {found.feasible:,} feasible strategies: {time}")
        else:
            lines.append(
                f"legal, and it fits: {time}, number {found.rank:,} of {found.feasible:,} feasible "
                f"strategies by {found.objective}"
            )
    return lines


def _lost(loss: Loss) -> Text:
    longer = percent(loss.difference_s / loss.best_step_time_s)
    best, mine = seconds(loss.best_step_time_s), seconds(loss.step_time_s)
    return Text(f"The best takes {best}; this one {mine}, {longer} longer", style="bold")


def _parts(loss: Loss) -> Table:
    table = plain_table("lost in", "time", "of the loss")
    for part, lost in loss.parts_s.items():
        if lost:
            share = percent(lost / loss.difference_s) if loss.difference_s else ""
            sign = "-" if lost < 0 else ""
            table.add_row(PART_NAMES[part], f"{sign}{seconds(abs(lost))}", share)
    return table


def _differs(found: Explanation) -> Table:
    return table_of(
        found.differs,
        {
            "field": lambda one: one.field,
            "here": lambda one: word(one.given),
            "the best": lambda one: word(one.value),
        },
        title="Differences",
        wraps=("here", "the best"),
    )


def _changes(found: Explanation) -> Table:
    title = "Smallest changes"
    title += " that make it feasible" if found.better is None else " that make it better"
    return table_of(
        (change for change in found.changes if change.improves),
        {
            "fields": lambda one: str(one.changes),
            "change": lambda one: ", ".join(f"{f.field} {word(f.value)}" for f in one.fields),
            "step time": lambda one: seconds(one.plan.step_time_s),
            "memory": lambda one: readable(one.plan.memory_reserved_bytes, "bytes"),
        },
        left=2,
        title=title,
        wraps=("change",),
    )
