"""`Model`: the architecture that is trained. No batch, no hardware."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from shardwise.config import readers
from shardwise.config.base import MOST_LAYERS, ConfigBase, Count, Sourced, Whole
from shardwise.config.bounds import OptionFigure
from shardwise.config.enums import (
    Activation,
    AttentionBias,
    AttentionGate,
    AttentionKind,
    ExpertNorms,
    Norm,
    NormPlacement,
    Position,
    QkNorm,
)
from shardwise.config.mixer import Mixer
from shardwise.config.sparse import Compressed, Indexer

OWN_KIND = "transformer"
"""The kind of layers that is described by the fields of `Layer`."""
GATED = frozenset({Activation.SWIGLU, Activation.GEGLU, Activation.REGLU})


def _qk_norm(value: object) -> object:
    return {True: "head", False: "none"}[value] if isinstance(value, bool) else value


class Latent(ConfigBase):
    """Compression of queries, keys and values (multi-head latent attention, arXiv 2405.04434)."""

    q_rank: Count | None = None
    """Width that queries are compressed to; None: they are projected at once."""
    kv_rank: Count
    """Width that keys and values are compressed to together."""
    rope_dim: Whole
    """Part of each head's width that is rotated; its keys are shared by all heads."""
    rope_norm: bool = False
    """Whether the rotated keys are normalized."""


