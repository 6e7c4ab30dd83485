"""Mixed pools: servers of several kinds in one job, which runs at the pace of the slower."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwise.config.base import ConfigBase, Count
from shardwise.units import readable

if TYPE_CHECKING:
    from shardwise.config.system import System

POOLS = "pools"


class Pool(ConfigBase):
    """Servers of one kind."""

    system: str
    """Catalog name or file."""
    servers: Count
    """Servers of this kind in the cluster."""


def mixed(pools: Sequence[tuple["System", int]]) -> dict[str, Any]:
    """Return the fields of a cluster of several kinds of servers that run one job.

    The work is divided evenly and every step waits for the slowest rank. So the job has the
    accelerator with the lowest peak in 16 bits, on each tier of memory the lowest capacity and
    bandwidth, and on each tier of the network the lowest bandwidth per accelerator, of any pool.
    Price and power of an accelerator are means over all servers.

    Parameters
    ----------
    pools
        Systems with servers of as many accelerators and domains of the same sizes, and the number
        of servers of each.

    Raises
    ------
    ValueError
        If they differ in these.
    """
    systems = [system for system, _ in pools]
    first = systems[0]
    for system in systems[1:]:
        for what, one, other in (
            ("accelerators in a server", *(s.node.accelerators for s in (first, system))),
            ("domains", *([tier.domain for tier in s.network[:-1]] for s in (first, system))),
            ("memory tiers", *(len(s.accelerator.memory) for s in (first, system))),
        ):
            if one != other:
                raise ValueError(
                    f"{what} differ: {first.name} {one}, {system.name} {other}; "
                    "search pools that differ one by one, with --systems"
                )
    slowest = min(systems, key=_peak)
    fields = slowest.to_dict()
    total = sum(servers for _, servers in pools)
    sources = fields["sources"]
    for place, memory in enumerate(fields["accelerator"]["memory"]):
        for name in ("capacity", "bandwidth"):
            memory[name] = min(getattr(s.accelerator.memory[place], name) for s in systems)
            sources[f"accelerator.memory.{place}.{name}"] = _LOWEST
    fields["network"] = []
    for place in range(len(first.network)):
        slow = min(systems, key=lambda s: s.tier_bandwidth(place))
        fields["network"].append(slow.network[place].to_dict())
        sources[f"network.{place}"] = {"kind": "assumed", "text": f"{_LOWEST['text']}: {slow.name}"}
    fields["network"][-1]["domain"] = total * first.node.accelerators
    shares = [(system, servers / total) for system, servers in pools]
    fields["price"] = None
    prices = [(one.price, share) for one, share in shares if one.price is not None]
    if len(prices) == len(pools):
        fields["price"] = {
            "usd_per_accelerator_hour": sum(p.usd_per_accelerator_hour * s for p, s in prices),
            "as_of": min(price.as_of for price, _ in prices).isoformat(),
            "source": "mean over servers: " + "; ".join(price.source for price, _ in prices),
        }
    powers = [(one.accelerator_power, share) for one, share in shares]
    known = [power * share for power, share in powers if power is not None]
    accelerators = first.node.accelerators
    fields["node"]["power"] = sum(known) * accelerators if len(known) == len(pools) else None
    sources |= {"price": _MEAN, "node.power": _MEAN}
    named = ", ".join(f"{servers} servers of {system.name}" for system, servers in pools)
    fields["description"] = f"{named}; one job over all, at the pace of {slowest.name} with " + (
        readable(fields["accelerator"]["memory"][0]["capacity"], "bytes")
    )
    return fields


_LOWEST = {"kind": "assumed", "text": "lowest of the pools"}
_MEAN = {"kind": "assumed", "text": "mean over the servers of the pools"}


def _peak(system: "System") -> float:
    matrix: Mapping[Any, float] = system.accelerator.matrix
    return matrix.get("bf16") or matrix.get("fp16") or max(matrix.values())
