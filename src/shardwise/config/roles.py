"""What a field of `Strategy` declares about itself, for searches, comparisons and tables."""

from enum import Enum, StrEnum
from typing import Any

from shardwise.records import dataclass

# Components of the step time (`engine.step_time.TIME_PARTS`) that a field may act on.
COMPUTE = ("forward", "backward", "recompute")
INSIDE_LAYERS = ("tp_comm", "cp_comm", "ep_comm")
COMMUNICATION = (*INSIDE_LAYERS, "pp_comm", "dp_comm")
PLACED = ("forward", "backward", *COMMUNICATION)
"""Exposed communication hides time of the host, which compute includes otherwise."""
ONCE_PER_STEP = ("optimizer", "dp_comm", "offload")
RECOMPUTED = ("recompute", *INSIDE_LAYERS, "offload")
EXPERTS = (*COMPUTE, *ONCE_PER_STEP, "ep_comm")
LAYERS = (*COMPUTE, *COMMUNICATION, "optimizer", "offload")
STAGES = (*LAYERS, "bubble")
ALL_TIME = (*STAGES, "other")


POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
STAGE_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)


class Section(StrEnum):
    """Section of the help and of the reference that lists a field, in the order of sections."""

    LAYOUT = "Layout"
    EXPERTS = "Experts"
    MEMORY = "Sharding and memory"
    PIPELINE = "Pipeline"
    PRECISION = "Precision"
    COMMUNICATION = "Communication"
    PLACEMENT = "Placement"
    MODEL = "Model and optimizer"
    SOFTWARE = "Software"


class Divides(Enum):
    """What a degree divides, in the order in which degrees are listed."""

    TENSORS = "tensors of a layer"
    LAYERS = "layers, into stages"
    BATCH = "batch, among replicas of the model"
    EXPERTS = "experts, over the ranks of the degrees above"
    STAGE = "layers of a stage, into chunks"


class Group(Enum):
    """Which group of fields a search evaluates a field with."""

    LAYOUT = "layout"
    """Degrees, batch, pipeline and placement."""
    OPTION = "option"
    """What else the cost of a layer depends on."""
    CHOICE = "choice"
    """What neither the cost of a layer nor the schedule depends on."""


class Tries(Enum):
    """Values that a search tries if it does not name the field."""

    DEFAULT = "default"
    """The default; `all` stands for all words of the field, on and off, or all network tiers."""
    ALL = "all"
    """What `all` stands for."""
    DIVISORS = "divisors"
    """All that divide what the field splits, which depends on the layout; so does `all`."""
    DEFAULT_DIVISOR = "default divisor"
    """The default; `all` stands for all that divide what the field splits."""


@dataclass(frozen=True, slots=True)
class Role:
    """What shardwise derives from a field, in addition to its type and documentation."""

    section: Section
    """Section of the help that lists its flag."""
    acts_on: tuple[str, ...]
    """Components of the step time that it may change."""
    tries: Tries | tuple[Any, ...] = Tries.DEFAULT
    """Values that a search of the full space tries if it does not name the field."""
    group: Group = Group.OPTION
    every: tuple[Any, ...] = ()
    """What `all` stands for in a search, where the type of the field does not say it."""
    implied: bool = False
    """Whether `Strategy.resolved` fills it in where it is None."""
    work: bool = False
    """Whether it says what is trained, in which types and with which software, not how: a search of
    a better way to do the same leaves it as it is."""
    own_line: bool = False
    """Whether a ranking lists strategies that differ in it on lines of their own, as it does for
    fields of `work`. Those that differ in other fields alone are variants of one layout."""
    practical: Tries | tuple[Any, ...] | None = None
    """Values that a search of the practical space tries; None: `tries`."""
    divides: Divides | None = None
    """What it divides, if it is a degree."""
    parallelism: str = ""
    """Parallelism that it is the degree of: "tensor"."""
    counted_with: str = ""
    """Degree whose communication includes that of this one."""
    headline: bool = False
    """Whether a strategy in a line always shows it."""
    listed: bool = False
    """Whether an estimate lists its default among what was assumed, as it does for headlines."""
    slider: tuple[int, ...] = ()
    """Numbers where a slider stops."""
    follows: tuple[str, ...] = ()
    """Fields that it belongs to: where one of these changes, its value is dropped."""


def degree(
    section: Section,
    acts_on: tuple[str, ...],
    tries: Tries,
    divides: Divides,
    parallelism: str = "",
    *,
    counted_with: str = "",
    **more: Any,
) -> Role:
    """Return the role of a degree; one that is counted with another has no line of its own."""
    return Role(
        section,
        acts_on,
        tries,
        Group.LAYOUT,
        own_line=not counted_with,
        divides=divides,
        parallelism=parallelism,
        counted_with=counted_with,
        listed=True,
        **more,
    )
