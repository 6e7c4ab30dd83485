"""Fields of a strategy as they were given, levels among them, for others to be put over them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.config.strategy import Strategy

__all__ = ["explicit_fields"]


def explicit_fields(strategy: Strategy | Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Fields that a strategy names, as plain values, with levels in place of their extents.

    A `Strategy` that was made already has its extents.

    Raises
    ------
    InputError
        If anything in it is wrong.
    """
    loaded, resolved = Strategy.explained(strategy)
    return loaded.explicit_fields(resolved.data)
