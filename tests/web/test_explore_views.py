"""Views of the explorer's tabs, computed in this process."""

import html
import json
from pathlib import Path

import pytest

from shardwise import (
    InputError,
    Model,
    System,
    choose_cluster,
    diagnose,
    estimate,
    estimate_training_time,
    search,
)
from shardwise.config.strategy import Strategy
from shardwise.planning.largest_value import largest_value
from shardwise.planning.nearest import change_to_fit
from shardwise.report.console import chance, seconds
from shardwise.report.tables.advice import recommendation_items
from shardwise.report.tables.cluster import days, dollars
from shardwise.report.tables.estimate import change_words, verdict
from shardwise.web import views
from shardwise.web.state import State

pytest.importorskip("plotly")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FIELDS = {"gpus": "64", "global_batch_size": "256", "tp": "2"}


def question(model="llama3-8b", figures=None, **fields):
    """A question of the page."""
    strategy = {name: text for name, text in (FIELDS | fields).items() if text is not None}
    return {
        "model": model,
        "system": "h100-sxm",
        "figures": figures or {},
        "strategy": strategy,
        "dark": False,
    }


def test_an_estimate_shows_the_figures_of_the_command_line():
    """Step time, memory, cost, and only the charts that are open; edited figures count."""
    view = views.estimate_view(question(pp="2"), ["timeline", "roofline"], dark=True)
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 64, "gbs": 256, "tp": 2, "pp": 2})
    shown = {name: value for name, value, _ in view["facts"]}
    assert shown["Tokens/s"] == f"{found.tokens_per_s:,.0f}"
    assert shown["Cost"] == f"${found.cost.usd_per_billion_tokens:,.0f}"
    assert set(view["charts"]) == {"timeline", "roofline"}
    assert view["charts"]["timeline"]["layout"]["font"]["color"] == "#e6edf3"
    slow = views.estimate_view(question(figures={"nvlink.bandwidth": "0.1x"}), [], dark=False)
    assert slow["facts"][0] != views.estimate_view(question(), [], dark=False)["facts"][0]
    json.dumps(view)


def test_verdict_change_and_training_run_are_those_of_the_command_line():
    """The same words, and days and price with their ranges."""
    asked = question(model="llama3-70b", tp="4") | {"run": {"tokens": "1T"}}
    found = estimate("llama3-70b", "h100-sxm", asked["strategy"])
    run = estimate_training_time("llama3-70b", "h100-sxm", asked["strategy"], tokens="1T")
    view = views.estimate_view(asked, ["tables"], dark=False)
    shown = {name: (value, more) for name, value, more in view["facts"]}
    assert view["verdict_line"] == verdict(found)
    assert html.escape(verdict(found)) in view["tables"]
    assert shown["P(fits)"][0] == chance(found.fits_probability)
    assert shown["Training time"][0] == f"{days(run.days.expected)} days"
    assert shown["Price of the run"][0] == dollars(run.usd.expected)
    assert days(run.days.low) in shown["Training time"][1]
    assert "per GPU-hour (CoreWeave" in shown["Cost"][1]
    assert "set tokens" in str(views.estimate_view(question(), [], dark=False)["facts"])
    strategy = Strategy.validated(asked["strategy"])
    model, system = Model.load("llama3-70b"), System.load("h100-sxm")
    change = change_to_fit(model, system, strategy)
    assert (found.verdict == "fits") is False
    assert views.nearest_view(asked)["words"] == change_words(change)


def test_fine_tuning_is_a_word_of_the_page():
    """The shorthand of the command line, in estimates, searches and addresses."""
    asked = question(tp=None, gpus="2", global_batch_size="4", seq_len="2048", finetune="qlora")
    found = estimate("llama3-8b", "h100-sxm", asked["strategy"])
    assert found.strategy["base_weights"] == "nf4"
    view = views.estimate_view(asked, [], dark=False)
    assert view["facts"][0][1] == seconds(found.step_time_s)
    state = State(strategy=asked["strategy"])
    assert "--finetune qlora" in state.command()
    assert State.of_query(state.to_query()) == state


