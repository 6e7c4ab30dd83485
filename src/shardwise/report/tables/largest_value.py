"""The largest sequence, micro-batch or rank that fits, as text."""

from shardwise.config.strategy_fields import COLUMNS
from shardwise.planning.largest_value import LargestValue
from shardwise.report.console import chance, gib, gpu_count, seconds, show
from shardwise.report.tables.strategy_line import in_brief

_NAMES = {
    "seq_len": ("longest sequence", "tokens"),
    "micro_batch_size": ("largest micro-batch", "sequences"),
    "lora_rank": ("highest rank of adapters", ""),
}


def print_largest_value(found: LargestValue, command: str) -> None:
    """Print the largest value, how sure it is, what limits it, and what raises it most.

    Parameters
    ----------
    command
        The command line of the question.
    """
    name, unit = _NAMES[found.field]
    gpus = gpu_count(found.strategy["gpus"])
    heading = f"{name} of {found.model} that fits on {gpus} of {found.system}"
    show(f"\n{heading}: {_values(found, unit)}\n")
    show(f"limited by {found.limited_by} ({gib(found.limit_bytes)} GiB)")
    for one in found.raised_by:
        show(f"with {one.name}: {one.value:,}\n  {command} {one.flags}")
    short = COLUMNS[found.field].short
    own = "" if found.value is None else f"{short} {found.strategy[found.field]:,}: "
    step = f"{seconds(found.step_time_s)} a step, {found.tokens_per_s:,.0f} tokens/s"
    show(f"\n{own}{step}; {in_brief(found.strategy)}", style="dim")


def _values(found: LargestValue, unit: str) -> str:
    """The values with their probabilities."""
    words = []
    if found.value is not None:
        likely = chance(found.fits_probability)
        words.append(f"{found.value:,} {unit}".rstrip() + f" ({likely} sure)")
    if found.likely is not None and found.likely != found.value:
        words.append(f"{found.likely:,} with 50 %")
    return ", ".join(words) or f"none; not even {found.step:,}"
