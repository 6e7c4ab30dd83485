"""Plans as accelerate's YAML with a launch script, and its YAML as fields of a strategy."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwise.config.enums import Compile, Dtype, GradSync, Quantization, Recompute, WeightDtype
from shardwise.config.files import parse_json
from shardwise.config.launch import Launch, Origin
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.config.plain import as_yaml
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers.accelerate import options
from shardwise.launchers.accelerate.tensor_plan import missing_modules, python_plan
from shardwise.launchers.deepspeed.files import STACK as DEEPSPEED_STACK
from shardwise.launchers.deepspeed.files import config_fields
from shardwise.launchers.deepspeed.options import OFFLOADS
from shardwise.launchers.launch import (
    LaunchFile,
    LaunchPlan,
    LaunchText,
    as_comments,
    exports,
    loss_arguments,
    nodes_of,
    origins_of,
    thread_variables,
    trained_in_code,
)
from shardwise.launchers.sections import AUTO, Found, Section, launch_of
from shardwise.launchers.stacks import STACKS
from shardwise.units import counted

MEGATRON_STACK = "megatron-lm-2026"
_MOST_STAGE = 3
Fields = dict[str, object]


def _in_file(engine: Section, launch: LaunchText, gpus: int | None) -> Fields:
    """Return fields of the DeepSpeed JSON that a file names, if it lies next to it."""
    name = str(engine.data["deepspeed_config_file"])
    text = launch.sibling(name)
    if text is None:
        because = "is not here: its dtype, batch and ZeRO stage are not known"
        engine.leave("deepspeed_config_file", because)
        return {}
    engine.ignore("deepspeed_config_file")
    data = parse_json(text, name)
    if not isinstance(data, Mapping):
        raise InputError(Fault(source=name, problem="must be a mapping of options"))
    prefix = f"{name}: "
    return config_fields(data, engine.found, model=None, gpus=gpus, prefix=prefix)


def deepspeed_fields(top: Section, text: LaunchText, gpus: int | None) -> Fields:
    """Return fields of `deepspeed_config` and of sequence parallelism, which is Ulysses."""
    engine, mesh = top.section("deepspeed_config"), top.section("parallelism_config")
    fields: Fields = {"stack": DEEPSPEED_STACK}
    if "deepspeed_config_file" in engine:
        fields |= _in_file(engine, text, gpus)
    else:
        stage = engine.count("zero_stage", least=0)
        stage = 2 if stage is None else stage
        if stage > _MOST_STAGE:
            engine.wrong("zero_stage", "allowed: 0, 1, 2, 3")
        fields |= {"zero": min(stage, _MOST_STAGE), "dp_overlap": stage == _MOST_STAGE}
        for field, (section, _) in OFFLOADS.items():
            key = f"{section}_device"
            device = engine.word(key, ("none", "cpu", "nvme"), "none")
            if device == "nvme":
                engine.leave(key, "shardwise offloads to the second memory tier, the host's")
            if device != "none":
                fields[field] = True
        if fields.get("offload_weights") and stage < _MOST_STAGE:
            engine.wrong("offload_param_device", "is of ZeRO stage 3")
    if engine.data.get("gradient_accumulation_steps") not in (None, 1, AUTO):
        engine.leave(
            "gradient_accumulation_steps",
            "set global_batch_size to it x micro_batch_size x replicas",
        )
    engine.ignore("gradient_accumulation_steps", *options.DEEPSPEED_IGNORED)
    engine.leave_unread({}, options.NO_WORD)
    return fields | _ulysses(mesh)


def _ulysses(mesh: Section) -> Fields:
    """Sequence parallelism; releases before 1.12 had it as a backend of cp."""
    sp = mesh.count("parallelism_config_sp_size") or 1
    cp = mesh.count("parallelism_config_cp_size") or 1
    for name in ("dp_replicate", "dp_shard", "tp"):
        mesh.count(f"parallelism_config_{name}_size")
    if cp > 1 and mesh.data.get("parallelism_config_cp_backend") != "deepspeed":
        mesh.wrong("parallelism_config_cp_size", "needs distributed_type FSDP; DeepSpeed has sp")
    mesh.ignore("parallelism_config_cp_backend", "parallelism_config_cp_comm_strategy")
    fields: Fields = {}
    length = mesh.count("parallelism_config_sp_seq_length")
    if length is not None:
        fields["seq_len"] = length
    return fields | ({"cp": sp * cp, "cp_exchange": "all_to_all"} if sp * cp > 1 else {})


def megatron_fields(top: Section, number: int | None) -> Fields:
    """Return fields of `megatron_lm_config`."""
    nested = top.section("megatron_lm_config")
    plain = {key.removeprefix("megatron_lm_"): value for key, value in nested.data.items()}
    plugin = Section(plain, top.found, "megatron_lm_config.megatron_lm_")
    fields: Fields = {"stack": MEGATRON_STACK}
    for key, field in options.MEGATRON_DEGREES.items():
        if (degree := plugin.count(key) or 1) > 1:
            fields[field] = degree
    tp = int(str(fields.get("tp", 1)))
    if tp > 1:
        splits = plugin.flag("sequence_parallelism", texts=True)
        fields["tp_exchange"] = "rs_ag" if splits else "all_reduce"
    shards = plugin.flag("use_distributed_optimizer", texts=True)
    fields["zero"] = 1 if shards else 0
    if plugin.flag("optimizer_cpu_offload", texts=True):
        fields["offload_optimizer"] = True
    fields |= _recomputed(plugin)
    layers = plugin.count("decoder_last_pipeline_num_layers")
    if layers is not None:
        fields["last_stage_layers"] = layers
    if "num_micro_batches" in plugin:
        plugin.count("num_micro_batches")
        plugin.leave("num_micro_batches", "set global_batch_size to it x micro_batch_size x dp")
    plugin.ignore("sequence_parallelism", *options.MEGATRON_IGNORED)
    plugin.leave_unread(options.MEGATRON_DEFAULTS, options.NO_WORD)
    degrees = tp * int(str(fields.get("pp", 1))) * int(str(fields.get("cp", 1)))
    if number is not None and number % degrees:
        top.wrong("num_processes", f"must be a multiple of tp x pp x cp = {degrees}")
    return fields


def _recomputed(plugin: Section) -> Fields:
    """Recompute: the old flag stands for the core of attention."""
    activations = plugin.flag("recompute_activations", texts=True)
    word = plugin.word("recompute_granularity", ("none", "selective", "full"), "none")
    method = plugin.word("recompute_method", ("none", "uniform", "block"), "none")
    layers = plugin.count("recompute_num_layers")
    if word == "full":
        if method == "block":
            return {"recompute": "full"} | ({"recompute_layers": layers} if layers else {})
        if layers not in (None, 1):
            plugin.leave("recompute_num_layers", "shardwise recomputes layers one by one")
        return {"recompute": "full"}
    is_selective = word == "selective" or activations
    parts = {"recompute_parts": ("core_attention",)}
    return {"recompute": "selective", **parts} if is_selective else {}


NAME, FSDP1_STACK = "accelerate", "huggingface-2024"
STACK = STACKS[NAME]
_KEYS = ("distributed_type:", "compute_environment:")
_OTHERS = ("mixed_precision:", "num_processes:", "fsdp_config:", "num_machines:")
_MOST_BYTES = 2**20
_FSDP2 = 2


def recognise(text: str, source: str) -> bool:
    """Whether a text is YAML with keys of `accelerate config`."""
    if source.endswith((".json", ".py", ".sh", ".toml")):
        return False
    lines = [line for line in text.splitlines() if not line.startswith((" ", "#", "-"))]
    has = [any(line.startswith(key) for line in lines) for key in (*_KEYS, *_OTHERS)]
    return has[0] and any(has[1:])


def read(text: LaunchText) -> Launch:
    """Read a configuration of accelerate, as `Launcher.read`."""
    data = parse(text.text, ".yaml", text.source, most_bytes=_MOST_BYTES)
    if not isinstance(data, Mapping):
        raise InputError(Fault(source=text.source, problem="must be a mapping of options"))
    found = Found(text.source)
    fields = _fields(Section(data, found), text)
    launch = launch_of(NAME, text, fields, found, _origins(data, fields))
    machines, number = data.get("num_machines"), fields.get("gpus")
    if isinstance(machines, int) and isinstance(number, int) and machines > 0:
        launch = replace(launch, per_node=number // machines)
    return launch


def _origins(data: Mapping[str, Any], fields: Fields) -> dict[str, Origin]:
    """Where fields come from: options of all sections, without the prefixes of their names."""
    nested = [section for section in data.values() if isinstance(section, Mapping)]
    keys = {str(key) for section in (data, *nested) for key, item in section.items() if item}
    zero = ("distributed_type", "zero_stage", "fsdp_sharding_strategy", "fsdp_version")
    options_ = {
        "dtype": ("mixed_precision", "deepspeed_config_file"),
        "zero": zero,
        "dp_overlap": ("zero_stage",),
    }
    return origins_of(fields, options_, keys)


def _fields(top: Section, text: LaunchText) -> Fields:
    kind = top.word("distributed_type", options.TYPES, "NO")
    fields: Fields = {"stack": STACK, **_precision(top)}
    names_file = "deepspeed_config_file" in top.section("deepspeed_config")
    if names_file and "mixed_precision" not in top:
        del fields["dtype"]
    number = _processes(top, kind, text.gpus)
    if number is not None:
        fields["gpus"] = number
    if top.flag("use_cpu"):
        top.leave("use_cpu", "shardwise models accelerators")
    if kind == "FSDP":
        fields |= _sharding(top, number)
    elif kind == "DEEPSPEED":
        fields |= deepspeed_fields(top, text, number)
    elif kind == "MEGATRON_LM":
        fields |= megatron_fields(top, number)
    else:
        fields |= {"zero": 0}
    if kind not in ("DEEPSPEED", "MEGATRON_LM"):
        fields |= _mesh_fields(top.section("parallelism_config"), fields, number)
    if (compiled := _compiled(top)) is not None:
        fields["compile"] = compiled
    _leave(top)
    return fields


def _compiled(top: Section) -> Compile | None:
    """What torch.compile compiles: the model, which computes its loss, or its repeated blocks."""
    data = top.section("dynamo_config").data
    plain = {key.removeprefix("dynamo_"): value for key, value in data.items()}
    section = Section(plain, top.found, "dynamo_config.")
    backend = str(plain.get("backend", "NO")).upper()
    section.ignore("backend", *options.DYNAMO_IGNORED)
    by_block = section.flag("use_regional_compilation", texts=True)
    section.leave_unread({}, options.NO_WORD)
    if backend in ("NO", "FALSE"):
        return None
    if backend != "INDUCTOR":
        section.leave("backend", "predicted as INDUCTOR")
    return Compile.LAYERS if by_block else Compile.WHOLE


def _leave(top: Section) -> None:
    """List what nothing read; sections of other types have no effect."""
    top.ignore(*options.TOP_IGNORED)
    top.ignore("deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config")
    top.section("parallelism_config").ignore(*options.SP_IGNORED)
    top.section("parallelism_config").leave_unread({}, options.NO_WORD)
    top.leave_unread(options.TOP_DEFAULTS, "is read from dynamo_config alone")


def _processes(top: Section, kind: str, gpus: int | None) -> int | None:
    """Accelerators of the run; -1 leaves them to the command line."""
    top.count("num_machines")
    if top.data.get("num_processes") == -1:
        top.ignore("num_processes")
        return gpus
    number = top.count("num_processes") or (1 if kind == "NO" else None)
    if number is not None and gpus not in (None, number):
        top.wrong("num_processes", f"must be the {gpus} accelerators of the run")
    return number or gpus


def _precision(top: Section) -> Fields:
    """Types of weights and products; accelerate's fp8 computes the rest in bf16."""
    words = {word: dtype for dtype, word in options.MIXED_PRECISION.items()}
    if top.data.get("mixed_precision") is False:  # YAML 1.1 reads a bare `no` as false
        top.ignore("mixed_precision")
        return {"dtype": "fp32"}
    word = top.word("mixed_precision", (*words, "fp8"), "no")
    if word != "fp8":
        return {"dtype": words[word]}
    fp8 = top.section("fp8_config")
    plain = {key.removeprefix("fp8_"): value for key, value in fp8.data.items()}
    section = Section(plain, top.found, "fp8_config.")
    backend = section.word("backend", ("TE", "AO", "MSAMP"), "TE")
    fields: Fields = {"dtype": "bf16", "quantization": "fp8_tensor"}
    if backend == "AO":
        gathers = section.flag("enable_fsdp_float8_all_gather", default=True)
        fields["quantized_weights"] = gathers
    elif section.flag("use_mxfp8_block_scaling"):
        fields["quantization"] = "mxfp8"
    if backend == "MSAMP":
        section.leave("backend", "shardwise models no optimizer state in 8 bits of its own")
    section.ignore(*options.FP8_IGNORED, "enable_fsdp_float8_all_gather")
    section.leave_unread(options.FP8_DEFAULTS, options.NO_WORD)
    return fields


