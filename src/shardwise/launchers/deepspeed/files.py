"""Plans as DeepSpeed's JSON with a launch script, and its JSON as fields of a strategy."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardwise.config import enums
from shardwise.config.files import parse_json
from shardwise.config.launch import Launch, Origin
from shardwise.config.model import Model
from shardwise.config.plain import as_json
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers.deepspeed import options
from shardwise.launchers.launch import (
    Item,
    LaunchFile,
    LaunchPlan,
    LaunchText,
    as_comments,
    loss_arguments,
    nodes_of,
    origins_of,
    trained_in_code,
)
from shardwise.launchers.sections import AUTO, Found, Section, launch_of
from shardwise.launchers.stacks import STACKS
from shardwise.ops.param_count import count_parameters
from shardwise.units import counted


def layer_weights(model: Model) -> int:
    """Return the weights of an average layer [elements]."""
    counted = count_parameters(model)
    ends = counted.embedding + counted.breakdown.get("head", 0)
    return max(1, (counted.total - ends) // model.depth)


def lives_through_step(model: Model) -> int:
    """Return the elements between the two uses of the first weight: forward and backward of all.

    Weights whose next use is nearer than `stage3_max_reuse_distance` stay gathered, as far as
    `stage3_max_live_parameters` has room.
    """
    return 2 * count_parameters(model).total


NAME = "deepspeed"
STACK = STACKS[NAME]
_NEOX = re.compile(r"pipe[-_]parallel[-_]size[\"']?\s*:")
_SURE = ("zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer")
_LIKELY = ("train_batch_size", "bf16", "fp16", "optimizer", "gradient_accumulation_steps")
Fields = dict[str, object]


def recognise(text: str, source: str) -> bool:
    """Whether a text is JSON with keys of DeepSpeed."""
    if not text.lstrip().startswith("{") or _NEOX.search(text):  # GPT-NeoX has options of both
        return False
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return source.endswith(".json") and any(f'"{key}"' in text for key in _SURE)
    return any(key in data for key in _SURE) or sum(key in data for key in _LIKELY) > 1


def read(text: LaunchText) -> Launch:
    """Read a configuration of DeepSpeed, as `Launcher.read`."""
    data = parse_json(text.text, text.source)
    if not isinstance(data, Mapping):
        raise InputError(Fault(source=text.source, problem="must be a mapping of options"))
    found = Found(text.source)
    fields = config_fields(data, found, model=text.model, gpus=text.gpus)
    zero = Section(data, Found(text.source)).section("zero_optimization")
    decided = {**buffers(zero, text.model), "buckets_by_width": False}
    origins = config_origins(data, fields, gpus=text.gpus)
    return launch_of(NAME, text, fields, found, origins, decided)


_DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "dtype": ("bf16", "bfloat16", "fp16", "torch_autocast"),
    "zero": ("zero_optimization.stage",),
    "dp_overlap": ("zero_optimization.overlap_comm",),
    "tp_exchange": (),
    "cp_exchange": (),
    "optimizer": ("optimizer", "bf16"),
}


def config_origins(
    data: Mapping[str, object], fields: Fields, *, gpus: int | None
) -> dict[str, Origin]:
    """Return where the fields of a configuration come from; batch sizes imply replicas."""
    written = {name for name, value in data.items() if value is not None}
    zero = data.get("zero_optimization")
    written |= {f"zero_optimization.{key}" for key in (zero if isinstance(zero, Mapping) else {})}
    derived = {} if gpus is not None else {"gpus": Origin.DERIVED}
    for key in ("train_micro_batch_size_per_gpu", "train_batch_size"):
        if data.get(key) in (None, AUTO):
            derived[options.BATCHES[key].partition(" ")[0]] = Origin.DERIVED
    return origins_of(fields, _DECIDED_BY, written, derived)


def config_fields(
    data: Mapping[str, object],
    found: Found,
    *,
    model: Model | None,
    gpus: int | None,
    prefix: str = "",
) -> Fields:
    """Return fields of a strategy."""
    top = Section(data, found, prefix)
    zero = top.section("zero_optimization")
    fields: Fields = {"stack": STACK, **_precision(top), **_degrees(top, zero, model)}
    usual = Stack.load(STACK)
    sizes = {n: size for n, size in buffers(zero, model).items() if size != getattr(usual, n)}
    if sizes:
        fields["stack"] = {"base": STACK, **sizes}
    fields |= _sharding(zero, model) | _optimizer(top, fields) | _checkpointing(top)
    fields |= _batch(top, fields, gpus)
    top.ignore(*options.TOP_IGNORED)
    for name, keys in options.SECTION_IGNORED.items():
        top.section(name).ignore(*keys)
    zero.ignore(*options.ZERO_IGNORED)
    top.leave_unread(options.TOP_DEFAULTS, options.NO_WORD)
    zero.leave_unread(options.ZERO_DEFAULTS, options.NO_WORD)
    for name, defaults in options.SECTION_DEFAULTS.items():
        top.section(name).leave_unread(defaults, options.NO_WORD)
    return fields


# --- Precision and optimizer ----------------------------------------------------------------------


_TYPES = {"fp32": "fp32", "bf16": "compute", "fp16": "compute"}


def _enabled(section: Section, trainer_flag: str) -> bool:
    """Whether a type is on; the Trainer may decide it."""
    if section.data.get("enabled") == AUTO:
        section.leave("enabled", f"the Trainer fills it in ({trainer_flag}): set dtype")
        return False
    return section.flag("enabled")


def _precision(top: Section) -> Fields:
    bf16 = top.section("bf16" if "bf16" in top.data else "bfloat16")
    fp16 = top.section("fp16")
    is_bf16, is_fp16 = _enabled(bf16, "--bf16"), _enabled(fp16, "--fp16")
    unknown = AUTO in (bf16.data.get("enabled"), fp16.data.get("enabled"))
    if is_bf16 and is_fp16:
        fp16.wrong("enabled", "bf16 and fp16 exclude each other")
    autocast = top.section("torch_autocast")
    fields: Fields = {}
    if autocast.flag("enabled"):
        words = options.AUTOCAST_TYPES
        fields["dtype"] = words[autocast.word("dtype", [*words], "bfloat16")]
        top.leave("torch_autocast", "shardwise models weights in the type of the products")
    if is_bf16 or is_fp16:
        fields["dtype"] = "bf16" if is_bf16 else "fp16"
    elif not unknown:
        fields.setdefault("dtype", "fp32")
    types = top.section("data_types")
    if types.word("grad_accum_dtype", (*_TYPES, "none"), "none") == "fp32":
        fields["gradient_dtype"] = "fp32"
    reduced = top.word("communication_data_type", (*_TYPES, "none"), "none")
    if reduced != "none":
        fields["reduce_dtype"] = _TYPES[reduced]
    for half in (bf16, fp16):
        word = "bf16" if half is bf16 else "fp16"
        if half.flag(f"{word}_master_weights_and_grads"):
            fields["master_dtype"] = word
    return fields


def _optimizer(top: Section, fields: Fields) -> Fields:
    """Update rule; without a section the client brings one, which the JSON does not name."""
    section = top.section("optimizer")
    bf16 = top.section("bf16" if "bf16" in top.data else "bfloat16")
    states = bf16.flag("bf16_optimizer_states")
    if states and fields.get("master_dtype") != "bf16":
        bf16.wrong("bf16_optimizer_states", "needs bf16_master_weights_and_grads")
    if "type" not in section:
        return {"optimizer": "adamw-bf16"} if states else {}
    written = section.value("type")
    kind = str(written).lower()
    momentum = section.section("params").data.get("momentum", 0)
    if kind == "sgd":
        return {"optimizer": "sgd-momentum" if momentum else "sgd"}
    if not isinstance(written, str):
        section.wrong("type", "must be the name of an optimizer")
    elif kind not in options.OPTIMIZER_TYPES:
        section.leave("type", "shardwise has no such optimizer; set optimizer to the nearest")
        return {}
    named = options.OPTIMIZER_TYPES.get(kind, "adamw")
    return {"optimizer": "adamw-bf16" if states and named == "adamw" else named}


# --- Degrees, sharding, checkpoints ---------------------------------------------------------------


def _number(top: Section, option: Item) -> object:
    """The field of an option that stands for one."""
    section, (*names, key) = top, option.path.split(".")
    for name in names:
        section = section.section(name)
    if section.data.get(key) in (None, *option.idle):
        return option.absent
    return section.count(key) or option.absent


def _degrees(top: Section, zero: Section, model: Model | None) -> Fields:
    fields: Fields = {}
    for option in options.DEGREES:
        value = _number(top, option)
        if value != option.absent:
            fields[option.field] = value
    zero.ignore("mics_shard_size")
    if "tp" in fields:
        fields["tp_exchange"] = "all_reduce"
        if top.section("tensor_parallel").flag("tp_overlap_comm"):
            fields["tp_overlap"] = "pipe"
    if "cp" in fields:
        fields["cp_exchange"] = "all_to_all"
    experts = top.section("expert_parallel")
    if not experts.flag("enabled") and "ep" in fields:
        del fields["ep"]
    if (experts.count("expert_tensor_parallel_size") or 1) > 1:
        experts.wrong("expert_tensor_parallel_size", "v0.19.5 allows 1 only")
    if "ep" in fields and model is not None and not model.has_experts:
        experts.wrong("autoep_size", f"{model.name} has no experts")
    return fields


def _sharding(zero: Section, model: Model | None) -> Fields:
    stage = zero.count("stage", least=0) or 0
    if stage > enums.ZERO_WEIGHTS:
        zero.wrong("stage", "allowed: 0, 1, 2, 3")
    overlap = zero.data.get("overlap_comm")
    fields: Fields = {"zero": min(stage, enums.ZERO_WEIGHTS)}
    zero.ignore("overlap_comm")
    if overlap not in (None, AUTO):
        fields["dp_overlap"] = zero.flag("overlap_comm")
    elif stage < enums.ZERO_WEIGHTS:
        fields["dp_overlap"] = False
    for field, (name, old) in options.OFFLOADS.items():
        if _offloads(zero, name) | zero.flag(old):
            fields[field] = True
    on_host = zero.section("offload_optimizer")
    if fields.get("offload_optimizer") and on_host.data.get("device") == "nvme":
        fields["offload_nvme"] = True
    if on_host.flag("super_offload"):
        fields["cpu_optimizer"] = enums.CpuOptimizer.SUPEROFFLOAD
    if fields.get("offload_weights") and stage < enums.ZERO_WEIGHTS:
        zero.wrong("offload_param", "is of ZeRO stage 3")
    if fields.get("offload_optimizer") and stage == 0:
        zero.wrong("offload_optimizer", "is of ZeRO stages 1 to 3")
    return fields | (_gathered(zero, model) if stage == enums.ZERO_WEIGHTS else _ungathered(zero))


_PREFETCH = "stage3_prefetch_bucket_size"
_BUFFERS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "prefetch_bucket_size": _PREFETCH,
    "sub_group_size": "sub_group_size",
    "persistence_threshold": "stage3_param_persistence_threshold",
}
"""Sizes of ZeRO's buffers [elements] by fields of a stack."""
_BY_WIDTH: Mapping[str, Callable[[int], float]] = {
    "reduce_bucket_size": lambda width: width**2,
    "prefetch_bucket_size": lambda width: 0.9 * width**2,
    "persistence_threshold": lambda width: 10 * width,
}
"""What the Trainer fills in for those that are auto, by the width of the model."""


