"""What the tabs of the page show, as plain values; computed in worker processes.

Charts are those of `--plot`, as JSON of plotly, in the colors of the page.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.analysis.fit_probability import SURE
from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.report.charts.plans import degrees
from shardwise.report.console import GIB, chance, percent, seconds
from shardwise.web.bars import memory_html, time_html
from shardwise.web.questions import check_cost

View = dict[str, Any]
PLAN_FIELDS = (
    *("tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch_size"),
    *("recompute", "zero", "dispatcher"),
)
"""Fields of a strategy that the table of plans has columns for."""
_CLEAR = "rgba(0,0,0,0)"
_DARK_INK, _DARK_GRID = "#e6edf3", "#3a424c"
# Pixels: a title above a chart, what stays free there, and the least that a chart needs.
_TITLE_HEIGHT, _LEAST_MARGIN, _LEAST_HEIGHT = 66, 30, 160
_MOST_PLANS, _MOST_POINTS = 15, 200
_MOST_BYTES = 2**20
# Of micro-batches through virtual stages; they take some seconds.
_MOST_PASSES = 100_000


def inputs_of(question: Mapping[str, Any]) -> tuple[Model, System, Strategy]:
    """Load model, system with its changed figures, and strategy of a question of the page."""
    from shardwise.planning.sweep.axes import edited  # noqa: PLC0415 - slow to import

    system = edited(System.load(question["system"]), question.get("figures", {}))
    strategy = Strategy.validated(question["strategy"], source="strategy")
    return Model.load(question["model"]), system, strategy


def estimate_view(question: Mapping[str, Any], charts: Sequence[str], dark: bool) -> View:
    """Figures and charts of one strategy, or the faults that keep it from running."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        try:
            model, system, strategy = inputs_of(question)
            check_cost(model, strategy)
            found = estimate(model, system, strategy, operations="roofline" in charts)
            # What a reader should know of the figures.
            notes = []
            if found.unmeasured_features:
                named = ", ".join(found.unmeasured_features)
                notes.append(f"No measured run used {named}; the interval is wider for it.")
            drawn = _estimate_charts(found, (model, system, strategy), charts, notes)
        except InputError as error:
            return {"faults": [str(fault) for fault in error.faults]}
    return {
        "faults": [],
        "facts": facts(found),
        "notes": notes,
        "time": time_html(found),
        "memory": memory_html(found),
        "fits": found.fits and found.verdict == "fits",
        "charts": {name: themed(figure, dark=dark) for name, figure in drawn.items()},
    }


def facts(found: Estimate) -> list[tuple[str, str, str]]:
    """Main figures: name, value, and what stands below it."""
    interval = found.interval
    within = (
        f"8 of 10 runs: {seconds(interval.low_s)} to {seconds(interval.high_s)}" if interval else ""
    )
    memory = found.memory_bytes
    dollars = found.cost.usd_per_billion_tokens
    return [
        ("Step time", seconds(found.step_time_s), within),
        ("Tokens/s", f"{found.tokens_per_s:,.0f}", f"{found.tokens_per_s_per_gpu:,.0f} per GPU"),
        ("MFU", percent(found.mfu), f"{found.model_tflops_per_gpu:,.0f} TFLOP/s per GPU"),
        (
            "Memory",
            f"{memory.reserved / GIB:.1f} GiB",
            f"of {memory.capacity / GIB:.1f} GiB: {_fit_words(found)}",
        ),
        (
            "Cost",
            "-" if dollars is None else f"${dollars:,.0f}",
            found.cost.price_line if dollars is None else f"per billion tokens; {found.cost.price}",
        ),
    ]


def _fit_words(found: Estimate) -> str:
    """Whether it fits, and how likely."""
    word = found.verdict or "does not fit"
    likely = found.fits_probability
    return word if likely is None else f"{word}, {chance(likely)}"


def _estimate_charts(
    found: Estimate,
    inputs: tuple[Model, System, Strategy],
    wanted: Sequence[str],
    notes: list[str],
) -> dict[str, Any]:
    """Charts by name; a timeline that cannot be drawn is a note."""
    from shardwise.report.charts.roofline import roofline  # noqa: PLC0415 - plotly is slow to import
    from shardwise.report.charts.timeline import pipeline_timeline  # noqa: PLC0415
    from shardwise.report.trace import trace  # noqa: PLC0415

    drawn: dict[str, Any] = {}
    if "roofline" in wanted:
        drawn["roofline"] = roofline(found, inputs[1])
    passes = found.micro_batches * len(found.stages) * found.strategy["vpp"]
    if "timeline" in wanted and passes > _MOST_PASSES:
        notes.append(
            f"No timeline: {passes:,} passes of micro-batches are more than the {_MOST_PASSES:,} "
            "that a server simulates; a smaller batch shows the same pattern."
        )
    elif "timeline" in wanted:
        drawn["timeline"] = pipeline_timeline(trace(*inputs).timeline)
    return drawn


