"""`System`: the cluster that trains. Accelerator, memory tiers, network, price and power."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from shardwise import catalog
from shardwise.config import files, readers, team
from shardwise.config.accelerator import (
    Benchmarked,
    FusedAttention,
    MatmulKernel,
    MemoryKernel,
    SparseAttention,
)
from shardwise.config.base import NO_FLAG, ConfigBase, Count, Source, Sourced
from shardwise.config.bounds import Factor, Fraction, Month, RateShare, ShapeFigure, Size
from shardwise.config.enums import Generation, MemoryLimit, Processing
from shardwise.config.expressions.formula import path_text
from shardwise.config.expressions.records import BASE, Resolved, merged
from shardwise.config.expressions.resolve import Chain, row_of
from shardwise.config.network import ExpertKernels, Fabric, Tier
from shardwise.config.pools import POOLS, Pool, mixed
from shardwise.config.prices import Price
from shardwise.config.stack import DEFAULT_STACK
from shardwise.errors import InputError, check_word
from shardwise.frozen import frozen
from shardwise.units import (
    LEAST_SHARE,
    ByteRate,
    Bytes,
    CarbonIntensity,
    FlopRate,
    Latency,
    Power,
    format_quantity,
)

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
TablePhase = Literal["any", "forward", "input_grad", "weight_grad"]
DispatchLibrary = Literal["deepep", "hybridep"]
MeasuredKind = Literal["products", "attention", "memory", "launches", "collectives", "copies"]
MemoryClass = Literal["permute", "permute_backward", "loss"]

# What a table of shapes must give of each shape; tables of products may add `output_bytes`.
_TABLES = {
    "matmul_table": ("batch", "m", "n", "k"),
    "grouped_table": ("groups", "m", "n", "k"),
    "attention_table": ("sequences", "seq_len", "heads", "kv_heads", "head_dim", "v_head_dim"),
}
# A share counted over all pairs of queries and keys is twice the true one of a causal kernel.
_LARGEST_SHARE = 2.0
FULL_DUPLEX = 2.0
"""`HostMemory.duplex` of a link whose two directions do not slow each other down."""


class EfficiencyCurve(ConfigBase):
    """Share of a peak by the size of one operation (see `cost.curve`)."""

    points: tuple[tuple[Size, Fraction], ...] = Field(min_length=1)
    """Sizes [byte or FLOP], ascending from 0, each with the share that holds from it on."""
    interpolate: bool = False
    """Whether shares between two points are interpolated in the logarithm of the size, a point at
    0 counting as at 1; if not, the last point at or below the size holds."""

    @model_validator(mode="after")
    def _sizes_ascend_from_zero(self) -> Self:
        sizes = [size for size, _ in self.points]
        if sizes[0] != 0:
            problem = f"points[0]: the first size must be 0, for what is smaller than {sizes[0]:g}"
            raise ValueError(problem)
        for index in range(1, len(sizes)):
            before = 1 if self.interpolate and index == 1 else sizes[index - 1]
            if sizes[index] <= before:
                problem = f"size {sizes[index]:g} must be above {before:g}"
                raise ValueError(f"points[{index}]: {problem}")
        return self


class MemoryCurve(EfficiencyCurve):
    """Share of a bandwidth by the bytes that an operation moves; above 1 where caches hold them."""

    points: tuple[tuple[Size, RateShare], ...] = Field(min_length=1)


class ShapeTable(ConfigBase):
    """Share of a peak that kernels of one class were measured at (see `cost.kernels`)."""

    sizes: tuple[str, ...]
    """Sizes of a shape, in the order of the rows. Products: batch (or groups), m, n, k as
    in `ops.operation.Matmul`; for a gradient of weights m and n are the widths of input and output.
    With output_bytes, bytes moved per element of the result, its type counts too. Attention:
    sequences, seq_len, heads, kv_heads, head_dim, v_head_dim."""
    rows: Mapping[TablePhase, tuple[tuple[ShapeFigure, ...], ...]]
    """Measured shapes by the phase they ran in (`any`: in any phase): the sizes, then the share."""
    fallback: Annotated[float, Field(ge=LEAST_SHARE, le=_LARGEST_SHARE), NO_FLAG]
    """Share of shapes that are far from all measured ones."""
    counts_all_pairs: bool = False
    """Attention: whether the shares are those of causal kernels with the FLOPs of all pairs of
    queries and keys, which are twice the FLOPs done; then they count half."""

    @model_validator(mode="after")
    def _rows_are_shapes(self) -> Self:
        seen: dict[tuple[str, tuple[float, ...]], str] = {}
        needed = (*self.sizes, "share")
        for phase, rows in self.rows.items():
            for index, row in enumerate(rows):
                name = f"rows.{phase}[{index}]"
                if len(row) != len(needed):
                    figures = f"{len(needed)} figures ({', '.join(needed)})"
                    raise ValueError(f"{name}: must have {figures}, not {len(row)}")
                if not LEAST_SHARE <= row[-1] <= _LARGEST_SHARE:
                    allowed = f"from {LEAST_SHARE:g} to {_LARGEST_SHARE:g}"
                    raise ValueError(f"{name}: the share must be {allowed}, not {row[-1]:g}")
                for other in (phase, "any") if phase != "any" else self.rows:
                    if (twin := seen.get((other, row[:-1]))) is not None:
                        raise ValueError(f"{name}: has the shape of {twin}")
                seen[phase, row[:-1]] = name
        return self


class HostMemory(ConfigBase):
    """What trainers get of a memory tier in the host: rates of pinned copies, and usable bytes.

    The defaults are those of an ideal link: its raw rate in both directions at once, all for one
    accelerator, and every byte usable (see `cost.overlap`).
    """

    h2d_efficiency: Fraction = 1.0
    """Share of the bandwidth that copies from pinned memory into the accelerator reach (host to
    device) while all accelerators of a node copy, beyond what `shared_by` divides."""
    d2h_efficiency: Fraction = 1.0
    """The same of copies from the accelerator (device to host)."""
    duplex: Annotated[float, Field(ge=1, le=FULL_DUPLEX), NO_FLAG] = FULL_DUPLEX
    """Progress of both directions at once over that of one alone: 2 where they do not slow each
    other down, 1 where they take turns, as where the memory of the host is the limit."""
    shared_by: Count = 1
    """Accelerators that share the link when all copy, such as those behind one uplink of a PCIe
    switch."""
    reserved: Bytes = 0.0
    """Bytes per accelerator that cannot be pinned for tensors: operating system, hypervisor, page
    cache, data loaders, staging of checkpoints."""


class Memory(ConfigBase):
    """One tier of memory of an accelerator, nearest first."""

    name: str
    capacity: Bytes
    """Of one accelerator, as its driver reports it; what the runtime takes of it is the stack's. Of
    host memory, the part of one accelerator."""
    bandwidth: ByteRate
    """Peak rate per accelerator; for a tier behind a link, raw rate of that link in one
    direction."""
    efficiency: MemoryCurve | None = None
    """Share of the bandwidth by the bytes that one operation moves; None: 1. Kernels have shares
    of their own in addition. Operations up to the last point may be faster, from caches."""
    shared_bandwidth: ByteRate | None = None
    """Rate of the first tier for all accelerators of a node together, where these are groups of
    cores of one server; None: each has memory of its own. What caches serve is not shared."""
    limit_on: MemoryLimit = MemoryLimit.RESERVED
    """What must fit into the capacity of the first tier: memory that the process reserves, with the
    allocator's slack and the runtime, or allocated tensors alone."""
    host: HostMemory | None = None
    """What copies reach of the bandwidth and tensors of the capacity, of a tier in the host; None:
    all of both."""

    @model_validator(mode="after")
    def _something_is_usable(self) -> Self:
        if self.host is not None and self.host.reserved > self.capacity:
            most = format_quantity(self.capacity, "bytes")
            reserved = format_quantity(self.host.reserved, "bytes")
            raise ValueError(f"host.reserved: {reserved} must be at most the capacity, {most}")
        return self

    @property
    def usable_bytes(self) -> float:
        """Capacity less what is reserved; 0 where more is reserved [byte]."""
        if self.host is None:
            return self.capacity
        usable: float = np.maximum(self.capacity - self.host.reserved, 0.0)
        return usable


