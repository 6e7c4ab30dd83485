"""Results that live on: saved, read anywhere, from standard input, as tables, in pull requests."""

import io
import json
import sys
from pathlib import Path

import pytest

from rows import each_row
from shardwise import (
    InputError,
    Model,
    Stack,
    Strategy,
    System,
    compare,
    diagnose,
    estimate,
    estimate_recipe,
    explain,
    largest_model,
    load,
    search,
    sweep,
)
from shardwise.cli.schema import SCHEMAS
from shardwise.config import files as shardwise_files
from shardwise.planning.search.space import Space
from written import record_of

CASE = ("megatron-126m", "h100-sxm")
SPACE = {"gpus": 4, "gbs": 8, "pp": 1, "micro_batch_size": 1, "zero": 1, "tp": [1, 2]}


@pytest.fixture(scope="module")
def found():
    """Two plans."""
    return search(*CASE, **SPACE, top=2)


@pytest.fixture
def file(found, tmp_path, monkeypatch):
    """The search in a file of the working directory."""
    monkeypatch.chdir(tmp_path)
    found.save("found.json")
    return "found.json"


@pytest.fixture
def piped(monkeypatch, shardwise):
    """Run a command with a text on standard input."""

    def call(text, *words):
        stream = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stream)
        return shardwise(*words)

    return call


def results(found):
    """A result of each kind that Python saves."""
    plans = [estimate(*CASE, gpus=4, gbs=8, tp=tp) for tp in (1, 2)]
    swept = sweep(*CASE, strategy=plans[0].strategy, vary={"inner.bandwidth": ["1x", "2x"]})
    return [found, found.best[0], found.recommendation.plan, plans[0], swept, compare(*plans)]


def test_what_is_saved_is_read_again(found, tmp_path):
    """Equal for every kind of result, as JSON and YAML; and a table with a line or more."""
    for one in results(found):
        for ending in ("json", "yaml.gz"):
            path = tmp_path / f"saved.{ending}"
            one.save(path)
            assert load(path) == one
        one.save(tmp_path / "saved.csv")
        assert len((tmp_path / "saved.csv").read_text().splitlines()) > 1


