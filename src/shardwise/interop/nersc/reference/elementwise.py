"""Layers that the vector units run: bias, GELU, dropout and layer norm (section 4).

Sizes are in elements; N = rows x width of the input.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.nersc.reference.inputs import NerscSystem
from shardwise.interop.nersc.reference.layer import Exchange, Layer

__all__ = ["bias", "dropout", "gelu", "layer_norm"]


def bias(name: str, rows: Floats, width: Floats, system: NerscSystem) -> Layer:
    """Bias: N FLOPs and N + width elements moved, forward and backward."""
    n, size = rows * width, system.element_size
    flops, moved = n * system.flops_units, (n + width) * size
    return Layer(
        name=name,
        flops_fwd=flops,
        flops_bwd=flops,
        moved_fwd=moved,
        moved_bwd=moved,
        stored=np.zeros_like(n),
        weights=width * size,
    )


def gelu(name: str, n: Floats, system: NerscSystem) -> Layer:
    """GELU: 8 N and 13 N FLOPs, 2 N and 3 N elements moved, its input kept."""
    return Layer(
        name=name,
        flops_fwd=8 * n * system.flops_units,
        flops_bwd=13 * n * system.flops_units,
        moved_fwd=2 * n * system.element_size,
        moved_bwd=3 * n * system.element_size,
        stored=n * system.element_size,
        weights=np.zeros_like(n),
    )


def dropout(name: str, n: Floats, system: NerscSystem) -> Layer:
    """Dropout: N FLOPs, 2 N elements and N of the mask moved, in either pass; the mask kept."""
    mask = n * system.mask_element_size
    flops, moved = n * system.flops_units, 2 * n * system.element_size + mask
    return Layer(
        name=name,
        flops_fwd=flops,
        flops_bwd=flops,
        moved_fwd=moved,
        moved_bwd=moved,
        stored=mask,
        weights=np.zeros_like(n),
    )


def layer_norm(
    name: str,
    rows: Floats,
    width: Floats,
    system: NerscSystem,
    *,
    fwd: Sequence[Exchange],
    bwd: Sequence[Exchange],
) -> Layer:
    """Layer norm over R rows of width w.

    FLOPs 9 R w and 8 R w + 4 R (w - 1); moved 2 R w + 2 R + 2 w and 5 R w + 2 w; the input kept.
    """
    n, size = rows * width, system.element_size
    return Layer(
        name=name,
        flops_fwd=9 * n * system.flops_units,
        flops_bwd=(8 * n + 4 * rows * (width - 1)) * system.flops_units,
        moved_fwd=(2 * n + 2 * rows + 2 * width) * size,
        moved_bwd=(5 * n + 2 * width) * size,
        stored=n * size,
        weights=2 * width * size,
        fwd=fwd,
        bwd=bwd,
    )
