"""The tab of a search: progress, best plans, Pareto front and heat map; a click loads a plan."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nicegui import events, ui

from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.planning.search.space import SCOPES
from shardwise.web import views
from shardwise.web.controls import SIZES, label_of
from shardwise.web.explorer import Explorer, View
from shardwise.web.job import JobBar
from shardwise.web.plots import Chart, faults_label, show_faults

_AXES = ("tp", "pp")
_WORK = (*SIZES, "dtype", "quantization", "stack")
_COLUMNS = {
    "rank": "#",
    "step": "step [s]",
    "interval": "8 of 10 runs [s]",
    "tokens": "tokens/s per GPU",
    "mfu": "MFU",
    "memory": "GiB",
}


class SearchTab:
    """Searches the best layouts of the model, system and batch of the page."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._view: Mapping[str, Any] = {}
        ui.label(
            "Searches all layouts for the model, system, GPUs, batch, types and stack of the page."
        ).classes("sw-hint")
        with ui.row().classes("items-end"):
            self._scope = ui.select(list(SCOPES), value=SCOPES[0], label="space")
            self._objective = ui.select(list(OBJECTIVES), value="step_time", label="objective")
            for one in (self._scope, self._objective):
                one.props("dense outlined").classes("w-48")
        self._job = JobBar("Search", explorer.jobs, self._start)
        self._faults = faults_label()
        self._summary = ui.label().mark("search-summary")
        columns = [
            *({"name": k, "label": v, "field": k} for k, v in _COLUMNS.items()),
            *({"name": k, "label": label_of(k), "field": k} for k in views.PLAN_FIELDS),
        ]
        with ui.element("div").classes("sw-scroll"):
            self._table = ui.table(columns=columns, rows=[], row_key="rank")
            self._table.props("dense flat").mark("plans").on("rowClick", self._row_clicked)
            self._table.add_slot("body-cell-rank", _LOAD_BUTTON)
            self._table.on("load", lambda event: self._load(self._best(int(event.args))))
        self._table.set_visibility(False)
        self._charts = {
            "front": Chart("Time against memory", self._clicked_point),
            "map": Chart("Best plan by tp and pp", self._clicked_cell),
            "candidates": Chart("Candidates by outcome"),
        }

    async def renew(self) -> None:
        """Leave the answer of the last search: a new one starts with the button."""

    def _start(self) -> None:
        self._explorer.start(self._search(), self.show)

    async def _search(self) -> None:
        self.show(await self._job.run(views.search_view, self._question()))

    def _question(self) -> dict[str, Any]:
        state = self._explorer.state
        space: dict[str, Any] = {
            name: text for name, text in state.strategy.items() if name in _WORK
        }
        if self._scope.value != SCOPES[0]:
            space["scope"] = self._scope.value
        return {
            **state.question(),
            "space": space,
            "objective": self._objective.value,
            "axes": _AXES,
            "dark": self._explorer.is_dark,
        }

    def show(self, view: View) -> None:
        """Show a view."""
        show_faults(self._faults, view["faults"])
        self._view = view
        self._summary.set_text(view.get("summary", ""))
        rows = view.get("rows", [])
        self._table.set_visibility(bool(rows))
        self._table.rows = rows
        self._table.update()
        for name, chart in self._charts.items():
            chart.show(view.get("charts", {}).get(name))

    def _best(self, rank: int) -> Mapping[str, str]:
        return dict(self._view["best"][rank - 1])

    def _row_clicked(self, event: events.GenericEventArguments) -> None:
        self._load(self._best(int(event.args[1]["rank"])))

    def _clicked_point(self, point: Mapping[str, Any]) -> None:
        """Load the plan of a point of the front."""
        at = point.get("pointIndex", point.get("pointNumber", 0))
        self._load(self._view["front"][int(at)])

    def _clicked_cell(self, point: Mapping[str, Any]) -> None:
        """Load the best plan of a cell of the map."""
        layout = self._view["charts"]["map"]["layout"]
        here = [_label(layout["yaxis"], point.get("y")), _label(layout["xaxis"], point.get("x"))]
        for values, fields in self._view["cells"]:
            if values == here:
                self._load(fields)

    def _load(self, fields: Mapping[str, str]) -> None:
        """Show a plan in the inputs and the tab of its estimate."""
        explorer = self._explorer
        state = replace(explorer.state, strategy=dict(fields), tab="estimate")
        explorer.set_state(state, show=True)


_LOAD_BUTTON = """
<q-td :props="props">
  <q-btn dense flat no-caps :label="String(props.value)" :aria-label="'Load plan ' + props.value"
    @click.stop="$parent.$emit('load', props.value)" />
</q-td>
"""


def _label(axis: Mapping[str, Any], place: object) -> str:
    """Label of a row or column of a map, which a point names by its place."""
    labels = axis.get("ticktext")
    return str(labels[int(str(place))] if labels else place)
