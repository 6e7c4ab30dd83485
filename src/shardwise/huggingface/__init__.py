"""Hugging Face: models from config.json."""

from shardwise.registry import Additions

ADDS = Additions(
    formats=("huggingface.formats:FORMATS",),
    functions={"hub": "huggingface.hub", "coverage": "huggingface.coverage:coverage"},
)
