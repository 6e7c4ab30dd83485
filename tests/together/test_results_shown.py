"""What people see of a result in Python: a few lines, text, charts, tables in a notebook."""

import re
import sys
import types
from inspect import getdoc, isfunction

import pytest

import shardwise
from rows import each_row
from shardwise import InputError, estimate, estimate_many, registry, search
from shardwise.report import views
from shardwise.shown import Brief, Framed

RUN = {"gpus": 8, "tp": 8, "gbs": 8}
MODEL, SYSTEM = "llama3-8b", "h100-sxm"


@pytest.fixture(scope="module")
def one():
    """An estimate."""
    return estimate(MODEL, SYSTEM, RUN)


@pytest.fixture(scope="module")
def results(one):
    """A result of each kind that takes little to make."""
    found = search(MODEL, SYSTEM, gpus=8, gbs=8, pp=1, cp=1, zero=1, mbs=1)
    exported = shardwise.export("megatron", MODEL, SYSTEM, RUN)
    swept = shardwise.sweep(MODEL, SYSTEM, strategy=RUN, vary={"fabric.bandwidth": "1x,2x"})
    return [
        one,
        found,
        found.best[0],
        swept,
        swept.points[0],
        exported,
        exported.files[0],
        one.compare(one),
        estimate_many(MODEL, SYSTEM, RUN | {"tp": [3, 4, 8]}),
        shardwise.estimate_training_time(MODEL, SYSTEM, RUN, tokens="1B"),
        shardwise.explain(MODEL, SYSTEM, {"pp": 1, "mbs": 1}, {"tp": 4}, gpus=8, gbs=8),
        shardwise.trace(MODEL, SYSTEM, RUN),
        shardwise.graph_of(MODEL, SYSTEM, RUN),
        shardwise.plan_fsdp(MODEL, SYSTEM, gpus=8),
        shardwise.compare_methods([MODEL], [SYSTEM, "rtx-4090"], finetune=["lora", "qlora"]),
    ]


def test_an_estimate_is_five_lines(one):
    """What runs, the strategy, whether it fits, the step with interval and rates, what to call."""
    first, strategy, memory, step, hint = repr(one).splitlines()
    assert first.startswith("Estimate: llama3-8b on 8 GPUs of h100-sxm with megatron-bridge-2026")
    assert "tp 8 pp 1 dp 1" in strategy
    assert "global batch 8 x 8,192 tokens" in strategy
    assert all(word in step for word in (" to ", "8 of 10 runs", "MFU", "tokens/s per GPU"))
    assert "fits" in memory
    assert "free on the peak-memory stage" in memory
    assert all(word in hint for word in (".explain()", ".plot()", ".to_dict()"))


def test_each_result_is_a_few_short_lines(results):
    """Whatever it holds; its text and its HTML are there, too."""
    for result in results:
        lines = repr(result).splitlines()
        assert 1 < len(lines) <= 8, result
        assert lines[0].startswith(tuple(f"{kind.__name__}: " for kind in type(result).__mro__))
        assert max(map(len, lines)) < 250
        if hasattr(result, "explain"):
            text = result.explain()
            assert repr(text) == str(text)
            assert text
            assert "\x1b" not in text
        if hasattr(result, "_repr_html_"):
            html = result._repr_html_()
            assert lines[0] in html
            assert html.startswith('<div class="shardwise">')


def test_every_kind_that_is_shown_has_a_view():
    """Those of the public names are in the table of views, and nothing else is."""
    public = [getattr(shardwise, name) for name in shardwise.__all__]
    shown = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Brief)}
    assert {kind.__name__ for kind in shown} == set(views.MODULES)
    for name, module in views.MODULES.items():
        assert name in registry.load(module).VIEWS


def test_configs_show_what_was_set():
    """A strategy its fields, a system its name, none the hundreds of figures."""
    assert repr(shardwise.Strategy(tp=8, gbs=4)) == "Strategy(tp=8, global_batch_size=4)"
    assert repr(shardwise.Space(gpus=8)) == "Space(gpus=(8,))"
    assert repr(shardwise.System.load(SYSTEM)).startswith("System(name='h100-sxm', description=")


