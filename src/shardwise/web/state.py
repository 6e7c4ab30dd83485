"""What a page shows, and its form in the address: a link reproduces the view."""

import base64
import binascii
import json
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from shardwise.cli.flags import RUN_FLAGS, flag_words
from shardwise.config.expressions.records import merged
from shardwise.config.files import safe_name
from shardwise.config.fine_tuning import SHORTHANDS
from shardwise.config.parse import parse
from shardwise.config.plain import plain
from shardwise.config.strategy_fields import FIELDS, SHORT_NAMES
from shardwise.errors import Fault, InputError
from shardwise.units import read_whole

_NAMES = ("model", "system")
_DATA = {"model": "model-data", "system": "system-data"}
TABS = ("estimate", "search", "clusters", "largest", "sweep", "compare", "diagnose")
MOST_BYTES = 65_536
"""Of a model or system that is in an address, unpacked."""
MOST_PINS = 8
"""Plans that are compared at most."""
RUN_FIELDS = tuple(name for name in RUN_FLAGS if name != "reliability")
"""What describes a training run, by the names of the flags; a file cannot be named here."""
_START = {"gpus": "64", "global_batch_size": "256", "tp": "8"}


FIGURES_OF = {"model": "shape", "system": "figures"}
_GROUPS = ("strategy", "shape", "figures", "run")
_LISTED = {"figures": "figure", "shape": "shape"}
"""Groups of fields of which an address lists NAME=VALUE, by the key."""


