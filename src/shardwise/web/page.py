"""The page of the explorer: one for each client, with the state of its address."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import nicegui
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from nicegui import Client, events, ui

from shardwise import catalog
from shardwise.errors import InputError
from shardwise.web import views
from shardwise.web.controls import DEGREES, MORE, SIZES, WORDS, Input, field_input
from shardwise.web.explorer import Explorer
from shardwise.web.state import MOST_BYTES, Named, State
from shardwise.web.style import SCRIPT, STYLE
from shardwise.web.tabs import CompareTab, EstimateTab, SearchTab, SweepTab
from shardwise.web.workers import Jobs, Pool, faults_of

MOST_PAGES = 100
"""Open at a time; each needs about 1.3 MiB."""
_CONNECT_SECONDS = 20
# NiceGUI's element for uploads adds a route for each page, which FastAPI's caches keep for ever.
_READ_FILE = f"""
async (event) => {{
  const file = event.target.files[0];
  let text = null;
  if (!file) return;
  try {{
    const bytes = file.size > {MOST_BYTES} ? null : await file.arrayBuffer();
    if (bytes) text = new TextDecoder("utf-8", {{fatal: true}}).decode(bytes);
  }} catch (error) {{}}
  emit(file.name, text);
  event.target.value = "";
}}
"""


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


class Page:
    """Inputs on one side, tabs on the other."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._inputs: dict[str, Input] = {}
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
            with ui.element("section").classes("sw-results").props('aria-label="Results"'):
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
        self._explorer.refresh()

    def _header(self) -> None:
        with ui.header().classes("sw-header items-center"):
            ui.label("shardwise").classes("sw-title")
            ui.label("Know a training run before you launch it").classes("sw-claim")
            ui.space()
            with ui.button(icon="link", on_click=self._copy_link).props("flat round"):
                ui.tooltip("Copy the link to this view")
            with ui.button(icon="content_copy").props('flat round aria-label="Copy as"'):
                with ui.menu():
                    for label, write in (("Command line", State.command), ("Python", State.python)):
                        ui.menu_item(label, on_click=partial(self._copy, write))
                ui.tooltip("Copy as command line or Python")
            with ui.button(icon="contrast", on_click=self._explorer.switch_theme).props(
                "flat round"
            ):
                ui.tooltip("Light or dark")

    def _build_inputs(self) -> None:
        ui.label("Model and system").classes("sw-heading")
        self._named("model", "models")
        self._named("system", "systems")
        with ui.expansion("Figures of the system").classes("w-full").props("dense"):
            ui.label("One per line, as in nvlink.bandwidth=2x or domain=72").classes("sw-hint")
            self._figures = (
                ui.textarea(on_change=self._figures_typed)
                .props('dense outlined autogrow debounce=500 aria-label="Figures of the system"')
                .classes("w-full")
                .mark("figures")
            )
        ui.label("Batch").classes("sw-heading")
        with ui.element("div").classes("sw-three"):
            self._add_inputs(SIZES)
        ui.label("Layout").classes("sw-heading")
        self._add_inputs(DEGREES)
        ui.label("Options").classes("sw-heading")
        with ui.element("div").classes("sw-two"):
            self._add_inputs(WORDS)
        more = ui.expansion("All other fields").classes("w-full").props("dense")
        with more, ui.element("div").classes("sw-two"):
            self._add_inputs(MORE)

    def _add_inputs(self, names: Iterable[str]) -> None:
        for name in names:
            self._inputs[name] = field_input(name, self._explorer.set_field)

    def _named(self, kind: str, folder: str) -> None:
        """List of the catalog, with an upload next to it."""
        with ui.row().classes("sw-row items-center no-wrap w-full"):
            select = ui.select(catalog.names(folder), label=kind, with_input=True)
            select.props("dense outlined options-dense").classes("grow").mark(kind)
            select.on_value_change(lambda event: self._chose(kind, event.value))
            chooser = ui.element("input").props("type=file").classes("hidden").mark(f"{kind}-file")
            chooser.on("change", lambda event: self._uploaded(kind, event), js_handler=_READ_FILE)
            button = ui.button(icon="upload_file").mark(f"{kind}-upload")
            button.props(f'flat dense round aria-label="Upload a {kind} file"')
            button.on("click", js_handler=f"() => getHtmlElement({chooser.id}).click()")
            button.tooltip(f"Upload a {kind}: shardwise, Hugging Face config.json, Calculon, ...")
        self._selects[kind] = select

    def _build_tabs(self) -> None:
        with ui.tabs().props("dense align=left no-caps").classes("w-full") as tabs:
            for name in ("estimate", "search", "sweep", "compare"):
                ui.tab(name, label=name.capitalize()).mark(f"tab-{name}")
        with ui.tab_panels(tabs, value=self._explorer.state.tab).classes(
            "w-full sw-panels"
        ) as panels:
            for name, build in (
                ("estimate", EstimateTab),
                ("search", SearchTab),
                ("sweep", SweepTab),
                ("compare", CompareTab),
            ):
                with ui.tab_panel(name):
                    self._tabs[name] = build(self._explorer)
        self._panels = panels
        tabs.on_value_change(lambda event: self._opened_tab(str(event.value)))

    def show_inputs(self) -> None:
        """Put the state into the inputs."""
        for name, one in self._inputs.items():
            one.show(self._explorer.state.strategy.get(name))
        for kind, select in self._selects.items():
            named: Named = getattr(self._explorer.state, kind)
            if named.name not in select.options:
                select.set_options([named.name, *select.options])
            select.set_value(named.name)
        self._figures.set_value(
            "\n".join(f"{name}={text}" for name, text in self._explorer.state.figures.items())
        )
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
        path, text = event.args
        name = str(path).rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
        if text is None or len(text.encode()) > MOST_BYTES:
            problem = f"is not UTF-8 text of at most {MOST_BYTES // 1024} KiB"
            ui.notify(f"{name}: {problem}", type="negative")
            return
        view = await self._explorer.ask(views.uploaded, kind, name, text)
        if view.get("faults"):
            ui.notify("\n".join(view["faults"][:5]), type="negative", multi_line=True)
            return
        for note in view["notes"][:10]:
            ui.notify(f"not understood: {note}", type="warning", multi_line=True)
        fields = dict(self._explorer.state.strategy) | view["strategy"]
        named = Named(name=view["name"], data=view["data"])
        self._explorer.set_state(
            replace(self._explorer.state, strategy=fields).with_named(kind, named), show=True
        )
        ui.notify(f"{kind}: {view['name']}", type="positive")

    def _figures_typed(self, event: events.ValueChangeEventArguments[str | None]) -> None:
        pairs = (line.partition("=") for line in str(event.value or "").splitlines())
        figures = {name.strip(): text.strip() for name, equals, text in pairs if equals}
        if figures != dict(self._explorer.state.figures):
            self._explorer.set_state(replace(self._explorer.state, figures=figures))

    def _opened_tab(self, name: str) -> None:
        if name != self._explorer.state.tab:
            self._explorer.set_state(replace(self._explorer.state, tab=name))

    async def _copy_link(self) -> None:
        ui.run_javascript("navigator.clipboard.writeText(location.href)")
        ui.notify("Link copied", type="positive")

    def _copy(self, write: Callable[[State], str]) -> None:
        ui.clipboard.write(write(self._explorer.state))
        ui.notify("Copied", type="positive")
