"""The tabs of the page: one strategy, and questions about it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nicegui import ui

from shardwise import catalog
from shardwise.config.fine_tuning import SHORTHANDS
from shardwise.config.strategy_fields import COLUMNS
from shardwise.launchers.registry import LAUNCHERS
from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.planning.search.space import SCOPES
from shardwise.web import views
from shardwise.web.controls import SIZES
from shardwise.web.explorer import Explorer, View, guarded
from shardwise.web.plots import Answer, Chart, FileText, JobBar, faults_label, show_faults
from shardwise.web.state import State

# The nearest plan takes longer: it is looked for when inputs rest.
_QUIET_S = 0.4
_BARS = ("time", "memory")
_CHARTS = {"timeline": "Pipeline of one step", "roofline": "Roofline of the kernels"}
_DETAILS = _CHARTS | {"tables": "All figures, assumptions and evidence"}
_WORK = (
    *SIZES,
    *(name for name, field in COLUMNS.items() if field.role.work and name not in SIZES),
    *SHORTHANDS,
)
"""Fields that say what is trained, and not how."""
_USUAL = ("nvlink.bandwidth", "fabric.bandwidth", "hbm.bandwidth")
_MODES = {False: "this strategy at every value", True: "the best strategy at every value"}
_COMPARED = ("name", "Step time", "P(fits)", "Memory", "Tokens/s", "MFU", "Cost", "plan")
_LARGEST = {
    "seq-len": "the longest sequence",
    "mbs": "the largest micro-batch",
    "lora-rank": "the highest rank of adapters",
}
_STATES = {"fits": "sw-fits", "on the edge": "sw-edge", "does not fit": "sw-fits-not"}
_PLAN_ROWS = """
<q-tr :props="props" class="sw-plan" @click="$parent.$emit('load', props.row)">
  <q-td v-for="(col, place) in props.cols" :key="col.name" :props="props">
    <q-btn v-if="place === 0" dense flat no-caps :label="String(col.value)"
      :aria-label="'Load plan ' + col.value" @click.stop="$parent.$emit('load', props.row)" />
    <template v-else>{{ col.value }}</template>
  </q-td>
</q-tr>
<q-tr :props="props" class="sw-rest" @click="$parent.$emit('load', props.row)">
  <q-td colspan="100%"><div>
    <span v-for="col in props.cols.filter(col => col.below && col.value !== '-')" :key="col.name"
      :class="col.below">{{ col.label }} {{ col.value }}</span>
  </div></q-td>
