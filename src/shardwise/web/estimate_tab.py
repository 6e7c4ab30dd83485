"""The tab of one strategy: main figures, time, memory, pipeline, roofline."""

import asyncio
from dataclasses import replace

from nicegui import ui

from shardwise.web import views
from shardwise.web.explorer import Explorer, View
from shardwise.web.export_button import ExportButton
from shardwise.web.plots import Chart, faults_label, show_faults

# The nearest plan takes longer: it is looked for when inputs rest.
_QUIET_S = 0.4
_BARS = ("time", "memory")
_MORE = {"timeline": "Pipeline of one step", "roofline": "Roofline of the kernels"}


class EstimateTab:
    """Shows the estimate of the state; charts that are closed are not computed."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._faults = faults_label()
        self._nearest = ui.button(icon="near_me", on_click=self._take_nearest)
        self._nearest.props("outline no-caps align=left").mark("nearest")
        self._nearest.set_visibility(False)
        self._fields: dict[str, str] = {}
        self._facts = ui.element("div").classes("sw-facts").props("aria-live=polite")
        self._labels: dict[str, tuple[ui.label, ui.label]] = {}
        self._notes = ui.label().classes("sw-notes")
        self._notes.set_visibility(False)
        self._charts: dict[str, Chart] = {}
        with ui.element("div").classes("sw-charts"):
            self._bars = {name: ui.html(sanitize=False).classes("sw-card") for name in _BARS}
        self._open: dict[str, ui.expansion] = {}
        for name, title in _MORE.items():
            with ui.expansion(title).classes("w-full").mark(f"open-{name}") as opened:
                self._charts[name] = Chart(title)
            opened.on_value_change(explorer.refresh)
            self._open[name] = opened
        with ui.row().classes("items-center"):
            ui.button("Pin for comparison", icon="push_pin", on_click=explorer.pin).props(
                "outline no-caps"
            ).mark("pin")
            ExportButton(explorer)

    async def renew(self) -> None:
        """Compute the answer of the state, and show it."""
        explorer = self._explorer
        opened = [name for name, one in self._open.items() if one.value]
        view = await explorer.ask(
            views.estimate_view, explorer.state.question(), opened, explorer.is_dark
        )
        self.show(view)
        if view["faults"] or not view["fits"]:
            await asyncio.sleep(_QUIET_S)
            near = await explorer.ask(views.nearest_view, explorer.state.question())
            self._offer_nearest(near, view["faults"])

    def _offer_nearest(self, near: View, faults: list[str]) -> None:
        """Offer the nearest plan that is legal and fits, or say why there is none."""
        show_faults(self._faults, list(dict.fromkeys([*faults, *near["faults"]])))
        if near.get("fields"):
            self._fields = near["fields"]
            self._nearest.set_text(f"Nearest plan that runs: {near['words']}")
            self._nearest.set_visibility(True)

    def _take_nearest(self) -> None:
        explorer = self._explorer
        explorer.set_state(replace(explorer.state, strategy=self._fields), show=True)

    def show(self, view: View) -> None:
        """Show a view."""
        faults = view["faults"]
        show_faults(self._faults, faults)
        self._nearest.set_visibility(False)
        self._facts.set_visibility(not faults)
        for name, bars in self._bars.items():
            bars.set_content(view.get(name, ""))
        for name, chart in self._charts.items():
            chart.show(view.get("charts", {}).get(name))
        if faults:
            self._notes.set_visibility(False)
            return
        self._show_facts(view["facts"])
        self._notes.set_visibility(bool(view["notes"]))
        self._notes.set_text("\n".join(view["notes"]))

    def _show_facts(self, facts: list[tuple[str, str, str]]) -> None:
        if not self._labels:
            with self._facts:
                for name, _, _ in facts:
                    with ui.element("div").classes("sw-fact"):
                        ui.label(name).classes("sw-fact-name")
                        value = ui.label().classes("sw-fact-value").mark(f"fact-{name}")
                        self._labels[name] = value, ui.label().classes("sw-fact-more")
        for name, text, more in facts:
            shown, below = self._labels[name]
            shown.set_text(text)
            below.set_text(more)
