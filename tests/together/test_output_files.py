"""Files and streams that commands write: inputs, links and modes survive; failures are one line."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fsdp_ilp_samples
from shardwise import InputError, Model, Strategy, System, estimate
from shardwise.config.files import check_output_path, write_text
from shardwise.planning.search import store

pytestmark = pytest.mark.any_software

JOB = ("estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "8", "--gbs", "8")
TOO_LARGE = ("estimate", "llama3-405b", "h100-sxm", "--gpus", "8", "--tp", "8", "--gbs", "8")
RUN = ("--gpus", "8", "--gbs", "8")


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Write one input of each kind into the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    Model.load("llama3-8b").to_file("m.yaml")
    Model.load("llama3-8b").to_file("m.json")
    System.load("h100-sxm").to_file("s.yaml")
    Strategy(tp=8, gpus=8, global_batch_size=8).to_file("y.yaml")
    Path("derived.yaml").write_text("base: ./s.yaml\nname: derived\n")
    Path("space.yaml").write_text("gpus: 8\nglobal_batch_size: 8\ntp: 8\n")
    Path("c.json").write_text(
        json.dumps(
            {"model": "m.yaml", "system": "s.yaml", "strategy": {"tp": 8, "gpus": 8, "gbs": 8}}
        )
    )
    fitting = estimate("llama3-8b", "h100-sxm", Strategy.load("y.yaml")).to_dict()
    Path("e.json").write_text(json.dumps(fitting))
    Path("stats.json").write_text(json.dumps(fsdp_ilp_samples.flat("tiny12")))
    Path("runs.csv").write_text("model,tp,step_time_s\nllama3-8b,8,1\n")
    Path("plain.csv").symlink_to("runs.csv")
    Path("m-link.yaml").symlink_to("m.yaml")
    os.link("s.yaml", "s-hard.yaml")
    return tmp_path


OVERWRITING = [
    ("m.yaml", "estimate m.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 -o m.yaml"),
    ("m.yaml", "estimate m.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 -o m-link.yaml"),
    ("m.yaml", "estimate m-link.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 -o ./m.yaml"),
    ("m.json", "estimate m.json h100-sxm --gpus 8 --tp 8 --gbs 8 --plot m.json"),
    ("m.json", "estimate m.json h100-sxm --gpus 8 --tp 8 --gbs 8 --graph m.json"),
    ("s.yaml", "estimate llama3-8b s.yaml --gpus 8 --tp 8 --gbs 8 -o s-hard.yaml"),
    ("s.yaml", "estimate llama3-8b derived.yaml --gpus 8 --tp 8 --gbs 8 -o s.yaml"),
    ("y.yaml", "estimate llama3-8b h100-sxm --strategy y.yaml -o y.yaml"),
    ("m.json", "trace m.json h100-sxm --gpus 8 --tp 8 --gbs 8 -o m.json"),
    ("m.yaml", "peers m.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 -o m.yaml"),
    ("space.yaml", "search llama3-8b h100-sxm --space space.yaml -o space.yaml"),
    ("m.json", "search m.json h100-sxm --gpus 8 --gbs 8 --fix tp=8 --plot m.json"),
    ("s.yaml", "sweep llama3-8b h100-sxm,s.yaml --gpus 8 --gbs 8 --fix tp=8 -o s.yaml"),
    ("stats.json", "fsdp stats.json --gpus 8 --memory-budget 1GiB -o stats.json"),
    ("e.json", "compare e.json c.json --plot e.json"),
    ("m.yaml", "convert m.yaml m.yaml"),
    ("m.yaml", "models m.yaml -o m.yaml"),
    ("s.yaml", "systems s.yaml -o s.yaml"),
    ("s.yaml", "calibrate s.yaml --from-runs runs.csv --out s.yaml"),
    ("m.json", "export graph m.json h100-sxm --gpus 8 --tp 8 --gbs 8 -o m.json"),
    ("m.yaml", "export deepflow m.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 -o m.yaml"),
    ("m.yaml", "estimate m.yaml h100-sxm --gpus 8 --tp 8 --gbs 8 --log m.yaml"),
]


@pytest.mark.parametrize(("file", "command"), OVERWRITING, ids=[c for _, c in OVERWRITING])
def test_an_output_that_is_an_input_is_refused(shardwise, inputs, file, command):
    """By links, hard links and relative paths too; the input stays as it is."""
    if "--plot" in command:
        pytest.importorskip("plotly")
    before = (inputs / file).read_bytes()
    code, out, err = shardwise(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "same command; choose another" in err or "not a log of shardwise" in err
    assert (inputs / file).read_bytes() == before


def test_one_file_for_two_options_is_refused_through_links(shardwise, inputs):
    """A link and the file that it names are one file; the log counts too."""
    Path("link.json").symlink_to("new.json")
    code, _, err = shardwise(*JOB, "-o", "new.json", "--plot", "link.json")
    assert code == 2
    assert "is also the file of output" in err
    code, _, err = shardwise(*JOB, "-o", "new.json", "--log", "new.json")
    assert code == 2
    assert "new.json: is the log of the same command" in err
    assert (inputs / "new.json").read_text().count("\n") == 1


def test_python_may_replace_a_file_that_it_read(inputs):
    """Only commands refuse their inputs."""
    assert inputs
    Model.load("m.yaml").to_file("m.yaml")
    assert Model.load("m.yaml").name == "llama3-8b"


def test_files_are_written_through_links_and_keep_their_modes(tmp_path, monkeypatch):
    """Symbolic links, also to what does not exist, hard links, modes."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in ("real.txt", "folder/far.txt", "hard.txt"):
        Path(name).write_text("old")
        Path(name).chmod(0o600)
    Path("link.txt").symlink_to("folder/far.txt")
    Path("dangling.txt").symlink_to("folder/new.txt")
    os.link("hard.txt", "other.txt")
    for name in ("real.txt", "link.txt", "dangling.txt", "hard.txt"):
        write_text(name, "new")
    for name in ("real.txt", "folder/far.txt", "hard.txt", "other.txt"):
        assert Path(name).read_text() == "new"
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
    assert Path("folder/new.txt").read_text() == "new"
    assert Path("link.txt").is_symlink()
    assert Path("dangling.txt").is_symlink()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_saved_rows_are_written_through_links(shardwise, inputs):
    """The file of `--save` too, whose parts are next to what the link names."""
    (inputs / "far").mkdir()
    (inputs / "far" / "rows.csv").write_text("old")
    Path("rows.csv").symlink_to("far/rows.csv")
    code, _, _ = shardwise(
        "search", "llama3-8b", "h100-sxm", *RUN, "--fix", "tp=8", "--save", "rows.csv"
    )
    assert code == 0
    assert Path("rows.csv").is_symlink()
    assert (inputs / "far" / "rows.csv").read_text().startswith("candidate,")
    assert [path.name for path in (inputs / "far").iterdir()] == ["rows.csv"]


