"""What the tabs of the page show, as plain values; computed in worker processes.

Charts are those of `--plot`, as JSON of plotly, in the colors of the page.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shardwise import catalog
from shardwise.analysis.fit_probability import SURE
from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.cli.cluster import ClusterOptions
from shardwise.cli.flags import training_run
from shardwise.config import files
from shardwise.config.fine_tuning import with_method
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.config.plain import separated
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.planning.search.results import SearchResult
from shardwise.report.charts.plans import degrees
from shardwise.report.charts.theme import DARK
from shardwise.report.console import GIB, chance, percent, seconds, show
from shardwise.report.page.html import Block, DataTable, Facts, Lines, block_html
from shardwise.report.page.printed import printed_blocks
from shardwise.report.tables.cluster import days as days_of
from shardwise.report.tables.cluster import dollars as dollars_of
from shardwise.report.tables.estimate import verdict_word
from shardwise.units import readable
from shardwise.web.bars import memory_html, time_html
from shardwise.web.questions import check_cost, recent_estimate

View = dict[str, Any]
_CLEAR = "rgba(0,0,0,0)"
# Pixels: a title above a chart, what stays free there, and the least that a chart needs.
_TITLE_HEIGHT, _LEAST_MARGIN, _LEAST_HEIGHT = 66, 30, 160
_MOST_PLANS, _MOST_FIGURES = 15, 80
_MOST_BYTES = 2**20
# A flag of the command line in text: browsers break lines after hyphens.
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![^<]*>)")
# What the page has instead of flags.
_PAGE_WORDS = {
    "set --reliability": "set MTBF under Training run",
    "(--objective: others)": "(others: objective)",
    "add with --allow FIELD or FIELD=VALUE, or --space full": "to try them: space full",
}
_NO_FIGURES = ("name", "description", "sources", "left_out")
# Endings that pasted text is tried with.
_PASTED = (".sh", ".yaml", ".toml", ".json", ".py")


def inputs_of(question: Mapping[str, Any]) -> tuple[Model, System, Strategy]:
    """Load model, system with its changed figures, and strategy of a question of the page."""
    from shardwise.planning.sweep.axes import edited  # noqa: PLC0415 - slow to import

    system = edited(System.load(question["system"]), question.get("figures", {}))
    strategy = Strategy.validated(question["strategy"], source="strategy")
    return Model.load(question["model"]), system, strategy


def printed(*things: Callable[[], None] | Block) -> str:
    """Return what functions print on the terminal as HTML, and blocks of reports."""
    blocks = [
        block
        for thing in things
        for block in (printed_blocks(thing) if callable(thing) else [thing])
    ]
    text = "".join(map(block_html, blocks))
    for flags, words in _PAGE_WORDS.items():
        text = text.replace(flags, words)
    return _FLAG.sub(r'<span class="sw-flag">\g<0></span>', text)


def estimate_view(question: Mapping[str, Any], details: Sequence[str], dark: bool) -> View:
    """Figures and charts of one strategy, or the faults that keep it from running.

    Parameters
    ----------
    details
        What is shown in addition: timeline, roofline, tables.
    """
    from shardwise.launchers.stacks import launcher_of_stack  # noqa: PLC0415
    from shardwise.planning.training_time import with_training  # noqa: PLC0415
    from shardwise.report.tables import estimate as own  # noqa: PLC0415

    drawn: dict[str, Any] = {}
    with files.catalog_only():
        try:
            model, system, strategy = inputs_of(question)
            check_cost(model, strategy)
            found = recent_estimate(model, system, strategy)
            run = training_run(question.get("run", {}))
            found = found if run is None else with_training(found, system, run)
            # What a reader should know of the figures.
            notes = [f"reported: {one}" for one in found.software.reported]
            if found.unmeasured_features:
                named = ", ".join(found.unmeasured_features)
                notes.append(f"No measured run used {named}; the interval is wider for it.")
            if wanted := [name for name in ("timeline", "roofline") if name in details]:
                from shardwise.report.charts.estimate import detail_charts  # noqa: PLC0415

                drawn, missing = detail_charts(found, (model, system, strategy), wanted)
                notes += missing
        except InputError as error:
            return {"faults": [str(fault) for fault in error.faults]}
        tables = printed(lambda: own.print_estimate(found)) if "tables" in details else ""
        own_launcher = (
            launcher_of_stack(strategy.stack) if isinstance(strategy.stack, str) else None
        )
    return {
        "faults": [],
        "verdict": own.verdict_word(found),
        "verdict_line": own.verdict(found),
        "facts": facts(found),
        "notes": notes,
        "time": time_html(found),
        "memory": memory_html(found),
        "fits": found.fits and found.verdict == "fits",
        "launcher": own_launcher or launcher_of_stack(found.software.stack),
        "tables": tables,
        "charts": {name: themed(figure, dark=dark) for name, figure in drawn.items()},
    }


def facts(found: Estimate) -> list[tuple[str, str, str]]:
    """Main figures: name, value, and what stands below it."""
    interval = found.interval
    within = (
        f"8 of 10 runs: {seconds(interval.low_s)} to {seconds(interval.high_s)}" if interval else ""
    )
    memory, known = found.memory_bytes, found.memory_interval
    of = f"of {memory.capacity / GIB:.1f} GiB"
    if known is not None:
        of += f"; 8 of 10 runs: {known.reserved_low / GIB:.1f} to {known.reserved_high / GIB:.1f}"
    likely, dollars = found.fits_probability, found.cost.usd_per_billion_tokens
    return [
        ("Step time", seconds(found.step_time_s), within),
        ("P(fits)", "-" if likely is None else chance(likely), verdict_word(found)),
        ("Memory", f"{memory.reserved / GIB:.1f} GiB", of),
        ("Tokens/s", f"{found.tokens_per_s:,.0f}", f"{found.tokens_per_s_per_gpu:,.0f} per GPU"),
        ("MFU", percent(found.mfu), f"{found.model_tflops_per_gpu:,.0f} TFLOP/s per GPU"),
        (
            "Cost",
            "-" if dollars is None else f"${dollars:,.0f}",
            found.cost.price_line if dollars is None else f"per billion tokens; {found.cost.price}",
        ),
        *_run_facts(found.whole_run),
    ]


def _run_facts(run: TrainingTime | None) -> list[tuple[str, str, str]]:
    """Time and price of the training run; without one, how to get them."""
    if run is None:
        return [("Training run", "-", "set tokens for its days and price")]
    days, price = (next(row for row in run.rows() if row[0] == name) for name in ("days", "price"))
    lost = "" if run.goodput is None else f"; {percent(run.goodput.goodput)} goodput"
    return [
        ("Training time", f"{days_of(run.effective_days)} days", f"{days[2]}{lost}"),
        ("Price of the run", dollars_of(run.effective_usd), price[2]),
    ]


def themed(figure: Any, *, dark: bool) -> dict[str, Any]:
    """Return a figure, or its JSON, as plotly's JSON on the background of the page.

    Its title stays in `layout.meta` alone: the page shows it as text, which wraps on a phone.
    """
    drawn = figure if isinstance(figure, dict) else json.loads(figure.to_json())
    layout = dict(drawn["layout"])
    layout.pop("title", None)
    layout.pop("template", None)  # its colors are those of a light page
    layout |= {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR, "autosize": True}
    above = layout.get("margin", {}).get("t", 0) - _TITLE_HEIGHT
    layout["margin"] = layout.get("margin", {}) | {"t": max(_LEAST_MARGIN, above)}
    if "height" in layout:
        layout["height"] = max(_LEAST_HEIGHT, layout["height"] - _TITLE_HEIGHT)
    drawn = {"data": drawn["data"], "layout": layout}
    return dict(_darkened(drawn)) if dark else drawn


def _darkened(value: Any) -> Any:
    """A figure with the colors of a dark page, as reports have them."""
    if isinstance(value, str):
        return DARK.get(value, value)
    if isinstance(value, Mapping):
        return {name: _darkened(item) for name, item in value.items()}
    return [_darkened(item) for item in value] if isinstance(value, list) else value


def search_view(
    question: Mapping[str, Any], progress: Callable[[int, int, Any], None] | None = None
) -> View:
    """What a search recommends, its plans, and charts; without a plan what comes nearest."""
    from shardwise.planning.search.run import search  # noqa: PLC0415 - slow to import
    from shardwise.report.charts import search as own  # noqa: PLC0415
    from shardwise.report.charts.plans import FRONT_AXES  # noqa: PLC0415
    from shardwise.report.tables import search as tables  # noqa: PLC0415

    with files.catalog_only():
        model, system, _ = inputs_of({**question, "strategy": {}})
        found = search(
            model,
            system,
            with_method(question["space"]),
            objective=question["objective"],
            pareto="memory",
            axes=tuple(question["axes"]),
            top=_MOST_PLANS,
            run=training_run(question.get("run", {})),
            progress=progress,
        )
        answer, offers = _advice(found, model, system)
        front = sorted(found.pareto or (), key=FRONT_AXES["memory"].value)
    drawn = own.charts(found)
    listed = printed_blocks(lambda: show(tables.best_table(found))) if found.rows else []
    best = next((one for one in listed if isinstance(one, DataTable)), None)
    tied = tables.tied(found)
    return {
        "faults": [],
        "html": answer,
        "offers": offers,
        "columns": [] if best is None else ["plan", *best.columns[1:]],
        "rows": []
        if best is None
        else [
            {"rank": rank, "plan": f"{rank} =" if is_tied else str(rank)}
            | dict(zip(best.columns[1:], row[1:], strict=True))
            for rank, (row, is_tied) in enumerate(zip(best.rows, tied, strict=True), 1)
        ],
        "notes": printed(*(one for one in listed if one is not best))
        + printed(lambda: tables.print_notes(found)),
        "best": [texts_of(model, plan.strategy) for plan in found.rows],
        "front": [texts_of(model, plan.strategy) for plan in front],
        "cells": [
            [[str(value) for value in cell.values.values()], texts_of(model, cell.plan.strategy)]
            for cell in found.cells
        ],
        "charts": {name: themed(figure, dark=question["dark"]) for name, figure in drawn.items()},
    }


def _advice(found: SearchResult, model: Model, system: System) -> tuple[str, list[View]]:
    """What a search recommends and plans to load; without a plan the nearest and the smallest."""
    from shardwise.planning.ways import change_of_search  # noqa: PLC0415 - slow to import
    from shardwise.report.tables.advice import recommendation_items  # noqa: PLC0415
    from shardwise.report.tables.estimate import print_change  # noqa: PLC0415
    from shardwise.report.tables.search import closing  # noqa: PLC0415

    plans, shown = list[tuple[str, Mapping[str, Any]]](), list[Callable[[], None] | Block]()
    if (advice := found.recommendation) is not None:
        shown.append(Facts(items=recommendation_items(advice)))
        plans.append(("Load the recommended plan", advice.plan.strategy))
        if advice.safer is not None:
            plans.append(("Load the safer plan", advice.safer.strategy))
    elif not found.rows:
        shown.append(Lines(items=closing(found)))
    if not found.rows and found.nearest is not None:
        nearest = found.nearest.strategy
        plans.append(("Load the nearest plan, which may not fit", nearest))
        any_stack = "stack" not in found.space
        change = change_of_search(model, system, found, any_stack=any_stack)
        if change is not None:
            shown.append(partial(print_change, change, ""))
            plans.append(("Load the nearest plan with the change", change.strategy))
    if not found.rows and found.smallest is not None and found.smallest.strategy is not None:
        label = f"Load a plan on {found.smallest.gpus:,} GPUs"
        plans.append((label, found.smallest.strategy))
    return printed(*shown), [_offer(label, model, plan) for label, plan in plans]


def _offer(label: str, model: Model, plan: Mapping[str, Any], **more: Any) -> View:
    """A plan to load into the page."""
    return {"label": label, "strategy": texts_of(model, plan), **more}


def clusters_view(
    question: Mapping[str, Any], progress: Callable[[float, int], None] | None = None
) -> View:
    """Which system and size trains the model in time and within a budget."""
    from shardwise.planning.cluster_choice import choose_cluster  # noqa: PLC0415 - slow to import
    from shardwise.planning.search.query import load_space  # noqa: PLC0415
    from shardwise.report.charts.cluster import cluster_front  # noqa: PLC0415
    from shardwise.report.tables.cluster import print_cluster  # noqa: PLC0415

    with files.catalog_only():
        run = training_run(question["run"])
        if run is None:
            raise InputError.at("training run", "is missing: clusters are compared by it", "tokens")
        model = Model.load(question["model"])
        found = choose_cluster(
            model,
            separated(question["systems"]),
            load_space(with_method(question["space"]), {}),
            tokens=run.tokens,
            deadline=question["deadline"] or None,
            budget=question["budget"] or None,
            prices=ClusterOptions(price=[question["prices"]]).read_prices()
            if question["prices"]
            else None,
            reliability=run.reliability,
            site=run.site,
            progress=None if progress is None else lambda done, total, _: progress(done, total),
        )
        offers = []
        for name, place in (("cheapest", found.cheapest), ("fastest", found.fastest)):
            one = None if place is None else found.options[place]
            if one is not None and one.plan is not None:
                label = f"Load the {name}: {one.gpus:,} x {one.system}"
                offers.append(_offer(label, model, one.plan.strategy, system=one.system))
        priced = any(one.usd is not None for one in found.options)
        drawn = {"clusters": themed(cluster_front(found), dark=question["dark"])} if priced else {}
        html = printed(lambda: print_cluster(found))
    return {"faults": [], "html": html, "offers": offers, "charts": drawn}


def largest_view(question: Mapping[str, Any]) -> View:
    """The largest value of a field that fits, what limits it, and what raises it."""
    from shardwise.planning.largest_value import largest_value  # noqa: PLC0415 - slow to import
    from shardwise.report.tables.largest_value import print_largest_value  # noqa: PLC0415

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        check_cost(model, strategy, nearest=True)
        found = largest_value(model, system, strategy, question["largest"])
        command = f"{question['command']} --largest {question['largest']}"
        html = printed(lambda: print_largest_value(found, command))
        offers = []
        if found.value is not None:
            offers.append(
                _offer(
                    f"Load the plan with {question['largest']} {found.value:,}",
                    model,
                    found.strategy,
                )
            )
    return {"faults": [], "html": html, "offers": offers}


def diagnose_view(question: Mapping[str, Any]) -> View:
    """A measured run against its prediction: what is slow, and what to change."""
    from shardwise.launchers.diagnose.run import diagnose  # noqa: PLC0415 - slow to import
    from shardwise.launchers.logs import log_of_text  # noqa: PLC0415
    from shardwise.launchers.tables.diagnose import print_diagnosis  # noqa: PLC0415

    with files.catalog_only():
        model, system, _ = inputs_of({**question, "strategy": {}})
        name, text = question["launch"]
        launch = _launch_of(name, text, model)
        if launch is None:
            raise InputError.at(name or "launch file", "is no launch file")
        name, text = question["log"]
        log = log_of_text(text, name or "pasted log")
        own = {"gpus": question["gpus"]} if question["gpus"] else {}
        found = diagnose(launch, system, log=log, strategy=own)
        return {"faults": [], "html": printed(lambda: print_diagnosis(found))}


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
    from shardwise.report.tables.sweep import print_sweep  # noqa: PLC0415

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        chosen: dict[str, Any] = {"strategy": strategy}
        if question["search"]:
            chosen = {"space": with_method(question["space"])}
        found = sweep(model, system, vary=question["vary"], progress=progress, **chosen)
        drawn = own.charts(found)
        html = printed(lambda: print_sweep(found))
    return {
        "faults": [],
        "html": html,
        "charts": {name: themed(figure, dark=question["dark"]) for name, figure in drawn.items()},
    }


def figures_view(named: str | Mapping[str, Any], kind: str = "system") -> View:
    """Figures of a system that a sweep can vary, or of a model by their paths in its file."""
    from shardwise.planning.sweep.axes import (  # noqa: PLC0415 - slow to import
        figure_list,
        figure_names,
    )

    with files.catalog_only():
        if kind == "system":
            system = System.load(named)
            names = figure_names(system)
            bought = {
                name for name, one in names.items() if len(one.paths[0]) > 1 and one.is_hardware
            }
            listed = [
                {**row, "value": row["value"] and _figure_words(row["value"], row["unit"])}
                for row in figure_list(system)
            ]
            # What can be bought comes first, then constants of the model of performance.
            order = [r for r in listed if r["figure"] in bought or r["figure"] not in names]
            return {"faults": [], "figures": order + [r for r in listed if r not in order]}
        tree = Model.load(named).to_dict()
        own = {name: item for name, item in tree.items() if name not in _NO_FIGURES}
        rows = [{"figure": path, "value": value} for path, value in _leaves(own, "")]
        return {"faults": [], "figures": rows[:_MOST_FIGURES]}


def _figure_words(value: float, unit: str | None) -> str:
    return f"{value:.6g}" if unit is None else readable(value, unit)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Figures and words of a tree, by their paths; what is not set is left out."""
    items = node.items() if isinstance(node, Mapping) else enumerate(node)
    for key, item in items:
        if isinstance(item, (Mapping, list, tuple)):
            yield from _leaves(item, f"{path}{key}.")
        elif item is not None and item is not False:
            yield f"{path}{key}", _text_of(item)


