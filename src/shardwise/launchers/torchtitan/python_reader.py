"""Python configurations of torchtitan: parsed as data, never run.

A function returns `Trainer.Config(...)`; its arguments are literals or calls of configuration
classes with literals. Fields of v0.3.0 and, of later sources (main b5bcd76c of 2026-08-21, config/
configs.py), the numbers of tokens in place of batch sizes.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from shardwise.config.launch import Launch, Origin
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.python_text import parsed_module
from shardwise.launchers.torchtitan.fields import Reading
from shardwise.launchers.torchtitan.models import BUILDERS, FLAVORS, built_model
from shardwise.launchers.torchtitan.options import (
    ATTENTION_BACKEND,
    DEFAULTS,
    Options,
    OptionValue,
)
from shardwise.launchers.torchtitan.python_writer import ASYNC_TP, LINEAR_CONVERTERS
from shardwise.launchers.torchtitan.toml_files import launch_of, model_named

_RESULT = "Trainer.Config"
_RECOMPUTE = {
    "SelectiveAC.Config": "selective",
    "FullAC.Config": "full",
    "MemoryBudgetAC.Config": "memory_budget",
}
_CONVERTERS = {f"{name}.Config": toml for toml, name in LINEAR_CONVERTERS.items()}
_FAMILIES = tuple(dict.fromkeys(one.family for one in FLAVORS))
_ARITHMETIC: Mapping[type[ast.operator | ast.unaryop], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
_PLAIN_SECTIONS = ("training", "parallelism", "compile", "debug", "comm")
_WITHOUT_EFFECT = (
    *("lr_scheduler", "dataloader", "metrics", "profiler", "checkpoint", "validator", "tokenizer"),
    *("hf_assets_path", "dump_folder"),
)
# Tokens in place of sequences (main).
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_STEP_TOKENS = "training.num_tokens_per_train_step"
_LONGEST = "training.max_context_length"
_PASSES = "parallelism.num_pp_microbatches"
_MAIN_DEFAULTS: Mapping[str, int] = {_TOKENS: 16384, _STEP_TOKENS: -1, _PASSES: 1}


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a configuration, as data."""

    function: str
    arguments: Mapping[str, object]
    positional: tuple[object, ...]
    """Values that are literals or calls; of others what the source says."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An expression that is no literal."""

    text: str


def is_configuration(text: str) -> bool:
    """Whether a Python file makes a configuration of torchtitan."""
    return _RESULT in text and "torchtitan" in text


def read_python(launch: LaunchText) -> Launch:
    """Read the one configuration of a Python file.

    Raises
    ------
    InputError
        If it cannot be parsed, has none or several, or values are wrong or no literals.
    """
    try:
        tree = parsed_module(launch.text)
    except ValueError as error:
        problem = f"is no Python: {error}"
        raise InputError(Fault(source=launch.source, problem=problem)) from None
    module = _Module(tree, launch)
    name, result = module.configuration()
    reading = Reading(source=launch.source, set_options={}, gpus=launch.gpus)
    written = _read_sections(reading, result)
    model = _read_model(reading, result, module, name)
    _read_tokens(reading)
    for name, value in list(reading.set_options.items()):
        if not _is_open(value):
            continue
        if name not in (*DEFAULTS, *_MAIN_DEFAULTS, _LONGEST):  # listed by name, if it counts
            reading.set_options[name] = _shown(value)
            continue
        what = f"set it: --set {value.text}=VALUE" if _is_name(value) else "write its value"
        problem = f"is no literal, and configurations are parsed, not run; {what}"
        reading.faults.append(Fault.of(name, _shown(value), problem, launch.source))
    reading.refuse()
    known = launch.model or model
    if known is None and "model.flavor" not in reading.set_options:
        problem = "has no model_registry(...) and no numbers of layers; set a model"
        raise InputError(Fault(source=launch.source, field="model_spec", problem=problem))
    if known is None and "model.name" not in reading.set_options:
        problem = (
            "has a model_registry of its own package, and neither the folder nor the function says "
            "of which family; set a model"
        )
        raise InputError(Fault(source=launch.source, field="model_spec", problem=problem))
    named = known or model_named(reading)
    read = launch_of(replace(launch, model=named), reading.set_options)
    left = {str(one): one for one in (*reading.left, *read.not_understood)}
    defaults = {
        field: Origin.DEFAULT
        for field, options in _DECIDED_BY.items()
        if field in read.origins and not written.intersection(options)
    }
    origins = {**read.origins, **defaults}
    return replace(read, not_understood=tuple(left.values()), origins=origins)


