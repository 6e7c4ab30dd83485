"""A button that shows a plan as the files of a launcher, to copy or download."""

from typing import Any

from nicegui import ui

from shardwise.launchers.registry import LAUNCHERS
from shardwise.web import views
from shardwise.web.explorer import Explorer, View, guarded
from shardwise.web.plots import faults_label, show_faults


class ExportButton:
    """Opens a dialog with the files that the chosen launcher starts from."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        button = ui.button("Export to a launcher", icon="rocket_launch", on_click=self._open)
        button.props("outline no-caps").mark("export")
        with ui.dialog() as self._dialog, ui.card().classes("sw-export"):
            ui.label("Export to a launcher").classes("sw-heading")
            titles = {one.name: f"{one.title} ({one.releases[0]})" for one in LAUNCHERS}
            first = next(iter(titles), None)
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
        question: dict[str, Any] = {
            **explorer.state.question(),
            "nearest": bool(self._nearest.value),
        }
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

        def copy() -> None:
            ui.clipboard.write(text)

        def download() -> None:
            ui.download.content(text, name)

        with ui.row().classes("items-center w-full"):
            ui.label(name).classes("sw-heading")
            ui.button(icon="content_copy", on_click=copy).props(
                f'flat dense aria-label="Copy {name}"'
            )
            ui.button(icon="download", on_click=download).props(
                f'flat dense aria-label="Download {name}"'
            )
        ui.code(text, language="bash").classes("w-full sw-code").mark("exported")
