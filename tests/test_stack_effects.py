"""What fields of a stack do to times, by hand: flash kernels, launches, graphs, waits, experts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
import test_shape_tables as tables
from profiles import examples
from rows import each_row
from samples import column, run
from shardwise import Estimate, InputError, System
from shardwise.config.enums import AttentionKernel, CpExchange
from shardwise.config.strategy_table import Table
from shardwise.config.system import FusedAttention
from shardwise.cost.attention import head_efficiency
from shardwise.cost.kernels import KernelRates
from shardwise.cost.layer_cost import Launched
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import Machine, OperationCost, operation_cost, with_host
from shardwise.estimator import estimate_many
from shardwise.ops.attention import core_calls
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import FlashAttention, Matmul, MemoryBound, Operation, Phase
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

fast = examples(60)
EXPERTS = samples.deepseek()
MOE = EXPERTS.layers[1]
OTHERS = {"flash2": 1.5, "flash1": 4}
PLAIN: dict[str, Any] = {"dp": 1, "mbs": 2, "gbs": 2}


def machine(*stacks: dict[str, Any], system: System | None = None, **columns: Any) -> Machine:
    """The sample's, one row for each stack."""
    described = system or samples.system()
    given = PLAIN | columns | {"stack": [samples.stack(**fields) for fields in stacks]}
    table = Table.of(EXPERTS, given)
    return Machine.of(described, table)


def costs(*stacks: dict[str, Any], **columns: Any) -> dict[str, OperationCost]:
    """Operations of a layer of experts, one row for each stack."""
    system = columns.pop("system", samples.system())
    given = PLAIN | columns | {"stack": [samples.stack(**fields) for fields in stacks]}
    table = Table.of(EXPERTS, given)
    on = Machine.of(system, table)
    times = CollectiveTimes(Links.of(system, table, place(system, table)))
    work = rank_work(table)
    return {o.name: operation_cost(o, on, times) for o in layer_operations(EXPERTS, MOE, work)}


def core(*stacks: dict[str, Any], attention: dict[str, Any]) -> list[float]:
    """Forward times of an attention kernel of equal widths, by stack."""
    system = samples.system(attention=attention)
    found = KernelRates.of(
        system,
        Table.of(samples.model(), PLAIN | {"stack": [samples.stack(**f) for f in stacks]}),
    )
    operations = {o.name: o for o in layer_operations(*_layer(stacks))}
    kernel = next(k for k in operations["attention.core"].kernels if isinstance(k, FlashAttention))
    times: list[float] = found.times(kernel)[0].tolist()
    return times


def _layer(stacks: Any) -> Any:
    model = samples.model()
    table = Table.of(model, PLAIN | {"stack": [samples.stack(**f) for f in stacks]})
    return model, model.layers[0], rank_work(table)


def test_other_flash_kernels_take_so_many_times_as_long() -> None:
    """Of compute; one that the accelerator does not name is as fast as the best."""
    kernels = [{"attention_kernel": name} for name in ("best", "flash2", "flash1")]
    best, second, first = core(*kernels, attention={"other_kernels": OTHERS})
    assert (second / best, first / best) == pytest.approx((1.5, 4))
    best, second, first = core(*kernels, attention={"other_kernels": {"flash1": 3}})
    assert (second / best, first / best) == pytest.approx((1, 3))
    twice = [f | {"attention_time_factor": 2} for f in kernels]
    slower = core(*twice, attention={"other_kernels": OTHERS})
    assert np.array(slower) / best == pytest.approx([2, 3, 8])


def test_a_table_of_attention_is_that_of_the_best_kernel() -> None:
    """By its shares another one takes its factor more."""
    described = tables.machine(attention=samples.system().to_dict()["accelerator"]["attention"])
    chip = described.accelerator
    assert chip.attention is not None
    named = {AttentionKernel(name): factor for name, factor in OTHERS.items()}
    others = chip.attention.model_copy(update={"other_kernels": named})
    described = described.model_copy(
        update={"accelerator": chip.model_copy(update={"attention": others})}
    )
    best, first = (
        tables.rates(described, "bf16", attention_kernel=name).times(tables.flash())[0][0]
        for name in ("best", "flash1")
    )
    assert first == pytest.approx(4 * best)


def test_every_system_has_its_own_factor_of_other_flash_kernels() -> None:
    """Rows on systems that differ in it are as each alone."""
    system = samples.system().to_dict()
    systems = []
    for factor in (1.5, 4.0):
        attention = system["accelerator"]["attention"] | {"other_kernels": {"flash1": factor}}
        chip = system["accelerator"] | {"attention": attention}
        systems.append(System.validated(system | {"accelerator": chip}))
    strategy = PLAIN | {"stack": samples.stack(attention_kernel="flash1")}
    together = estimate_many(samples.model(), systems, strategy).step_time_s
    alone = [estimate_many(samples.model(), one, strategy).step_time_s[0] for one in systems]
    assert together.tolist() == pytest.approx(alone)
    assert together[0] < together[1]


