"""Short words for a method of fine-tuning, each for several fields of a strategy."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from shardwise.config.enums import LORA_PRESETS, LoraTarget
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.units import read_whole

_TRAINED = {"task": "sft", "recompute": "full", "stack": "trl"}
# What trainers do where nothing is set: rank 16 (TRL, Unsloth) on all linear layers (LLaMA-Factory,
# axolotl, ms-swift). Types of adapters are those of the software.
_LORA = _TRAINED | {"lora_rank": 16, "lora_targets": "all-linear"}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "full": _TRAINED,
    "lora": _LORA,
    "qlora": _LORA | {"base_weights": "nf4"},
    "lora-8bit": _LORA | {"base_weights": "int8"},
    "dora": _LORA | {"adapter": "dora"},
}
"""Fields that each word of `finetune` sets, unless they are set."""
_PURE = {"master_dtype": "none", "gradient_dtype": "compute", "moment_dtype": "bf16"}
_SHORT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "finetune": METHODS,
    "lora_dtype": {
        "fp32": {"weight_dtype": "fp32"},
        "bf16": {"weight_dtype": "compute"} | _PURE,
    },
    "master_weights": {
        "true": {"weight_dtype": "compute", "master_dtype": "fp32"},
        "false": {"weight_dtype": "compute", "master_dtype": "none"},
    },
}
SHORTHANDS: Mapping[str, str] = {
    "finetune": f"Method: {', '.join(METHODS)}.",
    "lora_dtype": "Type of adapters, gradients and moments: fp32 (PEFT's default) or bf16.",
}
"""Flags of such words, with their help."""
_DEGREES = ("tp", "tp2", "pp", "cp")


def words_of_shorthand(name: str) -> tuple[str, ...]:
    """Return the words that may stand for several fields."""
    return tuple(_SHORT[name])


def without_shorthands(fields: Mapping[str, object]) -> dict[str, Any]:
    """Fields of a strategy, with those that short words stand for in place of these.

    Fields that are set themselves stay as they are.

    Raises
    ------
    InputError
        If a word is unknown.
    """
    found: dict[str, Any] = dict(fields)
    if not _SHORT.keys() & found.keys():
        return found
    for name, words in _SHORT.items():
        word = found.pop(name, None)
        if word is None:
            continue
        text = str(word).lower().replace("_", "-")
        if text not in words:
            problem = allowed_words(str(word), tuple(words))
            raise InputError(Fault.of(name, word, problem))
        found = dict(words[text]) | found
        if name == "finetune":
            # Leave the modules to `lora_parts` where these are set, and those of no adapters out.
            if found.get("lora_parts") is not None:
                found.pop("lora_targets")
            _fill_batch(found)
    return found


def with_method(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of a search space, with those of `finetune` in its place; recompute stays open."""
    method = fields.get("finetune")
    if method is None:
        return dict(fields)
    others = {name: value for name, value in fields.items() if name != "finetune"}
    own = without_shorthands({"finetune": method, "gbs": 1} | others)
    free = {"recompute", "gbs", "gpus"} - others.keys()
    return {name: value for name, value in own.items() if name not in free}


def _fill_batch(fields: dict[str, Any]) -> None:
    """One accelerator and one micro-batch of each replica where nothing is set."""
    if fields.get("gpus") is None and fields.get("dp") is None:
        fields["gpus"] = 1
    if fields.get("global_batch_size") is None and fields.get("gbs") is None:
        names = ("gpus", "dp", "mbs", "micro_batch_size", *_DEGREES)
        known = {n: read_whole(str(fields[n])) for n in names if fields.get(n) is not None}
        if all(known.values()):  # others are refused elsewhere, or have levels
            whole = {name: int(number or 1) for name, number in known.items()}
            ranks = prod(whole.get(name, 1) for name in _DEGREES)
            replicas = whole["gpus"] // ranks if "gpus" in whole else whole["dp"]
            each = whole.get("mbs", whole.get("micro_batch_size", 1))
            fields["gbs"] = max(replicas, 1) * each


def expanded_targets(words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of modules, for names and presets."""
    return tuple(
        str(one)
        for word in words
        for one in LORA_PRESETS.get(word.replace("_", "-"), (_module_name(word),))
    )


def targets_in_brief(modules: Iterable[str]) -> str:
    """Return modules by the word for them, if there is one, else by their names."""
    names = tuple(map(str, modules))
    known = {tuple(map(str, preset)): word for word, preset in LORA_PRESETS.items()}
    return known.get(names, "+".join(names))


def _module_name(word: str) -> str:
    """A module by the name that PEFT has for it, or as other models call it."""
    return _OTHER_NAMES.get(word, word)


_OTHER_NAMES = {
    **dict.fromkeys(("q_a_proj", "q_b_proj"), LoraTarget.Q_PROJ),
    **dict.fromkeys(("kv_a_proj_with_mqa", "kv_b_proj"), LoraTarget.K_PROJ),
    "output_proj": LoraTarget.O_PROJ,
    "lm_head": LoraTarget.HEAD,
    "embed_tokens": LoraTarget.EMBEDDING,
}