def short_of(name: str) -> str:
    """Return the short name of a field; other names are their own."""
    return FIELDS[name].short if name in FIELDS else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A model or system: an entry of the catalog, or data that a user sent."""

    name: str
    data: Mapping[str, Any] | None = None
    """Fields in the format of shardwise; None: an entry of the catalog."""

    @property
    def value(self) -> str | Mapping[str, Any]:
        """What the API takes."""
        return self.name if self.data is None else self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Model, system, strategy and tab."""

    model: Named = field(default_factory=lambda: Named(name="llama3-70b"))
    system: Named = field(default_factory=lambda: Named(name="h100-sxm"))
    strategy: Mapping[str, str] = field(default_factory=lambda: dict(_START))
    """Fields that the user set, by name, as the command line takes them."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Figures of the system that the user changed, as `sweep --vary` takes them."""
    shape: Mapping[str, str] = field(default_factory=dict)
    """Figures of the model that the user changed, by their paths in its file."""
    run: Mapping[str, str] = field(default_factory=dict)
    """The training run, as flags of the command line: tokens and what else is known."""
    tab: str = "estimate"
    pinned: tuple[str, ...] = ()
    """Addresses of plans that are compared."""

    def with_field(self, name: str, value: str | None, group: str = "strategy") -> Self:
        """Return the state with a field of a group set, or left to its default."""
        own: Mapping[str, str] = getattr(self, group)
        changed = {key: text for key, text in own.items() if key != name}
        if value not in (None, ""):
            changed[name] = str(value)
        fields: dict[str, Any] = {group: changed}
        return replace(self, **fields)

    def with_named(self, kind: str, named: Named) -> Self:
        """Return the state with another model or system, without changed figures of the last."""
        fields: dict[str, Any] = {kind: named, FIGURES_OF[kind]: {}}
        return replace(self, **fields)

    def changes(self, after: Self) -> list[str]:
        """Return in which fields another state differs, in words."""
        words = [
            f"{kind} {getattr(after, kind).name}"
            for kind in _NAMES
            if getattr(self, kind) != getattr(after, kind)
        ]
        for group in _GROUPS:
            old, new = getattr(self, group), getattr(after, group)
            words += [
                f"{short_of(name)} {old.get(name, 'default')} to {new.get(name, 'default')}"
                for name in {**old, **new}
                if old.get(name) != new.get(name)
            ]
        return words

    def model_value(self) -> str | Mapping[str, Any]:
        """Return the model as the API takes it: a catalog entry as base of changed figures."""
        if not self.shape:
            return self.model.value
        own: dict[str, Any] = {}
        for path, text in self.shape.items():
            *parts, last = path.split(".")
            place = own
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = text
        if self.model.data is None:
            return {"name": self.model.name, "base": self.model.name} | own
        try:
            found: dict[str, Any] = merged(self.model.data, own, (), [])
        except ValueError as error:
            raise InputError.at(self.model.name, str(error)) from None
        return found

    def question(self) -> dict[str, Any]:
        """Return what the views take: the strategy as text, and changed figures of the system."""
        return {
            "model": self.model_value(),
            "system": self.system.value,
            "figures": dict(self.figures),
            "run": dict(self.run),
            "strategy": dict(self.strategy),
            "command": self.command(),
        }

    def to_query(self) -> str:
        """Return the part of an address that says all of it."""
        pairs: list[tuple[str, str]] = []
        for kind in _NAMES:
            named: Named = getattr(self, kind)
            pairs.append((kind, named.name))
            if named.data is not None:
                text = json.dumps(plain(named.data), separators=(",", ":")).encode()
                packed = base64.urlsafe_b64encode(zlib.compress(text, 9)).decode()
                pairs.append((_DATA[kind], packed.rstrip("=")))
        pairs += [(short_of(name), text) for name, text in self.strategy.items()]
        pairs += [*self.run.items()]
        for group, key in _LISTED.items():
            pairs += [(key, f"{name}={text}") for name, text in getattr(self, group).items()]
        if self.tab != TABS[0]:
            pairs.append(("tab", self.tab))
        pairs += [("pin", address) for address in self.pinned]
        return urlencode(pairs)

    @classmethod
    def of_query(cls, query: str) -> Self:
        """Return the state of an address; an empty one is the start."""
        pairs = parse_qsl(query, keep_blank_values=True)
        if not [key for key, _ in pairs if key != "token"]:
            return cls()
        listed = ("pin", "token", *_LISTED.values())
        words = {key: value for key, value in pairs if key not in listed}
        state = cls(strategy={})
        for kind in _NAMES:
            name, packed = words.pop(kind, None), words.pop(_DATA[kind], None)
            if name is not None:
                data = None if packed is None else _unpacked(packed, kind)
                state = state.with_named(kind, Named(name=name, data=data))
        tab = words.pop("tab", TABS[0])
        if tab not in TABS:
            raise InputError.of("tab", tab, f"allowed: {', '.join(TABS)}", "address")
        run = {name: words.pop(name) for name in RUN_FIELDS if name in words}
        strategy = {SHORT_NAMES.get(key, key): text for key, text in words.items()}
        unknown = [key for key in strategy if key not in FIELDS and key not in SHORTHANDS]
        if unknown:
            raise InputError([Fault(source="address", field=k, problem="unknown") for k in unknown])
        changed: dict[str, Any] = {
            group: dict(text.partition("=")[::2] for key, text in pairs if key == its)
            for group, its in _LISTED.items()
        }
        pins = tuple(text for key, text in pairs if key == "pin")
        if len(pins) > MOST_PINS:
            raise InputError.of("pin", len(pins), f"at most {MOST_PINS} plans", "address")
        return replace(state, tab=tab, strategy=strategy, run=run, pinned=pins, **changed)

    def command(self, verb: str = "estimate") -> str:
        """Return the command line that gives the same answer."""
        words = ["shardwise", verb, _file_or_name(self.model), _file_or_name(self.system)]
        for name, text in {**self.strategy, **self.run}.items():
            flag = "--" + short_of(name).replace("_", "-")
            if flag_words(name)[0] == "on|off":
                words.append(flag if text == "true" else flag.replace("--", "--no-", 1))
            else:
                words += [flag, text]
        edited = {**self.shape, **self.figures}
        figures = ", ".join(f"{name}={text}" for name, text in edited.items())
        changed = " ".join(figures.split())  # a line break would end the comment
        return shlex.join(words) + (f"  # without the changed figures {changed}" if changed else "")

    def python(self) -> str:
        """Return Python that gives the same answer."""
        fields = ", ".join(f"{name!r}: {_literal(text)}" for name, text in self.strategy.items())
        model, system = (repr(_file_or_name(one)) for one in (self.model, self.system))
        imported = "import shardwise\n"
        if self.figures:
            imported += "from shardwise.planning.sweep.axes import edited\n"
            system = f"edited(shardwise.System.load({system}), {dict(self.figures)!r})"
        if self.shape:
            model = repr(plain(self.model_value()))
        lines = [f"found = shardwise.estimate({model}, {system}, {{{fields}}})"]
        lines.append("print(found.step_time_s)")
        if "tokens" in self.run:
            tokens = f"{{{fields}}}, tokens={self.run['tokens']!r}"
            lines.append(f"print(shardwise.estimate_training_time({model}, {system}, {tokens}))")
        return "\n".join([imported, *lines, ""])


def _file_or_name(named: Named) -> str:
    """A name of the catalog; of data, the file that a user would save it to."""
    if named.data is not None:
        return f"{safe_name(named.name)}.yaml"
    return f"./{named.name}" if named.name.startswith("-") else named.name  # no option


def _literal(text: str) -> str:
    """A value as Python writes it."""
    if text in ("true", "false"):
        return text.capitalize()
    number = read_whole(text)
    return repr(text if number is None else number)


def _unpacked(text: str, kind: str) -> dict[str, Any]:
    """Read data of an address, without unpacking more than the limit."""
    source = f"address: {_DATA[kind]}"
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        decoder = zlib.decompressobj()
        content = decoder.decompress(packed, MOST_BYTES).decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise InputError.at(source, "cannot be read") from None
    if decoder.unconsumed_tail:
        raise InputError.at(source, f"is larger than {MOST_BYTES} bytes")
    if not decoder.eof:
        raise InputError.at(source, "cannot be read")
    data = parse(content, ".json", source, most_bytes=MOST_BYTES)
    if not isinstance(data, dict):
        raise InputError.at(source, "is not a mapping of fields to values")
    return data
