"""Fine-tuning runs: what is trained, and in which types weights, gradients and states are."""

import re

from published_rows.remarks import document_length, is_muon, is_packed_squad, offload_fields
from published_rows.row import Run
from published_rows.words import truth
from shardwise.config.enums import BaseWeights, GradientDtype, Loss, MasterDtype, WeightDtype
from shardwise.units import read_whole

# Tokens of a document of SQuAD, on which NeMo fine-tunes.
_SQUAD = 256
_RANK = 16
# What rows print of pure 16-bit training.
_PURE = re.compile(r"\(pure|no fp32 master|pure (bf16|bfloat16|fp16|float16)")
_FOUR_BITS: tuple[tuple[str, BaseWeights], ...] = (
    (r"nf4|\bbnb\b|bitsandbytes", BaseWeights.NF4),
    (r"gptq|int4|4[- ]bit", BaseWeights.INT4),
)
# Stacks of models of Hugging Face transformers; those that shard by PyTorch's FSDP.
_TRANSFORMERS = (
    "huggingface-",
    "llama-factory-",
    "deepspeed-2024",
    "deepspeed-2026",
    "accelerate-",
)
# Software whose recipes have adapters in the MLP too: all projections in NVIDIA-NeMo/Automodel
# (examples/llm_benchmark) and LLaMA-Factory (lora_target), the MLP in pytorch/torchtune
# (recipes/configs: apply_lora_to_mlp) and in the script of QwenLM/Qwen for DeepSpeed (finetune.py).
# Performance recipes of NeMo and Megatron-Bridge (linear_qkv) and MLPerf's have them in attention
# alone, as transformers usually has.
_ADAPTED_MLP = ("automodel-", "torchtune-", "deepspeed-2024", "deepspeed-2026", "llama-factory-")
# Peak bytes per logit. The Triton kernel of fms-acceleration's "foak" (from Unsloth) writes
# gradients over its input, the fp32 logits; those in 16 bits and their gradient are left.
_FOAK_LOSS = 8.0
# Models of transformers 4.4x with learned positions (gpt2, gpt_bigcode) never make logits fp32: the
# logits, their shifted copy, its log-softmax and the gradient of it have 16 bits.
_NARROW_LOSS = 8.0
# PyTorch's own cross entropy of such logits: half the bytes of that in fp32.
_NARROW_EAGER: dict[str, object] = {
    "loss": Loss.EAGER,
    "loss_figures": Loss.EAGER,
    "loss_forward_bytes": 11.64,
    "loss_backward_bytes": 6.98,
    "loss_saved_bytes": _NARROW_LOSS,
}
# PyTorch's cross entropy over all tokens, compiled or not.
_WHOLE_LOSS = 12.0


def is_lora(run: Run) -> bool:
    """Whether adapters are trained."""
    return run.task == "lora" or str(run.features.get("peft")) in ("lora", "qlora")


def is_pure(run: Run, stack: str) -> bool:
    """Whether 16-bit weights are updated without an fp32 copy.

    That is stated, or follows from the software: without FSDP, mixed precision of transformers
    runs products in 16 bits and leaves weights in the type that they were loaded in, which for
    fine-tuning is 16 bits; accelerate makes those of FSDP fp32 (accelerator.py, prepare_model:
    upcast of flat parameters). DeepSpeed's optimizer always has fp32 weights, but adapters on one
    accelerator run without it where no ZeRO stage is stated and products are in bf16 (its
    examples, and finetune_lora_single_gpu.sh of QwenLM/Qwen). torchtune has no mixed precision.
    """
    text = (run.precision or "").lower()
    if _PURE.search(text) or stack == "torchtune-2024":
        return True
    if not stack.startswith(_TRANSFORMERS) or run.task not in ("sft", "lora"):
        return False
    alone = not run.parallelism.zero_stage and (run.parallelism.fsdp_shard or 1) == 1
    if stack.startswith("deepspeed-"):
        one = run.hardware.count == 1
        return alone and one and is_lora(run) and "bf16" in text and not _base(run)
    return alone


def _is_precision_aware(run: Run, stack: str) -> bool:
    """Whether moments have 16 bits, next to fp32 weights.

    So in recipes of Megatron-Bridge for models with latent attention and experts, unless they train
    with Muon (recipes/moonlight/moonlight_16b.py and recipes/deepseek/deepseek_v3.py:
    use_precision_aware_optimizer, main_grads_dtype and exp_avg_dtype bfloat16).
    """
    latent = "mla" in (run.model.attention or "").lower() and bool(run.model.experts)
    return stack.startswith("megatron-bridge") and latent and not is_muon(run)


def _base(run: Run) -> BaseWeights | None:
    """The type of frozen weights, if it has fewer than 16 bits."""
    if not is_lora(run):
        return None
    text = (run.precision or "").lower()
    stated = next((kind for pattern, kind in _FOUR_BITS if re.search(pattern, text)), None)
    quantized = str(run.features.get("peft")) == "qlora"
    return stated or (BaseWeights.NF4 if quantized else None)


