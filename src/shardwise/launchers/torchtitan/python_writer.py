"""Plans as Python configurations of torchtitan v0.3.0."""

import json
import re
from collections.abc import Mapping

from shardwise.config.enums import Loss
from shardwise.config.strategy import Strategy
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.python_text import docstring
from shardwise.launchers.torchtitan.fields import CHUNKED_LOSS, STEPS, loss_in_effect, options_of
from shardwise.launchers.torchtitan.header import header
from shardwise.launchers.torchtitan.models import (
    LLAMA,
    PYTHON_RELEASE,
    QWEN_EXPERTS,
    Builder,
    Flavor,
    builder_of,
    layer_numbers,
    python_flavor,
    rope_arguments,
)
from shardwise.launchers.torchtitan.options import ATTENTION_BACKEND, Options

FUNCTION = "plan"
"""Name of the function that returns the configuration."""
ASYNC_TP = "parallelism.enable_async_tensor_parallel"
"""Of TOML; v0.3.0 has it in its section `compile`."""
# Options of TOML that v0.3.0 has in no section of its own.
_ELSEWHERE = (
    ASYNC_TP,
    "parallelism.context_parallel_rotate_method",
    "parallelism.expert_tensor_parallel_degree",
    "parallelism.expert_parallel_comm_backend",
)
_RECOMPUTE = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
_IMPORTS: Mapping[str, str] = {
    "CheckpointManager": "torchtitan.components.checkpointer",
    "ChunkedLossWrapper": "torchtitan.components.loss",
    "CrossEntropyLoss": "torchtitan.components.loss",
    "MetricsProcessor": "torchtitan.components.metrics",
    "LRSchedulersContainer": "torchtitan.components.optimizer",
    "default_adamw": "torchtitan.components.optimizer",
    "register_moe_load_balancing_hook": "torchtitan.components.optimizer",
    "Float8GroupedExpertsConverter": "torchtitan.components.quantization",
    "Float8LinearConverter": "torchtitan.components.quantization",
    "MXFP8GroupedExpertsConverter": "torchtitan.components.quantization",
    "MXFP8LinearConverter": "torchtitan.components.quantization",
    "CompileConfig": "torchtitan.config",
    "ParallelismConfig": "torchtitan.config",
    "TrainingConfig": "torchtitan.config",
    "FullAC": "torchtitan.distributed.activation_checkpoint",
    "SelectiveAC": "torchtitan.distributed.activation_checkpoint",
    "pipeline_llm": "torchtitan.distributed.pipeline_parallel",
    "HuggingFaceTextDataLoader": "torchtitan.hf_datasets.text_datasets",
    "ComplexRoPE": "torchtitan.models.common",
    "CosSinRoPE": "torchtitan.models.common",
    "Embedding": "torchtitan.models.common",
    "Linear": "torchtitan.models.common",
    "RMSNorm": "torchtitan.models.common",
    "MTPLoss": "torchtitan.models.deepseek_v3.mtp",
    "ModelSpec": "torchtitan.protocols.model_spec",
    "Profiler": "torchtitan.tools.profiler",
    "Trainer": "torchtitan.trainer",
}
"""Modules of the names that a configuration uses; those of a model's own are added."""

LINEAR_CONVERTERS: Mapping[str, str] = {
    "quantize.linear.float8": "Float8LinearConverter",
    "quantize.linear.mx": "MXFP8LinearConverter",
    "quantize.grouped_mm.float8": "Float8GroupedExpertsConverter",
    "quantize.grouped_mm.mx": "MXFP8GroupedExpertsConverter",
}
"""Converters by their names in TOML."""
_CONVERTER_ARGUMENTS: Mapping[str, str] = {
    "Float8LinearConverter": 'recipe_name="rowwise", filter_fqns=["lm_head", "router.gate"], ',
    "MXFP8LinearConverter": 'fqns=["attention", "feed_forward", "shared_experts"], ',
}


