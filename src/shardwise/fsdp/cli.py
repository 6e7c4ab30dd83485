"""`shardwise fsdp`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer

from shardwise import registry
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    arg,
    opt,
    positive_number,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import (
    Bar,
    check_different_files,
    check_pages,
    emit_json,
    log,
    note,
    progress_bar,
)
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

    gpus: str | None = opt("--gpus N", "Number of GPUs.", _SETTING)
    memory_budget: str | None = opt(
        "--memory-budget SIZE", "Per GPU, as in 60GiB. Default: all memory.", _SETTING
    )
    units: list[str] | None = opt(
        "--units NAME,...",
        "Your own wrapping to compare: names (layers.* for all layers, norm+lm_head for "
        "one call, head:keep to stay unsharded), or a file of names. Repeat for more.",
        _PLAN,
    )
    gpus_per_node: str | None = opt(
        "--gpus-per-node N",
        "For fsdp_ilp's rule of collectives, without --system. Default: 8.",
        _SETTING,
    )
    comm: str | None = opt(
        "--comm FILE",
        "Latency and bandwidth of all_gather and reduce_scatter, instead of a system.",
        _SETTING,
    )
    seconds: str | None = opt("--seconds X", "Time limit of each proof. Default: 10.", _PLAN)

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

    system: str | None = opt(
        "--system SYSTEM",
        "System to plan for: catalog name or file. Default: h100-sxm. A file of "
        "statistics brings its own times; for it the default is fsdp_ilp's rule of "
        "collectives.",
        _SETTING,
    )
    batch: str | None = opt("--batch N", "Sequences per GPU. Default: 1.", _SETTING)
    seq_len: str | None = opt(
        "--seq-len N", "Tokens per sequence. Default: those of the model.", _SETTING
    )
    reshard: str | None = opt(
        "--reshard always|never|choose",
        "Reshard units after forward. Default: choose for each.",
        _PLAN,
    )
    checkpoint: str | None = opt(
        "--checkpoint none|all|choose",
        "Activation checkpointing: no block (default), all blocks, or the best number.",
        _PLAN,
    )
    group: str | None = opt("--group N", "Most modules in one call. Default: 2.", _PLAN)
    replicas: str | None = opt(
        "--replicas N", "Hybrid sharding: number of groups with the same weights.", _PLAN
    )
    dtype: str | None = opt(
        "--dtype bf16|fp16|fp32",
        "Of all-gathered weights and compute. Default: bf16; for statistics fp32.",
        _SETTING,
    )
    stored_dtype: str | None = opt(
        "--stored-dtype TYPE",
        "Of sharded weights, gradients and optimizer state. Default: fp32.",
        _SETTING,
    )
    reduce_dtype: str | None = opt(
        "--reduce-dtype TYPE", "Of gradient reduction. Default: fp32.", _SETTING
    )
    optimizer: str | None = opt(
        "--optimizer adamw|sgd|none",
        "Optimizer whose state takes memory. Default: adamw; for statistics none.",
        _SETTING,
    )
    no_trace: bool = opt(
        "--no-trace", "Read a config with shardwise's own operations, without torch.", _PLAN
    )
    pareto: bool = opt("--pareto", "Also find the Pareto front of memory and time.", _PLAN)
    what_if: bool = opt(
        "--what-if", "Also find the fewest GPUs and the largest batch that fit.", _PLAN
    )
    verify: bool = opt(
        "--verify", "Run the plan with PyTorch's FSDP2 on fake tensors, and compare.", _PLAN
    )
    emit: str | None = opt(
        "--emit python|torchtitan|huggingface",
        "Print the plan as code, or write it to --output FILE.",
        OUTPUT,
    )
    plot: str | None = opt(
        "--plot FILE", "Chart memory against time: .html, .json, .png or .svg.", OUTPUT
    )

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

    solver: str | None = opt(
        "--solver highs|scipy|cbc|exact",
        "Default: highs or scipy, whichever is installed; else exact, the search of "
        "shardwise without a solver.",
        OTHER_MODELS,
    )
    formulation: str | None = opt(
        "--formulation flow|original",
        "Formulation of the integer program. Default: flow, which is faster.",
        OTHER_MODELS,
    )
    solver_path: str | None = opt(
        "--solver-path FILE", "Executable of HiGHS or CBC, started by PuLP.", OTHER_MODELS
    )
    solver_log: bool = opt("--solver-log", "Print the solver log to stderr.", OTHER_MODELS)
    forbid: list[str] | None = opt(
        "--forbid NAME,...", "Modules that may not be units.", OTHER_MODELS
    )
    modules: bool = opt("--modules", "List the values of every module.", OTHER_MODELS)


@with_help(
    "system gpus memory_budget batch seq_len dtype pareto emit",
    examples=["shardwise fsdp llama3-8b --gpus 8 --seq-len 4096 --memory-budget 60GiB"],
)
@with_options
def command(
    *,
    source: str = arg(
        "SOURCE",
        "GPT_modules_info.json; package.module:factory, which runs its code; a "
        "Hugging Face config.json or its folder; a catalog model or model file.",
    ),
    shared: SharedOptions,
    options: PlanOptions,
    reference: str | None = opt(
        "--reference fsdp-ilp",
        "Plan as fsdp_ilp does, including its bugs; SOURCE is a file of statistics.",
        OTHER_MODELS,
    ),
    theirs: ReferenceOptions,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Find the optimal FSDP2 units of a model within a memory budget.

    The plan has the least exposed communication of all sets of units, with proof. Times are those
    of one training step on each GPU without the optimizer. Exit code 1 if nothing fits.
    """
    if output is not None and options.emit is None:
        files.check_writable_ending(output)
    elif output is not None:
        files.check_output_path(output)
    check_pages(options.plot)
    check_different_files(output=output, plot=options.plot)
    arguments = shared.arguments()
    forbidden = _names(theirs.forbid)
    if reference is not None:
        from shardwise.fsdp.cli_reference import plan_reference  # noqa: PLC0415 - slow to import

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
        registry.load("fsdp.tables:print_plan")(result)
    if options.plot is not None:
        registry.load("fsdp.charts:write_charts")(result, options.plot)
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
