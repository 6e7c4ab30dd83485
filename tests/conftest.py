"""What several test modules use."""

import gc
import gzip
import json
import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

import any_software
import compared_samples as compared
import profiles  # noqa: F401 - registers them
from shardwise import estimate
from shardwise.cli import run
from shardwise.config import files
from shardwise.registry import PACKAGES
from shardwise.validate.measured.predict import predict_as_typed, predict_runs
from shardwise.validate.measured.runs import load_runs

# What these assert is told as fully as in a test.
pytest.register_assert_rewrite("emitted_calls", "traced_modules")


# Files whose tests share what takes seconds to make: one worker runs all tests of a group.
GROUPS = {
    **dict.fromkeys(("accuracy_page", "measured_gate", "measured_memory"), "predictions"),
    **dict.fromkeys(("conformance", "conformance_sizes"), "runs of Calculon"),
}
# Files that take longest, to start with.
LONGEST = (
    *("largest", "search_cli", "cluster_choice", "search_store", "docs", "fsdp_cli"),
    *("narrow_terminals", "bounded_search", "distinct", "sweep", "capabilities", "diagnose"),
    *("search_optima", "search_brute_force", "search_near", "conformance", "search_progress"),
)
TESTS = Path(__file__).parent
# What needs more than the extra `test`: PyTorch and launchers, the explorer and reports.
OWN_JOBS = [TESTS / name for name in ("pytorch", "web")]
# Tests of a package around the core have its name as their folder; `together` needs all of them.
MISSING = [name for name in PACKAGES if find_spec(f"shardwise.{name}") is None]
LEFT_OUT = [TESTS / name for name in (*MISSING, *(("together", "pytorch") if MISSING else ()))]
# Most tests of a third of a second of CPU or more, with or without parameters. `pytest` alone
# leaves them out; .ci/run runs them, as does anyone who names files.
SLOW = TESTS / "data" / "slow_tests.txt"
os.environ["SHARDWISE_CONFIG"] = ""  # defaults of the developer's team have no effect
os.environ.pop("SHARDWISE_CATALOG", None)
# A file that lists the tests that passed, which further runs leave out: .ci/run sets it.
PASSED = os.environ.get("SHARDWISE_PASSED_TESTS")
WORKER = "PYTEST_XDIST_WORKER"
# CPU time that a test may take that is neither slow nor nightly, in seconds; no limit unless set.
CPU_LIMIT_S = float(os.environ.get("SHARDWISE_TEST_CPU_S", "0"))
LIMIT = pytest.StashKey[float]()
# What the loop of `_slowness` takes where no test took 3 s.
LOOP_S = 0.09


def _file(path):
    return path.removeprefix("test_").removesuffix(".py")


def _named(config):
    """Paths that this run names: files and folders, or else all tests."""
    return [config.invocation_params.dir / word.split("::")[0] for word in config.args]


def _lines(path):
    return set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()


def pytest_ignore_collect(collection_path, config):
    """Folders with jobs of their own run where they, or files inside, are named.

    Those of a package that is missing never do.
    """
    if collection_path in LEFT_OUT:
        return True
    if collection_path not in OWN_JOBS:
        return None
    named = any(collection_path in (path, *path.parents) for path in _named(config))
    return None if named else True


def pytest_collection_modifyitems(config, items):
    """Start with what takes longest; leave out slow tests, and what passed before in .ci/run."""
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_file(item.path.name), len(places)))
    left_out = _lines(Path(PASSED)) if PASSED else set()
    left_out |= _lines(SLOW) if _named(config) == [TESTS] else set()
    run, other = [], []
    for item in items:
        names = {item.nodeid, item.nodeid.split("[")[0]}
        lacks = any(mark.args[0] in MISSING for mark in item.iter_markers("needs"))
        (other if lacks or names & left_out else run).append(item)
    config.hook.pytest_deselected(items=other)
    items[:] = run


def pytest_runtest_logreport(report):
    """Write down what passed, once: workers report to the process that started them."""
    if PASSED and report.when == "call" and report.passed and WORKER not in os.environ:
        with Path(PASSED).open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


def _cpu_s():
    """CPU time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def _slowness():
    """CPU time of a loop over what it takes on the machine that the limit was chosen on; 1 or more.

    The least of three, as other processes lengthen it.
    """
    times = []
    for _ in range(3):
        start = time.process_time()
        sum(i * i for i in range(1_000_000))
        times.append(time.process_time() - start)
    return max(1.0, min(times) / LOOP_S)


def pytest_configure(config):
    """Measure once how slow this machine is."""
    if CPU_LIMIT_S:
        config.stash[LIMIT] = CPU_LIMIT_S * _slowness()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that takes too much CPU time, where a limit is set; fixtures do not count."""
    start = _cpu_s()
    result = yield
    limit, used = item.config.stash.get(LIMIT, float("inf")), _cpu_s() - start
    if used > limit and not item.get_closest_marker("nightly"):
        message = f"took {used:.1f} s of CPU, limit {limit:.1f} s"
        pytest.fail(f"{message}: shorten it, or list it in {SLOW.name}")
    return result


class GroupScheduling(LoadScopeScheduling):
    """Hand out files, whose tests share fixtures, or groups of them, as one."""

    def _split_scope(self, nodeid):
        file = _file(nodeid.split("::")[0].rpartition("/")[2])
        return GROUPS.get(file, file)


def pytest_xdist_make_scheduler(config, log):
    """Schedule by groups."""
    return GroupScheduling(config, log)


# Collecting makes many objects, and all of them stay: there is no garbage to look for.
gc.disable()


def pytest_collection_finish():
    """Spare what lives as long as the tests from being looked through for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def _of_usual_width(monkeypatch):
    """Tables are as wide as in a file, whatever terminal the tests are run in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tests marked any_software are of formulas, whatever software runs what they predict.

    A fixture would come after those of modules and sessions.
    """
    if not item.get_closest_marker("any_software"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        any_software.lift(patch)
        return (yield)


@pytest.fixture(scope="session")
def predictions():
    """Predictions of all runs that come with shardwise; they take some seconds."""
    return predict_runs(load_runs())


@pytest.fixture(scope="session")
def typed_predictions():
    """The same with the software as their sources name it."""
    return predict_as_typed(load_runs())


@pytest.fixture
def shardwise(capsys):
    """Run a command in this process; return exit code, standard output and standard error."""

    def call(*words):
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a file to where the test runs, and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(file, **fields):
        files.write_mapping(file, fields)
        return file

    return write


@pytest.fixture(scope="session")
def pair():
    """Two ways to run one model, of which both fit."""
    return tuple(estimate(compared.MODEL, compared.SYSTEM, way) for way in (compared.A, compared.B))


@pytest.fixture
def saved(tmp_path, pair):
    """Files of the `pair`, the second compressed."""
    first, second = tmp_path / "first.json", tmp_path / "second.json.gz"
    first.write_text(json.dumps(pair[0].to_dict()))
    second.write_bytes(gzip.compress(json.dumps(pair[1].to_dict()).encode()))
    return first, second


@pytest.fixture
def plan(shardwise):
    """Run `shardwise fsdp ... --json`; return exit code and record."""

    def call(*words):
        code, out, err = shardwise("fsdp", *words, "--json")
        assert not err.startswith("error"), err
        return code, json.loads(out)

    return call


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium of this machine; without it or playwright the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Debian's chromium")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        one = started.chromium.launch(executable_path=path, args=flags)
        yield one
        one.close()
