"""Peak memory of measured runs: what each source counts, and how far off predictions are."""

import numpy as np
import pytest

from measured_samples import run_of
from rows import each_row
from shardwise import estimate
from shardwise.validate.measured.predict import memory_gib, metric_of, on_last_rank, translate
from shardwise.validate.measured.software import stack_of
from shardwise.validate.measured.store import load_runs

GIB = 2**30
# Rows with a prediction, and at most what mean absolute error they have, in per cent; measured are
# 4.5, 4.6, 1.5, 0.5, 3.3.
SOURCES = {
    "BigScience BLOOM topology tuning": (71, 6.0),
    "InternEvo 7B tables": (15, 6.0),
    "Megatron-LM functional-test golden values (memory/speed)": (6, 2.0),
    "SimuMax measured runs": (30, 0.8),
    "torchtitan benchmarks": (15, 4.5),
}
# The same of sources of 2026, of grades A and B; measured are 14.1, 3.0, 6.1, 13.6, 6.9, 8.2, 13.8,
# 4.8.
NEWER = {
    "FlagPerf (BAAI) training reference results": (17, 17.0),
    "IBM fms-acceleration benchmarks": (92, 5.0),
    "Megatron-Bridge performance skill ablations": (9, 9.0),
    "OneFlow DLPerf GPT (V100)": (10, 16.0),
    "PaddleNLP pretraining table": (6, 8.0),
    "Qwen README fine-tuning profile": (22, 10.0),
    "torchao float8/MX e2e benchmarks": (11, 16.0),
    "torchtune README tables": (6, 9.0),
}


def measured(metric=None, peak=40.0, reserved=None):
    """A run with a peak memory."""
    told = {"peak_mem_gib": peak, "peak_mem_reserved_gib": reserved, "mem_metric": metric}
    return run_of("a", measured=told)


@each_row(
    ("metric", "peak", "reserved", "counted"),
    [
        ("max over ranks of torch.cuda.max_memory_allocated (GiB)", 40.0, 44.0, "allocated"),
        ("peak allocated / reserved GiB (card)", 40.0, 44.0, "allocated"),
        ("peak allocated / reserved GiB (card)", None, 44.0, "reserved"),
        ("max reserved memory over ranks (torchtitan metrics)", 40.0, None, "reserved"),
        ("nvidia-smi GB on the fullest nodes, integer", 40.0, None, "device"),
        ("GB, integer, measurement tool not stated", 40.0, None, "device"),
        (None, 40.0, None, "device"),
    ],
)
def test_what_a_source_counts(metric, peak, reserved, counted):
    run = measured(metric, peak, reserved)
    assert metric_of(run) == counted
    sizes = {"allocated_bytes": 10 * GIB, "device_bytes": 15 * GIB, "runtime_bytes": 3 * GIB}
    assert memory_gib(run, **sizes) == {"allocated": 10, "reserved": 12, "device": 15}[counted]


def test_a_run_without_memory_has_no_prediction_of_it():
    sizes = {"allocated_bytes": 1, "device_bytes": 1, "runtime_bytes": 0}
    assert memory_gib(measured("allocated", None), **sizes) is None


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
            errors.setdefault(one.run.study, []).append(100 * error)
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
    logged = [one for one in predictions if on_last_rank(one.run) and one.memory_gib is not None]
    assert {one.run.parallelism.pp for one in logged} == {1, 2, 4}
    for one in logged:
        said = translate(one.run)
        last = estimate(said.model, said.system, said.strategy).stages[-1]
        assert one.memory_gib == pytest.approx(last.total / GIB)
    assert not on_last_rank(measured("max over ranks of allocated"))


