"""What holds for models of any pattern of layers: rows, parts of a step, faster machines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from described_layers import model
from profiles import examples
from shardwise import Model, System, estimate, estimate_many, search

pytestmark = pytest.mark.any_software

HEADS = {"heads": 8, "kv_heads": 4, "head_dim": 64}
MAMBA = {"kind": "mamba2", "heads": 16, "head_dim": 64, "groups": 4, "state": 64, "conv": 4}
DELTA = {"key_heads": 4, "value_heads": 8, "key_dim": 64, "value_dim": 128, "conv": 4}
MLP = {"ffn": 1024, "activation": "swiglu"}
EXPERTS = {"experts": 8, "top_k": 2, "ffn": 256, "activation": "relu2", "shared_ffn": 512}
GROUPS: dict[str, dict[str, Any]] = {
    "*": {"attention": HEADS | {"rotary_dim": 0}},
    "-": {"mlp": MLP},
    "E": {"moe": EXPERTS},
    "M": {"mixer": MAMBA},
    "S": {"mixer": {"kind": "mamba1", "width": 1024, "state": 16, "rank": 32, "conv": 4}},
    "D": {"mixer": DELTA | {"kind": "gated_delta"}, "moe": EXPERTS},
    "K": {"mixer": {"kind": "kimi_delta", "heads": 8, "head_dim": 64, "conv": 4}, "mlp": MLP},
    "L": {"mixer": {"kind": "lightning", "heads": 8, "head_dim": 64}, "moe": EXPERTS},
    "C": {"mixer": {"kind": "short_conv", "conv": 3}, "mlp": MLP},
    "H": {"attention": HEADS, "mixer": MAMBA, "mlp": MLP},
}
H100 = System.load("h100-sxm")


@st.composite
def hybrids(draw: st.DrawFn) -> Model:
    """Eight layers in any order."""
    pattern = draw(st.text(sorted(GROUPS), min_size=8, max_size=8))
    layers = [{"symbol": symbol} | GROUPS[symbol] for symbol in dict.fromkeys(pattern)]
    modules = {"mtp": 1, "mtp_pattern": pattern[-2:]} if draw(st.booleans()) else {}
    return model(512, 4096, *layers, pattern=pattern, seq_len=1024, **modules)


@st.composite
def ways(draw: st.DrawFn) -> dict[str, Any]:
    """Legal strategies of all of them on 8 GPUs."""
    tp, cp = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]))
    pp = draw(st.sampled_from([1, 2]))
    return {
        "gpus": 8,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "gbs": 16,
        "recompute": draw(st.sampled_from(["none", "full", "selective"])),
        "zero": draw(st.sampled_from([0, 1])),
        "sequence_parallel": draw(st.booleans()) and tp > 1,
        "lora_rank": draw(st.sampled_from([None, 8])),
    }


@examples(4)
@given(hybrids(), st.lists(ways(), min_size=2, max_size=3))
def test_a_row_is_the_estimate_of_its_strategy(one: Model, rows: list[dict[str, Any]]) -> None:
    """Bit for bit, and the parts of its time add up."""
    table = estimate_many(one, H100, rows)
    for place, row in enumerate(rows):
        alone = estimate(one, H100, row)
        assert table.step_time_s[place] == alone.step_time_s
        assert table.memory_total_bytes[place] == alone.memory_bytes.total
        assert sum(alone.time_s.values()) == pytest.approx(alone.step_time_s, rel=1e-9)


@examples(4)
@given(hybrids(), ways())
def test_a_faster_machine_is_never_slower(one: Model, row: dict[str, Any]) -> None:
    """With twice the bandwidth of the memory, or of the links."""
    chip = H100.accelerator
    memory = chip.memory[0].model_copy(update={"bandwidth": 2 * chip.memory[0].bandwidth})
    wider = chip.model_copy(update={"memory": (memory, *chip.memory[1:])})
    links = tuple(t.model_copy(update={"bandwidth": 2 * t.bandwidth}) for t in H100.network)
    usual = estimate(one, H100, row).step_time_s
    for change in ({"accelerator": wider}, {"network": links}):
        assert estimate(one, H100.model_copy(update=change), row).step_time_s <= usual


def halves() -> Model:
    """Eight slow layers and then eight fast ones."""
    layers = [{"symbol": symbol} | GROUPS[symbol] for symbol in "LM"]
    return model(512, 4096, *layers, pattern="LLLLLLLLMMMMMMMM", seq_len=1024)


UNLIKE = {"gpus": 2, "pp": 2, "gbs": 16, "stack": "megatron-core-2025"}


def test_times_of_unlike_layers_count() -> None:
    """Fewer layers on the stage of the slow ones are faster, more are slower."""
    equal, fewer, more = (
        estimate(halves(), H100, UNLIKE | {"stage_layers": split}).step_time_s
        for split in ((8, 8), (6, 10), (10, 6))
    )
    assert fewer < equal < more


def test_a_search_balances_unlike_stages() -> None:
    """By time: no slower than a split that suits them better than equal counts."""
    (best, *_) = search(halves(), H100, tp=1, **UNLIKE).best
    row = UNLIKE | {"stage_layers": (6, 10)}
    assert best.step_time_s <= estimate(halves(), H100, row).step_time_s
