"""Bytes of layers in the first and in the second memory tier."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats


@dataclass(frozen=True, slots=True)
class Tiers:
    """Bytes in the first and in the second memory tier."""

    here: Floats
    away: Floats
    share: Floats | float
    """Share of the movable bytes that is in the first tier."""


def in_tiers(size: Floats, offloaded: Bools, layers: Floats) -> Tiers:
    """Place bytes of layers: all in the first tier, or all in the second but two layers.

    The two are the layer that runs and the one in transit.

    Parameters
    ----------
    size
        All of them [byte]; shape (n,).
    offloaded
        Rows that have them in the second tier.
    layers
        Number of layers that they belong to; shape (n,).
    """
    share = np.where(offloaded, np.minimum(1.0, 2.0 / np.maximum(layers, 1.0)), 1.0)
    return Tiers(size * share, np.where(offloaded, size, 0.0), share)
