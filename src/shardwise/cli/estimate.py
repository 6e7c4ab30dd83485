"""`shardwise estimate`."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from shardwise import registry
from shardwise.analysis.results import Estimate
from shardwise.cli.command_line import command_line
from shardwise.cli.flags import strategy_of, training_run, with_run_flags, with_strategy_flags
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.host import HostOptions, with_price
from shardwise.cli.inputs import show_imported
from shardwise.cli.options import (
    JSON_FLAG,
    LARGEST_OPTION,
    MODEL_OR_NONE,
    OUTPUT_OPTION,
    PLOT_OPTION,
    STRATEGY_OPTION,
    SYSTEM_OR_NONE,
    TABLES_OPTION,
    limit_on_option,
    opt,
    refuse_options,
    with_options,
)
from shardwise.cli.output import (
    Stopwatch,
    check_different_files,
    check_pages,
    emit_json,
    log,
    note,
    printed,
    write_page,
)
from shardwise.cli.output import show as output_show
from shardwise.cli.recipes import RECIPE_OPTION, Chosen
from shardwise.config import files
from shardwise.config.enums import ZERO_WEIGHTS
from shardwise.config.expressions.records import Resolved
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.config.roles import Section
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate

_NO_EFFECT = "has no effect with --reference, which prints only the answer of another model"
_NEEDS_SHARDED_WEIGHTS = "has no effect without --zero 3, which shards weights; leave it out"
_CSV = (".csv", ".csv.gz")
_REPORT_ENDING, _PAGE_ENDING = ".txt", ".html"
_STDOUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where `estimate` writes, and the files that it checks before any work."""

    plot: str | None = PLOT_OPTION
    graph: str | None = opt(
        "--graph FILE",
        "Write the compute graph of a layer of each kind and of the model to FILE "
        "(.json, .dot, .mmd; .svg, .png, .pdf with graphviz).",
        OUTPUT,
    )
    report: str | None = opt(
        "--report FILE",
        "Write a page with charts, tables, assumptions and sources to FILE (.html), or "
        "every term of the estimate (.txt), one per line; - prints these instead of tables.",
        OUTPUT,
    )
    out: str | None = opt(
        "--out DIR",
        "Write report, configuration, matrix products, graph, DeepFlow shapes, estimate "
        "and charts to folder DIR; file names start with the time.",
        OUTPUT,
    )
    json: bool = JSON_FLAG
    output: str | None = OUTPUT_OPTION

    @property
    def needs_estimate(self) -> bool:
        """Whether a file is to be written that only an estimate of shardwise fills."""
        return any((self.plot, self.graph, self.report, self.out))

    def check(self) -> None:
        """Refuse files that cannot be written."""
        if self.json and self.report == _STDOUT:
            refuse_options("prints where --json prints; set a file", report=self.report)
        report = None if self.report == _STDOUT else self.report
        if self.out is not None:
            registry.load("report.folder:check_folder")(self.out)
        if self.output is not None:
            files.check_result_ending(self.output)
        check_different_files(output=self.output, plot=self.plot, report=report, graph=self.graph)
        if report is not None:
            _check_report(report)
        check_pages(self.plot)
        if self.graph is not None:
            registry.load("report.graph:check_graph_file")(self.graph)

    def write(self, answer: "Answer", *, gemms: bool) -> bool:
        """Write all files; return whether no tables are to be printed.

        Parameters
        ----------
        gemms
            Whether a table is that of the matrix products.
        """
        if self.graph is not None:
            graph_of = registry.load("analysis.graph.build:graph_of")
            graph = graph_of(answer.model[0], answer.system[0], answer.strategy)
            registry.load("report.graph:write_graph")(graph, self.graph)
            log.info("wrote %s", self.graph)
        if self.plot is not None:
            registry.load("report.charts.estimate:write_charts")(answer.result, self.plot)
            log.info("wrote %s", self.plot)
        if self.output is not None and gemms and self.output.lower().endswith(_CSV):
            gemms_csv = registry.load("report.tables.gemms:gemms_csv")
            files.write_text(self.output, gemms_csv(answer.result))
            log.info("wrote %s", self.output)
            if self.json:
                emit_json(answer.record)
        elif self.json or self.output is not None:
            output_show(lambda: answer.record, lambda: None, json=self.json, output=self.output)
        if self.out is not None:
            _write_folder(self.out, answer)
        if self.report is not None:
            text = registry.load("report.breakdown_text:breakdown_text")(answer.result)
            if self.report == _STDOUT:
                sys.stdout.write(text)
            elif self.report.lower().endswith(_PAGE_ENDING):
                inputs = answer.model[0], answer.system[0], answer.strategy
                write_page("estimate", self.report, answer.result, command_line(), inputs=inputs)
                log.info("wrote %s", self.report)
            else:
                files.write_text(self.report, text)
                log.info("wrote %s", self.report)
        return self.json or self.output is not None or self.report == _STDOUT


