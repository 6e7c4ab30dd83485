"""Pages for developers name modules that exist."""

import re
from importlib import import_module
from pathlib import Path

import shardwise
from rows import each_row

PACKAGE = Path(shardwise.__file__).parent
ROOT = Path(__file__).parent.parent
TOP = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
PAGES = [page for page in map(ROOT.joinpath, ("docs/design.md", "docs/where.md")) if page.exists()]
CODE = re.compile(r"`([a-z_]+)[./]([a-zA-Z_./{},]*)`")


def _exists(name):
    """Whether a dotted name is a module of the package, or a name in one."""
    path = PACKAGE.joinpath(*name.split("."))
    if (
        path.is_dir()
        or path.with_suffix(".py").exists()
        or path.with_suffix(".yaml").exists()
        or path.parent.joinpath(path.name).exists()
    ):
        return True
    module, _, attribute = name.rpartition(".")
    return (
        bool(module)
        and _exists(module)
        and hasattr(import_module(f"shardwise.{module}"), attribute)
    )


@each_row("page", PAGES)
def test_modules_that_a_page_names_exist(page):
    """Dotted names and paths in code quotes, where they start with a package."""
    found = CODE.findall(page.read_text(encoding="utf-8"))
    names = {
        ".".join((top, *filter(None, re.split("[./]", re.sub(r"\.(py|yaml)$", "", rest))))).rstrip(
            "."
        )
        for top, rest in found
        if top in TOP and not {"{", ","} & set(rest)
    }
    assert {name for name in names if not _exists(name)} == set()
