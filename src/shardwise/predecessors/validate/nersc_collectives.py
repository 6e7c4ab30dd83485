"""Measured NCCL collectives of Perlmutter, compared with `cost.collective`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from shardwise.arrays import Floats
from shardwise.config.base import ConfigBase, Count
from shardwise.config.network import Collective, CollectiveName
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.ops.operation import CollectiveKind
from shardwise.predecessors.nersc.translation import collective_for_nersc
from shardwise.units import ByteRate, readable
from shardwise.validate.scores import Compared, Part, PublishedFigures, Row, Scoreboard

_MIB = 2**20
_MICRO = 1e-6
_PAIR = 2
_THEIRS = "nersc-a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """A range of buffer sizes."""

    name: str
    title: str
    least: int
    """[byte]."""


_BANDS = (
    _Band(name="small", title="32 to 512 KiB", least=0),
    _Band(name="middle", title="1 to 32 MiB", least=_MIB),
    _Band(name="large", title="64 MiB to 8 GiB", least=64 * _MIB),
)


class Series(ConfigBase):
    """Times of one operation on one group, by size."""

    operation: CollectiveName
    gpus_per_node: Count
    """GPUs and NICs of each node that take part."""
    nodes: Count
    us: Mapping[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]
    """Measured [us] by the bytes of the full buffer."""


class _Wiring(ConfigBase):
    """Differences of the nodes from those of the catalog's system."""

    accelerators: Count
    """GPUs of a node, each with a NIC of its own."""
    pair_bandwidth: ByteRate
    """Of the links that join two GPUs of a node directly."""


class MeasuredCollectives(PublishedFigures):
    """Series and their machine, of `catalog/validation/nersc-collectives.yaml`."""

    system: str
    """The catalog's system."""
    node: _Wiring
    rates: tuple[Mapping[CollectiveName, Collective], ...]
    """Of NCCL alone, by tier, inside out; those of systems overlap with compute."""
    series: tuple[Series, ...]

    @property
    def machine(self) -> System:
        """The catalog's system with the nodes of this machine, idle but for one collective.

        GPUs that are connected directly have the links of their pairs: two of them use those of
        one pair, where a switch would give each all its links.
        """
        fields = System.load(self.system).to_dict()
        inside, fabric = fields["network"]
        for tier, rates in zip((inside, fabric), self.to_dict()["rates"], strict=True):
            tier["collectives"] |= rates
        count = self.node.accelerators
        fields["node"] = {"accelerators": count}
        inside["domain"] = fabric["links_per_node"] = count
        alone = self.node.pair_bandwidth / inside["bandwidth"]
        for rates in inside["collectives"].values():
            shares = {int(members): share for members, share in rates["efficiency"].items()}
            if _PAIR in shares and len(shares) > 1:
                rates["efficiency"] = shares | {_PAIR: alone * shares[_PAIR]}
        return System.validated(fields)

    def predicted_us(self, series: Series) -> Floats:
        """Our times of a series, in its order [us]."""
        sizes = np.array(list(series.us), dtype=np.float64)
        reached = (series.gpus_per_node, series.gpus_per_node * series.nodes)
        extents = np.repeat(np.array(reached)[:, None], len(sizes), axis=1)
        kind = CollectiveKind(series.operation)
        return collective_time(self.machine, kind, sizes, extents) / _MICRO

    def their_us(self, series: Series) -> Floats:
        """Times by the predecessor's formula, with its figures of the machine [us]."""
        sizes = np.array(list(series.us), dtype=np.float64)
        inside, nodes = series.gpus_per_node, series.nodes
        return collective_for_nersc(_THEIRS, series.operation, sizes, inside, nodes) / _MICRO


def perlmutter() -> System:
    """Return the machine that the collectives were measured on."""
    return MeasuredCollectives.load("nersc-collectives").machine


def nersc_collectives() -> Scoreboard:
    """Compare times of collectives with measurements on 1 to 256 nodes."""
    measured = MeasuredCollectives.load("nersc-collectives")
    rows: dict[tuple[str, str], list[Row]] = {
        (operation, band.name): []
        for operation in dict.fromkeys(series.operation for series in measured.series)
        for band in _BANDS
    }
    for series in measured.series:
        predictions = measured.predicted_us(series), measured.their_us(series)
        for size, row in _rows(series, *predictions):
            rows[series.operation, _band_of(size).name].append(row)
    return Scoreboard(
        suite=measured.name,
        title=measured.description,
        predecessor="nersc",
        parts=tuple(
            _part(measured, operation, band, rows[operation, band.name])
            for operation, name in rows
            for band in _BANDS
            if band.name == name
        ),
    )


def _rows(series: Series, predicted_us: Floats, their_us: Floats) -> list[tuple[int, Row]]:
    """Rows of a series, each with its size."""
    nodes = f"{series.nodes} node{'' if series.nodes == 1 else 's'}"
    groups = (f"{series.gpus_per_node} per node", nodes)
    pairs = zip(series.us.items(), predicted_us, their_us, strict=True)
    return [
        (
            size,
            Row(
                case=f"{nodes} x {series.gpus_per_node}, {readable(size, 'bytes', 4)}",
                reference=time,
                ours=float(ours),
                theirs=float(theirs),
                groups=groups,
            ),
        )
        for (size, time), ours, theirs in pairs
    ]


def _band_of(size: int) -> _Band:
    return max((band for band in _BANDS if size >= band.least), key=lambda band: band.least)


def _part(measured: MeasuredCollectives, operation: str, band: _Band, rows: list[Row]) -> Part:
    words = operation.replace("_", "-")
    return Part(
        name=f"{operation}_{band.name}",
        title=f"{words}, {band.title}",
        unit="us",
        kind="measured",
        source=measured.source_text("series"),
        compared=Compared(
            reference="nccl-tests, out of place, one sample for each size and group.",
            ours=(
                f"{measured.system} with nodes of {measured.node.accelerators}. Its figures "
                "between nodes were fitted on these times, those within one on another machine."
            ),
            theirs=f"its formula with the figures of {_THEIRS}, which are those of its file",
        ),
        rows=tuple(sorted(rows, key=lambda row: tuple(int(n.split()[0]) for n in row.groups))),
    )
