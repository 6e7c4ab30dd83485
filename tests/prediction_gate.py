"""The gate on predictions: 20,000 stored ones, those of now, and what moved.

`data/predictions.json.xz` holds for pairs of model and system the drawn strategies, and of each its
step time and memory to 11 digits, or null where it was refused. The file and not the commit before
is the reference because checkouts of CI may lack that commit.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drawn_questions import Drawing, pairs
from moved import Case, report
from shardwise import InputError, Strategy, estimate_many

GATE = Path(__file__).parent / "data" / "predictions.json.xz"
RTOL = 1e-9
"""Versions of numpy and instructions of CPUs sum in another order; this is far above that."""
ACCEPT = "if this is meant: python scripts/golden.py accept, and a line in CHANGELOG.md"
_MODELS, _ANSWERED, _REFUSED = 2, 150, 78

Part = dict[str, Any]
"""A model, a system, strategies (`rows`), and a list of [step time, memory] or null."""


def drawn() -> list[Part]:
    """Draw models, systems and strategies."""
    return [
        {
            "model": model,
            "system": system,
            "rows": Drawing(model=model, system=system).selected(
                answered=_ANSWERED, refused=_REFUSED
            ),
        }
        for model, system in pairs(_MODELS)
    ]


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


def cases(parts: Sequence[Part]) -> list[Case]:
    """Stored predictions with those of now. Of refused strategies the reason may change."""
    found = []
    for part in parts:
        pair = {"model": part["model"], "system": part["system"]}
        answers = predicted(**pair, rows=part["rows"])
        for row, was, now in zip(part["rows"], part["figures"], answers, strict=True):
            old = _answer(was) if was or now["code"] == 0 else now
            found.append(Case(name=" ".join(pair.values()), settings=row, old=old, new=now))
    return found


def moved(parts: Sequence[Part]) -> list[str]:
    """Lines on what moved, and the command that accepts it; none if nothing did."""
    lines = report(cases(parts), RTOL)
    return [*lines, ACCEPT] if lines else []


def stored() -> list[Part]:
    """The stored predictions."""
    parts: list[Part] = json.loads(lzma.decompress(GATE.read_bytes()))
    return parts


def accept() -> None:
    """Draw strategies from the catalog and fields of now, and store their predictions."""
    parts = drawn()
    for part in parts:
        part["figures"] = [
            [float(f"{answer[name]:.10e}") for name in ("step_time_s", "memory_bytes")]
            if answer["code"] == 0
            else None
            for answer in predicted(part["model"], part["system"], part["rows"])
        ]
    text = json.dumps(parts, separators=(",", ":"))
    GATE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
