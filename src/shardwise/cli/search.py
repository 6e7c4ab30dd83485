"""`shardwise search`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwise import registry
from shardwise.analysis.fit_probability import SURE
from shardwise.cli.cluster import NO_EFFECT as NO_EFFECT_ON_A_CLUSTER
from shardwise.cli.cluster import ClusterOptions, choose
from shardwise.cli.command_line import command_line
from shardwise.cli.flags import training_run, with_run_flags, with_space_flags
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.host import HostOptions
from shardwise.cli.inputs import read_inputs, show_imported, system_or_config
from shardwise.cli.launch import note_left_out
from shardwise.cli.options import (
    JSON_FLAG,
    LARGEST_OPTION,
    MODEL_OR_NONE,
    PLOT_OPTION,
    REPORT_OPTION,
    SEARCH_STRATEGY_OPTION,
    SYSTEM_OR_NONE,
    flag_fault,
    missing_flag,
    opt,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import (
    INTERRUPTED,
    check_different_files,
    check_pages,
    note,
    printed,
    progress_bar,
    show,
    write_page,
)
from shardwise.cli.recipes import SEARCH_RECIPE_OPTION, Chosen
from shardwise.cli.search_progress import progress_of
from shardwise.cli.space import (
    FITS_OPTION,
    FOR_OPTION,
    LIMIT_ON_OPTION,
    MAX_MEMORY_OPTION,
    OBJECTIVE_OPTION,
    OK_IF_NONE_FLAG,
    RESERVE_OPTION,
    ReferenceOptions,
    SpaceOptions,
    field_pairs,
)
from shardwise.config import files
from shardwise.config.arguments import one_of, whole_number
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.system import System
from shardwise.planning.nearest import NearestPlan, plan_words
from shardwise.planning.search.explain import explain
from shardwise.planning.search.ranking import FRONTS
from shardwise.planning.search.results import Explanation, SearchResult
from shardwise.planning.search.run import count, search
from shardwise.planning.search.space import Space
from shardwise.planning.training_time import TrainingRun
from shardwise.planning.ways import change_of_search
from shardwise.units import parse_memory, readable

_ONLY_OURS = ("batch", "space", "fix", "allow", "any_software")
_NO_EFFECT = "has no effect with --reference, which searches the space of another model"
_NEEDS_REFERENCE = "needs --reference: it selects part of the space of another model"
_NEEDS_SEARCH = "needs a search; --count only counts"
_NOT_EXPLAINED = "has no effect with --explain alone; add --top or --pareto to list plans, too"
_NOT_FOR_A_LAUNCHER = "has no effect with --explain, which is about one strategy"
_NOT_LARGEST = "has no effect with --largest, which is about one value"
_PLANS = "Plans to list"
_WORK = "How to search"
_ALSO_THEIRS = ("top", "save", "axes", "plot", "jobs")
_ALSO_EXPLAINED = ("objective", "max_memory", "reserve", "limit_on", "fits", "explain")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched for, what is listed and saved, and who computes it."""

    max_memory: str | None = MAX_MEMORY_OPTION
    reserve: str | None = RESERVE_OPTION
    limit_on: str | None = LIMIT_ON_OPTION
    fits: str | None = FITS_OPTION
    objective: str | None = OBJECTIVE_OPTION
    top: str | None = opt(
        "--top K",
        "Plans to list. Default: 10; of calculon 1.",
        _PLANS,
    )
    all_variants: bool = opt(
        "--all-variants",
        "List each strategy; by default those of one layout within 0.5 % are one line.",
        _PLANS,
    )
    pareto: bool = opt("--pareto", "List the Pareto front of time and memory.", _PLANS)
    against: str | None = opt(
        f"--against {'|'.join(FRONTS)}", "With --pareto: trade time against this.", _PLANS
    )
    axes: str | None = opt(
        "--axes FIELD,FIELD",
        "List the best plan for each combination of values of these fields.",
        _PLANS,
    )
    levels: bool = opt(
        "--levels",
        "Try every split of every axis over the network tiers, and list the best plan of "
        "each with its batch: 2x16 is 2 in a domain of the innermost tier, 16 across domains.",
        _PLANS,
    )
    plot: str | None = PLOT_OPTION
    report: str | None = REPORT_OPTION
    explain: str | None = opt(
        "--explain FIELD=VALUE,...",
        "Why this strategy is not legal, does not fit, or is not the best; also with --top.",
        _PLANS,
    )
    save: str | None = opt(
        "--save FILE",
        "Write every feasible strategy to FILE (.parquet, .csv, .csv.gz); after an "
        "interruption the same command resumes.",
        OUTPUT,
    )
    save_all: bool = opt("--save-all", "With --save: also the rejected, with the reason.", OUTPUT)
    counts: bool = opt(
        "--counts",
        "Count how many strategies fit. By default those that are too slow in any case "
        "are not checked, and counts are lower bounds.",
        _PLANS,
    )
    no_bounds: bool = opt(
        "--no-bounds",
        "Time every strategy that fits. The answer is the same, and takes longer.",
        _WORK,
    )
    jobs: str | None = opt("--jobs N", "Processes. Default: 1, or those of the cluster.", _WORK)
    backend: str | None = opt(
        "--backend loky|ray|dask", "What runs the worker processes. Default: loky.", _WORK
    )

    def check(self, output: str | None) -> None:
        """Refuse options that contradict each other, and files that cannot be written."""
        if self.against is not None:
            if not self.pareto:
                raise flag_fault("against", self.against, "needs --pareto")
            one_of("against", self.against, FRONTS)
        check_different_files(output=output, plot=self.plot, save=self.save, report=self.report)
        if self.levels:
            refuse_options("has no effect with --levels", axes=self.axes, plot=self.plot)
        if self.save_all and self.save is None:
            raise missing_flag("save_all", "needs --save FILE")
        check_pages(self.plot, self.report)

    def arguments(self) -> dict[str, Any]:
        """Arguments of `planning.search.run.search`."""
        names = ("objective", "max_memory", "reserve", "limit_on", "fits", "save", "backend")
        axes = () if self.axes is None else tuple(axis.strip() for axis in self.axes.split(","))
        if (self.plot is not None or self.report is not None) and not (axes or self.levels):
            axes = ("tp", "pp")
        numbers = {name: whole_number(name, getattr(self, name)) for name in ("top", "jobs")}
        return {
            **used(self, *names),
            **{name: number for name, number in numbers.items() if number is not None},
            "axes": tuple(SHORT_NAMES.get(axis, axis) for axis in axes),
            "pareto": (self.against or "memory") if self.pareto else None,
            "all_variants": self.all_variants,
            "levels": self.levels,
            "save_all": self.save_all,
            "counts": self.counts,
            "bounds": not self.no_bounds,
        }

    def for_reference(self) -> dict[str, Any]:
        """Arguments of the search of another model."""
        numbers = {name: whole_number(name, getattr(self, name)) for name in ("top", "jobs")}
        return numbers | {"save": self.save, "axes": self.axes}

    def without(self, names: Collection[str]) -> dict[str, Any]:
        """Return all other options."""
        return {name: value for name, value in asdict(self).items() if name not in names}