def compare_view(questions: Sequence[Mapping[str, Any]], names: Sequence[str], dark: bool) -> View:
    """Pinned plans next to each other; one that cannot run says why."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import
    from shardwise.planning.compare import compare  # noqa: PLC0415
    from shardwise.report.charts import compare as own  # noqa: PLC0415
    from shardwise.report.tables.compare import print_comparison  # noqa: PLC0415

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
                **{title: value for title, value, _ in facts(one)[:-1]},
            }
            for name, one in found.items()
        ]
        drawn: dict[str, Any] = {}
        html = ""
        if len(found) > 1:
            compared = compare(*found.values(), names=list(found))
            drawn = {"times": own.times(compared), "memory": own.memory(compared)}
            html = printed(lambda: print_comparison(compared))
    return {
        "faults": faults,
        "html": html,
        "rows": rows,
        "charts": {name: themed(figure, dark=dark) for name, figure in drawn.items()},
    }


def nearest_view(question: Mapping[str, Any]) -> View:
    """The smallest change with which a plan is legal and fits, as the command line has it."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import
    from shardwise.launchers.export import change_words  # noqa: PLC0415
    from shardwise.planning.nearest import (  # noqa: PLC0415
        blamed_fields,
        change_to_fit,
        nearest_plan,
    )
    from shardwise.planning.ways import ways_to_fit  # noqa: PLC0415
    from shardwise.report.tables import estimate as own  # noqa: PLC0415

    with files.catalog_only():
        model, system, strategy = inputs_of(question)
        check_cost(model, strategy, nearest=True)
        blamed: set[str] = set()
        found = None
        try:
            estimate(model, system, strategy)
            found = change_to_fit(model, system, strategy) or ways_to_fit(model, system, strategy)
        except InputError as error:
            blamed = blamed_fields(error)
        if found is not None:
            words = own.change_words(found)
        else:
            found = nearest_plan(model, system, strategy, at_fault=blamed, probability=SURE)
            if found is None:
                return {"faults": [], "fields": None}
            words = f"{change_words(found.changes)}: {seconds(found.step_time_s)} per step"
        return {"faults": [], "fields": texts_of(model, found.strategy), "words": words}


