"""How launch files are shown in Python."""

from typing import Any

from shardwise.launchers.export import Export
from shardwise.launchers.launch import Launch, LaunchFile
from shardwise.report.console import seconds, written
from shardwise.report.views.view import Summary, View


def _export(one: Export) -> Summary:
    files = ", ".join(file.ending for file in one.files)
    rows = [("files", files), ("step time", seconds(one.estimate.step_time_s))]
    changed = [f"{c.field} {written(c.given)} -> {written(c.value)}" for c in one.changes]
    rows += [("changed", ", ".join(changed))] if changed else []
    return Summary(
        title=f"Export: {one.estimate.model} for {one.launcher} {one.release}",
        rows=rows,
        hint=".files[0].text is the launch file; .estimate",
    )


def _file(one: LaunchFile) -> Summary:
    lines = len(one.text.splitlines())
    return Summary(title=f"LaunchFile: {one.ending}, {lines} lines", hint=".text")


def _launch(one: Launch) -> Summary:
    model = "not in the file" if one.model is None else one.model.name
    release = f" {one.release}" if one.release else ""
    rows = [("model", model)]
    rows += [("strategy", ", ".join(f"{k} {written(v)}" for k, v in one.strategy.items()))]
    rows += [("not used", f"{len(one.not_understood)} options")] if one.not_understood else []
    return Summary(title=f"Launch: {one.source}, {one.launcher}{release}", rows=rows)


VIEWS: dict[str, View[Any]] = {
    "Export": View(summary=_export),
    "Launch": View(summary=_launch),
    "LaunchFile": View(summary=_file),
}
