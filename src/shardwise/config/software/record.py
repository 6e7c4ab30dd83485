"""`Software`: what is known of the software of a run; and what is known of each trainer."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.bounds import Fraction, Month, YearOrMonth
from shardwise.config.capabilities import Values
from shardwise.config.enums import Word


class Engine(Word):
    """What replicates or shards the training state.

    `fsdp` and `deepspeed` are one of their versions or stages, not said which.
    """

    NONE = "none"
    DDP = "ddp"
    DIST_OPT = "dist_opt"
    MEGATRON_FSDP = "megatron_fsdp"
    FSDP = "fsdp"
    FSDP1 = "fsdp1"
    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"
    DEEPSPEED0 = "deepspeed0"
    DEEPSPEED1 = "deepspeed1"
    DEEPSPEED2 = "deepspeed2"
    DEEPSPEED3 = "deepspeed3"
    XLA_SPMD = "xla_spmd"
    CUSTOM = "custom"

    @property
    def zero_stages(self) -> tuple[int, ...]:
        """Stages of ZeRO that it may be, the usual one first; none where all are possible."""
        return _ZERO_STAGES.get(self, ())

    def covers(self, other: "Engine | None") -> bool:
        """Whether another engine is this one, or one of its versions or stages."""
        return other is not None and (other == self or other[:-1] == self)


_ZERO_STAGES: Mapping[Engine, tuple[int, ...]] = {
    Engine.DDP: (0,),
    Engine.DIST_OPT: (1, 0),
    Engine.MEGATRON_FSDP: (3, 2, 1),
    Engine.FSDP: (3, 2),
    Engine.FSDP1: (3, 2),
    Engine.FSDP2: (3, 2),
    Engine.DEEPSPEED0: (0,),
    Engine.DEEPSPEED1: (1,),
    Engine.DEEPSPEED2: (2,),
    Engine.DEEPSPEED3: (3,),
}


class Software(ConfigBase):
    """What is known of the software of a run; what is empty follows from the rest.

    Examples
    --------
    >>> Software(trainer="torchtitan", release="0.2.0", libraries={"torch": "2.9"})
    Software(trainer='torchtitan', release='0.2.0', libraries={'torch': '2.9'})
    """

    trainer: str = ""
    """Name of a trainer of the catalog, such as torchtitan, megatron-bridge, axolotl."""
    release: str = ""
    """Release of the trainer, as its makers number it."""
    date: YearOrMonth = ""
    """Month or year of the run, where no release is known."""
    engine: Engine | None = None
    """What replicates or shards the training state, where it is not the trainer's usual one."""
    libraries: Mapping[str, str] = Field(default_factory=dict)
    """Releases of torch, transformer-engine, flash-attn ... and of other trainers, by name."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Fields of a strategy that the description states, such as attention_kernel."""
    others: tuple[str, ...] = ()
    """Other trainers that the description may mean."""
    text: str = ""
    """The description that was read."""


Weights = Annotated[
    Mapping[str, Fraction],
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {str(value): 1.0}),
]
"""One word, or several with their probabilities."""


class Condition(ConfigBase):
    """When something is so; what is empty does not matter."""

    since: Month = ""
    """First month."""
    until: Month = ""
    """Last month."""
    on: tuple[str, ...] = ()
    """Systems by name or a part of it (gb200), architectures of accelerators, or their families."""
    engine: Annotated[
        tuple[Engine, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = ()
    when: Mapping[str, Any] = Field(default_factory=dict)
    """Facts of the run: `experts` and `many_experts`, whether the model has them; `attends_to_all`,
    whether all its layers have attention over all keys; `windows`, whether some attend to a
    sliding window; `says`, words of the description; `alone`,
    whether it runs on one accelerator without offload or a stage of ZeRO; or an option that is
    stated or follows from an earlier fact. Of a list one must hold."""
    source: str = ""


class Choice(Condition):
    """What a run has where it is not stated: one, or several with their probabilities."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    weights: Annotated[
        Weights, Field(validation_alias=AliasChoices("weights", "engines", "backends"))
    ]


class Fact(Condition):
    """The value of a field of strategies that a trainer uses if its user sets none."""

    field: str
    value: Any
    """The value; a mapping has several, with their probabilities."""


class Figures(Condition):
    """A stack of the catalog, whose figures hold, or several with their probabilities."""

    stack: Weights


class Refusal(Condition):
    """A value that a trainer refuses."""

    field: str
    value: Any
    """The value, or a list of them."""
    instead: str = ""
    """What the trainer uses in its place; empty: it stops."""


def _choices(value: object) -> object:
    """Accept weights alone for a choice that has no conditions."""
    return [{"weights": value}] if isinstance(value, Mapping) else value


_Choices = Annotated[tuple[Choice, ...], BeforeValidator(_choices)]


class Trainer(ConfigBase):
    """What is known of a trainer, as the catalog has it."""

    name: str
    names: tuple[str, ...] = Field(min_length=1)
    """Words that people write, in any case; the longest one in a text counts."""
    makers: tuple[str, ...] = ()
    """Words for who makes it, which mean it only where no trainer is named."""
    on: tuple[str, ...] = ("nvidia", "amd")
    """Families of accelerators that it runs on; empty: all."""
    kind: Literal["trainer", "library", "benchmark"] = "trainer"
    """A library is what many trainers run on: a trainer that is named counts more."""
    post_training: bool = False
    """Whether it is for fine-tuning or reinforcement learning."""
    lag: Annotated[int, Field(ge=0, le=24)] = 0
    """Months by which it is behind what it is based on."""
    based_on: str = ""
    """Trainer whose facts hold where its own say nothing."""
    engines: _Choices = ()
    unversioned: Mapping[Engine, _Choices] = Field(default_factory=dict)
    """Engines that are meant where a description names no version or stage of them."""
    backends: _Choices = ()
    """Trainers that do its work, one of which a description must name."""
    releases: Mapping[str, Month] = Field(default_factory=dict)
    stacks: tuple[Figures, ...] = ()
    """Stacks of the catalog; the last whose conditions hold is used."""
    facts: tuple[Fact, ...] = ()
    """The last of a field whose conditions hold is used."""
    hand_tuned: bool = False
    """Whether it is code tuned by hand, faster than trainers for everyone."""
    refuses: tuple[Refusal, ...] = ()
    capabilities: Mapping[str, Values] = Field(default_factory=dict)
    """Values that fields of a strategy may have in it, in place of those that its stack lists."""
    source: str = ""


_FOLDER = Path(catalog.__file__).parent / "software"


@cache
def trainers() -> Mapping[str, Trainer]:
    """Return the trainers of the catalog, by name."""
    found = [
        Trainer.validated(files.read_mapping(path), source=path.stem)
        for path in sorted((_FOLDER / "trainers").glob("*.yaml"))
    ]
    return {one.name: one for one in found}


@cache
def library_releases() -> Mapping[str, Mapping[str, str]]:
    """Return the month of each release of libraries, by name of the library."""
    return dict(files.read_mapping(_FOLDER / "libraries.yaml"))


@cache
def option_words() -> Mapping[str, Any]:
    """Return words for engines and for values of fields, by field."""
    return dict(files.read_mapping(_FOLDER / "words.yaml"))
