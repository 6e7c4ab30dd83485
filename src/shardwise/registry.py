"""What the packages around the core add to it: verbs, file formats, results and functions.

The core imports none of these packages. The `__init__` of each says in `ADDS` where what it adds is
found; that is imported where it is used. A package that is not there adds nothing.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.records import dataclass, field

PACKAGES = ("predecessors", "launchers", "huggingface", "fsdp", "measure", "web")
"""In the order in which their formats are tried and their verbs are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb of the command line that a package adds."""

    group: str
    """Heading in the list of verbs."""
    summary: str
    home: str
    """Its function."""
    before: str | None = None
    """Verb that it is listed before; None: it is the last of its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What one package adds, as `module:name` within shardwise, or `module` alone."""

    verbs: Mapping[str, Verb] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    """Tuples of `FileFormat`; the first format that recognizes a file reads it."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Module whose `VIEWS` shows a result, by the name of its type."""
    saved: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Keys of a saved result, and its type, by the verb that writes it."""
    suites: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Suites of `validate`: what they compare, and the function that does it."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Functions and modules that the core calls by these names."""


@cache
def additions() -> tuple[Additions, ...]:
    """Return what each package that is there adds."""
    names = [f"shardwise.{name}" for name in PACKAGES]
    return tuple(import_module(name).ADDS for name in names if find_spec(name) is not None)


def added(kind: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values of one kind, such as "suites", of all packages."""
    for one in additions():
        yield from getattr(one, kind).items()


def load(home: str) -> Any:
    """Import what `module:name` or `module` within shardwise names."""
    module, _, name = home.partition(":")
    found = import_module(f"shardwise.{module}")
    return getattr(found, name) if name else found


def find(name: str) -> Any:
    """Return a function or module that a package adds; None if no package that is there does."""
    home = dict(added("functions")).get(name)
    return None if home is None else load(home)


def function(name: str) -> Any:
    """Return a function or module that a package adds.

    Raises
    ------
    InputError
        If no package that is there adds it.
    """
    found = find(name)
    if found is None:
        problem = f"is not installed: it comes with one of {', '.join(PACKAGES)}"
        raise InputError(Fault(source=name, problem=problem))
    return found
