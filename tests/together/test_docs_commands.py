"""Commands that pages show without output, and scripts, run: in a folder with files of a user."""

import json
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import fuzz_files
from shardwise.cli import run

pytestmark = pytest.mark.nightly  # .ci/run runs them too

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = re.compile(r"^ *```(?:sh|bash)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r"^```python\n((?!>>>).*?)^```", re.DOTALL | re.MULTILINE)

WRITES = re.compile(r" (?:-o|--out|--output|--save|--plot|--report|convert \S+) (\w\S*)")

# What does not run here: how it starts, and why.
NOT_RUN = {
    "shardwise --install-completion": "changes the shell of the user",
    "shardwise explore": "serves until it is stopped; tests/web/test_explore_browser.py opens it",
    "shardwise models deepseek-ai/": "reads the Hugging Face hub",
    "shardwise estimate Qwen/": "reads the Hugging Face hub",
    "shardwise validate runs --references": "takes minutes; test_measured_cli.py runs it",
    "shardwise validate runs --rows": "takes half a minute; test_measured_cli.py runs it",
    "shardwise validate runs --json": "takes half a minute; test_measured_cli.py runs it",
    "shardwise validate runs --data runs.json": "is of rows that tools/measured_rows.py translated",
    "shardwise validate kernels": "needs tables of measured kernels, which are large",
    "shardwise calibrate h100-sxm --from-table": "needs tables of measured kernels",
    "shardwise calibrate measure": "takes minutes; tests/pytorch measures",
    "shardwise calibrate h100-sxm --from-nccl-tests": "needs output of nccl-tests",
    "shardwise calibrate h100-sxm --from-trace": "needs a trace",
    "shardwise calibrate b200-sxm --from-table": "needs a system of SimuMax",
    "shardwise estimate qwen3_lora_sft.yaml": "needs a user's file; tests/launchers reads such",
    "shardwise import train.sh --set SIZE=4": "needs a user's script; tests/launchers reads such",
    "shardwise measure": "needs PyTorch; tests/pytorch trains",
    "shardwise calibrate my-system.yaml": "needs runs of a machine",
    "shardwise compare before.sh": "needs scripts of two commits; see test_living_results.py",
    "shardwise fsdp my_package": "needs PyTorch; tests/pytorch traces modules",
    "from torch.profiler": "records a training loop on a GPU",
}

# What `...` in the commands of a page stands for.
SAME = {"docs/guides/layout.md": "llama3-8b h100-sxm --gpus 8 --gbs 64"}

# Files of a user, by page: valid files of the tests, or what a command writes.
DENSE = {"moe_dispatcher_policy": "all2all", "ep_size": 1, "enable_recompute": False}
FILES = {
    "docs/from/calculon.md": {
        "model.json": "calculon-models/gpt3-175B",
        "system.json": "calculon-systems/a100_80g",
        "execution.json": "calculon-execution/readme",
    },
    "docs/from/fsdp-ilp.md": {"GPT_modules_info.json": "flat/tiny12"},
    "docs/from/nersc.md": {
        "vit.json": "nersc-models/vit_era5",
        "config-B200.json": "nersc-systems/B200",
        "config-H200.json": "nersc-systems/H200",
    },
    "docs/from/simumax.md": {
        "llama3-8b.json": "simumax/llama3-8b",
        "my_machine.json": "simumax/b200",
        "tp1_pp2_dp4_mbs1.json": "simumax/ep4_pp2_dp4_mbs1_selective_recompute",
    },
    "docs/guides/layout.md": {"space.yaml": "space/all"},
}
WRITTEN = {
    "docs/from/nersc.md": "search gpt3-1t nersc-b200 --reference nersc --method 1d --gpus 4096"
    " --gbs 4096 --domain 8 --save results.npy",
    "docs/guides/launch.md": "export deepspeed llama3-8b h100-sxm --gpus 16 --gbs 64 --zero 3"
    " --recompute full -o ds_config.json",
    "docs/guides/measure-machine.md": "systems cpu-server --output mine.yaml",
    "docs/guides/own-data.md": "systems h100-sxm --output mine.yaml",
}


def name_of(page):
    """Path in the clone."""
    return page.relative_to(ROOT).as_posix()


def commands(page):
    """Commands of the blocks of a page, in order, without comments and optional words."""
    text = "\n".join(SHELL.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = (re.sub(r" #.*| \[.*?\]", "", line).strip() for line in text.splitlines())
    return [
        line.replace("...", SAME.get(name_of(page), "..."))
        for line in lines
        if line.startswith("shardwise ") and not line.startswith(tuple(NOT_RUN))
    ]


def ran(command):
    """Run a command; return its exit code and what it printed."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(shlex.split(command.removeprefix("shardwise ")))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def as_a_user(tmp_path, monkeypatch):
    """A function that prepares a folder for the commands of a page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs", target_is_directory=True)

    def prepare(page):
        for file, sample in FILES.get(page, {}).items():
            data = fuzz_files.content(sample)
            if file.startswith("tp1_"):
                data |= DENSE
            (tmp_path / file).write_text(json.dumps(data), encoding="utf-8")
        if page in WRITTEN:
            code, _, err = ran(WRITTEN[page])
            assert code == 0, err

    return prepare


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_of_a_page_run(as_a_user, page):
    """Each prints a result or writes its files; 1 is the answer that it does not fit."""
    as_a_user(name_of(page))
    for command in commands(page):
        code, out, err = ran(command)
        assert code in {0, 1}, f"{command}\n{err}"
        files = WRITES.findall(command)
        assert out or files, command
        assert [file for file in files if not Path(file).exists()] == [], command


SCRIPTS = [(page, code) for page in PAGES for code in SCRIPT.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=name_of(page)) for page, code in SCRIPTS],
)
def test_scripts_of_a_page_run(tmp_path, monkeypatch, code):
    """Blocks of Python without a prompt; charts are written, not shown."""
    if code.startswith(tuple(NOT_RUN)):
        pytest.skip("see NOT_RUN")
    renderers = pytest.importorskip("plotly.io", reason="needs the extra plots").renderers
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(renderers, "default", "json")
    exec(compile(code, "page", "exec"), {})  # noqa: S102 - as a user would


def test_exceptions_are_on_pages():
    """What is not run is still shown somewhere."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [start for start in NOT_RUN if start not in text] == []
    assert [page for page in {*SAME, *FILES, *WRITTEN} if not (ROOT / page).exists()] == []
