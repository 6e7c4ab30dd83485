"""`shardwise convert`."""

import sys
from collections.abc import Mapping
from typing import Any

from shardwise.cli.help import with_help
from shardwise.cli.options import OUTPUT_OPTION, arg, opt, refuse_options
from shardwise.cli.output import emit_json, log
from shardwise.cli.streams import is_unicode
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.plain import as_yaml
from shardwise.errors import Fault, InputError
from shardwise.foreign import is_launch
from shardwise.planning.search.results import SearchResult
from shardwise.planning.sweep.results import SweepResult
from shardwise.predecessors.conversion import CONFIGS, TARGETS, convert, is_in_catalog, kind_of
from shardwise.predecessors.nersc.results import is_results_file, read_results, record_of, rows_of
from shardwise.report.search_csv import (
    PARTS,
    foreign_search,
    frame,
    is_result,
    is_sweep,
    read_result,
    table,
)

# A search may list thousands of strategies, each with all of its detail.
_MOST_BYTES = 2**28
_TWICE = "repeats OUT, which is short for it"
_NOT_FOR_A_TABLE = "has no effect on the table of a result"
_NOT_FOR_CHARTS = "has no effect on charts, which show the full result"
_ALL_ROWS = "has no effect on a result of NERSC's search: all rows are written"
_NO_CHARTS = "has no charts; only the results of shardwise's search and sweep have"
_RECORDS = (".json", ".json.gz")
_CHARTS = (".html", ".png", ".svg", ".pdf")
_NOT_A_RESULT = "is for the result of a search"
_NOT_OF_A_SWEEP = "has no effect on a sweep: all rows are written"


