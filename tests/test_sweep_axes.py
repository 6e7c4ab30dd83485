"""What a sweep may vary: names of figures, values as people write them, changes of structure."""

import math

import pytest

import samples
from rows import each_row
from shardwise import InputError, Model, System
from shardwise.catalog import names
from shardwise.config.system_columns import figures_of
from shardwise.planning.sweep.axes import (
    check_values,
    figure_list,
    figure_names,
    figures_named,
    influencing_figures,
    parse_values,
    varied_axes,
)
from shardwise.planning.sweep.changes import (
    MODEL_FIGURES,
    with_domain,
    with_links_per_accelerator,
    with_node,
)
from shardwise.planning.sweep.points import Grid

pytestmark = pytest.mark.any_software

MODEL = Model.load("llama3-70b")
H100 = System.load("h100-sxm")


def axes(system=H100, **vary):
    named = {name.replace("__", "."): values for name, values in vary.items()}
    return varied_axes(named, [system] if isinstance(system, System) else system)


def refusal(vary, *systems):
    several = list(systems) or [H100]
    with pytest.raises(InputError) as refused:
        check_values(varied_axes(vary, several), MODEL, several)
    return str(refused.value)


@each_row("name", names("systems"))
def test_every_figure_of_every_system_of_the_catalog_has_a_name(name):
    system = System.load(name)
    named = {path for figure in figure_names(system).values() for path in figure.paths}
    assert named == set(figures_of(system))
    told = {path for figure in influencing_figures(system) for path in figure.paths}
    assert {path[-1] for path in named - told} <= {
        "usd_per_accelerator_hour",
        "board_power",
        "power",
        "offset",
    }
    assert len(influencing_figures(system)) == len({f.paths for f in influencing_figures(system)})


@each_row(
    ("name", "paths"),
    [
        ("nvlink.bandwidth", [("network", 0, "bandwidth")]),
        ("fabric.links", [("network", 1, "links_per_node")]),
        ("inner.bandwidth", [("network", 0, "bandwidth")]),
        ("OUTER.bandwidth", [("network", 1, "bandwidth")]),
        ("hbm.capacity", [("accelerator", "memory", 0, "capacity")]),
        ("matrix.bf16", [("accelerator", "matrix", "bf16")]),
        ("vector", [("accelerator", "vector", "fp32")]),
        ("matmul.fp8.launch", [("accelerator", "matmul", "fp8", "launch")]),
        ("memory_bound.launch", [("accelerator", "memory_bound", "launch")]),
        ("price", [("price", "usd_per_accelerator_hour")]),
        ("node.power", [("node", "power")]),
        (
            "hbm.bandwidth+host.bandwidth",
            [("accelerator", "memory", 0, "bandwidth"), ("accelerator", "memory", 1, "bandwidth")],
        ),
        (
            "nvlink.p2p.latency",
            [("network", 0, "collectives", "p2p", "latency")],
        ),
    ],
)
def test_a_name_stands_for_its_figures(name, paths):
    assert list(figures_named(H100, name).paths) == paths


def test_short_names_stand_for_all_figures_of_a_kind():
    assert len(figures_named(H100, "matrix").paths) == 5
    assert len(figures_named(H100, "nvlink.latency").paths) == 10
    assert len(figures_named(H100, "attention.efficiency").paths) == 4
    assert figures_named(H100, "matrix+vector").unit == "FLOP/s"
    assert figures_named(H100, "matrix+hbm.bandwidth").unit == "mixed"


