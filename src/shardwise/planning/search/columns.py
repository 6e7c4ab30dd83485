"""Candidates as the rows of a file: what is judged is written down, nothing is evaluated again."""

import io
from typing import TYPE_CHECKING

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import Kind, names_of
from shardwise.config.strategy_table import Table
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.estimator import rates
from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.planning.search.candidates import CHOICE_FIELDS, OPTION_FIELDS, Box
from shardwise.planning.search.evaluate import Evaluated, Fitting
from shardwise.planning.search.layouts import LAYOUT_FIELDS
from shardwise.planning.search.scan import MEMORY, SECOND_MEMORY, Question
from shardwise.planning.search.selection import PASSED

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FIGURES", "Rows", "no_rows"]

_RATES = ("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")
FIGURES = (
    *_RATES,
    *(f"{part}_s" for part in TIME_PARTS),
    *(f"{part}_bytes" for part in (*MEMORY_PARTS, "total", "reserved", "offloaded")),
)
"""Columns of what was computed: times, rates and memory."""

# What a code says of a row: the rule that it breaks, the memory that it lacks, why it is passed
# over, or nothing.
_REASONS = (*(rule.reason for rule in CONSTRAINTS), MEMORY, SECOND_MEMORY, *PASSED, None)
_MEMORY, _SECOND_MEMORY, _PASSED = range(len(CONSTRAINTS), len(CONSTRAINTS) + 3)
_FEASIBLE = len(_REASONS) - 1


class Rows:
    """Rows of the candidates of a box, collected as they are judged (see `look.Witness`)."""

    def __init__(self, question: Question, box: Box, *, rejected: bool) -> None:
        self._question, self._box, self._rejected = question, box, rejected
        self._numbers: list[Ints] = []
        self._codes: list[Ints] = []
        self._figures: list[dict[str, Floats]] = []

    def layouts(self) -> None:
        """Take down a box whose layouts all break a rule."""
        numbers = self._box.start + np.arange(len(self._box))
        self._add(numbers, np.repeat(self._box.broken, self._box.width), {})

    def options(self, broken: Ints) -> None:
        """Take down the candidates whose options or choices break a rule."""
        if self._rejected:
            row, choice = np.nonzero(broken.T >= 0)
            self._add(self._box.numbers(row, choice), broken[choice, row], {})

    def judged(self, judged: Evaluated) -> None:
        """Take down the candidates whose memory was checked."""
        kept = judged.legal if self._rejected else judged.feasible
        row, choice = np.nonzero(kept.T)
        full = judged.too_full(self._question.capacity_bytes)
        code = np.where(judged.feasible, _FEASIBLE, np.where(full, _MEMORY, _SECOND_MEMORY))
        code = np.where(judged.passed >= 0, _PASSED + judged.passed, code)
        figures = _memory(judged)
        if judged.fitting is not None:
            figures |= _times(self._question, judged.fitting, kept.shape)
        taken = {name: column[choice, row] for name, column in figures.items()}
        self._add(self._box.numbers(judged.rows[row], choice), code[choice, row], taken)

    def _add(self, numbers: Ints, codes: Ints, figures: dict[str, Floats]) -> None:
        self._numbers.append(numbers)
        self._codes.append(codes)
        self._figures.append(figures)

    def frame(self) -> "pl.DataFrame":
        """Return the rows by number of the candidate."""
        numbers = np.concatenate([*self._numbers, np.empty(0, np.int64)])
        order = np.argsort(numbers, kind="stable")
        codes = np.concatenate([*self._codes, np.empty(0, np.int64)])
        figures = {name: self._column(name)[order] for name in FIGURES}
        strategies = _strategies(self._box, numbers[order])
        return _beside(strategies, numbers[order], figures, codes[order])

    def _column(self, name: str) -> Floats:
        """One figure of all rows; NaN where it was not computed."""
        parts = [
            part.get(name, np.full(len(numbers), np.nan))
            for part, numbers in zip(self._figures, self._numbers, strict=True)
        ]
        return np.concatenate([*parts, np.empty(0)])

    def parquet(self) -> bytes:
        """Return the rows as a Parquet file."""
        return _parquet(self.frame())


