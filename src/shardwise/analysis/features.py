"""Features of a strategy, and which of them no measured run has used.

A feature is something that software does: `tp_overlap=ring`, `zero=3`, `vpp` (several chunks). What
is off is none, and neither is what the stack does unless a strategy says otherwise. Sizes and
degrees count once: whether they differ from their default. A field without effect on a strategy is
no feature of it, and neither is where its ranks are placed.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config.model import Model
from shardwise.config.roles import PLACED, Group
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS, DEGREES, Kind, StrategyField
from shardwise.config.strategy_table import Table
from shardwise.distinct import SeenRow, known_row
from shardwise.parallel.effects import idle_rows, kinds_of
from shardwise.records import dataclass, replace

_FILE = "features.json"
_FIELDS = {
    name: field
    for name, field in COLUMNS.items()
    if field.role.acts_on
    and field.role.acts_on != PLACED
    and field.kind not in (Kind.STACK, Kind.TIER)
    and not (field.role.implied and field.kind is Kind.WHOLE)
    and name != "lora_targets"
}
"""Fields with features: not what has no effect on time, places ranks, or is the request itself;
modules with adapters of their own are no more than adapters."""


_MOST_KNOWN = 1 << 10
"""Rows whose features are saved."""
_OF_STACKS = Stack.model_fields
# Words that are no feature: what runs that do not set the field do, and types of frozen weights
# that measured runs have had before there was a field for them.
_PLAIN = {
    "task": ("pretrain", "sft"),
    "adapter": ("lora",),
    "base_weights": ("dtype", "nf4", "int4"),
    "reference_model": ("usual",),
    "checkpoint_place": ("device",),
    "batching": ("padded",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFeatures:
    """What measured runs of grade A used; `tools/fit_runs.py` writes it."""

    runs: int
    used: dict[str, int]
    """Number of these runs by feature."""
    added_error: float
    """Error of log time that a feature adds; see `tools/catalog_fit/features.py`."""


@cache
def measured_features() -> MeasuredFeatures:
    """Return what the measured runs that come with shardwise used."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    return MeasuredFeatures(**json.loads(path.read_text(encoding="utf-8")))


def unmeasured_features(model: Model, table: Table) -> tuple[str, ...]:
    """Return the features of one strategy that no measured run of grade A used.

    None forward only: no runs were measured at all.
    """
    if not table.training[0]:
        return ()
    row = table.only_row()

    def found(names: set[str]) -> tuple[str, ...]:
        seen: Any = table if row is None else SeenRow(table, names)
        used = measured_features().used
        return tuple(one for one in features_of(model, seen) if one not in used)

    if row is None:
        return found(set())
    return known_row(found, row, unmeasured_features, model, *table.stacks, most=_MOST_KNOWN)


def features_of(model: Model, table: Table) -> tuple[str, ...]:
    """Return the features of one strategy, in the order of its fields."""
    kind = replace(kinds_of(model, table)[0][0], training=bool(table.training[0]))
    found: list[str] = []
    for name, field in _FIELDS.items():
        staged = field.role.group is Group.LAYOUT and "bubble" in field.role.acts_on
        if (staged and table.pp[0] == 1) or idle_rows(kind, table, name)[0]:
            continue
        left_open = field.kind is Kind.WORD and field.words[0] == "stack" and name in _OF_STACKS
        column = table.in_effect(name) if left_open else getattr(table, name)
        found += _features(field, int(column[0]))
    return (*found, *model_features(model))


def model_features(model: Model) -> tuple[str, ...]:
    """Return what few models have and no strategy decides, whose kernels are seldom measured."""
    experts = [layer.moe for layer in model.layers if layer.moe is not None]
    there = {
        "sparse_attention": any(one.indexer is not None for one in model.attentions),
        "compressed_attention": any(one.compressed is not None for one in model.attentions),
        "residual_streams": model.streams > 1,
        "layer_embeddings": model.layer_embedding > 0,
        "untimed_parameters": model.more_parameters > 0
        or any(layer.more_parameters > 0 for layer in model.layers),
        "latent_experts": any(one.latent is not None for one in experts),
    }
    return tuple(name for name, is_there in there.items() if is_there)


def _features(field: StrategyField, value: float) -> Iterator[str]:
    """Features of the value of a column."""
    match field.kind:
        case Kind.FLAG:
            yield from [f"{field.name}=true"] if value else []
        case Kind.WORD:
            word = field.words[int(value)]
            plain = word in ("none", "stack") or word in _PLAIN.get(field.name, ())
            yield from [] if plain else [f"{field.name}={word}"]
        case Kind.SET:
            yield from (f"{field.name}={word}" for word in field.word_type.from_bits(int(value)))
        case Kind.LIST:
            yield from [field.name] if value >= 0 else []
        case _ if field.role.every:
            yield f"{field.name}={int(value)}"
        case _:
            usual = 0 if field.optional else field.default
            yield from [field.name] if value != usual else []


def feature_words(features: Sequence[str]) -> str:
    """Return features in words: "ring TP overlap, optimizer offload"."""
    return ", ".join(map(_words, features))


def _words(feature: str) -> str:
    """One feature in words."""
    name, _, value = feature.partition("=")
    first, *rest = name.replace("exchange", "communication").split("_")
    if first == "offload":
        return " ".join([*rest, first])
    if first == "zero":
        return f"ZeRO {value}".rstrip()
    words = " ".join([first.upper() if first in (*DEGREES, "fsdp") else first, *rest])
    return words if value in ("", "true") else f"{value} {words}"
