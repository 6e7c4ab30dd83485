"""The tab of pinned plans, next to each other."""

from dataclasses import replace

from nicegui import events, ui

from shardwise.web import views
from shardwise.web.explorer import Explorer, View
from shardwise.web.plots import Chart, faults_label, show_faults
from shardwise.web.state import State

_COLUMNS = ("name", "plan", "Step time", "Tokens/s", "MFU", "Memory", "Cost")


class CompareTab:
    """Shows all pinned plans; the first is the reference of the others."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._hint = ui.label("Pin plans on the tab Estimate, or here.").classes("sw-hint")
        with ui.row():
            ui.button("Pin the plan of the page", icon="push_pin", on_click=explorer.pin).props(
                "outline no-caps"
            )
            ui.button("Remove all", icon="delete", on_click=self._clear).props("outline no-caps")
        self._faults = faults_label()
        columns = [{"name": n, "label": n, "field": n, "align": "left"} for n in _COLUMNS]
        with ui.element("div").classes("sw-scroll"):
            self._table = ui.table(columns=columns, rows=[], row_key="name")
            self._table.props("dense flat").mark("compared").on("rowClick", self._row_clicked)
        self._charts = {"times": Chart("Step times"), "memory": Chart("Memory")}

    async def renew(self) -> None:
        """Compute all pinned plans."""
        self.show(await self._answer())

    async def _answer(self) -> View:
        explorer = self._explorer
        pins = explorer.state.pinned
        if not pins:
            return {"faults": []}
        questions = [State.of_query(pin).question() for pin in pins]
        names = [chr(ord("A") + position) for position in range(len(pins))]
        return await explorer.ask(views.compare_view, questions, names, explorer.is_dark)

    def show(self, view: View) -> None:
        """Show a view."""
        show_faults(self._faults, view["faults"])
        rows = view.get("rows", [])
        self._table.set_visibility(bool(rows))
        self._table.rows = rows
        self._table.update()
        for name, chart in self._charts.items():
            chart.show(view.get("charts", {}).get(name))

    def _row_clicked(self, event: events.GenericEventArguments) -> None:
        """Load a pinned plan into the page."""
        at = ord(str(event.args[1]["name"])) - ord("A")
        explorer = self._explorer
        pins = explorer.state.pinned
        state = State.of_query(pins[at])
        explorer.set_state(replace(state, pinned=pins, tab="estimate"), show=True)

    def _clear(self) -> None:
        explorer = self._explorer
        explorer.set_state(replace(explorer.state, pinned=()))
