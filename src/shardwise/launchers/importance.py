"""Which options that no reader understands matter most, by the words of their names."""

import re
from collections.abc import Iterable
from dataclasses import replace

from shardwise.config.launch import Effect, NotUnderstood
from shardwise.launchers.launch import fields_named

UNKNOWN_REASONS = ("not modeled", "shardwise does not know")
"""How reasons begin that say that no reader knows an option."""
_FIRST = fields_named(
    "abort adlr codecarbon debug eval exit handler kill load log master print rdzv report reset"
    " save skip tensorboard test valid wandb"
)
"""First words of options that change neither time nor memory of a step."""
_NONE = fields_named(
    "autoresume cache ckpt coeff dataset dir epsilon file host hostfile iters json lr monitor"
    " name path patience port profile prompt root seed steps storage timeout tokenizer verbose"
    " warmup workers"
)
_SURE_COST = fields_named(
    "batch bucket buffer checkpoint checkpointing micro offload offloading parallel parallelism"
    " recompute remat seq sequence swap"
)
_COST = fields_named(
    "accum accumulation algo allgather allreduce alltoall apex async backend bf16 coc comm"
    " communication compile contiguous cpu cuda ddp deepspeed deterministic device distributed"
    " dtype engine flash fp16 fp32 fp4 fp8 fused fusion gemm grad gradient gradients graph"
    " graphs hccl impl int8 kernel kernels length mem memory mxfp8 nccl optimizer overlap p2p"
    " partition permutation permute pipe pipeline precision quant quantization quantize reduce"
    " remote reuse ring scatter schedule schedules send shard sharding spmd stage stages stream"
    " sync tile triton ulysses unpermute variable workspace"
)
_SIZES = fields_named(
    "dim dims experts freq groups head heads interval layers pattern rank ratio replace size"
    " topk type width"
)
"""Last words of options that say how large a part of a model is, or of what kind."""
_MODEL = _SIZES | fields_named(
    "activation altup attention attn bias block blocks channels classes compress conv decoder"
    " dense depth dilation dropout embed embedding embeddings encoder expand expert ffn gate"
    " gated gdn gelu glu hash hidden hybrid index indexer intermediate kv latent layer linear lora"
    " mamba mhc mixer mixture mla mlp model moe mtp multiplier noop norm normalization patch"
    " position prefixlm qk query residual retro rope rotary routed router shared sliding"
    " softcapping sparse spec ssm state teacher tie tied transformer value vision vocab"
    " vocabulary window"
)
_ORDER = tuple(Effect)


def effect_of(option: str) -> Effect:
    """What an option may change, by the words of its name: `--n-shared-experts`, `model.noop`."""
    last = option.rpartition(".")[2]
    words = [one for one in re.split(r"[-_./\s]+", _separated(last)) if one and one != "no"]
    if not words:
        return Effect.UNKNOWN
    if words[0] in _FIRST:
        return Effect.NONE
    if _SURE_COST.intersection(words):
        return Effect.COST
    if words[-1] in _SIZES:
        return Effect.MODEL
    kinds = {Effect.COST: _COST, Effect.MODEL: _MODEL, Effect.NONE: _NONE}
    return next((e for e, known in kinds.items() if known.intersection(words)), Effect.UNKNOWN)


def _separated(name: str) -> str:
    """Words of camelCase, in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def by_importance(options: Iterable[NotUnderstood]) -> tuple[NotUnderstood, ...]:
    """Return options with what they may change, the most important first."""
    known = [
        replace(one, effect=effect_of(one.option))
        if one.because.startswith(UNKNOWN_REASONS)
        else one
        for one in options
    ]
    return tuple(sorted(known, key=lambda one: _ORDER.index(one.effect)))
