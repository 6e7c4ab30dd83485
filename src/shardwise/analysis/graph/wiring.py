"""Which operation reads what which other one wrote, by their names."""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["INPUT", "OUTPUT", "Link", "linked", "plain"]

INPUT, OUTPUT = "input", "output"
_NORMS = ("attention.norm", "mlp.norm", "norm")
_READ_BLOCK = (
    "attention.qkv",
    "attention.q",
    "attention.q_down",
    "attention.kv_down",
    "mlp.up",
    "moe.shared_up",
    "moe.shared_gate",
    "moe.router",
    "moe.dispatch",
)
# Operations that read what one or more others wrote, of those that there are.
_READ = {
    "attention.q_norm": ("attention.q_down",),
    "attention.q_up": ("attention.q_norm",),
    "attention.kv_norm": ("attention.kv_down",),
    "attention.kv_up": ("attention.kv_norm",),
    "attention.softmax": ("attention.scores",),
    "attention.out": ("attention.core", "attention.values"),
    "mlp.activation": ("mlp.up",),
    "mlp.down": ("mlp.activation",),
    "moe.shared_activation": ("moe.shared_up",),
    "moe.shared_down": ("moe.shared_activation",),
    "moe.top_k": ("moe.router",),
    "moe.up": ("moe.dispatch",),
    "moe.activation": ("moe.up", "moe.top_k"),
    "moe.down": ("moe.activation",),
    "moe.combine": ("moe.down",),
    "moe.add": ("moe.combine", "moe.shared_down", "moe.shared_gate"),
    "embedding_norm": ("embedding",),
    "hidden_norm": (INPUT,),
    "projection": ("embedding_norm", "hidden_norm"),
    "head": ("final_norm",),
    "loss": ("head",),
}
_TO_HEADS = ("attention.qkv", "attention.q", "attention.q_up", "attention.kv_up")
_TURN_HEADS = ("attention.qk_norm", "attention.rope")
_OF_HEADS = ("attention.core", "attention.scores", "attention.values")
_POSITIONS = "attention.relative"
_ENDS_BRANCH = ("attention.out", "mlp.down", "moe.combine", "moe.add")
_STREAMS = ("embedding", "projection", "head", "loss", "final_norm")


@dataclass(frozen=True, slots=True)
class Link:
    """One operation reads what another one wrote."""

    source: str
    target: str
    kind: str = "data"


@dataclass(slots=True)
class _Wires:
    """What was written so far and by whom."""

    links: list[Link] = field(default_factory=list)
    stream: str = INPUT
    """Who wrote the residual stream."""
    block: str = INPUT
    """Who wrote what a block reads."""
    branch: list[str] = field(default_factory=list)
    """Who wrote what the next residual adds."""
    heads: list[str] = field(default_factory=list)
    """Who wrote queries, keys and values."""
    positions: list[str] = field(default_factory=list)

    def read(self, target: str, sources: Sequence[str], kind: str = "data") -> None:
        self.links += [Link(source, target, kind) for source in sources]


def plain(name: str) -> str:
    """An operation's name without the module of prediction that it is in."""
    return name.removeprefix("mtp.")


def linked(names: Sequence[str]) -> tuple[Link, ...]:
    """Links between operations, from `INPUT` to `OUTPUT`.

    Operations that are not known read what the one before them wrote.

    Parameters
    ----------
    names
        Of operations in the order in which they run forward.
    """
    wires = _Wires()
    there = {plain(name): name for name in names}
    for name in names:
        base = plain(name)
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
    """Link one operation to what it reads, and say what it wrote."""
    known = [there.get(source, source) for source in _READ.get(base, ())]
    sources = [source for source in known if source == INPUT or source in there.values()]
    if base in _NORMS:
        wires.read(name, [wires.stream])
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
        in_block = [wires.block] if base in _READ_BLOCK else []
        routed = [there["moe.top_k"]] if base == "moe.dispatch" else []
        wires.read(name, [*in_block, *routed, *sources] or [wires.stream])
        known_name = bool(in_block or sources)
        if base in _STREAMS or not known_name:
            wires.stream = wires.block = name
    if base in _TO_HEADS:
        wires.heads.append(name)
    if base in _ENDS_BRANCH:
        wires.branch = [*wires.branch, name] if not base.startswith("moe.") else [name]


def _adapter(name: str, links: Sequence[Link]) -> list[Link]:
    """Links of an adapter's product: A reads what the product beside it reads, B is added to it."""
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
