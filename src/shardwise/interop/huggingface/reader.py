"""Hugging Face's config.json as fields of our `Model`.

Recognises the file, finds the language model in it, has its family read (`huggingface_families`)
and folds equal layers into runs. What cannot be described is refused by name; vision and audio
towers are named in `left_out`.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import PurePath
from typing import Any

from shardwise.config.base import MOST
from shardwise.errors import Fault, InputError
from shardwise.interop.huggingface.decoders import MODEL_TYPES, READERS
from shardwise.interop.huggingface.files import Config
from shardwise.interop.huggingface.keys import ROTARY_NAMES, SIZES, TEXT_TYPES, class_defaults
from shardwise.interop.huggingface.moe_families import FAMILIES

_TEXT = ("text_config", "language_config", "llm_config")
# Models that put a tower in front of a language model and change nothing inside it.
_WRAPPERS = {
    "gemma3": "Gemma3ForConditionalGeneration",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
}
# Those whose language model is not nested in older files, and what it is.
_FLAT = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
}

STATES = "Mamba layers are not modelled"
ENCODER_DECODER = "encoder-decoder models are not modelled"
# Architectures that are not modelled by how their names begin, without case and underscores; longer
# ones first.
REFUSED: dict[str, tuple[str, ...]] = {
    "linear attention is not modelled": (
        *("bailinghybrid", "bailingmoelinear", "kimilinear", "minimaxforcausallm", "minimaxm1"),
        *("minimaxtext", "olmohybrid", "qwen35", "qwen3next", "qwen4exp", "rwkv"),
    ),
    STATES: (
        *("bamba", "falconh1", "falconmamba", "granitemoehybrid", "hymba", "jamba", "mamba"),
        *("nemotronh", "plamo2", "zamba"),
    ),
    ENCODER_DECODER: (
        *("bart", "bigbirdpegasus", "blenderbot", "codet5", "longt5", "marian", "mbart", "mt5"),
        *("musicgen", "mvp", "pegasus", "plbart", "prophetnet", "switchtransformers", "t5"),
        *("trocr", "umt5", "whisper"),
    ),
    "encoders are not modelled": (
        *("albert", "bert", "camembert", "clip", "data2vec", "deberta", "distilbert", "electra"),
        *("ernieforcausallm", "ernieformaskedlm", "erniemodel", "megatronbert", "modernbert"),
        *("rembert", "roberta", "rocbert", "roformer", "siglip", "vit", "xlmroberta", "xmod"),
    ),
    "sparse attention by an indexer is not modelled": (
        *("axk2", "deepseekv32", "dots3note", "glmmoedsa", "hyv4"),
    ),
    "compressed keys and values are not modelled": ("deepseekv4",),
    "sparse or hashed attention is not modelled": ("bigbird", "reformer"),
    "permuted attention is not modelled": ("xlnet",),
    "differential attention is not modelled": ("diffllama",),
    "dynamic masks of attention are not modelled": ("doge",),
    "gates of the attention's output are not modelled": ("afmoe", "beam", "hrmtext", "laguna"),
    "experts of the attention are not modelled": ("jetmoe",),
    "relative positions between layers' segments are not modelled": ("cpmant", "inkling"),
    "experts in parallel layers are not modelled": ("cohere2moe",),
    "an MLP beside the experts is not modelled": ("arctic", "snowflake"),
    "two attentions in a layer, and experts that do nothing, are not modelled": ("longcatflash",),
    "a norm of the experts' output is not modelled": ("axk1",),
    "norms inside the blocks are not modelled": ("bitnet",),
    "norms behind the residual additions are not modelled": ("openaigpt",),
    "embeddings of every layer are not modelled": ("gemma3n", "gemma4"),
    "encoders of bytes are not modelled": ("blt",),
    "biases of single layers are not modelled": ("gptneoxjapanese",),
    "an embedding of languages is not modelled": ("xlmwithlmhead",),
    "local codebooks and depth decoders are not modelled": ("moshi",),
    "convolutions between layers of attention are not modelled": ("lfm2", "lfm3", "zaya"),
    "cross-attention to images is not modelled": ("mllama",),
    "recurrent layers are not modelled": ("recurrentgemma", "xlstm"),
}
_UNDERSTOOD = {
    "{} layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden {}": ("hidden_size", "n_embd", "d_model"),
    "{} heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocabulary {}": ("vocab_size",),
}
# Misspelt names are this alike, and so is what they begin with.
_ALIKE = 0.9
_ALIKE_FAMILY = 0.8
_OF_DIFFUSERS = ("_class_name", "_diffusers_version")


def looks_like(data: Mapping[str, Any]) -> bool:
    """Whether a mapping has the keys by which Hugging Face's files say what they describe."""
    if "architectures" in data or "_diffusers_version" in data:
        return True
    # SimuMax's files have a `model_type` too, beside words that no config.json has.
    return isinstance(data.get("model_type"), str) and "head_num" not in data


