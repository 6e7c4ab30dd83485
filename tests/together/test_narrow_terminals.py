"""Tables fit terminals of 80 columns and wider ones."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.measure import Measurement

from profiles import examples, sampled
from shardwise import System, catalog, search
from shardwise.report import console
from shardwise.report.console import plain_table, show
from shardwise.report.page.printed import printed_blocks
from shardwise.report.tables.search import best_table

pytestmark = pytest.mark.any_software

WIDTH = 80
ROOT = Path(__file__).parents[2]
RUN = "docs/examples"
LARGE = ("llama3-70b", "h100-sxm", "--gpus", 64, "--tp", 8, "--pp", 4, "--gbs", 64)
SMALL = ("search", "llama2-7b", "h100-sxm", "--gpus", 8, "--gbs", 16, "--fix", "tp=2,pp=2")
SWEEP = ("sweep", "llama2-7b", "h100-sxm", "--gpus", 8, "--gbs", 16, "--tp", 2, "--pp", 2)
COMMANDS = {
    "models": ("models",),
    "largest": ("models", "--largest-for", "h100-sxm", "--gpus", 8, "--count", 3),
    "model": ("models", "deepseek-v3"),
    "systems": ("systems",),
    "system": ("systems", "simumax-b200"),
    "stacks": ("stacks",),
    "estimate": ("estimate", *LARGE),
    "operations": ("estimate", *LARGE, "--ops"),
    "beside": (
        *("estimate", "calculon-gpt3-175b", "calculon-a100-80g", "--gpus", 64, "--gbs", 64),
        *("--dtype", "fp16", "--also", "calculon"),
    ),
    "trace": ("trace", *LARGE),
    "peers": ("peers", *LARGE),
    "search": (*SMALL, "--top", 4, "--pareto", "--axes", "tp,mbs"),
    "cluster": (
        *("search", "llama2-7b", "--systems", "h100-sxm,a100-80gb-sxm", "--gpus", "8..64"),
        *("--gbs", "16,48", "--fix", "tp=2,pp=2", "--tokens", "10B", "--mtbf", "50000h"),
        *("--checkpoint-time", "60s", "--restart-time", "10min", "--deadline", "3d"),
    ),
    "sweep": (*SWEEP, "--vary", "nvlink.bandwidth=0.5x,1x", "--vary", "domain=4,64"),
    "sensitivity": (*SWEEP, "--sensitivity"),
    "fixed": (*SWEEP, "--fixed", "--vary", "hbm.bandwidth=1x,2x", "--vary", "mbs=1,2"),
    "figures": ("sweep", "llama3-8b", "h100-sxm,simumax-b200", "--figures"),
    "validate": ("validate", "simumax"),
    "suites": ("validate",),
    "stack": ("stacks", "megatron-bridge-2026"),
    "gemms": ("estimate", *LARGE, "--gemms"),
    "explain": (*SMALL, "--explain", "tp=2,pp=4"),
    "recipes": ("recipes",),
    "recipe": ("recipes", "llama3-70b-h100-64-bf16"),
    "fsdp": ("fsdp", "llama3-8b", "--gpus", 64, "--memory-budget", "45GiB"),
    "diagnose": ("diagnose", f"{RUN}/train.sh", "h100-sxm", "--log", f"{RUN}/run.log"),
}


def _widest(text):
    return max(len(line.rstrip()) for line in text.splitlines())


# What takes a second or more; the others have the same kinds of tables.
SLOW = ("cluster", "diagnose", "fsdp", "gemms", "largest", "recipes", "validate")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=pytest.mark.nightly if name in SLOW else ())
        for name, words in COMMANDS.items()
    ],
)
def test_no_line_is_wider_than_the_terminal(shardwise, monkeypatch, capsys, words):
    """Nothing is cut short either: columns go, and are named."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with console.collecting() as things:
        _, printed, err = shardwise(*words)
    assert "error" not in err
    for width in (WIDTH, *sampled((100, 120, 160))):
        monkeypatch.setenv("COLUMNS", str(width))
        show(*things)
        out = printed + capsys.readouterr().out
        assert _widest(out) <= width, out
        assert "…" not in out


