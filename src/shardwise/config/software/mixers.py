"""Rates of the kernels of mixers: `catalog/software/mixers.yaml`, each with its source."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import Field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.bounds import Fraction, Overhead, RateShare
from shardwise.config.enums import Generation


class ScanRates(ConfigBase):
    """How close the core of a mixer comes to the peaks of one generation (see `cost.scan`)."""

    state_share: Fraction
    """Share of the matrix peak in products of tokens and states, forward."""
    chunk_share: Fraction
    """The same in products among the tokens of a chunk."""
    backward_share: Fraction
    """The same of all products backward."""
    memory_share: RateShare
    """Share of the memory bandwidth."""
    fill: Overhead = 0
    """States passed on at the same time at which compute takes twice its least time."""
    spread: Overhead
    """Relative error of these times that is expected."""
    source: str = Field(min_length=1)


@cache
def _facts() -> Mapping[str, Mapping[str, ScanRates]]:
    path = Path(catalog.__file__).parent / "software" / "mixers.yaml"
    return {
        kind: {name: ScanRates.validated(rates, source=path.stem) for name, rates in by.items()}
        for kind, by in files.read_mapping(path).items()
    }


def scan_rates(kind: str, generation: Generation) -> ScanRates:
    """Return the rates of a kind of mixer; those of `other` where its generation has none."""
    by_generation = _facts()[kind]
    return by_generation.get(str(generation), by_generation["other"])


def is_measured(kind: str, generation: Generation) -> bool:
    """Whether the rates are of this generation, and not scaled from another one."""
    return str(generation) in _facts()[kind]
