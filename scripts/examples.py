"""Write the Python examples of pages, docstrings and notebooks as modules for type checkers.

Run it as `python scripts/examples.py [FOLDER]`, by default tests/typing/examples, then mypy and
Pyright on what it wrote.
"""

import doctest
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import shardwise

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "typing" / "examples"


def examples() -> Iterator[tuple[str, str]]:
    """Yield the name of a module, and what users would write."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield _module(page), _sources(page.read_text(encoding="utf-8"))
    for name in shardwise.__all__:
        for found in doctest.DocTestFinder().find(getattr(shardwise, name), name, module=False):
            yield found.name.replace(".", "_"), _sources(found.docstring or "")
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield _module(notebook), "\n".join([*code, ""])


def _module(path: Path) -> str:
    return "_".join(path.relative_to(ROOT).with_suffix("").parts).replace("-", "_")


def _sources(text: str) -> str:
    """Return what stands after `>>>` in a text."""
    return "".join(one.source for one in doctest.DocTestParser().get_examples(text))


def write(folder: Path) -> int:
    """Write one module for each text with examples, and return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    written = {name: source for name, source in examples() if source}
    for name, source in written.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return len(written)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"{write(target)} modules in {target}")
