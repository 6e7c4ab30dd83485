"""Configurations of NeMo 1: a flat section `model` of Megatron's GPT, and Lightning's trainer.

Options of examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py (NeMo 1.20 to 2.0), and of
NeMo-Framework-Launcher, whose files have the same sections.
"""

from collections.abc import Iterator, Mapping

from shardwise.config.launch import NotUnderstood
from shardwise.errors import Fault, InputError
from shardwise.launchers.megatron.core_options import CORE_DEFAULTS
from shardwise.launchers.megatron.core_stack import Fields
from shardwise.launchers.megatron_bridge.files import NEMO_STACK, Job
from shardwise.launchers.megatron_bridge.trees import Leaf, Tree, put, section

RENAMED: Mapping[str, str] = {
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "rampup_batch_size": "train.rampup_batch_size",
    "encoder_seq_length": "model.seq_length",
    "bias": "model.add_bias_linear",
    "rotary_percentage": "model.rotary_percent",
    "override_vocab_size": "model.vocab_size",
    "activations_checkpoint_granularity": "model.recompute_granularity",
    "activations_checkpoint_method": "model.recompute_method",
    "activations_checkpoint_num_layers": "model.recompute_num_layers",
    "ub_tp_comm_overlap": "model.tp_comm_overlap",
    "fp8_params": "model.fp8_param",
    "use_tp_pp_dp_mapping": "dist.use_tp_pp_dp_mapping",
    "optim.overlap_grad_sync": "ddp.overlap_grad_reduce",
    "optim.overlap_param_sync": "ddp.overlap_param_gather",
}
"""Options below `model` with another name in Megatron-Core."""
_READ = (
    *("activation", "fp8", "fp8_e4m3", "fp8_hybrid", "megatron_amp_O2", "transformer_engine"),
    *(
        "fsdp",
        "fsdp_sharding_strategy",
        "use_flash_attention",
        "optim.name",
        "optim.grad_sync_dtype",
    ),
    *("tokenizer.type", "tokenizer.library"),
)
"""Options below `model` that stand for several fields."""
_NEUTRAL = (
    *(
        "optim.",
        "data.",
        "tokenizer.",
        "nsys_profile.",
        "native_amp_",
        "fp8_",
        "ub_tp_comm_overlap_cfg",
    ),
    *(
        "mcore_gpt",
        "name",
        "seed",
        "pre_process",
        "post_process",
        "onnx_safe",
        "resume_from_checkpoint",
    ),
    *("apex_transformer_log_level", "gradient_as_bucket_view", "grad_div_ar_fusion", "gc_interval"),
    *("grad_allreduce_chunk_size_mb", "sync_batch_comm", "headscale", "use_emha", "hysteresis"),
    *("transformer_block_type", "openai_gelu", "normalize_attention_scores", "attention_type"),
    *("do_layer_norm_weight_decay", "use_scaled_init_method", "bias_dropout_add_fusion"),
    *(
        "scale_positional_embedding",
        "ffn_dropout",
        "max_position_embeddings",
        "ub_tp_comm_bootstrap",
    ),
    *(
        "restore_from_path",
        "precision",
        "get_attention_mask_from_fusion",
        "dist_ckpt",
        "batch_p2p_comm",
    ),
    *("seq_len_interpolation_factor", "reduce_amax", "use_te_rng_tracker", "convert_to_hf"),
)
"""Options below `model` without effect on a step's time or memory, by their beginnings."""
_ACTIVATIONS: Mapping[str, tuple[str, bool]] = {
    "gelu": ("gelu", False),
    "geglu": ("gelu", True),
    "reglu": ("relu", True),
    "swiglu": ("silu", True),
    "squared-relu": ("squared_relu", False),
    "fast-geglu": ("gelu", True),
    "fast-reglu": ("relu", True),
    "fast-swiglu": ("silu", True),
    "approx-gelu": ("gelu", False),
}
_VOCABULARIES: Mapping[str, int] = {
    "GPT2BPETokenizer": 50257,
    "gpt2": 50257,
    "meta-llama/Llama-2-7b-hf": 32000,
    "meta-llama/Llama-2-70b-hf": 32000,
    "meta-llama/Meta-Llama-3-8B": 128256,
    "meta-llama/Meta-Llama-3-70B": 128256,
    "meta-llama/Meta-Llama-3.1-8B": 128256,
    "mistralai/Mixtral-8x7B-v0.1": 32000,
}
"""Entries of the vocabulary by `tokenizer.type` (config.json of the models on Hugging Face)."""
_HALVES = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": None}
_SHARDED = {"full": "optim_grads_params", "hybrid": "optim_grads_params", "grad": "optim_grads"}
_DEFAULTS: Fields = {
    **CORE_DEFAULTS,
    "grad_reduce_in_fp32": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "bias_activation_fusion": True,
}
"""What holds where a file sets nothing."""


