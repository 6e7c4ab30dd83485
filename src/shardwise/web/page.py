"""The page of the explorer: one for each client, with the state of its address."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import nicegui
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from nicegui import Client, events, ui

from shardwise import catalog
from shardwise.errors import InputError
from shardwise.web import views
from shardwise.web.controls import DEGREES, MORE, SIZES, WORDS, FiguresForm, Input, field_input
from shardwise.web.explorer import Explorer
from shardwise.web.guard import MOST_BYTES as MOST_REQUEST
from shardwise.web.plots import FileText, read_file
from shardwise.web.state import MOST_BYTES, RUN_FIELDS, Named, State
from shardwise.web.style import SCRIPT, STYLE
from shardwise.web.tabs import (
    ClustersTab,
    CompareTab,
    DiagnoseTab,
    EstimateTab,
    LargestTab,
    SearchTab,
    SweepTab,
)
from shardwise.web.workers import Jobs, Pool, faults_of

MOST_PAGES = 100
"""Open at a time; each needs about 1.3 MiB."""
_CONNECT_SECONDS = 20
# Changes in the menu of the history, and fields that one of them names.
_MOST_LISTED, _MOST_NAMED = 15, 4
_TABS: Mapping[str, tuple[str, Callable[[Explorer], Any]]] = {
    "estimate": ("Estimate", EstimateTab),
    "search": ("Search", SearchTab),
    "clusters": ("Clusters", ClustersTab),
    "largest": ("Largest that fits", LargestTab),
    "sweep": ("Sweep", SweepTab),
    "compare": ("Compare", CompareTab),
    "diagnose": ("Diagnose", DiagnoseTab),
}
OPEN_RESULT = f"""
async (event) => {{
  const file = event.target.files[0];
  if (!file) return;
  event.target.value = "";
  const refuse = (problem) => emit({{errors: [{{message: `${{file.name}}: ${{problem}}`}}]}});
  if (file.size > {MOST_REQUEST}) return refuse("is larger than {MOST_REQUEST // 2**20} MiB");
  const text = await file.text();
  let data = null;
  try {{ data = JSON.parse(text); }} catch (error) {{}}
  if (!data?.best && !data?.step_time_s) return refuse("is no saved estimate or search (JSON)");
  const headers = {{"content-type": "application/json"}};
  const answer = await fetch("api/v1/link", {{method: "POST", headers, body: text}});
  emit(await answer.json());
}}
"""
"""JavaScript that sends a saved result to the API: it is larger than what a web socket takes."""
_RUN = ("tokens", "pue", "carbon_intensity")
_WIDE = 1400
"""Pixels of a window in which pipeline and roofline are open from the start."""


def add_page(app: FastAPI, pool: Pool, jobs: Jobs) -> None:
    """Add the page to a server."""

    @ui.page("/", title="shardwise", response_timeout=30)
    async def page(request: Request, client: Client) -> Response | None:
        if sum(one.page is client.page for one in Client.instances.values()) > MOST_PAGES:
            client.delete()
            headers = {"Retry-After": str(_CONNECT_SECONDS)}
            return PlainTextResponse("too many pages are open; try again later", 503, headers)
        ui.add_css(STYLE)
        ui.add_head_html(SCRIPT)
        shown = Page(Explorer(pool, jobs))
        shown.build(str(request.url.query))
        try:
            await client.connected(timeout=_CONNECT_SECONDS)  # the response is sent meanwhile
        except TimeoutError:
            client.delete()
        if client.id in Client.instances:
            await shown.opened()
        return None

    # NiceGUI's own answer is a page, which stays for a minute.
    nicegui.app.add_exception_handler(404, _not_found)
    ui.run_with(app, title="shardwise", favicon="⛁", dark=None, reconnect_timeout=30)


async def _not_found(request: Request, _: Exception) -> Response:
    return PlainTextResponse(f"{request.url.path}: no such page", 404)


def _icon(name: str, about: str, on_click: Callable[[], object] | None = None) -> ui.button:
    """A button with an icon, which says what it does."""
    button = ui.button(icon=name, on_click=on_click, color=None)
    button.props(f'flat round aria-label="{about}"').tooltip(about)
    return button


class Page:
    """Inputs on one side, tabs on the other."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._inputs: dict[str, tuple[str, Input]] = {}
        """Each with the group of fields that it is of."""
        self._forms: dict[str, FiguresForm] = {}
        self._selects: dict[str, ui.select] = {}
        self._tabs: dict[str, Any] = {}

    def build(self, query: str) -> None:
        """Lay the page out, and show the state of an address."""
        faults: list[str] = []
        try:
            self._explorer.state = State.of_query(query)
        except InputError as error:
            faults = [str(fault) for fault in error.faults]
        self._header()
        with ui.element("main").classes("sw-grid"):
            with ui.element("section").classes("sw-inputs").props('aria-label="Inputs"'):
                self._build_inputs()
            with (
                ui.element("section").classes("sw-results").props('id=results aria-label="Results"')
            ):
                self._build_tabs()
        self._explorer.show_inputs = self.show_inputs
        self._explorer.open_tab = lambda: self._tabs[self._explorer.state.tab]
        self.show_inputs()
        ui.on_exception(self._failed)
        for fault in faults:
            ui.notify(fault, type="negative", timeout=0, close_button="Close")

    async def opened(self) -> None:
        """Ask the browser for its theme, then show the first answer."""
        with contextlib.suppress(TimeoutError):
            query = "window.matchMedia('(prefers-color-scheme: dark)').matches"
            self._explorer.prefers_dark = bool(await ui.run_javascript(query, timeout=5))
            if await ui.run_javascript(f"window.innerWidth >= {_WIDE}", timeout=5):
                self._tabs["estimate"].open_details()
        self._explorer.refresh()

    def _header(self) -> None:
        explorer = self._explorer
        with ui.header().classes("sw-header items-center"):
            explorer.summary.move(ui.link(target="#results").classes("sw-summary"))
            ui.label("shardwise").classes("sw-title")
            ui.label("Know a training run before you launch it").classes("sw-claim")
            ui.space()
            undo = _icon("undo", "Undo the last change", explorer.undo).mark("undo")
            redo = _icon("redo", "Redo", explorer.redo).mark("redo")
            history = _icon("history", "History of changes")
            with history, ui.menu() as past:
                pass
            history.on_click(lambda: self._list_past(past))
            _icon("link", "Copy the link to this view", self._copy_link)
            with _icon("content_copy", "Copy as command line or Python"), ui.menu():
                for label, write in (("Command line", State.command), ("Python", State.python)):
                    ui.menu_item(label, on_click=partial(self._copy, write))
            _icon("contrast", "Light or dark", explorer.switch_theme)

        def show_changes() -> None:
            undo.set_enabled(bool(explorer.past))
            history.set_enabled(bool(explorer.past))
            redo.set_enabled(bool(explorer.future))

        explorer.show_changes = show_changes
        show_changes()

    def _list_past(self, menu: ui.menu) -> None:
        """List the last changes; one that is chosen is undone, with those after it."""
        states = [*self._explorer.past, self._explorer.state]
        changes = [old.changes(new) for old, new in pairwise(states)]
        menu.clear()
        with menu:
            for steps, words in enumerate(reversed(changes[-_MOST_LISTED:]), 1):
                named = ", ".join(words[:_MOST_NAMED]) + (", ..." if words[_MOST_NAMED:] else "")
                ui.menu_item(f"before {named}", on_click=partial(self._explorer.undo, steps))

    def _build_inputs(self) -> None:
        with ui.element("div").classes("sw-column"):
            self._build_layout()
        with ui.element("div").classes("sw-column"):
            self._build_options()

    def _build_layout(self) -> None:
        ui.label("Model and system").classes("sw-heading")
        for kind, folder in (("model", "models"), ("system", "systems")):
            self._named(kind, folder)
            self._forms[kind] = FiguresForm(self._explorer, kind)
        with ui.dialog() as dialog, ui.card().classes("sw-export"):
            ui.label("Import a launch file").classes("sw-heading")
            ui.label(
                "Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, accelerate and "
                "trainers of fine-tuning: sets the model, if the file has one, and the strategy."
            ).classes("sw-hint")
            launch = FileText("launch file", "launch-text")
            with ui.row():
                ui.button("Import", on_click=partial(self._imported, launch, dialog)).props(
                    "no-caps"
                ).mark("import-launch")
                ui.button("Close", on_click=dialog.close).props("flat no-caps")
        ui.button("Import a launch file", icon="input", on_click=dialog.open).props(
            "outline dense no-caps align=left"
        ).mark("open-import")
        chooser = ui.element("input").props('type=file aria-label="File of a saved result"')
        chooser.classes("hidden").mark("result-file").on(
            "change", self._opened_result, js_handler=OPEN_RESULT
        )
        ui.button("Open a saved result", icon="folder_open").props(
            "outline dense no-caps align=left"
        ).on("click", js_handler=f"() => getHtmlElement({chooser.id}).click()")
        ui.label("Batch").classes("sw-heading")
        with ui.element("div").classes("sw-three"):
            self._add_inputs(SIZES)
        ui.label("Layout").classes("sw-heading")
        self._add_inputs(DEGREES)

    def _build_options(self) -> None:
        ui.label("Options").classes("sw-heading")
        with ui.element("div").classes("sw-two"):
            self._add_inputs(WORDS)
        with ui.expansion("Training run").classes("w-full").props("dense") as run:
            run.set_value(bool(self._explorer.state.run))
            with ui.element("div").classes("sw-two"):
                self._add_inputs(_RUN, "run")
            ui.label("Failures and checkpoints").classes("sw-hint")
            with ui.element("div").classes("sw-two"):
                self._add_inputs([name for name in RUN_FIELDS if name not in _RUN], "run")
        ui.label("All other fields").classes("sw-heading")
        for section, names in MORE.items():
            if names:
                around = ui.expansion(section).classes("w-full").props("dense")
                with around, ui.element("div").classes("sw-two"):
                    self._add_inputs(names)

    def _add_inputs(self, names: Iterable[str], group: str = "strategy") -> None:
        changed = partial(self._explorer.set_field, group=group)
        for name in names:
            self._inputs[name] = group, field_input(name, changed)

    def _named(self, kind: str, folder: str) -> None:
        """List of the catalog, with an upload next to it."""
        with ui.row().classes("sw-row items-center no-wrap w-full"):
            select = ui.select(catalog.names(folder), label=kind, with_input=True)
            select.props("dense outlined options-dense").classes("grow").mark(kind)
            select.on_value_change(lambda event: self._chose(kind, event.value))
            chooser = ui.element("input").props("type=file").classes("hidden").mark(f"{kind}-file")
            chooser.props(f'aria-label="File of a {kind}"')
            reader = read_file(MOST_BYTES)
            chooser.on("change", lambda event: self._uploaded(kind, event), js_handler=reader)
            about = f"Upload a {kind}: shardwise, Hugging Face config.json, Calculon, ..."
            button = _icon("upload_file", about).mark(f"{kind}-upload")
            button.on("click", js_handler=f"() => getHtmlElement({chooser.id}).click()")
        self._selects[kind] = select

    def _build_tabs(self) -> None:
        with (
            ui.tabs()
            .props("dense align=left no-caps outside-arrows mobile-arrows")
            .classes("w-full") as tabs
        ):
            for name, (label, _) in _TABS.items():
                ui.tab(name, label=label).mark(f"tab-{name}")
        with ui.tab_panels(tabs, value=self._explorer.state.tab).classes(
            "w-full sw-panels"
        ) as panels:
            for name, (_, build) in _TABS.items():
                with ui.tab_panel(name):
                    self._tabs[name] = build(self._explorer)
        self._panels = panels
        tabs.on_value_change(lambda event: self._opened_tab(str(event.value)))

    def show_inputs(self) -> None:
        """Put the state into the inputs."""
        for name, (group, one) in self._inputs.items():
            one.show(getattr(self._explorer.state, group).get(name))
        for kind, select in self._selects.items():
            named: Named = getattr(self._explorer.state, kind)
            if named.name not in select.options:
                select.set_options([named.name, *select.options])
            select.set_value(named.name)
        for form in self._forms.values():
            form.show()
        self._panels.set_value(self._explorer.state.tab)

    @staticmethod
    def _failed(error: Exception) -> None:
        """Say what went wrong in the handler of an event; NiceGUI has logged it."""
        ui.notify("\n".join(map(str, faults_of(error))), type="negative", multi_line=True)

    def _chose(self, kind: str, name: Any) -> None:
        named: Named = getattr(self._explorer.state, kind)
        if name and name != named.name:
            self._explorer.set_state(self._explorer.state.with_named(kind, Named(name=str(name))))

    async def _uploaded(self, kind: str, event: events.GenericEventArguments) -> None:
        """Read a file that a user sent: as data, never as a path."""
        path, text, *_ = event.args
        name = str(path).rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
        if text is None or len(text.encode()) > MOST_BYTES:
            problem = f"is not UTF-8 text of at most {MOST_BYTES // 1024} KiB"
            ui.notify(f"{name}: {problem}", type="negative")
            return
        await self._import(kind, name, text)

    async def _imported(self, launch: FileText, dialog: ui.dialog) -> None:
        """Read a launch file that a user pasted or uploaded."""
        name, text = launch.pair
        if await self._import("launch", name, text):
            dialog.close()

    async def _import(self, kind: str, name: str, text: str) -> bool:
        """Show what a file sets, or say what is wrong with it."""
        state = self._explorer.state
        view = await self._explorer.ask(views.uploaded, kind, name, text, state.model_value())
        if view.get("faults"):
            ui.notify("\n".join(view["faults"][:5]), type="negative", multi_line=True)
            return False
        for note in view["notes"][:10]:
            ui.notify(f"not understood: {note}", type="warning", multi_line=True)
        found = Named(name=view["name"], data=view["data"])
        kind = "system" if kind == "system" else "model"
        if view["strategy"]:
            state = replace(state, strategy=view["strategy"])
        self._explorer.set_state(state.with_named(kind, found), show=True)
        ui.notify(f"{kind}: {view['name']}", type="positive")
        return True

    def _opened_result(self, event: events.GenericEventArguments) -> None:
        """Show what a link of the server's own API says, or why there is none."""
        if "link" not in event.args:
            lines = [one["message"] for one in event.args["errors"]]
            ui.notify("\n".join(lines), type="negative", multi_line=True)
            return
        self._explorer.set_state(State.of_query(event.args["link"].removeprefix("/?")), show=True)

    def _opened_tab(self, name: str) -> None:
        if name != self._explorer.state.tab:
            self._explorer.set_state(replace(self._explorer.state, tab=name))

    async def _copy_link(self) -> None:
        ui.run_javascript("navigator.clipboard.writeText(location.href)")
        ui.notify("Link copied", type="positive")

    def _copy(self, write: Callable[[State], str]) -> None:
        ui.clipboard.write(write(self._explorer.state))
        ui.notify("Copied", type="positive")
