"""Accelerators that fine-tuning needs, by model, system, method and length, as a table."""

from collections.abc import Mapping

from rich.table import Table

from shardwise.planning.methods import MethodPlan, MethodTable
from shardwise.report.console import gib, percent, plain_table, show

_EVEN = "break-even"
_OTHER = "the cheapest run on another system"


def print_methods(found: MethodTable, *, title: str = "") -> None:
    """Print a plan a line, and what the numbers mean."""
    even = any(plan.break_even_usd is not None for plan in found.plans)
    table: Table = plain_table(
        *("model", "system", "method", "tokens", "GPUs", "GiB each", "sure", "mostly"),
        *("tokens/s", "USD per 1M", *([_EVEN] if even else [])),
        title=title or None,
        optional=(_EVEN,) if even else (),
    )
    for plan in found.plans:
        table.add_row(*_cells(plan), *([_even(plan)] if even else []))
    show(table)
    cheapest = found.cheapest()
    if cheapest is not None:
        show(f"cheapest: {cheapest.gpus} x {cheapest.system}, {cheapest.finetune}")
    show(
        f"GPUs: the fewest, as a power of 2, on which it fits with 90 %; data parallelism, ZeRO-3 "
        f"where full replicas do not fit; micro-batch {found.mbs}, one a step. GiB: reserved. "
        "USD: of systems with a price."
        + (f" {_EVEN}: price per GPU-hour, with {_OTHER}." if even else ""),
        style="dim",
    )
    show(*price_lines({plan.system: plan.price for plan in found.plans}), style="dim")
    for one in found.lowered_by:
        first = found.plans[0]
        where = f"{first.gpus} x {first.system}"
        show(f"with {one.name} ({one.flags}): {gib(one.reserved_bytes)} GiB each on {where}")
    for text in dict.fromkeys(
        f"{plan.system}: {plan.problem}" for plan in found.plans if plan.problem
    ):
        show(text, style="dim")


def break_even_lines(prices: Mapping[str, float]) -> list[str]:
    """Prices of a GPU-hour at which systems cost as much as the cheapest of the others."""
    text = ", ".join(f"{system} ${usd:.4g}" for system, usd in prices.items())
    return [f"break-even with {_OTHER}, per GPU-hour: {text}"] if prices else []


def price_lines(prices: Mapping[str, str]) -> list[str]:
    """Prices that the USD of a table rest on, by system; and which systems have none."""
    known = [f"{system} {price}" for system, price in prices.items() if price]
    lacking = [system for system, price in prices.items() if not price]
    lines = [f"price: {'; '.join(known)}"] if known else []
    if lacking:
        lines.append(f"no price: {', '.join(lacking)}; set it in a price book")
    return lines


def _even(plan: MethodPlan) -> str:
    return "-" if plan.break_even_usd is None else f"${plan.break_even_usd:.4g}"


def _cells(plan: MethodPlan) -> list[str]:
    """A plan as cells; a dash stands for what is not known."""
    about = [plan.model, plan.system, plan.finetune, f"{plan.seq_len:,}"]
    if plan.gpus is None:
        return [*about, *["-"] * 6]
    usd = plan.usd_per_million_tokens
    return [
        *about,
        f"{plan.gpus:,}",
        gib(plan.reserved_bytes),
        "-" if plan.fits_probability is None else percent(plan.fits_probability),
        plan.limited_by,
        f"{plan.tokens_per_s:,.0f}",
        "-" if usd is None else f"{usd:.2f}",
    ]