def write_python(plan: LaunchPlan) -> LaunchFile:
    """Return the module of a plan that v0.3.0 can run."""
    options = options_of(plan, PYTHON_RELEASE)
    flavor = python_flavor(plan.model)
    if flavor is None:
        builder = builder_of(plan.model)
        assert builder is not None  # noqa: S101 - as `release_faults` found
        model_lines, own = _built(plan, builder, options)
    else:
        model_lines, own = _registered(plan, flavor, options)
    title = f"{plan.model.name} on {plan.strategy.gpus} x {plan.system.name}."
    body = [
        f"def {FUNCTION}() -> Trainer.Config:",
        f"    {docstring(title)}",
        *_indented(model_lines, 4),
        "    return Trainer.Config(",
        *_indented(_sections(plan, options), 8),
        "    )",
    ]
    text = "\n".join(body) + "\n"
    return LaunchFile(ending=".py", text=_header(plan) + _imports(text, own) + "\n\n" + text)


def _header(plan: LaunchPlan) -> str:
    return header(
        plan,
        PYTHON_RELEASE,
        f"--module MODULE --config {FUNCTION}",
        f"in a checkout of torchtitan {PYTHON_RELEASE} (its test tokenizer and data are used), "
        "MODULE being the importable name of this file",
    )


def _indented(lines: list[str], width: int) -> list[str]:
    return [" " * width + line for line in lines]


def _imports(text: str, own: Mapping[str, str]) -> str:
    """Imports of what a text uses."""
    modules: dict[str, list[str]] = {}
    words = set(re.findall(r"\w+", text))
    for name, module in {**_IMPORTS, **own}.items():
        if name in words:
            modules.setdefault(module, []).append(name)
    lines = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(modules.items())
    ]
    return "\n".join(lines) + "\n"


def _converters(options: Options) -> list[str]:
    """Converters of a model: low-precision products of linear layers and of experts."""
    names = options["model.converters"]
    classes = [LINEAR_CONVERTERS[str(name)] for name in names] if isinstance(names, list) else []
    parts = options["compile.components"] if options["compile.enable"] else []
    compiled = f"model_compile_enabled={isinstance(parts, list) and 'model' in parts}"
    return [f"{one}.Config({_CONVERTER_ARGUMENTS.get(one, '')}{compiled})" for one in classes]


def _dispatcher(strategy: Strategy) -> str:
    is_deepep = strategy.dispatcher == "deepep" and strategy.ep > 1
    return '"deepep"' if is_deepep else '"standard"'


def _registered(
    plan: LaunchPlan, flavor: Flavor, options: Options
) -> tuple[list[str], dict[str, str]]:
    """Lines that make the model of a flavor, and where its names come from."""
    lines = ["model_spec = model_registry(", f'    "{flavor.flavor}",']
    if plan.model.has_experts:
        lines.append(f"    moe_comm_backend={_dispatcher(plan.strategy)},")
    lines.append(f"    attn_backend={_literal(options[ATTENTION_BACKEND])},")
    if plan.model.mtp:
        lines.append(f"    num_mtp_layers={plan.model.mtp},")
    if converters := _converters(options):
        lines.append("    converters=[")
        lines += [f"        {one}," for one in converters]
        lines.append("    ],")
    return [*lines, ")"], {"model_registry": f"torchtitan.models.{flavor.family}"}