def buffers(zero: Section, model: Model | None) -> Fields:
    """Fields of the stack for the sizes that a file sets; the Trainer fills in width squared."""
    found: Fields = {}
    for field, key in _BUFFERS.items():
        if zero.data.get(key) == AUTO:
            zero.ignore(key)
            by_width = _BY_WIDTH.get(field)
            size = int(by_width(model.hidden)) if model is not None and by_width else None
        elif field == "prefetch_bucket_size" and _layers_ahead(zero, model) is not None:
            continue
        else:
            size = zero.count(key, least=0)
        if size is not None:  # a sub-group has at least one tensor
            found[field] = max(size, 1) if field == "sub_group_size" else size
    return found


def _ungathered(zero: Section) -> Fields:
    """Below stage 3 there is nothing to gather."""
    zero.ignore(*(key for key in _BUFFERS.values() if key.startswith("stage3")))
    return {}


def _layers_ahead(zero: Section, model: Model | None) -> int | None:
    """Layers that a prefetch bucket stands for: none, or two and more of an average size."""
    size = None if zero.data.get(_PREFETCH) == AUTO else zero.count(_PREFETCH, least=0)
    if size is None or size == 0 or model is None:
        return size
    layers, rest = divmod(size, layer_weights(model))
    return layers if layers > 1 and not rest else None


