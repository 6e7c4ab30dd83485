"""The chart library and the data of charts, packed for a page: gzip, then letters of base 85."""

import gzip
import json
from base64 import b85encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Any

# Base 85 takes 5 letters for 4 bytes, base 64 takes 16 for 12: a page with the library stays below
# 2 MB. The letters that mean something in HTML are replaced by letters that base 85 does not use.
_MARKUP, _HARMLESS = b"<>&", b",.:"
_LEVEL = 9


def packed(data: bytes) -> str:
    """Return data as text that stands in a page as it is; `unpack` of page.js reads it."""
    squeezed = gzip.compress(data, _LEVEL, mtime=0)
    return b85encode(squeezed).translate(bytes.maketrans(_MARKUP, _HARMLESS)).decode("ascii")


def packed_json(data: Mapping[str, Any]) -> str:
    """Return plain values, packed."""
    return packed(json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


@cache
def packed_library() -> str:
    """Return plotly.js as the Python package has it, packed."""
    return packed(resources("plotly").joinpath("package_data", "plotly.min.js").read_bytes())


@cache
def asset(name: str) -> str:
    """Return the style sheet or the script of pages."""
    return resources("shardwise.report.page").joinpath(name).read_text(encoding="utf-8")
