"""Peak memory of measured runs: what each source counts, and how far off predictions are."""

import numpy as np
import pytest

from shardwise import estimate

GIB = 2**30
# Rows with a prediction, and at most what mean absolute error they have, in per cent; measured are
# 4.5, 4.6, 1.5, 0.5, 4.9 (rows with whole logits, whose head gradient comes after the loss).
SOURCES = {
    "BigScience BLOOM topology tuning": (71, 6.0),
    "InternEvo 7B tables": (15, 6.0),
    "Megatron-LM functional-test golden values (memory/speed)": (6, 2.0),
    "SimuMax measured runs": (30, 0.8),
    "torchtitan benchmarks": (15, 5.0),
}
# The same of sources of 2026, of grades A and B; measured are 14.1, 3.0, 5.0, 6.1, 13.6, 6.9, 8.2,
# 13.8, 4.8.
NEWER = {
    "FlagPerf (BAAI) training reference results": (17, 17.0),
    "IBM fms-acceleration benchmarks": (92, 5.0),
    "KempnerForge MFU scaling report": (14, 6.0),
    "Megatron-Bridge performance skill ablations": (10, 9.0),
    "OneFlow DLPerf GPT (V100)": (10, 16.0),
    "PaddleNLP pretraining table": (6, 8.0),
    "Qwen README fine-tuning profile": (22, 10.0),
    "torchao float8/MX e2e benchmarks": (11, 16.0),
    "torchtune README tables": (6, 9.0),
}


@pytest.fixture(name="predictions", scope="module")
def _with_memory(predictions):
    """Of all runs with a measured memory."""
    return [one for one in predictions if one.run.measured_memory_gib is not None]


@pytest.mark.nightly
def test_errors_of_every_source(predictions):
    """A table of the whole: rows predicted, and a bound on their mean absolute error."""
    errors = {}
    for one in predictions:
        if one.memory_gib is not None and one.run.grade in "AB":
            error = one.memory_gib / one.run.measured_memory_gib - 1
            errors.setdefault(one.run.source, []).append(100 * error)
    assert {source: len(some) for source, some in errors.items()} == {
        source: rows for source, (rows, _) in (SOURCES | NEWER).items()
    }
    for source, (_, most) in (SOURCES | NEWER).items():
        assert np.abs(errors[source]).mean() < most, source
    for sources, most in ((SOURCES, 4.5), (NEWER, 8.0)):
        assert np.abs(np.concatenate([errors[source] for source in sources])).mean() < most


@pytest.mark.nightly
def test_what_megatron_logs_is_of_the_last_rank(predictions):
    """Its last stage, also where another one is fuller."""
    logged = [
        one
        for one in predictions
        if one.run.measured.memory_rank == "last" and one.memory_gib is not None
    ]
    assert {one.run.strategy.pp for one in logged} == {1, 2, 4}
    for one in logged:
        last = estimate(*one.run.case()).stages[-1]
        assert one.memory_gib == pytest.approx(last.total / GIB)
