"""Results of a validation: rows of reference and prediction, and their errors by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from shardwise.config.base import Sourced

Kind = Literal["formula", "measured"]


class PublishedFigures(Sourced):
    """Figures of a suite and how to reproduce them, as files of `catalog/validation` have them."""

    CATALOG: ClassVar[str | None] = "validation"

    def source_text(self, field: str) -> str:
        """Return the source of a figure."""
        source = self.source_of(field)
        return "" if source is None else source.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a reference, our value, and the predecessor's."""

    case: str
    reference: float
    ours: float
    theirs: float | None
    """None if the predecessor has no value."""
    status: str | None = None
    """How certain the reference is, in suites that rate it."""
    groups: tuple[str, ...] = ()
    """Groups within its part, one of each kind."""

    @property
    def ours_error(self) -> float:
        """Ours over the reference, minus one."""
        return self.ours / self.reference - 1

    @property
    def their_error(self) -> float | None:
        """The predecessor's over the reference, minus one."""
        return None if self.theirs is None else self.theirs / self.reference - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one model over the rows of a part, as shares."""

    n: int
    mape: float
    """Mean of the absolute errors."""
    max: float
    """Largest absolute error."""
    bias: float
    """Mean of the signed errors."""
    median: float
    """Median of the signed errors."""
    median_ape: float
    """Median of the absolute errors."""
    p90: float
    """90th percentile of the absolute errors."""

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Score":
        """Score signed errors, one or more."""
        sizes = [abs(error) for error in errors]
        count = len(errors)
        return cls(
            n=count,
            mape=sum(sizes) / count,
            max=max(sizes),
            bias=sum(errors) / count,
            median=float(np.median(errors)),
            median_ape=float(np.median(sizes)),
            p90=float(np.quantile(sizes, 0.9)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a part compares, in sentences."""

    reference: str
    ours: str
    theirs: str | None
    """None if the predecessor has no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of one figure or table of a reference, in one unit."""

    name: str
    title: str
    unit: str
    kind: Kind
    """Whether the reference is a formula or was measured."""
    source: str
    """Source of the reference."""
    compared: Compared
    rows: tuple[Row, ...]

    @property
    def groups(self) -> dict[str, Score]:
        """Scores of our estimates by group, kind by kind, smaller numbers first."""
        return {name: Score.of([r.ours_error for r in rows]) for name, rows in self._grouped()}

    @property
    def their_groups(self) -> dict[str, Score]:
        """The predecessor's, of groups that it has values for."""
        errors = {
            name: [row.their_error for row in rows if row.their_error is not None]
            for name, rows in self._grouped()
        }
        return {name: Score.of(some) for name, some in errors.items() if some}

    def _grouped(self) -> Iterator[tuple[str, list[Row]]]:
        several = zip(*(row.groups for row in self.rows), strict=True)
        names = [name for kind in several for name in sorted(set(kind), key=_by_number)]
        for name in names:
            yield name, [row for row in self.rows if name in row.groups]

    @property
    def ours(self) -> Score:
        """Score of our estimates."""
        return Score.of([row.ours_error for row in self.rows])

    @property
    def theirs(self) -> Score | None:
        """Score of the predecessor's; None if it has none."""
        errors = [row.their_error for row in self.rows if row.their_error is not None]
        return Score.of(errors) if errors else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """Largest error that rows may have, and reasons for those beyond it."""

    limit: float
    """Largest absolute error."""
    source: str
    """Its source."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by name of a row: its part, a slash, its case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """All parts of a suite."""

    suite: str
    title: str
    predecessor: str
    """The predecessor whose figures are compared with ours."""
    parts: tuple[Part, ...]
    criterion: Criterion | None = None

    @property
    def beyond(self) -> dict[str, float]:
        """Rows whose error is beyond the criterion, with the error."""
        limit = float("inf") if self.criterion is None else self.criterion.limit
        return {
            _name(part, row): row.ours_error
            for part in self.parts
            for row in part.rows
            if abs(row.ours_error) > limit
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: rows of all parts, scores, and descriptions."""
        plain: dict[str, object] = {
            "suite": self.suite,
            "title": self.title,
            "rows": [
                _record(part, row, self.predecessor) for part in self.parts for row in part.rows
            ],
            "summary": {part.name: _summary(part, self.predecessor) for part in self.parts},
            "parts": {
                part.name: {
                    "title": part.title,
                    "unit": part.unit,
                    "kind": part.kind,
                    "source": part.source,
                    "compared": {
                        "reference": part.compared.reference,
                        "ours": part.compared.ours,
                        self.predecessor: part.compared.theirs,
                    },
                }
                for part in self.parts
            },
        }
        if self.criterion is not None:
            plain["criterion"] = self._criterion(self.criterion)
        return plain

    def _criterion(self, criterion: Criterion) -> dict[str, object]:
        rows = sum(len(part.rows) for part in self.parts)
        return {
            "limit": criterion.limit,
            "source": criterion.source,
            "n": rows,
            "within": rows - len(self.beyond),
            "beyond": [
                {"id": name, "error": error, "why": criterion.why.get(name)}
                for name, error in self.beyond.items()
            ],
        }


def _name(part: Part, row: Row) -> str:
    """Name of a row in its suite."""
    return f"{part.name}/{row.case}"


def _by_number(name: str) -> tuple[int, str]:
    """Sort key of names that differ in their first number: `2 nodes` before `16 nodes`."""
    return len(name), name


def _summary(part: Part, predecessor: str) -> dict[str, object]:
    """Scores of a part, and of its groups where it has some."""
    summary: dict[str, object] = {
        "n": len(part.rows),
        "kind": part.kind,
        "ours": _errors(part.ours),
        predecessor: None if part.theirs is None else _errors(part.theirs),
    }
    if part.groups:
        scores = part.groups.items()
        summary["groups"] = {name: {"n": score.n} | _errors(score) for name, score in scores}
    if part.their_groups:
        theirs = part.their_groups.items()
        summary[f"{predecessor}_groups"] = {
            name: {"n": score.n} | _errors(score) for name, score in theirs
        }
    return summary


def _record(part: Part, row: Row, predecessor: str) -> dict[str, Any]:
    """One row by the names of every suite; step times also by the names of measured runs."""
    record = {
        "id": _name(part, row),
        "part": part.name,
        "case": row.case,
        "unit": part.unit,
        "kind": part.kind,
        "reference": row.reference,
        "ours": row.ours,
        "ours_error": row.ours_error,
        "error": row.ours_error,
        predecessor: row.theirs,
        f"{predecessor}_error": row.their_error,
    }
    if row.status is not None:
        record["status"] = row.status
    if part.kind == "measured" and part.unit == "s":
        record |= {"measured_step_time_s": row.reference, "predicted_step_time_s": row.ours}
    if part.kind == "measured" and part.unit == "GiB":
        record |= {"measured_memory_gib": row.reference, "predicted_memory_gib": row.ours}
    return record


def _errors(score: Score) -> dict[str, float]:
    return {name: value for name, value in asdict(score).items() if name != "n"}
