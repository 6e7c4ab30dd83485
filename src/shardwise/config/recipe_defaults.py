"""Defaults of strategies in a low-precision recipe of a stack; of one strategy or of columns."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import (
    CudaGraphs,
    Dispatcher,
    Optimizer,
    Quantization,
    Recompute,
    RecomputePart,
    Schedule,
    Task,
    WeightDtype,
)
from shardwise.config.model import Model
from shardwise.config.stack import Stack

_OFFLOADS = ("offload_weights", "offload_activations", "offload_optimizer")
READ_FIELDS = (
    *("quantization", "quantized_weights", "lora_rank", "weight_dtype", "zero", "ep", "pp", "vpp"),
    *("schedule", "dispatcher", "task", "training", "optimizer", "recompute", "recompute_parts"),
    *_OFFLOADS,
    *("cuda_graphs", "expert_overlap"),
)
"""Fields on which these defaults depend."""
_EXPERTS = RecomputePart.bits([RecomputePart.MOE])


def recipe_defaults(
    model: Model,
    given: AbstractSet[str],
    values: Mapping[str, Any],
    of_stack: Callable[[Callable[[Stack], int]], Any],
) -> dict[str, Any]:
    """Fields that are open and that a recipe of the stack sets, where the strategy allows it.

    A graph of the step and overlapped experts come together, as in the recipes: without graphs the
    host makes overlapped experts slower, not faster.

    Parameters
    ----------
    model
        What is trained.
    given
        Fields that are set.
    values
        `READ_FIELDS` of one strategy, or columns: words as codes, sets as bits, None as 0.
    of_stack
        Evaluates a function of the stack of each strategy.
    """

    def listed(recipes: Callable[[Stack], tuple[Quantization, ...]]) -> Bools:
        bits = np.asarray(of_stack(lambda stack: Quantization.bits(recipes(stack))))
        rows: Bools = bits >> values["quantization"] & 1 == 1
        return rows

    found: dict[str, Any] = {}
    zero, every_weight = np.asarray(values["zero"]), np.equal(values["lora_rank"], 0)
    if "quantized_weights" not in given:
        narrow = np.not_equal(values["weight_dtype"], WeightDtype.FP32.code)
        stored = listed(lambda stack: stack.quantized_weight_recipes)
        found["quantized_weights"] = stored & narrow & every_weight & (zero > 0)
    fits = model.has_experts and model.attends_to_all
    if not fits or {"cuda_graphs", "expert_overlap"} <= given:
        return found
    rows = listed(lambda stack: stack.step_graph_recipes) & every_weight & (zero <= 1)
    if not rows.any():
        return found
    chunks = np.greater(values["vpp"], 1) & np.equal(values["schedule"], Schedule.INTERLEAVED.code)
    rows &= np.greater(values["ep"], 1) & (np.equal(values["pp"], 1) | chunks)
    rows &= np.equal(values["dispatcher"], Dispatcher.HYBRIDEP.code)
    rows &= np.equal(values["task"], Task.PRETRAIN.code) & values["training"]
    selective = np.equal(values["recompute"], Recompute.SELECTIVE.code)
    experts_again = selective & (np.asarray(values["recompute_parts"]) & _EXPERTS > 0)
    rows &= np.not_equal(values["recompute"], Recompute.FULL.code) & ~experts_again
    rows &= np.not_equal(values["optimizer"], Optimizer.MUON.code)
    for name in _OFFLOADS:
        rows &= ~np.asarray(values[name])
    if "cuda_graphs" in given:
        named, own = values["cuda_graphs"], of_stack(lambda stack: stack.cuda_graphs.code)
        captured = np.where(np.equal(named, CudaGraphs.STACK.code), own, named)
        rows &= captured == CudaGraphs.FULL.code
    else:
        rows &= np.logical_or("expert_overlap" not in given, values["expert_overlap"])
        found["cuda_graphs"] = np.where(rows, CudaGraphs.FULL.code, values["cuda_graphs"])
    if "expert_overlap" not in given:
        found["expert_overlap"] = rows | values["expert_overlap"]
    return found
