"""Inputs of the page: one for each field of a strategy, derived from the field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nicegui import ui

from shardwise import catalog
from shardwise.cli.flags import flag_words
from shardwise.config.base import MOST
from shardwise.config.fine_tuning import SHORTHANDS, words_of_shorthand
from shardwise.config.roles import Section
from shardwise.config.strategy_fields import COLUMNS, Kind
from shardwise.units import read_whole
from shardwise.web import views
from shardwise.web.explorer import Explorer, View
from shardwise.web.plots import faults_label, show_faults
from shardwise.web.state import FIGURES_OF, Named, short_of

Set = Callable[[str, str | None], None]
"""Called with the name of a field and its value as the command line takes it; None: the default."""

DEGREES = {name: field.role.slider for name, field in COLUMNS.items() if field.role.slider}
"""Fields with a slider, and where it stops; any other number can be typed."""
SIZES = ("gpus", "global_batch_size", "seq_len")
WORDS = ("finetune", "recompute", "zero", "dtype", "quantization", "dispatcher", "stack")
"""Fields with a list, next to those with a slider."""
_NEVER = ("any_software", *SIZES, *DEGREES, *WORDS)
MORE: Mapping[str, tuple[str, ...]] = {
    section: tuple(
        name
        for name in (*COLUMNS, *SHORTHANDS)
        if name not in _NEVER
        and section is (COLUMNS[name].role.section if name in COLUMNS else Section.MODEL)
    )
    for section in Section
}
"""All other fields by section of the help; the sections are closed at first."""
_ON_OFF = {"true": "on", "false": "off"}
_UNSET = "default"
_EXAMPLES = {"tokens": "such as 300B", "X": "such as 1.2", "N": "number"} | dict.fromkeys(
    ("mtbf", "node_mtbf"), "such as 50000h"
)
# By the unit that the help of a field names.
_OF_UNIT = {"[s]": "such as 30min", "[kg/kWh]": "380 g/kWh", "[byte/s]": "such as 10GB/s"}
_LABELS = {
    "gpus": "GPUs",
    "global_batch_size": "global batch",
    "seq_len": "sequence",
    "finetune": "fine-tuning",
    "zero": "ZeRO stage",
    "stack": "software stack",
    "pue": "PUE",
    "mtbf": "MTBF",
    "node_mtbf": "node MTBF",
}
"""Names that readers know better than those of flags."""


@dataclass(slots=True)
class Input:
    """One input, and how it shows a value."""

    show: Callable[[str | None], None]


def label_of(name: str) -> str:
    """Name of a field as the page shows it: short, with spaces."""
    return _LABELS.get(name) or short_of(name).replace("_", " ")


def about(name: str) -> str:
    """What a field is, as the help of its flag says."""
    return flag_words(name)[1]


def _allowed(name: str) -> str:
    """What can be typed: the range of a number, or the placeholder of the flag."""
    words, field = flag_words(name)[0], COLUMNS.get(name)
    if field is None or field.kind not in (Kind.WHOLE, Kind.NUMBER):
        example = next((one for unit, one in _OF_UNIT.items() if unit in about(name)), words)
        return _EXAMPLES.get(name) or _EXAMPLES.get(words, example)
    if field.most < MOST:
        return f"{field.least:g} to {field.most:g}"
    return f"{field.least:g} or more" + (", or NxN" if "NxN" in words else "")


def field_input(name: str, changed: Set) -> Input:
    """Make the input of a field of a strategy or a training run."""
    if name in DEGREES:
        return _slider(name, DEGREES[name], changed)
    options = _options(name)
    if options is not None:
        return _list(name, options, changed)
    return _text(name, changed)


def _options(name: str) -> dict[str, str] | None:
    """Values of a field that has few, as the command line takes them, and their labels."""
    if flag_words(name)[0] == "on|off":
        return dict(_ON_OFF)
    values: Sequence[object] = ()
    if name in SHORTHANDS:
        values = words_of_shorthand(name)
    elif name in COLUMNS:
        field = COLUMNS[name]
        words = field.words if field.kind is Kind.WORD else field.role.every
        values = catalog.names("stacks") if field.kind is Kind.STACK else words
    return {str(value): str(value) for value in values} or None


def _slider(name: str, stops: tuple[int, ...], changed: Set) -> Input:
    """A slider with the number next to it."""
    with ui.row().classes("sw-row items-center no-wrap w-full"):
        label = ui.label(label_of(name)).classes("sw-label")
        label.tooltip(about(name))
        slider = ui.slider(min=0, max=len(stops) - 1, step=1, value=0)
        slider.props(f'aria-label="{label_of(name)}" aria-description="{about(name)}"')
        slider.props("dense snap markers")
        slider.tooltip(about(name))
        slider.mark(name)
        number = ui.input(value="1").props(
            f'dense outlined inputmode=numeric debounce=150 aria-label="{label_of(name)}, number"'
        )
        number.classes("sw-number").mark(f"{name}-number")
    shown: dict[str, str | None] = {"value": "1"}

    def moved(value: Any) -> None:
        text = str(stops[int(value)])
        if text != shown["value"]:
            shown["value"] = text
            number.set_value(text)
            changed(name, text)

    def typed(value: Any) -> None:
        text = str(value or "").strip()
        if text != shown["value"] and text:
            shown["value"] = text
            _move(text)
            changed(name, text)

    def _move(text: str) -> None:
        if text.isdecimal():
            at = max((i for i, stop in enumerate(stops) if stop <= int(text)), default=0)
            slider.set_value(at)

    def show(value: str | None) -> None:
        text = value or "1"
        shown["value"] = text
        number.set_value(text)
        shown["value"] = text
        _move(text)

    slider.on_value_change(lambda event: _only(stops, event.value, shown, moved))
    number.on_value_change(lambda event: typed(event.value))
    return Input(show=show)


def _only(
    stops: tuple[int, ...], at: Any, shown: Mapping[str, str | None], moved: Callable[[Any], None]
) -> None:
    """Pass on what a user moved; a number between stops stays where the slider stands below it."""
    text = shown["value"] or ""
    number = read_whole(text)
    if number is not None and number not in stops:
        below = max((i for i, stop in enumerate(stops) if stop <= number), default=0)
        if int(at) == below:
            return
    moved(at)


def _list(name: str, options: dict[str, str], changed: Set) -> Input:
    """A list of the values, with the default at the top."""
    choices = {_UNSET: _default_label(name), **options}
    words = name in COLUMNS and COLUMNS[name].kind is Kind.STACK  # described in words, too
    select = ui.select(
        choices,
        value=_UNSET,
        label=label_of(name),
        with_input=words or len(choices) > 12,  # noqa: PLR2004 - a list as long as a screen
        new_value_mode="add-unique" if words else None,
        key_generator=(lambda text: text) if words else None,
    )
    select.props("dense outlined options-dense").classes("w-full").mark(name)
    select.tooltip(about(name))
    quiet = {"now": False}

    def selected(value: Any) -> None:
        if not quiet["now"]:
            changed(name, None if value in (None, _UNSET) else str(value))

    def show(value: str | None) -> None:
        quiet["now"] = True
        text = _UNSET if value is None else str(value)
        if text not in choices:
            choices[text] = text
            select.set_options(choices)
        select.set_value(text)
        quiet["now"] = False

    select.on_value_change(lambda event: selected(event.value))
    return Input(show=show)


def _default_label(name: str) -> str:
    default = COLUMNS[name].default if name in COLUMNS else None
    if default is None:
        return "default"
    text = _ON_OFF.get(str(default).lower(), default)
    return f"{text} (default)"


def _text(name: str, changed: Set, now: str | None = None) -> Input:
    """A field to type in; of a figure, with what it is now."""
    look = "dense outlined debounce=300 stack-label" + (" clearable" if name not in SIZES else "")
    label, words = (label_of(name), _allowed(name)) if now is None else (name, now)
    entry = ui.input(label=label, placeholder=words).props(look)
    entry.classes("w-full").mark(name)
    entry.tooltip(about(name) if now is None else f"{name}: {now}")
    quiet = {"now": False}

    def typed(value: Any) -> None:
        if not quiet["now"]:
            changed(name, str(value).strip() if value else None)

    def show(value: str | None) -> None:
        quiet["now"] = True
        entry.set_value(value or "")
        quiet["now"] = False

    entry.on_value_change(lambda event: typed(event.value))
    return Input(show=show)


class FiguresForm:
    """Figures of the model or system of the page, each with what it is now; typing overrides it."""

    def __init__(self, explorer: Explorer, kind: str) -> None:
        self._explorer, self._kind = explorer, kind
        self._of: object = None
        self._inputs: dict[str, Input] = {}
        with ui.expansion(f"Figures of the {kind}").classes("w-full").props("dense") as around:
            self._faults = faults_label()
            hint = "A factor such as 2x, or a value with its unit." if kind == "system" else ""
            ui.label(f"{hint} What is typed replaces the figure.".strip()).classes("sw-hint")
            self._place = ui.element("div").classes("sw-two").mark(f"{kind}-figures")
        self._around = around.mark(f"open-{kind}-figures")
        around.on_value_change(self.show)

    def show(self) -> None:
        """Show the figures of the state while the form is open."""
        group = FIGURES_OF[self._kind]
        own: Mapping[str, str] = getattr(self._explorer.state, group)
        if own and not self._around.value:
            self._around.set_value(True)
        named: Named = getattr(self._explorer.state, self._kind)
        if self._around.value and named != self._of:
            self._explorer.start(self._fill(named), self._show_faults)
        for name, one in self._inputs.items():
            one.show(own.get(name))

    async def _fill(self, named: Named) -> None:
        """List the figures of another model or system."""
        view = await self._explorer.ask(views.figures_view, named.value, self._kind)
        show_faults(self._faults, view["faults"])
        self._of, self._inputs = named, {}
        self._place.clear()
        group = FIGURES_OF[self._kind]
        with self._place:
            for row in view.get("figures", []):
                name, now = str(row["figure"]), row["value"]
                changed = partial(self._explorer.set_field, group=group)
                self._inputs[name] = _text(name, changed, "several" if now is None else str(now))
        for name, one in self._inputs.items():
            one.show(getattr(self._explorer.state, group).get(name))

    def _show_faults(self, view: View) -> None:
        show_faults(self._faults, view["faults"])
