"""The core works without the packages around it."""

import os
import subprocess
import sys
from pathlib import Path

import shardwise
from shardwise.registry import PACKAGES

COMMANDS = """
from shardwise.cli import VERBS, run
assert {"export", "fsdp", "explore", "convert"}.isdisjoint(VERBS)
case = "megatron-126m h100-sxm --gpus 8 --gbs 8".split()
assert [run([verb, *case]) for verb in ("estimate", "search", "peers", "trace")] == [0, 0, 0, 0]
assert run(["sweep", *case, "--vary", "inner.bandwidth=1x,2x"]) == 0
assert run(["estimate", *case, "--also", "calculon"]) == 2
"""

ALL = ", ".join(PACKAGES)


def test_verbs_run_without_the_packages_around_the_core(tmp_path):
    """Nothing of the core imports them; what needs one says that it is missing."""
    package = tmp_path / "shardwise"
    package.mkdir()
    for path in Path(shardwise.__file__).parent.iterdir():
        if path.name not in PACKAGES:
            (package / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    refused = [line for line in lines if line.startswith("error: ")]
    assert refused == [f"error: reference_answers: is not installed: it comes with one of {ALL}"]
