"""Values of torchtitan's options for a plan, and what torchtitan has no option for."""

from collections.abc import Iterator

from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.errors import Fault
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.torchtitan.builders import builder_of
from shardwise.launchers.torchtitan.flavors import (
    LONGEST_SEQUENCES,
    PYTHON_RELEASE,
    TOML_RELEASE,
    flavor_of,
    listed,
    python_flavor,
)
from shardwise.launchers.torchtitan.options import CONVERTERS, ONE_TO_ONE, Options, OptionValue
from shardwise.launchers.torchtitan.stages import stage_options
from shardwise.launchers.torchtitan.to_fields import COMPILED_STACK

STEPS = 100
"""Steps that an exported run trains for: enough to read its step time."""
_HEADS = {TOML_RELEASE: "output", PYTHON_RELEASE: "lm_head"}
_NO_PIPELINE = ("qwen3", "gpt_oss")  # pipelining_fn=None in their __init__.py
_NO_DEEPEP = ("qwen3", "gpt_oss")  # their parallelize.py does not read the option
# Flavors with FlexAttention, of which each model's parallelize.py refuses context parallelism.
_NO_CONTEXT = ("deepseek_v3", "gpt_oss")


def is_compiled(strategy: Strategy) -> bool:
    """Whether a plan needs torch.compile: its stack fuses kernels, its schedule allows it."""
    return strategy.loaded_stack().fused_swiglu and strategy.schedule != "zb-v"


def _compile_options(strategy: Strategy) -> Options:
    """Components that are compiled; both are named where none is."""
    stack, compiled = strategy.loaded_stack(), Stack.load(COMPILED_STACK)
    parts = ["model"] if is_compiled(strategy) else []
    if stack.loss_saved_bytes <= compiled.loss_saved_bytes:
        parts.append("loss")
    return {"compile.enable": bool(parts), "compile.components": [*(parts or ("model", "loss"))]}


def shards(strategy: Strategy) -> int:
    """Replicas that share a set of shards (`data_parallel_shard_degree`)."""
    replicas = strategy.dp or 1
    return (strategy.dp_shard or replicas) if strategy.zero else 1


def options_of(plan: LaunchPlan, release: str) -> Options:
    """Options of a plan, those for people left out."""
    model, strategy = plan.model, plan.strategy
    options: Options = {}
    for option in ONE_TO_ONE:
        value = getattr(strategy, option.field)
        if option.field == "tp_overlap":
            value = "ring" if value == "ring" and strategy.tp > 1 else "stack"
        if option.field == "cp_exchange" and strategy.cp == 1:
            value = "all_gather"
        if option.field == "dispatcher" and strategy.ep == 1:
            value = "all_to_all"
        if option.field == "schedule" and strategy.pp == 1:
            value = "1f1b"
        options[option.name] = value if option.words is None else option.words[value]
    flavor = flavor_of(model, release) if release == TOML_RELEASE else python_flavor(model)
    if flavor is not None:
        options |= {"model.name": flavor.family, "model.flavor": flavor.flavor}
    table = Table.of(model, [strategy])
    return (
        options
        | _batch(strategy)
        | _data_parallel(strategy)
        | stage_options(model, table, _HEADS[release])
        | _converters(model, strategy)
        | {
            "activation_checkpoint.selective_ac_option": "op",
            **_compile_options(strategy),
        }
    )


def _batch(strategy: Strategy) -> Options:
    """Batch sizes: pipelines split the batch of a rank, others accumulate over passes."""
    total, micro = strategy.global_batch_size or 1, strategy.micro_batch_size
    local = total // (strategy.dp or 1) if strategy.pp > 1 else micro
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": total,
        "parallelism.pipeline_parallel_microbatch_size": micro if strategy.pp > 1 else 1,
    }


def _data_parallel(strategy: Strategy) -> Options:
    reshard = "always" if strategy.zero == 3 and strategy.fsdp_reshard else "never"  # noqa: PLR2004
    is_sharded = strategy.zero > 0 and shards(strategy) * strategy.cp > 1
    return {
        "parallelism.data_parallel_replicate_degree": (strategy.dp or 1) // shards(strategy),
        "parallelism.data_parallel_shard_degree": shards(strategy),
        "parallelism.fsdp_reshard_after_forward": reshard if is_sharded else "default",
    }


def _converters(model: Model, strategy: Strategy) -> Options:
    if strategy.quantization == "none":
        return {"model.converters": []}
    linear, grouped = CONVERTERS[strategy.quantization]
    options: dict[str, OptionValue] = {f"{linear}.filter_fqns": ["output", "router.gate"]}
    if strategy.quantization == "mxfp8":
        options[f"{linear}.recipe_name"] = "mxfp8_cublas"
    if not model.has_experts:
        return {"model.converters": [linear], **options}
    return {"model.converters": [linear, grouped], **options, f"{grouped}.fqns": ["experts"]}


