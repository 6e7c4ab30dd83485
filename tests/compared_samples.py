"""Two ways to run one model, of which both fit, and what was asked differently."""

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
A = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 32}
B = A | {"tp": 4, "recompute": "selective"}


def asked(found):
    """Values of what differs, by field."""
    return {one.field: one.values for one in found.asked}
