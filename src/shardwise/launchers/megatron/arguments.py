"""Words of Megatron-LM's command line, of this and older releases, as fields of Megatron-Core."""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise import catalog
from shardwise.config.launch import NotUnderstood
from shardwise.config.model import Model
from shardwise.errors import Fault
from shardwise.launchers.megatron.core_hybrid import SPEC
from shardwise.launchers.megatron.core_stack import Value
from shardwise.launchers.megatron.options import ACTIVATIONS, FLAGS, Kind, Option, flag_of
from shardwise.launchers.python_text import parsed_expression
from shardwise.launchers.shell import names_in, shown
from shardwise.units import read_number, read_whole

ALIASES: Mapping[str, str] = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",
    "--cuda-graph-scope": "--cuda-graph-modules",
    "--hybrid-override-pattern": "--hybrid-layer-pattern",
    "--moe-hybridep-num-sms": "--moe-flex-dispatcher-num-sms",
    "--moe-deepep-num-sms": "--moe-flex-dispatcher-num-sms",
    "--num-moe-experts": "--num-experts",
    "--batch-size": "--micro-batch-size",
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--fp8": "--fp8-format",
    "--fp4": "--fp4-format",
    "--decoder-num-layers": "--num-layers",
    "--encoder-num-layers": "--num-layers",
    "--encoder-seq-length": "--seq-length",
    "--qk-nope-head-dim": "--qk-head-dim",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim",
    "--num-mtp-predictor": "--mtp-num-layers",
    "--pad-vocab-size-to": "--padded-vocab-size",
}
"""Option that took the place of another, and the words of forks (Pai-Megatron-Patch,
Megatron-DeepSpeed) for it."""
SHORT: Mapping[str, Mapping[str, Value]] = {
    "--recompute-activations": {"recompute_granularity": "selective"},
    "--checkpoint-activations": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "--moe-enable-deepep": {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
    },
    "--enable-cuda-graph": {"cuda_graph_impl": "local"},
    "--external-cuda-graph": {"cuda_graph_impl": "transformer_engine"},
    "--use-flash-attn": {"attention_backend": "flash"},
    "--fp8-hybrid": {"fp8": "hybrid"},
    "--fp8-e4m3": {"fp8": "e4m3"},
    "--use-custom-fsdp": {"use_megatron_fsdp": True},
    "--accumulate-allreduce-grads-in-fp32": {"grad_reduce_in_fp32": True},
    "--use-rotary-position-embeddings": {"position_embedding_type": "rope"},
    "--distribute-saved-activations": {"distribute_saved_activations": True},
    "--distribute-checkpointed-activations": {"distribute_saved_activations": True},
    "--use-multi-token-prediction": {},
    "--embed-layernorm": {"embed_layernorm": True},
    "--moe-router-force-load-balancing": {"moe_router_force_load_balancing": True},
}
"""Options without a value that set other fields."""
VALUED: Mapping[str, str] = {
    "--moe-router-topk-limited-devices": "moe_router_topk_limited_devices",
    "--cpu-offloading-num-layers": "cpu_offloading_num_layers",
    "--padded-vocab-size": "padded_vocab_size",
}
"""Options that are read but never written, and their fields."""

