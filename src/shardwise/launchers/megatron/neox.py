"""Configurations of GPT-NeoX: YAML with options of Megatron and of DeepSpeed side by side.

Options and defaults of megatron/neox_arguments/neox_args.py (EleutherAI/gpt-neox, main of 2025).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from shardwise.config.launch import Launch, NotUnderstood
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError, allowed_words, refuse
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron.arguments import VOCABULARIES
from shardwise.launchers.megatron.core_options import CORE_DEFAULTS, read_core_fields
from shardwise.launchers.megatron.core_stack import Value

TITLE, STACK = "GPT-NeoX", "gpt-neox-2023"
_PIPE = re.compile(r"""(?<![\w-])["']?pipe[-_]parallel[-_]size["']?\s*:""")
_LAYERS = re.compile(r"""(?<![\w-])["']?num[-_]layers["']?\s*:""")
_MOST_BYTES = 2**20
_SAME: Mapping[str, str] = {
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups",
    "intermediate_size": "ffn_hidden_size",
    "seq_length": "seq_length",
    "max_position_embeddings": "max_position_embeddings",
    "rotary_pct": "rotary_percent",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "train_batch_size": "global_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gas": "gradient_accumulation_steps",
    "sequence_parallel": "sequence_parallel",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
}
_WORDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "pos_emb": (
        "position_embedding_type",
        {"learned": "learned_absolute", "rotary": "rope", "alibi": "alibi", "none": "none"},
    ),
    "norm": (
        "normalization",
        {
            "layernorm": "LayerNorm",
            "rmsnorm": "RMSNorm",
            "te_rmsnorm": "RMSNorm",
            "te_layernorm": "LayerNorm",
        },
    ),
}
_PLAIN = {"gelu": "gelu", "relu": "relu", "silu": "silu"}
_GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
_VOCABULARIES = {"20B_tokenizer.json": 50277, "gpt2-vocab.json": 50257}
"""Entries of the vocabulary by the name of its file."""
_TOKENIZER = "GPT2BPETokenizer"
"""By default."""
_READ = (
    *(
        "fp16",
        "bf16",
        "precision",
        "zero_optimization",
        "checkpoint_activations",
        "no_weight_tying",
    ),
    *("activation", "mlp_type", "gpt_j_residual", "attention_config", "vocab_file", "optimizer"),
    *(
        "use_bias_in_attn_linear",
        "use_bias_in_mlp",
        "use_bias_in_norms",
        "mlp_multiple_of",
        "moe_num_experts",
        "checkpoint_num_layers",
    ),
)
_NEUTRAL = re.compile(
    r"(?:.*(?:path|paths|dir|weights|interval|iters|log|wandb|save|load|name|names)|.*lr.*|split|seed"
    r"|warmup|data_impl|.*_init_method|init_method.*|weight_decay|gradient_clipping|merge_file"
    r"|tokenizer_type|steps_per_print|wall_clock_breakdown|distributed_backend|checkpoint_factor"
    r"|synchronize_each_layer|contiguous_checkpointing|.*_fusion|scheduler|launcher|hostfile"
    r"|deepspeed_slurm|comment|rotary_emb_base|layernorm_epsilon|rms_norm_epsilon|tensorboard.*"
    r"|extra_save_iters|log_.*|train_data.*|use_wandb|wandb_.*|num_workers|eval_.*|text_gen_type"
    r"|output_layer_parallelism|partition_activations|no_ssh_check|attention_softmax_in_fp32"
    r"|mmap_warmup|keep_last.*|data_types|communication_data_type|include|save_base_shapes|prescale_.*"
    r"|weight_by_num_documents|(?:train|valid|test)_.*|apply_query_key_layer_scaling|finetune)"
)


def is_neox(text: str, source: str) -> bool:
    """Whether a text is a configuration of GPT-NeoX with a model."""
    ending = source.removesuffix(".gz").rpartition(".")[2]
    if ending not in ("yml", "yaml", "json"):
        return False
    return _PIPE.search(text) is not None and _LAYERS.search(text) is not None


def read_neox(text: LaunchText) -> Launch:
    """Read a configuration of GPT-NeoX.

    Raises
    ------
    InputError
        If a value is wrong or missing.
    """
    data = parse(text.text, ".yaml", text.source, most_bytes=_MOST_BYTES)
    if not isinstance(data, Mapping):
        raise InputError(Fault(source=text.source, problem="must be a mapping of options"))
    options = {str(key).replace("-", "_"): value for key, value in data.items()}
    fields: dict[str, Value] = {}
    faults = list(_fill(fields, options, text.source))
    refuse(faults)
    core = read_core_fields(
        fields,
        stack=STACK,
        source=text.source,
        name=PurePath(text.source).name.rpartition(".")[0] or "gpt-neox",
        gpus=text.gpus,
        defaults={**CORE_DEFAULTS, "attention_backend": "local"},
        option=lambda name: next((own for own, one in _SAME.items() if one == name), name),
        padded_to=_vocabulary(options, text),
    )
    model = core.model
    if options.get("gpt_j_residual"):
        layers = [{**one, "parallel": True} for one in model.to_dict()["layers"]]
        model = Model.validated({**model.to_dict(), "layers": layers}, source=text.source)
    left = [
        NotUnderstood(option=key, value=str(value), because="shardwise does not know it")
        for key, value in options.items()
        if key not in (*_SAME, *_WORDS, *_READ) and not _NEUTRAL.fullmatch(key)
    ]
    return Launch(
        launcher="megatron",
        release=None,
        source=text.source,
        fork=TITLE,
        model=model,
        strategy=core.strategy,
        not_understood=(*left, *core.not_understood),
        origins=core.origins,
    )