</q-tr>
"""
"""Rows of a table of plans; what has no room as a column is in a line below."""
_ESSENTIAL = ("step time", "memory GiB", "fits", "Step time", "P(fits)", "Memory")
"""Columns of tables of plans that a phone has room for."""
_FIGURES = ("p80", "8 of 10 runs", "tokens/s/GPU", "MFU", "variants", "Tokens/s", "Cost")
"""Columns that a tablet has room for, too; others say what the plan is."""
_MOST_CHARACTERS = 112
"""Of a line of a table of plans on a screen of 1,600 pixels."""


def _table(mark: str, key: str, clicked: Callable[[Mapping[str, Any]], None]) -> ui.table:
    """A table of plans without rows; the first cell is a button, and a click is passed on."""
    with ui.element("div").classes("sw-plans"):
        table = ui.table(columns=[], rows=[], row_key=key)
    table.props("dense flat").mark(mark).on("load", lambda event: clicked(event.args))
    table.add_slot("body", _PLAN_ROWS)
    return table


def _show_rows(table: ui.table, view: View, names: Sequence[str]) -> None:
    """Show the plans of a view; what a plan is stands below its figures on narrow screens."""
    table.rows = view.get("rows", [])
    longest = [max(len(str(row[name])) for row in [*table.rows, {name: name}]) for name in names]
    room = "wide" if sum(longest) < _MOST_CHARACTERS else "never"
    table.columns = [
        {
            "name": name,
            "label": name,
            "field": name,
            "classes": f"sw-at-{at}",
            "headerClasses": f"sw-at-{at}",
            "below": f"sw-below-{at}" if at else "",
        }
        for place, name in enumerate(names)
        for at in [
            "" if not place or name in _ESSENTIAL else "middle" if name in _FIGURES else room
        ]
    ]
    table.set_visibility(bool(table.rows))
    table.update()


def _show_charts(charts: Mapping[str, Chart], view: View) -> None:
    for name, chart in charts.items():
        chart.show(view.get("charts", {}).get(name))


class EstimateTab:
    """Shows the estimate of the state; details that are closed are not computed."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._faults = faults_label()
        self._verdict = ui.label().classes("sw-verdict").props("role=status").mark("verdict")
        self._nearest = ui.button(icon="near_me", on_click=self._take_nearest)
        self._nearest.props("outline no-caps align=left").mark("nearest")
        self._nearest.set_visibility(False)
        self._fields: dict[str, str] = {}
        self._facts = ui.element("div").classes("sw-facts").props("aria-live=polite")
        self._labels: dict[str, tuple[ui.label, ui.label]] = {}
        with ui.row().classes("items-center"):
            ui.button("Pin for comparison", icon="push_pin", on_click=explorer.pin).props(
                "outline no-caps"
            ).mark("pin")
            ExportButton(explorer)
        self._notes = ui.label().classes("sw-notes")
        self._notes.set_visibility(False)
        self._charts: dict[str, Chart] = {}
        with ui.element("div").classes("sw-charts"):
            self._bars = {name: ui.html(sanitize=False).classes("sw-card") for name in _BARS}
        self._open: dict[str, ui.expansion] = {}
        with ui.element("div").classes("sw-charts"):
            for name, title in _DETAILS.items():
                with ui.expansion(title).classes("w-full").mark(f"open-{name}") as opened:
                    if name in _CHARTS:
                        self._charts[name] = Chart(title, titled=False)  # it is above
                    else:
                        opened.classes("sw-all")
                        self._tables = ui.html(sanitize=False).classes("sw-card sw-printed")
                opened.on_value_change(explorer.refresh)
                self._open[name] = opened

    def open_details(self) -> None:
        """Open all, where there is room for it."""
        for one in self._open.values():
            one.set_value(True)

    async def renew(self) -> None:
        """Compute the answer of the state, and show it; then what takes longer."""
        explorer = self._explorer
        question = explorer.state.question()
        view = await explorer.ask(views.estimate_view, question, [], explorer.is_dark)
        opened = [name for name, one in self._open.items() if one.value]
        if opened and not view["faults"]:
            view |= {"charts": None, "tables": None}  # the last ones, until there are new ones
        self.show(view)
        near: View = {}
        if view["faults"] or not view["fits"]:
            await asyncio.sleep(_QUIET_S)
            near = await explorer.ask(views.nearest_view, question)
            self._offer_nearest(near, view["faults"])
        if opened and not view["faults"]:
            await asyncio.sleep(_QUIET_S)
            self.show(await explorer.ask(views.estimate_view, question, opened, explorer.is_dark))
            if near:
                self._offer_nearest(near, [])

    def _offer_nearest(self, near: View, faults: list[str]) -> None:
        """Offer the nearest plan that is legal and fits, or say why there is none."""
        show_faults(self._faults, list(dict.fromkeys([*faults, *near["faults"]])))
        if near.get("fields"):
            self._fields = near["fields"]
            words = near["words"]
            self._nearest.set_text(f"Change it: {words}" if not faults else f"Run instead: {words}")
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
        self._verdict.set_visibility(not faults)
        for name, bars in self._bars.items():
            bars.set_content(view.get(name, ""))
        if view.get("charts", {}) is not None:
            _show_charts(self._charts, view)
            self._tables.set_content(view.get("tables", ""))
        if faults:
            self._notes.set_visibility(False)
            self._explorer.summary.set_text(f"Results: {faults[0]}")
            return
        facts = {name: text for name, text, _ in view["facts"]}
        self._explorer.launcher = view["launcher"]
        word = view["verdict"]
        self._verdict.set_text(view["verdict_line"])
        self._verdict.classes(_STATES[word], remove=" ".join(set(_STATES.values())))
        known = [word, *(facts[name] for name in ("P(fits)", "Step time", "Memory"))]
        self._explorer.summary.set_text(f"Results: {' · '.join(known)}")
        self._show_facts(view["facts"])
        self._notes.set_visibility(bool(view["notes"]))
        self._notes.set_text("\n".join(view["notes"]))

    def _show_facts(self, facts: list[tuple[str, str, str]]) -> None:
        if list(self._labels) != [name for name, _, _ in facts]:
            self._facts.clear()
            self._labels = {}
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


