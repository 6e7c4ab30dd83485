"""Change the structure of a system or the proportions of a model.

Tiers of a system nest, nodes fill domains, and every accelerator retains its share of the network
cards: figures that must follow a change do, and are reported. Kinds of layers and inner widths of
a model change in proportion.
"""

from collections.abc import Callable

from shardwise.config.model import Layer, Model
from shardwise.config.network import Tier
from shardwise.config.system import System


def with_domain(system: System, tier: int, size: int) -> tuple[System, list[str]]:
    """Return the system with another domain of a tier, and notes on what else changes.

    Outer tiers round their domains down to multiples of it; those that would end up inside it are
    removed. A node is unchanged if it divides the domain or the reverse, else it has the largest
    divisor of the domain that is not larger.
    """
    notes: list[str] = []
    inner = system.network[tier - 1].domain if tier else 1
    if inner is None or size % inner or (tier and size <= inner):
        raise ValueError(f"must be a larger multiple of {inner}, the domain of the tier inside it")
    tiers: list[Tier] = [*system.network[:tier]]
    tiers.append(system.network[tier].model_copy(update={"domain": size}))
    for outer in system.network[tier + 1 :]:
        domain = outer.domain
        if domain is not None:
            domain = domain // size * size
            if domain <= size:
                notes.append(f"{outer.name} is removed: a domain of {size} replaces it")
                continue
            if domain != outer.domain:
                notes.append(f"{outer.name}.domain {domain}: the multiple of {size} below it")
        tiers.append(outer.model_copy(update={"domain": domain}))
    node = system.node.accelerators
    if size % node and node % size:
        node = max(n for n in range(1, node + 1) if size % n == 0)
    changed = system.model_copy(update={"network": tuple(tiers)})
    if size > (system.network[tier].domain or size):
        notes.append(f"nodes of {node}; the figures of the tier apply to all {size}")
    if node != system.node.accelerators:
        changed, more = with_node(changed, node)
        notes += more
    return System.validated(changed.to_dict()), notes


def with_node(system: System, size: int) -> tuple[System, list[str]]:
    """Return the system with other nodes, and notes; shares of network cards and power stay."""
    before = system.node.accelerators
    notes = [f"node {size} instead of {before}, with as many network cards per accelerator"]
    tiers = []
    for tier in system.network:
        links = None if tier.links_per_node is None else tier.links_per_node * size / before
        if links is not None and (links < 1 or links % 1):
            raise ValueError(f"leaves {links:g} links of {tier.name} to a node of {size}")
        count = None if links is None else int(links)
        tiers.append(tier.model_copy(update={"links_per_node": count}).among(size))
    node: dict[str, object] = {"accelerators": size}
    if system.node.power is not None:
        node["power"] = system.node.power * size / before
    memory = []
    for level in system.accelerator.memory:
        host = level.host
        if host is not None and host.shared_by > size:
            notes.append(f"{level.name} is shared by the {size} of a node")
            host = host.model_copy(update={"shared_by": size})
        memory.append(level.model_copy(update={"host": host}))
    update = {
        "node": system.node.model_copy(update=node),
        "network": tuple(tiers),
        "accelerator": system.accelerator.model_copy(update={"memory": tuple(memory)}),
    }
    return system.model_copy(update=update), notes


def with_links_per_accelerator(system: System, tier: int, links: float) -> System:
    """Return the system with a number of links (network cards) of a tier per accelerator."""
    size = system.node.accelerators
    count = links * size
    if count < 1 or abs(count - round(count)) > 1e-9:  # noqa: PLR2004 - the rounding of a product
        raise ValueError(f"makes {count:g} in a node of {size}; must be a whole number of them")
    tiers = list(system.network)
    tiers[tier] = tiers[tier].model_copy(update={"links_per_node": round(count)})
    return system.model_copy(update={"network": tuple(tiers)})


_WIDENED = ("heads", "width", "key_heads", "value_heads")
"""Fields of a mixer that grow with the width of the model."""


def _with_depth(model: Model, depth: int) -> Model:
    """Return the model with a number of layers, each kind in proportion.

    A pattern is stretched: its layer n is that of the former one at the same share of the depth.

    Raises
    ------
    ValueError
        If some kind would have a fraction of a layer.
    """
    changed: dict[str, object] = {}
    if model.pattern is None:
        counts = [
            _scaled(layer.count, depth, model.depth, "layers of a kind") for layer in model.layers
        ]
    else:
        changed["pattern"] = pattern = _stretched(model.pattern, depth)
        counts = [pattern.count(str(layer.symbol)) for layer in model.layers]
        if 0 in counts:
            raise ValueError(f"leaves no layer {model.layers[counts.index(0)].symbol!r}")
    layers = tuple(
        layer.model_copy(update={"count": count})
        for layer, count in zip(model.layers, counts, strict=True)
    )
    return model.model_copy(update=changed | {"layers": layers})


def _stretched(pattern: str, depth: int) -> str:
    return "".join(pattern[place * len(pattern) // depth] for place in range(depth))


def _with_hidden(model: Model, hidden: int) -> Model:
    """Return the model with another width: as many heads and inner widths in proportion.

    Raises
    ------
    ValueError
        If there would be a fraction of a head.
    """

    def wider(layer: Layer) -> Layer:
        def scaled(number: int, what: str) -> int:
            return _scaled(number, hidden, model.hidden, what)

        changed: dict[str, object] = {}
        if layer.attention is not None:
            changed["attention"] = layer.attention.model_copy(
                update={
                    "heads": scaled(layer.attention.heads, "heads"),
                    "kv_heads": scaled(layer.attention.kv_heads, "key-value heads"),
                }
            )
        if layer.mixer is not None:
            names = set(_WIDENED) & set(type(layer.mixer).model_fields)
            wider = {name: scaled(getattr(layer.mixer, name), f"mixer {name}") for name in names}
            changed["mixer"] = layer.mixer.model_copy(update=wider)
        if layer.mlp is not None:
            ffn = scaled(layer.mlp.ffn, "inner width")
            changed["mlp"] = layer.mlp.model_copy(update={"ffn": ffn})
        if layer.moe is not None:
            inner = {n: scaled(getattr(layer.moe, n), "inner width") for n in ("ffn", "shared_ffn")}
            changed["moe"] = layer.moe.model_copy(update=inner)
        return layer.model_copy(update=changed)

    layers = tuple(wider(layer) for layer in model.layers)
    return model.model_copy(update={"hidden": hidden, "layers": layers})


def _with_seq_len(model: Model, seq_len: int) -> Model:
    """Return the model for another sequence length; a table of learned positions grows with it."""
    positions = model.max_positions
    longer = None if positions is None else max(positions, seq_len)
    return model.model_copy(update={"seq_len": seq_len, "max_positions": longer})


def _scaled(number: int, to: int, of: int, what: str) -> int:
    if number * to % of:
        raise ValueError(f"leaves {number * to / of:g} {what} of {number}; must be an integer")
    return number * to // of


MODEL_FIGURES: dict[str, Callable[[Model, int], Model]] = {
    "seq_len": _with_seq_len,
    "depth": _with_depth,
    "hidden": _with_hidden,
}
"""Figures of a model that a sweep can vary, by name."""
