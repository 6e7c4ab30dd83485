"""Files of scenarios: what is read back, estimated or told apart, and what is refused."""

import json

import pytest

import amped_samples
from compared_samples import MODEL, SYSTEM, A, asked
from shardwise import Estimate, InputError, compare, search

pytestmark = pytest.mark.any_software


@pytest.mark.needs("predecessors")
def test_saved_estimates_are_read_back(saved, pair, shardwise, tmp_path):
    """Also compressed, and as the command writes them, with what other models say beside."""
    found = compare(*saved)
    assert found.changes[0].parts == compare(*pair).changes[0].parts
    assert [one.name for one in found.scenarios] == ["first", "second"]
    out = tmp_path / "third.yaml"
    words = ("calculon-gpt3-175b", "calculon-a100-80g", "--gpus", 64, "--tp", 8, "--gbs", 64)
    words = (*words, "--dtype", "fp16", "--ops", "--also", "calculon", "-o", out)
    assert shardwise("estimate", *words)[0] in (0, 1)
    found = compare(saved[0], out)
    assert found.scenarios[1].name == "third"
    assert found.changes[0].after_s == pytest.approx(1e6 / found.scenarios[1].tokens_per_s)


def test_of_a_search_the_best_plan_counts(tmp_path, pair):
    """As if it had been estimated."""
    space = {"gpus": 16, "gbs": 32, "tp": [2, 4], "pp": 2, "placement": "tp-cp-dp-pp"}
    found = search(MODEL, SYSTEM, space)
    file = tmp_path / "search.json"
    file.write_text(json.dumps(found.to_dict()))
    compared = compare(pair[0], file)
    assert compared.scenarios[1].step_time_s == found.best[0].step_time_s
    assert compared.scenarios[1].name == "search"

    file.write_text(json.dumps(found.to_dict() | {"best": [], "advised": []}))
    with pytest.raises(InputError, match=r"search.json: best: the search found no plan"):
        compare(pair[0], file)


def test_scenarios_are_estimated(tmp_path, pair):
    """Files beside the scenario's own are found there; a name of its own is used."""
    (tmp_path / "way.yaml").write_text("gpus: 16\ntp: 4\npp: 2\ngbs: 32\nrecompute: selective\n")
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: tp four\nmodel: {MODEL}\nsystem: {SYSTEM}\nstrategy: way.yaml\n")
    found = compare(pair[1], file)
    assert found.changes[0].delta_s == 0
    assert found.asked == ()
    assert found.scenarios[1].name == "tp four"


def test_configurations_of_amped_tell_all(tmp_path, shardwise):
    """Model, system, strategy and tokens; what became of one is no part of the estimate."""
    files = []
    for batch in (64, 128):
        file = tmp_path / f"batch{batch}.json"
        file.write_text(json.dumps(amped_samples.small(batch_size=batch)))
        files.append(file)
    found = compare(*files)
    assert asked(found)["global_batch_size"] == (64, 128)
    saved = tmp_path / "saved.json"
    assert shardwise("estimate", files[0], "-o", saved)[0] in (0, 1)
    assert "imported" in json.loads(saved.read_text())
    assert compare(files[0], saved).changes[0].delta_s == 0


def test_files_of_one_name_are_told_apart(saved, tmp_path):
    """By their folders; the same file twice by its place."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "first.json").write_text(saved[0].read_text())
    found = compare(saved[0], folder / "first.json")
    assert [one.name for one in found.scenarios] == [str(saved[0]), str(folder / "first.json")]
    twice = compare(saved[0], saved[0])
    assert [one.name for one in twice.scenarios] == [f"{saved[0]} (1)", f"{saved[0]} (2)"]


def broken(change):
    """The first scenario's file with something changed."""

    def made(data):
        change(data)
        return json.dumps(data)

    return made