def _space_of(explorer: Explorer) -> dict[str, Any]:
    """What the plan of the page trains, as a space of a search."""
    return {name: text for name, text in explorer.state.strategy.items() if name in _WORK}


class SearchTab:
    """Searches the best layouts of the model, system and batch of the page."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._view: Mapping[str, Any] = {}
        ui.label(
            "Searches all layouts for the model, system, GPUs, batch, types, fine-tuning and stack "
            "of the page."
        ).classes("sw-hint")
        with ui.row().classes("items-end"):
            self._scope = ui.select(list(SCOPES), value=SCOPES[0], label="space")
            orders = {"": "step time of 8 of 10 runs"} | {name: name for name in OBJECTIVES}
            self._objective = ui.select(orders, value="", label="objective")
            for one in (self._scope, self._objective):
                one.props("dense outlined").classes("w-64")
        self._job = JobBar("Search", explorer.jobs, self._start)
        clicked = {"front": self._clicked_point, "by-tp-pp": self._clicked_cell}
        self._answer = Answer(explorer.load, clicked)
        with self._answer.below:
            self._table = _table("plans", "rank", self._load_row)
            self._notes = ui.html(sanitize=False).classes("sw-card sw-printed")

    async def renew(self) -> None:
        """Leave the answer of the last search: a new one starts with the button."""

    def _start(self) -> None:
        self._explorer.start(self._search(), self.show)

    async def _search(self) -> None:
        state = self._explorer.state
        space = _space_of(self._explorer)
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
        self._view = view
        self._answer.show(view)
        self._notes.set_content(view.get("notes", ""))
        _show_rows(self._table, view, view.get("columns", []))

    def _load_row(self, row: Mapping[str, Any]) -> None:
        self._load(self._view["best"][int(row["rank"]) - 1])

    def _clicked_point(self, point: Mapping[str, Any]) -> None:
        """Load the plan of a point of the front."""
        at = point.get("pointIndex", point.get("pointNumber", 0))
        self._load(self._view["front"][int(at)])

    def _clicked_cell(self, point: Mapping[str, Any]) -> None:
        """Load the best plan of a cell of the map."""
        layout = self._view["charts"]["by-tp-pp"]["layout"]
        here = [_label(layout["yaxis"], point.get("y")), _label(layout["xaxis"], point.get("x"))]
        for values, fields in self._view["cells"]:
            if values == here:
                self._load(fields)

    def _load(self, fields: Mapping[str, str]) -> None:
        """Show a plan in the inputs and the tab of its estimate."""
        self._explorer.load({"strategy": fields})


def _label(axis: Mapping[str, Any], place: object) -> str:
    """Label of a row or column of a map, which a point names by its place."""
    labels = axis.get("ticktext")
    return str(labels[int(str(place))] if labels else place)


class _QuestionTab:
    """A tab for one question about the plan, with a button and fields of its own."""

    label, hint = "", ""
    view: Callable[..., View]
    is_quick = True
    """Whether the answer takes seconds at most; others have a process of their own."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        ui.label(self.hint).classes("sw-hint")
        with ui.row().classes("items-start w-full"):
            self._build()
        self._job = None if self.is_quick else JobBar(self.label, explorer.jobs, self._start)
        if self.is_quick:
            button = ui.button(self.label, icon="play_arrow", on_click=self._start)
            button.props("no-caps").mark(f"start-{self.label.lower()}")
        self._answer = Answer(explorer.load)
        self.show = self._answer.show

    def _build(self) -> None:
        """Make the fields."""

    def _fields(self) -> dict[str, Any]:
        """What they say."""
        return {}

    async def renew(self) -> None:
        """Leave the last answer: a new one starts with the button."""

    def _start(self) -> None:
        self._explorer.start(self._ask(), self.show)

    async def _ask(self) -> None:
        explorer, view = self._explorer, type(self).view
        question = explorer.state.question() | {"dark": explorer.is_dark} | self._fields()
        asked = explorer.ask(view, question) if self._job is None else self._job.run(view, question)
        self.show(await asked)


