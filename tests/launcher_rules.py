"""What trainers refuse, as read in their sources; an oracle for the plans that we recommend.

It shares nothing with the rules of shardwise: a plan is a strategy as JSON, of a model it reads
facts of the architecture only. Sources, with `file:line` of Megatron-LM in the messages' comments
(A = `megatron/training/arguments.py`, T = `megatron/core/transformer/transformer_config.py`,
M = `megatron/core/model_parallel_config.py`, P = `megatron/core/parallel_state.py`,
S = `megatron/core/pipeline_parallel/schedules.py`): Megatron-LM d98e8a64 and Megatron-Bridge
067f987d, torchtitan b5bcd76c and v0.2.2, DeepSpeed edaa7221, accelerate 16cb6eb8, Primus fd1eeabb,
MaxText e591f30c, all of August 2026.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Release = tuple[int, ...]
NEWEST: Release = (999,)
ALWAYS: Release = ()

# For each field, what it may be, and the first release that can; a value left out no release can.
Abilities = Mapping[str, Mapping[object, Release]]


def release_numbers(release: str) -> Release:
    """`0.16.1` as numbers; `main` is after all of them."""
    return NEWEST if release == "main" else tuple(int(part) for part in re.findall(r"\d+", release))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A strategy, the model that it runs, and the release that runs it."""

    model: Any
    values: Mapping[str, Any]
    release: Release

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def micro_batches(self) -> int:
        return self["global_batch_size"] // (self["micro_batch_size"] * self["dp"])

    @property
    def depth(self) -> int:
        return sum(layer.count for layer in self.model.layers)

    @property
    def heads(self) -> set[tuple[int, int]]:
        """Heads of queries and of keys and values, of each kind of layer."""
        pairs = set()
        for layer in self.model.layers:
            heads = layer.attention.heads
            groups = {"model": layer.attention.kv_heads, "multihead": heads, "multiquery": 1}
            pairs.add((heads, groups[self["attention"]]))
        return pairs

    @property
    def experts(self) -> list[Any]:
        """Mixtures of experts, one per kind of layer that has one."""
        return [layer.moe for layer in self.model.layers if layer.moe is not None]

    @property
    def has_dense_layers(self) -> bool:
        return any(layer.moe is None for layer in self.model.layers)

    @property
    def is_latent(self) -> bool:
        return any(layer.attention.latent is not None for layer in self.model.layers)

    @property
    def dispatcher(self) -> str | None:
        """Dispatcher of tokens, if there is one and the plan names it."""
        return self.values.get("dispatcher") if self.experts else None

    @property
    def parts(self) -> set[str]:
        """Parts of a layer that are recomputed."""
        return set(self["recompute_parts"]) if self["recompute"] == "selective" else set()

    @property
    def offloaded_parts(self) -> set[str]:
        """Parts whose activations are offloaded; empty where it is none or all of them."""
        return set(self["offload_parts"] or ()) if self["offload_activations"] else set()

    @property
    def offloads_all_activations(self) -> bool:
        return self["offload_activations"] and not self["offload_parts"]

    @property
    def is_sharded(self) -> bool:
        """Whether there is anything to shard or reduce over."""
        return self["dp"] * self["cp"] > 1

    @property
    def order(self) -> tuple[str, ...]:
        """Axes that have more than one rank, innermost first."""
        return tuple(axis for axis in self["placement"].split("-") if self[axis] > 1)

    def orders_as(self, placement: str) -> bool:
        """Whether its ranks are in this order; axes of one rank are anywhere."""
        return self.order == tuple(axis for axis in placement.split("-") if self[axis] > 1)

    def is_idle(self, name: str) -> bool:
        """Whether nothing depends on a field, so that a launch file leaves it out."""
        return {
            "tp_exchange": self["tp"] * self["tp2"] == 1,
            "tp_overlap": self["tp"] * self["tp2"] == 1,
            "tp_regather": self["tp"] == 1 or self["tp_exchange"] != "rs_ag",
            "cp_exchange": self["cp"] == 1,
            "embedding_as_layer": self["pp"] == 1,
            "loss_as_layer": self["pp"] == 1,
            "zero": not self.is_sharded,
            "dp_overlap": not self.is_sharded,
            "fsdp_reshard": self["zero"] < 3 or not self.is_sharded,
            "fsdp_prefetch": self["zero"] < 3 or not self.is_sharded,
            "dispatcher": not self.experts,
            "dispatch_dtype": not self.experts,
            "expert_capacity": not self.experts,
        }.get(name, False)


