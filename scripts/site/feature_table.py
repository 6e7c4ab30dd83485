"""Table of every feature of the tools that shardwise replaces, from the data of its test."""

from pathlib import Path
from typing import Any

import yaml

from tables import cell, table

_FILE = Path(__file__).parents[2] / "tests/data/predecessor_features.yaml"
_TOOLS = {
    "calculon": "Calculon",
    "nersc": "NERSC's perf-estimates",
    "simumax": "SimuMax",
    "amped": "AMPeD",
    "fsdp-ilp": "fsdp_ilp",
}
_STATES = ("works", "better here", "gap", "later")


def _commands(row: dict[str, Any]) -> str:
    lines = row.get("run", [])
    lines = [f"shardwise {line}" for line in ([lines] if isinstance(lines, str) else lines)]
    return ", then ".join(f"`{line}`" for line in [*lines, *filter(None, [row.get("python")])])


def features() -> str:
    """Return how many features there are in each state, and a table for each tool."""
    found = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    rows = [row for rows in found.values() for row in rows]
    counts = [f"{sum(row['state'].startswith(state) for row in rows)} {state}" for state in _STATES]
    text = f"{len(rows)} features: {', '.join(counts)}.\n"
    for tool, name in _TOOLS.items():
        cells = [(cell(row["feature"]), cell(row["state"]), _commands(row)) for row in found[tool]]
        text += f"\n## {name}\n\n{table(('there', 'state', 'command'), cells)}"
    return text
