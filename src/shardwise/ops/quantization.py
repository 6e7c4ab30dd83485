"""Recipes that run the products of layers with their weights in fewer than 16 bits.

Both operands of all three products (forward, gradient of the input, gradient of the weights) are
quantized. Each product reads both operands along its reduction, so an input, a gradient of an
output and a weight are each needed in two orientations, quantized twice or transposed. The input is
quantized before its product, the gradient of the output before both of its own; the quantized input
is saved, and tensor-parallel ranks gather it (NVIDIA/TransformerEngine,
docs/features/low_precision_training/performance_considerations.rst). Embedding, head, router,
norms, the attention core, residuals, gradients of weights and the optimizer keep their types (arXiv
2209.05433, section 3.2; 2412.19437, section 3.3.1; 2509.25149, section 4), unless the software
quantizes the head or the operands of attention, too (`quantized_head` and `quantized_attention` of
a stack).
"""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import BaseWeights, DispatchDtype, Quantization
from shardwise.config.strategy_table import Table
from shardwise.ops.operation import (
    Collective,
    CollectiveKind,
    Kernel,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
)
from shardwise.ops.precision import fp32_weights, master_size, moment_size
from shardwise.records import dataclass, replace

_BF16_BYTES = 2.0
# Along the rows and along the columns.
_ORIENTATIONS = 2
# Tokens on the way to experts: fp8 with an fp32 scale for each 128 elements (arXiv 2412.19437,
# section 3.3.2).
_DISPATCHED_BYTES = 1 + 4 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Sizes and casts of a recipe [bytes per element, scales included]."""

    matrix: str
    """Type of the matrix units that its products run on."""
    operand_bytes: float
    """An element of an input or of a gradient, quantized."""
    weight_bytes: float
    """A weight, quantized, in one orientation."""
    gathered_bytes: float
    """A weight as replicas gather it where it is stored in this type alone."""
    transposable: bool
    """Whether one orientation of a weight can be transposed to the other without loss."""
    reads: float
    """Times that a tensor is read to quantize it."""
    kernels: float
    """Kernels that quantize a tensor, in both orientations."""
    fuses: bool
    """Whether norms write their output quantized, in both orientations, instead of in 16 bits, and
    gradients of biases are summed while gradients of outputs are cast."""
    gathered_gradients: float
    """Orientations of the gradient of an output that tensor-parallel ranks gather."""
    sends: bool = True
    """Whether inputs and gradients are quantized before they are gathered, and saved so."""
    product_time: float = 1.0
    """Time of a product on NVIDIA GPUs over that of one with a scale for each tensor."""


# fp8_tensor is delayed scaling: the scale is known before, so one pass quantizes and transposes
# (arXiv 2209.05433). Weights of fp8_block have a scale for 128 x 128 (arXiv 2412.19437, section
# 3.3.2), those of nvfp4 for 16 x 16, stored as one for 16, so they are transposed without loss;
# mxfp8 scales 32 elements in a row (OCP Microscaling Formats, version 1.0), so the other
# orientation is of other scales: Megatron-LM gathers such weights in bf16 and quantizes them
# after it (fp8_utils.py, --reuse-grad-buf-for-mxfp8-param-ag). nvfp4 also needs the largest value
# of the tensor first: a pass more (arXiv 2509.25149, appendix B). Which norms quantize and what is
# gathered: NVIDIA/TransformerEngine 2.x (layernorm_linear.py, distributed.py). With current scaling
# fp8_tensor needs three kernels, for the largest value, the scale and the cast, and nvfp4 two
# (csrc/quantizer.cpp). Experts that run one by one are quantized one by one, too, where scaling is
# not delayed (csrc/extensions/cast.cpp, multi_tensor_quantize_impl). Outside of experts one kernel
# counts, and the bytes of the first are not counted: dense runs in fp8, many of delayed scaling,
# decided neither.
# fp8_row is dynamic scaling by rows of torchao, each orientation with scales of its own
# (torchao/float8/config.py, rowwise): the largest value of each row comes first, all ranks
# communicate in 16 bits, and layers save 16 bits (float8_linear.py; float8.md of torchtitan
# b5bcd76c). Its products are CUTLASS kernels on NVIDIA GPUs: with 1.3 steps of Llama 3 8B come to
# 1.19 times those with a scale for each tensor on 8 H100, 1.16 on 8 B200 and 1.34 on 64 H100 with
# tp 8, measured 1.14, 1.21 and 1.37 (torchao, float8/README.md; pytorch/torchtitan, benchmarks);
# on MI300X they take no longer.
RECIPES = {
    "fp8_tensor": Recipe(
        matrix="fp8",
        operand_bytes=1.0,
        weight_bytes=1.0,
        gathered_bytes=1.0,
        transposable=True,
        reads=1.0,
        kernels=3.0,
        fuses=True,
        gathered_gradients=1.0,
    ),
    "fp8_row": Recipe(
        matrix="fp8",
        operand_bytes=1.0,
        weight_bytes=1.0,
        gathered_bytes=_BF16_BYTES,
        transposable=False,
        reads=2.0,
        kernels=2.0,
        fuses=False,
        gathered_gradients=1.0,
        sends=False,
        product_time=1.3,
    ),
    "fp8_block": Recipe(
        matrix="fp8",
        operand_bytes=1 + 4 / 128,
        weight_bytes=1 + 4 / 128**2,
        gathered_bytes=1 + 4 / 128**2,
        transposable=True,
        reads=1.0,
        kernels=1.0,
        fuses=False,
        gathered_gradients=2.0,
    ),
    "mxfp8": Recipe(
        matrix="fp8",
        operand_bytes=1 + 1 / 32,
        weight_bytes=1 + 1 / 32,
        gathered_bytes=_BF16_BYTES,
        transposable=False,
        reads=1.0,
        kernels=1.0,
        fuses=True,
        gathered_gradients=2.0,
    ),
    "nvfp4": Recipe(
        matrix="fp4",
        operand_bytes=1 / 2 + 1 / 16,
        weight_bytes=1 / 2 + 1 / 16,
        gathered_bytes=1 / 2 + 1 / 16,
        transposable=True,
        reads=2.0,
        kernels=2.0,
        fuses=False,
        gathered_gradients=2.0,
    ),
}
"""By the words of `Quantization`."""


def by_recipe(
    quantization: Ints, number: Callable[[Recipe], float], *, none: float = 0.0
) -> Floats:
    """A number of each row's recipe.

    Parameters
    ----------
    quantization
        Codes of `Quantization`.
    """
    numbers = [number(RECIPES[name]) if name in RECIPES else none for name in Quantization]
    return np.array(numbers, dtype=np.float64)[quantization]


def dispatch_bytes(dispatch_dtype: Ints, element_bytes: Floats) -> Floats:
    """Size of an element of tokens on the way to their experts, with its scales [byte].

    Parameters
    ----------
    dispatch_dtype
        Codes of `DispatchDtype`.
    element_bytes
        Size of an element in the row's type [byte]; shape (n,).
    """
    return np.where(dispatch_dtype == DispatchDtype.FP8.code, _DISPATCHED_BYTES, element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """Sizes of weights that products read quantized, and of all others, by row [byte]."""

    plain: Floats
    """A weight that is not quantized."""
    frozen: Floats
    """A quantized one that is not trained, where trained ones have no shard of their own."""
    master: Floats
    """The weight that the optimizer updates, where products read another; 0: it has none."""
    is_stored: Bools
    """Whether that is the weight as it is stored, in fp32, and not an additional copy."""
    moment: Floats
    """One moment of the optimizer."""
    stored: Floats
    """A quantized one as stored, and sharded where weights are."""
    gathered: Floats
    """A quantized one as replicas gather it."""
    copies: Floats
    """Its additional quantized copies."""
    quantizing: Floats
    """Bytes moved to make these copies, or to transpose weights stored in that type alone."""

    def total(self, parameters: Floats, quantized: Floats, size: Floats) -> Floats:
        """Bytes of weights of which `quantized` have another `size` [byte]."""
        return (parameters - quantized) * self.plain + quantized * size

    def moved(self, parameters: Floats, quantized: Floats) -> Floats:
        """Bytes of weights as replicas gather them [byte]."""
        return self.total(parameters, quantized, self.gathered)

    def resident(self, parameters: Floats, quantized: Floats) -> Floats:
        """Bytes of weights with their copies, where none are sharded [byte]."""
        return self.total(parameters, quantized, self.stored + self.copies)


# A weight in another type: int8 with an fp32 scale for each row, which is not counted (arXiv
# 2208.07339); nf4 with an 8-bit scale for each 64 and an fp32 one for 256 of these (double
# quantization, arXiv 2305.14314, section 3), or with an fp32 scale for each 64; int4 with a 16-bit
# scale and a 4-bit zero for each 128 (GPTQ, arXiv 2210.17323; AutoGPTQ's group_size).
FROZEN_BYTES = {
    BaseWeights.FP32: 4.0,
    BaseWeights.INT8: 1.0,
    BaseWeights.NF4: 0.5 + 1 / 64 + 4 / (64 * 256),
    BaseWeights.NF4_SINGLE: 0.5 + 4 / 64,
    BaseWeights.INT4: 0.5 + 2 / 128 + 0.5 / 128,
}

_FROZEN_BYTES = np.array([FROZEN_BYTES.get(word, 0.0) for word in BaseWeights])


def frozen_bytes(table: Table, element_bytes: Floats) -> Floats:
    """Size of a frozen weight of a product of a layer, with its scales [byte].

    That of the row's type in rows with a recipe for products.

    Parameters
    ----------
    element_bytes
        Size of a weight in the row's type [byte]; shape (n,).
    """
    stored = _FROZEN_BYTES[table.in_effect("base_weights")]
    return np.where((stored > 0) & (table.quantization == 0), stored, element_bytes)


def weight_sizes(table: Table, element_bytes: Floats) -> WeightSizes:
    """Sizes of weights by recipe.

    Without `quantized_weights` there are quantized copies in both orientations in addition to the
    16 bits, from the first micro-batch of a step to the last (weight caching of Transformer
    Engine). With it one orientation is stored, of mxfp8 both, and the other is a copy. A
    forward-only step has one orientation. Without a recipe, quantized weights are frozen ones in
    4 bits, stored and gathered as they are.

    Parameters
    ----------
    table
        Strategies; uses the recipe, `quantized_weights` and `training`.
    element_bytes
        Size of a weight that is not quantized [byte]; shape (rows,).
    """
    quantized, alone = table.quantization > 0, table.quantized_weights
    one = by_recipe(table.quantization, lambda recipe: recipe.weight_bytes)
    gathered = by_recipe(table.quantization, lambda recipe: recipe.gathered_bytes)
    reads = by_recipe(table.quantization, lambda recipe: recipe.reads)
    transposable = by_recipe(table.quantization, lambda recipe: recipe.transposable) > 0
    every = np.where(table.training, 2.0, 1.0) * one
    stored = np.where(alone, np.where(transposable, one, every), element_bytes)
    copies = np.where(alone, every - stored, every)
    transposing = np.where(transposable, 2 * copies, gathered + stored)
    frozen = frozen_bytes(table, element_bytes)
    return WeightSizes(
        plain=element_bytes,
        frozen=frozen,
        master=master_size(table, element_bytes),
        is_stored=fp32_weights(table, element_bytes),
        moment=moment_size(table, element_bytes),
        stored=np.where(quantized, stored, frozen),
        gathered=np.where(quantized & alone, gathered, frozen),
        copies=copies,
        quantizing=np.where(
            alone, transposing, np.where(quantized, reads * element_bytes, 0.0) + every
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of the products of a linear layer Y = X W on one rank."""

    inputs: Floats
    """Elements of X."""
    outputs: Floats
    """Elements of Y."""
    weights: Floats
    """Elements of W."""
    arriving_bytes: Floats
    """Size of an element of X as it arrives; below 16 bits it is quantized already [byte]."""
    normed: bool
    """Whether X comes from a norm that nothing else reads."""
    saved_elsewhere: Bools
    """Whether X is saved, or recomputed, in 16 bits for others, and need not be saved again."""


