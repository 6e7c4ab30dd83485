"""Exchanges of a step by axis, direction and level, and what a mixture of experts adds."""

from typing import Literal

from shardwise.analysis.record import Result

__all__ = ["Breakdown", "CommunicationShare", "MoeOverhead"]


class CommunicationShare(Result):
    """Exchanges of one axis on the slowest stage in a step, in one direction and on one level."""

    axis: str
    """tp (with tp2), cp, ep (with etp), pp or dp."""
    what: str
    """activations, tokens (among experts), messages (between stages); among replicas gradients,
    weights, momenta (for Muon), mirrors (gradients of DualPipe's pairs) or embeddings."""
    direction: Literal["forward", "backward", "both"]
    """Of the pass that it belongs to, recompute to backward; `both` where the model does not tell
    them apart."""
    level: Literal["intra", "inter"]
    """Intra: what it takes among the members in one domain of the innermost network tier alone.
    Inter: what it takes more because others are outside."""
    total_s: float
    """As if nothing hid it [s]."""
    exposed_s: float
    """As far as it lengthens the step [s]; split over the levels as the total is."""


class MoeOverhead(Result):
    """What routing tokens to experts adds to a step on its slowest stage [s]."""

    exchange_forward_s: float
    """Exchanges among experts, as far as they lengthen the step."""
    exchange_backward_s: float
    """The same backward, with those that recompute repeats."""
    gating_forward_s: float
    """Scores of all experts, and the choice among them."""
    gating_backward_s: float
    """With what recompute runs again."""
    permute_forward_s: float
    """Copying tokens in the order of experts, and back."""
    permute_backward_s: float
    """With what recompute runs again."""
    imbalance_s: float
    """Products of the fullest rank's experts beyond those of an even load."""
    total_s: float
    """All of these."""


class Breakdown(Result):
    """The step in detail beyond `time_s`."""

    exchanges: tuple[CommunicationShare, ...]
    """Those that take time; the exposed ones of an axis add up to `comm_s`."""
    moe: MoeOverhead | None
    """None for a model without experts."""
