"""A described model in plain PyTorch: eager, one module for each product, no fused kernels.

It has the parameters and the products of `ops`. What a model may have is in `buildable`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere in PyTorch
from torch import Tensor, nn

from shardwise.config.enums import Activation, AttentionBias, Norm, NormPlacement, Position, QkNorm
from shardwise.config.model import Attention, Layer, Mlp, Model, Moe

_ROTARY_BASE = 10000.0
_INIT_STD = 0.02
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: F.gelu,
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
    Activation.RELU2: lambda x: F.relu(x).square(),
    Activation.SWIGLU: F.silu,
    Activation.GEGLU: F.gelu,
    Activation.REGLU: F.relu,
}


class Transformer(nn.Module):
    """Some of the layers of a model; the first stage has the embedding, the last one the head."""

    def __init__(
        self, model: Model, seq_len: int, layers: range, *, first: bool, last: bool
    ) -> None:
        super().__init__()
        self.position: nn.Embedding | None = None
        self.embedding = nn.Embedding(model.vocab, model.hidden) if first else None
        if first and model.position == Position.LEARNED:
            self.position = nn.Embedding(model.max_positions or seq_len, model.hidden)
        order = model.order
        self.layers = nn.ModuleList(Block(model, model.layers[order[at]], seq_len) for at in layers)
        self.norm = norm(model) if last and model.final_norm else nn.Identity()
        self.head = nn.Linear(model.hidden, model.vocab, bias=model.head_bias) if last else None
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_INIT_STD)
        if model.tied_embeddings and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of tokens (batch, length); of a stage, its output for the hidden states."""
        if self.embedding is not None:
            x = self.embedding(x)
        if self.position is not None:
            x = x + self.position.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x if self.head is None else self.head(x)


def norm(model: Model, width: int | None = None) -> nn.Module:
    """A norm as the model has them."""
    size = width or model.hidden
    if model.norm == Norm.RMSNORM:
        return nn.RMSNorm(size, eps=1e-5, elementwise_affine=model.norm_weight)
    bias = model.norm_bias is not False
    return nn.LayerNorm(size, elementwise_affine=model.norm_weight, bias=bias)


class Block(nn.Module):
    """Attention, then an MLP or experts, one after the other or in parallel."""

    def __init__(self, model: Model, layer: Layer, seq_len: int) -> None:
        super().__init__()
        before = layer.norms in (NormPlacement.PRE, NormPlacement.BOTH)
        after = layer.norms in (NormPlacement.POST, NormPlacement.BOTH)

        def placed(there: bool) -> nn.Module:
            return norm(model) if there else nn.Identity()

        self.parallel = layer.parallel
        attention, block = layer.own_attention, layer.feed_forward
        kind = SelfAttention if attention.latent is None else LatentAttention
        self.attention_norm, self.attention = placed(before), kind(model, attention, seq_len)
        self.attention_post_norm = placed(after)
        self.mlp_norm = placed(before and not layer.parallel)
        self.mlp: nn.Module = (
            FeedForward(model.hidden, block) if isinstance(block, Mlp) else Experts(model, block)
        )
        self.mlp_post_norm = placed(after)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (batch, length, hidden)."""
        read = self.attention_norm(x)
        attended = self.attention_post_norm(self.attention(read))
        if self.parallel:
            return x + attended + self.mlp(read)
        x = x + attended
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


class SelfAttention(nn.Module):
    """Queries, keys and values from one input; some heads of them with tensor parallelism."""

    def __init__(self, model: Model, one: Attention, seq_len: int) -> None:
        super().__init__()
        self.one, hidden = one, model.hidden
        biased = one.bias in (AttentionBias.QKV, AttentionBias.ALL)
        self.query = nn.Linear(hidden, one.heads * one.head_dim, bias=biased)
        self.key = nn.Linear(hidden, one.kv_heads * one.head_dim, bias=biased)
        self.value = nn.Linear(hidden, one.kv_heads * one.value_dim, bias=biased)
        biased = one.bias in (AttentionBias.OUTPUT, AttentionBias.ALL)
        self.out = nn.Linear(one.heads * one.value_dim, hidden, bias=biased)
        self.query_norm, self.key_norm = (
            norm(model, one.head_dim) if one.qk_norm == QkNorm.HEAD else nn.Identity()
            for _ in range(2)
        )
        turned = one.head_dim if one.rotary_dim is None else one.rotary_dim
        self.angles = _angles(seq_len, turned if model.position == Position.ROPE else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of sequences (batch, length, hidden)."""
        q, k = (f(x).unflatten(-1, (-1, self.one.head_dim)) for f in (self.query, self.key))
        v = self.value(x).unflatten(-1, (-1, self.one.value_dim))
        q, k = self.angles(self.query_norm(q)), self.angles(self.key_norm(k))
        return self.out(_attend(q, k, v, causal=self.one.causal))