@with_help(
    "gpus gbs seq_len fix allow launcher top explain tokens",
    examples=[
        "shardwise search llama3-8b h100-sxm --gpus 64 --gbs 256",
        "shardwise search llama3-8b h100-sxm --gpus 64 --gbs 256 --tp 2 --for megatron",
    ],
)
@with_run_flags
@with_space_flags
@with_options
def command(
    *,
    model: str | None = MODEL_OR_NONE,
    system: str | None = SYSTEM_OR_NONE,
    recipe: str | None = SEARCH_RECIPE_OPTION,
    strategy: str | None = SEARCH_STRATEGY_OPTION,
    of: SpaceOptions,
    wanted: SearchOptions,
    cluster: ClusterOptions,
    launcher: str | None = FOR_OPTION,
    count: bool = opt("--count", "Count the strategies and stop.", _PLANS),
    largest: str | None = LARGEST_OPTION,
    ok_if_none: bool = OK_IF_NONE_FLAG,
    reference: str | None = opt(
        "--reference calculon|nersc|amped", "Search the space of another model.", OTHER_MODELS
    ),
    host: HostOptions,
    theirs: ReferenceOptions,
    json: bool = JSON_FLAG,
    output: str | None = opt(
        "--output -o FILE",
        "Write to FILE (.json, .yaml, or the best as .csv; also .gz; .parquet).",
        OUTPUT,
    ),
    flags: dict[str, object],
    run: Mapping[str, object],
) -> int:
    """Find the best strategies of a model on a number of GPUs.

    Every strategy of the space that the stack can run is a candidate. Flags of strategy fields set
    the values to try: --tp 2 or --tp 2,4. Exit code 1 if nothing is feasible.

    The space: all degrees, micro-batches and chunks, recompute, sharding and expert parallelism as
    recipes use them, and offload where nothing fits without it. Candidates that a lower bound
    proves too slow are not timed; the answer is the same as if all were. --space full, --allow and
    --any-software widen the space; flags of fields and --fix narrow it. A field can also select one
    value: --recompute-layers fit, --mbs largest or --stage-layers balanced.

    With --systems in place of SYSTEM, choose among systems and numbers of GPUs for a training run;
    exit code 1 if none meets --deadline and --budget.
    """
    shown: dict[str, Any] = {"json": json, "output": output}
    if cluster.systems is not None:
        entered: dict[str, Any] = {"count": count, "reference": reference, "recipe": recipe}
        entered |= {"for": launcher, "strategy": strategy}
        if system is not None:
            problem = "--systems is set, too; name one SYSTEM or several --systems"
            raise flag_fault("system", system, problem)
        refuse_options(NO_EFFECT_ON_A_CLUSTER, **entered, **host.given())
        theirs.refuse_others(NO_EFFECT_ON_A_CLUSTER)
        if model is None:
            raise missing_flag("model", "is missing: name a catalog model or a file")
        if output is not None:
            files.check_result_ending(output)
        space, training = of.read(flags | theirs.fields(), {}), training_run(run)
        return choose(model, space, cluster, wanted, training, ok_if_none=ok_if_none, **shown)
    cluster.check_alone()
    chosen = Chosen.of(recipe, model=model, system=system, strategy=strategy, gpus=of.gpus)
    if output is not None:
        files.check_result_ending(output)
    if reference is not None:
        entered = used(of, *_ONLY_OURS) | wanted.without(_ALSO_THEIRS)
        entered |= {name: value for name, value in run.items() if name != "tokens"}
        entered |= {name: value for name, value in flags.items() if name != "dtype"}
        entered |= host.given()
        refuse_options(_NO_EFFECT, recipe=recipe, strategy=strategy, **entered, **{"for": launcher})
        training = training_run(run)
        work: dict[str, Any] = {"gpus": of.gpus, "gbs": of.gbs, "dtype": flags.get("dtype")}
        theirs_too = dict(
            model=_named(chosen.model, reference),
            system=system_or_config(chosen.model, chosen.system),
            count=count,
            tokens=None if training is None else training.tokens,
            **work,
            **wanted.for_reference(),
        )
        by_reference = registry.function("search_verb").search_reference
        found = by_reference(reference, theirs_too, theirs, plot=wanted.plot, **shown)
        return 0 if count or found["best"] or ok_if_none else 1
    theirs.refuse_others(_NEEDS_REFERENCE)
    inputs = read_inputs(
        chosen.model, chosen.system, strategy=chosen.strategy, flags={}, run=run, searched=True
    )
    question = inputs.question() | chosen.question(launcher)
    query = _Query(
        model=inputs.model,
        system=cluster.priced(host.of(inputs.system, _one_number(of.gpus))),
        space=of.read(flags | theirs.fields(), question),
        launcher=launcher,
        also=chosen.launch_record(),
        inputs=inputs,
        **shown,
    )
    if count or largest is not None:
        others = wanted.without(()) | dict(run) | {"for": launcher, "ok_if_none": ok_if_none}
        refuse_options(
            _NOT_LARGEST if largest else _NEEDS_SEARCH, count=count and largest, **others
        )
        return query.count() if largest is None else query.largest(largest)
    if wanted.explain is not None:
        refuse_options(_NOT_FOR_A_LAUNCHER, **{"for": launcher})
        if wanted.top is None and not wanted.pareto:
            others = wanted.without(_ALSO_EXPLAINED)
            refuse_options(_NOT_EXPLAINED, **others, ok_if_none=ok_if_none, **run)
            return query.explain(wanted)
    return query.search(wanted, training_run(inputs.run), ok_if_none=ok_if_none)