def _built(
    plan: LaunchPlan, builder: Builder, options: Options
) -> tuple[list[str], dict[str, str]]:
    """Lines that build a model from its numbers, and where its names come from."""
    model = plan.model
    rope = rope_arguments(model, plan.strategy.seq_len or 0)
    names = [builder.function, builder.model_class, builder.parallelize, builder.adapter]
    embedding = "_EMBEDDING_SKIP_INIT" if model.tied_embeddings else "_EMBEDDING_INIT"
    if builder is LLAMA:
        names += ["_NORM_INIT", "_output_linear_init"]
        norm = f"RMSNorm.Config(normalized_shape={model.hidden}, param_init=_NORM_INIT)"
        head = f"_output_linear_init({model.hidden})"
    else:
        names += ["_LINEAR_INIT", "_qwen3_norm"]
        norm, head = f"_qwen3_norm({model.hidden})", "_LINEAR_INIT"
    names.append(embedding)
    backend = [f"moe_comm_backend={_dispatcher(plan.strategy)}"] if builder is QWEN_EXPERTS else []
    layers = [*(f"{name}={value}" for name, value in layer_numbers(model).items()), *backend]
    width = f"num_embeddings={model.vocab}, embedding_dim={model.hidden}"
    features = f"in_features={model.hidden}, out_features={model.vocab}"
    tied = ["    enable_weight_tying=True,"] if model.tied_embeddings else []
    lines = [
        f"model = {builder.model_class}.Config(",
        f"    dim={model.hidden},",
        f"    vocab_size={model.vocab},",
        *tied,
        f"    tok_embeddings=Embedding.Config({width}, param_init={embedding}),",
        f"    norm={norm},",
        f"    lm_head=Linear.Config({features}, param_init={head}),",
        f"    layers={builder.function}(",
        *(f"        {argument}," for argument in layers),
        f"        attn_backend={_literal(options[ATTENTION_BACKEND])},",
        f"        rope={builder.rope_class}.Config("
        + ", ".join(f"{name}={value}" for name, value in rope.items())
        + "),",
        "    ),",
        ")",
        *(f"model = {one}.build().convert(model)" for one in _converters(options)),
        "model_spec = ModelSpec(",
        f'    name="{builder.family}",',
        f"    flavor={json.dumps(model.name, ensure_ascii=False)},",
        "    model=model,",
        f"    parallelize_fn={builder.parallelize},",
        "    pipelining_fn=pipeline_llm,",
        f"    post_optimizer_build_fn={builder.hook},",
        f"    state_dict_adapter={builder.adapter},",
        ")",
    ]
    return lines, dict.fromkeys(names, f"torchtitan.models.{builder.family}")


def _sections(plan: LaunchPlan, options: Options) -> list[str]:
    """Arguments of `Trainer.Config`."""
    kind = "MTPLoss" if plan.model.mtp else "CrossEntropyLoss"
    loss = f"{kind}.Config(global_vocab_size={plan.model.vocab})"
    if loss_in_effect(plan.strategy) == Loss.CHUNKED:
        loss = f"{CHUNKED_LOSS}(loss_fn={loss})"
    mode = str(options["activation_checkpoint.mode"])
    training = _section(options, "training") | {
        "mixed_precision_reduce": "float32",
        "steps": STEPS,
    }
    compiled = _section(options, "compile") | {"enable_async_tensor_parallel": options[ASYNC_TP]}
    return [
        "model_spec=model_spec,",
        f"loss={loss},",
        "optimizer=default_adamw(lr=3e-4),",
        "lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),",
        *_call("training", "TrainingConfig", training),
        *_call("parallelism", "ParallelismConfig", _section(options, "parallelism")),
        f"activation_checkpoint={_RECOMPUTE[mode]},",
        *_call("compile", "CompileConfig", compiled),
        'dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test"),',
        "metrics=MetricsProcessor.Config(log_freq=10),",
        "profiler=Profiler.Config(enable_profiling=False),",
        "checkpoint=CheckpointManager.Config(enable=False),",
    ]


def _section(options: Options, section: str) -> dict[str, object]:
    """Options of one section that v0.3.0 has there too."""
    return {
        name.removeprefix(f"{section}."): value
        for name, value in options.items()
        if name.startswith(f"{section}.") and name not in _ELSEWHERE
    }


def _call(field: str, config: str, arguments: Mapping[str, object]) -> list[str]:
    values = [f"    {name}={_literal(value)}," for name, value in arguments.items()]
    return [f"{field}={config}(", *values, "),"]


def _literal(value: object) -> str:
    """A value as Python writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