def _vocabulary(options: Mapping[str, object], text: LaunchText) -> int:
    """Entries of the vocabulary: of the user, the model, or by the name of its file; 0: unknown."""
    if known := text.vocabulary():
        return known
    by_file = _VOCABULARIES.get(PurePath(str(options.get("vocab_file", ""))).name, 0)
    usual = options.get("tokenizer_type", _TOKENIZER) == _TOKENIZER
    return by_file or (VOCABULARIES[_TOKENIZER] if usual else 0)


def _fill(fields: dict[str, Value], options: Mapping[str, object], source: str) -> Iterator[Fault]:
    """Set fields of Megatron-Core; yields what is wrong."""
    for own, core in _SAME.items():
        value = options.get(own)
        if isinstance(value, (bool, int, float)):
            fields[core] = value
        elif value is not None:
            yield Fault.of(own, value, "must be a number", source)
    fields["pipeline_model_parallel_size"] = fields.get("pipeline_model_parallel_size") or 1
    for own, (core, words) in _WORDS.items():
        word = options.get(own)
        if word is not None and str(word) not in words:
            yield Fault.of(own, word, allowed_words(word, words), source)
        elif word is not None:
            fields[core] = words[str(word)]
    if options.get("moe_num_experts") not in (None, 0, 1):
        yield Fault.of("moe_num_experts", options["moe_num_experts"], "is not read", source)
    yield from _set_block(fields, options, source)
    _set_precision(fields, options)
    _set_engine(fields, options)
    kinds = set(re.findall(r"[a-z_]+", str(options.get("attention_config", "")))) - {"all"}
    if "flash" in kinds:
        fields["attention_backend"] = "flash"
    if other := kinds - {"flash", "global"}:
        problem = "other layers are not read; allowed: global, flash"
        yield Fault.of("attention_config", ", ".join(sorted(other)), problem, source)


def _set_engine(fields: dict[str, Value], options: Mapping[str, object]) -> None:
    """Set ZeRO, offload and recompute."""
    zero = options.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    stage = zero.get("stage", 0)
    fields["zero_stage"] = stage if isinstance(stage, int) else 0
    fields["overlap_grad_reduce"] = bool(zero.get("overlap_comm"))
    fields["optimizer_cpu_offload"] = bool(zero.get("cpu_offload"))
    if options.get("checkpoint_activations"):
        fields |= {"recompute_granularity": "full", "recompute_method": "uniform"}
        fields["recompute_num_layers"] = 1


def _set_block(
    fields: dict[str, Value], options: Mapping[str, object], source: str
) -> Iterator[Fault]:
    """Set the activation, biases and the head."""
    word = str(options.get("activation", "gelu")).lower()
    llama = options.get("mlp_type") in ("llama", "gated")  # until 2024, and in forks
    if word not in (*_GATED, *_PLAIN):
        yield Fault.of("activation", word, allowed_words(word, (*_GATED, *_PLAIN)), source)
    fields["activation_func"] = _GATED.get(word) or _PLAIN.get(word)
    fields["gated_linear_unit"] = word in _GATED or llama
    hidden, width = options.get("hidden_size"), options.get("intermediate_size")
    multiple = options.get("mlp_multiple_of", 256 if llama else 1)
    multiple = multiple if isinstance(multiple, int) and multiple > 0 else 1
    if llama and isinstance(hidden, int) and width is None:
        fields["ffn_hidden_size"] = -(-(8 * hidden // 3) // multiple) * multiple
    elif word in _GATED and not llama and isinstance(hidden, int):
        third = (width if isinstance(width, int) else 4 * hidden) // 3
        fields["ffn_hidden_size"] = -(-third // multiple) * multiple
    biases = [options.get(name, True) for name in ("use_bias_in_attn_linear", "use_bias_in_mlp")]
    fields["add_bias_linear"] = any(biases) and options.get("mlp_type") != "llama"
    fields["share_embeddings_and_output_weights"] = not options.get("no_weight_tying")


def _set_precision(fields: dict[str, Value], options: Mapping[str, object]) -> None:
    for name, words in (("fp16", ("fp16",)), ("bf16", ("bf16", "bfloat16"))):
        section = options.get(name)
        enabled = isinstance(section, Mapping) and bool(section.get("enabled"))
        fields[name] = enabled or options.get("precision") in words
