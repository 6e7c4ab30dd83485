"""An exported configuration of accelerate trains a tiny model as one process would, on CPUs."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shardwise import Model, Strategy, System
from shardwise.launchers.accelerate import LAUNCHER
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.writing import launch_files

for needed in ("torch", "transformers", "accelerate"):
    if find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "accelerate_training.py"
TINY = Model.validated(
    {
        "name": "tiny",
        "hidden": 32,
        "vocab": 64,
        "seq_len": 16,
        "layers": [
            {
                "count": 2,
                "attention": {"heads": 4, "kv_heads": 2, "head_dim": 8, "qk_norm": "head"},
                "mlp": {"ffn": 64, "activation": "swiglu"},
            }
        ],
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": False,
    }
)


def exported(folder: Path, name: str, **fields: Any) -> Path:
    """Write the files of a plan; return the path of the YAML."""
    row = {"stack": LAUNCHER.stack, "gbs": 4, "zero": 3, "dtype": "fp32", **fields}
    plan = LaunchPlan(
        model=TINY, system=System.load("h100-sxm"), strategy=Strategy(**row).resolved(TINY)
    )
    for file in launch_files(LAUNCHER, plan):
        (folder / f"{name}{file.ending}").write_text(file.text)
    return folder / f"{name}.yaml"


def trained(config: Path, family: str, *plans: Path | str) -> dict[str, Any]:
    """Launch the script with a configuration; what it found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    out = config.with_suffix(".json")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", port]
    done = subprocess.run(
        [*launch, "--config_file", str(config), str(SCRIPT), str(out), family, *map(str, plans)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_fsdp2_on_two_processes(tmp_path: Path) -> None:
    """Two steps; weights are sharded over both."""
    found = trained(exported(tmp_path, "sharded", gpus=2), "llama", "none")
    (one,) = found["together"]
    assert one["losses"] == pytest.approx(found["alone"], abs=1e-5)
    assert one["losses"][1] < one["losses"][0]
    assert (one["fsdp"], one["local"]) == (2, [16, 32])


def test_fsdp2_with_tensor_parallelism(tmp_path: Path) -> None:
    """Two steps with both degrees 2, which needs four processes, by both kinds of communication."""
    row = {"gpus": 4, "tp": 2, "recompute": "full"}
    config = exported(tmp_path, "rs_ag", **row)
    exported(tmp_path, "all_reduce", tp_exchange="all_reduce", **row)
    found = trained(config, "qwen3", tmp_path / "rs_ag.py", tmp_path / "all_reduce.py")
    for one in found["together"]:
        assert one["losses"] == pytest.approx(found["alone"], abs=1e-5)
        assert (one["fsdp"], one["local"]) == (2, [8, 32])


def test_tied_embeddings_are_noted() -> None:
    """The release whose options are written does not shard them (tried with PyTorch 2.13)."""
    row = {"stack": LAUNCHER.stack, "gbs": 4, "zero": 3, "gpus": 2}
    for tied in (True, False):
        model = TINY.model_copy(update={"tied_embeddings": tied})
        plan = LaunchPlan(
            model=model, system=System.load("h100-sxm"), strategy=Strategy(**row).resolved(model)
        )
        assert ("# tied embeddings: " in launch_files(LAUNCHER, plan)[0].text) == tied
