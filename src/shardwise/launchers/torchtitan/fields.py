"""Plans as values of torchtitan's options, and options as fields of a strategy."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shardwise.config.base import MOST, MOST_LAYERS
from shardwise.config.enums import Compile, CudaGraphs, Loss, Quantization
from shardwise.config.launch import NotUnderstood, Origin
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.errors import Fault, InputError, allowed_words, nearest
from shardwise.launchers.launch import Item, LaunchPlan, captured_graphs, origins_of
from shardwise.launchers.stacks import STACKS
from shardwise.launchers.torchtitan.models import (
    LONGEST_SEQUENCES,
    PYTHON_RELEASE,
    TOML_RELEASE,
    builder_of,
    flavor_of,
    listed,
    python_flavor,
)
from shardwise.launchers.torchtitan.options import (
    ATTENTION_BACKEND,
    ATTENTION_KERNELS,
    CONVERTERS,
    DEFAULTS,
    ONE_TO_ONE,
    OTHER_SCHEDULES,
    RENAMED_CONVERTERS,
    RENAMED_SCHEDULES,
    USUAL,
    Options,
    OptionValue,
    has_no_effect,
)
from shardwise.parallel.pipeline_layout import layers_on_ranks
from shardwise.units import read_whole

_LESS_FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
_LESS_LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
_MODULES = "parallelism.module_fqns_per_model_part"
_SPLITS = "parallelism.pipeline_parallel_split_points"
_LAYER = re.compile(r"layers\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What decides the layers of each stage, in words of a strategy."""

    pp: int
    schedule: str
    vpp: int = 1

    @property
    def stages(self) -> int:
        """Virtual stages: in the V of zb-v two on a rank."""
        return self.pp * (2 if self.schedule == "zb-v" else self.vpp)

    @property
    def usual_stages(self) -> int:
        """Virtual stages where no option sets them (`distributed/pipeline_parallel.py`)."""
        return self.pp * (2 if self.schedule in ("interleaved", "zb-v") else 1)