_NEUTRAL = re.compile(
    r"""--(
    # learning rate, regularization, hyperparameters of optimizers, loss scale, random numbers
    (min-|decoupled-|max-)?lr(-.*)? | (start-|end-)?weight-decay(-.*)? | adam-.* | muon-.*
    | clip-grad | (initial-|min-)?loss-scale(-window)? | hysteresis | seed
    | data-parallel-random-init
    | init-method-.* | embedding-init-method-.* | perform-initialization | no-initialization
    | override-opt.* | use-checkpoint-.* | reset-iteration | finetune | use-cpu-initialization
    | data-seed | no-weight-decay-.* | apply-wd-to-.* | exit-.* | te-rng-tracker
    # lengths of the run, evaluation, checkpoints, logs
    | train-(iters|samples|tokens) | (full-)?eval-.* | eval-(iters|interval) | split
    | (no-)?(save|load)(-.*)? | (non-persistent-)?(ckpt|checkpoint)-.* | async-save | dist-ckpt-.*
    | use-dist-ckpt | auto-detect-ckpt-format | pretrained-checkpoint | no-ckpt-.* | exit-signal.*
    | log-.* | tensorboard-.* | wandb-.* | timing-log-.* | one-logger-.* | enable-one-logger
    | no-one-logger | barrier-with-.* | no-barrier-.* | profile.* | use-pytorch-profiler
    | record-memory-history | memory-snapshot-path | timers | logging-level | app-tag-.* | iteration
    # data and tokenizers
    | data-path | (.*-)?data-(path|cache-path|args-path) | data-cache-path | data-impl | mock-data
    | dataloader-type | num-workers | (train|valid|test)-data.* | tokenizer-.* | vocab-file
    | merge-file | vocab-extra-ids | (no-)?mmap-.* | create-attention-mask-in-dataloader | dataset
    | no-create-attention-mask-in-dataloader | num-dataset-builder-threads | .*-dir | .*-path
    | legacy-tokenizer | use-tokenizer-model-from-checkpoint-args | eod-mask-loss | full-validation
    | patch-tokenizer-type | extra-vocab-size | max-padding-length | epochs | defer-npy-index-mmap
    # communication set-up, and functions whose time does not depend on their constants
    | distributed-(backend|timeout-.*) | local-rank | rank | world-size | master-.* | node-rank
    | use-mcore-models | no-use-mcore-models | use-legacy-models | no-position-embedding
    | norm-epsilon | layernorm-epsilon | apply-layernorm-1p | rotary-base | rotary-seq-len-.*
    | use-rope-scaling | rope-scaling-factor | rotary-scaling-factor | mscale(-all-dim)? | beta-.*
    | original-max-position-embeddings | yarn-.* | rotary-interleaved | mrope-section
    | attention-softmax-in-fp32 | no-query-key-layer-scaling | apply-query-key-layer-scaling
    | no-scaled-masked-softmax-fusion | use-scaled-init-method | mtp-loss-scaling-factor
    | moe-(aux|z)-.* | moe-router-load-balancing-type | moe-router-topk-scaling-factor
    | moe-router-bias-update-rate | moe-input-jitter-eps | moe-token-drop-policy | moe-per-layer-.*
    | moe-router-padding-for-(fp8|quantization) | glu-linear-offset | activation-func-clamp-value
    | fp8-(amax-.*|margin|interval) | params-dtype | hf-.* | load-main-params-from-ckpt
    | rerun-mode | error-injection-.* | calculate-per-token-loss | disable-symmetric-registration
    | (no-)?check-for-(nan|spiky|large)-.* | test-mode
    | no-mmap-.* | attention-mask-in-.* | data-parallel-size
    | transformer-pipeline-model-parallel-size | ft-.* | enable-ft-package | inprocess-.*
    | tiktoken-.* | manual-gc(-.*)? | use-persistent-ckpt-worker | check-weight-hash-.*
    | encoder-.*-model-parallel-size | consumed-.*-samples | inference-.* | num-layers-at-.*-in-bf16
    )""",
    re.VERBOSE,
)
IMPLIED: Mapping[str, tuple[str, ...]] = {
    "--spec": SPEC,
    "--transformer-impl": ("transformer_engine",),
}
"""Values that are those of every prediction; another one is not modeled."""
VOCABULARIES: Mapping[str, int] = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
}
"""Vocabulary sizes of tokenizers whose type implies them."""


def is_neutral(flag: str) -> bool:
    """Whether an option changes neither the time nor the memory of a step."""
    return _NEUTRAL.fullmatch(flag) is not None


WrittenOption = tuple[str, tuple[str, ...]]
"""An option and the words that follow it."""

_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_MOST_LAYERS = 100_000
_PER_CHUNK = "--num-layers-per-virtual-pipeline-stage"
_GROUPED = "--group-query-attention"
_OVERLAP_CFG = "--tp-comm-overlap-cfg"
_CONSTANTS: Mapping[str, Value] = {"True": True, "False": False, "None": None}


