"""`shardwise recipes`, and `--recipe` of other verbs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwise.cli.options import (
    COMMAND_LINE,
    JsonFlag,
    NameArgument,
    OutputOption,
    refuse_options,
)
from shardwise.cli.output import emit_json, note
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.analysis.results import Estimate
    from shardwise.config.recipe import Recipe

RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="Published recipe (see `shardwise recipes`) that sets model, system and strategy; "
        "flags override its fields.",
    ),
]
SearchRecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="Published recipe (see `shardwise recipes`) that sets model, system, GPUs, batch, "
        "sequence, types and software; flags override them.",
    ),
]
# Fields of a recipe that follow from others: a flag of one of these leaves them out.
_FOLLOW = {
    "dp": ("gpus",),
    "pp": ("stage_layers", "first_stage_layers", "last_stage_layers"),
    "vpp": ("stage_layers", "first_stage_layers", "last_stage_layers"),
    "recompute": ("recompute_parts", "recompute_layers"),
}


def command(name: NameArgument = None, json: JsonFlag = False, output: OutputOption = None) -> int:
    """List published recipes next to our estimates of them, or show one in full.

    A recipe is a configuration that its authors measured, with model, system, strategy and source.
    The error is that of the estimated step time: positive where the estimate is slower. With
    --output, write all of it to a file.
    """
    from shardwise.planning.recipes import estimate_recipe, recipes  # noqa: PLC0415 - slow
    from shardwise.report.tables.recipes import print_recipe, print_recipes  # noqa: PLC0415 - slow

    if name is not None:
        one = estimate_recipe(name)
        if json or output is not None:
            emit_json(one.to_dict(), output)
        else:
            print_recipe(one)
        return 0
    every = [estimate_recipe(recipe) for recipe in recipes()]
    if json or output is not None:
        emit_json({one.name: one.brief() for one in every}, output)
    else:
        print_recipes(every)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Model and system of the arguments, or those of the recipe."""

    recipe: "Recipe | None"
    model: str
    system: str | None

    @classmethod
    def of(
        cls, name: str | None, *, model: str | None, system: str | None, strategy: str | None = None
    ) -> "Chosen":
        """Load the recipe of `--recipe`, if any; without one, MODEL has to be there.

        Raises
        ------
        InputError
            If neither is there, or one contradicts the other.
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
            problem = "Missing argument 'MODEL'; it is optional with --recipe"
            raise InputError(Fault(source=COMMAND_LINE, problem=problem))
        return cls(recipe=None, model=model, system=system)

    def fields(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the recipe, overridden by flags; what follows from those is left out."""
        if self.recipe is None:
            return dict(flags)
        own = self.recipe.fields()
        left_out = {
            other: flag
            for flag, others in _FOLLOW.items()
            for other in others
            if flag in flags and other in own and other not in flags
        }
        for other, flag in left_out.items():
            note(f"{other} of recipe {self.recipe.name} left out: it belongs to its {flag}")
        return {n: value for n, value in own.items() if n not in left_out} | dict(flags)

    def question(self) -> dict[str, Any]:
        """Fields that a search leaves as the recipe has them."""
        return {} if self.recipe is None else self.recipe.question()

    def record(self, result: "Estimate", changed: Collection[str]) -> dict[str, Any]:
        """What was measured with the recipe, for its estimate as JSON; empty without one.

        Parameters
        ----------
        result
            The estimate, with the changed fields.
        changed
            Fields that flags override; with any of them the measured run is another one.
        """
        if self.recipe is None:
            return {}
        record: dict[str, Any] = {"name": self.recipe.name, "changed": sorted(changed)}
        if not changed:
            from shardwise.planning.recipes import compared  # noqa: PLC0415 - slow to import

            both = compared(self.recipe, result)
            record |= {"measured_step_time_s": both.measured_step_time_s, "error": both.error}
        return {"recipe": record}

    def show(self, record: Mapping[str, Any]) -> None:
        """Print what was measured, of an estimate as JSON."""
        if self.recipe is not None:
            from shardwise.report.tables.recipes import print_measured  # noqa: PLC0415 - slow

            print_measured(record["recipe"])
