"""`shardwise search`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.amped import system_or_config
from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    SystemOrNone,
    refuse_options,
    whole_number,
)
from shardwise.cli.search_own import (
    COMMAND_LINE,
    count_strategies,
    explain_strategy,
    field_pairs,
    given_once,
    search_space,
    show_record,
)
from shardwise.cli.training_options import asked_run, with_run_flags
from shardwise.config import files
from shardwise.config.strategy import Strategy
from shardwise.planning.search.objective import FRONTS, OBJECTIVES
from shardwise.planning.search.query import load_space

_REFERENCE = "A predecessor's space, with --reference"
_OF = {"calculon": "Calculon", "nersc": "NERSC's model", "amped": "AMPeD"}
_NO_EFFECT = "has no effect beside --reference, which searches a predecessor's own space"
_NEEDS_REFERENCE = "needs --reference: it names a part of a predecessor's space"
_NEEDS_SEARCH = "needs a search; --count only counts"
_NEEDS_NO_EXPLAIN = "has no effect beside --explain, which answers for one strategy"


@with_run_flags
def command(
    model: ModelArgument,
    run: Mapping[str, Any],
    system: SystemOrNone = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N", help="One number, a list (64,96) or a range: 64..512."),
    ] = None,
    gbs: Annotated[
        str | None,
        typer.Option("--gbs", metavar="N", help="Global batch [sequences], likewise."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="fixed|largest",
            help="Run all of --gbs (default), or the largest multiple of the replicas up to it.",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE", help="File of a space: values to try by field."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="FIELD=VALUE,...", help="Try only this value of a field."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="FIELD=V1,V2,...", help="Try these values of a field, or all."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="NAME", help="Short for --allow dtype=...")
    ] = None,
    seq_len: Annotated[
        str | None, typer.Option("--seq-len", metavar="N", help="Short for --allow seq_len=...")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", metavar="SIZE", help="Use at most so much of the memory."),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option("--reserve", metavar="SIZE", help="Keep so much of the memory free."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", metavar="NAME", help=f"{', '.join(OBJECTIVES)}. Default: step_time."
        ),
    ] = None,
    top: Annotated[
        str | None,
        typer.Option(
            "--top",
            metavar="K",
            help="How many to show. Default: 10; with --reference calculon 1.",
        ),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Show what nothing beats in both time and memory.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="|".join(FRONTS), help="With --pareto, beside time."),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            "--axes", metavar="FIELD,FIELD", help="Show the best for every pair of their values."
        ),
    ] = None,
    levels: Annotated[
        bool,
        typer.Option(
            "--levels",
            help="Try every split of every axis over the network's tiers, and show the best of "
            "each with its batch: 2x16 is 2 in a domain of the innermost tier, 16 across.",
        ),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Draw charts of it all into FILE (.html)."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="FIELD=VALUE,...",
            help="Say why this strategy is not legal, does not fit, or is not the best.",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write every feasible strategy to FILE (.parquet, .csv, .csv.gz); if it is "
            "interrupted, the same command goes on from there.",
        ),
    ] = None,
    save_all: Annotated[
        bool, typer.Option("--save-all", help="With --save: also the rejected, with the reason.")
    ] = False,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs", metavar="N", help="Processes. Default: 1, or all that a cluster has."
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="loky|ray|dask", help="What runs them. Default: loky."),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Count the strategies and stop.")] = False,
    ok_if_none: Annotated[
        bool, typer.Option("--ok-if-none", help="Exit with 0 even if nothing is feasible.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME",
            help="Search a predecessor's own space: calculon, nersc, amped.",
        ),
    ] = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Statistics of every operation of the best.",
            rich_help_panel=_REFERENCE,
        ),
    ] = False,
    tp_overlap: Annotated[
        bool | None,
        typer.Option(
            "--tp-overlap/--no-tp-overlap", help="calculon: try it.", rich_help_panel=_REFERENCE
        ),
    ] = None,
    dp_overlap: Annotated[
        bool | None,
        typer.Option(
            "--dp-overlap/--no-dp-overlap", help="calculon: try it.", rich_help_panel=_REFERENCE
        ),
    ] = None,
    fused_activation: Annotated[
        str | None,
        typer.Option(
            "--fused-activation",
            metavar="true|false|both",
            help="calculon: fused activations, or not. Default: true.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    mbs_break: Annotated[
        bool,
        typer.Option(
            "--mbs-break",
            help="calculon: stop growing the micro-batch after the first that is infeasible.",
            rich_help_panel=_REFERENCE,
        ),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="1d|2d|2d-seqp",
            help="nersc: tensor parallelism as in Megatron, by SUMMA, or with context parallelism.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            metavar="N",
            help="nersc: GPUs of a domain of the fast network. Default: the system's.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Find the best way to run a model on a number of GPUs, with certainty.

    Every legal strategy of the space is judged: all degrees, micro-batches, chunks, recompute,
    exchanges, ZeRO, offload and placements, unless --space, --fix or --allow say otherwise. Of some
    fields one value is kept: recompute_layers=fit, micro_batch_size=largest, stage_layers=balanced.
    Exit code 1 if none is feasible.
    """
    system = system_or_config(model, system)
    if output is not None:
        files.check_writable_ending(output)
    theirs: dict[str, dict[str, Any]] = {
        "calculon": {
            "tp_overlap": _given(tp_overlap),
            "dp_overlap": _given(dp_overlap),
            "fused_activation": fused_activation,
            "mbs_break": mbs_break,
        },
        "nersc": {"method": method, "domain": domain},
        "amped": {},
    }
    asked: dict[str, Any] = {
        "objective": objective,
        "top": whole_number("top", top),
        "pareto": pareto,
        "against": against,
        "axes": axes,
        "levels": levels,
        "plot": plot,
        "max_memory": max_memory,
        "reserve": reserve,
        "explain": explain,
        "save": save,
        "save_all": save_all,
        "jobs": whole_number("jobs", jobs),
        "backend": backend,
    }
    varied = {"batch": batch, "space": space, "fix": fix or None, "allow": allow or None}
    if reference is not None:
        only_ours = {name: value for name, value in asked.items() if name != "top"}
        refuse_options(_NO_EFFECT, **varied, seq_len=seq_len, **only_ours, **run)
        limits = {"gpus": gpus, "gbs": gbs, "dtype": dtype}
        return _by_reference(
            reference,
            (model, system),
            limits | {"top": asked["top"], "count": count, "layers": layers},
            theirs,
            ok_if_none=ok_if_none or count,
            json=json,
            output=output,
        )
    refuse_options(_NEEDS_REFERENCE, layers=layers, **theirs["calculon"], **theirs["nersc"])
    whole = load_space(space, {})
    fields = given_once(
        {
            "gpus": gpus,
            "global_batch_size": gbs,
            "batch": batch,
            "dtype": dtype,
            "seq_len": seq_len,
        },
        fix=field_pairs("fix", fix or (), values="one"),
        allow=field_pairs("allow", allow or (), values="several"),
    )
    whole = whole.fixed(fields, source=COMMAND_LINE) if fields else whole
    if count:
        refuse_options(_NEEDS_SEARCH, **asked, ok_if_none=ok_if_none, **run)
        return count_strategies(model, system, whole, json=json, output=output)
    if explain is not None:
        clash = ("objective", "max_memory", "reserve", "explain")
        refuse_options(_NEEDS_NO_EXPLAIN, **{n: v for n, v in asked.items() if n not in clash})
        refuse_options(_NEEDS_NO_EXPLAIN, ok_if_none=ok_if_none, **run)
        strategy = field_pairs(
            "explain", (explain,), values="one", known=tuple(Strategy.model_fields)
        )
        return explain_strategy(model, system, whole, strategy, asked, json=json, output=output)
    asked["run"] = asked_run(run)
    return search_space(
        model, system, whole, asked, ok_if_none=ok_if_none, json=json, output=output
    )


