"""`shardwise fsdp`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.fsdp_inputs import check_places, given_names, positive, show_code, told
from shardwise.cli.options import JsonFlag, OutputOption, emit_json, refuse_options, whole_number
from shardwise.cli.progress import progress_bar

_REFERENCE = "fsdp_ilp's own programme, with --reference"
_SETTING = "Setting"
_NO_EFFECT = "has no effect beside --reference, which answers by fsdp_ilp's own rules"
_NEEDS_REFERENCE = "needs --reference fsdp-ilp"


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="GPT_modules_info.json; package.module:factory; a config.json of Hugging Face or "
            "its folder; a catalog model or a file of one.",
        ),
    ],
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="N", help="All ranks.")] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            metavar="SYSTEM",
            help="Accelerator and network; default h100-sxm. A file of statistics has times and "
            "needs none; its collectives then follow fsdp_ilp's rule.",
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            "--memory-budget",
            metavar="SIZE",
            help="Of one GPU, as in 60GiB; default: all its memory.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="N", help="Sequences on each GPU. Default: 1."),
    ] = None,
    seq_len: Annotated[
        str | None, typer.Option("--seq-len", metavar="N", help="Tokens of a sequence.")
    ] = None,
    units: Annotated[
        list[str] | None,
        typer.Option(
            "--units",
            metavar="NAME,...",
            help="Your own wrapping, to compare with: names (layers.* for all layers, norm+lm_head "
            "for one call, head:keep to stay gathered), or a file of them. Repeated: more.",
        ),
    ] = None,
    reshard: Annotated[
        str | None,
        typer.Option(
            "--reshard",
            metavar="always|never|choose",
            help="Free units after forward. Default: choose, for each.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="none|all|choose",
            help="Checkpoint blocks: none (default), all, or as many as is best.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="N", help="Most modules in one call. Default: 2."),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="N",
            help="Hybrid sharding: so many groups with the same weights.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    gpus_per_node: Annotated[
        str | None,
        typer.Option(
            "--gpus-per-node",
            metavar="N",
            help="For fsdp_ilp's rule of collectives, without --system. Default: 8.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    comm: Annotated[
        str | None,
        typer.Option(
            "--comm",
            metavar="FILE",
            help="Latency and bandwidth of all_gather and reduce_scatter, instead of a system's.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="bf16|fp16|fp32",
            help="Of gathered weights and compute. Default: bf16; of statistics fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    stored_dtype: Annotated[
        str | None,
        typer.Option(
            "--stored-dtype",
            metavar="TYPE",
            help="Of sharded weights, gradients and states. Default: fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    reduce_dtype: Annotated[
        str | None,
        typer.Option(
            "--reduce-dtype",
            metavar="TYPE",
            help="That gradients are summed in. Default: fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="adamw|sgd|none",
            help="Whose states are held. Default: adamw; of statistics none.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    no_trace: Annotated[
        bool,
        typer.Option(
            "--no-trace", help="Read a config by shardwise's own operations, without torch."
        ),
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Find the front of memory and time, too.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Find the fewest GPUs and largest batch that fit.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Run the plan with PyTorch's FSDP2 on fake tensors, and compare."
        ),
    ] = False,
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="python|torchtitan|huggingface",
            help="Print the plan as code, or write it to --output FILE.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw memory against time: .html, .json, .png or .svg."
        ),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(
            "--seconds", metavar="X", help="Cut a proof short after so long. Default: 10."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="fsdp-ilp",
            help="Plan as the predecessor does, faults included; SOURCE is a file of statistics.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            "--solver",
            metavar="highs|scipy|cbc|exact",
            help="Default: highs or scipy, whichever is installed, else exact: no solver, but "
            "shardwise's own search.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    formulation: Annotated[
        str | None,
        typer.Option(
            "--formulation",
            metavar="flow|original",
            help="How the programme is written. Default: flow, which is faster.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    solver_path: Annotated[
        str | None,
        typer.Option(
            "--solver-path",
            metavar="FILE",
            help="Executable of HiGHS or CBC, which PuLP starts.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    solver_log: Annotated[
        bool,
        typer.Option("--solver-log", help="Let it write to stderr.", rich_help_panel=_REFERENCE),
    ] = False,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid",
            metavar="NAME,...",
            help="Modules that may not be units.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    modules: Annotated[
        bool,
        typer.Option("--modules", help="Show every module's figures.", rich_help_panel=_REFERENCE),
    ] = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Which modules of a model become FSDP2 units, under a memory budget.

    The plan has the least exposed communication of all sets of units, with its proof. Times are
    those of one training step on each GPU without the optimizer. Exit code 1 if nothing fits.
    """
    check_places(output, plot, emit)
    numbers: dict[str, Any] = {
        name: whole_number(name, text)
        for name, text in {
            "gpus": gpus,
            "gpus_per_node": gpus_per_node,
            "replicas": replicas,
            "batch": batch,
            "seq_len": seq_len,
            "group": group,
        }.items()
    }
    own: dict[str, Any] = {
        "system": system,
        "dtype": dtype,
        "stored_dtype": stored_dtype,
        "reduce_dtype": reduce_dtype,
        "optimizer": optimizer,
        "reshard": reshard,
        "checkpoint": checkpoint,
    }
    extras: dict[str, Any] = {"pareto": pareto, "what_if": what_if, "verify": verify}
    of_reference: dict[str, Any] = {
        "solver": solver,
        "formulation": formulation,
        "solver_path": solver_path,
        "solver_log": solver_log,
        "forbid": given_names(forbid),
        "modules": modules,
    }
    shared: dict[str, Any] = {
        "memory_budget": memory_budget,
        "comm": comm,
        "units": given_names(units),
        "seconds": positive("seconds", seconds),
    }
    if reference is not None:
        from shardwise.cli.fsdp_reference import plan_reference  # noqa: PLC0415 - seldom needed

        useless = {name: numbers.pop(name) for name in ("replicas", "batch", "seq_len", "group")}
        useless |= own | extras | {"emit": emit, "plot": plot, "no_trace": no_trace}
        refuse_options(_NO_EFFECT, **useless)
        return plan_reference(
            reference, source, **numbers, **shared, **of_reference, json=json, output=output
        )
    refuse_options(_NEEDS_REFERENCE, **of_reference)
    asked = {**numbers, **own, **shared, **extras}
    given = {name: value for name, value in asked.items() if value is not None}
    return _plan(
        source, given | {"traced": not no_trace}, emit=emit, plot=plot, json=json, output=output
    )


