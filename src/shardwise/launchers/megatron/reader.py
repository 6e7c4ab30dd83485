"""Launch files of Megatron-LM and what a run prints, read.

Defaults of arguments that every run prints are those of megatron-core 0.16.1 (TransformerConfig,
ModelParallelConfig, DistributedDataParallelConfig, OptimizerConfig) and of Megatron-LM d98e8a64 of
2026-08-22 (megatron/training/arguments.py).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from shardwise.config.capabilities import ANY
from shardwise.config.enums import TpOverlap
from shardwise.config.launch import Launch, NotUnderstood, Origin
from shardwise.config.stack import Stack
from shardwise.errors import Fault, InputError, refuse
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron.arguments import (
    ALIASES,
    HOW_TO_SET,
    SHORT,
    Arguments,
    WrittenOption,
    is_neutral,
    option_of,
    read_arguments,
    written_options,
)
from shardwise.launchers.megatron.core_options import read_core_fields
from shardwise.launchers.megatron.core_stack import Value
from shardwise.launchers.megatron.data_forms import DataForm, is_data_form, read_data_form
from shardwise.launchers.megatron.forks import PRINTED, Fork, Reading, fork_of
from shardwise.launchers.megatron.neox import is_neox, read_neox
from shardwise.launchers.megatron.options import ACTIVATIONS, DEFAULTS, FLAGS, RING_PRODUCTS, Kind
from shardwise.launchers.ranks import Ranks, parse_job, ranks_of
from shardwise.launchers.shell import Script
from shardwise.launchers.stacks import STACKS
from shardwise.units import read_whole

ON_BY_DEFAULT = frozenset(
    {
        "--align-grad-reduce",
        "--align-param-gather",
        "--apply-rope-fusion",
        "--async-tensor-model-parallel-allreduce",
        "--batch-p2p-comm",
        "--batch-p2p-sync",
        "--bias-dropout-fusion",
        "--bias-gelu-fusion",
        "--clone-scatter-output-in-embedding",
        "--cpu-offloading-activations",
        "--decoupled-weight-decay",
        "--fp8-wgrad",
        "--gradient-reduce-div-fusion",
        "--manual-gc-eval",
        "--masked-softmax-fusion",
        "--persist-layer-norm",
        "--pin-cpu-grads",
        "--pin-cpu-params",
        "--pin-memory",
        "--preserve-fp32-weights",
        "--rope-fusion",
        "--scatter-gather-tensors-in-pipeline",
        "--store-param-remainders",
        "--tp-comm-bulk-dgrad",
        "--tp-comm-bulk-wgrad",
        "--tp-comm-overlap-ag",
        "--tp-comm-overlap-rs",
        "--tp-comm-split-ag",
        "--tp-comm-split-rs",
        "--use-mamba-mem-eff-path",
    }
)
"""Those that are true without an option."""
USUAL: Mapping[str, tuple[str, ...]] = {
    "--activation-offload-fraction": ("1.0",),
    "--cpu-offloading-num-layers": ("0",),
    "--cuda-graph-warmup-steps": ("3",),
    "--kitchen-attention-backend": ("sdpa",),
    "--linear-conv-kernel-dim": ("4",),
    "--linear-key-head-dim": ("128",),
    "--linear-num-key-heads": ("16",),
    "--linear-num-value-heads": ("32",),
    "--linear-value-head-dim": ("128",),
    "--mamba-head-dim": ("64",),
    "--mamba-num-groups": ("8",),
    "--mamba-state-dim": ("128",),
    "--min-offloaded-tensor-size": ("1048576",),
    "--mlp-chunks-for-prefill": ("1",),
    "--outer-dp-sharding-strategy": ("no_shard",),
    "--qk-clip-alpha": ("0.5",),
    "--qk-clip-threshold": ("100",),
    "--tp-comm-bootstrap-backend": ("nccl",),
    "--wgrad-deferral-limit": ("0",),
}
"""Values that the others have without an option; else 0."""


NAME = "megatron"
STACK = STACKS[NAME]
_BLOCK = re.compile(r"-{6,} arguments -{6,}\n(.*?)(?:-{6,} end of arguments -{6,}|\Z)", re.DOTALL)
_PRINTED = re.compile(r"^(?:.*?\s)?([A-Za-z]\w*) \.\.\.+ ?(.*?)\s*$")
_DEEPSPEED_JSON = re.compile(r"\bjson = (\{\s*\n.*?\n\})", re.DOTALL)
_RELEASE = re.compile(r"core_[vr](\d+\.\d+\.\d+)")
_FIRST_OPTION = re.compile(r"(?:\s*(?:#[^\n]*)?\n)*\s*--[a-z]")
_OWN = (
    "--num-layers",
    "--hybrid-layer-pattern",
    "--tensor-model-parallel-size",
    "--micro-batch-size",
    "--num-experts",
)
_OWN_LEGACY = ("--model-parallel-size", "--num-attention-heads", "--hidden-size")
_LEAST_OWN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Options in a text, and what starts the ranks."""

    written: Sequence[WrittenOption]
    ranks: Ranks | None
    script: Script | None = None
    form: DataForm | None = None
    """Of YAML files."""
    printed: str = ""
    """Configuration of DeepSpeed that a run prints."""

    @property
    def documents(self) -> Mapping[str, str]:
        """Files that the script writes."""
        if self.script is None:
            return {PRINTED: self.printed} if self.printed else {}
        return self.script.documents

    @property
    def how_to_set(self) -> Callable[[str], str]:
        """How the user sets a variable without a value, for messages."""
        return HOW_TO_SET if self.script is None else self.script.how_to_set


