"""Parts of a step and the figures of an estimate, by hand on the sample system.

GPT sample, micro-batches of 2 x 32 tokens in bf16: 64 x 64 activations of 8192 bytes. Links of
100 GB/s within 8 accelerators, of 10 GB/s beyond, without latency.
"""

import pytest

import samples
from rows import each_row
from samples import run
from shardwise import InputError, System, estimate
from shardwise.analysis.results import Estimate

pytestmark = pytest.mark.any_software

LAYER = 12 * 64**2 + 13 * 64
WHOLE = 4 * LAYER + 2 * 64 + (1000 + 32) * 64
HOP = 8192 / 100e9


def busy(result: Estimate) -> float:
    return sum(result.time_s[part] for part in ("forward", "backward", "recompute", "tp_comm"))


def embedding_passes(result: Estimate) -> tuple[float, float]:
    """Forward and backward of the embedding."""
    rows = [row for row in result.operations or () if row.part == "embedding"]
    forward = sum(row.time_s for row in rows if row.phase == "forward")
    return forward, sum(row.time_s for row in rows if row.phase != "forward")


def test_one_accelerator_only_computes() -> None:
    """No exchange, no bubble: forward, backward and the optimizer are the step."""
    result = run(gbs=8)
    parts = {part for part, time in result.time_s.items() if time > 0}
    assert parts == {"forward", "backward", "optimizer"}
    assert busy(result) == pytest.approx(4 * result.stages[0].micro_batch_s)
    # 24 bytes of state, 4 of gradient, 2 of weight; 1.5 sweeps over gradients; at 1 TB/s.
    assert result.time_s["optimizer"] == pytest.approx(WHOLE * (30 + 6) / 1e12)
    assert all(comm.total == comm.exposed == 0 for comm in result.comm_s.values())


@each_row("recompute", ["none", "full"])
def test_bubble_and_messages_of_a_pipeline(recompute: str) -> None:
    """Four stages, 8 micro-batches, the last stage slowest: only activations come in there, 8.

    Before its first pass and after its last one, one micro-batch passes the others, where 2
    activations and 3 gradients come in. A message lies between stages 16 times.
    """
    result = run(pp=4, gbs=16, recompute=recompute)
    times = [stage.micro_batch_s for stage in result.stages]
    assert times[1] == times[2] < times[0] < times[3]
    assert busy(result) == pytest.approx(8 * times[3])
    assert result.time_s["bubble"] == pytest.approx(sum(times[:3]) + 5 * HOP)
    assert result.time_s["pp_comm"] == pytest.approx(8 * HOP)
    assert result.comm_s["pp"].total == pytest.approx(16 * HOP)


def test_a_stage_in_the_middle_meets_two_messages() -> None:
    """Two layers between two single ones: an activation and a gradient per micro-batch come in.

    The middle waits for a forward of the first stage; for both passes of the last one, beside its
    second forward; at the end for the message and the backward of the first stage. Its own last
    backward but one takes longer than both passes of the last stage.
    """
    columns = {"pp": 3, "gbs": 16, "first_stage_layers": 1, "last_stage_layers": 1}
    result = run(samples.model(vocab=1, final_norm=False), **columns)
    first, middle, last = (stage.micro_batch_s for stage in result.stages)
    forward, backward = (result.time_s[name] / 8 for name in ("forward", "backward"))
    assert busy(result) == pytest.approx(8 * middle)
    assert forward < last < backward
    assert result.time_s["bubble"] == pytest.approx(first + HOP + last - forward)
    assert result.time_s["pp_comm"] == pytest.approx(2 * 8 * HOP)


