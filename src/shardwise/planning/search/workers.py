"""Workers: this process, several of this machine, or those of a Ray or Dask cluster.

Results come in the order of the items, so any workers give the same answer bit for bit. joblib
hands items out to processes and to Ray. Dask gets them directly: joblib's backend for it waits
forever for a worker that has died. A cluster is the one that is connected or configured, else a
local one that ends with the work.
"""

import os
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeVar

from shardwise._version import __version__
from shardwise.errors import Fault, InputError, check_word
from shardwise.records import dataclass

BACKENDS = ("loky", "ray", "dask")
# Processes of one computer or cluster; joblib counts them in C.
_MOST_JOBS = 100_000
_MODULES = {"loky": "joblib", "ray": "ray", "dask": "distributed"}
_EXTRA = "pip install 'shardwise[cluster]'"
# Items in flight per worker. They are bounded, because a result waits in memory for those before
# it. They are several, because joblib takes items in waves, between which workers idle. From Ray
# results come only once a wave is complete; an interrupt loses the wave.
_IN_FLIGHT, _IN_FLIGHT_ON_RAY = 8, 4
# How often a process of this machine checks that its parent is alive.
_WATCH_S = 1.0

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Number of processes, and what runs them."""

    jobs: int | None = None
    """None: one on this machine, or all CPUs of a cluster."""
    backend: str = "loky"

    def check(self) -> None:
        """Raise an `InputError` if there can be no such workers."""
        jobs, backend = self.jobs, self.backend
        is_integer = isinstance(jobs, int) and not isinstance(jobs, bool)
        if jobs is not None and not (is_integer and 1 <= jobs <= _MOST_JOBS):
            problem = f"must be a whole number from 1 to {_MOST_JOBS}"
            raise InputError.of("jobs", jobs, problem)
        check_word("backend", backend, BACKENDS)
        if find_spec(_MODULES[backend]) is None:
            problem = f"needs {_MODULES[backend]}, which is not installed: {_EXTRA}"
            raise InputError.of("backend", backend, problem)

    @property
    def alone(self) -> bool:
        """Whether this process does the work itself, as joblib does for one job."""
        return self.jobs == 1 or (self.jobs is None and self.backend == "loky")

    def each(
        self, task: Callable[[T], R], items: Iterable[T], *, in_flight: int = _IN_FLIGHT
    ) -> Generator[R, None, None]:
        """Do a task for each item and yield the results, in order.

        If closed early or interrupted, it stops the workers it started.

        Parameters
        ----------
        in_flight
            Items that are taken per worker before the first of them is done; few, where items
            depend on results.

        Raises
        ------
        InputError
            If the workers cannot be reached, or one dies.
        """
        if self.alone:
            yield from map(task, items)
        else:
            yield from _EACH[self.backend](self.jobs, task, items, in_flight)


def _by_loky(jobs: int, task: Callable[[T], R], items: Iterable[T], in_flight: int) -> Iterator[R]:
    # Columns are small: they need no files in shared memory.
    pool = _Joblib("loky", jobs, return_as="generator", max_nbytes=None)
    with _fault_if_lost(jobs, BrokenExecutor):
        yield from pool.each(_done_by_child, task, items, jobs * in_flight)


def _by_ray(
    jobs: int | None, task: Callable[[T], R], items: Iterable[T], in_flight: int
) -> Iterator[R]:
    with ray_cluster(jobs) as (workers, lost), _fault_if_lost(workers, *lost):
        pool = _Joblib("ray", workers, return_as="list")
        yield from pool.each(_done, task, items, workers * min(in_flight, _IN_FLIGHT_ON_RAY))


def _by_dask(
    jobs: int | None, task: Callable[[T], R], items: Iterable[T], in_flight: int
) -> Iterator[R]:
    import distributed  # noqa: PLC0415 - heavy; only where requested

    with (
        dask_cluster(jobs) as (client, workers, cpus),
        _fault_if_lost(workers, CancelledError, distributed.KilledWorker),
    ):
        # Items wait at the workers, unless there are more workers than requested processes.
        # Dask does not get a list of workers to use: it would wait forever for one that died.
        most = workers * in_flight if workers == cpus else workers
        remaining = iter(items)
        waiting: deque[Any] = deque()
        try:
            while True:
                some = islice(remaining, most - len(waiting))
                waiting.extend(client.submit(_done, task, item, pure=False) for item in some)
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            client.cancel(list(waiting))


_EACH: dict[str, Callable[..., Iterator[Any]]] = {
    "loky": _by_loky,
    "ray": _by_ray,
    "dask": _by_dask,
}


class _Joblib:
    """joblib's processes of one backend."""

    def __init__(self, backend: str, jobs: int, *, return_as: str, **options: object) -> None:
        import joblib  # noqa: PLC0415 - only where several processes work

        self._delayed = joblib.delayed
        # The setting is local: the thread that consumes the results keeps its own.
        with joblib.parallel_config(backend=backend, **options):
            self._parallel = joblib.Parallel(n_jobs=jobs, return_as=return_as, batch_size=1)

    def each(
        self, call: Callable[..., object], task: Callable[[T], R], items: Iterable[T], most: int
    ) -> Iterator[R]:
        """Yield results in order, at most `most` items at a time."""
        waiting = iter(items)
        with self._parallel:
            while some := list(islice(waiting, most)):
                yield from _closing(self._parallel(self._delayed(call)(task, i) for i in some))


