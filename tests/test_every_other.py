"""Recompute of every other product, by hand: what runs again, what goes, and that parts agree.

By hand for 64 tokens of width 64 in 2 bytes. Llama's feed-forward is 192 wide and gated: its output
projection of attention and the second of its first two products run again; both norms, the
activation and the rotation with them. GPT's is 256 wide and not gated.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from drawn_strategies import ABSENT
from profiles import examples
from rows import each_row
from samples import dropped, operations, run
from shardwise import InputError, estimate, estimate_many, search, trace
from shardwise.analysis.timeline.step import StepTimeline, kernels_of_pass
from shardwise.config.enums import RecomputePart

pytestmark = pytest.mark.any_software

T = 64
OUT = 2 * T * 64 * 64
STREAM = 2 * T * 64
GPT, LLAMA, EXPERTS = samples.model(), samples.llama(), samples.deepseek()
KINDS = {"gpt": GPT, "llama": LLAMA, "experts": EXPERTS}
few = examples(40)


def selective(*parts: str, **columns: Any) -> dict[str, Any]:
    return {"recompute": "selective", "recompute_parts": parts, **columns}


@each_row(
    ("parts", "flops"),
    [
        (("every_other",), OUT + 2 * T * 64 * 192),
        (("every_other", "activation", "mlp_norm"), OUT + 2 * T * 64 * 192),
        (("mlp",), 3 * 2 * T * 64 * 192),
        (("every_other", "mlp"), OUT + 3 * 2 * T * 64 * 192),
    ],
)
def test_products_run_again_by_hand(parts: tuple[str, ...], flops: float) -> None:
    """Half of the first product of the feed-forward; all of it where `mlp` says so."""
    [layer] = run(LLAMA, **selective(*parts)).layers
    assert layer.recompute.matrix_flops == flops


def test_a_feed_forward_that_is_not_gated_has_no_other_product() -> None:
    """Only the output of attention runs again."""
    [layer] = run(GPT, **selective("every_other")).layers
    assert layer.recompute.matrix_flops == OUT


def test_what_is_dropped_by_hand() -> None:
    """What products read, both norms' outputs and the sum of attention that the second norm reads;
    keys, of which Llama has a head of 8 wide, GPT as many as queries; the gate's product and the
    activated one, 192 wide. Of GPT's feed-forward the first product stays.
    """
    llama = 3 * STREAM + 2 * T * 2 * 8 + 2 * 2 * T * 192
    gpt = 3 * STREAM + STREAM + 2 * T * 256
    assert dropped(operations(LLAMA).values(), "every_other") == llama
    assert dropped(operations(GPT).values(), "every_other") == gpt
    for model, gone in ((LLAMA, llama), (GPT, gpt)):
        plain, some = (run(model, **columns) for columns in ({}, selective("every_other")))
        less = plain.memory_bytes.activations - some.memory_bytes.activations
        assert less == 4 * gone == 4 * (plain.layers[0].kept_bytes - some.layers[0].kept_bytes)


def test_an_unfused_gate_keeps_its_first_product_alone() -> None:
    """What stands between activation and gate is rebuilt too."""
    apart = operations(LLAMA, fused_swiglu=False)
    gone = 3 * STREAM + 2 * T * 2 * 8 + 3 * 2 * T * 192
    assert dropped(apart.values(), "every_other") == gone


ROUTED = 2 * T
"""Rows of experts: two for each token, 32 wide inside, of two gated products and one back."""


@each_row(("ep", "rows"), [(1, 2 * ROUTED * 64), (2, 0)])
def test_grouped_products_run_again(ep: int, rows: int) -> None:
    """Both, their activation and the sorting before; what they give and read goes, but for rows
    that an all-to-all brought. Of the shared expert's products every other one runs again."""
    model = EXPERTS.model_copy(update={"layers": EXPERTS.layers[1:]})
    found = operations(model, ep=ep)
    again = {name: o.rerun_share for name, o in found.items() if "every_other" in o.reruns_with}
    assert again["moe.shared_up"] == 0.5
    assert {n for n in again if n.startswith("moe.") and again[n] == 1} == {
        *("moe.dispatch", "moe.up", "moe.activation", "moe.down"),
        "moe.shared_activation",
    }
    gone = {name: dropped([operation], "every_other") for name, operation in found.items()}
    assert gone["moe.up"] == rows
    assert gone["moe.activation"] == 2 * ROUTED * 2 * 32
    assert gone["moe.down"] == 2 * ROUTED * 32
    kept = ("moe.shared_activation", "moe.top_k", "moe.combine", "attention.core")
    assert {name: gone[name] for name in kept} == dict.fromkeys(kept, 0)


def test_flops_of_grouped_products_by_hand() -> None:
    """Three products of 128 rows, 64 wide outside and 32 inside, next to those of a dense model:
    the output of attention, 8 of 12 wide heads, and half of a shared expert 64 wide."""
    model = EXPERTS.model_copy(update={"layers": EXPERTS.layers[1:]})
    heads = model.layers[0].attention
    attention = 2 * T * heads.heads * heads.v_head_dim * 64
    [layer] = run(model, **selective("every_other")).layers
    assert layer.recompute.matrix_flops == attention + 2 * T * 64 * 64 + 3 * 2 * ROUTED * 64 * 32


