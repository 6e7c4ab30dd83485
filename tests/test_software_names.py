"""What people write for the software that trains: which trainer, engine and kernels it stands for.

Each row has a description, a system, the month of the run (empty: not known), a model, and the
words that the candidates have for each field: one, or all of a mixture.
"""

import pytest

from shardwise import Model, System
from shardwise.config.software.resolve import Match, resolve
from shardwise.config.software.words import software_of

DENSE, EXPERTS, MANY = "llama3-8b", "mixtral-8x7b", "deepseek-v3"
H100, A100, A800, H800 = "h100-sxm", "a100-80gb-sxm", "a800-sxm", "h800-sxm"
B200, GB200, B300, GB300 = "b200-sxm", "gb200-nvl72", "b300-sxm", "gb300-nvl72"
MI300X, MI355X, ASCEND, TRAINIUM = "mi300x", "mi355x", "ascend-910b", "trainium1"
GAUDI, XE, TPU = "gaudi2", "max1550-tile", "tpu-v5p"

NAMES: tuple[tuple[str, str, str, str, dict[str, str]], ...] = (
    ("Megatron-LM", H100, "2024-08", DENSE, {"trainer": "megatron-lm", "engine": "dist_opt", "stack": "megatron-lm-2024", "attention_kernel": "te", "loss": "vocab_parallel", "grad_sync": "step", "gradient_dtype": "fp32"}),
    ("Megatron-LM", A100, "2021-04", DENSE, {"trainer": "megatron-lm", "engine": "ddp", "stack": "megatron-lm-2022", "attention_kernel": "unfused"}),
    ("megatron lm", A100, "2023-06", DENSE, {"stack": "megatron-lm-2024", "attention_kernel": "te|flash2|unfused"}),
    ("Megatron-LM (2026)", H100, "", DENSE, {"trainer": "megatron-lm", "stack": "megatron-lm-2026"}),
    ("Megatron-LM core_v0.13", H100, "", DENSE, {"trainer": "megatron-lm", "stack": "megatron-lm-2024"}),
    ("MCore main 2026-08", GB200, "", EXPERTS, {"trainer": "megatron-lm", "stack": "megatron-lm-2026", "dispatcher": "all_to_all|all_gather"}),
    ("Megatron-LM (mcore) + TransformerEngine", H100, "2025-07", EXPERTS, {"trainer": "megatron-lm", "dispatcher": "all_to_all|all_gather|deepep", "expert_kernel": "calls"}),
    ("Megatron-LM functional-test golden values, main 2026-08", H100, "", DENSE, {"trainer": "megatron-lm", "stack": "megatron-lm-2024"}),
    ("NeMo Megatron-Core", H100, "2025-06", DENSE, {"trainer": "nemo", "engine": "dist_opt", "stack": "nemo-2025", "attention_kernel": "te", "loss": "vocab_parallel_fused", "gradient_dtype": "fp32", "grad_sync": "step"}),
    ("NeMo / Megatron-Core, nemo:25.04.01", H100, "", DENSE, {"trainer": "nemo", "stack": "nemo-2025"}),
    ("NeMo performance summary 25.02 DGX-B200 FP8", B200, "", DENSE, {"trainer": "nemo", "stack": "nemo-2025", "gradient_dtype": "compute"}),
    ("NeMo Megatron", TRAINIUM, "2024-02", DENSE, {"trainer": "neuronx-distributed", "stack": "neuronx-2024"}),
    ("NeMo Megatron", H100, "2024-02", DENSE, {"trainer": "nemo", "stack": "nemo-2025"}),
    ("NeuronX Distributed 0.9", TRAINIUM, "", DENSE, {"trainer": "neuronx-distributed", "stack": "neuronx-2024"}),
    ("NeMo-Megatron (BigNLP)", A100, "2022-03", DENSE, {"trainer": "nemo", "stack": "megatron-lm-2022", "attention_kernel": "unfused"}),
    ("nvcr.io/nvidia/nemo:25.09", H100, "", DENSE, {"trainer": "megatron-bridge|automodel", "engine": "dist_opt|fsdp2", "stack": "megatron-bridge-2025|automodel-2025"}),
    ("NVIDIA NeMo Framework", H100, "2026-02", DENSE, {"trainer": "megatron-bridge|automodel"}),
    ("Megatron-Bridge / Megatron-Core v0.2.0", GB200, "", DENSE, {"trainer": "megatron-bridge", "stack": "megatron-bridge-2025", "loss": "in_place|vocab_parallel_fused"}),
    ("Megatron-Bridge performance summary, NeMo container 26.04", GB300, "", MANY, {"trainer": "megatron-bridge", "dispatcher": "hybridep", "cuda_graphs": "partial", "gradient_dtype": "compute"}),
    ("NeMo Megatron-Bridge 26.06", H100, "", EXPERTS, {"trainer": "megatron-bridge", "dispatcher": "all_to_all", "cuda_graphs": "none", "gradient_dtype": "fp32"}),
    ("NeMo AutoModel (PyTorch FSDP2)", H100, "2025-10", DENSE, {"trainer": "automodel", "engine": "fsdp2", "stack": "automodel-2025", "grad_sync": "step", "gradient_dtype": "compute"}),
    ("Megatron-DeepSpeed (BigScience)", A100, "2022-01", DENSE, {"trainer": "megatron-deepspeed", "engine": "deepspeed0|deepspeed1", "stack": "megatron-deepspeed-2022", "attention_kernel": "unfused"}),
    ("Megatron-DeepSpeed (ALCF)", XE, "2025-08", DENSE, {"trainer": "megatron-deepspeed", "stack": "megatron-deepspeed-2024"}),
    ("Megatron-DeepSpeed (Intel Gaudi fork), SynapseAI 1.19.0", GAUDI, "", DENSE, {"stack": "gaudi-2025"}),
    ("GPT-NeoX (DeepSpeed)", A100, "2023-04", DENSE, {"trainer": "gpt-neox", "engine": "deepspeed1", "stack": "gpt-neox-2023", "attention_kernel": "flash1|unfused"}),
    ("Pai-Megatron-Patch", A800, "2024-07", DENSE, {"trainer": "pai-megatron-patch", "stack": "megatron-lm-2024"}),
    ("ModelLink (Megatron-LM + MindSpeed)", ASCEND, "2024-07", DENSE, {"trainer": "mindspeed", "stack": "mindspeed-2024", "attention_kernel": "npu|unfused"}),
    ("Megatron-LM", ASCEND, "2025-03", DENSE, {"trainer": "mindspeed", "stack": "mindspeed-2024"}),
    ("FlagScale (Megatron-LM)", A800, "2023-09", DENSE, {"trainer": "flagscale", "stack": "megatron-lm-2024"}),
    ("Primus (Megatron)", MI300X, "2026-01", DENSE, {"trainer": "primus", "engine": "dist_opt", "stack": "primus-2026"}),
    ("Primus", MI355X, "2026-01", DENSE, {"trainer": "primus", "engine": "dist_opt|fsdp2", "stack": "primus-2026"}),
    ("HF Trainer", H100, "2024-03", DENSE, {"trainer": "transformers", "engine": "ddp|fsdp1", "attention_kernel": "sdpa", "loss": "eager"}),
    ("Hugging Face Trainer", A100, "2023-08", DENSE, {"trainer": "transformers", "attention_kernel": "unfused"}),
    ("HF Trainer, bf16, flash-attn 2, ZeRO-2", A100, "2024-06", DENSE, {"trainer": "transformers", "engine": "deepspeed2", "stack": "deepspeed-2024", "attention_kernel": "flash2", "grad_sync": "micro_batch"}),
    ("HF Trainer FSDP", H100, "2026-03", DENSE, {"trainer": "transformers", "engine": "fsdp1|fsdp2"}),
    ("HF Trainer FSDP2", H100, "2025-08", DENSE, {"engine": "fsdp2", "grad_sync": "micro_batch"}),
    ("HF Trainer FSDP2", H100, "2025-12", DENSE, {"engine": "fsdp2", "grad_sync": "step"}),
    ("transformers 4.47", H100, "", EXPERTS, {"trainer": "transformers", "expert_kernel": "loop"}),
    ("transformers 5.0", H100, "", EXPERTS, {"trainer": "transformers", "expert_kernel": "grouped"}),
    ("accelerate + DeepSpeed ZeRO-3, flash attention 2", H100, "2026-03", DENSE, {"trainer": "accelerate", "engine": "deepspeed3", "stack": "deepspeed-2026", "attention_kernel": "flash2", "loss": "eager", "grad_sync": "micro_batch"}),
    ("HF PEFT + Accelerate FSDP", H100, "2024-10", DENSE, {"trainer": "transformers|peft|accelerate", "engine": "fsdp1", "stack": "huggingface-2024"}),
    ("HF Transformers + PEFT + DeepSpeed", A100, "2023-10", DENSE, {"engine": "deepspeed2|deepspeed3", "stack": "deepspeed-2024", "attention_kernel": "unfused"}),
    ("HF Trainer/TRL + accelerate FSDP + fms-acceleration", A100, "2024-07", DENSE, {"trainer": "fms-acceleration", "engine": "fsdp1", "stack": "huggingface-2024", "attention_kernel": "flash2"}),
    ("TRL SFT 1.6", H100, "", DENSE, {"trainer": "trl", "loss": "eager"}),
    ("TRL 1.7 SFTTrainer", H100, "", DENSE, {"trainer": "trl", "loss": "chunked_recompute"}),
    ("axolotl", A100, "2024-03", DENSE, {"trainer": "axolotl", "engine": "deepspeed3|deepspeed2|fsdp1|fsdp2", "attention_kernel": "flash2|sdpa"}),
    ("Axolotl + DeepSpeed ZeRO-3", A100, "2024-03", DENSE, {"trainer": "axolotl", "engine": "deepspeed3", "stack": "deepspeed-2024"}),
    ("LLaMA-Factory", A100, "2024-03", DENSE, {"trainer": "llama-factory", "engine": "deepspeed3|fsdp1|ddp"}),
    ("LLaMA Factory, DeepSpeed ZeRO-3", A100, "2024-03", DENSE, {"trainer": "llama-factory", "engine": "deepspeed3", "stack": "deepspeed-2024", "attention_kernel": "sdpa"}),
    ("ms-swift", A800, "2025-06", DENSE, {"trainer": "ms-swift|megatron-swift"}),
    ("ms-swift + Megatron", A800, "2025-06", DENSE, {"engine": "dist_opt", "loss": "vocab_parallel_fused"}),
    ("Megatron-SWIFT", H800, "2025-06", DENSE, {"trainer": "megatron-swift", "engine": "dist_opt", "loss": "vocab_parallel_fused"}),
    ("Unsloth", "rtx-4090", "2024-12", DENSE, {"trainer": "unsloth", "loss": "cut", "attention_kernel": "flash2|efficient|sdpa"}),
    ("Unsloth + TRL SFTTrainer", "rtx-4090", "2026-07", DENSE, {"trainer": "unsloth", "loss": "chunked"}),
    ("open-r1", H100, "2025-02", DENSE, {"trainer": "open-r1", "engine": "deepspeed3|deepspeed2"}),
    ("DeepSpeed ZeRO-3", A100, "2021-06", DENSE, {"trainer": "deepspeed", "engine": "deepspeed3", "stack": "deepspeed-2021", "attention_kernel": "unfused"}),
    ("DeepSpeed ZeRO-2", A100, "2024-06", DENSE, {"trainer": "deepspeed", "engine": "deepspeed2", "stack": "deepspeed-2024", "attention_kernel": "flash2|sdpa|unfused"}),
    ("FooTrain + DeepSpeed ZeRO-3 + FlashAttention-2", A100, "2024-06", DENSE, {"trainer": "deepspeed", "engine": "deepspeed3", "attention_kernel": "flash2"}),
    ("TorchTitan", B200, "2025-10", MANY, {"trainer": "torchtitan", "engine": "fsdp2", "attention_kernel": "triton", "compile": "loss", "expert_kernel": "grouped", "grad_sync": "micro_batch"}),
    ("TorchTitan", H100, "2025-08", DENSE, {"trainer": "torchtitan", "attention_kernel": "sdpa", "compile": "none|layers"}),
    ("TITAN", H100, "2025-11", DENSE, {"trainer": "torchtitan", "attention_kernel": "cudnn"}),
    ("torchtitan nightly 2026-08", H100, "", DENSE, {"trainer": "torchtitan", "loss": "chunked", "attention_kernel": "cudnn"}),
    ("torchtitan 0.0.2, torchao 0.10.0, torch.compile", H100, "", DENSE, {"trainer": "torchtitan", "stack": "torchtitan-2024", "compile": "layers"}),
    ("torchtitan without compile", A100, "2024-06", DENSE, {"stack": "torchtitan-eager", "loss": "eager"}),
    ("torchtune", A100, "2024-12", DENSE, {"trainer": "torchtune", "engine": "fsdp2", "stack": "torchtune-2024", "loss": "chunked_logits", "master_dtype": "none"}),
    ("PyTorch FSDP", A100, "2023-10", DENSE, {"trainer": "pytorch", "engine": "fsdp1", "attention_kernel": "sdpa"}),
    ("PyTorch FSDP + torch.compile", H100, "2024-03", DENSE, {"trainer": "pytorch", "engine": "fsdp1", "stack": "torchtitan-2024"}),
    ("FSDP2 + torch.compile", H100, "2025-06", DENSE, {"trainer": "pytorch", "engine": "fsdp2", "compile": "layers|whole", "attention_kernel": "sdpa"}),
    ("PyTorch DDP", A100, "2023-10", DENSE, {"trainer": "pytorch", "engine": "ddp", "grad_sync": "step"}),
    ("nanotron", H100, "2025-03", DENSE, {"trainer": "nanotron", "engine": "ddp|dist_opt", "attention_kernel": "flash2", "gradient_dtype": "fp32|compute"}),
    ("marin (quotes nanotron)", H100, "2025-03", DENSE, {"trainer": "levanter|nanotron"}),
    ("llm-foundry/Composer (PyTorch FSDP)", A100, "2023-05", DENSE, {"trainer": "llm-foundry", "engine": "fsdp1", "stack": "composer-2023", "attention_kernel": "flash1"}),
    ("MosaicML Composer", H100, "2023-11", DENSE, {"trainer": "llm-foundry", "attention_kernel": "flash2"}),
    ("OLMo-core", H100, "2025-06", DENSE, {"trainer": "olmo-core", "engine": "fsdp2", "loss": "eager", "grad_sync": "micro_batch"}),
    ("lingua", H100, "2025-01", DENSE, {"trainer": "lingua", "engine": "fsdp2"}),
    ("IBM fms-fsdp", A100, "2024-03", DENSE, {"trainer": "fms-fsdp", "stack": "torchtitan-2024"}),
    ("KempnerForge", H100, "2026-06", DENSE, {"trainer": "kempnerforge", "engine": "fsdp2", "grad_sync": "step"}),
    ("prime-rl", H100, "2026-08", DENSE, {"trainer": "prime-rl", "attention_kernel": "flash3"}),
    ("prime-rl", A100, "2026-08", DENSE, {"trainer": "prime-rl", "attention_kernel": "flash2"}),
    ("Lit-GPT", A100, "2023-09", DENSE, {"trainer": "lightning", "loss": "eager|chunked_logits"}),
    ("llm.c", H100, "2024-07", DENSE, {"trainer": "llm.c", "loss": "in_place", "attention_kernel": "cudnn|unfused"}),
    ("llmq", "rtx-4090", "2025-10", DENSE, {"trainer": "llmq", "loss": "in_place"}),
    ("modded-nanogpt", H100, "2025-10", DENSE, {"trainer": "modded-nanogpt", "attention_kernel": "flash3"}),
    ("nanochat", H100, "2025-11", DENSE, {"trainer": "nanochat", "attention_kernel": "sdpa"}),
    ("MaxText/JAX", TPU, "2025-03", DENSE, {"trainer": "maxtext", "engine": "xla_spmd", "stack": "maxtext-2024", "attention_kernel": "splash"}),
    ("MaxText", H100, "2025-01", DENSE, {"trainer": "maxtext", "attention_kernel": "cudnn|unfused"}),
    ("AXLearn", TPU, "2025-07", DENSE, {"trainer": "axlearn", "stack": "maxtext-2024"}),
    ("Levanter", TPU, "2024-07", DENSE, {"trainer": "levanter", "stack": "maxtext-2024", "attention_kernel": "splash"}),
    ("Pax/JAX (24.04)", H100, "2024-04", DENSE, {"trainer": "pax", "stack": "maxtext-2024"}),
    ("EasyLM", TPU, "2023-06", DENSE, {"trainer": "easylm", "stack": "maxtext-2024"}),
    ("JAX", TPU, "2025-01", DENSE, {"stack": "maxtext-2024"}),
    ("verl", H100, "2025-08", DENSE, {"trainer": "verl", "engine": "fsdp1|fsdp2|dist_opt", "attention_kernel": "flash2|te"}),
    ("verl FSDP2 (eager)", H100, "2025-08", DENSE, {"trainer": "verl", "engine": "fsdp2"}),
    ("verl 0.7.1, Megatron", H800, "", DENSE, {"trainer": "verl", "engine": "dist_opt", "loss": "vocab_parallel"}),
    ("OpenRLHF 0.3", A100, "", DENSE, {"trainer": "openrlhf", "engine": "deepspeed3|deepspeed2"}),
    ("slime", H100, "2025-09", DENSE, {"trainer": "slime", "engine": "dist_opt|fsdp2"}),
    ("NeMo-RL v0.4", H100, "", DENSE, {"trainer": "nemo-rl", "engine": "dist_opt|fsdp2"}),
    ("AReaL 0.3", H800, "", DENSE, {"trainer": "areal", "engine": "dist_opt|fsdp2"}),
    ("HAI-LLM (DualPipe, DeepEP)", H800, "2024-12", MANY, {"trainer": "hai-llm", "stack": "deepseek-2024", "dispatcher": "deepep"}),
    ("MegaScale", A800, "2024-02", DENSE, {"trainer": "megascale", "stack": "megatron-lm-2024", "grad_sync": "step"}),
    ("Meta internal 4D parallel (FSDP+TP+PP+CP)", H100, "2024-07", DENSE, {"trainer": "meta", "stack": "meta-2024"}),
    ("in-house", H100, "2025-01", DENSE, {"trainer": "in-house", "stack": "unknown"}),
    ("our framework + DeepSpeed ZeRO-3 + FlashAttention-2", H100, "2025-01", DENSE, {"trainer": "in-house", "engine": "deepspeed3", "attention_kernel": "flash2", "grad_sync": "micro_batch"}),
    ("InternEvo/InternLM-train v0.2.1dev", A800, "2023-11", DENSE, {"trainer": "internevo", "stack": "internevo-2023"}),
    ("PaddlePaddle/PaddleNLP 2.8", A100, "", DENSE, {"trainer": "paddlenlp", "stack": "paddlenlp-2024"}),
    ("LiBai (OneFlow)", A100, "2022-03", DENSE, {"trainer": "oneflow", "stack": "oneflow-2021"}),
    ("Colossal-AI", A100, "2024-01", DENSE, {"trainer": "colossal-ai", "attention_kernel": "flash2|unfused"}),
    ("MLPerf Training v5.1, NVIDIA NeMo Framework Release 25.09", H100, "", DENSE, {"stack": "mlperf-2024", "cuda_graphs": "full", "gradient_dtype": "compute"}),
    ("MLPerf Training v5.0: PyTorch 2.6.0, ROCm 6.4", MI300X, "", DENSE, {"trainer": "mlperf", "stack": "mlperf-2024"}),
    ("MLPerf Training v4.1, MaxText", TPU, "", DENSE, {"trainer": "maxtext", "stack": "maxtext-2024"}),
    ("SimuMax measured runs of Megatron-LM", B200, "2026-01", EXPERTS, {"trainer": "simumax", "stack": "megatron-lm-2024"}),
    ("Calculon", A100, "", DENSE, {"trainer": "calculon", "stack": "calculon", "attention_kernel": "unfused"}),
    ("PyTorch + flash-attn fused layers", A100, "2022-12", DENSE, {"trainer": "flash-attention", "attention_kernel": "flash1", "loss": "in_place"}),
)  # fmt: skip