def _closing(results: Iterable[R]) -> Iterator[R]:
    """Yield results; if closed early, let joblib stop its workers without a warning."""
    try:
        for result in results:  # noqa: UP028 - `yield from` would close it with the warning
            yield result
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                close()


@contextmanager
def _fault_if_lost(jobs: int, *lost: type[Exception]) -> Iterator[None]:
    """Raise an `InputError` if a worker dies, whatever the backend raises."""
    try:
        yield
    except lost as error:
        problem = f"a worker died, perhaps for lack of memory ({type(error).__name__})"
        fault = Fault.of("jobs", jobs, problem)
        raise InputError(fault) from error


def _done(task: Callable[[T], R], item: T) -> R:
    """Do a task; a plain function, as some backends hash what they call.

    Workers ignore an interrupt: the parent ends them. Polars raises it nevertheless, and a worker
    of Dask would die with a traceback.
    """
    try:
        return task(item)
    except KeyboardInterrupt as error:
        message = "interrupted"
        raise RuntimeError(message) from error


def _done_by_child(task: Callable[[T], R], item: T) -> R:
    """Do a task in a process of this machine."""
    _end_with_parent()
    return task(item)


@cache
def _end_with_parent() -> None:
    """End this process soon after its parent, and not before.

    If the parent is killed, nothing else shows it: the workers keep each other's pipes open. A
    signal to all processes of a job ends the parent first, which then has what they found.
    """
    parent = os.getppid()
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Time limit for a cluster to answer.
_ANSWER_S = 10.0


@contextmanager
def ray_cluster(jobs: int | None) -> Iterator[tuple[int, tuple[type[Exception], ...]]]:
    """Yield the number of workers, and the exceptions that mean one of them died.

    The cluster is the one that Ray is connected to, that RAY_ADDRESS names, or a new local one.
    """
    import ray  # noqa: PLC0415 - heavy; only where requested
    from ray.util.joblib import register_ray  # noqa: PLC0415

    register_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, jobs)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        known = ray.exceptions
        lost = (known.RayActorError, known.WorkerCrashedError, known.ObjectLostError)
        yield _enough("Ray", jobs, cpus), lost
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ray.exceptions.RaySystemError):
            raise error.cause from None  # raised by the task itself
        problem = f"its workers cannot run this; install shardwise {__version__} there"
        raise InputError.of(
            "backend", "ray", f"{problem}: {str(error.cause).splitlines()[0]}"
        ) from error
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, jobs: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = os.environ.get("RAY_ADDRESS")
    here = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
    try:
        # Raise an `OSError` if nothing listens there: Ray itself would try for many minutes.
        host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        ray.init(**quiet, **({"address": address} if address else here))
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError.of(
            "backend", "ray", f"no Ray cluster at {address or 'this machine'}: {error}"
        ) from None


def _enough(name: str, jobs: int | None, cpus: int) -> int:
    """Number of processes on a cluster, which must have as many CPUs."""
    if cpus < (jobs or 1):
        problem = f"the {name} cluster has {cpus} CPUs; request no more processes than that"
        raise InputError.of("jobs", jobs, problem)
    return jobs or cpus


@contextmanager
def dask_cluster(jobs: int | None) -> Iterator[tuple[Any, int, int]]:
    """Yield a client, the number of its processes to use, and the number of its CPUs.

    The client is the default one, one of the scheduler that Dask's settings name, or one of a new
    local cluster.
    """
    import dask  # noqa: PLC0415 - heavy; only where requested
    import distributed  # noqa: PLC0415

    with _client(dask, distributed, jobs) as client:
        try:
            client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            where = client.scheduler.address
            raise InputError.of(
                "backend", "dask", f"the Dask cluster at {where} has no workers"
            ) from None
        _check_versions(client)
        cpus = sum(client.ncores().values())
        yield client, _enough("Dask", jobs, cpus), cpus


def _check_versions(client: Any) -> None:
    """Refuse workers with another shardwise: Dask would wait forever for one without any."""

    def version() -> str | None:  # sent by value: workers may lack this module
        from importlib import import_module  # noqa: PLC0415 - for the same reason

        try:
            return str(import_module("shardwise").__version__)
        except ImportError:
            return None

    for address, there in client.run(version).items():
        if there != __version__:
            problem = f"the worker at {address} has {there or 'no'} shardwise"
            raise InputError.of(
                "backend", "dask", f"{problem}; install shardwise {__version__} there"
            )


@contextmanager
def _client(dask: Any, distributed: Any, jobs: int | None) -> Iterator[Any]:
    try:
        client = distributed.default_client()
    except ValueError:  # there is none
        client = None
    address = dask.config.get("scheduler-address", None)
    if client is not None:
        yield client
    elif address is not None:
        try:
            client = distributed.Client(address, set_as_default=False)
        except OSError as error:
            raise InputError.of(
                "backend", "dask", f"no Dask scheduler at {address}: {error}"
            ) from None
        with client:
            yield client
    else:
        local = {
            "n_workers": jobs or os.cpu_count(),
            "threads_per_worker": 1,
            "dashboard_address": ":0",
        }
        with _children_without_interrupt():
            cluster = distributed.LocalCluster(**local, silence_logs="CRITICAL")
            client = distributed.Client(cluster, set_as_default=False)
            with suppress(TimeoutError):  # reported where the workers are needed
                client.wait_for_workers(local["n_workers"], timeout=_ANSWER_S)
        try:
            with client:
                yield client
        finally:
            with suppress(AssertionError):  # Dask cannot end a worker that it is restarting
                cluster.close()


@contextmanager
def _children_without_interrupt() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which reaches all processes of a terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
