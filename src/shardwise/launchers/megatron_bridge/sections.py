"""Sections of a `ConfigContainer`, made of fields of Megatron-Core's configuration, and back.

Megatron-Bridge takes the fields of Megatron-Core's classes by their names, each in the section of
its class; `mixed_precision` and `comm_overlap` then write over some of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.config.enums import ExpertKernel
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.launchers.megatron_bridge import adapters, overlap, precision
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree, leaves, plain, torch_type

MODEL = "model"
OF_SECTION: Mapping[str, tuple[str, ...]] = {
    "ddp": (
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "data_parallel_sharding_strategy",
        "num_distributed_optimizer_instances",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "grad_reduce_in_fp32",
    ),
    "optimizer": (
        "optimizer",
        "use_precision_aware_optimizer",
        "optimizer_cpu_offload",
        "optimizer_offload_fraction",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        "sgd_momentum",
        "overlap_param_gather_with_optimizer_step",
    ),
    "train": ("micro_batch_size", "global_batch_size", "rampup_batch_size", "skip_train"),
    "dist": ("use_tp_pp_dp_mapping", "use_torch_fsdp2", "use_megatron_fsdp"),
}
"""Fields of sections other than `model`."""
_SECTION = {name: section for section, names in OF_SECTION.items() for name in names}
_SECTION["use_megatron_fsdp"] = "ddp"
_NOT_WRITTEN = ("torch_fsdp2_reshard_after_forward", "max_position_embeddings", "rope_type")
"""Fields of Megatron-LM's command line that no section has, and one that recipes set."""
_FORMULAS = ("moe_router_pre_softmax", "moe_router_dtype", "moe_router_score_function")
"""Fields of a router's formula, which a recipe of the model has right."""
_TYPED = ("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype")
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "uint8"}
_BACKENDS = {"flash": 1, "fused": 2, "unfused": 3, "local": 4, "auto": 5}
"""Members of AttnBackend (megatron/core/transformer/enums.py)."""
_UNSET: Mapping[str, Leaf] = {
    "data_parallel_sharding_strategy": "no_shard",
    "optimizer_offload_fraction": 0.0,
    "cuda_graph_modules": [],
    "cross_entropy_fusion_impl": "native",
}
"""What stands for None in fields that are not optional."""
FUSED_MODULE = "fused_group_mlp"
"""Module of offloaded activations that the fused experts have."""
SPELLINGS: Mapping[str, str] = {
    "layernorm_epsilon": "norm_epsilon",
    "sequence_length": "seq_length",
    "moe_deepep_num_sms": "moe_flex_dispatcher_num_sms",
    "moe_hybridep_num_sms": "moe_flex_dispatcher_num_sms",
}
"""Other names of fields."""


def plan_tree(model: Model, strategy: Strategy, fields: Fields, *, keeps_formulas: bool) -> Tree:
    """Return the sections of a plan."""
    skipped = {*_NOT_WRITTEN, *(_FORMULAS if keeps_formulas else ())}
    skipped |= {name for name in precision.SHARED if name not in _SECTION}
    if fields.get("attention_backend") is None:
        skipped.add("attention_backend")
    own: Tree = {}
    tree: Tree = {MODEL: own}
    for name, value in fields.items():
        if name in skipped:
            continue
        section = tree.setdefault(_SECTION.get(name, MODEL), {})
        assert isinstance(section, dict)  # noqa: S101 - of this function
        section[name] = _written(name, value)
    own |= {"should_pad_vocab": True}
    tree["dataset"] = {"seq_length": _leaf(fields["seq_length"])}
    tree["tokenizer"] = {"tokenizer_type": "NullTokenizer", "vocab_size": model.vocab}
    tree |= _sharded_sections(tree, fields)
    if model.has_experts:
        own["moe_shared_expert_overlap"] = False
        own["use_transformer_engine_op_fuser"] = _fuses_experts(strategy, fields)
    tree[precision.SECTION] = precision.precision_section(fields)
    tree[overlap.SECTION] = overlap.overlap_section(fields, strategy.tp_overlap, strategy.dp or 1)
    if (peft := adapters.adapter_section(model, strategy)) is not None:
        tree[adapters.SECTION] = peft
    return tree


def _fuses_experts(strategy: Strategy, fields: Fields) -> bool:
    """Whether one kernel runs all experts of a rank: by the stack, or for what is offloaded."""
    offloaded = fields["offload_modules"]
    by_stack = strategy.quantization in strategy.loaded_stack().fused_expert_recipes
    if strategy.expert_kernel != ExpertKernel.STACK:
        by_stack = strategy.expert_kernel == ExpertKernel.FUSED
    return by_stack or (isinstance(offloaded, tuple) and FUSED_MODULE in offloaded)


def _sharded_sections(tree: Tree, fields: Fields) -> Tree:
    """Sections that go with Megatron-FSDP: its switch, averages and the format of checkpoints."""
    sharded = bool(fields["use_megatron_fsdp"])
    sections: Tree = {}
    for name, more in {
        "dist": {"use_megatron_fsdp": sharded},
        "ddp": {"average_in_collective": not sharded},
    }.items():
        own = tree.get(name)
        sections[name] = {**(own if isinstance(own, dict) else {}), **more}
    sections["checkpoint"] = {"ckpt_format": "fsdp_dtensor" if sharded else "torch_dist"}
    return sections


