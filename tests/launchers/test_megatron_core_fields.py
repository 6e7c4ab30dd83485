"""Plans as fields of Megatron-Core's configuration, and the way back."""

import pytest

from megatron_plans import architecture, effective, legal_plans
from profiles import drawn
from shardwise import Strategy
from shardwise.config.enums import TpOverlap
from shardwise.launchers.megatron.core_layout import expanded, layout_of
from shardwise.launchers.megatron.core_options import core_faults, core_fields, read_core_fields

STACK = "megatron-lm-2026"


def read(fields, gpus=64, **others):
    return read_core_fields(fields, stack=STACK, source="run.sh", name="run", gpus=gpus, **others)


def test_drawn_plans_come_back():
    """What fields say of a plan is the plan, field by field; rings have a file of their own."""
    for plan in legal_plans(STACK, drawn(200, 6), 7, core_faults):
        back = read(core_fields(plan), plan.strategy.gpus)
        model = plan.model.with_attention(plan.strategy.attention)
        assert architecture(back.model) == architecture(model)
        strategy = Strategy.validated(back.strategy)
        expected = effective(model, plan.strategy)
        if expected["tp_overlap"] == TpOverlap.RING:
            expected["tp_overlap"] = TpOverlap.STACK
        assert effective(back.model, strategy) == expected
        assert back.not_understood == ()


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", ["Ett", *["tt"] * 34, "ttt", *["tt"] * 3, "tL"]),
        ("Et|(tt|)*30mL", ["Et", *["tt"] * 30, "mL"]),
        ("E|t|L", ["E", "t", "L"]),
        ("E(t|)*2,(t*2|)*2L", ["Et", "t", "tt", "tt", "L"]),
    ],
)
def test_a_layout_is_read(layout, stages):
    assert expanded(layout) == stages


@pytest.mark.parametrize(
    ("layout", "problem"),
    [("Ex|L", "'x'"), ("E(t|L", "open"), ("Et)|L", "not open"), ("*3EtL", "repeats nothing")],
)
def test_a_wrong_layout_is_refused(layout, problem):
    with pytest.raises(ValueError, match=problem):
        expanded(layout)


@pytest.mark.parametrize("counts", [[1], [0, 3, 4, 4, 4, 5], [20] * 4, [2, 2, 0]])
def test_a_written_layout_has_its_counts(counts):
    stages = expanded(layout_of(counts, 2))
    assert [stage.count("t") for stage in stages] == counts
    assert (stages[0][0], stages[-1][-3:]) == ("E", "mmL")


def test_a_chunk_without_layers_has_the_ends_alone():
    """As in Megatron-Bridge's recipe of DeepSeek-V3 in NVFP4 on GB300, and with an empty chunk."""
    assert layout_of([5, *[4] * 14, 0], 1) == "Et*5|(t*4|)*14mL"
    assert layout_of([0, 3, 0, 2]) == "E|ttt||ttL"
