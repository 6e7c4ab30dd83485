"""A running search shows the best plan so far on a terminal; interrupted, it prints what it has."""

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from rows import first_of
from shardwise import search

pytestmark = pytest.mark.any_software

WORDS = ("search", "llama3-8b", "h100-sxm", "--gpus", "8,16", "--gbs", "8", "--fix", "tp=8")
WORDS = (*WORDS, "--fix", "fused_activation=false,dp_overlap=true,tp_overlap=stack")
# Once it has found a plan, the search waits for a signal.
WAITS = """
import sys, time
from shardwise.cli import main
from shardwise.planning.search.progress import Reporter

report = Reporter.__call__

def report_and_wait(self, done, total, best):
    report(self, done, total, best)
    if len(best):
        print("waits", file=sys.__stderr__, flush=True)
        while True:
            time.sleep(0.01)

Reporter.__call__ = report_and_wait
main(sys.argv[1:])
"""
# The terminal sends Ctrl-C to the process that controls it; a shell's job in the background would
# ignore it.
CONTROLS = """
import fcntl, signal, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
RUNS = "import sys\nfrom shardwise.cli import main\nmain(sys.argv[1:])\n"
SHOWN = re.compile(r"best so far: tp 8 pp \d+ cp \d+ ep 1 dp \d+, [\d.]+ m?s, [\d,]+ tokens/s/GPU")


class Terminal:
    """A command whose standard error is a terminal, and whose output is a file."""

    def __init__(self, file, code, *words):
        self.main, side = pty.openpty()
        self.file = file
        with file.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CONTROLS + code, *words],
                stdout=out,
                stderr=side,
                start_new_session=True,
            )
        os.close(side)
        self.shown = ""

    def read(self, until=None):
        """Read what the terminal shows, up to some words or its end."""
        while until is None or until not in self.shown:
            try:
                text = os.read(self.main, 4096)
            except OSError:  # the other side is closed
                text = b""
            if not text:
                return
            self.shown += text.decode()

    def finish(self):
        """Return the exit code and standard output."""
        self.read()
        code = self.process.wait()
        os.close(self.main)
        return code, self.file.read_text(encoding="utf-8")


def test_a_terminal_shows_the_best_plan_so_far(tmp_path):
    """Its degrees, step time and rate; the last one is that of the answer."""
    terminal = Terminal(tmp_path / "out", RUNS, *WORDS, "--json")
    code, out = terminal.finish()
    assert code == 0
    best = json.loads(out)["best"][0]
    last = SHOWN.findall(terminal.shown)[-1]
    strategy = best["strategy"]
    assert f"pp {strategy['pp']} cp {strategy['cp']} ep 1 dp {strategy['dp']}, " in last
    assert last.endswith(f" {best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU")


def test_nothing_is_shown_without_a_terminal(shardwise):
    """Only the line at the end."""
    _, _, err = shardwise(*WORDS)
    assert "best so far" not in err
    assert len(err.splitlines()) == 1


# Of SIGTERM, `test_output_files` has a test, too.
@pytest.mark.parametrize("how", first_of(1, ["Ctrl-C", "SIGTERM"]))
def test_an_interrupted_search_prints_the_best_so_far(tmp_path, how):
    """As its result, with exit code 130; JSON says that it is not complete."""
    terminal = Terminal(tmp_path / "out", WAITS, *WORDS, "--json")
    terminal.read(until="waits")
    shown = SHOWN.findall(terminal.shown)[-1]
    if how == "Ctrl-C":
        os.write(terminal.main, b"\x03")
    else:
        terminal.process.send_signal(signal.SIGTERM)
    code, out = terminal.finish()
    assert code == 130
    record = json.loads(out)
    assert record["complete"] is False
    assert record["counts_exact"] is False
    rate = record["best"][0]["tokens_per_s_per_gpu"]
    assert shown.endswith(f" {rate:,.0f} tokens/s/GPU")


@pytest.mark.nightly
def test_an_interrupted_search_in_processes_prints_the_best_so_far(tmp_path):
    """The processes ignore the signal, and end with the search."""
    terminal = Terminal(tmp_path / "out", WAITS, *WORDS, "--jobs", "2")
    terminal.read(until="waits")
    os.write(terminal.main, b"\x03")
    code, out = terminal.finish()
    assert code == 130
    assert "interrupted: the best so far" in out
    assert "Traceback" not in terminal.shown


def test_a_progress_function_gets_the_best_plan():
    """None as long as nothing fits, and at the end the best of the result."""
    seen = []
    found = search(
        *("llama3-8b", "h100-sxm"),
        {"gpus": [8, 16], "gbs": 8, "tp": 8},
        progress=lambda *words: seen.append(words),
    )
    done, total, best = seen[-1]
    assert done == total
    assert best.strategy.to_dict() == found.best[0].strategy
    assert best.step_time_s == found.best[0].step_time_s
    assert best.tokens_per_s_per_gpu == pytest.approx(found.best[0].tokens_per_s_per_gpu)
    times = [one.step_time_s for _, _, one in seen if one is not None]
    assert times == sorted(times, reverse=True)