def _check_report(report: str) -> None:
    """Refuse a file that is no page and no list of terms."""
    if report.lower().endswith(_PAGE_ENDING):
        check_pages(None, report)
        return
    if not report.lower().removesuffix(".gz").endswith(_REPORT_ENDING):
        allowed = f"{_PAGE_ENDING}, {_REPORT_ENDING}, also .gz, or {_STDOUT} to print"
        problem = f"cannot be written; allowed: {allowed}"
        raise InputError.at(report, problem, "report")
    files.check_output_path(report)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An estimate and its inputs."""

    model: tuple[Model, Resolved]
    system: tuple[System, Resolved]
    strategy: Strategy
    result: Estimate
    inputs: Inputs
    chosen: Chosen
    flags: Mapping[str, object]
    also: Mapping[str, Any] = field(default_factory=dict)
    """Answer of another model, by its name."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files in the format of another model, by name, for --out."""

    @cached_property
    def record(self) -> dict[str, Any]:
        """The estimate as plain values, with the answer of another model and import notes."""
        notes = self.chosen.record(self.result, self.flags)
        notes |= {"also": self.also} if self.also else {}
        notes |= {"change_to_fit": self.change.to_dict()} if self.change else {}
        return self.result.to_dict() | self.inputs.imported_record() | notes

    @cached_property
    def change(self) -> Any:
        """The smallest change with which it fits, where it may not."""
        if self.result.verdict == "fits" or not self.result.strategy["training"]:
            return None
        inputs = self.model[0], self.system[0], self.strategy
        found = registry.load("planning.nearest:change_to_fit")(*inputs)
        return found or registry.load("planning.ways:ways_to_fit")(*inputs)

    def show_measured(self) -> None:
        """Print what was measured with the recipe, if there is one."""
        if self.chosen.recipe is not None:
            self.chosen.show(self.record)


def _write_folder(folder: str, answer: Answer) -> None:
    written = registry.load("report.folder:write_folder")(
        folder,
        answer.result,
        answer.strategy,
        model=answer.model,
        system=answer.system,
        record=answer.record,
        texts=answer.texts,
        now=datetime.now().astimezone(),
    )
    for file in written:
        failed = f"not written: {file.path.name}: {file.problem}"
        note(failed if file.problem else f"wrote {file.path}")


