"""Which of the best plans measurements cannot tell apart, and which of these is the safer."""

from collections.abc import Sequence

from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.analysis.results import Estimate
from shardwise.planning.search.results import Alike

__all__ = ["alike"]

# Parts of a step that validated runs spread most in: how well exchanges overlap, what stages wait.
_UNCERTAIN = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload", "bubble", "other")
# What none of the runs of grade A that come with shardwise did, on NVIDIA GPUs.
_UNTRIED = {
    "offload_weights": (True,),
    "offload_optimizer": (True,),
    "fused_activation": (True,),
    "tp_overlap": ("ring", "pipe"),
    "tp_exchange": ("summa", "p2p_rs_ag"),
    "schedule": ("zb-h1", "zb-v"),
}


def alike(best: Sequence[Estimate], objective: str = "step_time") -> Alike | None:
    """Count the first plans of a ranking that are too near to be told apart by what it ranks by.

    None where they can be, and forward only, for which no runs were measured.
    """
    if not best or not best[0].strategy["training"]:
        return None
    ratio = distinguishable_ratio()
    by = "step_time_s" if objective == "step_time" else "tokens_per_s_per_gpu"
    scores = [getattr(e, by) / getattr(best[0], by) for e in best]
    near = [1 / ratio < score < ratio for score in scores]
    count = near.index(False) if False in near else len(best)
    if count == 1:
        return None
    untried = [_untried(e) for e in best[:count]]
    shares = [sum(e.time_s[part] for part in _UNCERTAIN) / e.step_time_s for e in best[:count]]
    safer = min(range(count), key=lambda i: (len(untried[i]), shares[i]))
    return Alike(
        plans=count,
        within=ratio - 1,
        safer=safer,
        untried=tuple(field for field in untried[0] if field not in untried[safer]),
        uncertain=shares[safer],
    )


def _untried(plan: Estimate) -> tuple[str, ...]:
    """Fields by which a plan does what no measured run did."""
    return tuple(field for field, values in _UNTRIED.items() if plan.strategy[field] in values)
