"""How many layers stand on a pipeline stage."""

import numpy as np

from shardwise.arrays import Ints

__all__ = ["layers_on", "most_layers"]


def most_layers(depth: int, stages: Ints) -> Ints:
    """Layers on the longest stage: depth / stages, rounded up."""
    return -(-depth // stages)


def layers_on(depth: int, stages: Ints, stage: Ints) -> Ints:
    """Layers on one stage: the first depth mod stages of them hold one more than the others.

    Parameters
    ----------
    stage
        Position from 0; broadcasts against `stages`.
    """
    return depth // stages + np.where(stage < depth % stages, 1, 0)
