"""NERSC's system files and model dictionaries, typed.

Figures keep the names and units of the files (transformer-perf-estimates, commit 54278b0): TFLOP/s,
10^9 byte/s, 10^9 bytes, seconds. What its solver silently accepts and computes nonsense with,
such as a negative bandwidth, an efficiency of 5 or a misspelt key, is a fault.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, Strict, model_validator

from shardwise.config.base import MOST_LAYERS, ConfigBase
from shardwise.units import LEAST_SHARE

# Beyond these many times its unit a figure would leave the finite numbers, or be no rate at all.
_LEAST_RATE, _MOST_RATE = 1e-6, 1e12


def _shortest(value: float) -> Any:
    """Write 312.0 as 312, as the files do."""
    return int(value) if value.is_integer() else value


Count = Annotated[int, Strict(), Field(ge=1, le=2**31)]
Real = Annotated[float, Strict(), PlainSerializer(_shortest)]
Rate = Annotated[Real, Field(ge=_LEAST_RATE, le=_MOST_RATE)]
Efficiency = Annotated[Real, Field(ge=LEAST_SHARE, le=1)]
Latency = Annotated[Real, Field(ge=0, le=_MOST_RATE)]


def _never(value: bool) -> bool:
    if value:
        raise ValueError("must be false: its measured tables were never published")
    return value


Never = Annotated[bool, Strict(), AfterValidator(_never)]

_ROUNDING = 1e-9

# The units of its figures, which its solver multiplies by: 16-bit elements in GB, TFLOP.
_UNITS = {"element_size": 2e-9, "mask_element_size": 1e-9, "flops_units": 1e-12}


class NerscModel(ConfigBase):
    """A model: `depth` equal transformer layers and nothing else."""

    l: Count  # noqa: E741 - as in the files
    """Tokens per sequence."""
    e: Count
    """Width."""
    h: Count
    """Heads."""
    depth: Annotated[Count, Field(le=MOST_LAYERS)]
    """Layers."""
    f: Count | None = None
    """Inner width of the MLP; None: 4 e, as its search sets it."""

    @property
    def ffn(self) -> int:
        """Inner width of the MLP."""
        return self.f or 4 * self.e

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.e % self.h:
            problem = f"must divide e {self.e}, of which NERSC drops the rest"
            raise ValueError(f"h: {self.h}: {problem}")
        return self


class NerscSystem(ConfigBase):
    """A cluster: one kind of GPU, NVLink domains, NICs."""

    matrix_flops_fp16: Rate
    """Peak of the tensor cores [TFLOP/s]."""
    vector_flops_fp16: Rate
    """Peak of all else [TFLOP/s]."""
    vector_flops_fp32: Rate | None = None
    """Never read by its solver."""
    hbm_bandwidth: Rate
    """[10^9 byte/s]."""
    hbm_capacity: Rate
    """[10^9 bytes]."""
    nvlink_bandwidth: Rate
    """One direction, per GPU [10^9 byte/s]."""
    nvlink_eff: Efficiency
    nvlink_latency: Latency
    """For each further member of a group [s]."""
    ib_bandwidth: Rate
    """Of a NIC [10^9 byte/s]."""
    ib_eff: Efficiency
    ib_latency: Latency
    """For each further domain of a group [s]."""
    nvlink_size: Count
    """GPUs of an NVLink domain."""
    nic_factor: Rate = 1
    """NICs per GPU."""
    empirical: Never = False
    """Whether it looks collectives up."""
    summa_nb: Count = 4
    """Panels of SUMMA, which its search overwrites."""
    element_size: Real = _UNITS["element_size"]
    mask_element_size: Real = _UNITS["mask_element_size"]
    flops_units: Real = _UNITS["flops_units"]

    @model_validator(mode="after")
    def _units_are_those_of_the_figures(self) -> Self:
        for field, unit in _UNITS.items():
            if (value := getattr(self, field)) != unit:
                problem = f"must be {unit:g}, the unit of the other figures"
                raise ValueError(f"{field}: {problem}, not {value:g}")
        return self

    @model_validator(mode="after")
    def _links_are_whole(self) -> Self:
        links = self.nic_factor * self.nvlink_size
        if abs(links - round(links)) > _ROUNDING or links < 1 - _ROUNDING:
            problem = f"{self.nic_factor:g} x nvlink_size {self.nvlink_size} = {links:g}"
            raise ValueError(f"nic_factor: {problem} must be a whole number of NICs per domain")
        return self


# Keys that no shardwise file and no other tool's has, and how many of them identify the file, so
# that one is recognized though half of it is missing or misspelt.
_OF_MODELS = frozenset({"l", "e", "h", "f", "depth"})
_OF_SYSTEMS = frozenset(NerscSystem.model_fields) - {"empirical"}
_ENOUGH = 3


def looks_like(data: Mapping[str, Any]) -> Literal["model", "system"] | None:
    """Return which of NERSC's files a mapping is by its keys, or None."""
    if len(data.keys() & _OF_SYSTEMS) >= _ENOUGH:
        return "system"
    return "model" if len(data.keys() & _OF_MODELS) >= _ENOUGH else None
