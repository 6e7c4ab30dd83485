"""2D products in estimates: what they equal, what they hold, what is exposed.

Of the sample: 100 TFLOP/s and 1 TB/s; links of 100 GB/s within 8 accelerators, without latency.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import GB, layer, run, stack, system, tier
from shardwise import Model, Strategy, System, estimate, estimate_many, trace
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.config.strategy_table import Table
from shardwise.engine.data_parallel import windows
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import Operation
from shardwise.ops.param_count import REPLICATED, count_parameters
from shardwise.parallel.placement import place
from shardwise.parallel.process_groups import peers_of

pytestmark = pytest.mark.any_software

SUMMA: dict[str, Any] = {"tp": 2, "tp2": 4, "tp_exchange": "summa"}
DEGREES = [(1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (8, 1), (1, 8)]


def test_one_rank_splits_nothing():
    """With tp and tp2 of 1 it is what any exchange is, whatever the others would not allow."""
    for fields in ({}, {"tp_overlap": "ring"}, {"cp": 2}, {"dtype": "fp32"}, {"lora_rank": 4}):
        one, other = (run(tp_exchange=word, **fields).to_dict() for word in ("summa", "all_reduce"))
        for result in (one, other):
            result["strategy"]["tp_exchange"] = result["strategy"]["sequence_parallel"] = None
        assert one == other


def by_hand(kernel_s: float, panel_s: float, panels: int) -> float:
    """The first panel is waited for, the others as far as they outlast one of the product."""
    return panel_s + (panels - 1) * max(panel_s - kernel_s / panels, 0)


@each_row("panels", [4, 16, 64])
@each_row("bandwidth", [5 * GB, 100 * GB, 20_000 * GB])
def test_all_panels_but_one_overlap_the_product(panels, bandwidth):
    """The exposed part of what a product exchanges, from the times of its kernels."""
    machine = system(network=[tier(bandwidth=bandwidth, latency=1e-7)])
    result = run(machine=machine, operations=True, summa_panels=panels, **SUMMA)
    listed = result.operations or ()
    for phase in ("forward", "input_grad", "weight_grad"):
        rows = [r for r in listed if r.operation == "mlp.up" and r.phase == phase]
        kernels = sum(r.time_s for r in rows if r.bound != "network")
        exchanged = [r for r in rows if r.bound == "network"]
        one = sum(r.time_s for r in exchanged) / panels
        assert len(exchanged) == 2
        exposed = sum(r.exposed_s for r in exchanged)
        assert exposed == pytest.approx(by_hand(kernels, one, panels))
        shares = [r.exposed_s / r.time_s for r in exchanged]
        assert shares[0] == pytest.approx(shares[1])


def test_nothing_hides_it_without_overlap():
    """All panels are waited for; and one panel hides nothing, as there is no other beside it."""
    rows = run(operations=True, tp_overlap="none", summa_panels=16, **SUMMA).operations or ()
    exchanged = [r for r in rows if r.bound == "network"]
    assert all(r.exposed_s == r.time_s for r in exchanged)
    assert {r.kind for r in exchanged} >= {"broadcast", "reduce", "all_to_all"}


def test_every_panel_has_its_latency():
    """A millisecond for each broadcast of a panel: 8 panels, or 32."""
    for panels in (8, 32):
        machine = system(network=[tier(bandwidth=1e18, latency=1e-3) | {"join_exponent": 1.0}])
        rows = run(machine=machine, operations=True, summa_panels=panels, **SUMMA).operations or ()
        sent = [r.time_s for r in rows if r.kind == "broadcast"]
        assert sent == pytest.approx([panels * 1e-3] * len(sent), rel=1e-6)


def test_what_is_broadcast_passes_each_member_once():
    """As much time with 8 members as with 2; over slower links beyond 8 by all that have one."""
    for tp2, rate in ((2, 100 * GB), (8, 100 * GB), (16, 10 * GB)):
        given = {"tp": 1, "tp2": tp2, "tp_exchange": "summa", "summa_panels": 16, "seq_len": 32}
        rows = run(operations=True, **given).operations or ()
        up = [r for r in rows if r.operation == "mlp.up" and r.bound == "network"]
        assert [r.kind for r in up] == ["broadcast", "broadcast", "reduce"]
        reached = rate * (8 if tp2 > 8 else 1)
        assert [r.time_s for r in up] == pytest.approx([64 * 256 * 2 / reached] * 3)


def test_a_tier_may_say_how_it_broadcasts():
    """Else as it gathers and scatters, without the scale of those."""
    rates = {"latency": 0, "latency_per_member": 0, "efficiency": {1: 1}}
    plain = tier()
    scaled = plain["collectives"]["all_gather"] | {"scale": 3, "offset": 0}

    def time(own: dict[str, Any]) -> dict[str, float]:
        told = plain | {"collectives": plain["collectives"] | own}
        rows = run(machine=system(network=[told]), operations=True, **SUMMA).operations or ()
        chosen = [r for r in rows if r.operation == "mlp.up" and r.phase == "weight_grad"]
        return {r.kind: r.time_s for r in chosen if r.bound == "network"}

    usual = time({})
    assert time({"all_gather": scaled}) == usual
    slow = time({"all_gather": rates | {"efficiency": {1: 0.5}}})
    assert slow == pytest.approx(usual | {"broadcast": 2 * usual["broadcast"]})
    slow = time({"reduce_scatter": rates | {"efficiency": {1: 0.5}}})
    assert slow == pytest.approx(usual | {"reduce": 2 * usual["reduce"]})
    own = time({"broadcast": rates | {"efficiency": {1: 0.25}, "scale": 2, "offset": 0}})
    assert own == pytest.approx(usual | {"broadcast": 8 * usual["broadcast"]})


@each_row("name", ["h100-sxm", "a100-40gb-sxm", "nersc-a100", "calculon-a100-80g"])
def test_systems_of_the_catalog_broadcast(name):
    """Whatever form their collectives have; between nodes slower than inside."""
    machine, times = System.load(name), []
    for placement in ("tp-cp-dp-pp", "dp-tp-cp-pp"):
        given = {"dp": 8, "tp2": 4, "tp": 2, "tp_exchange": "summa", "placement": placement}
        model = samples.model(layer(attention={"head_dim": 64}), hidden=512)
        strategy = given | {"gbs": 16, "mbs": 2, "dtype": "fp16", "stack": stack()}
        times.append(estimate(model, machine, strategy).comm_s["tp"].total)
    assert 0 < times[0] < times[1]


def test_a_model_without_a_vocabulary_has_layers_alone():
    """Nothing to look up, and no head."""
    model = samples.model(vocab=0, tied_embeddings=False, position="sinusoidal")
    rows = run(model, operations=True, **SUMMA).operations or ()
    assert {r.part for r in rows if r.bound == "network"} == {"layer", "head"}
    assert {r.operation for r in rows if r.part == "head"} == {"final_norm"}


def held_by_ranks(model: Model, **degrees: Any) -> float:
    """Parameters of all ranks of a replica, weights that ranks share counted once."""
    table = Table.of(model, {"dp": 1, "gbs": 1, "stack": stack(), **degrees})
    work = rank_work(table)
    tp, tp2 = int(table.tp[0]), int(table.tp2[0])
    operations: list[Operation] = [*embedding_operations(model, work)]
    for one in model.layers:
        operations += layer_operations(model, one, work) * one.count
    copied = np.array([not model.tied_embeddings])
    operations += head_operations(model, work, holds_copy=copied)
    found = 0.0
    for operation in operations:
        kernels = [k for k in operation.kernels if getattr(k, "panels", None) is not None]
        if operation.name in REPLICATED:
            found += float(operation.parameters[0]) * tp  # all tp2 ranks have a copy
        elif kernels and operation.name != "head":
            weights = float((kernels[0].k * kernels[0].n)[0]) / tp2
            found += weights * tp * tp2 + (float(operation.parameters[0]) - weights) * tp
        else:
            found += float(operation.parameters[0]) * tp * tp2
    return found


@each_row("degrees", DEGREES)
def test_parameters_are_conserved(degrees):
    """All ranks together hold the model, norms and biases once for the tp2 ranks of a column."""
    tp, tp2 = degrees
    wide = {"heads": 8, "kv_heads": 8, "bias": "none"}
    models = [
        samples.model(),
        samples.llama(layers=[layer(attention=wide, mlp={"ffn": 192, "activation": "swiglu"})]),
        samples.model(layer(count=2), layer(count=1, mlp={"ffn": 512})),
    ]
    for model in models:
        given = {"tp": tp, "tp2": tp2, "tp_exchange": "summa"}
        assert held_by_ranks(model, **given) == count_parameters(model).total


@each_row("degrees", DEGREES)
def test_flops_are_conserved(degrees):
    """A rank does its part of every product of a layer, and of attention."""
    tp, tp2 = degrees
    whole = run(samples.model(), operations=True).layers[0]
    part = run(samples.model(), operations=True, tp=tp, tp2=tp2, tp_exchange="summa").layers[0]
    for name in ("forward", "input_grad", "weight_grad"):
        assert getattr(part, name).matrix_flops * tp * tp2 == pytest.approx(
            getattr(whole, name).matrix_flops
        )
    assert part.kept_bytes * tp * tp2 == pytest.approx(whole.kept_bytes)
    assert part.boundary_bytes == 0


GIVEN = {
    "tp": st.sampled_from([1, 2, 4]),
    "tp2": st.sampled_from([1, 2, 4]),
    "pp": st.sampled_from([1, 2, 4]),
    "dp": st.sampled_from([1, 2]),
    "panels": st.sampled_from([None, 16, 32]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "zero": st.sampled_from([0, 1, 2, 3]),
    "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    "document_len": st.sampled_from([None, 8]),
    "training": st.booleans(),
    "offload_activations": st.booleans(),
    "offload_weights": st.booleans(),
    "tp_overlap": st.sampled_from(["stack", "none"]),
}
fast = examples(10)
HOST = [{"name": name, "capacity": 80e9, "bandwidth": 1e12} for name in ("hbm", "host")]


def drawn(fields: dict[str, Any]) -> dict[str, Any]:
    """A legal strategy of 2D products."""
    one = {**fields, "tp_exchange": "summa", "mbs": 1, "gbs": 16, "stack": stack()}
    panels = one.pop("panels")
    one["summa_panels"] = panels if one["tp"] * one["tp2"] > 1 else None
    if one["pp"] == 1 or not one["training"]:
        one["schedule"] = "1f1b"
    return one


@fast
@given(fields=st.lists(st.fixed_dictionaries(GIVEN), min_size=1, max_size=6))
def test_a_row_of_a_table_is_its_estimate(fields):
    """Beside rows of other exchanges, to the last bit."""
    machine, model = system(memory=HOST), samples.llama(layers=[layer(mlp={"ffn": 192})])
    rows = [drawn(one) for one in fields]
    others = [
        row | {"tp2": 1, "summa_panels": None, "tp_exchange": "rs_ag", "tp": 4} for row in rows
    ]
    table = estimate_many(model, machine, [Strategy(**row) for row in (*rows, *others)])
    for at, row in enumerate(rows):
        one = estimate(model, machine, row)
        assert one.step_time_s == table.step_time_s[at]
        assert one.memory_bytes.total == table.memory_total_bytes[at]
        assert sum(one.time_s.values()) == pytest.approx(one.step_time_s)


@fast
@given(fields=st.fixed_dictionaries(GIVEN), faster=st.sampled_from([1.01, 2.0, 50.0]))
def test_more_bandwidth_is_never_slower(fields, faster):
    """Of either tier."""
    model, row = samples.model(), drawn(fields)
    inside, between = tier("inside", domain=8, latency=1e-6), tier("between", bandwidth=1e10)
    slow = system(memory=HOST, network=[inside, between])
    for upgraded in range(2):
        tiers = [inside, between]
        tiers[upgraded] = tiers[upgraded] | {"bandwidth": tiers[upgraded]["bandwidth"] * faster}
        quick = system(memory=HOST, network=tiers)
        times = [estimate(model, machine, row).step_time_s for machine in (quick, slow)]
        assert times[0] <= times[1] * (1 + 1e-12)


def test_collectives_of_both_axes_are_reported_together():
    """As tensor-parallel; its parts sum to it; nothing is left for another axis."""
    result = run(operations=True, **SUMMA)
    rows = [r for r in result.operations or () if r.bound == "network" and r.part != "step"]
    alone = sum(r.time_s * r.count for r in rows)
    assert result.comm_s["tp"].total == pytest.approx(alone)
    assert result.comm_s["tp"].exposed == pytest.approx(sum(r.exposed_s * r.count for r in rows))
    assert [result.comm_s[axis].total for axis in COMM_AXES[1:]] == [0, 0]
    one = result.layers[0]
    assert one.cp.volume_bytes == 0
    told = one.tp_forward.volume_bytes + one.tp_backward.volume_bytes
    mine = [r for r in rows if r.part == "layer"]
    assert told == sum(r.volume_bytes for r in mine)
    assert result.required_bandwidth.tp_overlap is not None


def test_full_recompute_broadcasts_again():
    """It keeps a rank's part of the residual stream and runs all of forward again."""
    plain, again = (run(recompute=word, **SUMMA).layers[0] for word in ("none", "full"))
    assert again.tp_again == plain.tp_forward
    assert again.kept_bytes == 2 * 8 * 32 * 2
    parts = run(recompute="selective", recompute_parts=("mlp_norm",), **SUMMA).layers[0]
    assert parts.tp_again.volume_bytes == 2 * 8 * 2 * 4  # its statistics


