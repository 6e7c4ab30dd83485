"""What mixes tokens in place of attention: state spaces, linear attention, convolutions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shardwise.config.base import ConfigBase, Count


class Mamba2(ConfigBase):
    """State-space duality (arXiv 2405.21060): heads with a scalar decay and shared B and C."""

    kind: Literal["mamba2"]
    heads: Count
    """Heads; heads x head_dim is the inner width, which may differ from a multiple of hidden."""
    head_dim: Count
    """Width of one head."""
    state: Count
    """Size of the state of each channel."""
    groups: Count
    """Groups of heads that share B and C."""
    conv: Count
    """Taps of the causal convolution of x, B and C."""
    chunk: Count = 128
    """Tokens of a chunk of the scan."""
    conv_bias: bool = True
    """Whether the convolution has a bias."""
    bias: bool = False
    """Whether both projections have biases."""
    gated_norm: bool = True
    """Whether the gated output is normalized, group by group."""

    @property
    def width(self) -> int:
        """Inner width, d."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, and B and C of each group."""
        return self.width + 2 * self.groups * self.state

    @model_validator(mode="after")
    def _groups_divide(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(f"groups {self.groups} must divide heads {self.heads}")
        return self


class Mamba1(ConfigBase):
    """Selective scan (arXiv 2312.00752): every channel has decays of its own."""

    kind: Literal["mamba1"]
    width: Count
    """Inner width."""
    state: Count
    """Size of the state of each channel."""
    rank: Count
    """Width that the time step is projected from."""
    conv: Count
    """Taps of the causal convolution."""
    conv_bias: bool = True
    """Whether the convolution has a bias."""
    bias: bool = False
    """Whether both projections have biases."""
    inner_norms: bool = False
    """Whether time step, B and C are normalized (Jamba, arXiv 2403.19887)."""


class GatedDelta(ConfigBase):
    """Gated delta rule (arXiv 2412.06464): a state per value head, corrected and decayed."""

    kind: Literal["gated_delta"]
    key_heads: Count
    """Heads of queries and keys."""
    value_heads: Count
    """Heads of values and of the state."""
    key_dim: Count
    """Width of one head of queries and keys."""
    value_dim: Count
    """Width of one head of values."""
    conv: Count
    """Taps of the causal convolution of queries, keys and values."""

    @property
    def width(self) -> int:
        """Width of all heads of values."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.width

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"key_heads {self.key_heads} must divide value_heads {self.value_heads}"
            )
        return self


class KimiDelta(ConfigBase):
    """Kimi delta attention (arXiv 2510.26692): the delta rule with a decay for each channel."""

    kind: Literal["kimi_delta"]
    heads: Count
    """Heads of queries, keys, values and the state."""
    head_dim: Count
    """Width of one head."""
    conv: Count
    """Taps of the causal convolutions of queries, keys and values."""
    full_rank_gate: bool = False
    """Whether the output gate is one full projection; else it goes through `head_dim`."""
    full_rank_decay: bool = False
    """Whether the decay is one full projection; else it goes through `head_dim`."""

    @property
    def width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolutions of queries, keys and values."""
        return 3 * self.width


class Lightning(ConfigBase):
    """Linear attention with a fixed decay per head in blocks (arXiv 2501.08313)."""

    kind: Literal["lightning"]
    heads: Count
    """Heads of queries, keys and values."""
    head_dim: Count
    """Width of one head."""
    block: Count = 256
    """Tokens of a block, inside which scores are computed."""

    @property
    def width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim


class ShortConv(ConfigBase):
    """Gated short convolution (LFM2): B, C and x projected, C * conv(B * x)."""

    kind: Literal["short_conv"]
    conv: Count
    """Taps of the causal convolution, as wide as the model."""
    bias: bool = False
    """Whether projections and convolution have biases."""


Mixer = Annotated[
    Mamba2 | Mamba1 | GatedDelta | KimiDelta | Lightning | ShortConv, Field(discriminator="kind")
]
"""What mixes tokens in a layer, by its kind."""
