"""A search as plain loops: every strategy of a space, its verdict and its time, one by one.

Written from what `Space` promises, with none of the code of `shardwise.planning.search`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np

from naive_effects import OFFLOADS, SPREAD, Values, first_usable, kind_of, same_run, spread
from shardwise import estimate_many
from shardwise.analysis.estimate_table import EstimateTable
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.placement import place

FIELDS = tuple(name for name in Strategy.model_fields if name != "sequence_parallel")
AXES = ("tp", "cp", "dp", "pp")
TIERS = tuple(f"{axis}_tier" for axis in AXES)
PLACED = ("placement", *TIERS)
DEGREES = (
    *("gpus", *AXES, "tp2", "ep", "etp", "vpp", "schedule"),
    *("micro_batch_size", "global_batch_size", *SPREAD, "stage_layers", "dp_shard"),
)
OPTIONS = tuple(name for name in FIELDS if name not in (*PLACED, *DEGREES))
ORDERS = ["-".join(order) for order in permutations(AXES)]
# The space names them, or the layout has them.
OPEN = ("gpus", "tp", "pp", "dp", "vpp", "micro_batch_size", "global_batch_size", "seq_len")
CLOSED = (*OPEN, *OFFLOADS)
# What is tried of a field that a space does not name, first what is off.
USUAL: dict[str, Sequence[Any]] = {
    **{name: [Strategy.model_fields[name].default] for name in FIELDS if name not in CLOSED},
    **dict.fromkeys(TIERS, (None,)),
    "placement": ["tp-cp-dp-pp", *(order for order in ORDERS if order != "tp-cp-dp-pp")],
    "schedule": ["1f1b", "interleaved"],
    "recompute": ["none", "selective", "full"],
    "zero": [1, 0],
    "tp_exchange": ["all_reduce", "rs_ag", "p2p_rs_ag"],
    "tp_overlap": ["stack", "none", "ring", "pipe"],
    "tp_regather": [True, False],
    "dp_overlap": [True, False],
    "fused_activation": [False, True],
}
# What spaces of the full scope leave out here, so that plain loops over them are short.
FEW: dict[str, Any] = {
    "cp": [1],
    "zero": [1, 0],
    "expert_overlap": [False],
    "dispatcher": ["all_to_all"],
    "stage_layers": "none",
    "first_stage_layers": "none",
    "last_stage_layers": "none",
    "embedding_as_layer": [False],
    "loss_as_layer": [False],
}
# What a field must have where it changes nothing, whatever the space says: rules ask for it.
NEUTRAL = {
    name: Strategy.model_fields[name].default
    for name in (
        *("recompute_parts", "recompute_layers", "quantized_weights", "lora_parts", "summa_panels"),
        "offload_parts",
        *("expert_capacity", "expert_imbalance", "expert_overlap", "fsdp_reshard"),
        *("expert_kernel", "graph_scope"),
    )
} | {"dispatcher": "all_to_all"}
# Of several strategies that differ in one field alone, the one that is kept.
KEPT = {
    "recompute_layers": ("fit", "more_recompute"),
    "micro_batch_size": ("largest", "smaller_micro_batch"),
    "stage_layers": ("balanced", "slower_stages"),
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
        second = [tier.usable_bytes for tier in system.accelerator.memory[1:2]]
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


def usual(model: Model, system: System, space: Values) -> dict[str, Any]:
    """Values of every field that is none of a degree, chunk or micro-batch."""
    offload = [False, True] if len(system.accelerator.memory) > 1 else [False]
    rest = {"seq_len": [model.seq_len], **dict.fromkeys(OFFLOADS, offload)}
    named = {n: v for n, v in space.items() if n in FIELDS and not isinstance(v, str)}
    if any(layer.moe is not None for layer in model.layers):
        rest |= {"ep": None, "etp": [1, "tp"]}
    found: dict[str, Any] = {**USUAL, **rest, **named}
    if "summa" in found["tp_exchange"]:
        found |= {"tp2": None} if "tp2" not in named else {}
        if found["tp_exchange"] == ["summa"] and "tp_overlap" not in named:
            found["tp_overlap"] = ["stack", "none"]
        if "summa_panels" not in named:
            found["summa_panels"] = None
    if space.get("recompute_layers") == "fit":
        found["recompute_layers"] = [*range(1, model.depth), None]
    return found


def layouts(model: Model, system: System, space: Values) -> Iterator[dict[str, Any]]:
    """Degrees that make up the GPUs, chunks with their schedule, stages, and batches."""
    tried = usual(model, system, space)
    dense = [layer.mlp.ffn for layer in model.layers if layer.mlp is not None]
    split = [attention.heads for attention in model.attentions] + dense
    heads = ("heads", "groups", "width", "key_heads", "value_heads")
    split += [getattr(x, n) for x in model.mixers for n in heads if n in type(x).model_fields]
    split += [x.moe.shared_ffn for x in model.layers if x.moe is not None]
    experts = [layer.moe.experts for layer in model.layers if layer.moe is not None]
    for gpus, asked in product(space["gpus"], space["global_batch_size"]):
        tps = [t for t in divisors(gpus) if all(width % t == 0 for width in split)]
        pps = [p for p in divisors(gpus) if p <= model.depth]
        eps = [e for e in divisors(gpus) if all(number % e == 0 for number in experts)]
        tp2s = [t for t in divisors(gpus) if all(width % t == 0 for width in reduced(model))]
        for tp, tp2, cp, pp, ep, etp in product(
            tried.get("tp", tps),
            tried["tp2"] or tp2s,
            tried["cp"],
            tried.get("pp", pps),
            tried["ep"] or eps,
            [1, 2, 3, 4, 8],
        ):
            dp = gpus // (tp * tp2 * cp * pp)
            if etp not in {tp if word == "tp" else word for word in tried["etp"]}:
                continue
            if dp * tp * tp2 * cp * pp != gpus or dp not in tried.get("dp", [dp]):
                continue
            if tried["ep"] is None and tp * tp2 * cp * dp % (ep * etp):
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
                degrees = {"gpus": gpus, "tp": tp, "tp2": tp2, "cp": cp, "pp": pp, "ep": ep}
                degrees["etp"] = etp
                chunked = {"dp": dp, "vpp": v, "schedule": word, "micro_batch_size": m}
                whole = {"global_batch_size": batch if shared else asked}
                shards = [s for s in tried["dp_shard"] if s != dp or None not in tried["dp_shard"]]
                for shard, way in product(
                    shards if dp > 1 else [None], spread(model, system, space, tried, chunked, pp)
                ):
                    beside = {"asked": (gpus, asked), "dp_shard": shard, **way}
                    yield {**beside, **degrees, **chunked, **whole}


def reduced(model: Model) -> list[int]:
    """Rows of all weights."""
    heads = [attention.heads * attention.value_dim for attention in model.attentions]
    return [model.hidden, *heads, *(layer.mlp.ffn for layer in model.layers if layer.mlp)]


def panels(model: Model, least: int) -> list[int | None]:
    """The least panels, and these doubled while the widest product's are 128 wide."""
    doubled = [least * 2**n for n in range(1, 20)]
    fit = [n for n in doubled if all(width % n == 0 for width in reduced(model))]
    return [None, *(n for n in fit if model.hidden / n >= 128)]