def test_the_export_opens_on_the_trainer_that_is_described():
    """Whatever engine runs its plan; else on the launcher of the stack."""
    named = {"llama-factory": "llama-factory", "TRL 1.9": "trl", "PyTorch FSDP2": "torchtitan"}
    for stack, launcher in named.items():
        view = views.estimate_view(question(stack=stack, tp="1", zero="3"), [], dark=False)
        assert (view["faults"], view["launcher"]) == ([], launcher)
    assert views.estimate_view(question(), [], dark=False)["launcher"] == "megatron-bridge"


def test_changed_figures_of_a_model_are_those_of_a_file_with_a_base():
    """By path; the fault of a wrong one names it."""
    state = State(shape={"hidden": "8192", "layers.0.count": "16"})
    model = Model.load(state.model_value())
    assert (model.hidden, model.depth) == (8192, 16)
    own = State(
        model=state.model.__class__(name="mine", data=model.to_dict()), shape={"vocab": "9"}
    )
    assert Model.load(own.model_value()).vocab == 9
    wrong = question(model=State(shape={"hidden": "wide"}).model_value())
    assert "hidden: 'wide'" in views.estimate_view(wrong, [], dark=False)["faults"][0]
    listed = {one["figure"]: one["value"] for one in _figures("llama3-8b")}
    assert listed["hidden"] == "4096"
    assert listed["layers.0.attention.kv_heads"] == "8"


def _figures(model):
    return views.figures_view(model, "model")["figures"]


def test_clusters_are_those_of_the_command_line():
    """The cheapest and the fastest can be loaded; without tokens there is one line."""
    asked = question() | {
        "systems": "h100-sxm,a100-80gb-sxm",
        "space": {"gpus": "64", "gbs": "512", "tp": "1", "pp": "1", "zero": "1"},
        **dict.fromkeys(("deadline", "budget"), ""),
        "prices": "h100-sxm=2",
        "run": {"tokens": "100B"},
    }
    found = choose_cluster(
        "llama3-8b",
        ["h100-sxm", "a100-80gb-sxm"],
        asked["space"],
        tokens="100B",
        prices={"h100-sxm": 2.0},
    )
    view = views.clusters_view(asked)
    assert dollars(found.options[found.cheapest].usd) in view["html"]
    assert view["offers"][0]["system"] == found.options[found.cheapest].system
    assert set(view["charts"]) == {"clusters"}
    with pytest.raises(InputError, match="tokens: is missing"):
        views.clusters_view(asked | {"run": {}})


def test_the_largest_value_is_that_of_the_command_line():
    """With what limits it, and a plan to load."""
    asked = question(gpus="8", global_batch_size="64") | {"command": "shardwise estimate x y"}
    found = largest_value("llama3-8b", "h100-sxm", Strategy.validated(asked["strategy"]), "seq-len")
    view = views.largest_view(asked | {"largest": "seq-len"})
    assert f"{found.value:,}" in view["html"]
    assert "limited by" in view["html"]
    assert view["offers"][0]["strategy"]["seq_len"] == str(found.value)


def test_a_run_is_diagnosed_from_texts():
    """The figures of `diagnose`; what is pasted needs no name."""
    texts = [(EXAMPLES / name).read_text() for name in ("train.sh", "run.log")]
    asked = question() | {"launch": ("", texts[0]), "log": ("", texts[1]), "gpus": ""}
    found = diagnose(EXAMPLES / "train.sh", "h100-sxm", log=EXAMPLES / "run.log")
    view = views.diagnose_view(asked)
    assert seconds(found.measured.step_time_s) in view["html"]
    assert seconds(found.predicted.step_time_s) in view["html"]
    for wrong, words in (
        ({"launch": ("", "hello")}, "launch file: is no launch file"),
        ({"log": ("x.log", "hello")}, "x.log: holds no step of a training run"),
    ):
        with pytest.raises(InputError, match=words):
            views.diagnose_view(asked | wrong)