def test_the_critical_stage_counts_its_own_messages() -> None:
    """The first of 4 stages has most to do by less than a message; those in the middle meet two.

    So the pace is the middle's, t + 2 hops, and one way of the longest ones leads over the third
    stage: a forward of the first and of the second before it; all its 8 turns; two turns of the
    last stage, at either end, beside one of its forwards and one of its backwards; a backward of
    the second and of the first. Beside those of its turns 3 messages come in before, after and
    between. Of all this the first stage works 8 turns and waits for 8 gradients.
    """
    result = run(samples.model(vocab=1, final_norm=False), pp=4, gbs=16)
    first, middle, _, last = (stage.micro_batch_s for stage in result.stages)
    assert last < first < last + HOP < middle + 2 * HOP
    step = 8 * (middle + 2 * HOP) + first + 2 * last + 3 * HOP
    assert result.time_s["pp_comm"] == pytest.approx(8 * HOP)
    assert busy(result) == pytest.approx(8 * first)
    assert result.time_s["bubble"] == pytest.approx(step - 8 * (first + HOP))


def test_embedding_may_be_slower_than_the_head() -> None:
    """With one word and no final norm the first stage decides, and the last waits.

    The first does its second forward while its first micro-batch passes the last stage, and its
    last backward but one while its last micro-batch does. So it waits for two turns of the last
    stage, less one pass of each kind, and for the message to the last stage that precedes its
    first backward; the one that precedes the last lies beside a message of its own. Gradients
    alone come in, 8 of them.
    """
    model = samples.model(vocab=1, final_norm=False)
    result = run(model, pp=2, gbs=16)
    first, last = (stage.micro_batch_s for stage in result.stages)
    assert first > last
    assert busy(result) == pytest.approx(8 * first)
    assert max(result.time_s[name] / 8 for name in ("forward", "backward")) < last
    assert result.time_s["bubble"] == pytest.approx(2 * last - first + HOP)
    assert result.time_s["pp_comm"] == pytest.approx(8 * HOP)


def test_host_and_kernels_join() -> None:
    """Forward of one micro-batch: the longer of kernels and launches, 2^(1/4) where they meet."""
    kernels = run(model := samples.model(position="alibi")).operations
    assert kernels is None
    rows = run(model, operations=True).operations or ()
    ahead = [row for row in rows if row.part == "layer" and row.phase == "forward"]
    layer = sum(row.time_s for row in ahead)
    launch = layer / len(ahead)
    slow = run(model, {"host_launch": launch}, operations=True)
    ends = [row for row in rows if row.part in ("embedding", "head") and row.phase == "forward"]
    parts = {"embedding": 0.0, "head": 0.0}
    for part in parts:
        own = [row.time_s for row in ends if row.part == part]
        parts[part] = (sum(own) ** 4 + (len(own) * launch) ** 4) ** 0.25
    expected = 4 * layer * 2**0.25 + sum(parts.values())
    assert slow.time_s["forward"] == pytest.approx(expected)


def test_attention_takes_its_ratio_longer_backward() -> None:
    """Five times forward, all of it compute, as only the kernel's own operation tells."""
    machine = samples.system(
        attention={"backward_ratio": 5},
        memory=[{"name": "hbm", "capacity": 1e12, "bandwidth": 1e30}],
    )
    rows = run(machine=machine, operations=True).operations or ()
    times = {row.phase: row.time_s for row in rows if row.kind == "attention"}
    # 16 heads of one tile of 128 queries, at most all 32 keys, 4 x 128 x 8 FLOPs each.
    assert times["forward"] == pytest.approx(16 * 32 * 4 * 128 * 8 / 100e12)
    assert times["input_grad"] == pytest.approx(5 * times["forward"])


def test_selective_recompute_repeats_products_and_softmax() -> None:
    """Unfused: two products, softmax and dropout of every layer, and nothing else."""
    plain = run(software={"attention_kernel": "unfused"}, operations=True)
    ahead = [
        row
        for row in plain.operations or ()
        if row.operation in ("attention.core", "attention.softmax") and row.phase == "forward"
    ]
    assert len(ahead) == 4
    again = run(software={"attention_kernel": "unfused"}, recompute="selective").time_s["recompute"]
    assert again == pytest.approx(4 * sum(row.time_s for row in ahead))
    assert again > 0