def _launch_of(name: str, text: str, model: Model | None) -> Launch | None:
    """Read a launch file that a user sent or pasted; None if it is none.

    Parameters
    ----------
    name
        Name of the file; empty: what was pasted is tried as each kind of file.
    model
        For files without a model.
    """
    from shardwise.launchers.launch import LaunchText  # noqa: PLC0415 - slow to import
    from shardwise.launchers.registry import read_by, recognised_launcher  # noqa: PLC0415

    for source in [name] if name else [f"pasted{ending}" for ending in _PASTED]:
        try:
            launcher = recognised_launcher(text, source)
        except InputError:
            if name:
                raise
            continue
        if launcher is not None:
            launch = read_by(launcher, LaunchText(source=source, text=text))
            if launch.model is not None or model is None:
                return launch
            launch = read_by(launcher, LaunchText(source=source, text=text, model=model))
            return replace(launch, model=model)
    return None


def uploaded(kind: str, name: str, text: str, own: str | Mapping[str, Any] | None = None) -> View:
    """Model or system of a file that a user sent; a launch file has a strategy too.

    Parameters
    ----------
    own
        Model of the page, for launch files without one.
    """
    with files.catalog_only():
        known = None if own is None else Model.load(own)
        launch = _launch_of(name, text, known) if kind in ("model", "launch") else None
        if launch is not None:
            notes = [str(one) for one in launch.not_understood]
            fields = {key: _text_of(value) for key, value in launch.strategy.items()}
            if launch.model is None:
                raise InputError.at(name, f"is a file of {launch.launcher}, which holds no model")
            return _uploaded(launch.model, fields, notes)
        if kind == "launch":
            raise InputError.at(name or "text", "is no launch file that shardwise reads")
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
        "data": None if _is_known(one) else one.to_dict(),
        "strategy": dict(fields),
        "notes": list(notes),
    }


def _is_known(one: Model | System) -> bool:
    """Whether it is the entry of the catalog of its name."""
    folder = "models" if isinstance(one, Model) else "systems"
    return one.name in catalog.names(folder) and type(one).load(one.name) == one


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
