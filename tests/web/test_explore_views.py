"""Views of the explorer's tabs, computed in this process."""

import json

import pytest

from shardwise import InputError, Model, System, estimate, search
from shardwise.web import views

pytest.importorskip("plotly")

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
    found = search("llama3-8b", "h100-sxm", gpus=16, gbs=64)
    assert view["rows"][0]["step"] == f"{found.best[0].step_time_s:.3f}"
    for row, fields in zip(view["rows"], view["best"], strict=True):
        again = estimate("llama3-8b", "h100-sxm", fields)
        assert f"{again.step_time_s:.3f}" == row["step"]
    times = [estimate("llama3-8b", "h100-sxm", fields).step_time_s for fields in view["front"]]
    assert times == sorted(times, reverse=True)
    for (tp, pp), fields in view["cells"]:
        assert (fields.get("tp", "1"), fields.get("pp", "1")) == (tp, pp)
    assert set(view["charts"]) == {"front", "map", "candidates"}
    assert "feasible" in view["summary"]


def test_a_search_without_an_answer_says_why():
    """The reasons stand in the summary."""
    asked = question("llama3-70b") | {
        "space": {"gpus": "1", "global_batch_size": "1"},
        "objective": "step_time",
        "axes": ("tp", "pp"),
    }
    assert "Nothing is feasible: " in views.search_view(asked)["summary"]


@pytest.mark.parametrize("searched", [False, True])
def test_a_sweep_has_a_point_for_each_value(searched):
    """With this strategy, or the best one at every value."""
    asked = question() | {
        "vary": {"nvlink.bandwidth": "0.5x,1x"},
        "search": searched,
        "space": {"gpus": 16, "gbs": 64, "pp": 1},
    }
    view = views.sweep_view(asked)
    assert len(view["rows"]) == 2
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
        assert "instead of" in near["words"]
        assert estimate("llama3-70b", "h100-sxm", near["fields"]).fits


def test_uploads_are_read_as_data():
    """Model, system and launch files; other files are refused in one line."""
    model = views.uploaded("model", "my_model.json", json.dumps(Model.load("llama3-8b").to_dict()))
    assert model["data"]["name"] == "llama3-8b"
    record = System.load("a100-80gb-sxm").to_dict()
    system = views.uploaded("system", "ours.json", json.dumps(record))
    assert System.load(system["data"]).network == System.load("a100-80gb-sxm").network
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
