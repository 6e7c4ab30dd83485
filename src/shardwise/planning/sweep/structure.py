"""Changes of a system's structure: how many accelerators a domain connects, a node has.

What must follow does, by few rules that are told: tiers nest, nodes fill domains, and every
accelerator keeps its share of the network cards.
"""

from typing import Any

from shardwise.config.network import Tier
from shardwise.config.system import System

__all__ = ["with_domain", "with_links_per_accelerator", "with_node"]


def with_domain(system: System, tier: int, size: int) -> tuple[System, list[str]]:
    """The same system with another domain of a tier, and what was changed along with it.

    Tiers outside keep their domains, rounded down to whole multiples; those that end up inside the
    new domain are gone. A node stays as it is if it and the domain divide one another, else it has
    the largest divisor of the domain that is not larger.

    Raises
    ------
    ValueError
        If tiers inside the domain do not divide it.
    """
    told: list[str] = []
    inner = system.network[tier - 1].domain if tier else 1
    if inner is None or size % inner or (tier and size <= inner):
        raise ValueError(f"must be a larger multiple of {inner}, the domain inside it")
    tiers: list[Tier] = [*system.network[:tier]]
    tiers.append(system.network[tier].model_copy(update={"domain": size}))
    for outside in system.network[tier + 1 :]:
        domain = outside.domain
        if domain is not None:
            domain = domain // size * size
            if domain <= size:
                told.append(f"{outside.name} is gone: a domain of {size} takes its place")
                continue
            if domain != outside.domain:
                told.append(f"{outside.name}.domain {domain}: the multiple of {size} below it")
        tiers.append(outside.model_copy(update={"domain": domain}))
    node = system.node.accelerators
    if size % node and node % size:
        node = max(n for n in range(1, node + 1) if size % n == 0)
    changed = system.model_copy(update={"network": tuple(tiers)})
    if size > (system.network[tier].domain or size):
        told.append(f"nodes of {node}, and the figures of the tier hold among all {size}")
    if node != system.node.accelerators:
        changed, more = with_node(changed, node)
        told += more
    return System.validated(changed.to_dict()), told


def with_node(system: System, size: int) -> tuple[System, list[str]]:
    """The same system with other nodes; each accelerator keeps its share of cards and power.

    Raises
    ------
    ValueError
        If a node would have a part of a card.
    """
    before = system.node.accelerators
    told = [f"node {size} instead of {before}, with as many network cards per accelerator"]
    tiers = []
    for tier in system.network:
        links = None if tier.links_per_node is None else tier.links_per_node * size / before
        if links is not None and (links < 1 or links % 1):
            raise ValueError(f"leaves {links:g} links of {tier.name} to a node of {size}")
        count = None if links is None else int(links)
        tiers.append(tier.model_copy(update={"links_per_node": count}))
    node: dict[str, Any] = {"accelerators": size}
    if system.node.power is not None:
        node["power"] = system.node.power * size / before
    inside = system.node.model_copy(update=node)
    return system.model_copy(update={"node": inside, "network": tuple(tiers)}), told


def with_links_per_accelerator(system: System, tier: int, links: float) -> System:
    """The same system with so many links (network cards) of a tier for each accelerator.

    Raises
    ------
    ValueError
        If a node would have a part of a card.
    """
    size = system.node.accelerators
    count = links * size
    if count < 1 or abs(count - round(count)) > 1e-9:  # noqa: PLR2004 - the rounding of a product
        raise ValueError(f"makes {count:g} in a node of {size}; must be a whole number of them")
    tiers = list(system.network)
    tiers[tier] = tiers[tier].model_copy(update={"links_per_node": round(count)})
    return system.model_copy(update={"network": tuple(tiers)})