HOW_TO_SET: Callable[[str], str] = "set it: --set {}=VALUE".format
"""How the user sets a variable without a value, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Options that a fork has besides those of Megatron-LM."""

    valued: Mapping[str, str] = field(default_factory=dict)
    """Options with a value, and the fields that they set."""
    paths: tuple[str, ...] = ()
    """Those of them whose value names a file, with variables as they are."""
    short: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Options without a value that set fields."""
    neutral: re.Pattern[str] = re.compile(r"(?!)")
    """Options that change neither the time nor the memory of a step."""


@dataclass(slots=True, kw_only=True)
class Arguments:
    """What a command line sets."""

    source: str
    fields: dict[str, Value] = field(default_factory=dict)
    not_understood: list[NotUnderstood] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unset: set[str] = field(default_factory=set)
    """Variables without a literal value that the user must set."""
    tokenizer: str = ""
    overlap_file: str = ""
    words: "Words | None" = None
    """Options of a fork, which come before those of Megatron-LM."""
    how_to_set: Callable[[str], str] = HOW_TO_SET

    def note(self, flag: str, values: Sequence[str], because: str) -> None:
        """Note an option that the prediction does not use."""
        value = " ".join(map(shown, values)) if values else True
        self.not_understood.append(NotUnderstood(option=flag, value=value, because=because))

    def require(self, flag: str, values: Iterable[str]) -> bool:
        """Require variables without a literal value; returns whether there are any."""
        names = [name for value in values for name in names_in(value)]
        for name in names:
            if name not in self.unset:
                self.unset.add(name)
                settable = name.isidentifier() or name.isdigit()
                how = f"; {self.how_to_set(name)}" if settable else ""
                problem = f"variable {name} has no literal value{how}"
                self.faults.append(Fault(source=self.source, field=flag, problem=problem))
        return bool(names)


def written_options(words: Sequence[str]) -> list[WrittenOption]:
    """Cut words of a command line into options and what follows them."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        if re.match(r"--[^\W\d_]", word):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        else:
            found[-1][1].append(word)
    return [(flag, tuple(values)) for flag, values in found if flag or values]


def read_arguments(
    written: Sequence[WrittenOption],
    source: str,
    words: Words | None = None,
    how_to_set: Callable[[str], str] = HOW_TO_SET,
) -> Arguments:
    """Read options as fields; of an option that is set twice the last counts."""
    arguments = Arguments(source=source, words=words, how_to_set=how_to_set)
    last = {flag: values for flag, values in written if flag}
    for values in (values for flag, values in written if not flag):
        _note_loose(arguments, values)
    for flag, values in last.items():
        if not _read_own(arguments, flag, values):
            _read_option(arguments, flag, values)
    _complete(arguments, last)
    return arguments


def _note_loose(arguments: Arguments, values: Sequence[str]) -> None:
    """Note words that stand after no option and may be options."""
    for value in values:
        if names_in(value):
            arguments.note(shown(value), (), "has no literal value; set it if it has options")


def _read_option(arguments: Arguments, flag: str, values: tuple[str, ...]) -> None:
    name = ALIASES.get(flag, flag)
    fields = arguments.fields
    if name in FLAGS:
        _read_known(arguments, FLAGS[name], flag, values)
    elif name in ACTIVATIONS:
        fields["gated_linear_unit"], fields["activation_func"] = ACTIVATIONS[name]
        _note_loose(arguments, values)
    elif name in SHORT:
        for key, value in SHORT[name].items():
            fields.setdefault(key, value)
        _note_loose(arguments, values)
    elif name in (_PER_CHUNK, _GROUPED, _OVERLAP_CFG):
        pass
    elif name in VALUED:
        if not arguments.require(flag, values):
            fields[VALUED[name]] = _value(" ".join(values))
    elif name == "--tokenizer-type":
        arguments.tokenizer = " ".join(values)
    elif is_neutral(name) or (name in IMPLIED and values == IMPLIED[name]):
        pass
    else:
        arguments.note(flag, values, "not modeled")


def _read_own(arguments: Arguments, flag: str, values: tuple[str, ...]) -> bool:
    """Read an option of a fork; returns whether it is one."""
    words = arguments.words
    if words is None:
        return False
    if flag in words.valued:
        if flag in words.paths:
            arguments.fields[words.valued[flag]] = " ".join(values)
        elif not arguments.require(flag, values):
            arguments.fields[words.valued[flag]] = _value(" ".join(values))
        return True
    for key, value in words.short.get(flag, {}).items():
        arguments.fields.setdefault(key, value)
    return flag in words.short or words.neutral.fullmatch(flag) is not None


