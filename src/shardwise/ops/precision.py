"""Types of weights, gradients and optimizer state: their sizes, as columns.

In 16 bits, with an fp32 copy: 2 + 2 or 4 (gradient) + 4 (copy) + 8 (moments) bytes per weight
(arXiv 1910.02054, section 3). Stored in fp32, weights are updated themselves, and products read
16-bit copies: 4 + 2 + 4 + 8. Without a copy, in 16 bits throughout: 2 + 2 + 4.
"""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import (
    GradientDtype,
    MasterDtype,
    MomentDtype,
    Optimizer,
    ReduceDtype,
    WeightDtype,
)
from shardwise.config.strategy_table import Table
from shardwise.ops.operation import FP32_BYTES

_MASTERS = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "none": 0.0}
# In 8 bits with an fp32 scale for each block (arXiv 2110.02861, section 2), blocks of 256 as in
# bitsandbytes from 0.44 on (2048 in the paper); fp8 has one scale for a tensor (Transformer
# Engine's FusedAdam).
MOMENTS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1 + 4 / 256}
OWN_MOMENTS = {Optimizer.ADAMW_8BIT: MomentDtype.INT8, Optimizer.ADAMW_BF16: MomentDtype.BF16}
"""Types of moments that the names of optimizers say."""
_OF_NAME = np.array([OWN_MOMENTS.get(name, MomentDtype.STACK).code for name in Optimizer])


def fp32_weights(table: Table, element_bytes: Floats) -> Bools:
    """Rows whose trained weights are stored in fp32, wider than products read them."""
    return (table.in_effect("weight_dtype") == WeightDtype.FP32.code) & (element_bytes < FP32_BYTES)


def gradient_size(table: Table, element_bytes: Floats) -> Floats:
    """Size of an accumulated gradient [byte]; those of fp32 weights are fp32 in any software."""
    wide = table.in_effect("gradient_dtype") == GradientDtype.FP32.code
    return np.where(wide | fp32_weights(table, element_bytes), float(FP32_BYTES), element_bytes)


def reduced_size(table: Table, element_bytes: Floats, gradient_bytes: Floats) -> Floats:
    """Size of a gradient as replicas reduce it [byte]."""
    word = table.in_effect("reduce_dtype")
    named = np.where(word == ReduceDtype.FP32.code, float(FP32_BYTES), element_bytes)
    return np.where(word == ReduceDtype.GRADIENT.code, gradient_bytes, named)


def master_size(table: Table, element_bytes: Floats) -> Floats:
    """Size of the weight that the optimizer updates, if products read another [byte].

    Its own copy, or the stored fp32 weight; 0 where it updates what products read.
    """
    sizes = np.array([_MASTERS.get(word, np.nan) for word in MasterDtype])
    own = np.where(element_bytes < FP32_BYTES, sizes[table.in_effect("master_dtype")], 0.0)
    return np.where(fp32_weights(table, element_bytes), float(FP32_BYTES), own)


def moment_size(table: Table, element_bytes: Floats) -> Floats:
    """Size of one moment [byte]: by its field, else by the optimizer's name, else by the stack.

    Moments of a stack in 16 bits are those of 16-bit weights (torch: the type of the weight).
    """
    stack = table.in_effect("moment_dtype")
    named = np.where(table.moment_dtype > 0, table.moment_dtype, _OF_NAME[table.optimizer])
    own = np.where(element_bytes < FP32_BYTES, stack, MomentDtype.FP32.code)
    sizes = np.array([MOMENTS.get(word, np.nan) for word in MomentDtype])
    return sizes[np.where(named > 0, named, own)]


def least_sizes(
    element_bytes: Floats,
    weights: set[str],
    masters: set[str],
    moments: set[str],
    optimizer: Optimizer,
) -> tuple[Floats, float]:
    """Least size of a master, beyond the weight, and of a moment [byte].

    Parameters
    ----------
    weights, masters, moments
        Words that may be in effect, of a strategy or its stack.
    """
    masters = {"fp32"} if weights == {"fp32"} else masters
    master = min(_MASTERS[word] for word in masters)
    own = OWN_MOMENTS.get(optimizer)
    moment = min(MOMENTS[word] for word in (moments if own is None else {own, *moments}))
    return np.where(element_bytes < FP32_BYTES, master, 0.0), moment
