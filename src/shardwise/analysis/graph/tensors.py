"""Shapes of the tensors between operations, on one rank."""

from dataclasses import dataclass
from math import prod

import numpy as np

from shardwise.analysis.graph.records import INPUT
from shardwise.arrays import Floats
from shardwise.config.enums import Dtype
from shardwise.config.model import Attention, Layer, Model, Moe
from shardwise.ops.context import swaps_heads
from shardwise.ops.moe import routed
from shardwise.ops.operation import FP32_BYTES, Matmul, Operation, Phase, RankWork

_NAMES = {
    INPUT: "stream",
    "attention.qkv": "queries, keys, values",
    "attention.q": "queries",
    "attention.q_down": "compressed queries",
    "attention.q_norm": "compressed queries",
    "attention.q_up": "queries",
    "attention.kv_down": "compressed keys, values",
    "attention.kv_norm": "compressed keys, values",
    "attention.kv_up": "keys, values",
    "attention.qk_norm": "queries, keys, values",
    "attention.rope": "queries, keys, values",
    "attention.relative": "positions",
    "attention.core": "heads",
    "attention.scores": "scores",
    "attention.softmax": "probabilities",
    "attention.values": "heads",
    "attention.out": "attention",
    "mlp.up": "inner",
    "mlp.activation": "activated",
    "mlp.down": "mlp",
    "moe.shared_up": "inner",
    "moe.shared_activation": "activated",
    "moe.shared_down": "shared experts",
    "moe.shared_gate": "gate",
    "moe.router": "logits of experts",
    "moe.top_k": "chosen experts",
    "moe.dispatch": "tokens by expert",
    "moe.up": "inner",
    "moe.activation": "activated",
    "moe.down": "experts",
    "moe.combine": "routed experts",
    "moe.add": "experts",
    "embedding": "stream",
    "projection": "stream",
    "head": "logits",
    "loss": "loss",
}
_FP32 = ("loss", "moe.router", "moe.top_k")


