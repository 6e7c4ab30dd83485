"""Files and tables that `python scripts/generate.py` writes: it sets SHARDWISE_UPDATE_DOCS."""

import os
from pathlib import Path

UPDATE = bool(os.environ.get("SHARDWISE_UPDATE_DOCS"))


def check(path: Path, expected: str) -> None:
    """Assert that a file is as it would be written now, or write it."""
    if UPDATE:
        path.write_text(expected, encoding="utf-8")
    shown = path.read_text(encoding="utf-8")
    assert shown == expected, f"{path.name} is stale: python scripts/generate.py"