def test_what_is_left_out_is_named(shardwise, monkeypatch):
    """With how to see it."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = shardwise("estimate", *LARGE)
    line = "hidden: parameters · layers · peak in; see a wider terminal or --json"
    assert line in out.splitlines()
    head = next(line for line in out.splitlines() if "reserved" in line).split()
    kept = ["weights", "gradients", "optimizer", "activations", "buffers", "total", "reserved"]
    assert head == ["stage", *kept]

    monkeypatch.setenv("COLUMNS", "119")
    assert "hidden: " not in shardwise("estimate", *LARGE)[1]


@pytest.mark.parametrize("columns", ["120", "0", "", "x", "-5"])
def test_files_have_lines_of_120_characters(shardwise, monkeypatch, columns):
    """Unless COLUMNS is a number of them."""
    _, usual, _ = shardwise("stacks")
    monkeypatch.setenv("COLUMNS", columns)
    assert shardwise("stacks")[1] == usual
    assert 110 < _widest(usual) <= 120
    assert "hidden: gradients · attention · release; " in usual


def test_wide_terminals_show_all_columns(shardwise, monkeypatch):
    """And wrap no text."""
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = shardwise("stacks")
    assert "left out" not in out
    assert len(out.splitlines()) <= len(catalog.names("stacks")) + 12


def test_a_terminal_is_asked_for_its_width():
    """A process whose output is a terminal of 80 columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    program = [sys.executable, "-c", "from shardwise.cli import main; main()", "systems"]
    with subprocess.Popen(program, stdout=theirs, env=env | {"TERM": "xterm"}) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                some = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not some:
                break
            printed += some
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode())

    assert process.returncode == 0
    assert "hidden: " in text
    assert _widest(text) <= WIDTH


def test_memory_without_a_limit_is_called_so(shardwise):
    """Calculon's file for machines whose memory is to be no limit."""
    _, out, _ = shardwise("systems")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}

    assert "unlimited" in rows["calculon-a100-80e"]
    assert "unlimited" not in rows["calculon-a100-80g"]
    assert "TiB" not in out
    assert System.load("calculon-a100-80e").accelerator.memory[0].capacity > 1e19


words = st.text("ab c", min_size=1, max_size=40).map(lambda text: " ".join(text.split()) or "a")


@examples(60)
@given(
    rows=st.lists(st.lists(words, min_size=4, max_size=4), min_size=1, max_size=4),
    optional=st.permutations(["one", "two"]),
    width=st.integers(20, 119),
)
def test_a_table_leaves_out_no_more_than_it_must(rows, optional, width):
    """Columns go in their order until the rest fits; what stays is whole."""
    table = plain_table("kept", "one", "two", "text", optional=optional, wraps=("text",))
    for row in rows:
        table.add_row(*row)
    least = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = {"kept": least[0], "one": least[1], "two": least[2], "text": min(least[3], 16)}
    needed = {name: max(size, len(name)) for name, size in names.items()}

    fitted, left_out = table.fitted(width)
    assert left_out == optional[: len(left_out)]

    def fits(without):
        kept = [size for name, size in needed.items() if name not in without]
        return sum(kept) + 2 * len(kept) + 1 <= width  # a space on both sides, and at the end

    number = next((n for n in range(3) if fits(optional[:n])), 2)
    assert len(left_out) == number
    shown = [column.header for column in fitted.columns]
    assert shown == [name for name in needed if name not in left_out]
    assert [list(column.cells) for column in fitted.columns] == [
        [row[i] for row in rows] for i, name in enumerate(needed) if name in shown
    ]