@each_row("kernel", ["flash5", "Best", "", "stack"])
def test_an_unknown_attention_kernel_is_refused(kernel: str) -> None:
    """With those that are known; a stack does something of its own."""
    with pytest.raises(InputError, match=r"attention_kernel: .*(best|flash2|allowed)"):
        samples.stack(attention_kernel=kernel)


def test_heads_with_narrower_values_have_shares_of_their_own() -> None:
    """By the width of queries; where there are none, and for equal or wider values, the usual."""
    fields = {"tile": 128, "longest_weight": 0, "memory_efficiency": 1, "launch": 0}
    plain = FusedAttention.validated(
        fields | {"efficiency": {64: 0.4, 256: 0.8}, "backward_ratio": 3}
    )
    latent = plain.model_copy(update={"latent_efficiency": {192: 0.7}})
    assert head_efficiency(latent, 192, 128) == head_efficiency(latent, 96, 64) == 0.7
    assert head_efficiency(plain, 128, 64) == pytest.approx(0.6)
    for kernel in (plain, latent):
        for values in (None, 128, 256):
            assert head_efficiency(kernel, 128, values) == pytest.approx(0.6)


def test_latent_shares_decide_the_time_of_latent_attention() -> None:
    """Twice the share is half the compute time, both laid out as wide as the queries."""
    sizes: dict[str, Any] = {"sequences": 1, "seq_len": 4096, "heads": 8, "head_dim": 192}
    wide, latent = {192: 0.3}, {192: 0.6}
    usual = samples.flash(**sizes, v_head_dim=128, efficiency=wide)
    own = samples.flash(**sizes, v_head_dim=128, efficiency=wide, latent_efficiency=latent)
    equal = samples.flash(**sizes, v_head_dim=192, efficiency=wide, latent_efficiency=latent)
    assert usual == equal
    assert own == pytest.approx(usual / 2)


times = st.one_of(st.just(0.0), st.floats(1e-9, 10))


def test_kernels_and_launches_join_by_hand() -> None:
    """(1 + 1)^(1/4) and (2^4 + 1)^(1/4); communication is on the accelerator's side, waits add."""
    rows = with_host(column(1, 2), column(1, 1))
    assert rows.tolist() == pytest.approx([2**0.25, 17**0.25])
    one = Launched(kernels_s=column(1), host_s=column(2), waits_s=column(0.5))
    assert one.compute_s(0.0)[0] == pytest.approx(17**0.25 + 0.5)
    assert one.compute_s(1.0)[0] == pytest.approx(32**0.25 - 1 + 0.5)


@fast
@given(times, times, times, times)
def test_the_host_never_shortens_anything(
    kernels: float, host: float, exposed: float, more: float
) -> None:
    """Between the longer of both and their sum; more of any takes no less, nor does waiting.

    Exposed communication hides the host, but no pass with more of it is shorter.
    """

    def time(kernels: float, host: float, exposed: float, wait: float = 0.0) -> float:
        one = Launched(kernels_s=column(kernels), host_s=column(host), waits_s=column(wait))
        return float(one.compute_s(exposed)[0]) + exposed

    whole = time(kernels, host, exposed)
    slack = 1e-9 * (kernels + host + exposed + more)
    assert max(kernels + exposed, host) - slack <= whole <= kernels + exposed + host + slack
    for longer in (
        time(kernels + more, host, exposed),
        time(kernels, host + more, exposed),
        time(kernels, host, exposed + more),
        time(kernels, host, exposed, more),
    ):
        assert longer >= whole - slack


LAUNCH, CALL = 1e-3, 2e-3


def test_graphs_leave_so_much_of_launches_and_waits() -> None:
    """null: all. Partial: 0.3, but all of experts' kernels and waits. Full: a tenth, no wait."""
    graphs = [{"cuda_graphs": name} for name in ("none", "partial", "full")]
    software = {"host_launch": LAUNCH, "host_call": CALL, "expert_wait": 0.5}
    found = machine(*(software | g for g in graphs))
    operations = {name: replace(one, machine=found) for name, one in costs({}).items()}
    alone = LAUNCH + CALL
    for name, left in (("attention.out", 0.3), ("moe.router", 0.3), ("attention.norm", 0.3)):
        host_s = operations[name].launching_s(Phase.FORWARD)
        assert host_s.tolist() == pytest.approx([alone, left * alone, alone / 10]), name
    routed = operations["moe.combine"].launching_s(Phase.FORWARD)
    assert routed.tolist() == pytest.approx([routed[0], routed[0], routed[0] / 10])
    assert found.expert_wait_s.tolist() == [0.5, 0.5, 0]


