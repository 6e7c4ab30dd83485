"""How close kernels come to the peaks of a chip: while training, and alone in a benchmark.

What estimates use are the figures of training, at sustained clocks (`MatmulKernel`,
`FusedAttention`, `MemoryKernel`). `Benchmarked` holds figures of single kernels as
micro-benchmarks time them: short bursts at boost clocks, with the casts and copies that the
benchmark's framework adds. Predictions of benchmarks use those; no estimate does.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from shardwise.config.base import ConfigBase, Count
from shardwise.config.bounds import (
    Exponent,
    Factor,
    Fraction,
    Month,
    Overhead,
    PerElement,
    RateShare,
)
from shardwise.config.enums import AttentionKernel, ExpertChoices, Quantization
from shardwise.units import Latency

MatmulName = Literal["bf16", "fp8", "fp8_block", "nvfp4"]
AttentionName = Literal[
    "bf16_causal", "bf16_dense", "bf16_mla", "fp8_causal", "fp8_dense", "fp8_mla"
]
ExpertsName = Literal[
    "bf16", "fp8", "fp8_block", "nvfp4", "nvfp4_min_latency", "bf16_ungated", "fp8_ungated",
    "nvfp4_ungated",
]  # fmt: skip


class MatmulTiles(ConfigBase):
    """Products timed by waves of tiles; the library takes the fastest (see `cost.matmul`)."""

    wave_share: Overhead
    """Share of a full wave that a last wave with few tiles costs: 1, all of it."""
    edge_weight: Overhead
    """Loss of small tiles, which load more operands per FLOP [elements]."""
    split_latency: Latency
    """Time added where the reduction is split among multiprocessors."""
    split_memory_efficiency: RateShare
    """Share of the memory bandwidth that partial results move at."""


class MatmulBlocks(ConfigBase):
    """Products of blocks that the library chooses by their traffic (see `cost.block_choice`)."""

    wave_share: Overhead
    """Share of a full wave that a last wave with few blocks costs."""
    edge_weight: Overhead
    """Loss of small blocks, which load more operands per FLOP [elements]."""
    narrow_share: RateShare
    """Speed of blocks whose width is an odd multiple of 16 over that of others."""
    alone_share: Mapping[Count, RateShare] = Field(min_length=1)
    """Speed of blocks by their elements where all fit in one wave and share no operands, over that
    in several waves; interpolated in the logarithm."""


class ProductFigures(ConfigBase):
    """The closed form of products of one input type (see `cost.matmul`)."""

    efficiency: Fraction
    """Share of the peak that a large product reaches while training: at sustained clocks."""
    fill_depth: Overhead
    """Extra elements of the reduction that filling and draining the pipeline costs."""
    fill_tiles: Overhead
    """Tiles of 128 x 128 per multiprocessor at which the chip counts as half idle, half busy."""
    fill_exponent: Exponent = 2.5
    """How sharply the chip fills with tiles: the larger, the sharper."""
    reduction_step: Count = 1
    """The reduction is computed in steps of so many elements, rounded up."""
    memory_efficiency: RateShare
    """Share of the memory bandwidth that operands and result move at."""
    launch: Latency
    """Time that a product without work would take: launch and drain."""
    tiling: MatmulTiles | MatmulBlocks | None = None
    """Count waves of tiles in place of `fill_tiles` and `fill_exponent`: slower, for where waves
    show."""


class MatmulKernel(ProductFigures):
    """How close the matrix units of one input type come to their peak while training."""

    burst_efficiency: Fraction | None = None
    """The same for a short burst at boost clocks, as micro-benchmarks show it; informative."""
    weight_grad_share: RateShare = 0.95
    """Efficiency of gradients of weights over that of other products: they read both operands
    across their storage order. 0.95 in SimuMax's training layouts on A100 and B200 (commit 4dcaae5,
    622 products)."""


class KernelTime(ConfigBase):
    """Time of an attention kernel over that of the best one, by the keys of a sequence.

    Interpolated in the logarithm of the keys, constant outside.
    """

    forward: Mapping[Count, Factor] = Field(min_length=1)
    backward: Mapping[Count, Factor] = Field(default_factory=dict)
    """Empty: as forward."""


class FusedAttention(ConfigBase):
    """How close a fused (flash) attention kernel comes to the peak (see `cost.attention`)."""

    tile: Count
    """Queries that one multiprocessor handles at a time."""
    efficiency: Mapping[Count, Fraction] = Field(min_length=1)
    """Share of the matrix peak by head width, forward, while training."""
    latent_efficiency: Mapping[Count, Fraction] = Field(default_factory=dict)
    """The same of heads whose values are narrower than their queries (latent attention), both laid
    out as wide as the queries; empty: as of equal widths."""
    longest_weight: Overhead
    """How much the longest causal tile weighs when there are few tiles per multiprocessor."""
    fill_keys: Overhead = 0
    """Extra keys of each tile that starting and ending it costs."""
    memory_efficiency: RateShare
    """Share of the memory bandwidth that queries, keys, values and outputs move at."""
    launch: Latency
    """Time that a kernel without work would take."""
    backward_ratio: Factor
    """Time of the backward kernel over that of the forward kernel; it does 2.5 times the FLOPs."""
    other_kernels: Mapping[AttentionKernel, Factor | KernelTime] = Field(default_factory=dict)
    """Time of kernels that are not the best one over its time; 1 for one that is not named."""
    quantized: Mapping[Quantization, KernelTime] = Field(default_factory=dict)
    """Time of kernels on operands of 8 bits over that of the best one on 16 bits, by recipe, where
    software uses them (`Stack.quantized_attention`); 1 for a recipe that is not named."""
    quantized_latent: Mapping[Quantization, KernelTime] = Field(default_factory=dict)
    """The same of heads whose values are narrower than their queries; empty: as of equal widths."""
    release_times: Mapping[Month, KernelTime] = Field(default_factory=dict)
    """Time of the best kernel in releases of a month over that of the other figures; between months
    its logarithm is interpolated, constant outside. `Stack.yearly_time_factor`, which was fitted at
    2,048 to 8,192 tokens, is in addition to it."""

    @field_validator("other_kernels")
    @classmethod
    def _fused(cls, value: Mapping[AttentionKernel, object]) -> Mapping[AttentionKernel, object]:
        if wrong := [name for name in value if not name.is_named]:
            raise ValueError(f"{wrong[0]}: no fused kernel by name")
        return value


class SparseAttention(ConfigBase):
    """How close kernels come to the matrix peak whose queries see selected or compressed keys."""

    forward: Fraction
    """Share of the matrix peak, forward."""
    backward: Fraction
    """The same of backward kernels, which add gradients of keys from many queries."""


def tier_words(name: str) -> str:
    """Return what a memory tier is called in sentences: GPU memory, host memory."""
    return f"{'GPU' if name == 'hbm' else name} memory"


class MemoryKernel(ConfigBase):
    """How close element-wise kernels come to the memory bandwidth (see `cost.kernels`)."""

    efficiency: Fraction
    """Share of the memory bandwidth."""
    launch: Latency
    """Time that a kernel without work would take."""


class Throttle(ConfigBase):
    """Clocks that fall under load: a kernel of t takes t (1 + slowdown / (1 + (after / t)^2))."""

    slowdown: Overhead
    """Of a single long kernel."""
    after: Latency
    """Time at which half of it shows."""
    sustained: Overhead = 0
    """Slow-down of the compute of kernels that are repeated for a second."""


class BenchmarkedMatmul(ProductFigures):
    """Products as a benchmark times them; its efficiency is that of a short burst."""

    throttle: Throttle
    cast_bytes: PerElement = 0
    """Bytes moved at the memory's full rate for quantizing one element of the input."""
    cast_grouping: Overhead = 0
    """Slow-down of that cast where the groups of 128 elements do not come in 16s: 16 / g - 1 times
    this for the largest g that divides their number."""


