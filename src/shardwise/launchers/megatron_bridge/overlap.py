"""The section `comm_overlap` of a configuration, and what Bridge makes of it.

Of training/comm_overlap.py, Megatron-Bridge 067f987d of 2026-08-22.
"""

from collections.abc import Mapping

from shardwise.config.enums import TpOverlap
from shardwise.launchers.megatron.core_layout import expanded
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree

SECTION = "comm_overlap"
_MODULE = "megatron.bridge.training.comm_overlap"
TARGET_CLASS = f"{_MODULE}.CommOverlapConfig"

_RINGS = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad", "proj_fprop", "fc2_fprop")
"""Products that Transformer Engine can overlap as a ring, by its names."""
_BULK_MULTIPROCESSORS = {"qkv_dgrad": 4, "qkv_wgrad": 24, "fc1_dgrad": 2, "fc1_wgrad": 4}
"""Products that overlap full collectives, and multiprocessors of theirs
(userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192)."""
OF_REPLICAS = ("overlap_grad_reduce", "overlap_param_gather")
"""Fields that count with the distributed optimizer or FSDP only."""
_PIPELINED = ("proj_fprop", "fc2_fprop")
"""Products whose reduce-scatter Transformer Engine pipelines by default."""


def overlap_section(fields: Fields, overlap: TpOverlap, dp: int) -> Tree:
    """Return the section of a plan, complete, so that nothing of a recipe's remains."""
    split = bool(fields["tp_comm_overlap"])
    interleaved = bool(fields["overlap_p2p_comm"])
    stages = fields["pipeline_model_parallel_size"] != 1
    experts = bool(fields.get("overlap_moe_expert_parallel_comm"))
    return {
        TARGET: TARGET_CLASS,
        "tp_comm_overlap": split,
        "tp_comm_overlap_cfg": _rings() if split and overlap == TpOverlap.RING else None,
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": stages and not interleaved,
        "overlap_grad_reduce": bool(fields["overlap_grad_reduce"]),
        "overlap_param_gather": bool(fields["overlap_param_gather"]),
        "overlap_param_gather_with_optimizer_step": False,
        "defer_embedding_wgrad_compute": False,
        "overlap_moe_expert_parallel_comm": experts,
        "delay_wgrad_compute": False,
        "data_parallel_size": dp,
    }


def _rings() -> Leaf:
    """Rings for all products that can have one, bulk communication for the others."""
    rings: Tree = {name: {TARGET: f"{_MODULE}.RingExchangeOverlapCfg"} for name in _RINGS}
    bulk: Tree = {
        name: {
            TARGET: f"{_MODULE}.BulkOverlapCfg",
            "num_sm": multiprocessors,
            "cga_size": 2,
            "set_sm_margin": False,
        }
        for name, multiprocessors in _BULK_MULTIPROCESSORS.items()
    }
    return {TARGET: f"{_MODULE}.TransformerLayerTPOverlapCfg", **bulk, **rings}


def is_ring(value: Leaf) -> bool:
    """Whether a configuration of user buffers has rings where the default has a pipeline.

    It is a mapping of products to their methods, or the name of one of Bridge's.
    """
    if isinstance(value, str):
        return value.startswith("userbuffers_fp8_")
    if not isinstance(value, dict):
        return False
    methods = [value.get(name) for name in _PIPELINED]
    return all(_is_ring_exchange(method) for method in methods)


def _is_ring_exchange(method: Leaf) -> bool:
    if not isinstance(method, dict):
        return False
    words = (str(method.get(TARGET, "")), str(method.get("method", "")))
    return words[0].endswith("RingExchangeOverlapCfg") or words[1] == "ring_exchange"


def effective_overlap(section: Tree, fields: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields that the section sets in `model` and `ddp`."""

    def own(name: str, usual: Value) -> Value:
        value = section.get(name)
        return usual if value is None or isinstance(value, (list, dict)) else value

    split = fields.get("tensor_model_parallel_size") != 1 and bool(fields.get("sequence_parallel"))
    chosen: dict[str, Value] = {
        "tp_comm_overlap": own("tp_comm_overlap", False) if split else False,
        "overlap_p2p_comm": own("overlap_p2p_comm", _has_chunks(fields)),
        "overlap_moe_expert_parallel_comm": own("overlap_moe_expert_parallel_comm", False),
    }
    if fields.get("use_distributed_optimizer") or fields.get("use_megatron_fsdp"):
        chosen |= {name: own(name, True) for name in OF_REPLICAS}
    return chosen


def _has_chunks(fields: Mapping[str, Value]) -> bool:
    """Whether stages have several chunks of layers."""
    stages = fields.get("pipeline_model_parallel_size")
    if not isinstance(stages, int) or stages < 2:  # noqa: PLR2004 - one stage
        return False
    layout = fields.get("pipeline_model_parallel_layout")
    if layout is not None:
        try:
            listed = len(expanded(layout)) if isinstance(layout, str) else len(_listed(layout))
        except ValueError:  # reported where the layout is read
            return False
        return listed > stages
    chunks = fields.get("virtual_pipeline_model_parallel_size")
    return isinstance(chunks, int) and chunks > 1


def _listed(layout: Value) -> tuple[Value, ...]:
    return layout if isinstance(layout, tuple) else ()
