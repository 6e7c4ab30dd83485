"""`export LAUNCHER`, with a small launcher: files, refusals, the nearest plan, saved plans."""

import json
import pickle
import shlex
from pathlib import Path

import pytest

import fake_launcher
from shardwise import (
    CannotExportError,
    InputError,
    Strategy,
    estimate,
    export,
    read_launch,
    search,
)
from shardwise.analysis.saved_plan import read_plan
from shardwise.launchers import registry as launchers

RUN = ("llama3-8b", "h100-sxm", "--gpus", "16", "--gbs", "64", "--tp", "2")
FIELDS = {"gpus": 16, "gbs": 64, "tp": 2}


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    """Know one launcher, and work in an empty folder."""
    monkeypatch.setattr(launchers, "LAUNCHERS", (fake_launcher.LAUNCHER,))
    monkeypatch.setattr(launchers, "READERS", ())
    monkeypatch.chdir(tmp_path)


def _comments(path):
    return [line[2:] for line in Path(path).read_text().splitlines() if line.startswith("# ")]


def test_a_plan_is_written_with_its_prediction(shardwise):
    """The file says what to expect, and what wrote it; it is executable where the launcher says."""
    code, out, err = shardwise("export", "fake", *RUN, "-o", "run.fake")
    wrote, read, yours = err.splitlines()
    assert (code, out, wrote) == (0, "", "wrote run.fake, run-more.env")
    result = estimate("llama3-8b", "h100-sxm", FIELDS | {"stack": fake_launcher.STACK})
    assert read == f"the file, read back, is the plan: step time {result.step_time_s:.3g} s"
    what, step, rate, memory, still, command = _comments("run.fake")
    assert still == yours == "still to set: data set, learning rate, epochs, checkpoints"
    assert what == "llama3-8b on h100-sxm with torchtitan-2025"
    assert f"step time {result.step_time_s:.3g} s" in step
    assert f"{result.interval.low_s:.3g} s to {result.interval.high_s:.3g} s in 8 of 10" in step
    assert f"{result.tokens_per_s:,.0f} tokens/s" in rate
    assert f"MFU {result.mfu * 100:.1f} %" in rate
    assert f"{result.memory_bytes.reserved / 2**30:.3g} GiB of 79.6 GiB on stage 0" in memory
    assert command.startswith("shardwise export fake llama3-8b h100-sxm --gpus 16 --tp 2")
    assert Path("run.fake").stat().st_mode & 0o111
    assert not Path("run-more.env").stat().st_mode & 0o111


def test_without_a_file_the_first_is_printed(shardwise):
    """The other files are named on stderr."""
    code, out, err = shardwise("export", "fake", *RUN, "--release", "0.9")
    assert (code, err.splitlines()[0]) == (0, "-o FILE also writes *-more.env")
    assert out.startswith("#!fake 0.9 .fake\n")


@pytest.mark.parametrize(
    "flags",
    [
        "--pp 2 --vpp 2 --mbs 2 --recompute full",
        "--cp 2 --zero 3 --no-fsdp-reshard --seq-len 4096 --dp-shard 2",
        "--pp 2 --schedule gpipe --stage-layers 15,17 --recompute full",
        "--stack torchtitan-eager --quantization fp8_tensor",
    ],
)
def test_the_command_of_a_file_writes_it_again(shardwise, flags):
    """The command in the comments gives the same bytes."""
    assert shardwise("export", "fake", *RUN, *flags.split(), "-o", "one.fake")[0] == 0
    command = shlex.split(_comments("one.fake")[-1])
    assert shardwise(*command[1:], "-o", "two.fake")[0] == 0
    assert Path("one.fake").read_bytes() == Path("two.fake").read_bytes()


def test_what_the_launcher_cannot_express_is_refused_with_the_nearest_plan(shardwise):
    """Nothing is written; a line for each reason, and what to change."""
    code, out, err = shardwise("export", "fake", *RUN, "--cp", "2", "--pp", "2", "-o", "run.fake")
    assert (code, out) == (2, "")
    offer, reason = err.splitlines()
    assert offer.startswith("nearest plan that Fake can run: ")
    assert offer.endswith("(--nearest writes it)")
    assert reason == "error: --cp: 2: Fake has no cp in a pipeline"
    assert not list(Path().iterdir())


def test_what_the_stack_cannot_run_is_refused_likewise(shardwise):
    """The rules are those of the launcher's stack, and nothing lifts them."""
    code, _, err = shardwise("export", "fake", *RUN, "--pp", "2", "--schedule", "zb-h1")
    assert code == 2
    assert "nearest plan that Fake can run: schedule 1f1b instead of zb-h1" in err
    assert "lifts" not in err
    code, _, err = shardwise("export", "fake", *RUN, "--schedule", "zb-h1", "--any-software")
    assert (code, err.count("\n")) == (2, 1)
    assert "--any-software: has no effect on an export" in err


