"""What a configuration of Megatron-Core says of the stack, and how its fields are read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.config import enums
from shardwise.config.launch import NotUnderstood
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.launch import captured_graphs

Value = bool | int | float | str | None | tuple["Value", ...]
"""Value of a field: numbers, words (also of types: bf16), lists as tuples."""
Fields = Mapping[str, Value]
"""Fields of Megatron-Core's configuration by name."""


@dataclass(slots=True, kw_only=True)
class CoreReading:
    """A configuration of Megatron-Core on its way to a model and a strategy."""

    fields: Fields
    """Fields that a file sets."""
    defaults: Fields
    """What the launcher uses where a file sets nothing."""
    stack: Stack
    """Software whose figures apply where a field says nothing else."""
    source: str
    option: Callable[[str], str]
    """How the launcher writes a field, for messages."""
    strategy: dict[str, object] = field(default_factory=dict)
    overrides: dict[str, object] = field(default_factory=dict)
    """Fields of the stack that differ."""
    decided: dict[str, object] = field(default_factory=dict)
    """Fields of the stack that are set, with those that do not differ."""
    not_understood: list[NotUnderstood] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def value(self, name: str) -> Value:
        """Return the value of a field, or its default."""
        self.used.add(name)
        found = self.fields.get(name)
        return self.defaults.get(name) if found is None else found

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        found = self.value(name)
        if isinstance(found, bool) or found is None:
            return bool(found)
        self.fault(name, found, "must be true or false")
        return False

    def whole(self, name: str) -> int | None:
        """Return a field that is a whole number, or None."""
        found = self.value(name)
        if isinstance(found, float) and found.is_integer():
            return int(found)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        self.fault(name, found, "must be a whole number")
        return None

    def positive(self, name: str, default: int = 1) -> int:
        """Return a field that is a whole number of at least 1."""
        found = self.whole(name)
        if found is None:
            return default
        if found < 1:
            self.fault(name, found, "must be at least 1")
            return default
        return found

    def experts(self) -> int | None:
        """Return the number of experts; None where there are none, which one expert means, too."""
        found = self.whole("num_moe_experts")
        return found if found and found > 1 else None

    def number(self, name: str) -> float | None:
        """Return a field that is a number, or None."""
        found = self.value(name)
        if found is None or (isinstance(found, (int, float)) and not isinstance(found, bool)):
            return found
        self.fault(name, found, "must be a number")
        return None

    def word(self, name: str, allowed: Sequence[str] = ()) -> str | None:
        """Return a field that is a word, in lower case, or None."""
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, str):
            self.fault(name, found, "must be a word")
            return None
        word = found.lower()
        if allowed and word not in allowed:
            self.fault(name, found, f"allowed: {', '.join(allowed)}")
            return None
        return word

    def words(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of words; a single word stands for a list of it."""
        found = self.value(name)
        listed = found if isinstance(found, tuple) else (found,) if found else ()
        return tuple(str(one) for one in listed)

    def fault(self, name: str, value: object, problem: str) -> None:
        """Note that a value is wrong."""
        self.faults.append(Fault.of(self.option(name), value, problem, self.source))

    def missing(self, name: str, problem: str = "is missing: set it") -> None:
        """Note that a field is needed."""
        fault = Fault(source=self.source, field=self.option(name), problem=problem)
        self.faults.append(fault)

    def note(self, name: str, because: str) -> None:
        """Note a field whose value the prediction does not use."""
        value = self.value(name)
        shown = False if value is None else value
        one = NotUnderstood(option=self.option(name), value=shown, because=because)
        if one not in self.not_understood:
            self.not_understood.append(one)

    def set(self, name: str, value: object) -> None:
        """Set a field of the strategy."""
        self.strategy[name] = value

    def override(self, name: str, value: object) -> None:
        """Set a field of the stack, if it has another value."""
        self.decided[name] = value
        if getattr(self.stack, name) != value:
            self.overrides[name] = value


_LOSSES = {enums.Loss.VOCAB_PARALLEL_FUSED: "native", enums.Loss.IN_PLACE: "te"}
"""Implementations of the fused cross entropy."""
_BACKENDS = {
    enums.AttentionKernel.BEST: "auto",
    enums.AttentionKernel.UNFUSED: "unfused",
    enums.AttentionKernel.FLASH2: "flash",
    enums.AttentionKernel.CUDNN: "fused",
}
"""Words of attention_backend; `flash` is whichever FlashAttention is installed."""
_STEP = "full_iteration"
_WHOLE_LAYERS = "full"
"""Old spelling of no modules in cuda_graph_scope."""


def _backend(strategy: Strategy) -> str | None:
    """The attention backend of a plan; None: left to the default, which is auto."""
    kernel = strategy.attention_kernel
    if kernel == enums.AttentionKernel.STACK:
        kernel = strategy.loaded_stack().attention_kernel
        return None if kernel == enums.AttentionKernel.BEST else _BACKENDS.get(kernel, "flash")
    return _BACKENDS[kernel]


def attention_faults(strategy: Strategy) -> Iterator[Fault]:
    """Yield an attention kernel that a strategy names and attention_backend does not."""
    if (kernel := strategy.attention_kernel) not in (enums.AttentionKernel.STACK, *_BACKENDS):
        problem = (
            "Megatron-Core: attention_backend names families, and flash is read as flash2; allowed:"
            f" stack, {', '.join(_BACKENDS)}"
        )
        yield Fault.of("attention_kernel", kernel, problem)


def stack_fields(model: Model, strategy: Strategy) -> dict[str, Value]:
    """Fields of the software of a plan."""
    stack = strategy.loaded_stack()
    loss = _LOSSES.get(stack.loss if strategy.loss == enums.Loss.STACK else strategy.loss)
    torch_fsdp = strategy.zero > 1 and not strategy.fsdp_reshard
    fields: dict[str, Value] = {
        "attention_backend": _backend(strategy),
        "grad_reduce_in_fp32": strategy.in_effect("gradient_dtype") == enums.GradientDtype.FP32,
        "gradient_accumulation_fusion": stack.fused_gradient_accumulation and not torch_fsdp,
        "make_vocab_size_divisible_by": stack.vocab_multiple,
        "cross_entropy_loss_fusion": loss is not None,
        "cross_entropy_fusion_impl": loss,
        "bias_activation_fusion": stack.fused_swiglu,
        "activation_func_fp8_input_store": stack.quantized_activation_input,
    }
    if model.has_experts:
        fields |= {"moe_grouped_gemm": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32"}
    return fields | _graph_fields(model, strategy)


def _graph_fields(model: Model, strategy: Strategy) -> dict[str, Value]:
    graphs = captured_graphs(model, strategy)
    if graphs == enums.CudaGraphs.NONE:
        return {"cuda_graph_impl": "none", "cuda_graph_modules": None}
    if graphs == enums.CudaGraphs.FULL:
        return {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": None}
    modules: list[str] = list(strategy.graph_scope or ("attn",))
    if strategy.graph_scope is None:
        parts = strategy.recompute_parts if strategy.recompute == enums.Recompute.SELECTIVE else ()
        if not model.has_experts:
            modules.append("mlp")
        elif enums.RecomputePart.MOE not in parts:
            modules.append("moe_router")
    padded = strategy.expert_capacity is not None
    if "moe_router" in modules and not (
        padded and strategy.dispatcher == enums.Dispatcher.ALL_TO_ALL
    ):
        modules.append("moe_preprocess")
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": tuple(modules)}


def read_stack(reading: CoreReading) -> None:
    """Read what `stack_fields` writes."""
    backend = reading.word("attention_backend", ("auto", "flash", "fused", "unfused", "local"))
    words = {word: kernel for kernel, word in _BACKENDS.items()} | {
        "local": enums.AttentionKernel.UNFUSED
    }
    kernel = words.get(backend or "auto", enums.AttentionKernel.BEST)
    named = reading.fields.get("attention_backend") is not None
    if named or kernel != reading.stack.attention_kernel:
        reading.set("attention_kernel", kernel)
    fp32 = reading.flag("grad_reduce_in_fp32")
    if reading.strategy.get("dtype") != enums.Dtype.FP32:
        reading.override(
            "gradient_dtype", enums.GradientDtype.FP32 if fp32 else enums.GradientDtype.COMPUTE
        )
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
    if fused and kind == "linear":
        reading.note("cross_entropy_fusion_impl", "predicted as te")
    loss = enums.Loss.VOCAB_PARALLEL
    if fused:
        loss = enums.Loss.VOCAB_PARALLEL_FUSED if kind == "native" else enums.Loss.IN_PLACE
    if loss != reading.stack.loss:
        reading.set("loss", loss)


def _read_graphs(reading: CoreReading) -> None:
    kinds = ("none", "local", "transformer_engine", "full_iteration")
    kind = reading.word("cuda_graph_impl", kinds)
    modules = reading.words("cuda_graph_modules") or reading.words("cuda_graph_scope")
    option = "cuda_graph_modules" if reading.words("cuda_graph_modules") else "cuda_graph_scope"
    graphs = enums.CudaGraphs.NONE
    if kind == "full_iteration" or (kind != "transformer_engine" and _STEP in modules):
        graphs = enums.CudaGraphs.FULL
    elif kind not in (None, "none"):
        graphs = enums.CudaGraphs.PARTIAL
        _read_scope(reading, option, modules)
    elif set(modules) - {_WHOLE_LAYERS}:
        reading.note(option, "has no effect without cuda_graph_impl")
    if graphs != reading.stack.cuda_graphs:
        reading.set("cuda_graphs", graphs)


def _read_scope(reading: CoreReading, option: str, modules: tuple[str, ...]) -> None:
    """Modules that graphs of layers capture; where none is named, full layers."""
    experts = reading.experts() is not None
    if not modules or _WHOLE_LAYERS in modules:
        modules = ("attn", "mlp", "moe") if experts else ("attn", "mlp")
    scope = tuple(word for word in enums.GraphScope if word in modules)
    if set(modules) - {*enums.GraphScope, "moe_preprocess", _WHOLE_LAYERS}:
        reading.note(option, "predicted without modules that shardwise has no word for")
    if "moe_preprocess" in modules and "moe_router" not in modules:
        reading.note(option, "moe_preprocess has no effect without moe_router")
    usual = {"attn", "moe_router"} if experts else {"attn", "mlp"}
    if scope and set(scope) - ({"mlp"} if experts else set()) != usual:
        reading.set("graph_scope", scope)


def _read_expert_kernels(reading: CoreReading) -> None:
    grouped, permuted = (reading.flag(name) for name in ("moe_grouped_gemm", "moe_permute_fusion"))
    reading.value("moe_router_dtype")
    if not reading.experts():
        return
    if not grouped:
        reading.note("moe_grouped_gemm", "off: predicted as on")
    if not permuted:
        reading.note("moe_permute_fusion", "off: predicted as on")
