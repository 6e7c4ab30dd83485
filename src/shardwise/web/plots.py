"""What all tabs show: charts, faults, and the progress of work of seconds or minutes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import events, ui

from shardwise.errors import ShardwiseError
from shardwise.web.workers import Jobs

Clicked = Callable[[Mapping[str, Any]], None]
"""Called with the point that a user clicked."""


class Chart:
    """A chart that is on the page only while it shows something: plotly draws no hidden ones."""

    def __init__(self, title: str, clicked: Clicked | None = None) -> None:
        self._title, self._clicked = title, clicked
        self._place = ui.element("div").classes("sw-chart")
        self._heading: tuple[ui.label, ui.label] | None = None
        self._plot: ui.plotly | None = None
        self.show(None)

    def show(self, figure: Mapping[str, Any] | None) -> None:
        """Show a figure in plotly's JSON; None: nothing."""
        self._place.set_visibility(figure is not None)
        if figure is None:
            self._place.clear()
            self._plot = self._heading = None
            return
        meta = figure["layout"].get("meta", {})
        drawn = {**figure, "config": {"displaylogo": False, "responsive": True}}
        if self._plot is None or self._heading is None:
            self._make(drawn)
        else:
            self._plot.update_figure(drawn)
        if self._heading is not None:
            self._heading[0].set_text(str(meta.get("title", self._title)))
            self._heading[1].set_text(str(meta.get("subtitle", "")))

    def _make(self, drawn: dict[str, Any]) -> None:
        """Put a heading and a chart on the page."""
        with self._place:
            self._heading = ui.label().classes("sw-heading"), ui.label().classes("sw-hint")
            with ui.element("div").classes("sw-scroll"):
                self._plot = ui.plotly(drawn).classes("sw-plot")
            self._plot.props(f'role=img aria-label="{self._title}"')
            least = drawn["layout"].get("meta", {}).get("least_width", 0)
            self._plot.style(f"min-width: {int(least)}px")
            if self._clicked is not None:
                self._plot.on("plotly_click", self._pass_on)

    def _pass_on(self, event: events.GenericEventArguments) -> None:
        points = event.args.get("points") or []
        if points and self._clicked is not None:
            self._clicked(points[0])


def faults_label() -> ui.label:
    """Where faults are shown, one line each; hidden without any."""
    label = ui.label().classes("sw-faults").props("role=alert").mark("faults")
    label.set_visibility(False)
    return label


def show_faults(label: ui.label, faults: Sequence[str]) -> None:
    """Show faults, or hide where they stood."""
    label.set_visibility(bool(faults))
    label.set_text("\n".join(faults))


_LOOK_EVERY_S = 0.25


class JobBar:
    """Runs one piece of work at a time for one client."""

    def __init__(self, label: str, jobs: Jobs, start: Callable[[], None]) -> None:
        self._jobs = jobs
        self._name: str | None = None
        with ui.row().classes("items-center w-full"):
            self._button = ui.button(label, icon="play_arrow", on_click=start)
            self._button.props("no-caps").mark(f"start-{label.lower()}")
            self._stop = ui.button("Stop", icon="stop", on_click=self.cancel).props(
                "outline no-caps"
            )
            self._words = ui.label().props("aria-live=polite").mark("job-words")
        self._bar = ui.linear_progress(value=0, show_value=False).props("rounded")
        self._bar.props('aria-label="Progress"')
        self._idle()

    def _idle(self) -> None:
        self._button.enable()
        self._stop.set_visibility(False)
        self._bar.set_visibility(False)

    def cancel(self) -> None:
        """Stop the work, if there is any."""
        if self._name is not None:
            self._jobs.cancel(self._name)

    async def run(self, work: Callable[..., Mapping[str, Any]], question: Any) -> dict[str, Any]:
        """Run work in a process; return its view, or one with faults."""
        self.cancel()
        try:
            job = self._jobs.start(work, question)
        except ShardwiseError as error:
            return {"faults": [str(error)]}
        self._name = job.id
        self._button.disable()
        self._stop.set_visibility(True)
        self._bar.set_visibility(True)
        try:
            while job.state in ("waiting", "running"):
                share = job.done / job.total if job.total else 0.0
                self._bar.set_value(share)
                best = job.best and f", best so far {job.best['step_time_s']:.3f} s"
                self._words.set_text(f"{job.state}: {share:.0%}{best or ''}")
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            if job.state in ("waiting", "running"):
                self._jobs.cancel(job.id)
            if not self._button.is_deleted:
                self._idle()
        self._words.set_text("" if job.state == "done" else job.state)
        if job.result is not None:
            return dict(job.result)
        return {"faults": [str(fault) for fault in job.errors]}
