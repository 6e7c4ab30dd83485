"""Configs and results cannot be changed, and have a hash; what they return as a dict can."""

import copy
import dataclasses
import json
import operator
import pickle
import typing
from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

import shardwise
from shardwise import catalog, estimate
from shardwise.config.described import Described
from shardwise.frozen import FrozenDict, FrozenRecord, frozen, thawed

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
RUN = {"gpus": 8, "tp": 8, "gbs": 8}
FEW = {"pp": 1, "cp": 1, "zero": 1, "mbs": 1}
CONFIGS = {
    "models": shardwise.Model,
    "systems": shardwise.System,
    "stacks": shardwise.Stack,
    "recipes": shardwise.Recipe,
}
MUTABLE = (dict, list, set, bytearray)
ERRORS = (TypeError, ValueError, ValidationError, dataclasses.FrozenInstanceError)


def _inside(value):
    """What a value holds: items, public fields and public slots."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, (tuple, frozenset, *MUTABLE)):
        return list(value)
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return []
    names = [*getattr(kind, "model_fields", ()), *getattr(kind, "__slots__", ())]
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value)]
    return [getattr(value, name) for name in names if not name.startswith("_")]


def reachable(value):
    """Everything in a value, itself included, each once."""
    seen, waiting = {}, [value]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            waiting += _inside(one)
    return list(seen.values())


def mutable_in(value):
    """What can be changed in a value."""
    return [
        one
        for one in reachable(value)
        if isinstance(one, MUTABLE) or (isinstance(one, np.ndarray) and one.flags.writeable)
    ]


def attempts(value):
    """Statements that would change something in a value."""
    for one in reachable(value):
        if isinstance(one, Mapping):
            yield partial(operator.setitem, one, "tp", 2)
        elif isinstance(one, np.ndarray):
            yield partial(one.fill, 0)
        elif isinstance(one, (BaseModel, FrozenRecord)):
            name = next(iter(getattr(type(one), "model_fields", None) or vars(type(one))))
            yield partial(setattr, one, name, None)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A result of each public type."""
    folder = tmp_path_factory.mktemp("frozen")
    one = estimate(MODEL, SYSTEM, RUN, operations=True, gemms=True)
    exported = shardwise.export("megatron", MODEL, SYSTEM, RUN)
    script, log = folder / "train.sh", folder / "train.log"
    script.write_text(exported.files[0].text.replace("--bf16", "--bf16 --mine 3"))
    line = "iteration {}/ 20 | elapsed time per iteration (ms): 9000.0 |"
    log.write_text("\n".join(line.format(n) for n in range(1, 21)))
    with pytest.raises(shardwise.CannotExportError) as error:
        shardwise.export("torchtitan", MODEL, SYSTEM, gpus=8, tp=2, zero=1, gbs=8)
    launch = shardwise.read_launch(script)
    swept = shardwise.sweep(MODEL, SYSTEM, strategy=RUN, vary={"fabric.bandwidth": "1x,2x"})
    searched = shardwise.search(MODEL, SYSTEM, gpus=[8, 16], gbs=8, tp=8, pareto="memory", **FEW)
    return [
        one,
        searched,
        searched.recommendation,
        swept,
        swept.points[0],
        exported,
        exported.files[0],
        launch,
        launch.not_understood[0],
        error.value.nearest,
        one.compare(one),
        shardwise.estimate_many(MODEL, SYSTEM, RUN | {"tp": [3, 4, 8]}),
        shardwise.estimate_training_time(MODEL, SYSTEM, RUN, tokens="1B"),
        shardwise.explain(MODEL, SYSTEM, {"pp": 1, "mbs": 1}, {"tp": 4}, gpus=8, gbs=8),
        shardwise.trace(MODEL, SYSTEM, RUN),
        shardwise.graph_of(MODEL, SYSTEM, RUN),
        shardwise.plan_fsdp(MODEL, SYSTEM, gpus=8),
        shardwise.choose_cluster(MODEL, [SYSTEM], tokens="1B", gpus=8, gbs=8, tp=8, **FEW),
        shardwise.compare_methods(["qwen3-1.7b"], [SYSTEM]),
        shardwise.largest_model(SYSTEM, gpus=1, seq_len=512, count=1, **FEW),
        shardwise.estimate_recipe("llama3-405b-h100-1024-bf16"),
        shardwise.diagnose(str(script), SYSTEM, log=str(log), changes=0),
        shardwise.estimate(
            "gpt3-175b", "nersc-b200", RUN | {"gpus": 64, "dtype": "fp16"}, reference="nersc"
        ),
        shardwise.search("gpt3-1t", "nersc-b200", reference="nersc", gpus=256, gbs=64, top=1),
        shardwise.Space(gpus=[8], gbs=8, tp="1..8"),
        shardwise.Strategy(**RUN),
        shardwise.Reliability(node_mtbf=1e6, restart_time=60, checkpoint_time=60),
        *(config.load(next(iter(catalog.names(folder)))) for folder, config in CONFIGS.items()),
    ]


