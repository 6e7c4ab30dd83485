"""Fields of a strategy for the options of a torchtitan configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.config.base import MOST
from shardwise.config.launch import NotUnderstood
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.errors import Fault, InputError, allowed_words, nearest
from shardwise.launchers.torchtitan.options import (
    CONVERTERS,
    DEFAULTS,
    ONE_TO_ONE,
    OTHER_SCHEDULES,
    RENAMED_CONVERTERS,
    RENAMED_SCHEDULES,
    USUAL,
    Option,
    Options,
    has_no_effect,
)
from shardwise.launchers.torchtitan.stages import Pipeline, stage_fields
from shardwise.units import read_whole

COMPILED_STACK, EAGER_STACK = "torchtitan-2025", "torchtitan-eager"
LOSS_FIGURES = ("loss_forward_bytes", "loss_backward_bytes", "loss_saved_bytes", "loss_split_bytes")
"""Figures of a stack that compiling the loss decides."""
_PREFIX = "parallelism."
_REPLICATE = f"{_PREFIX}data_parallel_replicate_degree"
_SHARD = f"{_PREFIX}data_parallel_shard_degree"
_RESHARD = f"{_PREFIX}fsdp_reshard_after_forward"
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
    fields |= _quantization(reading)
    reading.refuse()
    pipeline = Pipeline(pp=int(str(fields["pp"])), schedule=str(fields["schedule"]))
    fields |= stage_fields(model, pipeline, reading.options, reading.source)
    fields["offload_optimizer"] = fields["offload_weights"]
    _list_the_rest(reading)
    reading.refuse()
    return _without_effect_removed(fields, model) | {"stack": _stack(reading, fields)}


def _value(reading: Reading, option: Option) -> object:
    """Value of a field for an option that stands for it."""
    value = reading.options[option.name]
    if option.words is None:
        return reading.count(option.name)
    ours = {_key(theirs): our for our, theirs in option.words.items()}
    if _key(value) in ours:
        return ours[_key(value)]
    if option.field in _NEAREST and value in _NEAREST[option.field]:
        ours_instead = _NEAREST[option.field][str(value)]
        reading.leave(option.name, f"shardwise has no word for it; predicted as {ours_instead}")
        return ours_instead
    theirs = [str(one).lower() if isinstance(one, bool) else str(one) for one in ours_words(option)]
    reading.wrong(option.name, allowed_words(str(value), theirs))
    return next(iter(ours.values()))


def ours_words(option: Option) -> list[object]:
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
    """Stack of the run, with the loss of another where one of model and loss is compiled.

    Where every n-th layer is recomputed, it recomputes some layers.
    """
    model, loss = (
        COMPILED_STACK if part in _compiled(reading) else EAGER_STACK for part in ("model", "loss")
    )
    changes: dict[str, object] = {}
    if model != loss:
        other = Stack.load(loss)
        changes = {name: getattr(other, name) for name in LOSS_FIGURES}
    if fields.get("recompute_layers") is not None:
        changes["capabilities"] = {"like": model, "fields": {"recompute_layers": "any"}}
    return {"base": model, **changes} if changes else model


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
