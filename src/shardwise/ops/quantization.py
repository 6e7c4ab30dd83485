"""Recipes that run the products of layers with their weights in fewer than 16 bits.

Both operands of all three products (forward, gradient of the input, gradient of the weights) are
quantised. Each product reads both operands along its reduction, so an input, a gradient of an
output and a weight are each needed in two orientations, quantised or transposed apart
(NVIDIA/TransformerEngine, docs/features/low_precision_training/performance_considerations.rst).
Embedding, head, router, norms, the attention core, residuals, gradients of weights and the
optimizer keep their types (arXiv 2209.05433, section 3.2; 2412.19437, section 3.3.1; 2509.25149,
section 4).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import DispatchDtype, Quantization
from shardwise.config.strategy_table import Table

__all__ = [
    "RECIPES",
    "Recipe",
    "WeightSizes",
    "by_recipe",
    "dispatch_bytes",
    "weight_sizes",
]

_BF16_BYTES = 2.0
# Tokens on the way to experts: fp8 with an fp32 scale for each 128 elements (arXiv 2412.19437,
# section 3.3.2).
_DISPATCHED_BYTES = 1 + 4 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a recipe does with an element of an operand [byte, scales shared out]."""

    matrix: str
    """Type of the matrix units that its products run on."""
    operand_bytes: float
    """An element of an input or of a gradient, quantised."""
    weight_bytes: float
    """A weight, quantised, in one orientation."""
    gathered_bytes: float
    """A weight as replicas gather it where it is held in this type alone."""
    transposable: bool
    """Whether the other orientation of a weight can be had from the first without loss."""
    reads: float
    """Times that what is quantised is read."""
    fuses: bool
    """Whether norms write their output quantised, in both orientations, instead of in 16 bits, and
    gradients of biases are summed while gradients of outputs are cast."""
    gathered_gradients: float
    """Orientations of the gradient of an output that tensor-parallel ranks gather."""


# fp8_tensor is delayed scaling: the scale is known before, so one pass quantises and transposes
# (arXiv 2209.05433). Weights of fp8_block have a scale for 128 x 128 (arXiv 2412.19437, section
# 3.3.2), those of nvfp4 for 16 x 16, held as one for 16, so they are transposed without loss;
# mxfp8 scales 32 elements in a row (OCP Microscaling Formats, version 1.0), so the other
# orientation is of other scales: Megatron-LM gathers such weights in bf16 and quantises them
# after it (fp8_utils.py, --reuse-grad-buf-for-mxfp8-param-ag). nvfp4 also needs the largest value
# of the tensor first: a pass more (arXiv 2509.25149, appendix B). Which norms quantise and what is
# gathered: NVIDIA/TransformerEngine 2.x (layernorm_linear.py, distributed.py).
RECIPES = {
    "fp8_tensor": Recipe(
        matrix="fp8",
        operand_bytes=1.0,
        weight_bytes=1.0,
        gathered_bytes=1.0,
        transposable=True,
        reads=1.0,
        fuses=True,
        gathered_gradients=1.0,
    ),
    "fp8_block": Recipe(
        matrix="fp8",
        operand_bytes=1 + 4 / 128,
        weight_bytes=1 + 4 / 128**2,
        gathered_bytes=1 + 4 / 128**2,
        transposable=True,
        reads=1.0,
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
        fuses=False,
        gathered_gradients=2.0,
    ),
}
"""By the words of `Quantization`."""


def by_recipe(
    quantization: Ints, figure: Callable[[Recipe], float], *, none: float = 0.0
) -> Floats:
    """A figure of each row's recipe.

    Parameters
    ----------
    quantization
        Codes of `Quantization`.
    none
        The figure of rows that quantise nothing.
    """
    figures = [figure(RECIPES[name]) if name in RECIPES else none for name in Quantization]
    return np.array(figures, dtype=np.float64)[quantization]


def dispatch_bytes(dispatch_dtype: Ints, element_bytes: Floats) -> Floats:
    """Size of an element of tokens on the way to their experts, with its scales [byte].

    Parameters
    ----------
    dispatch_dtype
        Codes of `DispatchDtype`.
    """
    return np.where(dispatch_dtype == DispatchDtype.FP8.code, _DISPATCHED_BYTES, element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """Sizes of a weight that products read quantised, and of any other, by row [byte]."""

    plain: Floats
    """Of any other."""
    stored: Floats
    """As it is held, and split where weights are."""
    gathered: Floats
    """As replicas gather it."""
    copies: Floats
    """Of its quantised copies beside it."""
    quantizing: Floats
    """Moved to make these copies, or to transpose what is held in that type alone."""

    def total(self, parameters: Floats, quantized: Floats, size: Floats) -> Floats:
        """Bytes of so many weights, some of which are of another size [byte]."""
        return (parameters - quantized) * self.plain + quantized * size

    def moved(self, parameters: Floats, quantized: Floats) -> Floats:
        """Bytes of so many weights as replicas gather them [byte]."""
        return self.total(parameters, quantized, self.gathered)

    def held(self, parameters: Floats, quantized: Floats) -> Floats:
        """Bytes of so many weights with their copies, where none are split [byte]."""
        return self.total(parameters, quantized, self.stored + self.copies)


def weight_sizes(table: Table, element_bytes: Floats) -> WeightSizes:
    """Sizes of weights by recipe.

    Without `quantized_weights` quantised copies in both orientations stand beside the 16 bits, from
    the first micro-batch of a step to the last (weight caching of Transformer Engine). With it the
    weights are one orientation, of mxfp8 both, and the other stands beside. Forward only there is
    one orientation.
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
    return WeightSizes(
        plain=element_bytes,
        stored=np.where(quantized, stored, element_bytes),
        gathered=np.where(quantized & alone, gathered, element_bytes),
        copies=copies,
        quantizing=np.where(
            alone, transposing, np.where(quantized, reads * element_bytes, 0.0) + every
        ),
    )
