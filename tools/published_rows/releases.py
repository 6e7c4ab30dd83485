"""The month that the software of a measured run was released in, as rows name releases."""

import re

from published_rows.row import Run

# NVIDIA names images and documents of NeMo by year and month: nemo:25.09, NeMo 24.07,
# launcher-2024-07, NeMo Framework Release 25.04.
_NAMED = re.compile(
    r"\b(?:nemo(?: framework)?(?: nvidia)?(?: release)?[: ]|(?:nemo )?launcher-20|^(?:20)?)"
    r"(2\d)[.-](0[1-9]|1[0-2])\b",
    re.IGNORECASE,
)
# Images that NVIDIA's submissions to a round of MLPerf Training are built from.
_ROUND = re.compile(r"MLPerf Training v(\d\.\d)")
_ROUNDS = {"4.1": "2024-09", "5.0": "2025-04", "5.1": "2025-09"}


def released(run: Run) -> str:
    """Month of the release of a run's software, 2025-09; empty if the row has no date at all.

    A row with no other date has the middle of its year.
    """
    date = dated(run)
    return f"{date}-07" if date.isdigit() else date


def dated(run: Run) -> str:
    """Month of a release that a row names, or of its round of MLPerf; else its year, or nothing."""
    software = run.software
    for text in (software.container, software.version, software.framework):
        if found := _NAMED.search(text or ""):
            return f"20{found[1]}-{found[2]}"
    if (found := _ROUND.search(run.source.title or "")) and found[1] in _ROUNDS:
        return _ROUNDS[found[1]]
    return str(run.year or "")