def test_calls_of_the_host_by_hand() -> None:
    """One for each operation and direction, half of one for each collective.

    Top k 4, dispatch 12, combine 6, grouped products 2, latent attention's rope 3; where one
    library call sorts and sends tokens, or there is nothing to count, dispatch 5 and combine 3.
    """
    counted = {"moe.top_k": 4, "moe.up": 2, "moe.down": 2, "attention.rope": 3}
    for columns, dispatch, combine in (
        ({}, 12, 6),
        ({"expert_capacity": 1.0}, 5, 3),
        ({"ep": 2, "dp": 2, "dispatcher": "deepep"}, 5, 3),
    ):
        found = costs({}, **columns)
        moved = {"moe.dispatch": dispatch, "moe.combine": combine}
        for name, cost in found.items():
            sent = {
                phase: sum(c.phase is phase and c.bytes[0] > 0 for c in cost.operation.collectives)
                for phase in Phase
            }
            one = (counted | moved).get(name, 1)
            runs = {phase: cost.launches(phase)[0] > 0 for phase in Phase}
            forward, back = one * runs[Phase.FORWARD], one * runs[Phase.INPUT_GRAD]
            assert cost.calls(Phase.FORWARD)[0] == forward + sent[Phase.FORWARD] / 2, name
            assert cost.calls(Phase.INPUT_GRAD)[0] == back + sent[Phase.INPUT_GRAD] / 2, name
            alone = runs[Phase.WEIGHT_GRAD] and not runs[Phase.INPUT_GRAD]
            assert cost.calls(Phase.WEIGHT_GRAD)[0] == one * alone + sent[Phase.WEIGHT_GRAD] / 2


def test_calls_of_attention_across_ranks_by_hand() -> None:
    """4 for each of 3 chunks in a ring, or of two where all are gathered; none to swap heads."""
    for cp, exchange, calls in (
        (1, "ring", 1),
        (3, "ring", 13),
        (3, "all_gather", 9),
        (3, "all_to_all", 1),
    ):
        work = samples.rank_work(cp=cp, cp_exchange=CpExchange(exchange).code)
        assert core_calls(work).tolist() == [calls]


def test_the_host_launches_what_runs_again_too() -> None:
    """Where it bounds the pass, recompute takes as long as the layers' forward, with their waits.

    All but the calls of embedding (one), final norm, head and loss.
    """
    software = {"host_call": 1.0, "expert_wait": 0.25}
    plain, again = (run(EXPERTS, software, recompute=which) for which in ("none", "full"))
    assert again.time_s["backward"] == pytest.approx(plain.time_s["backward"], rel=1e-5)
    assert again.time_s["recompute"] == pytest.approx(plain.time_s["forward"] - 4, rel=1e-5)


def passes(
    model: Any = EXPERTS, software: dict[str, Any] | None = None, **columns: Any
) -> Estimate:
    return run(model, software, **columns)


def by_hand(names: dict[str, OperationCost], on: Machine, *phases: Phase, waits: float) -> float:
    """Time of a direction of one layer: kernels joined with launches and waits."""
    kernels = sum(float(c.kernel_s(phase)[0]) for c in names.values() for phase in phases)
    left = 0.1 if on.captures_step[0] else 0.3 if on.captured[0] else 1.0
    host = sum(
        float(c.launches(phase)[0])
        * float(on.host_launch_s[0])
        * (1.0 if c.operation.routed and left == 0.3 else left)
        for c in names.values()
        for phase in phases
    )
    return float(with_host(column(kernels), column(host))[0]) + waits


@each_row("graphs", ["none", "partial", "full"])
@each_row("capacity", [None, 1.0])
def test_a_layer_of_experts_joined_by_hand(graphs: str, capacity: float | None) -> None:
    """It waits once, forward, unless tokens are dropped or all is in one graph."""
    software = {"host_launch": 2e-6, "expert_wait": 1e-4, "cuda_graphs": graphs}
    columns = {"expert_capacity": capacity} if capacity else {}
    names, on = costs(software, **columns), machine(software, **columns)
    waits = 0.0 if graphs == "full" or capacity else 1e-4
    only = EXPERTS.model_copy(update={"layers": (MOE.model_copy(update={"count": 1}),)})
    none = EXPERTS.model_copy(update={"layers": (MOE.model_copy(update={"count": 2}),)})
    two, one = (passes(m, software, **columns) for m in (none, only))
    for part, phases in (
        ("forward", (Phase.FORWARD,)),
        ("backward", (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)),
    ):
        expected = by_hand(names, on, *phases, waits=waits if part == "forward" else 0.0)
        assert two.time_s[part] - one.time_s[part] == pytest.approx(expected, rel=1e-9)