def themed(figure: Any, *, dark: bool) -> dict[str, Any]:
    """Return a figure as plotly's JSON, on the background of the page.

    Its title stays in `layout.meta` alone: the page shows it as text, which wraps on a phone.
    """
    drawn = dict(json.loads(figure.to_json()))
    layout = drawn["layout"]
    layout.pop("title", None)
    layout |= {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR, "autosize": True}
    above = layout.get("margin", {}).get("t", 0) - _TITLE_HEIGHT
    layout["margin"] = layout.get("margin", {}) | {"t": max(_LEAST_MARGIN, above)}
    if "height" in layout:
        layout["height"] = max(_LEAST_HEIGHT, layout["height"] - _TITLE_HEIGHT)
    if dark:
        layout["font"] = layout.get("font", {}) | {"color": _DARK_INK}
        for name, axis in layout.items():
            if name.startswith(("xaxis", "yaxis")):
                axis |= {"gridcolor": _DARK_GRID, "linecolor": _DARK_INK}
    return drawn


def search_view(
    question: Mapping[str, Any], progress: Callable[[int, int, Any], None] | None = None
) -> View:
    """Plans, Pareto front and heat map of a search."""
    from shardwise.planning.search.run import search  # noqa: PLC0415 - slow to import
    from shardwise.report.charts import search as own  # noqa: PLC0415
    from shardwise.report.charts.plans import FRONT_AXES  # noqa: PLC0415

    with files.catalog_only():
        model, system, _ = inputs_of({**question, "strategy": {}})
        found = search(
            model,
            system,
            question["space"],
            objective=question["objective"],
            pareto="memory",
            axes=tuple(question["axes"]),
            top=_MOST_PLANS,
            progress=progress,
        )
        front = sorted(found.pareto or (), key=FRONT_AXES["memory"].value)
        drawn = {"candidates": own.rejections(found)} if found.candidates else {}
        if found.pareto:
            drawn["front"] = own.front(found)
        if len(found.cells) > 1:
            drawn["map"] = own.heat_map(found)
    return {
        "faults": [],
        "summary": _search_summary(found),
        "rows": [
            {
                "rank": rank,
                "step": f"{plan.step_time_s:.3f}",
                "interval": f"{its.low_s:.3g} to {its.high_s:.3g}"
                if (its := plan.interval)
                else "",
                "tokens": f"{plan.tokens_per_s_per_gpu:,.0f}",
                "mfu": percent(plan.mfu),
                "memory": f"{plan.memory_bytes.reserved / GIB:.1f}",
                "fits": chance(plan.fits_probability),
                **{name: str(plan.strategy[name]) for name in PLAN_FIELDS},
            }
            for rank, plan in enumerate(found.rows, 1)
        ],
        "best": [texts_of(model, plan.strategy) for plan in found.rows],
        "front": [texts_of(model, plan.strategy) for plan in front],
        "cells": [
            [[str(value) for value in cell.values.values()], texts_of(model, cell.plan.strategy)]
            for cell in found.cells
        ],
        "charts": {name: themed(figure, dark=question["dark"]) for name, figure in drawn.items()},
    }


def _search_summary(found: Any) -> str:
    from shardwise.report.tables.advice import (  # noqa: PLC0415 - slow to import
        avoided_lines,
        recommendation_lines,
    )

    least = "" if found.counts_exact else "at least "
    text = (
        f"{found.candidates:,} strategies, {least}{found.feasible:,} of them feasible, "
        f"{found.elapsed_s:.1f} s"
    )
    if not found.rows:
        reasons = ", ".join(f"{name} {number:,}" for name, number in found.rejected.items())
        text += f". Nothing is feasible: {reasons}"
    avoided = avoided_lines(found, "choose a value to try it")
    return "\n".join([text, *recommendation_lines(found), *avoided])


def texts_of(model: Model, strategy: Mapping[str, Any]) -> dict[str, str]:
    """Fields of a plan that a user must set, as the command line takes them."""
    from shardwise.planning.nearest import set_fields  # noqa: PLC0415 - slow to import

    resolved = Strategy.validated(strategy)
    texts = {name: _text_of(value) for name, value in set_fields(model, resolved).items()}
    if isinstance(stack := strategy.get("stack"), str):
        texts["stack"] = stack
    return texts


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def sweep_view(
    question: Mapping[str, Any], progress: Callable[[float, int], None] | None = None
) -> View:
    """Best step time, or that of the strategy, over values of a figure."""
    from shardwise.planning.sweep.run import sweep  # noqa: PLC0415 - slow to import
    from shardwise.report.charts import sweep as own  # noqa: PLC0415

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        chosen: dict[str, Any] = {"strategy": strategy}
        if question["search"]:
            chosen = {"space": question["space"]}
        found = sweep(model, system, vary=question["vary"], progress=progress, **chosen)
        drawn = own.charts(found)
    return {
        "faults": [],
        "rows": found.to_frame().head(_MOST_POINTS).to_dicts(),
        "charts": {name: themed(figure, dark=question["dark"]) for name, figure in drawn.items()},
    }


