"""Other models and tools from Python: what the commands return, with faults by argument."""

import json
from pathlib import Path

import pytest

from calculon_runs import RUNS as CALCULON
from shardwise import (
    InputError,
    convert,
    estimate,
    estimate_training_time,
    search,
    sweep,
    validate_suite,
)
from shardwise.analysis.reference_results import REFERENCES
from shardwise.config.plain import as_json
from shardwise.predecessors.search import OWNERS
from written import record_of

CONFIG = Path(__file__).parents[2] / "docs" / "from" / "amped" / "config.json"
RUN = {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16", "tp_exchange": "rs_ag", "zero": 1}
DENSE = {
    "id": "one",
    "grade": "A",
    "model": "megatron-126m",
    "system": "h100-sxm",
    "strategy": {"gpus": 8, "global_batch_size": 8},
    "measured": {"step_time_s": 2.0},
}
ESTIMATES = [
    ("calculon", ("gpt3-175b", "calculon-a100-80g"), RUN | {"recompute": "full"}),
    ("calculon", ("gpt3-175b", "calculon-a100-80g"), RUN | {"pp": 1}),
    ("nersc", ("gpt3-175b", "nersc-b200"), RUN),
    ("amped", ("gpt3-175b", "h100-sxm"), RUN | {"tp_exchange": "all_reduce"}),
    ("amped", (str(CONFIG),), {}),
    ("amped", (str(CONFIG),), {"gpus": 768, "tp": 4}),
]
SEARCHES = [
    ("calculon", ("gpt3-175b", "calculon-a100-80g"), {"tp_overlap": False, "axes": ["tp", "pp"]}),
    ("calculon", ("gpt3-175b", "calculon-a100-80g"), {"gpus": [4, 8], "gbs": 4}),
    ("nersc", ("gpt3-175b", "nersc-b200"), {"method": "2d-seqp", "tokens": "1T", "layers": True}),
    ("nersc", ("gpt3-175b", "nersc-b200"), {"method": ["1d", "2d"], "gpus": "8..16"}),
    ("amped", ("gpt3-175b", "h100-sxm"), {"dtype": "fp16", "top": 2}),
    ("amped", (str(CONFIG),), {"gpus": 64}),
]


def _flags(arguments):
    """Arguments of Python as the command line has them."""
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            yield from (flag, text)


def _plain(result):
    return json.loads(as_json(result.to_dict()))


@pytest.mark.parametrize(("reference", "case", "run"), ESTIMATES)
def test_an_estimate_is_that_of_the_command(shardwise, reference, case, run):
    """All statistics under the model's own names, also where it refuses the run."""
    found = estimate(*case, **run, reference=reference, operations=True)
    words = ("--reference", reference, "--ops", "--json")
    code, out, _ = shardwise("estimate", *case, *_flags(run), *words)
    assert _plain(found) == json.loads(out)
    assert code == (found.infeasible is not None)
    assert found.reference == reference
    assert found.statistics or found.infeasible


@pytest.mark.parametrize(("reference", "case", "options"), SEARCHES)
def test_a_search_is_that_of_the_command(shardwise, reference, case, options):
    """Every count, every one of the best; only the time differs."""
    arguments = {"gpus": 16, "gbs": 16} | options
    found = search(*case, reference=reference, **arguments)
    words = ("--reference", reference, "--json")
    _, out, _ = shardwise("search", *case, *_flags(arguments), *words)
    expected = record_of(out)
    assert _plain(found) | {"elapsed_s": 0} == expected | {"elapsed_s": 0}
    assert (found.candidates, _plain(found)["best"]) == (expected["candidates"], expected["best"])


def test_a_sweep_is_that_of_the_command(shardwise):
    """Of NERSC's model, the only one with sweeps; options of shardwise's sweep are refused."""
    options = {"gpus": 64, "gbs": 64, "domain": [8, 64], "top": 1}
    case = ("gpt3-175b", "nersc-b200")
    vary = {"hbm_capacity": ["0.5x", "1x"], "hbm_bandwidth": "1x"}
    found = sweep(*case, reference="nersc", vary=vary, **options)
    words = ("--vary", "hbm_capacity=0.5x,1x", "--vary", "hbm_bandwidth=1x", "--json")
    _, out, _ = shardwise("sweep", *case, *_flags(options), *words, "--reference", "nersc")
    assert _plain(found) | {"elapsed_s": 0} == record_of(out) | {"elapsed_s": 0}
    assert [one["hbm_capacity"] for one in found.searches] == [96, 192] * 2
    for name, value in {"reference": "amped", "objective": "mfu", "sensitivity": True}.items():
        with pytest.raises(InputError) as error:
            sweep(*case, **{"reference": "nersc", "vary": vary} | options | {name: value})
        assert [fault.field for fault in error.value.faults] == [name]


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_run_without_a_type_has_one_that_the_system_has(reference):
    """A system with a rate of fp16 and none of bf16; a type that was set is not replaced."""
    system, run = "calculon-a100-80g", {n: value for n, value in RUN.items() if n != "dtype"}
    found = estimate("gpt3-175b", system, **run | {"recompute": "none"}, reference=reference)
    named = estimate("gpt3-175b", system, **RUN | {"recompute": "none"}, reference=reference)
    assert found == named
    best = search("gpt3-175b", system, gpus=64, gbs=64, top=1, reference=reference)
    expected = search(
        "gpt3-175b", system, gpus=64, gbs=64, top=1, reference=reference, dtype="fp16"
    )
    assert best.best == expected.best
    if reference != "nersc":  # it has one rate of matrix products for both types
        with pytest.raises(InputError, match="bf"):
            estimate("gpt3-175b", system, **run | {"dtype": "bf16"}, reference=reference)


def test_a_search_of_calculon_uses_a_type_of_its_system():
    """The only one that a system file has."""
    system = dict(CALCULON["systems"]["a100_80g"])
    system |= {unit: {"bfloat16": system[unit]["float16"]} for unit in ("matrix", "vector")}
    model = CALCULON["models"]["megatron-126M"]
    found = search(model, system, gpus=2, gbs=4, reference="calculon")
    assert found.best[0]["execution"]["datatype"] == "bfloat16"


def test_the_files_and_objects_of_a_user_are_read_alike():
    """Names, mappings and lists of systems."""
    one = search("gpt3-175b", "nersc-b200,nersc-h200", reference="nersc", gpus=8, gbs=8)
    two = search("gpt3-175b", ["nersc-b200", "nersc-h200"], reference="nersc", gpus="8", gbs="8")
    assert one.searches == two.searches


@pytest.mark.parametrize(
    ("reference", "option"),
    [(r, o) for r in ("calculon", "nersc", "amped") for o in OWNERS if r not in OWNERS[o]],
)
def test_an_option_of_another_model_is_refused(reference, option):
    """By its name, before any work; --plot is of the command alone."""
    values = {"fused_activation": "both", "save": "x.csv", "axes": ["tp"], "jobs": 2}
    values |= {"tokens": "1T", "method": "1d", "domain": 8}
    if option == "plot":
        return
    with pytest.raises(InputError, match=rf"^{option}: .*has no such option; "):
        search("x", "y", reference=reference, **{option: values.get(option, True)})


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"gpus": "many", "gbs": 8}, "gpus"),
        ({"gpus": 8}, "gbs"),
        ({"gpus": 8, "gbs": 8, "top": 0}, "top"),
        ({"gpus": 8, "gbs": 8, "dtype": "fp3"}, "dtype"),
        ({"gpus": 8, "gbs": 8, "tp_overlap": "ring"}, "tp_overlap"),
        ({"gpus": 8, "gbs": 8, "axes": ["tpp"]}, "axes"),
        ({"gpus": 8, "gbs": 8, "levels": True}, "levels"),
        ({"gpus": 8, "gbs": 8, "tp": 8}, "tp"),
        ({"gpus": 8, "gbs": 8, "reference": "calculn"}, "reference"),
    ],
)
def test_faults_of_a_search_name_the_argument(words, field):
    """Not the flag of the command, and not the name that the other model has for it."""
    with pytest.raises(InputError) as error:
        search("gpt3-175b", "calculon-a100-80g", **{"reference": "calculon"} | words)
    assert [fault.field for fault in error.value.faults] == [field]


