"""Published recipes as tables: what was measured next to our estimate."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.config.strategy_fields import FIELDS
from shardwise.planning.recipes import RecipeEstimate
from shardwise.report.console import gib, percent, plain_table, seconds, show
from shardwise.report.tables.strategy_line import word

_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")


def print_recipes(recipes: Sequence[RecipeEstimate]) -> None:
    """Print one line per recipe: layout, measured and estimated speed, error of the step time."""
    table = plain_table(
        *("recipe", "stack", *(FIELDS[name].short for name in _DEGREES), "batch"),
        *("measured\ntok/s/GPU", "estimated\ntok/s/GPU", "step error", "memory GiB"),
        left=2,
        optional=("stack", "batch", "memory GiB", "mbs", "cp", "vpp"),
    )
    for one in recipes:
        mine = one.estimate
        table.add_row(
            one.name,
            word(mine.strategy["stack"]),
            *(str(mine.strategy[name]) for name in _DEGREES),
            f"{mine.strategy['global_batch_size']:,}",
            f"{one.measured_tokens_per_s_per_gpu:,.0f}",
            f"{mine.tokens_per_s_per_gpu:,.0f}",
            signed(one.error),
            _memory(mine),
        )
    show(table)
    over = [one.name for one in recipes if not one.estimate.fits]
    if over:
        show(Text(f"does not fit by our estimate: {', '.join(over)}"))


def print_recipe(one: RecipeEstimate) -> None:
    """Print every field of a recipe, its source, what was measured and our estimate."""
    recipe, mine = one.recipe, one.estimate
    show(Text(f"{one.name}: {recipe['description']}", style="bold"))
    table = plain_table("field", "value", left=2, wraps=("value",))
    table.add_row("model", recipe["model"])
    table.add_row("system", recipe["system"])
    for name, value in recipe["strategy"].items():
        table.add_row(name, Text(_value(value)))
    table.add_section()
    for name, value in recipe["source"].items():
        if value:
            table.add_row(name, Text(value))
    for phrase in recipe["assumed"]:
        table.add_row("assumed", Text(phrase))
    show(table)
    compared = plain_table("", "measured", "estimated", "error")
    compared.add_row(
        "step",
        seconds(one.measured_step_time_s),
        seconds(mine.step_time_s),
        signed(one.error),
    )
    speed, ours = one.measured_tokens_per_s_per_gpu, mine.tokens_per_s_per_gpu
    compared.add_row("tokens/s/GPU", f"{speed:,.1f}", f"{ours:,.1f}", signed(ours / speed - 1))
    compared.add_row("memory GiB", "", _memory(mine), "" if mine.fits else "does not fit")
    show(compared)
    printed = {name: value for name, value in recipe["measured"].items() if value is not None}
    if "model_tflops_per_gpu" not in printed:
        del printed["flops_convention"]
    show(Text("as printed: " + ", ".join(f"{name} {word(v)}" for name, v in printed.items())))


def print_measured(record: Mapping[str, Any]) -> None:
    """Print what was measured with the recipe of an estimate, if it is the same run."""
    if record["changed"]:
        changed = ", ".join(record["changed"])
        text = f"recipe {record['name']} with another {changed}: this run was not measured"
    else:
        measured = seconds(record["measured_step_time_s"])
        text = f"recipe {record['name']}: measured {measured}, error {signed(record['error'])}"
    show(Text(text))


def signed(share: float) -> str:
    """A share in percent, with its sign."""
    return f"{'+' if share >= 0 else '-'}{percent(abs(share))}"


def _memory(mine: Estimate) -> str:
    return f"{gib(mine.memory_bytes.reserved)} of {gib(mine.memory_bytes.capacity)}"


def _value(value: object) -> str:
    """A field as people write it; of a stack its base and what differs."""
    if isinstance(value, Mapping):
        rest = [f"{name} {word(item)}" for name, item in value.items() if name != "base"]
        return ", ".join([str(value.get("base", "")), *rest])
    return word(value)
