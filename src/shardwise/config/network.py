"""Tiers of a network: what connects accelerators, and how fast they communicate."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shardwise.config.base import NO_FLAG, ConfigBase, Count
from shardwise.config.bounds import Factor, Fraction, JoinExponent, Overhead, RateShare
from shardwise.units import ByteRate, Latency


class Bulk(ConfigBase):
    """Protocol of large buffers where small ones have another, as in NCCL; the faster counts."""

    small_rate: ByteRate
    """Rate of bytes past each member by that of small ones, which has the collective's latency."""
    latency: Latency
    """Latency of this collective: its time without data between two members."""
    latency_per_member: Latency
    """Added for each further member of the group, whatever the tier."""
    join_exponent: JoinExponent
    """How its latency and transfer join; above 1 they overlap."""


class Collective(ConfigBase):
    """Latency and reach of one kind of collective on one tier (see `cost.collective`)."""

    latency: Latency
    """Latency: time of a collective without data between two members."""
    latency_per_member: Latency
    """Added for each further member (for `all_reduce` beyond the first tier: per doubling)."""
    efficiency: Mapping[Count, RateShare] = Field(min_length=1)
    """Share of the tier's bandwidth by the group's members in one domain of the tier inside (for
    the first tier: by its members there), interpolated in their logarithm."""
    scale: Factor | None = None
    """With `offset`, the bytes that pass each of n members over those of the buffer:
    scale (1 + offset / n). None: what a ring passes, (n - 1) / n, twice that for all_reduce, 1 for
    broadcast, reduce and p2p, which has no offset."""
    offset: Annotated[float, Field(ge=-1, le=100), NO_FLAG] | None = None
    bulk: Bulk | None = None
    """Gathers and scatters of rings: the protocol of large buffers; None: one for all sizes."""


CollectiveName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast", "reduce"
]
# In a ring, what is broadcast goes the way of what is gathered, what is reduced the way of what is
# scattered (NCCL).
_LIKE: dict[str, CollectiveName] = {"broadcast": "all_gather", "reduce": "reduce_scatter"}


class SendKernel(ConfigBase):
    """Figures of a kernel that moves the tokens of experts (see `cost.links`)."""

    latency: Latency
    """Time without tokens, among ranks of one domain of the innermost tier."""
    latency_per_doubling: Latency = 0
    """Added for each doubling of these domains."""
    rate: ByteRate
    """Bytes that one multiprocessor moves."""
    row_bytes: Overhead = 0
    """Bytes that a row costs in addition to its own, once for each rank that it goes to."""
    token_bytes: Overhead = 0
    """The same, once for each token."""
    token_share: Overhead = 0
    """The same, over the bytes of a row: 1 where each token is read, or written, once more."""
    relay_factor: Factor = 1
    """Time of multiprocessors where tokens also go to other domains, over that inside one."""
    link_efficiency: Fraction
    """Share of the innermost tier's bandwidth."""
    fabric_efficiency: Fraction
    """Share of the bandwidth of the tiers beyond."""


class ExpertKernels(ConfigBase):
    """Kernels of a library that sends a token once to each domain and rank of its experts."""

    dispatch: SendKernel
    """To the experts, and, of gradients, back through `combine`."""
    combine: SendKernel
    """From the experts: rows are added to those of their token."""


class HostPath(ConfigBase):
    """Path of cards without peer access, as GeForce cards: through the memory of their host.

    A sender writes each byte to that memory, a receiver reads it, so that a byte crosses two links
    and is moved twice by the memory, which the cards of a root complex share (the socket of a
    processor).
    """

    link_share: RateShare
    """Share of its link's bandwidth that a card gets in each direction while it writes and reads
    at once."""
    bandwidth: ByteRate
    """Rate at which the host moves bytes to and from memory for all cards that share it."""
    shared_by: Count
    """Cards that share it when all communicate."""


