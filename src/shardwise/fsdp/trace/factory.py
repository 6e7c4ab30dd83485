"""How a model to trace is built: a factory in Python, a module, or a config of Hugging Face.

A factory is a callable without needed arguments; where its signature has them it is called with
`batch` and `seq_len`. It returns a module, or a module and what it is called with: a tensor, a
tuple of positional arguments, a mapping of keyword arguments, or `(args, kwargs)`. A module may
also make these itself, in a method `example_inputs(batch, seq_len)`. Otherwise it is called with
token ids, and `labels` too where it is a language model of Hugging Face.
"""

# ruff: noqa: SLF001 - transformers lists its classes nowhere else

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from shardwise.config import files
from shardwise.errors import Fault, InputError, shorten
from shardwise.fsdp.trace.stand_ins import stand_ins, without_numbers
from shardwise.fsdp.trace.torch_tools import (
    Module,
    Tensor,
    Value,
    describe_error,
    refuse_errors,
    tensors,
    torch_module,
)

_HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModel",
)
"""Kinds of models that a config may be of, where it does not name a class; the first wins."""


def config_of(file: Path) -> Any:
    """Read a config; refuse one that needs remote code."""
    transformers = _transformers(str(file))
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(
                str(file), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        problem = f"is no config that transformers knows: {describe_error(error)}"
        raise InputError.at(str(file), problem) from error
    config.use_cache = False
    return config


def model_of(config: Any) -> Module:
    """The class that a config names, or else the first of `_HEADS` that exists for it."""
    transformers = _transformers("model")
    own = deepcopy(config)  # building writes to it
    _forget_dtype(own)
    with _quiet(transformers):
        for name in own.architectures or ():
            if (kind := getattr(transformers, name, None)) is not None:
                return kind._from_config(own)
        for name in _HEADS:
            auto = getattr(transformers, name, None)
            if auto is not None and type(own) in auto._model_mapping:
                return auto.from_config(own)
    problem = f"transformers has no model of the type {shorten(own.model_type)}"
    raise InputError.at("model", problem)


def _forget_dtype(config: Any) -> None:
    """Build in the default type, not in that of the published weights."""
    config.dtype = None
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            _forget_dtype(part)


def model_inputs(module: Module, batch: int, seq_len: int) -> dict[str, Any] | None:
    """Token ids (for language models also as labels), sound or images; None: unknown inputs.

    Zeros: they have no numbers on fake tensors, and a token 0 is in every vocabulary.
    """
    torch = torch_module()
    names = inspect.signature(module.forward).parameters
    if module.main_input_name == "input_ids":
        ids = torch.zeros((batch, seq_len), dtype=torch.int64)
        head = getattr(module, "get_output_embeddings", lambda: None)()
        wanted = {"labels": head is not None, "decoder_input_ids": True}
        return {"input_ids": ids} | {n: ids for n, use in wanted.items() if use and n in names}
    if module.main_input_name == "input_values":
        return {"input_values": torch.zeros((batch, seq_len))}
    config = module.config
    if module.main_input_name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.zeros((batch, channels, height, width))}
    return None


def _transformers(source: str) -> ModuleType:
    try:
        return import_module("transformers")
    except ImportError:
        problem = "a config of Hugging Face needs transformers: pip install transformers"
        raise InputError.at(source, problem) from None


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Silence its warnings about text generation."""
    logging = transformers.logging
    usual = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(usual)


Called = tuple[tuple[Any, ...], dict[str, Any]]
_ALLOWED = "a config.json of Hugging Face, a folder with one, or package.module:factory"
_PAIR = 2


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that can be built any number of times, and run."""

    name: str
    """For people; empty: as the class of the module."""
    source: str
    """Its origin."""
    assumed: tuple[str, ...] = ()
    """Assumptions, for people."""
    make: Callable[[], Any]
    """Returns a module, or a module and its inputs."""
    made_inputs: Any = field(default_factory=WeakKeyDictionary)
    """Inputs that the factory made, by module."""

    def build(self) -> Module:
        """Build the module under the current fake mode, in the default dtype, for training."""
        torch = torch_module()
        with refuse_errors(self.source, "cannot be built"), without_numbers():
            made = self.make()
        paired = isinstance(made, tuple) and len(made) == _PAIR
        module, inputs = made if paired else (made, None)
        if not isinstance(module, torch.nn.Module):
            problem = f"makes a {type(module).__name__}, not a torch.nn.Module"
            raise InputError.at(self.source, problem)
        if not all(map(_on_fake_cpu, (*module.parameters(), *module.buffers()))):
            module = _remade(module)
        if inputs is not None:
            self.made_inputs[module] = inputs
        return module.train()

    def inputs(self, module: Module, batch: int, seq_len: int) -> Called:
        """Positional and keyword arguments that the module is called with."""
        if module in self.made_inputs:
            return _called(self.made_inputs[module])
        if callable(own := getattr(module, "example_inputs", None)):
            return _called(own(batch, seq_len))
        if hasattr(module, "config") and hasattr(module, "main_input_name"):
            made = model_inputs(module, batch, seq_len)
            if made is not None:
                return (), made
        return _token_ids(self.source, module, batch, seq_len)

    def loss(self, output: Value) -> Tensor:
        """`output.loss`, a scalar output, or the sum of the first floating output in fp32."""
        own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if own is not None:
            return own
        found = [one for one in tensors(output) if one.is_floating_point()]
        if not found:
            problem = f"returns a {type(output).__name__} without a floating tensor to train on"
            raise InputError.at(self.source, problem)
        return found[0] if found[0].dim() == 0 else found[0].float().sum()

    @staticmethod
    def stand_ins() -> AbstractContextManager[None]:
        """Context to run it in, forward and backward, with kernels of an accelerator.

        Dropout, attention and RMSNorm save there what they save on a GPU; nothing is computed, so
        it is for fake tensors alone.
        """
        return stand_ins()