def test_stages_hand_over_what_a_rank_has():
    """Half of the width of a quarter of the tokens, whatever the stack scatters."""
    for scatters in (False, True):
        result = run(software={"pp_scatter_gather": scatters}, pp=2, operations=True, **SUMMA)
        (row,) = [r for r in result.operations or () if r.operation == "stage_transfers"]
        assert row.volume_bytes == 2 * 2 * 8 * 32 * 2
        assert result.comm_s["pp"].total == pytest.approx(row.volume_bytes / (10 * GB))


def test_replicas_share_what_a_rank_holds():
    """1/8 of the matrices of 4 layers and of the words, half of norms and biases."""
    result = run(dp=2, gbs=4, zero=0, operations=True, **SUMMA)
    (row,) = [r for r in result.operations or () if r.operation == "gradients"]
    matrices = 4 * 12 * 64**2 + (1000 + 32) * 64
    others = 4 * (4 * 64 + 3 * 64 + 64 + 256 + 64) + 2 * 64
    assert row.volume_bytes == 4 * (matrices / 8 + others / 2)
    assert row.extents == (1, 2)


def test_copies_of_words_are_a_rank_s_part():
    """First and last stage add up 1/8 of them."""
    model = samples.model(layer(count=4))
    tied = run(model, pp=2, **SUMMA).comm_s["dp"].total
    assert tied == pytest.approx(1000 * 64 / 8 * 4 / (10 * GB))


