"""The tab of a sweep: a figure of the system against the step time."""

from typing import Any

from nicegui import ui

from shardwise.web import views
from shardwise.web.controls import SIZES
from shardwise.web.explorer import Explorer, View
from shardwise.web.job import JobBar
from shardwise.web.plots import Chart, faults_label, show_faults

_MOST_CHARTS = 3
_USUAL = ("nvlink.bandwidth", "fabric.bandwidth", "hbm.bandwidth")
_WORK = (*SIZES, "dtype", "quantization", "stack")
_MODES = {False: "this strategy at every value", True: "the best strategy at every value"}


class SweepTab:
    """Varies one figure of the system of the page."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._system: object = None
        with ui.row().classes("items-end w-full"):
            self._figure = ui.select([], label="figure", with_input=True).classes("w-64")
            self._values = ui.input("values", value="0.5x,1x,2x").classes("w-48")
            self._mode = ui.select(_MODES, value=False, label="with").classes("w-64")
            for one in (self._figure, self._values, self._mode):
                one.props("dense outlined")
            self._figure.mark("sweep-figure")
            self._values.mark("sweep-values")
        self._job = JobBar("Sweep", explorer.jobs, self._start)
        self._faults = faults_label()
        self._charts = [Chart("Step time over the values") for _ in range(_MOST_CHARTS)]

    async def renew(self) -> None:
        """List the figures of the system, if it is another one."""
        system = self._explorer.state.system
        if system != self._system:
            self.show(await self._explorer.ask(views.figures_view, system.value))

    def _start(self) -> None:
        self._explorer.start(self._sweep(), self.show)

    async def _sweep(self) -> None:
        state = self._explorer.state
        question: dict[str, Any] = {
            **state.question(),
            "vary": {str(self._figure.value): str(self._values.value)},
            "search": bool(self._mode.value),
            "space": {name: text for name, text in state.strategy.items() if name in _WORK},
            "dark": self._explorer.is_dark,
        }
        self.show(await self._job.run(views.sweep_view, question))

    def show(self, view: View) -> None:
        """Show the points of a sweep, or the figures that can be varied."""
        show_faults(self._faults, view["faults"])
        charts = list(view.get("charts", {}).values())
        for position, chart in enumerate(self._charts):
            chart.show(charts[position] if position < len(charts) else None)
        if "figures" in view:
            self._system = self._explorer.state.system
            names = [str(one["figure"]) for one in view["figures"]]
            usual = next((name for name in names if name in _USUAL), names[0])
            self._figure.set_options(names, value=usual)
