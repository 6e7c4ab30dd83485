"""A search as plain loops: every strategy of a space, its verdict and its time, one by one.

Written from what `Space` promises, with none of the code of `shardwise.searcher`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np

from shardwise import estimate_many
from shardwise.model import Model
from shardwise.placement import place
from shardwise.results import EstimateTable
from shardwise.rules import RULES, broken_rule
from shardwise.strategy import Strategy
from shardwise.system import System
from shardwise.table import Table

Values = Mapping[str, Sequence[Any]]
FIELDS = tuple(name for name in Strategy.model_fields if name != "sequence_parallel")
AXES = ("tp", "cp", "dp", "pp")
TIERS = tuple(f"{axis}_tier" for axis in AXES)
OFFLOADS = ("offload_weights", "offload_activations", "offload_optimizer")
PLACED = ("placement", *TIERS)
DEGREES = ("gpus", *AXES, "ep", "etp", "vpp", "schedule", "micro_batch_size", "global_batch_size")
OPTIONS = tuple(name for name in FIELDS if name not in (*PLACED, *DEGREES))
ORDERS = ["-".join(order) for order in permutations(AXES)]
# What is tried of a field that a space does not name, first what is off.
USUAL: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("cp", "ep", "etp"), (1,)),
    **dict.fromkeys(TIERS, (None,)),
    "placement": ["tp-cp-dp-pp", *(order for order in ORDERS if order != "tp-cp-dp-pp")],
    "schedule": ["1f1b", "interleaved"],
    "dtype": ["bf16"],
    "attention": ["model"],
    "training": [True],
    "stack": ["megatron-core-2025"],
    "recompute": ["none", "selective", "full"],
    "zero": [1, 0],
    "tp_exchange": ["all_reduce", "rs_ag", "p2p_rs_ag"],
    "tp_overlap": ["stack", "none", "ring", "pipe"],
    "tp_regather": [True, False],
    "dp_overlap": [True, False],
    "fused_activation": [False, True],
}
NETWORK_REASONS = {*TIERS, "tier_size", "tier_filled"}


@dataclass(frozen=True, kw_only=True)
class Naive:
    """Every strategy of a space, as columns, and what became of it."""

    strategies: Table
    asked: list[tuple[int, int]]
    """GPUs and global batch of the space that each comes from."""
    refused: list[str | None]
    """The rule that it breaks, if any."""
    estimates: EstimateTable
    reasons: list[str | None]
    """Why it is rejected; None where it is feasible."""

    @property
    def feasible(self) -> list[int]:
        """Rows that are not rejected."""
        return [row for row, reason in enumerate(self.reasons) if reason is None]

    def within(self, system: System, capacity_bytes: float) -> "Naive":
        """What becomes of the same strategies with so much of the first memory tier."""
        second = [tier.capacity for tier in system.accelerator.memory[1:2]]
        found = list(self.refused)
        for row, rule in enumerate(found):
            if rule is None and self.estimates.memory_reserved_bytes[row] > capacity_bytes:
                found[row] = "memory"
            elif rule is None and second and self.estimates.memory_offloaded_bytes[row] > second[0]:
                found[row] = "second_memory"
        return replace(self, reasons=found)

    @property
    def rejected(self) -> Counter[str]:
        """How many are rejected, by reason."""
        return Counter(reason for reason in self.reasons if reason is not None)


def divisors(number: int) -> list[int]:
    """Every number that divides another."""
    return [n for n in range(1, number + 1) if number % n == 0]


def usual(model: Model, system: System, space: Values) -> dict[str, Sequence[Any]]:
    """Values of every field that is none of a degree, chunk or micro-batch."""
    offload = [False, True] if len(system.accelerator.memory) > 1 else [False]
    rest = {"seq_len": [model.seq_len], **dict.fromkeys(OFFLOADS, offload)}
    return {**USUAL, **rest, **{name: values for name, values in space.items() if name in FIELDS}}


def layouts(model: Model, system: System, space: Values) -> Iterator[dict[str, Any]]:
    """Degrees that make up the GPUs, chunks with their schedule, and batches."""
    tried = usual(model, system, space)
    width = [(layer.attention.heads, layer.mlp.ffn) for layer in model.layers]
    for gpus, asked in product(space["gpus"], space["global_batch_size"]):
        tps = [t for t in divisors(gpus) if all(h % t == f % t == 0 for h, f in width)]
        pps = [p for p in divisors(gpus) if p <= model.depth and (p == 1 or len(width) == 1)]
        for tp, cp, pp, ep, etp in product(
            tried.get("tp", tps), tried["cp"], tried.get("pp", pps), tried["ep"], tried["etp"]
        ):
            dp = gpus // (tp * cp * pp)
            if dp * tp * cp * pp != gpus or dp not in tried.get("dp", [dp]):
                continue
            longest = -(-model.depth // pp)
            chunks = divisors(longest) if 1 < pp <= model.depth else [1]
            batch = asked - asked % dp if space.get("batch") == "largest" else asked
            shared = batch > 0 and batch % dp == 0
            micro = divisors(batch // dp) if shared else [1]
            for (v, word), m in product(
                scheduled(tried.get("vpp", chunks), tried["schedule"], given="vpp" in tried),
                tried.get("micro_batch_size", micro),
            ):
                degrees = {"gpus": gpus, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
                chunked = {"dp": dp, "vpp": v, "schedule": word, "micro_batch_size": m}
                whole = {"global_batch_size": batch if shared else asked}
                yield {"asked": (gpus, asked), **degrees, **chunked, **whole}


def scheduled(chunks: Sequence[int], words: Sequence[str], *, given: bool) -> list[tuple[int, str]]:
    """Chunks with the schedule that they imply; given ones that have none are for the rules."""
    found = []
    for v in chunks:
        word = "interleaved" if v > 1 else "1f1b"
        if word in words or given:
            found.append((v, word if word in words else words[0]))
    return found


def placements(
    model: Model, system: System, degrees: Mapping[str, int], tried: Values
) -> list[dict[str, Any]]:
    """Ways to lay the axes out that differ, the first of those that do not."""
    found = []
    for values in product(*(tried[name] for name in PLACED)):
        way = dict(zip(PLACED, values, strict=True))
        several = [axis for axis in AXES if degrees[axis] > 1]
        alone = [axis for axis in AXES if degrees[axis] == 1]
        if any(way[f"{axis}_tier"] != tried[f"{axis}_tier"][0] for axis in alone):
            continue
        placed = any(way[f"{axis}_tier"] is None for axis in several)
        if placed or way["placement"] == tried["placement"][0]:
            found.append(way)
    table = _table(model, [{**degrees, "global_batch_size": 1, "seq_len": 1, **w} for w in found])
    extents = place(system, table)
    seats = np.concatenate([getattr(extents, axis) for axis in AXES]).T.tolist()
    tiers = len(system.network)
    beyond = [any((way[t] or 0) >= tiers for t in TIERS) for way in found]
    return [
        way
        for i, way in enumerate(found)
        if beyond[i] or not any(seats[i] == seats[j] and not beyond[j] for j in range(i))
    ]


def has_effect(options: Mapping[str, Any], degrees: Mapping[str, int], name: str) -> bool:
    """Whether one value of a field or another may change anything."""
    tp, dp, training = degrees["tp"] > 1, degrees["dp"] > 1, options["training"]
    return {
        "tp_exchange": tp,
        "tp_overlap": tp,
        "tp_regather": tp and training and options["tp_exchange"] == "rs_ag",
        "dp_overlap": dp and training,
        "zero": dp and training,
        "recompute": training,
        "fused_activation": training,
        "offload_activations": training,
        "offload_optimizer": training,
    }.get(name, True)


def first_usable(system: System, name: str, values: Sequence[Any]) -> Any:
    """What a field without effect has: the first value that can be had at all."""
    none = name in OFFLOADS and len(system.accelerator.memory) == 1
    usable = [v for v in values if not ((name == "zero" and v > 1) or (none and v))]
    return (usable or values)[0]


def options(system: System, tried: Values, degrees: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Every combination of the other fields that has an effect of its own."""
    first = {name: first_usable(system, name, tried[name]) for name in OPTIONS}
    for values in product(*(tried[name] for name in OPTIONS)):
        one = dict(zip(OPTIONS, values, strict=True))
        if all(one[n] == first[n] or has_effect(one, degrees, n) for n in OPTIONS):
            yield one