def memory_changes(run: Run, stack: str) -> dict[str, object]:
    """Fields of a run's stack that its types and losses set.

    Parameters
    ----------
    run
        The measured run.
    stack
        Name of its stack in the catalog.
    """
    features = run.features
    changes: dict[str, object] = {}
    if _is_precision_aware(run, stack):
        changes |= {"copies_gradients": False}
    if is_pure(run, stack):
        changes |= {
            "weight_dtype": WeightDtype.COMPUTE,
            "master_dtype": MasterDtype.NONE,
            "gradient_dtype": GradientDtype.COMPUTE,
        }
        if "gradients reduced in fp32" in (run.precision or ""):  # and accumulated so, by FSDP2
            changes |= {"gradient_dtype": GradientDtype.FP32}
    base = _base(run)
    if base is not None:
        changes |= {"base_weights": base}
    # Plain PEFT prepares a 4-bit model so without FSDP, whose shards have one type.
    plain = "baseline" in str(features.get("framework") or "")
    if plain and base is BaseWeights.NF4 and not run.parallelism.zero_stage:
        changes |= {"fp32_checkpoints": True}
    if "accelerated-peft-autogptq" in str(features.get("framework") or ""):
        # Kernels of Triton (fms-acceleration, plugins/accelerated-peft: use_triton).
        changes |= {"fused_int4": True}
    if truth(features.get("optimizer_in_bwd")) or "in_bwd" in str(features.get("optimizer") or ""):
        changes |= {"update_in_backward": True}
    return changes | _loss(run, stack)


def _loss(run: Run, stack: str) -> dict[str, object]:
    """Peak bytes per logit, by the kernels that a run adds to its software."""
    features = run.features
    if stack == "torchtune-2024":
        # Techniques that are added one by one: the loss is whole until chunks are.
        added = "techniques are cumulative" in (run.notes or "")
        whole = added and not truth(features.get("chunked_cross_entropy"))
        return {"loss_saved_bytes": _WHOLE_LOSS} if whole else {}
    if "16-bit logits, not compiled" in str(features.get("loss") or ""):
        # Ranks of tensor parallelism gather all logits: of each of theirs, that many.
        gathered = _NARROW_LOSS * ((run.parallelism.tp or 1) - 1)
        return _NARROW_EAGER | {"loss_split_bytes": gathered}
    if not stack.startswith(_TRANSFORMERS):
        return {}
    if truth(features.get("liger")):
        return {"loss": Loss.FUSED_LINEAR}
    learned = (run.model.pos_emb or "").startswith("learned")
    narrow: dict[str, object] = (
        {"loss_saved_bytes": _NARROW_LOSS} if learned and is_pure(run, stack) else {}
    )
    fused = truth(features.get("fused_cross_entropy"))
    return {"loss_saved_bytes": _FOAK_LOSS} if fused else narrow


def memory_fields(run: Run, stack: str, assumed: list[str]) -> dict[str, object]:
    """Fields of a run's strategy that say what is trained, and in which types.

    Parameters
    ----------
    run
        The measured run.
    stack
        Name of its stack in the catalog.
    assumed
        Assumptions of the row, to which this adds its own.
    """
    features = run.features
    fields: dict[str, object] = {}
    if length := document_length(run):
        fields["document_len"] = length
    elif is_packed_squad(run):
        fields["document_len"] = _SQUAD
        assumed.append(f"documents of {_SQUAD} tokens")
    # A paged optimizer has its state in unified memory, which torch does not count.
    named = str(features.get("optimizer") or "").lower()
    if "8bit" in named or "8-bit" in named:
        fields["optimizer"] = "adamw-8bit"
    elif is_muon(run):
        fields["optimizer"] = "muon"
    elif "adafactor" in named:
        fields["optimizer"] = "adafactor"
    elif "sgd" in named:
        fields["optimizer"] = "sgd-momentum"
    elif (
        is_pure(run, stack)
        or _is_precision_aware(run, stack)
        or truth(features.get("bf16_moments"))
    ):
        fields["optimizer"] = "adamw-bf16"
    fields |= offload_fields(run)
    if "paged" in named:
        fields["offload_optimizer"] = True
    return fields | (_adapters(run, stack) if is_lora(run) else {})


def _adapters(run: Run, stack: str) -> dict[str, object]:
    """Rank and places of adapters; embedding and head where they are trained next to them."""
    text = run.model.notes or ""
    rank = read_whole(str(run.features.get("lora_rank")))
    if rank is None and (said := re.search(r"\b(?:r ?= ?|rank ?)(\d{1,9})", text)):
        rank = read_whole(said[1])
    ends = "trainable embedding" in text
    in_mlp = stack.startswith(_ADAPTED_MLP)
    parts = ("attention", *(("mlp",) if in_mlp else ()), *(("embedding", "head") if ends else ()))
    return {"lora_rank": rank or _RANK, "lora_parts": parts}
