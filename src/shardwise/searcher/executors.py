"""Who does the work: this process, several of this machine, or those of a Ray or Dask cluster.

joblib hands the pieces out, by its registered backends. Whoever does the work, results come in the
order of the pieces, so that the answer is the same bit for bit.
"""

import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal, TypeVar

from shardwise.errors import Fault, InputError, nearest

__all__ = ["BACKENDS", "Workers"]

BACKENDS = ("loky", "ray", "dask")
_MODULES = {"loky": "joblib", "ray": "ray", "dask": "distributed"}
_EXTRA = "pip install 'shardwise[cluster]'"
# Pieces for each worker that are handed out together. A result waits in memory for those before
# it, so they are bounded; between two waves workers idle, so they are several. Where results come
# only once the whole wave is done, what is lost by an interrupt counts too.
_WAVE_STREAMED, _WAVE_WHOLE = 8, 4
# How often a process of this machine looks whether the one that started it still lives.
_WATCH_S = 1.0
_ANSWER_S = 10.0
"""How long a cluster may take to answer."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """What joblib is to be told of a backend that is up."""

    workers: int
    returns: Literal["generator", "list"] = "generator"
    options: dict[str, Any] = field(default_factory=dict)
    lost: tuple[type[Exception], ...] = ()
    """What is raised if a worker dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many processes work, and what runs them."""

    jobs: int = 1
    """On a Dask cluster that is up, all of its workers work."""
    backend: str = "loky"

    def check(self) -> None:
        """Raise an `InputError` if there can be no such workers."""
        jobs, backend = self.jobs, self.backend
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
            problem = "must be a whole number of at least 1"
            raise InputError(Fault(field="jobs", value=jobs, has_value=True, problem=problem))
        if backend not in BACKENDS:
            problem = f"allowed: {', '.join(BACKENDS)}{nearest(str(backend), BACKENDS)}"
            raise InputError(Fault(field="backend", value=backend, has_value=True, problem=problem))
        if find_spec(_MODULES[backend]) is None and not self._alone:
            raise _fault(backend, f"needs {_MODULES[backend]}, which is not installed: {_EXTRA}")

    @property
    def _alone(self) -> bool:
        """Whether this process does the work itself."""
        return self.backend == "loky" and self.jobs == 1

    def each(self, task: Callable[[T], R], items: Iterable[T]) -> Generator[R, None, None]:
        """Do a task for each item and yield the results, in order.

        Closed before its end, or interrupted, it stops the workers it has started.

        Raises
        ------
        InputError
            If the workers cannot be reached, or die.
        """
        if self._alone:
            yield from map(task, items)
            return
        import joblib  # noqa: PLC0415 - only where work is spread

        with _CLUSTERS[self.backend](self.jobs) as cluster:
            streamed = cluster.returns == "generator"
            wave = cluster.workers * (_WAVE_STREAMED if streamed else _WAVE_WHOLE)
            waiting = iter(items)
            call = _done_by_child if self.backend == "loky" else _done
            # Only this way does joblib find a backend that another package brings; left at once,
            # for whoever takes the results may use joblib, too.
            with joblib.parallel_config(backend=self.backend, **cluster.options):
                spread = joblib.Parallel(
                    n_jobs=cluster.workers, return_as=cluster.returns, batch_size=1
                )
            try:
                with spread:
                    while some := list(islice(waiting, wave)):
                        wanted = (joblib.delayed(call)(task, item) for item in some)
                        yield from _closing(spread(wanted))
            except cluster.lost as error:
                problem = f"a worker died, perhaps for lack of memory ({type(error).__name__})"
                fault = Fault(field="jobs", value=self.jobs, has_value=True, problem=problem)
                raise InputError(fault) from error


def _done(task: Callable[[T], R], item: T) -> R:
    """Do a task; a plain function, as Dask's backend hashes what it calls."""
    return task(item)


def _done_by_child(task: Callable[[T], R], item: T) -> R:
    """Do a task in a process of this machine."""
    _end_with_parent()
    return task(item)


@cache
def _end_with_parent() -> None:
    """End this process soon after the one that started it.

    If that one is killed, nothing else tells: the workers hold each other's pipes open.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _closing(results: Iterable[R]) -> Iterator[R]:
    """Yield results; if no more are wanted, let joblib stop its workers without a warning."""
    try:
        for result in results:  # noqa: UP028 - `yield from` would close it with the warning
            yield result
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                close()


def _fault(backend: str, problem: str) -> InputError:
    return InputError(Fault(field="backend", value=backend, has_value=True, problem=problem))


@contextmanager
def _loky(jobs: int) -> Iterator[_Cluster]:
    as_they_are = {"max_nbytes": None}  # columns are small: no files in shared memory for them
    yield _Cluster(workers=jobs, options=as_they_are, lost=(BrokenExecutor,))


@contextmanager
def _ray(jobs: int) -> Iterator[_Cluster]:
    """Use the cluster that is connected or named by RAY_ADDRESS, else a local one."""
    import ray  # noqa: PLC0415 - heavy; only where it is asked for
    from ray.util.joblib import register_ray  # noqa: PLC0415

    register_ray()
    started = not ray.is_initialized()
    if started:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        address = os.environ.get("RAY_ADDRESS")
        here = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
        try:
            _refuse_deaf(address or "")
            ray.init(**quiet, **({"address": address} if address else here))
        except (OSError, RuntimeError, ValueError) as error:
            raise _fault("ray", f"no Ray cluster at {address or 'this machine'}: {error}") from None
    try:
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < jobs:
            problem = f"the Ray cluster has {there} CPUs; ask for no more processes than that"
            raise InputError(Fault(field="jobs", value=jobs, has_value=True, problem=problem))
        yield _Cluster(workers=jobs, returns="list", lost=(ray.exceptions.RayError,))
    finally:
        if started:
            ray.shutdown()


def _refuse_deaf(address: str) -> None:
    """Raise an `OSError` if nobody listens there: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


@contextmanager
def _dask(jobs: int) -> Iterator[_Cluster]:
    """Use the client there is, or the scheduler that Dask's settings name, else a local cluster."""
    import dask  # noqa: PLC0415 - heavy; only where it is asked for
    import distributed  # noqa: PLC0415

    with _dask_client(dask, distributed, jobs) as client:
        workers = sum(client.ncores().values())
        lost = (distributed.KilledWorker, distributed.comm.CommClosedError)
        yield _Cluster(workers=max(1, workers), options={"client": client}, lost=lost)


@contextmanager
def _dask_client(dask: Any, distributed: Any, jobs: int) -> Iterator[Any]:
    try:
        client = distributed.default_client()
    except ValueError:  # there is none
        client = None
    if client is not None:
        yield client
        return
    address = dask.config.get("scheduler-address", None)
    if address is not None:
        try:
            client = distributed.Client(address, set_as_default=False)
        except OSError as error:
            raise _fault("dask", f"no Dask scheduler at {address}: {error}") from None
        with client:
            yield client
        return
    local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    with _deaf_children():
        cluster = distributed.LocalCluster(**local, silence_logs="CRITICAL")
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes that leave Ctrl-C, which reaches all of a terminal's, to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_CLUSTERS = {"loky": _loky, "ray": _ray, "dask": _dask}
