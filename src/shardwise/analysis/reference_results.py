"""Results of other models, Calculon, NERSC's model and AMPeD, under their own names."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from shardwise.analysis import Result
from shardwise.config.plain import plain
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.shown import Brief

Reference = Literal["calculon", "nersc", "amped"]
REFERENCES = ("calculon", "nersc", "amped")


def known_reference(name: object, field: str, known: Sequence[str] = REFERENCES) -> str:
    """Return the name of a predecessor, or raise an `InputError`."""
    word = name.strip().lower() if isinstance(name, str) else ""
    if word not in known:
        problem = allowed_words(name, known)
        raise InputError(Fault.of(field, name, problem))
    return word


class ReferenceEstimate(Brief, Result):
    """What another model says of one strategy, under its own names and in its own units.

    Examples
    --------
    >>> from shardwise import estimate
    >>> run = {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16", "tp_exchange": "rs_ag"}
    >>> found = estimate("gpt3-175b", "calculon-a100-80g", run, reference="calculon")
    >>> found.reference, len(found.statistics), found.infeasible
    ('calculon', 96, None)
    """

    reference: Reference
    """The other model."""
    statistics: Mapping[str, Any]
    """Its statistics by name; none where it refuses the run."""
    infeasible: str | None = None
    """Why it refuses the run, in its own word; None if it does not."""
    message: str | None = None
    """Why it refuses the run, in a sentence."""
    layers: tuple[Mapping[str, Any], ...] | None = None
    """Its figures by operation or layer, with `operations`."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``estimate --reference NAME --json`` prints."""
        others = {"infeasible": self.infeasible, "message": self.message, "layers": self.layers}
        known = {name: value for name, value in others.items() if value is not None}
        return dict(plain({**self.statistics, **known}))


class ReferenceSearch(Brief, Result):
    """The best of another model's own search space, by its own formulas.

    Examples
    --------
    >>> from shardwise import search
    >>> found = search("gpt3-175b", "nersc-b200", reference="nersc", gpus=64, gbs=64, top=1)
    >>> found.reference, found.feasible > 0, found.best[0]["config"]["tp"] > 1
    ('nersc', True, True)
    """

    reference: Reference
    """The other model."""
    candidates: int
    """Size of its search space; of all searches together."""
    feasible: int
    """How many of the candidates are feasible."""
    best: tuple[Mapping[str, Any], ...]
    """The best, best first, under its names; of several searches, the best of each."""
    searches: tuple[Mapping[str, Any], ...] = ()
    """Several searches, one for each number of GPUs, system, method or domain; none for one."""
    elapsed_s: float
    """Time of the search."""
    record: Mapping[str, Any]
    """All that it returns, under the names of ``search --reference NAME --json``."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``search --reference NAME --json`` prints."""
        return dict(plain(self.record))