class LatentAttention(nn.Module):
    """Keys and values from one compressed vector (DeepSeek-V2)."""

    def __init__(self, model: Model, one: Attention, seq_len: int) -> None:
        super().__init__()
        low = one.latent
        assert low is not None  # noqa: S101 - it is of latent attention
        self.one, self.low, hidden = one, low, model.hidden
        self.plain = one.head_dim - low.rope_dim
        wide, self.query_down, self.query_norm = one.heads * one.head_dim, None, nn.Identity()
        if low.q_rank is not None:
            self.query_down = nn.Linear(hidden, low.q_rank, bias=False)
            self.query_norm = norm(model, low.q_rank)
        self.query = nn.Linear(low.q_rank or hidden, wide, bias=False)
        self.kv_down = nn.Linear(hidden, low.kv_rank + low.rope_dim, bias=False)
        self.kv_norm = norm(model, low.kv_rank)
        self.kv_up = nn.Linear(low.kv_rank, one.heads * (self.plain + one.value_dim), bias=False)
        self.out = nn.Linear(one.heads * one.value_dim, hidden, bias=False)
        self.angles = _angles(seq_len, low.rope_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of sequences (batch, length, hidden)."""
        one, low = self.one, self.low
        narrow = x if self.query_down is None else self.query_norm(self.query_down(x))
        q = self.query(narrow).unflatten(-1, (-1, one.head_dim))
        q_plain, q_turned = q.split([self.plain, low.rope_dim], -1)
        kv, turned = self.kv_down(x).split([low.kv_rank, low.rope_dim], -1)
        k_plain, v = (
            self.kv_up(self.kv_norm(kv))
            .unflatten(-1, (-1, self.plain + one.value_dim))
            .split([self.plain, one.value_dim], -1)
        )
        shared = self.angles(turned.unsqueeze(2)).expand(-1, -1, k_plain.shape[2], -1)
        q = torch.cat([q_plain, self.angles(q_turned)], -1)
        k = torch.cat([k_plain, shared], -1)
        return self.out(_attend(q, k, v.contiguous(), causal=one.causal))


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Attention over (batch, length, heads, width) in one kernel; flat over heads."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    grouped = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(2)


class Rotary(nn.Module):
    """Turns pairs of the first numbers of each head by angles of their positions."""

    def __init__(self, seq_len: int, width: int) -> None:
        super().__init__()
        self.width = width
        places = torch.arange(seq_len, dtype=torch.float32)[:, None]
        rates = _ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        angles = places * rates
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Turn heads (batch, length, heads, width)."""
        turned, rest = x[..., : self.width], x[..., self.width :]
        pairs = torch.view_as_complex(turned.float().unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(-2).to(x.dtype)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def _angles(seq_len: int, width: int) -> nn.Module:
    return Rotary(seq_len, width) if width else nn.Identity()


class FeedForward(nn.Module):
    """Two products with a non-linearity between them, or three with a gate."""

    def __init__(self, hidden: int, one: Mlp) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, one.ffn, bias=one.bias) if one.gated else None
        self.up = nn.Linear(hidden, one.ffn, bias=one.bias)
        self.down = nn.Linear(one.ffn, hidden, bias=one.bias)
        self.activation = _ACTIVATIONS[one.activation]

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Transform tokens, each with the weight of its expert if it has one."""
        if self.gate is None:
            inner = self.activation(self.up(x))
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        return self.down(inner if weights is None else inner * weights)


class Experts(nn.Module):
    """A router, a loop over experts that each see the tokens they were chosen for, no capacity."""

    def __init__(self, model: Model, one: Moe) -> None:
        super().__init__()
        hidden, self.one = model.hidden, one
        self.router = nn.Linear(hidden, one.experts, bias=one.router_bias)
        expert = Mlp(ffn=one.ffn, activation=one.activation, bias=one.bias)
        self.experts = nn.ModuleList(FeedForward(hidden, expert) for _ in range(one.experts))
        self.shared, self.shared_gate = None, None
        if one.shared_ffn:
            self.shared = FeedForward(hidden, expert.model_copy(update={"ffn": one.shared_ffn}))
            self.shared_gate = nn.Linear(hidden, 1, bias=False) if one.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """Send each token to its experts and add up what they return."""
        tokens = x.flatten(0, -2)
        scores = torch.softmax(self.router(tokens).float(), -1)
        weights, chosen = scores.topk(self.one.top_k, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype).flatten()
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.one.experts).tolist()
        rows = order // self.one.top_k
        sent, weights = tokens[rows], weights[order, None]
        pieces = zip(self.experts, sent.split(counts), weights.split(counts), strict=True)
        done = torch.cat([expert(part, weight) for expert, part, weight in pieces])
        out = done[order.argsort()].unflatten(0, (-1, self.one.top_k)).sum(1)
        if self.shared is not None:
            shared = self.shared(tokens)
            gate = self.shared_gate
            out = out + (shared if gate is None else shared * torch.sigmoid(gate(tokens)))
        return out.view_as(x)
