"""What a kernel of a trace does, by its name, and the axis that it communicates along.

Names: cuBLAS, CUTLASS, rocBLAS (Cijk), cuDNN, FlashAttention, NCCL, DeepEP, Triton. The first class
whose pattern matches counts; communication and memory as in HolisticTraceAnalysis
(hta/common/types.py:109-135).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.config.enums import Word


class KernelClass(Word):
    """What a kernel does; the order in which time is counted where kernels run at once."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    OTHER = "other_kernels"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"


class CommAxis(Word):
    """Axis of a process group, as in `Estimate.comm_s`; time counts for the first of several."""

    TP = "tp"
    CP = "cp"
    EP = "ep"
    PP = "pp"
    DP = "dp"
    OTHER = "other"


_CLASSES = (
    (
        KernelClass.COMMUNICATION,
        r"^([nrh]ccl|nvshmem)|nccl\w*Kernel|deep_ep::|hybrid_?ep|userbuffers|shot_all_reduce",
    ),
    (KernelClass.MEMCPY, r"^(hip)?memcpy|^(hip)?memset|^dma"),
    (KernelClass.ATTENTION, r"^triton_tem_\w*attention"),
    (KernelClass.PRODUCTS, r"^triton_tem_|^_?grouped_(mm|gemm)"),
    (KernelClass.OTHER, r"^triton_"),
    (KernelClass.ATTENTION, r"flash|fmha|sdpa|attn_|_attn|attention|sage_?(fwd|bwd|attn)"),
    (
        KernelClass.PRODUCTS,
        r"nvjet|(?<!fb)gemm|cutlass|xmma|splitk|cublas|^cijk_|_s16816|_s1688|h884|gemv|grouped_mm",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _CLASSES)
_MOST_NAME = 400


@lru_cache(4096)
def class_of(name: str) -> KernelClass:
    """Return the class of a kernel."""
    found = (kind for kind, pattern in _PATTERNS if pattern.search(name[:_MOST_NAME]))
    return next(found, KernelClass.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A communicator of `torch.distributed`, as far as a trace names it."""

    description: str = ""
    size: int = 0
    """Members; 0: not known."""
    ranks: tuple[int, ...] = ()
    """Empty: not known."""


# Words of descriptions, in this order: groups of data parallelism also name what they include, such
# as DATA_PARALLEL_GROUP_WITH_CP, EXPERT_DATA_PARALLEL_GROUP and mesh_dp_shard_cp.
_NO_AXIS = frozenset({"and"})
_WORDS = {
    CommAxis.DP: "data dp ddp fsdp hsdp efsdp batch replicate shard embedding optimizer loss zero",
    CommAxis.EP: "expert ep etp moe",
    CommAxis.CP: "context cp sequence ulysses ring",
    CommAxis.TP: "tensor tp",
    CommAxis.PP: "pipeline pp pipe",
}
_SENDS = re.compile(r"^(send|recv|isend|irecv|coalesced)", re.IGNORECASE)
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_SEND_KERNEL = re.compile(r"sendrecv", re.IGNORECASE)
_ALL_TO_ALL_AXES = (CommAxis.EP, CommAxis.CP, CommAxis.TP)
_SENDING_AXES = (CommAxis.PP, CommAxis.CP, CommAxis.EP)
_EXPERT_KERNEL = re.compile(r"deep_ep|hybrid_?ep", re.IGNORECASE)


def axis_of(
    group: ProcessGroup, collective: str, kernel: str, degrees: Mapping[str, int]
) -> CommAxis:
    """Return the axis that a kernel communicates along.

    The description of its group decides; without one the kind of collective, the number of members
    and the distance of their ranks, in the order tp, cp, dp, pp of the launchers.

    Parameters
    ----------
    collective
        Name of the collective; may be empty.
    """
    words = frozenset(re.split(r"[^a-z]+", group.description.lower()))
    if not words & _NO_AXIS:
        for axis, own in _WORDS.items():
            if words & frozenset(own.split()):
                return axis
    if _EXPERT_KERNEL.search(kernel):
        return CommAxis.EP
    split = [CommAxis(name) for name in ("tp", "cp", "ep", "pp", "dp") if degrees[name] > 1]
    sends = _SENDS.search(collective) or (not collective and _SEND_KERNEL.search(kernel))
    if _ALL_TO_ALL.search(collective):
        return next((axis for axis in _ALL_TO_ALL_AXES if axis in split), CommAxis.OTHER)
    if sends:
        return next((axis for axis in _SENDING_AXES if axis in split), CommAxis.OTHER)
    return _axis_by_members(group, [axis for axis in split if axis is not CommAxis.PP], degrees)


def _axis_by_members(
    group: ProcessGroup, split: list[CommAxis], degrees: Mapping[str, int]
) -> CommAxis:
    """Return the axis with as many members, as far apart; the only one where that is not known."""
    distance: dict[CommAxis, int] = {
        CommAxis.TP: 1,
        CommAxis.CP: degrees["tp"],
        CommAxis.EP: degrees["tp"],
    }
    distance[CommAxis.DP] = degrees["tp"] * degrees["cp"]
    # Replicas reduce gradients among the ranks of their context too.
    sizes = {axis: {degrees[axis]} for axis in split}
    if CommAxis.DP in sizes:
        sizes[CommAxis.DP].add(degrees["dp"] * degrees["cp"])
    fits = [axis for axis in split if not group.size or group.size in sizes[axis]]
    if len(group.ranks) > 1:
        apart = group.ranks[1] - group.ranks[0]
        near = [axis for axis in fits if distance[axis] == apart]
        fits = near or fits
    plain: list[CommAxis] = [
        axis for axis in fits if axis is not CommAxis.EP
    ]  # experts send all-to-all
    fits = plain or fits
    return fits[0] if len(fits) == 1 else CommAxis.OTHER