class Attention(ConfigBase):
    """Self-attention of one kind of layer."""

    heads: Count
    """Query heads."""
    kv_heads: Count
    """Heads of keys and values: `heads` for multi-head, 1 for multi-query, between for grouped."""
    head_dim: Count
    """Width of one head of queries and keys; heads x head_dim may differ from the hidden width."""
    v_head_dim: Count | None = None
    """Width of one head of values and of the output; None: `head_dim`."""
    latent: Latent | None = None
    """Low-rank compression (multi-head latent attention); None: plain projections."""
    compressed: Compressed | None = None
    """Compression of DeepSeek-V4, of queries, of outputs and of keys along the sequence."""
    indexer: Indexer | None = None
    """What selects the keys of each query (sparse attention); None: all are seen. Latent attention
    then runs in its absorbed form, over the compressed keys and values themselves."""
    tied_values: bool = False
    """Whether values are the keys before their norm and rotation, with no projection (Gemma 4)."""
    shared_keys: bool = False
    """Whether keys and values are those of an earlier layer, and the layer has none."""
    out_norm: bool = False
    """Whether the output of the heads is normalized over its full width (BitNet)."""
    v_norm: bool = False
    """Whether values are normalized per head, without weights."""
    causal: bool = True
    """Whether a position sees only itself and those before it."""
    window: Count | None = None
    """Tokens a position sees, itself included (sliding window); None: all."""
    chunk: Count | None = None
    """Tokens of the chunks that attention stays inside (Llama 4); None: the full sequence."""
    bias: AttentionBias = AttentionBias.NONE
    """Which projections have a bias: none, query, key and value, the output, or all of them."""
    sinks: bool = False
    """Whether each head has a learned logit that takes a share of the softmax (gpt-oss)."""
    qk_norm: Annotated[QkNorm, BeforeValidator(_qk_norm)] = QkNorm.NONE
    """Whether queries and keys are normalized: per head (`true`), over the full width, or per head
    without weights."""
    gate: AttentionGate = AttentionGate.NONE
    """Gate that scales the output of the heads: none, part of the query projection (Qwen3-Next), or
    a projection of its own to one value per element (Kimi K3) or per head (Step 3.7)."""
    gate_bias: bool = False
    """Whether the gate has a bias for each head (Beam)."""
    rotary_dim: Whole | None = None
    """Part of each head's width that rotary positions turn; None: all of it, 0: none."""

    @property
    def value_dim(self) -> int:
        """Width of one head of values."""
        return self.v_head_dim or self.head_dim

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        if self.rotary_dim is not None and self.rotary_dim > self.head_dim:
            raise ValueError(f"rotary_dim {self.rotary_dim} is more than head_dim {self.head_dim}")
        if self.window is not None and self.chunk is not None:
            raise ValueError("window and chunk: attention stays in one or the other; give one")
        if (self.tied_values or self.shared_keys) and self.value_dim != self.head_dim:
            raise ValueError(f"v_head_dim: must be head_dim {self.head_dim} where values are keys")
        if self.gate_bias and self.gate == AttentionGate.NONE:
            raise ValueError("gate_bias: there is no gate")
        if self.v_norm and self.qk_norm == QkNorm.NONE:
            raise ValueError("v_norm: of attention whose queries and keys are normalized (qk_norm)")
        if self.tied_values and self.shared_keys:
            raise ValueError("tied_values: a layer with shared_keys projects no keys")
        return self

    @model_validator(mode="after")
    def _compression_fits(self) -> Self:
        compressed = self.compressed
        if (self.latent or compressed) and (field := self._of_plain_attention):
            raise ValueError(f"{field}: not with latent or compressed attention")
        if compressed is None:
            return self
        if self.latent is not None or self.kv_heads != 1 or self.window is None:
            raise ValueError("compressed: needs kv_heads 1, a window, and no latent")
        if self.heads % compressed.output_groups:
            groups = compressed.output_groups
            raise ValueError(f"output_groups {groups} must divide heads {self.heads}")
        if self.value_dim != self.head_dim:
            raise ValueError("v_head_dim: the one key of compressed attention is its value, too")
        if self.qk_norm != QkNorm.NONE:
            raise ValueError("qk_norm: compressed attention has its own norms; must be none")
        return self

    @model_validator(mode="after")
    def _keys_can_be_selected(self) -> Self:
        if (index := self.indexer) is None:
            return self
        latent, compressed = self.latent, self.compressed
        plain = latent is None and compressed is None
        rules = {
            "indexer: selects earlier keys of the sequence; needs causal true and no chunk": (
                not self.causal or self.chunk is not None
            ),
            "window: selected keys are anywhere before a query; leave it out": (
                self.window is not None and compressed is None
            ),
            "indexer.block: latent and compressed attention select single keys; must be 1": (
                not plain and index.block > 1
            ),
            "indexer.block: must exceed 1 without latent or compressed attention": (
                plain and index.block == 1
            ),
            "indexer: reads compressed queries; latent.q_rank is not set": (
                latent is not None and latent.q_rank is None
            ),
            "indexer: selects compressed keys; compressed.ratio is not set": (
                compressed is not None and compressed.ratio is None
            ),
            "indexer.pool: of latent attention only": index.pool > 1 and latent is None,
        }
        if broken := next((text for text, wrong in rules.items() if wrong), None):
            raise ValueError(broken)
        return self

    @property
    def _of_plain_attention(self) -> str:
        fields = ("tied_values", "shared_keys", "v_norm")
        return next((field for field in fields if getattr(self, field)), "")

    @property
    def is_sparse(self) -> bool:
        """Whether queries see other keys than all earlier ones, or those of a window or chunk."""
        return self.indexer is not None or self.compressed is not None

    @model_validator(mode="after")
    def _latent_fits(self) -> Self:
        if self.latent is None:
            return self
        if self.kv_heads != self.heads:
            raise ValueError(f"kv_heads must be heads {self.heads}: latent attention has no groups")
        if self.latent.rope_dim >= self.head_dim:
            raise ValueError(
                f"latent.rope_dim {self.latent.rope_dim} must be below head_dim {self.head_dim}"
            )
        if self.rotary_dim:
            raise ValueError("rotary_dim: latent attention rotates latent.rope_dim, or 0: nothing")
        if self.gate == AttentionGate.FULL:
            raise ValueError("gate: latent attention has no query matrix to widen; use value, head")
        return self


class Mlp(ConfigBase):
    """Feed-forward block of one kind of layer."""

    ffn: Count
    """Inner width; for a gated activation, of each of the two input projections."""
    activation: Activation
    """The non-linearity; the `glu` kinds multiply it with a second projection, and `xielu` has two
    learned scalars (arXiv 2411.13010)."""
    bias: bool = False
    """Whether the projections have biases."""
    inner_norm: bool = False
    """Whether the input of the last projection is normalized (BitNet)."""

    @property
    def gated(self) -> bool:
        """Whether there is a second input projection."""
        return self.activation in GATED


