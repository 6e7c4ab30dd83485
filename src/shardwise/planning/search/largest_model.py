"""`largest_model`: the largest dense GPT that some strategy fits onto a number of accelerators."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.analysis.results import Estimate, Result
from shardwise.arrays import Floats
from shardwise.config.enums import Optimizer
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.cost.optimizer import least_state_bytes
from shardwise.cost.placed_costs import PlacedCosts
from shardwise.engine.evaluate import held
from shardwise.errors import Fault, InputError
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.ops.param_count import count_parameters
from shardwise.ops.quantization import RECIPES
from shardwise.parallel.constraints import refuse_illegal
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.evaluate import broken_options, excess_bytes
from shardwise.planning.search.extents import divisors
from shardwise.planning.search.least_memory import decisive
from shardwise.planning.search.model_shapes import depths, shape_of, widths
from shardwise.planning.search.query import load_space, usable_bytes
from shardwise.planning.search.run import search
from shardwise.planning.search.space import Space

__all__ = ["LargestModel", "Shape", "largest_model"]

_SEQ_LEN = 2048
_SHOWN = 12
_OFFLOADS = ("offload_weights", "offload_activations", "offload_optimizer")
# Rows that are judged at a time.
_PIECE_ROWS = 1 << 14


class Shape(Result):
    """A model of the ladder, and whether anything fits."""

    name: str
    parameters: int
    hidden: int
    heads: int
    layers: int
    ffn: int
    fits: bool
    spare_bytes: float | None
    """What the roomiest strategy leaves on its tightest memory tier, or, below 0, lacks there;
    None if no strategy is legal."""
    tightest_tier: str | None
    roomiest: dict[str, Any] | None
    """That strategy."""


class LargestModel(Result):
    """The largest model that fits, and its neighbours."""

    system: str
    gpus: int
    global_batch_size: int
    seq_len: int
    space: dict[str, Any]
    """The space, as it was declared."""
    capacity_bytes: float
    """What of the accelerator's memory could be used."""
    second_capacity_bytes: float
    """What the second memory tier has for each accelerator; 0 if there is none."""
    ladder: tuple[Shape, ...]
    """Shapes around the limit, smallest first."""
    judged: int
    """Shapes looked at."""
    largest: Shape | None
    """None if not even the smallest fits."""
    model: dict[str, Any] | None
    """The largest, as a file of a model holds it."""
    best: Estimate | None
    """Its fastest strategy; None where one did not wait for it."""
    candidates: int
    """Strategies that the fastest was chosen from."""
    elapsed_s: float


