"""`Recipe`: a published way to train a model on a machine, and what was measured with it."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shardwise.config.base import ConfigBase, printable
from shardwise.config.expressions.resolve import with_located_file
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import work_fields

_Amount = Annotated[float, Field(gt=0)]


class RecipeSource(ConfigBase):
    """Who published a recipe and what was measured."""

    title: str = Field(min_length=1)
    ref: str = Field(min_length=1)
    """Paper, page, or repository and path, of the measured values."""
    configuration: str = ""
    """Release and file of the settings, where that is another place."""


class RecipeMeasured(ConfigBase):
    """What was measured, as the source prints it; one value or several of the same run."""

    step_time_s: _Amount | None = None
    tokens_per_s_per_gpu: _Amount | None = None
    model_tflops_per_gpu: _Amount | None = None
    """Model FLOP/s of an accelerator, 10^12."""
    flops_convention: Literal["causal", "full-attention", "parameters"] = "causal"
    """Model FLOPs that the source counts."""

    @model_validator(mode="after")
    def _has_a_speed(self) -> Self:
        if not (self.step_time_s or self.tokens_per_s_per_gpu or self.model_tflops_per_gpu):
            raise ValueError("needs step_time_s, tokens_per_s_per_gpu or model_tflops_per_gpu")
        return self


class Recipe(ConfigBase):
    """A published configuration with its source: model, system, strategy, measured speed.

    Examples
    --------
    >>> from shardwise import Recipe
    >>> recipe = Recipe.load("llama3-405b-h100-1024-bf16")
    >>> recipe.model, recipe.system, recipe.gpus
    ('llama3-405b', 'h100-sxm', 1024)
    """

    CATALOG: ClassVar[str | None] = "recipes"

    name: Annotated[str, AfterValidator(printable)] = Field(min_length=1)
    description: str = ""
    model: str = Field(min_length=1)
    """Catalog name or file; files are relative to the recipe's file, or to the working
    directory."""
    system: str = Field(min_length=1)
    """Likewise."""
    strategy: Strategy
    """Only the fields that the recipe sets; the others have their defaults."""
    measured: RecipeMeasured
    source: RecipeSource
    assumed: tuple[str, ...] = ()
    """What the strategy says although the source does not, a phrase each."""

    def __repr__(self) -> str:
        return f"<Recipe {self.name}: {self.model} on {self.system}, {self.gpus} GPUs>"

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    def located(cls, data: Mapping[str, Any], source: str) -> Mapping[str, Any]:
        """Find the files of model, system and stack."""
        for kind in ("model", "system"):
            data = with_located_file(data, kind, f"{kind}s", source)
        strategy = data.get("strategy")
        if not isinstance(strategy, Mapping):
            return data
        return {**data, "strategy": Strategy.located(strategy, source)}

    @model_validator(mode="after")
    def _names_machine_and_batch(self) -> Self:
        for name in ("gpus", "global_batch_size"):
            if getattr(self.strategy, name) is None:
                raise ValueError(f"strategy.{name} is missing: a recipe is of one run")
        return self

    @property
    def gpus(self) -> int:
        """Number of accelerators."""
        assert self.strategy.gpus is not None  # noqa: S101 - validated
        return self.strategy.gpus

    def fields(self) -> dict[str, Any]:
        """Return the strategy fields that the recipe sets, as plain values."""
        return self.strategy.explicit_fields({})

    def question(self) -> dict[str, Any]:
        """Return the fields that say what is trained and with what, as plain values.

        Accelerators, batch, sequence, types and software: what a search of a better way to train
        the same leaves as it is.
        """
        return work_fields(self.fields())

    def to_dict(self, *, units: bool = False) -> dict[str, Any]:
        """Return plain values; of the strategy the fields that the recipe sets."""
        return super().to_dict(units=units) | {"strategy": self.fields()}
