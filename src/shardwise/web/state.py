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

from shardwise.config.files import safe_name
from shardwise.config.parse import parse
from shardwise.config.plain import plain
from shardwise.config.strategy_fields import FIELDS, SHORT_NAMES
from shardwise.errors import Fault, InputError
from shardwise.units import read_whole

_NAMES = ("model", "system")
_DATA = {"model": "model-data", "system": "system-data"}
_TABS = ("estimate", "search", "sweep", "compare")
MOST_BYTES = 65_536
"""Of a model or system that is in an address, unpacked."""
MOST_PINS = 8
"""Plans that are compared at most."""
_START = {"gpus": "64", "global_batch_size": "256", "tp": "8"}


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
    tab: str = "estimate"
    pinned: tuple[str, ...] = ()
    """Addresses of plans that are compared."""

    def with_field(self, name: str, value: str | None) -> Self:
        """Return the state with a field of the strategy set, or left to its default."""
        changed = {key: text for key, text in self.strategy.items() if key != name}
        if value not in (None, ""):
            changed[name] = str(value)
        return replace(self, strategy=changed)

    def with_named(self, kind: str, named: Named) -> Self:
        """Return the state with another model or system."""
        return replace(self, model=named) if kind == "model" else replace(self, system=named)

    def question(self) -> dict[str, Any]:
        """Return what the views take: the strategy as text, and changed figures of the system."""
        return {
            "model": self.model.value,
            "system": self.system.value,
            "figures": dict(self.figures),
            "strategy": dict(self.strategy),
        }

    def to_query(self, *, pins: bool = True) -> str:
        """Return the part of an address that says all of it."""
        pairs: list[tuple[str, str]] = []
        for kind in _NAMES:
            named: Named = getattr(self, kind)
            pairs.append((kind, named.name))
            if named.data is not None:
                text = json.dumps(plain(named.data), separators=(",", ":")).encode()
                packed = base64.urlsafe_b64encode(zlib.compress(text, 9)).decode()
                pairs.append((_DATA[kind], packed.rstrip("=")))
        pairs += [(FIELDS[name].short, text) for name, text in self.strategy.items()]
        pairs += [("figure", f"{name}={text}") for name, text in self.figures.items()]
        if self.tab != _TABS[0]:
            pairs.append(("tab", self.tab))
        if pins:
            pairs += [("pin", address) for address in self.pinned]
        return urlencode(pairs)

    @classmethod
    def of_query(cls, query: str) -> Self:
        """Return the state of an address; an empty one is the start."""
        pairs = parse_qsl(query, keep_blank_values=True)
        if not [key for key, _ in pairs if key != "token"]:
            return cls()
        words = {key: value for key, value in pairs if key not in ("pin", "figure", "token")}
        state = cls(strategy={})
        for kind in _NAMES:
            name, packed = words.pop(kind, None), words.pop(_DATA[kind], None)
            if name is not None:
                data = None if packed is None else _unpacked(packed, kind)
                state = state.with_named(kind, Named(name=name, data=data))
        tab = words.pop("tab", _TABS[0])
        if tab not in _TABS:
            raise InputError.of("tab", tab, f"allowed: {', '.join(_TABS)}", "address")
        strategy = {SHORT_NAMES.get(key, key): text for key, text in words.items()}
        unknown = [key for key in strategy if key not in FIELDS]
        if unknown:
            raise InputError([Fault(source="address", field=k, problem="unknown") for k in unknown])
        figures = dict(text.partition("=")[::2] for key, text in pairs if key == "figure")
        pins = tuple(text for key, text in pairs if key == "pin")
        if len(pins) > MOST_PINS:
            raise InputError.of("pin", len(pins), f"at most {MOST_PINS} plans", "address")
        return replace(state, tab=tab, strategy=strategy, figures=figures, pinned=pins)

    def command(self, verb: str = "estimate") -> str:
        """Return the command line that gives the same answer."""
        words = ["shardwise", verb, _file_or_name(self.model), _file_or_name(self.system)]
        for name, text in self.strategy.items():
            flag = "--" + FIELDS[name].short.replace("_", "-")
            switch = isinstance(FIELDS[name].default, bool)
            if switch:
                words.append(flag if text == "true" else flag.replace("--", "--no-", 1))
            else:
                words += [flag, text]
        figures = ", ".join(f"{name}={text}" for name, text in self.figures.items())
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
        return (
            f"{imported}\n"
            f"found = shardwise.estimate({model}, {system}, {{{fields}}})\n"
            "print(found.step_time_s)\n"
        )


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