def _gathered(zero: Section, model: Model | None) -> Fields:
    """Which gathered weights stage 3 prefetches and keeps, counted in elements."""
    fields: Fields = {}
    ahead = _layers_ahead(zero, model)
    if ahead is not None:
        fields["fsdp_prefetch"] = ahead
    live, reuse = (
        None if zero.data.get(key) == AUTO else zero.count(key, least=0)
        for key in ("stage3_max_live_parameters", "stage3_max_reuse_distance")
    )
    if model is not None and live is not None and reuse is not None:
        stays = min(live, reuse) >= lives_through_step(model)
        fields["fsdp_reshard"] = not stays
    return fields


def _offloads(zero: Section, name: str) -> bool:
    section = zero.section(name)
    device = section.word("device", ("none", "cpu", "nvme"), "none")
    if device == "nvme" and name == "offload_param":
        section.leave("device", "predicted in the memory of the host")
    section.ignore(*options.OFFLOAD_IGNORED)
    section.leave_unread(options.OFFLOAD_DEFAULTS, options.NO_WORD)
    return device != "none"


def _checkpointing(top: Section) -> Fields:
    """Checkpoints are the model's to make; the JSON says where they go."""
    section = top.section("activation_checkpointing")
    on_host = section.flag("cpu_checkpointing")
    section.leave_unread(options.CHECKPOINT_DEFAULTS, options.NO_WORD)
    if on_host:
        return {"recompute": "full", "offload_activations": True}
    if "activation_checkpointing" in top:
        top.leave("activation_checkpointing", "the model's code turns it on: set recompute")
    return {}