class Moe(ConfigBase):
    """Mixture of experts of one kind of layer: each token passes through some of many MLPs."""

    experts: Count
    """Routed experts."""
    top_k: Count
    """Experts that one token is sent to."""
    groups: Count | None = None
    """Groups of equal size that the experts form for node-limited routing; None with `top_groups`:
    one to each domain of the innermost network tier."""
    top_groups: Count | None = None
    """Groups of experts that a token's are chosen from (node-limited routing); None: any."""
    ffn: Count
    """Inner width of one expert."""
    latent: Count | None = None
    """Width that tokens are projected to before they are sent to routed experts, and back from
    after (Nemotron 3 Super); None: experts read the full width."""
    activation: Activation
    """Of all experts."""
    bias: bool = False
    """Whether the projections of the experts have biases."""
    shared_ffn: Whole = 0
    """Inner width of the shared experts together, which every token passes through; 0: none."""
    shared_gate: bool = False
    """Whether a learned gate scales the output of the shared experts (Qwen2-MoE)."""
    router_bias: bool = False
    """Whether the router's product has a bias."""
    selection_bias: bool = False
    """Whether a bias per expert that no gradient reaches balances the selection (DeepSeek V3)."""
    hashed: bool = False
    """Whether a token's experts are looked up by its id; the router only weights them."""
    router_scale: bool = False
    """Whether the router scales each channel of its normalized input, and each expert (Gemma 4)."""
    norms: ExpertNorms = ExpertNorms.NONE
    """Norms that the block has in addition to those of the layer: none, one of its output, or of
    shared experts after and of routed experts before and after (Gemma 4)."""

    @property
    def gated(self) -> bool:
        """Whether experts have a second input projection."""
        return self.activation in GATED

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.activation == Activation.XIELU:
            raise ValueError("activation: xielu has scalars of its own; not modeled for experts")
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the experts, {self.experts}")
        if self.top_groups is not None and self.top_groups > self.experts:
            most = f"the groups that {self.experts} experts can make"
            raise ValueError(f"top_groups {self.top_groups} is more than {most}")
        self._check_groups()
        if self.shared_gate and not self.shared_ffn:
            raise ValueError("shared_gate: there are no shared experts (shared_ffn) to gate")
        return self

    def _check_groups(self) -> None:
        if self.groups is None:
            return
        if self.top_groups is None:
            raise ValueError(
                "groups: top_groups must say how many of them a token's experts are in"
            )
        if self.experts % self.groups:
            raise ValueError(f"groups {self.groups} must divide the experts, {self.experts}")
        if self.top_groups > self.groups:
            raise ValueError(f"top_groups {self.top_groups} is more than groups {self.groups}")
        if self.top_k > self.experts // self.groups * self.top_groups:
            raise ValueError(
                f"top_k {self.top_k} is more than the experts of {self.top_groups} groups"
            )