@each_row(("order", "left"), [("tp-cp-dp-pp", 10), ("dp-tp-cp-pp", 6)])
def test_gradient_communication_waits_for_the_links_of_both_axes(order, left):
    """Where tp2 and the replicas span the outer tier, theirs has 4 s less of a pass of 10 s."""
    fields = {"dp": 4, "tp": 1, "tp2": 4, "tp_exchange": "summa", "placement": order}
    table = Table.of(samples.model(), fields | {"gbs": 8, "mbs": 1})
    machine = system(network=[tier(domain=2 if left == 6 else 4), tier()], node=4)
    free = windows(
        table,
        place(machine, table),
        pass_s=np.array([10.0]),
        inside_s={"tp": np.array([4.0])},
        transfer_s=np.array([0.0]),
    )
    assert free.tail[0] == left


def test_muon_takes_a_rank_s_rows_as_a_matrix():
    """64 / 4 rows by 96 columns for queries, keys and values, and so on: 1/8 of all."""
    one = run(optimizer="muon", **SUMMA).layers[0].optimizer
    m_n = [(16, 96), (16, 32), (16, 128), (64, 32)]
    flops = sum(5 * (4 * min(p) ** 2 * max(p) + 2 * min(p) ** 3) for p in m_n)
    whole = run(optimizer="muon").layers[0].optimizer
    ratio = flops / sum(
        5 * (4 * min(p) ** 2 * max(p) + 2 * min(p) ** 3)
        for p in ((64, 192), (64, 64), (64, 256), (256, 64))
    )
    assert one.matrix_flops == pytest.approx(whole.matrix_flops * ratio)


