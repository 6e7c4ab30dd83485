"""Show that ten times the input takes about ten times the time.

    PYTHONPATH=src python benchmarks/linear.py

Of each kind of input: seconds of the CPU for a small and a ten times larger one, and their ratio.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from shardwise import InputError, Model, System, estimate
from shardwise.analysis.results import Estimate
from shardwise.launchers.kineto.steps import TracedSteps, read_trace
from shardwise.launchers.logs import read_log
from shardwise.launchers.shell import parse_script
from shardwise.validate.calibrate.fit import calibrated
from shardwise.validate.calibrate.from_runs import calibrated_by_runs
from shardwise.validate.calibrate.tables import read_table
from shardwise.validate.suites import validate_suite

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from written_logs import Run, megatron  # noqa: E402 - of the tests
from written_traces import Step, write_trace  # noqa: E402

TIMES = 10
_KEPT = TemporaryDirectory()
FOLDER = Path(_KEPT.name)


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


def estimated(model: Model) -> Estimate:
    """Estimate of a model."""
    return estimate(model, "h100-sxm", gpus=8, global_batch_size=64)


def refused(fields: dict[str, Any]) -> None:
    """Validate a model with a fault in each of its layer groups."""
    with suppress(InputError):
        Model.validated(fields)


def table(number: int) -> dict[str, Any]:
    """A system with a table of so many measured products."""
    fields = System.load("h100-sxm").to_dict()
    rows = [[1, 64 * (1 + place), 4096, 4096, 0.5] for place in range(number)]
    shapes = {"sizes": ["batch", "m", "n", "k"], "rows": {"any": rows}, "fallback": 0.25}
    chip = fields["accelerator"]
    chip["matmul"] = {name: one for name, one in chip["matmul"].items() if name != "bf16"}
    return fields | {"accelerator": chip | {"matmul_table": {"bf16": shapes}}}


def deep(text: str) -> None:
    """Read a script that is nested too deep."""
    with suppress(InputError):
        parse_script(text)


def on_table(fields: dict[str, Any]) -> Estimate:
    """Validate a system, and estimate on it."""
    return estimate("llama3-8b", System.validated(fields), gpus=8, global_batch_size=64)


def trace(number: int) -> Path:
    """A trace of PyTorch of so many steps."""
    step = Step(products=0.5, attention=0.1, other=0.1, exposed={"tp": 0.1}, hidden={"dp": 0.2})
    return write_trace(FOLDER / "trace.json", step, steps=number)


def traced(path: Path) -> TracedSteps:
    """Steps of a trace."""
    return read_trace(path, {"tp": 4, "dp": 8})


def log(number: int) -> Path:
    """A log of Megatron-LM of so many steps."""
    path = FOLDER / "train.log"
    path.write_text("\n".join(megatron(Run(seconds=(2.0,) * number))))
    return path


def runs(number: int) -> Path:
    """So many measured runs in shardwise's own form."""
    path = FOLDER / "runs.json"
    strategies = [{"tp": 2**place, "gpus": 8, "gbs": 32, "mbs": 1} for place in range(4)]
    rows = [strategies[place % 4] | {"step_time_s": 4.0} for place in range(number)]
    path.write_text(
        json.dumps({"common": {"model": "llama3-8b", "system": "h100-sxm"}, "runs": rows})
    )
    return path


def measured(number: int) -> Path:
    """So many measured runs as rows."""
    path = FOLDER / "rows.json"
    rows = json.loads((TESTS / "data" / "measured_rows.json").read_text())
    many = [rows[place % len(rows)] | {"id": f"run-{place}"} for place in range(number)]
    path.write_text(json.dumps(many))
    return path


def kernels(number: int) -> Path:
    """A table of so many measured products."""
    path = FOLDER / "gemm.csv"
    rows = [
        {
            "gpu": "h100_sxm",
            "dtype": "bf16",
            "m": 128 * (1 + place % 97),
            "n": 128 * (1 + place % 89),
            "k": 128 * (1 + place % 83),
            "latency_us": 20.0 + place % 101,
        }
        for place in range(number)
    ]
    pl.DataFrame(rows).write_csv(path)
    return path


CASES: dict[str, tuple[int, Callable[[int], Any], Callable[[Any], object]]] = {
    "layer groups, validated": (200, groups, Model.validated),
    "layer groups, estimated": (
        20,
        lambda n: Model.validated(groups(n)),
        lambda model: estimated(model).to_dict(),
    ),
    "layer groups with faults": (200, lambda n: groups(n, ffn=-1), refused),
    "script with an open quote": (100_000, lambda n: 'echo "' + "a b\n" * (n // 4), parse_script),
    "script of continued lines": (30_000, lambda n: "run" + " \\\n --a 1" * (n // 8), parse_script),
    "script of nested ifs": (30_000, lambda n: "if a; then b\n" * (n // 12), deep),
    "script of nested defaults": (30_000, lambda n: "${a:-" * (n // 5), deep),
    "table of kernels in a system": (2_000, table, on_table),
    "trace of PyTorch": (20, trace, traced),
    "log of Megatron-LM": (5_000, log, read_log),
    "validate runs --data": (100, measured, lambda path: validate_suite("runs", data=path)),
    "calibrate --from-runs": (
        100,
        runs,
        lambda path: calibrated_by_runs(System.load("h100-sxm"), path),
    ),
    "calibrate --from-table": (
        2_000,
        kernels,
        lambda path: calibrated(System.load("h100-sxm"), [read_table(path)]),
    ),
}
"""Size of the small input; the input of a size; and what is done with it."""


def main() -> None:
    """Print the table."""
    wanted = sys.argv[1:]
    estimated(Model.validated(groups(1)))  # imports everything
    print(f"{'input':28} {'small':>9} {'large':>9} {'ratio':>6}")
    for name, (size, make, work) in CASES.items():
        if not all(word in name for word in wanted):
            continue
        seconds = []
        for number in (size, TIMES * size):
            made = make(number)
            began = time.process_time()
            work(made)
            seconds.append(time.process_time() - began)
        small, large = seconds
        print(f"{name:28} {small:8.3f}s {large:8.3f}s {large / small:6.1f}", flush=True)


if __name__ == "__main__":
    main()