def model_fields(data: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    """The language model that a config.json describes; how long its sequences are it does not say.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong or cannot be described.
    """
    for key in _OF_DIFFUSERS:
        if key in data:
            raise _refusal(source, key, data[key], "diffusion models are not modelled", data)
    config, architecture = _language_model(data, source)
    fields = READERS[architecture](config)
    config.refuse_unread(architecture)
    config.refuse_misspelt()
    config.refuse()
    runs, interleave = _runs(fields["layers"])
    called = _name(data, name, source)
    left_out = [*fields.get("left_out", []), *_towers(data)]
    return fields | {
        "name": called,
        "description": f"Imported from a Hugging Face config.json ({architecture}).",
        "layers": runs,
        "interleave": interleave,
        "left_out": left_out,
        "sources": {
            "": {"kind": "published", "text": _origin(config, called)},
        },
    }


def _origin(config: Config, called: str) -> str:
    """Where the figures are from, and what the file had to be understood with or without."""
    parts = [f"Hugging Face's config.json of {called}"]
    told = {"defaults of its class": config.assumed(), "keys not used": config.unknown()}
    parts += [f"{what}: {', '.join(keys)}" for what, keys in told.items() if keys]
    return "; ".join(parts)


def _name(data: Mapping[str, Any], name: str, source: str) -> str:
    """The name given, unless it is that of every such file; then what it says or where it is."""
    if name not in {"config", "model"}:
        return name
    known = str(data.get("_name_or_path") or "") or PurePath(source).parent.name
    return PurePath(known).name.lower().replace("_", "-").replace(" ", "-") or name


def _language_model(data: Mapping[str, Any], source: str) -> tuple[Config, str]:
    """The keys of the language model, and which architecture it has."""
    field, named = _architecture(data, source)
    nested = next((key for key in _TEXT if isinstance(data.get(key), Mapping)), None)
    if nested is None:
        named = _FLAT.get(named, named)
    if named in READERS and (nested is None or "hidden_size" in data):
        return _config(named, data, source=source), named
    if named not in (*_WRAPPERS.values(), *READERS):
        raise _refusal(source, field, named, _reason(named, data), data)
    if nested is None:
        problem = "is missing and has no default"
        raise InputError(Fault(source=source, field=_TEXT[0], problem=problem))
    usual = {"model_type": TEXT_TYPES[named]} if named in TEXT_TYPES else {}
    whole = (
        () if named in READERS else ("tie_word_embeddings",)
    )  # what counts in a class of a whole
    tied = {key: data[key] for key in whole if key in data}
    text = usual | dict(data[nested]) | tied
    prefix = f"{nested}."
    field, found = _architecture(text, source, prefix)
    inner = _FLAT.get(found, found)
    if inner not in READERS:
        raise _refusal(source, f"{prefix}{field}", inner, _reason(inner, text), text)
    return _config(inner, text, source=source, prefix=prefix), inner


def _config(named: str, data: Mapping[str, Any], *, source: str, prefix: str = "") -> Config:
    """The keys of a language model by the names of its family, with the defaults of its class.

    Of a model that is not nested in another, sizes must be there.
    """
    family = FAMILIES[named]
    kind = data.get("model_type")
    usual = family.kinds[0] if family.kinds else ""
    defaults = class_defaults(str(kind) if kind in family.kinds else usual)
    if not prefix:
        defaults = {key: value for key, value in defaults.items() if key not in SIZES}
    names = ROTARY_NAMES | family.names
    return Config(data, source=source, prefix=prefix, defaults=defaults, names=names)


def _architecture(data: Mapping[str, Any], source: str, prefix: str = "") -> tuple[str, str]:
    """The key that names the architecture, and the name.

    Raises
    ------
    InputError
        If no key names it, or two keys name different ones.
    """

    def wrong(field: str, problem: str) -> InputError:
        value = data.get(field)
        place = {"source": source, "field": f"{prefix}{field}"}
        return InputError(Fault(**place, value=value, has_value=value is not None, problem=problem))

    named, kind = data.get("architectures"), data.get("model_type")
    if not isinstance(named or [], list) or not all(isinstance(n, str) for n in named or ()):
        raise wrong("architectures", "must be a list of names")
    if kind is not None and not isinstance(kind, str):
        raise wrong("model_type", "must be a name")
    if not named and not kind:
        raise wrong("architectures", "is missing, and so is model_type")
    if not named:
        return "model_type", MODEL_TYPES.get(str(kind)) or _WRAPPERS.get(str(kind), str(kind))
    ours, theirs = (_FLAT.get(name, name) for name in (named[0], _implied(kind, named[0])))
    if ours != theirs:
        raise wrong("model_type", f"is the type of {theirs}; architectures says {named[0]}")
    return "architectures", named[0]


def _implied(kind: str | None, named: str) -> str:
    """The architecture that a `model_type` stands for beside a name that is known, or that name.

    A language model alone may keep the type of the whole that it was taken from.
    """
    of_wholes = _WRAPPERS if named in _WRAPPERS.values() else {}
    known = named in READERS or bool(of_wholes)
    return {**MODEL_TYPES, **of_wholes}.get(kind or "", named) if known else named


def _reason(named: str, data: Mapping[str, Any]) -> str:
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
    hint = _misspelt(named)
    return f"is not read{hint or '; allowed: the architectures that docs/models.md lists'}"


def _misspelt(named: str) -> str:
    """A hint where a name is a known one with a typing error: figures agree, letters nearly do.

    `GraniteForCausalLM` is no misspelt `GemmaForCausalLM`, and `Qwen9` no `Qwen3`.
    """
    known = {name.lower(): name for name in (*READERS, *_WRAPPERS.values())}
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


def _refusal(
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


def _towers(data: Mapping[str, Any]) -> list[str]:
    """Towers in front of the language model: kind, depth, width, and roughly how large."""
    towers = []
    for kind in ("vision", "audio"):
        tower = data.get(f"{kind}_config")
        if not isinstance(tower, Mapping):
            continue
        depth = _first(tower, "num_hidden_layers", "depth", "encoder_layers")
        width = _first(tower, "hidden_size", "embed_dim", "d_model")
        described = f"{kind} tower {tower.get('model_type', '')}".strip()
        if depth and width:
            ffn = _first(tower, "intermediate_size", "encoder_ffn_dim") or 4 * width
            billions = depth * (4 * width**2 + 2 * width * ffn) / 1e9
            described += f": {depth} layers of width {width}, about {billions:.2g} B parameters"
        towers.append(described)
    return towers


def _first(data: Mapping[str, Any], *keys: str) -> int | None:
    """The first of some keys that holds a count."""
    values = (data.get(key) for key in keys)
    return next((v for v in values if type(v) is int and 0 < v <= MOST), None)


def _runs(layers: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int] | None]:
    """Runs of equal layers, and how many of each follow one another where they alternate."""
    whole = _equal(layers)
    kinds: list[Mapping[str, Any]] = []
    for layer, _ in whole:
        if layer not in kinds:
            kinds.append(layer)
    depth = len(layers)
    period = next(
        p for p in range(1, depth + 1) if all(layers[i] == layers[i - p] for i in range(p, depth))
    )
    if len(kinds) == len(whole) or period == depth:
        return [{"count": count, **layer} for layer, count in whole], None
    turns = _equal(layers[:period])
    place = [turn for turn, (_, length) in enumerate(turns) for _ in range(length)]
    counts = [0] * len(turns)
    for i in range(depth):
        counts[place[i % period]] += 1
    runs = [{"count": count, **layer} for (layer, _), count in zip(turns, counts, strict=True)]
    return runs, [length for _, length in turns]


def _equal(layers: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    return [(layer, len(list(group))) for layer, group in groupby(layers)]
