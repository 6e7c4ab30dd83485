"""Where `estimate` writes what it found: files, a folder of them, or standard output."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.cli.options import emit_json, log, refuse_options
from shardwise.config import files
from shardwise.config.expressions.records import Resolved
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError

__all__ = ["Answer", "Wanted"]

_CSV = (".csv", ".csv.gz")
_REPORT_ENDING = ".txt"
_PRINTED = "-"
"""Stands for the standard output in place of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An estimate, and what it is of."""

    model: tuple[Model, Resolved]
    system: tuple[System, Resolved]
    strategy: Strategy
    result: Estimate
    record: Mapping[str, Any]
    """The estimate as plain values, with what goes beside it."""
    texts: Mapping[str, str]
    """Files of a predecessor's own, by name, for a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Files that were asked for."""

    json: bool
    output: str | None
    plot: str | None
    report: str | None
    graph: str | None
    out: str | None
    """A folder for all of them."""

    def check(self, *, gemms: bool) -> None:
        """Refuse files that cannot be what they are for, before any work.

        Parameters
        ----------
        gemms
            Whether there is a list of products, which CSV is for.
        """
        if self.json and self.report == _PRINTED:
            refuse_options("prints where --json does; give it a file", report=self.report)
        written = None if self.report == _PRINTED else self.report
        if self.out is not None:
            from shardwise.report.folder import check_folder  # noqa: PLC0415 - slow to import

            check_folder(self.out)
        if self.output is not None and not (gemms and self.output.lower().endswith(_CSV)):
            files.check_writable_ending(self.output)
        elif self.output is not None:
            files.check_output_path(self.output)
        if self.plot is None and written is None and self.graph is None:
            return
        from shardwise.cli.search_own import different_files  # noqa: PLC0415 - slow to import

        places = {"output": self.output, "plot": self.plot, "report": written, "graph": self.graph}
        different_files(places)
        if written is not None:
            _check_report(written)
        if self.plot is not None:
            from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

            check_chart_file(self.plot)
        if self.graph is not None:
            from shardwise.report.graph import check_graph_file  # noqa: PLC0415 - slow

            check_graph_file(self.graph)

    def write(self, answer: Answer) -> bool:
        """Write all of them; whether that leaves nothing to print as tables."""
        if self.graph is not None:
            _draw(self.graph, answer)
        if self.plot is not None:
            from shardwise.report.charts.estimate import write_charts  # noqa: PLC0415 - slow

            write_charts(answer.result, self.plot)
            log.info("wrote %s", self.plot)
        if self.output is not None:
            _write(answer, self.output)
        if self.out is not None:
            self._fill(self.out, answer)
        if self.json:
            emit_json(answer.record)
        if self.report is not None:
            _report(answer.result, self.report)
        return self.json or self.output is not None or self.report == _PRINTED

    def _fill(self, folder: str, answer: Answer) -> None:
        from shardwise.report.folder import write_folder  # noqa: PLC0415 - slow to import

        written = write_folder(
            folder,
            answer.result,
            answer.strategy,
            model=answer.model,
            system=answer.system,
            record=answer.record,
            texts=answer.texts,
            now=datetime.now().astimezone(),
        )
        for one in written:
            told = f"not written: {one.path.name}: {one.problem}"
            sys.stderr.write(f"{told if one.problem else f'wrote {one.path}'}\n")


def _check_report(path: str) -> None:
    """Refuse a file whose ending says that it is no plain text."""
    if not path.lower().removesuffix(".gz").endswith(_REPORT_ENDING):
        problem = f"cannot be written; allowed: {_REPORT_ENDING}, also .gz, or {_PRINTED} to print"
        raise InputError(Fault(source=path, field="report", problem=problem))
    files.check_output_path(path)


def _draw(path: str, answer: Answer) -> None:
    """Write the compute graph."""
    from shardwise.analysis.graph.build import graph_of  # noqa: PLC0415 - slow to import
    from shardwise.report.graph import write_graph  # noqa: PLC0415 - slow to import

    write_graph(graph_of(answer.model[0], answer.system[0], answer.strategy), path)
    log.info("wrote %s", path)


def _write(answer: Answer, output: str) -> None:
    """Write an estimate as JSON or YAML; only its matrix products, if it has any, as CSV."""
    if answer.result.gemms is not None and output.lower().endswith(_CSV):
        from shardwise.report.tables.gemms import gemms_csv  # noqa: PLC0415 - slow to import

        files.write_text(output, gemms_csv(answer.result))
    else:
        emit_json(answer.record, output)


def _report(result: Estimate, report: str) -> None:
    """Write every term of an estimate on a line of its own, or print it."""
    from shardwise.report.breakdown_text import breakdown_text  # noqa: PLC0415 - slow to import

    if report == _PRINTED:
        sys.stdout.write(breakdown_text(result))
    else:
        files.write_text(report, breakdown_text(result))
        log.info("wrote %s", report)