class Accelerator(ConfigBase):
    """One chip as the data sheet describes it, and how its kernels fare."""

    name: str
    generation: Generation = Generation.OTHER
    """Architecture; of one that is not named, software is not bound to what it runs on."""
    multiprocessors: Count | None
    """Independent units that tiles of work are spread over; null where no closed form needs them:
    all types on curves or tables, `attention` null."""
    matrix: Mapping[Dtype, FlopRate] = Field(min_length=1)
    """Dense peak of the matrix units by type of input."""
    vector: Mapping[Dtype, FlopRate] = Field(min_length=1)
    """Peak of the vector units by type of input; a type that is not named runs at fp32's rate."""
    memory: tuple[Memory, ...] = Field(min_length=1)
    """Tiers, nearest first; the first holds everything that is not offloaded."""
    matmul: Mapping[Dtype, MatmulKernel] = Field(default_factory=dict)
    """Closed form of products by type; each type of `matrix` has this, a curve or a table."""
    matmul_curve: Mapping[Dtype, EfficiencyCurve] = Field(default_factory=dict)
    """Share of the matrix peak by the FLOPs of a full product, whatever its shape."""
    matmul_table: Mapping[Dtype, ShapeTable] = Field(default_factory=dict)
    """Measured shares of the matrix peak by the shape of a product."""
    grouped_table: Mapping[Dtype, ShapeTable] = Field(default_factory=dict)
    """The same of the grouped products of experts; without one, products of that type are timed
    alike, grouped or not."""
    attention_table: Mapping[Dtype, ShapeTable] = Field(default_factory=dict)
    """The same of fused attention kernels."""
    vector_curve: Mapping[Dtype, EfficiencyCurve] = Field(default_factory=dict)
    """Share of the vector peak by the FLOPs of one operation; 1 for a type without."""
    sparse_attention: SparseAttention | None = None
    """Kernels of attention to selected or compressed keys; null: shares that are assumed, half of
    the matrix peak forward and a tenth backward."""
    attention: FusedAttention | None
    """Null: a fused attention kernel without a table is timed as a product of its FLOPs and
    bytes."""
    memory_bound: MemoryKernel
    memory_bound_class: Mapping[MemoryClass, MemoryKernel] = Field(default_factory=dict)
    """Classes of element-wise kernels with figures of their own: those that copy tokens in the
    order of experts and back, forward and backward, and those of the loss."""
    update_efficiency: RateShare | None = None
    """Share of the bandwidth that updates of weights reach; None: that of element-wise kernels.
    They write in place. Other kernels on a CPU also read the memory that they write to, which their
    bytes do not count: of a bandwidth of copies this may exceed 1."""
    benchmark: Benchmarked | None = None
    """Figures of kernels alone, as micro-benchmarks time them; estimates do not use them."""
    speed: Factor = 1.0
    """Rate of products and attention on the machine at hand over that of the figures: its power
    limit, clocks and cooling. Declared by its owner or fitted to runs; 1 in the catalog."""
    tuned_until: Month = ""
    """Month of the newest runs that show kernels of a release faster than those of older ones; what
    is released later is as fast (see `Stack.yearly_time_factor`). Empty: releases go on."""
    processing: Processing = Processing.MEASURED
    """How the compute and memory times of a kernel join: as fitted to measured kernels, the larger
    (roofline), or their sum (no_overlap)."""
    asynchronous: bool = True
    """Whether the host launches kernels while others run (GPUs), so that its time is hidden unless
    it is longer; of a CPU, which runs the kernels itself, the two times add up."""
    compute_latency: Latency = 0
    """Compute time of a kernel without work. Unlike a launch it is part of what joins the memory
    time: by roofline it vanishes behind a longer one."""

    @model_validator(mode="after")
    def _first_tier_has_no_link(self) -> Self:
        if self.memory[0].host is not None:
            problem = "must be null: the first tier is the accelerator's own memory"
            raise ValueError(f"memory[0].host: {problem}")
        return self

    @model_validator(mode="after")
    def _only_the_first_tier_is_limited_or_shared(self) -> Self:
        for place, tier in enumerate(self.memory[1:], start=1):
            problem = "has an effect on the first tier alone"
            if tier.limit_on != MemoryLimit.RESERVED:
                raise ValueError(f"memory[{place}].limit_on: {problem}")
            if tier.shared_bandwidth is not None:
                raise ValueError(f"memory[{place}].shared_bandwidth: {problem}")
        return self

    @model_validator(mode="after")
    def _every_dtype_has_one_kernel(self) -> Self:
        kinds = ("matmul", "matmul_curve", "matmul_table")
        for dtype in self.matrix:
            found = [kind for kind in kinds if dtype in getattr(self, kind)]
            if len(found) != 1:
                raise ValueError(
                    f"{dtype}: each type of matrix must be in one of matmul, matmul_curve and "
                    f"matmul_table, but is in {' and '.join(found) or 'none'}"
                )
        for field in (*kinds, "grouped_table", "attention_table"):
            if unused := sorted(set(getattr(self, field)) - set(self.matrix)):
                raise ValueError(f"{field}: matrix has no rate for {', '.join(unused)}")
        return self

    @model_validator(mode="after")
    def _tables_are_of_their_kernels(self) -> Self:
        for field, needed in _TABLES.items():
            attention = field == "attention_table"
            for dtype, table in getattr(self, field).items():
                extra = set() if attention else {"output_bytes"}
                if len(set(table.sizes)) < len(table.sizes) or set(table.sizes) - extra != set(
                    needed
                ):
                    also = "" if attention else ", and may name output_bytes"
                    raise ValueError(
                        f"{field}.{dtype}.sizes: must name {', '.join(needed)}{also}, "
                        f"not {', '.join(table.sizes) or 'nothing'}"
                    )
                if table.counts_all_pairs and not attention:
                    problem = "only kernels of attention_table have pairs of queries and keys"
                    raise ValueError(f"{field}.{dtype}.counts_all_pairs: {problem}")
        if self.attention is None:
            for dtype in self.matmul_table:
                if dtype not in self.attention_table:
                    problem = "attention is null, and a table of products has no share of it"
                    raise ValueError(f"attention_table: must have {dtype}: {problem}")
        return self

    @model_validator(mode="after")
    def _every_dtype_has_vectors(self) -> Self:
        lacking = [dtype for dtype in self.matrix if dtype not in self.vector]
        if lacking and "fp32" not in self.vector:
            raise ValueError(f"vector: must name fp32, or also {', '.join(lacking)}")
        if unused := sorted(set(self.vector_curve) - set(self.vector)):
            raise ValueError(f"vector_curve: vector has no rate for {', '.join(unused)}")
        return self

    @model_validator(mode="after")
    def _closed_forms_have_multiprocessors(self) -> Self:
        if self.multiprocessors is None and (self.matmul or self.attention):
            needed = "attention" if self.attention else f"matmul.{next(iter(self.matmul))}"
            raise ValueError(f"multiprocessors: must be set, {needed} spreads its work over them")
        return self