@pytest.mark.nightly
def test_every_stage_of_the_runs_of_simumax(predictions):
    """Its rows tell each rank: first and last stages alike are within 3 %, 1 % on average."""
    errors = []
    for one in predictions:
        ranks = one.run.measured.extra.get("mem_by_rank_gib")
        if not ranks:
            continue
        said = translate(one.run)
        stages = estimate(said.model, said.system, said.strategy).stages
        by_stage = np.array([held for _, held, _ in ranks]).reshape(len(stages), -1).max(axis=1)
        errors += [
            stage.total / GIB / held - 1 for stage, held in zip(stages, by_stage, strict=True)
        ]
    assert len(errors) == 40
    assert np.abs(errors).max() < 0.03
    assert np.abs(errors).mean() < 0.01


def described(run_id):
    """The strategy of one of our rows."""
    (run,) = (one for one in load_runs() if one.id == run_id)
    return translate(run)


def test_gradients_of_deepspeed_accumulate_as_the_precision_says():
    """In 16 bits before its BF16 optimizer; with it in fp32, beside those in 16 bits."""
    before = described("bloom-tune-005-200B-h14400-384g-tp8pp8dp6-mbs1").strategy.stack
    after = described("bloom-tune-119-176B-h14336-384g-tp8pp12dp4-mbs2-nh64").strategy.stack
    assert (before.gradient_dtype, before.plain_gradients) == ("compute", False)
    assert (after.gradient_dtype, after.plain_gradients) == ("fp32", True)


def test_a_compiled_loss_makes_a_generation_of_its_own():
    assert described("torchtitan-8b-8-bf16-e").strategy.stack.name == "torchtitan-eager"
    assert described("torchtitan-h200-8b-64").strategy.stack.name == "torchtitan-2025"


def test_fsdp_under_a_pipeline_does_not_release():
    assert not described("torchtitan-405b-4d-cp8-s262144").strategy.fsdp_reshard
    assert described("torchtitan-70b-2d").strategy.fsdp_reshard


def test_the_loss_is_the_one_that_settings_name():
    """Megatron-LM's default is not fused; SimuMax ran Transformer Engine's."""
    default = described("mcore-func-gpt3_7b_tp4_pp1_memory_speed-dev-dgx_h100")
    assert default.strategy.stack.loss_saved_bytes == 6
    assert default.model.dropout
    fused = described("simumax-b200-llama3_70b_l12_tp8_pp1_dp1_mbc4_cef")
    assert fused.strategy.stack.loss_saved_bytes == 2
    assert not fused.model.dropout


def test_what_megatron_does_not_tell_is_its_default():
    """GPT-2's words, and DeepSeek's ranks of a latent attention; that it ran unfused is told."""
    said = described("mcore-func-gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed-dev-dgx_h100")
    latent = said.model.layers[0].attention.latent
    assert (said.model.vocab, latent.q_rank, latent.kv_rank) == (50_257, 1536, 512)
    assert said.assumed[:2] == ("vocabulary 50257", "latent attention of ranks 1536 and 512")
    assert said.strategy.stack.attention == "unfused"


def test_the_last_stages_of_internevo_take_what_is_left_over():
    assert described("internevo-mem-7B-3-tp1pp3").strategy.stage_layers == (10, 11, 11)
    assert described("internevo-mem-7B-5-tp1pp5").strategy.stage_layers == (
        6,
        6,
        6,
        7,
        7,
    )


@each_row(
    ("framework", "year", "features", "name", "saved"),
    [
        ("Megatron-LM", 2026, {"cross-entropy-fusion-impl": "native"}, "megatron-core-2025", 10),
        ("Megatron-LM", 2026, {"cross-entropy-loss-fusion": True}, "megatron-core-2025", 4),
        ("Megatron-LM", 2021, {}, "megatron-lm-2022", 10),
        ("torchtitan", 2025, {"torch_compile": True}, "torchtitan-2025", 4),
        ("torchtitan", 2025, {"torch_compile": False}, "torchtitan-eager", 12),
        ("PaddleNLP", 2024, {}, "paddlenlp-2024", 10),
    ],
)
def test_what_a_loss_holds(framework, year, features, name, saved):
    run = run_of("a", software={"framework": framework}, year=year, features=features)
    stack = stack_of(run, [])
    assert (stack.name, stack.loss_saved_bytes) == (name, saved)