def test_rows_keep_their_style_and_their_lines_where_columns_go(monkeypatch, capsys):
    """Red rows stay red, sections stay apart."""
    table = plain_table("a", "b", title="t", optional=("b",))
    table.caption = "c"
    table.add_row("x" * 70, "y" * 20, style="red")
    table.add_section()
    table.add_row("1", "2")
    fitted, left_out = table.fitted(80)

    assert left_out == ["b"]
    assert [(row.style, row.end_section) for row in fitted.rows] == [("red", True), (None, False)]
    assert (fitted.title, fitted.caption) == ("t", "c")
    monkeypatch.setattr(console, "_width", lambda: 80)
    show(table)
    assert capsys.readouterr().out.splitlines()[-1].startswith("hidden: b; ")


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 300))
@examples(50)
def test_columns_of_text_share_the_room(needed, room):
    """All of it at most, but for the least width of each; none gets more than its part."""
    shares = console.shares_of(needed, min(room, sum(needed)))
    least = [min(one, console.LEAST_TEXT) for one in needed]
    assert all(low <= share <= one for low, share, one in zip(least, shares, needed, strict=True))
    assert sum(shares) <= max(room, sum(least))


FIGURES = ("tokens/s/GPU", "variants", "MFU", "8 of 10 runs", "memory GiB")
FEW = {"tp": [1, 2], "pp": 1, "tp_overlap": "stack", "dp_overlap": True}
SEARCHED = {
    "experts": ("qwen3-30b-a3b", {**FEW, "gpus": 16, "gbs": 64}),
    "dense": ("llama3-8b", {"gpus": 16, "gbs": 64, "tp": [1, 2], "pp": [1, 2], "zero": 1}),
}


@pytest.mark.parametrize(("model", "space"), SEARCHED.values(), ids=SEARCHED)
def test_plans_differ_in_a_table_of_any_width(model, space):
    """Columns of figures go first, then what differs stands in one text; none is too wide."""
    result = search(model, "h100-sxm", space, top=8, tp_exchange="rs_ag")
    table = best_table(result)
    strategies = {json.dumps(plan.strategy, default=str) for plan in result.best}
    assert len(strategies) == 8
    wide = Console(width=1000)
    for width in (80, 90, 100, 110, 120, 160):
        fitted, left_out = table.fitted(width)
        heads = [column.header for column in fitted.columns]
        own = [c for c in fitted.columns[1:] if c.header not in ("step time", *FIGURES)]
        assert len(set(zip(*(column.cells for column in own), strict=True))) == 8
        assert Measurement.get(wide, wide.options, fitted).maximum <= width
        assert set(left_out) <= set(FIGURES)
        assert {"step time", "memory GiB"} < set(heads)
    assert "strategy" in {c.header for c in best_table(result).fitted(48)[0].columns}


def test_the_narrow_table_of_operations_names_kernels(shardwise, monkeypatch):
    """Rows of one operation and pass differ by them; what is not shown is not explained."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = shardwise("estimate", *LARGE, "--ops")
    table = out.split("One micro-batch on one rank")[1].split("left out")[0]
    rows = [line for line in table.splitlines() if "attention.qkv" in line and "forward" in line]
    assert [" all-gather " in row for row in rows] == [False, True]
    assert "within each network tier" not in out
    monkeypatch.setenv("COLUMNS", "400")
    assert "group: members within each network tier" in shardwise("estimate", *LARGE, "--ops")[1]


def test_notes_stand_below_the_columns_that_they_explain(monkeypatch, capsys):
    """A column that goes takes its note along; a page shows all of them."""
    monkeypatch.setattr(console, "_width", lambda: 80)
    table = plain_table("a", "b", optional=("b",), notes={"a": "about a", "b": "about b"})
    table.add_row("x" * 70, "y" * 20)
    show(table)
    out = capsys.readouterr().out
    assert "about a" in out
    assert "about b" not in out
    blocks = printed_blocks(lambda: show(table))
    assert list(blocks[1].items) == ["about a", "about b"]


def test_a_narrower_form_stands_for_a_table_that_does_not_fit():
    """Only where omitting columns is not enough, and these are named still."""
    narrow = plain_table("text", wraps=("text",))
    narrow.add_row("y" * 30)
    table = plain_table("a", "b", optional=("b",), otherwise=narrow)
    table.add_row("x" * 40, "z" * 40)
    heads = [[c.header for c in table.fitted(width)[0].columns] for width in (90, 60, 30)]
    assert heads == [["a", "b"], ["a"], ["text"]]
    assert table.fitted(30)[1] == ["b"]
