"""Dispatchers of experts: which one a strategy has, and what each of them sends and stores."""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import GB, exchanges, moved, operations
from shardwise import Model, Strategy, System, estimate, search
from shardwise.config.enums import Dispatcher
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.ops.operation import Operation, Phase
from shardwise.report.tables.strategy_line import in_brief

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD
ROW = 64 * 2  # bytes of a token
WORDS = [*Dispatcher]
NETWORK = [samples.tier("inside", domain=4), samples.tier("between", bandwidth=10 * GB)]
SYSTEM = samples.system(node=4, network=NETWORK)
RUN = {"dp": 8, "ep": 8, "mbs": 1, "gbs": 8}


def mixture(top_k: int = 2) -> Model:
    """One kind of layer with 8 experts of 32, for tokens of width 64."""
    moe = {"experts": 8, "top_k": top_k, "ffn": 32, "activation": "swiglu"}
    layer = samples.layer(attention={"bias": "none"}) | {"moe": moe, "mlp": None}
    return samples.llama(layers=[layer])


def block(**work: Any) -> dict[str, Operation]:
    """Operations of 64 tokens with 128 copies."""
    return operations(mixture(), gathers_tokens=True, **work)


def test_all_gather_communicates_all_tokens() -> None:
    """64 tokens of each of 2 ep ranks are gathered, and 128 of each of 2 etp ranks; then back.

    Each with the choices of 8 experts, 5 bytes forward and 4 backward.
    """
    ops = block(ep=2, etp=2)

    def out(row: int) -> list[tuple[str, float]]:
        return [("all_to_all", 0), ("all_gather", 128 * row), ("all_gather", 256 * row)]

    def home(row: int) -> list[tuple[str, float]]:
        return [("reduce_scatter", 256 * row), ("reduce_scatter", 128 * row), ("all_to_all", 0)]

    def of(name: str, phase: Phase) -> list[tuple[str, float]]:
        found = ops[name].collectives
        return [(c.kind.value, float(c.bytes[0])) for c in found if c.phase is phase]

    assert of("moe.dispatch", FORWARD) == out(ROW + 5 * 8)
    assert of("moe.dispatch", INPUT_GRAD) == home(ROW + 4 * 8)
    assert of("moe.combine", FORWARD) == home(ROW)
    assert of("moe.combine", INPUT_GRAD) == out(ROW)
    axes = [c.axis for c in ops["moe.dispatch"].collectives if c.phase is FORWARD]
    assert axes == ["ep", "ep", "etp"]
    assert exchanges(block(ep=4)["moe.dispatch"], "etp") == []


def test_all_gather_kernels_and_buffers() -> None:
    """256 rows for the experts of a rank, read and written; back, added to 256 tokens."""
    ops = block(ep=2, etp=2)
    assert moved(ops["moe.combine"], FORWARD) == moved(ops["moe.combine"], INPUT_GRAD) == 512 * ROW
    assert moved(ops["moe.dispatch"], FORWARD) == 512 * ROW + 256 * 5 * 8
    assert moved(ops["moe.dispatch"], INPUT_GRAD) == 512 * ROW + 256 * 4 * 8
    eight = block(ep=8)  # 512 tokens, of which 128 rows are for one expert of a rank
    assert moved(eight["moe.combine"], INPUT_GRAD) == 256 * ROW
    assert moved(eight["moe.combine"], FORWARD) == (128 + 512) * ROW
    assert eight["moe.combine"].working_bytes.tolist() == [(512 + 128) * ROW]
    assert operations(mixture(), ep=8)["moe.combine"].working_bytes.tolist() == [256 * ROW]


def exposed_s(system: System, **fields: Any) -> float:
    """Expert communication of a step, of one forward and backward pass of 4 layers."""
    strategy = RUN | {"stack": samples.stack()} | fields
    return estimate(mixture(fields.pop("top_k", 2)), system, strategy).time_s["ep_comm"]


def test_all_gather_time_by_hand() -> None:
    """All tokens of 8 ranks pass each rank, four times a layer: 32 of 128 bytes from 7 others.

    With the choices of 8 experts, of 5 and 4 bytes, twice.
    """
    near = samples.system(node=8, network=[samples.tier("inside", domain=8)])
    layers = mixture().depth
    gathered = layers * 7 * 32 * (4 * ROW + (5 + 4) * 8) / 1e11
    assert exposed_s(near, dispatcher="all_gather") == pytest.approx(gathered)
    swapped = layers * 4 * 7 / 8 * 2 * 32 * ROW / 1e11
    assert exposed_s(near, dispatcher="all_to_all") == pytest.approx(swapped)


def test_without_choice_of_experts_sending_once_changes_nothing() -> None:
    """With one expert for each token."""
    strategies = [RUN | {"stack": samples.stack(), "dispatcher": word} for word in WORDS]
    times = [estimate(mixture(1), SYSTEM, one).time_s["ep_comm"] for one in strategies]
    assert times[0] == times[2] == times[3] > 0
    assert times[1] > times[0]


@each_row("word", WORDS)
def test_one_rank_of_experts_sends_nothing(word: Dispatcher) -> None:
    """Whatever the dispatcher: times and memory are equal to the last bit."""
    stack = samples.stack(flex_permute_traffic_factor=0.5)
    plain = {"dp": 8, "mbs": 1, "gbs": 8, "stack": stack}
    usual, one = (
        estimate(mixture(), SYSTEM, plain | chosen) for chosen in ({}, {"dispatcher": word})
    )
    assert usual.time_s == one.time_s
    assert usual.memory_bytes == one.memory_bytes


