"""The `Stack` of a measured run: by framework and release, changed by the features of the row."""

import re

from published_rows.fine_tuning import memory_changes
from published_rows.releases import released
from published_rows.row import Run
from published_rows.words import says_flash
from shardwise.config.enums import AttentionKernel, CudaGraphs, Dispatcher, GradientDtype
from shardwise.config.stack import Stack

# First year of torchtitan's compiled loss, and of Megatron-LM with Transformer Engine.
_COMPILED_LOSS, _TRANSFORMER_ENGINE = 2025, 2023

UNKNOWN_STACK = "unknown"
"""Stack of rows that name no software, or software that no stack is of."""
_MANY_EXPERTS = 256
_FUSED_TYPES = ("mxfp8", "nvfp4")

# Stacks whose tensor-parallel communication runs in pieces next to its GEMMs if a run says so,
# and the one that has it so.
_PLAIN_MEGATRON = "megatron-lm-2024"
_OVERLAP_IS_OPTION = (_PLAIN_MEGATRON, "mindspeed-2024")
_USER_BUFFERS = "megatron-core-2025"

# Stacks of the catalog by framework (and the source of rows that name none); the first match.
_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"llm-foundry|Composer", "composer-2023"),
    (r"torchtitan|torchao", "torchtitan-2024"),
    (r"InternEvo|InternLM", "internevo-2023"),
    (r"Paddle", "paddlenlp-2024"),
    (r"OneFlow", "oneflow-2021"),
    (r"AutoModel", "automodel-2025"),
    (r"LLaMA-?Factory", "llama-factory-2024"),
    (r"torchtune", "torchtune-2024"),
    (r"GPT-NeoX", "gpt-neox-2023"),
    (r"(HF|Hugging ?Face|Transformers|PEFT).*DeepSpeed", "deepspeed-2024"),
    (r"Primus", "primus-2026"),
    (r"^Meta\b", "meta-2024"),
    (r"Gaudi", "gaudi-2025"),
    (r"HAI-LLM", "deepseek-2024"),
    (r"(?i)MaxText|Pax|\bJAX\b|Levanter|EasyLM", "maxtext-2024"),
    (r"MindSpeed|ModelLink", "mindspeed-2024"),
    (r"Megatron-DeepSpeed \(ALCF\)", "megatron-deepspeed-2024"),
    (r"DeepSpeed ZeRO", "deepspeed-2021"),
    (r"Megatron-DeepSpeed", "megatron-deepspeed-2022"),
    (r"PyTorch FSDP|flash-attn", "torchtitan-2024"),
    (
        r"\bHF\b|Hugging ?Face|\bTRL\b|accelerate|fms-acceleration|(?i:axolotl|unsloth|SFTTrainer)",
        "huggingface-2024",
    ),
    (r"(?i)lit-?gpt|Lightning|OLMo", "torchtitan-eager"),
    (r"NeMo-Megatron", "megatron-lm-2022"),
    (r"NeMo Megatron|NeuronX", "neuronx-2024"),
    (r"Megatron-Bridge", "megatron-bridge-2025"),
    (r"^Megatron-Core$", _PLAIN_MEGATRON),
    (r"NeMo|Megatron-Core", "nemo-2025"),
    (r"Megatron-LM|Megatron-Patch|Megatron-SWIFT|MegaScale|\bmcore\b", _PLAIN_MEGATRON),
)


def stack_of(run: Run, assumed: list[str]) -> Stack:
    """Find the stack of a run, changed by its features."""
    framework = run.software.framework or ""
    group = run.group or ""
    name = next((name for pattern, name in _FRAMEWORKS if re.search(pattern, framework)), "")
    if name == _PLAIN_MEGATRON and (run.year or 2024) < _TRANSFORMER_ENGINE:
        name = "megatron-lm-2022"
    if name == _PLAIN_MEGATRON and run.micro_batch is None:
        name = _USER_BUFFERS  # its options are not published: those of a tuned run
        assumed.append("communication overlaps")
    if name in ("", "nemo-2025") and "MLPerf" in group:
        name = "mlperf-2024"
    if name in _TRAINERS and _shards_by_deepspeed(run):
        name = "deepspeed-2024"
    if not name:
        name = UNKNOWN_STACK
        assumed.append("software")
    if name == "torchtitan-2024":
        name = _torchtitan(run)
    if name == "megatron-deepspeed-2022" and says_flash(run.attention_impl):
        name = "megatron-deepspeed-2024"  # the one of 2022 has no such kernel
    if name == "megatron-bridge-2025" and run.model.experts:
        name = _bridge_with_experts(run)
    stack = Stack.load(name)
    changes = feature_changes(run, stack)
    if name in _PLAIN_PYTORCH:
        changes |= _added_kernels(run)
    changes |= memory_changes(run, name) | _release(run, stack)
    return stack.model_copy(update=changes)