@each_row("kind", KINDS)
def test_it_takes_less_time_than_all_and_more_memory(kind: str) -> None:
    """Between nothing and full, of both."""
    ways = ({}, selective("every_other"), {"recompute": "full"})
    results = [run(KINDS[kind], **columns) for columns in ways]
    times = [result.time_s["recompute"] for result in results]
    kept = [result.memory_bytes.activations for result in results]
    assert 0 == times[0] < times[1] < times[2]
    assert kept[0] > kept[1] > kept[2]


def test_collectives_are_not_repeated() -> None:
    """What reduce-scatters brought is kept; mlp beside it repeats its own."""
    columns = {"tp": 4, "sequence_parallel": True}
    plain = run(LLAMA, operations=True, **columns)
    some = run(LLAMA, operations=True, **columns, **selective("every_other"))
    assert some.comm_s["tp"].total == plain.comm_s["tp"].total
    assert some.layers[0].tp_again == plain.layers[0].tp_again
    rows = [row for row in some.operations or () if row.phase == "recompute"]
    assert rows
    assert all(row.group == 1 for row in rows)
    both = run(LLAMA, **columns, **selective("every_other", "mlp"))
    assert both.comm_s["tp"].total == run(LLAMA, **columns, **selective("mlp")).comm_s["tp"].total


SETS = st.sets(st.sampled_from([p for p in RecomputePart if p not in ABSENT]))


@few
@given(st.sampled_from(sorted(KINDS)), SETS, st.sampled_from([1, 2]))
def test_the_detail_adds_up_to_the_total(kind: str, beside: set[str], tp: int) -> None:
    """Rows of operations, totals of layers and the timeline, alone and beside other parts."""
    model = KINDS[kind]
    columns = {"tp": tp, **selective("every_other", *sorted(beside))}
    result = run(model, operations=True, **columns)
    rows = [row for row in result.operations or () if row.phase == "recompute"]
    kernels = [row for row in rows if row.group == 1]
    spent = result.time_s["recompute"]
    assert sum(row.count * row.time_s for row in kernels) == pytest.approx(spent)
    assert sum(layer.count * layer.recompute.time_s for layer in result.layers) == pytest.approx(
        spent
    )
    flops = sum(layer.count * layer.recompute.flops for layer in result.layers)
    assert sum(row.count * row.flops for row in kernels) == pytest.approx(flops)
    exchanged = [row for row in result.operations or () if row.group > 1 and row.part != "step"]
    assert sum(row.count * row.time_s for row in exchanged) == pytest.approx(
        result.comm_s["tp"].total
    )
    saved = [row.count * row.saved_bytes for row in result.operations or () if row.part != "head"]
    assert sum(saved) == pytest.approx(result.memory_bytes.activations)
    given = {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack(), **columns}
    line = trace(model, samples.system(), given).timeline
    assert told(line) == pytest.approx(spent)


def told(line: StepTimeline) -> float:
    """What the kernels of the recompute of a pass add up to [s]."""
    parts = kernels_of_pass(line, 0, "recompute")
    return sum(time for part in parts for _, time in part.kernels)


@each_row(
    ("columns", "problem"),
    [
        ({"tp": 2, "tp_regather": False}, "tp_regather must be true"),
        ({"fused_activation": True}, "fused_activation recomputes the activation already"),
    ],
)
def test_what_it_cannot_be_combined_with(columns: dict[str, Any], problem: str) -> None:
    """As the norms and the activation that it runs again."""
    with pytest.raises(InputError, match=problem):
        run(LLAMA, **columns, **selective("every_other"))


def test_a_search_tells_it_from_other_parts() -> None:
    """Of the parts that a space lists, the fastest that fits is found, and it is this one."""
    parts = ["core_attention", "every_other", "every_other+mlp", "mlp"]
    shown = {}
    for text in parts:
        given = {"dp": 1, "mbs": 1, "gbs": 4, "stack": samples.stack()}
        result = estimate(LLAMA, samples.system(), given | selective(*text.split("+")))
        shown[text] = (result.step_time_s, result.memory_bytes.total)
    room = shown["every_other"][1]
    best = min((time, text) for text, (time, total) in shown.items() if total <= room)
    space = {"recompute": ["selective"], "recompute_parts": parts, "micro_batch_size": [1]}
    space["zero"] = [1]
    found = search(
        LLAMA,
        samples.system(),
        {"stack": [samples.stack().to_dict()], **space},
        gpus=1,
        gbs=4,
        max_memory=room,
        all_variants=True,
        fits=None,
    )
    assert best[1] == "every_other"
    assert found.best[0].strategy["recompute_parts"] == ("every_other",)
    assert found.best[0].step_time_s == best[0]


def test_rows_of_one_table_have_their_own_share() -> None:
    """Columns of several sets of parts are the single estimates."""
    sets = [("every_other",), ("mlp",), ("every_other", "mlp"), ("core_attention",)]
    rows = [samples.run(LLAMA, **selective(*parts)).step_time_s for parts in sets]
    given = [
        {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack()} | selective(*parts)
        for parts in sets
    ]
    found = estimate_many(LLAMA, samples.system(), given).step_time_s
    assert np.asarray(found) == pytest.approx(rows, rel=1e-12)
