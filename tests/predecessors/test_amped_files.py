"""AMPeD's files: which parameter is taken from where, and what is refused, line by line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amped_samples import CALCULATED, CHIP, CLUSTER, CONFIG, MAPPING, NETWORK, small, tables, whole
from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.predecessors.amped.files import looks_like, parse_amped, read_config


def read(data, known=None):
    return read_config(data, "c.json", None if known is None else (known, "t.json"))


def faults(data, known=None):
    """What is wrong, line by line."""
    with pytest.raises(InputError) as caught:
        read(data, known)
    return str(caught.value).splitlines()


def the_fault(data, known=None):
    (line,) = faults(data, known)
    return line


@each_row(
    ("written", "number"),
    [
        (7, 7),
        ("8 GB", 8e9),
        ("312 T", 312e12),
        ("1.41 GHz", 1_410_000_000),
        ("1.41GHz", 1_410_000_000),
        ("700 ns", 7e-7),
        ("5us", 5e-6),
        ("5 µs", 5e-6),
        ("-3e2", -300),
        ("2048 tokens", 2048),
        ("16 bit", 16),
        ("300 Gbit/s", 3e11),
        ("1 PFLOPS", 1e15),
        (".5 k", 500),
    ],
)
def test_numbers_with_a_prefix_and_free_letters(written, number):
    """A number, an SI prefix, and whatever unit: the number is exact."""
    assert parse_amped(written) == number


@examples(40)
@given(st.floats(1e-6, 1e6), st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P"]))
def test_a_number_comes_back_with_any_prefix(number, prefix):
    """Text of a number with a prefix is the nearest number to the product."""
    power = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}[prefix]
    assert parse_amped(f"{number!r} {prefix}Hz") == pytest.approx(number * 10.0**power, rel=1e-15)


@each_row(
    ("written", "problem"),
    [
        ("80 GiB", "AMPeD reads GiB as powers of 1000; write the number without a unit"),
        ("64 GPUs", "AMPeD reads the first letter of GPUs as an SI prefix; leave it out"),
        ("5 min", "AMPeD reads the first letter of min as an SI prefix; leave it out"),
        ("many", "must be a number, or text"),
        ("3,200,000", "must be a number, or text"),
        ("1e999", "must be a number, or text"),
        ("nan", "must be a number, or text"),
        ("", "must be a number, or text"),
        (True, "must be a number, or text"),
        ([1], "must be a number, or text"),
        ({}, "must be a number, or text"),
        (float("inf"), "must be a number, or text"),
        (10**400, "must be a number, or text"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(written, problem):
    """Words and binary prefixes too, which AMPeD takes for decimal ones."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_amped(written)
    assert str(caught.value).startswith(problem)


def test_files_are_known_by_content():
    """By the categories, whatever is in them, or by the names of the tables."""
    assert looks_like(small()) == "configuration"
    assert looks_like({CHIP: {"parameters": {}}}) == "configuration"
    assert looks_like({CHIP: 1}) == "configuration"
    assert looks_like(tables()) == "lookup tables"
    assert looks_like({"hidden": 3}) is None
    for noun in (Model, System, Strategy):
        with pytest.raises(InputError, match="holds AMPeD's lookup tables; give the config"):
            noun.load(tables())


def test_lookup_goes_before_calculated_before_value():
    """The order of AMPeD; what is left is known still."""
    data = small(
        frequency={
            "value": 1,
            "calculated": True,
            "from_lookup_table": True,
            "lookup_name": "clock",
            "description": "how fast",
        },
        minibatch_size={"value": 3, "calculated": True},
        data_parallel_degree=CALCULATED,
        layers={"value": 6, "calculated": False, "from_lookup_table": False},
    )
    data[CHIP]["lookup_config"] = {"lookup_table_name": "chips", "lookup_table_row": "mine"}
    config = read(data, {"chips": {"mine": {"clock": "2 GHz", "frequency": 5}}})
    frequency = config["frequency"]
    assert (frequency.value, frequency.origin, frequency.written) == (2e9, "looked up", 1)
    assert (frequency.lookup_name, frequency.description) == ("clock", "how fast")
    assert frequency.also_calculated
    assert (config["minibatch_size"].value, config["minibatch_size"].origin) == (8, "calculated")
    assert (config["layers"].value, config["layers"].origin) == (6, "given")
    assert (config.rows, config.tables_source) == ({CHIP: "mine"}, "t.json")


