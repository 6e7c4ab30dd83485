"""What a stack does, as fields of Megatron-Core's configuration, and the way back."""

from shardwise.config.enums import (
    AttentionImplementation,
    CudaGraphs,
    Dispatcher,
    Dtype,
    FlashKernel,
    GradientDtype,
    Recompute,
    RecomputePart,
)
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.launchers.megatron.core_reading import CoreReading, Value

_LOSSES = {"none": "megatron-lm-2024", "native": "megatron-lm-2026", "te": "megatron-bridge-2026"}
"""Implementations of cross entropy, and a stack of the catalog with its figures."""
_LOSS_FIGURES = ("loss_forward_bytes", "loss_backward_bytes", "loss_saved_bytes")
_WHOLE_LAYERS = "full"
"""Old spelling of no modules in cuda_graph_scope."""


def stack_fields(model: Model, strategy: Strategy) -> dict[str, Value]:
    """Fields of the software of a plan."""
    stack = strategy.loaded_stack()
    unfused = stack.attention == AttentionImplementation.UNFUSED
    kernel = "auto" if stack.flash_kernel == FlashKernel.BEST else "flash"
    loss = _loss_of(stack)
    torch_fsdp = strategy.zero > 1 and not strategy.fsdp_reshard
    fields: dict[str, Value] = {
        "attention_backend": "unfused" if unfused else kernel,
        "grad_reduce_in_fp32": stack.gradient_dtype == GradientDtype.FP32,
        "gradient_accumulation_fusion": stack.fused_gradient_accumulation and not torch_fsdp,
        "make_vocab_size_divisible_by": stack.vocab_multiple,
        "cross_entropy_loss_fusion": loss != "none",
        "cross_entropy_fusion_impl": loss if loss != "none" else None,
        "bias_activation_fusion": stack.fused_swiglu,
        "activation_func_fp8_input_store": stack.quantized_activation_input,
    }
    if model.has_experts:
        fields |= {"moe_grouped_gemm": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32"}
    return fields | _graph_fields(model, strategy, stack.cuda_graphs)


def _loss_of(stack: Stack) -> str:
    """Implementation of cross entropy whose figures are closest to those of a stack."""

    def distance(name: str) -> float:
        other = Stack.load(_LOSSES[name])
        return sum(abs(getattr(stack, one) - getattr(other, one)) for one in _LOSS_FIGURES)

    return min(_LOSSES, key=distance)


def _graph_fields(model: Model, strategy: Strategy, graphs: CudaGraphs) -> dict[str, Value]:
    if graphs == CudaGraphs.NONE:
        return {"cuda_graph_impl": "none", "cuda_graph_modules": None}
    if graphs == CudaGraphs.FULL:
        return {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": None}
    parts = strategy.recompute_parts if strategy.recompute == Recompute.SELECTIVE else ()
    modules = ["attn"]
    if not model.has_experts:
        modules.append("mlp")
    elif RecomputePart.MOE not in parts:
        modules.append("moe_router")
        padded = strategy.expert_capacity is not None
        if not (padded and strategy.dispatcher == Dispatcher.ALL_TO_ALL):
            modules.append("moe_preprocess")
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": tuple(modules)}


def read_stack(reading: CoreReading) -> None:
    """Read what `stack_fields` writes."""
    backend = reading.word("attention_backend", ("auto", "flash", "fused", "unfused", "local"))
    unfused = backend in ("unfused", "local")
    kinds = AttentionImplementation
    reading.override("attention", kinds.UNFUSED if unfused else kinds.FLASH)
    if not unfused:
        is_flash = backend == "flash"
        reading.override("flash_kernel", FlashKernel.FLASH2 if is_flash else FlashKernel.BEST)
    fp32 = reading.flag("grad_reduce_in_fp32")
    if reading.strategy.get("dtype") != Dtype.FP32:
        reading.override("gradient_dtype", GradientDtype.FP32 if fp32 else GradientDtype.COMPUTE)
    fused = reading.flag("gradient_accumulation_fusion")
    # torch FSDP2 has no fusion: what a stack would do is left as it is.
    if fused != reading.stack.fused_gradient_accumulation and not reading.flag("use_torch_fsdp2"):
        reading.override("fused_gradient_accumulation", fused)
        if not fused:
            reading.override("weight_gradient_buffers", False)
    multiple = reading.positive("make_vocab_size_divisible_by", reading.stack.vocab_multiple)
    reading.override("vocab_multiple", multiple)
    quantized_input = reading.flag("activation_func_fp8_input_store")
    reading.override("quantized_activation_input", quantized_input)
    gated, fused_gate = reading.flag("gated_linear_unit"), reading.flag("bias_activation_fusion")
    if gated:
        reading.override("fused_swiglu", fused_gate)
    _read_loss(reading)
    _read_graphs(reading)
    _read_expert_kernels(reading)


def _read_loss(reading: CoreReading) -> None:
    fused = reading.flag("cross_entropy_loss_fusion")
    kind = reading.word("cross_entropy_fusion_impl", ("native", "te", "linear")) or "native"
    figures = Stack.load(_LOSSES[kind if kind in _LOSSES else "te"] if fused else _LOSSES["none"])
    if fused and kind not in _LOSSES:
        reading.note("cross_entropy_fusion_impl", "predicted as te")
    for name in _LOSS_FIGURES:
        reading.override(name, getattr(figures, name))


def _read_graphs(reading: CoreReading) -> None:
    kinds = ("none", "local", "transformer_engine", "full_iteration")
    kind = reading.word("cuda_graph_impl", kinds)
    modules = reading.words("cuda_graph_modules") or reading.words("cuda_graph_scope")
    graphs = CudaGraphs.NONE
    if kind == "full_iteration" or (kind == "local" and "full_iteration" in modules):
        graphs = CudaGraphs.FULL
    elif kind not in (None, "none"):
        graphs = CudaGraphs.PARTIAL
        captured = {"attn", "moe_router", "moe_preprocess", "mlp", _WHOLE_LAYERS}
        if set(modules) - captured:
            reading.note("cuda_graph_modules", "predicted as all of a layer but its experts")
    reading.override("cuda_graphs", graphs)


def _read_expert_kernels(reading: CoreReading) -> None:
    grouped, permuted = (reading.flag(name) for name in ("moe_grouped_gemm", "moe_permute_fusion"))
    reading.value("moe_router_dtype")
    if not reading.whole("num_moe_experts"):
        return
    if not grouped:
        reading.note("moe_grouped_gemm", "off: predicted as on")
    if not permuted:
        reading.note("moe_permute_fusion", "off: predicted as on")