_DECIDED_BY = {
    "seq_len": (_LONGEST, "training.seq_len"),
    "micro_batch_size": (_TOKENS, "training.local_batch_size"),
    "cuda_graphs": ("training.disable_cuda_graphs",),
    "recompute_parts": ("activation_checkpoint.mode",),
}
"""Options of Python configurations that decide a field."""


class _Module:
    """A parsed file: its functions and the values of its names."""

    def __init__(self, tree: ast.Module, launch: LaunchText) -> None:
        self.source, self.entry = launch.source, launch.entry
        self.modules = {
            alias.asname or alias.name: "." * node.level + (node.module or "")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self.functions = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)
        }
        self.user_set = {name: _parsed(value) for name, value in launch.variables.items()}
        self.names: dict[str, object] = dict(self.user_set)
        self._assign(tree.body, self.names)

    def configuration(self) -> tuple[str, Call]:
        """The function that is named, or the only public one, with what it returns."""
        found = {
            name: result
            for name, node in self.functions.items()
            if (name == self.entry if self.entry else not name.startswith("_"))
            and isinstance(result := self._result(node), Call)
            and result.function == _RESULT
        }
        if len(found) == 1:
            return next(iter(found.items()))
        public = [name for name in self.functions if not name.startswith("_")]
        if self.entry:
            if self.entry not in self.functions:
                raise InputError(Fault.of("name", self.entry, allowed_words(self.entry, public)))
            what = f"{self.entry} returns no {_RESULT}(...) that this file makes"
        elif found:
            what = f"has several configurations: name one, FILE.py:NAME of {', '.join(found)}"
        else:
            what = f"has no function that returns a {_RESULT}(...) that this file makes"
        raise InputError(Fault(source=self.source, problem=what))

    def family(self, function: str, registry: str) -> str | None:
        """Family of the registry that a function uses, by its module, the folder or its name."""
        module = self.modules.get(registry.split(".", maxsplit=1)[0], "")
        names = [module.rpartition(".")[2]]
        if module.startswith("."):
            folder = Path(self.source).resolve().parent
            if folder.parent.name == "models":
                return folder.name
            names += [folder.name, *(one for one in _FAMILIES if function.startswith(f"{one}_"))]
            classes = {one.family: one.model_class for one in BUILDERS.values()}
            names += [one for one, model in classes.items() if model in self.modules]
        return next((one for one in names if one in _FAMILIES), names[0] or None)

    def _result(self, function: ast.FunctionDef) -> object:
        names = dict(self.names)
        self._assign(function.body, names)
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._value(statement.value, names)
        return None

    def _assign(self, body: list[ast.stmt], names: dict[str, object]) -> None:
        """Values of simple assignments; an attribute changes an argument of a call.

        What is assigned under a condition or in a loop has no literal value.
        """
        for statement in body:
            if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
                inner = [one for one in ast.walk(statement) if isinstance(one, ast.Assign)]
                self._assign([_open_assignment(one) for one in inner], names)
                continue
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            target, value = statement.targets[0], self._value(statement.value, names)
            if isinstance(target, ast.Name) and target.id not in self.user_set:
                names[target.id] = value
            elif isinstance(target, ast.Attribute):
                first, *path = ast.unparse(target).split(".")
                if isinstance(names.get(first), Call):
                    names[first] = _with_argument(names[first], path, value)

    def _value(self, node: ast.expr, names: Mapping[str, object]) -> object:
        """An expression as data."""
        if isinstance(node, ast.Name):
            return names.get(node.id, Unknown(node.id))
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, names) for item in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return self._number(node, names)
        try:
            literal: object = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Unknown(ast.unparse(node))
        return literal

    def _number(self, node: ast.BinOp | ast.UnaryOp, names: Mapping[str, object]) -> object:
        """The value of arithmetic with numbers that are known."""
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        values = [self._value(side, names) for side in sides]
        operation = _ARITHMETIC.get(type(node.op))
        if operation is None or not all(type(one) in (int, float) for one in values):
            return Unknown(ast.unparse(node))
        try:
            return operation(*values)
        except (ZeroDivisionError, OverflowError):
            return Unknown(ast.unparse(node))

    def _call(self, node: ast.Call, names: Mapping[str, object]) -> object:
        function = ast.unparse(node.func)
        if function in self.functions and not node.args and not node.keywords:
            return self._result(self.functions[function])
        arguments = {word.arg or "**": self._value(word.value, names) for word in node.keywords}
        return Call(function, arguments, tuple(self._value(item, names) for item in node.args))


