"""A button that starts work of seconds or minutes, its progress, and a button that stops it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from shardwise.errors import ShardwiseError
from shardwise.web.workers import Jobs

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