def test_launch_files_are_imported():
    """Strategy and model; where a file has no model, that of the page stays."""
    view = views.uploaded("launch", "", (EXAMPLES / "train.sh").read_text(), "llama3-70b")
    assert (view["name"], view["data"]) == ("llama3-8b", None)
    assert view["strategy"]["tp"] == "4"
    config = json.dumps({"train_batch_size": 64, "zero_optimization": {"stage": 2}})
    view = views.uploaded("launch", "ds.json", config, "llama3-70b")
    assert view["name"] == "llama3-70b"
    assert view["strategy"]["zero"] == "2"
    with pytest.raises(InputError, match="holds no model"):
        views.uploaded("model", "ds.json", config)
    with pytest.raises(InputError, match="is no launch file that shardwise reads"):
        views.uploaded("launch", "", "hello", "llama3-70b")


def test_faults_are_listed():
    """One line for each; nothing else is shown."""
    view = views.estimate_view(question(tp="3", pp="7"), [], dark=False)
    assert view["faults"] == ["strategy: gpus: 64: must be a multiple of tp 3 x cp 1 x pp 7 = 21"]


def test_features_without_runs_are_noted():
    """The page says that no measured run used them."""
    view = views.estimate_view(question(tp_overlap="ring"), [], dark=False)
    assert "No measured run used" in "".join(view["notes"])


def test_plans_of_a_search_load_into_the_page():
    """Fields of a row give the time of the row; points of the front and cells of the map too."""
    asked = question() | {
        "space": {"gpus": "16", "global_batch_size": "64"},
        "objective": "step_time",
        "axes": ("tp", "pp"),
    }
    view = views.search_view(asked)
    found = search("llama3-8b", "h100-sxm", gpus=16, gbs=64, objective="step_time", top=15)
    assert view["rows"][0]["step time"] == seconds(found.rows[0].step_time_s)
    for row, fields in zip(view["rows"], view["best"], strict=True):
        again = estimate("llama3-8b", "h100-sxm", fields)
        assert seconds(again.step_time_s) == row["step time"]
    assert view["offers"][0]["strategy"] == views.texts_of(
        Model.load("llama3-8b"), found.recommendation.plan.strategy
    )
    for _, words in recommendation_items(found.recommendation)[:2]:
        assert html.escape(words) in view["html"]
    times = [estimate("llama3-8b", "h100-sxm", fields).step_time_s for fields in view["front"]]
    assert times == sorted(times, reverse=True)
    for (tp, pp), fields in view["cells"]:
        assert (fields.get("tp", "1"), fields.get("pp", "1")) == (tp, pp)
    assert {"best-memory", "best-time", "front", "by-tp-pp", "candidates"} == set(view["charts"])
    tied = [row["plan"].endswith(" =") for row in view["rows"]]
    near = [abs(p.step_time_s / found.rows[0].step_time_s - 1) for p in found.rows]
    assert tied == [one < found.alike.within for one in near]


def test_a_search_without_an_answer_offers_the_nearest_and_the_smallest():
    """The reasons stand above, and a click loads a plan on as many GPUs as are needed."""
    asked = question("llama3-70b") | {
        "space": {"gpus": "1", "global_batch_size": "1"},
        "objective": "step_time",
        "axes": ("tp", "pp"),
    }
    view = views.search_view(asked)
    assert "nothing is feasible" in view["html"]
    labels = {one["label"]: one["strategy"] for one in view["offers"]}
    assert "Load the nearest plan, which may not fit" in labels
    [gpus] = [name.split()[4] for name in labels if name.startswith("Load a plan on")]
    fields = labels[f"Load a plan on {gpus} GPUs"]
    assert estimate("llama3-70b", "h100-sxm", fields).fits
    assert int(fields["gpus"]) == int(gpus) > 1