def test_what_is_no_writable_file_is_refused(tmp_path):
    """Pipes, devices, standard output, read-only files and loops of links stay as they are."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fixed").write_text("old")
    (tmp_path / "fixed").chmod(0o444)
    (tmp_path / "to-null").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to("loop")
    irregular = "is not a regular file; to print, omit the option or use --json"
    expected = {
        tmp_path / "pipe": irregular,
        tmp_path / "to-null": irregular,
        "/dev/stdout": irregular,
        "/dev/fd/1": irregular,
        tmp_path / "fixed": "cannot be written: it is read-only",
        tmp_path / "loop": "cannot be written: Too many levels of symbolic links",
        tmp_path: "is a directory, not a file",
        tmp_path / "none" / "a": "cannot be written: no such folder: none",
        tmp_path / "fixed" / "a": "cannot be written: no such folder: fixed",
    }
    for path, problem in expected.items():
        with pytest.raises(InputError) as caught:
            write_text(path, "new")
        assert str(caught.value) == f"{path}: {problem}"
        with pytest.raises(InputError):
            check_output_path(path)
    assert (tmp_path / "fixed").read_text() == "old"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_log_is_appended_to_a_log_only(shardwise, tmp_path):
    """An empty file or an earlier log; any other file stays as it is."""
    log, other = tmp_path / "run.log", tmp_path / "notes.txt"
    log.touch()
    other.write_text("my notes\n")
    for _ in range(2):
        assert shardwise(*JOB, "--json", "--log", log)[0] == 0
    assert log.read_text().count("estimated in") == 2
    code, _, err = shardwise(*JOB, "--log", other)
    assert (code, err) == (2, f"error: {other}: is not a log of shardwise; choose another\n")
    assert other.read_text() == "my notes\n"


@pytest.mark.parametrize("option", ["--json", "-o"])
def test_the_reason_of_exit_code_1_is_printed_where_no_table_is(shardwise, tmp_path, option):
    """One line on stderr with --json or --output; standard output has JSON or nothing."""
    words = [option, tmp_path / "a.json"] if option == "-o" else [option]
    expected = {
        TOO_LARGE: "does not fit: lacks 883 GiB on the peak-memory stage; fits with < 1 %\n",
        ("trace", *TOO_LARGE[1:]): "does not fit in memory\n",
        ("search", *TOO_LARGE[1:3], *RUN, "--fix", "tp=8"): "nothing is feasible",
        ("sweep", *TOO_LARGE[1:3], *RUN, "--fix", "tp=8"): "nothing is feasible at any point\n",
    }
    for command, reason in expected.items():
        code, out, err = shardwise(*command, *words)
        assert code == 1
        assert reason in err
        assert (out == "") == (option == "-o")
    assert shardwise(*TOO_LARGE)[2] == ""


def test_a_standard_output_that_cannot_be_written_is_one_line_and_exit_code_2():
    """Full or closed; where nothing is printed, neither matters."""
    shell = 'exec "$0" -c "from shardwise.cli import main; main()" stacks'
    for redirection, reason in {
        "> /dev/full": "No space left on device",
        ">&-": "it is closed",
    }.items():
        done = subprocess.run(
            ["/bin/sh", "-c", f"{shell} {redirection}", sys.executable],
            capture_output=True,
            check=False,
            text=True,
        )
        expected = f"error: standard output: cannot be written: {reason}\n"
        assert (done.returncode, done.stderr) == (2, expected)


def test_closed_streams_do_not_matter_where_nothing_is_printed(tmp_path):
    """A command that writes a file needs neither standard output nor stderr."""
    shell = 'exec "$0" -c "from shardwise.cli import main; main()" stacks calculon -o "$1" >&- 2>&-'
    words = ["/bin/sh", "-c", shell, sys.executable, str(tmp_path / "a.yaml")]
    assert subprocess.run(words, check=False).returncode == 0
    assert (tmp_path / "a.yaml").read_text().splitlines()[1] == "name: calculon"


def test_a_terminated_search_prints_what_it_found(tmp_path):
    """SIGTERM is like Ctrl-C: partial results, exit code 130; saved parts are named."""
    words = ["search", "llama3-8b", "h100-sxm", "--gpus", "8,16", "--gbs", "8", "--fix", "tp=8"]
    code = (
        "import os, signal, sys\n"
        "from shardwise.cli import main\n"
        "from shardwise.planning.search.progress import Reporter\n"
        "def terminate(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "Reporter.__call__ = terminate\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--save", "a.csv"],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 130
    assert "interrupted: the best so far" in done.stdout
    assert "parts of a.csv stay in a folder; the same command resumes" in done.stderr
    assert (tmp_path / "a.csv.parts").is_dir()


def test_a_full_disk_names_the_parts_that_resume_a_search(shardwise, inputs, monkeypatch):
    """Finished parts stay and are named; without any, nothing stays."""
    words = ("search", "llama3-8b", "h100-sxm", "--gpus", "8,16", "--gbs", "8", "--fix", "tp=8")
    write = store.files.write_bytes

    def full_from(name):
        def write_bytes(path, content):
            if Path(path).name == name:
                raise InputError.at(path, "cannot be written: No space left on device")
            write(path, content)

        monkeypatch.setattr(store.files, "write_bytes", write_bytes)

    full_from("000001.parquet")
    code, _, err = shardwise(*words, "--save", "a.csv")
    assert code == 2
    assert err == (
        "error: a.csv: cannot be written: No space left on device; finished parts stay in "
        "a.csv.parts: the same command resumes\n"
    )
    full_from("none")
    assert shardwise(*words, "--save", "a.csv")[0] == 0
    assert Path("a.csv").exists()
    assert not Path("a.csv.parts").exists()
    full_from("search.json")
    assert shardwise(*words, "--save", "b.csv")[0] == 2
    assert not Path("b.csv.parts").exists()
    assert inputs