class Host(ConfigBase):
    """Processors, memory and drives of one server (see `cost.host`).

    Memory and links of one accelerator are those of its second memory tier.
    """

    cores: Count
    """Physical cores that jobs may use."""
    memory_bandwidth: ByteRate
    """Peak bandwidth of the memory of all sockets: channels times their rate."""
    core_bandwidth: ByteRate
    """Rate at which one thread of an optimizer update moves bytes of this memory."""
    launch_speed: Factor = 1.0
    """Speed of one core at the Python and C++ of PyTorch over that of the hosts that figures of
    stacks are of, on which the forward call of a small `Linear` takes 13.5 us."""
    nvme_read: ByteRate | None = None
    """Rate at which local drives are read, all together; None: without local drives."""
    nvme_write: ByteRate | None = None
    """Rate at which they are written, all together."""

    @model_validator(mode="after")
    def _drives_are_read_and_written(self) -> Self:
        if (self.nvme_read is None) != (self.nvme_write is None):
            raise ValueError("nvme_read and nvme_write must be set together")
        return self


# Host of a system that describes none: its share of one accelerator. Servers of 2 to 8 accelerators
# have 8 to 16 cores and 40 to 90 GB/s for each.
_USUAL_CORES = 8
_USUAL_BANDWIDTH = 48e9
_RESERVED_PART = 8
USUAL_CORE_BANDWIDTH = 12e9
"""Rate of one thread of an optimizer update where nothing is known of the core [byte/s]: 10 to 14
GB/s on Xeon of 2017 to 2021, 13 to 20 on newer server cores (`benchmarks/cpu_optimizer.py`)."""


