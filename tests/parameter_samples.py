"""What the tests of figures that are looked up, calculated or left to a base have in common."""

from collections.abc import Callable
from typing import Any

Written = Callable[..., str]
NVLINK = "network.nvlink.bandwidth"


def h100(**told: Any) -> dict[str, Any]:
    """A system that is the H100 but for what is told."""
    return {"name": "mine", "base": "h100-sxm", **told}