def quantized(operation: Operation, work: RankWork, operands: Operands) -> Operation:
    """The same linear layer in each row's recipe.

    Casts, in bytes for each element, q that of the recipe's operands, e that of the type, r passes
    over the tensor: X forward r e + q, and q more for the orientation that the gradient of the
    weights reads, which is saved; that one backward instead, r e + q, where X is saved in 16 bits.
    dY backward r e + 2 q. None for X where a norm writes it quantized. With sequence parallelism
    each rank casts its shard before the all-gather. Recipes that fuse also sum the gradient of the
    bias in the cast.

    Parameters
    ----------
    operands
        Sizes of X, Y and W on one rank; columns of shape (rows,).
    """
    rows = work.quantization > 0
    sends = by_recipe(work.quantization, lambda recipe: recipe.sends, none=1.0) > 0
    operands = replace(operands, saved_elsewhere=operands.saved_elsewhere | ~sends)
    size = by_recipe(work.quantization, lambda recipe: recipe.operand_bytes)
    fuses = by_recipe(work.quantization, lambda recipe: recipe.fuses) > 0
    share = np.where(rows, size / work.element_bytes, 1.0)
    kernels = [_in_recipe(kernel, rows, size, fuses) for kernel in operation.kernels]
    saved = np.where(operands.saved_elsewhere, 1.0, share)
    copies = np.where(rows, _ORIENTATIONS * size * operands.outputs, 0.0)
    return replace(
        operation,
        kernels=(*kernels, *_casts(operation, work, operands, size, fuses)),
        collectives=tuple(
            _gathered(c, work, np.where(sends, share, 1.0)) for c in operation.collectives
        ),
        quantized_parameters=np.where(rows, operands.weights, 0.0),
        saved_bytes=operation.saved_bytes * saved,
        working_bytes=operation.working_bytes + copies,
    )