# Stacks of Hugging Face's Trainer, which shards by PyTorch's FSDP or by DeepSpeed.
_TRAINERS = ("huggingface-2024", "llama-factory-2024")


def _shards_by_deepspeed(run: Run) -> bool:
    """Whether a run of the Trainer shards by DeepSpeed: it says so, or states a stage of ZeRO.

    FSDP has strategies instead of stages (accelerate, FullyShardedDataParallelPlugin).
    """
    said = f"{run.software.framework} {run.features}".lower()
    if "deepspeed" in said:
        return True
    p = run.parallelism
    return bool(p.zero_stage) and "fsdp" not in said and (p.fsdp_shard or 1) == 1


def _release(run: Run, stack: Stack) -> dict[str, object]:
    """Month of its release; on AMD's GPUs products of ROCm, of which no trend is known."""
    if not stack.released:
        return {}
    if run.accelerator.startswith("MI"):
        other = Stack.load("primus-2026")
        return {"released": other.released, "matmul_time_factor": other.matmul_time_factor}
    return {"released": released(run) or stack.released}


def unknown_stack(run: Run) -> Stack:
    """Return the stack of a run if nothing were known of its software but the row's features."""
    stack = Stack.load(UNKNOWN_STACK)
    return stack.model_copy(update=feature_changes(run, stack))


def ignored_software(run: Run) -> tuple[str, ...]:
    """What a row says of its software that is not known."""
    framework = run.software.framework
    known = framework is None or "MLPerf" in (run.group or "")
    if known or any(re.search(pattern, str(framework)) for pattern, _ in _FRAMEWORKS):
        return ()
    return (f"software.framework {framework!r}: not known; the stack is {UNKNOWN_STACK}",)


def _torchtitan(run: Run) -> str:
    """The stack of a torchtitan run; it compiled unless the row says otherwise."""
    if run.features.get("torch_compile") is False:
        return "torchtitan-eager"
    before = re.search(r"torchtitan 0\.[01]\b", run.software.version or "") is not None
    compiled = (run.year or 0) >= _COMPILED_LOSS and not before
    return "torchtitan-2025" if compiled else "torchtitan-2024"


def _bridge_with_experts(run: Run) -> str:
    """The stack of a Megatron-Bridge run with experts."""
    fused = truth(run.features.get("cutedsl_fused_grouped_mlp")) or newest(run)
    return "megatron-bridge-fused" if fused else "megatron-bridge-2025"


def dispatcher_of(run: Run, stack: Stack) -> Dispatcher:
    """The dispatcher that a row names, or that its software uses.

    Recipes of Megatron-Bridge for many experts, and its fused kernels, use the flex dispatcher,
    whether a row says so or not.
    """
    features = run.features
    keys = ("moe_flex_dispatcher_backend", "dispatcher", "kernels")
    words = [str(features.get(key) or "") for key in keys]
    words += ["deepep"] if truth(features.get("deepep")) else []
    text = " ".join(words).lower()
    if "hybridep" in text:
        return Dispatcher.HYBRIDEP
    if "deepep" in text:
        return Dispatcher.DEEPEP
    if stack.name == "megatron-bridge-2025" and (run.model.experts or 0) >= _MANY_EXPERTS:
        return Dispatcher.HYBRIDEP
    return stack.dispatcher


def capacity_of(run: Run) -> float | None:
    """Capacity of an expert over its even load, to which tokens are padded; None: dropless."""
    capacity = run.features.get("moe_capacity_factor")
    if capacity:
        return float(capacity)
    dropping = "tokendrop" in (run.notes or "")
    full = "capacity factor 1" in str(run.features.get("moe") or "")
    return 1.0 if dropping or full else None


def feature_changes(run: Run, stack: Stack) -> dict[str, object]:
    """Fields of a stack that the features of a run set."""
    changes: dict[str, object] = {}
    features = run.features
    overlap = str(features.get("overlap") or "")
    if "all communication overlap disabled" in overlap:
        changes |= {"tp_hidden": 0.0, "tp_backward_async": False, "pp_hidden": 0.0}
    if features.get("tp_comm_overlap") is not None and not truth(features["tp_comm_overlap"]):
        changes |= {"tp_hidden": 0.0}
    fused = truth(features.get("use_mc2"))  # products of CANN with their communication in them
    if stack.name in _OVERLAP_IS_OPTION and (fused or truth(features.get("tp_comm_overlap"))):
        changes |= {"tp_hidden": Stack.load(_USER_BUFFERS).tp_hidden}
    if features.get("async_tp"):
        changes |= {"tp_hidden": 0.375}
    if features.get("no_gradient_accumulation_fusion"):
        changes |= {"fused_gradient_accumulation": False, "weight_gradient_buffers": False}
    if says_flash(run.attention_impl) is False:
        changes |= {"attention_kernel": AttentionKernel.UNFUSED}
    changes |= _gradients(run) | _loss(run, stack)
    if str(features.get("cross_entropy_fusion") or "").startswith("TE"):
        # In place on 16-bit logits: read and written once in each pass.
        changes |= {"loss_forward_bytes": 4.0, "loss_backward_bytes": 4.0, "loss_saved_bytes": 2.0}
    if (captured := _graphs(run)) is not None:
        changes |= {"cuda_graphs": captured}
    if run.model.experts:
        changes |= _expert_changes(run)
    return changes