@with_help(
    examples=[
        "shardwise convert execution.json strategy.yaml",
        "shardwise convert found.json plans.csv",
    ]
)
def command(
    file: str = arg(
        "FILE",
        "shardwise, Calculon, SimuMax, NERSC, AMPeD or Hugging Face file, recognized by "
        "its content.",
    ),
    out: str | None = arg(
        "[OUT]",
        "File to write: .yaml, .json; for the result of a search or sweep .csv, "
        ".csv.gz, .parquet, or .html, .png, .svg, .pdf for its charts; of NERSC's .npy .json, too. "
        "Standard output if omitted.",
        default=None,
    ),
    to: str | None = opt(f"--to {'|'.join(TARGETS)}", "Format of another tool."),
    kind: str | None = opt(
        f"--kind {'|'.join(CONFIGS)}",
        "What the file contains, if its keys are ambiguous; what to write of an AMPeD "
        "configuration, which contains the first three (default: model).",
    ),
    model: str | None = opt("--model MODEL", "Model of a strategy for Calculon."),
    system: str | None = opt("--system SYSTEM", "System of a strategy for Calculon."),
    rows: str | None = opt(
        f"--rows {'|'.join(PARTS)}", "Part of a search to write. Default: best."
    ),
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Convert a model, system or strategy between formats; write a result as a table or charts.

    shardwise files have units (80 GiB). The result of `search --json` (also Calculon's), `sweep
    --json` or NERSC's search (.npy) becomes a table with one row per strategy; a shardwise result
    also a page of charts.
    """
    if out is not None:
        refuse_options(_TWICE, output=output)
    output = out if output is None else output
    if kind is None and _is_result(file):
        refuse_options(_NOT_FOR_A_TABLE, to=to, model=model, system=system)
        _write_result(file, rows, output)
        return 0
    refuse_options(_NOT_A_RESULT, rows=rows)
    if output is not None and files.is_table_file(output):
        problem = f"is a {kind or kind_of(file)}; only the result of a search can become a table"
        raise InputError(Fault(source=file, problem=problem))
    options: dict[str, Any] = {"to": to, "kind": kind, "model": model, "system": system}
    found = convert(file, **options)
    if not isinstance(found, ConfigBase):
        emit_json(found, output, written=False)
    elif output is not None:
        found.to_file(output)
    else:
        data = found.to_dict(units=True)
        sys.stdout.write(as_yaml(data, escaped=not is_unicode(sys.stdout)))
    return 0


def _write_result(file: str, part: str | None, output: str | None) -> None:
    """Write the result of a search or sweep as a table or as charts, or print it as CSV."""
    stored = is_results_file(file)
    data = {} if stored else files.read_mapping(file, most_bytes=_MOST_BYTES)
    swept = is_sweep(data)
    if stored or swept:
        refuse_options(_ALL_ROWS if stored else _NOT_OF_A_SWEEP, rows=part)
    if output is not None and output.lower().endswith(_CHARTS):
        refuse_options(_NOT_FOR_CHARTS, rows=part)
        if stored:
            from shardwise.predecessors.nersc import charts as nersc_charts  # noqa: PLC0415 - slow

            nersc_charts.write_charts(read_results(file), output)
        else:
            _write_charts(data, file, output)
    elif stored and output is not None and output.lower().endswith(_RECORDS):
        emit_json(record_of(read_results(file)), output)
        return
    elif output is not None and not files.is_table_file(output):
        endings = ", ".join((*files.TABLE_ENDINGS, *_CHARTS, *(_RECORDS if stored else ())))
        problem = f"a {'sweep' if swept else 'search'} result can be written as {endings}"
        raise InputError(Fault(source=output, problem=problem))
    else:
        rows = frame(read_results(file), source=file) if stored else _rows(data, file, part)
        if output is None:
            sys.stdout.write(rows.write_csv())
            return
        files.write_table(rows, output)
    log.info("wrote %s", output)


def _rows(data: Mapping[str, object], file: str, part: str | None) -> Any:
    """The table of a shardwise result, as of `show -o`, or of another tool's search."""
    if foreign_search(data) == "nersc" and "searches" in data:
        return frame(_nersc_rows(data, file)[0], source=file)
    return table(data, source=file, part=part or "best")


def _write_charts(data: Mapping[str, object], file: str, output: str) -> None:
    from shardwise.report.charts import search as search_charts  # noqa: PLC0415 - slow to import
    from shardwise.report.charts import sweep as sweep_charts  # noqa: PLC0415

    found = read_result(data, file)
    if isinstance(found, SweepResult):
        sweep_charts.write_charts(found, output)
    elif isinstance(found, SearchResult):
        search_charts.write_charts(found, output)
    elif (tool := foreign_search(data)) is not None:
        _write_foreign_charts(tool, data, file, output)
    else:
        raise InputError(Fault(source=file, problem=_NO_CHARTS))


def _write_foreign_charts(tool: str, data: Mapping[str, object], file: str, output: str) -> None:
    """Draw the heat map of Calculon's search; say what has no charts."""
    if tool == "calculon" and data.get("axes") and data.get("cells"):
        from shardwise.predecessors.calculon.charts import check, write_charts  # noqa: PLC0415 - slow

        check(data, file)
        write_charts(data, output)
        return
    if tool == "nersc":
        from shardwise.predecessors.nersc import charts as nersc_charts  # noqa: PLC0415 - slow to import

        rows, axes = _nersc_rows(data, file)
        nersc_charts.write_charts(rows, output, axes=axes)
        return
    problem = f"is the result of a search by {tool}, of which there are no charts; write it as .csv"
    if tool == "calculon":
        problem = "is the result of Calculon's search with its best executions only; no charts of "
        problem += "them: write it as .csv, or search with --axes tp,pp for a heat map"
    raise InputError(Fault(source=file, problem=problem))


def _nersc_rows(
    data: Mapping[str, Any], file: str
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Configurations of one or several searches of NERSC's model; values of varied figures."""
    try:
        searches, names = data.get("searches", [data]), data.get("axes", ())
        rows = rows_of(searches)
        axes = {name: [float(one[name]) for one in searches] for name in names}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"looks like a result, but an entry is incomplete: {error!r}"
        raise InputError(Fault(source=file, problem=problem)) from None
    if not rows:
        raise InputError(Fault(source=file, problem="has no feasible configuration"))
    return rows, axes


def _is_result(file: str) -> bool:
    """Whether a file is the result of a search or sweep."""
    if is_results_file(file):
        return True
    if any(is_in_catalog(file, config) for config in CONFIGS.values()) or is_launch(file):
        return False
    data = files.read_mapping(file, most_bytes=_MOST_BYTES)
    return is_result(data) or is_sweep(data)