def test_nearest_writes_the_nearest_plan(shardwise):
    """The file and a line on stderr say what changed."""
    flags = ("--cp", "2", "--pp", "2", "--nearest", "-o", "run.fake")
    code, _, err = shardwise("export", "fake", *RUN, *flags)
    assert code == 0
    changed = err.splitlines()[0]
    assert changed.startswith("written with ")
    words = changed.removeprefix("written with ").split("; step")[0]
    assert f"nearest plan that Fake can run: {words}" in _comments("run.fake")
    launch = read_launch("run.fake")
    assert launch.strategy.get("cp", 1) == 1 or launch.strategy.get("pp", 1) == 1


def test_a_plan_that_does_not_fit_is_not_written(shardwise):
    """Exit code 1, as for an estimate, with what fits."""
    large = ("llama3-70b", "h100-sxm", "--gpus", "64", "--gbs", "64")
    code, out, err = shardwise("export", "fake", *large, "--zero", "0", "-o", "run.fake")
    assert (code, out) == (1, "")
    assert "the plan does not fit" in err
    assert "nearest plan that Fake can run" in err
    assert not list(Path().iterdir())
    nearest = ("--zero", "0", "--nearest", "-o", "run.fake")
    assert shardwise("export", "fake", *large, *nearest)[0] == 0
    assert shardwise("estimate", "run.fake", "h100-sxm")[0] == 0


def test_a_model_without_options_has_no_nearest_plan():
    """No change of the strategy helps where the launcher lacks a feature of the model."""
    with pytest.raises(CannotExportError, match="tied_embeddings: true: Fake has no") as caught:
        export("fake", "llama3.2-1b", "h100-sxm", FIELDS)
    assert caught.value.nearest is None
    assert not caught.value.too_large


def test_python_returns_files_and_raises_the_nearest_plan():
    """`export` writes nothing itself; its error survives another process."""
    found = export("fake", "llama3-8b", "h100-sxm", FIELDS, ending=".sh", release="0.9")
    assert (found.launcher, found.release, found.changes) == ("fake", "0.9", ())
    assert [one.ending for one in found.files] == [".sh", "-more.env"]
    assert found.estimate.software.stack == fake_launcher.STACK
    wrong = FIELDS | {"pp": 2, "vpp": 4}
    with pytest.raises(CannotExportError) as caught:
        export("fake", "llama3-8b", "h100-sxm", wrong)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert again.nearest == caught.value.nearest
    assert str(again) == str(caught.value)
    near = export("fake", "llama3-8b", "h100-sxm", wrong, nearest=True)
    assert near.changes == caught.value.nearest.changes
    assert [(one.field, one.given) for one in near.changes] == [("vpp", 4)]


def test_the_first_release_that_can_express_a_plan_is_written():
    """Where one is requested, the plan must be one of that release."""
    again = FIELDS | {"recompute": "full"}
    assert export("fake", "llama3-8b", "h100-sxm", FIELDS).release == "1.0"
    found = export("fake", "llama3-8b", "h100-sxm", again)
    assert (found.release, found.files[0].text[:10]) == ("0.9", "#!fake 0.9")
    with pytest.raises(CannotExportError, match=r"recompute: 'full': Fake 1\.0 has none") as caught:
        export("fake", "llama3-8b", "h100-sxm", again, release="1.0")
    assert [one.field for one in caught.value.nearest.changes] == ["recompute"]


def test_what_no_release_can_express_is_refused_in_words_of_the_first():
    """With the nearest plan; types may change where they are at fault."""
    with pytest.raises(CannotExportError, match=r"Fake 1\.0 has no option for it") as caught:
        export("fake", "llama3-8b", "b200-sxm", FIELDS | {"quantization": "mxfp8"})
    assert [one.field for one in caught.value.nearest.changes] == ["quantization"]


@pytest.fixture(scope="module")
def results():
    """An estimate, and a search with several plans."""
    fixed = {"micro_batch_size": 1, "gpus": 16, "gbs": 64, "top": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launchers, "LAUNCHERS", (fake_launcher.LAUNCHER,))
        found = search("llama3-8b", "h100-sxm", launcher="fake", **fixed)
    return {
        "estimate.json": estimate("llama3-8b", "h100-sxm", FIELDS).to_dict(),
        "search.json": found.to_dict(),
    }


