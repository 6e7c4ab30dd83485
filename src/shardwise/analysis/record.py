"""`Result`: what every record of results is."""

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Result"]


class Result(BaseModel):
    """A frozen record of plain values; unlike a noun it is never read from people's files."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.model_dump(mode="json")