# Stacks whose models are plain PyTorch, to which a run may add fused kernels.
_PLAIN_PYTORCH = ("huggingface-2024", "llama-factory-2024", "deepspeed-2024")


def _fused_loss() -> dict[str, object]:
    """Bytes per logit of a fused loss: those of Megatron-Core."""
    stack = Stack.load(_USER_BUFFERS)
    names = ("loss_forward_bytes", "loss_backward_bytes", "loss_saved_bytes")
    return {name: getattr(stack, name) for name in names}


def _added_kernels(run: Run) -> dict[str, object]:
    """Fused kernels that a run adds to plain PyTorch (fms-acceleration's, Liger's)."""
    features = run.features
    kernels = str(features.get("framework") or "")
    changes: dict[str, object] = {}
    if "foak" in kernels or truth(features.get("liger")):
        changes |= {"fused_norm": True}
    if truth(features.get("fused_cross_entropy")):
        changes |= _fused_loss()
    return changes


def _gradients(run: Run) -> dict[str, object]:
    """Type that gradients accumulate in, if the precision names it."""
    text = (run.precision or "").lower()
    if "grads accumulated in 16 bit" in text:
        return {"gradient_dtype": GradientDtype.COMPUTE}
    return (
        {"gradient_dtype": GradientDtype.FP32, "plain_gradients": True}
        if "(bf16optimizer" in text
        else {}
    )


# Peak bytes per logit of Megatron-LM's losses (Transformer Engine's has two): the logits in 16 bits
# and in fp32, in place (its default); or these, less their maximum, and the exponents (its own
# fusion). The peaks of 120 of its functional tests agree.
_NATIVE_LOSS = 10.0


def _loss(run: Run, stack: Stack) -> dict[str, object]:
    """Bytes of the loss, by Megatron-LM's settings."""
    features = run.features
    if features.get("cross_entropy_fusion_impl") == "native":
        return {"loss_saved_bytes": _NATIVE_LOSS}
    if stack.name == _PLAIN_MEGATRON and "cross_entropy_fusion" in features:
        return _fused_loss()
    return {}


def _graphs(run: Run) -> CudaGraphs | None:
    """What graphs capture; of dropless experts, whose token counts vary, only parts of layers.

    None where the run does not say: what the stack captures.
    """
    features = run.features
    implementation = str(features.get("cuda_graph_impl") or "").strip('"').lower()
    scope = str(features.get("cuda_graph_scope") or "")
    dropless = bool(run.model.experts) and capacity_of(run) is None
    if implementation == "none":
        return CudaGraphs.NONE
    if not implementation:
        on = truth(features.get("cuda_graphs"))
        if newest(run) and dropless:
            return CudaGraphs.FULL
        if not on:
            return CudaGraphs.PARTIAL if _graphs_unstated(run) else None
        return CudaGraphs.PARTIAL if dropless else CudaGraphs.FULL
    if implementation in ("full_iteration", "local") or not dropless:
        return CudaGraphs.FULL
    return CudaGraphs.FULL if "moe'" in scope else CudaGraphs.PARTIAL


def _graphs_unstated(run: Run) -> bool:
    """Whether a performance recipe of Megatron-Bridge for experts on racks is not known in full.

    Those that are known capture attention, router and preprocessing.
    """
    features = run.features
    stated = {"cuda_graphs", "cuda_graph_impl", "cuda_graph_scope"} & set(features)
    racks = run.hardware.accelerator in ("GB200", "GB300")
    return bool(features.get("recipe_ref") and run.model.experts and racks and not stated)


def newest(run: Run) -> bool:
    """Whether a recipe of Megatron-Bridge runs as one graph with experts in fused kernels.

    True for those of 26.08, by the names of their helpers, and, in 8 bits and less, for those of
    the verification cards of the same release, which name the framework without its core.
    """
    card = run.software.framework == "Megatron-Bridge" and run.precision_class in _FUSED_TYPES
    return card or "full_iter" in str(run.features.get("helpers") or "")


def _expert_changes(run: Run) -> dict[str, object]:
    changes: dict[str, object] = {}
    if "clamped" in (run.model.mlp or ""):
        changes |= {"fused_swiglu": False}
    return changes


def truth(value: object) -> bool:
    """Whether a feature is on, as rows write it."""
    return str(value).strip('"').lower() in ("true", "1", "yes")
