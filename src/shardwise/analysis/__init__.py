"""One strategy in detail: operations, communication, stages, timeline, graph."""

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Result"]


class Result(BaseModel):
    """Base of all result records: frozen, plain values, never read from users' files."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.model_dump(mode="json")
