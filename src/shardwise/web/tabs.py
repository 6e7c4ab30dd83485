"""The tabs of the page: one strategy, a search, a sweep, and pinned plans next to each other."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nicegui import ui

from shardwise.launchers.registry import LAUNCHERS
from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.planning.search.space import SCOPES
from shardwise.web import views
from shardwise.web.controls import SIZES, label_of
from shardwise.web.explorer import Explorer, View, guarded
from shardwise.web.plots import Chart, JobBar, faults_label, show_faults
from shardwise.web.state import State

# The nearest plan takes longer: it is looked for when inputs rest.
_QUIET_S = 0.4
_BARS = ("time", "memory")
_MORE = {"timeline": "Pipeline of one step", "roofline": "Roofline of the kernels"}
_WORK = (*SIZES, "dtype", "quantization", "stack")
_COLUMNS = {
    "rank": "#",
    "step": "step [s]",
    "interval": "8 of 10 runs [s]",
    "tokens": "tokens/s per GPU",
    "mfu": "MFU",
    "memory": "GiB",
    "fits": "fits",
}
_MOST_CHARTS = 3
_USUAL = ("nvlink.bandwidth", "fabric.bandwidth", "hbm.bandwidth")
_MODES = {False: "this strategy at every value", True: "the best strategy at every value"}
_COMPARED = ("name", "plan", "Step time", "Tokens/s", "MFU", "Memory", "Cost")
_LOAD_BUTTON = """
<q-td :props="props">
  <q-btn dense flat no-caps :label="String(props.value)" :aria-label="'Load plan ' + props.value"
    @click.stop="$parent.$emit('load', props.value)" />
