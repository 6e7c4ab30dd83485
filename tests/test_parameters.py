"""Figures that files look up, calculate or leave to a base: what they come to, and faults."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shardwise import InputError, Model, Stack, Strategy, System, files
from shardwise.cli import run

Written = Callable[..., str]
NVLINK = "network.nvlink.bandwidth"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Write a file to where the test runs, and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(file: str, **fields: Any) -> str:
        files.write_mapping(file, fields)
        return file

    return write


def h100(**told: Any) -> dict[str, Any]:
    """A system that is the H100 but for what is told."""
    return {"name": "mine", "base": "h100-sxm", **told}


def test_h100_but_twice_the_nvlink(written: Written) -> None:
    """All else is the base's, its sources too; the figure says how it was calculated."""
    base = System.load("h100-sxm")
    told = h100(network={"nvlink": {"bandwidth": "= 2 * base"}})
    mine = System.load(written("mine.yaml", **told))
    assert (mine.name, mine.description) == ("mine", "")
    assert mine.network[0].bandwidth == 2 * base.network[0].bandwidth
    changed = mine.network[0].model_copy(update={"bandwidth": base.network[0].bandwidth})
    assert (changed, mine.network[1]) == (base.network[0], base.network[1])
    assert (mine.accelerator, mine.node, mine.price) == (base.accelerator, base.node, base.price)
    source = mine.source_of("network.0.bandwidth")
    assert source is not None
    assert (source.kind, source.text) == ("assumed", "calculated: 2 * base")
    for field in ("network.0.domain", "network.0.collectives.p2p.latency", "accelerator.speed"):
        assert mine.source_of(field) == base.source_of(field)


def test_a_base_is_told_again_in_parts(written: Written) -> None:
    """Items by name or position, keys of mappings, whole lists."""
    inner = {"0": {"collectives": {"p2p": {"efficiency": {2: 0.5, 8: 0.25}}}}}
    mine = System.load(h100(network=inner, board_power="500 W"))
    assert mine.network[0].collectives["p2p"].efficiency == {2: 0.5, 8: 0.25}
    assert mine.board_power == 500
    layers = [{"count": 1, "attention": {"heads": 2, "kv_heads": 2, "head_dim": 8}}]
    layers[0]["mlp"] = {"ffn": 16, "activation": "gelu"}
    model = Model.load({"name": "one", "base": "llama2-7b", "layers": layers})
    assert (model.depth, model.vocab) == (1, 32000)
    strategy = written("low.yaml", tp=4, gbs=64)
    again = Strategy.load({"base": strategy, "global_batch_size": 32, "mbs": "= tp / 2"})
    assert (again.tp, again.global_batch_size, again.micro_batch_size) == (4, 32, 2)


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


def test_parameters_of_a_base_serve_who_is_based_on_it(written: Written) -> None:
    """And may be told again, for formulas of one's own."""
    written("low.yaml", **h100(parameters={"clock": "1 GHz", "cores": 100}))
    told = {"parameters": {"cores": 50}, "accelerator": {"matrix": {"bf16": "= clock * cores"}}}
    assert System.load({"name": "x", "base": "low.yaml", **told}).accelerator.matrix["bf16"] == 5e10


def test_a_file_may_name_its_neighbour(written: Written) -> None:
    """From wherever it is read."""
    Path("machines").mkdir()
    written("machines/low.yaml", **h100(board_power="500 W"))
    top = written("machines/top.yaml", name="top", base="low.yaml", price=None)
    assert System.load(top).board_power == 500
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        System.load({"name": "x", "base": "x" * 5000 + ".yaml"})


