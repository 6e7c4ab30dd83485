"""Which families of causal language models of transformers are read, and why others are not."""

import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredFamily:
    """One `model_type` of transformers."""

    model_type: str
    architecture: str
    """Its class of causal language models."""
    parameters: int | None
    """Of its default configuration; None: transformers cannot build it."""
    read: Literal["record", "modules", "no"]
    """How its config.json is read: by a record of the family, from the modules of transformers
    (with the extra `torch`), or not."""
    why: str
    """Why it is not read, or what its default configuration lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Families of one release of transformers."""

    transformers: str
    """Release that was compared, the newest one."""
    families: tuple[CoveredFamily, ...]

    def counts(self) -> dict[str, int]:
        """Return how many families are read by a record, from modules, and not."""
        ways = ("record", "modules", "no")
        return {way: sum(one.read == way for one in self.families) for way in ways}

    def to_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {**asdict(self), "counts": self.counts()}


def coverage() -> Coverage:
    """Return the families that `scripts/huggingface_families.py` compared last."""
    text = files(__package__).joinpath("model_types.json").read_text(encoding="utf-8")
    data = json.loads(text)
    families = (CoveredFamily(model_type=kind, **row) for kind, row in data["families"].items())
    return Coverage(transformers=data["transformers"], families=tuple(families))
