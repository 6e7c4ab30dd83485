"""Parts of a model put together as one profile: modules, weights and segments, part by part.

Equal layers share one part, so that the work is done once for each kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwise.arrays import Floats
from shardwise.fsdp.catalog_modules import Piece, Weight
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule

__all__ = ["FIGURES", "Assembly", "Part", "part_of"]

FIGURES = ("forward_s", "backward_s", "held_ahead", "left_ahead", "held_back", "left_back")
"""Of a segment: times [s]; what is held at the fullest moment and left at the end of its forward
and its backward, without gradients of weights, beyond what is there before its part [byte]."""

_CONTAINERS = {
    "self_attn": "Attention",
    "mlp": "MLP",
    "shared_experts": "MLP",
    "experts": "Experts",
    "transformer_layer": "DecoderLayer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartModule:
    """A module of a part of the model; positions and segments count from the part's beginning."""

    path: tuple[str, ...]
    kind: str
    parent: int
    """-1: what the part stands in."""
    width: float
    late: bool
    shared: bool
    first: int
    """Segment it begins with."""
    end: int = 0
    after: int = 0
    """Segment after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer of a kind, or the embedding, a module of prediction, the head: alike each time."""

    modules: tuple[PartModule, ...]
    weights: tuple[tuple[int, int, Weight], ...]
    """With each, its module and segment."""
    figures: Floats
    """Rows of `FIGURES`, a column for each segment."""
    saved: float
    """Kept by all of it till backward [byte]."""


def part_of(run: Sequence[Piece], figures: Floats, saved: float, *, own: bool) -> Part:
    """Find the modules in which pieces run one after the other.

    One begins where its path appears, and ends where another path goes on.

    Parameters
    ----------
    run
        What is done in each segment.
    figures
        `FIGURES` as rows, a column for each segment.
    saved
        Kept by all of it till backward [byte].
    own
        Whether the part is a module itself.
    """
    modules: list[PartModule] = []
    weights: list[tuple[int, int, Weight]] = []
    open_: list[int] = []

    def begin(path: tuple[str, ...], piece: Piece, segment: int) -> None:
        parent = open_[-1] if open_ else -1
        if path[-1:] == ("experts",):
            modules[parent] = replace(modules[parent], kind="MoE")
        open_.append(len(modules))
        modules.append(_begun(path, piece, parent, segment))

    def close(keep: int, segment: int) -> None:
        while len(open_) > keep:
            place = open_.pop()
            modules[place] = replace(modules[place], end=len(modules), after=segment)

    if own:
        begin((), Piece(path=()), 0)
    for segment, piece in enumerate(run):
        same = 0
        names = [modules[place].path[-1] for place in open_[own:]]
        while same < min(len(names), len(piece.path)) and names[same] == piece.path[same]:
            same += 1
        close(same + own, segment)
        for depth in range(same, len(piece.path)):
            begin(piece.path[: depth + 1], piece, segment)
        weights += [(open_[-1], segment, weight) for weight in piece.weights]
    close(0, len(run))
    return Part(modules=tuple(modules), weights=tuple(weights), figures=figures, saved=saved)


def _begun(path: tuple[str, ...], piece: Piece, parent: int, segment: int) -> PartModule:
    """A module as it begins: the one that does the piece, or one above it."""
    kind = _CONTAINERS.get(path[-1], "Module") if path else ""
    does = path == piece.path
    return PartModule(
        path=path,
        kind=piece.kind if does and piece.kind else kind,
        parent=parent,
        width=piece.width if does else 0.0,
        late=does and piece.late,
        shared=does and piece.shared,
        first=segment,
    )


@dataclass(slots=True, kw_only=True)
class _Held:
    """A tensor of weights and where it was met."""

    name: str
    weight: Weight
    holders: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """Of backward, in which parts of its gradient are made."""