def scheduled(chunks: Sequence[int], words: Sequence[str], *, given: bool) -> list[tuple[int, str]]:
    """Chunks with the schedules that they allow; given ones that have none are for the rules."""
    found = []
    for v in chunks:
        own = [word for word in words if (word == "interleaved") == (v > 1)]
        found += [(v, word) for word in own or (words[:1] if given else ())]
    return found


def placements(
    model: Model, system: System, degrees: Mapping[str, int], tried: Values
) -> list[dict[str, Any]]:
    """Ways to lay the axes out that differ, the first of those that do not."""
    found = []
    for values in product(*(tried[name] for name in PLACED)):
        way = dict(zip(PLACED, values, strict=True))
        beside = {"tp": degrees["tp2"]}  # both have one tier
        several = [axis for axis in AXES if degrees[axis] * beside.get(axis, 1) > 1]
        alone = [axis for axis in AXES if axis not in several]
        if any(way[f"{axis}_tier"] != tried[f"{axis}_tier"][0] for axis in alone):
            continue
        placed = any(way[f"{axis}_tier"] is None for axis in several)
        if placed or way["placement"] == tried["placement"][0]:
            found.append(way)
    table = _table(model, [{**degrees, "global_batch_size": 1, "seq_len": 1, **w} for w in found])
    extents = place(system, table)
    seats = np.concatenate([getattr(extents, axis) for axis in (*AXES, "tp2")]).T.tolist()
    tiers = len(system.network)
    beyond = [any((way[t] or 0) >= tiers for t in TIERS) for way in found]
    return [
        way
        for i, way in enumerate(found)
        if beyond[i] or not any(seats[i] == seats[j] and not beyond[j] for j in range(i))
    ]