@pytest.mark.parametrize("folder", CONFIGS)
def test_nothing_in_a_catalog_entry_can_be_changed(folder):
    """All entries have hashes, and are equal to their pickles; also what explains their figures."""
    for name in catalog.names(folder):
        entry, explained = CONFIGS[folder].explained(name)
        again = pickle.loads(pickle.dumps(entry))  # noqa: S301 - our own
        assert mutable_in((entry, explained, again)) == []
        assert (again, hash(again)) == (entry, hash(entry))
        with pytest.raises(ERRORS):
            entry.name = "mine"


def test_every_public_type_is_among_the_results(results):
    """A new public type needs a sample here."""
    public = [getattr(shardwise, name) for name in shardwise.__all__]
    types = {one for one in public if isinstance(one, type) and not issubclass(one, Exception)}
    assert types == {type(one) for one in results}


def test_nothing_in_a_result_can_be_changed(results):
    """Neither a mapping, nor an array, nor a field."""
    for one in results:
        assert mutable_in(one) == [], type(one)
        for attempt in attempts(one):
            with pytest.raises(ERRORS):
                attempt()


def test_equal_results_have_equal_hashes(results):
    """Pickles and deep copies are equal to what they are of, and as frozen."""
    for one in results:
        again = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own
        for other in (again, copy.deepcopy(one), copy.copy(one)):
            assert other == one, type(one)
            assert hash(other) == hash(one)
            assert mutable_in(other) == []
    assert len({*results, *map(copy.copy, results)}) == len(results)


def test_a_hash_does_not_depend_on_the_fields_that_were_read():
    """Estimates work out some fields late."""
    first, second = (estimate(MODEL, SYSTEM, RUN) for _ in range(2))
    assert second.layers
    assert hash(first) == hash(second)
    assert first == second


def test_what_to_dict_returns_can_be_changed(results):
    """It is plain, and the result stays as it is."""
    for one in results:
        if not hasattr(one, "to_dict"):
            continue
        found = one.to_dict()
        text = json.dumps(found)
        for part in reachable(found):
            assert not isinstance(part, (FrozenDict, np.ndarray)), type(one)
            if isinstance(part, (dict, list)):
                part.clear()
        assert json.dumps(one.to_dict()) == text


def test_changes_do_not_reach_later_estimates():
    """What is refused has no effect either."""
    before = estimate(MODEL, SYSTEM, RUN).to_dict()
    system, strategy = shardwise.System.load(SYSTEM), shardwise.Strategy(**RUN)
    with pytest.raises(TypeError):
        system.accelerator.matrix["bf16"] *= 2
    for attempt in attempts((system, shardwise.Model.load(MODEL), strategy)):
        with pytest.raises(ERRORS):
            attempt()
    strategy.model_fields_set.clear()
    shardwise.Strategy.load(strategy).model_fields_set.add("cp")
    assert estimate(MODEL, SYSTEM, strategy).to_dict() == before


def test_copies_and_records_that_are_not_validated_are_frozen():
    """However they came to be."""
    system = shardwise.System.load(SYSTEM)
    other = system.model_copy(update={"sources": {"price": [{"a": [1]}]}})
    built = shardwise.System.model_construct(**{**dict(system), "sources": {"price": [1]}})
    assert mutable_in((other, built)) == []
    assert other != system
    assert other.sources == {"price": [{"a": [1]}]}


def _records():
    """All config types and results."""
    assert all(hasattr(shardwise, name) for name in shardwise.__all__)  # which imports them
    waiting = [Described, FrozenRecord]
    for kind in waiting:
        waiting += kind.__subclasses__()
    return {kind for kind in waiting if kind.__module__.startswith("shardwise.")}


def _names_mutable(annotation):
    own = typing.get_origin(annotation) or annotation
    return own in MUTABLE or any(map(_names_mutable, typing.get_args(annotation)))


def test_types_of_fields_do_not_promise_more_than_reading():
    """Type checkers refuse what fails."""
    wrong = {
        f"{kind.__name__}.{name}"
        for kind in _records()
        for name, annotation in vars(kind).get("__annotations__", {}).items()
        if not name.startswith("_") and _names_mutable(annotation)
    }
    assert wrong == set()


def test_a_frozen_dict_is_equal_to_a_dict_of_the_same_items():
    """Whatever the order of the items; lists are equal to tuples."""
    one = FrozenDict({"a": [1, {"b": {2}}], "c": 0.0})
    assert one == {"c": -0.0, "a": (1, {"b": {2}})}
    assert one != {"a": 1}
    assert one != 1
    assert hash(one) == hash(FrozenDict({"c": -0.0, "a": (1, {"b": {2}})}))
    assert (repr(one), len(one), one.get("d", 3), "d" in one) == (repr(dict(one)), 2, 3, False)
    assert one | {"d": 4} == {"d": 4} | one == {**one, "d": 4}
    assert isinstance(one | {}, dict)
    assert mutable_in(one) == []
    assert thawed(one) == {"a": (1, {"b": frozenset({2})}), "c": 0.0}
    with pytest.raises(TypeError):
        one | 1


def test_arrays_are_compared_by_their_values():
    """NaN is equal to NaN; in another type or shape an array differs."""
    one, same, other = (FrozenDict({"a": np.array([1, x])}) for x in (np.nan, np.nan, 2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert not frozen(np.zeros(2)).flags.writeable
