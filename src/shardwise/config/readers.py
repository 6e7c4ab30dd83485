"""Readers of files that other tools wrote; they register themselves, and `load` finds them here.

`config` knows no other tool. `foreign` registers its readers here when shardwise is imported, so
that a model, a system or a strategy loads from a Calculon, SimuMax, NERSC, AMPeD or Hugging Face
file, or from the launch file of a trainer, as it does from a shardwise file.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

Kind = Literal["model", "system", "strategy"]


class Readers(Protocol):
    """What `foreign` provides."""

    def recognised(self, data: Mapping[str, object], /) -> tuple[Kind, str] | None:
        """Return what a mapping of another tool holds, here and in its own words."""

    def native_fields(
        self, kind: Kind, data: Mapping[str, object], *, name: str, source: str
    ) -> Mapping[str, object]:
        """Return the shardwise fields of a mapping; one of no other tool is returned as it is."""

    def check_kind(self, config: type[Any], data: Mapping[str, object], source: str, /) -> None:
        """Refuse a shardwise file that holds something else than a config type."""

    def launch_fields(self, kind: Kind, path: str, /) -> Mapping[str, object] | None:
        """Return the shardwise fields in a launch file of a trainer; None for any other file."""

    def fetched_model(self, name: str, /) -> Mapping[str, object] | None:
        """Return the config.json of an owner/name on the Hugging Face hub; None if it is none."""

    def brought(
        self, model: str, system: Any, strategy: Any, fields: Mapping[str, Any], /, **words: Any
    ) -> object | None:
        """Return the `Inputs` of a file with model, system and strategy; None for another file."""

    def brings_system(self, model: str, /) -> bool:
        """Return whether a model is a file with a system, too."""

    def reference_estimate(self, name: str, inputs: Any, /, *, layers: bool) -> object:
        """Return the answer of another model, a `ReferenceEstimate`."""


_providers: list[Callable[[], Readers]] = []


def register(provider: Callable[[], Readers]) -> None:
    """Set the function that imports and returns the readers; it is called when a file is read."""
    _providers[:] = [provider]


def foreign() -> Readers:
    """Return the registered readers."""
    return _providers[-1]()
