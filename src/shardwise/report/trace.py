"""`trace`: the timeline of one strategy as a summary, and as a file for Perfetto or PyTorch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from shardwise.analysis.timeline.actions import KINDS
from shardwise.analysis.timeline.step import (
    StepTimeline,
    passes_in_step,
    rank_totals,
    step_timeline,
)
from shardwise.config import files
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Model, ModelLike
from shardwise.config.plain import plain
from shardwise.config.strategy_input import StrategyLike, strategy_of
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_flags
from shardwise.frozen import FrozenRecord
from shardwise.parallel.constraints import refuse_illegal
from shardwise.report.memory_snapshot import as_pickle, memory_snapshot
from shardwise.report.trace_events import Event, trace_events
from shardwise.shown import Charted

# About 1 kB of JSON each: files that Perfetto opens in a few seconds.
_MOST_WRITTEN = 100_000
# Simulated in about ten seconds and a gigabyte.
_MOST_SIMULATED = 1_000_000
_SNAPSHOT = ".pickle"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trace(FrozenRecord, Charted):
    """The timeline of one step of one strategy.

    Examples
    --------
    >>> from shardwise import trace
    >>> step = trace("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> step.timeline.fits, len(step.to_dict()["ranks"])
    (True, 2)
    """

    model: str
    system: str
    strategy: Mapping[str, Any]
    """All fields, defaults filled in."""
    timeline: StepTimeline
    micro_batches: int | None
    """Write the first so many one by one; None: all."""
    operations: bool
    """Whether to write the kernels of one micro-batch."""

    def to_dict(self) -> dict[str, Any]:
        """Return the summary: times and peak memory of every rank."""
        line = self.timeline
        return {
            "model": self.model,
            "system": self.system,
            "strategy": plain(self.strategy),
            "micro_batches": line.pipeline.micro_batches,
            "passes": len(line.actions),
            "step_time_s": line.step_s,
            "estimated_step_time_s": line.estimated_s,
            "fits": line.fits,
            "passes_s": line.passes_s,
            "after_s": dict(line.after_s),
            "ranks": self._ranks(),
        }

    def _ranks(self) -> list[dict[str, Any]]:
        line, totals = self.timeline, rank_totals(self.timeline)

        def named(columns: Mapping[str, Any], rank: int) -> dict[str, float]:
            return {name: float(column[rank]) for name, column in columns.items()}

        return [
            {
                "rank": rank,
                "holds": line.rank_label(rank),
                "compute_s": named(totals.kernels_s, rank),
                "exchanges_s": named(totals.exposed_s, rank),
                "transfers_s": float(totals.transfers_s[rank]),
                "idle_s": float(totals.idle_s[rank]),
                "static_bytes": float(line.static_bytes[rank]),
                "peak_bytes": float(totals.peak_bytes[rank]),
                "peak_s": float(totals.peak_s[rank]),
                "peak_in": _action(line, totals.peak_action[rank]),
            }
            for rank in range(line.pipeline.ranks)
        ]

    def to_chrome(self) -> dict[str, Any]:
        """Return the step in the Trace Event Format.

        Raises
        ------
        InputError
            If it has too many passes for a file that can be opened.
        """
        return self._around() | {"traceEvents": list(chain.from_iterable(self._events()))}

    def to_snapshot(self) -> dict[str, object]:
        """Return the memory of every rank as a snapshot of PyTorch's allocator."""
        if (passes := len(self.timeline.actions)) > _MOST_WRITTEN:
            problem = (
                f"{passes:,} passes are more than the {_MOST_WRITTEN:,} that a memory snapshot may "
                "hold; a smaller batch shows the same pattern"
            )
            batch = self.strategy["global_batch_size"]
            raise InputError.of("global_batch_size", batch, problem)
        return memory_snapshot(self.timeline, offloaded=self.strategy["offload_activations"])

    def to_file(self, path: str | Path) -> None:
        """Write `to_chrome` (`.json`, `.json.gz`) or `to_snapshot` (`.pickle`), or nothing."""
        check_trace_file(path)
        if is_snapshot_file(path):
            files.write_bytes(path, as_pickle(self.to_snapshot()))
            return
        # Rank by rank: all events as objects take ten times the memory.
        listed = ",\n".join(_json(events)[1:-1] for events in self._events())
        around = _json(self._around())[:-1]
        files.write_text(path, f'{around},"traceEvents":[\n{listed}\n]}}\n')

    def _around(self) -> dict[str, object]:
        """The contents of the file besides events."""
        config = {"model": self.model, "system": self.system, "strategy": self.strategy}
        time = {"step_time_s": self.timeline.step_s}
        return {"displayTimeUnit": "ms", "otherData": plain(config | time)}

    def _events(self) -> Iterator[list[Event]]:
        self._check_size()
        return trace_events(self.timeline, self.micro_batches, operations=self.operations)

    def _check_size(self) -> None:
        every = self.timeline.pipeline.micro_batches
        written = every if self.micro_batches is None else min(self.micro_batches, every)
        passes = len(self.timeline.actions) * written // every
        if passes > _MOST_WRITTEN:
            fewer = max(1, _MOST_WRITTEN * every // len(self.timeline.actions))
            problem = (
                f"{passes:,} passes on {self.timeline.pipeline.ranks} ranks are more than the "
                f"{_MOST_WRITTEN:,} that a file may hold; write at most {fewer}"
            )
            raise InputError.of("micro_batches", written, problem)


def trace(
    model: ModelLike,
    system: SystemLike,
    strategy: StrategyLike | None = None,
    *,
    micro_batches: int | None = None,
    operations: bool = False,
    **fields: Unpack[StrategyKeywords],
) -> Trace:
    """Simulate one step of one strategy, pass by pass.

    Parameters
    ----------
    model, system, strategy, **fields
        As for `estimate`.
    micro_batches
        Write only the first so many one by one; all are simulated.
    operations
        Whether to write every kernel of one micro-batch too.

    Returns
    -------
    Trace
        The timeline of the step; `help(shardwise.Trace)` lists its fields.

    Raises
    ------
    InputError
        If any argument is wrong; one fault for each problem.

    Examples
    --------
    >>> from shardwise import trace
    >>> step = trace("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> len(step.to_dict()["ranks"])
    2
    """
    check_flags(operations=operations)
    is_integer = isinstance(micro_batches, int) and not isinstance(micro_batches, bool)
    if micro_batches is not None and not (is_integer and micro_batches >= 1):
        problem = "must be a whole number of at least 1"
        place = {"field": "micro_batches", "problem": problem}
        raise InputError(Fault(**place, value=micro_batches, has_value=True))
    the_model, the_system = Model.load(model), System.load(system)
    resolved = strategy_of(strategy, fields).resolved(the_model, the_system.stack)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    passes = passes_in_step(table)
    if passes > _MOST_SIMULATED:
        problem = (
            f"{passes:,} passes are more than the {_MOST_SIMULATED:,} that are simulated; "
            "a smaller batch shows the same pattern"
        )
        batch = int(table.global_batch_size[0])
        raise InputError.of("global_batch_size", batch, problem)
    return Trace(
        model=the_model.name,
        system=the_system.name,
        strategy=resolved.to_dict(),
        timeline=step_timeline(the_model, the_system, table),
        micro_batches=micro_batches,
        operations=operations,
    )


def check_trace_file(path: str | Path) -> None:
    """Raise an `InputError` if a trace cannot be written to a file, before it is made."""
    if not str(path).lower().endswith((".json", ".json.gz", _SNAPSHOT)):
        problem = f"cannot be written; allowed endings: .json, .json.gz, {_SNAPSHOT}"
        raise InputError.at(path, problem)
    files.check_output_path(path)


def is_snapshot_file(path: str | Path) -> bool:
    """Tell by its ending whether a file is for PyTorch's memory viewer."""
    return str(path).lower().endswith(_SNAPSHOT)


def _json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _action(line: StepTimeline, at: int | None) -> str:
    """An action by its kind, micro-batch and chunk: `B 3 c1`; or the weight update."""
    if at is None:
        return "update"
    actions = line.actions
    chunk = f" c{actions.chunk[at]}" if line.pipeline.chunks_on_rank > 1 else ""
    return f"{KINDS[int(actions.kind[at])]} {actions.micro_batch[at]}{chunk}"
