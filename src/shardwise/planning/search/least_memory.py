"""Which strategies decide whether anything of a space fits: the others hold no less."""

from typing import Any

from shardwise.config.enums import TIER_FIELDS
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.planning.search.space import Space

__all__ = ["decisive"]

# Overlaps that 2D products may have, too.
_OF_PANELS = ("stack", "none")


def decisive(model: Model, system: System, space: Space) -> Space:
    """Leave out what cannot make anything fit that does not fit without it.

    Neither overlaps nor, where no tier has rules of its own, placement change what is held. Shards
    that all replicas share are the smallest. With more chunks per stage, or a larger micro-batch of
    the same batch, no stage holds less: with v chunks on p stages the first has min(m, p + (p - 1)
    / v) micro-batches in flight, not min(m, p), the last min(m, p - (p - 1) / v), not 1; and b
    sequences in each of m = B / b micro-batches make min(B, b p) in flight, which grows with b as
    every working set does.
    """
    first: dict[str, Any] = {n: _values(space, system, n)[0] for n in ("tp_overlap", "dp_overlap")}
    if "summa" in _values(space, system, "tp_exchange"):
        overlaps = _values(space, system, "tp_overlap")
        first["tp_overlap"] = next((w for w in overlaps if w in _OF_PANELS), overlaps[0])
    chunks = space.values("vpp", system)
    shards = space.values("dp_shard", system)
    if shards is None or None in shards:
        first["dp_shard"] = None
    schedules = {*_values(space, system, "schedule")}
    by_chunks = "1f1b" in schedules <= {"1f1b", "interleaved"}
    if (chunks is None or 1 in chunks) and by_chunks:
        first |= {"vpp": 1, "schedule": "1f1b"}
    if space.values("micro_batch_size", system) is None and _even(model, system, space):
        first["micro_batch_size"] = 1
    placed = all(_values(space, system, name) == (None,) for name in TIER_FIELDS)
    if placed and not any(tier.must_be_filled for tier in system.network):
        first |= {"placement": _values(space, system, "placement")[0], "extents": None}
    return space.fixed(first, source="space")


def _values(space: Space, system: System, name: str) -> tuple[Any, ...]:
    return space.values(name, system) or (None,)


def _even(model: Model, system: System, space: Space) -> bool:
    """Whether every legal degree splits a single sequence, so that no exchange needs more."""
    exchanges = _values(space, system, "tp_exchange")
    degrees = space.values("tp", system) or range(1, model.layers[0].attention.heads + 1)
    heads = {layer.attention.heads for layer in model.layers}
    split = [tp for tp in degrees if not any(number % tp for number in heads)]
    lengths = [length or model.seq_len or 1 for length in _values(space, system, "seq_len")]
    uneven = any(length % tp for length in lengths for tp in split)
    return "p2p_rs_ag" not in exchanges or not uneven
