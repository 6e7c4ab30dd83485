"""Words of measured runs about memory: what is recomputed, sharded and counted."""

from measured_samples import run_of
from rows import each_row
from shardwise.config.enums import Recompute
from shardwise.validate.measured.predict import metric_of, translate
from shardwise.validate.measured.software import stack_of

LLAMA = {"arch": "dense-decoder", "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8}
LLAMA |= {"name": "m", "seq_len": 4096, "layers": 2, "vocab": 32000, "tied_embeddings": False}


def run_on(framework="torchtitan", **fields):
    """A run of a model of two layers."""
    fields = {"model": LLAMA, "micro_batch": 1, "software": {"framework": framework}} | fields
    return run_of("a", **fields)


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
    told = {"peak_mem_gib": 40.0, "mem_metric": "torch peak memory active (GiB)"}
    assert metric_of(run_of("a", measured=told)) == "allocated"


@each_row(
    ("version", "year", "stack"),
    [
        ("pytorch 2.7.0a0, torchao 0.10.0, torchtitan 0.0.2", 2025, "torchtitan-2024"),
        ("torchtitan 0.1.0", 2025, "torchtitan-2024"),
        ("torchtitan 0.2.0", 2025, "torchtitan-2025"),
        ("torchtitan 2c8b594", 2025, "torchtitan-2025"),
        (None, 2025, "torchtitan-2025"),
        (None, 2024, "torchtitan-2024"),
    ],
)
def test_releases_of_torchtitan(version, year, stack):
    said = {"framework": "torchtitan", "version": version}
    assert stack_of(run_on(software=said, year=year), []).name == stack