_OF_FABRIC = ((), ("domain",), ("bandwidth",), ("links_per_node",))
"""Places in the outermost tier of a base that a fabric sets; (): all of it."""


class _Pools(ConfigBase):
    pools: tuple[Pool, ...] = Field(min_length=1)


class _Size(ConfigBase):
    """Memory of a server."""

    memory: Bytes


class Node(ConfigBase):
    """A server."""

    accelerators: Count
    power: Power | None = None
    """Most that a full node draws, network cards included; None where nobody printed it."""


class Site(ConfigBase):
    """Where a cluster stands: what its building adds to its energy, and what that emits."""

    carbon_intensity: CarbonIntensity | None = None
    """Carbon intensity of the electricity [kg/kWh], such as 380 g/kWh; None: unknown."""
    carbon_source: str = ""
    """Who printed it, for which place and year."""
    pue: Annotated[float, Field(ge=1, le=10), NO_FLAG] | None = None
    """Facility energy over IT energy (power usage effectiveness); None: unknown."""
    pue_source: str = ""


class Measured(ConfigBase):
    """What of a system was measured on the machine itself, by `calibrate measure`."""

    on: date
    errors: Mapping[MeasuredKind, Annotated[float, Field(ge=0, le=10), NO_FLAG]]
    """Mean error of the fitted figures in the times of what was measured, by kind; of launches and
    copies, which are not fitted, the spread of the rounds. Everything else is a prior."""