def test_formulas_of_a_base_are_worked_out_anew(written: Written) -> None:
    """From what is told again, over several files; what stays has the base's figure and source."""
    own = {"kind": "published", "text": "a paper"}
    told = {"parameters": {"clock": "1 GHz", "cores": 100, "peak": "= clock * cores"}}
    matrix = {"bf16": {"formula": "peak * 2", "source": own}, "fp8": "= 2 * bf16", "fp16": "= base"}
    written("low.yaml", **h100(**told, accelerator={"matrix": matrix}))
    written("mid.yaml", name="mid", base="low.yaml", parameters={"cores": 200})
    fp8 = {"accelerator": {"matrix": {"fp8": "= base / 2"}}}
    top = System.load({"name": "top", "base": "mid.yaml", "parameters": {"clock": "2 GHz"}, **fp8})
    low, mid = System.load("low.yaml"), System.load("mid.yaml")
    rates = [[s.accelerator.matrix[t] for t in ("bf16", "fp8", "fp16")] for s in (low, mid, top)]
    plain = System.load("h100-sxm").accelerator.matrix["fp16"]
    assert rates == [[2e11, 4e11, plain], [4e11, 8e11, plain], [8e11, 4e11, plain]]
    texts = [s.source_of("accelerator.matrix.bf16").text for s in (low, mid)]  # type: ignore[union-attr]
    assert texts == ["a paper", "calculated: peak * 2"]
    assert mid.source_of("accelerator.matrix.fp16") == low.source_of("accelerator.matrix.fp16")
    same = System.load({"name": "same", "base": "low.yaml", "board_power": "1 kW"})
    assert same.source_of("accelerator.matrix.bf16").text == "a paper"  # type: ignore[union-attr]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_base_and_what_differs_is_what_the_two_files_say_together(
    written: Written, data: st.DataObject
) -> None:
    """Whatever is given or calculated in either; a file that is at fault is so both ways."""
    names = ["gpus", "tp", "pp", "seq_len"]

    def told(names: list[str], known: list[str]) -> dict[str, Any]:
        term = st.sampled_from([*known, "2", "3"])
        formula = st.builds("= {} {} {}".format, term, st.sampled_from("+*"), term)
        return data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 8) | formula))

    def load(fields: Any) -> Any:
        try:
            return Strategy.load(fields).model_dump(exclude_unset=True)
        except InputError:
            return "at fault"

    own, mine = (told(["a", "b"], ["a", "b"]) for _ in range(2))
    low, top = (told(names, ["a", "b", *names]) for _ in range(2))
    written("low.json", parameters=own, **low)
    assume(load("low.json") != "at fault")
    whole = {**low, **top, "parameters": own | mine}
    assert load({"base": "low.json", "parameters": mine, **top}) == load(whole)


def test_what_a_base_says_twice_must_stay_the_same(written: Written) -> None:
    """A value beside a formula holds it to what it was."""
    figure = {"value": 16, "formula": "nodes * 8"}
    written("low.yaml", parameters={"nodes": 2}, gpus=figure)
    with pytest.raises(
        InputError, match="strategy: gpus: contradicts itself: value gives 16, form"
    ):
        Strategy.load({"base": "low.yaml", "parameters": {"nodes": 3}})
    told = {"parameters": {"nodes": 3}, "gpus": 64}
    assert Strategy.load({"base": "low.yaml", **told}).gpus == 64


