"""`Space`: which strategies a search tries."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from shardwise.config.base import ConfigBase
from shardwise.config.degrees import LEVELS_PATTERN, plain_only
from shardwise.config.model import Model
from shardwise.config.roles import Tries
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import (
    COLUMNS,
    OFFLOADS,
    SHORT_NAMES,
    Kind,
    StrategyField,
    names_of,
)
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, shorten

_RANGE = re.compile(r"(\d+)\s*\.\.\s*(\d+)(?:\s*:\s*(\d+))?")
_MOST_VALUES = 10_000
_TEXT = r"\s*\d+\s*(\.\.\s*\d+\s*(:\s*\d+\s*)?)?"
_NUMBERS = f"^{_TEXT}(,{_TEXT})*$"
"""Numbers and ranges as one text, as a pattern of JSON Schema."""

_TOGETHER = (*names_of(Kind.SET), "stage_layers")
"""Fields whose values are lists, with items joined by `+` in a text."""
_BY_PLACEMENT = ("none", "placement")
_SELECTED_BY = {
    "recompute_layers": "fit",
    "micro_batch_size": "largest",
    "stage_layers": "balanced",
}
"""Fields of which a search may select one value, with the word for it, in order of selection."""
_AS_TP = "tp"
# Longer sequences are split over context-parallel ranks, too: their activations alone fill an
# accelerator (Llama 3 was trained with cp 16 at 131,072 tokens: arXiv 2407.21783, table 4).
_LONG = 32_768
SPACE_FIELDS = tuple(COLUMNS)
"""Fields of `Strategy` in a space: all but the short form of `tp_exchange`."""

# Either the values to try, in order, or "all" (or a word of `_SELECTED_BY`); None for the
# default ones.
Choices = tuple[Any, ...] | str | None


def _describe(schema: dict[str, Any]) -> None:
    """Describe each field in the JSON Schema by the values of `Strategy`."""
    strategy = Strategy.model_json_schema()
    schema["$defs"], fields = strategy["$defs"], strategy["properties"]
    for name in SPACE_FIELDS:
        one = {key: item for key, item in fields[name].items() if key not in ("title", "default")}
        title = {"title": name, "description": one.pop("description", ""), "default": None}
        one["anyOf"] = [
            kind for kind in one.get("anyOf", []) if LEVELS_PATTERN not in kind.values()
        ]
        one = {key: item for key, item in one.items() if item != []}
        numbers = '"integer"' in json.dumps(one)
        text = {"type": "string", "pattern": _NUMBERS if numbers else ","}
        words = _words(name)
        if words:
            one = {"anyOf": [one, {"type": "string", "enum": words}]}
        items = {"anyOf": [one, text]} if numbers else one
        several = [{"type": "array", "items": items, "minItems": 1}, text, {"type": "null"}]
        words_for_all = [{"const": "all"}] if _has_end(COLUMNS[name]) else []
        words_for_all += [{"const": _SELECTED_BY[name]}] if name in _SELECTED_BY else []
        schema["properties"][name] = title | {"anyOf": [one, *several, *words_for_all]}
    for short, name in SHORT_NAMES.items():
        schema["properties"][short] = schema["properties"][name] | {"title": short}


def _words(name: str) -> list[str]:
    """Words that a field of numbers allows."""
    if COLUMNS[name].kind is Kind.TIER:
        return list(_BY_PLACEMENT)
    if COLUMNS[name].optional:
        return ["none"]
    return [_AS_TP] if name == "etp" else []


def _values_of_fields() -> dict[str, object]:
    """A field of a space for each column of a strategy."""
    found: dict[str, object] = {}
    for name in COLUMNS:
        words = Literal["all", _SELECTED_BY[name]] if name in _SELECTED_BY else Literal["all"]
        alias = Strategy.model_fields[name].validation_alias
        found[name] = (tuple[Any, ...] | words | None, Field(default=None, validation_alias=alias))
    return found


if TYPE_CHECKING:

    class _Values(ConfigBase):
        def __getattr__(self, name: str) -> Choices: ...

else:
    _Values = create_model("_Values", __base__=ConfigBase, **_values_of_fields())


class Space(_Values):
    """Values to try for each field of `Strategy`.

    A field is one value, a list, a range of numbers (``64..512`` doubles, ``64..512:64`` steps) or
    ``all``. By default a search tries all degrees, chunks and micro-batches that divide what they
    split (but cp only for long sequences, tp2 and panels only with 2D products, and etp 1 or tp);
    recompute, communication of tensor parallelism except 2D products, its overlap, ZeRO 0 and 1,
    fused activations, placements and, where there is a second memory tier, offload. Every other
    field has its default.

    Some fields can select one value for each combination of the others:
    ``recompute_layers: fit``, ``micro_batch_size: largest`` and ``stage_layers: balanced``.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    batch: Literal["fixed", "largest"] = "fixed"
    """Whether every strategy has exactly the global batch, or the largest multiple of its replicas
    up to it."""

    @field_validator(*SPACE_FIELDS, mode="before")
    @classmethod
    def _listed(cls, written: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        if written is None or (isinstance(written, str) and written.strip().lower() == "all"):
            if written is not None and not _has_end(COLUMNS[name]):
                raise ValueError("has no end: give values or a range")
            return written if written is None else "all"
        if isinstance(written, str) and written.strip().lower() == _SELECTED_BY.get(name):
            return _SELECTED_BY[name]
        values = _items(name, written)
        if not values:
            raise ValueError("has no value to try")
        canonical, problems = [], []
        for value in values:
            try:
                canonical.append(_value(name, value))
            except ValueError as error:
                problems.append(str(error) if value == written else f"{shorten(value)}: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return tuple(v for i, v in enumerate(canonical) if v not in canonical[:i])

    @model_validator(mode="after")
    def _one_balance(self) -> Self:
        ends = ("first_stage_layers", "last_stage_layers")
        named = next((name for name in ends if getattr(self, name)), None)
        if self.stage_layers == _SELECTED_BY["stage_layers"] and named is not None:
            problem = "is chosen by stage_layers balanced; give one"
            raise InputError(Fault(field=named, problem=problem))
        return self

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON Schema of a space file."""
        schema = super().model_json_schema(*args, **options)
        _describe(schema)
        return schema

    def fixed(self, fields: Mapping[str, object], *, source: str) -> Self:
        """Return the space with other values for some fields."""
        own = {name: value for name, value in self if name in self.model_fields_set}
        return self.validated(
            own | {SHORT_NAMES.get(n, n): v for n, v in fields.items()}, source=source
        )

    @property
    def selected(self) -> tuple[str, ...]:
        """Fields of which one value is selected, among strategies that are equal in all others.

        The fewest recomputed layers that fit, the largest micro-batch that fits, the layers of the
        stages with the shortest step.
        """
        return tuple(name for name, word in _SELECTED_BY.items() if getattr(self, name) == word)

    def settled(self, model: Model) -> Self:
        """Return the space with the default degrees of a model.

        These are every ep, with etp 1 or tp, for models with experts; every cp for long sequences;
        and, where 2D products are requested, every tp2 and number of panels.
        """
        defaults: dict[str, object] = {}
        lengths = self.seq_len if isinstance(self.seq_len, tuple) else (model.seq_len,)
        if self.cp is None and max(length or 0 for length in lengths) >= _LONG:
            defaults["cp"] = "all"
        if model.has_experts:
            defaults |= {"ep": "all"} if self.ep is None else {}
            defaults |= {"etp": (1, _AS_TP)} if self.etp is None else {}
        if self.tp_exchange == "all" or "summa" in (self.tp_exchange or ()):
            defaults |= {"tp2": "all"} if self.tp2 is None else {}
            defaults |= {"summa_panels": "all"} if self.summa_panels is None else {}
        if self.tp_exchange == ("summa",) and self.tp_overlap is None:
            defaults["tp_overlap"] = ("stack", "none")
        return self.model_copy(update=defaults) if defaults else self

    def values(self, field: str, system: System) -> tuple[Any, ...] | None:
        """Return the values of a field to try, in order; None for all that divide what they split.

        A value of None is filled in by `Strategy.resolved`.
        """
        choices: Choices = getattr(self, field)
        if isinstance(choices, tuple):
            return choices
        tries = COLUMNS[field].role.tries
        if choices == "all" and tries is Tries.DEFAULT_DIVISOR:
            tries = Tries.DIVISORS
        elif choices == "all" and tries is not Tries.DIVISORS:
            tries = Tries.ALL
        if field in self.selected or tries is Tries.DIVISORS:
            return None
        default = system.stack if field == "stack" else COLUMNS[field].default
        if tries in (Tries.DEFAULT, Tries.DEFAULT_DIVISOR):
            return (default,)
        if COLUMNS[field].kind is Kind.TIER:
            return tuple(range(len(system.network)))
        if choices is None and field in OFFLOADS and len(system.accelerator.memory) == 1:
            return (False,)
        every = tries if isinstance(tries, tuple) else _every(COLUMNS[field])
        return tuple(sorted(every, key=lambda value: value != default))


def _every(field: StrategyField) -> tuple[object, ...]:
    """All values of a field with finitely many, independent of layout and system."""
    if field.kind is Kind.FLAG:
        return (False, True)
    return field.role.every or (field.words if field.kind is Kind.WORD else ())


def _has_end(field: StrategyField) -> bool:
    """Whether `all` has a meaning."""
    by_layout = field.role.tries in (Tries.DIVISORS, Tries.DEFAULT_DIVISOR)
    return by_layout or field.kind is Kind.TIER or bool(_every(field))


def _items(name: str, value: object) -> Sequence[object]:
    """The list of one value, several, or a range of numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if name in _TOGETHER and isinstance(value, (list, tuple)):
        several = any(isinstance(item, (list, tuple)) or "+" in str(item) for item in value)
        return list(value) if several else [value]
    if isinstance(value, str) and name != "stack":
        return [item for text in value.split(",") for item in _expanded(text.strip())]
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, Stack)):
        return [item for one in value for item in _items(name, one)]
    return [value]


