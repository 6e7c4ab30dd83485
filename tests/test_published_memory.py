"""Memory that fine-tuning trainers publish in tables, row by row."""

from typing import Any

from rows import each_row
from shardwise import estimate

GIB = 2**30
TUNE = "torchtune-2024"
IN_BACKWARD = {"base": TUNE, "update_in_backward": True}
NF4 = {"base": TUNE, "base_weights": "nf4"}
# README.md of pytorch/torchtune bd2a0fc7, "Optimization flags": full fine-tuning of Llama 3.2 3B on
# one A100, two packed rows of 4,096 tokens in bf16; each row adds to the one above, but adapters
# have their own optimizer. Peaks of tensors [GiB].
ONE_A100: dict[str, Any] = {"gpus": 1, "mbs": 2, "gbs": 2, "zero": 0, "stack": TUNE}
PACKED = {"seq_len": 4096, "document_len": 256}
OFFLOADED = {"recompute": "full", "offload_activations": True}
FLAGS = [
    ("packed", 60.0, {"compile": "none", "loss": "eager"}),
    ("compile", 51.0, {"loss": "eager", "stack": {"base": TUNE, "loss_saved_bytes": 12.0}}),
    ("chunked loss", 42.9, {}),
    ("checkpoints", 24.9, {"recompute": "full"}),
    ("update in backward", 23.1, {"recompute": "full", "stack": IN_BACKWARD}),
    ("offloaded checkpoints", 21.8, {**OFFLOADED, "stack": IN_BACKWARD}),
    ("LoRA", 8.5, {**OFFLOADED, "lora_rank": 16}),
    ("QLoRA", 4.6, {**OFFLOADED, "lora_rank": 16, "stack": NF4}),
]


@each_row(("row", "published", "fields"), FLAGS)
def test_flags_of_torchtune(row: str, published: float, fields: dict[str, Any]) -> None:
    """Within 10 %. The row with 8-bit AdamW is not met: 17.6 GiB, predicted 15.2.

    torchao's AdamW8bit, which torchtune's guide to memory names first, updates a tensor in fp32: of
    the embedding, which is the head too, each copy of weights, gradient or a moment is 1.47 GiB.
    """
    found = (
        estimate("llama3.2-3b", "a100-80gb-sxm", **ONE_A100 | PACKED | fields).memory_bytes.total
        / GIB
    )
    assert abs(found / published - 1) < 0.1, (row, found)


# The same README, "Memory and training speed": two packed rows of 2,048 tokens. The card of 48 GB
# has more than the one of 24 GB under the same recipe: its rows are without checkpoints.
CARDS = [
    ("rtx-4090", 16.2, {"recompute": "full"}),
    ("rtx-4090", 7.4, {"recompute": "full", "stack": NF4}),
    ("rtx-a6000", 30.3, {"recompute": "none"}),
]


@each_row(("system", "published", "fields"), CARDS)
def test_cards_of_torchtune(system: str, published: float, fields: dict[str, Any]) -> None:
    """Adapters of rank 8 of Llama 3.1 8B on one card, within 10 %."""
    case = {**ONE_A100, "seq_len": 2048, "lora_rank": 8}
    found = estimate("llama3-8b", system, **case | fields).memory_bytes.total / GIB
    assert abs(found / published - 1) < 0.1, (system, found)


@each_row(
    ("system", "published", "recompute"), [("rtx-4090", 18.9, "full"), ("rtx-a6000", 37.4, "none")]
)
def test_paged_state_of_torchtune(system: str, published: float, recompute: str) -> None:
    """Full fine-tuning of 8B with PagedAdamW8bit and the update in backward, within 10 %.

    Its state is memory that CUDA manages (bitsandbytes functional.py, get_paged), which statistics
    of PyTorch's allocator, and so the table, leave out.
    """
    case = {**ONE_A100, "seq_len": 2048, "recompute": recompute, "optimizer": "adamw-8bit"}
    memory = estimate("llama3-8b", system, **case | {"stack": IN_BACKWARD}).memory_bytes
    found = (memory.total - memory.optimizer) / GIB
    assert abs(found / published - 1) < 0.1, (system, found)


# 70B_full.yaml shards embedding and head apart (custom_sharded_layers) and offloads the rest;
# 70B_lora.yaml leaves both to FSDP's root (pytorch/torchtune 30b8519e, of the table). Not met:
# 405B QLoRA, 44.8 GB = 41.7 GiB. Of that, the shards are 25.2 GiB, and checkpoints of the two rows
# that the table states 15.8 GiB, so that nothing is left to gather a layer; one row, as in
# 405B_qlora.yaml, is predicted with 48.3 GiB, of which 7.8 are the embedding and the head.
APART = {"base": TUNE, "whole_ends": False}
EIGHT = [
    (13.9, {"offload_weights": True, "offload_optimizer": True, "stack": APART}),
    (27.6, {"lora_rank": 16}),
]


@each_row(("published", "fields"), EIGHT)
def test_eight_accelerators_of_torchtune(published: float, fields: dict[str, Any]) -> None:
    """Llama 3.1 70B on eight A100, within 10 %."""
    case = {"gpus": 8, "mbs": 2, "gbs": 16, "zero": 3, "seq_len": 2048, "recompute": "full"}
    case |= {"stack": TUNE}
    found = estimate("llama3-70b", "a100-80gb-sxm", **case | fields).memory_bytes.total / GIB
    assert abs(found / published - 1) < 0.1, found


# Wiki of hiyouga/LLaMA-Factory, "Performance comparison" (2024-04): QLoRA of rank 8 on all linear
# layers of Llama 2 7B on one A100 of 40 GB, FlashAttention 2, one sequence; memory of the process
# in full GB. Its rows of Unsloth are of a release with whole logits, which has no stack.
LENGTHS = [(2048, 7), (4096, 9), (8192, 12), (16384, 19), (32768, 32)]


@each_row(("seq_len", "published"), LENGTHS)
def test_lengths_of_llama_factory(seq_len: int, published: int) -> None:
    """Within 10 % and the rounding; 1,024 tokens are not met: 6 GB, predicted 7.2.

    Of these, 2 GiB are the runtime. Steps of few tokens on one A100 in QwenLM/Qwen's table of
    memory need more than is predicted with as much.
    """
    case = {"finetune": "qlora", "lora_rank": 8, "gbs": 4, "zero": 0, "stack": "llama-factory-2024"}
    found = estimate("llama2-7b", "a100-40gb-sxm", seq_len=seq_len, **case).memory_bytes.reserved
    assert abs(found / GIB - published) < 0.1 * published + 0.5, (seq_len, found / GIB)
