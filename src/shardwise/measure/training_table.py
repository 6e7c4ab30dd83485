"""A small training run next to its estimate, as tables."""

from rich.text import Text

from shardwise.measure.training import REST, Trained
from shardwise.report.console import percent, plain_table, seconds, show, signed
from shardwise.report.tables.strategy_line import in_brief, interval_words
from shardwise.units import readable


def print_trained(found: Trained) -> None:
    """Print the step by part, memory, the kernel of attention and how far to trust the figures."""
    predicted = found.prediction
    head = Text(f"\n{found.model.name} on {found.system.name}, trained on {found.device}", "bold")
    head.append(f"\n{in_brief(predicted.strategy)}\n", "none")
    table = plain_table("part", "measured", "predicted", "error")
    for part in found.parts:
        error = "" if part.name == REST else signed(part.predicted_s / part.measured_s - 1)
        table.add_row(part.name, seconds(part.measured_s), seconds(part.predicted_s), error)
    step = (seconds(found.step_time_s), seconds(predicted.step_time_s), signed(found.error))
    table.add_row("step", *step, style="bold")
    show(head, table)
    memory = plain_table("memory of a process", "measured", "predicted", "error")
    total = predicted.memory_bytes.total
    error = signed(total / found.peak_bytes - 1)
    memory.add_row("peak of tensors", _size(found.peak_bytes), _size(total), error)
    if found.saved_bytes is not None:
        memory.add_row("saved for backward", _size(found.saved_bytes), "", "")
    memory.add_row("resident set, with Python", _size(found.process_bytes), "", "")
    show(memory)
    ran = ", ".join(found.attention) or "none"
    says = "as expected" if found.attention_as_expected else "not what the estimate counts"
    apart = f"quartiles {percent(found.spread)}, medians of repeats {percent(found.noise)} apart"
    lines = [
        f"expected in 8 of 10 runs: {interval_words(predicted.interval)}",
        f"noise of {found.steps} steps: {apart}; smaller errors are no errors",
        f"attention ran as {ran}; the software resolves to {found.attention_kernel}: {says}",
    ]
    show(Text("\n".join(lines), style="dim"))


def _size(count: float) -> str:
    return readable(count, "bytes")