def _open_assignment(statement: ast.Assign) -> ast.Assign:
    """The same assignment, of a value that is not known."""
    unknown = ast.Name(id=f"{ast.unparse(statement)} (under a condition)", ctx=ast.Load())
    return ast.Assign(targets=statement.targets, value=unknown)


def _parsed(text: str) -> object:
    """A value that the user sets, as Python or as text."""
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError):
        return text
    return value


def _with_argument(call: object, path: list[str], value: object) -> object:
    """A call with one argument changed, at a path of arguments."""
    if not isinstance(call, Call) or not path:
        return value
    name, *rest = path
    inner = call.arguments.get(name, Call("", {}, ()))
    changed = _with_argument(inner, rest, value) if rest else value
    return replace(call, arguments={**call.arguments, name: changed})


def _is_open(value: object) -> bool:
    """Whether a value is not known, in all or in part."""
    if isinstance(value, list):
        return any(map(_is_open, value))
    return isinstance(value, Unknown | Call)


def _is_name(value: object) -> TypeGuard[Unknown]:
    return isinstance(value, Unknown) and value.text.isidentifier()


def _shown(value: object) -> str:
    if isinstance(value, Unknown):
        return value.text
    return f"{value.function}(...)" if isinstance(value, Call) else str(value)


def _as_option(value: object) -> OptionValue:
    """A value of a configuration; what is no literal is found later, by its type."""
    return value  # type: ignore[return-value]


def _read_sections(reading: Reading, result: Call) -> frozenset[str]:
    """Set the options of the sections, by their names in TOML; returns those that are written."""
    options = reading.set_options
    for section, value in result.arguments.items():
        if section in _PLAIN_SECTIONS and isinstance(value, Call):
            for name, item in value.arguments.items():
                options[_toml_name(section, name)] = _as_option(item)
        elif section == "activation_checkpoint":
            options |= dict(_recompute(value))
        elif section == "optimizer":
            options |= dict(_optimizer(value))
        elif section == "loss" and isinstance(value, Call):
            if value.function == "ChunkedLossWrapper.Config":
                reading.set_options["loss"] = value.function
        elif section not in (*_WITHOUT_EFFECT, "model_spec", "loss"):
            options[section] = _as_option(value)
    written = frozenset(options)
    options.setdefault("activation_checkpoint.selective_ac_option", "op")
    options.setdefault("training.disable_cuda_graphs", False)
    return written


def _toml_name(section: str, name: str) -> str:
    full = f"{section}.{name}"
    return ASYNC_TP if full == "compile.enable_async_tensor_parallel" else full


def _recompute(value: object) -> Iterator[tuple[str, OptionValue]]:
    field = "activation_checkpoint.mode"
    if value is None:
        yield field, "none"
    elif isinstance(value, Call) and value.function in _RECOMPUTE:
        yield field, _RECOMPUTE[value.function]
        for name, item in value.arguments.items():
            yield f"activation_checkpoint.{name}", _as_option(item)
    else:
        yield field, _as_option(value)


def _optimizer(value: object) -> Iterator[tuple[str, OptionValue]]:
    """Name of the optimizer of all groups of parameters, and its implementation."""
    if not isinstance(value, Call):
        yield "optimizer.name", _as_option(value)
        return
    if "implementation" in value.arguments:
        yield "optimizer.implementation", _as_option(value.arguments["implementation"])
    groups = value.arguments.get("param_groups", [])
    names = {
        str(group.arguments.get("optimizer_name"))
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, Call)
    }
    if value.function == "default_adamw" or names == {"AdamW"}:
        yield "optimizer.name", "AdamW"
    elif names:
        yield "optimizer.name", min(names - {"AdamW"})


def _read_model(reading: Reading, result: Call, module: _Module, function: str) -> Model | None:
    """Set family, flavor and converters; return the model of numbers that are written out."""
    spec = result.arguments.get("model_spec")
    if not isinstance(spec, Call):
        return None
    if spec.function == "ModelSpec":
        return _built(reading, spec)
    if not spec.function.endswith("model_registry"):
        return None
    named = {"flavor": spec.positional[0]} if spec.positional else {}
    arguments = {**named, **spec.arguments}
    options = reading.set_options
    if (family := module.family(function, spec.function)) is not None:
        options["model.name"] = family
    options["model.flavor"] = _as_option(arguments.pop("flavor", None))
    usual = "varlen" if family == "gpt_oss" else "flex"
    options |= {ATTENTION_BACKEND: usual} | _backend(arguments)
    _read_converters(reading, arguments.pop("converters", None))
    layers = arguments.pop("num_mtp_layers", 0)
    for name in ("attn_backend", "moe_comm_backend"):
        arguments.pop(name, None)
    for name, value in arguments.items():
        options[f"model_registry.{name}"] = _as_option(value)
    is_named = "model.name" in options and not _is_open(options["model.flavor"])
    if isinstance(layers, int) and layers and is_named:
        return model_named(reading).model_copy(update={"mtp": layers})
    if layers:
        options["model_registry.num_mtp_layers"] = _as_option(layers)
    return None


