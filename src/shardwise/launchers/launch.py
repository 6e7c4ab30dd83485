"""What the launchers share: a text that may be a launch file, a plan to write, and its nodes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from shardwise.config import files
from shardwise.config.enums import TIER_FIELDS, CudaGraphs, Loss
from shardwise.config.launch import Launch, Origin
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.launchers.stacks import STACKS
from shardwise.shown import Brief
from shardwise.units import read_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchText:
    """A file that may be a launch file, and what is known besides it."""

    source: str
    text: str
    entry: str = ""
    """Name of one configuration of a file with several; empty: the only one."""
    model: Model | None = None
    """Model that the user names, for launchers whose files do not hold it."""
    gpus: int | None = None
    """Number of accelerators that the user names, for files that do not hold it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values that the user sets, for variables that a script leaves open."""
    folder: Path | None = None
    """Where files lie that this one names; None: they are not read."""

    def vocabulary(self) -> int:
        """Entries of the vocabulary that the user sets, or of the model; 0: not known."""
        named = self.variables.get("vocab_size")
        if named is None:
            return 0 if self.model is None else self.model.vocab
        number = read_whole(named)
        if number is None or number < 1:
            problem = "must be a whole number of at least 1"
            raise InputError(Fault.of("--set vocab_size", named, problem, self.source))
        return number

    def sibling(self, name: str) -> str | None:
        """Return the text of a file that this one names, in its folder or below, if it is there."""
        path = PurePath(name)
        if self.folder is None or not name or path.is_absolute() or ".." in path.parts:
            return None
        file = self.folder / path
        return files.read_text(file) if files.is_file(file) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What to write: a strategy that was checked, with all fields filled in."""

    model: Model
    system: System
    strategy: Strategy
    comments: tuple[str, ...] = ()
    """Lines for people: predicted step time, memory and interval."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaunchFile(Brief):
    """One file of an exported plan.

    Examples
    --------
    >>> from shardwise import export
    >>> file = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8).files[0]
    >>> file.ending, "--tensor-model-parallel-size 8" in file.text
    ('.sh', True)
    """

    ending: str
    """Ending of its name; the first file of a plan has that of `-o`."""
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReader:
    """A trainer whose launch files shardwise reads."""

    name: str
    """As in `shardwise export`, if it writes them, too."""
    title: str
    """As its makers write it."""
    recognise: Callable[[str, str], bool]
    """Whether a text with a file name is this trainer's, be some of its options wrong."""
    read: Callable[[LaunchText], Launch]
    """Read a launch file; raises `InputError` where a value is wrong or a variable has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(LaunchReader):
    """A trainer whose launch files shardwise reads and writes."""

    releases: tuple[str, ...]
    """Releases whose options are written; the first by default."""
    other_stacks: tuple[str, ...] = ()
    """Stacks of the same trainer that run in another way, such as without compilation."""
    endings: tuple[str, ...]
    """Endings of file names that can be written; the first by default."""
    faults: Callable[[Model, Strategy], Iterator[Fault]]
    """What the launcher has no option for, in a strategy that its stack can run."""
    write: Callable[[LaunchPlan, str, str], tuple[LaunchFile, ...]]
    """Files of a plan, for a release and the ending of the first file."""
    says: frozenset[str]
    """Fields of a strategy that its files say: as options, or as remarks on what code decides."""
    layer_precision: bool = False
    """Whether its files say which layers a low-precision recipe leaves in 16 bits."""
    yours: str = "data set, learning rate, epochs, checkpoints"
    """What its files leave to the user, or fill with placeholders."""
    ignores: Mapping[str, str] = field(default_factory=lambda: NO_OPTIONS)
    """Fields that no option decides, and why. All others are refused, see `writing.refused`."""

    @property
    def stack(self) -> str:
        """Catalog stack with the capabilities of that release."""
        return STACKS[self.name]


def origins_of(
    fields: Iterable[str],
    options: Mapping[str, Collection[str]],
    written: Collection[str],
    known: Mapping[str, Origin] | None = None,
) -> dict[str, Origin]:
    """Return where fields come from.

    Parameters
    ----------
    options
        Options that decide a field; fields without any are read.
    written
        Options that the file sets.
    known
        Origins of fields that no option alone decides.
    """
    found = {
        name: Origin.READ
        if name not in options or any(one in written for one in options[name])
        else Origin.DEFAULT
        for name in fields
    }
    return found | {name: one for name, one in (known or {}).items() if name in found}


def fields_named(words: str) -> frozenset[str]:
    """Return names of fields, written with blanks between them."""
    return frozenset(words.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An option of a launch file that stands for one field of a strategy, both ways."""

    path: str
    """Sections that lead to it and its name, with dots between them."""
    field: str
    absent: Any
    """What it means to leave the option out: as the launcher has it, or for numbers the same."""
    words: Mapping[Any, Any] | None = None
    """Values of the option by those of the field; None: the same numbers."""
    idle: tuple[object, ...] = ()
    """Other values of the option that mean `absent`."""