class Tier(ConfigBase):
    """One tier of the network, inside out: NVLink, then the fabric between nodes."""

    name: str
    domain: Count | None = None
    """Accelerators that one instance connects; None: all there are (outermost tier only)."""
    bandwidth: ByteRate
    """One direction, of one link."""
    links_per_node: Count | None = None
    """Links (NICs) that the accelerators of a node share; None: each has one of its own."""
    through_host: HostPath | None = None
    """How bytes pass through the host where accelerators cannot read each other's memory; None:
    they can (peer access)."""
    rate_spread: Annotated[float, Field(ge=1, le=100), NO_FLAG] = 1.0
    """Factor that the rate of these links in 8 of 10 clusters of such servers lies within: more
    than 1 where the description has the usual network cards and not those of one cluster."""
    must_be_filled: bool = False
    """Whether the groups laid on one instance must divide it, so that none of it stays idle."""
    processor_share: Annotated[float, Field(ge=0, le=0.9), NO_FLAG] = 0
    """Share of the matrix and vector units that communication takes from concurrent compute."""
    join_exponent: Annotated[float, Field(ge=0.1, le=1), NO_FLAG] = 0.6
    """How latency and transfer join (see `cost.collective`); 1: they add up."""
    slowed_by_compute: bool = True
    """Whether concurrent compute slows communication (`exchange_time_factor` of a stack): it does
    where the processors that copy the data are the limit, as on NVLink, and not where the link is
    so slow that they are not, as on PCIe and between nodes."""
    same_links: bool = False
    """Whether its links are those of the tier inside, through one more level of switches, so that
    the hops of a ring are counted over both tiers together."""
    collectives: Mapping[CollectiveName, Collective]
    """Of each kind. `broadcast` and `reduce` may be left out: they have latency and efficiency of
    `all_gather` and `reduce_scatter` then."""

    @model_validator(mode="after")
    def _every_collective_known(self) -> Self:
        needed = set(CollectiveName.__args__) - set(_LIKE)  # type: ignore[attr-defined]
        if missing := sorted(needed - set(self.collectives)):
            raise ValueError(f"collectives lack {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _forms_fit_the_collective(self) -> Self:
        for name, rates in self.collectives.items():
            if name == "p2p" and rates.offset is not None:
                raise ValueError("collectives.p2p.offset: a message has none, only a scale")
            if name != "p2p" and (rates.scale is None) != (rates.offset is None):
                raise ValueError(f"collectives.{name}: scale and offset must be set together")
            if rates.bulk is None:
                continue
            if name not in ("all_gather", "reduce_scatter") or rates.scale is not None:
                problem = "only of all_gather and reduce_scatter, without scale and offset"
                raise ValueError(f"collectives.{name}.bulk: {problem}")
        return self

    def among(self, accelerators: int) -> Self:
        """Return the tier in a node of so many accelerators, of which no more share the host."""
        path = self.through_host
        if path is None or path.shared_by <= accelerators:
            return self
        fewer = path.model_copy(update={"shared_by": accelerators})
        return self.model_copy(update={"through_host": fewer})

    def rates_of(self, kind: str) -> Collective:
        """Rates of a kind of collective, by its name."""
        known: Mapping[str, Collective] = {str(n): rates for n, rates in self.collectives.items()}
        if kind in known:
            return known[kind]
        return known[_LIKE[kind]].model_copy(update={"scale": None, "offset": None})


class Fabric(ConfigBase):
    """Network between servers, in the terms of who buys it; makes the outermost tiers of a system.

    The NICs of a server connect to `rails` leaf switches, each of which has `leaf` ports to servers
    and uplinks to the spine with 1 / `spine_oversubscription` of their bandwidth. So a group of
    leaf x rails / nics servers communicates without the spine.
    """

    nic_gbps: Annotated[float, Field(ge=1, le=1e5), NO_FLAG] | None = None
    """Rate of one NIC in one direction [Gbit/s]; None: that of the base."""
    nics: Count | None = None
    """NICs of a server, which its accelerators share; None: `rails`, or those of the base."""
    servers: Count | None = None
    """Servers of the cluster; None: as many as a job needs."""
    rails: Count | None = None
    """Leaf switches that the NICs of a server connect to: as many as NICs where a network is
    optimized for rails, 1 where a server has one leaf switch."""
    leaf: Count | None = None
    """Ports of a leaf switch to servers; None: leaf switches are no limit."""
    spine_oversubscription: Annotated[float, Field(ge=1, le=1000), NO_FLAG] | None = None
    """Bandwidth of the ports of a leaf switch to servers over that of its uplinks: 2 for 2:1."""

    @model_validator(mode="after")
    def _figures_have_an_effect(self) -> Self:
        lacks = self.leaf is not None and self.rails is None
        if lacks or (self.leaf is None) != (self.spine_oversubscription is None):
            raise ValueError("leaf, rails and spine_oversubscription must be set together")
        return self

    def tiers(self, base: Tier, accelerators: int, inside: int) -> tuple[Tier, ...]:
        """Return the tiers beyond a server: one, or leaf and spine.

        Parameters
        ----------
        base
            Tier with all other figures.
        accelerators
            Of a server.
        inside
            Accelerators of the domain inside these tiers.

        Raises
        ------
        ValueError
            If figures contradict each other.
        """
        nics = self.nics or self.rails or base.links_per_node or accelerators
        rate = base.bandwidth if self.nic_gbps is None else self.nic_gbps * _GIGABIT
        size = None if self.servers is None else self.servers * accelerators
        figures = {"bandwidth": rate, "links_per_node": nics, "rate_spread": 1.0}
        if self.leaf is None or self.rails is None or self.spine_oversubscription is None:
            return (base.model_copy(update={**figures, "domain": size}),)
        if nics % self.rails:
            problem = f"{self.rails} must divide the NICs of a server, {nics}"
            raise ValueError(f"fabric.rails: {problem}")
        under, rest = divmod(self.leaf * self.rails, nics)
        group = f"{self.leaf} ports x {self.rails} rails / {nics} NICs"
        if rest:
            raise ValueError(f"fabric.leaf: {group} must be full servers")
        domain = under * accelerators
        if domain <= inside or domain % inside:
            problem = f"are {under} servers of {accelerators}, {domain} accelerators"
            raise ValueError(
                f"fabric.leaf: {group} {problem}; must be a larger multiple of {inside}"
            )
        if size is not None and (size <= domain or size % domain):
            problem = f"{self.servers} must be a larger multiple of the {under} under a leaf switch"
            raise ValueError(f"fabric.servers: {problem}")
        beyond = {"bandwidth": rate / self.spine_oversubscription, "domain": size}
        return (
            base.model_copy(update={**figures, "name": "leaf", "domain": domain}),
            base.model_copy(update={**figures, "name": "spine", **beyond, "same_links": True}),
        )


_GIGABIT = 1e9 / 8
"""Bytes of a gigabit."""
