"""Measured runs that Megatron-LM did not make: what rows say of them, as strategies."""

from functools import cache

import pytest
from published_samples import row_of

from published_rows.packed import load_rows
from published_rows.recompute import policy_of, remat_fields
from published_rows.row import Run
from published_rows.translate import Translation, measured_run, translate
from rows import each_row
from shardwise import Stack
from shardwise.validate.measured.predict import predict_runs

NORMS = {"attention_norm", "mlp_norm"}
# What runs again in addition to norms and activation, and what waits in the host's memory.
POLICIES = {
    "full": ({"attention", "attention_out", "mlp_up"}, set()),
    "save_nothing": ({"attention", "attention_out", "mlp_up"}, set()),
    "minimal": ({"core_attention"}, set()),
    "minimal_flash": (set(), set()),
    "save_dot": ({"core_attention"}, set()),
    "save_qkv_out_proj": ({"core_attention", "mlp_up"}, set()),
    "save_qkv_proj": ({"core_attention", "attention_out", "mlp_up"}, set()),
    "save_out_proj": ({"qkv", "core_attention", "mlp_up"}, set()),
    "save_dot_except_mlpwi": ({"core_attention", "mlp_up"}, set()),
    "qkv_proj_offloaded": ({"core_attention", "attention_out", "mlp_up"}, {"core_attention"}),
}


@cache
def row(name: str) -> Run:
    """The measured run of a name."""
    return next(run for run in load_rows() if run.id == name)


def said(name: str) -> Translation:
    """It in our words."""
    return translate(row(name))


@each_row("policy", POLICIES)
def test_policies_of_xla_by_hand(policy: str) -> None:
    """A product runs again unless its output is kept, the last of the MLP never."""
    again, moved = POLICIES[policy]
    run = row_of("a", recompute={"granularity": policy.upper()})
    fields = remat_fields(run, policy)

    assert policy_of(run) == policy
    assert set(fields["recompute_parts"]) == again | NORMS | {"activation"}
    assert set(fields.get("offload_parts", ())) == moved
    assert fields.get("offload_activations", False) is bool(moved)


@each_row(
    ("custom", "again", "moved"),
    [
        ({"decoder_layer_input": "device"}, {"attention", "attention_out", "mlp_up"}, set()),
        (
            {"decoder_layer_input": "offload", "query_proj": "remat", "out_proj": "offload"},
            {"qkv", "core_attention", "mlp_up"},
            {"attention_norm", "mlp_norm"},
        ),
        (
            {"context": "offload", "mlpwo": "offload"},
            {"qkv", "attention_out", "mlp_up"},
            {"attention_out"},
        ),
        (
            {"mlpwi_0": "device", "mlpwi_1": "offload", "query_proj": "device"},
            {"core_attention", "attention_out"},
            {"activation"},
        ),
    ],
)
def test_a_custom_policy_by_its_tensors(
    custom: dict[str, str], again: set[str], moved: set[str]
) -> None:
    """What is sent to the host is kept, and what it is kept by moves."""
    run = row_of("a", recompute={"granularity": "custom (some words)", "custom": custom})
    assert policy_of(run) == "custom"
    fields = remat_fields(run, "custom")

    assert set(fields["recompute_parts"]) == again | NORMS | {"activation"}
    assert set(fields.get("offload_parts", ())) == moved


def test_a_policy_that_nobody_named_is_assumed() -> None:
    """MaxText's default keeps the inputs of layers alone."""
    run = row_of("a", recompute={"granularity": None}, software={"framework": "MaxText/JAX"})
    assert policy_of(run) is None
    assert said("tpu-recipes-v5p-gpt3-175b").assumed[-1] == (
        "recompute of all but the last product of layers"
    )


def test_maxtext_on_slices_by_hand() -> None:
    """32 slices of 256 chips in groups of 16: shards inside a slice, copies among slices."""
    found = said("maxtext-v5e-128b-32x256")
    strategy = found.strategy

    assert (strategy.tp, strategy.dp, strategy.dp_shard) == (16, 512, 16)
    assert (strategy.zero, strategy.sequence_parallel) == (3, True)
    # One sequence of 2,048 tokens for each chip, and no accumulation.
    assert (strategy.micro_batch_size, strategy.global_batch_size) == (16, 8192)
    assert found.system.network[0].domain == 256
    assert said("maxtext-v5p-32b-2x64").system.network[0].domain == 64


def test_recipes_on_pods_shard_inside_a_pod() -> None:
    """1,024 Trillium chips are four pods of 256, whatever an axis of the recipe says."""
    strategy = said("tpu-recipes-trillium-gemma3-12b-4x-v6e-256").strategy
    assert (strategy.dp, strategy.dp_shard, strategy.micro_batch_size) == (1024, 256, 1)
    whole = said("tpu-recipes-trillium-llama3.1-8b-v6e-64").strategy
    assert (whole.dp, whole.dp_shard, whole.micro_batch_size) == (64, None, 5)


def test_stack_of_xla() -> None:
    """One program without launches, gradients of 16 bits, weights gathered in 16 bits."""
    stack = Stack.load("maxtext-2024")
    assert (stack.host_launch, stack.gradient_dtype, stack.gathers_master) == (0, "compute", False)
    assert said("maxtext-v4-22b-2x64").strategy.stack == stack


