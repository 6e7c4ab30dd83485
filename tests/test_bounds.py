"""Every figure has bounds, and within them every result is a finite number."""

import copy
import math
import random

import numpy as np
import pytest

from numeric_fields import fields_of, values_of
from profiles import sampled
from rows import each_row
from shardwise import (
    InputError,
    Model,
    Reliability,
    Stack,
    Strategy,
    System,
    estimate,
    estimate_many,
    estimate_training_time,
)
from shardwise.planning.training_time import TrainingRun

pytestmark = pytest.mark.any_software

DENSE = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 16, "seq_len": 2048}
EXPERTS = DENSE | {"ep": 4, "recompute": "selective"}
TYPES = {"model": Model, "system": System, "strategy": Strategy, "stack": Stack}


def case(model, system, strategy):
    """The inputs of an estimate as plain data."""
    resolved = Strategy.validated(strategy).resolved(Model.load(model))
    plain = {"model": Model.load(model), "system": System.load(system), "strategy": resolved}
    return {name: config.to_dict() for name, config in plain.items()} | {
        "stack": Stack.load(resolved.stack).to_dict()
    }


CASE = case("llama3-8b", "h100-sxm", DENSE)


def changed(data, path, value):
    """A copy of plain data with another value at a path."""
    found = copy.deepcopy(data)
    node = found
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return found


def estimated(inputs, **options):
    """The estimate of plain data."""
    strategy = inputs["strategy"] | {"stack": inputs["stack"]}
    model, system = Model.load(inputs["model"]), System.load(inputs["system"])
    return estimate(model, system, Strategy.load(strategy), **options)


def infinite(value, path=""):
    """Places of a result that hold no finite number."""
    if isinstance(value, dict):
        return [at for key, item in value.items() for at in infinite(item, f"{path}.{key}")]
    if isinstance(value, (list, tuple)):
        return [at for key, item in enumerate(value) for at in infinite(item, f"{path}[{key}]")]
    return [path] if isinstance(value, float) and not math.isfinite(value) else []


def fields(inputs, name):
    """Numeric fields of one input but those of benchmarks, which no estimate reads."""
    found = values_of(inputs[name], TYPES[name])
    return [field for field in found if "benchmark" not in field.path]


def at_bounds(inputs, names):
    """Estimate with numeric fields at their least and greatest; yield path, value, result."""
    for name in names:
        for field in sampled(fields(inputs, name)):
            for value in (field.least, field.most):
                data = changed(inputs[name], field.path, field.kind(value))
                try:
                    result = estimated(inputs | {name: data}, operations=True, gemms=True)
                except InputError:  # not with the rest of this example
                    result = None
                yield (name, *field.path, value), result


@pytest.mark.parametrize("kind", [*TYPES.values(), Reliability, TrainingRun])
def test_every_numeric_field_has_bounds(kind):
    """Also keys of mappings and members of lists."""
    found = list(fields_of(kind))
    assert len(found) >= 2
    assert [field.path for field in found if field.least is None or field.most is None] == []


def test_the_schema_shows_the_bounds():
    """Of plain numbers and of quantities with a unit."""
    schema = Stack.model_json_schema()["properties"]
    factor = schema["memory_traffic_factor"]
    assert (factor["minimum"], factor["maximum"]) == (0.01, 100)
    count = Model.model_json_schema()["properties"]["hidden"]
    assert (count["minimum"], count["maximum"]) == (1, 2**31)
    number = schema["host_launch"]["anyOf"][0]
    assert (number["minimum"], number["maximum"]) == (0, 60)