def test_the_example_is_whole():
    """Every parameter of the documented example has a value, checked by hand."""
    config = read_config(whole(), str(CONFIG))
    assert len(config.parameters) == 99
    values = {name: config[name].value for name in config.parameters}
    assert values["peak_compute_8bit_MACs"] == pytest.approx(1.41e9 * 108 * 4 * 256)
    assert values["number_of_batches"] == 450e9 / 2048 / 2304
    per_layer = 4 * 12288 * 128 * 96 + 8 * 6144 + 2 * 12288 * 49152 + 51200 * 12288 / 80
    assert values["total_number_of_parameters_without_embedding"] == 80 * per_layer
    assert values["inter_node_bandwidth"] == 1.6e12
    assert (
        config["number_of_tokens_in_vocabulary"].raw,
        config.accelerator_row["MAC_per_cycle"],
    ) == (
        51200,
        256,
    )


def test_an_unknown_row_table_or_property_is_named():
    """With the nearest there is."""
    data = whole()
    lookup = data[NETWORK]["lookup_config"]
    lookup["lookup_table_row"] = "GPT-3 XXL"
    place = f"c.json: {NETWORK}.lookup_config"
    assert the_fault(data, tables()) == (
        f"{place}.lookup_table_row: 'GPT-3 XXL': is no row of transformer_network_parameters in "
        "t.json; did you mean 'GPT-3 XL'?"
    )
    lookup["lookup_table_name"] = "transformers"
    assert the_fault(data, tables()).startswith(
        f"{place}.lookup_table_name: 'transformers': is no table in t.json; "
    )
    del data[NETWORK]["lookup_config"]
    assert the_fault(data, tables()).startswith(
        f"{place}: is missing: give lookup_table_name and lookup_table_row, for tokens_to_train, "
    )
    data = whole()
    data[CHIP]["parameters"]["frequency"]["lookup_name"] = "frequncy"
    known = tables()
    known["accelerator_specifications"]["A100"]["number_of_cores"] = None
    known["accelerator_specifications"]["A100"]["memory_capacity"] = "much"
    found = faults(data, known)
    place = f"c.json: {CHIP}"
    assert found[0] == (
        f"{place}.frequency: its row has no frequncy in t.json; did you mean 'frequency'?"
    )
    assert found[1] == f"{place}.number_of_cores: is null in its row, as number_of_cores"
    assert found[2].startswith(f"t.json: {CHIP}.memory_capacity: 'much': must be a number")
    assert len(found) == 3


def test_tables_that_are_not_there_are_asked_for():
    """One line for each category that looks something up."""
    lines = faults(whole())
    assert len(lines) == 3
    assert "need lookup tables, but there is no lookup_tables.json in its folder" in lines[0]
    assert lines[0].endswith("give it (--tables FILE)")


def test_tables_beside_are_read(tmp_path):
    """In the folder of the configuration, whatever its name."""
    for name, data in (("mine.json", whole()), ("lookup_tables.json", tables())):
        (tmp_path / name).write_text(json.dumps(data))
    assert Model.load(tmp_path / "mine.json").depth == 80
    (tmp_path / "lookup_tables.json").write_text("[]")
    with pytest.raises(InputError, match=r"lookup_tables\.json: holds a list"):
        Model.load(tmp_path / "mine.json")


