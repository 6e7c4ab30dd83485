"""What measured runs tell of a machine: its speed, and each run before and after."""

from rich.text import Text

from shardwise.report.console import plain_table, seconds, show
from shardwise.validate.calibrate.from_runs import Calibrated
from shardwise.validate.measured.statistics import Summary

__all__ = ["print_calibrated"]


def print_calibrated(found: Calibrated) -> None:
    """Print the speed with its uncertainty, what it rests on, and the runs."""
    low, high = found.speed_range
    level = found.level
    head = f"\n{found.system.name}: speed {found.speed:g} ({low:.3g} to {high:.3g})"
    show(Text(head, style="bold"))
    show(
        Text(
            f"{len(found.runs)} runs, {_signed(level.mean)} in the robust mean; of this "
            f"{_signed(level.expected)} counts, +- {100 * level.deviation:.1f} %\n"
            f"before, levels are 0 +- {100 * level.prior:.1f} % (validated runs); runs scatter by "
            f"{100 * level.scatter:.1f} % ({level.scatter_of})",
            style="dim",
        )
    )
    table = plain_table("run", "measured", "before", "error", "after", "error", wraps=("run",))
    for run in found.runs:
        before = (seconds(run.before_s), _signed(run.error_before))
        after = (seconds(run.after_s), _signed(run.error_after))
        table.add_row(run.name, seconds(run.measured_s), *before, *after)
    table.add_section()
    for name, values in _summaries(found.before, found.after).items():
        table.add_row(name, "", "", values[0], "", values[1])
    show(table)
    if found.unusable:
        others = plain_table("not used", "because", left=2, wraps=("not used", "because"))
        for one in found.unusable:
            others.add_row(one.name, one.reason)
        show(others)


def _summaries(before: Summary, after: Summary) -> dict[str, tuple[str, str]]:
    return {
        "mean size": (f"{100 * before.mape:.1f} %", f"{100 * after.mape:.1f} %"),
        "bias": (_signed(before.bias), _signed(after.bias)),
    }


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