@pytest.fixture
def saved(results):
    """Save both, and return the search."""
    for name, record in results.items():
        Path(name).write_text(json.dumps(record))
    return results["search.json"]


def test_plans_of_results_are_exported(shardwise, saved):
    """Each plan of a search for the launcher, with the times that the search printed."""
    for number, plan in enumerate(saved["advised"], 1):
        assert shardwise("export", "fake", f"search.json#{number}", "-o", "a.fake")[0] == 0
        launch = read_launch("a.fake")
        resolved = Strategy.validated(launch.strategy).resolved(launch.model)
        assert resolved.to_dict() == plan["strategy"]
    assert shardwise("export", "fake", "search.json", "-o", "b.fake")[0] == 0
    assert shardwise("export", "fake", "search.json#1", "-o", "c.fake")[0] == 0
    assert Path("b.fake").read_bytes() == Path("c.fake").read_bytes()


def test_flags_override_a_plan(shardwise, saved):
    """Degrees of flags replace those of the plan; what follows from them follows."""
    assert saved["best"]
    flags = ("--tp", "4", "--pp", "1", "--vpp", "1", "--cp", "1", "-o", "a.fake")
    assert shardwise("export", "fake", "search.json", *flags)[0] == 0
    launch = read_launch("a.fake")
    resolved = Strategy.validated(launch.strategy).resolved(launch.model)
    assert (resolved.tp, resolved.dp, resolved.tp_exchange) == (4, 4, "rs_ag")


def test_the_stack_of_a_plan_gives_way_to_that_of_the_launcher(shardwise, saved):
    """The estimate was of the system's stack, which need not be the launcher's."""
    assert saved
    code, _, err = shardwise("export", "fake", "estimate.json", "--zero", "3")
    assert code == 0
    assert "estimate.json#1: is of stack megatron-bridge-2026; rules and times are of " in err


WRONG_PLANS = {
    "search.json#0": "must be FILE#N",
    "search.json#-1": "must be FILE#N",
    "search.json#x": "must be FILE#N",
    "search.json#9999999999999": "must be a plan of the search, from 1 to ",
    "search.json#1000": "must be a plan of the search, from 1 to ",
    "estimate.json#2": "the file holds one estimate: use #1",
    "none.json#1": "no such file",
    "model.yaml#1": "is not the result of estimate --json or search --json",
    "empty.json": "the search found no plan",
    "list.json": "must be a list of plans",
    "number.json": "must be an estimate",
    "other.json": "has other parameters than the model of that name",
    "unknown.json": "is none of the catalog: name the model or its file",
}


@pytest.mark.parametrize("plan", WRONG_PLANS)
def test_wrong_plans_are_one_line(shardwise, saved, plan):
    """Exit code 2, with file, field and what is allowed."""
    Path("model.yaml").write_text("tp: 8\n")
    own = {"space": {}, "candidates": 1}
    Path("empty.json").write_text(json.dumps(own | {"best": []}))
    Path("list.json").write_text(json.dumps(own | {"best": "x"}))
    Path("number.json").write_text(json.dumps(own | {"best": [1]}))
    assert saved["best"]
    first = json.loads(Path("estimate.json").read_text())
    Path("other.json").write_text(json.dumps(first | {"parameters": 7}))
    Path("unknown.json").write_text(json.dumps(first | {"model": "mine"}))
    code, out, err = shardwise("export", "fake", plan, "-o", "a.fake")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert WRONG_PLANS[plan] in err
    assert not Path("a.fake").exists()


def test_a_file_may_have_the_mark_in_its_name(saved):
    """`a#b.json` is a file, `a#b.json#2` its second plan."""
    Path("a#b.json").write_text(json.dumps(saved))
    assert read_plan("a#b.json").source == "a#b.json#1"
    assert read_plan("a#b.json#2").estimate.step_time_s == saved["advised"][1]["step_time_s"]


