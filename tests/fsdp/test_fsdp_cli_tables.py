"""Tables of `shardwise fsdp`: rows that stand for units that are alike, and narrow terminals."""

import pytest

from fsdp_words import OPERATIONS
from shardwise.fsdp.planner.evaluate import UnitCost
from shardwise.fsdp.tables import collapsed, ranges


def unit(*modules, gather_s=1.0):
    figures = ("reduce_s", "forward_s", "backward_s", "exposed_forward_s", "exposed_backward_s")
    return UnitCost(
        modules=modules,
        reshard_after_forward=True,
        parameter_bytes=1.0,
        gather_s=gather_s,
        **dict.fromkeys(figures, 0.0),
    )


class TestRows:
    def test_layers_that_agree_are_one_row(self):
        layers = [unit(f"h.{i}") for i in range(31)]
        rows = collapsed([unit(), unit("a"), *layers, unit("h.31", gather_s=2.0)])
        assert [(row.name, row.times) for row in rows] == [
            ("root", 1),
            ("a", 1),
            ("h.0..30", 31),
            ("h.31", 1),
        ]

    def test_parts_of_layers_that_agree_are_a_row_each(self):
        """From where a layer begins."""
        parts = [unit(f"h.{i}.{part}") for i in range(4) for part in ("a", "b")]
        rows = collapsed([unit("h.0.a", gather_s=2.0), *parts[1:]])
        assert [(row.name, row.times) for row in rows] == [
            ("h.0.a", 1),
            ("h.0.b", 1),
            ("h.1..3.a", 3),
            ("h.1..3.b", 3),
        ]

    def test_groups_across_layers(self):
        rows = collapsed([unit(f"h.{i}", f"h.{i + 1}") for i in range(0, 8, 2)])
        assert [(row.name, row.times) for row in rows] == [("h.(0..6/2 + 1..7/2)", 4)]

    def test_names(self):
        assert ranges(["a", "h.0", "h.1", "h.2", "b"]) == ["a", "h.0..2", "b"]
        assert ranges(["h.0", "h.2"]) == ["h.0..2/2"]
        assert ranges([]) == []


@pytest.mark.parametrize(
    "words",
    [
        (*OPERATIONS, "--pareto", "--units", "layers.*"),
        ("{tiny}", "--gpus", 4, "--memory-budget", "1GiB"),
        ("{tiny}", "--gpus", 4, "--memory-budget", "9GiB", "--reference", "fsdp-ilp", "--modules"),
    ],
)
def test_narrow_terminals(shardwise, statistics, monkeypatch, words):
    """No line is wider, and nothing is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    places = {"{tiny}": statistics / "tiny12.json"}
    _, out, _ = shardwise("fsdp", *(places.get(word, word) for word in words))
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