# --- FSDP -----------------------------------------------------------------------------------------


def _sharding(top: Section, number: int | None) -> Fields:
    fsdp = top.section("fsdp_config")
    version = fsdp.count("fsdp_version") or 1
    if version > _FSDP2:
        fsdp.wrong("fsdp_version", "allowed: 1, 2")
    fields = _second_version(fsdp) if version >= _FSDP2 else _first_version(top, fsdp, number)
    if fsdp.flag("fsdp_offload_params", texts=True):
        fields |= {"offload_weights": True, "offload_optimizer": True}
    if fsdp.flag("fsdp_activation_checkpointing", texts=True):
        fields["recompute"] = "full"
    if fsdp.flag("fsdp_activation_checkpointing_offload", texts=True):
        fields["offload_activations"] = True
        if "recompute" not in fields:
            fsdp.wrong("fsdp_activation_checkpointing_offload", "needs activation checkpointing")
    words = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
    if fsdp.word("fsdp_auto_wrap_policy", words, "NO_WRAP") != words[0]:
        fsdp.leave("fsdp_auto_wrap_policy", "shardwise gathers weights by layer")
    fsdp.ignore(*options.FSDP_IGNORED)
    fsdp.leave_unread(options.FSDP_DEFAULTS, options.NO_WORD)
    return fields