FAULTS = {
    "not an estimate": (lambda _: '{"a": 1}', "x.json: is not an estimate, the result of a sear"),
    "damaged": (lambda data: json.dumps(data)[:-9], "x.json: line 1: not JSON: "),
    "a sweep": (
        lambda _: '{"systems": [], "axes": [], "points": []}',
        "a scenario of model, system and strategy: it is that of sweep",
    ),
    "newer": (
        broken(lambda data: data.update(karma=3)),
        "x.json: karma: unknown field; was it written by another version? Run it again",
    ),
    "older": (
        broken(lambda data: data.pop("mfu")),
        "x.json: mfu: is missing; was it written by another version? Run it again",
    ),
    "newer strategy": (
        broken(lambda data: data["strategy"].update(karma=3)),
        "x.json: strategy.karma: unknown field; was it written by another version?",
    ),
    "newer part": (
        broken(lambda data: data["time_s"].update(karma=3.0)),
        "x.json: time_s.karma: unknown part; was it written by another version?",
    ),
    "missing part": (
        broken(lambda data: data["time_s"].pop("bubble")),
        "x.json: time_s.bubble: is missing; was it written by another version?",
    ),
    "does not add up": (
        broken(lambda data: data["time_s"].update(forward=99.0)),
        "x.json: time_s: the parts do not add up to step_time_s ",
    ),
    "no time": (
        broken(lambda data: data.update(step_time_s=0.0)),
        "x.json: step_time_s: 0.0: must be a time above 0",
    ),
    "no tokens": (
        broken(lambda data: data.update(tokens_per_step=0)),
        "x.json: tokens_per_step: 0: must be at least 1",
    ),
    "wrong type": (
        broken(lambda data: data.update(fits="maybe")),
        "x.json: fits: 'maybe': must be true or false",
    ),
    "wrong scenario": (
        lambda _: json.dumps({"model": "x9", "system": SYSTEM, "strategy": {}}),
        "x.json: model: 'x9': no such model; to list them",
    ),
    "no strategy": (
        lambda _: json.dumps({"model": MODEL, "system": SYSTEM}),
        "x.json: strategy: is missing and has no default",
    ),
    "illegal strategy": (
        lambda _: json.dumps({"model": MODEL, "system": SYSTEM, "strategy": {"gpus": 8, "tp": 3}}),
        "x.json: strategy: tp: 3: must divide gpus 8",
    ),
    "reliability alone": (
        lambda _: json.dumps(
            {"model": MODEL, "system": SYSTEM, "strategy": A, "site": {"pue": 1.2}}
        ),
        "x.json: site: {'pue': 1.2}: needs tokens, as it describes a training run",
    ),
}


@pytest.mark.parametrize(("made", "told"), FAULTS.values(), ids=FAULTS)
def test_a_file_that_is_no_scenario_is_refused(saved, pair, shardwise, tmp_path, made, told):
    """With a line for each fault, that names the file; no traceback."""
    file = tmp_path / "x.json"
    file.write_text(made(pair[0].to_dict()))
    code, out, err = shardwise("compare", saved[0], file)
    assert (code, out) == (2, "")
    lines = [line.replace(str(tmp_path) + "/", "") for line in err.splitlines()]
    assert any(told in line for line in lines), err
    assert all(line.startswith("error: x.json") for line in lines)


def test_of_many_faults_some_are_told(saved, tmp_path):
    """A file of another program is not gone through field by field."""
    file = tmp_path / "x.json"
    file.write_text('{"step_time_s": 1.0, "time_s": {}}')
    with pytest.raises(InputError) as caught:
        compare(saved[0], file)
    assert len(caught.value.faults) == 6
    more = len([f for f in Estimate.model_fields.values() if f.is_required()]) - 2 - 5
    assert str(caught.value.faults[-1]) == f"{file}: and {more} more faults"


def test_one_scenario_is_not_compared(saved, shardwise):
    """Nor none, nor something that is no scenario; faults of all files come together."""
    code, _, err = shardwise("compare", saved[0])
    assert (code, err) == (2, "error: compare: needs two or more scenarios, not 1\n")
    with pytest.raises(InputError, match="scenario A: 3: is not an estimate"):
        compare(3, 4)
    code, _, err = shardwise("compare", "no.json", "none.json")
    assert code == 2
    assert err == "error: no.json: no such file\nerror: none.json: no such file\n"
    with pytest.raises(InputError, match=r"names: .*must be 2 different names"):
        compare(*saved, names=["x", "x"])
