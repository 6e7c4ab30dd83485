"""A strategy in a line of a table."""

from collections.abc import Mapping
from typing import Any

__all__ = ["DEGREE_HEADS", "SWITCHES", "in_brief", "word"]

# Always shown, in this order, under these heads.
DEGREE_HEADS = {"tp": "tp", "pp": "pp", "dp": "dp", "vpp": "vpp", "micro_batch_size": "mbs"}
SWITCHES = {
    "fused_activation": "fused activations",
    "offload_weights": "weights offloaded",
    "offload_activations": "activations offloaded",
    "offload_optimizer": "optimizer offloaded",
}


def word(value: object) -> str:
    """A value of a field, as a word."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return str(value.get("base", value.get("name")))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def in_brief(strategy: Mapping[str, Any]) -> str:
    """A strategy in a line."""
    degrees = " ".join(f"{head} {strategy[field]}" for field, head in DEGREE_HEADS.items())
    options = [f"recompute {strategy['recompute']}", f"ZeRO-{strategy['zero']}"]
    if strategy["tp"] > 1:
        options.append(f"{strategy['tp_exchange']}/{strategy['tp_overlap']}")
    options += [words for field, words in SWITCHES.items() if strategy[field]]
    return f"{degrees}, {', '.join(options)}"