@each_row(
    ("given", "unit", "numbers", "labels"),
    [
        ("0.5x,1x,2x", "byte/s", [0.5, 1, 2], ["0.5x", "1x", "2x"]),
        ("450 GB/s, 900 GB/s", "byte/s", [4.5e11, 9e11], ["450 GB/s", "900 GB/s"]),
        ("80 GiB", "bytes", [80 * 2**30], ["80 GiB"]),
        ("25..100 GB/s", "byte/s", [2.5e10, 5e10, 1e11], ["25 GB/s", "50 GB/s", "100 GB/s"]),
        ("1..2x:0.5x", "seconds", [1, 1.5, 2], ["1x", "1.5x", "2x"]),
        ("64..512", None, [64, 128, 256, 512], ["64", "128", "256", "512"]),
        ("1..4:1", None, [1, 2, 3, 4], ["1", "2", "3", "4"]),
        ([8, "16"], None, [8, 16], ["8", "16"]),
        (9e11, "byte/s", [9e11], ["900 GB/s"]),
        ("2x,2x", None, [2], ["2x"]),
        ("0.1..0.3:0.1", None, [0.1, 0.2, 0.30000000000000004], ["0.1", "0.2", "0.3"]),
    ],
)
def test_values_are_read_as_people_write_them(given, unit, numbers, labels):
    values = parse_values("figure", given, unit)
    assert [value.number for value in values] == pytest.approx(numbers, rel=1e-15)
    assert [value.label for value in values] == labels
    assert all(
        value.factor is label.endswith("x") for value, label in zip(values, labels, strict=True)
    )


HINT = "must be a quantity as in 900 GB/s, or a factor as in 2x"
NUMBER = "must be a number, a range such as 64..512, or a factor such as 2x"