def _in_recipe(kernel: Kernel, rows: Bools, size: Floats, fuses: Bools) -> Kernel:
    """A product on operands of the recipe; no bias gradient sum where a cast includes it."""
    if isinstance(kernel, Matmul):
        operand = np.where(rows, size, kernel.input_bytes)
        return replace(kernel, input_bytes=operand, quantized=True)
    if isinstance(kernel, MemoryBound):
        summed = np.where(fuses, 0.0, 1.0)
        return replace(kernel, bytes=summed * kernel.bytes, flops=summed * kernel.flops)
    return kernel


def _casts(
    operation: Operation, work: RankWork, operands: Operands, size: Floats, fuses: Bools
) -> tuple[MemoryBound, ...]:
    rows, element = work.quantization > 0, work.element_bytes
    read = element * by_recipe(work.quantization, lambda recipe: recipe.reads)
    eight_bits = by_recipe(work.quantization, lambda recipe: recipe.matrix == "fp8") > 0
    arrives = operands.arriving_bytes < element
    saved = work.training & ~operands.saved_elsewhere
    written = size * (np.where(arrives & eight_bits, 0.0, 1.0) + np.where(saved, 1.0, 0.0))
    forward = np.where(arrives, operands.arriving_bytes, read) + written
    fused = operands.normed & fuses & ~operands.saved_elsewhere
    inputs = np.where(rows, operands.inputs, 0.0) * _own_share(operation, work, Phase.FORWARD)
    outputs = np.where(rows, operands.outputs, 0.0) * _own_share(operation, work, Phase.INPUT_GRAD)
    passes = by_recipe(work.quantization, lambda recipe: recipe.kernels, none=1.0)
    return (
        cast(Phase.FORWARD, inputs, np.where(fused | (written == 0), 0.0, forward), passes),
        cast(Phase.INPUT_GRAD, outputs, read + _ORIENTATIONS * size, passes),
        cast(
            Phase.WEIGHT_GRAD,
            inputs,
            np.where(operands.saved_elsewhere, read + size, 0.0),
            passes,
        ),
    )


