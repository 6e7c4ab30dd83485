"""Methods of fine-tuning: what trainers call adapters, types, optimizers and kernels."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.config.launch import Effect
from shardwise.launchers.sections import Section

OPTIMIZERS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adam"),
            *("adamw_anyprecision", "fusedadam", "adamw_torch_npu_fused", "adamw_torch_xla"),
        ),
        ("adamw", ""),
    ),
    **dict.fromkeys(
        ("adamw_bnb_8bit", "adamw_8bit", "adamw8bit", "adamw_torch_8bit"), ("adamw-8bit", "")
    ),
    **dict.fromkeys(
        ("paged_adamw_8bit", "pagedadamw8bit"),
        ("adamw-8bit", "its state leaves the GPU only when that is full: predicted on the GPU"),
    ),
    **dict.fromkeys(
        ("paged_adamw_32bit", "paged_adamw", "pagedadamw"),
        ("adamw", "its state leaves the GPU only when that is full: predicted on the GPU"),
    ),
    "adafactor": ("adafactor", ""),
    "muon": ("muon", ""),
    "sgd": ("sgd", ""),
    **dict.fromkeys(
        ("adamw_torch_4bit", "adamw4bit", "ao_adamw_4bit"),
        ("adamw-8bit", "is not modeled: state in 4 bits, predicted with 8"),
    ),
    **dict.fromkeys(
        ("lion", "lion_32bit", "paged_lion_32bit", "lion_pytorch"),
        ("sgd-momentum", "is not modeled: predicted as SGD with momentum, with one moment, too"),
    ),
    **dict.fromkeys(
        ("lion_8bit", "paged_lion_8bit"),
        ("adamw-8bit", "is not modeled: predicted as AdamW in 8 bits, with one moment more"),
    ),
}
"""Names of optimizers in lower case: the one that is predicted, and why it may differ.

Names of transformers 5.24 (training_args.py, OptimizerNames), torch.optim, bitsandbytes, torchao.
"""
ATTENTION: Mapping[str, str] = {
    "eager": "unfused",
    "disabled": "unfused",
    "flash_attention_2": "flash2",
    "flash_attn": "flash2",
    "fa2": "flash2",
    "flash_attention_3": "flash3",
    "fa3": "flash3",
    "flash_attention_4": "flash4",
    "flex_attention": "triton",
    "xformers": "efficient",
    "kernels-community/flash-attn2": "flash2",
    "kernels-community/flash-attn": "flash2",
    "kernels-community/flash-attn3": "flash3",
    "kernels-community/vllm-flash-attn3": "flash3",
}
"""Kernels of attention by the words of trainers; `sdpa` is what the stack does."""
MODULES: Mapping[str, tuple[str, ...]] = {
    **{
        name: (name,)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    },
    **{name: (name,) for name in ("in_proj", "g_proj")},
    "out_proj": ("o_proj", "out_proj"),  # of attention in GPT models, of mixers in hybrid ones
    **dict.fromkeys(("output_proj", "dense"), ("o_proj",)),
    **dict.fromkeys(
        ("qkv_proj", "query_key_value", "W_pack", "Wqkv", "c_attn"), ("q_proj", "k_proj", "v_proj")
    ),
    **dict.fromkeys(("q_a_proj", "q_b_proj"), ("q_proj",)),
    **dict.fromkeys(("kv_a_proj_with_mqa", "kv_b_proj"), ("k_proj", "v_proj")),
    **dict.fromkeys(("gate_up_proj", "dense_h_to_4h"), ("gate_proj", "up_proj")),
    **dict.fromkeys(("fc1", "c_fc", "w3"), ("up_proj",)),
    **dict.fromkeys(("fc2", "dense_4h_to_h", "w2"), ("down_proj",)),
    "w1": ("gate_proj",),
    **dict.fromkeys(("lm_head", "output"), ("head",)),
    **dict.fromkeys(("embed_tokens", "tok_embeddings", "wte"), ("embedding",)),
}
"""Modules of models, as `lora_targets` names them."""
ALL_LINEAR = ("all", "all-linear", "all_linear", "*_proj", "*proj", "all-linear-modules")
DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""Types of weights by their names in PyTorch."""
DEFAULT_TARGETS = ("q_proj", "v_proj")
"""Modules with adapters where none are named, for models of Llama's kind (PEFT, constants.py)."""
PREFERENCE_TASKS: Mapping[str, str] = {
    **dict.fromkeys(("dpo", "ipo", "cpo_ref"), "dpo"),
    **dict.fromkeys(("orpo", "simpo", "cpo"), "orpo"),
    "kto": "kto",
    **dict.fromkeys(("rm", "reward", "reward_model"), "rm"),
}
"""Tasks on preferences by the words of trainers; losses without a reference model are as orpo."""
ROLLOUTS = ("grpo", "rloo", "ppo", "gdpo", "gkd", "ebft", "online_dpo", "reinforce", "dapo")
"""Tasks whose training part alone is predicted."""
NO_ROLLOUT = "is not modeled: generation and rewards; the update of the policy alone is predicted"
_ALTERNATIVES = re.compile(r"\(((?:[a-z]+\|)+[a-z]+)\)(_[a-z]+)")


