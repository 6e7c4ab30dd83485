"""`shardwise sweep`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardwise import registry
from shardwise.analysis.reference_results import known_reference
from shardwise.cli.command_line import command_line
from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.inputs import read_inputs
from shardwise.cli.launch import note_left_out
from shardwise.cli.options import (
    JSON_FLAG,
    MODEL_OR_NONE,
    OUTPUT_OPTION,
    PLOT_OPTION,
    REPORT_OPTION,
    STRATEGY_OPTION,
    arg,
    flag_fault,
    opt,
    positive_number,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import (
    INTERRUPTED,
    MOST_POINTS,
    check_different_files,
    check_pages,
    check_size,
    note,
    printed,
    progress_bar,
    show,
    write_page,
)
from shardwise.cli.recipes import SEARCH_RECIPE_OPTION, Chosen
from shardwise.cli.space import (
    ALLOW_OPTION,
    DOMAIN_OPTION,
    FITS_OPTION,
    FIX_OPTION,
    FOR_OPTION,
    MAX_MEMORY_OPTION,
    METHOD_OPTION,
    OBJECTIVE_OPTION,
    OK_IF_NONE_FLAG,
    RESERVE_OPTION,
    SPACE_OPTION,
    field_pairs,
    merge_fields,
    read_space,
)
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.config.inputs import Inputs
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.strategy_input import explicit_fields, overriding
from shardwise.config.system import System
from shardwise.planning.sweep.axes import figure_list, varied_axes
from shardwise.planning.sweep.results import SweepResult
from shardwise.planning.sweep.run import sweep
from shardwise.units import counted

_SWEEP = "Sweep"
_NO_EFFECT = "has no effect with --reference, which searches the space of another model"
_NEEDS_SEARCH = "has no effect with --strategy or --fixed, which evaluate one strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How the best strategy of a point is found."""

    space: str | None = SPACE_OPTION
    allow: list[str] | None = ALLOW_OPTION
    max_memory: str | None = MAX_MEMORY_OPTION
    reserve: str | None = RESERVE_OPTION
    fits: str | None = FITS_OPTION
    objective: str | None = OBJECTIVE_OPTION
    top: str | None = opt("--top K", "Plans to list per point. Default: 1.", _SWEEP)
    reoptimize: bool | None = opt(
        "--reoptimize/--fixed-plan",
        "With --sensitivity: search the best plan again for every change of the hardware "
        "(default), or keep the plan.",
        _SWEEP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """Sweeps by another model's own formulas and search."""

    reference: str | None = opt(
        "--reference nersc",
        "Search by another model. Its figures are varied under its own names "
        "(hbm_capacity=0.5x,1x,2x).",
        OTHER_MODELS,
    )
    method: str | None = METHOD_OPTION
    domain: str | None = DOMAIN_OPTION


@with_help(
    "vary sensitivity figures gpus global_batch_size fix fixed plot",
    examples=[
        "shardwise sweep llama3-8b h100-sxm --gpus 16 --gbs 64 --vary nvlink.bandwidth=0.5x,1x,2x",
        "shardwise sweep llama3-8b h100-sxm --gpus 16 --gbs 64 --pp 1 --vary zero=1,2,3",
    ],
)
@with_strategy_flags
@with_options
def command(
    *,
    model: str | None = MODEL_OR_NONE,
    system: str | None = arg(
        "SYSTEM[,SYSTEM...]",
        "One or more catalog names or files. Optional with --recipe.",
        default=None,
    ),
    recipe: str | None = SEARCH_RECIPE_OPTION,
    vary: list[str] | None = opt(
        "--vary NAME=V1,V2,...",
        "Values of a system parameter (nvlink.bandwidth=0.5x,1x,2x, domain=4..64, "
        "nics=0.5,1), of the model (seq_len, depth, hidden), or of a strategy field. Repeat "
        "for all combinations.",
        _SWEEP,
    ),
    more: str | None = opt("--system SYSTEM,...", "More systems, in addition to SYSTEM.", _SWEEP),
    together: bool = opt(
        "--zip", "Pair the values of all --vary one by one instead of combining them.", _SWEEP
    ),
    strategy: str | None = STRATEGY_OPTION,
    fixed: bool = opt("--fixed", "Evaluate the strategy of the flags alone.", _SWEEP),
    fix: list[str] | None = FIX_OPTION,
    options: SearchOptions,
    launcher: str | None = FOR_OPTION,
    sensitivity: bool = opt(
        "--sensitivity",
        "Rank the system parameters by what doubling or halving each changes.",
        _SWEEP,
    ),
    figures: bool = opt("--figures", "List the system parameters that can vary, and stop.", _SWEEP),
    plot: str | None = PLOT_OPTION,
    report: str | None = REPORT_OPTION,
    tokens: str | None = opt(
        "--tokens N",
        "Charts show days to train on N tokens, as in 1e12; with --reference, so do tables.",
        OUTPUT,
    ),
    large: bool = opt("--yes", f"Run a sweep of more than {MOST_POINTS:,} points.", _SWEEP),
    ok_if_none: bool = OK_IF_NONE_FLAG,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
    theirs: ReferenceOptions,
    flags: Mapping[str, Any],
) -> int:
    """What more bandwidth or memory, larger domains, or other settings would gain.

    Each point has the best strategy of a search, or one strategy (--fixed, --strategy FILE). Exit
    code 1 if nothing is feasible at any point.

    Flags of strategy fields set the values that the search tries.
    """
    if output is not None and theirs.reference is None:
        files.check_result_ending(output)
    chosen = Chosen.of(
        recipe, model=model, system=system, strategy=strategy, gpus=flags.get("gpus")
    )
    searched = strategy is None and not fixed
    inputs = read_inputs(
        chosen.model, chosen.system, strategy=strategy, flags={}, run={}, searched=searched
    )
    names = _systems(inputs.system, more)
    if theirs.reference is not None:
        others: dict[str, Any] = {"fixed": fixed, "sensitivity": sensitivity, "figures": figures}
        others |= asdict(options) | {"strategy": strategy, "fix": fix, "recipe": recipe}
        others |= {"for": launcher, "launch_file": chosen.launch_source, "report": report}
        refuse_options(_NO_EFFECT, **{name: v for name, v in others.items() if name != "top"})
        query = _reference_query(
            theirs,
            flags,
            model=str(chosen.model),
            system=",".join(map(str, names)),
            top=whole_number("top", options.top),
            vary=_varied(vary or ()),
            together=together,
            tokens=positive_number("tokens", tokens, ", as in 1e12"),
        )
        found = registry.function("search_verb").sweep_nersc(
            query, plot=plot, large=large, json=json, output=output
        )
        return 0 if found or ok_if_none else 1
    refuse_options("needs --reference nersc", method=theirs.method, domain=theirs.domain)
    if figures:
        listed = {system.name: figure_list(system) for system in map(System.load, names)}
        show(lambda: listed, printed("sweep:print_figures", listed), json=json, output=output)
        return 0
    check_different_files(output=output, plot=plot, report=report)
    chart_tokens = _chart_tokens(plot, report, tokens)
    flags, varied = _gpus_as_axis(flags, _varied(vary or ()))
    _check_size(names, varied, together=together, large=large)
    fixed_fields = field_pairs("fix", fix, values="one")
    arguments: dict[str, Any]
    if not searched:
        refuse_options(_NEEDS_SEARCH, **asdict(options), **{"for": launcher})
        fields = merge_fields(flags, fix=fixed_fields)
        own = chosen.fields(_own_fields(inputs, fields | varied) | fields)
        arguments = {"strategy": _one_strategy(chosen.strategy, _not_varied(own, varied) | fields)}
    else:
        if not sensitivity:
            plan = options.reoptimize
            refuse_options("needs --sensitivity", reoptimize=plan, fixed_plan=plan is False)
        fields = merge_fields(
            flags,
            fix=fixed_fields,
            allow=field_pairs("allow", options.allow, values="several"),
        )
        arguments = used(options, "objective", "max_memory", "reserve", "fits", "reoptimize")
        work = _not_varied(inputs.question() | chosen.question(launcher), varied)
        arguments["space"] = read_space(options.space, fields, work)
        arguments["top"] = whole_number("top", options.top) or 1
        arguments["launcher"] = launcher
    _refuse_twice(varied, fields)
    with progress_bar("points", counted=False) as bar:
        result = sweep(
            inputs.model,
            names,
            vary=varied,
            together=together,
            sensitivity=sensitivity,
            progress=None if bar is None else lambda done, total: bar(done, total, ""),
            **arguments,
        )
    _note_work(result)
    found = any(plan.fits for point in result.points for plan in point.best)
    lacks = "" if found or not result.complete else "nothing is feasible at any point"
    record = chosen.launch_record()
    table = printed("sweep:print_sweep", result)
    show(lambda: result.to_dict() | record, table, json=json, output=output, lacks=lacks)
    _draw(result, [System.load(name) for name in names], chart_tokens, plot=plot, report=report)
    if not result.complete:
        return INTERRUPTED
    return 0 if found or ok_if_none else 1


def _systems(system: str | System, more: str | None) -> list[str | System]:
    """SYSTEM, or that of a configuration, and the names of --system."""
    first = system.split(",") if isinstance(system, str) else [system]
    named = [*first, *(more or "").split(",")]
    return [one if isinstance(one, System) else one.strip() for one in named if str(one).strip()]


def _check_size(
    names: Sequence[str | System], varied: Mapping[str, str], *, together: bool, large: bool
) -> None:
    systems = [System.load(name) for name in names]
    sizes = [len(axis.values) for axis in varied_axes(varied, systems)]
    points = max(sizes, default=1) if together else math.prod(sizes)
    check_size(len(systems) * points, large=large)


def _note_work(result: SweepResult) -> None:
    """Say on stderr what was evaluated, and what is not listed."""
    note(f"{counted(len(result.points), 'point')} in {result.elapsed_s:.2f} s")
    note_left_out(result)


def _one_strategy(strategy: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the strategy file and the flags over it; faults name the file or the flags."""
    strategy_of(strategy, fields)
    return ({} if strategy is None else explicit_fields(strategy)) | dict(fields)


def _own_fields(inputs: Inputs, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that MODEL brings, if any; of a saved plan without what follows from changed ones."""
    is_plan = bool(inputs.fields) and inputs.imported is None
    return overriding(inputs.fields, changed)[0] if is_plan else dict(inputs.fields)


def _not_varied(fields: Mapping[str, object], varied: Mapping[str, str]) -> dict[str, object]:
    """Fields without those that are an axis of the sweep."""
    names = {SHORT_NAMES.get(name, name.replace("-", "_")) for name in varied}
    return {name: value for name, value in fields.items() if name not in names}


def _reference_query(
    theirs: ReferenceOptions, flags: Mapping[str, Any], **case: Any
) -> dict[str, Any]:
    """The searches of another model, of which NERSC's has sweeps."""
    known_reference(theirs.reference or "", "reference", ("nersc",))
    known = ("gpus", "global_batch_size", "dtype")
    refuse_options(_NO_EFFECT, **{name: v for name, v in flags.items() if name not in known})
    case |= {"gpus": flags.get("gpus"), "gbs": flags.get("global_batch_size")}
    return case | {"dtype": flags.get("dtype"), "method": theirs.method, "domain": theirs.domain}


def _gpus_as_axis(
    flags: Mapping[str, object], varied: dict[str, str]
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Make several numbers of GPUs an axis: the best of all of them is no answer."""
    text = str(flags.get("gpus", ""))
    if ("," not in text and ".." not in text) or "gpus" in varied:
        return flags, varied
    return {n: v for n, v in flags.items() if n != "gpus"}, {"gpus": text} | varied


def _varied(texts: Sequence[str]) -> dict[str, str]:
    """Names and values of ``--vary nvlink.bandwidth=0.5x,1x``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise flag_fault("vary", text, "must be NAME=V1,V2,..., as in nvlink.bandwidth=1x,2x")
        if name in found:
            raise flag_fault("vary", text, f"{name} is set twice")
        found[name] = values
    return found


def _refuse_twice(varied: Mapping[str, str], fields: Mapping[str, object]) -> None:
    for name in varied:
        if SHORT_NAMES.get(name, name.replace("-", "_")) in fields:
            raise flag_fault("vary", f"{name}={varied[name]}", f"{name} is set twice")


def _chart_tokens(plot: str | None, report: str | None, tokens: str | None) -> float | None:
    """Check the files of the charts; return the number of tokens of ``--tokens 1e12``."""
    check_pages(None, report)
    check_pages(plot)
    if tokens is not None and plot is None and report is None:
        raise flag_fault("tokens", tokens, "needs --plot FILE or --report FILE")
    return positive_number("tokens", tokens, ", as in 1e12")


def _draw(
    result: SweepResult,
    systems: Sequence[System],
    tokens: float | None,
    *,
    plot: str | None,
    report: str | None,
) -> None:
    """Write charts and report; maps mark the systems as they are."""
    marks = {
        system.name: {
            one["figure"]: one["value"] for one in figure_list(system) if one["value"] is not None
        }
        for system in systems
    }
    drawn: dict[str, Any] = {"tokens": tokens, "marks": marks}
    if plot is not None:
        registry.load("report.charts.sweep:write_charts")(result, plot, **drawn)
    write_page("sweep", report, result, command_line(), systems, **drawn)