class Layer(ConfigBase):
    """A group of equal layers.

    Most have attention, or a mixer in its place, and then an MLP or experts. A layer of one block
    has one of these alone (Nemotron-H counts such blocks as layers).
    """

    count: Count = 1
    """How many such layers there are; with the `pattern` of the model it may be left out."""
    symbol: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Character that stands for such layers in the `pattern` of the model."""
    attention: Attention | None = None
    """Self-attention; None: a mixer in its place, or neither."""
    mixer: Mixer | None = None
    """What mixes tokens in place of attention; with both, they read one input side by side and
    their outputs are added (Falcon-H1)."""
    mlp: Mlp | None = None
    """Feed-forward block; a layer has at most one of this and `moe`."""
    moe: Moe | None = None
    """Mixture of experts in its place."""
    parallel: bool = False
    """Attention and MLP read the same normed input and are added in one residual (PaLM, GPT-J)."""
    second_norm: bool = False
    """Whether the MLP of a parallel layer has a norm of its own for the same input (GPT-NeoX)."""
    kind: str = OWN_KIND
    """What the layer does: as described here, or a kind that was registered (`ops.kinds`), which
    may take from this description what it needs."""
    options: Mapping[str, OptionFigure | str] = Field(default_factory=dict)
    """Figures of a registered kind."""
    more_parameters: Whole = 0
    """Parameters that no other field describes and whose kernels take next to no time, on every
    tensor-parallel rank: scales of channels, short convolutions, projections to a few values."""
    quantized: bool = True
    """Whether a low-precision recipe quantizes its products; if not, they are in the type of the
    strategy (`first_last_layers_bf16` of Megatron-Core)."""
    norms: NormPlacement = NormPlacement.PRE
    """Where the norms of attention and MLP stand: before them, after them (OLMo 2), both, or in the
    residual stream, after each addition (BERT)."""

    @property
    def side_by_side(self) -> bool:
        """Whether it has attention and a mixer that read one input."""
        return self.attention is not None and self.mixer is not None

    @property
    def is_transformer(self) -> bool:
        """Whether it is attention and then an MLP or experts."""
        return (
            self.attention is not None
            and self.mixer is None
            and (self.mlp is not None or self.moe is not None)
        )

    @property
    def beyond_transformer(self) -> tuple[str, object, str] | None:
        """The field that makes it more or less than that, its value, and what it is; else None."""
        if self.is_transformer:
            return None
        if self.mixer is not None:
            return "mixer", self.mixer.kind, f"layers with a {self.mixer.kind} mixer"
        field = "attention" if self.attention is None else "mlp"
        return field, None, f"layers without {field}"

    @property
    def own_attention(self) -> Attention:
        """Attention of a transformer layer (`is_transformer`)."""
        assert self.attention is not None  # noqa: S101 - others are refused before
        return self.attention

    @property
    def feed_forward(self) -> Mlp | Moe:
        """MLP or experts of a transformer layer (`is_transformer`)."""
        block = self.mlp or self.moe
        assert block is not None  # noqa: S101 - others are refused before
        return block

    @model_validator(mode="after")
    def _some_block(self) -> Self:
        if self.mlp is not None and self.moe is not None:
            raise ValueError("must have one of mlp and moe, has both")
        mixes = self.attention is not None or self.mixer is not None
        if not (mixes or self.mlp is not None or self.moe is not None):
            raise ValueError("must have attention, a mixer, an mlp or a moe; has none of them")
        if self.kind != OWN_KIND and not self.is_transformer:
            raise ValueError("kind: registered kinds are described by attention and mlp or moe")
        if self.kind != OWN_KIND and self.more_parameters:
            raise ValueError("more_parameters: registered kinds count their own parameters")
        if self.parallel and not self.is_transformer:
            raise ValueError("parallel: of layers with attention and an mlp or experts only")
        if self.second_norm and self.moe is not None:
            raise ValueError("second_norm: experts and attention read one norm")
        if self.second_norm and not self.parallel:
            raise ValueError("second_norm: of parallel layers; others have two norms always")
        if self.options and self.kind == OWN_KIND:
            raise ValueError(f"options: {OWN_KIND} layers have none; name the kind they are for")
        if self.parallel and self.norms != NormPlacement.PRE:
            raise ValueError(f"parallel: blocks read one norm before them; norms is {self.norms}")
        return self


class Model(Sourced):
    """A transformer: layers, embeddings and head.

    Examples
    --------
    >>> from shardwise import Model
    >>> Model.load("llama3-8b").hidden
    4096
    """

    CATALOG: ClassVar[str | None] = "models"
    KIND: ClassVar[readers.Kind | None] = "model"
    FIGURES: ClassVar[bool] = True

    hidden: Count
    """Width of the residual stream."""
    vocab: Whole
    """Entries of the vocabulary, without padding; 0: there is neither embedding nor head, as in an
    encoder of patches, whose own are next to nothing."""
    seq_len: Count | None = None
    """Tokens per sequence in pre-training; None where a strategy must say it."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    """Groups of equal layers, first to last; or, with `interleave` or `pattern`, kinds that
    alternate."""
    interleave: tuple[Count, ...] | None = None
    """How many layers of each group follow one another before the next group has its turn, until
    all are used up; None: all layers of a group."""
    pattern: str | None = None
    """Every layer in order, by the `symbol` of its group, such as `M-M-*-`; groups then take their
    `count` from it."""
    mtp: Whole = 0
    """Modules of multi-token prediction, each one more layer of the last kind with a projection
    and norms (arXiv 2412.19437, section 2.2). Published counts of parameters leave them out."""
    mtp_pattern: str | None = None
    """Layers of each such module, by symbols as in `pattern`; None: one of the last kind."""
    norm: Norm
    """LayerNorm has a weight and a bias, RMSNorm a weight."""
    norm_bias: bool | None = None
    """Whether a LayerNorm has a bias; None: it has if it has a weight."""
    norm_weight: bool = True
    """Whether norms have a weight (OLMo 1 has none)."""
    embedding_norm: bool = False
    """Whether the embedding is normalized before the first layer (BLOOM)."""
    final_norm: bool = True
    """Whether a norm stands before the head."""
    streams: Count = 1
    """Residual streams; with several, each block reads a mixture of all and is added to all in
    learned shares (hyper-connections, arXiv 2512.24880)."""
    streams_mixed: bool = True
    """Whether streams are mixed with one another between blocks, too."""
    streams_joined: bool = False
    """Whether the streams are joined before the head in learned shares; if not, they are added."""
    layer_embedding: Whole = 0
    """Width of the embeddings that each layer adds, from a table of their own (Gemma 3n, Gemma 4);
    0: none."""
    layer_vocab: Whole = 0
    """Rows of that table; 0: as many as `vocab`."""
    position: Position
    """How positions enter. `relative-bias`: a learned bias per head and distance bucket (T5);
    `relative-xl`: a projection of sinusoids scored against the queries (Transformer-XL)."""
    max_positions: Count | None = None
    """Rows of a learned position table; None: `seq_len`."""
    tied_embeddings: bool = False
    """Whether the head shares the weights of the embedding."""
    token_types: Whole = 0
    """Rows of a table of token types that is added to the embedding (BERT's segments)."""
    more_parameters: Whole = 0
    """Parameters outside the layers that no other field describes, counted with the embedding on
    every tensor-parallel rank: small tables and projections around it."""
    head_transform: bool = False
    """Whether a linear layer as wide as the model, GELU and a norm stand before the head (BERT)."""
    head_bias: bool = False
    """Whether the head has a bias (GPT-J, Phi-2)."""
    dropout: bool = False
    """Whether pre-training drops attention probabilities and block outputs."""
    left_out: tuple[str, ...] = ()
    """Parts of the architecture, by name, that this description leaves out."""

    @classmethod
    def fetched(cls, name: str) -> Mapping[str, object] | None:
        """Fetch the config.json of an owner/name on the Hugging Face hub."""
        return readers.foreign().fetched_model(name)

    @model_validator(mode="before")
    @classmethod
    def _count_in_pattern(cls, data: Any) -> Any:
        """Count the layers of each group, where a pattern has them and the group does not say."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pattern"), str):
            return data
        pattern = data["pattern"].strip()

        def counted(layer: Any) -> Any:
            if isinstance(layer, Layer):
                symbol, known = layer.symbol, "count" in layer.model_fields_set
            elif isinstance(layer, Mapping):
                symbol, known = layer.get("symbol"), "count" in layer
            else:
                return layer
            if known or not isinstance(symbol, str) or not (count := pattern.count(symbol)):
                return layer
            if isinstance(layer, Layer):
                return layer.model_copy(update={"count": count})
            return {**layer, "count": count}

        layers = data.get("layers")
        if not isinstance(layers, (list, tuple)):
            return data
        return {**data, "layers": tuple(counted(layer) for layer in layers)}

    @model_validator(mode="after")
    def _pattern_of_symbols(self) -> Self:
        if self.pattern is None:
            if missing := [n for n, x in enumerate(self.layers) if "count" not in x.set_fields()]:
                raise ValueError(f"layers[{missing[0]}].count: is missing and has no default")
            return self._modules_of_symbols()
        symbols = [layer.symbol for layer in self.layers]
        if self.interleave is not None:
            raise ValueError("pattern: says the order of layers, and so does interleave; give one")
        self._check_symbols("pattern", self.pattern)
        if None in symbols:
            raise ValueError(f"pattern: layers[{symbols.index(None)}] has no symbol")
        for number, layer in enumerate(self.layers):
            if symbols.index(layer.symbol) < number:
                raise ValueError(f"pattern: {layer.symbol!r} is the symbol of two groups")
            if not (found := self.pattern.count(str(layer.symbol))):
                raise ValueError(f"pattern: has no {layer.symbol!r}, of layers[{number}]")
            if layer.count != found:
                raise ValueError(
                    f"pattern: has {found} of {layer.symbol!r}; layers[{number}].count is"
                    f" {layer.count}"
                )
        return self._modules_of_symbols()

    def _modules_of_symbols(self) -> Self:
        if self.mtp_pattern is not None:
            if not self.mtp:
                raise ValueError("mtp_pattern: there are no modules (mtp) to have it")
            if not self.mtp_pattern:
                raise ValueError("mtp_pattern: must have a symbol at least")
            self._check_symbols("mtp_pattern", self.mtp_pattern)
        return self

    def _check_symbols(self, field: str, pattern: str) -> None:
        symbols = [layer.symbol for layer in self.layers if layer.symbol]
        for character in pattern:
            if character not in symbols:
                allowed = ", ".join(map(repr, symbols)) or "none; layers have no symbol"
                raise ValueError(f"{field}: {character!r} is no symbol of a group; {allowed}")

    @model_validator(mode="after")
    def _few_enough_layers(self) -> Self:
        if self.depth > MOST_LAYERS:
            raise ValueError(f"layers: {self.depth} of them; must be at most {MOST_LAYERS}")
        if self.depth + self.mtp > MOST_LAYERS:
            most = MOST_LAYERS - self.depth
            raise ValueError(f"mtp {self.mtp} must be at most {most}, with {self.depth} layers")
        return self

    @model_validator(mode="after")
    def _positions_known(self) -> Self:
        if (
            self.position == Position.LEARNED
            and self.max_positions is None
            and self.seq_len is None
        ):
            raise ValueError("learned positions need max_positions or seq_len")
        if self.position != Position.LEARNED and self.max_positions is not None:
            raise ValueError(f"max_positions: {self.position} positions have no table")
        if self.position != Position.ROPE and any(one.latent for one in self.attentions):
            raise ValueError("position: must be rope with latent attention")
        if self.norm == Norm.RMSNORM and self.norm_bias:
            raise ValueError("norm_bias: an rmsnorm has no bias")
        if self.mtp and (what := self._around_layers):
            raise ValueError(f"{what}: not modeled with multi-token prediction (mtp)")
        if self.norm_bias and not self.norm_weight:
            raise ValueError("norm_bias: a norm without a weight has no bias")
        return self

    @model_validator(mode="after")
    def _vocabulary_for_what_needs_it(self) -> Self:
        if self.streams > 1 and any(layer.parallel for layer in self.layers):
            raise ValueError("streams: parallel layers have one")
        if self.layer_vocab and not self.layer_embedding:
            raise ValueError("layer_vocab: there are no embeddings of layers (layer_embedding)")
        if not self.streams_mixed and self.streams == 1:
            raise ValueError("streams_mixed: there is one stream")
        if self.streams_joined and self.streams == 1:
            raise ValueError("streams_joined: there is one stream")
        if self.vocab:
            return self
        if self.tied_embeddings or self.mtp:
            what = "tied_embeddings" if self.tied_embeddings else "mtp"
            raise ValueError(f"{what}: there is no embedding with vocab 0")
        if self.position == Position.LEARNED:
            raise ValueError("position: learned ones are added to an embedding; vocab is 0")
        if what := self._around_layers:
            raise ValueError(f"{what}: there is neither embedding nor head with vocab 0")
        return self

    @property
    def _around_layers(self) -> str:
        """A field of the embedding or the head that few models have, if any."""
        fields = (
            *("embedding_norm", "head_bias", "head_transform", "token_types", "layer_embedding"),
            "more_parameters",
        )
        return next((field for field in fields if getattr(self, field)), "")

    @model_validator(mode="after")
    def _turns_for_all(self) -> Self:
        if self.interleave is not None and len(self.interleave) != len(self.layers):
            raise ValueError(
                f"interleave: must have a turn for each of the {len(self.layers)} groups of layers"
            )
        return self

    @property
    def order(self) -> tuple[int, ...]:
        """Position in `layers` of every layer, first to last."""
        if self.pattern is not None:
            place = {layer.symbol: number for number, layer in enumerate(self.layers)}
            return tuple(place[symbol] for symbol in self.pattern)
        left = [layer.count for layer in self.layers]
        turns = self.interleave or left
        order: list[int] = []
        while any(left):
            for kind, turn in enumerate(turns):
                count = min(turn, left[kind])
                order += [kind] * count
                left[kind] -= count
        return tuple(order)

    def with_attention(self, kind: str) -> "Model":
        """Return the model with the key-value heads a strategy gives it: `AttentionKind`."""
        if kind == AttentionKind.MODEL:
            return self
        layers = []
        for layer in self.layers:
            attention = layer.attention
            if attention is None or attention.latent or attention.compressed:  # no such heads
                layers.append(layer)
                continue
            heads = attention.heads if kind == AttentionKind.MULTIHEAD else 1
            changed = attention.model_copy(update={"kv_heads": heads})
            layers.append(layer.model_copy(update={"attention": changed}))
        return self.model_copy(update={"layers": tuple(layers)})

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Attention of each group of layers that has it."""
        return tuple(layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Mixer of each group of layers that has one."""
        return tuple(layer.mixer for layer in self.layers if layer.mixer is not None)

    @property
    def attends_to_all(self) -> bool:
        """Whether all layers have attention over all keys: no mixers, no indexers."""
        return not self.mixers and not any(one.indexer for one in self.attentions)

    @property
    def mtp_layers(self) -> tuple[Layer, ...]:
        """Layers of one module of multi-token prediction."""
        if self.mtp_pattern is None:
            return self.layers[-1:]
        by_symbol = {layer.symbol: layer for layer in self.layers}
        return tuple(by_symbol[symbol] for symbol in self.mtp_pattern)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(layer.count for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(layer.moe is not None for layer in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden width."""
        if not self.norm_weight:
            return 0
        has_bias = self.norm == Norm.LAYERNORM and self.norm_bias is not False
        return self.hidden * (2 if has_bias else 1)


def other_fields(part: ConfigBase, known: Collection[str]) -> dict[str, object]:
    """Fields of a part of a model that are not known and not at their defaults.

    What writes models in another form refuses these, so that a field that it does not write is not
    lost.
    """
    return {
        name: value
        for name, field in type(part).model_fields.items()
        if name not in known
        and (value := getattr(part, name)) != field.get_default(call_default_factory=True)
    }


_COMMON_FIELDS: dict[type[ConfigBase], tuple[str, ...]] = {
    Attention: (
        *("heads", "kv_heads", "head_dim", "v_head_dim", "latent", "causal", "window", "chunk"),
        *("bias", "sinks", "qk_norm", "rotary_dim"),
    ),
    Mlp: ("ffn", "activation", "bias"),
    Moe: (
        *("experts", "top_k", "groups", "top_groups", "ffn", "activation", "bias", "shared_ffn"),
        *("shared_gate", "router_bias", "selection_bias"),
    ),
}


def uncommon_fields(model: Model) -> dict[str, object]:
    """Fields that formats of other tools have no words for, and their values.

    Gated, sparse and shared attention, latent experts, residual streams, embeddings of layers.
    """
    found = {
        name: getattr(model, name)
        for name in ("streams", "layer_embedding", "more_parameters")
        if getattr(model, name) != Model.model_fields[name].default
    }
    for number, layer in enumerate(model.layers):
        if not layer.quantized:
            found[f"layers[{number}].quantized"] = False
        if layer.more_parameters:
            found[f"layers[{number}].more_parameters"] = layer.more_parameters
        for name in ("attention", "mlp", "moe"):
            if (part := getattr(layer, name)) is not None:
                others = other_fields(part, _COMMON_FIELDS[type(part)])
                found |= {f"layers[{number}].{name}.{key}": x for key, x in others.items()}
    return found


ModelLike = Model | str | Path | Mapping[str, Any]
"""A model, its catalog name, its owner/name on the Hugging Face hub, a file, or its fields."""
