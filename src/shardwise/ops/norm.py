"""Norms, residual additions and dropout: kernels whose time is that of their bytes."""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import Norm
from shardwise.config.model import Model
from shardwise.ops.operation import FP32_BYTES, Collective, MemoryBound, Operation, Phase, RankWork

# Vector FLOPs per element of a norm: mean, variance, scale, shift; and of its gradients.
_NORM_FLOPS = (8.0, 14.0)
# Elements that the element-wise kernels of an unfused norm read and write: in the compute type, in
# fp32, and whether the kernel only converts between them. Forward (RMSNorm of transformers 4.40,
# LlamaRMSNorm): to fp32, square, mean, scale, back, weigh. Its autograd backward: of the weighing
# (output, weights), to fp32, of the scaling (input, scale), of the square, sum of both, back.
_Pass = tuple[int, int, bool]
_UNFUSED: dict[Phase, tuple[_Pass, ...]] = {
    Phase.FORWARD: (
        (1, 1, True),
        (0, 2, False),
        (0, 1, False),
        (0, 2, False),
        (1, 1, True),
        (2, 0, False),
    ),
    Phase.INPUT_GRAD: (
        (2, 0, False),
        (4, 0, False),
        (1, 1, True),
        (0, 2, False),
        (0, 4, False),
        (0, 2, False),
        (0, 3, False),
        (1, 1, True),
    ),
}


def norm(
    name: str,
    model: Model,
    work: RankWork,
    *,
    tokens: Floats,
    width: Floats | float,
    parameters: Floats | float,
    collectives: tuple[Collective, ...] = (),
    reruns_with: frozenset[str] = frozenset(),
    dropped_with: frozenset[str] = frozenset(),
    input_rebuilt: bool = False,
) -> Operation:
    """Normalize (tokens, width): read and write forward; read dy and x and write dx backward.

    The input is saved for backward; its statistics, 8 bytes per token at most, are not counted.
    Unfused, several kernels pass over the elements, most of them in fp32; an fp32 copy of the input
    and the normalized tensor are saved. The part `every_other` rebuilds the copy.

    Parameters
    ----------
    name
        Name of the operation.
    width
        Elements of a token; a number or shape (n,).
    parameters
        Weights on this rank; a number or shape (n,).
    input_rebuilt
        Whether `every_other` rebuilds the input, too.
    """
    elements = tokens * width
    size = elements * work.element_bytes
    fused = work.fused_layer_norm if model.norm == Norm.LAYERNORM else work.fused_norm
    copies = np.where(fused, 0.0, elements * FP32_BYTES)
    return Operation(
        name=name,
        kernels=tuple(
            kernel
            for phase, moved, flops in zip(_UNFUSED, (2, 3), _NORM_FLOPS, strict=True)
            for kernel in _norm_kernels(phase, fused, work.element_bytes, elements, moved, flops)
        ),
        collectives=collectives,
        parameters=np.full_like(work.tp, parameters),
        saved_bytes=size + copies,
        working_bytes=2 * size + copies,
        reruns_with=reruns_with,
        dropped_with=dropped_with,
        half_rebuilt_bytes=size * input_rebuilt + copies,
    )


def _norm_kernels(
    phase: Phase, fused: Bools, size: Floats, elements: Floats, moved: int, flops: float
) -> list[MemoryBound]:
    """One kernel that moves `moved` tensors, or the passes of an unfused norm."""
    one = MemoryBound(
        phase=phase,
        bytes=np.where(fused, moved * elements * size, 0.0),
        flops=np.where(fused, flops * elements, 0.0),
    )
    if np.all(fused):
        return [one]
    passes = _UNFUSED[phase]
    return [one] + [
        MemoryBound(
            phase=phase,
            bytes=np.where(
                fused | (converts & (size == FP32_BYTES)),
                0.0,
                (narrow * size + wide * FP32_BYTES) * elements,
            ),
            flops=np.where(fused, 0.0, flops * elements / len(passes)),
        )
        for narrow, wide, converts in passes
    ]


def residual(
    name: str, work: RankWork, *, width: float, dropout: bool, branches: int = 1
) -> Operation:
    """Add the outputs of one or more branches to the residual stream: read all, write the sum.

    With dropout, a mask of one byte per element is written, saved, and read in backward. Without
    it the gradient passes unchanged to both branches and is added where they join.

    Parameters
    ----------
    name
        Name of the operation.
    width
        Width of the residual stream [element].
    """
    elements = work.split_tokens * width
    size = elements * work.element_bytes
    mask = elements if dropout else np.zeros_like(elements)
    return Operation(
        name=name,
        kernels=(
            MemoryBound(
                phase=Phase.FORWARD,
                bytes=(2 + branches) * size + mask,
                flops=(branches + dropout) * elements,
            ),
            MemoryBound(
                phase=Phase.INPUT_GRAD,
                bytes=(5 if dropout else 3) * size + mask,
                flops=(1 + dropout) * elements,
            ),
        ),
        parameters=np.zeros_like(elements),
        saved_bytes=mask,
        working_bytes=size,
    )
