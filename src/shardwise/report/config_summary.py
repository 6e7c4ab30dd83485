"""What a run was made of, as plain lines: every figure of model, system and strategy."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.config.base import ConfigBase
from shardwise.config.expressions.records import Resolved
from shardwise.report.console import written
from shardwise.report.tables.figures import explained_figures

__all__ = ["summary_text"]

Explained = tuple[ConfigBase, Resolved]


def summary_text(result: Estimate, model: Explained, system: Explained) -> str:
    """Every figure on a line of its own, ``name : value  # origin``, by noun; sources at the end.

    Parameters
    ----------
    model, system
        As `ConfigBase.explained` returns them: with what is known of how their figures came to be.
    """
    notes: dict[str, int] = {}
    told = {
        "MODEL": list(_figures(explained_figures(*model), notes)),
        "SYSTEM": list(_figures(explained_figures(*system), notes)),
        "STRATEGY": list(_strategy(result)),
    }
    lines = [f"Model: {result.model} | System: {result.system}"]
    for number, (title, figures) in enumerate(told.items(), start=1):
        width = max(len(name) for name, _, _ in figures)
        reach = max(len(value) for _, value, _ in figures)
        lines += ["", f"{number}: {title}"]
        lines += [f"{n:{width}} : {value:{reach}}  # {why}" for n, value, why in figures]
    sources = [f"[{number}] {text}" for text, number in notes.items()]
    return "\n".join([*lines, "", *sources]) + "\n"


def _figures(
    explained: Iterable[Mapping[str, Any]], notes: dict[str, int]
) -> Iterator[tuple[str, str, str]]:
    """Name, value and origin of each figure; sources are numbered in the order they come in."""
    for figure in explained:
        parts = [figure["origin"], figure["by"], figure["description"]]
        if figure["source"] is not None:
            text = " ".join(figure["source"]["text"].split())
            number = notes.setdefault(text, len(notes) + 1)
            parts.append(f"{figure['source']['kind']} [{number}]")
        yield figure["field"], written(figure["written"]), ", ".join(p for p in parts if p)


def _strategy(result: Estimate) -> Iterator[tuple[str, str, str]]:
    for field, value in result.strategy.items():
        named = value.get("base") or value.get("name") if isinstance(value, Mapping) else value
        yield field, written(named), "assumed" if field in result.assumed else "given"
