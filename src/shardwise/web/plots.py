"""What all tabs show: charts, faults, and the progress of work of seconds or minutes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import events, ui

from shardwise.errors import InputError, ShardwiseError
from shardwise.report.console import seconds
from shardwise.web.workers import Jobs

Clicked = Callable[[Mapping[str, Any]], None]
"""Called with the point that a user clicked."""


class Chart:
    """A chart that is on the page only while it shows something: plotly draws no hidden ones."""

    def __init__(self, title: str, clicked: Clicked | None = None, *, titled: bool = True) -> None:
        self._title, self._clicked, self._titled = title, clicked, titled
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
            self._heading[0].set_visibility(self._titled)
            self._heading[1].set_text(str(meta.get("subtitle", "")))

    def _make(self, drawn: dict[str, Any]) -> None:
        """Put a heading and a chart on the page."""
        with self._place:
            self._heading = ui.label().classes("sw-heading"), ui.label().classes("sw-hint")
            with ui.element("div").classes("sw-scroll"):
                self._plot = ui.plotly(drawn).classes("sw-plot")
            self._plot.props(f'role=figure aria-label="{self._title}"')
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


Offered = Callable[[Mapping[str, Any]], None]
"""Called with a plan that a user chose to load."""


class Answer:
    """Faults, what the command prints, plans to load, and charts of a view."""

    def __init__(self, offered: Offered, clicked: Mapping[str, Clicked] | None = None) -> None:
        self._offered, self._clicked = offered, clicked or {}
        self._faults = faults_label()
        self._html = ui.html(sanitize=False).classes("sw-card sw-printed")
        self._offers = ui.row()
        self._below = ui.column().classes("w-full")
        """For what stands between tables and charts."""
        self._place = ui.element("div").classes("sw-charts")
        self._charts: dict[str, Chart] = {}

    @property
    def below(self) -> ui.column:
        """Place between tables and charts."""
        return self._below

    def show(self, view: Mapping[str, Any]) -> None:
        """Show a view in place of an older one."""
        show_faults(self._faults, view["faults"])
        self._html.set_content(view.get("html", ""))
        self._offers.clear()
        with self._offers:
            for one in view.get("offers", []):
                button = ui.button(one["label"], on_click=partial(self._offered, one))
                button.props("outline no-caps").mark("offer")
        drawn = view.get("charts", {})
        with self._place:
            for name, figure in drawn.items():
                if name not in self._charts:
                    title = str(figure["layout"]["meta"]["title"])
                    self._charts[name] = Chart(title, self._clicked.get(name))
        for name, chart in self._charts.items():
            chart.show(drawn.get(name))


class FileText:
    """A text that a user pastes or uploads; files are read as data, never as paths."""

    def __init__(self, label: str, mark: str) -> None:
        self.name = ""
        """Of the file; empty: pasted."""
        self._label = label
        with ui.column().classes("sw-file"):
            self._area = ui.textarea(label, placeholder="paste it here, or upload a file")
            self._area.props("outlined dense stack-label debounce=300 input-class=sw-mono").classes(
                "w-full"
            )
            self._area.mark(mark).on_value_change(self._typed)
            chooser = ui.element("input").props("type=file").classes("hidden").mark(f"{mark}-file")
            chooser.props(f'aria-label="File: {label}"')
            chooser.on("change", self._read, js_handler=read_file(MOST_TEXT, cut=True))
            button = ui.button(f"Upload {label}", icon="upload_file").props("flat dense no-caps")
            button.on("click", js_handler=f"() => getHtmlElement({chooser.id}).click()")
            self._note = ui.label().classes("sw-hint")
        self._file = ""

    @property
    def text(self) -> str:
        """What was pasted or read."""
        return self._file or str(self._area.value or "")

    @property
    def pair(self) -> tuple[str, str]:
        """Name and text, which there must be.

        Raises
        ------
        InputError
            If there is no text.
        """
        if not self.text.strip():
            raise InputError.at(self._label, "is missing: paste it or upload a file")
        return self.name, self.text

    def _typed(self) -> None:
        if self._area.value:
            self.name, self._file = "", ""
            self._note.set_text("")

    def _read(self, event: events.GenericEventArguments) -> None:
        name, text, size = event.args
        if text is None:
            ui.notify(f"{name}: is not UTF-8 text", type="negative")
            return
        self._area.set_value("")
        self.name, self._file = str(name).replace("\\", "/").rsplit("/", 1)[-1], text
        part = f", of which the first {MOST_TEXT // 1024} KiB are read" if size > MOST_TEXT else ""
        self._note.set_text(f"{self.name}, {size / 1024:,.0f} KiB{part}")


MOST_TEXT = 512 * 1024
"""Bytes of a log or a launch file that a page sends: web sockets take a megabyte."""


def read_file(most: int, *, cut: bool = False) -> str:
    """Return JavaScript that sends name, text and size of a chosen file; null where it is no text.

    NiceGUI's element for uploads adds a route for each page, which FastAPI's caches keep for ever.

    Parameters
    ----------
    most
        Bytes that are sent at most.
    cut
        Whether the first lines of a larger file are sent rather than null.
    """
    size = f"Math.min(file.size, {most})" if cut else "file.size"
    return f"""
async (event) => {{
  const file = event.target.files[0];
  let text = null;
  if (!file) return;
  try {{
    const size = {size};
    const bytes = size > {most} ? null : await file.slice(0, size).arrayBuffer();
    if (bytes) {{
      const cut = size < file.size;
      text = new TextDecoder("utf-8", {{fatal: true}}).decode(bytes, {{stream: cut}});
      if (cut) text = text.slice(0, text.lastIndexOf("\\n") + 1);
    }}
  }} catch (error) {{}}
  emit(file.name, text, file.size);
  event.target.value = "";
}}
"""


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
                best = job.best and f", best so far {seconds(job.best['step_time_s'])}"
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