@with_help(
    "gpus finetune tp pp micro_batch_size global_batch_size zero recompute tokens",
    examples=["shardwise estimate llama3-70b h100-sxm --gpus 64 --tp 8 --pp 2 --gbs 128"],
)
@with_strategy_flags
@with_run_flags
@with_options
def command(
    *,
    model: str | None = MODEL_OR_NONE,
    system: str | None = SYSTEM_OR_NONE,
    recipe: str | None = RECIPE_OPTION,
    strategy: str | None = STRATEGY_OPTION,
    tables: str | None = TABLES_OPTION,
    ops: bool = opt("--ops", "List every kernel and collective, forward and backward.", OUTPUT),
    gemms: bool = opt("--gemms", "List every matrix product of a step, and its FLOPs.", OUTPUT),
    largest: str | None = LARGEST_OPTION,
    flops_convention: str | None = opt(
        "--flops-convention causal|full-attention|parameters",
        "Model FLOPs that MFU counts. Default: causal.",
        OUTPUT,
    ),
    limit_on: str | None = limit_on_option(Section.MEMORY),
    price: str | None = opt(
        "--price USD", "Price of a GPU-hour, in place of that of the system.", OUTPUT
    ),
    also: str | None = opt(
        "--also calculon|nersc|amped", "Also print the answer of another model.", OTHER_MODELS
    ),
    reference: str | None = opt(
        "--reference calculon|nersc|amped",
        "Print only the answer of another model.",
        OTHER_MODELS,
    ),
    host: HostOptions,
    destination: Destination,
    run: Mapping[str, object],
    flags: Mapping[str, object],
) -> int:
    """Step time, memory and cost of one way to run a model on a system.

    Degrees default to 1; dp is the number of GPUs over the other degrees. Exit code 1 if the model
    does not fit in memory.

    An AMPeD configuration as MODEL also sets system, strategy and tokens.
    """
    chosen = Chosen.of(
        recipe, model=model, system=system, strategy=strategy, gpus=flags.get("gpus")
    )
    inputs = chosen.inputs(flags, run=run, tables=tables)
    useless: dict[str, object] = {
        "also": also,
        "flops_convention": flops_convention,
        "gemms": gemms,
    }
    useless |= {"limit_on": limit_on, "price": price} | host.given() | dict(run)
    useless |= {name: getattr(destination, name) for name in ("plot", "report", "graph", "out")}
    if reference is not None or largest is not None:
        return _instead(reference, largest, inputs, useless, destination, ops=ops)
    other = None
    if also is not None:
        other_models = registry.function("reference_answers")
        other = registry.load("analysis.reference_results:known_reference")(also, "also")
    destination.check()
    training = training_run(inputs.run)
    watch = Stopwatch()
    try:
        the_model, the_system = Model.explained(inputs.model), System.explained(inputs.system)
        log.info("model %s, system %s", the_model[0].name, the_system[0].name)
        the_strategy = strategy_of(inputs.strategy, inputs.fields)
        with_host = System.load(host.of(the_system[0], the_strategy.gpus))
        the_system = with_price(with_host, price), the_system[1]
        options: dict[str, Any] = {"flops_convention": flops_convention or "causal"}
        options |= {"limit_on": limit_on}
        options |= {"operations": ops, "gemms": gemms or destination.out is not None}
        result = estimate(the_model[0], the_system[0], the_strategy, **options)
    except InputError as refusal:
        if other is None or gemms or destination.needs_estimate:
            raise
        return other_models.show_despite(
            refusal, other, inputs, ops=ops, json=destination.json, output=destination.output
        )
    prefetch = flags.get("fsdp_prefetch") if result.strategy["zero"] < ZERO_WEIGHTS else None
    refuse_options(_NEEDS_SHARDED_WEIGHTS, fsdp_prefetch=prefetch)
    if training is not None:
        with_training = registry.load("planning.training_time:with_training")
        result = with_training(result, the_system[0], training)
    chosen.show_assumed(flags)
    log.info("strategy %s", result.strategy)
    log.info("estimated in %s", watch)
    answer = Answer(
        model=the_model,
        system=the_system,
        strategy=the_strategy,
        result=result,
        inputs=inputs,
        chosen=chosen,
        flags=flags,
    )
    if other is not None:
        case = other_models.case_of(other, inputs)
        also_answers = {other: case.answer()}
        answer = replace(answer, also=also_answers, texts=other_models.texts_of(case))
    if not destination.write(answer, gemms=gemms):
        shown = result if gemms else result.model_copy(update={"gemms": None})
        printed("estimate:print_estimate", shown, answer.change, command_line())()
        if other is not None:
            other_models.show_comparison(case, result, answer.also[other], all_=ops)
        show_imported(inputs)
        answer.show_measured()
    elif result.verdict != "fits":
        note(registry.load("report.tables.estimate:verdict")(result))
    return 0 if result.fits and result.verdict != "does not fit" else 1


def _instead(
    reference: str | None,
    largest: str | None,
    inputs: Inputs,
    useless: Mapping[str, object],
    to: Destination,
    *,
    ops: bool,
) -> int:
    """Answer another question than for the estimate of the strategy."""
    if largest is None:
        assert reference is not None  # noqa: S101 - one of them is set
        return _reference(reference, inputs, useless, to, ops=ops)
    return _largest(largest, inputs, {**useless, "ops": ops, "reference": reference}, to)


def _largest(field: str, inputs: Inputs, useless: Mapping[str, object], to: Destination) -> int:
    """Answer the question for the largest value of a field that fits."""
    refuse_options("has no effect with --largest", **useless)
    to.check()
    strategy = strategy_of(inputs.strategy, inputs.fields)
    largest_value = registry.load("planning.largest_value:largest_value")
    found = largest_value(inputs.model, inputs.system, strategy, field)
    printing = printed("largest_value:print_largest_value", found, command_line())
    lacks = "" if found.value is not None else "nothing surely fits"
    output_show(found.to_dict, printing, json=to.json, output=to.output, lacks=lacks)
    return 0 if found.value is not None else 1


def _reference(
    reference: str, inputs: Inputs, useless: Mapping[str, object], to: Destination, *, ops: bool
) -> int:
    name = registry.load("analysis.reference_results:known_reference")(reference, "reference")
    refuse_options(_NO_EFFECT, **useless)
    other_models = registry.function("reference_answers")
    case = other_models.case_of(name, inputs)
    return other_models.show_reference(case, ops=ops, json=to.json, output=to.output)