def test_stage_with_most_weights_decides_the_update() -> None:
    """Untied without positions, the last: two layers, the words and the final norm."""
    layer = 2 * 64 + (8 + 2 + 2 + 8) * 8 * 64 + 3 * 64 * 192
    last = 2 * layer + 64_000 + 64
    result = run(samples.llama(), pp=2, dp=2, gbs=4, zero=0, dp_overlap=False)
    assert [stage.parameters for stage in result.stages] == [last - 64, last]
    assert result.time_s["optimizer"] == pytest.approx(last * 36e-12)
    assert result.time_s["dp_comm"] == pytest.approx(4 * last / 100e9)


def test_sharded_optimizer_updates_its_part() -> None:
    """30 bytes for each weight owned, a quarter; 6 bytes of sweeps for every weight held."""
    times = [run(dp=4, gbs=8, zero=zero).time_s["optimizer"] for zero in (0, 1)]
    assert times == pytest.approx([WHOLE * 36e-12, WHOLE * (30 / 4 + 6) * 1e-12])


def test_interleaving_shortens_the_bubble_and_adds_messages() -> None:
    """Two chunks: a chunk of filling, 3 messages per micro-batch, of which a quarter hides.

    Of 2 x 2 passes of a micro-batch on a stage one stands at an end of the model, where nothing
    comes in. The last stage is slowest. It waits for a pass of the first chunk of the first stage
    there and one back, with the embedding. If messages block, there is the message before that
    last pass, and the embedding's backward of the micro-batch before, which is in the way. If they
    travel beside compute, it waits for both messages of 3 ways there and back between the two
    stages: into the first chunk, at the start from it to the second, at the end likewise.
    """
    software = {"pp_hidden": 0.25}
    result = run(software=software, pp=2, vpp=2, gbs=16, operations=True)
    first, last = (stage.micro_batch_s for stage in result.stages)
    assert last > first
    forward, backward = embedding_passes(result)
    assert forward < HOP > backward
    chunk = (first - forward - backward) / 2 + forward + backward
    expected = chunk + 0.75 * (backward + HOP) + 0.25 * 6 * HOP
    assert result.time_s["bubble"] == pytest.approx(expected)
    assert result.comm_s["pp"].total == pytest.approx(2 * 2 * 8 * HOP)
    assert result.time_s["pp_comm"] == pytest.approx(0.75 * 3 * 8 * HOP)


def test_without_chunks_no_message_hides() -> None:
    """1F1B waits for each message before the pass that needs it, whatever the software."""
    for share in (0, 0.25, 1):
        plain = run(software={"pp_hidden": share}, pp=2, gbs=16)
        assert plain.time_s["pp_comm"] == pytest.approx(8 * HOP)
        assert plain.comm_s["pp"].total == pytest.approx(2 * 8 * HOP)


def test_messages_between_nodes_take_the_slow_links() -> None:
    """tp 8 fills a node, so the next stage is on another: 1/8 of the activation at 10 GB/s.

    One message of one micro-batch comes in to either of two stages.
    """
    split = run(tp=8, pp=2, sequence_parallel=True)
    assert split.time_s["pp_comm"] == pytest.approx(8192 / 8 / 10e9)
    whole = run(tp=8, pp=2, sequence_parallel=False)
    assert whole.time_s["pp_comm"] == pytest.approx(8192 / 10e9)


def test_scatter_gather_hands_over_a_part() -> None:
    """Half the activation to the next stage, and a gather of it among 2: another half.

    One message of one micro-batch comes in to either of two stages.
    """
    software = {"pp_scatter_gather": True}
    result = run(software=software, tp=2, pp=2, sequence_parallel=False)
    assert result.time_s["pp_comm"] == pytest.approx(HOP / 2 + HOP / 2)
    assert run(software=software, tp=2, sequence_parallel=False).time_s["pp_comm"] == 0
    split = run(software=software, tp=2, pp=2, sequence_parallel=True)
    assert split.time_s["pp_comm"] == pytest.approx(HOP / 2)
    # To another node: an eighth at 10 GB/s, and seven eighths gathered at 100 GB/s.
    far = run(software=software, tp=8, pp=2, sequence_parallel=False)
    assert far.time_s["pp_comm"] == pytest.approx(8192 / 8 / 10e9 + 7 / 8 * HOP)


