"""Which operation reads what another one wrote, and the tensors between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from shardwise.analysis.graph.records import INPUT, OUTPUT, GraphEdge
from shardwise.arrays import Floats
from shardwise.config.enums import Dtype, Quantization
from shardwise.config.mixer import Mixer
from shardwise.config.model import Attention, Layer, Model, Moe
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.ops.attention import swaps_heads
from shardwise.ops.moe import routed
from shardwise.ops.operation import FP32_BYTES, CollectiveKind, Matmul, Operation, Phase, RankWork
from shardwise.ops.quantization import RECIPES
from shardwise.ops.sparse import core_widths

_MIXERS = ("mamba", "mixer")
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
    "attention.gate": "gate",
    "attention.gated": "heads",
    "attention.out": "attention",
    "mamba.in": "z, x, B, C, time step",
    "mixer.in": "queries, keys, values, gates",
    **{
        f"{mixer}.{name}": tensor
        for mixer in _MIXERS
        for name, tensor in {
            "conv": "convolved",
            "select": "time step, B, C",
            "step": "time step",
            "gate_down": "narrow gates",
            "gate_up": "gates",
            "core": "heads",
            "gate": "heads",
            "out": "mixed",
        }.items()
    },
    "mlp.up": "inner",
    "mlp.activation": "activated",
    "mlp.down": "mlp",
    "moe.shared_up": "inner",
    "moe.shared_activation": "activated",
    "moe.shared_down": "shared experts",
    "moe.shared_gate": "gate",
    "moe.router": "logits of experts",
    "moe.top_k": "chosen experts",
    "moe.latent_down": "latent tokens",
    "moe.dispatch": "tokens by expert",
    "moe.up": "inner",
    "moe.activation": "activated",
    "moe.down": "experts",
    "moe.combine": "routed experts",
    "moe.latent_up": "routed experts",
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
        attention = None if self.layer is None else self.layer.attention
        latent = None if attention is None else attention.latent
        if latent is None:
            return None
        return self.tensor(
            "rotated keys", (_scalar(self.work.split_tokens), float(latent.rope_dim))
        )

    def keys_and_values(self, ranks: float = 1.0) -> Tensor:
        """Keys and values of this rank's tokens, or of those of several ranks."""
        assert self.layer is not None  # noqa: S101 - only layers have attention
        assert self.layer.attention is not None  # noqa: S101 - of operations of attention
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
            if self.layer.attention is not None:
                shapes |= self._attention(self.layer.attention)
            if self.layer.mixer is not None:
                shapes |= self._mixer(self.layer.mixer)
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
        core_v = core_widths(attention)[1] if attention.is_sparse else v
        values = tokens * swapped, heads / swapped * core_v
        projected = tokens, (heads + kv_heads) * qk + kv_heads * v
        shapes = {
            "core": values,
            "values": values,
            "gated": (tokens, heads * v),
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

    def _mixer(self, mixer: Mixer) -> dict[str, tuple[float, ...]]:
        """Of a short convolution as wide as the residual stream."""
        tokens, split = _scalar(self.work.tokens), _scalar(self.work.tp)
        width = getattr(mixer, "width", self.model.hidden)
        sizes = {"conv": getattr(mixer, "conv_width", width), "core": width, "gate": width}
        return {f"{m}.{n}": (tokens, wide / split) for m in _MIXERS for n, wide in sizes.items()}

    def _kv_heads(self, attention: Attention) -> int:
        kinds = (attention.kv_heads, attention.heads, 1)  # in the order of `AttentionKind`
        return kinds[int(self.work.attention[0])]

    def _experts(self, moe: Moe) -> dict[str, tuple[float, ...]]:
        load, tokens = routed(moe, self.work), _scalar(self.work.tokens)
        inner = moe.ffn / _scalar(self.work.etp)
        return {
            "moe.top_k": (_scalar(load.tokens), float(moe.top_k)),
            "moe.dispatch": (_scalar(load.copies), float(moe.latent or self.model.hidden)),
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


_NORMS = ("attention.norm", "mamba.norm", "mlp.norm", "norm", "attention.mix", "mlp.mix")
_READ_BLOCK = (
    "attention.qkv",
    "attention.q",
    "attention.q_down",
    "attention.kv_down",
    "mlp.up",
    "moe.shared_up",
    "moe.shared_gate",
    "moe.router",
    "moe.router_norm",
    "moe.pre_norm",
    "moe.latent_down",
    "moe.dispatch",
    "attention.gate",
    "attention.index",
    "attention.compress",
    *(f"{mixer}.in" for mixer in _MIXERS),
    "mixer.gate_down",
)
# What gives the output of attention: the last that there is.
_HEADS_OUT = (
    *("attention.out_norm", "attention.gated", "attention.out_absorb", "attention.out_down"),
    *("attention.core", "attention.values"),
)
# Operations that read the results of these others, as far as they exist; of several in parentheses
# the first.
_READ: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "attention.q_norm": ("attention.q_down",),
    "attention.q_up": ("attention.q_norm",),
    "attention.kv_norm": ("attention.kv_down",),
    "attention.kv_up": ("attention.kv_norm",),
    "attention.softmax": ("attention.scores",),
    "attention.gated": (_HEADS_OUT[2:], "attention.gate"),
    "attention.out_norm": (_HEADS_OUT[1:],),
    "attention.q_absorb": ("attention.q_up",),
    "attention.index_q": ("attention.q_norm",),
    "attention.index_scores": ("attention.index", "attention.index_q"),
    "attention.out_absorb": ("attention.core",),
    "attention.out_down": ("attention.core",),
    "attention.out": (_HEADS_OUT,),
    "mlp.activation": ("mlp.up",),
    "mlp.inner_norm": ("mlp.activation",),
    "mlp.down": (("mlp.inner_norm", "mlp.activation"),),
    "moe.shared_activation": ("moe.shared_up",),
    "moe.shared_down": ("moe.shared_activation",),
    "moe.top_k": ("moe.router",),
    "moe.dispatch": (("moe.latent_down", "moe.pre_norm"),),
    "moe.up": ("moe.dispatch",),
    "moe.activation": ("moe.up", "moe.top_k"),
    "moe.down": ("moe.activation",),
    "moe.combine": ("moe.down",),
    "moe.latent_down": ("moe.pre_norm",),
    "moe.latent_up": ("moe.combine",),
    "moe.shared_norm": ("moe.shared_down",),
    "moe.routed_norm": (("moe.latent_up", "moe.combine"),),
    "moe.post_norm": (("moe.add", "moe.latent_up", "moe.combine"),),
    "moe.add": (
        ("moe.routed_norm", "moe.latent_up", "moe.combine"),
        ("moe.shared_norm", "moe.shared_down"),
        "moe.shared_gate",
    ),
    **{
        f"{mixer}.{name}": read
        for mixer in _MIXERS
        for name, read in {
            "conv": (f"{mixer}.in",),
            "select": (f"{mixer}.conv",),
            "step": (f"{mixer}.select",),
            "gate_up": (f"{mixer}.gate_down",),
            "core": ((f"{mixer}.conv", f"{mixer}.in"), f"{mixer}.step", f"{mixer}.gate_up"),
            "gate": (f"{mixer}.core", f"{mixer}.in", f"{mixer}.gate_up"),
            "out": ((f"{mixer}.gate", f"{mixer}.core", f"{mixer}.conv"),),
        }.items()
    },
    "embedding_norm": ("embedding",),
    "hidden_norm": (INPUT,),
    "projection": ("embedding_norm", "hidden_norm"),
    "head": ("final_norm",),
    "loss": ("head",),
}
_TO_HEADS = (
    *("attention.qkv", "attention.q", "attention.q_up", "attention.kv_up"),
    *("attention.q_absorb", "attention.compress", "attention.index_scores"),
)
_TURN_HEADS = ("attention.qk_norm", "attention.rope")
_OF_HEADS = ("attention.core", "attention.scores", "attention.values")
_POSITIONS = "attention.relative"
_ENDS_BRANCH = (
    "attention.out",
    *(f"{mixer}.out" for mixer in _MIXERS),
    "mlp.down",
    "moe.combine",
    "moe.latent_up",
    "moe.routed_norm",
    "moe.add",
    "moe.post_norm",
)
_STREAMS = ("embedding", "embedding_norm", "projection", "head", "loss", "final_norm")


@dataclass(frozen=True, slots=True)
class Link:
    """One operation reads what another one wrote."""

    source: str
    target: str
    kind: str = "data"


@dataclass(slots=True)
class _Wires:
    """Links so far, and the last writers of each stream."""

    links: list[Link] = field(default_factory=list)
    stream: str = INPUT
    """Writer of the residual stream."""
    block: str = INPUT
    """Writer of the input of a block."""
    branch: list[str] = field(default_factory=list)
    """Writers of what the next residual adds."""
    heads: list[str] = field(default_factory=list)
    """Writers of queries, keys and values."""
    positions: list[str] = field(default_factory=list)

    def read(self, target: str, sources: Sequence[str], kind: str = "data") -> None:
        self.links += [Link(source, target, kind) for source in sources]


def linked(names: Sequence[str]) -> tuple[Link, ...]:
    """Links between operations, from `INPUT` to `OUTPUT`.

    Unknown operations read what the one before them wrote.

    Parameters
    ----------
    names
        Of operations, in forward order.
    """
    wires = _Wires()
    there = {base_name(name): name for name in names}
    for name in names:
        base = base_name(name)
        if base.endswith((".lora_a", ".lora_b")):
            continue
        _wire(wires, name, base, there)
    links = [*wires.links]
    ends = wires.branch or [wires.stream]
    links += [Link(end, OUTPUT) for end in ends]
    for name in names:
        links += _adapter(name, links)
    return tuple(links)


def _wire(wires: _Wires, name: str, base: str, there: dict[str, str]) -> None:
    """Link one operation to what it reads, and record what it writes."""
    sources = _sources(wires, base, there)
    if base in _NORMS:
        mixed = there.get(base.removesuffix("norm") + "mix")  # of several residual streams
        wires.read(name, [mixed or wires.stream] if mixed != name else [wires.stream])
        wires.block = name
    elif base.endswith("residual"):
        wires.read(name, wires.branch)
        wires.read(name, [wires.stream], "residual")
        wires.stream = wires.block = name
        wires.branch = []
    elif base.endswith("post_norm"):
        wires.read(name, wires.branch)
        wires.branch = [name]
    elif base in _TURN_HEADS:
        turned = [there["attention.kv_down"]] if "attention.kv_down" in there else []
        wires.read(name, wires.heads + (turned if base == "attention.rope" else []))
        wires.heads = [name]
    elif base in _OF_HEADS:
        softmax = [there["attention.softmax"]] if base == "attention.values" else []
        positions = wires.positions if base != "attention.values" else []
        wires.read(name, [*wires.heads, *positions, *softmax])
    elif base == _POSITIONS:
        wires.positions = [name]
    else:
        replaced = base in ("moe.dispatch", "moe.latent_down") and bool(sources)
        in_block = [wires.block] if base in _READ_BLOCK and not replaced else []
        routed = [there["moe.top_k"]] if base == "moe.dispatch" else []
        wires.read(name, [*in_block, *routed, *sources] or [wires.stream])
        known_name = bool(in_block or sources)
        if base in _STREAMS or not known_name:
            wires.stream = wires.block = name
    if base in _TO_HEADS or (base == "attention.kv_norm" and "attention.kv_up" not in there):
        wires.heads.append(name)
    if base in _ENDS_BRANCH:
        wires.branch = [*wires.branch, name] if not base.startswith("moe.") else [name]


def _sources(wires: _Wires, base: str, there: dict[str, str]) -> list[str]:
    """Results of named operations that this one reads."""
    sources = []
    for one in _READ.get(base, ()):
        several = (one,) if isinstance(one, str) else one
        found = (there.get(name, name) for name in several if name in there or name == INPUT)
        sources += [name for name in (next(found, None),) if name is not None]
    if base == "attention.gated" and "attention.gate" not in there:
        return [*sources, *wires.heads]
    return sources


def _adapter(name: str, links: Sequence[Link]) -> list[Link]:
    """Links of a LoRA adapter: A reads the input of its product, B is added to the output."""
    product, _, which = name.rpartition(".")
    if which == "lora_a":
        return [Link(one.source, name, "adapter") for one in links if one.target == product]
    if which == "lora_b":
        readers = [one.target for one in links if one.source == product and one.kind == "data"]
        return [
            Link(f"{product}.lora_a", name, "adapter"),
            *(Link(name, reader, "adapter") for reader in readers),
        ]
    return []


_CORES = ("attention.core", "attention.scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOperation:
    """An operation, or a part of one, with the collectives before and after it."""

    name: str
    cost: OperationCost
    kernels: tuple[KernelCost, ...]
    before: tuple[CollectiveCost, ...]
    after: tuple[CollectiveCost, ...]
    parameters: float
    saved_bytes: float


def tensor_edges(
    operations: Sequence[DrawnOperation], nodes: Sequence[str], tensors: Tensors
) -> tuple[GraphEdge, ...]:
    """Return tensors from operation to operation, through the collectives between them.

    Parameters
    ----------
    nodes
        Ids of all nodes in execution order; collectives have that of their operation with
        `/before` or `/after`.
    """
    places = {name: place for place, name in enumerate(nodes)}
    edges = list(dict.fromkeys(_edges(operations, places, tensors)))
    return tuple(sorted(edges, key=lambda e: (places[e.source], places[e.target])))


def _edges(
    operations: Sequence[DrawnOperation], places: Mapping[str, int], tensors: Tensors
) -> Iterator[GraphEdge]:
    by_name = {operation.name: operation for operation in operations}
    for name, operation in by_name.items():
        if f"{name}/after" in places:
            yield _edge(name, f"{name}/after", _written(operation, tensors))
    shared = _shared_collectives(by_name, places)
    for link in linked(list(by_name)):
        if link.source in shared and base_name(link.source) == "mlp.down":
            written = _written(by_name[link.source], tensors)
            yield _edge(link.source, shared[link.source], written)
            continue
        if link.target in shared and base_name(link.target) == "mlp.up":
            read = tensors.read(by_name[link.target].cost.operation, "normed")
            yield _edge(shared[link.target], link.target, read or tensors.stream())
            continue
        source = f"{link.source}/after" if f"{link.source}/after" in places else link.source
        tensor = _arriving(link, by_name, tensors, changed=source != link.source)
        before = f"{link.target}/before"
        if before not in places:
            yield _edge(source, link.target, tensor, link.kind)
        elif base_name(link.target) in _CORES:
            yield from _into_core(by_name[link.target], source, tensor, tensors)
        elif base_name(link.target) == "attention.rope" and not _rotated(link):
            yield _edge(source, link.target, tensor, link.kind)
        else:
            yield _edge(source, before, tensor, link.kind)
            yield _edge(before, link.target, _gathered(by_name[link.target], tensor, tensors))


def _shared_collectives(
    by_name: Mapping[str, DrawnOperation], places: Mapping[str, int]
) -> dict[str, str]:
    """In a parallel layer, the collectives of attention that the feed-forward block shares."""
    names = {base_name(name): name for name in by_name}
    if "norm" not in names:
        return {}
    shared = {"mlp.down": "attention.out/after"}
    if "mlp.norm" not in names:
        shared["mlp.up"] = "attention.qkv/before"
    prefix = names["norm"].removesuffix("norm")
    return {
        names[own]: prefix + shared_name
        for own, shared_name in shared.items()
        if own in names and prefix + shared_name in places
    }


def _edge(source: str, target: str, tensor: Tensor, kind: str = "data") -> GraphEdge:
    return GraphEdge(
        source=source,
        target=target,
        kind=kind,
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        bytes=tensor.bytes,
    )


def _rotated(link: Link) -> bool:
    """Whether a link carries the keys of latent attention that all heads share."""
    return (
        base_name(link.source) == "attention.kv_down" and base_name(link.target) == "attention.rope"
    )


def _written(operation: DrawnOperation, tensors: Tensors) -> Tensor:
    return tensors.written(operation.cost.operation, operation.name)


def _arriving(
    link: Link, by_name: Mapping[str, DrawnOperation], tensors: Tensors, *, changed: bool
) -> Tensor:
    """The tensor on a link, after the collectives that follow its source."""
    if link.source == INPUT:
        return tensors.token_ids() if base_name(link.target) == "embedding" else tensors.stream()
    written = _written(by_name[link.source], tensors)
    base = base_name(link.source)
    rotated = tensors.rotated_keys() if _rotated(link) else None
    if rotated is not None:
        return rotated
    if not changed or base.endswith("norm") or base == "loss":
        return written
    reader = by_name.get(link.target)
    read = None if reader is None else tensors.read(reader.cost.operation, written.name)
    passes = base in ("moe.dispatch", "attention.core", "attention.values")
    if (passes or base.endswith(".lora_a")) and read is not None:
        return read
    return tensors.stream(written.name)


def _into_core(
    core: DrawnOperation, source: str, tensor: Tensor, tensors: Tensors
) -> Iterator[GraphEdge]:
    """The input of attention where ranks share a sequence.

    Either an all-to-all swaps heads for tokens, or keys and values of other ranks are gathered.
    """
    forward = [e.collective for e in core.before if e.collective.phase is Phase.FORWARD]
    ranks = {"cp": tensors.work.cp, "tp2": tensors.work.tp2}[forward[0].axis]
    number = float(ranks[0])
    before = f"{core.name}/before"
    if forward[0].kind is CollectiveKind.ALL_TO_ALL:
        rows, width = tensor.shape
        yield _edge(source, before, tensor)
        yield _edge(before, core.name, tensors.tensor(tensor.name, (rows * number, width / number)))
        return
    yield _edge(source, core.name, tensor)
    yield _edge(source, before, tensors.keys_and_values())
    yield _edge(before, core.name, tensors.keys_and_values(number))


def _gathered(operation: DrawnOperation, tensor: Tensor, tensors: Tensors) -> Tensor:
    """The input of an operation after the collectives before it, quantized if they are."""
    gathered = [
        float(one.collective.bytes[0])
        for one in operation.before
        if one.collective.phase is Phase.FORWARD
        and one.collective.kind is CollectiveKind.ALL_GATHER
    ]
    if base_name(operation.name) == "attention.rope":
        rows, width = tensor.shape
        return tensors.tensor(tensor.name, (rows * tensors.gather_factor(), width))
    read = tensors.read(operation.cost.operation, tensor.name)
    if read is None:
        return tensor
    if gathered and gathered[0] < read.bytes:
        recipe = Quantization.from_code(int(tensors.work.quantization[0]))
        return replace(read, dtype=RECIPES[recipe].matrix, bytes=gathered[0])
    return read