def recognise(text: str, source: str) -> bool:
    """Return whether a text has options of Megatron-LM: in any form, or as what a run prints."""
    if _BLOCK.search(text) is not None or is_data_form(text, source) or is_neox(text, source):
        return True
    found = sum(
        re.search(rf"(?m)(?:^|[\s\"'=(]){one}[\s=\\]", text) is not None
        for one in (*_OWN, *_OWN_LEGACY)
    )
    return found >= _LEAST_OWN


def read(text: LaunchText) -> Launch:
    """Read a launch file.

    Raises
    ------
    InputError
        If a value is wrong or missing, or a variable has no literal value.
    """
    if is_neox(text.text, text.source):
        return read_neox(text)
    found = _found(text)
    form = found.form
    fork = None if form is not None and form.fork else fork_of(text.text, found.written)
    arguments = read_arguments(
        found.written, text.source, None if fork is None else fork.words, found.how_to_set
    )
    gpus = _gpus(text, found.ranks, arguments)
    defaults: dict[str, Value] = {**DEFAULTS, **({} if form is None else form.defaults)}
    origins: dict[str, Origin] = {}
    if fork is not None:
        own = Reading(
            arguments=arguments,
            documents=found.documents,
            sibling=text.sibling,
            defaults={**defaults, **fork.defaults},
        )
        fork.complete(own)
        defaults, origins = own.defaults, own.origins
    refuse(arguments.faults)
    core = read_core_fields(
        arguments.fields,
        stack=_stack(fork, form),
        source=text.source,
        name=PurePath(text.source).name.partition(".")[0] or NAME,
        gpus=gpus,
        defaults=defaults,
        option=option_of,
        padded_to=_vocabulary(text),
    )
    strategy = dict(core.strategy)
    strategy["stack"] = _able(strategy)
    notes = [*arguments.not_understood, *core.not_understood]
    if arguments.overlap_file and strategy.get("tp_overlap") is None:
        strategy |= _overlap(arguments, found.documents, notes)
    release = _RELEASE.search(text.text)
    return Launch(
        launcher=NAME,
        release=release[1] if release else None,
        source=text.source,
        model=core.model,
        strategy=strategy,
        decided=core.decided,
        not_understood=tuple(notes),
        origins={**core.origins, **origins},
        per_node=_per_node(found),
        fork=_title(fork, form),
    )