def base_name(name: str) -> str:
    """Return an operation's name without the prefix of a multi-token prediction module."""
    return name.removeprefix("mtp.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor on one rank."""

    name: str
    shape: tuple[int | float, ...]
    dtype: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Shapes by the operation that writes a tensor, in a component of one strategy."""

    model: Model
    layer: Layer | None
    """The kind of layer; None for components without one."""
    work: RankWork
    dtype: str

    @classmethod
    def of(cls, model: Model, layer: Layer | None, work: RankWork, dtype: int) -> "Tensors":
        """Of one row whose type has this position in `Dtype`."""
        return cls(model=model, layer=layer, work=work, dtype=Dtype.from_code(dtype))

    def tensor(self, name: str, shape: tuple[float, ...], *, writer: str = "") -> Tensor:
        """A tensor of some shape in the row's type, or in fp32 where its writer uses that."""
        size, dtype = _scalar(self.work.element_bytes), self.dtype
        if writer in _FP32:
            size, dtype = FP32_BYTES, "fp32"
        sides = tuple(int(side) if side == int(side) else side for side in shape)
        return Tensor(name=name, shape=sides, dtype=dtype, bytes=prod(shape) * size)

    def stream(self, name: str = "stream") -> Tensor:
        """The residual stream: a share of the tokens; of the width with 2D products."""
        work, width = self.work, self.model.hidden
        if work.summa[0]:
            return self.tensor(name, (_scalar(work.tokens), width / _scalar(work.tp)))
        return self.tensor(name, (_scalar(work.split_tokens), float(width)))

    def gather_factor(self) -> float:
        """Tokens of a rank over those that its norms and residuals see."""
        return _scalar(self.work.tokens) / _scalar(self.work.split_tokens)

    def token_ids(self) -> Tensor:
        """The token ids that an embedding looks up."""
        tokens = _scalar(self.work.tokens)
        return Tensor(name="tokens", shape=(int(tokens),), dtype="int64", bytes=8 * tokens)

    def rotated_keys(self) -> Tensor | None:
        """Keys of latent attention that all heads share; None for other attention."""
        latent = None if self.layer is None else self.layer.attention.latent
        if latent is None:
            return None
        return self.tensor(
            "rotated keys", (_scalar(self.work.split_tokens), float(latent.rope_dim))
        )

    def keys_and_values(self, ranks: float = 1.0) -> Tensor:
        """Keys and values of this rank's tokens, or of those of several ranks."""
        assert self.layer is not None  # noqa: S101 - only layers have attention
        attention = self.layer.attention
        heads = max(self._kv_heads(attention) / _scalar(self.work.tp), 1.0)
        if attention.latent is not None:
            heads = attention.heads / _scalar(self.work.tp)
        name = "keys, values" if ranks == 1 else "keys, values of all ranks"
        width = heads * (attention.head_dim + attention.value_dim)
        return self.tensor(name, (_scalar(self.work.tokens) * ranks, width))

    def written(self, operation: Operation, name: str) -> Tensor:
        """The tensor that an operation writes, before collectives."""
        base = base_name(name)
        label = _NAMES.get(base, "normed" if base.endswith("norm") else "stream")
        label = "adapter" if ".lora_" in base else label
        shape = self._special(base)
        product = _product(operation)
        if shape is None and product is not None:
            shape = _with_batch(product, product.m, product.n)
        if shape is None:
            return self.stream(label)
        return self.tensor(label, shape, writer=base)

    def read(self, operation: Operation, name: str) -> Tensor | None:
        """The tensor that a matrix product reads; None for other operations."""
        product = _product(operation)
        if product is None or base_name(name).startswith("attention.core"):
            return None
        return self.tensor(name, _with_batch(product, product.m, product.k))

    def _special(self, base: str) -> tuple[float, ...] | None:
        """Shape that an operation writes which is no matrix product."""
        work = self.work
        tokens = _scalar(work.tokens)
        shapes: dict[str, tuple[float, ...]] = dict.fromkeys(
            ("embedding", "projection"), (tokens, float(self.model.hidden))
        )
        shapes["loss"] = (tokens,)
        if self.layer is not None:
            shapes |= self._attention(self.layer.attention)
            if self.layer.mlp is not None:
                shapes["mlp.activation"] = tokens, self.layer.mlp.ffn / _scalar(work.tp)
            if self.layer.moe is not None:
                shapes |= self._experts(self.layer.moe)
        return shapes.get(base)

    def _attention(self, attention: Attention) -> dict[str, tuple[float, ...]]:
        """With the full sequence and fewer heads where an all-to-all swaps them."""
        work, latent = self.work, attention.latent
        tokens, split = _scalar(work.tokens), _scalar(work.split_tokens)
        heads = attention.heads / _scalar(work.tp)
        kv_heads = max(self._kv_heads(attention) / _scalar(work.tp), 1.0)
        qk, v = attention.head_dim, attention.value_dim
        swapped = _scalar(work.cp) if swaps_heads(work)[0] else 1.0
        queries = _scalar(work.seq_len) * swapped
        scores = _scalar(work.sequences) * heads / swapped, queries, _scalar(work.sequence)
        values = tokens * swapped, heads / swapped * v
        projected = tokens, (heads + kv_heads) * qk + kv_heads * v
        shapes = {
            "core": values,
            "values": values,
            "scores": scores,
            "softmax": scores,
            "rope": projected,
            "qk_norm": projected,
        }
        if latent is not None:
            shapes |= {
                "rope": (tokens, heads * (2 * qk + v)),
                "q_norm": (split, float(latent.q_rank or 0)),
                "kv_norm": (split, float(latent.kv_rank)),
            }
        return {f"attention.{name}": shape for name, shape in shapes.items()}

    def _kv_heads(self, attention: Attention) -> int:
        kinds = (attention.kv_heads, attention.heads, 1)  # in the order of `AttentionKind`
        return kinds[int(self.work.attention[0])]

    def _experts(self, moe: Moe) -> dict[str, tuple[float, ...]]:
        load, tokens = routed(moe, self.work), _scalar(self.work.tokens)
        inner = moe.ffn / _scalar(self.work.etp)
        return {
            "moe.top_k": (_scalar(load.tokens), float(moe.top_k)),
            "moe.dispatch": (_scalar(load.copies), float(self.model.hidden)),
            "moe.activation": (_scalar(load.experts), _scalar(load.per_expert), inner),
            "moe.shared_activation": (tokens, (moe.shared_ffn or 0) / _scalar(self.work.tp)),
        }


def _product(operation: Operation) -> Matmul | None:
    """The forward matrix product of an operation that has exactly one."""
    products = [
        kernel
        for kernel in operation.kernels
        if isinstance(kernel, Matmul) and kernel.phase is Phase.FORWARD and kernel.batch[0] > 0
    ]
    return products[0] if len(products) == 1 else None


def _with_batch(product: Matmul, rows: Floats, columns: Floats) -> tuple[float, ...]:
    batch = (_scalar(product.batch),) if product.grouped else ()
    return (*batch, _scalar(rows), _scalar(columns))


def _scalar(column: Floats) -> float:
    return float(np.asarray(column)[0])
