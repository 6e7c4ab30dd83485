"""How config.json files are recognized."""

from collections.abc import Mapping
from typing import Any

from shardwise.config.formats import FileFormat
from shardwise.config.readers import Kind

__all__ = ["FORMATS", "looks_like"]


def looks_like(data: Mapping[str, Any]) -> bool:
    """Whether a mapping has the keys by which Hugging Face's files say what they describe."""
    if "architectures" in data or "_diffusers_version" in data:
        return True
    # SimuMax's files have a `model_type` too, next to keys that no config.json has.
    return isinstance(data.get("model_type"), str) and "head_num" not in data


def _read(_: Kind, data: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    from shardwise.huggingface.reader import model_fields  # noqa: PLC0415 - slow to import

    return model_fields(data, name, source)


FORMATS = (
    FileFormat(
        tool="Hugging Face",
        content="model",
        kinds=("model",),
        recognise=looks_like,
        read=_read,
    ),
)
