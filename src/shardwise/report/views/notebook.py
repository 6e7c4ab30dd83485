"""Results as pieces of HTML for notebooks: text is escaped, nothing is loaded."""

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files as resources
from typing import Any

from shardwise.report.page.html import Block, Facts, block_html
from shardwise.report.page.printed import printed_blocks
from shardwise.report.views.view import View


def piece(view: View[Any], result: object) -> str:
    """Return a result as a piece of HTML: its summary, and the tables of its command."""
    summary = view.summary(result)
    blocks: list[Block] = [Facts(items=summary.rows)] if summary.rows else []
    inside = ""
    if view.html is not None:
        inside = view.html(result)
    else:
        printed = printed_blocks(lambda: view.tables(result))[1:]  # the summary has the headline
        shown = len(printed) - view.folded
        blocks += printed[:shown]
        inside = _folded(printed[shown:]) if view.folded else ""
    body = "\n".join(map(block_html, blocks))
    title = html.escape(summary.title)
    return (
        f'<div class="shardwise"><style>{_style()}</style><p><b>{title}</b></p>\n'
        f"{body}\n{inside}</div>"
    )


def _folded(blocks: Sequence[Block]) -> str:
    inside = "\n".join(map(block_html, blocks))
    return f"<details><summary>Assumptions and evidence</summary>{inside}</details>"


@cache
def _style() -> str:
    return resources("shardwise.report.views").joinpath("notebook.css").read_text(encoding="utf-8")