@each_row(("zero", "passed"), [(0, 2 * 4), (1, 4 + 2)])
def test_replicas_reduce_gradients(zero: int, passed: float) -> None:
    """3/4 of an all-reduce of 4-byte gradients; of a scatter of them and a gather of weights."""
    result = run(dp=4, gbs=8, zero=zero, dp_overlap=False)
    assert result.time_s["dp_comm"] == pytest.approx(0.75 * passed * WHOLE / 100e9)
    assert result.comm_s["dp"].total == result.time_s["dp_comm"]


def test_replicas_of_two_nodes_share_their_links() -> None:
    """16 replicas: 15/16 of the gradients, twice, over 8 links of 10 GB/s at once."""
    result = run(dp=16, gbs=32, zero=0, dp_overlap=False)
    assert result.time_s["dp_comm"] == pytest.approx(2 * 15 / 16 * 4 * WHOLE / (8 * 10e9))


@each_row("zero", [0, 1])
def test_overlapped_communication_hides_behind_one_micro_batch(zero: int) -> None:
    """Half of the speed behind compute, a fifth of it the tail: hidden 0.8 x 0.5 of the window.

    Gradients hide behind the backward pass; gathered weights, if there are any, behind forward.
    """
    software = {"dp_contention": 0.5, "dp_tail": 0.2}
    slow = samples.system(network=[samples.tier(bandwidth=1e9)])
    result = run(software=software, machine=slow, dp=4, gbs=16, zero=zero)
    alone = 0.75 * (6 if zero else 8) * WHOLE / 1e9
    passes = {name: result.time_s[name] / 2 for name in ("forward", "backward")}  # 2 micro-batches
    window = passes["backward"] + (passes["forward"] if zero else 0)
    assert alone > window
    assert result.comm_s["dp"].total == pytest.approx(alone)
    assert result.time_s["dp_comm"] == pytest.approx(alone - 0.8 * 0.5 * window)
    again = run(software=software, machine=slow, dp=4, gbs=16, zero=zero, recompute="full")
    window += again.time_s["recompute"] / 2
    assert again.time_s["dp_comm"] == pytest.approx(alone - 0.8 * 0.5 * window)
    quick = samples.system(network=[samples.tier(bandwidth=1e15)])
    tail = run(software=software, machine=quick, dp=4, gbs=16, zero=zero)
    assert tail.time_s["dp_comm"] == pytest.approx(0.2 * alone / 1e6)


def test_interleaved_stages_hide_more_communication() -> None:
    """2 stages of 2 chunks: 2 x 1/2 + 1/2 backward passes instead of one."""
    software = {"dp_contention": 1, "dp_tail": 0}
    slow = samples.system(network=[samples.tier(bandwidth=1e7)])
    hidden = {}
    for vpp in (1, 2):
        result = run(software=software, machine=slow, pp=2, vpp=vpp, dp=2, gbs=16, zero=0)
        comm = result.comm_s["dp"]
        hidden[vpp] = comm.total - comm.exposed
    assert hidden[2] == pytest.approx(1.5 * hidden[1])


def test_a_single_stage_waits_for_none() -> None:
    """Not even for the rounding of its own sum."""
    for m in (1, 3, 7):
        assert run(gbs=2 * m).time_s["bubble"] == 0


def test_fixed_overhead_and_stragglers() -> None:
    """1 s per step, and 0.25 s and a tenth of the rest for each doubling of nodes: two for four."""
    software = {"step_overhead": 1, "step_wait": 0.25, "straggler_per_doubling": 0.1}
    result = run(software=software, dp=32, gbs=64)
    rest = sum(time for part, time in result.time_s.items() if part != "other")
    assert result.time_s["other"] == pytest.approx(1 + 2 * 0.25 + 0.2 * rest)
    assert run(software=software, dp=8, gbs=16).time_s["other"] == 1


