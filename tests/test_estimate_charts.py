"""Charts of an estimate: parts that add up to the step and to the memory, on one page."""

import json
from math import fsum

import pytest

from rows import each_row
from shardwise import Stack, estimate
from shardwise.cli.estimate import _NO_EFFECT
from shardwise.report.charts.common import TIME_COLORS
from shardwise.report.charts.estimate import (
    charts,
    memory_pie,
    memory_stages,
    memory_sunburst,
    time_pie,
    time_sunburst,
)
from shardwise.report.charts.estimate_parts import operation_parts, time_parts

pytestmark = pytest.mark.any_software

pytest.importorskip("plotly")

GIB = 2.0**30
DENSE = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
RUNS = {
    "dense": ("llama3-70b", DENSE),
    "whole": ("llama3-8b", {"gpus": 8, "tp": 2, "cp": 2, "gbs": 16, "recompute": "full"}),
    "experts": ("deepseek-v3", {"gpus": 256, "tp": 2, "pp": 8, "ep": 16, "gbs": 512}),
    "offload": (
        "llama3-8b",
        {"gpus": 4, "gbs": 8, "offload_optimizer": True, "offload_weights": True},
    ),
    "both ends": ("llama3-8b", {"gpus": 16, "tp": 2, "pp": 4, "gbs": 32, "schedule": "zb-v"}),
    "forward only": ("llama3-8b", {"gpus": 4, "tp": 4, "gbs": 8, "training": False}),
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def result(request):
    """One estimate of each kind, with its operations."""
    model, strategy = request.param
    return estimate(model, "h100-sxm", strategy, operations=True)


@pytest.fixture(scope="module")
def dense():
    """One that fits, of two stages."""
    return estimate("llama3-70b", "h100-sxm", DENSE, operations=True)


def values_of(figure):
    """What each slice or sector of a round chart shows."""
    (trace,) = figure.data
    return dict(zip(trace.ids, trace.values, strict=True))


def rings(figure):
    """Value and children of each sector."""
    (trace,) = figure.data
    children = {key: [] for key in trace.ids}
    for key, parent in zip(trace.ids, trace.parents, strict=True):
        if parent:
            children[parent].append(key)
    return values_of(figure), children


def test_slices_are_the_parts_of_the_step(result):
    """Each with its time, none dropped, in all the step."""
    shown = values_of(time_pie(result))
    assert shown == {part: time_s for part, time_s in result.time_s.items() if time_s}
    assert fsum(shown.values()) == pytest.approx(result.step_time_s, rel=1e-14)


def test_slices_of_memory_are_what_the_fullest_stage_has(result):
    """With the runtime's reserve and what is free; what does not fit has nothing free."""
    shown, memory = values_of(memory_pie(result)), result.memory_bytes
    for part in ("weights", "gradients", "optimizer", "activations", "buffers"):
        assert shown.get(part, 0.0) == getattr(memory, part)
    assert shown["runtime"] == memory.reserved - memory.total
    assert shown.get("free", 0.0) == max(0.0, memory.capacity - memory.reserved)
    assert fsum(shown.values()) == pytest.approx(max(memory.capacity, memory.reserved), rel=1e-14)


def test_each_ring_adds_up_to_the_one_inside(result):
    """Operations to their part, parts to their group, groups to the step and to the memory."""
    for figure in (time_sunburst(result), memory_sunburst(result)):
        values, children = rings(figure)
        for key, inside in children.items():
            if inside:
                assert fsum(values[each] for each in inside) == pytest.approx(values[key], rel=1e-9)
    values, _ = rings(time_sunburst(result))
    assert next(iter(values.values())) == pytest.approx(result.step_time_s, rel=1e-14)
    for part, time_s in result.time_s.items():
        assert values.get(part, 0.0) == time_s


def test_the_inner_ring_is_work_exchange_and_waiting(dense):
    """Sums by hand of the parts that belong to each."""
    values, children = rings(time_sunburst(dense))
    time_s = dense.time_s
    work = time_s["forward"] + time_s["backward"] + time_s["optimizer"]
    assert values["group: compute"] == pytest.approx(work)
    exchange = time_s["tp_comm"] + time_s["pp_comm"] + time_s["dp_comm"]
    assert values["group: exchange"] == pytest.approx(exchange)
    assert children["group: waiting"] == ["bubble"]
    assert children["group: other"] == ["other"]


def test_operations_of_the_slowest_stage_need_no_scaling():
    """Forward on the last of two stages: 40 layers and the head, for each of 32 micro-batches.

    Of a host that takes no time; the rows of operations have the time of kernels.
    """
    stack = Stack.load("megatron-core-2025")
    instant = Stack.validated(stack.to_dict() | {"host_launch": 0.0, "host_call": 0.0})
    dense = estimate("llama3-70b", "h100-sxm", DENSE | {"stack": instant}, operations=True)
    by_hand = {"head: head": 0.0, "mlp.up": 0.0}
    for row in dense.operations:
        if row.phase == "forward" and row.bound != "network":
            if row.part == "layer" and row.operation == "mlp.up":
                by_hand["mlp.up"] += 32 * 40 * row.time_s
            if row.part == "head" and row.operation == "head":
                by_hand["head: head"] += 32 * row.time_s
    shown = {p.name: p.value for p in operation_parts(dense) if p.group == "forward"}
    assert by_hand["head: head"] > 0 < by_hand["mlp.up"]
    for name, time_s in by_hand.items():
        assert shown[name] == pytest.approx(time_s, rel=1e-6)
    assert not any(name.startswith("embedding") for name in shown)  # it is on the other stage


def test_operations_share_the_time_of_the_host(dense):
    """The kernels of a pass are scaled alike, to the pass with what the host adds."""
    kernels = [row for row in dense.operations if row.phase == "forward" and not row.axis]
    last = 32 * fsum({"layer": 40, "head": 1}.get(row.part, 0) * row.time_s for row in kernels)
    (up,) = (row.time_s for row in kernels if row.operation == "mlp.up")
    shown = {p.name: p.value for p in operation_parts(dense) if p.group == "forward"}
    added = dense.time_s["forward"] / last
    assert 1 < added < 1.05
    assert shown["mlp.up"] == pytest.approx(32 * 40 * up * added, rel=1e-6)


def test_without_operations_there_are_two_rings():
    """And in each the same parts."""
    plain = estimate("llama3-70b", "h100-sxm", DENSE)
    values, _ = rings(time_sunburst(plain))
    assert not any("/" in key for key in values)


def test_hovering_tells_what_of_an_exchange_is_hidden(dense):
    """As if alone, and what of that does not lengthen the step."""
    hovers = {part.key: part.hover for part in time_parts(dense)}
    moved = dense.comm_s["tp"]
    assert f"alone it would take {moved.total:.3g} s" in hovers["tp_comm"]
    assert f"{moved.total - moved.exposed:.3g} s of that is hidden" in hovers["tp_comm"]
    assert "hidden" not in hovers["forward"]


def test_small_slices_share_a_label_and_keep_their_lines(dense):
    """Of the parts under 8 % one has words; all of them stand in the legend."""
    (trace,) = time_pie(dense).data
    small = [key for key, v in values_of(time_pie(dense)).items() if v < 0.08 * dense.step_time_s]
    words = [text for key, text in zip(trace.ids, trace.text, strict=True) if key in small and text]
    share = 100 * sum(dense.time_s[key] for key in small) / dense.step_time_s
    assert words == [f"{len(small)} smaller<br>{share:.1f} %"]
    assert len(trace.labels) == len(trace.ids) == len(set(trace.labels))
    assert "stage-to-stage transfer  15.3 ms" in trace.labels


def test_what_is_free_stands_last_with_its_words():
    """However much it is; of the small slices before it one has words, of the others all."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "tp": 4, "gbs": 8})
    shown = values_of(memory_pie(found))
    small = [key for key, v in shown.items() if v < 0.08 * sum(shown.values()) and key != "free"]
    (trace,) = memory_pie(found).data
    words = dict(zip(trace.ids, trace.text, strict=True))
    assert trace.ids[-1] == "free"
    assert [bool(words[key]) for key in small].count(True) == 1
    assert all(words[key] for key in shown if key not in small)


def test_colours_are_those_of_the_other_charts(dense):
    """A part looks the same wherever it stands."""
    for figure in (time_pie(dense), time_sunburst(dense)):
        (trace,) = figure.data
        shown = dict(zip(trace.ids, trace.marker.colors, strict=True))
        for part in ("forward", "backward", "tp_comm", "bubble"):
            assert shown[part] == TIME_COLORS[part]


def test_columns_show_every_stage(dense):
    """Each part of each, in GiB, up to what is reserved there."""
    figure = memory_stages(dense)
    for number, stage in enumerate(dense.stages):
        column = fsum(trace.y[number] for trace in figure.data)
        assert column == pytest.approx(stage.reserved / GIB, rel=1e-12)
    (line,) = figure.layout.shapes
    assert line.y0 == dense.memory_bytes.capacity / GIB


def test_memory_without_a_limit_is_not_free():
    """A machine whose memory is to be no limit: the charts show what is held."""
    asked = {"gpus": 8, "tp": 8, "gbs": 8, "seq_len": 2048, "dtype": "fp16"}
    endless = estimate("calculon-gpt3-175b", "calculon-a100-80e", asked)
    shown = values_of(memory_pie(endless))
    assert "free" not in shown
    assert sum(shown.values()) == pytest.approx(endless.memory_bytes.reserved)
    assert memory_stages(endless).layout.shapes == ()


def test_the_command_writes_a_page(shardwise, tmp_path):
    """With the charts, what was asked for, and the table as before."""
    words = ("llama3-70b", "h100-sxm", "--gpus", 64, "--tp", 8, "--pp", 2, "--gbs", 128)
    page = tmp_path / "out.html"
    code, out, err = shardwise("estimate", *words, "--plot", page)
    assert (code, err) == (0, "")
    assert "where the step goes" in out
    text = page.read_text()
    assert "llama3-70b on h100-sxm" in text
    assert "fits: 16.4 GiB free on the peak-memory stage" in text
    assert text.count("<section") == 5
    assert text.count('class="abreast"') == 4

    plain = tmp_path / "out.json"
    assert shardwise("estimate", *words, "--ops", "--json", "--plot", plain)[0] == 0
    drawn = json.loads(plain.read_text())
    assert list(drawn) == ["time", "time-rings", "memory", "memory-rings", "memory-stages"]
    assert any("/" in key for key in drawn["time-rings"]["data"][0]["ids"])


@each_row(
    ("more", "told"),
    [
        (("--plot", "a.csv"), "error: a.csv: charts are written as .html, .json, .png, .svg\n"),
        (
            ("--plot", "a.json", "--output", "a.json"),
            "error: command line: plot: 'a.json': is also the file of output\n",
        ),
        (
            ("--plot", "a.html", "--reference", "calculon"),
            f"error: command line: plot: 'a.html': {_NO_EFFECT}\n",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(shardwise, more, told):
    """Before anything is computed."""
    words = ("llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 8)
    assert shardwise("estimate", *words, *more) == (2, "", told)


def test_every_chart_has_a_title_in_words(dense):
    """No field names, no underscores."""
    for figure in charts(dense).values():
        assert figure.layout.title.text
        assert "_" not in figure.layout.title.text
