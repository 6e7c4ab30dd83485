"""How launch files and diagnoses are shown in Python."""

from collections.abc import Mapping
from typing import Any

from shardwise.config.launch import Launch
from shardwise.launchers.diagnose.results import Diagnosis
from shardwise.launchers.export import Export
from shardwise.launchers.launch import LaunchFile
from shardwise.launchers.tables.diagnose import COMPONENT_WORDS, print_diagnosis
from shardwise.report.charts.common import GREY, LINES, Figure, plotly, styled
from shardwise.report.console import percent, seconds, written
from shardwise.report.views.view import Summary, View


def _diagnosis(found: Diagnosis) -> Summary:
    measured, predicted = found.measured, found.predicted
    interval = f"{seconds(predicted.low_s)} to {seconds(predicted.high_s)}"
    rows = [
        ("measured", f"{seconds(measured.step_time_s)} a step"),
        ("predicted", f"{seconds(predicted.step_time_s)} ({interval})"),
    ]
    first = next(iter(found.findings), None)
    rows.append(("first finding", "nothing is too slow" if first is None else first.text))
    if found.changes:
        change = found.changes[0]
        words = ", ".join(
            f"{one.field} {written(one.current)} -> {written(one.value)}" for one in change.fields
        )
        rows.append(("first change", f"{words}: {percent(change.gain_share)} faster"))
    return Summary(
        title=f"Diagnosis: {found.model} on {found.system}, {found.launch}",
        rows=rows,
        hint=".explain() all findings and changes; .findings; .changes; .to_dict()",
    )


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


def _charts(found: Diagnosis) -> Mapping[str, Figure]:
    """Exposed times of the components, measured next to predicted; of a log alone, of the step."""
    rows = [
        (COMPONENT_WORDS.get(c.name, c.name), c.measured_s, c.predicted_s) for c in found.components
    ]
    rows = rows or [("step", found.measured.step_time_s, found.predicted.step_time_s)]
    names, measured, predicted = zip(*rows, strict=True)
    go = plotly()
    figure = go.Figure(
        [
            go.Bar(x=times, y=names, orientation="h", name=name, marker={"color": color})
            for name, times, color in (
                ("predicted", predicted, GREY),
                ("measured", measured, LINES[0]),
            )
        ]
    )
    styled(
        figure, "Measured and predicted step", f"{found.model} on {found.system}, {found.launch}"
    )
    figure.update_xaxes(title="exposed time in a step [s]")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return {"components": figure}


VIEWS: dict[str, View[Any]] = {
    "Diagnosis": View(summary=_diagnosis, tables=print_diagnosis, charts=_charts),
    "Export": View(summary=_export),
    "Launch": View(summary=_launch),
    "LaunchFile": View(summary=_file),
}