def test_the_host_launches_every_panel():
    """A second each: 8 more for every product of 4 layers and the head, backward twice as many."""
    slow, slower = (
        run(software={"host_launch": 1}, summa_panels=panels, **SUMMA).time_s for panels in (8, 16)
    )
    assert slower["forward"] - slow["forward"] == pytest.approx(8 * 17)
    assert slower["backward"] - slow["backward"] == pytest.approx(2 * 8 * 17)


def test_buffers_of_gradients_hold_a_rank_s_rows():
    """A quarter of one of each shape of a layer, and of the head, in 2 bytes."""
    without, with_buffers = (
        run(software={"weight_gradient_buffers": flag}, **SUMMA).memory_bytes.buffers
        for flag in (False, True)
    )
    shapes = 64 * 96 + 64 * 32 + 64 * 128 + 256 * 32 + 64 * 500
    assert with_buffers - without == shapes / 4 * 2


def test_frozen_weights_need_no_panels_of_their_gradients():
    """Nothing is broadcast or reduced for them; inputs are not kept."""
    part = run(operations=True, frozen=("mlp",), **SUMMA)
    rows = [r for r in part.operations or () if r.operation == "mlp.up"]
    assert {r.phase for r in rows} == {"forward", "input_grad"}
    assert part.layers[0].gradient_bytes < run(**SUMMA).layers[0].gradient_bytes


