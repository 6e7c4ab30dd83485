"""What Megatron-LM refuses, and Megatron-Bridge and Primus, which wrap it."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher_rules.plan import (
    ALWAYS,
    NO_TIERS,
    NOWHERE,
    ON_HOST,
    Abilities,
    Plan,
    Release,
    Rule,
    ability_faults,
    any_of,
    expert_degree_faults,
    grid_faults,
    part_faults,
    plan_of,
)

_MEGATRON: Abilities = {
    **NOWHERE,
    **ON_HOST,
    **NO_TIERS,
    "schedule": any_of("1f1b", "interleaved"),
    "tp_exchange": any_of("all_reduce", "rs_ag"),
    "tp_overlap": any_of("stack", "none", "ring"),  # `pipe` of reduce-scatters only
    "cp_exchange": {"ring": (0, 4), "all_gather": (0, 10), "all_to_all": (0, 10)},
    "embedding_as_layer": {False: ALWAYS, True: (0, 11)},
    "loss_as_layer": {False: ALWAYS, True: (0, 11)},
    "zero": {0: ALWAYS, 1: (0, 4), 2: (0, 12), 3: (0, 10)},
    "fsdp_reshard": {True: ALWAYS, False: (0, 10)},
    "fsdp_prefetch": any_of(1),
    "grad_sync": any_of("stack", "micro_batch"),
    "loss": {
        **any_of("stack", "vocab_parallel"),
        "vocab_parallel_fused": (0, 8),
        "in_place": (0, 12),
    },
    "attention_kernel": any_of(
        "stack", "best", "unfused", "flash2", "flash3", "flash4", "cudnn", "ck", "aotriton"
    ),
    "dispatcher": {
        "all_gather": ALWAYS,
        "all_to_all": (0, 6),
        "deepep": (0, 12),
        "hybridep": (0, 16),
    },
    "dispatch_dtype": any_of("dtype"),  # mxfp8 needs ncclep, which shardwise does not model
    "expert_overlap": {False: ALWAYS, True: (0, 14)},
    "expert_kernel": {"stack": ALWAYS, "calls": ALWAYS, "fused": (0, 19)},
    "cuda_graphs": {"stack": ALWAYS, "none": ALWAYS, "partial": (0, 12), "full": (0, 15)},
    "compile": any_of("stack", "none"),
    "fused_activation": any_of(False),
    "offload_weights": any_of(False),
    "offload_optimizer": {False: ALWAYS, True: (0, 12)},
    "quantization": {
        "none": ALWAYS,
        "fp8_tensor": (0, 4),
        "mxfp8": (0, 12),
        "fp8_block": (0, 13),
        "nvfp4": (0, 15),
    },
    "quantized_weights": {False: ALWAYS, True: (0, 9)},
    "optimizer": {
        "adamw": ALWAYS,
        "sgd": ALWAYS,
        "sgd-momentum": ALWAYS,
        "adamw-bf16": (0, 11),
        "adamw-8bit": (0, 11),
        "muon": (0, 16),
    },
    "lora_rank": any_of(None),
    "task": any_of("pretrain"),
    "checkpoint_place": any_of("device"),
    "frozen": any_of(()),
}
_MEGATRON_PARTS: Mapping[str, Release] = {
    "core_attention": (0, 4),
    "attention_norm": (0, 12),
    "mlp_norm": (0, 12),
    "mla_up": (0, 12),
    "activation": (0, 12),
    "mlp": (0, 12),
    "moe": (0, 12),
    "shared_experts": (0, 16),  # not among the modules of 0.12
    "mixer_gate": (0, 19),
}
_OFFLOAD_MODULES = {
    "attention_norm",
    "qkv",
    "core_attention",
    "attention_out",
    "mlp_norm",
    "expert_up",
    "activation",
}
_EXPERT_GROUP = {"expert_up", "activation", "expert_down"}
# DeepEP of Bridge (`training/flex_dispatcher_backend.py`) leaves these out.
_NVLINK_RACKS = ("gb200", "gb300")
_BLACKWELL = ("b200", "b300", "gb200", "gb300")


def _megatron_degrees(plan: Plan) -> Iterator[str]:
    tp, pp, cp = plan["tp"], plan["pp"], plan["cp"]
    etp = plan["etp"] if plan.experts else tp  # A: expert_tensor_parallel_size defaults to tp
    if plan["gpus"] % (etp * plan["ep"] * pp):  # P:875
        yield "ep: etp x ep x pp must divide gpus"
    splits_sequence = tp > 1 and plan["tp_exchange"] == "rs_ag"
    if splits_sequence and plan["seq_len"] % (tp * cp):  # tensor_parallel/mappings.py:173
        yield f"seq_len {plan['seq_len']}: must be a multiple of tp x cp"
    if cp > 1 and plan["seq_len"] % (2 * cp):  # A:1336
        yield f"seq_len {plan['seq_len']}: must be a multiple of 2 x cp"
    if any(moe.bias for moe in plan.experts) and plan["etp"] > 1:  # T:2612
        yield "etp: experts with biases are not split"
    if not plan.orders_as("tp-cp-dp-pp"):
        if not plan.orders_as("tp-cp-pp-dp"):
            yield f"placement {plan['placement']}: only tp-cp-dp-pp and tp-cp-pp-dp"
        elif pp > 1 and etp * plan["ep"] != tp * cp:  # P:898
            yield "placement tp-cp-pp-dp: etp x ep must be tp x cp"


def _megatron_heads(plan: Plan) -> Iterator[str]:
    tp, cp = plan["tp"], plan["cp"]
    for heads, groups in plan.heads:  # T:1446-1462
        if heads % tp:
            yield f"tp {tp}: must divide {heads} heads"
        if groups % tp and tp % groups:
            yield f"tp {tp}: must divide {groups} key-value heads or be a multiple of them"
        if cp > 1 and plan["cp_exchange"] == "all_to_all":  # TE, context_parallel.py:4247
            of_rank = (heads // tp, max(1, groups // tp))
            if any(count % cp for count in of_rank):
                yield f"cp {cp}: all_to_all must divide the heads of a tp rank, {of_rank}"


def _megatron_tensor_parallel(plan: Plan) -> Iterator[str]:
    if plan["tp"] == 1:
        return
    splits_sequence = plan["tp_exchange"] == "rs_ag"
    if plan["tp_overlap"] in ("ring", "pipe") and not splits_sequence:  # A:1441
        yield "tp_overlap: needs tp_exchange rs_ag"
    if plan.experts and plan["training"] and not splits_sequence:  # moe_layer.py:636
        yield "tp_exchange: experts with tp > 1 need rs_ag"


def _megatron_stages(plan: Plan) -> Iterator[str]:
    pp, vpp, depth = plan["pp"], plan["vpp"], plan.depth
    ends = [plan["first_stage_layers"], plan["last_stage_layers"]]
    counted = plan["embedding_as_layer"] + plan["loss_as_layer"]
    layout = plan["stage_layers"]
    if layout is not None:
        if plan.release < (0, 13):
            yield "stage_layers: not before release 0.13"
        if counted or any(ends):  # T:2229-2259
            yield "stage_layers: excludes other ways to spread layers"
        if len(layout) != pp * vpp or sum(layout) != depth:
            yield f"stage_layers: must be pp x vpp = {pp * vpp} counts of {depth} layers"
    elif any(ends):
        if plan.release < (0, 9):
            yield "first_stage_layers, last_stage_layers: not before release 0.9"
        if counted:
            yield "first_stage_layers: excludes embedding_as_layer and loss_as_layer"
        yield from _megatron_middle_stages(pp, vpp, depth, [end for end in ends if end])
    elif (depth + counted) % pp:  # A:985-998
        yield f"pp {pp}: must divide {depth + counted} layers"
    elif (depth + counted) // pp % vpp:
        yield f"vpp {vpp}: must divide {(depth + counted) // pp} layers per stage"


def _megatron_middle_stages(pp: int, vpp: int, depth: int, ends: list[int]) -> Iterator[str]:
    """Faults of stages between a first or last one of its own size (T:2295-2368)."""
    stages, layers = pp - len(ends), depth - sum(ends)
    if any(end % vpp for end in ends):
        yield "first_stage_layers, last_stage_layers: must be multiples of vpp"
    if bool(stages) != bool(layers) or min(stages, layers) < 0:
        yield f"first_stage_layers: {layers} layers are left for {stages} stages"
    elif stages and (layers % stages or layers // stages % vpp):
        yield f"first_stage_layers: {layers} layers for {stages} stages of {vpp} chunks"


def _megatron_interleaving(plan: Plan) -> Iterator[str]:
    pp, vpp = plan["pp"], plan["vpp"]
    if plan["schedule"] in ("1f1b", "interleaved"):
        if (plan["schedule"] == "interleaved") != (vpp > 1):
            yield f"schedule {plan['schedule']}: contradicts vpp {vpp}"
        if vpp > 1 and pp == 1:  # A:1000-1009
            yield "vpp: interleaving needs pp > 1"
        if vpp > 1 and pp > 1 and plan.micro_batches % pp:  # S:1158, group size pp
            yield f"vpp: {plan.micro_batches} micro-batches are no multiple of pp {pp}"


def _megatron_recompute(plan: Plan) -> Iterator[str]:
    layers = plan["recompute_layers"]
    if plan["recompute"] == "selective" and layers is not None:  # T:560
        yield "recompute_layers: with recompute full only"
    if plan["recompute"] == "full" and layers is not None:
        if not 1 <= layers <= plan.depth // plan["pp"]:  # T:1919
            yield f"recompute_layers {layers}: at most the layers of a stage"
        if layers % plan["vpp"]:  # counted per chunk, core/recompute.py:167
            yield f"recompute_layers {layers}: must be a multiple of vpp"


def _megatron_modules(plan: Plan) -> Iterator[str]:
    parts = plan.parts
    yield from part_faults(plan, _MEGATRON_PARTS)
    norms = parts & {"attention_norm", "mlp_norm"}
    if len(norms) == 1:
        yield "recompute_parts: layernorm is both attention_norm and mlp_norm"
    if norms and not (plan.is_latent or plan.experts):  # gpt_layer_specs.py:117
        yield "recompute_parts: norms are fused into the products that follow"
    if "mla_up" in parts and not plan.is_latent:
        yield "recompute_parts mla_up: of latent attention only"
    if parts & {"activation", "moe"} and not plan.experts:
        yield "recompute_parts activation, moe: of experts only"
    if "shared_experts" in parts and not any(moe.shared_ffn for moe in plan.experts):
        yield "recompute_parts shared_experts: there are none"
    if "mlp" in parts and not plan.has_dense_layers:
        yield "recompute_parts mlp: of dense layers only"


def _megatron_shards(plan: Plan) -> Iterator[str]:
    zero, dp, shard = plan["zero"], plan["dp"], plan["dp_shard"]
    if zero == 0 or not plan.is_sharded or shard in (None, dp):
        return
    if dp % shard:
        yield f"dp_shard {shard}: must divide dp {dp}"
    ranks_of_expert = plan["gpus"] // (plan["etp"] * plan["ep"] * plan["pp"])
    if plan.experts and ranks_of_expert % max(1, dp // shard):  # 0.16.1, P:1263
        yield f"dp_shard {shard}: replicas must divide those of an expert"
    if plan.release < ((0, 14) if zero > 1 else (0, 10)):
        yield "dp_shard: not in this release"


def _megatron_sharding(plan: Plan) -> Iterator[str]:
    zero = plan["zero"] if plan.is_sharded or plan["zero"] == 3 else 0
    if zero > 1 and plan["optimizer"] == "muon":
        yield "zero 2, 3: not with muon"
    if zero > 1 and not plan.orders_as("tp-cp-dp-pp"):  # Bridge: not with Megatron-FSDP
        yield "placement: zero 2 and 3 need tp-cp-dp-pp"
    if plan["zero"] == 3 and not plan["fsdp_reshard"]:  # torch FSDP2, A:1031-1064
        if plan["pp"] > 1 or plan["ep"] > 1:
            yield "fsdp_reshard false: needs pp 1 and ep 1"
        if plan.model.tied_embeddings or plan["dtype"] == "fp16" or plan["quantized_weights"]:
            yield "fsdp_reshard false: not with tied embeddings, fp16, quantized_weights"


def _megatron_precision(plan: Plan) -> Iterator[str]:
    if plan["quantized_weights"]:
        if plan["quantization"] == "none":
            yield "quantized_weights: needs quantization"
        if plan.is_sharded and not plan["zero"] and not plan["lora_rank"]:
            yield "quantized_weights: needs zero 1 or more"
    if plan["offload_optimizer"] and not plan["optimizer"].startswith("adamw"):  # A:1884
        yield f"offload_optimizer: not with {plan['optimizer']}"
    is_aware = plan["offload_optimizer"] or plan["optimizer"] in ("adamw-bf16", "adamw-8bit")
    if (
        is_aware and plan.is_sharded and not plan["zero"]
    ):  # megatron-core 0.16.1, optimizer_config.py:379
        yield "optimizer, offload_optimizer: types of its state need zero 1 or more"
    if plan.model.mtp and plan.model.position not in ("rope", "learned"):  # A:1942
        yield f"mtp: not with {plan.model.position} positions"


def _megatron_expert_overlap(plan: Plan) -> Iterator[str]:
    if not plan["expert_overlap"]:  # T:3002-3071
        return
    if plan["ep"] == 1:
        yield "expert_overlap: needs ep > 1"
    if plan.dispatcher == "all_gather":
        yield "expert_overlap: not with dispatcher all_gather"
    if plan["dtype"] == "fp32":
        yield "expert_overlap: not in fp32"
    if plan["pp"] > 1 and plan["vpp"] == 1:
        yield "expert_overlap: needs vpp > 1 with pp > 1"
    if plan["recompute"] == "full" or "moe" in plan.parts:
        yield "expert_overlap: not with recompute of experts"
    if plan.model.mtp > 1:
        yield "expert_overlap: at most one module of multi-token prediction"


def _megatron_dispatch(plan: Plan) -> Iterator[str]:
    if plan.dispatcher in ("deepep", "hybridep") and plan["etp"] * plan["ep"] == 1:
        yield f"dispatcher {plan.dispatcher}: needs etp x ep > 1"
    if plan.experts and plan["expert_capacity"] is not None:
        if plan.release < (0, 7):
            yield "expert_capacity: not before release 0.7"
        if plan.dispatcher == "deepep":
            yield "expert_capacity: deepep does not pad to a capacity"


def _megatron_offload(plan: Plan) -> Iterator[str]:
    if plan.offloads_all_activations or plan["offload_weights"]:  # T:1884-1899
        yield "offload: of fewer than all layers"
        if plan["pp"] > 1:
            yield "offload of layers: needs pp 1"
        if plan["recompute"] != "none":
            yield "offload of layers: not with recompute"


def _megatron_offload_modules(plan: Plan) -> Iterator[str]:
    parts = plan.offloaded_parts
    if parts and plan.release < (0, 16):
        yield "offload_parts: not before release 0.16"
    if parts >= _EXPERT_GROUP:  # fused_group_mlp, needs the op fuser
        parts -= _EXPERT_GROUP
        if plan.release < (0, 18):
            yield "offload_parts expert_down: not before release 0.18"
    if parts - _OFFLOAD_MODULES:
        yield f"offload_parts {', '.join(sorted(parts - _OFFLOAD_MODULES))}: cannot"
    if "attention_out" in parts and "core_attention" not in parts:
        yield "offload_parts attention_out: with core_attention only"


def _megatron_offload_modules_of_models(plan: Plan) -> Iterator[str]:
    parts = plan.offloaded_parts
    if parts & _EXPERT_GROUP:
        if not plan.experts:
            yield "offload_parts expert_up, activation: of experts only"
        if "moe" in plan.parts:
            yield "offload_parts expert_up, activation: not with recompute of moe"
    if "attention_norm" in parts and not plan.is_latent:
        yield "offload_parts attention_norm: the norm is fused"
    if "mlp_norm" in parts and not plan.experts:
        yield "offload_parts mlp_norm: the norm is fused"


def _megatron_graphs(plan: Plan, graphs: str) -> Iterator[str]:
    said = plan["cuda_graphs"]
    graphs = graphs if said == "stack" else said
    if graphs == "none":
        return
    if said != "stack" and plan["document_len"]:
        yield "document_len: packed documents have no static shapes"
    if "moe" in (plan["graph_scope"] or ()) and plan.experts and plan["expert_capacity"] is None:
        yield "graph_scope moe: not without a capacity"
    if plan["recompute"] == "full" and graphs != "full":  # T:2856
        yield "recompute full: not with partial CUDA graphs"
    if plan.offloads_all_activations or plan["offload_weights"]:
        yield "offload of layers: not with CUDA graphs"
    if "moe" in plan.parts and graphs == "partial":
        yield "recompute_parts moe: not with graphs of the router"
    is_static = plan["expert_capacity"] is not None or plan.dispatcher == "hybridep"
    if plan.experts and graphs == "full" and not is_static:
        yield "full CUDA graphs: not with dropless experts"


def _megatron_overlapped_graphs(plan: Plan) -> Iterator[str]:
    if plan["cuda_graphs"] == "partial" and plan["expert_overlap"] and plan.experts:
        if plan["zero"] > 1 and plan.is_sharded:
            yield "cuda_graphs partial: not with Megatron-FSDP and overlap"
        if {"mlp", "moe"} & set(plan["graph_scope"] or ()):
            yield "graph_scope mlp, moe: not with overlap"


def _megatron_experts(plan: Plan) -> Iterator[str]:
    recipes = ("mxfp8", "nvfp4")
    if plan.experts and plan["expert_kernel"] == "fused" and plan["quantization"] not in recipes:
        yield "expert_kernel fused: of mxfp8 and nvfp4"


def _megatron_machine(plan: Plan, machine: str) -> Iterator[str]:
    if plan.dispatcher == "deepep" and machine.startswith(_NVLINK_RACKS):
        yield f"dispatcher deepep: not on {machine}"
    if plan["quantization"] in ("mxfp8", "nvfp4") and not machine.startswith(_BLACKWELL):
        yield f"quantization {plan['quantization']}: not on {machine}"


def _primus(plan: Plan) -> Iterator[str]:
    if plan["schedule"] in ("zb-h1", "zb-v"):
        if plan["dp_overlap"] and plan.is_sharded:
            yield f"schedule {plan['schedule']}: needs dp_overlap false"
        if plan["quantization"] != "none" or plan["tp_overlap"] in ("ring", "pipe"):
            yield f"schedule {plan['schedule']}: not with quantization or tp_overlap"
    if plan["quantization"] == "nvfp4":
        yield "quantization nvfp4: cannot"


def _megatron_attention(plan: Plan) -> Iterator[str]:
    if plan["attention_kernel"] == "flash4" and plan["cp"] > 1:  # TE, utils.py
        yield "attention_kernel flash4: no context parallelism"


_MEGATRON_RULES: tuple[Rule, ...] = (
    _megatron_attention,
    grid_faults,
    expert_degree_faults,
    _megatron_degrees,
    _megatron_heads,
    _megatron_tensor_parallel,
    _megatron_stages,
    _megatron_interleaving,
    _megatron_recompute,
    _megatron_modules,
    _megatron_shards,
    _megatron_sharding,
    _megatron_precision,
    _megatron_expert_overlap,
    _megatron_experts,
    _megatron_overlapped_graphs,
    _megatron_dispatch,
    _megatron_offload,
    _megatron_offload_modules,
    _megatron_offload_modules_of_models,
)


def megatron_faults(
    model: Any,
    strategy: Mapping[str, Any],
    release: str,
    *,
    bridge: bool = False,
    primus: bool = False,
    graphs: str = "none",
    machine: str = "",
) -> list[str]:
    """Rules of Megatron-LM that a plan breaks; of Megatron-Bridge or Primus, which wrap it.

    `graphs` is what the stack captures in CUDA graphs, `machine` the name of the system.
    """
    plan = plan_of(model, strategy, release)
    abilities = dict(_MEGATRON)
    if bridge:
        abilities |= {"offload_weights": any_of(False, True)}
        del abilities["lora_rank"]
        del abilities["task"]
        if plan.release > (0, 13):  # no option of Bridge's says it
            abilities["fsdp_reshard"] = any_of(True)
        if plan["lora_rank"] and {"embedding", "head"} & set(plan["lora_parts"]):
            return ["lora_parts: adapters of products in layers only"]  # peft/lora.py
    if primus:
        abilities |= {
            "schedule": any_of("1f1b", "interleaved", "zb-h1", "zb-v"),
            "tp_overlap": any_of("stack", "none"),  # Transformer Engine on ROCm: not checked
        }
        del abilities["lora_rank"]  # its trainer for fine-tuning
        del abilities["task"]
    faults = list(ability_faults(plan, abilities))
    for rule in (*_MEGATRON_RULES, *([_primus] if primus else [])):
        faults += rule(plan)
    faults += _megatron_graphs(plan, graphs)
    return faults + (list(_megatron_machine(plan, machine)) if machine and not primus else [])