_ENCODERS = re.compile(
    r"(?:^|/)(?:pretrain|finetune|train)_(bert|t5|ict|biencoder|realm|retro|vision\w*|vlm|mamba|dino)\b"
)
_PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
_NO_TRAINING = re.compile(
    r"(?:^|/)(?:tasks/(?:\w+/)*main|(?:run_)?(?:text_generation|generate)_\w+)\.py$"
)
_PADDED = re.compile(r"> padded vocab \(size: (\d+)\)")


def _vocabulary(text: LaunchText) -> int:
    """Vocabulary where no option has it: by the user, the model or the log; 0: not known."""
    if known := text.vocabulary():
        return known
    printed = _PADDED.search(text.text)
    return int(printed[1]) if printed else 0


def _stack(fork: Fork | None, form: DataForm | None) -> str:
    """Software of a file."""
    own = None if form is None else form.stack
    return own or (STACK if fork is None else fork.stack)


def _title(fork: Fork | None, form: DataForm | None) -> str:
    """Fork or wrapper that a file is for; empty: Megatron-LM itself."""
    own = "" if form is None else form.fork
    return own or ("" if fork is None else fork.title)


def _per_node(found: _Found) -> int | None:
    """Ranks of a node, where a script starts them."""
    return None if found.script is None or found.ranks is None else found.ranks.per_node


def _able(strategy: Mapping[str, object]) -> object:
    """The stack of a run, which can do what the run does."""
    stack = strategy["stack"]
    name = str(stack["base"] if isinstance(stack, Mapping) else stack)
    capabilities = Stack.load(name).capabilities
    known = {} if capabilities is None else capabilities.fields
    beyond = {
        field: ANY
        for field, values in known.items()
        if field in strategy and ANY not in values and strategy[field] not in values
    }
    if name == STACK or not beyond:
        return stack
    own = stack if isinstance(stack, Mapping) else {"base": name}
    return {**own, "capabilities": {"like": name, "fields": beyond}}


def _found(text: LaunchText) -> _Found:
    block = _BLOCK.search(text.text)
    if block is not None:
        configuration = _DEEPSPEED_JSON.search(text.text, block.end())
        return replace(_printed(block[1]), printed=configuration[1] if configuration else "")
    if is_data_form(text.text, text.source):
        form = read_data_form(text, _printed_option)
        return _Found(written=form.written, ranks=None, form=form)
    if _FIRST_OPTION.match(text.text):
        return _Found(written=written_options(_words(text.text)), ranks=None)
    script = parse_job(text.text, text.variables, text.sibling)
    program = _program(script)
    if program is None:
        problem = "has no command with options of Megatron-LM"
        raise InputError(Fault(source=text.source, problem=problem))
    last = max((at for at, word in enumerate(program) if word.endswith(".py")), default=-1)
    kind = _ENCODERS.search(program[last]) if last >= 0 else None
    hybrid = any(word.startswith(_PATTERNS) for word in program)
    if kind is not None and not (kind[1] == "mamba" and hybrid):
        problem = f"{program[last]} trains {kind[1]}; decoders of GPT's kind are read"
        raise InputError(Fault(source=text.source, problem=problem))
    if last >= 0 and _NO_TRAINING.search(program[last]) is not None:
        problem = f"{program[last]} evaluates, fine-tunes for a task or generates text"
        problem += ", which is not read; pretraining of decoders is"
        raise InputError(Fault(source=text.source, problem=problem))
    start = next((at for at, word in enumerate(program) if word.startswith("--")), 0)
    words = program[last + 1 if last >= 0 else start :]
    return _Found(written=written_options(words), ranks=ranks_of(script, program), script=script)