def _match(text: str, system: str, date: str, model: str) -> Match:
    software = software_of(text)
    if date:
        software = software.model_copy(update={"date": date})
    return resolve(software, System.load(system), Model.load(model))


def _words(match: Match, field: str) -> set[str]:
    """Words that the candidates of a match have for a field."""
    if field == "stack":
        return {one.stack.name for one in match.candidates}
    if field in ("trainer", "engine"):
        return {str(getattr(one, field)) for one in match.candidates}
    return {str(one.options.get(field)) for one in match.candidates}


@pytest.mark.parametrize(("text", "system", "date", "model", "expected"), NAMES)
def test_names_of_software_resolve(text, system, date, model, expected):
    """Each description stands for these words, and a mixture or a guess is printed."""
    match = _match(text, system, date, model)
    assert {name: _words(match, name) for name in expected} == {
        name: set(words.split("|")) for name, words in expected.items()
    }
    assert sum(one.weight for one in match.candidates) == pytest.approx(1)
    assert match.how != "unknown"
    if len(match.candidates) > 1:
        assert any(note.startswith("may be ") for note in match.notes)


def test_software_that_is_not_known_says_so():
    """A name that no trainer has gets the figures of unknown software, and a note."""
    match = _match("FooTrain", H100, "2025-01", DENSE)
    assert match.how == "unknown"
    assert match.stack.name == "unknown"
    assert match.notes