# --- Batch ----------------------------------------------------------------------------------------


def _batch(top: Section, fields: Fields, gpus: int | None) -> Fields:
    """Batch and accelerators: train_batch = micro x accumulation x replicas."""
    micro, batch, steps = (_size(top, key) for key in options.BATCHES)
    degrees = [int(str(fields.get(name, 1))) for name in ("tp", "cp", "pp")]
    product = degrees[0] * degrees[1] * degrees[2]
    dp = _replicas(top, gpus, product)
    if dp is None and micro and batch and steps and batch % (micro * steps) == 0:
        dp = batch // (micro * steps)
    if dp is not None:
        micro, batch = _filled(top, micro, batch, steps, dp)
    if micro and batch:
        pieces = [f"train_micro_batch_size_per_gpu {micro}"]
        pieces += [f"gradient_accumulation_steps {steps}"] if steps else []
        pieces += [f"{dp} replicas"] if dp else []
        size = micro * (steps or 1) * (dp or 1)
        if batch % size or (steps and dp and batch != size):
            must = "be" if steps and dp else "be a multiple of"
            top.wrong("train_batch_size", f"must {must} {' x '.join(pieces)} = {size}")
    sizes = {"micro_batch_size": micro, "global_batch_size": batch}
    found: Fields = {name: size for name, size in sizes.items() if size}
    return found | ({"gpus": dp * product} if dp else {})


