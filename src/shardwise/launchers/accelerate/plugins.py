"""Plugins of accelerate: DeepSpeed's engine and Megatron-LM, set inside its YAML."""

from shardwise.launchers.accelerate import options
from shardwise.launchers.deepspeed.options import OFFLOADS
from shardwise.launchers.deepspeed.reader import STACK as DEEPSPEED_STACK
from shardwise.launchers.sections import AUTO, Section

MEGATRON_STACK = "megatron-lm-2026"
_MOST_STAGE = 3
Fields = dict[str, object]


def deepspeed_fields(top: Section) -> Fields:
    """Return fields of `deepspeed_config` and of sequence parallelism, which is Ulysses."""
    engine, mesh = top.section("deepspeed_config"), top.section("parallelism_config")
    fields: Fields = {"stack": DEEPSPEED_STACK}
    if "deepspeed_config_file" in engine:
        engine.leave("deepspeed_config_file", "is a file of its own: import it")
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
