"""What a launch file of a trainer says, in the words of shardwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.config.enums import Word
from shardwise.config.model import Model
from shardwise.config.plain import plain
from shardwise.frozen import FrozenRecord
from shardwise.shown import Brief

NEEDED = ("gpus", "seq_len", "micro_batch_size", "global_batch_size")
"""Fields of a strategy that are never guessed: what a file lacks of them must be set."""


class Origin(Word):
    """Where the value of an imported field comes from."""

    READ = "read"
    """The file sets it, or the user does."""
    DEFAULT = "trainer default"
    """The file leaves it out: default of this trainer and release."""
    DERIVED = "derived"
    """Calculated from other values of the file."""
    ASSUMED = "assumed"
    """Nothing says it."""


class Effect(Word):
    """What an option that is not understood may change; the most important first."""

    MODEL = "model"
    """Parameters or FLOPs, by the words of its name."""
    UNKNOWN = "unknown"
    """Nothing is known of it."""
    COST = "cost"
    """Time or memory of a step."""
    SMALL = "small"
    """It is known; the prediction assumes another value."""
    NONE = "none"
    """Neither, by the words of its name: logs, paths, data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotUnderstood(FrozenRecord):
    """An option of a launch file that the prediction does not use.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from shardwise import export, read_launch
    >>> script = Path(mkdtemp()) / "train.sh"
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> _ = script.write_text(made.files[0].text.replace("--bf16", "--bf16 --mine 3"))
    >>> [one.option for one in read_launch(script).not_understood]
    ['--mine']
    """

    option: str
    """As the launcher writes it, with its section."""
    value: object
    because: str
    """Why: shardwise does not know the option, or its value, or models nothing of the kind."""
    effect: Effect = Effect.SMALL

    def __str__(self) -> str:
        return f"{self.option}: {plain(self.value)!r}: {self.because}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Launch(FrozenRecord, Brief):
    """A launch file in the words of shardwise.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from shardwise import export, read_launch
    >>> script = Path(mkdtemp()) / "train.sh"
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> _ = script.write_text(made.files[0].text)
    >>> launch = read_launch(script)
    >>> launch.launcher, launch.strategy["tp"], launch.not_understood
    ('megatron', 8, ())
    """

    launcher: str
    """Name of the launcher, as in `export`."""
    release: str | None
    """Release that the file names; None: it names none."""
    source: str
    """File that was read."""
    fork: str = ""
    """Fork of the trainer that the file is for, by what it says; empty: the trainer itself."""
    model: Model | None
    """Architecture; None: the file does not hold it (DeepSpeed, accelerate)."""
    strategy: Mapping[str, object]
    """Fields of `Strategy` that the file sets, with defaults of the launcher that differ from
    ours; `stack` is the name of a stack, or a mapping with `base` and what the file overrides."""
    not_understood: tuple[NotUnderstood, ...] = ()
    """Options that the prediction does not use, but for those that do not change a step's time or
    memory (learning rate, paths, seeds), which each launcher lists. The
    most important first."""
    per_node: int | None = None
    """Ranks that the file starts on each node; None: it does not say."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where the fields of `strategy` come from, by name."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields of `NEEDED` that neither the file nor the user sets."""
        known = set(self.strategy)
        if "dp" in known:
            known.add("gpus")
        return tuple(name for name in NEEDED if name not in known)
