"""Tables and lists of generated pages."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from pymdownx.slugs import slugify

_slug = slugify(case="lower")


def anchor(heading: str) -> str:
    """Return the anchor that a heading has on the site and on GitHub."""
    return str(_slug(heading, "-"))


def cell(text: object) -> str:
    """Return a text of one line that Markdown shows as it is, `code` excepted."""
    line = " ".join(str(text).split())
    parts = re.split(r"(`[^`]+`)", line)
    plain = [part if part.startswith("`") else _plain(part) for part in parts]
    return "".join(plain).replace("|", "\\|")


def _plain(text: str) -> str:
    return re.sub(r"([\\*_\[\]#~$^])", r"\\\1", escape(text, quote=False))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> str:
    """Return a Markdown table of cells that are Markdown already.

    Parameters
    ----------
    right
        How many columns are aligned to the right: the last ones.
    """
    left = len(heads) - right
    rules = ["---"] * left + ["--:"] * right
    lines = [heads, rules, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page(title: str, text: str) -> str:
    """Return a page with a title, which searches list after the pages that people wrote."""
    return f'---\ntitle: "{title}"\nsearch:\n  boost: 0.3\n---\n\n{text}'
