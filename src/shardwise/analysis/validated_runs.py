"""The validated runs that come with shardwise: their features, errors and software.

Each run comes with its error of log time, predicted with its own source left out of every fit.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import catalog
from shardwise.arrays import Bools, Floats
from shardwise.config.enums import Tuning
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.ops.param_count import Parameters, count_parameters
from shardwise.records import dataclass, fields

_FILE = "left_out.json"
_FRAMEWORKS = {
    "nemo": "megatron",
    "mlperf": "megatron",
    "primus": "megatron",
    "deepseek": "megatron",
    "automodel": "torchtitan",
    "accelerate": "huggingface",
    "llama": "huggingface",
}
_STACKS_FILE = "stacks.json"
_TUNED = {Tuning.STOCK: 0, Tuning.HAND: 1, Tuning.HOBBY: -1}
_PRECISIONS = dict.fromkeys(("fp8_tensor", "fp8_row", "fp8_block"), "fp8")
_PRECISIONS |= {"mxfp8": "mxfp8", "nvfp4": "nvfp4"}
_GENERATIONS = {
    "a100": "ampere",
    "a800": "ampere",
    "h100": "hopper",
    "h200": "hopper",
    "h800": "hopper",
    "b200": "blackwell",
    "b300": "blackwell",
    "mi3": "cdna",
    "tpu": "tpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """What determines how similar two runs are."""

    experts: bool
    accelerator: str
    """Name of the system."""
    generation: str
    """Of accelerators with the same units; the name of the system where no other has them."""
    framework: str
    software: str
    """Name of the stack without its release or variant."""
    stack: str
    pair: str
    """The software on the generation of accelerators."""
    tuned: int
    """1: software tuned by hand, -1: hobby code, 0: a stock trainer."""
    eager: bool
    """Whether the software runs some element-wise operations as separate kernels."""
    adapters: bool
    """Whether adapters alone are trained."""
    precision: str
    assumed: bool
    """Whether something that matters is unknown."""
    gpus: int
    parameters: float
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValidatedRuns:
    """Runs that were measured and predicted, as columns."""

    ids: tuple[str, ...]
    sources: NDArray[np.str_]
    features: Mapping[str, NDArray[Any]]
    """By the fields of `RunFeatures`."""
    errors: Floats
    """log predicted - log measured, without the source of the run in the fit."""
    unseen: Floats
    """The same, and without a stack that no other source has measured: predicted with one of the
    same software or framework, or with `unknown` (tools/catalog_fit/unseen.py)."""
    accelerator_out: Floats
    """The same as `errors`, without any run on the same system in the fit."""
    fitted: Bools
    """Whether the figures of the catalog were fitted to the run; its own source is left out of its
    error. The others were in no fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRuns:
    """Measured runs by software (tools/stack_runs.py)."""

    stacks: Mapping[str, int]
    """Runs of grades A and B that are predicted with each stack."""
    sources: Mapping[str, int]
    """Sources of these runs."""

    @property
    def frameworks(self) -> frozenset[str]:
        """Frameworks with measured runs."""
        return frozenset(map(framework_of, self.stacks))


def run_features(
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    assumed: bool = False,
    counted: Parameters | None = None,
) -> RunFeatures:
    """Features of an estimate, by which similar runs are found.

    Parameters
    ----------
    counted
        Parameters of the model, if already counted.
    """
    stack = strategy.loaded_stack(system)
    generation, software = generation_of(system.name), software_of(stack.name)
    return RunFeatures(
        experts=model.has_experts,
        accelerator=system.name,
        generation=generation,
        framework=framework_of(stack.name),
        software=software,
        stack=stack.name,
        pair=f"{software} on {generation}",
        tuned=_TUNED[stack.tuned],
        eager=is_eager(stack),
        adapters=strategy.lora_rank is not None,
        precision=precision_of(strategy.dtype, strategy.quantization),
        assumed=assumed,
        gpus=strategy.gpus or 1,
        parameters=float((counted or count_parameters(model)).total),
        seq_len=strategy.seq_len or model.seq_len or 1,
    )


def generation_of(system: str) -> str:
    """Return the generation of a system; its own name where no other has such units."""
    return next((g for name, g in _GENERATIONS.items() if name in system), system)


def precision_of(dtype: str, quantization: str) -> str:
    """Return the class of precision of the matrix products."""
    return _PRECISIONS.get(quantization, dtype)


def is_eager(stack: Stack) -> bool:
    """Whether software runs some element-wise operations as separate kernels."""
    return not (stack.fused_norm and stack.fused_swiglu)


def framework_of(stack: str) -> str:
    """Return the framework of a stack: the first word of its name, or what that is built on."""
    word = stack.split("-", maxsplit=1)[0]
    return _FRAMEWORKS.get(word, word)


def software_of(stack: str) -> str:
    """Return the name of a stack without its release or variant, the last word.

    Examples
    --------
    >>> software_of("megatron-bridge-2026")
    'megatron-bridge'
    """
    return stack.rpartition("-")[0] or stack


@cache
def stack_runs() -> StackRuns:
    """Return how many runs of how many sources were measured with each stack."""
    path = Path(catalog.__file__).parent / "fit" / _STACKS_FILE
    table = json.loads(path.read_text(encoding="utf-8"))
    return StackRuns(stacks=table["stacks"], sources=table["sources"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBasis:
    """What a stack of the catalog rests on, and where it is the default."""

    measured_runs: int
    """Runs of grades A and B that are predicted with it."""
    measured_sources: int
    """Sources of these runs: the figures of a stack with one source may be those of its servers."""
    framework_measured: bool
    """Whether runs of any stack of its framework were measured; if not, its figures are a prior."""
    default_of: tuple[str, ...]
    """Systems of the catalog that name it."""


def data_basis(stack: Stack) -> DataBasis:
    """Return the measured runs of a stack of the catalog, and the systems that name it."""
    return DataBasis(
        measured_runs=stack_runs().stacks.get(stack.name, 0),
        measured_sources=stack_runs().sources.get(stack.name, 0),
        framework_measured=framework_of(stack.name) in stack_runs().frameworks,
        default_of=_defaults().get(stack.name, ()),
    )


@cache
def _defaults() -> Mapping[str, tuple[str, ...]]:
    """Systems of the catalog by the stack that they name."""
    found: dict[str, tuple[str, ...]] = {}
    for name in catalog.names("systems"):
        stack = System.load(name).stack
        found[stack] = (*found.get(stack, ()), name)
    return found


@cache
def validated_runs() -> ValidatedRuns:
    """Return the validated runs that come with shardwise."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    return runs_of(json.loads(path.read_text(encoding="utf-8")))


def runs_of(table: Sequence[Sequence[Any]]) -> ValidatedRuns:
    """Return validated runs from the names of their columns and their rows."""
    names, *rows = table
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return ValidatedRuns(
        ids=columns["id"],
        sources=np.array(columns["source"], dtype=np.str_),
        features={column.name: np.array(columns[column.name]) for column in fields(RunFeatures)},
        errors=np.array(columns["error"], dtype=np.float64),
        unseen=np.array(columns["unseen"], dtype=np.float64),
        accelerator_out=np.array(columns["accelerator_out"], dtype=np.float64),
        fitted=np.array(columns["fitted"], dtype=np.bool_),
    )