def _expanded(text: str) -> list[Any]:
    """Values of a range: ``64..512`` doubles, ``64..512:64`` steps; anything else is itself."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    low, high, step = (None if part is None else int(part) for part in match.groups())
    if not low or high is None or high < low or step == 0:
        raise ValueError("a range runs from a number of at least 1 up to a larger one")
    if step is not None and (high - low) // step >= _MOST_VALUES:
        raise ValueError(f"a range has at most {_MOST_VALUES} values")
    if step is not None:
        return list(range(low, high + 1, step))
    doubled = [low]
    while doubled[-1] * 2 <= high:
        doubled.append(doubled[-1] * 2)
    return doubled


def _value(name: str, value: object) -> object:
    """One value in the form of `Strategy`."""
    word = str(value).strip().lower()
    if COLUMNS[name].kind is Kind.TIER and (value is None or word in _BY_PLACEMENT):
        return None
    if COLUMNS[name].optional and word == "none":
        return None
    if name == "etp" and word == _AS_TP:
        return _AS_TP
    if value is None:
        raise ValueError("has an empty value; leave the field out for its usual ones")
    plain_only(name, value)
    try:
        return getattr(Strategy.validated({name: value}), name)
    except InputError as error:
        parts_of = [(f.field.removeprefix(name).strip("."), f.problem) for f in error.faults]
        problem = "; ".join(": ".join(part for part in parts if part) for parts in parts_of)
        raise ValueError(problem) from None