def test_files_of_other_systems_know_no_formulas() -> None:
    """Their `base` or `parameters` are theirs; ours may be based on them."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "parameters": "= 3"}
    assert Model.is_foreign(config)
    mine = System.load({"name": "x", "base": "calculon-h100-80g-nvl8", "board_power": "1 kW"})
    assert mine.board_power == 1000


FAULTS: list[tuple[dict[str, Any], str]] = [
    (
        {"board_power": {"lookup": "other.yaml", "field": "board_power"}},
        (
            "other.yaml: board_power: look-ups go in a circle: "
            "mine.yaml looks up other.yaml looks up mine.yaml"
        ),
    ),
    (
        {"board_power": {"lookup": "h100-sxn", "field": "board_power"}},
        (
            "mine.yaml: board_power: 'h100-sxn': no such entry in the catalog, and no such file; "
            "did you mean 'h100-sxm'?"
        ),
    ),
    (
        {"board_power": {"lookup": "h100-sxm", "field": "node.pwer"}},
        "mine.yaml: board_power: h100-sxm has no node.pwer; did you mean 'power'?",
    ),
    (
        {"board_power": "= lookup('h100-sxm', 'network.nvlnk.bandwidth')"},
        (
            """mine.yaml: board_power: "= lookup('h100-sxm', 'network.nvlnk.bandwidth')": """
            "h100-sxm has no network.nvlnk; did you mean 'nvlink'?"
        ),
    ),
    (
        {"accelerator": {"memory": {"hbm": {"capacity": "8 GBps"}}}},
        (
            "mine.yaml: accelerator.memory[0].capacity: '8 GBps': unit 'GBps' is not one of "
            "B, kB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB"
        ),
    ),
    (
        {"accelerator": {"memory": {"hbm": {"capacity": "80 GB/s"}}}},
        (
            "mine.yaml: accelerator.memory[0].capacity: '80 GB/s': unit 'GB/s' is not one of "
            "B, kB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB"
        ),
    ),
    (
        {"network": {"nvlink": {"bandwidth": "= 3 * '10 us'"}}},
        """mine.yaml: network[0].bandwidth: "= 3 * '10 us'": gives seconds, must be byte/s""",
    ),
    (
        {"board_power": {"lookup": "h100-sxm", "field": NVLINK}},
        "mine.yaml: board_power: gives byte/s, must be watts",
    ),
    (
        {"node": {"accelerators": "= lookup('h100-sxm', 'board_power')"}},
        (
            """mine.yaml: node.accelerators: "= lookup('h100-sxm', 'board_power')": """
            "gives watts, must be a number"
        ),
    ),
    (
        {"parameters": {"frequency": "1 GHz"}, "board_power": "= 3 * frequncy"},
        (
            "mine.yaml: board_power: '= 3 * frequncy': needs frequncy, which is not given; "
            "did you mean 'frequency'?"
        ),
    ),
    (
        {"board_power": {"value": "600 W", "lookup": "h100-sxm", "field": "board_power"}},
        (
            "mine.yaml: board_power: contradicts itself: value gives 600 W, "
            "lookup h100-sxm board_power gives 700 W"
        ),
    ),
    (
        {"board_power": {"value": "1 kW", "formula": "'1 kW' / 2"}},
        "mine.yaml: board_power: contradicts itself: value gives 1 kW, formula gives 500 W",
    ),
    ({"board_power": "= 5 / (3 - 3)"}, "mine.yaml: board_power: '= 5 / (3 - 3)': divides by zero"),
    (
        {"board_power": "= 5 +"},
        (
            "mine.yaml: board_power: '= 5 +': is not a formula; allowed: numbers, names, "
            "quoted quantities, + - * / // % ** ( ), min, max, ceil, floor, lookup"
        ),
    ),
    (
        {"parameters": {"a": "= b", "b": "= c / 2", "c": "= 2 * a"}, "board_power": "= a"},
        (
            "mine.yaml: parameters.a: '= b': needs itself: "
            "parameters.a needs parameters.b needs parameters.c needs parameters.a"
        ),
    ),
    (
        {"board_power": "= board_power"},
        "mine.yaml: board_power: '= board_power': needs itself: board_power needs board_power",
    ),
    (
        {"parameters": {"rate": "8 GBps"}},
        (
            "mine.yaml: parameters.rate: '8 GBps': unit 'GBps' is not known; "
            "units are such as GiB, GB/s, TFLOP/s, GHz, us, W, g/kWh"
        ),
    ),
    (
        {"parameters": {"lookup": 3}},
        "mine.yaml: parameters: 'lookup': has a meaning of its own in formulas",
    ),
    (
        {"network": {"nvlnk": {"bandwidth": 3}}},
        "mine.yaml: the base has no item 'nvlnk' in network; did you mean 'nvlink'?",
    ),
    (
        {"node": {"accelerators": "= 20 / 3"}},
        (
            "mine.yaml: node.accelerators: 6.666666666666667: must be a valid integer, "
            "got a number with a fractional part (calculated: 20 / 3)"
        ),
    ),
    (
        {"board_power": {"formula": "1", "tmes": 3}},
        "mine.yaml: board_power: unknown key 'tmes' of a figure; did you mean 'times'?",
    ),
    ({"board_power": {"value": 3, "times": 2}}, "mine.yaml: board_power: times needs lookup"),
    ({"board_power": {"lookup": "h100-sxm"}}, "mine.yaml: board_power: lookup needs field"),
    (
        {"base": "other.yaml"},
        (
            "other.yaml: board_power: look-ups go in a circle: "
            "mine.yaml is based on other.yaml looks up mine.yaml"
        ),
    ),
    (
        {"base": "h100"},
        (
            "mine.yaml: base: 'h100': no such system in the catalog, and no such file; "
            "did you mean 'h100-sxm'?"
        ),
    ),
    ({"base": 3}, "mine.yaml: base: 3: must be the name or the file of a system"),
    (
        {"parameters": {"lambda": 3}},
        "mine.yaml: parameters: 'lambda': has a meaning of its own in formulas",
    ),
    (
        {"node": {"accelerators": "= 10**30"}},
        ("mine.yaml: node.accelerators: 1e+30: is too large for a number (calculated: 10**30)"),
    ),
]


@pytest.mark.parametrize(("told", "message"), FAULTS, ids=[m[11:60] for _, m in FAULTS])
def test_each_fault_is_one_line(
    written: Written, capsys: pytest.CaptureFixture[str], told: dict[str, Any], message: str
) -> None:
    """On the command line, with exit code 2."""
    leads_back = {"lookup": "mine.yaml", "field": "board_power"}
    written("other.yaml", **h100(name="other", board_power=leads_back))
    written("mine.yaml", **h100(**told))
    assert run(["estimate", "llama2-7b", "mine.yaml", "--gpus", "8"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {message}"]


def test_letters_that_formulas_count_as_the_same_are_one_name() -> None:
    """The sign of micro and the Greek letter; told both ways is told twice."""
    assert System.load(h100(parameters={"\u00b5": 3}, board_power="= \u03bc")).board_power == 3
    with pytest.raises(InputError, match="'\u03bc': is given twice, in letters that count as"):
        System.load(h100(parameters={"\u00b5": 3, "\u03bc": 4}))


def test_what_is_not_there_is_no_figure() -> None:
    """A base that is not named, and what is null."""
    with pytest.raises(InputError, match="needs base, but there is none"):
        Strategy.load({"tp": "= 2 * base"})
    with pytest.raises(InputError, match="strategy: dp: None: is no figure"):
        Strategy.load({"tp": "= 2 * dp", "dp": None})


def test_a_part_may_have_a_base_of_its_own() -> None:
    """The stack of a strategy: what differs may be told in terms of what it is based on."""
    launch = Stack.load("torchtitan-2025").host_launch
    stack = {"base": "torchtitan-2025", "host_launch": "= 2 * base"}
    found = Strategy.load({"stack": stack}).stack
    assert isinstance(found, Stack)
    assert found.host_launch == 2 * launch


def test_a_stack_lies_beside_its_strategy_and_is_based_anew(written: Written) -> None:
    """From another folder, by name or as base; and a base of the base's stack goes over it."""
    Path("far").mkdir()
    written("far/own.yaml", name="own", base="nemo-2025", host_launch="= 2 * base")
    twice = {"base": "own.yaml", "step_overhead": "= 2 * base"}
    written("far/run.yaml", gpus=8, gbs=8, stack=twice)
    written("far/plain.yaml", gpus=8, gbs=8, stack="own.yaml")
    nemo, gpipe = Stack.load("nemo-2025"), Stack.load("gpipe-2019")
    plain = Strategy.load("far/plain.yaml").resolved(Model.load("llama3-8b"))
    assert plain.stack == Stack.load("far/own.yaml")
    for told, stack in (
        ({}, ("own", 2 * nemo.host_launch, 2 * nemo.step_overhead)),
        ({"host_launch": "= 3 * base"}, ("own", 6 * nemo.host_launch, 2 * nemo.step_overhead)),
        ({"base": gpipe.name}, (gpipe.name, gpipe.host_launch, 2 * gpipe.step_overhead)),
    ):
        written("mine.yaml", base="far/run.yaml", **({"stack": told} if told else {}))
        found = Strategy.load("mine.yaml").stack
        assert isinstance(found, Stack)
        assert found.name == stack[0]
        assert [found.host_launch, found.step_overhead] == pytest.approx(stack[1:])


