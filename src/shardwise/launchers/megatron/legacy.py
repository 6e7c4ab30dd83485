"""Older and other spellings of Megatron-LM's options, and options that change no time or memory."""

import re
from collections.abc import Mapping

from shardwise.launchers.megatron.core_reading import Value

ALIASES: Mapping[str, str] = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",
    "--cuda-graph-scope": "--cuda-graph-modules",
    "--moe-hybridep-num-sms": "--moe-flex-dispatcher-num-sms",
    "--moe-deepep-num-sms": "--moe-flex-dispatcher-num-sms",
    "--num-moe-experts": "--num-experts",
    "--batch-size": "--micro-batch-size",
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--fp8": "--fp8-format",
    "--fp4": "--fp4-format",
    "--decoder-num-layers": "--num-layers",
    "--encoder-num-layers": "--num-layers",
    "--encoder-seq-length": "--seq-length",
    "--qk-nope-head-dim": "--qk-head-dim",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim",
    "--num-mtp-predictor": "--mtp-num-layers",
    "--pad-vocab-size-to": "--padded-vocab-size",
}
"""Option that took the place of another, and the words of forks (Pai-Megatron-Patch,
Megatron-DeepSpeed) for it."""
SHORT: Mapping[str, Mapping[str, Value]] = {
    "--recompute-activations": {"recompute_granularity": "selective"},
    "--checkpoint-activations": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "--moe-enable-deepep": {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
    },
    "--enable-cuda-graph": {"cuda_graph_impl": "local"},
    "--external-cuda-graph": {"cuda_graph_impl": "transformer_engine"},
    "--use-flash-attn": {"attention_backend": "flash"},
    "--fp8-hybrid": {"fp8": "hybrid"},
    "--fp8-e4m3": {"fp8": "e4m3"},
    "--use-custom-fsdp": {"use_megatron_fsdp": True},
    "--accumulate-allreduce-grads-in-fp32": {"grad_reduce_in_fp32": True},
    "--use-rotary-position-embeddings": {"position_embedding_type": "rope"},
    "--distribute-saved-activations": {"distribute_saved_activations": True},
    "--distribute-checkpointed-activations": {"distribute_saved_activations": True},
    "--use-multi-token-prediction": {},
    "--embed-layernorm": {"embed_layernorm": True},
    "--moe-router-force-load-balancing": {"moe_router_force_load_balancing": True},
}
"""Options without a value that set other fields."""
VALUED: Mapping[str, str] = {
    "--moe-router-topk-limited-devices": "moe_router_topk_limited_devices",
    "--cpu-offloading-num-layers": "cpu_offloading_num_layers",
    "--padded-vocab-size": "padded_vocab_size",
}
"""Options that are read but never written, and their fields."""

_NEUTRAL = re.compile(
    r"""--(
    # learning rate, regularization, hyperparameters of optimizers, loss scale, random numbers
    (min-|decoupled-|max-)?lr(-.*)? | (start-|end-)?weight-decay(-.*)? | adam-.* | muon-.*
    | clip-grad | (initial-|min-)?loss-scale(-window)? | hysteresis | seed
    | data-parallel-random-init
    | init-method-.* | embedding-init-method-.* | perform-initialization | no-initialization
    | override-opt.* | use-checkpoint-.* | reset-iteration | finetune | use-cpu-initialization
    | data-seed | no-weight-decay-.* | apply-wd-to-.* | exit-.* | te-rng-tracker
    # lengths of the run, evaluation, checkpoints, logs
    | train-(iters|samples|tokens) | (full-)?eval-.* | eval-(iters|interval) | split
    | (no-)?(save|load)(-.*)? | (non-persistent-)?(ckpt|checkpoint)-.* | async-save | dist-ckpt-.*
    | use-dist-ckpt | auto-detect-ckpt-format | pretrained-checkpoint | no-ckpt-.* | exit-signal.*
    | log-.* | tensorboard-.* | wandb-.* | timing-log-.* | one-logger-.* | enable-one-logger
    | no-one-logger | barrier-with-.* | no-barrier-.* | profile.* | use-pytorch-profiler
    | record-memory-history | memory-snapshot-path | timers | logging-level | app-tag-.* | iteration
    # data and tokenizers
    | data-path | (.*-)?data-(path|cache-path|args-path) | data-cache-path | data-impl | mock-data
    | dataloader-type | num-workers | (train|valid|test)-data.* | tokenizer-.* | vocab-file
    | merge-file | vocab-extra-ids | (no-)?mmap-.* | create-attention-mask-in-dataloader | dataset
    | no-create-attention-mask-in-dataloader | num-dataset-builder-threads | .*-dir | .*-path
    | legacy-tokenizer | use-tokenizer-model-from-checkpoint-args | eod-mask-loss | full-validation
    | patch-tokenizer-type | extra-vocab-size | max-padding-length | epochs | defer-npy-index-mmap
    # communication set-up, and functions whose time does not depend on their constants
    | distributed-(backend|timeout-.*) | local-rank | rank | world-size | master-.* | node-rank
    | use-mcore-models | no-use-mcore-models | use-legacy-models | no-position-embedding
    | norm-epsilon | layernorm-epsilon | apply-layernorm-1p | rotary-base | rotary-seq-len-.*
    | use-rope-scaling | rope-scaling-factor | rotary-scaling-factor | mscale(-all-dim)? | beta-.*
    | original-max-position-embeddings | yarn-.* | rotary-interleaved | mrope-section
    | attention-softmax-in-fp32 | no-query-key-layer-scaling | apply-query-key-layer-scaling
    | no-scaled-masked-softmax-fusion | use-scaled-init-method | mtp-loss-scaling-factor
    | moe-(aux|z)-.* | moe-router-load-balancing-type | moe-router-topk-scaling-factor
    | moe-router-bias-update-rate | moe-input-jitter-eps | moe-token-drop-policy | moe-per-layer-.*
    | moe-router-padding-for-(fp8|quantization) | glu-linear-offset | activation-func-clamp-value
    | fp8-(amax-.*|margin|interval) | params-dtype | hf-.* | load-main-params-from-ckpt
    | rerun-mode | error-injection-.* | calculate-per-token-loss | disable-symmetric-registration
    | (no-)?check-for-(nan|spiky|large)-.* | test-mode
    | no-mmap-.* | attention-mask-in-.* | data-parallel-size
    | transformer-pipeline-model-parallel-size | ft-.* | enable-ft-package | inprocess-.*
    | encoder-.*-model-parallel-size | consumed-.*-samples | inference-.* | num-layers-at-.*-in-bf16
    )""",
    re.VERBOSE,
)
IMPLIED: Mapping[str, tuple[str, ...]] = {
    "--transformer-impl": ("transformer_engine",),
}
"""Values that are those of every prediction; another one is not modeled."""
VOCABULARIES: Mapping[str, int] = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
}
"""Vocabulary sizes of tokenizers whose type implies them."""


def is_neutral(flag: str) -> bool:
    """Whether an option changes neither the time nor the memory of a step."""
    return _NEUTRAL.fullmatch(flag) is not None
