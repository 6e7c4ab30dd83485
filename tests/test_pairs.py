"""Every two options together: estimated, or refused by a rule; and no weight is lost in any split.

Two or three values of every field of a strategy, and all pairs of them on a common base, for a
dense model and one of experts with latent attention.
"""

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import EstimateTable, InputError, Model, System, estimate, estimate_many
from shardwise.arrays import gather
from shardwise.config.enums import (
    Dispatcher,
    Schedule,
    TpExchange,
)
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.engine.memory import stage_memory
from shardwise.engine.zero import stage_parameters
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.pipeline_layout import by_stage, stage_groups
from strategy_values import values_of_every

pytestmark = pytest.mark.any_software

BOTH = [False, True]
# Launches that graphs capture, and experts whose products some recipes fuse.
SLOW_LAUNCHES = samples.stack(
    attention_kernel="unfused",
    host_launch=1e-4,
    cuda_graphs="partial",
    grouped_products="loop",
    fused_expert_recipes=("fp8_tensor", "nvfp4"),
    fused_grouped_time_factor=0.5,
    fused_permute_traffic_factor=0.5,
)
# Of fields that need values of their own; the first is the base's. None: what `Strategy` fills in.
OWN: dict[str, list[Any]] = {
    "tp": [2, 1, 4],
    "tp2": [1, 2],
    "pp": [2, 1, 4],
    "cp": [1, 2],
    "ep": [1, 2, 4],
    "etp": [1, 2],
    "dp": [4, 1, 8],
    "vpp": [1, 2],
    "micro_batch_size": [1, 2],
    "global_batch_size": [32, 48],
    "seq_len": [32, 64],
    "dtype": ["bf16", "fp32"],
    "quantization": ["none", "fp8_tensor", "nvfp4"],
    "document_len": [None, 16, 48],
    "data_lengths": [None, None, None, (5, 12, 30)],
    "batching": ["padded", "padded", "packed"],
    "recompute_parts": [("core_attention",), ("mlp",), ("moe", "mla_up"), ("activation",)],
    "recompute_layers": [None, 1, 9],
    "dp_shard": [None, 2, 4],
    "fsdp_prefetch": [1, 0, 2],
    "frozen": [(), ("embedding", "attention"), ("mlp", "experts", "norms")],
    "lora_rank": [None, 4],
    "lora_parts": [("attention", "mlp"), ("experts",)],
    "lora_targets": [None, ("q_proj", "up_proj"), ("experts",)],
    "base_weights": ["stack", "nf4", "int8"],
    "task": ["pretrain", "dpo", "kto"],
    "reference_model": ["usual", "copy", "precomputed"],
    "loss_tokens": [1.0, 0.5],
    "schedule": [None, *Schedule],
    "first_stage_layers": [None, 1, 9],
    "last_stage_layers": [None, 3],
    "stage_layers": [None, (3, 5), (8,), (1, 2, 3, 2)],
    "sequence_parallel": [None, True, False],
    "tp_exchange": [None, *TpExchange],
    "summa_panels": [None, 4],
    "expert_capacity": [None, 1.5],
    "expert_imbalance": [1.0, 1.25],
    "dispatcher": [None, *Dispatcher],
    "offload_parts": [None, ("qkv", "activation"), ("expert_up",), ("other",)],
    "placement": ["tp-cp-dp-pp", "pp-dp-cp-tp"],
    "extents": [None, "dp=2", "tp=2+dp=4", "tp2=2+pp=2"],
    "tp_tier": [None, 0, 1],
    "cp_tier": [None, 1],
    "dp_tier": [None, 1, 2],
    "pp_tier": [None, 0],
    "any_software": [False],
    "stack": [samples.stack(), "megatron-lm-2022", SLOW_LAUNCHES],
}
DERIVED = {"gpus"}  # degrees say how many there are
VALUES = values_of_every(OWN, without=("gpus",))


def machine() -> System:
    """H100 nodes, with a second memory tier behind a link."""
    told = System.load("h100-sxm").to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": 50e9}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    return System.validated(told)


def of_depth(architecture: Model, counts: tuple[int, ...], **fields: Any) -> Model:
    """A model with other counts of its kinds of layers."""
    told = architecture.to_dict()
    kinds = [kind | {"count": n} for kind, n in zip(told["layers"], counts, strict=True)]
    return Model.validated(told | {"layers": kinds} | fields)


MODELS = {
    "dense": of_depth(samples.model(dropout=False), (8,)),
    "experts": of_depth(samples.deepseek(), (2, 6), mtp=1),
}


