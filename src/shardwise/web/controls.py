"""Inputs of the page: one for each field of a strategy, derived from the field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from shardwise import catalog
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS, Kind, StrategyField
from shardwise.units import read_whole

Set = Callable[[str, str | None], None]
"""Called with the name of a field and its value as the command line takes it; None: the default."""

DEGREES = {name: field.role.slider for name, field in COLUMNS.items() if field.role.slider}
"""Fields with a slider, and where it stops; any other number can be typed."""
SIZES = ("gpus", "global_batch_size", "seq_len")
WORDS = ("recompute", "zero", "dtype", "quantization", "dispatcher", "stack")
"""Fields with a list, next to those with a slider."""
_NEVER = ("any_software", *SIZES, *DEGREES, *WORDS)
MORE = tuple(name for name in COLUMNS if name not in _NEVER)
"""All other fields, in a list that is closed at first."""
_ON_OFF = {"true": "on", "false": "off"}
_UNSET = "default"


@dataclass(slots=True)
class Input:
    """One input, and how it shows a value."""

    show: Callable[[str | None], None]


def label_of(name: str) -> str:
    """Name of a field as the page shows it: short, with spaces."""
    return COLUMNS[name].short.replace("_", " ")


def about(name: str) -> str:
    """What a field is, in one or two sentences."""
    return " ".join(Strategy.descriptions().get(name, "").split())


def field_input(name: str, changed: Set) -> Input:
    """Make the input of a field."""
    field = COLUMNS[name]
    if name in DEGREES:
        return _slider(name, DEGREES[name], changed)
    options = _options(field)
    if options is not None:
        return _list(name, options, changed)
    return _text(name, changed)


def _options(field: StrategyField) -> dict[str, str] | None:
    """Values of a field that has few, as the command line takes them, and their labels."""
    if field.kind is Kind.FLAG:
        return dict(_ON_OFF)
    if field.kind is Kind.STACK:
        return {name: name for name in catalog.names("stacks")}
    if field.kind is Kind.WORD:
        return {str(word): str(word) for word in field.words}
    if field.role.every:
        return {str(value): str(value) for value in field.role.every}
    return None


def _slider(name: str, stops: tuple[int, ...], changed: Set) -> Input:
    """A slider with the number next to it."""
    with ui.row().classes("sw-row items-center no-wrap w-full"):
        label = ui.label(label_of(name)).classes("sw-label")
        label.tooltip(about(name))
        slider = ui.slider(min=0, max=len(stops) - 1, step=1, value=0)
        slider.props(f'aria-label="{label_of(name)}" dense snap markers')
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
    words = COLUMNS[name].kind is Kind.STACK  # software is described in words, too
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
    default = COLUMNS[name].default
    if default is None:
        return "default"
    text = _ON_OFF.get(str(default).lower(), default)
    return f"default ({text})"


def _text(name: str, changed: Set) -> Input:
    """A field to type in."""
    entry = ui.input(label=label_of(name)).props("dense outlined debounce=300 clearable")
    entry.classes("w-full").mark(name)
    entry.tooltip(about(name))
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
