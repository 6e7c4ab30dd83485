"""The public surface, and the package as users install it."""

import ast
import re
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import yaml

import shardwise

ROOT = Path(__file__).parents[2]


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
        "LargestModel",
        "Launch",
        "LaunchFile",
        "MethodTable",
        "Model",
        "NearestPlan",
        "NotUnderstood",
        "Recipe",
        "RecipeEstimate",
        "Recommendation",
        "ReferenceEstimate",
        "ReferenceSearch",
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
        "compare_methods",
        "convert",
        "diagnose",
        "estimate",
        "estimate_many",
        "estimate_recipe",
        "estimate_training_time",
        "explain",
        "export",
        "graph_of",
        "largest_model",
        "load",
        "plan_fsdp",
        "read_launch",
        "recipes",
        "search",
        "sweep",
        "trace",
        "validate_suite",
    ]
    for name in shardwise.__all__:
        assert getattr(shardwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        shardwise.predict  # noqa: B018 - the access itself must fail


def test_type_checkers_see_the_names_that_are_imported_when_used():
    """What is imported for type checkers is what `__getattr__` imports, and `__all__` lists it."""
    tree = ast.parse(Path(shardwise.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module.removeprefix("shardwise.")
        for node in block.body
        for alias in node.names
    }
    home = shardwise._HOME  # noqa: SLF001 - where names are imported from
    assert typed == home
    assert {*shardwise.__all__} == {*home, "__version__"}
    assert {*shardwise.__all__} <= {*dir(shardwise)}
    assert (Path(shardwise.__file__).parent / "py.typed").exists()


def test_every_public_name_has_an_example():
    """Functions, classes and what results can do; tests/together/test_docs.py runs them."""
    missing = {
        name
        for name in shardwise.__all__
        if name != "__version__" and ">>>" not in (getattr(shardwise, name).__doc__ or "")
    }
    assert missing == set()


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


def test_the_package_says_that_it_is_typed():
    """Type checkers read the types of an installed package only where it has `py.typed`."""
    assert (resources.files("shardwise") / "py.typed").is_file()


def test_the_citation_names_this_version_and_place():
    """As the package does."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == shardwise.__version__
    assert citation["repository-code"] == project["urls"]["Source"]
    assert [one["name"] for one in citation["authors"]] == [
        one["name"] for one in project["authors"]
    ]


def test_the_package_names_the_versions_of_python_that_are_tested():
    """Those of the workflow file; the lowest is the one that is required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    named = [one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)]
    assert [f"3.{minor}" for minor in named] == tested
    assert project["requires-python"] == f">={tested[0]}"


def test_notices_are_in_all_that_is_built():
    """Files of licenses exist, and the container image gets what the package is built from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = (ROOT / "Containerfile").read_text(encoding="utf-8")
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in ("LICENSE", "NOTICE"):
        assert name in project["license-files"]
        assert (ROOT / name).is_file()
        assert f" {name} " in copied
        assert f"!{name}" in sent


def test_what_others_publish_is_pinned():
    """Actions by commit with the release, base images by digest: their tags can be moved."""
    workflows = [one.read_text("utf-8") for one in (ROOT / ".github" / "workflows").iterdir()]
    used = re.findall(r"uses: (.*)", "".join(workflows))
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
    images = re.findall(r"^FROM (.*)", (ROOT / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert [one for one in images if not re.fullmatch(r".+@sha256:[0-9a-f]{64}", one)] == []


def test_what_the_server_imports_is_declared():
    """With a lowest version: not left to what another package happens to need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = project["dependencies"] + project["optional-dependencies"]["web"]
    declared = {one.split(">=")[0].lower() for one in packages}
    imported = set()
    for path in (ROOT / "src" / "shardwise" / "web").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
    assert imported - {*sys.stdlib_module_names, "shardwise"} <= declared
