"""Processes that compute answers: a pool for estimates, one process for each search.

The server only passes questions and answers on, so that a search of minutes delays nobody's
estimate. Numbers of processes, waiting questions and seconds are bounded.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

from shardwise.config.plain import as_json
from shardwise.errors import Fault, InputError, ShardwiseError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CONTEXT = multiprocessing.get_context("spawn")
_MOST_WAITING = 256
_MOST_SECONDS = 20.0
_REPORT_EVERY_S = 0.2
State = Literal["waiting", "running", "done", "failed", "cancelled"]


class BusyError(ShardwiseError):
    """More work is waiting than the server accepts; to be tried again later."""


def _warm_up() -> None:
    """Import what answers need, and read the data that the first of them would wait for."""
    from shardwise.estimator import estimate  # noqa: PLC0415

    estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8}).to_dict()
    with suppress(ImportError):
        import plotly.io as pio  # noqa: PLC0415 - slow to import

        # The page styles charts itself (`views.themed`); copying templates takes longer than the
        # rest of a chart.
        pio.templates["plotly_white"] = {}
        pio.templates.default = None


def faults_of(error: Exception) -> tuple[Fault, ...]:
    """What a client reads about an error; details of an unexpected one go to the server's log."""
    if isinstance(error, InputError):
        return error.faults
    if isinstance(error, ShardwiseError):
        return (Fault(problem=str(error)),)
    _log.error("unexpected error", exc_info=error)
    problem = f"internal error ({type(error).__name__}); details are in the log of the server"
    return (Fault(source="server", problem=problem),)


class _Worker:
    """One process, which answers one question at a time."""

    def __init__(self) -> None:
        self._executor = self._started()

    @staticmethod
    def _started() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=_CONTEXT, initializer=_warm_up)

    async def answer(self, seconds: float, work: Callable[..., T], *arguments: Any) -> T:
        """Run a function; a process that takes too long, or dies, is replaced."""
        try:
            # A new process first imports; that is not part of the time of the question.
            await asyncio.wrap_future(self._executor.submit(os.getpid))
            future = asyncio.wrap_future(self._executor.submit(work, *arguments))
            return await asyncio.wait_for(future, seconds)
        except (TimeoutError, BrokenProcessPool, asyncio.CancelledError):
            self.stop()
            self._executor = self._started()
            raise

    def stop(self) -> None:
        """Stop the process, whatever it does."""
        for process in list((self._executor._processes or {}).values()):  # noqa: SLF001 - no other way before Python 3.14
            process.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pool:
    """Processes for answers that take milliseconds."""

    def __init__(self, processes: int) -> None:
        self._workers = [_Worker() for _ in range(processes)]
        # The one that answered last comes first: it has the last estimates (`recent_estimate`).
        self._idle: asyncio.Queue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._waiting = 0

    async def ready(self) -> None:
        """Wait until all processes are there."""
        await asyncio.gather(*(self.run(os.getpid) for _ in self._workers))

    async def run(
        self, work: Callable[..., T], *arguments: Any, most_seconds: float = _MOST_SECONDS
    ) -> T:
        """Run a function of a module in a process; the time in the queue does not count."""
        if self._waiting >= _MOST_WAITING:
            raise BusyError("the server is busy; try again in a few seconds")
        self._waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self._waiting -= 1
        # If nobody waits for the answer any more, the worker is idle only when it has ended.
        answer = self._answer(worker, most_seconds, work, *arguments)
        return await asyncio.shield(asyncio.create_task(answer))

    async def _answer(
        self, worker: _Worker, seconds: float, work: Callable[..., T], *arguments: Any
    ) -> T:
        try:
            return await worker.answer(seconds, work, *arguments)
        except TimeoutError:
            problem = f"took more than {seconds:g} s and was stopped"
            raise InputError.at("question", problem) from None
        except BrokenProcessPool:
            problem = "the process that computed the answer ended; try again"
            raise InputError.at("question", problem) from None
        finally:
            self._idle.put_nowait(worker)

    def close(self) -> None:
        """Stop all processes."""
        for worker in self._workers:
            worker.stop()