def _given(switch: bool | None) -> str | None:
    """A switch that was given at all, either way."""
    return None if switch is None else str(switch).lower()


def _by_reference(
    reference: str,
    case: tuple[str, str],
    words: Mapping[str, Any],
    theirs: Mapping[str, Mapping[str, Any]],
    *,
    ok_if_none: bool,
    json: bool,
    output: str | None,
) -> int:
    """Search the space of one predecessor, by the options that are its own."""
    from shardwise.cli import search_amped, search_nersc, search_reference  # noqa: PLC0415 - slow to import
    from shardwise.interop.translation import known_reference  # noqa: PLC0415 - slow to import

    name = known_reference(reference, "reference")
    for other, options in theirs.items():
        if other != name:
            refuse_options(f"{_OF[name]} has no such part of its space", **options)
    own: dict[str, Any] = dict(theirs[name])
    if name == "nersc":
        record = search_nersc.search_nersc(*case, **{**words, **own})
        show = search_nersc.print_nersc
    elif name == "amped":
        record = search_amped.search_amped(*case, **words)
        show = search_amped.print_amped
    else:
        for switch in ("tp_overlap", "dp_overlap"):
            own[switch] = None if own[switch] is None else own[switch] == "true"
        record = search_reference.search_reference(*case, **{**words, **own})
        show = search_reference.print_reference
    show_record(record, lambda: show(record), json=json, output=output)
    return 0 if ok_if_none or record["best"] else 1