Rule = Callable[[Plan], Iterator[str]]


def _ability_faults(plan: Plan, abilities: Abilities) -> Iterator[str]:
    for name, since in abilities.items():
        value = plan.values.get(name)
        if plan.is_idle(name) or (value is None and name == "dispatcher"):
            continue
        if value not in since:
            yield f"{name} {value}: cannot"
        elif since[value] > plan.release:
            yield f"{name} {value}: not before release {'.'.join(map(str, since[value]))}"


def _part_faults(plan: Plan, known: Mapping[str, Release]) -> Iterator[str]:
    for part in sorted(plan.parts):
        if part not in known:
            yield f"recompute_parts {part}: cannot"
        elif known[part] > plan.release:
            yield f"recompute_parts {part}: not before {'.'.join(map(str, known[part]))}"


def _only_defaults(**values: object) -> dict[str, dict[object, Release]]:
    return {name: {value: ALWAYS} for name, value in values.items()}


def _any_of(*values: object) -> dict[object, Release]:
    return dict.fromkeys(values, ALWAYS)


# No trainer has two-dimensional products, and none keeps gathered inputs of sequence parallelism.
_NOWHERE = _only_defaults(tp2=1, tp_regather=True)
_NO_TIERS = _only_defaults(extents=None, tp_tier=None, cp_tier=None, dp_tier=None, pp_tier=None)
_NO_STAGES = _only_defaults(
    pp=1,
    vpp=1,
    first_stage_layers=None,
    last_stage_layers=None,
    stage_layers=None,
    embedding_as_layer=False,
    loss_as_layer=False,
)


def _grid_faults(plan: Plan) -> Iterator[str]:
    product = plan["tp"] * plan["tp2"] * plan["cp"] * plan["pp"] * plan["dp"]
    if product != plan["gpus"]:
        yield f"gpus {plan['gpus']}: the degrees multiply to {product}"
    if plan["global_batch_size"] % (plan["micro_batch_size"] * plan["dp"]):
        yield "global_batch_size: must be a multiple of micro_batch_size x dp"


def _expert_degree_faults(plan: Plan) -> Iterator[str]:
    if not plan.experts and (plan["ep"] > 1 or plan["etp"] > 1):
        yield "ep, etp: the model has no experts"
    for moe in plan.experts:
        if moe.experts % plan["ep"]:
            yield f"ep {plan['ep']}: must divide {moe.experts} experts"


# --- Megatron-LM, Megatron-Bridge, Primus ---------------------------------------------------------

