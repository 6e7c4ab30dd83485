"""`largest_model`: the largest dense GPT that some strategy fits onto a number of accelerators.

Once with every strategy of the space, once with those that people run.
The models form a ladder of sizes, in the proportions of published ones.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from shardwise.arrays import Floats, divisors
from shardwise.config.base import MISSING
from shardwise.config.enums import BaseWeights, Dtype, Optimizer
from shardwise.config.model import Model
from shardwise.config.strategy_fields import OFFLOADS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.cost.component_costs import stored_bytes
from shardwise.cost.optimizer import least_state_bytes
from shardwise.engine.evaluate import peak_memory
from shardwise.errors import Fault, InputError, check_word
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.ops.param_count import count_parameters
from shardwise.ops.precision import least_sizes
from shardwise.ops.quantization import FROZEN_BYTES, RECIPES
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.pipeline_layout import distinct_stage_groups
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.keywords import LayoutKeywords
from shardwise.planning.search.query import load_space, usable_bytes
from shardwise.planning.search.results import LargestFit, LargestModel, Shape
from shardwise.planning.search.run import search
from shardwise.planning.search.scan import broken_options, excess_bytes
from shardwise.planning.search.smallest_gpus import least_memory_space
from shardwise.planning.search.space import FULL, Space


def _ladder(most: float, *, beyond: int, seq_len: int) -> tuple[list[Model], int]:
    """Return models by size, and how many of them have at most `most` parameters.

    The list has at least `beyond` larger ones.
    """
    found: list[tuple[int, Model]] = []
    for heads in widths():
        models = [gpt_model(heads, layers, seq_len) for layers in depths(heads)]
        sized = [(count_parameters(model).total, model) for model in models]
        least = sized[0][0]
        if sum(most < size < least for size, _ in found) >= beyond:
            break
        found += sized
    found.sort(key=itemgetter(0))
    return [model for _, model in found], sum(size <= most for size, _ in found)


def _calculon_ladder(most: float, *, beyond: int, seq_len: int) -> tuple[list[Model], int]:
    """Return the shapes of Calculon's study, and how many have at most `most` parameters."""
    del beyond  # there are only these
    models = [
        gpt_model(heads, layers, seq_len, hidden=hidden, head_dim=round(hidden / heads))
        for hidden, heads, layers in calculon_shapes()
    ]
    return models, sum(count_parameters(model).total <= most for model in models)


def calculon_shapes() -> list[tuple[int, int, int]]:
    """Width, heads and layers of the shapes of Calculon's study of huge models, by size.

    128 to 576 layers in steps of 32, as many heads, and the multiple of 1024 whose ratio to the
    layers is closest to one that grows from 192 by 32/3 for each step: those that Calculon 0.1.0
    (scripts/find_huge.py) lists for its search for systems that train them.
    """
    found = []
    for step, layers in enumerate(range(128, 577, 32)):
        target = layers * (192 + step * 32 / 3)
        found.append((1024 * round(target / 1024), layers, layers))
    return found