def settled(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what a strategy fills in, as columns have no holes."""
    split = row.pop("sequence_parallel")
    split = row["tp"] > 1 if split is None else split
    filled = {
        "tp_exchange": row["tp_exchange"] or ("rs_ag" if split else "all_reduce"),
        "schedule": row["schedule"] or ("interleaved" if row["vpp"] > 1 else "1f1b"),
    }
    return row | filled


def pairs() -> list[dict[str, Any]]:
    """The base with every two fields at all of their values."""
    base = {name: values[0] for name, values in VALUES.items()}
    rows = [base]
    for one, other in combinations(VALUES, 2):
        if {one, other} == {"sequence_parallel", "tp_exchange"}:  # two names of one thing
            continue
        rows += [
            base | {one: a, other: b}
            for a in VALUES[one]
            for b in VALUES[other]
            if a != VALUES[one][0] and b != VALUES[other][0]
        ]
    for name, values in VALUES.items():
        rows += [base | {name: value} for value in values[1:]]
    return [settled(dict(row)) for row in rows]


@cache
def estimated(kind: str) -> EstimateTable:
    """One table of them all."""
    rows = pairs()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return estimate_many(MODELS[kind], machine(), columns)


def test_every_field_has_values() -> None:
    """A new field needs some here."""
    assert set(VALUES) | DERIVED == set(Strategy.model_fields)


@each_row("kind", MODELS)
def test_a_pair_is_estimated_or_refused(kind: str) -> None:
    """Finite and positive, its parts sum up; or no figure at all, and a rule that says why."""
    result = estimated(kind)
    legal = result.refused < 0
    assert len(result) > 4000
    assert legal.mean() > 0.35
    assert np.isfinite(result.step_time_s[legal]).all()
    assert (result.step_time_s[legal] > 0).all()
    times = np.stack([part[legal] for part in result.time_s.values()])
    assert (times >= 0).all()
    np.testing.assert_allclose(times.sum(axis=0), result.step_time_s[legal], rtol=1e-9)
    held = np.stack([part[legal] for part in result.memory_bytes.values()])
    assert (held >= 0).all()
    np.testing.assert_allclose(held.sum(axis=0), result.memory_total_bytes[legal], rtol=1e-12)
    assert (result.memory_total_bytes[legal] > 0).all()
    assert (result.memory_reserved_bytes[legal] >= result.memory_total_bytes[legal]).all()
    for share in (result.mfu, result.hfu):
        assert ((share[legal] > 0) & (share[legal] < 1)).all()
    assert np.isnan(result.step_time_s[~legal]).all()
    assert not result.fits[~legal].any()


@each_row("kind", MODELS)
def test_stages_of_every_pair_hold_all_layers(kind: str) -> None:
    """Layers of each kind, modules, embedding and head once; weights twice in both directions."""
    architecture, result = MODELS[kind], estimated(kind)
    table = result.table.take(np.flatnonzero(result.refused < 0))
    runs = stage_groups(architecture, table)
    kinds = len(architecture.layers)

    def sums(name: str) -> list[np.ndarray]:
        parts = zip(*(getattr(run, name) for run in runs), strict=True)
        return [
            sum(run.length * count for run, count in zip(runs, counts, strict=True))
            for counts in parts
        ]

    ends = [float(architecture.mtp), 1.0, 1.0]
    expected = [float(layer.count) for layer in architecture.layers] + ends
    twice = np.where(table.schedule == Schedule.DUALPIPE.code, 2.0, 1.0)
    for name, times in (("work", np.ones_like(twice)), ("resident", twice)):
        found = sums(name)
        whole = [found[n] + found[n + kinds] for n in range(kinds)] + found[2 * kinds :]
        for count, of_all in zip(whole, expected, strict=True):
            np.testing.assert_allclose(count, of_all * times)
    np.testing.assert_array_equal(sum(run.length for run in runs), table.pp)


@each_row("kind", MODELS)
def test_every_refusal_is_reported(kind: str) -> None:
    """The first row that breaks a rule, for each rule: alone it raises and names the field."""
    architecture, result = MODELS[kind], estimated(kind)
    found = np.unique(result.refused[result.refused >= 0])
    assert len(found) > 10
    for position in found.tolist():
        row = int(np.argmax(result.refused == position))
        one = result.table.take(slice(row, row + 1))
        rule = CONSTRAINTS[position]
        field = rule.blame(architecture, machine(), one) if rule.blame else rule.field
        with pytest.raises(InputError) as error:
            estimate(architecture, machine(), result.table.strategy(row))
        assert result.reason(row) == rule.reason
        told = {fault.field: fault for fault in error.value.faults}
        assert field in told
        assert len(told[field].problem) > 10


@pytest.mark.parametrize("kind", MODELS)
def test_a_row_is_the_estimate_of_its_strategy(kind: str) -> None:
    """Every hundredth legal row, alone."""
    architecture, result = MODELS[kind], estimated(kind)
    for row in np.flatnonzero(result.refused < 0)[::100].tolist():
        one = estimate(architecture, machine(), result.table.strategy(row))
        assert result.step_time_s[row] == pytest.approx(one.step_time_s, rel=1e-12)
        assert result.memory_total_bytes[row] == pytest.approx(one.memory_bytes.total, rel=1e-12)
        assert bool(result.fits[row]) is one.fits
        for part, time in one.time_s.items():
            assert result.time_s[part][row] == pytest.approx(time, rel=1e-12)


# Weights that every tensor rank holds whole: norms, the products that compress queries, keys and
# values, and the router. A module of multi-token prediction has a layer with experts and 3 norms.
_LATENT = 64 * 24 + 24 + 64 * (16 + 4) + 16
WHOLE = {"0": 2 * 64 + _LATENT, "1": 2 * 64 + _LATENT + 64 * 8, "head": 64}
MODULE = WHOLE["1"] + 3 * 64


degree = st.sampled_from([1, 2, 4, 8])
count = st.sampled_from([None, None, 1, 2])


@st.composite
def splits(draw: st.DrawFn) -> dict[str, Any]:
    """Degrees, schedules and layouts, most of them legal."""
    schedule = draw(st.sampled_from(Schedule))
    return {
        "tp": draw(degree),
        "pp": draw(st.sampled_from([1, 2, 3, 4, 6])),
        "cp": draw(st.sampled_from([1, 2, 4])),
        "dp": draw(st.sampled_from([1, 2, 4])),
        "ep": draw(degree),
        "etp": draw(st.sampled_from([1, 2, 4])),
        "vpp": draw(st.sampled_from([2, 3])) if schedule == "interleaved" else 1,
        "schedule": schedule,
        "first_stage_layers": draw(count),
        "last_stage_layers": draw(count),
        "loss_as_layer": draw(st.booleans()),
        "recompute": "full",
        "recompute_layers": draw(count),
        "zero": draw(st.sampled_from([1, 2, 3])),
        "dtype": "fp32",
        "gbs": 96,
    }


@examples(25)
@given(st.lists(splits(), min_size=2, max_size=6), st.booleans(), st.sampled_from([0, 1]))
def test_no_weight_is_lost_in_any_split(rows: list[dict[str, Any]], tied: bool, mtp: int) -> None:
    """All ranks together, what several hold counted once, hold the model, and all its states.

    Words that the first and the last stage need, for a tied head or a module of multi-token
    prediction, are two copies, which count as two.
    """
    architecture = of_depth(samples.deepseek(), (3, 9), mtp=mtp, tied_embeddings=tied)
    system = samples.system()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = Table.of(architecture, columns | {"stack": samples.stack()})
    table = table.take(np.flatnonzero(first_violation(architecture, system, table) < 0))
    assume(len(table) > 0)
    counted = count_parameters(architecture)
    whole = counted.total + counted.mtp
    alike = WHOLE | {"mtp": MODULE if mtp else 0.0}
    every = evaluate(architecture, system, table)
    for row in range(len(table)):
        one, blocks, runs = gather(
            (table, every.step.costs, every.step.groups), slice(row, row + 1)
        )
        run = by_stage(runs)
        tp, cp, dp = (int(getattr(one, axis)[0]) for axis in ("tp", "cp", "dp"))
        ep, etp = int(one.ep[0]), int(one.etp[0])
        times = 2 if Schedule.from_code(int(one.schedule[0])) == "dualpipe" else 1
        dense, expert = stage_parameters(blocks, run)
        parts = np.stack(run.resident).sum(axis=1)
        layers = [parts[kind] + parts[kind + 2] for kind in range(2)]
        same = layers[0] * alike["0"] + layers[1] * alike["1"]
        same += parts[4] * alike["mtp"] + parts[6] * alike["head"]
        found = dense.sum() * tp - (tp - 1) * same + expert.sum() * ep * etp
        apart = one.pp[0] > 1 and not one.joins_ends[0]
        copies = 1000 * 64 * (1 if tied else mtp) if apart else 0
        assert found / times == pytest.approx(whole + copies, rel=1e-12)
        memory = stage_memory(one, blocks, run)
        states = memory.optimizer.sum() * tp * cp * dp / 8
        assert states == pytest.approx(dense.sum() * tp + expert.sum() * ep * etp, rel=1e-12)
        assert every.step.largest.all_trained.weights[row] == pytest.approx((dense + expert).max())