def test_at_its_bounds_a_figure_of_the_stack_or_strategy_gives_finite_results():
    """Without a warning."""
    found = list(at_bounds(CASE, ("stack", "strategy")))
    assert {path: at for path, r in found if r and (at := infinite(r.to_dict()))} == {}
    assert sum(result is not None for _, result in found) > len(found) / 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    "inputs",
    [
        CASE,
        case("deepseek-v3", "calculon-a100-80g", EXPERTS),
        case("mixtral-8x7b", "simumax-b200", EXPERTS),
        case("gpt3-175b", "a100-80gb-sxm", DENSE | {"zero": 3}),
    ],
    ids=["dense", "curves", "tables", "zero-3"],
)
def test_at_its_bounds_every_figure_gives_finite_results(inputs):
    """Closed forms, curves and tables of kernels."""
    found = list(at_bounds(inputs, TYPES))
    assert {path: at for path, r in found if r and (at := infinite(r.to_dict()))} == {}


@pytest.mark.parametrize("seed", range(4))
def test_many_figures_at_their_bounds_give_finite_results(seed):
    """All of the system and the stack that are no counts, at one of the two."""
    draw, inputs = random.Random(seed), CASE  # noqa: S311 - not for secrets
    for name in ("system", "stack"):
        for field in fields(inputs, name):
            if field.kind is float:
                value = draw.choice((field.least, field.most))
                inputs = inputs | {name: changed(inputs[name], field.path, value)}
    assert infinite(estimated(inputs, operations=True, gemms=True).to_dict()) == []


@each_row(
    ("name", "field", "value"),
    [
        ("stack", "memory_traffic_factor", 1e300),
        ("stack", "memory_traffic_factor", 0.0),
        ("stack", "runtime_memory", 1e30),
        ("stack", "host_launch", "2 h"),
        ("stack", "loss_saved_bytes", -1),
        ("stack", "dp_contention", 1e-6),
        ("system", "network.0.join_exponent", 1e-6),
        ("system", "network.0.bandwidth", 1e40),
        ("system", "network.0.collectives.all_reduce.latency", 1e9),
        ("system", "accelerator.memory_bound.efficiency", 1e-9),
        ("system", "accelerator.speed", 1e12),
        ("system", "accelerator.matrix.bf16", 0),
        ("strategy", "expert_imbalance", 1e9),
        ("strategy", "expert_capacity", 1e-9),
    ],
)
def test_a_figure_beyond_its_bounds_is_refused(name, field, value):
    """One line that names it."""
    path = tuple(int(part) if part.isdecimal() else part for part in field.split("."))
    with pytest.raises(InputError) as error:
        TYPES[name].load(changed(CASE[name], path, value))
    (fault,) = error.value.faults
    assert fault.field.replace("[", ".").replace("]", "") == field
    assert fault.value == value


@each_row("field", ["expert_capacity", "expert_imbalance"])
@each_row("value", [1e-9, 1e9])
def test_columns_have_the_same_bounds(field, value):
    """As a single strategy."""
    columns = DENSE | {"tp": [1, 2], field: value}
    with pytest.raises(InputError, match=f"{field}: {value}: must be from "):
        estimate_many("mixtral-8x7b", "h100-sxm", columns)


@each_row("flag", [True, np.True_, np.False_])
@each_row(
    ("kind", "field"), [(Strategy, "tp"), (Strategy, "expert_imbalance"), (Stack, "host_launch")]
)
def test_a_flag_of_numpy_is_no_number_either(kind, field, flag):
    """Though numpy counts it as 1."""
    with pytest.raises(InputError, match=rf"{field}: (true|false): must be a number"):
        kind.validated({field: flag})


def test_a_training_run_at_its_bounds_is_finite():
    """Of tokens, and of each time of the failures."""
    base = {"accelerator_mtbf": "50000 h", "restart_time": "10 min", "checkpoint_time": "1 min"}
    runs = [{"tokens": tokens, "reliability": base} for tokens in (1, 1e18)]
    runs += [
        {"tokens": 1e12, "reliability": base | {field.path[0]: field.kind(value)}}
        for field in values_of(base | {"spares": 1, "repair_time": 1.0}, Reliability)
        for value in (field.least, field.most)
    ]
    done = 0
    for run in runs:
        try:
            found = estimate_training_time("llama3-8b", "h100-sxm", DENSE, **run)
        except InputError:
            continue
        assert infinite(found.to_dict()) == [], run
        done += 1
    assert done > len(runs) / 2