def _size(top: Section, key: str) -> int | None:
    """A batch size; None where the file leaves it to DeepSpeed or the Trainer."""
    if top.data.get(key) != AUTO:
        return top.count(key)
    top.leave(key, f"the Trainer fills it in: set {options.BATCHES[key]}")
    return None


def _filled(
    top: Section, micro: int | None, batch: int | None, steps: int | None, dp: int
) -> tuple[int | None, int | None]:
    """Micro-batch and batch, one from the other as DeepSpeed fills them in."""
    if AUTO in map(top.data.get, options.BATCHES):
        return micro, batch
    if micro is None and batch is not None:
        micro = batch // dp // (steps or 1) or None
    elif batch is None and micro is not None:
        batch = micro * (steps or 1) * dp
    return micro, batch


def _replicas(top: Section, gpus: int | None, product: int) -> int | None:
    """Data-parallel degree by the accelerators of the run, or as a mesh names it."""
    named = top.count("data_parallel_size")
    if gpus is None:
        return named
    if gpus % product:
        top.found.wrong("gpus", gpus, f"must be a multiple of the {product} of one replica")
        return None
    if named not in (None, gpus // product):
        top.wrong("data_parallel_size", f"must be {gpus // product} with {gpus} accelerators")
    return gpus // product


_MOST_LIVE = 1_000_000_000
_STAGE_FIELDS = ("first_stage_layers", "last_stage_layers", "stage_layers")
_TRAINER_OPTIMIZERS = {"adamw-8bit": "adamw_bnb_8bit"}


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what the JSON has no option for, as `Launcher.faults`."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

    if not strategy.training:
        yield fault("training", "DeepSpeed's configuration is of training")
    for field in _STAGE_FIELDS:
        if strategy.pp > 1 and getattr(strategy, field) is not None:
            yield fault(field, "PipelineModule cuts stages by a method in Python, not by counts")
    if model.has_experts and strategy.expert_capacity is not None:
        yield fault("expert_capacity", "AutoEP drops no tokens")
    named = "moment_dtype" if strategy.moment_dtype != enums.MomentDtype.STACK else "optimizer"
    if _half_moments(strategy):
        if strategy.dtype != enums.Dtype.BF16:
            yield fault(named, "bf16_optimizer_states needs dtype bf16")
        if strategy.in_effect("master_dtype") != enums.MasterDtype.BF16:
            yield fault(named, "bf16_optimizer_states needs bf16 masters: set master_dtype bf16")


def write(plan: LaunchPlan, release: str, _: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    config = as_json(configuration(plan.model, plan.strategy), indent=2) + "\n"
    script = _script(plan, release)
    return (
        LaunchFile(ending=".json", text=config),
        LaunchFile(ending=".sh", text=script, executable=True),
    )


def _micro_batches(strategy: Strategy) -> int:
    batch, dp = strategy.global_batch_size or 1, strategy.dp or 1
    return batch // (strategy.micro_batch_size * dp)


def configuration(model: Model, strategy: Strategy) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a strategy."""
    config: dict[str, Any] = {
        "train_batch_size": strategy.global_batch_size,
        "train_micro_batch_size_per_gpu": strategy.micro_batch_size,
        "gradient_accumulation_steps": _micro_batches(strategy),
    }
    if strategy.dtype != enums.Dtype.FP32:
        config[strategy.dtype.value] = {"enabled": True}
    half = strategy.dtype != enums.Dtype.FP32
    if half and strategy.in_effect("master_dtype") == strategy.dtype:
        config[strategy.dtype.value][f"{strategy.dtype}_master_weights_and_grads"] = True
    if _half_moments(strategy):
        config["bf16"]["bf16_optimizer_states"] = True
    if strategy.in_effect("gradient_dtype") == enums.GradientDtype.FP32:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    reduced = {enums.ReduceDtype.FP32: "fp32", enums.ReduceDtype.COMPUTE: strategy.dtype.value}
    if (word := strategy.in_effect("reduce_dtype")) in reduced:
        config["communication_data_type"] = reduced[enums.ReduceDtype(word)]
    config["zero_optimization"] = _zero(model, strategy)
    if strategy.optimizer in options.OPTIMIZERS:
        kind, params = options.OPTIMIZERS[strategy.optimizer]
        config["optimizer"] = {"type": kind, "params": dict(params)}
    if strategy.optimizer in options.OF_TORCH or strategy.optimizer not in options.OPTIMIZERS:
        config["zero_allow_untested_optimizer"] = True
    if strategy.recompute == enums.Recompute.FULL:
        config["activation_checkpointing"] = {"cpu_checkpointing": strategy.offload_activations}
    _add_degrees(config, model, strategy)
    return config


def _half_moments(strategy: Strategy) -> bool:
    """Whether moments have 16 bits."""
    named = strategy.optimizer == enums.Optimizer.ADAMW_BF16
    return named or strategy.in_effect("moment_dtype") == enums.MomentDtype.BF16


def _stage(strategy: Strategy) -> int:
    """ZeRO stage; on one replica, where none has an effect, that which other options need."""
    if strategy.offload_weights:
        return enums.ZERO_WEIGHTS
    states = strategy.offload_optimizer or _half_moments(strategy)
    return max(strategy.zero, enums.ZERO_OPTIMIZER if states else 0)


def _zero(model: Model, strategy: Strategy) -> dict[str, Any]:
    stage = _stage(strategy)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": strategy.dp_overlap,
        "contiguous_gradients": True,
    }
    for field, (section, _) in options.OFFLOADS.items():
        if getattr(strategy, field):
            zero[section] = {"device": "cpu", "pin_memory": True}
    if strategy.offload_nvme:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": "/local_nvme"}
    if strategy.offload_optimizer and strategy.cpu_optimizer == enums.CpuOptimizer.SUPEROFFLOAD:
        zero["offload_optimizer"]["super_offload"] = True
    if stage == enums.ZERO_WEIGHTS:
        through = lives_through_step(model)
        live = through if not strategy.fsdp_reshard else min(_MOST_LIVE, through // 2)
        if strategy.fsdp_prefetch != 1:
            zero[_PREFETCH] = strategy.fsdp_prefetch * layer_weights(model)
        zero["stage3_max_live_parameters"] = live
        zero["stage3_max_reuse_distance"] = live
    stack, usual = strategy.loaded_stack(), Stack.load(STACK)
    for field in (*_BY_WIDTH, "sub_group_size"):
        if stack.buckets_by_width and field in _BY_WIDTH:
            zero.setdefault(_BUFFERS[field], AUTO)
        elif getattr(stack, field) != getattr(usual, field):
            zero.setdefault(_BUFFERS[field], int(getattr(stack, field)))
    return zero


def _add_degrees(config: dict[str, Any], model: Model, strategy: Strategy) -> None:
    """Set the options that stand for one degree each, and what goes with them."""
    for option in options.DEGREES:
        value = getattr(strategy, option.field)
        if value == option.absent or (option is options.EP and not model.has_experts):
            continue
        section, (*names, key) = config, option.path.split(".")
        for name in names:
            section = section.setdefault(name, {})
        section[key] = value
    if strategy.tp > 1:
        config["tensor_parallel"]["tp_overlap_comm"] = strategy.tp_overlap == enums.TpOverlap.PIPE
    if strategy.cp > 1:
        config["data_parallel_size"] = strategy.dp
    if "expert_parallel" in config:
        config["expert_parallel"]["enabled"] = True


# --- The script -----------------------------------------------------------------------------------


def _in_code(plan: LaunchPlan) -> Iterator[str]:
    """What the JSON cannot hold: the model and what its code decides."""
    strategy, model = plan.strategy, plan.model
    gpus = counted(strategy.gpus or 1, "GPU")
    yield f"model {model.name}, sequences of {strategy.seq_len} tokens, {gpus}"
    yield "learning rate and its schedule: optimizer.params, scheduler"
    if strategy.recompute == enums.Recompute.FULL:
        yield "recompute full: model.gradient_checkpointing_enable(), which calls"
        yield "  deepspeed.checkpointing; with PipelineModule(activation_checkpoint_interval=1)"
    if strategy.tp > 1:
        yield f"tp {strategy.tp}: AutoTP splits the model by its tp_plan, or by"
        yield "  tensor_parallel.preset_model"
    if strategy.cp > 1:
        yield f"cp {strategy.cp}: UlyssesSPAttentionHF.register_with_transformers(..., "
        yield f"  sequence_parallel_size={strategy.cp}, "
        yield f"  micro_batch_size={strategy.micro_batch_size})"
    if strategy.pp > 1:
        yield f"pp {strategy.pp}: PipelineModule(layers, num_stages={strategy.pp}, "
        yield f"  partition_method='uniform'); ranks in the order {strategy.placement}"
    if strategy.optimizer not in options.OPTIMIZERS:
        yield f"optimizer {strategy.optimizer}: the client's, of bitsandbytes"
    yield from trained_in_code(strategy)


def _trainer_arguments(strategy: Strategy) -> Iterator[str]:
    """Arguments of the Hugging Face Trainer, which must agree with the JSON."""
    yield '--deepspeed "$CONFIG"'
    yield f"--per_device_train_batch_size {strategy.micro_batch_size}"
    yield f"--gradient_accumulation_steps {_micro_batches(strategy)}"
    if strategy.dtype != enums.Dtype.FP32:
        yield f"--{strategy.dtype} true"
    if strategy.recompute == enums.Recompute.FULL:
        yield "--gradient_checkpointing true"
    yield from loss_arguments(strategy)
    if strategy.optimizer in _TRAINER_OPTIMIZERS:
        yield f"--optim {_TRAINER_OPTIMIZERS[strategy.optimizer]}"


def _script(plan: LaunchPlan, release: str) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    threads = plan.strategy.host_threads or (8 if plan.strategy.offload_optimizer else 1)
    trainer = " \\\n  ".join(_trainer_arguments(plan.strategy))
    torchrun = f"torchrun --nnodes {nodes} --nproc-per-node {per_node}"
    rendezvous = '--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"' if nodes > 1 else ""
    comments = [*plan.comments, "", "Not in the JSON:", *_in_code(plan)]
    return (
        "#!/usr/bin/env bash\n"
        f"# DeepSpeed {release}: {counted(nodes, 'node')} x {counted(per_node, 'GPU')}.\n"
        f"{as_comments(comments)}"
        "set -euo pipefail\n\n"
        'CONFIG="${CONFIG:-${BASH_SOURCE[0]%.sh}.json}"\n'
        'SCRIPT="${SCRIPT:-train.py}"\n'
        f"export OMP_NUM_THREADS={threads}  # threads of Adam on the host\n\n"
        '# hostfile: one line per node, such as "node1 slots=' + f"{per_node}" + '"\n'
        f'deepspeed --hostfile "${{HOSTFILE:-hostfile}}" --num_nodes {nodes} --num_gpus {per_node} '
        f'"$SCRIPT" \\\n  {trainer}\n\n'
        "# The same by torchrun on every node, or by Slurm:\n"
        f'# {torchrun} {rendezvous} "$SCRIPT" ...\n'
        f'# srun --nodes {nodes} --ntasks-per-node 1 {torchrun} {rendezvous} "$SCRIPT" ...\n'
    )
