"""Measure the structure of a source tree: size, import layers, edges, long functions, words.

    python scripts/house.py                 # this tree
    python scripts/house.py OTHER/src/shardwise src/shardwise      # before and after, side by side

An import layer is the length of the longest chain of imports that leads to a top-level entry. An
edge is a pair of top-level entries of which one imports from the other. A function is referenced
once if its name stands only where it is defined and in one other place of the package. The reading
set of a command has the functions of the package that it runs, imports included.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "shardwise"
LONG_FUNCTION = 60
# Words of the old private dialect, counted also inside identifiers. Some have an ordinary use too,
# so the figure never reaches 0.
DIALECT = (
    *("told", "tells", "asked", "beside", "ahead", "akin", "anew", "dear", "thereof", "nought"),
    *("seat", "seats", "seated", "seating", "noun", "nouns", "unsaid", "fullest", "slowest"),
    *("kept", "held", "taken", "whole", "given", "judge", "judged", "exchange", "exchanges"),
)
DEGREES = {"tp", "tp2", "pp", "cp", "dp", "ep", "etp", "vpp"}
# Packages around the core, by the start of a module's name; all else is the core.
ROOMS = {
    "predecessors": ("predecessors", "analysis.reference_results"),
    **{name: (name,) for name in ("huggingface", "launchers", "fsdp", "measure", "web")},
}
FOREIGN = ("predecessors", "huggingface", "launchers")
COMMAND = "estimate llama3-8b h100-sxm --gpus 64 --tp 2 --pp 2 --gbs 128"
# Prints file and first line of every function of the package that the command runs.
TRACER = """
import json, os, sys
seen = set()
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and not code.co_name.startswith("<"):
        seen.add((code.co_filename, code.co_firstlineno))
sys.setprofile(note)
from shardwise.cli import run
out, sys.stdout = sys.stdout, open(os.devnull, "w")
run(sys.argv[1:])
sys.setprofile(None)
json.dump(sorted(seen), out)
"""
_MANY_FIELDS = 16
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package."""

    path: Path
    name: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """Every node of the tree."""

    @classmethod
    def of(cls, path: Path, name: str) -> "Module":
        """Read a file."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        return cls(path, name, text, tree, tuple(ast.walk(tree)))

    @property
    def entry(self) -> str:
        """The top-level entry that the module belongs to; empty for the package itself."""
        return self.name.split(".")[0]

    @property
    def room(self) -> str:
        """The room that the module belongs to."""
        found = (
            room
            for room, starts in ROOMS.items()
            for start in starts
            if self.name == start or self.name.startswith(f"{start}.")
        )
        return next(found, "core")

    def statements(self) -> int:
        """Statements other than docstrings."""
        return sum(isinstance(node, ast.stmt) and not _is_prose(node) for node in self.nodes)

    def lists_of(self, names: set[str], at_least: int, *kinds: type[ast.AST]) -> int:
        """Literals of some kinds that list so many of some names, as items or keys."""
        return sum(
            len(names & set(_texts(node))) >= at_least
            for node in self.nodes
            if isinstance(node, kinds)
        )

    def imports(self) -> Iterator[str]:
        """Names of modules below the package that this one imports."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                below = (node.module or "")[len(PACKAGE) + 1 :]
                if below:
                    yield below
                for alias in node.names:
                    yield f"{below}.{alias.name}".lstrip(".")

    def functions(self) -> Iterator[Function]:
        """Every function and method."""
        for node in self.nodes:
            if isinstance(node, Function):
                yield node


