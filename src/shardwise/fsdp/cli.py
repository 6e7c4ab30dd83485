"""`shardwise fsdp`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.options import (
    JsonFlag,
    OutputOption,
    positive_number,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import Bar, check_different_files, emit_json, log, note, progress_bar
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.fsdp.api import Progress
from shardwise.fsdp.result import FsdpPlan

_PLAN = "Plan"
_SETTING = "Training setup"
_NO_EFFECT = "has no effect with --reference, which uses the rules of fsdp_ilp"
_NEEDS_REFERENCE = "needs --reference fsdp-ilp"
_NAME_FILES = (".txt", ".json", ".yaml", ".yml", ".toml", ".gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options of both planners."""

    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N",
            help="Number of GPUs.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    memory_budget: Annotated[
        str | None,
        typer.Option(
            "--memory-budget",
            metavar="SIZE",
            help="Per GPU, as in 60GiB. Default: all memory.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    units: Annotated[
        list[str] | None,
        typer.Option(
            "--units",
            metavar="NAME,...",
            help="Your own wrapping to compare: names (layers.* for all layers, norm+lm_head for "
            "one call, head:keep to stay unsharded), or a file of names. Repeat for more.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    gpus_per_node: Annotated[
        str | None,
        typer.Option(
            "--gpus-per-node",
            metavar="N",
            help="For fsdp_ilp's rule of collectives, without --system. Default: 8.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    comm: Annotated[
        str | None,
        typer.Option(
            "--comm",
            metavar="FILE",
            help="Latency and bandwidth of all_gather and reduce_scatter, instead of a system.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    seconds: Annotated[
        str | None,
        typer.Option(
            "--seconds",
            metavar="X",
            help="Time limit of each proof. Default: 10.",
            rich_help_panel=_PLAN,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of both planners."""
        return {
            "gpus": whole_number("gpus", self.gpus),
            "gpus_per_node": whole_number("gpus_per_node", self.gpus_per_node),
            "memory_budget": self.memory_budget,
            "comm": self.comm,
            "units": _names(self.units),
            "seconds": positive_number("seconds", self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of the planner of shardwise."""

    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            metavar="SYSTEM",
            help="System to plan for: catalog name or file. Default: h100-sxm. A file of "
            "statistics brings its own times; for it the default is fsdp_ilp's rule of "
            "collectives.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="N", help="Sequences per GPU. Default: 1.", rich_help_panel=_SETTING
        ),
    ] = None
    seq_len: Annotated[
        str | None,
        typer.Option(
            "--seq-len",
            metavar="N",
            help="Tokens per sequence. Default: those of the model.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    reshard: Annotated[
        str | None,
        typer.Option(
            "--reshard",
            metavar="always|never|choose",
            help="Reshard units after forward. Default: choose for each.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="none|all|choose",
            help="Activation checkpointing: no block (default), all blocks, or the best number.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="N",
            help="Most modules in one call. Default: 2.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="N",
            help="Hybrid sharding: number of groups with the same weights.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="bf16|fp16|fp32",
            help="Of all-gathered weights and compute. Default: bf16; for statistics fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    stored_dtype: Annotated[
        str | None,
        typer.Option(
            "--stored-dtype",
            metavar="TYPE",
            help="Of sharded weights, gradients and optimizer state. Default: fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    reduce_dtype: Annotated[
        str | None,
        typer.Option(
            "--reduce-dtype",
            metavar="TYPE",
            help="Of gradient reduction. Default: fp32.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="adamw|sgd|none",
            help="Optimizer whose state takes memory. Default: adamw; for statistics none.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    no_trace: Annotated[
        bool,
        typer.Option(
            "--no-trace",
            help="Read a config with shardwise's own operations, without torch.",
            rich_help_panel=_PLAN,
        ),
    ] = False
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto", help="Also find the Pareto front of memory and time.", rich_help_panel=_PLAN
        ),
    ] = False
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if",
            help="Also find the fewest GPUs and the largest batch that fit.",
            rich_help_panel=_PLAN,
        ),
    ] = False
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the plan with PyTorch's FSDP2 on fake tensors, and compare.",
            rich_help_panel=_PLAN,
        ),
    ] = False
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="python|torchtitan|huggingface",
            help="Print the plan as code, or write it to --output FILE.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Chart memory against time: .html, .json, .png or .svg.",
            rich_help_panel=OUTPUT,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of `plan_fsdp`."""
        numbers = ("replicas", "batch", "seq_len", "group")
        values = used(self)
        values |= {n: whole_number(n, values[n]) for n in numbers if n in values}
        values["traced"] = not values.pop("no_trace")
        values["pareto"] |= self.plot is not None
        return {n: value for n, value in values.items() if n not in ("emit", "plot")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """Options of the planner of fsdp_ilp."""

    solver: Annotated[
        str | None,
        typer.Option(
            "--solver",
            metavar="highs|scipy|cbc|exact",
            help="Default: highs or scipy, whichever is installed; else exact, the search of "
            "shardwise without a solver.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None
    formulation: Annotated[
        str | None,
        typer.Option(
            "--formulation",
            metavar="flow|original",
            help="Formulation of the integer program. Default: flow, which is faster.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None
    solver_path: Annotated[
        str | None,
        typer.Option(
            "--solver-path",
            metavar="FILE",
            help="Executable of HiGHS or CBC, started by PuLP.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None
    solver_log: Annotated[
        bool,
        typer.Option(
            "--solver-log", help="Print the solver log to stderr.", rich_help_panel=OTHER_MODELS
        ),
    ] = False
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid",
            metavar="NAME,...",
            help="Modules that may not be units.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None
    modules: Annotated[
        bool,
        typer.Option(
            "--modules", help="List the values of every module.", rich_help_panel=OTHER_MODELS
        ),
    ] = False


@with_help(
    *("system", "gpus", "memory_budget", "batch", "seq_len", "dtype", "pareto", "emit"),
    examples=[
        "shardwise fsdp llama3-8b --gpus 8 --seq-len 4096 --memory-budget 60GiB",
    ],
)
@with_options
def command(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="GPT_modules_info.json; package.module:factory, which runs its code; a "
            "Hugging Face config.json or its folder; a catalog model or model file.",
        ),
    ],
    shared: SharedOptions,
    options: PlanOptions,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="fsdp-ilp",
            help="Plan as fsdp_ilp does, including its bugs; SOURCE is a file of statistics.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None,
    theirs: ReferenceOptions,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Find the optimal FSDP2 units of a model within a memory budget.

    The plan has the least exposed communication of all sets of units, with proof. Times are those
    of one training step on each GPU without the optimizer. Exit code 1 if nothing fits.
    """
    if output is not None and options.emit is None:
        files.check_writable_ending(output)
    elif output is not None:
        files.check_output_path(output)
    if options.plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow to import

        check_chart_file(options.plot)
        check_different_files(output=output, plot=options.plot)
    arguments = shared.arguments()
    forbidden = _names(theirs.forbid)
    if reference is not None:
        from shardwise.predecessors.cli.fsdp import plan_reference  # noqa: PLC0415 - slow to import

        refuse_options(_NO_EFFECT, **asdict(options))
        solver = asdict(theirs) | {"forbid": forbidden}
        return plan_reference(reference, source, **arguments, **solver, json=json, output=output)
    refuse_options(_NEEDS_REFERENCE, **asdict(theirs) | {"forbid": forbidden})
    arguments = {name: value for name, value in arguments.items() if value is not None}
    return _plan(source, arguments, options, json=json, output=output)


def _plan(
    source: str,
    arguments: Mapping[str, Any],
    options: PlanOptions,
    *,
    json: bool,
    output: str | None,
) -> int:
    """Plan; print, write and draw the result."""
    from shardwise.fsdp.api import plan_fsdp  # noqa: PLC0415 - slow to import
    from shardwise.fsdp.result import known_form  # noqa: PLC0415 - slow to import

    form = None if options.emit is None else known_form(options.emit)
    code_only = form is not None and output is None and not json
    if code_only:
        problem = "prints nothing with --emit; add --output FILE or --json"
        refuse_options(problem, **used(options, "pareto", "what_if", "verify"))
    with progress_bar("planning", counted=False) as bar:
        words = {"gpus": None, **arguments, **options.arguments()}
        result = plan_fsdp(source, progress=_progress(bar), **words)
    if result.planned is not None:
        labels = f"{result.planned.labels:,} labels in {result.planned.elapsed_s:.2f} s"
        note(f"{result.to_dict()['space']['modules']:,} modules, {labels}")
    elif code_only or json or (output is not None and form is None):
        note(result.reason)
    if form is not None and result.planned is not None:
        _show_code(result, form, json=json, output=output)
    elif json:
        emit_json(result.to_dict())
    if form is None and output is not None:
        emit_json(result.to_dict(), output)
    if not json and (output is None) == (form is None):
        from shardwise.fsdp.tables import print_plan  # noqa: PLC0415 - slow to import

        print_plan(result)
    if options.plot is not None:
        from shardwise.fsdp.charts import write_charts  # noqa: PLC0415 - slow to import

        write_charts(result, options.plot)
    return 0 if result.feasible else 1


def _show_code(result: FsdpPlan, form: str, *, json: bool, output: str | None) -> None:
    """Write code to a file, or print it; print what it cannot express to stderr."""
    code = result.emitted(form)
    for line in code.notes:
        note(f"note: {line}")
    if output is not None:
        files.write_text(output, code.text)
        log.info("wrote %s", output)
    if json:
        emitted = {"form": form, "text": code.text, "notes": list(code.notes)}
        emit_json({**result.to_dict(), "emitted": emitted})
    elif output is None:
        typer.echo(code.text, nl=False)


def _names(texts: Sequence[str] | None) -> str | list[str] | None:
    """Names of ``--units a,b --units c``, or the only text if it names a file."""
    if not texts:
        return None
    if len(texts) == 1 and texts[0].endswith(_NAME_FILES):
        return texts[0]
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _progress(bar: Bar | None) -> Progress | None:
    """Update the bar with the current step of the planner."""
    if bar is None:
        return None
    return lambda step, done, total: bar(done, total or 1, step)
