"""Hooks of the build of the site (mkdocs.yml): generated pages, links out of docs/, formulas."""

import posixpath
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import catalog_pages
import feature_table
import notebooks
import reference_pages

ROOT = Path(__file__).parents[2]
INCLUDED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside docs/ that are part of the site."""
SAME = INCLUDED | {"README.md": "index.md"}
"""Files outside docs/ whose links lead to a page of the site."""
GENERATED: dict[str, Callable[[], str]] = {
    "models": catalog_pages.models,
    "systems": catalog_pages.systems,
    "stacks": catalog_pages.stacks,
    "recipes": catalog_pages.recipes,
    "features": feature_table.features,
    "commands": reference_pages.commands,
    "api": reference_pages.api,
    "schema": reference_pages.schema,
    "strategy": reference_pages.strategy,
}
"""What stands in place of `<!-- generated: NAME -->`."""
_MARKER = re.compile(r"<!-- generated: (\w+) -->")
_LINK = re.compile(r"\]\((?!\w+:|#|/)([^)\s#]+)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated or stand outside docs/, and list them in the navigation."""
    generated = dict([*catalog_pages.pages(), *reference_pages.pages(), *notebooks.pages()])
    for source, path in INCLUDED.items():
        generated[path] = (ROOT / source).read_text(encoding="utf-8")
    for path, text in generated.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, notebooks.LIBRARY, content=notebooks.library()))
    _list_children(config.nav, list(generated))
    return files


def _list_children(entries: object, paths: list[str]) -> None:
    """Make each page of the navigation that has generated pages below it a section with them."""
    if not isinstance(entries, list):
        return
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        for title, target in entry.items():
            if isinstance(target, list):
                _list_children(target, paths)
                continue
            below = [path for path in paths if path.startswith(target.removesuffix(".md") + "/")]
            if below:
                entry[title] = [{"All": target}, *(p for p in below if p.endswith(".md"))]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and lead links out of docs/ to a page or a copy of the file."""
    path = page.file.src_uri
    source = next((name for name, here in INCLUDED.items() if here == path), f"docs/{path}")

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if target in SAME:
            here = SAME[target]
        elif target.startswith("docs/"):
            here = target.removeprefix("docs/")
            if not path.startswith("notebooks/"):  # those link to the file, to download it
                here = re.sub(r"\.ipynb$", ".md", here)
        elif (ROOT / target).is_file() and target.partition("/")[0] not in ("..", "docs"):
            here = f"source/{target}"
            if files.get_file_from_path(here) is None:
                files.append(File.generated(config, here, abs_src_path=str(ROOT / target)))
        else:
            return match[0]
        return f"]({posixpath.relpath(here, posixpath.dirname(path) or '.')}"

    linked = _LINK.sub(lead, markdown)
    return _MARKER.sub(lambda match: GENERATED[match[1]](), linked)


def on_page_content(html: str, **_: object) -> str:
    """Turn formulas in LaTeX into MathML, which browsers draw without a script."""

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return str(convert(unescape(match[2]), display=display))

    return _FORMULA.sub(drawn, html)
