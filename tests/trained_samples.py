"""The Llama sample with some of its weights trained: sizes, operations and estimates.

Width 64, 8 heads over 2, SwiGLU of 192, 1000 words, 4 layers, no biases, no dropout; micro-batches
of 2 x 32 = 64 tokens in 2 bytes.
"""

from typing import Any

import numpy as np

import samples
from shardwise import Model
from shardwise.analysis.results import Estimate
from shardwise.config.enums import FrozenPart, LoraPart
from shardwise.ops.layer import layer_operations
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import Operation, Phase

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase
T = 64
QKV, OUT, UP, DOWN, NORMS = 64 * 96, 64 * 64, 64 * 384, 192 * 64, 2 * 64
WORDS = 64 * 1000
SIZES = {
    "embedding": WORDS,
    "attention": 4 * (QKV + OUT),
    "mlp": 4 * (UP + DOWN),
    "norms": 4 * NORMS + 64,
    "head": WORDS,
}
IN_A_LAYER = {"attention": QKV + OUT, "mlp": UP + DOWN, "norms": NORMS}
# What a layer keeps, in bytes: inputs of norms and products, queries with keys and values and the
# sums of rows, gate and up.
INPUTS = {"attention.qkv": 2 * T * 64, "attention.out": 2 * T * 64, "mlp.up": 2 * T * 64}
INPUTS |= {"mlp.down": 2 * T * 192}
OTHERS = 2 * (2 * T * 64) + 2 * T * 96 + 4 * T * 8 + 2 * T * 384
BELOW_THE_HEAD = ("embedding", "attention", "mlp", "norms")


def subset(*frozen: str, rank: int = 0, parts: tuple[str, ...] = ("attention", "mlp")) -> Subset:
    """One row."""
    every = FrozenPart if rank else frozen
    return Subset(
        frozen=np.array([FrozenPart.bits(every)]),
        rank=np.array([rank]),
        adapted=np.array([LoraPart.bits(parts)]),
        targets=np.array([0]),
        dora=np.array([False]),
    )


def layer(trained: Subset, model: Model | None = None, **work: Any) -> dict[str, Operation]:
    """Operations of the first layer."""
    model, columns = model or samples.llama(), samples.rank_work(**work)
    whole = layer_operations(model, model.layers[0], columns)
    return {o.name: o for o in with_subset(model, "layer", whole, columns, trained)}


def run(model: Model | None = None, **columns: Any) -> Estimate:
    return samples.run(model or samples.llama(), **({"zero": 0} | columns))


def kept(operations: dict[str, Operation]) -> dict[str, float]:
    """Inputs of products that are kept."""
    return {name: float(operations[name].saved_bytes[0]) for name in INPUTS}


def mixture(**fields: Any) -> Model:
    """One kind of layer with 8 experts of width 32 and a shared one as wide."""
    moe = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu", "shared_ffn": 32} | fields
    plain = samples.layer(attention={"bias": "none"}) | {"moe": moe}
    return samples.llama(layers=[{key: item for key, item in plain.items() if key != "mlp"}])


def adapter(inputs: float, outputs: float, rank: int) -> float:
    return rank * (inputs + outputs)


def adapters(rank: int, *, attention: bool = True, mlp: bool = True) -> float:
    """Weights of all adapters."""
    first = adapter(64, 96, rank) + adapter(64, 64, rank)
    second = adapter(64, 384, rank) + adapter(192, 64, rank)
    return 4 * (attention * first + mlp * second)