def cast(
    phase: Phase, elements: Floats, element_bytes: Floats, passes: Floats | float = 1.0
) -> MemoryBound:
    """Kernels that quantize elements and move so many bytes of each."""
    moved = elements * element_bytes
    flops = np.where(moved > 0, elements, 0.0)
    return MemoryBound(phase=phase, bytes=moved, flops=flops, passes=passes)


def _own_share(operation: Operation, work: RankWork, phase: Phase) -> Floats:
    """Share of an operand that a rank casts: its own shard of what a phase gathers quantized."""
    gathers = np.zeros(work.tp.shape, dtype=np.bool_)
    for collective in operation.collectives:
        if collective.phase is phase and collective.kind is CollectiveKind.ALL_GATHER:
            gathers = gathers | (collective.bytes > 0)
    sends = by_recipe(work.quantization, lambda recipe: recipe.sends) > 0
    return np.where(gathers & sends, 1 / work.tp, 1.0)


def _gathered(collective: Collective, work: RankWork, share: Floats) -> Collective:
    """Inputs are gathered in one orientation, gradients of outputs in those of the recipe."""
    if collective.kind is not CollectiveKind.ALL_GATHER:
        return collective
    if collective.phase is Phase.INPUT_GRAD:
        share = share * by_recipe(work.quantization, lambda r: r.gathered_gradients, none=1.0)
    return replace(collective, bytes=collective.bytes * share)
