"""accelerate's YAML, read into fields of a strategy."""

from collections.abc import Mapping

from shardwise.config.launch import Launch
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError
from shardwise.launchers.accelerate import options
from shardwise.launchers.accelerate.plugins import deepspeed_fields, megatron_fields
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.sections import Found, Section, launch_of

NAME, STACK, FSDP1_STACK = "accelerate", "accelerate-2026", "huggingface-2024"
_KEYS = ("distributed_type:", "compute_environment:")
_OTHERS = ("mixed_precision:", "num_processes:", "fsdp_config:", "num_machines:")
_MOST_BYTES = 2**20
_FSDP2 = 2
Fields = dict[str, object]


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
    fields = _fields(Section(data, found), text.gpus)
    return launch_of(NAME, text, fields, found)


def _fields(top: Section, gpus: int | None) -> Fields:
    kind = top.word("distributed_type", options.TYPES, "NO")
    fields: Fields = {"stack": STACK, **_precision(top)}
    number = _processes(top, kind, gpus)
    if number is not None:
        fields["gpus"] = number
    if top.flag("use_cpu"):
        top.leave("use_cpu", "shardwise models accelerators")
    if kind == "FSDP":
        fields |= _sharding(top, number)
    elif kind == "DEEPSPEED":
        fields |= deepspeed_fields(top)
    elif kind == "MEGATRON_LM":
        fields |= megatron_fields(top, number)
    else:
        fields |= {"zero": 0}
    if kind not in ("DEEPSPEED", "MEGATRON_LM"):
        fields |= _mesh(top.section("parallelism_config"), fields, number)
    _leave(top)
    return fields


def _leave(top: Section) -> None:
    """List what nothing read; sections of other types have no effect."""
    top.ignore(*options.TOP_IGNORED)
    top.ignore("deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config")
    top.section("parallelism_config").ignore(*options.SP_IGNORED)
    top.section("parallelism_config").leave_unread({}, options.NO_WORD)
    top.leave_unread(options.TOP_DEFAULTS, "shardwise models this stack without torch.compile")


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


def _mesh(mesh: Section, fields: Fields, number: int | None) -> Fields:
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