</q-td>
"""


def _table(
    columns: Sequence[Mapping[str, Any]],
    mark: str,
    key: str,
    clicked: Callable[[Mapping[str, Any]], None],
) -> ui.table:
    """A table without rows; a click on one is passed on."""
    with ui.element("div").classes("sw-scroll"):
        table = ui.table(columns=[dict(one) for one in columns], rows=[], row_key=key)
    table.props("dense flat").mark(mark).on("rowClick", lambda event: clicked(event.args[1]))
    return table


def _show_rows(table: ui.table, view: View) -> None:
    table.rows = view.get("rows", [])
    table.set_visibility(bool(table.rows))
    table.update()


def _show_charts(charts: Mapping[str, Chart], view: View) -> None:
    for name, chart in charts.items():
        chart.show(view.get("charts", {}).get(name))


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
        _show_charts(self._charts, view)
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
            orders = {"": "step time of 8 of 10 runs"} | {name: name for name in OBJECTIVES}
            self._objective = ui.select(orders, value="", label="objective")
            for one in (self._scope, self._objective):
                one.props("dense outlined").classes("w-48")
        self._job = JobBar("Search", explorer.jobs, self._start)
        self._faults = faults_label()
        self._summary = ui.label().classes("whitespace-pre-wrap").mark("search-summary")
        columns = [
            *({"name": k, "label": v, "field": k} for k, v in _COLUMNS.items()),
            *({"name": k, "label": label_of(k), "field": k} for k in views.PLAN_FIELDS),
        ]
        self._table = _table(
            columns, "plans", "rank", lambda row: self._load(self._best(int(row["rank"])))
        )
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
        state = self._explorer.state
        space: dict[str, Any] = {
            name: text for name, text in state.strategy.items() if name in _WORK
        }
        if self._scope.value != SCOPES[0]:
            space["scope"] = self._scope.value
        question = {
            **state.question(),
            "space": space,
            "objective": self._objective.value or None,
            "axes": ("tp", "pp"),
            "dark": self._explorer.is_dark,
        }
        self.show(await self._job.run(views.search_view, question))

    def show(self, view: View) -> None:
        """Show a view."""
        show_faults(self._faults, view["faults"])
        self._view = view
        self._summary.set_text(view.get("summary", ""))
        _show_rows(self._table, view)
        _show_charts(self._charts, view)

    def _best(self, rank: int) -> Mapping[str, str]:
        return dict(self._view["best"][rank - 1])

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


def _label(axis: Mapping[str, Any], place: object) -> str:
    """Label of a row or column of a map, which a point names by its place."""
    labels = axis.get("ticktext")
    return str(labels[int(str(place))] if labels else place)


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
        columns = [{"name": n, "label": n, "field": n, "align": "left"} for n in _COMPARED]
        self._table = _table(columns, "compared", "name", self._load)
        self._charts = {"times": Chart("Step times"), "memory": Chart("Memory")}

    async def renew(self) -> None:
        """Compute all pinned plans."""
        explorer = self._explorer
        view: View = {"faults": []}
        if pins := explorer.state.pinned:
            questions = [State.of_query(pin).question() for pin in pins]
            names = [chr(ord("A") + position) for position in range(len(pins))]
            view = await explorer.ask(views.compare_view, questions, names, explorer.is_dark)
        self.show(view)

    def show(self, view: View) -> None:
        """Show a view."""
        show_faults(self._faults, view["faults"])
        _show_rows(self._table, view)
        _show_charts(self._charts, view)

    def _load(self, row: Mapping[str, Any]) -> None:
        """Load a pinned plan into the page."""
        at = ord(str(row["name"])) - ord("A")
        explorer = self._explorer
        pins = explorer.state.pinned
        state = State.of_query(pins[at])
        explorer.set_state(replace(state, pinned=pins, tab="estimate"), show=True)

    def _clear(self) -> None:
        explorer = self._explorer
        explorer.set_state(replace(explorer.state, pinned=()))


class ExportButton:
    """Opens a dialog with the files that the chosen launcher starts from."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        button = ui.button("Export to a launcher", icon="rocket_launch", on_click=self._open)
        button.props("outline no-caps").mark("export")
        with ui.dialog() as self._dialog, ui.card().classes("sw-export"):
            ui.label("Export to a launcher").classes("sw-heading")
            titles = {one.name: f"{one.title} ({one.releases[0]})" for one in LAUNCHERS}
            first = "deepspeed" if "deepspeed" in titles else next(iter(titles), None)
            self._launcher = ui.select(titles, value=first, label="launcher")
            self._launcher.props("dense outlined").classes("w-full").mark("launcher")
            self._launcher.on_value_change(self._renew)
            self._nearest = ui.checkbox("the nearest plan that it can run", on_change=self._renew)
            self._faults = faults_label()
            self._files = ui.column().classes("w-full")
            ui.button("Close", on_click=self._dialog.close).props("flat no-caps")

    async def _open(self) -> None:
        self._dialog.open()
        await self._renew()

    async def _renew(self) -> None:
        """Write the plan of the page for the chosen launcher."""
        await guarded(self._write(), self.show)

    async def _write(self) -> None:
        explorer = self._explorer
        question = explorer.state.question() | {"nearest": bool(self._nearest.value)}
        self.show(await explorer.ask(views.export_view, question, str(self._launcher.value)))

    def show(self, view: View) -> None:
        """Show the files of a view."""
        show_faults(self._faults, view["faults"])
        self._files.clear()
        with self._files:
            for line in view.get("notes", []):
                ui.label(line)
            for name, text in view.get("files", {}).items():
                self._file(name, text)

    def _file(self, name: str, text: str) -> None:
        """Show one file with its buttons."""
        with ui.row().classes("items-center w-full"):
            ui.label(name).classes("sw-heading")
            ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(text)).props(
                f'flat dense aria-label="Copy {name}"'
            )
            ui.button(icon="download", on_click=lambda: ui.download.content(text, name)).props(
                f'flat dense aria-label="Download {name}"'
            )
        ui.code(text, language="bash").classes("w-full sw-code").mark("exported")
