"""Times of one layer, the embedding or the head, on one rank."""

from dataclasses import dataclass

from shardwise.arrays import Floats

__all__ = ["COMM_AXES", "ByAxis", "LayerTimes"]

COMM_AXES = ("tp", "cp", "ep")
"""Axes that exchange inside layers; exchanges of tp2 are counted with those of tp, of etp with
those of ep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAxis:
    """A time of each axis that exchanges inside layers [s]."""

    tp: Floats
    cp: Floats
    ep: Floats

    @property
    def total(self) -> Floats:
        """All axes together."""
        return self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of one rank and one micro-batch, as columns [s], and FLOPs run again."""

    forward_s: Floats
    """Kernels, exchanges not included."""
    backward_s: Floats
    weight_grad_s: Floats
    """What of `backward_s` gives gradients of weights."""
    recompute_s: Floats
    alone_forward_s: ByAxis
    """Exchanges, as if nothing hid them."""
    alone_backward_s: ByAxis
    """With those that recompute repeats."""
    exposed_forward_s: ByAxis
    exposed_backward_s: ByAxis
    offload_forward_s: Floats
    """Transfers to and from the second memory tier, alone."""
    offload_backward_s: Floats
    offload_forward_exposed_s: Floats
    offload_backward_exposed_s: Floats
    recompute_flops: Floats
    """FLOPs of the matrix products and attention that recompute runs again."""

    @property
    def offload_exposed_s(self) -> Floats:
        """Transfers to and from the second memory tier as far as they lengthen the step."""
        return self.offload_forward_exposed_s + self.offload_backward_exposed_s

    @property
    def forward_pass_s(self) -> Floats:
        """Forward with its exposed exchanges and transfers."""
        return self.forward_s + self.exposed_forward_s.total + self.offload_forward_exposed_s

    @property
    def backward_pass_s(self) -> Floats:
        """Backward with recompute, their exposed exchanges and transfers."""
        exposed = self.exposed_backward_s.total + self.offload_backward_exposed_s
        return self.backward_s + self.recompute_s + exposed

    @property
    def time_s(self) -> Floats:
        """Forward and backward."""
        return self.forward_pass_s + self.backward_pass_s
