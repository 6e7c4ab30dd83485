"""FLOPs of hybrid models as trainers print them."""

import pytest

from shardwise import Model
from shardwise.ops.param_count import flops_per_token

# GFLOP per token: printed TFLOP/s x step time / tokens (Megatron-Bridge performance summaries 26.02
# to 26.08 and cards), with the modules of multi-token prediction that the recipes train.
PRINTED = (
    ("nemotron-3-nano", 0, 8192, "megatron-hybrid", 22.278),
    ("nemotron-3-super", 0, 8192, "megatron-hybrid", 75.37),
    ("nemotron-3-super", 2, 8192, "megatron-hybrid", 84.73),
    ("nemotron-3.5-lightning", 2, 8192, "megatron-hybrid", 28.15),
    ("nemotron-3-ultra", 2, 8192, "megatron-hybrid", 358.9),
    ("nemotron-h-56b", 0, 8192, "megatron-hybrid", 340.24),
    ("qwen3-next-80b-a3b", 0, 4096, "megatron-hybrid", 22.74),
    ("nemotron-3-nano", 0, 4096, "automodel", 20.17),
)


@pytest.mark.parametrize(("name", "mtp", "seq_len", "rule", "expected"), PRINTED)
def test_rules_give_what_trainers_print(
    name: str, mtp: int, seq_len: int, rule: str, expected: float
) -> None:
    """The rule of a trainer gives the FLOPs that its logs print, within 0.1 %."""
    model = Model.load(name).model_copy(update={"mtp": mtp})
    found = flops_per_token(model, seq_len, rule) / 1e9  # type: ignore[arg-type] - a name
    assert found == pytest.approx(expected, rel=1e-3)


def test_megatron_counts_mamba_with_twice_the_hidden_width() -> None:
    """Megatron's rule is 7 % high on Nemotron 3 Nano, whose inner width is 1.5 times the hidden."""
    model = Model.load("nemotron-3-nano")
    ours = flops_per_token(model, 8192)
    assert flops_per_token(model, 8192, "megatron-hybrid") / ours == pytest.approx(1.07, abs=0.005)


@pytest.mark.parametrize("rule", ["megatron-hybrid", "nemo", "automodel"])
def test_parts_without_a_rule_count_as_ours(rule: str) -> None:
    """Sparse attention and other mixers have their own FLOPs in the rules of all trainers."""
    model = Model.load("kimi-linear-48b-a3b")
    found = flops_per_token(model, 8192, rule)  # type: ignore[arg-type] - a name
    assert 0.4 < found / flops_per_token(model, 8192) < 1.2