def test_only_layers_with_experts_wait() -> None:
    """A dense model takes as long whatever the wait."""
    dense = [run(samples.llama(), {"expert_wait": wait}).step_time_s for wait in (0, 1)]
    sparse = [run(EXPERTS, {"expert_wait": wait}).step_time_s for wait in (0, 1)]
    assert dense[0] == dense[1]
    assert sparse[1] - sparse[0] == pytest.approx(3)  # three layers, forward


def test_experts_one_by_one_are_launched_one_by_one() -> None:
    """8 experts: 8 kernels of each product in each direction, of a recipe's quantisers too."""
    system = samples.system(matrix={"bf16": 1e14, "fp16": 1e14, "fp32": 5e13, "fp8": 2e14})
    both = {"fused": {}, "loop": {"grouped_products": "loop"}}
    for recipe in ({}, {"quantization": "fp8_tensor"}):
        found = costs(*both.values(), system=system, **recipe)
        for name in ("moe.up", "moe.down"):
            for phase in Phase:
                together, apart = found[name].launches(phase)
                kernels = [k for k in found[name].kernels if k.kernel.phase is phase]
                running = [k.kernel for k in kernels if k.time_s[0] > 0]
                casts = sum(isinstance(k, MemoryBound) for k in running)  # of three kernels each
                assert together == len(running) + 2 * casts > 0
                assert apart == 8 * together
        quantisers = [k for k in found["moe.up"].kernels if isinstance(k.kernel, MemoryBound)]
        assert bool(quantisers) == bool(recipe)
        for name in ("moe.shared_up", "moe.activation", "moe.dispatch", "attention.out"):
            for phase in Phase:
                together, apart = found[name].launches(phase)
                assert together == apart


def test_products_of_experts_take_so_many_times_as_long() -> None:
    """Their compute, and that of no other product."""
    found = costs({}, {"grouped_time_factor": 3})
    for name, cost in found.items():
        for timed in cost.kernels:
            plain, slower = timed.compute_s.tolist()
            grouped = isinstance(timed.kernel, Matmul) and timed.kernel.grouped
            assert slower == pytest.approx(plain * (3 if grouped else 1)), name
    assert any(cost.operation.expert for cost in found.values())


def test_a_table_of_plain_products_is_no_table_of_grouped_ones() -> None:
    """By it experts take the factor more; by a table of their own, what that says."""
    kernel = tables.matmul(500, 500, 500, batch=8)
    own = {"sizes": tables.GROUPED, "rows": {"any": [[8, 500, 500, 500, 0.25]]}, "fallback": 0.2}
    for more, factor in (({}, 3), ({"grouped_table": {"bf16": own}}, 1)):
        found = [
            tables.rates(tables.machine(**more), "bf16", grouped_time_factor=slower)
            for slower in (1, 3)
        ]
        plain, slower = (rates.times(replace(kernel, grouped=True))[0][0] for rates in found)
        assert slower == pytest.approx(factor * plain)
        assert found[0].times(kernel)[0] == found[1].times(kernel)[0]


def test_sorting_moves_so_many_more_bytes() -> None:
    """Tokens by expert and back, in both directions; beside the factor of all other kernels."""
    usual = {"memory_traffic_factor": 2}
    found = costs({}, {"permute_traffic_factor": 3}, usual | {"permute_traffic_factor": 3})
    sorting = 0
    for cost in found.values():
        for timed in cost.kernels:
            if not isinstance(timed.kernel, MemoryBound):
                continue
            moved = timed.kernel.bytes[0] / 1e12
            sorts = timed.kernel.kind.startswith("permute")
            sorting += sorts
            more = 3 if sorts else 1
            assert timed.memory_s.tolist() == pytest.approx([moved, more * moved, 2 * more * moved])
    assert sorting > 0


def test_only_dispatch_reports_waits_of_an_operation() -> None:
    """One, none where tokens beyond a capacity are dropped."""
    for capacity, waits in ((0, 1), (1.25, 0)):
        work = samples.rank_work(capacity=capacity)
        found: list[Operation] = layer_operations(EXPERTS, MOE, work)
        told = {o.name: o.host_waits.tolist() for o in found if o.host_waits is not None}
        assert told == {"moe.dispatch": [waits]}
