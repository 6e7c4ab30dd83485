"""Measure the structure of a source tree: size, import layers, edges, long functions, words.

    python scripts/house.py                 # this tree
    python scripts/house.py OTHER/src/shardwise src/shardwise      # before and after, side by side

An import layer is the length of the longest chain of imports that leads to a top-level entry. An
edge is a pair of top-level entries of which one imports from the other. A function is referenced
once if its name stands only where it is defined and in one other place of the package.
"""

import ast
import io
import re
import sys
import tokenize
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
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package."""

    name: str
    text: str
    tree: ast.Module

    @property
    def entry(self) -> str:
        """The top-level entry that the module belongs to; empty for the package itself."""
        return self.name.split(".")[0]

    def imports(self) -> Iterator[str]:
        """Names of modules below the package that this one imports."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                below = (node.module or "")[len(PACKAGE) + 1 :]
                if below:
                    yield below
                for alias in node.names:
                    yield f"{below}.{alias.name}".lstrip(".")

    def functions(self) -> Iterator[Function]:
        """Every function and method."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


class House:
    """A package as its files have it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = [self._module(path) for path in sorted(root.rglob("*.py"))]

    def _module(self, path: Path) -> Module:
        parts = path.relative_to(self.root).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        text = path.read_text(encoding="utf-8")
        return Module(name, text, ast.parse(text))

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

    def code_lines(self) -> int:
        """Lines that hold a token other than comments and docstrings."""
        total = 0
        for module in self.modules:
            prose = {
                line
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            }  # fmt: skip
            skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
            skipped |= {tokenize.DEDENT, tokenize.ENDMARKER}
            lines: set[int] = set()
            for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
                if token.type not in skipped:
                    lines.update(range(token.start[0], token.end[0] + 1))
            total += len(lines - prose)
        return total

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
            for node in ast.walk(module.tree)
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

    def any_in_signatures(self) -> int:
        """How often `Any` stands in annotations of arguments and results."""
        notes = (
            note
            for module in self.modules
            for f in module.functions()
            for note in (f.returns, *(a.annotation for a in _arguments(f)))
            if note is not None
        )
        return sum(len(re.findall(r"\bAny\b", ast.unparse(note))) for note in notes)

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

    def figures(self) -> Mapping[str, str]:
        """Every measure by its name."""
        functions = self.longest_functions()
        importers = Counter(
            name for module in self.modules for name in set(module.imports()) if name != module.name
        )
        known = [module.name for module in self.modules if not module.name.endswith("__init__")]
        longest = ", ".join(f"{name.split('.')[-1]} {lines}" for lines, name in functions[:3])
        return {
            "modules": f"{len(self.modules):,}",
            "lines": f"{sum(len(m.text.splitlines()) for m in self.modules):,}",
            "lines of code": f"{self.code_lines():,}",
            "top-level entries": str(len(self.edges) + 1),
            "import layers": str(self.layers()),
            "import edges": str(sum(map(len, self.edges.values()))),
            f"functions over {LONG_FUNCTION} lines": str(
                sum(lines > LONG_FUNCTION for lines, _ in functions)
            ),
            "longest functions": longest,
            "functions referenced once": f"{self.referenced_once():,}",
            "modules with one importer": str(sum(importers[name] == 1 for name in known)),
            "Any in signatures": str(self.any_in_signatures()),
            "dialect per 1,000 words": f"{self.dialect():.1f}",
        }


def _arguments(f: Function) -> Iterator[ast.arg]:
    """Arguments of a function."""
    yield from (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)
    yield from (extra for extra in (f.args.vararg, f.args.kwarg) if extra is not None)


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
        print(f"{name:28}", *(f"{figures[name]:>36}" for figures in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