def test_html_is_escaped():
    """A model may have any name."""
    fields = shardwise.Model.load(MODEL).to_dict() | {"name": "<script>alert(1)</script>"}
    html = estimate(fields, SYSTEM, RUN)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_without_plotly_a_chart_says_what_to_install(one, monkeypatch):
    """One line, no traceback of an import."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(InputError, match=r"pip install 'shardwise\[plots\]'"):
        one.plot()


def test_charts_are_drawn_by_name(results):
    """The first one by default; a wrong name is refused with those that there are."""
    pytest.importorskip("plotly", reason="an extra")
    for result in results:
        if hasattr(result, "plot"):
            assert result.plot().layout.meta["title"]
    assert results[0].plot("memory").layout.meta["title"] == "Memory of the peak-memory stage"
    with pytest.raises(InputError, match="chart: 'memry': allowed: time, memory; did you mean"):
        results[0].plot("memry")


def test_prompts_complete_what_is_of_shardwise(one):
    """Names of the package are the public ones; those of a result its fields and methods."""
    assert [name for name in dir(shardwise) if name[:2] != "__"] == sorted(
        name for name in shardwise.__all__ if name[:2] != "__"
    )
    names = [name for name in dir(one) if not name.startswith("_")]
    assert {"step_time_s", "to_dict", "plot", "explain"} <= set(names)
    assert not {"model_dump", "model_validate", "parse_raw", "copy", "json"} & set(names)
    assert set(type(one).model_fields) <= set(names)


def test_recipes_are_a_short_line_each():
    """As a prompt shows them."""
    shown = repr(shardwise.Recipe.load("llama3-405b-h100-1024-bf16"))
    assert shown == "<Recipe llama3-405b-h100-1024-bf16: llama3-405b on h100-sxm, 1024 GPUs>"
    assert max(len(repr(recipe)) for recipe in shardwise.recipes()) < 120


FUNCTIONS = [name for name in shardwise.__all__ if isfunction(getattr(shardwise, name))]


@each_row("name", FUNCTIONS)
def test_functions_say_what_they_return(name):
    """And where its fields are listed."""
    text = getdoc(getattr(shardwise, name))
    returned = text.partition("\nReturns\n-------\n")[2].partition("\n\n")[0]
    assert returned or name == "recipes"
    for kind in re.findall(r"help\(shardwise\.(\w+)\)", returned):
        assert returned.startswith(kind)
        assert kind in shardwise.__all__


def test_a_notebook_shows_tables_and_charts(one, monkeypatch):
    """First the tables, then two charts; IPython shows the rest where there is no notebook."""
    pytest.importorskip("plotly", reason="an extra")
    shown, shell = [], types.SimpleNamespace(kernel=None)
    core, display = types.ModuleType("IPython.core.getipython"), types.ModuleType("display")
    core.get_ipython = lambda: shell
    display.display = lambda thing, **_: shown.append(thing)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", core)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("shardwise.shown.find_spec", lambda _: True)
    one._ipython_display_()
    assert shown[0] == {"text/html": one._repr_html_(), "text/plain": repr(one)}
    assert [chart.layout.meta["title"] for chart in shown[1:]] == [
        "Where the step goes",
        "Memory of the peak-memory stage",
    ]
    for missing in ("plotly", "kernel"):
        if missing == "kernel":
            del shell.kernel
        else:
            monkeypatch.setattr("shardwise.shown.find_spec", lambda _: None)
        with pytest.raises(NotImplementedError):
            one._ipython_display_()
        monkeypatch.setattr("shardwise.shown.find_spec", lambda _: True)


def test_frames_are_of_pandas_where_it_is_installed(results, monkeypatch):
    """Each `to_frame` has a `to_pandas` next to it, with the same rows and columns."""
    framed = [result for result in results if hasattr(result, "to_frame")]
    assert all(isinstance(result, Framed) for result in framed)
    with monkeypatch.context() as without:
        without.setattr("shardwise.shown.find_spec", lambda _: None)
        with pytest.raises(InputError, match=r"pip install 'shardwise\[pandas\]'"):
            framed[0].to_pandas()
    pytest.importorskip("pandas", reason="an extra")
    for result in framed:
        frame = result.to_frame()
        assert list(result.to_pandas().columns) == frame.columns
        assert len(result.to_pandas()) == len(frame)
