"""Searches on a real Ray and a real Dask cluster of two workers on this machine.

They need the extra ``cluster`` and are skipped without it.
"""

import json
import os
import signal
from importlib import import_module
from importlib.util import find_spec

import pytest

from saved_search import PIECE_ROWS, case, interrupted, parts_of, plain
from shardwise import __version__
from shardwise.errors import Fault, InputError
from shardwise.planning.search import pieces
from shardwise.planning.search import workers as clusters
from shardwise.planning.search.workers import Workers

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
needs_dask = pytest.mark.skipif(find_spec("distributed") is None, reason="needs dask[distributed]")
pytestmark = [
    pytest.mark.xdist_group("cluster"),  # one after the other: each is several processes
    # Sockets and files that the clusters' own threads leave to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Ray, of a later default of its own.
    pytest.mark.filterwarnings("ignore:Tip.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"),
]
BOTH = [
    pytest.param("ray", marks=needs_ray),
    pytest.param("dask", marks=needs_dask),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds and saves: result and file."""
    file = tmp_path_factory.mktemp("alone") / "all.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SAVED_PIECE_ROWS", PIECE_ROWS)
        return case(save=file, save_all=True), file


@pytest.fixture
def ray():
    """Ray, with no cluster before and none after."""
    import ray  # noqa: PLC0415 - only where it is installed

    assert not ray.is_initialized()
    yield ray
    ray.shutdown()


@pytest.fixture
def dask():
    """A client of a Dask cluster of two workers."""
    import distributed  # noqa: PLC0415 - only where it is installed

    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        yield client


def _pids(**workers):
    """Processes that do some tasks; a function of a test is not known to workers by name."""
    return set(Workers(**workers).each(lambda _: os.getpid(), range(40)))


@pytest.mark.parametrize("backend", BOTH)
def test_a_local_cluster_saves_the_same(alone, tmp_path, monkeypatch, backend):
    """Without a cluster one is started; result and file are equal, byte for byte."""
    monkeypatch.setattr(pieces, "SAVED_PIECE_ROWS", PIECE_ROWS)
    found = case(save=tmp_path / "all.parquet", save_all=True, jobs=2, backend=backend)
    assert plain(found) == plain(alone[0])
    assert (tmp_path / "all.parquet").read_bytes() == alone[1].read_bytes()


@pytest.mark.parametrize("backend", BOTH)
def test_an_interrupt_ends_a_local_cluster(tmp_path, backend):
    """Ctrl-C reaches its processes, too: none of them complains, and the parts are kept."""
    file = tmp_path / "all.parquet"
    # A part each half second: a busy machine hands the signal on late.
    code, out, err = interrupted(file, signal.SIGINT, 2, backend=backend, seconds=0.5)
    assert (code, err) == (0, "")
    assert json.loads(out)["complete"] is False
    assert len(parts_of(file)) >= 3


@pytest.mark.parametrize("backend", BOTH)
def test_a_worker_that_dies_is_a_fault(backend):
    """The search neither waits for it forever nor ends in a traceback."""
    with pytest.raises(InputError, match="jobs: 2: a worker died, perhaps for lack of memory"):
        list(Workers(jobs=2, backend=backend).each(lambda _: os.kill(os.getpid(), 9), [1]))


@pytest.mark.parametrize("backend", BOTH)
def test_a_fault_comes_back_from_a_cluster(backend):
    """What is wrong is told as if it had happened here."""

    def refuse(number):
        raise InputError(Fault(field="tp", value=number, has_value=True, problem="is odd"))

    with pytest.raises(InputError) as caught:
        list(Workers(jobs=2, backend=backend).each(refuse, [1]))
    assert caught.value.faults == (Fault(field="tp", value=1, has_value=True, problem="is odd"),)


@needs_ray
def test_a_ray_cluster_that_is_connected_works(alone, ray):
    """It is used, and left as it was; more processes than it has CPUs are refused."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    assert plain(case(backend="ray")) == plain(alone[0])
    assert os.getpid() not in _pids(backend="ray")
    assert ray.is_initialized()
    with pytest.raises(InputError, match="jobs: 3: the Ray cluster has 2 CPUs"):
        case(jobs=3, backend="ray")


@needs_dask
def test_a_dask_client_that_exists_works(alone, dask):
    """All workers of its cluster are used, and left as they were."""
    assert _pids(backend="dask") == set(dask.run(os.getpid).values())
    assert plain(case(backend="dask")) == plain(alone[0])
    assert dask.status == "running"
    with pytest.raises(InputError, match="jobs: 3: the Dask cluster has 2 CPUs"):
        case(jobs=3, backend="dask")


@needs_dask
def test_dask_finds_the_scheduler_of_its_settings(dask, monkeypatch):
    """As when DASK_SCHEDULER_ADDRESS names it."""
    import dask as settings  # noqa: PLC0415 - only where it is installed
    import distributed  # noqa: PLC0415

    def none():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", none)
    with settings.config.set(scheduler_address=dask.scheduler.address):
        assert _pids(backend="dask") == set(dask.run(os.getpid).values())


@needs_dask
def test_a_dask_cluster_without_workers_is_a_fault(monkeypatch):
    """Nobody would ever do the work."""
    import distributed  # noqa: PLC0415 - only where it is installed

    monkeypatch.setattr(clusters, "_ANSWER_S", 0.2)
    none = {"n_workers": 0, "dashboard_address": ":0", "processes": False}
    with (
        distributed.LocalCluster(**none) as cluster,
        distributed.Client(cluster),
        pytest.raises(InputError, match=r"backend: 'dask': the Dask cluster at .* has no workers"),
    ):
        _pids(backend="dask")


@needs_dask
def test_a_scheduler_that_is_not_there_is_a_fault():
    """No traceback, but where it was looked for."""
    import dask as settings  # noqa: PLC0415 - only where it is installed

    settled = {"scheduler-address": "tcp://127.0.0.1:1", "distributed.comm.timeouts.connect": "1s"}
    with (
        settings.config.set(settled),
        pytest.raises(InputError, match=r"backend: 'dask': no Dask scheduler at tcp://127.0.0.1:1"),
    ):
        case(backend="dask")


@needs_ray
def test_a_ray_cluster_that_is_not_there_is_a_fault(ray, monkeypatch):
    """No traceback, but where it was looked for."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"backend: 'ray': no Ray cluster at 127.0.0.1:1"):
        case(backend="ray")
    assert not ray.is_initialized()


@needs_ray
def test_a_ray_cluster_that_cannot_run_shardwise_is_a_fault(ray, tmp_path, monkeypatch):
    """As where it is not installed on the nodes; here, what to do is known to this process only."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    (tmp_path / "only_here.py").write_text("def task(item): return item")
    monkeypatch.syspath_prepend(tmp_path)
    task = import_module("only_here").task
    told = "its workers cannot run this; install shardwise .* there: .*'only_here'"
    with pytest.raises(InputError, match=told):
        list(Workers(backend="ray").each(task, [1]))


@needs_dask
def test_dask_workers_of_another_version_are_a_fault(dask, monkeypatch):
    """Their answers might be others, or never come."""
    monkeypatch.setattr(clusters, "__version__", "99")
    told = rf"the worker at tcp://.* has {__version__} shardwise; install shardwise 99 there"
    with pytest.raises(InputError, match=told):
        case(backend="dask")
    assert dask.status == "running"
