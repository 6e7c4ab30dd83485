"""Clusters that search: one that is there, else a local one, which ends with the search."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardwise._version import __version__
from shardwise.errors import Fault, InputError

__all__ = ["dask_cluster", "ray_cluster"]

# How long a cluster may take to answer.
_ANSWER_S = 10.0


@contextmanager
def ray_cluster(jobs: int | None) -> Iterator[tuple[int, tuple[type[Exception], ...]]]:
    """Yield how many workers there are, and what is raised if one of them dies.

    Of the cluster that Ray is connected to, or that RAY_ADDRESS names, or that is started here.

    Raises
    ------
    InputError
        If there is no such cluster, it is too small, or has no shardwise.
    """
    import ray  # noqa: PLC0415 - heavy; only where it is asked for
    from ray.util.joblib import register_ray  # noqa: PLC0415

    register_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, jobs)
    try:
        there = int(ray.cluster_resources().get("CPU", 0))
        known = ray.exceptions
        lost = (known.RayActorError, known.WorkerCrashedError, known.ObjectLostError)
        yield _enough("Ray", jobs, there), lost
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ray.exceptions.RaySystemError):
            raise error.cause from None  # what the task itself has raised
        problem = f"its workers cannot run this; install shardwise {__version__} there"
        raise _fault("ray", f"{problem}: {str(error.cause).splitlines()[0]}") from error
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, jobs: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = os.environ.get("RAY_ADDRESS")
    here = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
    try:
        _refuse_deaf(address or "")
        ray.init(**quiet, **({"address": address} if address else here))
    except (OSError, RuntimeError, ValueError) as error:
        raise _fault("ray", f"no Ray cluster at {address or 'this machine'}: {error}") from None


def _enough(name: str, jobs: int | None, there: int) -> int:
    """How many processes work on a cluster; it must have as many."""
    if there < (jobs or 1):
        problem = f"the {name} cluster has {there} CPUs; ask for no more processes than that"
        raise InputError(Fault(field="jobs", value=jobs, has_value=True, problem=problem))
    return jobs or there


def _refuse_deaf(address: str) -> None:
    """Raise an `OSError` if nobody listens there: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


@contextmanager
def dask_cluster(jobs: int | None) -> Iterator[tuple[Any, int, int]]:
    """Yield a client, how many processes work for it, and how many there are.

    Of the client there is, or of the scheduler that Dask's settings name, or of a cluster that is
    started here.

    Raises
    ------
    InputError
        If there is no such scheduler, or it has too few workers, or one without shardwise.
    """
    import dask  # noqa: PLC0415 - heavy; only where it is asked for
    import distributed  # noqa: PLC0415

    with _client(dask, distributed, jobs) as client:
        try:
            client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            where = client.scheduler.address
            raise _fault("dask", f"the Dask cluster at {where} has no workers") from None
        _check_versions(client)
        there = sum(client.ncores().values())
        yield client, _enough("Dask", jobs, there), there


def _check_versions(client: Any) -> None:
    """Refuse workers of another shardwise: Dask would wait forever for one that has none."""

    def found() -> str | None:  # goes to workers as it stands: they may not know this module
        from importlib import import_module  # noqa: PLC0415 - for the same reason

        try:
            return str(import_module("shardwise").__version__)
        except ImportError:
            return None

    for address, version in client.run(found).items():
        if version != __version__:
            problem = f"the worker at {address} has {version or 'no'} shardwise"
            raise _fault("dask", f"{problem}; install shardwise {__version__} there")


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
            raise _fault("dask", f"no Dask scheduler at {address}: {error}") from None
        with client:
            yield client
    else:
        local = {
            "n_workers": jobs or os.cpu_count(),
            "threads_per_worker": 1,
            "dashboard_address": ":0",
        }
        with _deaf_children():
            cluster = distributed.LocalCluster(**local, silence_logs="CRITICAL")
            client = distributed.Client(cluster, set_as_default=False)
            with suppress(TimeoutError):  # told where the workers are needed
                client.wait_for_workers(local["n_workers"], timeout=_ANSWER_S)
        try:
            with client:
                yield client
        finally:
            with suppress(AssertionError):  # Dask cannot end a worker that it is just restarting
                cluster.close()


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


def _fault(backend: str, problem: str) -> InputError:
    return InputError(Fault(field="backend", value=backend, has_value=True, problem=problem))