def load_module(
    source: object, *, batch: int = 1, seq_len: int = 1024, name: str | None = None
) -> LoadedModel:
    """Find out how a model is built; nothing is built yet."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if files.is_folder(path) or path.suffix == ".json":
            return _of_config(path, name)
        text = str(source)
        factory = _imported_factory(text)
    elif isinstance(source, torch_module().nn.Module):
        called = type(source).__name__
        return LoadedModel(name=name or called, source=called, make=lambda: _remade(source))
    elif callable(source):
        factory, text = source, getattr(source, "__qualname__", type(source).__name__)
    else:
        problem, has_value = f"must be {_ALLOWED}, a callable or a module", source is not None
        raise InputError(Fault(source="model", value=source, has_value=has_value, problem=problem))
    sizes = _accepted(factory, {"batch": batch, "seq_len": seq_len})
    return LoadedModel(name=name or "", source=text, make=lambda: factory(**sizes))


def _accepted(factory: Callable[..., Any], sizes: dict[str, int]) -> dict[str, int]:
    """The keywords that a factory has in its signature."""
    try:
        names = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables in C have no signature
        return {}
    return {name: size for name, size in sizes.items() if name in names}


@contextmanager
def _working_folder() -> Iterator[None]:
    """Import from the working folder too, as `python -m` does."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _imported_factory(text: str) -> Callable[..., Any]:
    """The callable that `package.module:factory` names."""
    place, colon, attribute = text.partition(":")
    if not colon or not place or not attribute:
        raise InputError.of("", text, f"no such file; must be {_ALLOWED}", "model")
    torch_module()  # before the factory's own import fails for want of it
    with refuse_errors("model", "cannot be imported", text), _working_folder():
        found: Any = import_module(place)
    if file := getattr(found, "__file__", None):
        files.note_input(file)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError.of("", text, f"{place} has no {attribute}", "model")
        found = getattr(found, part)
    if isinstance(found, torch_module().nn.Module):
        return lambda: _remade(found)
    if not callable(found):
        problem = f"{attribute} is a {type(found).__name__}, not a callable that makes a module"
        raise InputError.of("", text, problem, "model")
    made: Callable[..., Any] = found
    return made


def _on_fake_cpu(tensor: Tensor) -> bool:
    fake = torch_module("torch._subclasses.fake_tensor").FakeTensor
    return isinstance(tensor, fake) and tensor.device.type == "cpu"


def _remade(module: Module) -> Module:
    """A copy of a module with new weights on the CPU, floating ones in the default dtype.

    For weights that were there before, on the meta device or on a GPU.
    """
    torch = torch_module()
    fresh: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        dtype = torch.get_default_dtype() if tensor.is_floating_point() else tensor.dtype
        empty = torch.empty(tensor.shape, dtype=dtype, device="cpu")
        if isinstance(tensor, torch.nn.Parameter):
            empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
        fresh[id(tensor)] = empty
    return deepcopy(module, fresh)


def _of_config(path: Path, name: str | None) -> LoadedModel:
    """A model of Hugging Face by its config."""
    file = path / "config.json" if files.is_folder(path) else path
    if not files.is_file(file):
        raise InputError.of("", str(file), "no such file", "model")
    torch_module()
    config = config_of(file)
    called = name or (file.resolve().parent.name if file.name == "config.json" else file.stem)
    return LoadedModel(name=called, source=str(file), make=lambda: model_of(config))


def _called(inputs: Value) -> Called:
    """Inputs as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        if len(inputs) == _PAIR and isinstance(inputs[0], tuple) and isinstance(inputs[1], dict):
            return inputs[0], inputs[1]
        return tuple(inputs), {}
    return (inputs,), {}


def _token_ids(source: str, module: Module, batch: int, seq_len: int) -> Called:
    """Token ids, by name where the module has it."""
    torch = torch_module()
    if not any(isinstance(one, torch.nn.Embedding) for one in module.modules()):
        problem = "has no embedding, so what it is called with must come with it: see its factory"
        raise InputError.at(source, problem)
    ids = torch.zeros((batch, seq_len), dtype=torch.int64)
    if "input_ids" in inspect.signature(module.forward).parameters:
        return (), {"input_ids": ids}
    return (ids,), {}
