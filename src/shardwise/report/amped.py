"""What became of an AMPeD configuration, below the estimate made of it."""

from collections.abc import Mapping
from typing import Any

from shardwise.report.console import show

__all__ = ["print_imported"]


def print_imported(imported: Mapping[str, Any]) -> None:
    """Print where it is from, what has no meaning here by reason, and what else there is to say."""
    rows = list(dict.fromkeys(imported["rows"].values()))
    tables = imported["tables"]
    looked_up = f", rows {', '.join(rows)} of {tables}" if tables else ""
    total = len(imported["taken"]) + len(imported["not_used"])
    lines = [f"imported from AMPeD: {imported['file']}{looked_up}"]
    lines += [f"taken: {len(imported['taken'])} of {total} parameters; the others by reason"]
    by_reason: dict[str, list[str]] = {}
    for one in imported["not_used"]:
        by_reason.setdefault(one["why"], []).append(_told(one))
    lines += [f"  {why}: {', '.join(found)}" for why, found in by_reason.items()]
    lines += [f"note: {note}" for note in imported["notes"]]
    show("\n".join(lines), style="dim")


def _told(one: Mapping[str, Any]) -> str:
    """A parameter with its value; --json has those of calculated ones."""
    name = str(one["parameter"])
    return name if one["origin"] == "calculated" else f"{name} {one['value']}"
