"""The software of a measured run: what the row states of it, its `Stack`, and what changes it."""

import re

from published_rows.fine_tuning import memory_changes
from published_rows.releases import dated, released
from published_rows.remarks import is_muon
from published_rows.row import Run
from published_rows.words import says_flash, truth
from shardwise.config.enums import (
    AttentionKernel,
    CudaGraphs,
    Dispatcher,
    GradientDtype,
    Loss,
    Quantization,
)
from shardwise.config.model import Model
from shardwise.config.software.record import Engine, Software
from shardwise.config.software.resolve import UNKNOWN_STACK, Match, resolve
from shardwise.config.software.words import lineage
from shardwise.config.software.words import software_of as read
from shardwise.config.stack import Stack
from shardwise.config.system import System

_MANY_EXPERTS = 256
_FUSED_TYPES = ("mxfp8", "nvfp4")
_CAPTURES = "CUDA graph capture completes"
"""Note of a verification card, of a recipe whose graphs of layers it does not list."""

# Stacks whose tensor-parallel communication runs in pieces next to its GEMMs if a run says so,
# and the one that has it so.
_PLAIN_MEGATRON = "megatron-lm-2024"
_OVERLAP_IS_OPTION = (_PLAIN_MEGATRON, "mindspeed-2024")
_USER_BUFFERS = "megatron-core-2025"


def _recipe(run: Run) -> str:
    """The recipe that a row names, as one of performance where its name has GPUs and a type.

    So Megatron-Bridge names those of perf_recipes (qwen3_30b_a3b_pretrain_8gpu_gb300_fp8mx_config).
    """
    name = str(run.features.get("recipe", ""))
    tuned = re.search(r"_\d+gpu_[a-z]+\d+_[a-z]+\d*[a-z]*_config$", name)
    return f"performance recipe {name}" if tuned else ""


def software_of(run: Run) -> Software:
    """What a row states of its software: trainer, release or date, engine and options.

    Titles say what kind of run it is (MLPerf, performance, benchmarks), and name other trainers
    that it compares with.
    """
    software = run.software
    text = " ".join(filter(None, (software.framework, software.version)))
    title = " ".join(filter(None, (run.group, run.source.title, _recipe(run))))
    said = read(text)
    if (
        said.trainer in ("", "pytorch") and "MLPerf" in title
    ):  # which image a submission is built on
        said = said.model_copy(update={"trainer": "mlperf"})
    open_ones = "options not published" if run.micro_batch is None else ""
    libraries = dict(said.libraries)
    for name, key in (("torch", "torch"), ("transformer-engine", "te")):
        if release := software.extra.get(key):
            libraries[name] = str(release)
    update = {
        "text": "; ".join(filter(None, (text, title, open_ones))),
        "date": "" if said.release else dated(run),
        "engine": _engine(run, said),
        "libraries": libraries,
        "options": {**said.options, **_options(run)},
    }
    return said.model_copy(update=update)


_NOT_OF_TRANSFORMERS = ("", "deepspeed", "megatron-deepspeed", "gpt-neox")


def _engine(run: Run, said: Software) -> Engine | None:
    """What shards the states: as named, or DeepSpeed by its stage for trainers of transformers.

    FSDP has strategies instead of stages (accelerate, FullyShardedDataParallelPlugin).
    """
    stage, words = run.parallelism.zero_stage, f"{run.software.framework} {run.features}".lower()
    if said.trainer in _NOT_OF_TRANSFORMERS or "fsdp" in words:
        return said.engine
    if "deepspeed" in words:
        return Engine.DEEPSPEED if stage is None else Engine(f"deepspeed{stage}")
    if not {"transformers", "accelerate"} & {*lineage(said.trainer)}:
        return said.engine
    if (run.parallelism.fsdp_shard or 1) != 1:
        return Engine.FSDP
    return Engine(f"deepspeed{stage}") if stage else said.engine


def _options(run: Run) -> dict[str, object]:
    """Choices of the software that a row states, by fields of strategies and stacks."""
    features = run.features
    options: dict[str, object] = dict(read(run.attention_impl or "").options)
    if says_flash(run.attention_impl) is False:
        options["attention_kernel"] = "unfused"
    if (compiled := features.get("torch_compile")) is not None:
        options["compile"] = "layers" if truth(compiled) else "none"
    if (precision := run.precision_class) in _FUSED_TYPES:
        options["quantization"] = precision
    if is_muon(run):
        options["optimizer"] = "muon"
    if truth(features.get("chunked_cross_entropy")):
        options["loss"] = "chunked_logits"
    if (dispatcher := stated_dispatcher(run)) is not None and run.model.experts:
        options["dispatcher"] = dispatcher.value
    fused = features.get("cutedsl_fused_grouped_mlp")
    if run.model.experts and (fused is not None or _is_one_graph(run)):
        options["expert_kernel"] = "fused" if truth(fused) or _is_one_graph(run) else "calls"
    return options


def match_of(run: Run, system: System | None = None, model: Model | None = None) -> Match:
    """What the software of a row is resolved to."""
    return resolve(software_of(run), system, model)


