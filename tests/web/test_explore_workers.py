"""Processes of the explorer: a question that is slow, expensive or fatal touches no other.

It needs the extra `web`.
"""

import asyncio
import os
import time

import pytest

import samples
from event_loops import run_async
from shardwise import InputError, Model
from shardwise.web import questions, views, workers
from shardwise.web.questions import EstimateQuestion, ExportQuestion
from shardwise.web.workers import Pool


@pytest.fixture
def pool(monkeypatch):
    """Two processes that do not import what estimates need."""
    monkeypatch.setattr(workers, "_warm_up", os.getpid)
    one = Pool(2)
    yield one
    one.close()


async def two_processes(pool):
    """Identifiers of the processes of a pool."""
    return set(await asyncio.gather(pool.run(os.getpid), pool.run(os.getpid)))


def test_a_page_has_the_same_process_again(pool):
    """As long as it is idle: it has the estimate that the charts are drawn of."""

    async def processes():
        await two_processes(pool)
        return {await pool.run(os.getpid) for _ in range(5)}

    assert len(run_async(processes())) == 1


@pytest.mark.parametrize(
    ("work", "limit", "words"),
    [
        ((time.sleep, 3600), 0.1, "question: took more than 0.1 s and was stopped"),
        ((os._exit, 1), 600, "question: the process that computed the answer ended; try again"),
    ],
)
def test_only_the_process_of_a_failed_question_is_replaced(pool, work, limit, words):
    """Those that wait, and those in the other process, are answered."""

    async def asked():
        before = await two_processes(pool)
        slow = asyncio.create_task(pool.run(*work, most_seconds=limit))
        others = [asyncio.create_task(pool.run(os.getpid)) for _ in range(20)]
        with pytest.raises(InputError) as refused:
            await slow
        assert str(refused.value) == words
        answered = await asyncio.gather(*others)
        return before, set(answered), await two_processes(pool)

    before, answered, after = run_async(asked())
    assert answered & before
    assert len(before & after) == 1
    assert len(after) == 2


def test_a_question_that_nobody_waits_for_occupies_its_process_alone(pool):
    """The next one waits for it, or gets the other; no process is lost or replaced."""

    async def asked():
        before = await two_processes(pool)
        dropped = asyncio.create_task(pool.run(time.sleep, 0.5))
        await asyncio.sleep(0.1)
        dropped.cancel()
        await asyncio.gather(*(pool.run(os.getpid) for _ in range(10)))
        await pool.run(time.sleep, 0.5)
        return before, await two_processes(pool)

    before, after = run_async(asked())
    assert before == after


def test_time_in_the_queue_does_not_count(pool, monkeypatch):
    """The limit of a question starts with its work: two slow ones ahead of it change nothing."""

    async def asked():
        started = []

        class Recorded:
            """Stands for a process; answers when it is let go."""

            def __init__(self):
                self.free = asyncio.Event()

            async def answer(self, seconds, *work):
                started.append((seconds, work))
                await self.free.wait()

        process = Recorded()
        idle = asyncio.Queue()
        idle.put_nowait(process)
        monkeypatch.setattr(pool, "_idle", idle)
        tasks = [asyncio.create_task(pool.run(os.getpid, n, most_seconds=n)) for n in (9, 1)]
        await asyncio.sleep(0.05)
        first = list(started)
        process.free.set()
        await asyncio.gather(*tasks)
        return first, started

    first, started = run_async(asked())
    assert [seconds for seconds, _ in first] == [9]
    assert [seconds for seconds, _ in started] == [9, 1]


def test_too_many_waiting_questions_are_refused(pool, monkeypatch):
    """And say so."""
    monkeypatch.setattr(workers, "_MOST_WAITING", 3)

    async def asked():
        monkeypatch.setattr(pool, "_idle", asyncio.Queue())
        waiting = [asyncio.create_task(pool.run(os.getpid)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(workers.BusyError, match="the server is busy"):
            await pool.run(os.getpid)
        for task in waiting:
            task.cancel()

    run_async(asked())


def many_kinds(number):
    """A model whose layers all differ."""
    layers = [samples.layer(mlp={"ffn": 256 + n, "activation": "gelu"}) for n in range(number)]
    return samples.model(*layers).to_dict()


ASKED = {"model": many_kinds(150), "system": "h100-sxm", "strategy": {"gpus": 8, "gbs": 8}}
PAGE = ASKED | {"strategy": {"gpus": "8", "global_batch_size": "8"}}


@pytest.mark.parametrize(
    "answer",
    [
        lambda: questions.answer_estimate(EstimateQuestion(**ASKED)),
        lambda: questions.answer_export(ExportQuestion(launcher="megatron", **ASKED)),
        lambda: views.nearest_view(PAGE),
        lambda: views.export_view(PAGE, "megatron"),
        lambda: views.estimate_view(PAGE, [], dark=False),
        lambda: views.compare_view([PAGE], ["A"], dark=False),
    ],
)
def test_expensive_questions_are_refused_before_any_work(answer, monkeypatch):
    """One line names what makes the question expensive, and the limit."""
    # The last one is in the others, which must be imported before it is replaced.
    expensive = ("launchers.export.export", "planning.nearest.nearest_plan", "estimator.estimate")
    for module in expensive:
        monkeypatch.setattr(f"shardwise.{module}", None)
    try:
        faults = answer()["faults"]
    except InputError as error:
        faults = [str(fault) for fault in error.faults]
    assert len(faults) == 1
    assert "question: layers: 150 kinds of layers on " in faults[0]
    assert faults[0].endswith("layer costs; a server computes at most 20,000 for a question")


def test_models_of_the_catalog_are_far_from_the_limit():
    """On as many stages as they have layers, with the nearest plan."""
    kinds = Model.load("llama4-maverick")
    questions.check_cost(kinds, None, nearest=True)
    assert 10 * 2 * len(kinds.layers) * (len(kinds.layers) + kinds.depth) < (
        questions.MOST_LAYER_COSTS
    )


def test_a_long_timeline_is_a_note():
    """The figures of the plan stay."""
    batch = {"gpus": "8", "global_batch_size": "1000000"}
    view = views.estimate_view(
        {"model": "llama3-8b", "system": "h100-sxm", "strategy": batch}, ["timeline"], dark=False
    )
    assert view["faults"] == []
    assert view["facts"]
    assert view["charts"] == {}
    assert (
        "No timeline: 125,000 passes of micro-batches are more than the 100,000"
        in (view["notes"][-1])
    )