def _written(name: str, value: Value) -> Leaf:
    if name in _TYPED:
        return torch_type(_TYPES[str(value or "fp32")])
    if name == "attention_backend":
        member: Tree = {TARGET: "megatron.core.transformer.enums.AttnBackend", "_call_": True}
        return {**member, "_args_": [_BACKENDS[str(value)]], "_name_": str(value)}
    return _UNSET.get(name) if value is None else _leaf(value)


def _leaf(value: Value) -> Leaf:
    return [_leaf(one) for one in value] if isinstance(value, tuple) else value


@dataclass(slots=True, kw_only=True)
class Sections:
    """Fields of Megatron-Core that a configuration sets, after what Bridge does with it."""

    fields: dict[str, Value] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """Where the file sets a field."""
    rest: dict[str, Leaf] = field(default_factory=dict)
    """Paths that are of no class of Megatron-Core, and their values."""
    faults: list[Fault] = field(default_factory=list)

    def path(self, name: str) -> str:
        """Where a field is set, or where it would be."""
        return self.paths.get(name, f"{_SECTION.get(name, MODEL)}.{name}")

    def take(self, path: str, name: str, value: Leaf) -> None:
        """Take over a field."""
        if isinstance(value, dict):
            self.rest[path] = value
            return
        self.fields[name] = _value(value)
        self.paths[name] = path


def _value(value: Leaf) -> Value:
    if isinstance(value, list):
        return tuple(_value(one) for one in value)
    return None if isinstance(value, dict) else value


def read_sections(tree: Tree, defaults: Fields, source: str) -> Sections:
    """Return the fields of a configuration.

    Parameters
    ----------
    defaults
        What a recipe sets where the file sets nothing.
    """
    found = Sections()
    whole = plain(tree)
    sections: Tree = whole if isinstance(whole, dict) else {}
    for name in ("optimizer", "dist", "ddp", "train", "dataset", "tokenizer", MODEL):
        _take_section(found, name, sections.get(name))
    for name, section in sections.items():
        if name not in _READ and isinstance(section, dict):
            found.rest |= dict(leaves(section, f"{name}."))
        elif name not in _READ and name != TARGET:
            found.rest[name] = section
    if found.fields.get("should_pad_vocab") is False:
        found.fields["make_vocab_size_divisible_by"] = 1
    _take_precision(found, tree.get(precision.SECTION), source)
    _take_overlap(found, sections.get(overlap.SECTION), defaults)
    return found


_READ = (
    *OF_SECTION,
    MODEL,
    "dataset",
    "tokenizer",
    precision.SECTION,
    overlap.SECTION,
    adapters.SECTION,
)


def _take_section(found: Sections, section: str, value: Leaf) -> None:
    """Take over the fields of a section; those of no class of Megatron-Core are the rest."""
    if not isinstance(value, dict):
        if value is not None:
            found.faults.append(Fault.of(section, value, "must be a section of fields"))
        return
    for name, item in value.items():
        path = f"{section}.{name}"
        known = SPELLINGS.get(name, name)
        if name == TARGET:
            continue
        if section == MODEL or known in OF_SECTION.get(section, ()):
            is_set = item is not None and item is not False
            if is_set or known not in found.fields:
                found.take(path, known, item)
        elif (section, known) in _FROM_DATA and item is not None:
            target = _FROM_DATA[section, known]
            if target not in found.fields:
                found.take(path, target, item)
        else:
            found.rest |= dict(leaves({name: item}, f"{section}."))


_FROM_DATA = {
    ("dataset", "seq_length"): "seq_length",
    ("dataset", "micro_batch_size"): "micro_batch_size",
    ("dataset", "global_batch_size"): "global_batch_size",
    ("tokenizer", "vocab_size"): "vocab_size",
}
"""Fields of sections that describe data, and the fields that they must agree with."""


def _take_precision(found: Sections, value: Leaf, source: str) -> None:
    if value is None:
        return
    read = precision.effective_precision(plain(value), precision.SECTION, source)
    if isinstance(read, Fault):
        found.faults.append(read)
        return
    for name, item in read.items():
        path = f"{precision.SECTION}.{name}"
        if name in precision.SHARED:
            found.take(path, name, item)
        else:
            found.rest[path] = item


def _take_overlap(found: Sections, value: Leaf, defaults: Fields) -> None:
    if not isinstance(value, dict):
        return
    known = {**defaults, **{name: item for name, item in found.fields.items() if item is not None}}
    chosen = overlap.effective_overlap(value, known)
    for name, made in chosen.items():
        found.take(f"{overlap.SECTION}.{name}", name, _leaf(made))
    read = (*chosen, *overlap.OF_REPLICAS, TARGET)
    rest = {name: item for name, item in value.items() if name not in read}
    found.rest |= {f"{overlap.SECTION}.{name}": item for name, item in rest.items()}