def test_a_stack_without_base_is_one_fault() -> None:
    """Not one for each field that it lacks."""
    with pytest.raises(InputError, match="must name the stack that has the rest as base") as caught:
        Strategy.load({"stack": {"host_launch": "5 us"}})
    assert len(caught.value.faults) == 1


def test_files_that_all_refer_to_the_next_twice_are_read_once(written: Written) -> None:
    """Thirty of them would otherwise be a billion."""
    written("f30.yaml", gpus=8)
    for n in range(30):
        following = f"f{n + 1}.yaml"
        gpus = {"lookup": f"./{following}", "field": "gpus"}
        written(f"f{n}.yaml", base=following, gpus=gpus)
    assert Strategy.load("f20.yaml").gpus == 8
    start = time.process_time()
    Strategy.load("f10.yaml")
    assert time.process_time() - start < 2


def test_many_faults_end_soon() -> None:
    """Each costs a look for names that are near."""
    many = {f"figure_{n}": f"= figur_{n}" for n in range(5000)}
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        Strategy.load({"parameters": many})
    assert len(caught.value.faults) == 50
    assert time.process_time() - start < 2


def test_a_long_chain_or_deep_nesting_ends_in_one_line() -> None:
    """Whatever a file holds, it is refused rather than followed for ever."""
    chain = {f"a{n}": f"= a{n + 1}" for n in range(2000)} | {"a2000": 1}
    with pytest.raises(InputError, match="strategy: is nested too deeply"):
        Strategy.load({"parameters": chain, "tp": "= a0"})
    deep: Any = 1
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InputError, match="strategy: is nested too deeply"):
        Strategy.load({"tp": deep})


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Figures by field, as `--explain --json` tells them."""
    assert run([*words, "--explain", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    found = {figure["field"]: figure for figure in figures}
    assert len(found) == len(figures)
    return found


def test_every_figure_is_explained(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """Given, looked up, calculated or a default; with unit, formula or row, and source."""
    own = {"clock": "1.5 GHz", "cores": {"value": 100, "description": "of a die"}}
    matrix = {"bf16": "= clock * cores", "fp16": "1 PFLOP/s"}
    told = h100(parameters=own, accelerator={"matrix": matrix}, network={"1": {"domain": None}})
    power = {"lookup": "b200-sxm", "field": "board_power"}
    found = explained(capsys, "systems", written("mine.yaml", **told, board_power=power))
    leaves = _leaves(System.load("mine.yaml").to_dict())
    assert set(found) - {"parameters.clock", "parameters.cores"} == leaves
    expected = {
        "parameters.clock": ("1.5 GHz", "Hz", "given", ""),
        "parameters.cores": (100, None, "given", ""),
        "accelerator.matrix.bf16": ("150 GFLOP/s", "FLOP/s", "calculated", "clock * cores"),
        "accelerator.matrix.fp16": ("1 PFLOP/s", "FLOP/s", "given", ""),
        "accelerator.matrix.fp32": ("66.9 TFLOP/s", "FLOP/s", "looked up", "base h100-sxm"),
        "board_power": ("1 kW", "watts", "looked up", "b200-sxm board_power"),
        "node.accelerators": (8, None, "looked up", "base h100-sxm"),
        "network.1.domain": (None, None, "given", ""),
        "accelerator.speed": (1.0, None, "default", ""),
        "network.0.join_exponent": (0.6, None, "default", ""),
    }
    keys = ("written", "unit", "origin", "by")
    assert {f: tuple(found[f][key] for key in keys) for f in expected} == expected
    assert found["accelerator.matrix.bf16"]["value"] == 1.5e11
    assert found["accelerator.matrix.bf16"]["source"]["text"] == "calculated: clock * cores"
    assert found["accelerator.matrix.fp32"]["source"]["kind"] == "datasheet"
    assert found["parameters.cores"]["description"] == "of a die"
    assert found["accelerator.speed"]["source"] is None


def _leaves(value: Any, *path: str) -> set[str]:
    if isinstance(value, dict) and value:
        return {leaf for key in value for leaf in _leaves(value[key], *path, str(key))}
    if isinstance(value, list) and value:
        return {leaf for n, item in enumerate(value) for leaf in _leaves(item, *path, str(n))}
    return set() if path[0] in ("name", "description", "sources") else {".".join(path)}


def test_explain_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an entry of the catalog too, whose figures are given; and of one alone."""
    assert run(["systems", "h100-sxm", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    bandwidth = next(line for line in lines if "450 GB/s" in line)
    assert bandwidth.split()[:4] == ["bandwidth", "450", "GB/s", "given"]
    assert any("NVIDIA H100 data sheet (2023)" in line for line in lines)
    assert run(["stacks", "torchtitan-eager", "--explain"]) == 0
    assert "base torchtitan-2024" in capsys.readouterr().out
    for words in (["systems"], ["models", "."], ["models", "--largest-for", "h100-sxm"]):
        assert run([*words, "--explain"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_schema_accepts_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    """And still refuses unknown keys, and text that is no formula where a number must stand."""
    jsonschema = pytest.importorskip("jsonschema")
    assert run(["schema", "strategy"]) == 0
    accepts = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out)).is_valid
    for fields in (
        {"gpus": 8, "mbs": 2},
        {"gpus": "= nodes * 8", "parameters": {"nodes": 3}},
        {"gpus": {"lookup": "h100-sxm", "field": "node.accelerators", "times": 2}},
        {"base": "low.yaml", "mbs": 3},
    ):
        assert accepts(fields), fields
    for fields in ({"gpus": "eight"}, {"gpsu": 3}, {"gpus": {"lookup": "x"}}, {"base": 3}):
        assert not accepts(fields), fields
