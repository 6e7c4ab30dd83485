"""SimuMax's JSON file of a system, typed.

Figures keep the names and units of the files (SimuMax 1.2, commit 4dcaae5): what they call GB is
2^30 bytes.
"""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, Strict, model_validator

from shardwise.config.base import ConfigBase
from shardwise.errors import Fault, InputError
from shardwise.units import LEAST_SHARE

__all__ = [
    "CollectiveClass",
    "OperationClass",
    "SimumaxAccelerator",
    "SimumaxCollective",
    "SimumaxLink",
    "SimumaxMemory",
    "SimumaxNetwork",
    "SimumaxNetworks",
    "SimumaxOperation",
    "SimumaxSystem",
]

Count = Annotated[int, Strict(), Field(ge=1, le=2**31)]
Flag = Annotated[bool, Strict()]
Real = Annotated[float, Strict()]
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Share = Annotated[Real, Field(ge=LEAST_SHARE)]
# Beyond this many times its unit a figure would leave the finite numbers.
Rate = Annotated[Positive, Field(le=1e15)]
Latency = Annotated[NonNegative, Field(le=1e15)]


def _number(text: str) -> str:
    if not text.isdecimal() or not 2 <= int(text) <= _MOST_MEMBERS:  # noqa: PLR2004 - two at least
        raise ValueError(f"must be a number of members from 2 to {_MOST_MEMBERS}")
    return text


Members = Annotated[str, AfterValidator(_number)]
ByMembers = dict[Members, Latency]

_MOST_MEMBERS = 10**6

OperationClass = Literal[
    "default",
    "matmul",
    "fp8_matmul",
    "group_matmul",
    "fp8_group_matmul",
    "sdp_fwd",
    "sdp_bwd",
]
BandwidthClass = Literal["default", "permute_fwd", "permute_bwd", "ce", "ce_fusion"]
CollectiveClass = Literal["all_reduce", "all_gather", "reduce_scatter", "p2p", "all2all"]


def _with_default(classes: dict[Any, Any]) -> dict[Any, Any]:
    if "default" not in classes:
        raise ValueError("must have default")
    return classes


def _all_of_them(classes: dict[Any, Any]) -> dict[Any, Any]:
    missing = [name for name in get_args(CollectiveClass) if name not in classes]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    return classes


class SimumaxOperation(ConfigBase):
    """A class of kernels that compute."""

    tflops: Rate
    efficient_factor: NonNegative
    """Share of it where no shape is listed; 0: not measured."""
    accurate_efficient_factor: dict[str, NonNegative] | None = None
    """Share by shape, the shape spelt out in the key."""


class SimumaxMemory(ConfigBase):
    """A class of kernels that move bytes."""

    gbps: Rate
    """In truth [2^30 byte/s]."""
    efficient_factor: Annotated[Share, Field(le=1)]
    latency_us: Latency
    """Least time of every kernel, also of those that compute."""


class SimumaxLink(ConfigBase):
    """A rate of a network."""

    gbps: Rate
    """In truth [2^30 byte/s]."""
    efficient_factor: Share
    latency_us: Latency
    fixed_latency: Latency = 0
    """Added to the latency [us]."""
    fixed_latency_us_by_comm_num: ByMembers | None = None


class SimumaxAccelerator(ConfigBase):
    """One device."""

    backend: Literal["cuda", "musa"]
    """Counts in the memory of unfused attention only."""
    mem_gbs: Rate
    """In truth [2^30 bytes]."""
    mode: Literal["roofline", "only_compute"]
    op: Annotated[dict[OperationClass, SimumaxOperation], AfterValidator(_with_default)]
    bandwidth: Annotated[dict[BandwidthClass, SimumaxMemory], AfterValidator(_with_default)]


class SimumaxCollective(ConfigBase):
    """An operation of a network: scale (1 + offset / n) of its buffer passes each of n members."""

    scale: Positive
    offset: Annotated[Real, Field(ge=-1)]
    efficient_factor: Share | None = None
    latency_us: Latency | None = None
    fixed_latency_us: Latency | None = None
    fixed_latency_us_by_comm_num: ByMembers | None = None
    dp_fixed_bw: dict[Members, Rate] | None = None
    """Of exchanges among replicas on PCIe, by members [2^30 byte/s]."""


class SimumaxNetwork(ConfigBase):
    """One reach of the network."""

    processor_usage: NonNegative = 0
    """Without effect."""
    bandwidth: SimumaxLink
    op: Annotated[dict[CollectiveClass, SimumaxCollective], AfterValidator(_all_of_them)]


class SimumaxNetworks(ConfigBase):
    """Within a node by PCIe, a network for each of 2, 4 and 8 devices, or one for all."""

    intra_with_pcie: Flag = False
    intra_node_pcie_2x: SimumaxNetwork | None = None
    intra_node_pcie_4x: SimumaxNetwork | None = None
    intra_node_pcie_8x: SimumaxNetwork | None = None
    low_intra_node: SimumaxNetwork | None = None
    """Never chosen."""
    high_intra_node: SimumaxNetwork | None = None
    inter_node: SimumaxNetwork

    @model_validator(mode="after")
    def _has_what_is_used(self) -> Self:
        used = ["high_intra_node"]
        if self.intra_with_pcie:
            used = [f"intra_node_pcie_{size}x" for size in (2, 4, 8)]
        with_pcie = f"with intra_with_pcie {str(self.intra_with_pcie).lower()}"
        lacking = [name for name in used if getattr(self, name) is None]
        if lacking:
            problem = f"is needed {with_pcie}"
            raise InputError([Fault(field=f"networks.{name}", problem=problem) for name in lacking])
        return self


class SimumaxSystem(ConfigBase):
    """A cluster of equal nodes."""

    sys_name: str
    num_per_node: Count
    accelerator: SimumaxAccelerator
    networks: SimumaxNetworks
    FC8: Flag = False
    """Whether every device of a node has a link to each other one."""