def test_faults_of_an_estimate_name_the_argument():
    """Options that only an estimate of shardwise has, and a missing system."""
    with pytest.raises(InputError, match="gemms: has no effect with reference"):
        estimate(CONFIG, reference="amped", gemms=True)
    with pytest.raises(InputError, match="system: is missing: name a system, such as h100-sxm"):
        estimate("gpt3-175b", gpus=8, gbs=8)
    with pytest.raises(InputError, match="tokens: is missing"):
        estimate_training_time("llama3-8b", "h100-sxm", gpus=8, gbs=8, tp=8)


@pytest.mark.parametrize("file", [CONFIG, str(CONFIG)])
def test_a_configuration_alone_is_an_estimate(shardwise, file):
    """It brings model, system, strategy and tokens; other fields override it as flags do."""
    alone, changed = estimate(file), estimate(file, gpus=768, tp=4)
    assert alone == estimate(file, file, file)
    _, out, _ = shardwise("estimate", CONFIG, "--gpus", 768, "--tp", 4, "--json")
    expected = json.loads(out)
    assert (changed.step_time_s, changed.strategy) == (
        expected["step_time_s"],
        expected["strategy"],
    )
    _, out, _ = shardwise("estimate", CONFIG, "--json")
    days = json.loads(out)["whole_run"]["days"]
    assert estimate_training_time(file).days.expected == days["expected"]


