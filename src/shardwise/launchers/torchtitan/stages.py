"""Pipeline stages as torchtitan writes them: counts to subtract, or names of modules by stage."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.config.base import MOST_LAYERS
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.errors import Fault, InputError
from shardwise.launchers.torchtitan.options import OptionValue
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