def _backend(arguments: Mapping[str, object]) -> Options:
    """Backends of experts and of attention."""
    names = {
        "moe_comm_backend": "parallelism.expert_parallel_comm_backend",
        "attn_backend": ATTENTION_BACKEND,
    }
    given = {option: arguments.get(name) for name, option in names.items()}
    return {option: _as_option(value) for option, value in given.items() if value is not None}


def _read_converters(reading: Reading, converters: object) -> None:
    """Low-precision converters, by their names in TOML; each row has its own scale by default."""
    names: list[object] = []
    for one in converters if isinstance(converters, list) else []:
        if isinstance(one, Call) and one.function in _CONVERTERS:
            names.append(_CONVERTERS[one.function])
            if one.function == "Float8LinearConverter.Config":
                recipe = one.arguments.get("recipe_name", "rowwise")
                reading.set_options["quantize.linear.float8.recipe_name"] = _as_option(recipe)
        else:
            names.append(one.function if isinstance(one, Call) else one)
    if isinstance(converters, Unknown):
        reading.set_options["model.converters"] = _as_option(converters)
    elif names:
        reading.set_options["model.converters"] = names


def _built(reading: Reading, spec: Call) -> Model | None:
    """Model of a configuration that is written out in numbers."""
    config = spec.arguments.get("model")
    converted: list[object] = []
    while isinstance(config, Call) and config.function.endswith(".build().convert"):
        name = config.function.partition("(")[0]
        converted.insert(0, Call(name, {}, ()))
        config = config.positional[0] if config.positional else None
    if not isinstance(config, Call):
        return None
    layers = config.arguments.get("layers")
    builder = BUILDERS.get(layers.function) if isinstance(layers, Call) else None
    if builder is None or not isinstance(layers, Call):
        return None
    if converted:
        _read_converters(reading, converted)
    reading.set_options |= {ATTENTION_BACKEND: "flex"} | _backend(layers.arguments)
    values = {**layers.arguments, "vocab_size": config.arguments.get("vocab_size")}
    skipped = ("rope", "attn_backend", "moe_comm_backend", "fuse_qkv", "tp_gemm_backend")
    numbers: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool):
            numbers[name] = value
        elif name not in skipped:
            problem = "must be a literal whole number"
            reading.faults.append(Fault.of(name, _shown(value), problem, reading.source))
    reading.refuse()
    tied = config.arguments.get("enable_weight_tying") is True
    name = str(spec.arguments.get("flavor", "model"))
    try:
        return built_model(name, builder, numbers.pop("vocab_size"), tied, numbers)
    except KeyError as missing:
        problem = f"{builder.function} needs a literal number"
        raise InputError(
            Fault(source=reading.source, field=str(missing.args[0]), problem=problem)
        ) from None


def _read_tokens(reading: Reading) -> None:
    """Batch sizes of later sources, which count tokens."""
    options = reading.set_options
    if not any(name in options for name in (_TOKENS, _STEP_TOKENS, _LONGEST)):
        return
    values = {**_MAIN_DEFAULTS, **options}
    length = values.get(_LONGEST, 2048)
    numbers = [values[name] for name in (_TOKENS, _STEP_TOKENS, _PASSES)]
    if not all(isinstance(number, int) for number in (*numbers, length)):
        return
    micro, step, passes = (int(str(number)) for number in numbers)
    sequence = int(str(length))
    if sequence < 1 or micro % sequence or (step != -1 and step % sequence):
        problem = f"must be a multiple of {_LONGEST} {length}"
        reading.faults.append(Fault.of(_TOKENS, micro, problem, reading.source))
        return
    for name in (_TOKENS, _STEP_TOKENS, _LONGEST, _PASSES):
        options.pop(name, None)
    options |= {
        "training.seq_len": sequence,
        "training.local_batch_size": micro // sequence * passes,
        "parallelism.pipeline_parallel_microbatch_size": micro // sequence,
        "training.global_batch_size": -1 if step == -1 else step // sequence,
    }
