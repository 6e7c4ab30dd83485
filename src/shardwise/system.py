"""`System`: the cluster that trains. Accelerator, memory tiers, network tiers, price and power."""

from datetime import date
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from shardwise.noun import Count, Noun, Sourced
from shardwise.units import ByteRate, Bytes, Duration, FlopRate, Power

__all__ = [
    "Accelerator",
    "AttentionKernel",
    "Collective",
    "MatmulKernel",
    "Memory",
    "MemoryKernel",
    "Node",
    "Price",
    "System",
    "Tier",
]

# Below this a figure is a slip of the pen, and times would leave the finite numbers.
_LEAST_SHARE = 1e-4
Fraction = Annotated[float, Field(ge=_LEAST_SHARE, le=1)]
Share = Annotated[float, Field(ge=_LEAST_SHARE)]
NonNegative = Annotated[float, Field(ge=0)]
Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class MatmulKernel(Noun):
    """How near the matrix units of one input type come to their peak (see `cost.matmul`)."""

    efficiency: Fraction
    """Share of the peak that a large product reaches while training: at sustained clocks."""
    burst_efficiency: Fraction | None = None
    """The same for a short burst at boost clocks, as micro-benchmarks show it; informative."""
    fill_depth: NonNegative
    """Extra elements of the reduction that filling and draining the pipeline costs."""
    fill_tiles: NonNegative
    """Tiles of 128 x 128 per multiprocessor at which the chip counts as half idle, half busy."""
    memory_efficiency: Share
    """Share of the memory bandwidth that operands and result move at."""
    launch: Duration
    """Time that a product without work would take: launch and drain."""


class AttentionKernel(Noun):
    """How near a fused (flash) attention kernel comes to the matrix peak (see `cost.attention`)."""

    tile: Count
    """Queries that one multiprocessor handles at a time."""
    efficiency: dict[Count, Fraction] = Field(min_length=1)
    """Share of the matrix peak by head width, forward, while training."""
    longest_weight: NonNegative
    """How much the longest causal tile weighs when there are few tiles per multiprocessor."""
    memory_efficiency: Share
    """Share of the memory bandwidth that queries, keys, values and outputs move at."""
    launch: Duration
    """Time that a kernel without work would take."""
    backward_ratio: Annotated[float, Field(gt=0)]
    """Time of the backward kernel over that of the forward kernel; it does 2.5 times the FLOPs."""


class MemoryKernel(Noun):
    """How near element-wise kernels come to the memory bandwidth (see `cost.memory_bound`)."""

    efficiency: Fraction
    """Share of the memory bandwidth."""
    launch: Duration
    """Time that a kernel without work would take."""


class Memory(Noun):
    """One tier of memory of an accelerator, nearest first."""

    name: str
    capacity: Bytes
    """Of one accelerator, as its driver reports it; what the runtime takes of it is the stack's."""
    bandwidth: ByteRate
    """Peak rate per accelerator; for a tier behind a link, of that link in one direction."""


class Accelerator(Noun):
    """One chip as the data sheet describes it, and how its kernels fare."""

    name: str
    multiprocessors: Count
    """Independent units that tiles of work are spread over."""
    matrix: dict[Dtype, FlopRate] = Field(min_length=1)
    """Dense peak of the matrix units by type of input."""
    vector: FlopRate
    """Peak of the fp32 vector units."""
    memory: tuple[Memory, ...] = Field(min_length=1)
    """Tiers, nearest first; the first holds everything that is not offloaded."""
    matmul: dict[Dtype, MatmulKernel] = Field(min_length=1)
    attention: AttentionKernel
    memory_bound: MemoryKernel

    @model_validator(mode="after")
    def _every_dtype_has_a_kernel(self) -> Self:
        missing = sorted(set(self.matrix) ^ set(self.matmul))
        if missing:
            raise ValueError(f"matrix and matmul must name the same types; differ in {missing}")
        return self


class Collective(Noun):
    """Latency and reach of one kind of collective on one tier (see `cost.collective`)."""

    latency: Duration
    """Time of an exchange of nothing between two members."""
    latency_per_member: Duration
    """Added for each further member (for `all_reduce` beyond the first tier: per doubling)."""
    efficiency: dict[Count, Share] = Field(min_length=1)
    """Share of the tier's bandwidth by the group's members in one domain of the tier inside (for
    the first tier: by its members there), interpolated in their logarithm."""


CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


class Tier(Noun):
    """One tier of the network, inside out: NVLink, then the fabric between nodes."""

    name: str
    domain: Count | None = None
    """Accelerators that one instance connects; None: all there are (outermost tier only)."""
    bandwidth: ByteRate
    """One direction, of one link."""
    links_per_node: Count | None = None
    """Links (NICs) that the accelerators of a node share; None: each has one of its own."""
    collectives: dict[CollectiveName, Collective]

    @model_validator(mode="after")
    def _every_collective_known(self) -> Self:
        needed = set(CollectiveName.__args__)  # type: ignore[attr-defined]
        if set(self.collectives) != needed:
            missing = ", ".join(sorted(needed - set(self.collectives)))
            raise ValueError(f"collectives lack {missing}")
        return self


class Node(Noun):
    """A server."""

    accelerators: Count
    power: Power | None = None
    """Most that a whole node draws, network cards included; None where nobody printed it."""


class Price(Noun):
    """What an accelerator costs to rent."""

    usd_per_accelerator_hour: Annotated[float, Field(gt=0)]
    as_of: date
    source: str = Field(min_length=1)


class System(Sourced):
    """A cluster of equal nodes."""

    CATALOG: ClassVar[str | None] = "systems"

    accelerator: Accelerator
    node: Node
    network: tuple[Tier, ...] = Field(min_length=1)
    """Tiers inside out; the domains grow and divide one another."""
    price: Price | None = None
    board_power: Power | None = None
    """Power limit of one accelerator."""

    @model_validator(mode="after")
    def _domains_nest(self) -> Self:
        inner, node = 1, self.node.accelerators
        for index, tier in enumerate(self.network):
            last = index == len(self.network) - 1
            if tier.domain is None:
                if not last:
                    raise ValueError(f"network[{index}].domain: only the outermost may be null")
            elif (index and tier.domain <= inner) or tier.domain % inner:
                raise ValueError(
                    f"network[{index}].domain: {tier.domain} must be a larger multiple of {inner}"
                )
            elif tier.domain % node and node % tier.domain:
                raise ValueError(
                    f"network[{index}].domain: {tier.domain} and node.accelerators {node}: "
                    "one must be a multiple of the other"
                )
            else:
                inner = tier.domain
        return self

    def tier_bandwidth(self, index: int) -> float:
        """Bandwidth of one tier per accelerator when all of a node use it at once [byte/s]."""
        tier = self.network[index]
        if tier.links_per_node is None:
            return tier.bandwidth
        return tier.bandwidth * tier.links_per_node / self.node.accelerators