NO_OPTIONS: dict[str, str] = {
    "stack": "software that is not the launcher's own is refused by its rules",
    "any_software": "an export refuses it",
    "sequence_parallel": "tp_exchange says the same",
    "expert_imbalance": "the router decides it during the run",
    "host_threads": "OMP_NUM_THREADS sets it, next to the command that starts the ranks",
}
DOCUMENTS: dict[str, str] = dict.fromkeys(
    ("document_len", "data_lengths", "batching"), "the data set decides it"
)
MODEL_CODE: dict[str, str] = {
    "attention": "the code of the model decides it",
    "loss": "arguments of the Trainer or the code of the model decide it",
    "attention_kernel": "the code of the model decides it (attn_implementation of transformers)",
}
PLACED: dict[str, str] = dict.fromkeys(
    ("extents", *TIER_FIELDS), "the rules of the stack refuse all but what its order of ranks gives"
)
NOT_SELECTIVE: dict[str, str] = {
    "recompute_parts": "the stack refuses recompute selective, which needs them"
}


def nodes_of(system: System, gpus: int) -> tuple[int, int]:
    """Return the nodes of a plan and the accelerators that it uses of each.

    Parameters
    ----------
    system
        Nodes are its own; a plan that fills them unevenly uses fewer accelerators of each.
    """
    per_node = min(system.node.accelerators, gpus)
    while gpus % per_node:
        per_node -= 1
    return gpus // per_node, per_node


def thread_variables(strategy: Strategy) -> dict[str, str]:
    """Return the environment variable of the threads of the host, if the plan sets them."""
    threads = strategy.host_threads
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads)}


def exports(variables: Mapping[str, str]) -> str:
    """Return lines of a shell script that set environment variables."""
    return "".join(f"export {name}={value}\n" for name, value in variables.items())


def captured_graphs(model: Model, strategy: Strategy) -> CudaGraphs:
    """What CUDA graphs capture in the estimate of a plan, also where its stack decides."""
    return CudaGraphs.from_code(int(Table.of(model, [strategy]).graphs[0]))


def as_comments(lines: Iterable[str]) -> str:
    """Return lines as comments of a shell script, Python or YAML."""
    return "".join(f"# {part}".rstrip() + "\n" for line in lines for part in line.splitlines())


_LOSSES_IN_CODE = {
    Loss.CUT: "cut_cross_entropy patches the model (a plugin of axolotl)",
    Loss.CHUNKED: "Unsloth's loss, or a loop over chunks in the code of the model",
    Loss.CHUNKED_RECOMPUTE: "loss_type of TRL's SFTTrainer; the Trainer has no such argument",
}
_TRL_LOSSES = {Loss.CHUNKED_RECOMPUTE: "chunked_nll"}


def trained_in_code(strategy: Strategy) -> Iterator[str]:
    """Yield what the code of the model decides about trained weights, not its launch file."""
    if strategy.lora_rank is not None:
        parts = ", ".join(strategy.lora_parts)
        yield f"LoRA adapters of rank {strategy.lora_rank} on {parts}: PEFT wraps the model"
    if strategy.frozen:
        yield f"frozen: {', '.join(strategy.frozen)}: requires_grad_(False) in the model's code"
    if strategy.loss in _LOSSES_IN_CODE:
        yield f"loss {strategy.loss}: {_LOSSES_IN_CODE[strategy.loss]}"


def loss_arguments(strategy: Strategy) -> Iterator[str]:
    """Arguments of the Hugging Face Trainer, and of TRL's, that set the loss of a plan."""
    if strategy.loss == Loss.FUSED_LINEAR:
        yield "--use_liger_kernel true"
    elif strategy.loss in _TRL_LOSSES:
        yield f"--loss_type {_TRL_LOSSES[strategy.loss]}"
