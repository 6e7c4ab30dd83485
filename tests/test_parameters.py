"""Figures that files look up or calculate: what they come to, and where they are from."""

from pathlib import Path

import pytest

from parameter_samples import NVLINK, Written, h100
from shardwise import InputError, Model, Strategy, System


def test_a_peak_from_frequency_cores_units_and_operations() -> None:
    """132 cores of 4 units with 1,024 operations a cycle at 1.83 GHz: the data sheet's 989.4."""
    parameters = {"frequency": "1.83 GHz", "cores": 132, "units": 4, "operations": 1024}
    formula = "= frequency * cores * units * operations"
    mine = System.load(h100(parameters=parameters, accelerator={"matrix": {"bf16": formula}}))
    assert mine.accelerator.matrix["bf16"] == 1.83e9 * 132 * 4 * 1024


def test_degrees_from_nodes_and_shapes_from_widths() -> None:
    """Names stand for neighbours, then for what is further out, then for parameters."""
    nodes = {"nodes": 16, "each": "= lookup('h100-sxm', 'node.accelerators')"}
    strategy = Strategy.load({"parameters": nodes, "gpus": "= nodes * each", "gbs": "= 2 * gpus"})
    assert (strategy.gpus, strategy.global_batch_size) == (128, 256)
    attention = {"heads": 40, "kv_heads": "= heads", "head_dim": "= hidden / heads"}
    layers = {"0": {"attention": attention}}
    model = Model.load({"name": "m", "base": "llama2-7b", "hidden": 5120, "layers": layers})
    assert model.layers[0].attention.head_dim == 128
    assert model.layers[0].attention.kv_heads == 40
    assert model.layers[0].mlp == Model.load("llama2-7b").layers[0].mlp


def test_look_ups_carry_the_source_of_their_row() -> None:
    """As it is they are as good as the row says; a multiple is assumed; a whole part has all."""
    row = System.load("b200-sxm")
    power = {"lookup": "b200-sxm", "field": "board_power"}
    network = {"0": {"bandwidth": {"lookup": "b200-sxm", "field": NVLINK, "times": 0.5}}}
    memory = {"lookup": "b200-sxm", "field": "accelerator.memory"}
    mine = System.load(h100(board_power=power, network=network, accelerator={"memory": memory}))
    assert mine.board_power == row.board_power
    assert mine.network[0].bandwidth == row.network[0].bandwidth / 2
    assert mine.accelerator.memory == row.accelerator.memory
    same, half = mine.source_of("board_power"), mine.source_of("network.0.bandwidth")
    of_row = row.source_of("board_power")
    assert same
    assert half
    assert of_row
    assert (same.kind, half.kind) == (of_row.kind, "assumed")
    assert same.text == f"looked up: b200-sxm board_power ({of_row.text})"
    assert half.text.startswith(f"looked up: b200-sxm {NVLINK} times 0.5 (")
    for field in ("accelerator.memory.0.capacity", "accelerator.memory.1.bandwidth"):
        theirs, ours = row.source_of(field), mine.source_of(field)
        assert theirs
        assert ours
        assert (ours.kind, theirs.text in ours.text) == (theirs.kind, True)


def test_a_figure_has_the_source_it_is_given() -> None:
    """In its long form, or among the sources, where items of lists may be named."""
    own = {"kind": "published", "text": "a talk"}
    figure = {"formula": "2 * base", "source": own, "description": "next year's"}
    mine = System.load(h100(network={"nvlink": {"bandwidth": figure}}))
    assert mine.source_of("network.0.bandwidth").text == "a talk"  # type: ignore[union-attr]
    told = h100(network={"nvlink": {"bandwidth": "= 2 * base"}}, sources={NVLINK: own})
    assert System.load(told).source_of("network.0.bandwidth").text == "a talk"  # type: ignore[union-attr]
    brief = h100(board_power={"value": "600 W", "source": "a guess"})
    assert System.load(brief).source_of("board_power").kind == "assumed"  # type: ignore[union-attr]


def test_ways_that_agree_are_one_figure() -> None:
    """To a millionth; a base file's own parameters serve those who are based on it."""
    figure = {"value": "900 GB/s", "lookup": "h100-sxm", "field": NVLINK, "times": 2}
    figure["formula"] = "2 * base + '1 kB/s'"
    mine = System.load(h100(network={"nvlink": {"bandwidth": figure}}))
    assert mine.network[0].bandwidth == 9e11


def test_a_file_may_name_its_neighbour(written: Written) -> None:
    """From wherever it is read."""
    Path("machines").mkdir()
    written("machines/low.yaml", **h100(board_power="500 W"))
    top = written("machines/top.yaml", name="top", base="low.yaml", price=None)
    assert System.load(top).board_power == 500
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        System.load({"name": "x", "base": "x" * 5000 + ".yaml"})


def test_a_stack_without_base_is_one_fault() -> None:
    """Not one for each field that it lacks."""
    with pytest.raises(InputError, match="must name the stack that has the rest as base") as caught:
        Strategy.load({"stack": {"host_launch": "5 us"}})
    assert len(caught.value.faults) == 1
