"""Attention and heads in 8 bits: `quantized_attention` and `quantized_head` of a stack."""

from typing import Any

import numpy as np
import pytest

import samples
from samples import moved, operations
from shardwise import InputError, Model, System, estimate, estimate_many
from shardwise.config.enums import Quantization
from shardwise.config.strategy import Strategy
from shardwise.ops.operation import FlashAttention, Matmul, Phase

pytestmark = pytest.mark.any_software

MXFP8 = Quantization("mxfp8").code
SIZE = 1.03125
"""Bytes of an element with its scales."""
PLAIN: dict[str, Any] = {"gpus": 8, "gbs": 64, "mbs": 2, "seq_len": 4096, "quantization": "mxfp8"}


def software(**fields: Any) -> dict[str, Any]:
    return {"stack": {"base": "megatron-bridge-2026"} | fields}


def test_queries_keys_values_and_the_gradient_are_cast_along_both_axes() -> None:
    """Sample: 64 tokens, 64 wide queries, 16 wide keys and values."""
    plain = operations(samples.llama(), quantization=MXFP8)["attention.core"]
    low = operations(samples.llama(), quantization=MXFP8, quantized_attention=True)
    one = low["attention.core"]
    assert moved(plain, Phase.FORWARD) == moved(plain, Phase.INPUT_GRAD) == 0
    assert moved(one, Phase.FORWARD) == 64 * (64 + 16 + 16) * (2 + 2 * SIZE)
    assert moved(one, Phase.INPUT_GRAD) == 64 * 64 * (2 + 2 * SIZE)
    assert one.saved_bytes == plain.saved_bytes


def test_backward_in_eight_bits_scores_what_a_window_hides() -> None:
    """Sample: 32 tokens, a window of 8: 8 x 32 - 8^2 / 2 = 224 scores, 512 without the window."""
    windowed = samples.model(samples.layer(attention={"window": 8}))

    def scores(phase: Phase, **work: Any) -> float:
        kernels = operations(windowed, quantization=MXFP8, **work)["attention.core"].kernels
        flash = [one for one in kernels if isinstance(one, FlashAttention)]
        (kernel,) = [one for one in flash if one.phase is phase]
        return float((kernel.scores / kernel.sequences / kernel.heads)[0])

    for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
        assert scores(phase) == 224
    assert scores(Phase.FORWARD, quantized_attention=True) == 224
    assert scores(Phase.INPUT_GRAD, quantized_attention=True) == 512


@pytest.mark.parametrize(
    ("system", "forward", "backward"),
    [("gb300-nvl72", 0.546 / 0.864, 2.348 / 3.127), ("gb200-nvl72", 0.714 / 0.977, 2.62 / 3.383)],
)
def test_latent_attention_in_mxfp8_is_as_fast_as_measured(
    system: str, forward: float, backward: float
) -> None:
    """Times of cuDNN 9.22 at 4,096 tokens, 128 heads of 192 and 128 [ms]."""
    known = System.load(system).accelerator.attention
    assert known is not None
    ratio = known.quantized_latent[Quantization.MXFP8]
    assert ratio.forward[4096] == pytest.approx(forward, rel=0.005)
    assert ratio.backward[4096] == pytest.approx(backward, rel=0.005)


def test_heads_of_128_gain_nothing_from_mxfp8_at_4096_tokens() -> None:
    for name in ("gb200-nvl72", "gb300-nvl72"):
        known = System.load(name).accelerator.attention
        assert known is not None
        ratio = known.quantized[Quantization.MXFP8]
        assert ratio.forward[4096] < 0.84
        assert ratio.backward[4096] > 1.08


def test_a_head_in_eight_bits_is_faster_alone() -> None:
    """Its products run at twice the rate; its weights have copies in both orientations."""
    model, system = Model.load("llama3-8b"), System.load("gb300-nvl72")
    plain = estimate(model, system, PLAIN | software())
    low = estimate(model, system, PLAIN | software(quantized_head=["mxfp8"]))
    flops = 6 * model.vocab * model.hidden * 64 * 4096 / 8
    products = flops / (system.accelerator.matrix["bf16"] * 0.6)
    assert 0.3 * products < plain.step_time_s - low.step_time_s < 0.6 * products
    more = low.memory_bytes.total - plain.memory_bytes.total
    assert more > 2 * SIZE * model.vocab * model.hidden * 0.9
    other = estimate(model, system, PLAIN | software(quantized_head=["nvfp4"]))
    assert other.step_time_s == plain.step_time_s


def test_the_command_line_names_them_in_braces() -> None:
    """The text is that of a strategy file, of any fields of a stack; wrong ones are named."""
    text = "{base: megatron-bridge-nvl72, quantized_head: [mxfp8], quantized_attention: [mxfp8]}"
    read = Strategy.validated(PLAIN | {"stack": text}, source="flags").loaded_stack()
    assert read.name == "megatron-bridge-nvl72"
    assert read.quantized_head == read.quantized_attention == ("mxfp8",)
    for wrong, named in (("{base: megatron-bridge-nvl72, heads: 1}", "heads"), ("{base", "stack")):
        with pytest.raises(InputError, match=named):
            Strategy.validated(PLAIN | {"stack": wrong}, source="flags")


def test_rows_with_and_without_are_what_each_is_alone() -> None:
    """One table of stacks that differ in it, as measured runs of one model are."""
    model, system = Model.load("llama3.2-1b"), System.load("gb200-nvl72")
    rows = [
        PLAIN | software(**fields)
        for fields in ({}, {"quantized_head": ["mxfp8"]}, {"quantized_attention": ["mxfp8"]})
    ]
    rows.append({**PLAIN, "quantization": "none"} | software(quantized_head=["mxfp8"]))
    together = estimate_many(model, system, rows)
    alone = [estimate(model, system, row).step_time_s for row in rows]
    assert list(together.step_time_s) == pytest.approx(alone, rel=1e-12)
    assert len(set(alone)) == len(alone)


def test_products_of_a_head_have_the_rate_of_their_type() -> None:
    """Of two rows, one quantized: each has one product of each phase that does something."""
    both = {"quantization": [MXFP8, MXFP8], "quantized_head": [True, False]}
    one = samples.head(samples.llama(), **both)["head"]
    for phase in Phase:
        products = [k for k in one.kernels if isinstance(k, Matmul) and k.phase is phase]
        in_rows = {k.quantized: tuple(np.broadcast_to(k.batch, 2)) for k in products}
        assert in_rows == {True: (1, 0), False: (0, 1)}
