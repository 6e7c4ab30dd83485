"""Who does the work: this process, several of this machine, or those of a Ray or Dask cluster.

Whoever does it, results come in the order of the pieces, so the answer is the same bit for bit.
joblib hands the pieces out to processes and to Ray. Dask is given them directly: joblib's backend
for it waits forever for a worker that has died.
"""

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeVar

from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.search.clusters import dask_cluster, ray_cluster

__all__ = ["BACKENDS", "Workers"]

BACKENDS = ("loky", "ray", "dask")
_MODULES = {"loky": "joblib", "ray": "ray", "dask": "distributed"}
_EXTRA = "pip install 'shardwise[cluster]'"
# Pieces for each worker that are in flight. A result waits in memory for those before it, so they
# are bounded. joblib takes them in waves, between which workers idle, so they are several; and
# from Ray it has results only once the whole wave is done, which an interrupt loses.
_IN_FLIGHT, _IN_FLIGHT_ON_RAY = 8, 4
# How often a process of this machine looks whether the one that started it still lives.
_WATCH_S = 1.0

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many processes work, and what runs them."""

    jobs: int | None = None
    """Not given, one on this machine, or all that a cluster has."""
    backend: str = "loky"

    def check(self) -> None:
        """Raise an `InputError` if there can be no such workers."""
        jobs, backend = self.jobs, self.backend
        whole = isinstance(jobs, int) and not isinstance(jobs, bool)
        if jobs is not None and not (whole and jobs >= 1):
            problem = "must be a whole number of at least 1"
            raise InputError(Fault(field="jobs", value=jobs, has_value=True, problem=problem))
        if backend not in BACKENDS:
            problem = f"allowed: {', '.join(BACKENDS)}{nearest(str(backend), BACKENDS)}"
            raise InputError(Fault(field="backend", value=backend, has_value=True, problem=problem))
        if find_spec(_MODULES[backend]) is None:
            problem = f"needs {_MODULES[backend]}, which is not installed: {_EXTRA}"
            raise InputError(Fault(field="backend", value=backend, has_value=True, problem=problem))

    @property
    def _alone(self) -> bool:
        """Whether this process does the work itself; joblib, too, would do so for one job."""
        return self.jobs == 1 or (self.jobs is None and self.backend == "loky")

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
        else:
            yield from _EACH[self.backend](self.jobs, task, items)


def _by_loky(jobs: int, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    # Columns are small: there is no need of files in shared memory for them.
    spread = _Spread("loky", jobs, return_as="generator", max_nbytes=None)
    with _told_if_lost(jobs, BrokenExecutor):
        yield from spread.each(_done_by_child, task, items, jobs * _IN_FLIGHT)


def _by_ray(jobs: int | None, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    with ray_cluster(jobs) as (workers, lost), _told_if_lost(workers, *lost):
        spread = _Spread("ray", workers, return_as="list")
        yield from spread.each(_done, task, items, workers * _IN_FLIGHT_ON_RAY)


def _by_dask(jobs: int | None, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    import distributed  # noqa: PLC0415 - heavy; only where it is asked for

    with (
        dask_cluster(jobs) as (client, workers, there),
        _told_if_lost(workers, CancelledError, distributed.KilledWorker),
    ):
        # Pieces wait at the workers, unless those are more than the processes that were asked for.
        # Workers are not named to Dask: it would wait forever for one that has died.
        most = workers * _IN_FLIGHT if workers == there else workers
        unasked = iter(items)
        waiting: deque[Any] = deque()
        try:
            while True:
                some = islice(unasked, most - len(waiting))
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


class _Spread:
    """joblib's processes of one backend."""

    def __init__(self, backend: str, jobs: int, *, return_as: str, **options: Any) -> None:
        import joblib  # noqa: PLC0415 - only where work is spread

        self._delayed = joblib.delayed
        # For this thread, and so for whoever takes the results, joblib stays as it is.
        with joblib.parallel_config(backend=backend, **options):
            self._parallel = joblib.Parallel(n_jobs=jobs, return_as=return_as, batch_size=1)

    def each(
        self, call: Callable[..., Any], task: Callable[[T], R], items: Iterable[T], most: int
    ) -> Iterator[R]:
        """Yield results in order, no more than `most` pieces at a time."""
        waiting = iter(items)
        with self._parallel:
            while some := list(islice(waiting, most)):
                yield from _closing(self._parallel(self._delayed(call)(task, i) for i in some))


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


@contextmanager
def _told_if_lost(jobs: int, *lost: type[Exception]) -> Iterator[None]:
    """Tell that a worker has died, whatever a backend raises then."""
    try:
        yield
    except lost as error:
        problem = f"a worker died, perhaps for lack of memory ({type(error).__name__})"
        fault = Fault(field="jobs", value=jobs, has_value=True, problem=problem)
        raise InputError(fault) from error


def _done(task: Callable[[T], R], item: T) -> R:
    """Do a task; a plain function, as some backends hash what they call.

    Workers ignore an interrupt, whose end is for the parent to bring; Polars raises it all the
    same, and a worker of Dask would die of it with a traceback.
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
    """End this process soon after the one that started it.

    If that one is killed, nothing else tells: the workers hold each other's pipes open.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
