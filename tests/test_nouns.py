"""Nouns: validation, messages, immutability, schemas."""

import json
import math

import pytest
from pydantic import ValidationError

from rows import each_row
from shardwise import InputError, Model, Stack, Strategy, System, UnknownNameError, catalog
from shardwise.analysis.results import Estimate

pytestmark = pytest.mark.any_software


def _faults(noun, data):
    with pytest.raises(InputError) as caught:
        noun.validated(data, source="f.yaml")
    return [str(fault) for fault in caught.value.faults]


def _system(**changes):
    fields = System.load("h100-sxm").to_dict()
    for path, value in changes.items():
        target = fields
        *parents, last = path.split("__")
        for parent in parents:
            target = target[int(parent)] if parent.isdigit() else target[parent]
        target[int(last) if last.isdigit() else last] = value
    return fields


def test_all_faults_are_reported_at_once_with_field_and_value():
    """One line per fault: file, field, value, and what is allowed."""
    faults = _faults(Strategy, {"tp": 0, "dtype": "bf61", "zero": -1, "placement": "tp-tp"})
    assert len(faults) == 4
    assert "f.yaml: tp: 0: must be at least 1" in faults
    dtype = "f.yaml: dtype: 'bf61': allowed: bf16, fp16, fp32; did you mean 'bf16'?"
    assert dtype in faults


