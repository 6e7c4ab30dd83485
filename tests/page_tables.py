"""Tables of Markdown, and errors as their cells."""

from collections.abc import Sequence
from math import isfinite


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table of Markdown; all columns but the first few are numbers."""
    rule = ["---"] * left + ["--:"] * (len(heads) - left)
    lines = [heads, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def share(share: float) -> str:
    return f"{100 * share:.1f} %" if isfinite(share) else "-"


def signed(share: float | None) -> str:
    return "-" if share is None or not isfinite(share) else f"{100 * share:+.1f} %"
