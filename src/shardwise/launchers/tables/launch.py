"""What a launch file says, in words of shardwise."""

from collections.abc import Mapping
from typing import Any

from shardwise.config.launch import Effect
from shardwise.errors import shorten
from shardwise.report.console import plain_table, show
from shardwise.report.tables.strategy_line import word

_FLAGS = {
    "gpus": "--gpus",
    "seq_len": "--seq-len",
    "micro_batch_size": "--mbs",
    "global_batch_size": "--gbs",
}


def print_launch(record: Mapping[str, Any]) -> None:
    """Print model, stack and strategy of a launch file, and the options that are not used."""
    release = f" {record['release']}" if record["release"] else ""
    fork = f" ({record['fork']})" if record["fork"] else ""
    show(f"{record['source']}: {record['launcher']}{release}{fork}", style="bold")
    left = record["not_understood"]
    for one in left:
        if one["effect"] == Effect.MODEL:
            show(f"may change the model, predicted without: {one['option']} {one['value']}")
    if record["incomplete"]:
        lacking = ", ".join(f"{name} ({_FLAGS[name]})" for name in record["incomplete"])
        show(f"incomplete: the file does not set {lacking}")
    show(_model(record["model"]))
    show(f"stack: {word(record['stack'])}")
    table = plain_table("field", "value", "origin", title="Strategy")
    for name, value in record["strategy"].items():
        table.add_row(name, word(value), record["origins"].get(name, ""))
    show(table)
    if not left:
        show("all options that matter to the prediction are understood")
        return
    table = plain_table("option", "value", "why it is not used", title="Not understood")
    for one in left:
        table.add_row(one["option"], shorten(one["value"]), one["because"])
    show(table)


def _model(model: Mapping[str, Any] | None) -> str:
    if model is None:
        return "model: none in this file; name it with --model"
    size = f"{model['parameters'] / 1e9:.4g} billion parameters"
    return f"model: {model['name']} {'(catalog)' if model['catalog'] else ''}, {size}".replace(
        " ,", ","
    )
