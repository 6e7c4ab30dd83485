"""An AMPeD configuration on the command line: alone, on another system, with flags over it."""

import json

import pytest

from amped_samples import CHIP, CONFIG, TABLES, small, tables, whole
from rows import each_row
from shardwise import Model, Strategy, System, estimate
from shardwise.predecessors.amped.files import read_config
from shardwise.predecessors.amped.translation import amped_case_of_parameters


@pytest.fixture
def config(tmp_path):
    """The small configuration as a file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small(tokens_to_train="1 M", spare=3)))
    return path


def test_a_configuration_suffices(shardwise, config):
    """The estimate of its model, system and strategy, with the whole run and what became of it."""
    code, out, err = shardwise("estimate", config, "--json")
    record = json.loads(out)
    result = estimate(Model.load(config), System.load(config), Strategy.load(config))
    assert (code, err) == (0, "")
    assert record["step_time_s"] == result.step_time_s
    assert record["strategy"]["extents"] == "tp=2+dp=2"
    assert record["whole_run"]["tokens"] == 1_007_616  # 123 steps of 64 sequences
    assert record["imported"]["format"] == "amped"
    (spare,) = record["imported"]["not_used"]
    assert (spare["parameter"], spare["value"]) == ("spare", 3)
    assert len(record["imported"]["taken"]) == 31


def test_people_are_told_what_has_no_meaning(shardwise, config):
    """Below the estimate, by reason."""
    code, out, _ = shardwise("estimate", config)
    assert code == 0
    below = out[out.index("imported from AMPeD: ") :]
    assert "31 of 32 parameters say something here" in below
    assert "spare 3: unknown here, and no formula of AMPeD needs it" in below
    assert "note: as in AMPeD, communication is not hidden" in below


def test_tables_from_elsewhere(shardwise, tmp_path):
    """Beside the file, by --tables, or asked for."""
    alone = tmp_path / "mine.json"
    alone.write_text(json.dumps(whole()))
    code, out, err = shardwise("estimate", alone)
    assert (code, out) == (2, "")
    assert err.count("give it (--tables FILE)") == 3
    code, out, err = shardwise("estimate", alone, "--tables", TABLES, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["imported"]["tables"] == str(TABLES)
    code, out, _ = shardwise("estimate", CONFIG, "--json")
    assert json.loads(out)["step_time_s"] == record["step_time_s"]
    (tmp_path / "lookup_tables.json").write_text(json.dumps(tables()))
    code, out, _ = shardwise("estimate", alone, "--json")
    assert json.loads(out)["imported"]["tables"] == str(tmp_path / "lookup_tables.json")


def test_another_system_or_strategy_stands_before_its_own(shardwise, config, tmp_path):
    """What is not taken then is told too."""
    code, out, err = shardwise("estimate", config, "h100-sxm", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["system"] == "h100-sxm"
    why = {one["parameter"]: one["why"] for one in record["imported"]["not_used"]}
    assert why["frequency"] == "the system comes from elsewhere"
    strategy = tmp_path / "strategy.yaml"
    strategy.write_text("{gpus: 8, gbs: 8}")
    code, out, err = shardwise("estimate", config, "--strategy", strategy, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["strategy"]["dp"] == 8


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["--zero", 3], {"zero": 3, "extents": "tp=2+dp=2"}),
        (["--tp", 4], {"tp": 4, "gpus": 64, "extents": None}),
        (["--gpus", 16], {"gpus": 16, "dp": 4, "extents": None}),
        (["--dp", "2x8"], {"dp": 16, "extents": "tp=2+dp=2"}),
        (["--sequence-parallel"], {"tp_exchange": "rs_ag"}),
        (["--tokens", "3M"], {}),
    ],
)
def test_flags_go_over_the_file(shardwise, config, flags, fields):
    """And what of it would contradict them goes, which is said."""
    code, out, err = shardwise("estimate", config, *flags, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert {name: record["strategy"][name] for name in fields} == fields
    assert record["whole_run"]["tokens"] == (3_006_464 if "--tokens" in flags else 1_007_616)
    left = any("ignored: overridden" in note for note in record["imported"]["notes"])
    assert left == bool({"--tp", "--gpus", "--dp", "--sequence-parallel"} & set(flags))


@each_row(
    ("words", "problem"),
    [
        (
            ("gpt3-175b",),
            "Missing argument SYSTEM, such as h100-sxm (to list",
        ),
        (("nosuch.json",), "nosuch.json: no such file"),
        ((TABLES,), "holds AMPeD's lookup tables; give the configuration that looks them up"),
        (("gpt3-175b", "h100-sxm", "--tables", TABLES), "is for an AMPeD configuration"),
        ((CONFIG, "--tables", "nosuch.json"), "nosuch.json: no such file"),
    ],
)
def test_what_is_missing_or_of_no_use_is_told(shardwise, words, problem):
    """One line, exit code 2."""
    code, out, err = shardwise("estimate", *words)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1


def test_a_fault_names_the_file(shardwise, tmp_path):
    """With category, parameter and value."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small(frequency="fast")))
    _, _, err = shardwise("estimate", path)
    assert err.startswith(f"error: {path}: {CHIP}.frequency: 'fast': must be a number")