def _read_known(arguments: Arguments, option: Option, flag: str, values: tuple[str, ...]) -> None:
    if option.kind in (Kind.ON, Kind.OFF):
        arguments.fields[option.field] = option.kind == Kind.ON
        _note_loose(arguments, values)
        return
    if option.kind not in (Kind.LIST, Kind.PAIR) and len(values) > 1:
        _note_loose(arguments, values[1:])
        given = [value for value in values if not names_in(value)]
        if len(set(given)) > 1:  # such as experts that differ by layer
            problem = "has several values, and one is read"
            fault = Fault.of(flag, " ".join(given), problem, arguments.source)
            arguments.faults.append(fault)
        values = values[:1]
    if not values:
        fault = Fault(source=arguments.source, field=flag, problem="has no value")
        arguments.faults.append(fault)
    elif not arguments.require(flag, values):
        _READERS[option.kind](arguments, option, flag, values)


def _read_value(arguments: Arguments, option: Option, _: str, values: Sequence[str]) -> None:
    arguments.fields[option.field] = _value(values[0])


def _read_list(arguments: Arguments, option: Option, _: str, values: Sequence[str]) -> None:
    listed = _literal(values[0]) if values[0][:1] in ("[", "(") else None
    if listed is not None:
        items = [getattr(one, "value", one) for one in listed]
        arguments.fields[option.field] = tuple(str(one) for one in items)
        return
    words = [one for value in values for one in re.split(r"[,\s]+", value) if one]
    arguments.fields[option.field] = tuple(word for word in words if word not in ("None", "[]"))


def _read_pattern(arguments: Arguments, option: Option, flag: str, values: Sequence[str]) -> None:
    text = values[0]
    if _WHOLE.fullmatch(text):
        arguments.fields[option.field] = _value(text)
    elif text != "None":
        listed = _literal(text)
        if listed is None:
            problem = "must be a number, or a Python list of 0 and 1 for every layer"
            arguments.faults.append(Fault.of(flag, text, problem, arguments.source))
        else:
            arguments.fields[option.field] = listed


def _read_pair(arguments: Arguments, option: Option, flag: str, values: Sequence[str]) -> None:
    words = re.findall(r"-?\d+", " ".join(values))
    if len(words) == 2:  # noqa: PLR2004 - a pair
        arguments.fields[option.field] = tuple(map(_value, words))
    elif values[0] != "None":
        problem = "must be two numbers, such as 127,0"
        arguments.faults.append(Fault.of(flag, " ".join(values), problem, arguments.source))


_READERS: Mapping[Kind, Callable[[Arguments, Option, str, Sequence[str]], None]] = {
    Kind.VALUE: _read_value,
    Kind.LIST: _read_list,
    Kind.PATTERN: _read_pattern,
    Kind.PAIR: _read_pair,
}