def calculon_rows() -> list[dict[str, Any]]:
    """Return the shapes of Calculon's study with their parameters and ratio of width to depth."""
    models = _calculon_ladder(0.0, beyond=0, seq_len=_FAMILIES["calculon"].seq_len)[0]
    return [
        {
            "name": model.name,
            "parameters": count_parameters(model).total,
            "layers": model.depth,
            "hidden": model.hidden,
            "heads": model.layers[0].own_attention.heads,
            "head_dim": model.layers[0].own_attention.head_dim,
            "ffn": model.layers[0].feed_forward.ffn,
            "seq_len": model.seq_len,
            "ratio": model.hidden / model.depth,
        }
        for model in models
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of shapes, and the tokens that they are trained on unless set."""

    ladder: Callable[..., tuple[list[Model], int]]
    """Models by size, and how many of them have at most a number of parameters."""
    seq_len: int
    batch: int | None = None
    """None: one sequence for each accelerator."""


_FAMILIES = {
    "gpt": Family(ladder=_ladder, seq_len=2048),
    "calculon": Family(ladder=_calculon_ladder, seq_len=8192, batch=3072),
}


def family_of(name: str) -> Family:
    """Return the family of shapes of a name."""
    check_word("shapes", name, tuple(_FAMILIES))
    return _FAMILIES[name]


_HEAD_DIM = 128
_FFN_PER_HIDDEN = 4
_VOCAB = 51200
# Depth by width: the largest of the published models, the exponent of the growth, and the largest
# relative distance of any of them from that line.
_HIDDEN_OF_1T, _LAYERS_OF_1T, _GROWTH, _SCATTER = 25600, 128, 0.7, 0.2
# Heads are 4 to 7 and layers 8 to 15 times a power of two, for TP and PP to split.
_HEADS, _LAYERS = range(4, 8), range(8, 16)


def widths() -> Iterator[int]:
    """Yield numbers of heads in ascending order, endlessly: 1 2 3, 4 5 6 7, 8 10 12 14 ..."""
    yield from range(1, _HEADS.start)
    yield from _scaled(_HEADS)


def depths(heads: int) -> list[int]:
    """Numbers of layers that a GPT of so many heads may have, in ascending order.

    Within a fifth of L = 128 (hidden / 25600)^0.7, hidden = 128 heads. So are the ten models, from
    1.7 B (hidden 2304, 24 layers) to 1 T (25600, 128), that Megatron-LM was scaled up through
    (arXiv 2104.04473, Narayanan et al., 2021, table 1), farthest 48 layers for 58.
    """
    line = _LAYERS_OF_1T * (_HEAD_DIM * heads / _HIDDEN_OF_1T) ** _GROWTH
    least, most = (1 - _SCATTER) * line, (1 + _SCATTER) * line
    few = [layers for layers in range(1, _LAYERS.start) if least <= layers <= most]
    many = takewhile(lambda layers: layers <= most, _scaled(_LAYERS))
    return few + [layers for layers in many if layers >= least]


def _scaled(numbers: range) -> Iterator[int]:
    """Yield some numbers times every power of two, endlessly."""
    scale = 1
    while True:
        yield from (scale * number for number in numbers)
        scale *= 2


def gpt_model(
    heads: int, layers: int, seq_len: int, *, hidden: int | None = None, head_dim: int = _HEAD_DIM
) -> Model:
    """Return a GPT: heads of 128 and ffn = 4 hidden as GPT-3 (arXiv 2005.14165, table 2.1)."""
    hidden = head_dim * heads if hidden is None else hidden
    attention = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "bias": "all"}
    mlp = {"ffn": _FFN_PER_HIDDEN * hidden, "activation": "gelu", "bias": True}
    text = "proportions of the models of arXiv 2104.04473, table 1; heads of 128 as GPT-3"
    fields: dict[str, object] = {
        "name": f"gpt-{hidden}x{layers}",
        "hidden": hidden,
        "vocab": _VOCAB,
        "seq_len": seq_len,
        "layers": [{"count": layers, "attention": attention, "mlp": mlp}],
        "norm": "layernorm",
        "position": "learned",
        "tied_embeddings": True,
        "dropout": True,
        "sources": {"": {"kind": "assumed", "text": text}},
    }
    return Model.validated(fields, source="shape")


_SHOWN = 12
_MOST_SHOWN = 50
"""Each model that is listed has a search of its own."""
# Rows that are evaluated at a time.
_PIECE_ROWS = 1 << 14
_Degrees = dict[str, set[int]]


def largest_model(
    system: SystemLike,
    *,
    gpus: int | str,
    gbs: int | str | None = None,
    seq_len: int | str | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    count: int = _SHOWN,
    shapes: str = "gpt",
    **fixed: Unpack[LayoutKeywords],
) -> LargestModel:
    """Find the largest dense GPT that some strategy fits onto a number of accelerators.

    Tries shapes (`widths`, `depths`) downward from the largest whose weights and optimizer state
    could fit; the first that fits is the answer. (Not by bisection: a larger model may fit where a
    smaller one does not, if its heads and layers have better divisors.) Memory alone decides
    whether a shape fits; times are computed for the strategies of the largest one only.

    There are two answers: the limit, with every strategy of the full scope of `Space` and any
    software, and `practical`, with those of the practical scope. Fields that `space` or `fixed` set
    are the same for both.

    Parameters
    ----------
    gbs
        Global batch [sequences]; by default that of the space, or one for each accelerator.
    seq_len
        Tokens per sequence; by default those of the space, or 2048.
    space, **fixed
        Strategies to try, as in `search`.
    max_memory, reserve
        Usable memory of an accelerator, as in `search`.
    count
        Shapes to show around the limit.
    shapes
        ``gpt``: in the proportions of GPT-3 and its successors. ``calculon``: the 15 shapes of
        Calculon's study, of 0.9 to 268 trillion parameters, by default with its sequences of 8192
        tokens and its batch of 3072.

    Returns
    -------
    LargestModel
        The largest model and its neighbors; `help(shardwise.LargestModel)` lists its fields.

    Raises
    ------
    InputError
        If an argument is wrong.

    Examples
    --------
    >>> from shardwise import largest_model
    >>> found = largest_model("h100-sxm", gpus=2, recompute="full")
    >>> practical = found.practical
    >>> assert found.largest and practical.largest and practical.best
    >>> found.largest.fits, practical.best.fits
    (True, True)
    >>> practical.largest.parameters < found.largest.parameters
    True
    >>> practical.best.strategy["offload_weights"]
    False
    """
    started = time.perf_counter()
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_SHOWN:
        problem = f"must be a whole number from 1 to {_MOST_SHOWN}"
        raise InputError.of("count", count, problem)
    the_system = System.load(system)
    family = family_of(shapes)
    declared = _with_scale(load_space(space, fixed), family, gpus, gbs, seq_len)
    declared, note = _with_dtype(declared, the_system)
    usable = usable_bytes(the_system, max_memory, reserve)

    def fit(space: Space, within: float) -> LargestFit:
        case = _Case(
            system=the_system,
            space=_with_divisors(space, the_system),
            declared=space,
            capacity_bytes=usable,
            memory={"max_memory": max_memory, "reserve": reserve},
        )
        return _fit(case, family, count=count, within=within)

    # The space with all values of what it leaves open, whatever software can run them.
    wide: dict[str, object] = {"scope": FULL, "any_software": True}
    fields = {name: value for name, value in wide.items() if name not in declared.model_fields_set}
    limit = fit(declared.fixed(fields, source="space") if fields else declared, math.inf)
    within = 0.0 if limit.largest is None else limit.largest.parameters
    practical = fit(declared, within)
    return LargestModel(
        **{name: getattr(limit, name) for name in LargestFit.model_fields},
        system=the_system.name,
        gpus=_single(declared, "gpus"),
        global_batch_size=_single(declared, "global_batch_size"),
        seq_len=_single(declared, "seq_len"),
        capacity_bytes=usable,
        second_capacity_bytes=_beyond_bytes(the_system),
        practical=practical,
        notes=() if note is None else (note,),
        elapsed_s=time.perf_counter() - started,
    )


def _fit(case: "_Case", family: Family, *, count: int, within: float) -> LargestFit:
    """Find the largest shape that fits with some strategy of a space."""
    length = _single(case.space, "seq_len")
    models, possible = family.ladder(_most_parameters(case), beyond=count, seq_len=length)
    evaluated: dict[int, Shape] = {}
    limit: int | None = None
    degrees: _Degrees = {}
    for position in reversed(range(possible)):
        if count_parameters(models[position]).total > within:
            continue
        evaluated[position], degrees = _shape(case, models[position])
        if evaluated[position].fits:
            limit = position
            break
    first = 0 if limit is None else max(0, limit + 1 - (count - count // 2))
    shown = range(first, min(first + count, len(models)))
    evaluated |= {i: _shape(case, models[i])[0] for i in shown if i not in evaluated}
    if within == math.inf and all(shape.spare_bytes is None for shape in evaluated.values()):
        _refuse_all(case, models[0])
    found: dict[str, object] = {"largest": None, "model": None, "best": None, "candidates": 0}
    if limit is not None:
        found = {"largest": evaluated[limit], "model": models[limit].to_dict()}
        fitting = {axis: sorted(values) for axis, values in degrees.items()}
        narrowed = case.declared.fixed(fitting, source="space")
        result = search(
            models[limit], case.system, narrowed, top=1, all_variants=True, fits=None, **case.memory
        )
        found["best"] = next(iter(result.best), None) if result.complete else None
        found["candidates"] = result.candidates
    return LargestFit(
        space=case.declared.model_dump(mode="json", exclude_unset=True),
        ladder=tuple(evaluated[i] for i in shown),
        judged=len(evaluated),
        **found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The accelerators that models have to fit onto, and the strategies to try."""

    system: System
    space: Space
    """With every tp degree written out."""
    declared: Space
    capacity_bytes: float
    """Usable part of the first memory tier."""
    memory: Mapping[str, Any]
    """The same as arguments of a search."""

    def candidates(self, model: Model) -> Candidates:
        """The strategies that decide whether a model fits."""
        return Candidates.of(model, self.system, least_memory_space(model, self.system, self.space))


def _with_scale(
    space: Space,
    family: Family,
    gpus: int | str,
    gbs: int | str | None,
    seq_len: int | str | None,
) -> Space:
    """The space with one number of accelerators, one batch and one sequence length."""
    scale = {"gpus": gpus, "global_batch_size": gbs, "seq_len": seq_len}
    fields = {name: value for name, value in scale.items() if value is not None}
    if seq_len is None and space.seq_len is None:
        fields["seq_len"] = family.seq_len
    space = space.fixed(fields, source="largest")
    if space.global_batch_size is None:
        batch = space.gpus if family.batch is None else family.batch
        space = space.fixed({"global_batch_size": batch}, source="largest")
    if not space.gpus:
        raise InputError.at("largest", MISSING["gpus"], "gpus")
    several = [n for n in scale if len(getattr(space, n)) != 1]
    if several:
        problem = "has several values; the largest model is found for one"
        raise InputError([Fault(source="largest", field=n, problem=problem) for n in several])
    return space


def _with_dtype(space: Space, system: System) -> tuple[Space, str | None]:
    """The space with a type that the system has, and a note if it is not the usual one."""
    usual, *others = (word.value for word in Dtype)
    known = [name for name in others if name in system.accelerator.matrix]
    if space.dtype is not None or usual in system.accelerator.matrix or not known:
        return space, None
    note = f"dtype {known[0]}: {system.name} has no matrix rate for {usual}"
    return space.fixed({"dtype": known[0]}, source="largest"), note


def _with_divisors(space: Space, system: System) -> Space:
    """The space with the tp degrees that `Candidates` would try: divisors of the GPUs.

    In the practical scope those inside the fast domain of the network.
    """
    if space.tp is not None:
        return space
    most = None if space.scope == FULL else system.fast_domain
    degrees = [n for n in divisors(_single(space, "gpus")) if most is None or n <= most]
    return space.fixed({"tp": degrees}, source="space")


def _single(space: Space, field: str) -> int:
    """The value of a field that has a single one."""
    return int(getattr(space, field)[0])


def _most_parameters(case: _Case) -> float:
    """Upper bound of the parameters that any strategy fits.

    Each of the P parameters has at least one weight, gradient and optimizer state somewhere on the
    N accelerators (weights alone, if some are frozen), the gradient in the first memory tier, the
    others there or offloaded:

        P gradient <= N first tier,  P (weight + gradient + state) <= N (first tier + others),

    each with its smallest size [byte].
    """
    offloads = [value for name in OFFLOADS for value in case.space.values(name, case.system) or ()]
    second = _beyond_bytes(case.system) if any(offloads) else 0.0
    weight = np.array([DTYPE_BYTES[name] for name in case.space.values("dtype", case.system) or ()])
    optimizers = case.space.values("optimizer", case.system) or ()
    gradient = min(DTYPE_BYTES.values())
    stacks = case.space.stacks(case.system)

    def words(name: str) -> set[str]:
        found = {str(word) for word in case.space.values(name, case.system) or ("stack",)}
        of_stacks = {str(getattr(stack, name)) for stack in stacks} if "stack" in found else set()
        return found - {"stack"} | of_stacks

    types = (words("weight_dtype"), words("master_dtype"), words("moment_dtype"))
    least = [
        least_state_bytes(np.array(one.code), *least_sizes(weight, *types, one))
        for one in map(Optimizer, optimizers)
    ]
    state = np.min(least, axis=0)
    if any(stack.update_in_backward for stack in stacks):
        gradient = 0.0
    # Whether every strategy trains all weights of the model.
    trains, frozen, ranks = (
        case.space.values(field, case.system) or () for field in ("training", "frozen", "lora_rank")
    )
    if not (all(trains) and not any(frozen) and not any(ranks)):
        gradient, state = 0.0, np.zeros_like(weight)
        sizes = [FROZEN_BYTES.get(BaseWeights(word), np.inf) for word in words("base_weights")]
        weight = np.minimum(weight, min(sizes))
    stored = any(stack.quantized_weight_recipes for stack in stacks)
    if stored or any(case.space.values("quantized_weights", case.system) or ()):
        weight = np.minimum(weight, min(recipe.weight_bytes for recipe in RECIPES.values()))
    room = case.capacity_bytes + second
    most = float(np.max(room / (weight + gradient + state)))
    if gradient:
        most = min(most, case.capacity_bytes / gradient)
    return _single(case.space, "gpus") * most


def _beyond_bytes(system: System) -> float:
    """Usable bytes of all memory tiers beyond the first, per accelerator."""
    return float(sum(tier.usable_bytes for tier in system.accelerator.memory[1:]))


def _refuse_all(case: _Case, model: Model) -> None:
    """Raise an `InputError` with the rules that exclude every strategy with any shape."""
    candidates = case.candidates(model)
    if not len(candidates):
        gpus = _single(case.space, "gpus")
        problem = f"is empty: none of its degrees and chunks use exactly {gpus} GPUs"
        raise InputError.at("space", problem)
    refuse_illegal(model, case.system, candidates.strategies(np.array([0])))


def _shape(case: _Case, model: Model) -> tuple[Shape, _Degrees]:
    """Whether any strategy fits, which one leaves most room, and with which degrees some fit."""
    candidates = case.candidates(model)
    number, room, tier = -1, -np.inf, 0
    degrees: _Degrees = {"tp": set(), "pp": set()}
    for box in _pieces(candidates):
        table = box.table()
        rooms = _rooms(case, model, box, table)
        spare = rooms.min(axis=0)
        fitting = np.any(spare >= 0, axis=0)
        for axis, values in degrees.items():
            values |= set(getattr(table, axis)[fitting].tolist())
        choice, row = np.unravel_index(np.argmax(spare), spare.shape)
        if spare[choice, row] > room:
            room = float(spare[choice, row])
            tier = int(np.argmin(rooms[:, choice, row]))
            number = int(box.numbers(np.array(row), np.array(choice)))
    layer, legal = model.layers[0], number >= 0
    shape = Shape(
        name=model.name,
        parameters=count_parameters(model).total,
        hidden=model.hidden,
        heads=layer.own_attention.heads,
        layers=model.depth,
        ffn=layer.feed_forward.ffn,
        fits=room >= 0,
        spare_bytes=room if legal else None,
        tightest_tier=case.system.accelerator.memory[tier].name if legal else None,
        roomiest=candidates.strategies(np.array([number])).strategy(0).to_dict() if legal else None,
    )
    return shape, degrees


def _pieces(candidates: Candidates) -> Iterator[Box]:
    return (piece for box in candidates.legal for piece in box.cut(_PIECE_ROWS))


def _rooms(case: _Case, model: Model, box: Box, table: Table) -> Floats:
    """Room left on each memory tier, -inf where a rule is broken; (tiers, choices, rows) [byte]."""
    legal = broken_options(model, case.system, box, table) < 0
    tiers = case.system.accelerator.memory
    rooms = np.full((len(tiers), *legal.shape), -np.inf)
    rows = np.flatnonzero(legal.any(axis=0))
    if rows.size:
        some = table.take(rows)
        held = stored_bytes(model, some)
        holding = peak_memory(some, held, distinct_stage_groups(model, some))
        left = -excess_bytes(case.system, holding, case.capacity_bytes)
        rooms[:, :, rows] = np.where(legal[:, rows], left, -np.inf)
    return rooms
