"""A system with some figures changed, in the words of a sweep."""

from collections.abc import Mapping

from shardwise.config.system import System
from shardwise.config.system_columns import with_figures
from shardwise.errors import InputError
from shardwise.planning.sweep.axes import varied_axes

_KINDS = ("figure", "structure")


def edited(system: System, changes: Mapping[str, str]) -> System:
    """Return a system with other figures."""
    for axis in varied_axes(dict(changes), [system]) if changes else ():
        if axis.kind not in _KINDS:
            raise InputError.of(axis.name, changes.get(axis.name), "is no figure of a system")
        if len(axis.values) != 1:
            raise InputError.of(axis.name, changes.get(axis.name), "must be one value")
        if axis.kind == "structure":
            system = axis.changed_system(system, 0)[0]
        else:
            system = System.validated(with_figures(system, axis.figures(system, 0)).to_dict())
    return system