def _value(text: str) -> Value:
    """A number, true or false, nothing, or a word."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number: float | None = read_whole(text) if _WHOLE.fullmatch(text) else None
    if number is None and _NUMBER.fullmatch(text):
        number = read_number(text)
    if number is not None:
        return number
    return re.sub(r"^[A-Z]\w*\.", "", text)  # AttnBackend.flash, as a run prints it


def _literal(text: str) -> tuple[int | str, ...] | None:
    """A Python list of numbers or words, with sums and repeats of lists; None if it is none."""
    try:
        return _listed(parsed_expression(text))
    except (ValueError, RecursionError):
        return None


def _listed(node: ast.expr) -> tuple[int | str, ...]:
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [item.value for item in node.elts if isinstance(item, ast.Constant)]
        if len(items) == len(node.elts) and all(isinstance(one, (int, str)) for one in items):
            return tuple(one for one in items if isinstance(one, (int, str)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _bounded(_listed(node.left), _listed(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        times = [one.value for one in sides if isinstance(one, ast.Constant)]
        lists = [one for one in sides if not isinstance(one, ast.Constant)]
        if len(lists) == 1 and isinstance(times[0], int):
            part = _listed(lists[0])
            if len(part) * times[0] <= _MOST_LAYERS:
                return part * times[0]
    raise ValueError("is no list")


def _bounded(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> tuple[int | str, ...]:
    if len(one) + len(other) > _MOST_LAYERS:
        raise ValueError("is too long")
    return one + other


# --- What follows from several options ------------------------------------------------------------


def _complete(arguments: Arguments, written: Mapping[str, tuple[str, ...]]) -> None:
    """Fill in what Megatron-LM derives from several options."""
    fields = arguments.fields
    if not arguments.faults and fields.get("micro_batch_size") is None:
        fault = Fault(source=arguments.source, field="--micro-batch-size", problem="is missing")
        arguments.faults.append(fault)
    if _GROUPED not in written and "--num-query-groups" in written:
        fields.pop("num_query_groups", None)  # argument_utils.py:330
    _complete_chunks(arguments, written.get(_PER_CHUNK))
    if fields.get("recompute_method") and not fields.get("recompute_granularity"):
        fields["recompute_granularity"] = "full"
    if "grad_reduce_in_fp32" not in fields:  # arguments.py:1209-1217
        fields["grad_reduce_in_fp32"] = bool(fields.get("bf16"))
    _complete_vocabulary(arguments, written)
    if _OVERLAP_CFG in written:
        arguments.overlap_file = " ".join(written[_OVERLAP_CFG])


def _complete_chunks(arguments: Arguments, values: tuple[str, ...] | None) -> None:
    """Chunks of a stage from the layers of a chunk."""
    if not values or values[0] == "None" or arguments.require(_PER_CHUNK, values):
        return
    fields = arguments.fields
    depth, pp = fields.get("num_layers"), fields.get("pipeline_model_parallel_size", 1)
    layers = _value(values[0])
    sizes = [one for one in (depth, pp, layers) if isinstance(one, int) and one > 0]
    if len(sizes) < len((depth, pp, layers)):
        problem = "must be a number of layers"
        arguments.faults.append(Fault.of(_PER_CHUNK, values[0], problem, arguments.source))
    elif sizes[0] % (sizes[1] * sizes[2]):
        problem = f"must divide the {sizes[0]} layers of {sizes[1]} stages"
        arguments.faults.append(Fault.of(_PER_CHUNK, layers, problem, arguments.source))
    else:
        chunks = sizes[0] // sizes[1] // sizes[2]
        fields.setdefault("virtual_pipeline_model_parallel_size", chunks)


def _complete_vocabulary(arguments: Arguments, written: Mapping[str, tuple[str, ...]]) -> None:
    """Rows of the vocabulary; NullTokenizer adds one for the end of a document."""
    fields, vocab = arguments.fields, arguments.fields.get("vocab_size")
    if not arguments.tokenizer and "--merge-file" in written:
        arguments.tokenizer = "GPT2BPETokenizer"
    if isinstance(vocab, int) and arguments.tokenizer == "NullTokenizer":
        fields["vocab_size"] = vocab + 1
    elif vocab is None and arguments.tokenizer in VOCABULARIES:
        fields["vocab_size"] = VOCABULARIES[arguments.tokenizer]
    elif vocab is None and fields.get("padded_vocab_size") is None:
        _complete_by_tokenizer(arguments, written)


_TOKENIZERS = ("--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-path")


def _complete_by_tokenizer(arguments: Arguments, written: Mapping[str, tuple[str, ...]]) -> None:
    """Rows of the vocabulary of a model of the catalog that the tokenizer is named after."""
    for flag in _TOKENIZERS:
        values = written.get(flag, ())
        name = values[0].rstrip("/").rpartition("/")[2] if values else ""
        if not name or names_in(name) or catalog.find("models", name) is None:
            continue
        vocab = Model.load(name).vocab
        arguments.fields["vocab_size"] = vocab
        arguments.note(flag, values[:1], f"its vocabulary is assumed to be that of {name}, {vocab}")
        return


def option_of(name: str) -> str:
    """Return the option that sets a field, for messages."""
    other = next((flag for flag, own in VALUED.items() if own == name), None)
    return other or flag_of(name)
