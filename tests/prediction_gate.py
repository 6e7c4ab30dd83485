"""The gate on predictions: 20,000 stored ones, those of now, and what moved.

`data/predictions.json.xz` holds for pairs of model and system the drawn strategies, and of each its
step time and memory to 11 digits, or null where it was refused. A file and not the commit before is
the reference because checkouts of CI may lack that commit.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drawn_questions import pairs, selected
from moved import Case, report
from shardwise import InputError, Strategy, estimate_many

GATE = Path(__file__).parent / "data" / "predictions.json.xz"
RTOL = 1e-9
"""Versions of numpy and instructions of CPUs sum in another order; this is far above that."""
ACCEPT = "if this is meant: python scripts/golden.py accept, and a line in CHANGELOG.md"
_MODELS, _ANSWERED, _REFUSED = 2, 150, 78

Part = dict[str, Any]
"""A model, a system, strategies (`rows`), and a list of [step time, memory] or null."""


def predicted(model: str, system: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Answers of now: `code`, and step time and memory or the reason in `err`."""
    try:
        table = estimate_many(model, system, [Strategy.validated(row) for row in rows])
    except InputError as error:  # of some row
        if len(rows) == 1:
            return [{"code": 2, "err": str(error)}]
        half = len(rows) // 2
        return [
            one for some in (rows[:half], rows[half:]) for one in predicted(model, system, some)
        ]
    figures = zip(table.step_time_s.tolist(), table.memory_reserved_bytes.tolist(), strict=True)
    return [
        {"code": 2, "err": reason} if (reason := table.reason(at)) else _answer(pair)
        for at, pair in enumerate(figures)
    ]


def _answer(figures: Sequence[float] | None) -> dict[str, Any]:
    if figures is None:
        return {"code": 2}
    return {"code": 0, "step_time_s": figures[0], "memory_bytes": figures[1]}


def moved(parts: Sequence[Part]) -> list[str]:
    """Lines on what moved, and the command that accepts it; none if nothing did."""
    cases = []
    for part in parts:
        name, rows = f"{part['model']} {part['system']}", part["rows"]
        answers = predicted(part["model"], part["system"], rows)
        for row, was, now in zip(rows, part["figures"], answers, strict=True):
            # Reasons are not stored: a refusal may be for another one.
            old = now if was is None and now["code"] else _answer(was)
            cases.append(Case(name=name, settings=row, old=old, new=now))
    lines = report(cases, RTOL)
    return [*lines, ACCEPT] if lines else []


def stored() -> list[Part]:
    """The stored predictions."""
    parts: list[Part] = json.loads(lzma.decompress(GATE.read_bytes()))
    return parts


def accept() -> None:
    """Draw strategies from the catalog and fields of now, and store their predictions."""
    parts = []
    for model, system in pairs(_MODELS):
        rows = selected(model, system, answered=_ANSWERED, refused=_REFUSED)
        answers = predicted(model, system, rows)
        names = ("step_time_s", "memory_bytes")
        figures = [None if a["code"] else [float(f"{a[n]:.10e}") for n in names] for a in answers]
        parts.append({"model": model, "system": system, "rows": rows, "figures": figures})
    text = json.dumps(parts, separators=(",", ":"))
    GATE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
