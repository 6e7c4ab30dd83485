"""`shardwise recipes`, and `--recipe` of other verbs."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from shardwise import catalog
from shardwise.cli.help import INPUT, with_help
from shardwise.cli.inputs import read_inputs
from shardwise.cli.launch import (
    find_launch,
    launch_fields,
    launch_model,
    launch_record,
    launch_work,
    overridden,
    show_assumed,
)
from shardwise.cli.options import (
    COMMAND_LINE,
    JSON_FLAG,
    OUTPUT_OPTION,
    name_argument,
    opt,
    refuse_options,
)
from shardwise.cli.output import emit_json, printed
from shardwise.config.files import is_file_name
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.errors import InputError
from shardwise.records import dataclass

if TYPE_CHECKING:
    from shardwise.analysis.results import Estimate
    from shardwise.config.launch import Launch
    from shardwise.config.recipe import Recipe

RECIPE_OPTION = opt(
    "--recipe RECIPE",
    "Published recipe (see `shardwise recipes`) that sets model, system and strategy; "
    "flags override its fields.",
    INPUT,
)
SEARCH_RECIPE_OPTION = opt(
    "--recipe RECIPE",
    "Published recipe (see `shardwise recipes`) that sets model, system, GPUs, batch, "
    "sequence, types and software; flags override them.",
    INPUT,
)


@with_help(examples=["shardwise recipes", "shardwise recipes llama3"])
def command(
    name: str | None = name_argument("[RECIPE]"),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """List published recipes next to their estimates, or show one in full.

    With part of a name, list those whose names contain it, as in `recipes llama3`.

    A recipe is a configuration that its authors measured, with model, system, strategy and source.
    The error is that of the estimated step time: positive where the estimate is slower. With
    --output, write all of it to a file.
    """
    from shardwise.planning.recipes import estimate_recipe, recipes  # noqa: PLC0415 - slow
    from shardwise.report.tables.recipes import print_recipe, print_recipes  # noqa: PLC0415 - slow

    shown = _named(name)
    if name is not None and shown is None:
        one = estimate_recipe(name)
        if json or output is not None:
            emit_json(one.to_dict(), output)
        else:
            print_recipe(one)
        return 0
    every = [estimate_recipe(r) for r in recipes() if shown is None or r.name in shown]
    if json or output is not None:
        emit_json({one.name: one.brief() for one in every}, output, written=False)
    else:
        print_recipes(every)
    return 0


def _named(text: str | None) -> list[str] | None:
    """Recipes whose names contain a text; None for all, or for one that has that name."""
    if text is None or catalog.find("recipes", text) is not None or is_file_name(text):
        return None
    return catalog.containing("recipes", text) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Model, system and strategy of the arguments, of the recipe, or of a launch file."""

    recipe: "Recipe | None" = None
    launch: "Launch | None" = None
    """Launch file that sets the strategy, and as MODEL the model."""
    model: str | Model
    system: str | None
    strategy: str | None = None
    """Strategy file, which is no launch file."""

    @classmethod
    def of(
        cls,
        name: str | None,
        *,
        model: str | None,
        system: str | None,
        strategy: str | None = None,
        gpus: object = None,
        optional_with: str = "--recipe",
    ) -> "Chosen":
        """Load the recipe of `--recipe`, if any; without one, MODEL has to be there.

        MODEL and the file of `--strategy` may be launch files.
        """
        if name is not None:
            from shardwise.config.recipe import Recipe  # noqa: PLC0415 - slow to import
            from shardwise.planning.recipes import check_same  # noqa: PLC0415 - slow to import

            refuse_options(
                "has no effect with --recipe, which sets the strategy", strategy=strategy
            )
            recipe = Recipe.load(name)
            check_same(recipe, model=model, system=system)
            return cls(recipe=recipe, model=recipe.model, system=recipe.system)
        if model is None:
            problem = "Missing argument 'MODEL'"
            problem += f"; it is optional with {optional_with}" if optional_with else ""
            raise InputError.at(COMMAND_LINE, problem)
        launch = find_launch(model, gpus=gpus)
        used = model if launch is None else launch_model(launch)
        if strategy is None:
            return cls(launch=launch, model=used, system=system)
        by_file = find_launch(strategy, model=used, gpus=gpus)
        own = strategy if by_file is None else None
        return cls(launch=by_file, model=used, system=system, strategy=own)

    def fields(self, flags: Mapping[str, Any], launcher: str | None = None) -> dict[str, Any]:
        """Fields of the recipe or the launch file, overridden by flags."""
        if self.launch is not None:
            return launch_fields(self.launch, flags, launcher)
        if self.recipe is None:
            return dict(flags)
        # Benchmarks force an even load of experts, unless they say otherwise.
        own = {"expert_imbalance": self.recipe.strategy.expert_imbalance} | self.recipe.fields()
        return overridden(own, flags, f"recipe {self.recipe.name}")

    def inputs(
        self,
        flags: Mapping[str, Any],
        *,
        run: Mapping[str, Any] | None = None,
        tables: str | None = None,
        launcher: str | None = None,
    ) -> Inputs:
        """Read model, system and strategy; flags override fields."""
        return read_inputs(
            self.model,
            self.system,
            strategy=self.strategy,
            flags=self.fields(flags, launcher),
            run=run or {},
            tables=tables,
        )

    def question(self, launcher: str | None = None) -> dict[str, Any]:
        """Fields that a search leaves as the recipe or the launch file has them."""
        work: dict[str, Any] = {} if self.recipe is None else self.recipe.question()
        if self.launch is not None:
            work = launch_work(self.launch)
        return {name: value for name, value in work.items() if name != "stack" or not launcher}

    @property
    def launch_source(self) -> str | None:
        """The launch file, if there is one."""
        return None if self.launch is None else self.launch.source

    def launch_record(self) -> dict[str, Any]:
        """Return what a result says of the launch file; empty without one."""
        return {} if self.launch is None else {"launch": launch_record(self.launch)}

    def show_assumed(self, flags: Mapping[str, Any]) -> None:
        """Print what neither the launch file nor flags set."""
        if self.launch is not None:
            show_assumed(self.launch, flags)

    def record(self, result: "Estimate", changed: Collection[str]) -> dict[str, Any]:
        """What was measured with the recipe, for its estimate as JSON; empty without one."""
        if self.recipe is None:
            return self.launch_record()
        record: dict[str, Any] = {"name": self.recipe.name, "changed": sorted(changed)}
        if not changed:
            from shardwise.planning.recipes import compared  # noqa: PLC0415 - slow to import

            both = compared(self.recipe, result)
            record |= {"measured_step_time_s": both.measured_step_time_s, "error": both.error}
        return {"recipe": record}

    def show(self, record: Mapping[str, Any]) -> None:
        """Print what was measured, of an estimate as JSON."""
        if self.recipe is not None:
            printed("recipes:print_measured", record["recipe"])()
