"""Low-rank adapters, by hand for the Llama sample."""

from typing import Any

import pytest

from rows import each_row
from samples import exchanges, flops, held, moved
from shardwise import estimate
from shardwise.ops.operation import Phase
from trained_samples import (
    FORWARD,
    INPUT_GRAD,
    INPUTS,
    OTHERS,
    SIZES,
    T,
    adapters,
    layer,
    mixture,
    run,
    subset,
)

pytestmark = pytest.mark.any_software

SMALL = {"gpus": 8, "gbs": 8, "zero": 1}


@each_row("rank", [1, 8])
@each_row("parts", [("attention", "mlp"), ("attention",), ("mlp",)])
def test_adapters_by_hand(rank: int, parts: tuple[str, ...]) -> None:
    """All weights and the adapters' in 2 bytes, gradients and state of these alone.

    Inputs of adapted products are kept, and that of attention's output by flash; each adapter
    keeps rank elements a token.
    """
    chosen = {part: part in parts for part in ("attention", "mlp")}
    extra = adapters(rank, **chosen)
    result = run(lora_rank=rank, lora_parts=parts)
    assert result.trainable_parameters == extra
    assert result.parameters == sum(SIZES.values())
    memory = result.memory_bytes
    assert memory.weights == 2 * (sum(SIZES.values()) + extra)
    assert (memory.gradients, memory.optimizer) == (4 * extra, 12 * extra)
    used = {n for n in INPUTS if chosen[n.split(".", maxsplit=1)[0]]} | {"attention.out"}
    between = 2 * T * rank * 2 * sum(chosen.values())
    assert memory.activations == 4 * (OTHERS + sum(INPUTS[name] for name in used) + between)


@each_row("alone", [False, True])
def test_frozen_weights_are_quantised_before_training(alone: bool) -> None:
    """Once for all steps; those that ZeRO 3 gathers anew after every gather."""
    fp8 = {"quantization": "fp8_tensor", "quantized_weights": alone}

    def optimizer(**fields: Any) -> float:
        return estimate("llama3-8b", "h100-sxm", SMALL | fields).time_s["optimizer"]

    assert optimizer(lora_rank=8, **fp8) == optimizer(lora_rank=8)
    assert optimizer(**fp8) > optimizer()
    assert optimizer(lora_rank=8, zero=3, **fp8) > optimizer(lora_rank=8, zero=3)


def test_products_of_an_adapter() -> None:
    """A and B each in three directions; both additions read two and write one."""
    ops = layer(subset(rank=4))
    down, up = ops["mlp.up.lora_a"], ops["mlp.up.lora_b"]
    for phase in Phase:
        assert flops(down, phase) == 2 * T * 64 * 4
        assert flops(up, phase) == 2 * T * 4 * 384
    assert (moved(up, FORWARD), moved(up, INPUT_GRAD)) == (3 * 2 * T * 384, 0)
    assert (moved(down, FORWARD), moved(down, INPUT_GRAD)) == (0, 3 * 2 * T * 64)
    assert (down.saved_bytes[0], up.saved_bytes[0]) == (0, 2 * T * 4)
    assert (held([down]), held([up])) == (4 * 64, 4 * 384)
    names = list(ops)
    assert names[names.index("mlp.up") + 1 :][:2] == ["mlp.up.lora_a", "mlp.up.lora_b"]
    assert up.reruns_with == up.dropped_with == ops["mlp.up"].reruns_with >= {"mlp"}
    assert not [name for name in ops if "lora" in name and "norm" in name]