def test_other_verbs_take_it(shardwise, config, tmp_path):
    """As a model, a system and a strategy; converted to files of ours it is the same."""
    code, out, _ = shardwise("models", config, "--json")
    assert (code, json.loads(out)["model"]["hidden"]) == (0, 256)
    code, out, _ = shardwise("systems", config)
    assert code == 0
    assert "AMPeD's constant share of the peak" in out
    paths = {}
    for kind in ("model", "system", "strategy"):
        paths[kind] = tmp_path / f"{kind}.yaml"
        assert shardwise("convert", config, paths[kind], "--kind", kind)[0] == 0
    nouns = (paths["model"], paths["system"], paths["strategy"])
    assert estimate(*nouns).step_time_s == estimate(config, config, config).step_time_s
    assert shardwise("convert", config)[1].startswith("name: config\n")


def test_a_search_takes_model_and_system_from_it(shardwise, config):
    """Without SYSTEM."""
    words = ["--gpus", 4, "--gbs", 4, "--fix", "tp=2,recompute=none,zero=1", "--count"]
    code, out, err = shardwise("search", config, *words)
    assert (code, err) == (0, "")
    assert shardwise("search", config, config, *words)[1] == out
    assert shardwise("search", "gpt3-175b", *words)[0] == 2


def test_predecessors_say_what_they_have_no_word_for(shardwise, config):
    """Of its system, as of one of ours."""
    code, out, err = shardwise("estimate", config, "--reference", "calculon", "--json")
    assert (code, out) == (2, "")
    assert "amped-config: network[1].domain: null: Calculon needs the size" in err