class House:
    """A package as its files have it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.modules = [self._module(path) for path in sorted(self.root.rglob("*.py"))]

    def _module(self, path: Path) -> Module:
        parts = path.relative_to(self.root).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        return Module.of(path, name)

    @cached_property
    def edges(self) -> dict[str, set[str]]:
        """Which top-level entries each one imports from."""
        entries = {module.entry for module in self.modules} - {""}
        found: dict[str, set[str]] = {entry: set() for entry in entries}
        for module in self.modules:
            if module.entry:
                targets = {name.split(".")[0] for name in module.imports()}
                found[module.entry] |= targets & entries - {module.entry}
        return found

    def layers(self) -> int:
        """Length of the longest chain of imports between top-level entries."""
        depth: dict[str, int] = {}

        def height(entry: str, path: tuple[str, ...] = ()) -> int:
            if entry in path:
                raise SystemExit(f"import cycle: {' -> '.join((*path, entry))}")
            if entry not in depth:
                below = (height(other, (*path, entry)) for other in self.edges[entry])
                depth[entry] = 1 + max(below, default=0)
            return depth[entry]

        return max(map(height, self.edges))

    def longest_functions(self) -> list[tuple[int, str]]:
        """Lines and names of functions, longest first."""
        found = [
            ((f.end_lineno or f.lineno) - f.lineno + 1, f"{module.name}.{f.name}")
            for module in self.modules
            for f in module.functions()
        ]
        return sorted(found, reverse=True)

    def referenced_once(self) -> int:
        """Functions (no methods) whose name stands in one place besides its definition."""
        names = Counter(
            token
            for module in self.modules
            for token in re.findall(r"[A-Za-z_]\w*", _without_all(module.text))
        )
        imports = Counter(
            alias.name
            for module in self.modules
            for node in module.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
        defined = [
            node.name
            for module in self.modules
            for node in module.tree.body
            if isinstance(node, Function)
        ]
        return sum(1 for name in defined if names[name] - 1 - imports[name] <= 1)

    def dialect(self) -> float:
        """Words of `DIALECT` per 1,000 words of code, comments and docstrings."""
        words = [
            word
            for module in self.modules
            for name in re.findall(r"[A-Za-z_]+", module.text)
            for word in name.lower().split("_")
            if word
        ]
        return 1000 * sum(map(Counter(words).__getitem__, DIALECT)) / len(words)

    def rooms(self) -> Iterator[tuple[str, str]]:
        """Modules, lines and statements of each room."""
        for room in ("core", *ROOMS):
            some = [module for module in self.modules if module.room == room]
            lines = sum(len(module.text.splitlines()) for module in some)
            sizes = (len(some), lines, sum(module.statements() for module in some))
            yield f"{room}: modules lines statements", " ".join(f"{size:,}" for size in sizes)

    def reading_set(self) -> tuple[int, int]:
        """Modules of which `COMMAND` runs a function, and lines of these functions."""
        words = [sys.executable, "-c", TRACER, *COMMAND.split()]
        environment = os.environ | {"PYTHONPATH": str(self.root.parent)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - fixed words
        run = {(path, line) for path, line in json.loads(done.stdout)}
        lines = {
            (module.name, line)
            for module in self.modules
            for f in module.functions()
            if (str(module.path), min([f.lineno, *(d.lineno for d in f.decorator_list)])) in run
            for line in range(f.lineno, (f.end_lineno or f.lineno) + 1)
        }
        return len({name for name, _ in lines}), len(lines)

    def hand_lists(self) -> tuple[int, int]:
        """Modules with lists of three degrees or more, and such lists.

        Without config, and the files of other tools, which have their own words for degrees.
        """
        ours = [m for m in self.modules if m.entry != "config" and m.room not in FOREIGN]
        found = [m.lists_of(DEGREES, 3, ast.Tuple, ast.List) for m in ours]
        return sum(map(bool, found)), sum(found)

    def records_with_strategy(self) -> int:
        """Classes with a field `strategy`."""
        return sum(
            any(isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "strategy"
                for one in node.body)
            for module in self.modules
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
        )  # fmt: skip

    def field_lists_of_tests(self) -> int:
        """Literals of the tests that list many strategy fields."""
        fields = {
            one.target.id
            for module in self.modules
            for node in module.tree.body
            if isinstance(node, ast.ClassDef) and node.name == "Strategy"
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        paths = (self.root.parents[1] / "tests").rglob("*.py")
        tests = [Module.of(path, path.stem) for path in paths]
        kinds = (ast.Tuple, ast.List, ast.Set, ast.Dict)
        return sum(test.lists_of(fields, _MANY_FIELDS, *kinds) for test in tests)

    def figures(self) -> Mapping[str, str]:
        """Every measure by its name."""
        modules_run, lines_run = self.reading_set()
        listing, lists = self.hand_lists()
        functions = self.longest_functions()
        importers = Counter(
            name for module in self.modules for name in set(module.imports()) if name != module.name
        )
        known = [module.name for module in self.modules if not module.name.endswith("__init__")]
        longest = ", ".join(f"{name.split('.')[-1]} {lines}" for lines, name in functions[:3])
        return {
            "modules": f"{len(self.modules):,}",
            "lines": f"{sum(len(m.text.splitlines()) for m in self.modules):,}",
            "statements": f"{sum(module.statements() for module in self.modules):,}",
            **dict(self.rooms()),
            "reading set of an estimate": f"{lines_run:,} lines in {modules_run} modules",
            "hand lists of degrees": f"{lists} in {listing} modules",
            "records with a strategy": str(self.records_with_strategy()),
            "_fault helpers": str(
                sum(f.name == "_fault" for module in self.modules for f in module.functions())
            ),
            "field lists in tests": str(self.field_lists_of_tests()),
            "top-level entries": str(len(self.edges) + 1),
            "import layers": str(self.layers()),
            "import edges": str(sum(map(len, self.edges.values()))),
            f"functions over {LONG_FUNCTION} lines": str(
                sum(lines > LONG_FUNCTION for lines, _ in functions)
            ),
            "longest functions": longest,
            "functions referenced once": f"{self.referenced_once():,}",
            "modules with one importer": str(sum(importers[name] == 1 for name in known)),
            "dialect per 1,000 words": f"{self.dialect():.1f}",
        }


def _is_prose(node: ast.AST) -> bool:
    """Whether a statement is a docstring."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _texts(node: ast.AST) -> Iterator[str]:
    """Texts that a literal lists, as items or keys."""
    for one in node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ()):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def _without_all(text: str) -> str:
    """A module without its `__all__`."""
    return re.sub(r"^__all__ \+?= \[.*?\]", "", text, flags=re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> None:
    """Print the figures of one tree, or of several side by side."""
    roots = [Path(argument) for argument in arguments] or [
        Path(__file__).parents[1] / "src/shardwise"
    ]
    columns = [House(root).figures() for root in roots]
    for name in columns[0]:
        print(f"{name:42}", *(f"{figures[name]:>36}" for figures in columns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    main(parser.parse_args().folders)