class System(Sourced):
    """A cluster of equal nodes.

    Examples
    --------
    >>> from shardwise import System
    >>> system = System.load("h100-sxm")
    >>> system.node.accelerators, [tier.name for tier in system.network]
    (8, ['nvlink', 'fabric'])
    """

    CATALOG: ClassVar[str | None] = "systems"
    KIND: ClassVar[readers.Kind | None] = "system"
    FIGURES: ClassVar[bool] = True

    accelerator: Accelerator
    node: Node
    host: Host | None = None
    """Processors and memory bandwidth of one server; None: the usual ones (`System.server`)."""
    network: tuple[Tier, ...] = Field(min_length=1)
    """Tiers inside out; the domains grow and divide one another."""
    fabric: Annotated[Fabric | None, Field(exclude=True)] = None
    """Network between servers, of a file with a base: replaces the outermost tier of the base.
    Null once that is done."""
    pools: Annotated[tuple[Pool, ...], Field(exclude=True)] = ()
    """Kinds of servers of a file, in place of a base: one job over all runs at the pace of the
    slower (`config.pools`). Empty once that is done."""
    expert_kernels: Mapping[DispatchLibrary, ExpertKernels] = Field(default_factory=dict)
    """Kernels that send tokens to experts and back, by library. One that is not named is timed as
    an all-to-all of what it sends."""
    stack: str = DEFAULT_STACK
    """Software stack of strategies that name none: catalog name or file."""
    price: Price | None = None
    board_power: Power | None = None
    """Power limit of one accelerator."""
    site: Site | None = None
    """None where it is not known where the cluster stands."""
    measured: Measured | None = None
    """What was measured on this machine; None: nothing."""

    @classmethod
    def explained(
        cls, name: "str | Path | Mapping[str, Any] | Self", chain: Chain | None = None
    ) -> tuple[Self, Resolved]:
        """Load a system with the price and the stack that the team sets for it."""
        found, resolved = super().explained(name, chain)
        return (found if found is name else found._of_team(name)), resolved  # noqa: SLF001 - own

    def _of_team(self, name: object) -> Self:
        """The same system with what the configuration file of the team sets."""
        default = team.in_force()
        if default.file is None:
            return self
        changes: dict[str, Any] = {}
        sources = dict(self.sources)
        book = team.price_book()
        of_catalog = isinstance(name, str) and catalog.find("systems", name) is not None
        if book is not None and (of_catalog or self.price is None):
            price = book[0].of(self.name)
            if price is not None:
                changes["price"] = price
                text = f"{price.source}; price book {book[1]}"
                sources = {n: one for n, one in sources.items() if not f"{n}.".startswith("price.")}
                sources["price"] = Source(kind="published", text=text)
                catalog.note(f"{self.name}: {price.in_words} of {book[1]}")
        if default.stack is not None and default.stack != self.stack:
            if not (files.is_file(default.stack) or catalog.find("stacks", default.stack)):
                problem = "no such stack; to list them: shardwise stacks"
                raise InputError.of("stack", default.stack, problem, str(default.file))
            changes["stack"] = default.stack
            catalog.note(f"stack {default.stack} of {default.file} for strategies that name none")
        return self.model_copy(update=changes | {"sources": sources}) if changes else self

    @classmethod
    def _of_data(
        cls, data: Mapping[str, Any], name: str, source: str, chain: Chain, *, foreign: bool = True
    ) -> tuple[Self, Resolved]:
        """Validate a mapping, and refuse a fabric that the same mapping contradicts."""
        if data.get(POOLS):
            data = cls._mixed(data, source, chain)
        elif data.get("fabric") is not None and BASE not in data:
            raise InputError.at(source, "needs a base, whose outermost tier it replaces", "fabric")
        found, resolved = super()._of_data(data, name, source, chain, foreign=foreign)
        if data.get("fabric") is not None:
            outermost = ("network", len(resolved.data["network"]) - 1)
            for place, origin in resolved.origins.items():
                if place[:2] == outermost and place[2:3] in _OF_FABRIC and origin.how == "given":
                    problem = "contradicts fabric, which sets it; leave one of them out"
                    raise InputError.at(source, problem, path_text(place))
        return found, resolved

    @classmethod
    def _mixed(cls, data: Mapping[str, Any], source: str, chain: Chain) -> Mapping[str, Any]:
        """Return a mapping with the figures of its pools, and its own over them."""
        if BASE in data:
            raise InputError.at(source, "has a base and pools; leave out the base", POOLS)
        pools = _Pools.validated({POOLS: data[POOLS]}, source=source).pools
        kinds: list[tuple[System, int]] = []
        for place, one in enumerate(pools):
            try:
                row = row_of(one.system, cls, chain, is_base=True)
            except ValueError as error:
                field = f"{POOLS}[{place}].system"
                raise InputError.of(field, one.system, str(error), source) from None
            kinds.append((cls.validated(row.fields, source=row.name), one.servers))
        own = {name: value for name, value in data.items() if name != POOLS}
        try:
            joined: Mapping[str, Any] = merged(mixed(kinds), own, (), [])
        except ValueError as error:
            raise InputError.at(source, str(error), POOLS) from None
        return joined

    @model_validator(mode="after")
    def _fabric_makes_tiers(self) -> Self:
        if self.fabric is None:
            return self
        *inner, outermost = self.network
        if not inner:
            raise ValueError("fabric: there is no tier inside a server; set network")
        tiers = self.fabric.tiers(outermost, self.node.accelerators, inner[-1].domain or 1)
        last, own = len(inner), self.source_of("fabric")
        sources = {name: one for name, one in self.sources.items() if name != "fabric"}
        for place, tier in enumerate(tiers, start=last):
            for name, one in self.sources.items():
                if f"{name}.".startswith(f"network.{last}."):
                    sources[name.replace(str(last), str(place), 1)] = one
            for name in Tier.model_fields:
                changed = name != "name" and getattr(tier, name) != getattr(outermost, name)
                if changed and own is not None:
                    sources[f"network.{place}.{name}"] = own
        self.__dict__ |= {"network": (*inner, *tiers), "sources": frozen(sources), "fabric": None}
        self.__pydantic_fields_set__.discard("fabric")
        return self

    @model_validator(mode="after")
    def _links_are_shared_in_a_node(self) -> Self:
        for index, memory in enumerate(self.accelerator.memory):
            host = memory.host
            if host is not None and host.shared_by > self.node.accelerators:
                raise ValueError(
                    f"accelerator.memory[{index}].host.shared_by: {host.shared_by} must be at "
                    f"most node.accelerators, {self.node.accelerators}"
                )
        for index, link in enumerate(self.network):
            path = link.through_host
            if path is not None and path.shared_by > self.node.accelerators:
                raise ValueError(
                    f"network[{index}].through_host.shared_by: {path.shared_by} must be at most "
                    f"node.accelerators, {self.node.accelerators}"
                )
        return self

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

    @property
    def server(self) -> Host:
        """Its host, or the usual one of such a server: 8 cores and 48 GB/s per accelerator."""
        if self.host is not None:
            return self.host
        number = self.node.accelerators
        return Host(
            cores=_USUAL_CORES * number,
            memory_bandwidth=_USUAL_BANDWIDTH * number,
            core_bandwidth=USUAL_CORE_BANDWIDTH,
        )

    @property
    def launch_speed(self) -> float:
        """Speed of the host at launching kernels; that of the stacks' figures if not described."""
        return 1.0 if self.host is None else self.host.launch_speed

    @property
    def accelerator_power(self) -> float | None:
        """Most that one accelerator draws with its part of the node, or of its board alone [W]."""
        if self.node.power is not None:
            return self.node.power / self.node.accelerators
        return self.board_power

    @property
    def fast_domain(self) -> int | None:
        """Accelerators of the first tier, or of the tiers inside a node if these connect more."""
        first = self.network[0].domain
        if first is None:
            return None
        domains = [tier.domain or 0 for tier in self.network]
        return max([first, *(domain for domain in domains if domain <= self.node.accelerators)])

    def limited_on(self, limit: MemoryLimit | str | None) -> "System":
        """The same system with a limit on reserved or on allocated memory.

        Parameters
        ----------
        limit
            A word of `MemoryLimit`; None: as it is.

        Raises
        ------
        InputError
            If there is no such limit.
        """
        if limit is None:
            return self
        check_word("limit_on", limit, tuple(MemoryLimit))
        first, *others = self.accelerator.memory
        first = first.model_copy(update={"limit_on": MemoryLimit(limit)})
        chip = self.accelerator.model_copy(update={"memory": (first, *others)})
        return self.model_copy(update={"accelerator": chip})

    def with_host(self, fields: Mapping[str, object], gpus: int | None = None) -> "System":
        """The same system with another host.

        Parameters
        ----------
        fields
            Those of `Host` that differ, and `memory`, of a server.
        gpus
            Accelerators that share this memory, if there are fewer than in a server; an eighth of
            their part at most stays reserved.

        Raises
        ------
        InputError
            If a value is wrong, or there is no second memory tier.
        """
        own = {name: value for name, value in fields.items() if name != "memory"}
        host = Host.validated(self.server.to_dict() | own, source=self.name)
        chip = self.accelerator
        if "memory" in fields:
            if len(chip.memory) == 1:
                raise InputError.of(
                    "memory", fields["memory"], "has no second memory tier", self.name
                )
            first, second, *others = chip.memory
            size = _Size.validated({"memory": fields["memory"]}, source=self.name).memory
            part = size / min(gpus or self.node.accelerators, self.node.accelerators)
            rates = second.host or HostMemory()
            least = min(rates.reserved, part / _RESERVED_PART)
            rates = rates.model_copy(update={"reserved": least})
            second = second.model_copy(update={"capacity": part, "host": rates})
            chip = chip.model_copy(update={"memory": (first, second, *others)})
        return self.model_copy(update={"host": host, "accelerator": chip})

    def with_price(self, usd: float) -> "System":
        """The same system with another price of an accelerator-hour [USD].

        Raises
        ------
        InputError
            If there can be no such price.
        """
        price = Price.validated(
            {"usd_per_accelerator_hour": usd, "as_of": date.min.isoformat(), "source": "set"}
        )
        others = {n: one for n, one in self.sources.items() if not f"{n}.".startswith("price.")}
        own = {"price.usd_per_accelerator_hour": Source(kind="assumed", text="set for this choice")}
        return self.model_copy(update={"price": price, "sources": others | own})

    def tier_bandwidth(self, index: int) -> float:
        """Bandwidth of one tier per accelerator when all of a node use it at once [byte/s].

        A link of rate B, or k shared by the m accelerators of a node: k B / m. Through the host of
        n accelerators at most a B and H / (2 n): a byte is written to its memory and read from it.
        """
        tier = self.network[index]
        rate = tier.bandwidth
        if tier.links_per_node is not None:
            rate = rate * tier.links_per_node / self.node.accelerators
        if (path := tier.through_host) is not None:
            rate = np.minimum(rate * path.link_share, path.bandwidth / (2 * path.shared_by))
        return rate


SystemLike = System | str | Path | Mapping[str, Any]
"""A system, its catalog name, a file, or its fields."""
