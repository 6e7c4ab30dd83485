"""`search` and `sweep --reference`: the search spaces of Calculon, NERSC's model and AMPeD."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwise.analysis.reference_results import known_reference
from shardwise.cli.options import flag_fault, refuse_options
from shardwise.cli.output import (
    Bar,
    check_different_files,
    check_size,
    log,
    note,
    progress_bar,
    show,
)
from shardwise.cli.space import ReferenceOptions
from shardwise.config import files
from shardwise.predecessors.nersc.results import is_results_file, rows_of, write_grid
from shardwise.predecessors.nersc.search import points_of
from shardwise.predecessors.search import Progress, ReferenceQuery, reference_record, refuse_others
from shardwise.units import readable

_NEEDS_SEARCH = "needs a search; --count only counts"
_AXES_OF_A_MAP = 2


def search_reference(
    reference: str,
    query: Mapping[str, Any],
    options: ReferenceOptions,
    *,
    plot: str | None,
    json: bool,
    output: str | None,
) -> Mapping[str, object]:
    """Search or count the space of another model; print and return its record."""
    return _search(
        known_reference(reference, "reference"),
        ReferenceQuery(**query),
        options,
        plot=plot,
        json=json,
        output=output,
    )


def _search(
    name: str,
    query: ReferenceQuery,
    options: ReferenceOptions,
    *,
    plot: str | None,
    json: bool,
    output: str | None,
) -> Mapping[str, object]:
    ours: dict[str, Any] = {"save": query.save, "axes": query.axes, "plot": plot}
    ours |= {"jobs": query.jobs, "tokens": query.tokens}
    refuse_others(name, ours | options.entered())
    save = None if query.save is None else str(query.save)
    check_different_files(output=output, plot=plot, save=save)
    query = replace(query, **options.arguments())
    if query.count:
        theirs = {"layers": query.layers, "mbs_break": query.mbs_break}
        refuse_options(_NEEDS_SEARCH, **theirs, save=query.save, axes=query.axes, plot=plot)
    if plot is not None and name == "calculon":
        axes = query.axes or "tp,pp"
        if len(axes.split(",")) < _AXES_OF_A_MAP:
            raise flag_fault("axes", axes, "a heat map needs two fields, as in tp,pp")
        query = replace(query, axes=axes)
    _check_plot(plot)
    with progress_bar("candidates", counted=False) as bar:
        record = reference_record(name, replace(query, progress=_progress(bar)))
    lacks = "nothing is feasible" if record.get("best") == [] else ""
    print_tables = _PRINT[name]
    show(lambda: record, lambda: print_tables(record), json=json, output=output, lacks=lacks)
    _draw(record, plot)
    return record


def _progress(bar: Bar | None) -> Progress | None:
    return None if bar is None else lambda done, total, _: bar(done, total, "")


def _check_plot(plot: str | None) -> None:
    if plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(plot)


def _draw(record: Mapping[str, Any], plot: str | None) -> None:
    """Write the charts of a search, if there is anything to draw."""
    if plot is None:
        return
    if not record["best"]:
        note(f"not written: {plot}: nothing is feasible")
        return
    if record["reference"] == "nersc":
        from shardwise.predecessors.nersc import charts as nersc  # noqa: PLC0415 - slow to import

        searches = record.get("searches", [record])
        axes = {name: [one[name] for one in searches] for name in record.get("axes", ())}
        nersc.write_charts(rows_of(searches), plot, axes=axes)
    else:
        from shardwise.predecessors.calculon import charts as calculon  # noqa: PLC0415 - slow to import

        calculon.write_charts(record, plot)
    log.info("wrote %s", plot)


def sweep_nersc(
    fields: Mapping[str, Any], *, plot: str | None, large: bool, json: bool, output: str | None
) -> bool:
    """Search at every value of the varied figures; print them; return whether any is feasible."""
    query = ReferenceQuery(**fields)
    check_different_files(output=output, plot=plot)
    grid = output if output is not None and is_results_file(output) else None
    if grid is not None:
        files.check_output_path(grid)
        output = None
    elif output is not None:
        files.check_writable_ending(output)
    check_size(len(points_of(query)), large=large)
    _check_plot(plot)
    with progress_bar("searches", counted=False) as bar:
        record = reference_record("nersc", replace(query, progress=_progress(bar)))
    if grid is not None:
        write_grid(grid, record.get("searches", [record]))
        log.info("wrote %s", grid)
    if grid is None or json:
        show(lambda: record, lambda: _print_nersc(record), json=json, output=output)
    _draw(record, plot)
    return bool(record["best"])


def _print_calculon(record: Mapping[str, Any]) -> None:
    from shardwise.predecessors.calculon.tables import print_executions, print_layers  # noqa: PLC0415 - slow

    summary = f"Calculon's space: {record['candidates']:,} candidates, "
    summary += f"{record['network_feasible']:,} of them fit the networks"
    if "good" in record:
        rejected = ", ".join(f"{name} {n:,}" for name, n in record["rejected"].items() if n)
        summary += f"; {record['good']:,} are feasible, found in {record['elapsed_s']:.2f} s"
        summary += f"\nrejected: {rejected}" if rejected else ""
    best = record.get("best", [])
    print_executions([(entry["execution"], entry["stats"]) for entry in best], summary)
    if record.get("cells"):
        cells = [(cell["execution"], cell["stats"]) for cell in record["cells"]]
        print_executions(cells, f"The best by {' and '.join(record['axes'])}")
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])


def _print_nersc(record: Mapping[str, Any]) -> None:
    """Print one search with its ten best, or several with the best of each."""
    from shardwise.predecessors.nersc.tables import (  # noqa: PLC0415 - slow to import
        print_configurations,
        print_layers,
        print_searches,
    )

    if "searches" in record:
        print_searches(record["searches"], record["elapsed_s"])
        return
    summary = f"NERSC's space of {record['method']}, domains of {record['domain']}: "
    summary += f"{record['candidates']:,} candidates"
    if "feasible" in record:
        summary += f"; {record['feasible']:,} are feasible, found in {record['elapsed_s']:.2f} s"
    if "reason" in record:
        summary += f"\n{record['reason']}"
    best = record.get("best", [])
    print_configurations(best, summary)
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])


def _print_amped(record: Mapping[str, Any]) -> None:
    from shardwise.predecessors.amped.tables import print_permutations  # noqa: PLC0415 - slow

    summary = f"AMPeD's permutations of {record['gpus']:,} accelerators: "
    summary += f"{record['candidates']:,}, of which {record['good']:,} fit "
    summary += "nodes"
    if "best" in record:
        summary += f"; all timed in {readable(record['elapsed_s'], 'seconds')}"
        summary += f"\ntime: of {record['tokens_to_train']:,} tokens"
    print_permutations(record.get("best", []), summary)


_PRINT: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "calculon": _print_calculon,
    "nersc": _print_nersc,
    "amped": _print_amped,
}