def options(system: System, tried: Values, kind: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the other fields that has an effect of its own."""
    seen: set[tuple[Any, ...]] = set()
    for values in product(*(tried[name] for name in OPTIONS)):
        one = dict(zip(OPTIONS, values, strict=True))
        for _ in range(2):  # what a field amounts to may change what another one does
            for name in OPTIONS:
                one[name] = representative(system, tried[name], kind, one, name)
        key = tuple(str(one[name]) for name in OPTIONS)
        if key not in seen:
            seen.add(key)
            yield one


def representative(
    system: System, values: Sequence[Any], kind: Mapping[str, Any], one: dict[str, Any], name: str
) -> Any:
    """The first of the values that amount to the same, of those that can be had; or what it must be
    where no value matters."""
    amount = same_run(one, kind, name)
    same = [v for v in values if v == one[name] or same_run({**one, name: v}, kind, name) == amount]
    if name in NEUTRAL and (amount in ("no matter", "none", "all") and amount != one[name]):
        return NEUTRAL[name]
    return first_usable(system, name, same)


def everything(model: Model, system: System, space: Values, capacity_bytes: float) -> Naive:
    """Try every strategy of a space."""
    tried = usual(model, system, space)
    rows: list[dict[str, Any]] = []
    seats: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    choices: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    bare = list(layouts(model, system, space))
    first = {name: (tried[name] or [None])[0] for name in (*OPTIONS, *PLACED)}
    for layout, reason in zip(bare, _bare_reasons(model, system, bare, first), strict=True):
        degrees = {axis: layout[axis] for axis in (*AXES, "tp2")}
        kind = kind_of(model, layout, legal=reason is None)
        ways = [{name: tried[name][0] for name in PLACED}]
        if reason is None:
            key = tuple(degrees.values())
            if key not in seats:
                seats[key] = placements(model, system, degrees, tried)
            ways = seats[key]
        of_kind = tuple(kind.values())
        if of_kind not in choices:
            cut = tried["summa_panels"] or panels(model, kind["panels"])
            choices[of_kind] = list(options(system, {**tried, "summa_panels": cut}, kind))
        rows += [{**layout, **way, **one} for way in ways for one in choices[of_kind]]
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


def kept(naive: Naive, space: Values) -> Naive:
    """What becomes of the same strategies where one value of a field is kept of all that fit."""
    found, table = list(naive.reasons), naive.strategies
    columns = {name: getattr(table, name).tolist() for name in FIELDS}
    varied: list[str] = []
    for name, (word, reason) in KEPT.items():
        if space.get(name) != word:
            continue
        varied += [name, *(SPREAD if name == "stage_layers" else ())]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in (row for row, why in enumerate(found) if why is None):
            key = tuple(columns[field][row] for field in FIELDS if field not in varied)
            groups.setdefault(key, []).append(row)
        for rows in groups.values():
            worse = {
                "recompute_layers": [columns["recompute_layers"][row] or np.inf for row in rows],
                "micro_batch_size": [-columns["micro_batch_size"][row] for row in rows],
                "stage_layers": [naive.estimates.step_time_s[row] for row in rows],
            }[name]
            first = rows[worse.index(min(worse))]
            for row in rows:
                found[row] = None if row == first else reason
    return replace(naive, reasons=found)


def _table(model: Model, rows: Sequence[Mapping[str, Any]]) -> Table:
    if not rows:
        return Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1}).take(np.empty(0, np.int64))
    names = [name for name in rows[0] if name != "asked"]
    return Table.of(model, {name: [row[name] for row in rows] for name in names})


def _bare_reasons(
    model: Model, system: System, bare: Sequence[Mapping[str, Any]], first: Mapping[str, Any]
) -> list[str | None]:
    """Why layouts are refused wherever they are placed; a layout that is has no placement."""
    if not bare:
        return []
    rules = [r for r in CONSTRAINTS if r.layout_only and r.reason not in NETWORK_REASONS]
    table = _table(model, [{**first, **layout} for layout in bare])
    return [_word(code) for code in first_violation(model, system, table, rules)]


def _word(code: int) -> str | None:
    return CONSTRAINTS[code].reason if code >= 0 else None


def _refusals(model: Model, system: System, table: Table) -> list[str | None]:
    """The first rule that a layout breaks, then one that options break."""
    layout_only = [r for r in CONSTRAINTS if r.layout_only]
    order = (
        [r for r in layout_only if r.reason not in NETWORK_REASONS],
        [r for r in layout_only if r.reason in NETWORK_REASONS],
        [r for r in CONSTRAINTS if not r.layout_only],
    )
    columns = [first_violation(model, system, table, rules) for rules in order]
    return [
        next((_word(code) for code in codes if code >= 0), None)
        for codes in zip(*columns, strict=True)
    ]