def test_only_flops_are_printed() -> None:
    """332 TFLOP/s with all pairs of queries and keys: 6 N + 12 L a d s, 1,664 x 2,048 tokens."""
    run = row("maxtext-v4-22b-2x64")
    (found,) = predict_runs([measured_run(run)])
    parameters = 48 * (4 * 6144**2 + 3 * 6144 * 24576) + 32000 * 6144
    per_token = 6 * parameters + 12 * 48 * 24 * 256 * 2048
    by_hand = 1664 * 2048 * per_token / (152e12 * 128)

    assert found.converted_step_time_s == pytest.approx(by_hand, rel=1e-3)


def test_what_pax_keeps_is_what_fits() -> None:
    """5B on 256 A100 keeps products, 175B only inputs of layers: 6 sequences for each."""
    small, large = (said(f"jaxpax-{size}-A100-TEbf16") for size in ("5B", "175B"))
    assert "mlp_up" not in small.strategy.recompute_parts
    assert {"mlp_up", "attention"} <= set(large.strategy.recompute_parts)
    assert large.strategy.micro_batch_size == 6
    assert small.assumed[-1] == "the least recompute that fits"


def test_cores_of_trainium_are_half_a_chip() -> None:
    """512 chips: 32 cores of tensor parallelism are 16, times 8 stages and 4 replicas."""
    strategy = said("neuron-trn1-gpt3-175b-32n-nemo").strategy
    assert (strategy.gpus, strategy.tp, strategy.pp, strategy.dp) == (512, 16, 8, 4)
    assert isinstance(strategy.stack, Stack)
    assert (strategy.stack.name, strategy.stack.attention_kernel) == ("neuronx-2024", "unfused")


@each_row(
    ("name", "system", "quantization"),
    [
        ("mlperf-v5.1-AMD-MI350X_EPYC_9575F_pytorch-llama31_8b", "mi350x", "fp8_tensor"),
        ("mlperf-v5.1-AMD-MI355X_EPYC_9575F_pytorch-llama31_8b", "mi355x", "fp8_tensor"),
        ("mlperf-v5.1-Wiwynn-1xKinabalux18x4GB200-llama2_70b_lora", "gb200-nvl72", "fp8_tensor"),
        ("mlperf-v5.1-Dell-1xXE9680Lx8H200-SXM-141GB-llama2_70b_lora", "h200-sxm", "fp8_tensor"),
        ("mlperf-v5.1-Dell-1xXE9780x8B300-SXM-270GB-llama2_70b_lora", "b300-sxm", "nvfp4"),
    ],
)
def test_submissions_to_mlperf_run_in_fp8_or_less(
    name: str, system: str, quantization: str
) -> None:
    """By switches of fp8 alone, by default, and in nvfp4 where either may be meant and it can."""
    found = said(name)
    assert found.system.name == system
    assert found.strategy.quantization == quantization
    assert isinstance(found.strategy.stack, Stack)
    assert found.strategy.stack.name == "mlperf-2024"


def test_adapters_of_mlperf_by_hand() -> None:
    """Packed to 8,192 tokens of one document; adapters of rank 16 on attention alone."""
    strategy = said("mlperf-v5.0-NVIDIA-tyche_ngpu72_ngc25.04_nemo-llama2_70b_lora").strategy
    assert (strategy.lora_rank, strategy.lora_parts) == (16, ("attention",))
    assert (strategy.seq_len, strategy.document_len, strategy.quantized_weights) == (
        8192,
        None,
        True,
    )
    assert (strategy.cp, strategy.dp, strategy.micro_batch_size) == (8, 9, 1)


def test_packed_questions_are_short() -> None:
    """Rows that say so; others of the same source have one document in a sequence."""
    tuned = said("dgxc-v25.02.02-llama-3-8b-sft-H100-bf16-8g-gbs32")
    assert tuned.strategy.document_len == 256
    assert "documents of 256 tokens" in tuned.assumed
    assert (
        said("dgxc-v25.02.02-llama-3-8b-pretrain-H100-bf16-8g-gbs128").strategy.document_len is None
    )


@each_row(
    ("name", "micro_batch", "chunks"),
    [
        ("megatron-readme-h100-weak-32b", 4, 1),  # all of a replica's sequences fit at once
        ("megatron-readme-h100-weak-119b", 1, 23),  # 92 layers on 4 stages
        ("torchtitan-405b-3d-int1f1b", 4, 2),  # 32 sequences in as many parts as stages
        ("torchtitan-405b-4d-cp2-s65536", 1, 1),
        ("narayanan21-t1-39.1b", 1, 1),  # before recipes interleaved
    ],
)
def test_open_batches_and_chunks(name: str, micro_batch: int, chunks: int) -> None:
    """By what releases do by themselves, or by what fits."""
    found = said(name)
    assert (found.strategy.micro_batch_size, found.strategy.vpp) == (micro_batch, chunks)
    assert f"micro_batch {micro_batch}" in found.assumed


def test_experts_that_deepep_reaches_are_spread() -> None:
    """64 ranks hold 2 of 128 experts each."""
    found = said("automodel-gpt-oss-120b-64-gbs512-pre")
    assert found.strategy.ep == 64
    assert "ep 64" in found.assumed


@each_row("name", ["maxtext-2024", "mlperf-2024", "neuronx-2024"])
def test_stacks_say_where_they_are_from(name: str) -> None:
    """Each figure that differs from its base has a source."""
    stack = Stack.load(name)
    assert stack.name == name
    assert stack.step_overhead > 0
    assert "step_overhead" in stack.sources


def test_rows_without_a_model_stay_refused() -> None:
    """Names of sizes alone are not enough."""
    (found,) = predict_runs([measured_run(row("neuron-trn1-gpt3-46b-32n-nemo"))])
    assert found.refused == "model.layers is not stated"
