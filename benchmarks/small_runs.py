"""Sixteen small transformers, trained on this machine and predicted from its quick measurement.

Usage: python benchmarks/small_runs.py [SYSTEM] [--rounds N] [--steps N] [--only TEXT]

Without SYSTEM, `shardwise calibrate measure --quick --ranks 2` measures the machine first, which
knows nothing of these runs. Each of two processes has half of the cores. All runs of a round follow
one another, and rounds repeat, so that what else runs here slows all alike; times are medians.
The noise of a run is what the medians of its rounds differ by. On a quiet machine of two cores it
takes less than 10 minutes.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.measure.job import run_job
from shardwise.measure.training import Planned, Trained, planned, trained

APART = 1.2
"""Ratio of times from which a pair of runs must be in order."""
VOCABULARY = 2048
HEAD = 64
WAYS: Mapping[str, Mapping[str, int]] = {
    "1 process": {"gpus": 1},
    "2 dp": {"gpus": 2},
    "2 tp": {"gpus": 2, "tp": 2},
    "2 pp": {"gpus": 2, "pp": 2},
    "FSDP2": {"gpus": 2, "zero": 3},
}
# Kind, way, width, layers, length, sequences of a micro-batch, micro-batches of a replica.
RUNS = (
    ("dense", "1 process", 256, 8, 128, 4, 1),
    ("dense", "1 process", 1024, 2, 512, 1, 1),
    ("latent", "1 process", 512, 4, 256, 2, 1),
    ("experts", "1 process", 512, 2, 256, 2, 1),
    ("dense", "2 dp", 512, 4, 128, 4, 1),
    ("latent", "2 dp", 256, 6, 1024, 1, 1),
    ("experts", "2 dp", 256, 4, 256, 2, 2),
    ("dense", "2 tp", 1024, 2, 256, 2, 1),
    ("dense", "2 tp", 512, 8, 512, 1, 1),
    ("dense", "2 tp", 256, 4, 1024, 2, 1),
    ("dense", "2 pp", 512, 8, 256, 1, 4),
    ("latent", "2 pp", 768, 2, 512, 1, 2),
    ("experts", "2 pp", 256, 4, 128, 4, 4),
    ("dense", "FSDP2", 768, 3, 512, 1, 1),
    ("latent", "FSDP2", 512, 2, 1024, 1, 1),
    ("experts", "FSDP2", 512, 2, 512, 1, 1),
)


def described(kind: str, width: int, layers: int, seq_len: int) -> Model:
    """A model of a kind."""
    heads = width // HEAD
    attention: dict[str, Any] = {"heads": heads, "kv_heads": heads // 2, "head_dim": HEAD}
    if kind == "latent":
        low = {"q_rank": width // 2, "kv_rank": width // 4, "rope_dim": HEAD // 4}
        attention |= {"kv_heads": heads, "latent": low}
    layer: dict[str, Any] = {"count": layers, "attention": attention}
    if kind == "experts":
        layer["moe"] = {"experts": 8, "top_k": 2, "ffn": width, "activation": "swiglu"}
    else:
        layer["mlp"] = {"ffn": 3 * width, "activation": "swiglu"}
    fields = {"name": f"{kind}-{width}x{layers}", "hidden": width, "vocab": VOCABULARY}
    fields |= {"seq_len": seq_len, "norm": "rmsnorm", "position": "rope", "layers": [layer]}
    return Model.load(fields)


def plans(system: System, steps: int) -> Iterator[tuple[str, Planned]]:
    """Runs with their names, each of which is refused here if it cannot be trained."""
    for kind, way, width, layers, seq_len, sequences, micro_batches in RUNS:
        replicas = 2 if way in ("2 dp", "FSDP2") else 1
        fields = dict(WAYS[way]) | {"micro_batch_size": sequences}
        fields |= {"global_batch_size": sequences * micro_batches * replicas}
        model = described(kind, width, layers, seq_len)
        plan = planned(model, system, Strategy.load(fields), steps=steps)
        yield f"{kind:8}{way:10}{width:5} x {layers} {seq_len:5} tokens", plan


def measured_system() -> System:
    """Measure the machine for a minute."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "this-machine.yaml"
        words = ["calibrate", "measure", "--quick", "--ranks", "2", "-o", str(path)]
        subprocess.run([sys.executable, "-m", "shardwise", *words], check=True)  # noqa: S603 - fixed words
        return System.load(path)


def report(runs: Mapping[str, Trained]) -> None:
    """Print errors by run, their size, the order of pairs, and the noise."""
    print(f"{'run':36}  measured  predicted   error   noise   forward backward  update    rest")
    for name, one in runs.items():
        parts = [f"{1e3 * (p.predicted_s - p.measured_s):+7.1f}" for p in one.parts]
        times = f"{1e3 * one.step_time_s:7.1f} ms {1e3 * one.prediction.step_time_s:7.1f} ms"
        print(f"{name:36} {times} {one.error:+8.1%} {one.noise:7.1%}  {' '.join(parts)}")
    errors = [one.error for one in runs.values()]
    print(f"mean size of errors {mean(map(abs, errors)):.1%}, bias {mean(errors):+.1%}")
    apart, wrong = 0, []
    for (one, first), (other, second) in combinations(runs.items(), 2):
        ratio = first.step_time_s / second.step_time_s
        if max(ratio, 1 / ratio) < APART:
            continue
        apart += 1
        if (ratio > 1) != (first.prediction.step_time_s > second.prediction.step_time_s):
            wrong.append(f"  {one} - {other}")
    print(f"pairs more than 20 % apart: {apart}, {apart - len(wrong)} in order", *wrong, sep="\n")
    noise = [one.noise for one in runs.values()]
    print(f"noise of this machine: median {median(noise):.1%}, largest {max(noise):.1%}")


def main() -> None:
    """Measure, train in rounds, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", nargs="?")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    system = System.load(options.system) if options.system else measured_system()
    chosen = {n: plan for n, plan in plans(system, options.steps) if options.only in n}
    ranks: dict[str, list[Any]] = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for name, plan in chosen.items():
            print(f"round {number} of {options.rounds}: {name}", file=sys.stderr)
            ranks[name].append(run_job(plan.job))
    report({n: trained(plan, ranks[n], ranks[n]) for n, plan in chosen.items()})


if __name__ == "__main__":
    main()
