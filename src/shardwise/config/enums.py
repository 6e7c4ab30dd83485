"""Words of a strategy: what its fields of words may say, and how they are numbered in columns."""

from collections.abc import Iterable
from itertools import permutations
from typing import Literal, get_args

__all__ = [
    "ATTENTIONS",
    "CP_EXCHANGES",
    "DISPATCH_DTYPES",
    "DTYPES",
    "EXTENT_AXES",
    "FROZEN_PARTS",
    "KNOWN_WORDS",
    "LORA_PARTS",
    "OFFLOAD_PARTS",
    "OPEN_SETS",
    "OPTIMIZERS",
    "PLACED_AXES",
    "PLACEMENTS",
    "QUANTIZATIONS",
    "RECOMPUTES",
    "RECOMPUTE_PARTS",
    "SCHEDULES",
    "SETS",
    "SHORT_NAMES",
    "TIER_FIELDS",
    "TP_EXCHANGES",
    "TP_OVERLAPS",
    "WORDS",
    "ZERO_GRADIENTS",
    "ZERO_OPTIMIZER",
    "ZERO_WEIGHTS",
    "AttentionKind",
    "CpExchange",
    "DispatchDtype",
    "Dtype",
    "FlashKernel",
    "FrozenPart",
    "LoraPart",
    "OffloadPart",
    "Optimizer",
    "Quantization",
    "Recompute",
    "RecomputePart",
    "Schedule",
    "TpExchange",
    "TpOverlap",
    "bits_of",
    "set_of",
]

Dtype = Literal["bf16", "fp16", "fp32"]
Quantization = Literal["none", "fp8_tensor", "fp8_block", "mxfp8", "nvfp4"]
DispatchDtype = Literal["dtype", "fp8"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"]
AttentionKind = Literal["model", "multihead", "multiquery"]
TpExchange = Literal["all_reduce", "rs_ag", "p2p_rs_ag", "summa"]
TpOverlap = Literal["stack", "none", "ring", "pipe"]
CpExchange = Literal["ring", "all_gather", "all_to_all"]
FlashKernel = Literal["best", "flash2", "flash1"]
RecomputePart = Literal[
    "core_attention",
    "attention",
    "attention_norm",
    "mla_up",
    "mlp_norm",
    "activation",
    "mlp",
    "moe",
    "every_other",
    "qkv",
    "attention_out",
    "mlp_up",
]
FrozenPart = Literal["embedding", "attention", "mlp", "experts", "router", "norms", "head"]
LoraPart = Literal["attention", "mlp", "experts"]
OffloadPart = Literal[
    "attention_norm",
    "qkv",
    "core_attention",
    "attention_out",
    "mlp_norm",
    "mlp",
    "router",
    "expert_up",
    "activation",
    "expert_down",
    "other",
]
Optimizer = Literal["adamw", "adamw-8bit", "adamw-bf16", "adafactor", "muon", "sgd-momentum", "sgd"]

KNOWN_WORDS = frozenset((*get_args(Dtype), *get_args(Recompute), *get_args(TpExchange)))
ATTENTIONS: tuple[str, ...] = get_args(AttentionKind)
DTYPES: tuple[str, ...] = get_args(Dtype)
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
DISPATCH_DTYPES: tuple[str, ...] = get_args(DispatchDtype)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
SCHEDULES: tuple[str, ...] = get_args(Schedule)
TP_EXCHANGES: tuple[str, ...] = get_args(TpExchange)
TP_OVERLAPS: tuple[str, ...] = get_args(TpOverlap)
CP_EXCHANGES: tuple[str, ...] = get_args(CpExchange)
RECOMPUTE_PARTS: tuple[str, ...] = get_args(RecomputePart)
FROZEN_PARTS: tuple[str, ...] = get_args(FrozenPart)
LORA_PARTS: tuple[str, ...] = get_args(LoraPart)
OFFLOAD_PARTS: tuple[str, ...] = get_args(OffloadPart)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
# Stages of ZeRO (arXiv 1910.02054) from which on each of these is split.
ZERO_OPTIMIZER, ZERO_GRADIENTS, ZERO_WEIGHTS = 1, 2, 3
PLACED_AXES = ("tp", "cp", "dp", "pp")
EXTENT_AXES = ("tp", "tp2", "cp", "dp", "pp")
"""Axes that have extents; in a placement, and where tiers are given, tp2 goes with tp."""
TIER_FIELDS = tuple(f"{axis}_tier" for axis in PLACED_AXES)
PLACEMENTS: tuple[str, ...] = tuple("-".join(order) for order in permutations(PLACED_AXES))
SHORT_NAMES = {"mbs": "micro_batch_size", "gbs": "global_batch_size"}
WORDS = {
    "dtype": DTYPES,
    "quantization": QUANTIZATIONS,
    "dispatch_dtype": DISPATCH_DTYPES,
    "attention": ATTENTIONS,
    "recompute": RECOMPUTES,
    "schedule": SCHEDULES,
    "placement": PLACEMENTS,
    "tp_exchange": TP_EXCHANGES,
    "tp_overlap": TP_OVERLAPS,
    "cp_exchange": CP_EXCHANGES,
    "optimizer": OPTIMIZERS,
}
SETS = {
    "recompute_parts": RECOMPUTE_PARTS,
    "frozen": FROZEN_PARTS,
    "lora_parts": LORA_PARTS,
    "offload_parts": OFFLOAD_PARTS,
}
"""Fields that are sets of words, which a column holds as bits."""
OPEN_SETS = ("offload_parts",)
"""Those of them that may be left open, which a column holds as 0."""


def bits_of(parts: Iterable[str], field: str = "recompute_parts") -> int:
    """A set of the words of a field as the bits of a number."""
    return sum(1 << SETS[field].index(part) for part in set(parts))


def set_of(bits: int, field: str = "recompute_parts") -> tuple[str, ...]:
    """The words of a field that the bits of a number stand for."""
    return tuple(part for place, part in enumerate(SETS[field]) if bits >> place & 1)