def test_forward_only_has_no_backward_collectives():
    """Prefill: broadcasts of the forward pass alone."""
    result = run(training=False, operations=True, **SUMMA)
    assert {r.phase for r in result.operations or ()} == {"forward"}
    assert result.layers[0].tp_backward.volume_bytes == 0


@each_row("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe"])
def test_the_simulation_agrees(schedule):
    """Closed form and event simulation take the same passes."""
    chunks = 2 if schedule == "interleaved" else 1
    columns = {"pp": 2, "gbs": 16, "mbs": 2, "dp": 1, "schedule": schedule, "vpp": chunks}
    step = trace(samples.model(layer(count=8)), system(), SUMMA | columns | {"stack": stack()})
    line = step.timeline
    assert line.step_s == pytest.approx(line.estimated_s, rel=0.02)


def test_peers_list_both_groups():
    """Ranks 0 and 1 share rows of weights' columns; 0, 2, 4 and 6 the sequence."""
    model, machine = samples.model(), system()
    peers = peers_of(model, machine, Strategy(dp=2, gbs=4, **SUMMA))
    assert peers.group("tp", 0) == [0, 1]
    assert peers.group("tp2", 0) == [0, 2, 4, 6]
    assert peers.group("dp", 0) == [0, 8]
    assert peers.of(3).tp2_peers == (1, 5, 7)
