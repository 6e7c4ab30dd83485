"""Table of the families of transformers."""

from typing import Any

from shardwise.report.console import count, plain_table, show

_WAYS = {"record": "read", "modules": "read with the extra torch", "no": "refused"}


def print_coverage(coverage: Any) -> None:
    """Print one line for each family, and how many there are of each kind.

    Parameters
    ----------
    coverage
        What the package `huggingface` adds: families of one release.
    """
    table = plain_table("model_type", "class", "parameters", "", "why", left=5)
    for one in coverage.families:
        size = "" if one.parameters is None else count(one.parameters)
        table.add_row(one.model_type, one.architecture, size, _WAYS[one.read], one.why)
    show(table)
    counts = coverage.counts()
    told = ", ".join(f"{counts[way]} {word}" for way, word in _WAYS.items())
    show(f"transformers {coverage.transformers}: {len(coverage.families)} families, {told}")