def test_ampeds_own_answer_is_that_of_its_parameters(shardwise):
    """The file as it is, by its own names."""
    code, out, err = shardwise("estimate", CONFIG, "--reference", "amped", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    expected = amped_case_of_parameters(read_config(whole(), str(CONFIG)).read_values()).answer()
    assert record == expected
    assert record["number_of_batches"] == pytest.approx(450e9 / 2048 / 2304)
    code, out, _ = shardwise("estimate", CONFIG, "--also", "amped", "--json")
    assert json.loads(out)["also"]["amped"] == expected


def test_flags_change_what_they_say_of_ampeds_own_answer(shardwise, config):
    """Its tokens, efficiency and precisions stay; what says what the file does changes nothing."""
    words = ["estimate", config, "--reference", "amped", "--json"]
    before = json.loads(shardwise(*words)[1])
    for same in (["--dp", "8"], ["--dp", "2x4"], ["--gpus", "32"], ["--mbs", "2", "--zero", "1"]):
        assert json.loads(shardwise(*words, *same)[1]) == before
    told = read_config(json.loads(config.read_text()), str(config)).read_values()
    changed = {"inter_node_data_parallel_degree": 8.0, "number_of_microbatches_per_minibatch": 2.0}
    after = amped_case_of_parameters(told | changed, fill=True).answer()
    assert json.loads(shardwise(*words, "--dp", "16")[1]) == after
    code, _, err = shardwise(*words, "--attention", "multiquery")
    assert (code, err.count("\n")) == (2, 1)
    assert "attention: 'multiquery': AMPeD has keys and values of its own for each head" in err


def test_its_search_takes_what_the_configuration_tells(shardwise, config):
    """A permutation takes as long as the estimate of it, with one micro-batch for each stage."""
    words = ["--reference", "amped", "--json", "--gbs", "64"]
    _, out, _ = shardwise("search", config, *words, "--gpus", "32", "--top", "1000")
    degrees = [1, 4, 2, 1, 1, 4]
    found = [b for b in json.loads(out)["best"] if [*b["degrees"].values()] == degrees]
    flags = ["--tp", "2", "--pp", "4", "--dp", "1x4", "--mbs", "4"]
    one = json.loads(shardwise("estimate", config, *words, *flags)[1])
    step = one["Total time to train (s)"] / one["number_of_batches"]
    assert [b["step_time_s"] for b in found] == [pytest.approx(step, rel=1e-12)]


def test_its_search_needs_nothing_else(shardwise, config):
    """Accelerators and batch are those of the file: the same as with both flags; flags override."""
    words = ("search", config, "--reference", "amped", "--json")
    found, same, other = (
        json.loads(shardwise(*words, *more)[1])
        for more in ((), ("--gpus", 32, "--gbs", 64), ("--gpus", 16))
    )
    assert (found["gpus"], found["tokens_to_train"], other["gpus"]) == (32, 64 * 128, 16)
    assert found["best"] == same["best"]
    assert found["best"] != other["best"]
    assert found["candidates"] == json.loads(shardwise(*words, "--count")[1])["candidates"]


def test_what_a_configuration_leaves_open_is_assumed_and_told(shardwise, config):
    """For AMPeD's own answer as for ours: the head counts, one expert; no more."""
    code, out, err = shardwise("estimate", config, "--reference", "amped", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assumed = record["assumed"]
    assert assumed["decoder_flag"] == assumed["number_of_experts"] == 1
    assert "tokens_to_train" not in assumed
    assert record["number_of_batches"] == 1e6 / 128 / 64
    code, out, _ = shardwise("estimate", config, "--reference", "amped")
    assert code == 0
    assert "assumed: " in out
    assert "decoder_flag 1" in " ".join(out.split())


def test_a_configuration_may_say_the_efficiency_of_products(shardwise, tmp_path):
    """Twice as efficient, half as long but for the other operations."""
    times = []
    for share in (0.4, 0.8):
        path = tmp_path / f"{share}.json"
        path.write_text(json.dumps(small(efficiency=share)))
        _, out, _ = shardwise("estimate", path, "--reference", "amped", "--json")
        times.append(json.loads(out)["Computation time weight updates (s)"])
    assert times[0] == pytest.approx(2 * times[1])


def test_what_follows_from_degrees_follows_from_those_of_flags(shardwise, tmp_path):
    """Experts over the replicas, ZeRO by the stages; and the notes say what stands."""
    path = tmp_path / "experts.json"
    path.write_text(json.dumps(small(number_of_experts=8)))

    def asked(*flags):
        record = json.loads(shardwise("estimate", path, "--json", *flags)[1])
        told = record["strategy"]
        return told["dp"], told["ep"], told["zero"], " ".join(record["imported"]["notes"])

    for flags in ([], ["--dp", "8"], ["--dp", "2x4"], ["--gpus", "32"], ["--tp", "4"]):
        assert asked(*flags)[:3] == (8, 8, 1)
    dp, ep, zero, notes = asked("--gpus", "16")
    assert (dp, ep, zero) == (4, 4, 1)
    assert "ep 4, as dp allows" in notes
    assert asked("--gpus", "32", "--pp", "1")[:3] == (16, 8, 3)
    assert "as dp allows" not in asked("--ep", "2")[3]
    assert "nothing hides" not in asked("--dp-overlap")[3]


def test_what_is_missing_is_told_for_all_at_once(shardwise, tmp_path):
    """Whatever it is needed for, each in one line that names it."""
    for name in ("dimensionality", "attention_heads", "batch_size", "frequency", "context"):
        path = tmp_path / f"without-{name}.json"
        path.write_text(json.dumps(small(**{name: None})))
        for verb in (["estimate", path], ["compare", path, path]):
            code, out, err = shardwise(*verb)
            assert (code, out) == (2, "")
            assert {line.split(": ")[2] for line in err.splitlines()} == {name}
    path.write_text('{"neural_network_training_parameters": {"parameters": {}}}')
    err = shardwise("estimate", path)[2]
    told = [line.split(": ")[2] for line in err.splitlines()]
    assert len(told) == len(set(told))
    assert {"dimensionality", "batch_size", "frequency"} < set(told)
    path.write_text('{"mapping_parameters": 3}')
    err = shardwise("estimate", path)[2]
    assert err == f"error: {path}: mapping_parameters: 3: must be a mapping\n"


def test_every_verb_calls_it_the_same(shardwise, tmp_path):
    """By its file, where no row of a table names model or system."""
    path = tmp_path / "My Run_v1.2.json"
    path.write_text(json.dumps(small()))
    told = json.loads(shardwise("estimate", path, "--json")[1])
    assert (told["model"], told["system"]) == ("my-run-v1.2", "amped-my-run-v1.2")
    assert json.loads(shardwise("models", path, "--json")[1])["name"] == told["model"]
    assert json.loads(shardwise("systems", path, "--json")[1])["name"] == told["system"]
