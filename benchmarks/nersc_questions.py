"""Answer NERSC's questions with our search: the best of each kind of tensor parallelism.

Same machines and models, layers alone; no recompute, no interleaving, no offload, no fused
activations, tensor-parallel communication exposed except for SUMMA's panels, optimizer sharded.
Prints sequences per second of the best of either, and how 2D products compare with 1D.
"""

import argparse
import sys
import time

from shardwise import sweep
from shardwise.planning.sweep.results import SweepPoint
from shardwise.predecessors.nersc import reference as nersc
from shardwise.predecessors.nersc.translation import model_for_nersc, system_for_nersc

MODELS = ("nersc-gpt3-1t", "vit-era5")
SYSTEMS = ("nersc-a100", "nersc-h200", "nersc-b200")
BATCH = 4096
ALIKE = {
    "gbs": BATCH,
    "dtype": "fp16",
    "recompute": "none",
    "zero": 1,
    "vpp": 1,
    "schedule": "1f1b",
    "fused_activation": False,
    "dp_overlap": True,
    "placement": "tp-cp-dp-pp",
    "extents": "all",
}
_GATHERED = {"tp_exchange": "rs_ag", "tp_overlap": "none", "tp_regather": False}
METHODS: dict[str, dict[str, object]] = {
    "1d": {**_GATHERED, "cp": 1},
    "2d": {"tp_exchange": "summa", "cp": 1},
    "2d-seqp": {**_GATHERED, "cp": "all", "cp_exchange": "all_gather"},
}


def theirs(model: str, point: SweepPoint, method: str) -> float | None:
    """Best throughput by NERSC's formulas and search."""
    found = nersc.search(
        model_for_nersc(model),
        system_for_nersc(point.system),
        method,
        gpus=int(point.values["gpus"]),
        global_batch=BATCH,
        domain=int(point.values["domain"]),
        top_n=1,
    )
    return found.best[0].throughput if found.best else None


def ours(point: SweepPoint) -> float | None:
    """Best throughput by our own."""
    return BATCH / point.best[0].step_time_s if point.best else None


def main() -> None:
    """Print a line for every question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="512,4096,16384")
    parser.add_argument("--domains", default="4,8,64")
    asked = parser.parse_args()
    heads = "".join(
        f"{side + ' ' + method:>14}" for method in METHODS for side in ("NERSC", "ours")
    )
    sys.stdout.write(f"{'model':14} {'system':11}{'GPUs':>6}{'domain':>7}{heads}\n")
    start = time.perf_counter()
    vary = {"gpus": asked.gpus, "domain": asked.domains}
    for model in MODELS:
        found = {
            method: sweep(model, SYSTEMS, vary=vary, **ALIKE, **fields)
            for method, fields in METHODS.items()
        }
        for points in zip(*(result.points for result in found.values()), strict=True):
            pairs = [
                (theirs(model, point, method), ours(point))
                for method, point in zip(METHODS, points, strict=True)
            ]
            cells = "".join(f"{'-' if v is None else f'{v:.1f}':>14}" for p in pairs for v in p)
            at = points[0]
            place = f"{at.values['gpus']:>6}{at.values['domain']:>7}"
            sys.stdout.write(f"{model:14} {at.system:11}{place}{cells}\n")
    sys.stdout.write(f"{time.perf_counter() - start:.0f} s\n")


if __name__ == "__main__":
    main()