def _words(text: str) -> list[str]:
    """Words of an argument file: blanks separate them, `#` begins a comment at a line's start."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    words = " ".join(line.rstrip("\\") for line in lines).split()
    return [word.strip("\"'") for word in words]


def _program(script: Script) -> tuple[str, ...] | None:
    """The command with the most options of Megatron-LM; options on lines of their own are one."""
    commands = [words for words in script.commands if words[0] not in ("echo", "printf")]
    bare = [word for words in commands for word in words if words[0].startswith("--")]
    known = {*FLAGS, *ALIASES, *SHORT, *ACTIVATIONS}

    def count(words: Sequence[str]) -> int:
        return sum(word.partition("=")[0] in known for word in words)

    best = max([*commands, tuple(bare)], key=count, default=())
    return best if count(best) else None


def _printed(block: str) -> _Found:
    """The list of arguments that a run prints (`_print_args` in arguments.py)."""
    found = [line for line in map(_PRINTED.match, block.splitlines()) if line is not None]
    values = {line[1]: line[2] for line in found}
    world = values.pop("world_size", "")
    number = read_whole(world)
    ranks = None if number is None else Ranks(nodes=1, per_node=number)
    written = [one for name, value in values.items() for one in _printed_option(name, value)]
    return _Found(written=written, ranks=ranks)


_ARGUMENTS = {one.argument: one for one in FLAGS.values()}


def _printed_option(name: str, value: str) -> Iterator[WrittenOption]:
    """Yield the option of a printed argument, unless it is at its default."""
    option, flag = _ARGUMENTS.get(name), f"--{name.replace('_', '-')}"
    if option is not None and option.kind in (Kind.ON, Kind.OFF):
        named = option.flag == flag
        if (value == "True") == (option.kind == Kind.ON or named):
            yield option.flag, ()
    elif value in ("None", "False", "[]", ""):
        return
    elif value == "True":
        if flag not in ON_BY_DEFAULT and not _OTHER_TASKS.fullmatch(flag):
            yield flag, ()
    elif option is not None:
        yield option.flag, (value,)
    elif not _is_usual(flag, value):
        yield flag, (value,)


_OTHER_TASKS = re.compile(
    r"--(?:bert|img|ict|indexer|retriever|biencoder|dino|vision|swin|mask|adlr)-.*"
    r"|--(?:num-channels|num-classes|patch-dim|query-in-block-prob|short-seq-prob|sample-rate"
    r"|classes-fraction|data-per-class-fraction|head-lr-mult|iter-per-epoch|dynamic-loss-scale"
    r"|min-scale|param-sharing-style|tile-factor|block-data-path|evidence-data-path)"
)
"""Arguments of BERT, retrieval and vision, which every run prints."""


def _is_usual(flag: str, value: str) -> bool:
    """Whether a printed argument is at its default, of another task, or has no effect."""
    is_default = value in USUAL.get(flag, ("0", "0.0", "none"))
    return is_default or is_neutral(flag) or _OTHER_TASKS.fullmatch(flag) is not None


def _gpus(text: LaunchText, ranks: Ranks | None, arguments: Arguments) -> int | None:
    """Ranks of the run; variables that say how many the job requests."""
    if text.gpus is not None:
        return text.gpus
    if ranks is None:
        return None
    for name in ranks.missing:
        arguments.require("nodes and ranks of a node", [f"\0{name}\0"])
    return ranks.gpus


def _overlap(
    arguments: Arguments, documents: Mapping[str, str], notes: list[NotUnderstood]
) -> dict[str, object]:
    """Overlap as the file of --tp-comm-overlap-cfg says, where the script itself writes it."""
    document = documents.get(arguments.overlap_file, "")
    methods = dict(re.findall(r"(?m)^\s*(\w+)\s*:\s*\{?\s*method\s*:\s*(\w+)", document))
    if all(methods.get(name) == "ring_exchange" for name in RING_PRODUCTS):
        return {"tp_overlap": TpOverlap.RING}
    because = "its file is not read: predicted as the overlap of Transformer Engine"
    flag = "--tp-comm-overlap-cfg"
    notes.append(NotUnderstood(option=flag, value=arguments.overlap_file, because=because))
    return {}