def figures_view(system: str | Mapping[str, Any]) -> View:
    """Figures of a system that a sweep can vary."""
    from shardwise.planning.sweep.axes import figure_list  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        return {"faults": [], "figures": figure_list(System.load(system))}


def compare_view(questions: Sequence[Mapping[str, Any]], names: Sequence[str], dark: bool) -> View:
    """Pinned plans next to each other; one that cannot run says why."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import
    from shardwise.planning.compare import compare  # noqa: PLC0415
    from shardwise.report.charts import compare as own  # noqa: PLC0415

    faults: list[str] = []
    found: dict[str, Estimate] = {}
    with files.catalog_only():
        for name, question in zip(names, questions, strict=True):
            try:
                model, system, strategy = inputs_of(question)
                check_cost(model, strategy, plans=len(questions))
                found[name] = estimate(model, system, strategy)
            except InputError as error:
                faults += [f"{name}: {fault}" for fault in error.faults]
        rows = [
            {
                "name": name,
                "plan": f"{one.model} on {one.system}: {degrees(one.strategy)}",
                **{title: value for title, value, _ in facts(one)},
            }
            for name, one in found.items()
        ]
        drawn: dict[str, Any] = {}
        if len(found) > 1:
            compared = compare(*found.values(), names=list(found))
            drawn = {"times": own.times(compared), "memory": own.memory(compared)}
    return {
        "faults": faults,
        "rows": rows,
        "charts": {name: themed(figure, dark=dark) for name, figure in drawn.items()},
    }


def nearest_view(question: Mapping[str, Any]) -> View:
    """The nearest plan that is legal and fits, and in what it differs."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import
    from shardwise.launchers.export import change_words  # noqa: PLC0415
    from shardwise.planning.nearest import blamed_fields, nearest_plan  # noqa: PLC0415

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        check_cost(model, strategy, nearest=True)
        blamed: set[str] = set()
        try:
            estimate(model, system, strategy)
        except InputError as error:
            blamed = blamed_fields(error)
        found = nearest_plan(model, system, strategy, at_fault=blamed, probability=SURE)
        if found is None:
            return {"faults": [], "fields": None}
        return {
            "faults": [],
            "fields": texts_of(model, found.strategy),
            "words": f"{change_words(found.changes)}: {seconds(found.step_time_s)} per step",
        }


def uploaded(kind: str, name: str, text: str) -> View:
    """Model or system of a file that a user sent; a launch file has a strategy too."""
    from shardwise.launchers.launch import LaunchText  # noqa: PLC0415 - slow to import
    from shardwise.launchers.registry import read_by, recognised_launcher  # noqa: PLC0415

    with files.catalog_only():
        launcher = recognised_launcher(text, name) if kind == "model" else None
        if launcher is not None:
            launch = read_by(launcher, LaunchText(source=name, text=text))
            notes = [str(one) for one in launch.not_understood]
            fields = {key: _text_of(value) for key, value in launch.strategy.items()}
            if launch.model is None:
                raise InputError.at(name, f"is a file of {launcher.title}, which holds no model")
            return _uploaded(launch.model, fields, notes)
        ending = next((e for e in files.SUFFIXES if name.lower().endswith(e)), None)
        if ending is None:
            raise InputError.at(name, f"allowed endings: {', '.join(files.SUFFIXES)}")
        data = parse(text, ending, name, most_bytes=_MOST_BYTES)
        if not isinstance(data, Mapping):
            raise InputError.at(name, "is not a mapping of fields to values")
        config = Model if kind == "model" else System
        return _uploaded(config.of_data(data, files.entry_name(name), name), {}, [])


def _uploaded(one: Model | System, fields: Mapping[str, str], notes: Sequence[str]) -> View:
    return {
        "faults": [],
        "name": one.name,
        "data": one.to_dict(),
        "strategy": dict(fields),
        "notes": list(notes),
    }


def export_view(question: Mapping[str, Any], launcher: str) -> View:
    """Files of a launcher for a plan, or why it cannot run the plan."""
    from shardwise.launchers.export import download_names, export  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        check_cost(model, strategy, nearest=True)  # a refusal names the nearest plan
        found = export(launcher, model, system, strategy, nearest=bool(question.get("nearest")))
        names = download_names(model.name, found.files)
        notes = found.read_back.lines(found.estimate)
        files_by_name = {name: one.text for name, one in names.items()}
        return {"faults": [], "notes": notes, "files": files_by_name}
