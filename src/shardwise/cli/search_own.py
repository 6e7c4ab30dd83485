"""`shardwise search` in a space of our own: count it, search it, explain one strategy of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from shardwise.cli.options import emit_json, refuse_options
from shardwise.cli.progress import progress_bar
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.search.explain import explain
from shardwise.planning.search.objective import FRONTS
from shardwise.planning.search.results import SearchResult
from shardwise.planning.search.run import count as count_space
from shardwise.planning.search.run import search
from shardwise.planning.search.scan import Found
from shardwise.planning.search.space import SPACE_FIELDS, Space

__all__ = [
    "COMMAND_LINE",
    "count_strategies",
    "different_files",
    "explain_strategy",
    "field_pairs",
    "flag_fault",
    "given_once",
    "search_space",
    "show_record",
]

COMMAND_LINE = "command line"
_INTERRUPTED = 130


def flag_fault(flag: str, value: str, problem: str) -> InputError:
    """A fault of a flag's value."""
    place = {"source": COMMAND_LINE, "field": flag}
    return InputError(Fault(**place, value=value, has_value=True, problem=problem))


def count_strategies(
    model: str, system: str, space: Space, *, json: bool, output: str | None
) -> int:
    """Print the size of a space."""
    candidates, rejected = count_space(model, system, space)
    record = {"candidates": candidates, "rejected": rejected}

    def table() -> None:
        from shardwise.report.tables.search import print_count  # noqa: PLC0415 - slow to import

        print_count(candidates, rejected)

    show_record(record, table, json=json, output=output)
    return 0


def search_space(
    model: str,
    system: str,
    space: Space,
    asked: Mapping[str, Any],
    *,
    ok_if_none: bool,
    json: bool,
    output: str | None,
) -> int:
    """Search a space, print and write what was asked for."""
    against = asked["against"]
    if against is not None and not asked["pareto"]:
        raise flag_fault("against", against, "needs --pareto")
    if against is not None and against not in FRONTS:
        problem = f"allowed: {', '.join(FRONTS)}{nearest(against, FRONTS)}"
        raise flag_fault("against", against, problem)
    different_files({"output": output, "plot": asked["plot"], "save": asked["save"]})
    axes = () if asked["axes"] is None else tuple(a.strip() for a in asked["axes"].split(","))
    words = {
        name: asked[name]
        for name in ("objective", "top", "max_memory", "reserve", "save", "jobs", "backend", "run")
        if asked[name] is not None
    }
    if asked["levels"]:
        refuse_options("has no effect beside --levels", axes=asked["axes"], plot=asked["plot"])
        words["levels"] = True
    if asked["save_all"]:
        if asked["save"] is None:
            raise InputError(
                Fault(source=COMMAND_LINE, field="save_all", problem="needs --save FILE")
            )
        words["save_all"] = True
    if asked["plot"] is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(asked["plot"])
        axes = axes or ("tp", "pp")
    with progress_bar("strategies") as bar:
        result = search(
            model,
            system,
            space,
            axes=tuple(SHORT_NAMES.get(axis, axis) for axis in axes),
            pareto=(against or "memory") if asked["pareto"] else None,
            progress=None if bar is None else lambda *seen: bar(*_seen(*seen)),
            **words,
        )
    typer.echo(f"{result.looked_at:,} strategies in {result.elapsed_s:.2f} s", err=True)
    show_record(result.to_dict(), lambda: _print(result), json=json, output=output)
    if asked["plot"] is not None:
        from shardwise.report.charts.search import write_charts  # noqa: PLC0415 - slow

        write_charts(result, asked["plot"])
    if not result.complete:
        return _INTERRUPTED
    return 0 if ok_if_none or result.best else 1


def different_files(given: Mapping[str, str | None]) -> None:
    """Refuse one file for two things."""
    places: dict[Path, str] = {}
    for flag, name in given.items():
        if name is not None:
            other = places.setdefault(Path(name).absolute(), flag)
            if other != flag:
                raise flag_fault(flag, name, f"is the file of {other}, too")


def explain_strategy(
    model: str,
    system: str,
    space: Space,
    strategy: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    json: bool,
    output: str | None,
) -> int:
    """Say why a strategy is not legal, does not fit, or is not the best."""
    words = {n: asked[n] for n in ("objective", "max_memory", "reserve") if asked[n] is not None}
    with progress_bar("strategies") as bar:
        found = explain(
            model,
            system,
            space,
            strategy,
            progress=None if bar is None else lambda *seen: bar(*_seen(*seen)),
            **words,
        )

    def table() -> None:
        from shardwise.report.tables.explain import print_explanation  # noqa: PLC0415 - slow to import

        print_explanation(found)

    show_record(found.to_dict(), table, json=json, output=output)
    if not found.complete:
        return _INTERRUPTED
    return 0 if found.better is not None else 1


def _seen(done: int, whole: int, found: Found) -> tuple[int, int, str]:
    best = f"best {found.best.step_time_s[0]:.4g} s" if len(found.best) else "nothing fits yet"
    return done, whole, best


def _print(result: SearchResult) -> None:
    from shardwise.report.tables.search import print_search  # noqa: PLC0415 - slow to import

    print_search(result)


def show_record(
    record: Mapping[str, Any], table: Callable[[], None], *, json: bool, output: str | None
) -> None:
    """Write the record to a file, print it, or print tables."""
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        table()


def given_once(short: Mapping[str, str | None], **others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by all the flags that give them, if only one does."""
    fields = {name: value for name, value in short.items() if value is not None}
    for flag, given in others.items():
        for name, value in given.items():
            if name in fields:
                raise flag_fault(flag, f"{name}={value}", f"{name} is given twice")
        fields |= given
    return fields


def field_pairs(
    flag: str,
    given: Sequence[str],
    *,
    values: Literal["one", "several"],
    known: Sequence[str] = SPACE_FIELDS,
) -> dict[str, Any]:
    """Fields and values of ``--fix a=1,b=2`` or ``--allow a=1,2``."""
    found: dict[str, Any] = {}
    for text in given:
        for part in (text,) if values == "several" else text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            field = SHORT_NAMES.get(name, name.replace("-", "_"))
            if not equals or not value:
                problem = f"must be FIELD=VALUE{',...' if values == 'several' else ''}, as in tp=8"
                raise flag_fault(flag, part, problem)
            if field not in known:
                problem = f"no such field; allowed: {', '.join(known)}"
                raise flag_fault(flag, name, f"{problem}{nearest(name, (*known, *SHORT_NAMES))}")
            if values == "one" and (".." in value or value.lower() == "all"):
                raise flag_fault(flag, part, f"takes one value; give several by --allow {part}")
            if field in found:
                raise flag_fault(flag, part, f"{field} is given twice")
            found[field] = value
    return found
