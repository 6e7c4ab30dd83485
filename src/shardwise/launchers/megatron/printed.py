"""Defaults of arguments that every run prints and that set no field here.

Of megatron-core 0.16.1 (TransformerConfig, ModelParallelConfig, DistributedDataParallelConfig,
OptimizerConfig) and of Megatron-LM d98e8a64 of 2026-08-22 (megatron/training/arguments.py).
"""

from collections.abc import Mapping

ON_BY_DEFAULT = frozenset(
    {
        "--align-grad-reduce",
        "--align-param-gather",
        "--apply-rope-fusion",
        "--async-tensor-model-parallel-allreduce",
        "--batch-p2p-comm",
        "--batch-p2p-sync",
        "--bias-dropout-fusion",
        "--bias-gelu-fusion",
        "--clone-scatter-output-in-embedding",
        "--cpu-offloading-activations",
        "--decoupled-weight-decay",
        "--fp8-wgrad",
        "--gradient-reduce-div-fusion",
        "--manual-gc-eval",
        "--masked-softmax-fusion",
        "--persist-layer-norm",
        "--pin-cpu-grads",
        "--pin-cpu-params",
        "--pin-memory",
        "--preserve-fp32-weights",
        "--rope-fusion",
        "--scatter-gather-tensors-in-pipeline",
        "--store-param-remainders",
        "--tp-comm-bulk-dgrad",
        "--tp-comm-bulk-wgrad",
        "--tp-comm-overlap-ag",
        "--tp-comm-overlap-rs",
        "--tp-comm-split-ag",
        "--tp-comm-split-rs",
        "--use-mamba-mem-eff-path",
    }
)
"""Those that are true without an option."""
USUAL: Mapping[str, tuple[str, ...]] = {
    "--activation-offload-fraction": ("1.0",),
    "--cpu-offloading-num-layers": ("0",),
    "--cuda-graph-warmup-steps": ("3",),
    "--kitchen-attention-backend": ("sdpa",),
    "--linear-conv-kernel-dim": ("4",),
    "--linear-key-head-dim": ("128",),
    "--linear-num-key-heads": ("16",),
    "--linear-num-value-heads": ("32",),
    "--linear-value-head-dim": ("128",),
    "--main-grads-dtype": ("fp32", "torch.float32"),
    "--main-params-dtype": ("fp32", "torch.float32"),
    "--mamba-head-dim": ("64",),
    "--mamba-num-groups": ("8",),
    "--mamba-state-dim": ("128",),
    "--min-offloaded-tensor-size": ("1048576",),
    "--mlp-chunks-for-prefill": ("1",),
    "--outer-dp-sharding-strategy": ("no_shard",),
    "--qk-clip-alpha": ("0.5",),
    "--qk-clip-threshold": ("100",),
    "--tp-comm-bootstrap-backend": ("nccl",),
    "--wgrad-deferral-limit": ("0",),
}
"""Values that the others have without an option; else 0."""