def everything(model: Model, system: System, space: Values, capacity_bytes: float) -> Naive:
    """Try every strategy of a space."""
    tried = usual(model, system, space)
    rows: list[dict[str, Any]] = []
    seats: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    choices: dict[tuple[bool, bool], list[dict[str, Any]]] = {}
    bare = list(layouts(model, system, space))
    first = {name: tried[name][0] for name in (*OPTIONS, *PLACED)}
    for layout, reason in zip(bare, _bare_reasons(model, system, bare, first), strict=True):
        degrees = {axis: layout[axis] for axis in AXES}
        ways = [{name: tried[name][0] for name in PLACED}]
        if reason is None:
            key = tuple(degrees.values())
            if key not in seats:
                seats[key] = placements(model, system, degrees, tried)
            ways = seats[key]
        kind = degrees["tp"] > 1, degrees["dp"] > 1
        if kind not in choices:
            choices[kind] = list(options(system, tried, degrees))
        rows += [{**layout, **way, **one} for way in ways for one in choices[kind]]
    table = _table(model, rows)
    refused = _refusals(model, system, table)
    found = Naive(
        strategies=table,
        asked=[row["asked"] for row in rows],
        refused=refused,
        estimates=estimate_many(model, system, table),
        reasons=refused,
    )
    assert [rule is None for rule in refused] == (found.estimates.refused < 0).tolist()
    return found.within(system, capacity_bytes)


def _table(model: Model, rows: Sequence[Mapping[str, Any]]) -> Table:
    names = [name for name in (rows[0] if rows else FIELDS) if name != "asked"]
    return Table.of(model, {name: [row[name] for row in rows] for name in names})


def _bare_reasons(
    model: Model, system: System, bare: Sequence[Mapping[str, Any]], first: Mapping[str, Any]
) -> list[str | None]:
    """Why layouts are refused wherever they are placed; a layout that is has no placement."""
    if not bare:
        return []
    rules = [r for r in RULES if r.of_layout and r.reason not in NETWORK_REASONS]
    table = _table(model, [{**first, **layout} for layout in bare])
    return [_word(code) for code in broken_rule(model, system, table, rules)]


def _word(code: int) -> str | None:
    return RULES[code].reason if code >= 0 else None


def _refusals(model: Model, system: System, table: Table) -> list[str | None]:
    """The first rule that a layout breaks, then one that options break."""
    of_layout = [r for r in RULES if r.of_layout]
    order = (
        [r for r in of_layout if r.reason not in NETWORK_REASONS],
        [r for r in of_layout if r.reason in NETWORK_REASONS],
        [r for r in RULES if not r.of_layout],
    )
    columns = [broken_rule(model, system, table, rules) for rules in order]
    return [
        next((_word(code) for code in codes if code >= 0), None)
        for codes in zip(*columns, strict=True)
    ]