@each_row(
    ("vary", "told"),
    [
        (
            {"nvlink.bandwith": "2x"},
            "vary: nvlink.bandwith: no such figure; did you mean 'nvlink.bandwidth'?",
        ),
        (
            {"hbm.flavour": "2x", "x": "1"},
            "vary: hbm.flavour: no such figure; `shardwise sweep --figures` lists them all",
        ),
        ({"nvlink.bandwidth": "900"}, f"vary: nvlink.bandwidth: '900': has no unit: {HINT}"),
        ({"nvlink.bandwidth": "fast"}, f"vary: nvlink.bandwidth: 'fast': {HINT}"),
        ({"nvlink.bandwidth": ""}, "vary: nvlink.bandwidth: '': has no value to try"),
        ({"nvlink.bandwidth": True}, f"vary: nvlink.bandwidth: true: {HINT}"),
        ({"depth": "1..x"}, f"vary: depth: '1..x': {NUMBER}"),
        ({"depth": "8 GB"}, f"vary: depth: '8 GB': {NUMBER}"),
        (
            {"nvlink.bandwidth": "4x..2x"},
            (
                "vary: nvlink.bandwidth: '4x..2x': a range goes from a number above 0 to a "
                "larger one"
            ),
        ),
        (
            {"nvlink.bandwidth": "2x..900 GB/s"},
            (
                "vary: nvlink.bandwidth: '2x..900 GB/s': a range has two ends of the same kind, as "
                "in 0.5x..4x"
            ),
        ),
        (
            {"depth": "1..9999999:1"},
            "vary: depth: '1..9999999:1': a range has at most 10000 values",
        ),
        (
            {"matrix": "2 PFLOP/s"},
            (
                "vary: matrix: '2 PFLOP/s': matrix refers to 5 figures of h100-sxm; use "
                "factors, as in 2x"
            ),
        ),
        (
            {"matrix+hbm.bandwidth": "2 PFLOP/s"},
            (
                "vary: matrix+hbm.bandwidth: '2 PFLOP/s': names figures of several units; use "
                "factors, as in 2x"
            ),
        ),
        (
            {"matmul.bf16.efficiency": "2x"},
            (
                "vary: matmul.bf16.efficiency: '2x': on h100-sxm: "
                "accelerator.matmul.bf16.efficiency: must be at most 1"
            ),
        ),
        (
            {"fabric.links": "7.5"},
            (
                "vary: fabric.links: '7.5': on h100-sxm: network[1].links_per_node: must be a "
                "whole number"
            ),
        ),
        (
            {"matrix.bf16": "2x", "matrix": "1x,2x"},
            "vary: matrix: has a figure in common with matrix.bf16; vary one of the two",
        ),
        (
            {"domain": "4", "nvlink.domain": "8"},
            "vary: nvlink.domain: has a figure in common with domain; vary one of the two",
        ),
        (
            {"fabric.domain": "2x"},
            "vary: fabric.domain: '2x': on h100-sxm: there is no current number to multiply",
        ),
        (
            {"fabric.domain": "12"},
            (
                "vary: fabric.domain: '12': on h100-sxm: must be a larger multiple of 8, the "
                "domain of the tier inside it"
            ),
        ),
        (
            {"pcie.domain": "8"},
            "vary: pcie.domain: system h100-sxm has no tier pcie; it has nvlink, fabric",
        ),
        (
            {"nics": "0.3"},
            (
                "vary: nics: '0.3': on h100-sxm: makes 2.4 in a node of 8; must be a whole number "
                "of them"
            ),
        ),
        (
            {"node": "2.5"},
            "vary: node: '2.5': on h100-sxm: 2.5 must be a whole number of at least 1",
        ),
        (
            {"hidden": "4097"},
            "vary: hidden: '4097': of llama3-70b: leaves 32.0078 heads of 64; must be an integer",
        ),
        ({"tp": "all"}, "vary: tp: 'all': list the values to try"),
        (
            {"tp": "x"},
            "vary: tp: 'x': must be a whole number",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_in_one_line(vary, told):
    assert refusal(vary) == told


def test_a_name_must_be_known_on_every_system():
    h800 = System.load("a100-80gb-pcie")
    told = refusal({"nvlink.bandwidth": "2x"}, H100, h800)
    assert told.startswith("vary: nvlink.bandwidth: system a100-80gb-pcie has no such figure")


@each_row("size", [4, 8, 64, 72, 576])
@each_row("name", [n for n in names("systems") if n != "max1550-tile" and "simumax" not in n])
def test_usual_domains_work_on_every_system_and_keep_its_cards(name, size):
    """NICs per accelerator stay what they were, and tiers nest."""
    system = System.load(name)
    changed, told = with_domain(system, 0, size)
    assert changed.network[0].domain == size
    absorbed = [t.name for t in system.network[1:] if (t.domain or math.inf) <= size]
    before, after = (
        {t.name: (None if t.links_per_node is None else t.links_per_node / s.node.accelerators,
                  s.tier_bandwidth(place))
         for place, t in enumerate(s.network)}
        for s in (system, changed)
    )  # fmt: skip
    assert after == {name: rates for name, rates in before.items() if name not in absorbed}
    node = system.node.accelerators
    nests = size % node == 0 or node % size == 0
    parts = [n for n in range(1, node + 1) if size % n == 0]
    assert changed.node.accelerators == (node if nests else parts[-1])
    assert bool(told) == (size > system.network[0].domain)


def test_what_follows_a_domain_is_told():
    changed, told = with_domain(System.load("calculon-a100-80g"), 0, 72)
    assert changed.network[1].domain == 65_520
    assert told == [
        "infiniband.domain 65520: the multiple of 72 below it",
        "nodes of 8; the figures of the tier apply to all 72",
    ]
    four_tiers = System.load("simumax-a100-pcie")
    changed, told = with_domain(four_tiers, 0, 8)
    assert [tier.domain for tier in changed.network] == [8, None]
    assert told[:2] == [
        "PCIe 4x is removed: a domain of 8 replaces it",
        "PCIe 8x is removed: a domain of 8 replaces it",
    ]
    changed, told = with_domain(H100, 0, 6)
    assert (changed.node.accelerators, changed.network[1].links_per_node) == (6, 6)
    assert told == ["node 6 instead of 8, with as many network cards per accelerator"]


def test_nodes_keep_their_share_of_cards_and_power():
    changed, _ = with_node(H100, 4)
    assert changed.network[1].links_per_node == 4
    assert changed.node.power == H100.node.power / 2
    assert changed.tier_bandwidth(1) == H100.tier_bandwidth(1)
    pcie = System.load("a100-80gb-pcie")  # two cards for eight
    with pytest.raises(ValueError, match=r"leaves 1\.5 links of sockets to a node of 6"):
        with_node(pcie, 6)
    assert with_links_per_accelerator(pcie, 2, 0.5).network[2].links_per_node == 4
    tiles = System.load("max1550-tile")  # eight cards for twelve
    with pytest.raises(ValueError, match=r"leaves 5\.33333 links of fabric to a node of 8"):
        with_domain(tiles, 0, 8)


def test_models_change_in_proportion():
    shaped = MODEL_FIGURES["hidden"](MODEL, 4096)
    kind = shaped.layers[0]
    assert (kind.attention.heads, kind.attention.kv_heads, kind.mlp.ffn) == (32, 4, 14_336)
    assert kind.attention.head_dim == MODEL.layers[0].attention.head_dim
    deep = MODEL_FIGURES["depth"](samples.deepseek(), 12)
    assert [layer.count for layer in deep.layers] == [3, 9]
    assert deep.layers[1].moe == samples.deepseek().layers[1].moe
    with pytest.raises(ValueError, match=r"leaves 1.5 layers of a kind of 1; must be an integer"):
        MODEL_FIGURES["depth"](samples.deepseek(), 6)
    wide = MODEL_FIGURES["hidden"](samples.deepseek(), 128).layers[1].moe
    assert (wide.ffn, wide.shared_ffn, wide.experts) == (64, 128, 8)
    learned = samples.model(max_positions=40)
    assert MODEL_FIGURES["seq_len"](learned, 64).max_positions == 64
    assert MODEL_FIGURES["seq_len"](learned, 16).max_positions == 40


def test_points_are_every_combination_the_last_axis_first():
    grid = Grid.of(
        MODEL,
        [H100],
        axes(nvlink__bandwidth="1x,2x", seq_len="4096,8192", tp=[4, 8]),
        together=False,
    )
    assert [point.at for point in grid.points][:3] == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert len(grid.points) == 8
    last = grid.points[-1]
    assert last.values == {"nvlink.bandwidth": 9e11, "seq_len": 8192, "tp": 8}
    assert last.system.network[0].bandwidth == 9e11
    assert last.fields == {"tp": 8, "seq_len": 8192}
    groups = list(grid.groups())
    assert [group.positions.tolist() for group in groups] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [len(group.systems) for group in groups] == [2] * 4


def test_structures_make_groups_and_figures_columns():
    several = [H100, System.load("h200-sxm")]
    varied = axes(several, domain="8,64", nics="1,2", hbm__capacity="1x,2x")
    grid = Grid.of(MODEL, several, varied, together=False)
    groups = list(grid.groups())
    assert [len(group.positions) for group in groups] == [8, 8]  # by domain alone
    for group in groups:
        for place, point in enumerate(grid.points[n] for n in group.positions):
            here = {path: column[place] for path, column in group.systems.figures.items()}
            assert {**figures_of(group.systems.base), **here} == figures_of(point.system)


def test_axes_may_advance_together():
    grid = Grid.of(MODEL, [H100], axes(nics="1,2", domain="8,64"), together=True)
    assert [point.at for point in grid.points] == [(0, 0), (1, 1)]


def test_everything_that_is_listed_can_be_varied():
    for figure in figure_list(H100):
        check_values(varied_axes({figure["figure"]: "1x"}, [H100]), MODEL, [H100])
    known = {figure["figure"]: figure for figure in figure_list(H100)}
    assert known["nics"]["value"] == 1
    assert known["nvlink.domain"]["value"] == 8
    assert known["matrix"] == {"figure": "matrix", "value": None, "unit": "FLOP/s", "figures": 5}
