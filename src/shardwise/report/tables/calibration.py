"""Errors of predicted kernels, and what a calibration by kernels or by runs changed."""

from rich.text import Text

from shardwise.report.console import percent, plain_table, seconds, show, signed
from shardwise.validate.calibrate.fit import Calibration, Errors
from shardwise.validate.calibrate.from_runs import Calibrated
from shardwise.validate.kernels import KernelScores
from shardwise.validate.scores import Score

_REGIONS = {
    "gemm": "m >= 1024; n, k >= 512",
    "attention": "seq >= 1024, batch x heads >= 8",
    "moe": "tokens >= 2048",
    "collective": "from 1 MiB",
}


def print_kernel_scores(scores: KernelScores) -> None:
    """Print a table for each kind of measurement, then what could not be predicted."""
    show(Text("errors: predicted / measured - 1, in %", style="dim"))
    for name in dict.fromkeys(group.table for group in scores.groups):
        groups = [group for group in scores.groups if group.table == name]
        large = {(g.gpu, g.dtype, g.kind): g.score for g in groups if g.region == "large"}
        heads = ("n", "mean", "median", "p90", "bias")
        region = _REGIONS.get(name)
        more = tuple(f"{head} " for head in heads) if region else ()
        table = plain_table("gpu", "type", "kind", *heads, *more, left=3)
        for group in groups:
            if group.region == "all":
                own = large.get((group.gpu, group.dtype, group.kind))
                cells = (*_cells(group.score), *(_cells(own) if region else ()))
                table.add_row(group.gpu, group.dtype, group.kind, *cells)
        heading = f"\n{name}" + (f": all rows, then {region}" if region else "")
        show(Text(heading, style="bold"), table)
    if scores.refused:
        table = plain_table("table", "gpu", "type", "n", "not predicted", left=3)
        for refused in scores.refused:
            about = (refused.table, refused.gpu, refused.dtype)
            table.add_row(*about, str(refused.n), refused.reason)
        table.columns[-1].justify = "left"
        show(Text("\nRows without a prediction", style="bold"), table)


def _cells(score: Score | None) -> tuple[str, ...]:
    if score is None:
        return ("-",) * 5
    shares = (score.mape, score.median_ape, score.p90)
    return str(score.n), *(f"{100 * share:.1f}" for share in shares), f"{100 * score.bias:+.1f}"


def print_calibration(calibration: Calibration) -> None:
    """Print errors before and after of each kind, and the figures that were fitted."""
    show(Text("mean absolute errors in %, of rows of the sizes that training has", style="dim"))
    left_out = any(fit.left_out is not None for fit in calibration.fits)
    heads = ("figures", "rows", "before", "after", "bias", *(["left out"] if left_out else []))
    table = plain_table(*heads)
    for fit in calibration.fits:
        cells = (_mean(fit.before), _mean(fit.after), f"{100 * fit.after.bias:+.1f}")
        validation = (_mean(fit.left_out),) if left_out else ()
        table.add_row(fit.prefix, str(fit.rows), *cells, *validation)
    show(table)


def _mean(errors: Errors | None) -> str:
    return "-" if errors is None else f"{100 * errors.mean:.1f}"


def print_calibrated(found: Calibrated) -> None:
    """Print the speed with its uncertainty, what it rests on, and the runs."""
    low, high = found.speed_range
    level = found.level
    head = f"\n{found.system.name}: speed {found.speed:g} ({low:.3g} to {high:.3g})"
    show(Text(head, style="bold"))
    show(
        Text(
            f"robust mean error of {len(found.runs)} runs: {signed(level.mean)}; attributed to "
            f"this system: {signed(level.expected)}, standard deviation "
            f"{percent(level.deviation)}; the rest may be scatter of the runs\n"
            f"standard deviations: of the mean errors of systems {percent(level.prior)} "
            f"(validated runs), of single runs {percent(level.scatter)} ({level.scatter_of})",
            style="dim",
        )
    )
    table = plain_table("run", "measured", "before", "error", "after", "error", wraps=("run",))
    for run in found.runs:
        before = (seconds(run.before_s), signed(run.error_before))
        after = (seconds(run.after_s), signed(run.error_after))
        table.add_row(run.name, seconds(run.measured_s), *before, *after)
    table.add_section()
    for name, values in {
        "mean size": (f"{100 * found.before.mape:.1f} %", f"{100 * found.after.mape:.1f} %"),
        "bias": (signed(found.before.bias), signed(found.after.bias)),
    }.items():
        table.add_row(name, "", "", values[0], "", values[1])
    show(table)
    if found.unusable:
        others = plain_table("not used", "because", left=2, wraps=("not used", "because"))
        for one in found.unusable:
            others.add_row(one.name, one.reason)
        show(others)