def _plan(
    source: str,
    asked: Mapping[str, Any],
    *,
    emit: str | None,
    plot: str | None,
    json: bool,
    output: str | None,
) -> int:
    """Plan, then print, write and draw what was asked for."""
    from shardwise.fsdp.api import plan_fsdp  # noqa: PLC0415 - slow to import
    from shardwise.fsdp.result import known_form  # noqa: PLC0415 - slow to import

    name = None if emit is None else known_form(emit)
    alone = name is not None and output is None and not json
    if alone:
        extras = {word: asked.get(word) for word in ("pareto", "what_if", "verify")}
        refuse_options("shows nothing beside --emit; give --output FILE or --json", **extras)
    with progress_bar("planning", counted=False) as bar:
        words = {"gpus": None, **asked} | ({} if plot is None else {"pareto": True})
        result = plan_fsdp(source, progress=told(bar), **words)
    record = result.to_dict()
    if result.planned is not None:
        found = f"{result.planned.labels:,} labels in {result.planned.elapsed_s:.2f} s"
        typer.echo(f"{record['space']['modules']:,} modules, {found}", err=True)
    elif alone:
        typer.echo(result.reason, err=True)
    if name is not None and result.planned is not None:
        show_code(result.emitted(name), record, name, json=json, output=output)
    elif json:
        emit_json(record)
    if name is None and output is not None:
        emit_json(record, output)
    if not json and (output is None) == (name is None):
        from shardwise.report.tables.fsdp import print_plan  # noqa: PLC0415 - slow to import

        print_plan(result)
    if plot is not None:
        from shardwise.report.charts.fsdp import write_charts  # noqa: PLC0415 - slow to import

        write_charts(result, plot)
    return 0 if result.feasible else 1