_MEGATRON: Abilities = {
    **_NOWHERE,
    **_NO_TIERS,
    "schedule": _any_of("1f1b", "interleaved"),
    "tp_exchange": _any_of("all_reduce", "rs_ag"),
    "tp_overlap": _any_of("stack", "none", "ring"),  # `pipe` of reduce-scatters only
    "cp_exchange": {"ring": (0, 4), "all_gather": (0, 10), "all_to_all": (0, 10)},
    "embedding_as_layer": {False: ALWAYS, True: (0, 11)},
    "loss_as_layer": {False: ALWAYS, True: (0, 11)},
    "zero": {0: ALWAYS, 1: (0, 4), 2: (0, 12), 3: (0, 10)},
    "fsdp_reshard": {True: ALWAYS, False: (0, 10)},
    "fsdp_prefetch": _any_of(1),
    "dispatcher": {
        "all_gather": ALWAYS,
        "all_to_all": (0, 6),
        "deepep": (0, 12),
        "hybridep": (0, 16),
    },
    "dispatch_dtype": _any_of("dtype"),  # mxfp8 of ncclep only, which is no dispatcher of ours
    "expert_overlap": {False: ALWAYS, True: (0, 14)},
    "fused_activation": _any_of(False),
    "offload_weights": _any_of(False),
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
    "lora_rank": _any_of(None),
    "frozen": _any_of(()),
}
_MEGATRON_PARTS: Mapping[str, Release] = {
    "core_attention": (0, 4),
    "attention_norm": (0, 12),
    "mlp_norm": (0, 12),
    "mla_up": (0, 12),
    "activation": (0, 12),
    "mlp": (0, 12),
    "moe": (0, 12),
    "shared_experts": (0, 12),
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
    yield from _part_faults(plan, _MEGATRON_PARTS)
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
    zero = plan["zero"]
    if not plan.is_sharded:
        return
    if zero > 1 and plan["optimizer"] == "muon":
        yield "zero 2, 3: not with muon"
    if zero > 1 and not plan.orders_as("tp-cp-dp-pp"):  # Bridge: not with Megatron-FSDP
        yield "placement: zero 2 and 3 need tp-cp-dp-pp"
    if zero == 3 and not plan["fsdp_reshard"]:  # torch FSDP2, A:1031-1064
        if plan["pp"] > 1 or plan["ep"] > 1:
            yield "fsdp_reshard false: needs pp 1 and ep 1"
        if plan.model.tied_embeddings or plan["dtype"] == "fp16" or plan["quantized_weights"]:
            yield "fsdp_reshard false: not with tied embeddings, fp16, quantized_weights"


def _megatron_precision(plan: Plan) -> Iterator[str]:
    if plan["quantized_weights"]:
        if plan["quantization"] == "none":
            yield "quantized_weights: needs quantization"
        if not plan["zero"]:
            yield "quantized_weights: needs zero 1 or more"
    if plan["offload_optimizer"] and not plan["optimizer"].startswith("adamw"):  # A:1884
        yield f"offload_optimizer: not with {plan['optimizer']}"
    is_aware = plan["offload_optimizer"] or plan["optimizer"] in ("adamw-bf16", "adamw-8bit")
    if is_aware and not plan["zero"]:  # megatron-core 0.16.1, optimizer_config.py:379
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
    if graphs == "none":
        return
    if plan["recompute"] == "full" and graphs != "full":  # T:2856
        yield "recompute full: not with partial CUDA graphs"
    if plan.offloads_all_activations or plan["offload_weights"]:
        yield "offload of layers: not with CUDA graphs"
    if "moe" in plan.parts and graphs == "partial":
        yield "recompute_parts moe: not with graphs of the router"
    is_static = plan["expert_capacity"] is not None or plan.dispatcher == "hybridep"
    if plan.experts and graphs == "full" and not is_static:
        yield "full CUDA graphs: not with dropless experts"


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


_MEGATRON_RULES: tuple[Rule, ...] = (
    _grid_faults,
    _expert_degree_faults,
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
    plan = _plan(model, strategy, release)
    abilities = dict(_MEGATRON)
    if bridge:
        abilities |= {"offload_weights": _any_of(False, True)}
        del abilities["lora_rank"]
    if primus:
        abilities |= {"schedule": _any_of("1f1b", "interleaved", "zb-h1", "zb-v")}
    faults = list(_ability_faults(plan, abilities))
    for rule in (*_MEGATRON_RULES, *([_primus] if primus else [])):
        faults += rule(plan)
    faults += _megatron_graphs(plan, graphs)
    return faults + (list(_megatron_machine(plan, machine)) if machine and not primus else [])


# --- torchtitan -----------------------------------------------------------------------------------

_MAIN: Release = (0, 3)  # since 9810191bb of 2026-02-23, after v0.2.2
_TITAN: Abilities = {
    **_NOWHERE,
    **_NO_TIERS,
    "schedule": _any_of("1f1b", "gpipe", "interleaved", "zb-v"),
    "tp_exchange": {"rs_ag": ALWAYS, "all_reduce": _MAIN},
    "tp_overlap": _any_of("stack", "none", "ring"),
    "zero": _any_of(0, 2, 3),
    "fsdp_prefetch": _any_of(1),
    "dp_overlap": _any_of(True),
    "recompute_layers": _any_of(None),
    "quantized_weights": _any_of(False, True),
    "dtype": _any_of("bf16", "fp32"),
    "optimizer": {"adamw": ALWAYS, "adamw-bf16": _MAIN, "muon": _MAIN},
    "lora_rank": _any_of(None),
    "frozen": _any_of(()),
    "fused_activation": _any_of(False),
    "offload_activations": _any_of(False),
    "expert_overlap": _any_of(False),
    "dispatch_dtype": _any_of("dtype"),
    "dispatcher": {"all_to_all": ALWAYS, "deepep": (0, 2, 1), "hybridep": _MAIN},
}


def _titan_degrees(plan: Plan) -> Iterator[str]:
    tp, cp = plan["tp"], plan["cp"]
    for heads, groups in plan.heads:
        if heads % tp or groups % tp:
            yield f"tp {tp}: must divide {heads} heads and {groups} key-value heads"
    multiple = (tp if plan["tp_exchange"] == "rs_ag" else 1) * (2 * cp if cp > 1 else 1)
    if plan["micro_batch_size"] * plan["seq_len"] % multiple:
        yield f"seq_len: tokens of a micro-batch must be a multiple of {multiple}"
    if not plan.orders_as("tp-cp-dp-pp"):
        yield f"placement {plan['placement']}: only tp-cp-dp-pp"


def _titan_shards(plan: Plan) -> Iterator[str]:
    tp, cp, dp, ep = plan["tp"], plan["cp"], plan["dp"], plan["ep"]
    if plan["zero"] == 0 and cp > 1:
        yield "zero 0: cp shards weights"
    shard = 1 if plan["zero"] == 0 else plan["dp_shard"] or dp
    if dp % shard:
        yield f"dp_shard {shard}: must divide dp {dp}"
    if plan.experts and ep > 1:
        is_main = plan.release >= _MAIN
        if plan["etp"] not in ((1,) if is_main else (1, tp)):
            yield f"etp {plan['etp']}: experts are not split inside"
        if shard * cp * tp % (ep * plan["etp"]):
            yield f"ep {ep}: must divide dp_shard x cp x tp"
        if plan.release < (0, 2):
            yield "ep: not before release 0.2"


def _titan_stages(plan: Plan, compiled: bool) -> Iterator[str]:
    schedule, vpp, pp = plan["schedule"], plan["vpp"], plan["pp"]
    if schedule in ("1f1b", "gpipe") and vpp > 1:
        yield f"vpp: {schedule} has one stage per rank"
    if schedule == "interleaved" and (vpp == 1 or pp == 1):
        yield "schedule interleaved: needs pp > 1 and vpp > 1"
    rounds = max(1, plan.micro_batches // pp)
    if schedule == "interleaved" and plan.micro_batches % rounds:  # PyTorch's schedules.py
        yield f"vpp: {plan.micro_batches} micro-batches are not {rounds} equal rounds"
    if schedule == "zb-v" and compiled:
        yield "schedule zb-v: not with torch.compile"
    if pp > 1 and plan.model.tied_embeddings:
        yield "pp: not with tied embeddings"
    if plan["stage_layers"] is not None and plan.release < (0, 2):
        yield "stage_layers: not before release 0.2"


def _titan_recompute(plan: Plan) -> Iterator[str]:
    yield from _part_faults(plan, {"every_other": ALWAYS})
    if plan["cp"] > 1:
        known = {"all_gather"} if plan.release >= _MAIN else {"all_gather", "ring"}
        if plan["cp_exchange"] not in known:
            yield f"cp_exchange {plan['cp_exchange']}: cannot"
    if plan["offload_weights"] != plan["offload_optimizer"]:
        yield "offload_weights, offload_optimizer: both or none"
    if plan["offload_weights"] and (plan["zero"] < 2 or not plan.is_sharded):
        yield "offload_weights: needs zero 2 or 3"


def _titan_precision(plan: Plan, compiled: bool) -> Iterator[str]:
    is_main, recipe = plan.release >= _MAIN, plan["quantization"]
    recipes = ("none", "mxfp8", "nvfp4") if is_main else ("none", "fp8_tensor", "mxfp8")
    if recipe not in recipes:
        yield f"quantization {recipe}: cannot"
    if plan["quantized_weights"] and (is_main or recipe != "fp8_tensor" or plan["zero"] < 2):
        yield "quantized_weights: of fp8_tensor with FSDP, up to release 0.2"
    if plan["tp"] > 1 and plan["tp_overlap"] == "ring" and not compiled:
        yield "tp_overlap ring: needs torch.compile"
    if plan["tp"] > 1 and plan["tp_overlap"] == "ring" and plan["tp_exchange"] != "rs_ag":
        yield "tp_overlap ring: needs tp_exchange rs_ag"
    if plan.experts and plan["expert_capacity"] is not None and plan.dispatcher != "hybridep":
        yield "expert_capacity: hybridep only"


def torchtitan_faults(
    model: Any, strategy: Mapping[str, Any], release: str, *, compiled: bool = True
) -> list[str]:
    """Rules of torchtitan that a plan breaks; `compiled` where torch.compile is on."""
    plan = _plan(model, strategy, release)
    abilities = dict(_TITAN)
    if plan.release >= _MAIN:
        del abilities["lora_rank"]
    return [
        *_ability_faults(plan, abilities),
        *_grid_faults(plan),
        *_expert_degree_faults(plan),
        *_titan_degrees(plan),
        *_titan_shards(plan),
        *_titan_stages(plan, compiled),
        *_titan_recompute(plan),
        *_titan_precision(plan, compiled),
    ]


# --- DeepSpeed ------------------------------------------------------------------------------------

_DEEPSPEED: Abilities = {
    **_NOWHERE,
    **_NO_TIERS,
    "schedule": _any_of("1f1b"),
    "vpp": _any_of(1),
    "embedding_as_layer": _any_of(False),
    "loss_as_layer": _any_of(False),
    "tp_exchange": {"all_reduce": (0, 16, 4)},
    "tp_overlap": _any_of("stack", "none", "pipe"),
    "cp_exchange": {"all_to_all": (0, 12)},
    "dispatcher": _any_of("all_to_all"),
    "dispatch_dtype": _any_of("dtype"),
    "expert_overlap": _any_of(False),
    "quantization": _any_of("none"),
    "quantized_weights": _any_of(False),
    "fused_activation": _any_of(False),
    "lora_rank": _any_of(None),
}


def _deepspeed_degrees(plan: Plan) -> Iterator[str]:
    cp = plan["cp"]
    if plan["pp"] > 1 and plan["zero"] > 1:
        yield "pp: with zero 0 and 1 only"
    for heads, groups in plan.heads:
        if heads % cp or (groups % cp and cp % groups):
            yield f"cp {cp}: must divide {heads} heads, and {groups} key-value heads or they it"
    if plan["seq_len"] % cp:
        yield f"cp {cp}: must divide seq_len {plan['seq_len']}"
    if not (plan.orders_as("tp-cp-dp-pp") or plan.orders_as("tp-cp-pp-dp")):
        yield f"placement {plan['placement']}: cannot"
    if plan["dp_shard"] not in (None, plan["dp"]) and plan["zero"] != 3:
        yield "dp_shard: with zero 3 only (MiCS)"
    if plan["optimizer"] == "adamw-bf16" and (plan["zero"] == 0 or plan.release < (0, 18, 4)):
        yield "optimizer adamw-bf16: with zero 1 to 3, from release 0.18.4"


def _deepspeed_experts(plan: Plan) -> Iterator[str]:
    if not plan.experts or plan["ep"] == 1:
        return
    if plan["dp"] % plan["ep"]:
        yield f"ep {plan['ep']}: must divide dp {plan['dp']}"
    has_auto = plan.release >= (0, 19, 5)
    if plan["etp"] > 1 and (not has_auto or plan["zero"] == 3):
        yield f"etp {plan['etp']}: from release 0.19.5, not with zero 3"
    if plan["zero"] == 3:
        if not has_auto:
            yield "ep: not with zero 3 before release 0.19.5"
        if plan["tp"] > 1 or plan["cp"] > 1 or plan["dp_shard"] not in (None, plan["dp"]):
            yield "ep: with zero 3 not with tp, cp or dp_shard"


def _deepspeed_memory(plan: Plan) -> Iterator[str]:
    if plan["recompute"] == "selective":
        yield "recompute selective: cannot"
    if plan["offload_weights"] and plan["zero"] != 3:
        yield "offload_weights: with zero 3 only"
    if plan["offload_optimizer"] and plan["zero"] == 0:
        yield "offload_optimizer: with zero 1 to 3"
    if plan.offloaded_parts:
        yield "offload_parts: cannot"
    if plan.offloads_all_activations and plan["recompute"] != "full":
        yield "offload_activations: of checkpoints, with recompute full"


def deepspeed_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of DeepSpeed that a plan breaks."""
    plan = _plan(model, strategy, release)
    return [
        *_ability_faults(plan, _DEEPSPEED),
        *_grid_faults(plan),
        *_expert_degree_faults(plan),
        *_deepspeed_degrees(plan),
        *_deepspeed_experts(plan),
        *_deepspeed_memory(plan),
    ]


# --- Hugging Face: Trainer with accelerate's FSDP2 ------------------------------------------------

_HUGGINGFACE: Abilities = {
    **_NOWHERE,
    **_NO_TIERS,
    **_NO_STAGES,
    "schedule": _any_of("1f1b"),
    "tp_exchange": _any_of("all_reduce", "rs_ag"),
    "tp_overlap": _any_of("stack", "none"),
    "cp_exchange": {"ring": (1, 10), "all_gather": (1, 10), "all_to_all": (1, 12)},
    "zero": _any_of(0, 2, 3),
    "fsdp_prefetch": _any_of(1),
    "dp_overlap": _any_of(True),
    "etp": _any_of(1),
    "expert_capacity": _any_of(None),
    "dispatcher": _any_of("all_to_all"),
    "dispatch_dtype": _any_of("dtype"),
    "expert_overlap": _any_of(False),
    "quantization": _any_of("none", "fp8_tensor"),
    "recompute": _any_of("none", "full"),
    "recompute_layers": _any_of(None),
    "offload_activations": _any_of(False),
    "optimizer": _any_of("adamw", "adamw-8bit", "adafactor", "sgd", "sgd-momentum"),
}


def _huggingface_sharding(plan: Plan) -> Iterator[str]:
    shard = plan["dp_shard"] or plan["dp"]
    is_mesh = plan["tp"] > 1 or plan["cp"] > 1
    if is_mesh and plan.release < (1, 10):
        yield "tp, cp: not before release 1.10"
    if is_mesh and plan["dp"] > shard == 1:
        yield "dp_shard: tp or cp with replicas needs shards"
    if plan["cp"] > 1 and plan["cp_exchange"] != "all_to_all" and plan["zero"] < 2:
        yield "cp: needs zero 2 or 3 (FSDP2)"
    if plan["ep"] > plan["dp"]:
        yield f"ep {plan['ep']}: at most dp {plan['dp']}"
    if plan["quantized_weights"] and plan["quantization"] != "fp8_tensor":
        yield "quantized_weights: of fp8_tensor only"
    if plan["offload_weights"] != plan["offload_optimizer"]:
        yield "offload_weights, offload_optimizer: both or none"
    if plan["offload_weights"] and (plan["zero"] < 2 or not plan.is_sharded):
        yield "offload_weights: needs zero 2 or 3"
    if not plan.orders_as("tp-cp-dp-pp"):
        yield f"placement {plan['placement']}: only tp-cp-dp"


def huggingface_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of accelerate's FSDP2 and the Trainer that a plan breaks; a release of accelerate."""
    plan = _plan(model, strategy, release)
    return [
        *_ability_faults(plan, _HUGGINGFACE),
        *_grid_faults(plan),
        *_expert_degree_faults(plan),
        *_huggingface_sharding(plan),
    ]


# --- MaxText --------------------------------------------------------------------------------------

_MAXTEXT: Abilities = {
    **_NOWHERE,
    "first_stage_layers": _any_of(None),
    "last_stage_layers": _any_of(None),
    "stage_layers": _any_of(None),
    "embedding_as_layer": _any_of(False),
    "loss_as_layer": _any_of(False),
    "tp_exchange": _any_of("all_reduce", "rs_ag"),
    "tp_overlap": _any_of("stack", "none", "ring"),
    "zero": _any_of(0, 1, 3),
    "fsdp_reshard": _any_of(True),
    "fsdp_prefetch": _any_of(1),
    "dispatcher": _any_of("all_to_all", "all_gather"),
    "dispatch_dtype": _any_of("dtype"),
    "quantization": _any_of("none", "fp8_tensor"),
    "quantized_weights": _any_of(False),
    "recompute_layers": _any_of(None),
    "fused_activation": _any_of(False),
    "optimizer": _any_of("adamw", "adamw-bf16", "muon", "sgd", "sgd-momentum"),
    "lora_rank": _any_of(None),
    "frozen": _any_of(()),
}


def _maxtext_stages(plan: Plan) -> Iterator[str]:
    pp, vpp = plan["pp"], plan["vpp"]
    if pp > 1:
        if plan["schedule"] != "gpipe":
            yield f"schedule {plan['schedule']}: all forward passes come first"
        if plan.micro_batches % pp:
            yield f"pp: {plan.micro_batches} micro-batches are no multiple of {pp}"
    if plan.depth % (pp * vpp):
        yield f"pp {pp}: must divide {plan.depth} layers"
    if "every_other" in plan.parts:
        yield "recompute_parts every_other: cannot"
    if plan.experts and plan["etp"] != plan["tp"]:
        yield f"etp {plan['etp']}: experts are split as tp {plan['tp']}"


def maxtext_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of MaxText that a plan breaks."""
    plan = _plan(model, strategy, release)
    return [
        *_ability_faults(plan, _MAXTEXT),
        *_grid_faults(plan),
        *_expert_degree_faults(plan),
        *_maxtext_stages(plan),
    ]


# --- Stacks ---------------------------------------------------------------------------------------


def _plan(model: Any, strategy: Mapping[str, Any], release: str) -> Plan:
    lists = {name: tuple(value) for name, value in strategy.items() if isinstance(value, list)}
    return Plan(model=model, values={**strategy, **lists}, release=release_numbers(release))


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A trainer and its release, as a stack of the catalog stands for it."""

    name: str
    release: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def faults(self, model: Any, strategy: Mapping[str, Any], **facts: Any) -> list[str]:
        """Rules that a plan breaks; `graphs` and `machine` count where the launcher looks."""
        check = _CHECKS[self.name]
        known = facts if self.name in ("megatron", "bridge", "primus") else {}
        return check(model, strategy, self.release, **self.options, **known)


_CHECKS: Mapping[str, Callable[..., list[str]]] = {
    "megatron": megatron_faults,
    "bridge": partial(megatron_faults, bridge=True),
    "primus": partial(megatron_faults, primus=True),
    "torchtitan": torchtitan_faults,
    "deepspeed": deepspeed_faults,
    "huggingface": huggingface_faults,
    "maxtext": maxtext_faults,
}

LAUNCHERS: Mapping[str, Launcher] = {
    "deepspeed-2024": Launcher(name="deepspeed", release="0.16.2"),
    "huggingface-2024": Launcher(name="huggingface", release="1.2"),
    "llama-factory-2024": Launcher(name="huggingface", release="1.2"),
    "maxtext-2024": Launcher(name="maxtext", release="main"),
    "megatron-bridge-2025": Launcher(name="bridge", release="0.16"),
    "megatron-bridge-flex": Launcher(name="bridge", release="0.16"),
    "megatron-bridge-fused": Launcher(name="bridge", release="0.16"),
    "megatron-bridge-2026": Launcher(name="bridge", release="0.19"),
    "megatron-core-2025": Launcher(name="megatron", release="0.12"),
    "nemo-2025": Launcher(name="bridge", release="0.12"),
    "primus-2026": Launcher(name="primus", release="0.16"),
    "torchtitan-2024": Launcher(name="torchtitan", release="0.1"),
    "torchtitan-2025": Launcher(name="torchtitan", release="0.2.2"),
    "torchtitan-eager": Launcher(name="torchtitan", release="0.2.2", options={"compiled": False}),
}
"""Launcher of each stack whose sources were read; of the others nothing is known here."""


def stack_name(strategy: Mapping[str, Any]) -> str:
    """Catalog name of the stack of a strategy, of its base where fields differ."""
    stack = strategy["stack"]
    return stack if isinstance(stack, str) else stack.get("base") or stack["name"]


def launch_faults(model: Any, strategy: Mapping[str, Any], **facts: Any) -> list[str]:
    """Rules of its stack's launcher that a plan breaks; none where the stack has none here."""
    launcher = LAUNCHERS.get(stack_name(strategy))
    return [] if launcher is None else launcher.faults(model, strategy, **facts)
