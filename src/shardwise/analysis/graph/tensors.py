"""Shapes of the tensors between operations, on one rank."""

from dataclasses import dataclass
from math import prod

import numpy as np

from shardwise.analysis.graph.wiring import INPUT, plain
from shardwise.arrays import Floats
from shardwise.config.enums import Dtype
from shardwise.config.model import Attention, Layer, Model, Moe
from shardwise.ops.context import swaps_heads
from shardwise.ops.moe import routed
from shardwise.ops.operation import FP32_BYTES, Matmul, Operation, Phase, RankWork

__all__ = ["Tensor", "Tensors"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor on one rank."""

    name: str
    shape: tuple[int | float, ...]
    dtype: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Shapes by who wrote a tensor, in a part of the model in one row."""

    model: Model
    layer: Layer | None
    """The kind of layer; None: the part has none."""
    work: RankWork
    dtype: str

    @classmethod
    def of(cls, model: Model, layer: Layer | None, work: RankWork, dtype: int) -> "Tensors":
        """Of one row whose type has this position in `Dtype`."""
        return cls(model=model, layer=layer, work=work, dtype=Dtype.from_code(dtype))

    def tensor(self, name: str, shape: tuple[float, ...], *, writer: str = "") -> Tensor:
        """A tensor of some shape in the row's type, or in fp32 where its writer says so."""
        size, dtype = _one(self.work.element_bytes), self.dtype
        if writer in _FP32:
            size, dtype = FP32_BYTES, "fp32"
        whole = tuple(int(side) if side == int(side) else side for side in shape)
        return Tensor(name=name, shape=whole, dtype=dtype, bytes=prod(shape) * size)

    def stream(self, name: str = "stream") -> Tensor:
        """The residual stream: a part of the tokens, or beside 2D products of the width."""
        work, width = self.work, self.model.hidden
        if work.summa[0]:
            return self.tensor(name, (_one(work.tokens), width / _one(work.tp)))
        return self.tensor(name, (_one(work.split_tokens), float(width)))

    def whole_over_part(self) -> float:
        """Tokens over those of norms and residuals on one rank."""
        return _one(self.work.tokens) / _one(self.work.split_tokens)

    def words(self) -> Tensor:
        """The tokens that an embedding looks up, whose numbers have eight bytes."""
        tokens = _one(self.work.tokens)
        return Tensor(name="tokens", shape=(int(tokens),), dtype="int64", bytes=8 * tokens)

    def rotated_keys(self) -> Tensor | None:
        """Of latent attention, the part of the keys that all heads share; None: there is none."""
        latent = None if self.layer is None else self.layer.attention.latent
        if latent is None:
            return None
        return self.tensor("rotated keys", (_one(self.work.split_tokens), float(latent.rope_dim)))

    def keys_and_values(self, ranks: float = 1.0) -> Tensor:
        """Keys and values of this rank's tokens, or of those of several ranks."""
        assert self.layer is not None  # noqa: S101 - only layers have attention
        attention = self.layer.attention
        heads = max(self._kv_heads(attention) / _one(self.work.tp), 1.0)
        if attention.latent is not None:
            heads = attention.heads / _one(self.work.tp)
        name = "keys, values" if ranks == 1 else "keys, values of all ranks"
        width = heads * (attention.head_dim + attention.value_dim)
        return self.tensor(name, (_one(self.work.tokens) * ranks, width))

    def written(self, operation: Operation, name: str) -> Tensor:
        """What an operation writes, before it is exchanged."""
        base = plain(name)
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
        """What a product reads, where it is one; None: what was written."""
        product = _product(operation)
        if product is None or plain(name).startswith("attention.core"):
            return None
        return self.tensor(name, _with_batch(product, product.m, product.k))

    def _special(self, base: str) -> tuple[float, ...] | None:
        """Shapes of what operations write that are no products."""
        work = self.work
        tokens = _one(work.tokens)
        shapes: dict[str, tuple[float, ...]] = dict.fromkeys(
            ("embedding", "projection"), (tokens, float(self.model.hidden))
        )
        shapes["loss"] = (tokens,)
        if self.layer is not None:
            shapes |= self._attention(self.layer.attention)
            if self.layer.mlp is not None:
                shapes["mlp.activation"] = tokens, self.layer.mlp.ffn / _one(work.tp)
            if self.layer.moe is not None:
                shapes |= self._experts(self.layer.moe)
        return shapes.get(base)

    def _attention(self, attention: Attention) -> dict[str, tuple[float, ...]]:
        """With the whole sequence and fewer heads where ranks swap the one for the other."""
        work, latent = self.work, attention.latent
        tokens, split = _one(work.tokens), _one(work.split_tokens)
        heads = attention.heads / _one(work.tp)
        kv_heads = max(self._kv_heads(attention) / _one(work.tp), 1.0)
        qk, v = attention.head_dim, attention.value_dim
        swapped = _one(work.cp) if swaps_heads(work)[0] else 1.0
        queries = _one(work.seq_len) * swapped
        scores = _one(work.sequences) * heads / swapped, queries, _one(work.sequence)
        values = tokens * swapped, heads / swapped * v
        turned = tokens, (heads + kv_heads) * qk + kv_heads * v
        shapes = {
            "core": values,
            "values": values,
            "scores": scores,
            "softmax": scores,
            "rope": turned,
            "qk_norm": turned,
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
        load, tokens = routed(moe, self.work), _one(self.work.tokens)
        inner = moe.ffn / _one(self.work.etp)
        return {
            "moe.top_k": (_one(load.tokens), float(moe.top_k)),
            "moe.dispatch": (_one(load.copies), float(self.model.hidden)),
            "moe.activation": (_one(load.experts), _one(load.per_expert), inner),
            "moe.shared_activation": (tokens, (moe.shared_ffn or 0) / _one(self.work.tp)),
        }


def _product(operation: Operation) -> Matmul | None:
    """The forward product of an operation that has just one."""
    ahead = [
        kernel
        for kernel in operation.kernels
        if isinstance(kernel, Matmul) and kernel.phase is Phase.FORWARD and kernel.batch[0] > 0
    ]
    return ahead[0] if len(ahead) == 1 else None


def _with_batch(product: Matmul, rows: Floats, columns: Floats) -> tuple[float, ...]:
    batch = (_one(product.batch),) if product.grouped else ()
    return (*batch, _one(rows), _one(columns))


def _one(column: Floats) -> float:
    return float(np.asarray(column)[0])
