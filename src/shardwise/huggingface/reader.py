"""Hugging Face's config.json as fields of our `Model`.

Finds the language model in the file, has its family read (`huggingface_families`)
and folds equal layers into runs. What cannot be described is refused by name; vision and audio
towers are named in `left_out`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePath
from string import ascii_letters
from typing import Any

from shardwise.config.base import MOST
from shardwise.errors import Fault, InputError
from shardwise.huggingface import modules
from shardwise.huggingface.decoders import Fields
from shardwise.huggingface.files import Config
from shardwise.huggingface.keys import (
    OUTER,
    ROTARY_NAMES,
    SIZES,
    TEXT_TYPES,
    WRAPPERS,
    class_defaults,
)
from shardwise.huggingface.readers import FAMILIES, MODEL_TYPES, READERS
from shardwise.huggingface.refusals import is_unheard_of, reason_of, refusal

_TEXT = ("text_config", "language_config", "llm_config")
# Those whose language model is not nested in older files, and what it is.
_FLAT = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
}

_OF_DIFFUSERS = ("_class_name", "_diffusers_version")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Language:
    """A language model in a file."""

    config: Config
    architecture: str
    fields: Fields | None = None
    """What the modules of `transformers` say; None: a record reads `config`."""
    left_out: tuple[str, ...] = ()


def model_fields(data: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    """The language model that a config.json describes; how long its sequences are it does not say.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong or cannot be described.
    """
    for key in _OF_DIFFUSERS:
        if key in data:
            raise refusal(source, key, data[key], "diffusion models are not modeled", data)
    found = _language_model(data, source)
    config, architecture = found.config, found.architecture
    fields = found.fields
    if fields is None:
        fields = READERS[architecture](config)
        config.refuse_unread(architecture)
        config.refuse_misspelt()
        config.refuse()
    layers = _runs(fields["layers"])
    called = _name(data, name, source)
    left_out = [*fields.get("left_out", []), *_towers(data), *found.left_out]
    return fields | {
        "name": called,
        "description": f"Imported from a Hugging Face config.json ({architecture}).",
        **layers,
        "left_out": left_out,
        "sources": {
            "": {"kind": "published", "text": _origin(found, called)},
        },
    }


def _origin(found: _Language, called: str) -> str:
    """Where the figures are from, and what the file had to be understood with or without."""
    if found.fields is not None:
        return f"Hugging Face's config.json of {called}; read from the modules of transformers"
    parts = [f"Hugging Face's config.json of {called}"]
    listed = {
        "defaults of its class": found.config.assumed(),
        "keys not used": found.config.unknown(),
    }
    parts += [f"{what}: {', '.join(keys)}" for what, keys in listed.items() if keys]
    return "; ".join(parts)


def _name(data: Mapping[str, Any], name: str, source: str) -> str:
    """The name of the file; where all such files have it, what the file says, or its folder."""
    if name not in {"config", "model"}:
        return name
    known = str(data.get("_name_or_path") or "") or PurePath(source).parent.name
    return PurePath(known).name.lower().replace("_", "-").replace(" ", "-") or name


def _language_model(data: Mapping[str, Any], source: str) -> _Language:
    """The keys of the language model, and which architecture it has."""
    field, named = _architecture(data, source)
    nested = next((key for key in _TEXT if isinstance(data.get(key), Mapping)), None)
    if nested is None:
        named = _FLAT.get(named, named)
    if named in READERS and (nested is None or "hidden_size" in data):
        return _Language(config=_config(named, data, source=source), architecture=named)
    known = named in (*WRAPPERS.values(), *READERS)
    if nested is None and known:
        problem = "is missing and has no default"
        raise InputError(Fault(source=source, field=_TEXT[0], problem=problem))
    if nested is None or not (known or is_unheard_of(named, data)):
        return _of_modules(data, source, field, named)
    usual = {"model_type": TEXT_TYPES[named]} if named in TEXT_TYPES else {}
    # In a class of a language model the keys of the nested one hold, else those of the whole.
    whole = () if named in READERS else OUTER
    text = usual | dict(data[nested]) | {key: data[key] for key in whole if key in data}
    prefix = f"{nested}."
    field, found = _architecture(text, source, prefix)
    inner = _FLAT.get(found, found)
    if inner in READERS:
        config = _config(inner, text, source=source, prefix=prefix)
        language = _Language(config=config, architecture=inner)
    else:
        language = _of_modules(text, source, f"{prefix}{field}", inner)
    added = () if known else (f"what {named} adds to its language model",)
    return replace(language, left_out=added)


def _of_modules(data: Mapping[str, Any], source: str, field: str, named: str) -> _Language:
    """A decoder without a record, by the modules of `transformers`.

    Raises
    ------
    InputError
        If it is not modeled or transformers is not installed.
    """
    kind = data.get("model_type")
    if not (isinstance(kind, str) and is_unheard_of(named, data) and modules.is_installed()):
        raise refusal(source, field, named, reason_of(named, data), data)
    try:
        fields = modules.decoder_of_modules(kind, data)
    except modules.NotModeledError as error:
        raise refusal(source, field, named, str(error), data) from None
    return _Language(config=Config(data, source=source), architecture=named, fields=fields)


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
        return "model_type", MODEL_TYPES.get(str(kind)) or WRAPPERS.get(str(kind), str(kind))
    ours, theirs = (_FLAT.get(name, name) for name in (named[0], _implied(kind, named[0])))
    if ours != theirs:
        raise wrong("model_type", f"is the type of {theirs}; architectures says {named[0]}")
    return "architectures", named[0]


def _implied(kind: str | None, named: str) -> str:
    """The architecture that a `model_type` means with the architecture that the file names.

    A language model may keep the type of the multimodal model that it was part of.
    """
    if named in READERS and kind in FAMILIES[named].kinds:
        return named  # one of several classes of the type
    of_wholes = WRAPPERS if named in WRAPPERS.values() else {}
    known = named in READERS or bool(of_wholes)
    return {**MODEL_TYPES, **of_wholes}.get(kind or "", named) if known else named


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


def _runs(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Groups of equal layers; where they alternate, in what turns, or in what pattern."""
    if "symbol" in layers[0]:
        by_symbol = {layer["symbol"]: dict(layer) for layer in layers}
        pattern = "".join(layer["symbol"] for layer in layers)
        return {"layers": list(by_symbol.values()), "pattern": pattern}
    whole = _equal(layers)
    kinds: list[Mapping[str, Any]] = []
    for layer, _ in whole:
        if layer not in kinds:
            kinds.append(layer)
    depth = len(layers)
    period = next(
        p for p in range(1, depth + 1) if all(layers[i] == layers[i - p] for i in range(p, depth))
    )
    if len(kinds) == len(whole):
        return {"layers": [{"count": count, **layer} for layer, count in whole]}
    if period == depth:
        letters = ascii_letters[26:] + ascii_letters[:26]
        pattern = "".join(letters[kinds.index(layer)] for layer in layers)
        groups = [{"symbol": letters[n], **layer} for n, layer in enumerate(kinds)]
        return {"layers": groups, "pattern": pattern}
    turns = _equal(layers[:period])
    place = [turn for turn, (_, length) in enumerate(turns) for _ in range(length)]
    counts = [0] * len(turns)
    for i in range(depth):
        counts[place[i % period]] += 1
    runs = [{"count": count, **layer} for (layer, _), count in zip(turns, counts, strict=True)]
    return {"layers": runs, "interleave": [length for _, length in turns]}


def _equal(layers: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    return [(layer, len(list(group))) for layer, group in groupby(layers)]