def largest_model(
    system: System | str | Path,
    *,
    gpus: int | str,
    gbs: int | str | None = None,
    seq_len: int | str | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    count: int = _SHOWN,
    **fixed: Any,
) -> LargestModel:
    """Find the largest dense GPT that some strategy fits onto a number of accelerators.

    Shapes (`widths`, `depths`) are looked at from the largest whose weights and optimizer state
    could be held at all, downward: the first that fits is the answer. (Not by bisection: a larger
    one may fit where a smaller one does not, if its heads and layers have the better divisors.)
    Whether one fits is decided by memory alone; the time of the winner's strategies is computed
    once it is known.

    Parameters
    ----------
    gbs
        Global batch [sequences]; by default that of the space, or one for each accelerator.
    seq_len
        Tokens per sequence; by default those of the space, or 2048.
    space, **fixed
        Strategies to try, as in `search`.
    max_memory, reserve
        What of an accelerator's memory may be used, as in `search`.
    count
        Shapes to show around the limit.

    Raises
    ------
    InputError
        If anything given is wrong.

    Examples
    --------
    >>> from shardwise import largest_model
    >>> found = largest_model("h100-sxm", gpus=8)
    >>> found.largest.fits, found.best.fits
    (True, True)
    """
    started = time.perf_counter()
    _check(count)
    the_system = System.load(system)
    whole = _with_scale(load_space(space, fixed), gpus, gbs, seq_len)
    length = _one(whole, "seq_len")
    case = _Case(
        system=the_system,
        space=_with_divisors(whole),
        capacity_bytes=usable_bytes(the_system, max_memory, reserve),
    )
    models, possible = _ladder(_most_parameters(case), beyond=count, seq_len=length)
    known: dict[int, Shape] = {}
    limit: int | None = None
    for position in reversed(range(possible)):
        known[position] = _judged(case, models[position])
        if known[position].fits:
            limit = position
            break
    first = 0 if limit is None else max(0, limit + 1 - (count - count // 2))
    shown = range(first, first + count)
    known |= {i: _judged(case, models[i]) for i in shown if i not in known}
    if all(shape.spare_bytes is None for shape in known.values()):
        _refuse_all(case, models[0])
    found: dict[str, Any] = {"largest": None, "model": None, "best": None, "candidates": 0}
    if limit is not None:
        found = {"largest": known[limit], "model": models[limit].to_dict()}
        narrowed = whole.fixed(_degrees(case, models[limit]), source="space")
        memory: dict[str, Any] = {"max_memory": max_memory, "reserve": reserve}
        result = search(models[limit], the_system, narrowed, top=1, **memory)
        found["best"] = next(iter(result.best), None) if result.complete else None
        found["candidates"] = result.candidates
    return LargestModel(
        system=the_system.name,
        gpus=_one(whole, "gpus"),
        global_batch_size=_one(whole, "global_batch_size"),
        seq_len=length,
        space=whole.model_dump(mode="json", exclude_unset=True),
        capacity_bytes=case.capacity_bytes,
        second_capacity_bytes=sum(tier.capacity for tier in the_system.accelerator.memory[1:]),
        ladder=tuple(known[i] for i in shown),
        judged=len(known),
        elapsed_s=time.perf_counter() - started,
        **found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What models are fitted onto, and how."""

    system: System
    space: Space
    capacity_bytes: float
    """What of the first memory tier may be used."""

    def candidates(self, model: Model) -> Candidates:
        """Strategies that decide whether a model fits."""
        return Candidates.of(model, self.system, decisive(model, self.system, self.space))


def _check(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        fault = Fault(field="count", value=count, has_value=True, problem="must be at least 1")
        raise InputError(fault)


def _with_scale(
    space: Space, gpus: int | str, gbs: int | str | None, seq_len: int | str | None
) -> Space:
    """Give a space one number of accelerators, one batch and one length."""
    given = {"gpus": gpus, "global_batch_size": gbs, "seq_len": seq_len}
    fields = {name: value for name, value in given.items() if value is not None}
    if seq_len is None and space.seq_len is None:
        fields["seq_len"] = _SEQ_LEN
    whole = space.fixed(fields, source="largest")
    if whole.global_batch_size is None:
        whole = whole.fixed({"global_batch_size": whole.gpus}, source="largest")
    several = [n for n in given if len(getattr(whole, n)) != 1]
    if several:
        problem = "has several values; the largest model is found for one"
        raise InputError([Fault(source="largest", field=n, problem=problem) for n in several])
    return whole


def _with_divisors(space: Space) -> Space:
    """Say which degrees are tried anyway: `decisive` need not think of others."""
    if space.tp is not None:
        return space
    return space.fixed({"tp": divisors(_one(space, "gpus"))}, source="space")


def _one(space: Space, field: str) -> int:
    """The value of a field that has one."""
    return int(getattr(space, field)[0])


def _most_parameters(case: _Case) -> float:
    """Beyond so many parameters no strategy fits.

    Each of the P parameters has at least one weight, gradient and optimizer state somewhere on the
    N accelerators (weights alone, if some are frozen), the gradient in the first memory tier and
    the others there or where they are offloaded to:

        P gradient <= N first tier,  P (weight + gradient + state) <= N (first tier + others),

    each of its smallest size [byte].
    """
    away = [value for name in _OFFLOADS for value in case.space.values(name, case.system) or ()]
    far = sum(tier.capacity for tier in case.system.accelerator.memory[1:]) if any(away) else 0.0
    weight = np.array([DTYPE_BYTES[name] for name in case.space.values("dtype", case.system) or ()])
    rules = case.space.values("optimizer", case.system) or ()
    optimizer = np.array([Optimizer(rule).code for rule in rules])
    gradient = min(DTYPE_BYTES.values())
    state = np.min(least_state_bytes(optimizer[:, np.newaxis], weight), axis=0)
    if not _trains_everything(case):
        gradient, state = 0.0, np.zeros_like(weight)
    if any(case.space.values("quantized_weights", case.system) or ()):
        weight = np.minimum(weight, min(recipe.weight_bytes for recipe in RECIPES.values()))
    room = case.capacity_bytes + far
    most = float(np.max(room / (weight + gradient + state)))
    if gradient:
        most = min(most, case.capacity_bytes / gradient)
    return _one(case.space, "gpus") * most


def _trains_everything(case: _Case) -> bool:
    """Whether every strategy trains all weights of the model."""
    trains, frozen, ranks = (
        case.space.values(field, case.system) or () for field in ("training", "frozen", "lora_rank")
    )
    return all(trains) and not any(frozen) and not any(ranks)


def _ladder(most: float, *, beyond: int, seq_len: int) -> tuple[list[Model], int]:
    """Return shapes by size, and how many of them have no more parameters than `most`.

    There are at least `beyond` more.
    """
    found: list[tuple[int, Model]] = []
    for heads in widths():
        here = [shape_of(heads, layers, seq_len) for layers in depths(heads)]
        sized = [(count_parameters(model).total, model) for model in here]
        least = sized[0][0]
        if sum(most < size < least for size, _ in found) >= beyond:
            break
        found += sized
    found.sort(key=itemgetter(0))
    return [model for _, model in found], sum(size <= most for size, _ in found)


def _refuse_all(case: _Case, model: Model) -> None:
    """Say which rules stand against a space of which nothing is legal with any shape."""
    candidates = case.candidates(model)
    if not len(candidates):
        problem = f"is empty: no degrees and chunks of it make up {_one(case.space, 'gpus')} GPUs"
        raise InputError(Fault(source="space", problem=problem))
    refuse_illegal(model, case.system, candidates.strategies(np.array([0])))


def _judged(case: _Case, model: Model) -> Shape:
    """Whether any strategy of a space fits, and which leaves most room."""
    candidates = case.candidates(model)
    number, room, tier = -1, -np.inf, 0
    for box in _pieces(candidates):
        rooms = _rooms(case, model, box)
        spare = rooms.min(axis=0)
        choice, row = np.unravel_index(np.argmax(spare), spare.shape)
        if spare[choice, row] > room:
            room = float(spare[choice, row])
            tier = int(np.argmin(rooms[:, choice, row]))
            number = int(box.numbers(np.array(row), np.array(choice)))
    layer, legal = model.layers[0], number >= 0
    return Shape(
        name=model.name,
        parameters=count_parameters(model).total,
        hidden=model.hidden,
        heads=layer.attention.heads,
        layers=model.depth,
        ffn=layer.feed_forward.ffn,
        fits=room >= 0,
        spare_bytes=room if legal else None,
        tightest_tier=case.system.accelerator.memory[tier].name if legal else None,
        roomiest=candidates.strategies(np.array([number])).strategy(0).to_dict() if legal else None,
    )


def _degrees(case: _Case, model: Model) -> dict[str, list[int]]:
    """Degrees with which something fits."""
    found: dict[str, set[int]] = {"tp": set(), "pp": set()}
    for box in _pieces(case.candidates(model)):
        table = box.table()
        fitting = np.any(_rooms(case, model, box).min(axis=0) >= 0, axis=0)
        for axis, values in found.items():
            values |= set(getattr(table, axis)[fitting].tolist())
    return {axis: sorted(values) for axis, values in found.items()}


def _pieces(candidates: Candidates) -> Iterator[Box]:
    return (piece for box in candidates.legal for piece in box.cut(_PIECE_ROWS))


def _rooms(case: _Case, model: Model, box: Box) -> Floats:
    """Room left on each memory tier, -inf where a rule is broken; (tiers, choices, rows) [byte]."""
    table = box.table()
    lawful = broken_options(model, case.system, box, table) < 0
    tiers = case.system.accelerator.memory
    rooms = np.full((len(tiers), *lawful.shape), -np.inf)
    rows = np.flatnonzero(lawful.any(axis=0))
    if rows.size:
        some = table.take(rows)
        placed = PlacedCosts.of(model, case.system, some)
        holding = held(some, placed.without_times(slice(None)), placed.stages.of_all())
        left = -excess_bytes(case.system, holding, case.capacity_bytes)
        rooms[:, :, rows] = np.where(lawful[:, rows], left, -np.inf)
    return rooms