@dataclass(slots=True, kw_only=True)
class Job:
    """A search: how far it is, and what it found."""

    id: str
    state: State = "waiting"
    done: float = 0
    total: int = 0
    """Candidates scanned, and all."""
    best: Mapping[str, Any] | None = None
    """Strategy and step time of the best plan so far."""
    elapsed_s: float = 0.0
    result: Mapping[str, Any] | None = None
    errors: tuple[Fault, ...] = ()
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the task, as plain values."""
        return {
            "id": self.id,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "best": self.best,
            "elapsed_s": self.elapsed_s,
            "result": self.result,
            "errors": [str(fault) for fault in self.errors],
        }


class Jobs:
    """Searches of all clients: some run, some wait, results stay for a while."""

    def __init__(self, *, running: int, most: int, most_seconds: float) -> None:
        self._slots = asyncio.Semaphore(running)
        self._most, self._most_seconds = most, most_seconds
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def start(self, work: Callable[..., Mapping[str, Any]], question: Any) -> Job:
        """Queue a function of a module that takes a question and a progress function."""
        self._forget()
        job = Job(id=secrets.token_urlsafe(12))
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, work, question))
        return job

    def get(self, name: str) -> Job:
        """Return a search by its identifier."""
        if name not in self._jobs:
            raise InputError.of("id", name, "no such search, or it was forgotten", "search")
        return self._jobs[name]

    def cancel(self, name: str) -> Job:
        """Stop a search; its process ends at once."""
        job = self.get(name)
        if job.state in ("waiting", "running") and job.task is not None:
            job.state = "cancelled"
            job.task.cancel()
        return job

    def close(self) -> None:
        """Stop all searches."""
        for name in list(self._jobs):
            self.cancel(name)

    def _forget(self) -> None:
        """Drop the oldest results where there are too many searches."""
        for name, job in list(self._jobs.items()):
            if len(self._jobs) < self._most:
                return
            if job.state not in ("waiting", "running"):
                del self._jobs[name]
        if len(self._jobs) >= self._most:
            raise BusyError("too many searches are waiting; try again when some have ended")

    async def _run(self, job: Job, work: Callable[..., Mapping[str, Any]], question: Any) -> None:
        async with self._slots:
            job.state, started = "running", time.monotonic()
            ours, its = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_search, args=(its, work, question), daemon=True)
            try:
                process.start()
                its.close()
                while job.state == "running":
                    await asyncio.sleep(_REPORT_EVERY_S / 2)
                    job.elapsed_s = time.monotonic() - started
                    if job.elapsed_s > self._most_seconds:
                        _fail(job, f"took more than {self._most_seconds:g} s and was stopped")
                    elif not _receive(ours, job) and not process.is_alive():
                        _fail(job, "its process ended without an answer")
            except Exception as error:  # noqa: BLE001 - the client must know
                job.state, job.errors = "failed", faults_of(error)
            finally:
                if process.pid is not None:
                    process.kill()
                    process.join(1.0)
                ours.close()


def _fail(job: Job, problem: str) -> None:
    job.state, job.errors = "failed", (Fault(source="search", problem=problem),)


def _receive(pipe: Connection, job: Job) -> bool:
    """Take what a process sent; return whether there was anything."""
    received = False
    try:
        while pipe.poll():
            kind, value = pipe.recv()
            received = True
            if kind == "progress":
                job.done, job.total, job.best = value
            elif kind == "faults":
                job.state, job.errors = "failed", value
            else:
                job.state, job.result = "done", json.loads(value)
    except EOFError:
        return received
    return received


def _search(pipe: Connection, work: Callable[..., Mapping[str, Any]], question: Any) -> None:
    """Run a search in a process of its own, and send its progress and its answer."""
    last = 0.0

    def progress(done: float, total: int, best: Any = None) -> None:
        nonlocal last
        if time.monotonic() - last > _REPORT_EVERY_S:
            last = time.monotonic()
            plan = best and {"strategy": best.strategy.to_dict(), "step_time_s": best.step_time_s}
            pipe.send(("progress", (done, total, plan)))

    try:
        pipe.send(("result", as_json(work(question, progress))))
    except Exception as error:  # noqa: BLE001 - the client must know
        pipe.send(("faults", faults_of(error)))
    pipe.close()
