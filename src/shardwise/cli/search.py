"""`shardwise search`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from shardwise.cli.amped import system_or_config
from shardwise.cli.cluster import ClusterOptions, check_one_kind, choose
from shardwise.cli.flags import training_run, with_run_flags
from shardwise.cli.options import (
    JsonFlag,
    ModelOrNone,
    OutputOption,
    SystemOrNone,
    flag_fault,
    missing_flag,
    one_of,
    refuse_options,
    used,
    whole_number,
    with_options,
)
from shardwise.cli.output import INTERRUPTED, Bar, check_different_files, note, progress_bar, show
from shardwise.cli.recipes import Chosen, SearchRecipeOption
from shardwise.cli.space import (
    AllowOption,
    FixOption,
    MaxMemoryOption,
    ObjectiveOption,
    OkIfNoneFlag,
    ReferenceOptions,
    ReserveOption,
    SpaceOption,
    field_pairs,
    merge_fields,
    read_space,
)
from shardwise.config import files
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.planning.search.explain import explain
from shardwise.planning.search.ranking import FRONTS
from shardwise.planning.search.results import SearchResult
from shardwise.planning.search.run import Progress, search
from shardwise.planning.search.run import count as count_space
from shardwise.planning.search.scan import Findings
from shardwise.planning.search.space import Space
from shardwise.planning.training_time import TrainingRun

_ONLY_OURS = (
    *("batch", "space", "fix", "allow", "seq_len"),
    *("quantization", "stack", "any_software"),
)
_NO_EFFECT = "has no effect with --reference, which searches the space of another model"
_NEEDS_REFERENCE = "needs --reference: it selects part of the space of another model"
_NEEDS_SEARCH = "needs a search; --count only counts"
_NOT_EXPLAINED = "has no effect with --explain, which is about one strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which strategies are candidates."""

    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N", help="A number, a list (64,96) or a range (64..512)."),
    ] = None
    gbs: Annotated[
        str | None,
        typer.Option("--gbs", metavar="N", help="Global batch [sequences]; same forms as --gpus."),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="fixed|largest",
            help="Use all of --gbs (default), or the largest multiple of the replicas up to it.",
        ),
    ] = None
    space: SpaceOption = None
    fix: FixOption = None
    allow: AllowOption = None
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="NAME", help="Short for --allow dtype=...")
    ] = None
    seq_len: Annotated[
        str | None, typer.Option("--seq-len", metavar="N", help="Short for --allow seq_len=...")
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option("--quantization", metavar="NAME", help="Short for --allow quantization=..."),
    ] = None
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="NAME", help="Software. Default: that of the system."),
    ] = None
    any_software: Annotated[
        bool,
        typer.Option("--any-software", help="Try what the release of the stack cannot run, too."),
    ] = False

    def read(self, work: Mapping[str, object]) -> Space:
        """Read the space; fields of `work` are those of a recipe, which all others override."""
        fields = merge_fields(
            {
                "gpus": self.gpus,
                "global_batch_size": self.gbs,
                "batch": self.batch,
                "dtype": self.dtype,
                "seq_len": self.seq_len,
                "quantization": self.quantization,
                "stack": self.stack,
                "any_software": "true" if self.any_software else None,
            },
            fix=field_pairs("fix", self.fix, values="one"),
            allow=field_pairs("allow", self.allow, values="several"),
        )
        return read_space(self.space, fields, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched for, what is listed and saved, and who computes it."""

    max_memory: MaxMemoryOption = None
    reserve: ReserveOption = None
    objective: ObjectiveOption = None
    top: Annotated[
        str | None,
        typer.Option(
            "--top",
            metavar="K",
            help="How many plans (lines) to list. Default: 10; with --reference calculon 1.",
        ),
    ] = None
    all_variants: Annotated[
        bool,
        typer.Option(
            "--all-variants",
            help="List each strategy; by default those of one layout within 0.5 % are one line.",
        ),
    ] = False
    pareto: Annotated[
        bool, typer.Option("--pareto", help="List the Pareto front of time and memory.")
    ] = False
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="|".join(FRONTS), help="With --pareto: trade time against this."
        ),
    ] = None
    axes: Annotated[
        str | None,
        typer.Option(
            "--axes",
            metavar="FIELD,FIELD",
            help="List the best plan for each combination of values of these fields.",
        ),
    ] = None
    levels: Annotated[
        bool,
        typer.Option(
            "--levels",
            help="Try every split of every axis over the network tiers, and list the best plan of "
            "each with its batch: 2x16 is 2 in a domain of the innermost tier, 16 across domains.",
        ),
    ] = False
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Write charts of the result to FILE (.html)."),
    ] = None
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="FIELD=VALUE,...",
            help="Explain why this strategy is not legal, does not fit, or is not the best.",
        ),
    ] = None
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write every feasible strategy to FILE (.parquet, .csv, .csv.gz); after an "
            "interruption the same command resumes.",
        ),
    ] = None
    save_all: Annotated[
        bool, typer.Option("--save-all", help="With --save: also the rejected, with the reason.")
    ] = False
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="N", help="Processes. Default: 1, or those of the cluster."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="loky|ray|dask", help="Who runs the processes. Default: loky."
        ),
    ] = None

    def check(self, output: str | None) -> None:
        """Refuse options that contradict each other, and files that cannot be written."""
        if self.against is not None:
            if not self.pareto:
                raise flag_fault("against", self.against, "needs --pareto")
            one_of("against", self.against, FRONTS)
        check_different_files(output=output, plot=self.plot, save=self.save)
        if self.levels:
            refuse_options("has no effect with --levels", axes=self.axes, plot=self.plot)
        if self.save_all and self.save is None:
            raise missing_flag("save_all", "needs --save FILE")
        if self.plot is not None:
            from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

            check_chart_file(self.plot)

    def arguments(self) -> dict[str, Any]:
        """Arguments of `planning.search.run.search`."""
        names = ("objective", "max_memory", "reserve", "save", "backend")
        axes = () if self.axes is None else tuple(axis.strip() for axis in self.axes.split(","))
        if self.plot is not None and not axes:
            axes = ("tp", "pp")
        numbers = {"top": whole_number("top", self.top), "jobs": whole_number("jobs", self.jobs)}
        return {
            **used(self, *names),
            **{name: number for name, number in numbers.items() if number is not None},
            "axes": tuple(SHORT_NAMES.get(axis, axis) for axis in axes),
            "pareto": (self.against or "memory") if self.pareto else None,
            "all_variants": self.all_variants,
            "levels": self.levels,
            "save_all": self.save_all,
        }


@with_run_flags
@with_options
def command(
    *,
    model: ModelOrNone = None,
    system: SystemOrNone = None,
    recipe: SearchRecipeOption = None,
    of: SpaceOptions,
    wanted: SearchOptions,
    cluster: ClusterOptions,
    count: Annotated[bool, typer.Option("--count", help="Count the strategies and stop.")] = False,
    ok_if_none: OkIfNoneFlag = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME",
            help="Search the space of another model: calculon, nersc, amped.",
        ),
    ] = None,
    theirs: ReferenceOptions,
    json: JsonFlag = False,
    output: OutputOption = None,
    run: Mapping[str, object],
) -> int:
    """Find the best way to run a model on a number of GPUs, with certainty.

    Every strategy of the space that the stack can run is evaluated: all degrees, micro-batches and
    chunks, recompute, sharding and expert parallelism as recipes use them, and offload where
    nothing fits without it. --space full, --allow and --any-software widen the space, --fix narrows
    it. A field can also select one value: --allow recompute_layers=fit, micro_batch_size=largest or
    stage_layers=balanced. Exit code 1 if nothing is feasible.

    With --systems in place of SYSTEM, choose among systems and numbers of GPUs for a training run;
    exit code 1 if none meets --deadline and --budget.
    """
    if cluster.systems is not None:
        entered = {"count": count, "reference": reference, "recipe": recipe}
        check_one_kind(system, cluster, **entered, **asdict(theirs))
        if model is None:
            raise missing_flag("model", "is missing: name a catalog model or a file")
        if output is not None:
            files.check_writable_ending(output)
        return choose(
            model,
            of.read({}),
            cluster,
            wanted,
            training_run(run),
            json=json,
            output=output,
            ok_if_none=ok_if_none,
        )
    cluster.check_alone()
    chosen = Chosen.of(recipe, model=model, system=system)
    model = chosen.model
    system = system_or_config(model, chosen.system)
    if output is not None:
        files.check_writable_ending(output)
    if reference is not None:
        from shardwise.cli.search_reference import search_reference  # noqa: PLC0415 - slow to import

        refuse_options(_NO_EFFECT, recipe=recipe)
        useless = used(of, *_ONLY_OURS) | asdict(wanted) | dict(run)
        theirs_too = ("top", "save", "axes", "plot")
        refuse_options(_NO_EFFECT, **{n: v for n, v in useless.items() if n not in theirs_too})
        record = search_reference(
            reference,
            (model, system),
            theirs,
            gpus=of.gpus,
            gbs=of.gbs,
            dtype=of.dtype,
            top=whole_number("top", wanted.top),
            save=wanted.save,
            axes=wanted.axes,
            plot=wanted.plot,
            count=count,
            json=json,
            output=output,
        )
        return 0 if count or ok_if_none or record["best"] else 1
    for options in theirs.entered().values():
        refuse_options(_NEEDS_REFERENCE, **options)
    refuse_options(_NEEDS_REFERENCE, layers=theirs.layers)
    space = of.read(chosen.question())
    if count:
        refuse_options(_NEEDS_SEARCH, **asdict(wanted), ok_if_none=ok_if_none, **run)
        return _count(model, system, space, json=json, output=output)
    if wanted.explain is not None:
        shared = ("objective", "max_memory", "reserve", "explain")
        others = {name: v for name, v in asdict(wanted).items() if name not in shared}
        refuse_options(_NOT_EXPLAINED, **others, ok_if_none=ok_if_none, **run)
        return _explain(model, system, space, wanted, json=json, output=output)
    found = _search(model, system, space, wanted, training_run(run), json=json, output=output)
    if not found.complete:
        return INTERRUPTED
    return 0 if ok_if_none or found.best else 1


def _count(model: str, system: str, space: Space, *, json: bool, output: str | None) -> int:
    """Print the size of a space."""
    candidates, rejected = count_space(model, system, space)

    def tables() -> None:
        from shardwise.report.tables.search import print_count  # noqa: PLC0415 - slow to import

        print_count(candidates, rejected)

    record = {"candidates": candidates, "rejected": rejected}
    show(lambda: record, tables, json=json, output=output)
    return 0


def _search(
    model: str,
    system: str,
    space: Space,
    options: SearchOptions,
    training: TrainingRun | None,
    *,
    json: bool,
    output: str | None,
) -> SearchResult:
    """Search a space; print, write and draw the result."""
    options.check(output)
    arguments = options.arguments()
    with progress_bar("strategies") as bar:
        result = search(model, system, space, run=training, progress=_progress(bar), **arguments)
    note(f"{result.looked_at:,} strategies in {result.elapsed_s:.2f} s")
    if options.save is not None and not result.complete:
        note(f"interrupted: parts of {options.save} stay in a folder; the same command resumes")

    def tables() -> None:
        from shardwise.report.tables.search import print_search  # noqa: PLC0415 - slow to import

        print_search(result)

    lacks = ""
    if not result.best:
        from shardwise.report.tables.search import closing  # noqa: PLC0415 - slow to import

        lacks = "; ".join(closing(result))
    show(result.to_dict, tables, json=json, output=output, lacks=lacks)
    if options.plot is not None:
        from shardwise.report.charts.search import write_charts  # noqa: PLC0415 - slow

        write_charts(result, options.plot)
    return result


def _explain(
    model: str,
    system: str,
    space: Space,
    options: SearchOptions,
    *,
    json: bool,
    output: str | None,
) -> int:
    """Explain why a strategy is not legal, does not fit, or is not the best."""
    assert options.explain is not None  # noqa: S101 - checked by the caller
    fields = tuple(Strategy.model_fields)
    strategy = field_pairs("explain", [options.explain], values="one", known=fields)
    with progress_bar("strategies") as bar:
        found = explain(
            model,
            system,
            space,
            strategy,
            progress=_progress(bar),
            **used(options, "objective", "max_memory", "reserve"),
        )

    def tables() -> None:
        from shardwise.report.tables.explain import print_explanation  # noqa: PLC0415 - slow to import

        print_explanation(found)

    lacks = "" if found.better is not None else "nothing of the space is feasible"
    show(found.to_dict, tables, json=json, output=output, lacks=lacks)
    if not found.complete:
        return INTERRUPTED
    return 0 if found.better is not None else 1


def _progress(bar: Bar | None) -> Progress | None:
    """Update the bar with the best step time so far."""
    if bar is None:
        return None

    def update(done: int, total: int, found: Findings) -> None:
        best = f"best {found.best.step_time_s[0]:.4g} s" if len(found.best) else "nothing fits yet"
        bar(done, total, best)

    return update
