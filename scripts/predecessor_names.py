"""Names of flags, arguments, fields and results of Calculon, SimuMax and fsdp_ilp.

`python scripts/predecessor_names.py calculon=GIT_DIR simumax=GIT_DIR fsdp-ilp=GIT_DIR` reads
clones of the three tools and writes tests/data/predecessor_names.yaml. Names of tools that were
not read stay as they are: those of NERSC and AMPeD are edited by hand.
"""

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

FILE = Path(__file__).parents[1] / "tests/data/predecessor_names.yaml"
DATA_CLASSES = re.compile(r"\w+Config|ModStats|ModuleInfo")
CONSTANTS = ("NAME", "ALIASES")  # of Calculon's commands
PUBLIC = re.compile(r"search_\w+|analysis\w*|simulate|configure|run_estimate|export_\w+|capture")
RESULTS = re.compile(
    r"_?(?:analysis|compute_optim_time|compute_dp_time|sum_model_mem|build_vpp_chunk_memory"
    r"|dump_\w+|get_stats_\w+|get_peers_json|fields|record_net_bw|summary|snapshot|search_best_parallel)\w*"
)
READ = {
    "calculon": ("bin/*", "calculon/*", "scripts/*"),
    "simumax": (
        *("simumax/core/perf_llm.py", "simumax/core/config.py", "simumax/core/simu_memory.py"),
        *("examples/*", "simu_tools/*", "tools/*"),
    ),
    "fsdp-ilp": ("*",),
}


def git(folder: str, *words: str) -> str:
    """Output of a command of git on a clone."""
    command = ["git", "--git-dir", folder, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - the folder is the caller's


def strings(*nodes: ast.AST | None) -> Iterator[str]:
    """Words among the constants of a piece of code."""
    for node in (one for root in nodes if root for one in ast.walk(root)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def names(node: ast.AST) -> Iterator[str]:
    """Names that one statement or call adds to what a user can write or read."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        yield from strings(*node.args)
    elif isinstance(node, ast.ClassDef):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and DATA_CLASSES.fullmatch(node.name):
                yield ast.unparse(one.target)
            if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") in CONSTANTS:
                yield from strings(one.value)
    elif isinstance(node, ast.FunctionDef):
        if PUBLIC.fullmatch(node.name):
            yield node.name
            yield from (one.arg for one in node.args.args if one.arg != "self")
        if RESULTS.fullmatch(node.name):
            yield from results(node)


def results(function: ast.FunctionDef) -> Iterator[str]:
    """Keys of the dictionaries that a function makes, or the strings it returns."""
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            yield from strings(*node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from strings(node.slice)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from strings(node.value)


def read(folder: str, patterns: tuple[str, ...]) -> dict[str, object]:
    """Names by file, each where it occurs first, and the commit that was read."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for path in git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines():
        is_python = path.endswith(".py") or path == "bin/calculon"
        if is_python and any(fnmatch.fnmatch(path, pattern) for pattern in patterns):
            tree = ast.parse(git(folder, "show", f"HEAD:{path}"))
            new = {name for node in ast.walk(tree) for name in names(node)} - seen
            seen |= new
            if new:
                found[path] = sorted(new)
    return {"commit": git(folder, "rev-parse", "HEAD").strip(), "names": found}


if __name__ == "__main__":
    kept = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for tool, folder in (word.split("=", 1) for word in sys.argv[1:]):
        kept[tool] = read(folder, READ[tool])
    text = yaml.safe_dump(kept, width=100, default_flow_style=None, sort_keys=False)
    FILE.write_text(text, encoding="utf-8")
