"""Charts and messages that all tabs show."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import events, ui

Clicked = Callable[[Mapping[str, Any]], None]
"""Called with the point that a user clicked."""


class Chart:
    """A chart that is on the page only while it shows something: plotly draws no hidden ones."""

    def __init__(self, title: str, clicked: Clicked | None = None) -> None:
        self._title, self._clicked = title, clicked
        self._place = ui.element("div").classes("sw-chart")
        self._heading: tuple[ui.label, ui.label] | None = None
        self._plot: ui.plotly | None = None
        self.show(None)

    def show(self, figure: Mapping[str, Any] | None) -> None:
        """Show a figure in plotly's JSON; None: nothing."""
        self._place.set_visibility(figure is not None)
        if figure is None:
            self._place.clear()
            self._plot = self._heading = None
            return
        meta = figure["layout"].get("meta", {})
        drawn = {**figure, "config": {"displaylogo": False, "responsive": True}}
        if self._plot is None or self._heading is None:
            self._make(drawn)
        else:
            self._plot.update_figure(drawn)
        if self._heading is not None:
            self._heading[0].set_text(str(meta.get("title", self._title)))
            self._heading[1].set_text(str(meta.get("subtitle", "")))

    def _make(self, drawn: dict[str, Any]) -> None:
        """Put a heading and a chart on the page."""
        with self._place:
            self._heading = ui.label().classes("sw-heading"), ui.label().classes("sw-hint")
            with ui.element("div").classes("sw-scroll"):
                self._plot = ui.plotly(drawn).classes("sw-plot")
            self._plot.props(f'role=img aria-label="{self._title}"')
            least = drawn["layout"].get("meta", {}).get("least_width", 0)
            self._plot.style(f"min-width: {int(least)}px")
            if self._clicked is not None:
                self._plot.on("plotly_click", self._pass_on)

    def _pass_on(self, event: events.GenericEventArguments) -> None:
        points = event.args.get("points") or []
        if points and self._clicked is not None:
            self._clicked(points[0])


def faults_label() -> ui.label:
    """Where faults are shown, one line each; hidden without any."""
    label = ui.label().classes("sw-faults").props("role=alert").mark("faults")
    label.set_visibility(False)
    return label


def show_faults(label: ui.label, faults: Sequence[str]) -> None:
    """Show faults, or hide where they stood."""
    label.set_visibility(bool(faults))
    label.set_text("\n".join(faults))