def _one_number(gpus: str | None) -> int | None:
    """Number of accelerators; None for several numbers."""
    return int(gpus) if gpus is not None and gpus.strip().isdecimal() else None


def _named(model: str | Model, reference: str) -> str:
    """The model as another model of performance reads it: by name or file."""
    if isinstance(model, Model):
        raise flag_fault("reference", reference, "has no effect on a launch file")
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """What is searched, and where the answer goes; each method returns the exit code."""

    model: str | Model
    system: str | System
    space: Space
    launcher: str | None
    also: Mapping[str, Any]
    """What to add to the record of a search."""
    inputs: Inputs
    json: bool
    output: str | None

    def _show(self, record: Callable[[], Any], tables: Callable[[], None], lacks: str = "") -> None:
        show(record, tables, json=self.json, output=self.output, lacks=lacks)

    def count(self) -> int:
        """Print the size of the space."""
        candidates, rejected = count(self.model, self.system, self.space)

        legal = candidates - sum(rejected.values())
        record = {"candidates": candidates, "evaluated": legal, "rejected": rejected}
        self._show(lambda: record, printed("search:print_count", candidates, rejected))
        return 0

    def largest(self, field: str) -> int:
        """Find the largest value of a field with which some strategy fits."""
        find = registry.load("planning.largest_value:largest_in_search")
        found = find(self.model, self.system, self.space, field)
        if found is None:
            lacks = "nothing of the space surely fits"
            self._show(lambda: {"value": None}, lambda: note(lacks), lacks)
            return 1
        self._show(
            found.to_dict, printed("largest_value:print_largest_value", found, command_line())
        )
        return 0

    def search(
        self, options: SearchOptions, training: TrainingRun | None, *, ok_if_none: bool
    ) -> int:
        """Search the space; print, write and draw the result."""
        options.check(self.output)
        explained = self._explanation(options) if options.explain is not None else None
        arguments = options.arguments() | {"run": training, "launcher": self.launcher}
        with progress_bar("strategies") as bar:
            progress = progress_of(bar)
            found = search(self.model, self.system, self.space, progress=progress, **arguments)
        note(f"{found.looked_at:,} strategies in {found.elapsed_s:.2f} s")
        memory = System.load(self.system).accelerator.memory[0].capacity
        if (size := options.max_memory) is not None and parse_memory(size) > memory:
            has = readable(memory, "bytes")
            note(f"note: --max-memory {size} has no effect: a GPU has {has}")
        note_left_out(found)
        if options.save is not None and not found.complete:
            note(f"interrupted: parts of {options.save} stay in a folder; the same command resumes")

        change = self._change(found)

        def print_tables() -> None:
            if explained is not None:
                printed("explain:print_explanation", explained)()
            printed("search:print_search", found)()
            if change is not None:
                printed("estimate:print_change", *change)()
            show_imported(self.inputs)

        more = dict(self.also) | self.inputs.imported_record()
        more |= {"explanation": explained.to_dict()} if explained else {}
        more |= {"change_to_fit": change[0].to_dict()} if change else {}
        lacks = ""
        if not found.best:
            lacks = "; ".join(registry.load("report.tables.search:closing")(found))
        self._show(lambda: found.to_dict() | more, print_tables, lacks)
        if options.plot is not None:
            registry.load("report.charts.search:write_charts")(found, options.plot)
        write_page("search", options.report, found, command_line())
        return _exit_code(found, has_answer=ok_if_none or bool(found.best))

    def _change(self, found: SearchResult) -> tuple[NearestPlan, str] | None:
        """What makes the nearest plan fit, and the command of the plan, where nothing fits."""
        model, system = Model.load(self.model), System.load(self.system)
        is_free = self.space.set_fields().count("stack") == 0
        change = change_of_search(model, system, found, any_stack=is_free)
        if change is None or found.nearest is None:
            return None
        resolved = Strategy.validated(found.nearest.strategy).resolved(model, system)
        flags = plan_words(model, resolved, self.space.stack, system)
        return change, " ".join(["shardwise estimate", model.name, system.name, *flags])

    def explain(self, options: SearchOptions) -> int:
        """Explain why a strategy is not legal, does not fit, or is not the best."""
        found = self._explanation(options)
        has_answer = found.better is not None
        lacks = "" if has_answer else "nothing of the space is feasible"
        self._show(found.to_dict, printed("explain:print_explanation", found), lacks)
        return _exit_code(found, has_answer=has_answer)

    def _explanation(self, options: SearchOptions) -> Explanation:
        assert options.explain is not None  # noqa: S101 - checked by the caller
        fields = tuple(Strategy.model_fields)
        strategy = field_pairs("explain", [options.explain], values="one", known=fields)
        names = ("objective", "max_memory", "reserve", "limit_on")
        arguments = used(options, *names) | {"fits": options.fits or SURE}
        with progress_bar("strategies") as bar:
            case = self.model, self.system, self.space, strategy
            return explain(*case, progress=progress_of(bar), **arguments)


def _exit_code(found: SearchResult | Explanation, *, has_answer: bool) -> int:
    if not found.complete:
        return INTERRUPTED
    return 0 if has_answer else 1
