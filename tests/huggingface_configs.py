"""Published `config.json` files, as models and with keys changed."""

import json
from pathlib import Path

from shardwise import Model

FOLDER = Path(__file__).parent / "data" / "huggingface"
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
FAMILIES = json.loads((FOLDER.parent / "huggingface_families.json").read_text())
"""Families of transformers: default and shrunken configurations with their parameters, or why they
are refused; written by `scripts/huggingface_families.py`."""
MORE = json.loads((FOLDER.parent / "huggingface_more.json").read_text())
"""Published files of families whose layers differ in more than a window."""
NOT_COMPARED = {"name", "description", "sources", "seq_len"}


def load(name, **changes):
    """The model of a published file, with keys changed, or removed if they are `...`."""
    return Model.load(changed(name, **changes))


def changed(name, **changes):
    """The keys of a published file, changed, or removed if they are `...`."""
    data = CONFIGS[name] | changes
    return {key: value for key, value in data.items() if value is not ...}


def compared(model):
    """A model but for its names and its sequences."""
    return model.model_dump(exclude=NOT_COMPARED)
