"""Peak memory of published rows: what each source counts, and what settings hold."""

import numpy as np
import pytest
from published_samples import row_of

from published_rows.packed import load_rows
from published_rows.software import stack_of
from published_rows.translate import figures_of, on_last_rank, translate
from rows import each_row
from shardwise import estimate

GIB = 2**30


def measured(metric=None, peak=40.0, reserved=None):
    """A run with a peak memory."""
    measured = {"peak_mem_gib": peak, "peak_mem_reserved_gib": reserved, "mem_metric": metric}
    return row_of("a", measured=measured)


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
    assert figures_of(measured(metric, peak, reserved))["memory_metric"] == counted


def test_a_row_without_memory_has_none():
    assert "memory" not in figures_of(measured("allocated", None))


def test_which_rank_a_source_counts():
    """Megatron-LM logs that of its last one."""
    assert on_last_rank(measured("allocated on the logging rank"))
    assert not on_last_rank(measured("max over ranks of allocated"))


@pytest.mark.nightly
def test_every_stage_of_the_rows_of_simumax():
    """Its rows tell each rank: first and last stages alike are within 3 %, 1 % on average."""
    errors = []
    for run in load_rows():
        ranks = run.measured.extra.get("mem_by_rank_gib")
        if not ranks:
            continue
        said = translate(run)
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
    (run,) = (one for one in load_rows() if one.id == run_id)
    return translate(run)


def test_gradients_of_deepspeed_accumulate_as_the_precision_says():
    """In 16 bits before its BF16 optimizer; with it in fp32, in addition to those in 16 bits."""
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
    """GPT-2's words, DeepSeek's ranks of latent attention; the row says that it ran unfused."""
    said = described("mcore-func-gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed-dev-dgx_h100")
    latent = said.model.layers[0].attention.latent
    assert (said.model.vocab, latent.q_rank, latent.kv_rank) == (50_257, 1536, 512)
    assert said.assumed[:2] == ("vocabulary 50257", "latent attention of ranks 1536 and 512")
    assert said.strategy.stack.attention_kernel == "unfused"


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
    run = row_of("a", software={"framework": framework}, year=year, features=features)
    stack = stack_of(run, [])
    assert (stack.name, stack.loss_saved_bytes) == (name, saved)
