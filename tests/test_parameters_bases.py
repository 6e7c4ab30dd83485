"""Figures that files leave to a base, and what of it they tell again."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from parameter_samples import Written, h100
from profiles import examples
from shardwise import InputError, Model, Stack, Strategy, System


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


def test_parameters_of_a_base_serve_who_is_based_on_it(written: Written) -> None:
    """And may be told again, for formulas of one's own."""
    written("low.yaml", **h100(parameters={"clock": "1 GHz", "cores": 100}))
    told = {"parameters": {"cores": 50}, "accelerator": {"matrix": {"bf16": "= clock * cores"}}}
    assert System.load({"name": "x", "base": "low.yaml", **told}).accelerator.matrix["bf16"] == 5e10


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
@examples(40, suppress_health_check=list(HealthCheck))
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
