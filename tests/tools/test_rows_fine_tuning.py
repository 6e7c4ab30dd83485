"""Words of measured runs about memory: what is recomputed, sharded and counted."""

from published_samples import row_of

from published_rows.software import stack_of
from published_rows.translate import figures_of, metric_of, translate
from rows import each_row
from shardwise.config.enums import Recompute

LLAMA = {"arch": "dense-decoder", "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8}
LLAMA |= {"name": "m", "seq_len": 4096, "layers": 2, "vocab": 32000, "tied_embeddings": False}


def run_on(framework="torchtitan", **fields):
    """A run of a model of two layers."""
    fields = {"model": LLAMA, "micro_batch": 1, "software": {"framework": framework}} | fields
    return row_of("a", **fields)


@each_row(
    "text",
    [
        'per-op selective activation checkpointing (torchtitan "op" SAC)',
        "selective op",
        "op-level",
    ],
)
def test_recompute_by_operation(text):
    strategy = translate(run_on(recompute={"granularity": text})).strategy
    assert strategy.recompute == Recompute.SELECTIVE
    assert strategy.recompute_parts == ("every_other",)


@each_row(
    ("said", "stage"),
    [
        ({"zero_stage": 2, "fsdp_shard": 8}, 2),
        ({"zero_stage": 1, "fsdp_shard": 8}, 1),
        ({"zero_stage": 3, "fsdp_shard": 8}, 3),
        ({"fsdp_shard": 8}, 3),
        ({"fsdp_shard": -1}, 3),
        ({}, 0),
    ],
)
def test_a_stage_that_is_stated_counts_whatever_the_size_of_its_group(said, stage):
    run = run_on(parallelism=said, recompute={"granularity": "none"})
    assert translate(run).strategy.zero == stage


def test_active_memory_is_allocated_memory():
    measured = {"peak_mem_gib": 40.0, "mem_metric": "torch peak memory active (GiB)"}
    assert metric_of(row_of("a", measured=measured)) == "allocated"


@each_row(
    ("version", "year", "stack"),
    [
        ("pytorch 2.7.0a0, torchao 0.10.0, torchtitan 0.0.2", 2025, "torchtitan-2024"),
        ("torchtitan 0.1.0", 2025, "torchtitan-2025"),
        ("torchtitan 0.2.0", 2025, "torchtitan-2025"),
        ("torchtitan 2c8b594", 2025, "torchtitan-2025"),
        (None, 2025, "torchtitan-2025"),
        (None, 2024, "torchtitan-2024"),
    ],
)
def test_releases_of_torchtitan(version, year, stack):
    said = {"framework": "torchtitan", "version": version}
    run = run_on(software=said, year=year, features={"torch_compile": True})
    assert stack_of(run, []).name == stack


@each_row(
    ("framework", "degrees", "stack"),
    [
        ("LLaMA-Factory", {"zero_stage": 3}, "deepspeed-2024"),
        ("LLaMA-Factory (DeepSpeed)", {}, "deepspeed-2024"),
        ("LLaMA-Factory", {}, "deepspeed-2024"),
        ("LLaMA-Factory", {"fsdp_shard": 8, "zero_stage": 3}, "llama-factory-2024"),
        ("HF Trainer + accelerate FSDP", {"zero_stage": 3}, "huggingface-2024"),
        ("HF Trainer", {"zero_stage": 2}, "deepspeed-2024"),
    ],
)
def test_stages_of_the_trainer_are_those_of_deepspeed(framework, degrees, stack):
    run = run_on(software={"framework": framework}, parallelism=degrees)
    assert stack_of(run, []).name == stack


def test_trainers_that_synchronize_once_per_step():
    said = {"parallelism": {"zero_stage": 3}, "recompute": {"granularity": "none"}}
    once = run_on(software={"framework": "LitGPT"}, **said)
    each = run_on(software={"framework": "OLMo"}, **said)
    words = [translate(run).strategy.grad_sync for run in (once, each)]
    assert words == ["step", "stack"]


MIXTURE = LLAMA | {"arch": "moe-decoder", "experts": 8, "topk": 2, "moe_ffn": 14336}


@each_row(
    ("framework", "degrees", "etp"),
    [
        ("Megatron-LM (mcore)", {"tp": 8}, 8),
        ("Megatron-LM (mcore)", {"tp": 8, "ep": 1}, 8),
        ("Megatron-LM (mcore)", {"tp": 4, "ep": 2}, 1),
        ("Megatron-LM (mcore)", {"tp": 4, "etp": 2}, 2),
        ("MaxText", {"tp": 4}, 1),
    ],
)
def test_experts_that_megatron_splits_by_default(framework, degrees, etp):
    run = run_on(framework, model=MIXTURE, parallelism=degrees)
    assert translate(run).strategy.etp == etp


@each_row(
    ("precision", "zero", "pure"),
    [
        ("bfloat16 (pure; weights, gradients and optimizer state)", 3, True),
        ("bf16 (weights, gradients and optimizer state; no fp32 master)", 0, True),
        ("bfloat16 mixed (autocast)", 0, True),
        ("bfloat16 mixed (autocast)", 3, False),
    ],
)
def test_types_of_weights_of_transformers(precision, zero, pure):
    """Mixed precision leaves weights in 16 bits but for FSDP, which makes them fp32."""
    shards = {"zero_stage": zero, "fsdp_shard": 8} if zero else {}
    run = run_on("HF Trainer", task="sft", precision=precision, parallelism=shards)
    strategy = translate(run).strategy
    assert strategy.stack.master_dtype == ("none" if pure else "fp32")
    assert strategy.optimizer == ("adamw-bf16" if pure else "adamw")
    assert strategy.stack.gradient_dtype == ("compute" if pure else "fp32")


@each_row(
    ("precision", "peft", "base"),
    [
        ("bnb nf4 4-bit base weights, bfloat16 (pure)", "lora", "nf4"),
        ("gptq 4-bit base weights, float16 mixed (autocast)", "lora", "int4"),
        ("fp16 (GPTQ int4 base)", "qlora", "int4"),
        ("bf16", "qlora", "nf4"),
        ("bf16", "lora", "dtype"),
    ],
)
def test_types_of_frozen_weights(precision, peft, base):
    run = run_on("HF Trainer", task="lora", precision=precision, features={"peft": peft})
    assert translate(run).strategy.stack.base_weights == base


@each_row(
    ("notes", "rank", "parts"),
    [
        ("LoRA r=16 on q,k,v,o", 16, ("attention",)),
        ("LoRA (r=64 default in finetune.py)", 64, ("attention",)),
        ("LoRA + trainable embedding and LM head", 16, ("attention", "embedding", "head")),
        (None, 16, ("attention",)),
    ],
)
def test_adapters_that_notes_describe(notes, rank, parts):
    run = run_on("HF Trainer", task="lora", model=LLAMA | {"notes": notes})
    strategy = translate(run).strategy
    assert (strategy.lora_rank, strategy.lora_parts) == (rank, parts)


def test_techniques_of_torchtune():
    features = {"optimizer_in_bwd": True, "activation_offloading": True}
    strategy = translate(run_on("torchtune", task="sft", features=features)).strategy
    assert strategy.stack.update_in_backward
    assert strategy.offload_activations
    paged = {"optimizer": "PagedAdamW8bit, optimizer_in_bwd"}
    strategy = translate(run_on("torchtune", task="sft", features=paged)).strategy
    assert (strategy.stack.update_in_backward, strategy.optimizer) == (True, "adamw-8bit")
    added = {"notes": "techniques are cumulative"}
    losses = [
        translate(run_on("torchtune", task="sft", features=chosen, **added)).strategy.stack
        for chosen in ({}, {"chunked_cross_entropy": True})
    ]
    assert [stack.loss_saved_bytes for stack in losses] == [12, 2.25]


@each_row(
    ("layers", "stage", "assumed"),
    [(2, 0, False), (40, 1, True)],
)
def test_the_optimizer_is_sharded_where_a_silent_row_would_not_fit(layers, stage, assumed):
    run = run_on("Megatron-LM", model=LLAMA | {"layers": layers}, recompute={"granularity": "none"})
    found = translate(run)
    assert found.strategy.zero == stage
    assert ("a sharded optimizer" in found.assumed) is assumed
    said = {"distributed_optimizer": False}
    stated = run_on("Megatron-LM", model=LLAMA | {"layers": layers}, parallelism=said)
    assert translate(stated).strategy.zero == 0


@each_row(
    ("framework", "attention", "features", "optimizer"),
    [
        ("Megatron-Bridge", "mla", {}, "adamw-bf16"),
        ("Megatron-Bridge", "mla", {"optimizer": "muon"}, "muon"),
        ("Megatron-Bridge", "gqa", {}, "adamw"),
        ("Megatron-LM", "mla", {}, "adamw"),
    ],
)
def test_recipes_with_a_precision_aware_optimizer(framework, attention, features, optimizer):
    """Moments in 16 bits next to fp32 weights, and no fp32 copies of gradients."""
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    latent |= {"v_head_dim": 128, "attention": attention, "kv_heads": 32}
    run = run_on(framework, model=MIXTURE | latent, features=features, year=2025)
    strategy = translate(run).strategy
    assert strategy.optimizer == optimizer
    assert strategy.stack.master_dtype == "fp32"
    assert strategy.stack.copies_gradients is (optimizer != "adamw-bf16")


@each_row(
    ("framework", "metric", "unit"),
    [
        ("Megatron-Bridge", "torch max allocated, GB as printed", "GB"),
        ("Megatron-Bridge", "rank-0 peak allocated GiB", "GiB"),
        ("torchtitan", "max reserved, GiB printed as GB", "GiB"),
    ],
)
def test_units_of_what_software_logs(framework, metric, unit):
    measured = {"peak_mem_gib": 40.0, "mem_metric": metric}
    run = row_of("a", measured=measured, software={"framework": framework})
    assert figures_of(run)["memory"] == f"40.0 {unit}"


@each_row(
    ("kernels", "zero", "wide"),
    [
        ("baseline-peft-bnb", 0, True),
        ("baseline-peft-bnb", 3, False),
        ("accelerated-peft-bnb", 0, False),
    ],
)
def test_4_bit_models_that_peft_prepares(kernels, zero, wide):
    """Norms and residuals become fp32, but not with FSDP, whose shards have one type."""
    shards = {"zero_stage": zero, "fsdp_shard": 8} if zero else {}
    features = {"framework": kernels, "peft": "lora"}
    precision = "bnb nf4 4-bit base weights, bfloat16 (pure)"
    run = run_on("HF TRL", task="lora", precision=precision, features=features, parallelism=shards)
    assert translate(run).strategy.stack.fp32_checkpoints is wide


@each_row(
    ("positions", "features", "size"),
    [
        ("rope", {}, 14),
        ("learned_abs", {}, 8),
        ("rope", {"fused_cross_entropy": True}, 8),
    ],
)
def test_losses_of_transformers(positions, features, size):
    model = LLAMA | {"pos_emb": positions}
    run = run_on("HF TRL", task="sft", precision="bf16 (pure)", model=model, features=features)
    assert translate(run).strategy.stack.loss_saved_bytes == size
    features = features | {"fused_cross_entropy": True, "liger": True}
    run = run_on("HF TRL", task="sft", precision="bf16 (pure)", model=model, features=features)
    assert translate(run).strategy.stack.loss == "fused_linear"
