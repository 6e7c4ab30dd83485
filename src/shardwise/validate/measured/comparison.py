"""Measured runs as a predecessor predicts them, beside what we predict for the very same ones."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwise.config.files import finite
from shardwise.validate.measured.statistics import Summary, signed_errors, summary

__all__ = ["Beside", "ReferenceScore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One run with two predictions of the time of its step [s]."""

    id: str
    measured_s: float | None
    ours_s: float
    theirs_s: float | None = None
    refused: str | None = None
    """Why the predecessor says nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the predecessor's prediction with its error, or why there is none.

        Examples
        --------
        >>> Beside(id="x", measured_s=2.0, ours_s=2.0, theirs_s=3.0).to_dict()
        {'predicted_step_time_s': 3.0, 'error': 0.5}
        """
        if self.theirs_s is None:
            return {"refused": self.refused}
        error = None if self.measured_s is None else self.theirs_s / self.measured_s - 1
        return {"predicted_step_time_s": self.theirs_s, "error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScore:
    """Errors of a predecessor over the runs that it can express, and ours over the same runs."""

    rows: int
    refused: int
    """Runs that the predecessor has no words for."""
    theirs: Summary
    ours: Summary

    @classmethod
    def of(cls, pairs: Sequence[Beside]) -> "ReferenceScore":
        """Score pairs; those without a measured time count as rows alone."""
        told = [
            (pair.measured_s, pair.ours_s, pair.theirs_s)
            for pair in pairs
            if pair.measured_s is not None and pair.theirs_s is not None
        ]
        measured, ours, theirs = np.array(told, dtype=np.float64).reshape(-1, 3).T
        return cls(
            rows=len(pairs),
            refused=sum(pair.refused is not None for pair in pairs),
            theirs=summary(signed_errors(theirs, measured)),
            ours=summary(signed_errors(ours, measured)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the predecessor's errors at the top."""
        record = {"rows": self.rows, "refused": self.refused, **asdict(self.theirs)}
        return dict(finite(record | {"ours": asdict(self.ours)}))