def no_rows(model: Model) -> bytes:
    """Return a Parquet file of the same columns without a row."""
    none = np.empty(0, np.int64)
    one = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1})
    figures = dict.fromkeys(FIGURES, np.empty(0))
    return _parquet(_beside(_in_words(one).clear(), none, figures, none))


def _parquet(frame: "pl.DataFrame") -> bytes:
    content = io.BytesIO()
    frame.write_parquet(content, compression="lz4")  # quick: it is read once
    return content.getvalue()


def _beside(
    strategies: "pl.DataFrame", numbers: Ints, figures: dict[str, Floats], codes: Ints
) -> "pl.DataFrame":
    """Columns of a file: number, strategy, figures and reason; what was not computed is null."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    return strategies.select(
        pl.Series("candidate", numbers),
        pl.all(),
        *(pl.Series(name, column).fill_nan(None) for name, column in figures.items()),
        pl.Series("rejected", _REASONS, dtype=pl.String).gather(codes),
    )


def _memory(judged: Evaluated) -> dict[str, Floats]:
    """Bytes of every candidate judged, of shape (choices, rows)."""
    memory = judged.holding.memory
    columns = {f"{part}_bytes": getattr(memory, part) for part in MEMORY_PARTS}
    columns["total_bytes"] = memory.total
    columns["reserved_bytes"] = judged.holding.reserved_bytes
    columns["offloaded_bytes"] = memory.offloaded
    shape = judged.holding.reserved_bytes.shape
    return {n: np.broadcast_to(column, shape)[judged.held_as] for n, column in columns.items()}


def _times(question: Question, fitting: Fitting, shape: tuple[int, ...]) -> dict[str, Floats]:
    """Times and rates of every candidate that fits, NaN for the others; (choices, rows)."""
    timing, table = fitting.timing, fitting.table
    per_s = rates(question.model, question.system, table, timing, "causal")
    columns = {
        "step_time_s": timing.step_time_s,
        "tokens_per_s": per_s["tokens_per_s"],
        "tokens_per_s_per_gpu": per_s["tokens_per_s"] / table.gpus,
        "mfu": per_s["mfu"],
        **{f"{part}_s": timing.time_s[part] for part in TIME_PARTS},
    }
    return {name: _spread(column, fitting, shape) for name, column in columns.items()}


def _spread(column: Floats, fitting: Fitting, shape: tuple[int, ...]) -> Floats:
    whole = np.full(shape, np.nan)
    whole[:, fitting.rows] = np.where(fitting.feasible, column, np.nan)
    return whole


def _strategies(box: Box, numbers: Ints) -> "pl.DataFrame":
    """Candidates by number; a box has few layouts, options and choices, only these need words."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    layouts, options, choices = box.positions(numbers)
    parts = (
        (box.layouts, LAYOUT_FIELDS, layouts),
        (box.options, (*OPTION_FIELDS, "sequence_parallel"), options),
        (box.choices, CHOICE_FIELDS, choices),
    )
    columns: dict[str, pl.Series] = {}
    for table, names, rows in parts:
        words = _in_words(table)
        columns |= {name: words[name].gather(rows) for name in names}
    return pl.DataFrame([columns[name] for name in Strategy.model_fields])


def _in_words(table: Table) -> "pl.DataFrame":
    """Strategies as columns of words and numbers; a tier not given is null."""
    import polars as pl  # noqa: PLC0415 - heavy; only where rows are saved

    whole = pl.DataFrame(table.to_columns())
    counts = names_of(Kind.WHOLE, Kind.TIER, optional=True)
    texts = names_of(Kind.LIST, Kind.SET, optional=True)
    return whole.with_columns(
        pl.col(*counts).cast(pl.Float64).fill_nan(None).cast(pl.Int64),
        pl.col("expert_capacity").fill_nan(None),
        pl.col(*texts).replace("", None),
    )