def plan_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """What no release of torchtitan has an option for, in a plan that the stack can run."""
    for field, allowed, why in (
        ("training", True, "torchtitan trains; it has no forward-only step"),
        ("document_len", None, "torchtitan reads documents from its data set; no option has it"),
        ("attention", "model", "torchtitan has no option for key-value heads; change the model"),
    ):
        value = getattr(strategy, field)
        if value != allowed:
            yield Fault.of(field, value, why)
    if model.has_experts and strategy.ep == 1 and strategy.etp != strategy.tp:
        problem = f"torchtitan splits experts like tp where ep is 1; nearest: {strategy.tp}"
        yield Fault.of("etp", strategy.etp, problem)


def _mixed_precision(strategy: Strategy) -> Iterator[Fault]:
    """v0.2.2 casts to 16 bits in FSDP, or where nothing but replicas split a run.

    References
    ----------
    torchtitan v0.2.2, distributed/utils.py, `maybe_enable_amp`.
    """
    is_split = strategy.tp * strategy.pp > 1
    if strategy.dtype == "bf16" and is_split and shards(strategy) * strategy.cp == 1:
        problem = (
            "torchtitan computes in fp32 where tp or pp is above 1 and FSDP shards nothing; "
            "needs dp or cp above 1 with zero 2 or 3, or dtype fp32"
        )
        yield Fault.of("dtype", strategy.dtype, problem)


def _replicated(strategy: Strategy) -> Iterator[Fault]:
    """Sets of one shard are replicas: DDP (v0.2.2, models/llama3/infra/parallelize.py)."""
    is_split = strategy.tp * strategy.pp > 1 and strategy.cp == 1 and strategy.dp != 1
    if strategy.zero and strategy.dp_shard == 1 and is_split:
        problem = f"torchtitan {TOML_RELEASE} runs DDP with no other parallelism; nearest: 2"
        yield Fault.of("dp_shard", strategy.dp_shard, problem)


def release_faults(model: Model, strategy: Strategy, release: str) -> Iterator[Fault]:
    """What one release has no option for."""
    is_toml = release == TOML_RELEASE
    # v0.2.2: distributed/parallel_dims.py, seq_len_divisor; v0.3.0: trainer.py:310.
    pieces = strategy.tp * (2 * strategy.cp if is_toml or strategy.cp > 1 else 1)
    if (strategy.seq_len or 0) % pieces:
        problem = f"torchtitan {release} needs a multiple of tp x 2 cp = {pieces}"
        yield Fault.of("seq_len", strategy.seq_len, problem)
    yield from (_toml_faults if is_toml else _python_faults)(model, strategy)


def _python_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    release = PYTHON_RELEASE
    for field, allowed, why in (
        ("quantized_weights", False, "gathers weights in 16 bits"),
        ("cp_exchange", "all_gather", "all-gathers keys and values; nearest: all_gather"),
    ):
        value = getattr(strategy, field)
        if value != allowed and (field != "cp_exchange" or strategy.cp > 1):
            yield Fault.of(field, value, f"torchtitan {release} {why}")
    if model.has_experts and strategy.etp > 1 and strategy.ep > 1:
        problem = f"torchtitan {release} does not split experts inside; nearest: 1"
        yield Fault.of("etp", strategy.etp, problem)
    flavor = python_flavor(model)
    if flavor is None:
        if builder_of(model) is None:
            problem = (
                f"torchtitan {release} has no flavor of this architecture and no builder for it; "
                f"it has {listed(release)}, and builds equal layers with RMSNorm, SwiGLU and "
                "rotary positions, without biases"
            )
            yield Fault.of("model", model.name, problem)
        return
    longest, seq_len = LONGEST_SEQUENCES[flavor.family], strategy.seq_len or 0
    if seq_len > longest:
        problem = f"torchtitan {release} has {longest} positions in {flavor}; nearest: {longest}"
        yield Fault.of("seq_len", seq_len, problem)


def _toml_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    flavor = flavor_of(model, TOML_RELEASE)
    if flavor is None:
        without = flavor_of(model.model_copy(update={"mtp": 0}), TOML_RELEASE)
        if model.mtp and without is not None:
            problem = f"torchtitan {TOML_RELEASE} trains {without} without it; nearest: 0"
            yield Fault.of("mtp", model.mtp, problem, model.name)
            return
        problem = (
            f"torchtitan {TOML_RELEASE} has no flavor of this architecture (a .py file of "
            f"{PYTHON_RELEASE} describes it); it has {listed(TOML_RELEASE)}"
        )
        yield Fault.of("model", model.name, problem)
        return
    yield from _mixed_precision(strategy)
    yield from _replicated(strategy)
    name = flavor.family
    if strategy.pp > 1 and name in _NO_PIPELINE:
        problem = f"torchtitan {TOML_RELEASE} has no pipeline for {name}; nearest: 1"
        yield Fault.of("pp", strategy.pp, problem)
    if strategy.cp > 1 and name in _NO_CONTEXT and flavor.flavor != "debugmodel":
        problem = f"torchtitan {TOML_RELEASE} has no context parallelism for {name}; nearest: 1"
        yield Fault.of("cp", strategy.cp, problem)
    if strategy.ep > 1 and strategy.dispatcher == "deepep" and name in _NO_DEEPEP:
        problem = f"torchtitan {TOML_RELEASE} has no deepep for {name}; nearest: all_to_all"
        yield Fault.of("dispatcher", strategy.dispatcher, problem)
