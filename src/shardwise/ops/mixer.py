"""Operations and FLOPs of a mixer by its kind."""

from collections.abc import Callable

from shardwise.config.mixer import GatedDelta, KimiDelta, Lightning, Mamba2, Mixer
from shardwise.config.model import Model
from shardwise.ops.delta import (
    delta_flops,
    gated_delta_operations,
    kimi_delta_operations,
    lightning_flops,
    lightning_operations,
)
from shardwise.ops.mamba import mamba1_operations, mamba2_flops, mamba2_operations
from shardwise.ops.mixer_parts import CoreFlops
from shardwise.ops.operation import Operation, RankWork
from shardwise.ops.short_conv import short_conv_operations

_MIXERS: dict[str, Callable[..., list[Operation]]] = {
    "mamba2": mamba2_operations,
    "mamba1": mamba1_operations,
    "gated_delta": gated_delta_operations,
    "kimi_delta": kimi_delta_operations,
    "lightning": lightning_operations,
    "short_conv": short_conv_operations,
}


def core_flops(mixer: Mixer) -> CoreFlops:
    """FLOPs of the core of a mixer for one token; a short convolution has none."""
    match mixer:
        case Mamba2():
            return mamba2_flops(mixer)
        case GatedDelta():
            return delta_flops(mixer.value_heads, mixer.key_dim, mixer.value_dim)
        case KimiDelta():
            return delta_flops(mixer.heads, mixer.head_dim, mixer.head_dim)
        case Lightning():
            return lightning_flops(mixer)
        case _:  # element-wise, as other operations that no convention counts
            return CoreFlops(state=0.0, chunk=0.0, backward_state=0.0, backward_chunk=0.0)


def is_mamba(mixer: Mixer | None) -> bool:
    """Whether a mixer is a module of its own in Megatron-LM, and not a kind of attention."""
    return mixer is not None and mixer.kind.startswith("mamba")


def mixer_operations(
    model: Model,
    mixer: Mixer,
    work: RankWork,
    *,
    norm_parts: frozenset[str],
    gathers: bool = True,
    reduces: bool = True,
) -> list[Operation]:
    """Operations of a mixer, from its first product to its last.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild its input; none without a norm before it.
    gathers, reduces
        Whether it gathers its input and reduces its output; false: with attention next to it.
    """
    build = _MIXERS[mixer.kind]
    return build(model, mixer, work, norm_parts=norm_parts, gathers=gathers, reduces=reduces)
