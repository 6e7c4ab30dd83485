"""The public surface, and the package as users install it."""

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import shardwise

ROOT = Path(__file__).parent.parent


def test_the_public_surface_is_what_all_names():
    """Every name of `__all__` exists; nothing else is promised."""
    assert sorted(shardwise.__all__) == [
        "CannotExportError",
        "ClusterChoice",
        "Comparison",
        "ComputeGraph",
        "Diagnosis",
        "Estimate",
        "EstimateTable",
        "Explanation",
        "Export",
        "FsdpPlan",
        "InputError",
        "Launch",
        "LaunchFile",
        "Model",
        "NearestPlan",
        "NotUnderstood",
        "Recipe",
        "RecipeEstimate",
        "Reliability",
        "SearchResult",
        "ShardwiseError",
        "Space",
        "Stack",
        "Strategy",
        "SweepPoint",
        "SweepResult",
        "System",
        "Trace",
        "TrainingTime",
        "UnknownNameError",
        "__version__",
        "choose_cluster",
        "compare",
        "diagnose",
        "estimate",
        "estimate_many",
        "estimate_recipe",
        "estimate_training_time",
        "explain",
        "export",
        "graph_of",
        "largest_model",
        "plan_fsdp",
        "read_launch",
        "recipes",
        "search",
        "sweep",
        "trace",
    ]
    for name in shardwise.__all__:
        assert getattr(shardwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        shardwise.predict  # noqa: B018 - the access itself must fail


def test_errors_form_one_tree():
    """One base catches all that is raised on purpose."""
    assert issubclass(shardwise.UnknownNameError, shardwise.InputError)
    assert issubclass(shardwise.InputError, shardwise.ShardwiseError)


def test_the_extra_of_launchers_names_the_versions_that_are_tested():
    """Those of the file that the continuous integration installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {one for one in extras["launchers"] if "==" in one}
    tested = (ROOT / ".ci" / "launchers.txt").read_text().splitlines()
    assert named <= set(tested)
    trainers = ("accelerate", "deepspeed", "megatron-core", "torchtitan")
    assert {one.split("==")[0] for one in named} >= set(trainers)


@pytest.mark.nightly
def test_the_built_wheel_works_from_an_empty_directory(tmp_path):
    """The wheel holds the catalog and the command, and needs nothing of the source tree."""
    wheels, installed, empty = tmp_path / "wheels", tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, ROOT]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    install = ["install", "--no-deps", "--target", installed, wheel]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    # The installed copy first, then only the libraries it needs: not the source tree.
    libraries = sysconfig.get_paths()["purelib"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join([str(installed), libraries])
    program = (
        "import shardwise, sys; from shardwise.cli import run;"
        "from shardwise.validate.measured.store import load_runs; assert len(load_runs()) == 1853;"
        f"assert shardwise.__file__.startswith({str(installed)!r}), shardwise.__file__;"
        "sys.exit(run('estimate llama3-8b h100-sxm --gpus 8 --gbs 8 --tp 8 --json'.split()))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"model": "llama3-8b"' in done.stdout
    assert (installed / "bin" / "shardwise").exists()
    assert list(empty.iterdir()) == []
