"""Show that ten times the input takes about ten times the time.

    PYTHONPATH=src python benchmarks/linear.py

Of each kind of input: seconds of the CPU for a small and a ten times larger one, and their ratio.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shardwise import InputError, Model, estimate
from shardwise.analysis.results import Estimate
from shardwise.interop.shell import parse_script

TIMES = 10


def groups(number: int, **mlp: Any) -> dict[str, Any]:
    """A model file with so many layer groups that all differ."""
    attention = {"heads": 8, "kv_heads": 8, "head_dim": 64, "bias": "none"}
    layers = [
        {
            "count": 1,
            "attention": attention,
            "mlp": {"activation": "swiglu", "ffn": 1024 + 16 * place} | mlp,
        }
        for place in range(number)
    ]
    sizes = {"hidden": 512, "vocab": 32_000, "seq_len": 1024}
    return {"name": "groups", **sizes, "norm": "rmsnorm", "position": "rope", "layers": layers}


def estimated(number: int) -> Estimate:
    """Estimate of a model with so many layer groups."""
    model = Model.validated(groups(number))
    return estimate(model, "h100-sxm", gpus=8, global_batch_size=64)


def refused(number: int) -> None:
    """Validate a model with a fault in each of so many layer groups."""
    with suppress(InputError):
        Model.validated(groups(number, ffn=-1))


CASES: dict[str, tuple[int, Callable[[int], object]]] = {
    "layer groups, validated": (200, lambda n: Model.validated(groups(n))),
    "layer groups, estimated": (20, lambda n: estimated(n).to_dict()),
    "layer groups with faults": (200, refused),
    "script with an open quote": (100_000, lambda n: parse_script('echo "' + "a b\n" * (n // 4))),
    "script of continued lines": (30_000, lambda n: parse_script("run" + " \\\n --a 1" * (n // 8))),
    "script of nested ifs": (30_000, lambda n: parse_script("if a; then b\n" * (n // 12))),
    "script of nested defaults": (30_000, lambda n: parse_script("${a:-" * (n // 5))),
}
"""Size of the small input, and what is done with one of a size."""


def main() -> None:
    """Print the table."""
    estimated(1)  # imports everything
    print(f"{'input':28} {'small':>9} {'large':>9} {'ratio':>6}")
    for name, (size, work) in CASES.items():
        seconds = []
        for number in (size, TIMES * size):
            began = time.process_time()
            work(number)
            seconds.append(time.process_time() - began)
        small, large = seconds
        print(f"{name:28} {small:8.3f}s {large:8.3f}s {large / small:6.1f}", flush=True)


if __name__ == "__main__":
    main()
