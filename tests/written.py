"""What a command printed or wrote as JSON."""

import json
from typing import Any

from shardwise import __version__
from shardwise.config.files import RESULT_SCHEMA


def record_of(text: str | bytes) -> dict[str, Any]:
    """Return a result as JSON without the version that wrote it, which must be this one."""
    record: dict[str, Any] = json.loads(text)
    assert record.pop("shardwise") == {"version": __version__, "schema": RESULT_SCHEMA}
    return record
