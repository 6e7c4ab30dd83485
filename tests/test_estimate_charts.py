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
    memory_bars,
    memory_stages,
    operation_bars,
    operation_parts,
    time_bars,
    time_parts,
)
from shardwise.report.tables.estimate import PART_NAMES

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


def bars_of(figure, row):
    """Length of each component's bar in a row."""
    return {
        trace.name: trace.x[list(trace.y).index(row)]
        for trace in figure.data
        if trace.type == "bar" and row in trace.y
    }


def mark_of(figure):
    """The predicted value, and both ends of its interval."""
    (mark,) = (trace for trace in figure.data if trace.name.startswith("predicted"))
    (value,), whisker = mark.x, mark.error_x
    return value, value - whisker.arrayminus[0], value + whisker.array[0]


def test_bars_are_the_parts_of_the_step(result):
    """Each with its time in the stack of all and in a row of its own, none dropped."""
    figure = time_bars(result)
    names = {PART_NAMES[part]: time_s for part, time_s in result.time_s.items() if time_s}
    assert bars_of(figure, "step") == names
    assert fsum(names.values()) == pytest.approx(result.step_time_s, rel=1e-14)
    for name, time_s in names.items():
        assert bars_of(figure, name)[name] == time_s


def test_hidden_communication_follows_the_exposed(result):
    """What an axis communicates in all, in its row; not in the stack of the step."""
    figure = time_bars(result)
    for axis, moved in result.comm_s.items():
        if moved.total > moved.exposed:
            row = bars_of(figure, PART_NAMES[axis if axis == "offload" else f"{axis}_comm"])
            assert fsum(row.values()) == pytest.approx(moved.total)
    assert "hidden behind compute" not in bars_of(figure, "step")


def test_the_step_has_its_interval(result):
    """A mark with whiskers; none forward only, for which no runs were measured."""
    figure = time_bars(result)
    if result.interval is None:
        assert not any(trace.name.startswith("predicted") for trace in figure.data)
        return
    ends = result.interval.low_s, result.interval.high_s
    assert mark_of(figure) == pytest.approx((result.step_time_s, *ends))
    assert figure.layout.xaxis.range[1] > ends[1]
    assert "in 8 of 10 runs" in figure.layout.title.text


def test_bars_of_memory_are_what_the_fullest_stage_has(result):
    """With the runtime's reserve; the line is the capacity, the mark what is reserved."""
    figure, memory = memory_bars(result), result.memory_bytes
    shown = {name: size * GIB for name, size in bars_of(figure, "all").items()}
    for part in ("weights", "gradients", "activations", "buffers"):
        assert shown.get(part, 0.0) == pytest.approx(getattr(memory, part))
    assert fsum(shown.values()) == pytest.approx(memory.reserved, rel=1e-12)
    assert figure.layout.shapes[0].x0 == memory.capacity / GIB
    if result.memory_interval is not None:
        ends = result.memory_interval.reserved_low, result.memory_interval.reserved_high
        wanted = [size / GIB for size in (memory.reserved, *ends)]
        assert mark_of(figure) == pytest.approx(wanted)


def test_operations_add_up_to_their_parts(result):
    """All of them, of which the chart has the longest, in the order of their time."""
    sums = {}
    for piece in operation_parts(result):
        sums[piece.group] = sums.get(piece.group, 0.0) + piece.value
    for part, time_s in sums.items():
        assert time_s == pytest.approx(result.time_s[part], rel=1e-9)
    figure = operation_bars(result)
    pairs = [pair for trace in figure.data for pair in zip(trace.y, trace.x, strict=True)]
    order = [name for name, _ in sorted(pairs, key=lambda pair: -pair[1])]
    assert sorted(order) == sorted(figure.layout.yaxis.categoryarray)
    assert [dict(pairs)[name] for name in figure.layout.yaxis.categoryarray] == sorted(
        dict(pairs).values(), reverse=True
    )


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


def test_without_operations_there_is_no_chart_of_them():
    """They are drawn on request."""
    plain = estimate("llama3-70b", "h100-sxm", DENSE)
    assert operation_bars(plain) is None
    assert list(charts(plain)) == ["time", "memory", "memory-stages"]


def test_hovering_tells_what_of_an_exchange_is_hidden(dense):
    """As if alone, and what of that does not lengthen the step."""
    hovers = {part.key: part.hover for part in time_parts(dense)}
    moved = dense.comm_s["tp"]
    assert f"alone it would take {moved.total:.3g} s" in hovers["tp_comm"]
    assert f"{moved.total - moved.exposed:.3g} s of that is hidden" in hovers["tp_comm"]
    assert "hidden" not in hovers["forward"]


def test_rows_say_their_amounts(dense):
    """Behind each bar, with what is hidden; the longest on top."""
    figure = time_bars(dense)
    (texts,) = (trace for trace in figure.data if trace.name == "amounts")
    words = dict(zip(texts.y, texts.text, strict=True))
    assert words["backward"] == f" {dense.time_s['backward']:.3g} s"
    moved = dense.comm_s["tp"]
    hidden = f"{moved.exposed:.3g} s + {moved.total - moved.exposed:.3g} s hidden"
    assert words["tensor-parallel comm"] == f" {hidden}"
    assert texts.y[0] == "backward"
    assert figure.layout.yaxis.autorange == "reversed"


def test_colours_are_those_of_the_other_charts(dense):
    """A part looks the same wherever it stands."""
    shown = {trace.name: trace.marker.color for trace in time_bars(dense).data}
    for part in ("forward", "backward", "tp_comm", "bubble"):
        assert shown[PART_NAMES[part]] == TIME_COLORS[part]


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
    figure = memory_bars(endless)
    assert fsum(bars_of(figure, "all").values()) * GIB == pytest.approx(
        endless.memory_bytes.reserved
    )
    assert figure.layout.shapes == ()
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
    assert text.count("<figure") == 3

    plain = tmp_path / "out.json"
    assert shardwise("estimate", *words, "--ops", "--json", "--plot", plain)[0] == 0
    drawn = json.loads(plain.read_text())
    assert list(drawn) == ["time", "operations", "memory", "memory-stages"]


@pytest.mark.needs("predecessors")
@each_row(
    ("more", "told"),
    [
        (
            ("--plot", "a.csv"),
            "error: a.csv: charts are written as .html, .json, .png, .svg, .pdf\n",
        ),
        (
            ("--plot", "a.json", "--output", "a.json"),
            "error: --plot: 'a.json': is also the file of output\n",
        ),
        (
            ("--plot", "a.html", "--reference", "calculon"),
            f"error: --plot: 'a.html': {_NO_EFFECT}\n",
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