CASES = {
    "a null value": (
        {"context": {"value": None}},
        f"{NETWORK}.context: null: is missing: must be a number",
    ),
    "no value at all": (
        {"context": {"description": "?"}},
        f"{NETWORK}.context: null: is missing: must be a number",
    ),
    "no number": ({"layers": {"value": "six"}}, f"{NETWORK}.layers: 'six': must be a number"),
    "a fraction": (
        {"attention_heads": 2.5},
        f"{NETWORK}.attention_heads: 2.5: must be a whole number of at least 1",
    ),
    "a negative degree": (
        {"intra_node_tensor_parallel_degree": -2},
        f"{MAPPING}.intra_node_tensor_parallel_degree: -2: must be a whole number of at least 1",
    ),
    "no bandwidth": (
        {"bandwidth_per_network_card": 0},
        f"{CLUSTER}.bandwidth_per_network_card: 0: must be above 0",
    ),
    "a negative latency": (
        {"inter_node_latency": "-1 us"},
        f"{CLUSTER}.inter_node_latency: '-1 us': must be at least 0",
    ),
    "no formula": (
        {"frequency": CALCULATED},
        f"{CHIP}.frequency: is marked calculated, but AMPeD has no formula for it",
    ),
    "an input that is missing": (
        {"samples": CALCULATED},
        "tokens_to_train: is missing, and needed for samples; give it",
    ),
    "a calculated fraction": (
        {"microbatch_size": CALCULATED, "minibatch_size": CALCULATED}
        | {"data_parallel_degree": CALCULATED, "batch_size": 40},
        (
            f"{CHIP}.microbatch_size: 1.25: must be a whole number of at least 1 "
            "(minibatch_size 5 and number_of_microbatches_per_minibatch 4)"
        ),
    ),
    "a batch that replicas do not share": (
        {"batch_size": 60},
        "mapping_parameters.data_parallel_degree: 8: must divide batch_size 60",
    ),
    "layers that stages do not share": (
        {"inter_node_pipeline_parallel_degree": 4},
        f"{MAPPING}.pipeline_parallel_degree: 4: must divide layers 6",
    ),
    "heads that are not shared": (
        {"attention_heads": 1, "hidden_layer_dimension_for_attention_sublayers": 256},
        f"{MAPPING}.tensor_parallel_degree: 2: must divide attention_heads 1",
    ),
    "a node that is too small": (
        {"number_of_accelerators_per_node": 2},
        (
            f"{MAPPING}.accelerators_per_node_required: 4: must divide "
            "number_of_accelerators_per_node 2"
        ),
    ),
    "degrees that contradict": (
        {"data_parallel_degree": 4},
        (
            f"{CHIP}.data_parallel_degree: 4: intra_node_data_parallel_degree 2 and "
            "inter_node_data_parallel_degree 4 make it 8; mark it calculated"
        ),
    ),
    "too few nodes": (
        {"number_of_nodes": 4},
        f"{CHIP}.number_of_nodes: 4: with 4 accelerators each, fewer than the 32 of the degrees",
    ),
    "a batch in tokens": (
        {"batch_size": 3_200_000, "context": 2048},
        (
            f"{NETWORK}.batch_size: 3200000: counts sequences, of 2,048 tokens each: 6.55e+09 "
            "tokens in a step, more than any training has; if tokens were meant, give 1562"
        ),
    ),
    "more than all tokens": (
        {"tokens_to_train": 8000},
        (
            f"{NETWORK}.batch_size: 64: counts sequences, of 128 tokens each: 8.19e+03 tokens in a "
            "step, more than the tokens_to_train 8e+03"
        ),
    ),
    "a slip of the pen": (
        {"number_of_microbatches_per_minibatchs": 4, "number_of_microbatches_per_minibatch": None},
        (
            f"{CHIP}.number_of_microbatches_per_minibatchs: 4: unknown parameter; did you mean "
            "'number_of_microbatches_per_minibatch'?"
        ),
    ),
    "words that are no flags": (
        {"layers": {"value": 6, "calculated": "often"}},
        f"{NETWORK}.parameters.layers.calculated: 'often': must be true or false",
    ),
    "an unknown key": (
        {"layers": {"value": 6, "calculate": True}},
        f"{NETWORK}.parameters.layers.calculate: unknown key; did you mean 'calculated'?",
    ),
}


@each_row("name", CASES)
def test_what_is_wrong_is_told_in_one_line(name):
    """File, category and parameter, value, and what is allowed."""
    changes, expected = CASES[name]
    assert the_fault(small(**changes)).startswith(f"c.json: {expected}")


def test_a_parameter_in_two_categories_is_told():
    """Which is meant cannot be known."""
    data = small()
    data[CLUSTER]["parameters"]["frequency"] = {"value": 1}
    place = f"c.json: {CHIP}.frequency"
    assert the_fault(data) == f"{place}: stands in {CLUSTER} too; leave one out"


def test_all_that_is_wrong_is_told_at_once():
    """One line each, in the order of the file."""
    lines = faults(small(context={"value": None}, layers="six", frequency=CALCULATED))
    names = [line.split(": ")[1].split(".")[1] for line in lines]
    assert names == ["context", "layers", "frequency"]


def test_a_cycle_is_named(monkeypatch):
    """No formula of AMPeD's needs itself; were there one, the way round would be told."""
    from shardwise.predecessors.amped import files  # noqa: PLC0415 - the table to change
    from shardwise.predecessors.amped.formulas import derived  # noqa: PLC0415

    table = files.DERIVED | {"minibatch_size": derived("microbatch_size")}
    monkeypatch.setattr(files, "DERIVED", table)
    line = the_fault(small(minibatch_size=CALCULATED, microbatch_size=CALCULATED))
    assert "is calculated from itself: " in line
    assert line.startswith(f"c.json: {CHIP}.mi")