WRONG = {
    "export fakes llama3-8b h100-sxm --gpus 16 --gbs 64": "did you mean 'fake'",
    "export fake llama3-8b h100-sxm --gpus 16 --gbs 64 --release 2": "allowed: 1.0, 0.9",
    "export fake llama3-8b h100-sxm --gpus 16 --gbs 64 -o run.toml": "allowed endings: .fake, .sh",
    "export fake llama3-8b h100-sxm --gpus 16 --gbs 64 -o folder.sh": "is a directory, not a file",
    "export fake llama3-8b h100-sxm --gpus 16 --gbs 64 -o no/run.sh": "no such folder",
    "export fake h100-sxm --gpus 16": "Missing argument SYSTEM",
    "export fake": "Missing argument 'MODEL'",
    "export graph llama3-8b h100-sxm --gpus 16 --gbs 64 --nearest": "is for `export LAUNCHER`",
    "export graph llama3-8b h100-sxm --gpus 16 --gbs 64 --release 1": "is for `export LAUNCHER`",
    "export fake llama3-8b h100-sxm --gpus 16 --gbs 64 --csv a.csv": "has no effect on a launcher",
    "export fake llama3-8b h100-sxm --gbs 64": "--gpus is missing",
    "search llama3-8b h100-sxm --gpus 16 --gbs 64 --for none": "allowed: fake",
    "search llama3-8b h100-sxm --gpus 16 --gbs 64 --for fake --count": "only counts",
    "search llama3-8b h100-sxm --gpus 16 --gbs 64 --for fake --explain tp=2": "about one strategy",
    "sweep llama3-8b h100-sxm --gpus 16 --gbs 64 --fixed --for fake": "which evaluate one strategy",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_commands_are_one_line(shardwise, command):
    """Exit code 2, one line, nothing written."""
    Path("folder.sh").mkdir()
    code, out, err = shardwise(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert WRONG[command] in err
    assert [path.name for path in Path().iterdir()] == ["folder.sh"]


def test_no_file_next_to_the_launch_file_is_an_input(shardwise):
    """The check is for every file that is written, before the first is."""
    shardwise("export", "fake", *RUN, "-o", "run.fake")
    Path("a-more.env").write_bytes(Path("run.fake").read_bytes())
    flags = ("h100-sxm", "-o", "a.fake")
    code, _, err = shardwise("export", "fake", "./a-more.env", *flags)
    assert (code, err.count("\n")) == (2, 1)
    assert "a-more.env: is an input of the same command" in err
    assert not Path("a.fake").exists()


def test_listed_plans_of_a_search_can_be_exported(shardwise):
    """`--for` leaves out what has no option, and says how many plans that is."""
    words = (
        "llama3-8b",
        "h100-sxm",
        "--gpus",
        "16",
        "--gbs",
        "64",
        "--json",
        "--fix",
        "mbs=1,tp=2,zero=2,dp_overlap=true",
    )
    code, out, err = shardwise("search", *words, "--for", "fake", "--pareto", "--top", "30")
    found = json.loads(out)
    assert code == 0
    assert (found["launcher"], found["space"]["stack"]) == ("fake", [fake_launcher.STACK])
    assert found["left_out"] > 0
    assert f"{found['left_out']} plans left out: fake has no options for them" in err
    for plan in found["best"] + found["pareto"]:
        strategy = Strategy.validated(plan["strategy"])
        assert strategy.vpp <= 2
        assert strategy.cp == 1 or strategy.pp == 1
    code, out, _ = shardwise("search", *words, "--stack", fake_launcher.STACK, "--top", "30")
    every = {json.dumps(plan["strategy"]) for plan in json.loads(out)["best"]}
    assert {json.dumps(plan["strategy"]) for plan in found["best"]} < every


def test_a_search_for_a_model_without_options_says_so(shardwise):
    """The fault is that of the model, and no empty list."""
    words = ("llama3.2-1b", "h100-sxm", "--gpus", "8", "--gbs", "8", "--for", "fake")
    code, out, err = shardwise("search", *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "error: model: tied_embeddings: true: Fake has no option for it"


def test_sweeps_list_plans_that_can_be_exported(shardwise):
    """At every point."""
    words = ("llama3-8b", "h100-sxm", "--gpus", "16", "--gbs", "64", "--fix", "pp=4,tp=1,zero=2")
    vary = ("--vary", "fabric.bandwidth=0.5x,1x", "--top", "20")
    code, out, err = shardwise("sweep", *words, *vary, "--for", "fake", "--json")
    found = json.loads(out)
    assert code == 0
    plans = [plan["strategy"] for point in found["points"] for plan in point["best"]]
    assert plans
    assert all(plan["vpp"] <= 2 and plan["cp"] == 1 for plan in plans)
    assert found["left_out"] > 0
    assert "left out" in err


def test_python_checks_its_arguments():
    """Names and types, with one fault."""
    with pytest.raises(InputError, match="launcher: 'nobody': allowed: fake"):
        export("nobody", "llama3-8b", "h100-sxm", FIELDS)
    with pytest.raises(InputError, match="release: '3': allowed"):
        export("fake", "llama3-8b", "h100-sxm", FIELDS, release="3")
    with pytest.raises(InputError, match=r"output: '\.toml': allowed endings"):
        export("fake", "llama3-8b", "h100-sxm", FIELDS, ending=".toml")