def test_a_configuration_alone_is_searched_and_swept(shardwise):
    """Accelerators, batch, sequence and types are those of the file."""
    layout = {"tp": 8, "pp": 8, "vpp": 1, "mbs": 2, "recompute": "none", "zero": 1}
    found = search(CONFIG, **layout, top=1)
    _, out, _ = shardwise("search", CONFIG, *_flags(layout), "--top", 1, "--json")
    expected = json.loads(out)
    assert found.best[0].step_time_s == expected["best"][0]["step_time_s"]
    assert found.space["gpus"] == (1536,)
    swept = sweep(CONFIG, vary={"hbm.bandwidth": "1x,2x"}, **layout)
    assert swept.points[0].best[0].step_time_s == found.best[0].step_time_s
    fewer = sweep(CONFIG, vary={"gpus": "768,1536"}, **layout)
    assert fewer.points[1].best[0].step_time_s == found.best[0].step_time_s


def test_other_rows_of_the_lookup_tables():
    """As in AMPeD's `estimateTrainingTime("H100 PCIe")`."""
    rows = {"accelerator": "H100 PCIe"}
    assert estimate(CONFIG, rows=rows).system == "amped-h100-pcie"
    fast, own = (estimate_training_time(CONFIG, rows=one).days for one in (rows, None))
    assert fast.expected < own.expected
    theirs = [
        estimate(CONFIG, reference="amped", rows=one).statistics["Total time to train (days)"]
        for one in (rows, {"accelerator": "A100"}, None)
    ]
    assert theirs[0] < theirs[1] == theirs[2]
    for bad in ({"accelerater": "A100"}, {"accelerator": "H100"}):
        with pytest.raises(InputError, match="did you mean"):
            estimate(CONFIG, rows=bad)
    with pytest.raises(InputError, match=r"rows: .*is for an AMPeD configuration"):
        estimate("llama3-8b", "h100-sxm", rows=rows, gpus=8, gbs=8)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("gpt3-175b", {}),
        ("gpt3-175b", {"to": "calculon"}),
        ("nersc-b200", {"to": "nersc"}),
        (str(CONFIG), {"kind": "strategy"}),
        ("strategy.yaml", {"to": "calculon", "model": "gpt3-175b", "system": "calculon-a100-80g"}),
    ],
)
def test_a_conversion_is_that_of_the_command(shardwise, tmp_path, monkeypatch, file, options):
    """A config object, or the content of the file of another tool."""
    monkeypatch.chdir(tmp_path)
    Path("strategy.yaml").write_text(as_json(RUN), encoding="utf-8")
    found = convert(file, **options)
    _, out, _ = shardwise("convert", file, *_flags(options))
    if "to" in options:
        assert json.loads(as_json(found)) == json.loads(out)
    else:
        Path("written.yaml").write_text(out, encoding="utf-8")
        assert type(found).load("written.yaml") == found


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"to": "calculom"}, ["to"]),
        ({"kind": "modle"}, ["kind"]),
        ({"model": "gpt3-175b"}, ["model"]),
        ({"to": "calculon"}, ["model", "system"]),
    ],
)
def test_faults_of_a_conversion_name_the_argument(tmp_path, options, fields):
    """All of them at once."""
    file = tmp_path / "strategy.json"
    file.write_text(as_json(RUN), encoding="utf-8")
    with pytest.raises(InputError) as error:
        convert(file, **options)
    assert [fault.field for fault in error.value.faults] == fields


@pytest.mark.parametrize(
    ("suite", "options"),
    [("seqsel", {}), ("runs", {"data": "runs.json", "grade": "A", "references": True})],
)
def test_a_suite_is_that_of_the_command(shardwise, tmp_path, monkeypatch, suite, options):
    """The same rows and summary."""
    monkeypatch.chdir(tmp_path)
    Path("runs.json").write_text(as_json({"runs": [DENSE]}), encoding="utf-8")
    _, out, _ = shardwise("validate", suite, *_flags(options), "--json")
    assert _plain(validate_suite(suite, **options)) == record_of(out)


@pytest.mark.parametrize(
    ("suite", "options", "message"),
    [
        ("seqsell", {}, "suite: 'seqsell': no such suite; .*did you mean 'seqsel'"),
        ("seqsel", {"data": "x"}, "data: 'x': has no effect on the suite seqsel"),
        ("kernels", {"data": "x", "grade": "A"}, "grade: 'A': has no effect on the suite kernels"),
        ("kernels", {}, "data: is missing: set it to a folder"),
        ("runs", {"grade": "D"}, "grade: 'D': allowed: A, B, C"),
        ("runs", {"kind": "sparse"}, "kind: 'sparse': allowed: dense, moe"),
    ],
)
def test_faults_of_a_suite_name_the_argument(suite, options, message):
    """Before any run is predicted."""
    with pytest.raises(InputError, match=message):
        validate_suite(suite, **options)
