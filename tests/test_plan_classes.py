"""Joint classes of features of plans, and what measured runs say of them."""

import numpy as np
import pytest

from shardwise.analysis.plan_classes import (
    ClassErrors,
    PlanClass,
    Z,
    class_codes,
    class_evidence,
    class_table,
    evidence_from,
)
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System

PLAIN = PlanClass(
    experts=True,
    dispatcher="hybridep",
    overlap=True,
    graphs=False,
    pipeline=True,
    sharded=False,
    beyond=False,
)
DENSE = PlanClass(
    experts=False,
    dispatcher=None,
    overlap=False,
    graphs=False,
    pipeline=True,
    sharded=True,
    beyond=False,
)


def test_shift_and_deviation_are_those_worked_by_hand() -> None:
    """Within 0.01 and between 0.02, three configurations predicted 20 % too fast.

    The mean is shrunk by 3 x 0.02 / (3 x 0.02 + 0.01) = 6/7; the variance is 0.02 / (1 + 6).
    """
    variances = {"dense": (0.01, 0.001), "experts": (0.01, 0.02)}
    found = evidence_from({PLAIN: ClassErrors(configurations=3, sources=1, error=-0.2)}, variances)
    assert found.configurations[PLAIN.code] == 3
    assert found.shift[PLAIN.code] == pytest.approx(0.2 * 6 / 7)
    assert found.deviation[PLAIN.code] == pytest.approx((0.02 / 7) ** 0.5)
    assert found.quantile_factor()[PLAIN.code] == pytest.approx(
        np.exp(0.2 * 6 / 7 + Z * (0.02 / 7) ** 0.5)
    )
    # Nothing was measured of dense models with ZeRO and a pipeline: no shift, all the deviation.
    assert found.shift[DENSE.code] == 0
    assert found.deviation[DENSE.code] == pytest.approx(0.001**0.5)


def test_each_class_has_a_number_of_its_own() -> None:
    """A code gives its class back, over all codes."""
    every = range(len(class_evidence().shift))
    assert [PlanClass.of_code(code).code for code in every] == list(every)


def test_configurations_and_sources_count_once() -> None:
    """Releases of one configuration are one, and a source with more of them has no more votes."""
    runs = [
        *((PLAIN, "large", f"plan {n}", -0.1) for n in range(3)),
        (PLAIN, "large", "plan 0", -0.1),  # another release
        (PLAIN, "small", "plan 0", 0.3),
        (DENSE, "small", "plan 0", 0.1),
        (DENSE, "small", "plan 1", 0.3),
    ]
    found = class_table(runs)
    rows = {tuple(row[:7]): row[7:] for row in found["classes"][1:]}
    assert list(rows.values()) == [[2, 1, 0.2], [4, 2, 0.1]]
    # Of two configurations at 0.1 and 0.3 the variance is 0.02, and their mean 0.2: 0.04 - 0.02/2.
    assert found["kinds"]["dense"] == {"within": 0.02, "between": 0.03}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tp": 8}, {}),
        ({"ep": 8, "dispatcher": "deepep"}, {"dispatcher": "deepep"}),
        ({"ep": 64, "dispatcher": "deepep"}, {"dispatcher": "deepep", "beyond": True}),
        ({"ep": 8, "expert_overlap": True}, {"dispatcher": "all_to_all", "overlap": True}),
        ({"cuda_graphs": "partial"}, {"graphs": True}),
        ({"pp": 4, "zero": 2}, {"pipeline": True, "sharded": True}),
        ({"zero": 1}, {}),
    ],
)
def test_class_of_a_row(fields: dict[str, object], expected: dict[str, object]) -> None:
    """The class of a mixture of experts on nodes of 8 has what its strategy does."""
    model, system = Model.load("qwen3-30b-a3b"), System.load("h100-sxm")
    given = {"dispatcher": "all_to_all", "stack": "megatron-core-2025", "cuda_graphs": "none"}
    strategy = Strategy(gpus=64, gbs=512, **(given | fields))
    code = class_codes(model, system, Table.of(model, [strategy], system.stack))[0]
    usual = dict.fromkeys(PlanClass.__dataclass_fields__, False) | {"experts": True}
    assert PlanClass.of_code(int(code)) == PlanClass(**(usual | {"dispatcher": None} | expected))


def test_measured_classes_are_known_better() -> None:
    """Each class that was measured has less deviation than one of its kind that was not."""
    found = class_evidence()
    half = len(found.shift) // 2
    for kind in (slice(0, half), slice(half, None)):
        measured = found.configurations[kind] > 0
        assert found.deviation[kind][measured].max() < found.deviation[kind][~measured].min()