def typed_software(run: Run, system: System, model: Model) -> Software:
    """The software as its user would type it: with the figures of what features state."""
    said = software_of(run)
    stack = resolve(said, system, model).stack
    changes = feature_changes(run, stack)
    if stack.name.startswith(_PLAIN_PYTORCH):
        changes |= _added_kernels(run)
    changes |= memory_changes(run, stack.name)
    changes.pop("copies_gradients", None)  # of recipes, which no row states
    return said.model_copy(update={"options": {**said.options, **changes}})


def stack_of(
    run: Run, assumed: list[str], system: System | None = None, model: Model | None = None
) -> Stack:
    """Find the stack of a run, changed by its features."""
    match = match_of(run, system, model)
    name = "megatron-bridge-fused" if newest(run) and run.model.experts else match.stack.name
    if name.startswith(UNKNOWN_STACK):
        name = UNKNOWN_STACK
        assumed.append("software")
    if name == _USER_BUFFERS and run.micro_batch is None:
        assumed.append("communication overlaps")  # as in a tuned run
    stack = Stack.load(name)
    changes = feature_changes(run, stack)
    if name.startswith(_PLAIN_PYTORCH):
        changes |= _added_kernels(run)
    changes |= memory_changes(run, name) | _release(run, stack)
    return stack.model_copy(update=changes)


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
    said = software_of(run)
    if framework is None or said.trainer or said.engine:
        return ()
    return (f"software.framework {framework!r}: not known; the stack is {UNKNOWN_STACK}",)


def dispatcher_of(run: Run, stack: Stack) -> Dispatcher:
    """The dispatcher that a row names, or that its software uses.

    Recipes of Megatron-Bridge for many experts, and its fused kernels, use the flex dispatcher,
    whether a row says so or not.
    """
    stated = stated_dispatcher(run)
    if stated in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP):
        return stated
    if stack.name == "megatron-bridge-2025" and (run.model.experts or 0) >= _MANY_EXPERTS:
        return Dispatcher.HYBRIDEP
    return stack.dispatcher


def stated_dispatcher(run: Run) -> Dispatcher | None:
    """The dispatcher that a row names."""
    features = run.features
    keys = ("moe_flex_dispatcher_backend", "dispatcher", "kernels", "moe")
    words = [str(features.get(key) or "") for key in keys]
    words += ["deepep"] if truth(features.get("deepep")) else []
    text = " ".join(words).lower()
    found = {"hybridep": Dispatcher.HYBRIDEP, "deepep": Dispatcher.DEEPEP}
    found |= dict.fromkeys(("alltoall", "all_to_all", "all-to-all"), Dispatcher.ALL_TO_ALL)
    return next((one for word, one in found.items() if word in text), None)


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
    changes |= _attention(run, stack) | _gradients(run) | _loss(run, stack)
    if str(features.get("cross_entropy_fusion") or "").startswith("TE"):
        # In place on 16-bit logits: read and written once in each pass.
        changes |= {"loss": Loss.IN_PLACE, "loss_figures": Loss.IN_PLACE}
        changes |= {"loss_forward_bytes": 4.0, "loss_backward_bytes": 4.0, "loss_saved_bytes": 2.0}
    changes |= {
        field: _RECIPES for field, name in _LOW_PRECISION.items() if truth(features.get(name))
    }
    if (captured := _graphs(run)) is not None:
        changes |= {"cuda_graphs": captured}
    if run.model.experts:
        changes |= _expert_changes(run)
    return changes


# The flash kernel of PyTorch is FlashAttention 2 (pytorch v2.2.0 to 2.11, sdp_utils.cpp).
_SDPA_FLASH = re.compile(r"sdpa.*flash", re.IGNORECASE)
_BEST = AttentionKernel.BEST
# What a recipe of low precision quantizes in addition to products of layers, by fields of stacks.
_LOW_PRECISION = {
    "quantized_attention": "fp8_dot_product_attention",
    "quantized_head": "fp8_output_proj",
}
# Of Transformer Engine.
_RECIPES = tuple(
    word for word in Quantization if word not in (Quantization.NONE, Quantization.FP8_ROW)
)
# Stacks whose models are plain PyTorch, to which a run may add fused kernels.
_PLAIN_PYTORCH = (
    "huggingface-",
    "llama-factory-",
    "deepspeed-2024",
    "deepspeed-2026",
    "accelerate-",
)


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


def _attention(run: Run, stack: Stack) -> dict[str, object]:
    """The attention kernel that a row names, where the stack has another one."""
    if says_flash(run.attention_impl) is False:
        return {"attention_kernel": AttentionKernel.UNFUSED}
    if _SDPA_FLASH.search(run.attention_impl or "") and stack.attention_kernel == _BEST:
        return {"attention_kernel": AttentionKernel.FLASH2}
    return {}


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
        layers = re.search(r"attn|moe|mlp", scope) or _CAPTURES in (run.notes or "")
        if layers or not on:
            return CudaGraphs.PARTIAL if layers or _graphs_unstated(run) else None
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
    return card or _is_one_graph(run)


def _is_one_graph(run: Run) -> bool:
    return "full_iter" in str(run.features.get("helpers") or "")


def _expert_changes(run: Run) -> dict[str, object]:
    changes: dict[str, object] = {}
    if "clamped" in (run.model.mlp or ""):
        changes |= {"fused_swiglu": False}
    return changes
