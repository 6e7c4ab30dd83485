"""The MLP of a layer."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.enums import Activation
from shardwise.config.model import Mlp, Model
from shardwise.ops.linear import (
    after_row_parallel,
    all_reduced,
    before_column_parallel,
    linear,
)
from shardwise.ops.norm import norm
from shardwise.ops.operation import FP32_BYTES, MemoryBound, Operation, Phase, RankWork, zeros
from shardwise.ops.summa import row_split
from shardwise.records import replace

# Vector FLOPs per element of the inner width, forward and backward: tanh-like activations.
_ACTIVATION_FLOPS = (8.0, 13.0)
_EVERY_OTHER = frozenset({"every_other"})
_MLP = frozenset({"mlp"})
# Learned scalars of xIELU, one for each sign of its input (arXiv 2411.13010, equation 13).
_XIELU_SCALARS = 2.0


def mlp_operations(
    model: Model,
    mlp: Mlp,
    work: RankWork,
    *,
    norm_parts: frozenset[str],
    gathers: bool = True,
    reduces: bool = True,
    name: str = "mlp.",
    block: frozenset[str] = _MLP,
    saved_tokens: Floats | None = None,
) -> list[Operation]:
    """Up (and gate) projection, activation, down projection on one rank.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild the input of the MLP; none without a norm before it.
    gathers
        Whether it has an input of its own; false: attention in parallel to it gathers and saves it.
    reduces
        Whether its output is reduced; false: with that of attention in parallel to it.
    saved_tokens
        Tokens of the input that it saves, if other operations save the input too; None: it saves
        the input itself.
    """
    inner = mlp.ffn / work.tp
    gates = 2 if mlp.gated else 1
    before = before_column_parallel(work, model.hidden) if gathers else ()
    after = after_row_parallel(work, model.hidden) if reduces else ()
    split = row_split(work, mlp.ffn, model.hidden)
    is_shared = saved_tokens is not None
    rebuilt_by = norm_parts if saved_tokens is None else norm_parts | block
    if saved_tokens is None:
        saved_tokens = work.saved_tokens if gathers else zeros(work)
    up = linear(
        f"{name}up",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=gates * inner,
        bias=gates * inner if mlp.bias else 0.0,
        saved_tokens=saved_tokens,
        collectives=before,
        normed=bool(norm_parts) and not is_shared,
        saved_elsewhere=is_shared,
        reruns_with=block | {"mlp_up"} | (_EVERY_OTHER if mlp.gated else frozenset()),
        dropped_with=rebuilt_by,
    )
    up = replace(up, rerun_share=0.5, joined=(inner,) * gates)  # reruns the second of two products
    down = linear(
        f"{name}down",
        work,
        tokens=work.tokens,
        inputs=split.inputs,
        outputs=split.outputs,
        bias=split.outputs if mlp.bias else 0.0,
        saved_tokens=np.where(work.fused_activation, 0.0, split.saved_tokens),
        collectives=after,
        saved_elsewhere=work.fused_activation,
        reruns_with=block,
        dropped_with=block | {"activation", "every_other"},
    )
    middle = activation(f"{name}activation", work, work.tokens * inner, gates, block=block)
    if mlp.activation == Activation.XIELU:
        middle = replace(middle, parameters=np.full_like(inner, _XIELU_SCALARS))
    if not mlp.inner_norm:
        return [up, middle, down]
    inside = norm(
        f"{name}inner_norm",
        model,
        work,
        tokens=work.tokens,
        width=inner,
        parameters=inner * model.norm_parameters / model.hidden,
        collectives=all_reduced(work, work.tokens * FP32_BYTES),
        reruns_with=block,
        dropped_with=block,
    )
    return [up, middle, inside, down]


def activation(
    name: str, work: RankWork, elements: Floats, gates: int, *, block: frozenset[str]
) -> Operation:
    """Read the projections, write the activated product; backward read dy and x, write dx.

    The projections are saved, and the product by the next operation. Fused, the product is not
    saved for the gradient of the next weights but written again with dx. Where activation and
    product with the gate are separate kernels, the tensor between them is saved, and it and its
    gradient are written and read: 2 + 3 elements instead of 3 forward, 6 + 3 instead of 5 backward.
    The part `every_other` saves one projection of two, and nothing between the kernels.

    Parameters
    ----------
    name
        Name of the operation.
    gates
        Projections that it reads: 2 with a gate, else 1.
    """
    size = elements * work.element_bytes
    separate = np.where(work.fused_swiglu | (gates == 1), 0.0, 1.0)
    again = np.where(work.fused_activation, 1.0, 0.0)
    forward, backward = _ACTIVATION_FLOPS
    return Operation(
        name=name,
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=(gates + 1) * size, flops=forward * elements),
            MemoryBound(
                phase=Phase.INPUT_GRAD,
                bytes=(2 * gates + 1 + again) * size,
                flops=(backward + again * forward) * elements,
            ),
            *_gate_kernels(separate * size),
        ),
        parameters=zeros(work),
        saved_bytes=gates * elements * work.activation_input_bytes + separate * size,
        working_bytes=(gates + 1 + separate) * size,
        reruns_with=block | {"activation", "every_other"},
        dropped_with=block | {"mlp_up"} | (_EVERY_OTHER if block == _MLP else frozenset()),
        half_rebuilt_bytes=(gates - 1 + separate) * size,
    )


def _gate_kernels(size: Floats) -> tuple[MemoryBound, ...]:
    """Extra kernels for the product with the gate, where the activation is not fused with it."""
    if not np.any(size):
        return ()
    return (
        MemoryBound(phase=Phase.FORWARD, bytes=2 * size, flops=np.zeros_like(size)),
        MemoryBound(phase=Phase.INPUT_GRAD, bytes=4 * size, flops=np.zeros_like(size)),
    )