def test_a_plan_stands_for_model_system_and_strategy(file, found, shardwise):
    """Wherever a model is expected; flags override fields, and what follows from them follows."""
    plan = found.best[1]
    tp = plan.strategy["tp"]
    for verb in ("estimate", "trace"):
        code, out, _ = shardwise(verb, f"{file}#2", "--json")
        assert code == 0
        assert record_of(out)["step_time_s"] == pytest.approx(plan.step_time_s, rel=1e-12)
    assert json.loads(shardwise("peers", f"{file}#2", "--json")[1])["axes"]["tp"]["degree"] == tp
    assert f"--tensor-model-parallel-size {tp}\n" in shardwise("export", "megatron", f"{file}#2")[1]
    words = ("sweep", f"{file}#2", "--fixed", "--vary", "tp=1,2", "--json")
    points = json.loads(shardwise(*words)[1])["points"]
    assert [one["best"][0]["strategy"]["dp"] for one in points] == [4, 2]
    named = json.loads(shardwise("compare", f"{file}#1", f"{file}#2", "--json")[1])["scenarios"]
    assert [one["name"] for one in named] == ["found#1", "found#2"]
    wider = json.loads(shardwise("estimate", f"{file}#2", "--gpus", 8, "--json")[1])["strategy"]
    assert (wider["tp"], wider["dp"]) == (tp, 8 // tp)
    assert estimate(f"{file}#2", "a100-80gb-sxm").system == "a100-80gb-sxm"
    assert Strategy.load(f"{file}#2").tp == tp
    code, _, err = shardwise("estimate", f"{file}#3")
    assert (code, err) == (
        2,
        f"error: {file}: plan: 3: must be a plan of the search, from 1 to 2\n",
    )


def test_a_shown_plan_can_be_saved_and_shown_again(file, shardwise):
    """A plan of a search in a file of its own is an estimate."""
    assert shardwise("show", f"{file}#2", "-o", "plan.json") == (0, "", "")
    assert shardwise("show", "plan.json") == shardwise("show", f"{file}#2")


def test_standard_input_stands_for_every_file(file, piped, shardwise, tmp_path):
    """Whatever its format; faults name it."""
    text = (tmp_path / file).read_text()
    assert piped(text, "show", "-") == shardwise("show", file)
    assert piped(text, "show", "-#2") == shardwise("show", f"{file}#2")
    shardwise("models", "megatron-126m", "-o", "model.yaml")
    shardwise("convert", "model.yaml", "model.json")
    expected = json.loads(shardwise("models", "model.yaml", "--json")[1])["parameters"]
    for content in ((tmp_path / "model.yaml").read_text(), (tmp_path / "model.json").read_text()):
        code, out, _ = piped(content, "models", "-", "--json")
        assert (code, record_of(out)["parameters"]) == (0, expected)
    assert piped("gpus = 4\nglobal_batch_size = 8\n", "estimate", *CASE, "--strategy", "-")[0] == 0
    script = Path(shardwise_files.__file__).parents[1] / "launchers/diagnose/example/train.sh"
    assert piped(script.read_text(), "import", "-")[0] == 0
    code, _, err = piped("{", "show", "-")
    assert (code, err.startswith("error: standard input: ")) == (2, True)


def test_a_folder_stands_for_the_model_in_it(shardwise, tmp_path, monkeypatch):
    """As downloads of Hugging Face are; its name is that of the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    fields = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    fields |= {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(fields))
    words = ("mine", "h100-sxm", "--gpus", 2, "--gbs", 4, "--seq-len", 32, "--json")
    for verb in ("estimate", "trace"):
        assert json.loads(shardwise(verb, *words)[1])["model"] == "mine"
    assert Model.load(tmp_path / "mine") == Model.load(tmp_path / "mine" / "config.json")


@each_row("quiet", ["-q", "--quiet"])
def test_nothing_but_errors_is_on_standard_error(shardwise, quiet):
    """Notes and counts are left out."""
    words = ("sweep", *CASE, "--gpus", 4, "--gbs", 8, "--fixed", "--vary", "tp=1,2")
    assert "points in" in shardwise(*words)[2]
    assert shardwise(*words, quiet)[2] == ""
    assert shardwise(quiet, "estimate", "nothing", "h100-sxm")[2].startswith("error: ")


def test_results_of_a_newer_schema_are_refused(tmp_path, shardwise):
    """With both versions; those without a version are read."""
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"shardwise": {"version": "9.1", "schema": 7}}))
    expected = f"error: {path}: shardwise.schema: 7: was written by shardwise '9.1'; shardwise "
    code, _, err = shardwise("show", path)
    assert (code, err.startswith(expected)) == (2, True)
    plan = estimate(*CASE, gpus=4, gbs=8)
    path.write_text(json.dumps(plan.to_dict()))
    assert load(path) == plan
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match="is no saved result"):
        load(path)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (Model.load("megatron-126m"), "model"),
        (System.load("h100-sxm"), "system"),
        (Stack.load("nemo-2025"), "stack"),
        (Strategy(gpus=4, global_batch_size=8), "strategy"),
        (Space(gpus=4, global_batch_size=8), "space"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_yaml_names_its_schema(config, kind, tmp_path):
    """In a comment that editors read; the site has that schema. The file is read as it was."""
    config.to_file(tmp_path / "a.yaml")
    first = (tmp_path / "a.yaml").read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=https://")
    assert first.endswith(f"/reference/schema/{kind}.json")
    assert kind in SCHEMAS
    assert type(config).load(tmp_path / "a.yaml") == config


@each_row(
    "words",
    [
        ("estimate", *CASE, "--gpus", 4, "--gbs", 8),
        ("compare", "found.json#1", "found.json#2"),
        ("sweep", *CASE, "--gpus", 4, "--gbs", 8, "--fixed", "--vary", "inner.bandwidth=1x,2x"),
        ("stacks",),
        ("validate",),
    ],
)
def test_tables_are_written_by_ending(file, shardwise, tmp_path, words):
    """A line for each row of the result; what is no table is refused with the endings."""
    del file
    code, out, err = shardwise(*words, "-o", "table.csv", "-q")
    if words == ("validate",):
        assert (code, "is no table; allowed endings: .json, .yaml" in err) == (2, True)
        return
    assert (code, out, err) == (0, "", "")
    assert len((tmp_path / "table.csv").read_text().splitlines()) >= 2


def test_a_pull_request_fails_where_a_plan_gets_slower(file, found, shardwise):
    """By more than is allowed, or where it no longer fits; the reason is said, also in Markdown."""
    words = ("compare", f"{file}#1", f"{file}#2")
    slower = found.best[1].step_time_s / found.best[0].step_time_s - 1
    assert slower > 0
    more, less = (f"{100 * slower * factor:.6f}%" for factor in (1.01, 0.99))
    assert shardwise(*words, "--fail-if-slower", more)[0] == 0
    code, out, err = shardwise(*words, "--fail-if-slower", less, "--markdown")
    line = f"found#2 takes {100 * slower:.1f} % longer (--fail-if-slower {less})"
    assert (code, err) == (1, f"failed: {line}\n")
    assert f"**failed:** {line}" in out
    tables = [line for line in out.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in tables)
    assert shardwise(*words, "--fail-if-unfit")[0] == 0
    big = ("estimate", "llama3-70b", "h100-sxm", "--gpus", 8, "--gbs", 8, "-o", "big.json")
    assert shardwise(*big)[0] == 1
    code, _, err = shardwise("compare", file, "big.json", "--fail-if-unfit")
    assert (code, "big fits with 0 % (--fail-if-unfit)" in err) == (1, True)
    code, _, err = shardwise(*words, "--fail-if-slower", "x")
    assert (code, "must be a percentage of 0 or more, such as 2%" in err) == (2, True)


def test_every_answer_can_be_drawn():
    """Explanations, the largest model, recipes and diagnoses, too: each first chart has data."""
    pytest.importorskip("plotly")
    example = Path(shardwise_files.__file__).parents[1] / "launchers/diagnose/example"
    log, trace = example / "run.log", example / "trace.json.gz"
    answers = [
        explain(*CASE, SPACE, {"tp": 1}),
        largest_model("h100-sxm", gpus=1, recompute="full", count=3),
        estimate_recipe("llama3-8b-h100-8-bf16"),
        diagnose(example / "train.sh", "h100-sxm", log=log, changes=0),
        diagnose(example / "train.sh", "h100-sxm", log=log, trace=trace, changes=0),
    ]
    for answer in answers:
        assert len(answer.plot().data) > 0, type(answer)
