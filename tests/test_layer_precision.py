"""Layers at the ends of a model that a low-precision recipe leaves in 16 bits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from described_layers import model
from profiles import examples
from rows import each_row
from shardwise import Estimate, InputError, Model, estimate
from shardwise.config.layer_precision import ends_in_16_bits, with_16_bit_ends, with_all_quantized
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

ATTENTION: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 16}
MLP: dict[str, Any] = {"ffn": 128, "activation": "swiglu"}
PLAN: dict[str, Any] = {"gpus": 8, "gbs": 64, "mbs": 1, "seq_len": 4096}


def layer(count: int, **fields: Any) -> dict[str, Any]:
    """Layers of attention and an MLP."""
    return {"count": count, "attention": ATTENTION, "mlp": MLP} | fields


def predicted(name: str, first: int, last: int, quantization: str, **fields: Any) -> Estimate:
    """An estimate with so many layers at the ends in 16 bits."""
    one = with_16_bit_ends(Model.load(name), first, last)
    return estimate(one, "b200-sxm", **PLAN | {"quantization": quantization} | fields)


def test_layers_in_order() -> None:
    """Quantized groups have the symbols of the model; the others have characters of their own."""
    blocks = [{"symbol": "*", "attention": ATTENTION}, {"symbol": "-", "mlp": MLP}]
    hybrid = model(64, 128, *blocks, pattern="*-*-*-", mtp=1, mtp_pattern="*-")
    found = with_16_bit_ends(hybrid, 1, 2)
    assert (found.pattern, found.mtp_pattern) == ("a-*-ab", "*-")
    assert [(one.symbol, one.count, one.quantized) for one in found.layers] == [
        ("*", 1, True),
        ("a", 2, False),
        ("-", 2, True),
        ("b", 1, False),
    ]
    assert ends_in_16_bits(found) == (1, 2)
    assert with_all_quantized(found) == hybrid
    assert Model.validated(found.to_dict()) == found
    assert ends_in_16_bits(with_16_bit_ends(hybrid, 6)) == (6, 0)
    assert ends_in_16_bits(hybrid) == (0, 0)


def test_groups_without_symbols() -> None:
    """Modules of multi-token prediction stay quantized; groups return as they were."""
    two = model(64, 128, layer(2), layer(3, mlp=MLP | {"ffn": 256}), mtp=2)
    found = with_16_bit_ends(two, 1, 2)
    assert [(one.count, one.quantized) for one in found.layers] == [
        (1, True),
        (1, False),
        (1, True),
        (2, False),
    ]
    assert [one.quantized for one in found.mtp_layers] == [True]
    assert found.mtp_layers[0].mlp == two.layers[1].mlp
    assert with_all_quantized(found) == two
    again = with_16_bit_ends(found, 2, 0)
    assert (ends_in_16_bits(again), again.depth) == ((2, 0), 5)


def test_layers_in_the_middle_are_no_ends() -> None:
    """A model file may have any of them in 16 bits."""
    inner = model(64, 128, layer(2), layer(1, quantized=False), layer(2))
    assert ends_in_16_bits(inner) is None
    assert with_all_quantized(inner) == model(64, 128, layer(5))


@each_row(("first", "last"), [(3, 0), (0, 3), (-1, 0)])
def test_more_layers_than_there_are(first: int, last: int) -> None:
    with pytest.raises(InputError, match=r"layers in 16 bits.*must be at most the 2 layers"):
        with_16_bit_ends(model(64, 128, layer(2)), first, last)


@examples(20)
@given(
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    first=st.integers(0, 6),
    data=st.data(),
)
def test_laws_of_random_patterns(kinds: list[int], first: int, data: st.DataObject) -> None:
    """Layers and parameters stay; ends are found again, all quantized the model returns."""
    used = sorted(set(kinds))
    blocks = {0: {"attention": ATTENTION}, 1: {"mlp": MLP}, 2: {"attention": ATTENTION, "mlp": MLP}}
    groups = [{"symbol": "xyz"[kind]} | blocks[kind] for kind in used]
    plain = model(64, 128, *groups, pattern="".join("xyz"[kind] for kind in kinds))
    first = min(first, len(kinds))
    last = data.draw(st.integers(0, len(kinds) - first))
    found = with_16_bit_ends(plain, first, last)
    assert found.depth == plain.depth
    assert count_parameters(found).total == count_parameters(plain).total
    assert with_all_quantized(found).order == plain.order
    ends = ends_in_16_bits(found)
    assert ends is not None
    assert sum(ends) == first + last
    if first + last < len(kinds):
        assert ends == (first, last)


@pytest.mark.parametrize("name", ["llama3-8b", "nemotron-3-nano"])
def test_time_and_memory_lie_between_16_bits_and_the_recipe(name: str) -> None:
    """All layers at the ends are 16 bits throughout; without a recipe they all are."""
    low, none = predicted(name, 0, 0, "nvfp4"), predicted(name, 0, 0, "none")
    ends = predicted(name, 2, 3, "nvfp4")
    every = predicted(name, Model.load(name).depth, 0, "nvfp4")
    for of in (lambda one: one.step_time_s, lambda one: one.memory_bytes.total):
        least, most = sorted(map(of, (low, none)))
        assert least < of(ends) < most
    assert every.step_time_s == pytest.approx(none.step_time_s)
    assert every.memory_bytes.total == pytest.approx(none.memory_bytes.total)
    assert predicted(name, 2, 3, "none").step_time_s == pytest.approx(none.step_time_s)


def test_equal_layers_add_equal_times() -> None:
    times = [predicted("llama3-8b", 0, last, "mxfp8").step_time_s for last in (0, 1, 5)]
    assert times[2] - times[0] == pytest.approx(5 * (times[1] - times[0]), rel=1e-3)


def test_weights_at_the_ends_have_no_quantized_copies() -> None:
    """The last of two stages has 16 layers in 16 bits: 2 bytes a weight, without two copies."""
    low, ends = (
        [stage.weights for stage in predicted("llama3-8b", 0, last, "fp8_tensor", pp=2).stages]
        for last in (0, 16)
    )
    assert ends[0] == low[0]
    of_layers = 16 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336)
    assert low[1] - ends[1] == 2 * of_layers