class Form:
    """Form of NeMo 1's files."""

    @staticmethod
    def path(path: str) -> str:
        """A path of the file as Megatron-Bridge has it; those without effect are of its logger."""
        top, _, name = path.partition(".")
        if top == "trainer":
            return path if name in ("num_nodes", "devices", "precision") else f"logger.{name}"
        if top != "model":
            return f"logger.{path}"
        if name in RENAMED or name in _READ:
            return path
        return f"logger.{name}" if name.startswith(_NEUTRAL) else path

    @staticmethod
    def job(tree: Tree, source: str) -> Job:
        """What a file sets, its references replaced."""
        model, trainer = section(tree, "model"), section(tree, "trainer")
        found: Tree = {}
        origins: dict[str, str] = {}
        for name, value in _flat(model):
            if name in _READ or (name not in RENAMED and name.startswith(_NEUTRAL)):
                continue
            path = RENAMED.get(name, f"model.{name}")
            put(found, path, value)
            origins[path] = f"model.{name}"
        faults = list(_of_another_class(tree, model, source))
        faults += _set_activation(found, model, source)
        faults += _set_precision(found, model, trainer, source)
        if faults:
            raise InputError(faults)
        # The sequence length of the data, where the model has none.
        length = section(model, "data").get("seq_length")
        if "seq_length" not in section(found, "model") and length is not None:
            put(found, "model.seq_length", length)
            origins["model.seq_length"] = "model.data.seq_length"
        notes = [*_set_sharding(found, model), *_set_optimizer(found, model), *_odd(model)]
        tokenizer = section(model, "tokenizer")
        vocab = _VOCABULARIES.get(str(tokenizer.get("type")), 0)
        devices = trainer.get("devices")
        return Job(
            tree=found,
            origins=origins | {"model.vocab_size": "model.override_vocab_size"},
            gpus=_gpus(trainer),
            per_node=devices if isinstance(devices, int) and devices > 0 else None,
            stack=NEMO_STACK,
            defaults=_DEFAULTS,
            vocab=vocab,
            notes=tuple(notes),
        )


_CLASSES = ("mamba", "griffin", "hyena", "t5", "bert", "retro", "nmt", "vit", "clip", "bart")
_KEYS = {
    "mamba_": "mamba",
    "hybrid_override_pattern": "mamba",
    "hyena": "hyena",
    "griffin": "griffin",
}


def _of_another_class(tree: Tree, model: Tree, source: str) -> Iterator[Fault]:
    """Yield a fault for a file of another class than GPT, by its name or by keys below `model`."""
    name = str(tree.get("name", "")).lower()
    if found := next((one for one in _CLASSES if name.startswith(f"megatron_{one}")), None):
        problem = f"{found} models of NeMo 1 are not read; allowed: GPT models"
        yield Fault.of("name", tree["name"], problem, source)
        return
    for key, value in model.items():
        if found := next((one for start, one in _KEYS.items() if key.startswith(start)), None):
            problem = f"{found} models of NeMo 1 are not read; allowed: GPT models"
            yield Fault.of(f"model.{key}", value, problem, source)
            return


def _flat(model: Tree, within: str = "") -> Iterator[tuple[str, Leaf]]:
    """Options below `model`; mappings are options of their own but in optim and others."""
    for name, value in model.items():
        if isinstance(value, dict) and not within and name in _NESTED:
            yield from _flat(value, f"{name}.")
        else:
            yield f"{within}{name}", value


_NESTED = ("optim", "data", "tokenizer", "nsys_profile")


def _set_activation(found: Tree, model: Tree, source: str) -> Iterator[Fault]:
    word = model.get("activation", "gelu")
    pair = _ACTIVATIONS.get(str(word))
    if pair is None:
        yield Fault.of("model.activation", word, f"allowed: {', '.join(_ACTIVATIONS)}", source)
        return
    put(found, "model.activation_func", pair[0])
    put(found, "model.gated_linear_unit", pair[1])


def _set_precision(found: Tree, model: Tree, trainer: Tree, source: str) -> list[Fault]:
    word = str(trainer.get("precision", "32")).lower()
    if word not in _HALVES:
        problem = f"allowed: {', '.join(_HALVES)}"
        return [Fault.of("trainer.precision", trainer.get("precision"), problem, source)]
    if (half := _HALVES[word]) is not None:
        put(found, f"model.{half}", True)
    if model.get("fp8"):
        put(found, "model.fp8", "e4m3" if model.get("fp8_e4m3") else "hybrid")
        put(found, "model.fp8_recipe", "delayed")
    if not model.get("transformer_engine") and not model.get("use_flash_attention"):
        put(found, "model.attention_backend", "unfused")
    return []


def _set_sharding(found: Tree, model: Tree) -> Iterator[NotUnderstood]:
    if not model.get("fsdp"):
        return
    strategy = str(model.get("fsdp_sharding_strategy", "full"))
    put(found, "ddp.use_megatron_fsdp", True)
    put(found, "ddp.overlap_grad_reduce", True)
    put(found, "ddp.overlap_param_gather", True)
    put(found, "ddp.data_parallel_sharding_strategy", _SHARDED.get(strategy, "optim_grads_params"))
    because = "FSDP of PyTorch; predicted as that of Megatron"
    yield NotUnderstood(option="model.fsdp", value=True, because=because)
    if strategy not in ("full", "grad"):
        option = "model.fsdp_sharding_strategy"
        yield NotUnderstood(option=option, value=strategy, because="predicted as full")


def _set_optimizer(found: Tree, model: Tree) -> Iterator[NotUnderstood]:
    optim = section(model, "optim")
    name = str(optim.get("name", "fused_adam"))
    put(found, "ddp.use_distributed_optimizer", "distributed" in name)
    if optim.get("grad_sync_dtype") in ("bf16", "bfloat16", "fp16", 16):
        put(found, "ddp.grad_reduce_in_fp32", False)
    if "adam" not in name and "distributed" not in name:
        yield NotUnderstood(option="model.optim.name", value=name, because="predicted as adam")


def _odd(model: Tree) -> Iterator[NotUnderstood]:
    """Options whose values are not modeled."""
    if "megatron_amp_O2" in model and not model["megatron_amp_O2"]:
        because = "weights in 32 bits with autocast; predicted with weights in 16 bits"
        yield NotUnderstood(option="model.megatron_amp_O2", value=False, because=because)


def _gpus(trainer: Tree) -> int | None:
    """Accelerators; files without num_nodes leave their number to who launches them."""
    nodes, devices = trainer.get("num_nodes"), trainer.get("devices")
    return nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None