@dataclass(slots=True, kw_only=True)
class Method:
    """What is trained, and in which types."""

    task: str = "sft"
    rank: int | None = None
    """Rank of adapters; None: weights are trained."""
    targets: tuple[str, ...] = ()
    dora: bool = False
    base: str | None = None
    """Type of frozen weights in fewer bits: nf4, nf4_single or int8."""
    dtype: str = "bf16"
    """Type of products."""
    loaded: str = "bf16"
    """Type in which weights are loaded."""
    pure: bool = False
    """Whether trained weights, gradients and moments have the type of products."""

    def fields(self, engine: str, optimizer: object) -> dict[str, object]:
        """Return fields of a strategy.

        Parameters
        ----------
        engine
            `ddp`, `fsdp` or `deepspeed`, which decides types of trained weights.
        optimizer
            Of those of torch, moments have the type of weights.
        """
        found: dict[str, object] = {"dtype": self.dtype}
        if self.task != "pretrain":
            found["task"] = self.task
        if self.rank is not None:
            found |= {"lora_rank": self.rank, "lora_targets": self.targets}
            if self.dora:
                found["adapter"] = "dora"
            if self.base is not None:
                found["base_weights"] = self.base
            elif self.loaded == "fp32" and self.dtype != "fp32" and engine != "deepspeed":
                found["base_weights"] = "fp32"
        if self.pure and engine != "deepspeed":
            found |= PURE
            if optimizer in ("adamw", "sgd-momentum"):
                found["moment_dtype"] = "bf16"
        return found


PURE: Mapping[str, object] = {
    "weight_dtype": "compute",
    "master_dtype": "none",
    "gradient_dtype": "compute",
}
"""Types where the optimizer updates weights in 16 bits themselves."""


def optimizer_of(top: Section, key: str, default: str) -> str:
    """Return the optimizer of an option; `Torch.optim.AdamW` and the like count by the last word.

    Optimizers of other kinds (GaLore, APOLLO, LOMO ...) are listed, and predicted as AdamW.
    """
    value = top.value(key)
    word = default if value is None else str(value)
    name = word.rpartition(".")[2].lower()
    found = OPTIMIZERS.get(name)
    if name == "sgd" and "momentum" in str(top.data.get("optim_args", "")):
        return "sgd-momentum"
    if found is None:
        top.leave(key, "is not modeled: predicted as AdamW", Effect.COST)
        return "adamw"
    if found[1]:
        top.leave(key, found[1], Effect.COST if "not modeled" in found[1] else Effect.SMALL)
    return found[0]


def attention_of(top: Section, key: str) -> dict[str, object]:
    """Return the attention kernel of an option."""
    value = top.value(key)
    word = str(value).partition("@")[0]
    if value is None or word in ("auto", "sdpa"):
        return {}
    if word in ATTENTION:
        return {"attention_kernel": ATTENTION[word]}
    top.leave(key, "is not modeled: predicted as the kernel of the stack", Effect.COST)
    return {}


def targets_of(top: Section, key: str, default: Sequence[str]) -> tuple[str, ...]:
    """Return the modules with adapters; expressions over names are listed."""
    value = top.value(key)
    if value is None:
        return tuple(default)
    words = value if isinstance(value, list) else str(value).split(",")
    found: list[str] = []
    for word in (str(one).strip() for one in words):
        name = word.rpartition(".")[2].lstrip("*")
        several = _ALTERNATIVES.search(word)
        if word in ALL_LINEAR or word == "*":
            found.append("all-linear")
        elif name in MODULES:
            found += MODULES[name]
        elif several is not None:  # a regular expression: (up|down|q|k)_proj
            named = [f"{one}{several[2]}" for one in several[1].split("|")]
            found += (own for m in named for own in MODULES.get(m, ()))
        elif named := [m for m in MODULES if re.search(rf"(?<![a-z_]){m}(?![a-z_])", word)]:
            found += (own for m in named for own in MODULES[m])
        elif word:
            because = "is not modeled: modules of this name have no adapters in the prediction"
            top.found.leave(top.name(key), word, because, Effect.MODEL)
    return tuple(dict.fromkeys(found)) or tuple(default)


def saved_modules(top: Section, key: str) -> tuple[str, ...]:
    """Return embedding and head where they are trained in full next to adapters."""
    value = top.value(key)
    words = value if isinstance(value, list) else str(value or "").split(",")
    found: list[str] = []
    for word in (str(one).strip() for one in words):
        if word.rpartition(".")[2] in ("lm_head", "embed_tokens", "wte"):
            found += MODULES[word.rpartition(".")[2]]
        elif word:
            because = "is not modeled: only embedding and head are trained next to adapters"
            top.leave(key, because, Effect.MODEL)
    return tuple(found)


BITS: Mapping[int, str] = {4: "nf4", 8: "int8"}
"""Types of bitsandbytes by their bits."""


def base_of(top: Section, key: str, *, double: bool) -> str | None:
    """Return the type of quantized weights by their bits; None where they have all.

    Parameters
    ----------
    double
        Whether the scales of 4-bit weights are quantized again.
    """
    bits = top.count(key)
    if bits is None:
        return None
    if bits not in BITS:
        top.wrong(key, "is not modeled; allowed: 4, 8")
    found = BITS.get(bits)
    return "nf4_single" if found == "nf4" and not double else found


def flag_of(top: Section, key: str, *, default: bool) -> bool:
    """Return an option that may be `auto`, a text or absent."""
    if top.data.get(key) in ("auto", ""):
        top.ignore(key)
        return default
    return top.flag(key, default=default, texts=True)
