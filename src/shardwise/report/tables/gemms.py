"""The GEMMs of a step as a table for people, and as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from shardwise.analysis.results import Estimate, Gemm
from shardwise.report.console import count, percent, plain_table, seconds

SHAPE_COLUMNS = ("part", "operation", "direction", "batch", "m", "k", "n", "dtype", "count")
"""Columns that say which products run, without FLOPs and times."""

_PETA = 1e15
_TITLE = "GEMMs of a step, on one rank of every stage"
_SHORT_PASSES = {"input_grad": "dgrad", "weight_grad": "wgrad"}


def flop_count(flops: float) -> str:
    """Show FLOPs of a step with a suffix: 26.9 P."""
    return count(flops) if flops < _PETA else f"{flops / _PETA:,.4g} P"


def gemm_table(result: Estimate) -> Table:
    """Every product of a step on one rank of every stage, part by part, and their sum."""
    table = plain_table(
        *("operation", "product", "pass", "batch", "M", "K", "N", "type", "calls", "FLOPs"),
        *("time per call", "total time", "of peak", "bound by"),
        title=f"{_TITLE}: batch x (M, K) x (K, N)",
        left=3,
        # Without the product neither the pass nor the part of it that is computed is known.
        optional=("bound by", "type", "time per call", "of peak", "calls", "FLOPs"),
        otherwise=_narrow_table(result),
    )
    gemms = result.gemms or ()
    part = ""
    for gemm in gemms:
        if gemm.part != part:
            part = gemm.part
            table.add_row(Text(_heading(result, part), style="bold"))
        table.add_row(
            f"  {gemm.operation}",
            _product(gemm),
            gemm.direction.replace("_", " "),
            *(_size(size) for size in (gemm.batch, gemm.m, gemm.k, gemm.n)),
            gemm.dtype,
            _size(gemm.count),
            flop_count(gemm.flops),
            seconds(gemm.run_s),
            seconds(gemm.time_s),
            percent(gemm.efficiency),
            gemm.bound,
        )
    all_s = seconds(sum(gemm.time_s for gemm in gemms))
    empty = [""] * 6
    table.add_row("all", "", "", *empty, flop_count(result.matrix_flops), "", all_s, style="bold")
    return table


def _narrow_table(result: Estimate) -> Table:
    """The same with shapes as one column: products and their times."""
    heads = ("operation", "product", "pass", "batch x M x K x N", "total time")
    table = plain_table(*heads, title=_TITLE, left=3, wraps=("operation", "product"))
    gemms = result.gemms or ()
    for part in dict.fromkeys(gemm.part for gemm in gemms):
        table.add_row(Text(_heading(result, part), style="bold"))
        for gemm in (one for one in gemms if one.part == part):
            table.add_row(
                f"  {gemm.operation}",
                _product(gemm),
                _SHORT_PASSES.get(gemm.direction, gemm.direction),
                "x".join(f"{size:.10g}" for size in (gemm.batch, gemm.m, gemm.k, gemm.n)),
                seconds(gemm.time_s),
            )
    table.add_row("all", "", "", "", seconds(sum(gemm.time_s for gemm in gemms)), style="bold")
    return table


def _product(gemm: Gemm) -> str:
    """A product, and the share of it that is computed."""
    return gemm.product + (f" x {gemm.share:g}" if gemm.share < 1 else "")


def _heading(result: Estimate, part: str) -> str:
    """A part of the model, and of layers how many there are."""
    if not part.startswith("layer "):
        return part
    layers = result.layers[int(part.removeprefix("layer "))]
    return part if layers.count == 1 else f"{part} (x {layers.count})"


def _size(size: float) -> str:
    return f"{size:,}" if isinstance(size, int) else f"{size:,.2f}"


def gemms_csv(result: Estimate, columns: Sequence[str] = ()) -> str:
    """Return the products of an estimate as CSV, a row for each."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, columns or list(Gemm.model_fields), extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(gemm.to_dict() for gemm in result.gemms or ())
    return text.getvalue()