def test_a_search_for_fine_tuning_tries_offload():
    """Two consumer GPUs hold a 70B model in 4 bits with offload; no group has to be legal."""
    work = {"gpus": "2", "global_batch_size": "16", "seq_len": "2048", "finetune": "qlora"}
    asked = {"model": "llama3-70b", "system": "rtx-4090", "dark": False, "space": work}
    view = views.search_view(asked | {"objective": None, "axes": ("tp", "pp")})
    found = estimate("llama3-70b", "rtx-4090", view["offers"][0]["strategy"])
    assert found.verdict == "fits"
    assert found.strategy["base_weights"] == "nf4"


@pytest.mark.parametrize("searched", [False, True])
def test_a_sweep_has_a_point_for_each_value(searched):
    """With this strategy, or the best one at every value."""
    asked = question() | {
        "vary": {"nvlink.bandwidth": "0.5x,1x"},
        "search": searched,
        "space": {"gpus": 16, "gbs": 64, "pp": 1},
    }
    view = views.sweep_view(asked)
    assert "0.5x" in view["html"]
    assert view["charts"]


def test_figures_are_those_of_the_system():
    """Names that a sweep can vary."""
    view = views.figures_view("h100-sxm")
    assert "nvlink.bandwidth" in [one["figure"] for one in view["figures"]]


def test_compared_plans_keep_their_names():
    """One that cannot run says why; the others are compared."""
    asked = [question(), question(tp="3"), question(tp="4")]
    view = views.compare_view(asked, ["A", "B", "C"], dark=False)
    assert [row["name"] for row in view["rows"]] == ["A", "C"]
    assert view["faults"] == ["B: strategy: tp: 3: must divide gpus 64"]
    assert set(view["charts"]) == {"times", "memory"}


def test_the_nearest_plan_fits():
    """What does not fit, and what is not legal, has one."""
    for fields in ({"tp": "1"}, {"tp": "2", "vpp": "4"}):
        asked = question("llama3-70b", **fields)
        near = views.nearest_view(asked)
        assert "instead of" in near["words"] or "in place of" in near["words"]
        assert estimate("llama3-70b", "h100-sxm", near["fields"]).fits


def test_uploads_are_read_as_data():
    """Model, system and launch files; other files are refused in one line."""
    wide = Model.load("llama3-8b").to_dict() | {"hidden": 8192}
    model = views.uploaded("model", "my_model.json", json.dumps(wide))
    assert model["data"]["hidden"] == 8192
    record = System.load("a100-80gb-sxm").to_dict()
    system = views.uploaded("system", "ours.json", json.dumps(record))
    assert (system["name"], system["data"]) == ("a100-80gb-sxm", None)  # as in the catalog
    for kind, name, text, words in (
        ("model", "x.exe", "MZ", "allowed endings"),
        ("model", "x.json", "[1]", "is not a mapping"),
        ("model", "x.json", "{", "not JSON"),
        ("system", "x.json", json.dumps(Model.load("llama3-8b").to_dict()), "x.json"),
        ("model", "x.yaml", "base: /etc/passwd", "files cannot be named here"),
    ):
        with pytest.raises(InputError, match=words):
            views.uploaded(kind, name, text)


def test_exports_are_those_of_the_command_line():
    """Files by name; what a launcher cannot run is refused, or replaced by the nearest plan."""
    view = views.export_view(question(tp=None, zero="3"), "deepspeed")
    assert json.loads(view["files"]["llama3-8b.json"])["zero_optimization"]["stage"] == 3
    asked = question(pp="2", zero="3")
    with pytest.raises(InputError, match="deepspeed-2026"):
        views.export_view(asked, "deepspeed")
    assert views.export_view(asked | {"nearest": True}, "deepspeed")["files"]
