"""The scoreboard of measured runs as tables: headline, groups, order, memory, worst, and more."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from rich.table import Table
from rich.text import Text

from shardwise.report.console import plain_table, seconds, show
from shardwise.validate.measured.runs import NO_EFFECT
from shardwise.validate.measured.scoreboard import GROUPINGS, RunScore, Scoreboard, ScoredRun
from shardwise.validate.measured.statistics import LeftOut, ReferenceScore

# By each of these a table of its own; the rest stand together below the headline.
_ALONE = ("source", "accelerator")
_MOST_WORST = 10
_MOST_REASONS = 20
_REFUSED = "refused because"
_IGNORED = "ignored"
_LEFT_OUT = "source left out"


def print_runs(board: Scoreboard, *, rows: bool = False) -> None:
    """Print the scoreboard; with `rows`, every run of it."""
    score = board.overall
    show(Text(f"\n{score.rows:,} measured training runs", style="bold"))
    errors = "errors of the time of a step: predicted / measured - 1"
    skill = "skill: part of the mean error of a constant-MFU guess that is gone"
    unseen = f"{_LEFT_OUT}: fitted runs (grade A), each with its own source left out of the fit"
    lines = (score.counts, errors, f"{skill}, their own source left out")
    more = (unseen,) if board.left_out else ()
    show(Text("\n".join((*lines, *more)), style="dim"))
    together = {by: board.groups[by] for by in GROUPINGS if by not in _ALONE}
    show(_headline(score, together, board.left_out))
    for by in _ALONE:
        show(Text(f"By {by}", style="bold"), _groups(by, board.groups[by]))
    _print_memory(board)
    _print_ranking(board)
    _print_references(board.references)
    _print_worst(board.rows)
    _print_reasons(_REFUSED, Counter(row.refused for row in board.rows if row.refused))
    _print_reasons(_IGNORED, Counter(one for row in board.rows for one in row.ignored))
    if rows:
        show(Text("\nAll runs", style="bold"), _every(board.rows))


def _scores_table(*names: str) -> Table:
    heads = ("n", "refused", "mean size", "median", "9 of 10 below", "bias", "skill", "in interval")
    optional = ("in interval", "refused", "9 of 10 below")
    return plain_table(*names, *heads, left=len(names), optional=optional, wraps=names[-1:])


def _headline(
    overall: RunScore,
    groups: Mapping[str, Mapping[str, RunScore]],
    left_out: Mapping[str, LeftOut],
) -> Table:
    table = _scores_table("by", "of")
    table.add_row("all", "", *_cells(overall), end_section=True)
    for place, (name, unseen) in enumerate(left_out.items(), start=1):
        first = _LEFT_OUT if place == 1 else ""
        table.add_row(first, name, *_cells(unseen), end_section=place == len(left_out))
    for by, scores in groups.items():
        for place, (name, score) in enumerate(scores.items(), start=1):
            first = by if place == 1 else ""
            table.add_row(first, name, *_cells(score), end_section=place == len(scores))
    return table


def _groups(by: str, scores: Mapping[str, RunScore]) -> Table:
    """Those of most runs first; of sources also the mean, in which each counts once."""
    table = _scores_table(by)
    known = [score for score in scores.values() if score.errors.n]
    if by == "source" and len(known) > 1:
        mean = RunScore.mean(known)
        table.add_row("mean of sources", *_cells(mean), end_section=True)
    for name, score in sorted(scores.items(), key=lambda item: -item[1].errors.n):
        table.add_row(name, *_cells(score))
    return table


def _cells(score: RunScore | LeftOut) -> Iterable[str]:
    errors = score.errors
    sizes = (errors.mape, errors.median_ape, errors.p90)
    rest = (_signed(errors.bias), _share(score.skill), _share(score.coverage))
    count = 0 if isinstance(score, LeftOut) else score.refused
    refused = f"{count:,}" if count else "-"
    return (f"{errors.n:,}", refused, *map(_share, sizes), *rest)


def _print_memory(board: Scoreboard) -> None:
    groups = {name: one.memory for name, one in board.groups["source"].items() if one.memory.n}
    if not groups:
        return
    table = plain_table("source", "n", "mean size", "median", "9 of 10 below", "bias")
    for name, errors in {"all": board.overall.memory, **groups}.items():
        sizes = (errors.mape, errors.median_ape, errors.p90)
        table.add_row(name, str(errors.n), *map(_share, sizes), _signed(errors.bias))
    show(Text("Peak memory, by the metric of each row", style="bold"), table)


def _print_ranking(board: Scoreboard) -> None:
    ranking = board.ranking
    lines = []
    if ranking.pairs:
        lines.append(
            f"Of {ranking.pairs:,} pairs of a study that differ by more than 10 %, "
            f"{_share(ranking.in_order)} are ordered right."
        )
    if ranking.studies:
        lines.append(f"Kendall's tau, mean of {ranking.studies} studies: {ranking.tau:.2f}.")
    if ranking.choices:
        lines.append(
            f"The way predicted best takes {_share(ranking.regret)} longer than the best, mean of "
            f"{ranking.choices} choices; at most {_share(ranking.most_regret)}."
        )
    if lines:
        show(Text("Order inside studies", style="bold"), Text("\n".join(lines) + "\n"))


def _print_references(scores: Mapping[str, ReferenceScore]) -> None:
    if not scores:
        return
    table = plain_table(
        "predecessor", "n", "refused", "mean size", "median", "9 of 10 below", "bias",
        "shardwise, same runs", "shardwise, bias",
        optional=("9 of 10 below", "refused", "shardwise, bias"),
    )  # fmt: skip
    for name, score in scores.items():
        reference, refused = score.theirs, f"{score.refused:,}" if score.refused else "-"
        sizes = map(_share, (reference.mape, reference.median_ape, reference.p90))
        own = (_share(score.ours.mape), _signed(score.ours.bias))
        table.add_row(name, f"{reference.n:,}", refused, *sizes, _signed(reference.bias), *own)
    show(Text("Predecessors, each on the runs that it can express", style="bold"), table)


def _print_worst(rows: Sequence[ScoredRun]) -> None:
    wrong = sorted(
        (row for row in rows if row.error is not None), key=lambda row: -abs(row.error or 0.0)
    )
    if wrong:
        table = plain_table(
            "run", "grade", "measured", "predicted", "error", optional=("grade",), wraps=("run",)
        )
        for row in wrong[:_MOST_WORST]:
            table.add_row(row.id, row.grade, *_times(row))
        show(Text("Farthest off", style="bold"), table)


def _print_reasons(title: str, reasons: Counter[str]) -> None:
    """Reasons or words, the most frequent first, with the number of their runs."""
    if not reasons:
        return
    table = plain_table(title, "n", wraps=(title,))
    for reason, count in reasons.most_common(_MOST_REASONS):
        table.add_row(reason, str(count))
    rest = reasons.most_common()[_MOST_REASONS:]
    if rest:
        table.add_row(f"{len(rest)} others", str(sum(count for _, count in rest)))
    show(table)


def _every(rows: Sequence[ScoredRun]) -> Table:
    """With memory and reasons where any run has them."""
    memory = ("GiB measured", "GiB predicted", "GiB error")
    columns = {
        "run": [row.id for row in rows],
        "grade": [row.grade for row in rows],
        "measured": [_times(row)[0] for row in rows],
        "predicted": [_times(row)[1] for row in rows],
        "error": [_times(row)[2] for row in rows],
        memory[0]: [_gib(row.measured_memory_gib) for row in rows],
        memory[1]: [_gib(row.predicted_memory_gib) for row in rows],
        memory[2]: [_signed(row.memory_error) for row in rows],
        _REFUSED: [row.refused or "-" for row in rows],
        _IGNORED: [_ignored(row) for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if {*cells} - {"-"}}
    optional = ("grade", *reversed(memory))
    table = plain_table(*shown, wraps=("run", _REFUSED, _IGNORED), optional=optional)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _ignored(row: ScoredRun) -> str:
    """What the row says that the prediction does not use, without what has no effect."""
    return "; ".join(said for said in row.ignored if NO_EFFECT not in said) or "-"


def _times(row: ScoredRun) -> tuple[str, str, str]:
    measured, predicted = row.measured_step_time_s or 0.0, row.predicted_step_time_s or 0.0
    return seconds(measured), seconds(predicted), _signed(row.error)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %" if isfinite(share) else "-"


def _signed(share: float | None) -> str:
    return "-" if share is None or not isfinite(share) else f"{100 * share:+.1f} %"