class ClustersTab(_QuestionTab):
    """Compares systems and sizes by days and price of the training run."""

    label, view, is_quick = "Compare clusters", views.clusters_view, False
    hint = (
        "Finds the cheapest system and number of GPUs for the model and batch of the page, and the "
        "tokens of its training run."
    )

    def _build(self) -> None:
        state = self._explorer.state
        systems = [state.system.name] if state.system.data is None else []
        self._systems = ui.select(
            catalog.names("systems"), value=systems, label="systems", multiple=True, with_input=True
        )
        self._systems.props("dense outlined use-chips").classes("w-96").mark("systems")
        self._entries = {
            "gpus": ui.input("GPUs", value=state.strategy.get("gpus", ""), placeholder="64,128"),
            "deadline": ui.input("deadline", placeholder="such as 30d"),
            "budget": ui.input("budget [USD]", placeholder="such as 5M"),
            "prices": ui.input("prices [USD per GPU-hour]", placeholder="h100-sxm=2.5"),
        }
        for name, one in self._entries.items():
            one.props("dense outlined stack-label").mark(f"clusters-{name}")

    def _fields(self) -> dict[str, Any]:
        own = {name: str(one.value or "").strip() for name, one in self._entries.items()}
        space = {**_space_of(self._explorer), "gpus": own["gpus"]}
        return own | {"systems": ",".join(self._systems.value), "space": space}


class LargestTab(_QuestionTab):
    """Finds the largest value of a field with which the plan fits."""

    label, view = "Find it", views.largest_view
    hint = "Keeps the plan of the page, but for one field: the largest value that surely fits."

    def _build(self) -> None:
        self._field = ui.select(_LARGEST, value="seq-len", label="find")
        self._field.props("dense outlined").classes("w-64").mark("largest")

    def _fields(self) -> dict[str, Any]:
        return {"largest": str(self._field.value)}


class DiagnoseTab(_QuestionTab):
    """Compares a measured run with its prediction."""

    label, view = "Diagnose", views.diagnose_view
    hint = (
        "What is slow in a run, why, and what to change: from its launch file and its log, on the "
        "system of the page."
    )

    def _build(self) -> None:
        self._launch = FileText("launch file", "diagnose-launch")
        self._log = FileText("log", "diagnose-log")
        self._gpus = ui.input("GPUs", placeholder="if the files do not say")
        self._gpus.props("dense outlined stack-label").mark("diagnose-gpus")

    def _fields(self) -> dict[str, Any]:
        gpus = str(self._gpus.value or "").strip()
        return {"launch": self._launch.pair, "log": self._log.pair, "gpus": gpus}


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
        self._answer = Answer(explorer.load)

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
            "space": _space_of(self._explorer),
            "dark": self._explorer.is_dark,
        }
        self.show(await self._job.run(views.sweep_view, question))

    def show(self, view: View) -> None:
        """Show the points of a sweep, or the figures that can be varied."""
        self._answer.show(view)
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
        self._table = _table("compared", "name", self._load)
        self._answer = Answer(explorer.load)

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
        self._answer.show(view)
        _show_rows(self._table, view, _COMPARED)

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
            self._launcher = ui.select(titles, value=LAUNCHERS[0].name, label="launcher")
            self._launcher.props("dense outlined").classes("w-full").mark("launcher")
            self._launcher.on_value_change(self._renew)
            self._nearest = ui.checkbox("the nearest plan that it can run", on_change=self._renew)
            self._faults = faults_label()
            self._files = ui.column().classes("w-full")
            ui.button("Close", on_click=self._dialog.close).props("flat no-caps")

    async def _open(self) -> None:
        own = self._explorer.launcher
        if own is not None and own != self._launcher.value:
            self._launcher.set_value(own)  # which renews
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