def test_utilisation_by_hand() -> None:
    """Model FLOPs over the dense peak of the type; full recompute adds the layers' forward."""
    tokens, dense = 64, 6 * (4 * LAYER + 2 * 64 + 64_000)
    scores = 6 * 4 * 32 * 64
    core = 2 * 4 * 32 * 64
    counted = {"none": 0, "selective": core, "full": 4 * 24 * 64**2 + core}
    for recompute, again in counted.items():
        result = run(recompute=recompute)
        speed = tokens * (dense + scores) / result.step_time_s
        assert result.mfu == pytest.approx(speed / 100e12)
        assert result.model_tflops_per_gpu == pytest.approx(speed / 1e12)
        assert result.hfu - result.mfu == pytest.approx(
            tokens * again / result.step_time_s / 100e12
        )
    # Two stages run half of the layers again each, on twice the accelerators.
    staged = run(pp=2, gbs=8, recompute="full")
    done = 4 * tokens * counted["full"] / 2 / staged.step_time_s / 100e12
    assert staged.hfu - staged.mfu == pytest.approx(done)
    assert run(dtype="fp32").mfu == pytest.approx(
        tokens * (dense + scores) / run(dtype="fp32").step_time_s / 50e12
    )


def test_conventions_of_model_flops() -> None:
    """Attention half, whole or not at all; another word is refused, and the three are named."""
    dense, scores = 6 * (4 * LAYER + 2 * 64 + 64_000), 12 * 4 * 32 * 64
    given = {"dp": 1, "gbs": 1, "stack": samples.stack()}
    counted = {"causal": dense + scores / 2, "full-attention": dense + scores, "parameters": dense}
    for convention, flops in counted.items():
        result = estimate(samples.model(), samples.system(), given, flops_convention=convention)
        assert result.mfu == pytest.approx(32 * flops / result.step_time_s / 100e12)
        assert result.flops_convention == convention
    with pytest.raises(InputError, match=r"flops_convention.*causal, full-attention, parameters"):
        estimate(samples.model(), samples.system(), given, flops_convention="half")


def test_throughput_counts_all_replicas() -> None:
    """Sequences and tokens of the global batch over the step; per accelerator a share of them."""
    result = run(dp=2, tp=2, gbs=12)
    assert result.micro_batches == 3
    assert result.samples_per_s == pytest.approx(12 / result.step_time_s)
    assert result.tokens_per_s == pytest.approx(12 * 32 / result.step_time_s)
    assert result.tokens_per_s_per_gpu == pytest.approx(result.tokens_per_s / 4)


def test_cost_and_energy() -> None:
    """Dollars per hour and the node's power for the time of the step; null where not known."""
    nothing = run().cost
    assert nothing.usd_per_step is nothing.usd_per_billion_tokens is nothing.kwh_per_step is None
    price = {"usd_per_accelerator_hour": 3.6, "as_of": "2026-01-01", "source": "made up"}
    fields = samples.system().to_dict() | {"price": price, "board_power": 500}
    result = run(machine=System.validated(fields), dp=4, gbs=8)
    seconds, tokens = result.step_time_s, 8 * 32
    assert result.cost.usd_per_step == pytest.approx(4 * seconds * 0.001)
    assert result.cost.usd_per_billion_tokens == pytest.approx(4 * seconds * 0.001 / tokens * 1e9)
    assert result.cost.kwh_per_step == pytest.approx(4 * 500 * seconds / 3.6e6)
    node = System.validated(fields | {"node": {"accelerators": 8, "power": 8000}})
    assert run(machine=node, dp=4, gbs=8).cost.kwh_per_step == pytest.approx(
        4 * 1000 * seconds / 3.6e6
    )


def test_estimate_says_what_it_assumed() -> None:
    """Fields that nobody gave, with the value taken; those given are not among them."""
    result = run(tp=2, gbs=4)
    assert {"dp", "micro_batch_size", "global_batch_size", "tp", "stack"}.isdisjoint(result.assumed)
    assert result.assumed["gpus"] == 4 // 2
    assert result.assumed["sequence_parallel"] is True
    assert result.assumed["seq_len"] == 32
    assert result.assumed["schedule"] == "1f1b"
    assert result.strategy["gpus"] == 2