def test_flex_dispatchers_permute_as_their_stack_says() -> None:
    """Half of the traffic saves time of kernels, with deepep and hybridep only."""
    stacks = [samples.stack(), samples.stack(flex_permute_traffic_factor=0.5)]
    for word in WORDS:
        slow, fast = (
            estimate(mixture(), SYSTEM, RUN | {"stack": stack, "dispatcher": word}).time_s
            for stack in stacks
        )
        assert (fast["forward"] < slow["forward"]) == word.sends_once
        assert fast["ep_comm"] == slow["ep_comm"]


RESOLVED: dict[str, tuple[dict[str, Any], bool, str]] = {
    "stack": ({"stack": "megatron-bridge-fused", "ep": 8}, True, "hybridep"),
    "other stack": ({"stack": "megatron-core-2025", "ep": 8}, True, "all_to_all"),
    "tensors": ({"stack": "deepseek-2024", "etp": 2}, True, "deepep"),
    "named": ({"stack": "deepseek-2024", "ep": 8, "dispatcher": "all_gather"}, True, "all_gather"),
    "one rank": ({"stack": "megatron-bridge-fused"}, True, "all_to_all"),
    "no experts": ({"stack": "megatron-bridge-fused"}, False, "all_to_all"),
}


@each_row(("fields", "has_experts", "word"), RESOLVED.values())
def test_default_is_that_of_the_stack(fields: dict[str, Any], has_experts: bool, word: str) -> None:
    """Where tokens are sent at all; the same in a strategy and in columns."""
    model = mixture() if has_experts else samples.llama()
    run = {"dp": 8, "mbs": 1, "gbs": 8} | fields
    assert Strategy(**run).resolved(model).dispatcher == word
    assert Dispatcher.from_code(int(Table.of(model, run).dispatcher[0])) == word


def test_default_of_each_row_is_that_of_its_stack() -> None:
    """Also where only some rows name one."""
    stacks = ["megatron-core-2025", "megatron-bridge-fused", "megatron-bridge-fused"]
    columns = {"dp": 8, "ep": [8, 8, 1], "mbs": 1, "gbs": 8, "stack": stacks}

    def words(**more: Any) -> list[str]:
        codes = Table.of(mixture(), columns | more).dispatcher.tolist()
        return [Dispatcher.from_code(code) for code in codes]

    assert words() == ["all_to_all", "hybridep", "all_to_all"]
    assert words(dispatcher="deepep") == ["deepep"] * 3
    assert words(dispatcher=["all_gather", None, "deepep"]) == ["all_gather", "hybridep", "deepep"]


def test_bad_words_are_refused() -> None:
    """With what is allowed; and any but the default without experts."""
    with pytest.raises(InputError, match=r"dispatcher.*hybridep"):
        estimate(mixture(), SYSTEM, RUN | {"dispatcher": "nccl"})
    with pytest.raises(InputError, match=r"dispatcher.*no experts"):
        estimate(samples.llama(), SYSTEM, {"dp": 8, "gbs": 8, "dispatcher": "hybridep"})


def tried(**space: Any) -> set[tuple[int, str]]:
    """Ranks of experts and dispatchers of all strategies of a search."""
    fixed = {"scope": "full", "any_software": True, "tp": 1, "pp": 1, "mbs": 1, "etp": 1}
    fixed |= {"recompute": "none", "zero": 1, "dp_overlap": True, "fused_activation": False}
    fixed |= {"cp": 1, "placement": "tp-cp-dp-pp", "expert_overlap": False, "tp_overlap": "none"}
    fixed |= {f"offload_{part}": False for part in ("weights", "activations", "optimizer")}
    run = {"gpus": 8, "global_batch_size": 8, "space": fixed | space}
    found = search(mixture(), SYSTEM, **run, top=1000, all_variants=True)
    assert found.best
    return {(one.strategy["ep"], one.strategy["dispatcher"]) for one in found.best}


def test_search_tries_what_it_is_asked() -> None:
    """All in the full scope, or those that are named; one for layouts that send nothing."""
    every = {(1, "all_to_all"), *((8, word.value) for word in Dispatcher)}
    assert tried(ep=[1, 8]) == tried(ep=[1, 8], dispatcher="all") == every
    assert tried(ep=[1, 8], dispatcher="deepep") == {(1, "all_to_all"), (8, "deepep")}


def test_the_older_name_is_the_stack_with_hybridep() -> None:
    """To the last digit, in times and memory."""
    model, system = Model.load("qwen3-30b-a3b"), System.load("h100-sxm")
    run = {"gpus": 16, "ep": 16, "gbs": 32, "any_software": True}
    new = {"stack": "megatron-bridge-2025", "dispatcher": "hybridep"}
    one, other = (
        estimate(model, system, run | names) for names in ({"stack": "megatron-bridge-flex"}, new)
    )
    assert one.time_s == other.time_s
    assert one.memory_bytes == other.memory_bytes


def test_tables_name_the_dispatcher() -> None:
    """Where it sends tokens by another way than all-to-all, in a line of a table."""
    words = {}
    for word in WORDS:
        for ep in (1, 8):
            run = RUN | {"ep": ep, "stack": samples.stack(), "dispatcher": word}
            words[word.value, ep] = in_brief(estimate(mixture(), SYSTEM, run).strategy)
    assert {key for key, text in words.items() if key[0] in text} == {
        ("all_gather", 8),
        ("deepep", 8),
        ("hybridep", 8),
    }