@each_row(
    ("noun", "data", "field", "hint"),
    [
        (Strategy, {"mirco_batch_size": 1}, "mirco_batch_size", "micro_batch_size"),
        (Model, {"hiden": 1}, "hiden", "hidden"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_right_one(noun, data, field, hint):
    """Unknown keys are refused with a suggestion."""
    assert f"f.yaml: {field}: unknown key; did you mean {hint!r}?" in _faults(noun, data)


def test_a_misspelt_key_deep_inside_is_named_too():
    """Suggestions follow lists, mappings and nested records."""
    data = _system()
    data["accelerator"]["memory"][0]["capasity"] = 1
    data["network"][1]["collectives"]["p2p"]["latncy"] = 1
    faults = _faults(System, data)
    assert any(
        "accelerator.memory[0].capasity: unknown key; did you mean 'capacity'?" in f for f in faults
    )
    assert any("p2p.latncy: unknown key; did you mean 'latency'?" in f for f in faults)


@each_row(
    ("change", "told"),
    [
        (
            {"accelerator__memory__0__bandwidth": -1.0},
            "memory[0].bandwidth: -1.0: must be at least 1 byte/s",
        ),
        ({"accelerator__memory__0__bandwidth": "-3 TB/s"}, "'-3 TB/s': must be at least 1 byte/s"),
        ({"accelerator__vector__fp32": math.nan}, "vector.fp32: nan: must be a finite number"),
        ({"accelerator__vector__fp32": math.inf}, "vector.fp32: inf: must be a finite number"),
        ({"accelerator__vector__fp32": "80 GiB"}, "unit 'GiB' is not one of FLOP/s"),
        ({"accelerator__vector": "80 TFLOP/s"}, "vector: '80 TFLOP/s': must be a mapping"),
        ({"accelerator__matmul__bf16__efficiency": 1.5}, "efficiency: 1.5: must be at most 1"),
        ({"network__0__domain": 0}, "network[0].domain: 0: must be at least 1"),
        ({"network__0__domain": None}, "network[0].domain: only the outermost may be null"),
        ({"network__1__domain": 12}, "12 must be a larger multiple of 8"),
        ({"network__0__domain": 3}, "domain: 3 and node.accelerators 8: one must be a multiple"),
        ({"node__accelerators": True}, "node.accelerators: true: must be a number, not true"),
        ({"node": {}}, "node.accelerators: is missing and has no default"),
        ({"accelerator__matrix": {"bf16": 1e12}}, "matmul: matrix has no rate for fp16, fp32"),
        ({"network__0__collectives": {}}, "collectives lack all_gather"),
    ],
)
def test_impossible_figures_of_a_system_are_refused(change, told):
    """Negative, infinite, misplaced and inconsistent figures name their field."""
    assert any(told in fault for fault in _faults(System, _system(**change)))


@each_row(
    ("change", "told"),
    [
        ({"layers": []}, "layers"),
        ({"norm": "batchnorm"}, "allowed: layernorm, rmsnorm"),
        ({"position": "learned", "seq_len": None}, "learned positions need"),
        ({"norm_bias": True}, "an rmsnorm has no bias"),
        ({"hidden": 0}, "hidden: 0: must be at least 1"),
        ({"hidden": 1.5}, "hidden: 1.5"),
        ({"hidden": True}, "hidden: true: must be a number, not true or false"),
        ({"max_positions": 100}, "rope positions have no table"),
    ],
)
def test_impossible_models_are_refused(change, told):
    """A model that cannot be is refused by field."""
    data = Model.load("llama3-8b").to_dict() | change
    assert any(told in fault for fault in _faults(Model, data))


def test_a_fault_inside_a_layer_is_one_line():
    """The list of layers is not blamed for what is wrong in one of them."""
    data = Model.load("llama3-8b").to_dict()
    data["layers"][0]["attention"]["heads"] = 33
    (fault,) = _faults(Model, data)
    assert "layers[0].attention" in fault


@each_row(
    ("prefix", "told"),
    [
        ("prise", "there is no field prise; did you mean 'price'?"),
        ("accelerator.memory.0.capacty", "no field capacty; did you mean 'capacity'?"),
        ("node.x", "there is no field x; allowed: accelerators, power"),
    ],
)
def test_a_source_is_of_a_field(prefix, told):
    """A misspelt one would leave its figure without a source."""
    source = {"kind": "assumed", "text": "here"}
    (fault,) = _faults(System, _system() | {"sources": {prefix: source}})
    assert fault.startswith(f"f.yaml: sources: '{prefix}': ")
    assert fault.endswith(told)
    gone = {"": source, "network.7": source, "accelerator.matrix.fp4": source, "site.pue": source}
    assert System.validated(_system() | {"sources": gone}).source_of("network.7") is not None


def test_an_alias_beside_its_field_is_given_twice():
    """mbs and micro_batch_size are one field."""
    assert _faults(Strategy, {"mbs": 1, "micro_batch_size": 2}) == [
        "f.yaml: mbs: is set twice, by two names"
    ]


@each_row("given", [System.load("h100-sxm"), None, 3, ["llama3-8b"]])
def test_what_is_no_model_is_refused(given):
    """A noun of another kind, or nothing, is met with what is allowed."""
    with pytest.raises(InputError, match="a model is a Model, a mapping, a catalog name or a file"):
        Model.load(given)


@each_row("name", ["a" * 300, "a\0b", ""])
def test_a_name_that_cannot_be_a_file_is_unknown(name):
    """Too long, with a zero byte, or empty: no traceback."""
    with pytest.raises(UnknownNameError):
        Model.load(name)


def test_words_are_read_in_any_case():
    """BF16 and Full are bf16 and full."""
    strategy = Strategy.validated({"dtype": "BF16", "recompute": "Full"})
    assert (strategy.dtype, strategy.recompute) == ("bf16", "full")


def test_the_schema_accepts_what_the_loader_accepts():
    """Short names, aliases of words, and a part of a stack."""
    properties = Strategy.model_json_schema()["properties"]
    assert {"mbs", "gbs"} <= set(properties)
    assert "float16" in properties["dtype"]["enum"]
    assert {"required": ["base"]}.items() <= properties["stack"]["anyOf"][-1].items()


def test_key_value_heads_divide_the_heads():
    """5 key-value heads cannot serve 32 heads."""
    data = Model.load("llama3-8b").to_dict()
    data["layers"][0]["attention"]["kv_heads"] = 5
    assert any("kv_heads 5 must divide heads 32" in fault for fault in _faults(Model, data))


def test_nouns_are_frozen_and_keyword_only():
    """A noun cannot be changed, nor built from positions."""
    strategy = Strategy(tp=2)
    with pytest.raises(ValidationError, match="frozen"):
        strategy.tp = 4
    with pytest.raises(TypeError):
        Strategy(2)


def test_an_unknown_name_suggests_the_nearest():
    """Misspelt catalog names are UnknownNameError with the nearest entry."""
    with pytest.raises(UnknownNameError, match="did you mean 'llama3-70b'"):
        Model.load("llama3-70")
    with pytest.raises(
        UnknownNameError,
        match=r"no such system; to list them: shardwise systems; to make your own: .*",
    ):
        System.load("abacus")


@each_row("name", ["llama3-70b", "LLAMA3-70B", "Llama3_70B"])
def test_names_are_accepted_in_any_spelling(name):
    """Case and underscores do not matter; the canonical name comes out."""
    assert Model.load(name).name == "llama3-70b"


@each_row("name", catalog.names("stacks"))
def test_every_stack_loads_and_every_figure_has_a_source(name):
    """Stacks are complete, named as their file, and sourced."""
    stack = Stack.load(name)
    figures = set(Stack.model_fields) - {"name", "description", "sources"}
    assert stack.name == name
    assert [f for f in figures if stack.source_of(f) is None] == []


@each_row("noun", [Model, System, Strategy, Stack, Estimate])
def test_every_noun_has_a_json_schema(noun):
    """Schemas are JSON, describe their fields and close the record."""
    schema = json.loads(json.dumps(noun.model_json_schema()))
    assert schema["additionalProperties"] is False
    assert schema["properties"]


def test_a_strategy_shows_its_stack_by_name_or_by_what_differs():
    """A stack from the catalog is echoed by name, a changed one as base and changes."""
    plain = Strategy(stack="megatron-lm-2022").to_dict()["stack"]
    assert plain == "megatron-lm-2022"
    changed = Strategy(stack={"base": "megatron-lm-2022", "tp_hidden": 0.5}).to_dict()["stack"]
    assert changed == {"base": "megatron-lm-2022", "tp_hidden": 0.5}
    assert Strategy(stack=changed) == Strategy(stack={"base": "megatron-lm-2022", "tp_hidden": 0.5})