@dataclass(slots=True, kw_only=True)
class Assembly:
    """A profile in the making: parts that run one after the other, then back.

    Segment s of 2 F goes back in segment 2 F - 1 - s. The gradient of a tensor is held from the
    segment on in which the first part of it is made, and complete in that of the last.
    """

    parts: Sequence[tuple[str, str, Part]]
    """Name, class and contents of each; what has no name stands in the root."""
    tokens: int
    """Of one rank."""
    hidden: int
    """Numbers of a module's output for each token, unless it says otherwise."""
    element_bytes: float
    """One number."""
    total: int = 0
    """F."""
    modules: list[ProfiledModule] = field(default_factory=list)
    held: dict[str, _Held] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def profile(
        self, *, name: str, source: str, fixed_bytes: float, assumed: tuple[str, ...]
    ) -> Profile:
        """Put all parts together."""
        counts = [part.figures.shape[1] for _, _, part in self.parts]
        self.total = sum(counts)
        self.modules.append(self._root())
        starts = np.cumsum([0, *counts])
        for (called, kind, part), start in zip(self.parts, starts.tolist()[:-1], strict=True):
            self._add(called, kind, part, start)
        figures = np.concatenate([part.figures for _, _, part in self.parts], axis=1)
        before = np.cumsum([0.0, *(part.saved for _, _, part in self.parts)])[:-1]
        figures[2:] += np.repeat(before, counts)
        made = self._made()
        return Profile(
            name=name,
            source=source,
            modules=tuple(self.modules),
            parameters=tuple(self._parameter(held) for held in self.held.values()),
            forward_segments=self.total,
            seconds=np.concatenate([figures[0], figures[1, ::-1]]),
            resident_bytes=made + np.concatenate([figures[2], figures[4, ::-1]]),
            left_bytes=made + np.concatenate([figures[3], figures[5, ::-1]]),
            fixed_bytes=fixed_bytes,
            assumed=assumed,
        )

    def _root(self) -> ProfiledModule:
        return ProfiledModule(
            name="",
            kind="Model",
            parent=-1,
            end=1 + sum(len(part.modules) for _, _, part in self.parts),
            forward=(0, self.total),
            backward=(self.total, 2 * self.total),
            late=True,
        )

    def _add(self, called: str, kind: str, part: Part, start: int) -> None:
        """Add the modules and weights of a part that begins with a segment."""
        at, last = len(self.modules), 2 * self.total
        for module in part.modules:
            path = ".".join(module.path)
            alone = module.shared or not called
            name = path if alone else f"{called}.{path}".rstrip(".")
            run = self.runs.get(name, 0)
            self.runs[name] = run + 1
            first, after = start + module.first, start + module.after
            self.modules.append(
                ProfiledModule(
                    name=name,
                    kind=module.kind or kind,
                    parent=at + module.parent if module.parent >= 0 else 0,
                    end=at + module.end,
                    forward=(first, after),
                    backward=(last - after, last if module.late else last - first),
                    output_bytes=(module.width or self.hidden) * self.tokens * self.element_bytes,
                    late=module.late,
                    run=run,
                )
            )
        for place, segment, weight in part.weights:
            self._meet(at + place, weight, last - 1 - start - segment)

    def _meet(self, holder: int, weight: Weight, segment: int) -> None:
        """Take note of a module that holds a tensor, and of the segment that makes its gradient."""
        name = weight.tied_to or f"{self.modules[holder].name}.{weight.name}".lstrip(".")
        key = weight.name if weight.once else name
        held = self.held.setdefault(key, _Held(name=name, weight=weight))
        held.segments.append(segment)
        if not (weight.once and held.holders):
            held.holders.append(holder)

    def _made(self) -> Floats:
        """Gradients of weights, begun or complete, at the end of each segment [byte]."""
        made = np.zeros(2 * self.total)
        for held in self.held.values():
            if held.weight.graded:
                made[min(held.segments)] += np.prod(held.weight.shape) * self.element_bytes
        return np.cumsum(made)

    def _parameter(self, held: _Held) -> Parameter:
        weight = held.weight
        return Parameter(
            name=held.name,
            shape=weight.shape,
            holders=tuple(held.holders),
            element_bytes=self.element_bytes,
            gradient_segment=max(held.segments) if weight.graded else -1,
        )
