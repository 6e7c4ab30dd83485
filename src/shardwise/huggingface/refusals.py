"""Hugging Face's config.json that is not read: why, by the name of its architecture or its keys."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.huggingface.keys import WRAPPERS
from shardwise.huggingface.readers import READERS

STATES = "Mamba layers of this class are not modeled"
ENCODER_DECODER = "encoder-decoder models are not modeled"
# Architectures that are not modeled by how their names begin, without case and underscores; longer
# ones first.
REFUSED: dict[str, tuple[str, ...]] = {
    "linear attention is not modeled": ("bailingmoelinear", "qwen4exp", "rwkv"),
    STATES: ("hymba", "plamo2", "zamba"),
    ENCODER_DECODER: (
        *("bart", "bigbirdpegasus", "blenderbot", "codet5", "longt5", "marian", "mbart", "mt5"),
        *("musicgen", "mvp", "pegasus", "plbart", "prophetnet", "switchtransformers", "t5"),
        *("trocr", "umt5", "whisper"),
    ),
    "encoders other than ViT, and BERT and RoBERTa that predict words, are not modeled": (
        *("albert", "bert", "camembert", "clip", "data2vec", "deberta", "distilbert", "electra"),
        *("erniemodel", "megatronbert", "modernbert", "rembert", "roberta"),
        *("roformerfor", "roformermodel", "siglip", "vit", "xlmroberta"),
    ),
    "hashed attention is not modeled": ("reformer",),
    "stacks of layers that run several times are not modeled": ("dory", "hrmtext", "inkling2loop"),
    "experts of the attention are not modeled": ("jetmoe",),
    "a dense MLP in parallel with the experts is not modeled": ("arctic", "snowflake"),
    "two attentions in a layer, and experts that do nothing, are not modeled": ("longcatflash",),
    "encoders of bytes are not modeled": ("blt",),
    "local codebooks and depth decoders are not modeled": ("moshiforconditional",),
    "recurrent layers are not modeled": ("recurrentgemma", "xlstm"),
}
_UNDERSTOOD = {
    "{} layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden {}": ("hidden_size", "n_embd", "d_model"),
    "{} heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocabulary {}": ("vocab_size",),
}
_ALLOWED = (
    "; allowed: the architectures that docs/reference/model-files.md lists; with the extra "
    "torch, others that transformers knows by their model_type"
)
# Misspelt names are this alike, and so is what they begin with.
_ALIKE = 0.9
_ALIKE_FAMILY = 0.8


def reason_of(named: str, data: Mapping[str, Any]) -> str:
    """Why an architecture is not read, by its name or else by its keys."""
    bare = named.lower().replace("_", "")
    begins = {
        start: reason
        for reason, starts in REFUSED.items()
        for start in starts
        if bare.startswith(start)
    }
    if begins:
        return begins[max(begins, key=len)]
    if data.get("is_encoder_decoder") is True:
        return ENCODER_DECODER
    if any(key.startswith(("mamba_", "ssm_")) for key in data):
        return STATES
    return f"is not read{_misspelt(named) or _ALLOWED}"


def is_unheard_of(named: str, data: Mapping[str, Any]) -> bool:
    """Whether nothing is known against an architecture."""
    return reason_of(named, data).endswith(_ALLOWED)


def _misspelt(named: str) -> str:
    """A hint where a name is a known one with a typing error: figures agree, letters nearly do.

    `GraniteForCausalLM` is no misspelt `GemmaForCausalLM`, and `Qwen9` no `Qwen3`.
    """
    known = {name.lower(): name for name in (*READERS, *WRAPPERS.values())}
    alike = {low: name for low, name in known.items() if _figures(low) == _figures(named)}
    whole = get_close_matches(named.lower(), alike, n=1, cutoff=_ALIKE)
    family = re.split("for(?=causal|conditional)|(?=lmhead)", named.lower(), maxsplit=1)[0]
    for low in whole:
        meant = re.split("for(?=causal|conditional)|(?=lmhead)", low, maxsplit=1)[0]
        if get_close_matches(family, [meant], cutoff=_ALIKE_FAMILY):
            return f"; did you mean {alike[low]!r}?"
    return ""


def _figures(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def refusal(
    source: str, field: str, value: object, reason: str, data: Mapping[str, Any]
) -> InputError:
    """A refusal with what was understood of the model so far."""
    found = [
        words.format(data[key])
        for words, keys in _UNDERSTOOD.items()
        for key in keys
        if isinstance(data.get(key), int)
    ]
    problem = f"{reason}; understood: {', '.join(found)}" if found else reason
    return InputError(Fault.of(field, value, problem, source))