def _second_version(fsdp: Section) -> Fields:
    stages = {reshards: stage for stage, reshards in options.RESHARDS.items()}
    reshards = fsdp.flag("fsdp_reshard_after_forward", default=True, texts=True)
    for key in ("fsdp_sharding_strategy", "fsdp_backward_prefetch"):
        if key in fsdp:
            fsdp.leave(key, "FSDP2 has no such option")
    return {"zero": stages[reshards]}


def _first_version(top: Section, fsdp: Section, number: int | None) -> Fields:
    """FSDP1, whose reshard option is another name of its strategy."""
    key = "fsdp_sharding_strategy"
    key = (
        key
        if key in fsdp or "fsdp_reshard_after_forward" not in fsdp
        else ("fsdp_reshard_after_forward")
    )
    words = [*options.STRATEGIES]
    index = fsdp.data.get(key)
    if isinstance(index, int) and not isinstance(index, bool) and 1 <= index <= len(words):
        word = words[index - 1]
        fsdp.ignore(key)
    else:
        word = fsdp.word(key, words, words[0])
    fsdp.ignore("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    stage, hybrid = options.STRATEGIES[word]
    fields: Fields = {"stack": FSDP1_STACK, "zero": stage}
    machines = top.count("num_machines") or 1
    if hybrid and number is not None and machines > 1:
        fields["dp_shard"] = number // machines
    prefetches = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
    if fsdp.word("fsdp_backward_prefetch", prefetches, prefetches[0]) != prefetches[0]:
        fsdp.leave("fsdp_backward_prefetch", "shardwise prefetches in both directions")
    return fields


def _mesh_fields(mesh: Section, fields: Fields, number: int | None) -> Fields:
    """Degrees of `parallelism_config`, whose product is the number of processes."""
    degrees = {
        name: mesh.count(f"parallelism_config_{name}_size") or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    tp, cp, sp = degrees["tp"], degrees["cp"], degrees["sp"]
    product = 1
    for size in degrees.values():
        product *= size
    if mesh.data and number is not None and product not in (1, number):
        text = " x ".join(f"{name} {size}" for name, size in degrees.items())
        mesh.found.wrong("parallelism_config", product, f"{text} must be num_processes {number}")
    own: Fields = {}
    if tp > 1:
        own |= {"tp": tp, "tp_exchange": "all_reduce"}
        key = "parallelism_config_tp_size"
        mesh.leave(key, "the plan of the model's code decides what it sends: set tp_exchange")
    strategies = {word: field for field, word in options.CP_STRATEGIES.items()}
    strategy = mesh.word("parallelism_config_cp_comm_strategy", [*strategies], "allgather")
    if cp > 1:
        own |= {"cp": cp, "cp_exchange": strategies[strategy]}
    mesh.ignore("parallelism_config_cp_backend")
    if sp > 1:
        mesh.wrong("parallelism_config_sp_size", "needs distributed_type DEEPSPEED")
    replicas, shard = degrees["dp_replicate"], degrees["dp_shard"]
    if replicas > 1 and shard == 1 and (tp > 1 or cp > 1):
        mesh.wrong("parallelism_config_dp_replicate_size", "with tp or cp needs dp_shard_size > 1")
    if replicas > 1 and fields.get("zero") != 0:
        own["dp_shard"] = shard
    return own


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what accelerate has no option for, as `Launcher.faults`."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

    if not strategy.training:
        yield fault("training", "accelerate's configuration is of training")
    if strategy.tp > 1 and (what := missing_modules(model)):
        problem = f"the tensor-parallel plan is of Llama's modules; {model.name} has {what}"
        yield fault("tp", problem)
    if strategy.cp > 1 and any(
        layer.mixer is not None
        or (
            layer.attention is not None
            and (layer.attention.window or layer.attention.chunk or not layer.attention.causal)
        )
        for layer in model.layers
    ):
        yield fault("cp", f"needs causal attention over the sequence; {model.name} has another")
    if strategy.zero > 0 and strategy.dp_shard == 1 and (strategy.dp or 1) > 1:
        yield fault("dp_shard", "FSDP shards over at least 2; replicas alone are zero 0")
    if strategy.in_effect("weight_dtype") == WeightDtype.COMPUTE:
        yield fault("weight_dtype", "mixed precision of accelerate trains weights in fp32")
    if strategy.quantization != Quantization.NONE and strategy.dtype != Dtype.BF16:
        yield fault("quantization", f"mixed_precision fp8 is with bf16, not {strategy.dtype}")


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    remarks = as_comments([f"accelerate {release}", *plan.comments, *_in_code(plan)])
    files = [LaunchFile(ending=ending, text=remarks + as_yaml(configuration(plan)))]
    if plan.strategy.tp > 1:
        files.append(LaunchFile(ending=".py", text=python_plan(plan.model, plan.strategy)))
    files.append(LaunchFile(ending=".sh", text=_script(plan, release, ending), executable=True))
    return tuple(files)


def _is_sharded(strategy: Strategy) -> bool:
    """Whether FSDP has ranks to shard over."""
    return strategy.zero > 0 and (strategy.dp or 1) * strategy.cp > 1


def configuration(plan: LaunchPlan) -> dict[str, Any]:
    """Return accelerate's configuration of a plan."""
    strategy = plan.strategy
    gpus = strategy.gpus or 1
    nodes, _ = nodes_of(plan.system, gpus)
    kind = "FSDP" if _is_sharded(strategy) else "MULTI_GPU" if gpus > 1 else "NO"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": options.MIXED_PRECISION[strategy.dtype],
        "num_machines": nodes,
        "num_processes": gpus,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if strategy.quantization != Quantization.NONE:
        gathers = strategy.quantized_weights
        config["mixed_precision"] = "fp8"
        config["fp8_config"] = {"backend": "AO", "enable_fsdp_float8_all_gather": gathers}
    if strategy.in_effect("compile").code >= Compile.LAYERS.code:
        by_block = strategy.compile != Compile.WHOLE
        config["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_use_regional_compilation": by_block,
        }
    if kind == "FSDP":
        reshards = options.RESHARDS[strategy.zero] and strategy.fsdp_reshard
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": reshards,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": strategy.offload_weights,
            "fsdp_activation_checkpointing": strategy.recompute == Recompute.FULL,
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if kind == "FSDP" or strategy.tp > 1:
        config["parallelism_config"] = _mesh(strategy)
    return config


def _mesh(strategy: Strategy) -> dict[str, Any]:
    dp = strategy.dp or 1
    shard = strategy.dp_shard or dp
    sizes = {"dp_replicate": dp // shard, "dp_shard": shard, "tp": strategy.tp, "cp": strategy.cp}
    mesh: dict[str, Any] = {f"parallelism_config_{name}_size": n for name, n in sizes.items()}
    if strategy.cp > 1:
        word = options.CP_STRATEGIES[strategy.cp_exchange]
        mesh["parallelism_config_cp_comm_strategy"] = word
    return mesh


# --- The script -----------------------------------------------------------------------------------


def _in_code(plan: LaunchPlan) -> Iterator[str]:
    """What the YAML cannot hold: the model and what its code decides."""
    strategy, model = plan.strategy, plan.model
    gpus = counted(strategy.gpus or 1, "GPU")
    yield f"model {model.name}, sequences of {strategy.seq_len} tokens, {gpus}"
    yield f"micro_batch_size {strategy.micro_batch_size}, batch {strategy.global_batch_size}"
    if strategy.tp > 1:
        yield "tensor-parallel plan: parallelize(model, accelerator.torch_device_mesh['tp'])"
        yield f"  of the .py file ({strategy.tp_exchange}), before accelerator.prepare"
    if strategy.cp > 1:
        yield "context parallelism: accelerator.maybe_context_parallel(buffers=...) around a step"
    if strategy.recompute == Recompute.FULL and not _is_sharded(strategy):
        yield "recompute full: model.gradient_checkpointing_enable()"
    if model.tied_embeddings and _is_sharded(strategy):
        yield "tied embeddings: FSDP2 of PyTorch 2.13 shards them from accelerate 1.15.0 on"
    yield from trained_in_code(strategy)


_SYNC_EACH = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'
"""AcceleratorConfig of transformers, whose plugin reduces gradients of each micro-batch."""


def _trainer_arguments(strategy: Strategy) -> Iterator[str]:
    """Arguments of the Hugging Face Trainer."""
    steps = (strategy.global_batch_size or 1) // (strategy.micro_batch_size * (strategy.dp or 1))
    yield f"--per_device_train_batch_size {strategy.micro_batch_size}"
    yield f"--gradient_accumulation_steps {steps}"
    yield f"--optim {options.OPTIMIZERS[strategy.optimizer]}"
    if strategy.in_effect("grad_sync") == GradSync.MICRO_BATCH:
        yield f"--accelerator_config '{_SYNC_EACH}'"
    if strategy.recompute == Recompute.FULL and not _is_sharded(strategy):
        yield "--gradient_checkpointing true"
    yield from loss_arguments(strategy)


def _script(plan: LaunchPlan, release: str, ending: str) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    trainer = " \\\n  ".join(_trainer_arguments(plan.strategy))
    rendezvous = ""
    if nodes > 1:
        rendezvous = (
            '  --machine_rank "${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK}}" \\\n'
            '  --main_process_ip "${MASTER_ADDR:?set MASTER_ADDR}" --main_process_port 29500 \\\n'
        )
    return (
        "#!/usr/bin/env bash\n"
        f"# accelerate {release}: {counted(nodes, 'node')} x {counted(per_node, 'GPU')}; "
        "run once on every node, or\n"
        f"# srun --nodes {nodes} --ntasks-per-node 1 this script\n"
        f"{as_comments([*plan.comments, *_in_code(plan)])}"
        "set -euo pipefail\n\n"
        f'CONFIG="${{CONFIG:-${{BASH_SOURCE[0]%.sh}}{ending}}}"\n'
        'SCRIPT="${SCRIPT:-train.py}"\n\n'
        f"{exports(thread_variables(plan.strategy))}"
        'accelerate launch --config_file "$CONFIG" \\\n'
        f'{rendezvous}  "$SCRIPT" \\\n  {trainer}\n'
    )