def even_split(depth: int, stages: int, first_less: int, last_less: int) -> list[int] | None:
    """Layers of each stage as torchtitan splits them; None where it refuses.

    References
    ----------
    torchtitan v0.2.2, `distributed/pipeline_parallel.py`, `generate_llm_fqn_per_model_part`.
    """
    if stages == 1:
        return [depth]
    share, extra = divmod(depth + first_less + last_less, stages)
    if share < max(1, first_less, last_less):
        return None
    sizes = [share + (stage < extra) for stage in range(stages)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    return sizes


def stage_options(model: Model, table: Table, head: str) -> dict[str, OptionValue]:
    """Options for the stages of a plan of one row."""
    strategy = table.strategy(0)
    pipeline = Pipeline(pp=strategy.pp, schedule=str(strategy.schedule), vpp=strategy.vpp)
    if pipeline.pp == 1:
        return {}
    sizes = layers_on_ranks(model.depth, table, 0)
    less = int(strategy.embedding_as_layer), int(strategy.loss_as_layer)
    counts: dict[str, OptionValue] = {_LESS_FIRST: less[0], _LESS_LAST: less[1]}
    if even_split(model.depth, pipeline.stages, *less) == sizes:
        if pipeline.stages == pipeline.usual_stages:
            return counts
        per_stage = -(-(model.depth + sum(less)) // pipeline.stages)
        if -(-(model.depth + sum(less)) // per_stage) == pipeline.stages:
            return counts | {_PER_STAGE: per_stage}
    return {_MODULES: list(_modules(sizes, head))}


def _modules(sizes: Sequence[int], head: str) -> list[list[str]]:
    """Names of the modules of each stage."""
    parts: list[list[str]] = []
    position = 0
    for count in sizes:
        parts.append([f"layers.{position + offset}" for offset in range(count)])
        position += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def stage_fields(
    model: Model, pipeline: Pipeline, options: Mapping[str, OptionValue], source: str
) -> dict[str, object]:
    """Fields of a strategy for the stages of a configuration.

    Raises
    ------
    InputError
        If the options contradict one another or the model.
    """
    if pipeline.pp == 1:
        return {}
    less = _whole(options, _LESS_FIRST, source), _whole(options, _LESS_LAST, source)
    listed = _listed(model, options, source)
    if listed is None:
        stages = pipeline.usual_stages
        per_stage = options[_PER_STAGE]
        if per_stage is not None:
            layers = _whole(options, _PER_STAGE, source) or 1
            stages = -(-(model.depth + sum(less)) // layers)
        sizes = even_split(model.depth, stages, *less)
        if sizes is None:
            problem = f"leaves stages without layers: {model.depth} layers on {stages} stages"
            raise InputError(Fault.of(_LESS_FIRST, less[0], problem, source))
        tried = [dict(zip(_AS_LAYER, map(bool, less), strict=True)), {}]
    else:
        sizes, tried = listed, [{}, {"embedding_as_layer": True, "loss_as_layer": True}]
    return _fields(model, pipeline, sizes, tried, source)


_AS_LAYER = ("embedding_as_layer", "loss_as_layer")


# Stages on a rank, fewest and most (`torch.distributed.pipelining.schedules`).
_CHUNKS = {"1f1b": (1, 1), "gpipe": (1, 1), "interleaved": (2, MOST_LAYERS), "zb-v": (2, 2)}


def _fields(
    model: Model,
    pipeline: Pipeline,
    sizes: list[int],
    tried: Sequence[Mapping[str, object]],
    source: str,
) -> dict[str, object]:
    """The shortest description of a list of layers by stage."""
    chunks, rest = divmod(len(sizes), pipeline.pp)
    fewest, most = _CHUNKS[pipeline.schedule]
    if rest or not fewest <= chunks <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} or more"
        problem = (
            f"makes {len(sizes)} stages on {pipeline.pp} ranks; {pipeline.schedule} needs "
            f"{allowed} on each"
        )
        field = "parallelism.pipeline_parallel_schedule"
        raise InputError(Fault.of(field, pipeline.schedule, problem, source))
    vpp = 1 if pipeline.schedule == "zb-v" else chunks
    base: dict[str, object] = {"vpp": vpp}
    ends = {"first_stage_layers": sizes[0], "last_stage_layers": sizes[-1]}
    fixed = [{name: count} for name, count in ends.items()] if vpp == 1 else []
    for more in (*tried, *fixed, *([ends] if fixed else [])):
        if _sizes(model, pipeline, base | dict(more)) == sizes:
            return base | dict(more)
    return base | {"stage_layers": tuple(sizes)}


def _sizes(model: Model, pipeline: Pipeline, fields: Mapping[str, object]) -> list[int] | None:
    """Layers of each stage of a strategy; None where its counts do not fit the model."""
    if 0 in (fields.get("first_stage_layers"), fields.get("last_stage_layers")):
        return None
    row = {
        "pp": pipeline.pp,
        "schedule": pipeline.schedule,
        "dp": 1,
        "global_batch_size": 1,
        "seq_len": 1,
        "stack": "torchtitan-2025",
    }
    table = Table.of(model, [row | dict(fields)])
    return layers_on_ranks(model.depth, table, 0)


def _listed(model: Model, options: Mapping[str, OptionValue], source: str) -> list[int] | None:
    """Layers of each stage by the names of their modules; None where they are not listed."""
    parts, splits = options[_MODULES], options[_SPLITS]
    if isinstance(splits, str):
        splits = list(splits.split(","))
    if parts is None and splits:
        starts = [_layer_number(name, _SPLITS, source) for name in _items(splits)]
        edges = [0, *starts, model.depth]
        sizes = [stop - start for start, stop in pairwise(edges)]
        if min(sizes) < 0:
            problem = f"must be layers of {model.depth} in rising order"
            raise InputError(Fault.of(_SPLITS, splits, problem, source))
        return sizes
    if parts is None:
        return None
    named = [
        [_layer_number(name, _MODULES, source) for name in _items(part) if _is_layer(name)]
        for part in _items(parts)
    ]
    if [number for part in named for number in part] != list(range(model.depth)):
        problem = f"must name each of layers.0 to layers.{model.depth - 1} once, in order"
        raise InputError(Fault.of(_MODULES, parts, problem, source))
    return [len(part) for part in named]


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_layer(name: object) -> bool:
    return isinstance(name, str) and name.startswith("layers.")


def _layer_number(name: object, field: str, source: str) -> int:
    found = _LAYER.fullmatch(name.strip()) if isinstance(name, str) else None
    number = read_whole(found[1]) if found else None
    if number is None:
        raise InputError(Fault.of(field, name, "must be a layer, such as layers.4", source))
    return number


def _whole(options: Mapping[str, OptionValue], name: str, source: str) -> int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(Fault.of(name, value, "must be a whole number from 0", source))
    return value


COMPILED_STACK, EAGER_STACK = STACKS["torchtitan"], "torchtitan-eager"
CHUNKED_LOSS = "ChunkedLossWrapper.Config"
"""The option `loss` where the head and the loss run in chunks; v0.2.2 has no such option."""
_PREFIX = "parallelism."
_REPLICATE = f"{_PREFIX}data_parallel_replicate_degree"
_SHARD = f"{_PREFIX}data_parallel_shard_degree"
_RESHARD = f"{_PREFIX}fsdp_reshard_after_forward"
_DTYPE = "training.dtype"
_LOCAL, _GLOBAL = "training.local_batch_size", "training.global_batch_size"
_MICRO = f"{_PREFIX}pipeline_parallel_microbatch_size"
_EVERY = "activation_checkpoint.selective_ac_option"


@dataclass(slots=True, kw_only=True)
class Reading:
    """A configuration while it is read: its options, what is wrong, what is left over."""

    source: str
    set_options: Options
    """Options that the file or the command line sets, by their names in v0.2.2."""
    gpus: int | None
    faults: list[Fault] = field(default_factory=list)
    left: list[NotUnderstood] = field(default_factory=list)

    @property
    def options(self) -> Options:
        """All options that decide the prediction."""
        return {**DEFAULTS, **self.set_options}

    def wrong(self, name: str, problem: str) -> None:
        """Note a fault of an option."""
        self.faults.append(Fault.of(name, self.options.get(name), problem, self.source))

    def leave(self, name: str, because: str) -> None:
        """List an option that the prediction does not use."""
        self.left.append(NotUnderstood(option=name, value=self.options.get(name), because=because))

    def refuse(self) -> None:
        """Raise what is wrong so far."""
        if self.faults:
            raise InputError(self.faults)

    def count(self, name: str, *, rest: bool = False) -> int:
        """A whole number above 0; with `rest` also -1."""
        value = self.options[name]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, int) and is_whole and (0 < value <= MOST or (rest and value == -1)):
            return value
        self.wrong(name, f"must be a whole number above 0{', or -1' if rest else ''}")
        return 1


def strategy_fields(reading: Reading, model: Model) -> dict[str, object]:
    """Return the fields of a strategy that a configuration sets; what is left over is listed.

    Raises
    ------
    InputError
        If values are wrong or missing.
    """
    fields = {option.field: _value(reading, option) for option in ONE_TO_ONE}
    fields |= _words(reading, fields)
    reading.refuse()
    fields |= _data_parallel(reading, fields)
    reading.refuse()
    fields |= _batch(reading, fields)
    fields |= _recompute(reading, model, fields)
    fields |= {**_quantization(reading), **_stored_types(reading)}
    reading.refuse()
    pipeline = Pipeline(pp=int(str(fields["pp"])), schedule=str(fields["schedule"]))
    fields |= stage_fields(model, pipeline, reading.options, reading.source)
    fields["offload_optimizer"] = fields["offload_weights"]
    _list_the_rest(reading)
    reading.refuse()
    fields |= _graphs(reading, model, fields) | _loss(reading, fields)
    fields["stack"] = _stack(reading, fields)
    return _without_effect_removed(fields, model)


_DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    **{option.field: (option.path,) for option in ONE_TO_ONE},
    "micro_batch_size": (_LOCAL,),
    "global_batch_size": (_GLOBAL,),
    "zero": (_REPLICATE, _SHARD),
    "fsdp_reshard": (_RESHARD,),
    "recompute_parts": (_EVERY,),
    "cuda_graphs": ("training.disable_cuda_graphs",),
    "offload_optimizer": ("training.enable_cpu_offload",),
}


def origins(reading: Reading, fields: Mapping[str, object]) -> dict[str, Origin]:
    """Where the fields of a configuration come from; its degrees imply replicas and GPUs."""
    derived = {"dp": Origin.DERIVED, "stack": Origin.DERIVED, "vpp": Origin.DERIVED}
    if reading.gpus is None:
        derived["gpus"] = Origin.DERIVED
    if reading.options[_GLOBAL] == -1:
        derived["global_batch_size"] = Origin.DERIVED
    return origins_of(fields, _DECIDED_BY, reading.set_options, derived)


def _graphs(reading: Reading, model: Model, fields: Mapping[str, object]) -> dict[str, object]:
    """CUDA graphs of forward and backward, on by default from v0.3.0 on, without pipelines.

    Experts on several ranks need HybridEP with a capacity (pytorch/torchtitan f84224af).
    """
    option = "training.disable_cuda_graphs"
    if reading.options.get(option, True) is not False or fields["pp"] != 1:
        return {}
    if model.has_experts and fields["ep"] != 1:
        reading.leave(option, "experts of several ranks need HybridEP; predicted without graphs")
        return {}
    return {"cuda_graphs": CudaGraphs.FULL}


def _value(reading: Reading, option: Item) -> object:
    """Value of a field for an option that stands for it."""
    value = reading.options[option.path]
    if option.words is None:
        return reading.count(option.path)
    ours = {_key(theirs): our for our, theirs in option.words.items()}
    if _key(value) in ours:
        return ours[_key(value)]
    if option.field in _NEAREST and value in _NEAREST[option.field]:
        ours_instead = _NEAREST[option.field][str(value)]
        reading.leave(option.path, f"shardwise has no word for it; predicted as {ours_instead}")
        return ours_instead
    theirs = [str(one).lower() if isinstance(one, bool) else str(one) for one in ours_words(option)]
    reading.wrong(option.path, allowed_words(str(value), theirs))
    return next(iter(ours.values()))


def ours_words(option: Item) -> list[object]:
    """Values that an option may have."""
    return list((option.words or {}).values())


# Values that torchtitan has and shardwise does not, and what the prediction takes instead.
_NEAREST: Mapping[str, Mapping[str, str]] = {
    "recompute": {"memory_budget": "selective"},
    "optimizer": {"Adam": "adamw", "DistMuon": "adamw"},
    "dispatcher": {"hybridep": "deepep", "minimal_async_ep": "all_to_all"},
    "schedule": OTHER_SCHEDULES,
}


def _key(value: object) -> object:
    """Words in any case; true is not 1."""
    if isinstance(value, str):
        return RENAMED_SCHEDULES.get(value.lower(), value).lower()
    return (type(value).__name__, str(value))


def _words(reading: Reading, fields: Mapping[str, object]) -> dict[str, object]:
    """What depends on words of the file that are not fields."""
    is_async = fields["tp_overlap"] == "ring"
    if is_async and "model" not in _compiled(reading):
        reading.leave(f"{_PREFIX}enable_async_tensor_parallel", "has no effect without compile")
        return {"tp_overlap": "stack"}
    return {}


def _compiled(reading: Reading) -> list[object]:
    """Components that torch.compile compiles: model, loss."""
    components = reading.options["compile.components"]
    if reading.options["compile.enable"] is not True:
        return []
    return components if isinstance(components, list) else [*str(components).split(",")]


def _data_parallel(reading: Reading, fields: Mapping[str, object]) -> dict[str, object]:
    """Replicas, shards, accelerators and the ZeRO stage."""
    product = 1
    for name in ("tp", "cp", "pp"):
        product *= int(str(fields[name]))
    replicate, shard = reading.count(_REPLICATE), reading.count(_SHARD, rest=True)
    reading.refuse()
    gpus = reading.gpus
    if shard == -1:
        if gpus is None:
            problem = (
                "is all other ranks, and the file does not say how many there are: set the number "
                "of accelerators (--gpus), or this option"
            )
            reading.wrong(_SHARD, problem)
            return {}
        shard, rest = divmod(gpus, product * replicate)
        if rest or not shard:
            reading.faults.append(
                Fault.of(
                    "gpus",
                    gpus,
                    f"must be a multiple of replicate {replicate} x tp x cp x pp = "
                    f"{product * replicate}",
                    reading.source,
                )
            )
            return {}
    total = product * replicate * shard
    if gpus is not None and gpus != total:
        problem = f"must be the product of the degrees of the file, {total}"
        reading.faults.append(Fault.of("gpus", gpus, problem, reading.source))
    return {"gpus": total, "dp": replicate * shard, **_zero(reading, fields, replicate, shard)}


def _zero(
    reading: Reading, fields: Mapping[str, object], replicate: int, shard: int
) -> dict[str, object]:
    """What is sharded: nothing with replicas alone, all with FSDP."""
    policy = reading.options[_RESHARD]
    if policy not in ("default", "always", "never"):
        reading.wrong(_RESHARD, "allowed: default, always, never")
    cp, pp = int(str(fields["cp"])), int(str(fields["pp"]))
    if shard == 1 and cp == 1:
        return {"zero": 0} if replicate > 1 else {"zero": 3}
    reshards = policy == "always" or (policy == "default" and pp == 1)
    hybrid = {"dp_shard": shard} if replicate > 1 else {}
    return {"zero": 3, "fsdp_reshard": reshards, **hybrid}


def _batch(reading: Reading, fields: Mapping[str, object]) -> dict[str, object]:
    local, total = reading.count(_LOCAL), reading.count(_GLOBAL, rest=True)
    dp, pp = int(str(fields["dp"])), int(str(fields["pp"]))
    once = local * dp
    total = once if total == -1 else total
    if total % once:
        problem = f"must be a multiple of local_batch_size x replicas = {once}"
        reading.wrong(_GLOBAL, problem)
    micro = local
    if pp > 1:
        micro = reading.count(_MICRO)
        if local % micro:
            reading.wrong(_MICRO, f"must divide training.local_batch_size {local}")
        elif total != once:
            reading.leave(
                _GLOBAL,
                f"the pipeline runs {total // once} times in a step; predicted as once, with all "
                "micro-batches",
            )
    return {"micro_batch_size": micro, "global_batch_size": total}


PURE: Mapping[str, str] = {
    "weight_dtype": "compute",
    "master_dtype": "none",
    "moment_dtype": "bf16",
    "gradient_dtype": "compute",
    "reduce_dtype": "fp32",
}
"""What `training.dtype = "bfloat16"` means: 16 bits throughout, but gradients travel in fp32."""


def _stored_types(reading: Reading) -> Mapping[str, str]:
    word = str(reading.options[_DTYPE])
    if word not in ("float32", "bfloat16"):
        reading.wrong(_DTYPE, "allowed: float32, bfloat16")
    return PURE if word == "bfloat16" else {}


def is_pure(strategy: Strategy) -> bool:
    """Whether nothing but the reduction of gradients is fp32."""
    return all(strategy.in_effect(name) == word for name, word in PURE.items())


def _recompute(reading: Reading, model: Model, fields: Mapping[str, object]) -> dict[str, object]:
    """Recompute of layers, of operations, or of every n-th layer."""
    if fields["recompute"] != "selective":
        return {}
    every = str(reading.options[_EVERY])
    if every == "op" or reading.options["activation_checkpoint.mode"] == "memory_budget":
        return {"recompute_parts": ("every_other",)}
    step = read_whole(every) or 0
    if step < 1:
        reading.wrong(_EVERY, "allowed: op, or a whole number above 0")
        return {}
    layers = -(-model.depth // int(str(fields["pp"]))) // step
    if every == "1":
        return {"recompute": "full"}
    if not layers:
        return {"recompute": "none"}
    reading.leave(
        _EVERY, f"every {every} layers one is recomputed; predicted as the first {layers} of a rank"
    )
    return {"recompute": "full", "recompute_layers": layers}


def _converters(reading: Reading) -> list[str]:
    """Names of the converters in v0.2.2."""
    value = reading.options["model.converters"]
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        reading.wrong("model.converters", "must be a list of names")
        return []
    return [RENAMED_CONVERTERS.get(str(item), str(item)) for item in items if item]


def _quantization(reading: Reading) -> dict[str, object]:
    """Recipe of the converters."""
    names = _converters(reading)
    found: dict[str, object] = {}
    for recipe, (linear, grouped) in CONVERTERS.items():
        rows = str(reading.options.get(f"{linear}.recipe_name")).startswith("rowwise")
        if rows != (recipe == Quantization.FP8_ROW):
            continue
        if linear in names:
            found["quantization"] = recipe
        elif grouped in names:
            reading.leave("model.converters", "experts alone in fewer bits; predicted without")
    known = [name for pair in CONVERTERS.values() for name in pair]
    if other := [name for name in names if name not in known]:
        reading.leave("model.converters", f"shardwise does not know {', '.join(other)}")
    return found


def _without_effect_removed(fields: dict[str, object], model: Model) -> dict[str, object]:
    """Fields of what a run has: others would only be noise."""
    absent = [name for name, present in _present(fields, model) if not present]
    effective = {name: value for name, value in fields.items() if name not in absent}
    if model.has_experts and fields["ep"] == 1:
        effective["etp"] = fields["tp"]
    return effective


def _present(fields: Mapping[str, object], model: Model) -> Iterator[tuple[str, bool]]:
    yield "etp", model.has_experts
    yield "dispatcher", model.has_experts and fields["ep"] != 1
    yield "cp_exchange", fields["cp"] != 1
    yield "tp_overlap", fields["tp"] != 1
    yield "schedule", fields["pp"] != 1
    yield "quantized_weights", fields.get("quantization") == "fp8_tensor"


def _stack(reading: Reading, fields: Mapping[str, object]) -> object:
    """Stack of the run.

    Where every n-th layer is recomputed, it recomputes some layers; its release may be one with
    chunks of the loss, or one that captures the step in a CUDA graph.
    """
    model = _model_stack(reading)
    lifted = {
        "recompute_layers": fields.get("recompute_layers") is not None,
        "cuda_graphs": fields.get("cuda_graphs") is not None,
        "loss": reading.options.get("loss") == CHUNKED_LOSS,
    }
    able = {name: "any" for name, has in lifted.items() if has}
    return {"base": model, "capabilities": {"like": model, "fields": able}} if able else model


def _model_stack(reading: Reading) -> str:
    return COMPILED_STACK if "model" in _compiled(reading) else EAGER_STACK


def _loss(reading: Reading, fields: Mapping[str, object]) -> dict[str, object]:
    """Loss, where it is not that of the stack: eager, it splits the vocabulary if tp is above 1."""
    loss = Loss.COMPILED if "loss" in _compiled(reading) else Loss.EAGER
    if reading.options.get("loss") == CHUNKED_LOSS:
        loss = Loss.CHUNKED
    if loss == Stack.load(_model_stack(reading)).loss:
        return {}
    return {"loss": Loss.LOSS_PARALLEL if loss == Loss.EAGER and fields["tp"] != 1 else loss}


def _list_the_rest(reading: Reading) -> None:
    """List what nothing read: options that are unknown, and known ones with unusual values."""
    used = tuple(f"{name}." for name in _converters(reading))
    for name, value in reading.set_options.items():
        if name in DEFAULTS or has_no_effect(name):
            continue
        if name.startswith("quantize.") and not name.startswith(used):
            continue  # settings of a converter that the run does not have
        if name not in USUAL:
            known = [*DEFAULTS, *USUAL]
            reading.leave(name, f"shardwise does not know it{nearest(name, known)}")
        elif value not in USUAL[name] and [value] not in USUAL[name]:
            reading.leave(name, "the prediction assumes another value")


_EAGER_LOSSES = (Loss.EAGER, Loss.LOSS_PARALLEL, Loss.VOCAB_PARALLEL)
STEPS = 100
"""Steps that an exported run trains for: enough to read its step time."""
_HEADS = {TOML_RELEASE: "output", PYTHON_RELEASE: "lm_head"}
_NO_PIPELINE = ("qwen3", "gpt_oss")  # pipelining_fn=None in their __init__.py
_NO_DEEPEP = ("qwen3", "gpt_oss")  # their parallelize.py does not read the option
# Flavors with FlexAttention, of which each model's parallelize.py refuses context parallelism.
_NO_CONTEXT = ("deepseek_v3", "gpt_oss")


def is_compiled(strategy: Strategy) -> bool:
    """Whether the layers of a plan are compiled, and its schedule allows it."""
    return strategy.in_effect("compile").code >= Compile.LAYERS.code and strategy.schedule != "zb-v"


def loss_in_effect(strategy: Strategy) -> Loss:
    """The loss of a plan, its own or its stack's."""
    return strategy.loaded_stack().loss if strategy.loss == Loss.STACK else strategy.loss


def _compile_options(strategy: Strategy) -> Options:
    """Components that are compiled; both are named where none is."""
    parts = ["model"] if is_compiled(strategy) else []
    if loss_in_effect(strategy) not in _EAGER_LOSSES:
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
        if option.path == ATTENTION_BACKEND and release == TOML_RELEASE:
            continue
        if option.field == "tp_overlap":
            value = "ring" if value == "ring" and strategy.tp > 1 else "stack"
        if option.field == "cp_exchange" and strategy.cp == 1:
            value = "all_gather"
        if option.field == "dispatcher" and strategy.ep == 1:
            value = "all_to_all"
        if option.field == "schedule" and strategy.pp == 1:
            value = "1f1b"
        options[option.path] = value if option.words is None else option.words[value]
    flavor = flavor_of(model, release) if release == TOML_RELEASE else python_flavor(model)
    if flavor is not None:
        options |= {"model.name": flavor.family, "model.flavor": flavor.flavor}
    if release == PYTHON_RELEASE:
        captured = captured_graphs(model, strategy) == CudaGraphs.FULL
        options["training.disable_cuda_graphs"] = not captured
    table = Table.of(model, [strategy])
    # Batch sizes: pipelines split the batch of a rank, others accumulate over passes.
    total, micro = strategy.global_batch_size or 1, strategy.micro_batch_size
    local = total // (strategy.dp or 1) if strategy.pp > 1 else micro
    return (
        options
        | {
            "training.local_batch_size": local,
            "training.global_batch_size": total,
            "parallelism.pipeline_parallel_microbatch_size": micro if strategy.pp > 1 else 1,
        }
        | _data_parallel_options(strategy)
        | stage_options(model, table, _HEADS[release])
        | _converters_options(model, strategy)
        | {
            "activation_checkpoint.selective_ac_option": "op",
            _DTYPE: "bfloat16" if is_pure(strategy) else "float32",
            **_compile_options(strategy),
        }
    )


def _data_parallel_options(strategy: Strategy) -> Options:
    reshard = "always" if strategy.zero == 3 and strategy.fsdp_reshard else "never"  # noqa: PLR2004
    is_sharded = strategy.zero > 0 and shards(strategy) * strategy.cp > 1
    return {
        "parallelism.data_parallel_replicate_degree": (strategy.dp or 1) // shards(strategy),
        "parallelism.data_parallel_shard_degree": shards(strategy),
        "parallelism.fsdp_reshard_after_forward": reshard if is_sharded else "default",
    }


def _converters_options(model: Model, strategy: Strategy) -> Options:
    if strategy.quantization == "none":
        return {"model.converters": []}
    linear, grouped = CONVERTERS[strategy.quantization]
    options: dict[str, OptionValue] = {f"{linear}.filter_fqns": ["output", "router.gate"]}
    named = {"fp8_row": "rowwise", "mxfp8": "mxfp8_cublas"}
    if strategy.quantization in named:
        options[f"{linear}.recipe_name"] = named[strategy.quantization]
    if not model.has_experts:
        return {"model.converters": [linear], **options}
    return {"model.converters": [linear, grouped], **options, f"{grouped}.fqns": ["experts"]}


def plan_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """What no release of torchtitan has an option for, in a plan that the stack can run."""
    for name, allowed, why in (
        ("training", True, "torchtitan trains; it has no forward-only step"),
        ("document_len", None, "torchtitan reads documents from its data set; no option has it"),
        ("attention", "model", "torchtitan has no option for key-value heads; change the model"),
    ):
        value = getattr(strategy, name)
        if value != allowed:
            yield Fault.of(name, value, why)
    if model.has_experts and strategy.ep == 1 and strategy.etp != strategy.tp:  # of another stack
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
    for name, allowed, why in (
        ("quantized_weights", False, "gathers weights in 16 bits"),
        ("cp_exchange", "all_gather", "all-gathers keys and values; nearest: all_gather"),
    ):
        value = getattr(strategy, name)
        if value != allowed and (name != "cp_exchange" or strategy.cp > 1):
            yield Fault.of(name, value, f"torchtitan {release} {why}")
    if strategy.quantization == Quantization.FP8_TENSOR:
        problem = f"torchtitan {release} scales fp8 by rows; nearest: {Quantization.FP8_ROW}"
        yield Fault.of("quantization", strategy.quantization, problem)
    if model.mtp and strategy.loss == Loss.CHUNKED:
        problem = f"torchtitan {release} has a loss of its own with mtp; nearest: compiled"
        yield Fault.of("loss", strategy.loss, problem)
    if (kernel := strategy.attention_kernel) not in ATTENTION_KERNELS:
        problem = f"torchtitan {release} allows: {', '.join(ATTENTION_KERNELS)}"
        yield Fault.of("attention_kernel", kernel, problem)
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
    if strategy.loss == Loss.CHUNKED:
        problem = f"torchtitan {TOML_RELEASE} has no ChunkedLossWrapper; nearest: compiled"
        yield Fault.of("loss", strategy.loss, problem)
    usual = strategy.loaded_stack().kernel_of_experts if model.has_experts else "stack"
    if (kernel := strategy.attention_kernel) not in ("stack", usual):
        problem = f"torchtitan {TOML_RELEASE} has no option for it; allowed: stack"
        yield Fault.of("attention_kernel", kernel, problem)
    if (graphs := captured_graphs(model, strategy)) != CudaGraphs.NONE:
        problem = f"torchtitan {TOML_RELEASE} has no CUDA graphs; nearest: none"
        yield Fault.of("cuda_graphs", graphs, problem)
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
