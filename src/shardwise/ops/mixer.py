"""Operations and FLOPs of a mixer by its kind."""

from collections.abc import Callable

import numpy as np

from shardwise.config.mixer import (
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    ShortConv,
)
from shardwise.config.model import Model
from shardwise.ops.delta import (
    delta_flops,
    gated_delta_operations,
    kimi_delta_operations,
    lightning_flops,
    lightning_operations,
)
from shardwise.ops.linear import after_row_parallel, before_column_parallel, linear
from shardwise.ops.mamba import mamba1_operations, mamba2_flops, mamba2_operations
from shardwise.ops.mixer_parts import CoreFlops, Inner
from shardwise.ops.operation import Operation, RankWork, zeros
from shardwise.ops.short_conv import short_conv_operations

_ALL = frozenset({"attention"})
_MIXERS: dict[str, Callable[..., Inner]] = {
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

    All column-parallel projections of the input are one product; the last one is row-parallel, from
    the inner width back to the residual stream. Of linear attention the part `mixer_gate` rebuilds
    its input (gdn_norm_out of Megatron-LM d98e8a6, ssm/gated_delta_net): the norm runs again, what
    it reads stays.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild its input; none without a norm before it.
    gathers, reduces
        Whether it gathers its input and reduces its output; false: with attention next to it.
    """
    inner = _MIXERS[mixer.kind](model, mixer, work)
    name = "mamba" if is_mamba(mixer) else "mixer"
    bias = isinstance(mixer, (Mamba1, Mamba2, ShortConv)) and mixer.bias
    gated = isinstance(mixer, (GatedDelta, KimiDelta, Lightning))
    first = linear(
        f"{name}.in",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=inner.inputs,
        bias=inner.inputs if bias else 0.0,
        saved_tokens=work.saved_tokens if gathers else zeros(work),
        collectives=before_column_parallel(work, model.hidden) if gathers else (),
        normed=bool(norm_parts) and gathers,
        saved_elsewhere=not gathers,
        reruns_with=_ALL | {"qkv"},
        dropped_with=norm_parts,
    )
    last = linear(
        f"{name}.out",
        work,
        tokens=work.tokens,
        inputs=inner.outputs / work.tp,
        outputs=np.full_like(work.tp, model.hidden),
        bias=model.hidden if bias else 0.0,
        collectives=after_row_parallel(work, model.hidden) if reduces else (),
        reruns_with=_ALL | {"every_other", "attention_out"},
        dropped_with=_ALL | ({"mixer_gate"} if gated else set()),
    )
    return [first, *inner.operations, last]
