"""Named recipes: the published configurations of the catalog next to our estimates of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.analysis import Result
from shardwise.analysis.results import Estimate
from shardwise.config.model import Model
from shardwise.config.plain import plain
from shardwise.config.recipe import Recipe
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate
from shardwise.ops.param_count import flops_per_token
from shardwise.shown import Charted

_TERA = 1e12


class RecipeEstimate(Charted, Result):
    """A recipe, what was measured with it, and our estimate of the same run.

    Examples
    --------
    >>> from shardwise import estimate_recipe
    >>> found = estimate_recipe("llama3-405b-h100-1024-bf16")
    >>> found.estimate.strategy["gpus"], found.measured_step_time_s > 0
    (1024, True)
    """

    recipe: Mapping[str, Any]
    """The recipe; of its strategy the fields that it sets."""
    estimate: Estimate
    measured_step_time_s: float
    """As printed, or converted: from tokens per second and the batch, else from model FLOP/s."""
    measured_tokens_per_s_per_gpu: float
    """Of the same step time."""
    error: float
    """Estimated over measured step time, less one: positive where the estimate is slower."""

    def contradictions(self) -> Iterator[Fault]:
        """Yield the faults of a saved recipe."""
        try:
            Recipe.validated(self.recipe)
        except InputError as error:
            yield from (replace(fault, field=f"recipe.{fault.field}") for fault in error.faults)

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return str(self.recipe["name"])

    def brief(self) -> dict[str, Any]:
        """Return the recipe, the measured step and the main figures of the estimate."""
        mine = self.estimate
        return {
            **plain(self.recipe),
            "measured_step_time_s": self.measured_step_time_s,
            "measured_tokens_per_s_per_gpu": self.measured_tokens_per_s_per_gpu,
            "estimated_step_time_s": mine.step_time_s,
            "estimated_tokens_per_s_per_gpu": mine.tokens_per_s_per_gpu,
            "error": self.error,
            "mfu": mine.mfu,
            "fits": mine.fits,
            "memory_reserved_bytes": mine.memory_bytes.reserved,
        }


class RecipeNote(Result):
    """What the estimate of a recipe says of the recipe."""

    name: str
    changed: tuple[str, ...]
    """Fields that flags override; with any of them the measured run is another one."""
    measured_step_time_s: float | None = None
    error: float | None = None

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault if figures of the run are missing."""
        if not self.changed and None in (self.measured_step_time_s, self.error):
            yield Fault(problem="has neither changed fields nor what was measured")


def recipes() -> tuple[Recipe, ...]:
    """Return the recipes of the catalog, by name.

    Examples
    --------
    >>> from shardwise import recipes
    >>> [recipe.gpus for recipe in recipes() if recipe.model == "kimi-k2"]
    [256]
    """
    return tuple(Recipe.load(name) for name in catalog.names("recipes"))


def estimate_recipe(recipe: Recipe | str | Path) -> RecipeEstimate:
    """Estimate a recipe, and compare the step time with the measured one.

    Parameters
    ----------
    recipe
        A `Recipe`, its catalog name, or a file.

    Returns
    -------
    RecipeEstimate
        The estimate next to what was measured; `help(shardwise.RecipeEstimate)` lists its fields.

    Raises
    ------
    InputError
        If the recipe, its model, its system or its strategy is wrong.

    Examples
    --------
    >>> from shardwise import estimate_recipe
    >>> found = estimate_recipe("llama3-405b-h100-1024-bf16")
    >>> found.estimate.fits, abs(found.error) < 0.05
    (True, True)
    """
    loaded = Recipe.load(recipe)
    even = loaded.strategy.expert_imbalance  # benchmarks force it, unless they say otherwise
    result = estimate(loaded.model, loaded.system, loaded.strategy, expert_imbalance=even)
    return compared(loaded, result)


def compared(loaded: Recipe, result: Estimate) -> RecipeEstimate:
    """Put the estimate of a recipe next to what was measured with it."""
    measured_s = measured_step_time_s(loaded, result)
    return RecipeEstimate(
        recipe=loaded.to_dict(),
        estimate=result,
        measured_step_time_s=measured_s,
        measured_tokens_per_s_per_gpu=result.tokens_per_step / measured_s / loaded.gpus,
        error=result.step_time_s / measured_s - 1,
    )


def measured_step_time_s(recipe: Recipe, result: Estimate) -> float:
    """Measured time of a step [s]: as printed, from tokens/s, or from model FLOP/s.

    t = tokens per step / (tokens/s per accelerator x accelerators)
      = tokens per step x FLOPs per token / (FLOP/s per accelerator x accelerators)
    """
    printed = recipe.measured
    if printed.step_time_s is not None:
        return printed.step_time_s
    tokens = result.tokens_per_step / recipe.gpus
    if printed.tokens_per_s_per_gpu is not None:
        return tokens / printed.tokens_per_s_per_gpu
    assert printed.model_tflops_per_gpu is not None  # noqa: S101 - one of the three is set
    model, seq_len = Model.load(recipe.model), int(result.strategy["seq_len"])
    flops = flops_per_token(model, seq_len, printed.flops_convention)
    return tokens * flops / (printed.model_tflops_per_gpu * _TERA)


def check_same(recipe: Recipe, **given: str | None) -> None:
    """Refuse a model or a system that is another than that of the recipe."""
    faults = []
    for kind, name in given.items():
        own = getattr(recipe, kind)
        if name is not None and _entry(kind, name) != _entry(kind, own):
            problem = f"recipe {recipe.name} is of {kind} {own}: leave out one of the two"
            faults.append(Fault.of(kind, name, problem))
    if faults:
        raise InputError(faults)


def _entry(kind: str, name: str) -> Path | str:
    """The file of a catalog name, else the name itself."""
    return catalog.find(f"{kind}s", name) or name.strip()
