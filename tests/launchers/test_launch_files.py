"""Launch files in place of models and strategies, and `import`, with a small launcher."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fake_launcher
from shardwise import InputError, Model, Strategy, compare, estimate, read_launch
from shardwise.foreign import find_launch
from shardwise.launchers import registry as launchers
from shardwise.launchers.registry import catalog_model
from written import record_of

RUN = ("--gpus", "16", "--gbs", "64", "--tp", "2")


def _with_model(name, *lines):
    model = json.dumps(Model.load(name).to_dict())
    return "\n".join([f"{fake_launcher.MARK}1.0", f"model = {model}", *lines, ""])


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    """Know one launcher, and work in a folder with its files."""
    monkeypatch.setattr(launchers, "LAUNCHERS", (fake_launcher.LAUNCHER,))
    monkeypatch.setattr(launchers, "READERS", ())
    monkeypatch.chdir(tmp_path)
    run = ("gpus = 16", "global_batch_size = 64", "tp = 2", "dp = 8", "colour = red", "shade = 7")
    Path("run.sh").write_text(_with_model("llama3-8b", *run))
    plain = "\n".join([f"{fake_launcher.MARK}1.0", "global_batch_size = 64", "tp = 2", ""])
    Path("plain.txt").write_text(plain)
    Path("wrong.sh").write_text(_with_model("llama3-8b", "gpus = 16", "tp = [1"))
    Path("field.sh").write_text(_with_model("llama3-8b", "gpus = 16", "tp = 0"))


NOTES = (
    "run.sh: not used: colour: 'red': shardwise does not know the option\n"
    "run.sh: not used: shade: '7': shardwise does not know the option\n"
)
ASSUMED = "run.sh: assumed: seq_len of the model, micro_batch_size 1\n"
_UNKNOWN = {"because": "shardwise does not know the option", "effect": "unknown"}
FOUND = [
    {"option": name, "value": value, **_UNKNOWN}
    for name, value in (("colour", "red"), ("shade", "7"))
]
LACKS = {"origins": {}, "incomplete": ["seq_len", "micro_batch_size"], "not_understood": FOUND}
LAUNCH = {"source": "run.sh", "launcher": "fake", "release": "1.0", **LACKS}


def test_a_launch_file_stands_for_the_model_of_an_estimate(shardwise):
    """It sets model, strategy and stack; what is not used is said on stderr and in the JSON."""
    code, out, err = shardwise("estimate", "run.sh", "h100-sxm", "--json")
    found = json.loads(out)
    assert (code, err) == (0, NOTES + ASSUMED)
    assert found["launch"] == LAUNCH
    own = {"gpus": 16, "tp": 2, "gbs": 64, "stack": fake_launcher.STACK}
    assert found["step_time_s"] == estimate("llama3-8b", "h100-sxm", own).step_time_s


def test_flags_override_a_launch_file(shardwise):
    """Replicas of the file follow from the degrees of flags; its own dp is left out."""
    code, out, err = shardwise("estimate", "run.sh", "h100-sxm", "--tp", "4", "--json")
    strategy = json.loads(out)["strategy"]
    assert code == 0
    assert "dp of run.sh left out: it belongs to its tp\n" in err
    assert (strategy["tp"], strategy["dp"], strategy["gpus"]) == (4, 4, 16)
    strategy = json.loads(shardwise("estimate", "run.sh", "h100-sxm", "--dp", "4", "--json")[1])
    assert strategy["strategy"]["gpus"] == 8


def test_a_launch_file_stands_for_a_strategy(shardwise):
    """With the model and the accelerators of the command line, which the file may lack."""
    words = ("llama3-8b", "h100-sxm", "--strategy", "plain.txt", "--gpus", "16", "--json")
    code, out, _ = shardwise("estimate", *words)
    found = json.loads(out)
    assert code == 0
    assert found["launch"]["source"] == "plain.txt"
    assert (found["strategy"]["dp"], found["strategy"]["stack"]) == (8, fake_launcher.STACK)
    Path("own.yaml").write_text("gpus: 32\ngbs: 32\n")
    code, out, _ = shardwise("estimate", "run.sh", "h100-sxm", "--strategy", "own.yaml", "--json")
    found = json.loads(out)
    assert (found["model"], found["strategy"]["gpus"], found["strategy"]["tp"]) == (
        "llama3-8b",
        32,
        1,
    )
    assert "launch" not in found


@pytest.mark.parametrize(
    "command",
    [
        "search run.sh h100-sxm --fix mbs=1,tp=2 --json",
        "sweep run.sh h100-sxm --fix mbs=1,tp=2 --vary fabric.bandwidth=1x,2x --json",
        "sweep run.sh h100-sxm --fixed --vary fabric.bandwidth=1x,2x --json",
        "sweep llama3-8b h100-sxm --strategy run.sh --vary fabric.bandwidth=1x,2x --json",
        "trace run.sh h100-sxm --json",
        "peers run.sh h100-sxm --json",
        "trace llama3-8b h100-sxm --strategy run.sh --json",
    ],
)
def test_other_verbs_read_launch_files(shardwise, command):
    """What is trained is that of the file: accelerators, batch and software."""
    code, out, err = shardwise(*command.split())
    found = json.loads(out)
    assert code == 0
    assert NOTES in err
    assert found["launch"] == LAUNCH
    text = json.dumps(found)
    assert f'"{fake_launcher.STACK}"' in text
    if "best" in found:
        plans = found["best"]
        assert {plan["strategy"]["global_batch_size"] for plan in plans} == {64}
        assert {plan["strategy"]["gpus"] for plan in plans} == {16}
    for point in found.get("points", []):
        assert point["best"][0]["strategy"]["gpus"] == 16


def test_saved_results_of_launch_files_are_read_again(shardwise):
    """Their note on the launch file does not count as a field of the result."""
    fix = ("--fix", "mbs=1,tp=2,pp=1")
    for verb in ("estimate", "search"):
        words = ("run.sh", "h100-sxm", *(fix if verb == "search" else ()))
        assert shardwise(verb, *words, "-o", f"{verb}.json")[0] == 0
    assert shardwise("compare", "estimate.json", "search.json")[0] == 0
    assert shardwise("convert", "search.json", "a.csv")[0] == 0


def test_launch_files_are_compared(shardwise):
    """On the system of --system; a scenario names the file as its model."""
    Path("other.sh").write_text(Path("run.sh").read_text().replace("tp = 2", "tp = 4\ncp = 1"))
    Path("other.sh").write_text(Path("other.sh").read_text().replace("dp = 8", "dp = 4"))
    code, out, err = shardwise("compare", "run.sh", "other.sh", "--system", "h100-sxm", "--json")
    found = json.loads(out)
    assert code == 0
    assert err.startswith(NOTES)
    assert [one["field"] for one in found["asked"]][:2] == ["tp", "dp"]
    assert [one["source"] for one in found["launch"]] == ["run.sh", "other.sh"]
    Path("scenario.yaml").write_text("model: run.sh\nsystem: h100-sxm\n")
    same = compare("run.sh", "scenario.yaml", system="h100-sxm")
    assert same.asked == ()
    code, _, err = shardwise("compare", "run.sh", "other.sh")
    assert code == 2
    assert (
        "error: run.sh: is a launch file without a system: add one, such as --system h100-sxm"
        in err
    )
    code, _, err = shardwise("compare", "scenario.yaml", "scenario.yaml", "--system", "h100-sxm")
    assert code == 2
    assert "is for launch files, and there is none" in err


def test_python_reads_launch_files():
    """By `read_launch`, and where a model or a strategy loads from a file."""
    launch = read_launch("run.sh")
    assert [str(one) for one in launch.not_understood] == [
        line.removeprefix("run.sh: not used: ") for line in NOTES.splitlines()
    ]
    direct = estimate(launch.model, "h100-sxm", launch.strategy)
    loaded = estimate(Model.load("run.sh"), "h100-sxm", Strategy.load("run.sh"))
    assert direct == loaded
    assert estimate("run.sh", "h100-sxm", "run.sh").step_time_s == direct.step_time_s
    own = read_launch("plain.txt", model="llama3-8b", gpus=16)
    assert (own.model.name, own.strategy["gpus"]) == ("llama3-8b", 16)


def test_files_without_a_model_say_where_to_name_it(shardwise):
    """DeepSpeed and accelerate files have none."""
    with pytest.raises(InputError, match=r"plain\.txt: holds no model: name the model"):
        Model.load("plain.txt")
    code, _, err = shardwise("estimate", "plain.txt", "h100-sxm")
    problem = "holds no model: name the model as MODEL, and this file with --strategy"
    assert (code, err) == (2, f"error: plain.txt: {problem}\n")


def test_a_model_of_the_catalog_is_named():
    """By its architecture, whatever the file calls it."""
    for name in ("llama3-8b", "deepseek-v3", "gpt3-175b"):
        called = Model.load(name).model_copy(
            update={"name": "mine", "description": "", "sources": {}}
        )
        assert catalog_model(called) == Model.load(name)
        assert catalog_model(called.model_copy(update={"hidden": called.hidden + 2})) is None
    same = {"gpt3-1t", "megatron-1t"}
    assert {catalog_model(Model.load(name)).name for name in same} == same
    learned = Model.load("gpt3-175b")
    longer = learned.model_copy(update={"name": "mine", "max_positions": 4096})
    assert catalog_model(longer) is None


def test_import_lists_everything(shardwise):
    """Model, stack, strategy, and the options that are not used."""
    code, out, err = shardwise("import", "run.sh")
    assert (code, err) == (0, "")
    for text in (
        "run.sh: fake 1.0",
        "model: llama3-8b (catalog), 8.03 billion parameters",
        "stack: torchtitan-2025",
        "colour",
        "shardwise does not know the option",
    ):
        assert text in out
    code, out, _ = shardwise("import", "run.sh", "--json")
    assert record_of(out) == {
        "source": "run.sh",
        "launcher": "fake",
        "release": "1.0",
        "model": {"name": "llama3-8b", "catalog": True, "parameters": 8030261248},
        "stack": fake_launcher.STACK,
        "software": None,
        "strategy": {"gpus": 16, "tp": 2, "dp": 8, "global_batch_size": 64},
        "fork": "",
        **LACKS,
    }


def test_import_writes_files_that_load(shardwise):
    """The strategy with its stack, and the model, for other verbs."""
    words = ("-o", "strategy.yaml", "--model-output", "model.yaml")
    assert shardwise("import", "run.sh", *words)[0] == 0
    assert Model.load("model.yaml") == Model.load("llama3-8b")
    assert Strategy.load("strategy.yaml") == Strategy.load("run.sh")
    words = ("--model", "llama3-8b", "--gpus", "8", "--json")
    found = json.loads(shardwise("import", "plain.txt", *words)[1])
    assert (found["model"]["name"], found["strategy"]["gpus"]) == ("llama3-8b", 8)
    code, out, _ = shardwise("import", "plain.txt")
    assert code == 0
    assert "model: none in this file; name it with --model" in out


WRONG = {
    "import none.sh": "none.sh: no such file",
    "import other.yaml": "other.yaml: is no launch file of Fake",
    "import binary.sh": "binary.sh: is a binary file, not text",
    "import utf16.sh": "is UTF-16 text",
    "import huge.sh": "is larger than 8 MiB",
    "import empty.sh": "the file is empty",
    "import .": "is a directory, not a file",
    "import deep.json": "deep.json: is no launch file",
    "import wrong.sh": "wrong.sh: tp: '[1': is no JSON",
    "import field.sh": "field.sh: tp: 0: must be",
    "import run.sh --gpus 0": "must be a whole number of at least 1",
    "import run.sh --model none": "no such model; to list them",
    "import run.sh --set A": "must be NAME=VALUE",
    "import run.sh --set A=1 --set A=2": "A is set twice",
    "import run.sh -o run.sh": "allowed endings: .json, .yaml",
    "import in.yaml -o in.yaml": "is an input and an output of the same command",
    "import run.sh -o a.yaml --model-output a.yaml": "is also the file of output",
    "import plain.txt --model-output a.yaml": "there is no model to write",
    "estimate wrong.sh h100-sxm": "wrong.sh: tp: '[1': is no JSON",
    "estimate field.sh h100-sxm": "field.sh: tp: 0: must be",
    "estimate llama3-8b h100-sxm --strategy wrong.sh": "wrong.sh: tp: '[1': is no JSON",
    "estimate binary.sh h100-sxm": "binary.sh: is a binary file, not text",
    "estimate huge.sh h100-sxm": "is larger than 8 MiB",
    "estimate other.sh h100-sxm": "other.sh: is no launch file of Fake; cannot tell the format",
    "estimate llama3-8b h100-sxm --strategy other.sh": "other.sh: is no launch file of Fake",
    "estimate llama3-8b other.sh --gpus 8 --gbs 8": "other.sh: cannot tell the format",
    "estimate run.sh": "Missing argument SYSTEM",
    "search run.sh h100-sxm --reference calculon": "has no effect on a launch file",
    "compare wrong.sh wrong.sh --system h100-sxm": "wrong.sh: tp: '[1': is no JSON",
}


@pytest.mark.parametrize("command", WRONG)
def test_bad_input_is_one_line(shardwise, command):
    """Exit code 2, one line with the file and what is wrong, and nothing written."""
    Path("other.yaml").write_text("a: 1\n")
    Path("other.sh").write_text("echo hello\n")
    Path("binary.sh").write_bytes(b"\0\1\2" * 100)
    Path("utf16.sh").write_bytes("torchrun".encode("utf-16"))
    Path("huge.sh").write_bytes(b"x" * (8 * 2**20 + 1))
    Path("empty.sh").write_text("")
    Path("deep.json").write_text("[" * 100_000)
    Path("in.yaml").write_text(Path("run.sh").read_text())
    before = {path: path.read_bytes() for path in Path().iterdir()}
    code, out, err = shardwise(*command.split())
    assert (code, out, err.removeprefix(NOTES).count("\n")) == (2, "", 1)
    assert WRONG[command] in err
    assert before == {path: path.read_bytes() for path in Path().iterdir()}


def test_files_of_other_tools_stay_theirs(monkeypatch):
    """A launcher that recognizes everything does not get what another tool wrote."""
    greedy = fake_launcher.LAUNCHER
    monkeypatch.setattr(launchers, "LAUNCHERS", (replace(greedy, recognise=lambda *_: True),))
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    config |= {
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "architectures": ["LlamaForCausalLM"],
    }
    Path("config.json").write_text(json.dumps(config))
    assert find_launch("config.json") is None
    assert Model.load("config.json").hidden == 64
