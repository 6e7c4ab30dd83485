"""A chip with fp8 and fp4, and a model of experts, with round figures.

Sample: Llama of width 64, 8 query heads of 8 over 2, SwiGLU of 192; 2 sequences of 32 tokens in 2
bytes, so 64 tokens. The chip does 100 TFLOP/s in 16 bits, 200 in 8 and 400 in 4, at 1 TB/s.
"""

from typing import Any

import samples
from samples import TFLOPS
from shardwise import Model, System

PEAKS = {"bf16": 100 * TFLOPS, "fp16": 100 * TFLOPS, "fp32": 50 * TFLOPS}
PEAKS |= {"fp8": 200 * TFLOPS, "fp4": 400 * TFLOPS}
LINEAR = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


def chip(**fields: Any) -> System:
    return samples.system(**({"matrix": PEAKS} | fields))


def mixture(**fields: Any) -> Model:
    """One kind of layer with 8 experts of 32, 2 for each token: 128 copies."""
    moe = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"} | fields
    layer = samples.layer(attention={"bias": "none"}) | {"moe": moe}
    return samples.llama(layers=[{key: item for key, item in layer.items() if key != "mlp"}])