def test_adapters_of_split_products() -> None:
    """Beside columns A is whole and B split; beside rows A is split and B whole (PEFT).

    Rank-wide exchanges as of the products: reduced in place, or scattered and gathered.
    """
    ops = layer(subset(rank=4), tp=2)
    sizes = {name: held([o]) for name, o in ops.items() if "lora" in name and "mlp" in name}
    assert sizes == {
        "mlp.up.lora_a": 4 * 64,
        "mlp.up.lora_b": 4 * 192,
        "mlp.down.lora_a": 4 * 96,
        "mlp.down.lora_b": 4 * 64,
    }
    assert exchanges(ops["mlp.up.lora_a"]) == exchanges(ops["mlp.down.lora_b"]) == []
    assert exchanges(ops["mlp.up.lora_b"]) == [("all_reduce", "input_grad", 2 * T * 4)]
    assert exchanges(ops["mlp.down.lora_a"]) == [("all_reduce", "forward", 2 * T * 4)]
    split = layer(subset(rank=4), tp=2, sequence_parallel=True)
    assert flops(split["mlp.up.lora_a"], FORWARD) == 2 * T / 2 * 64 * 4
    assert flops(split["mlp.up.lora_b"], FORWARD) == 2 * T * 4 * 192
    assert flops(split["mlp.down.lora_a"], FORWARD) == 2 * T * 96 * 4
    assert flops(split["mlp.down.lora_b"], FORWARD) == 2 * T / 2 * 4 * 64
    assert split["mlp.up.lora_b"].saved_bytes[0] == 2 * T / 2 * 4
    whole = layer(subset(rank=4), tp=2, sequence_parallel=True, regather=False)
    assert whole["mlp.up"].saved_bytes[0] == 2 * T / 2 * 64  # A reads a part of the sequence
    assert whole["mlp.up.lora_b"].saved_bytes[0] == 2 * T * 4
    kinds = [(kind, phase) for kind, phase, _ in exchanges(split["mlp.up.lora_b"])]
    assert kinds == [
        ("all_gather", "forward"),
        ("all_gather", "weight_grad"),
        ("reduce_scatter", "input_grad"),
    ]


def test_adapters_of_experts() -> None:
    """Each of 8 experts has its own; ranks that share one add up the rank-wide intermediate."""
    trained = subset(rank=2, parts=("experts",))
    ops = layer(trained, mixture())
    assert held([ops["moe.up.lora_a"], ops["moe.up.lora_b"]]) == 8 * 2 * (64 + 64)
    assert held([ops["moe.down.lora_a"], ops["moe.down.lora_b"]]) == 8 * 2 * (32 + 64)
    assert all(ops[name].expert for name in ops if "lora" in name)
    assert [name for name in ops if "lora" in name and "moe.shared" in name] == []
    split = layer(trained, mixture(), etp=2, tp=2)
    rows = 2 * T * 2  # top 2 of the tokens of both ranks
    assert exchanges(split["moe.up.lora_b"]) == [("all_reduce", "input_grad", rows * 2 * 2)]
    assert exchanges(split["moe.down.lora_a"]) == [("all_reduce", "forward", rows * 2 * 2)]
    shared = layer(subset(rank=2, parts=("mlp",)), mixture())
    assert {n.split(".lora")[0] for n in shared if "lora" in n} == {
        "moe.shared_up",
        "moe.shared_down",
    }


def test_operations_next_to_an_adapter_have_no_rank_in_them() -> None:
    """Everything is linear in the rank: at rank 0 what is left are frozen weights and additions."""
    one, two, whole = (run(lora_rank=1), run(lora_rank=2), run())
    for part in ("weights", "activations", "gradients", "optimizer"):
        at = [getattr(result.memory_bytes, part) for result in (one, two, whole)]
        left = {"gradients": 0, "optimizer": 0}.get(part, at[2])
        assert 2 * at[0] - at[1] == pytest.approx(left)
    work = [result.layers[0] for result in (one, two, whole)]
    for phase in ("forward", "input_grad", "weight_grad"):
        at = [getattr(layer, phase).matrix_flops for layer in work]
        assert 2 * at[0] - at[1] == pytest.approx(0 if phase == "weight_grad" else at[2])


def test_latent_attention_and_more_predictions_have_adapters_too() -> None:
    """DeepSeek-V3, rank 8: every product of attention, dense and shared experts, in 61 layers."""
    columns = {"gpus": 256, "tp": 2, "pp": 8, "ep": 16, "gbs": 512, "lora_rank": 8}
    result = estimate("deepseek-v3", "h100-sxm", columns)
    h, q, kv, up, out = 7168, 1536, 512, 128 * 192, 128 * 128
    attention = (h + q) + (q + up) + (h + kv + 64) + (kv + 128 * 256) + (out + h)
    dense, shared = (h + 2 * 18432) + (18432 + h), (h + 2 * 2048) + (2048 + h)
    assert result.trainable_parameters == 8 * (61 * attention + 3 * dense + 58 * shared)
