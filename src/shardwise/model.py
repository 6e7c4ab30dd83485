"""`Model`: the architecture that is trained. No batch, no hardware."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from shardwise.formats.recognise import native_fields
from shardwise.noun import Count, Noun, Sourced

__all__ = ["Attention", "Layer", "Mlp", "Model"]

GATED = frozenset({"swiglu", "geglu", "reglu"})


class Attention(Noun):
    """Self-attention of one kind of layer."""

    heads: Count
    """Query heads."""
    kv_heads: Count
    """Heads of keys and values: `heads` for multi-head, 1 for multi-query, between for grouped."""
    head_dim: Count
    """Width of one head; heads x head_dim may differ from the hidden width."""
    causal: bool = True
    """Whether a position sees only itself and those before it."""
    bias: Literal["none", "qkv", "all"] = "none"
    """Which projections have a bias: none, query, key and value, or the output too."""
    qk_norm: bool = False
    """Whether queries and keys are normalised per head."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        return self


class Mlp(Noun):
    """Feed-forward block of one kind of layer."""

    ffn: Count
    """Inner width; for a gated activation, of each of the two input projections."""
    activation: Literal["gelu", "relu", "silu", "swiglu", "geglu", "reglu"]
    """The non-linearity; the `glu` kinds multiply it with a second projection."""
    bias: bool = False
    """Whether the projections have biases."""

    @property
    def gated(self) -> bool:
        """Whether there is a second input projection."""
        return self.activation in GATED


class Layer(Noun):
    """A run of equal layers."""

    count: Count
    """How many such layers follow one another."""
    attention: Attention
    mlp: Mlp
    parallel: bool = False
    """Attention and MLP read the same normed input and are added in one residual (PaLM, GPT-J)."""


class Model(Sourced):
    """A transformer: layers, embeddings and head."""

    CATALOG: ClassVar[str | None] = "models"

    hidden: Count
    """Width of the residual stream."""
    vocab: Count
    """Entries of the vocabulary, without padding."""
    seq_len: Count | None = None
    """Tokens per sequence in pre-training; None where a strategy must say it."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    """Runs of equal layers, first to last."""
    norm: Literal["layernorm", "rmsnorm"]
    """LayerNorm has a weight and a bias, RMSNorm a weight."""
    norm_bias: bool | None = None
    """Whether a LayerNorm has a bias; None: it has."""
    final_norm: bool = True
    """Whether a norm stands before the head."""
    position: Literal["learned", "rope", "alibi", "sinusoidal", "relative-bias", "relative-xl"]
    """How positions enter. `relative-bias`: a learned bias per head and distance bucket (T5);
    `relative-xl`: a projection of sinusoids scored against the queries (Transformer-XL)."""
    max_positions: Count | None = None
    """Rows of a learned position table; None: `seq_len`."""
    tied_embeddings: bool = False
    """Whether the head shares the weights of the embedding."""
    dropout: bool = False
    """Whether pre-training drops attention probabilities and block outputs."""

    @classmethod
    def native(cls, data: Mapping[str, Any], *, name: str, source: str) -> Mapping[str, Any]:
        """Recognise files of other systems."""
        return native_fields("model", data, name=name, source=source)

    @model_validator(mode="after")
    def _positions_known(self) -> Self:
        if self.position == "learned" and self.max_positions is None and self.seq_len is None:
            raise ValueError("learned positions need max_positions or seq_len")
        if self.position != "learned" and self.max_positions is not None:
            raise ValueError(f"max_positions: {self.position} positions have no table")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias: an rmsnorm has no bias")
        return self

    def with_attention(self, kind: str) -> "Model":
        """Return the model with the key-value heads a strategy gives it: `strategy.ATTENTIONS`."""
        if kind == "model":
            return self
        layers = []
        for layer in self.layers:
            heads = layer.attention.heads if kind == "multihead" else 1
            attention = layer.attention.model_copy(update={"kv_heads": heads})
            layers.append(layer.model_copy(update={"attention": attention}))
        return self.model_copy(update={"layers": tuple(layers)})

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(layer.count for layer in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden width."""
        has_bias = self.norm == "layernorm" and self.norm_bias is not False
        return self.hidden * (2 if has_bias else 1)