class BenchmarkedAttention(FusedAttention):
    """Forward attention as a benchmark times it; its efficiency is that of a short burst."""

    backward_ratio: Factor = 1
    throttle: Throttle
    copy_bytes: PerElement = 0
    """Bytes moved at the memory's full rate to copy one element of a key or value to a cache."""
    cast_bytes: PerElement = 0
    """The same for quantizing one element of a query."""


class BenchmarkedExperts(ConfigBase):
    """A block of experts on one rank: two grouped products and what moves the tokens."""

    efficiency: Fraction
    fill_depth: Overhead
    fill_tiles: Overhead
    fill_exponent: Exponent = 2.5
    memory_efficiency: RateShare
    launch: Latency
    """Of all its kernels."""
    row_step: Count
    """Each expert's tokens are padded to a multiple of this."""
    pair_bytes: PerElement
    """Bytes moved at the memory's full rate per element of a token on its way to an expert."""
    token_bytes: PerElement
    """The same per element of a token, however many experts it has."""
    inner_bytes: PerElement
    """The same per element between the two products."""
    choice_bytes: PerElement
    """The same per token and expert."""
    throttle: Throttle
    choices: ExpertChoices = ExpertChoices.SPREAD
    """Experts that a rank computes for each of its tokens: topk / ep; min(topk, topk^2 / ep), as in
    the benchmark of SGLang's Triton kernel; min(topk, experts / ep), all of them on this rank, as
    in that of TensorRT-LLM's kernel of least latency."""


class Benchmarked(ConfigBase):
    """Figures of kernels alone, by kind; none is read by an estimate."""

    matmul: Mapping[MatmulName, BenchmarkedMatmul] = Field(default_factory=dict)
    """Products with a fresh input that is quantized first: per tensor (fp8), in blocks, nvfp4."""
    attention: Mapping[AttentionName, BenchmarkedAttention] = Field(default_factory=dict)
    """By type and mask; mla has wider keys (192) than values (128)."""
    experts: Mapping[ExpertsName, BenchmarkedExperts] = Field(default_factory=dict)
    """By type; `min_latency` is TensorRT-LLM's kernel of that name, ungated experts have two
    matrices."""
