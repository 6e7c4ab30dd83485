"""Faults of figures that are looked up or calculated: one line each, and soon."""

import time
from typing import Any

import pytest

from parameter_samples import NVLINK, Written, h100
from shardwise import InputError, Model, Strategy, System
from shardwise.cli import run


@pytest.mark.needs("predecessors")
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
            "mine.yaml: board_power: '= 3 * frequncy': needs frequncy, which is not set; "
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
            "mine.yaml: node.accelerators: 6.666666666666667: must be a whole number "
            "(calculated: 20 / 3)"
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
        {"base": "h100-sxn"},
        (
            "mine.yaml: base: 'h100-sxn': no such system in the catalog, and no such file; "
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
    with pytest.raises(InputError, match="'\u03bc': is set twice, in letters that count as"):
        System.load(h100(parameters={"\u00b5": 3, "\u03bc": 4}))


def test_what_is_not_there_is_no_figure() -> None:
    """A base that is not named, and what is null."""
    with pytest.raises(InputError, match="needs base, but there is none"):
        Strategy.load({"tp": "= 2 * base"})
    with pytest.raises(InputError, match="strategy: dp: null: is no figure"):
        Strategy.load({"tp": "= 2 * dp", "dp": None})


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
