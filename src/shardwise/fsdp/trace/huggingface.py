"""Models of Hugging Face by their config: without weights, without network."""

# ruff: noqa: SLF001 - transformers tells of its classes nowhere else

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.fsdp.trace.torch_parts import imported, said

__all__ = ["config_of", "model_inputs", "model_of"]

_HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModel",
)
"""Kinds of models that a config may be of, where it does not name a class; the first is taken."""


def config_of(file: Path) -> Any:
    """Read a config; one that needs code from elsewhere is refused."""
    transformers = _transformers(str(file))
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(
                str(file), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        problem = f"is no config that transformers knows: {said(error)}"
        raise InputError(Fault(source=str(file), problem=problem)) from error
    config.use_cache = False
    return config


def model_of(config: Any) -> Any:
    """The class that a config names, or else the first kind that there is one of."""
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
    problem = f"transformers has no model of the type {own.model_type!r}"
    raise InputError(Fault(source="model", problem=problem))


def _forget_dtype(config: Any) -> None:
    """Build in the default type, as all else here, not in that of the published weights."""
    config.dtype = None
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            _forget_dtype(part)


def model_inputs(module: Any, batch: int, seq_len: int) -> dict[str, Any] | None:
    """Token ids, as labels too where it is a language model, sound or images; None: cannot tell.

    Zeros: they have no numbers on fake tensors, and a token 0 is in every vocabulary.
    """
    torch = imported()
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


def _transformers(source: str) -> Any:
    try:
        return import_module("transformers")
    except ImportError:
        problem = "a config of Hugging Face needs transformers: pip install transformers"
        raise InputError(Fault(source=source, problem=problem)) from None


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep its advice on generating text to itself."""
    logging = transformers.logging
    usual = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(usual)
