"""Hugging Face: models from config.json."""

from shardwise.interop.formats import FileFormat
from shardwise.interop.huggingface.reader import looks_like, model_fields

__all__ = ["FORMATS"]

FORMATS = (
    FileFormat(
        tool="Hugging Face",
        content="model",
        kinds=("model",),
        recognise=looks_like,
        read=lambda _, data, name, source: model_fields(data, name, source),
    ),
)
