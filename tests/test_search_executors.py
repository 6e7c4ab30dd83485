"""Spreading a search over processes: the same answer, in order, and a clean end."""

import os
import signal
import time
from itertools import count

import pytest

from rows import each_row
from saved_search import case, plain
from shardwise.errors import Fault, InputError
from shardwise.planning.search import workers
from shardwise.planning.search.workers import BACKENDS, Workers


def _later_first(number):
    time.sleep(0.05 * (number % 2 == 0))
    return number, os.getpid()


def _refuse(number):
    raise InputError(Fault(field="tp", value=number, has_value=True, problem="is odd"))


def _die(number):
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _ends(pids):
    """Whether processes end, however busy the machine is."""
    for _ in range(6000):
        if not any(map(_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_one_job_is_this_process():
    """Without more processes nothing is handed out."""
    assert list(Workers().each(_later_first, range(2))) == [(0, os.getpid()), (1, os.getpid())]


@pytest.mark.nightly
def test_results_come_in_the_order_of_the_pieces():
    """Two processes do the work, and a slow piece is not overtaken."""
    results = list(Workers(jobs=2).each(_later_first, range(20)))
    assert [number for number, _ in results] == list(range(20))
    assert os.getpid() not in {pid for _, pid in results}
    assert len({pid for _, pid in results}) == 2


def test_few_pieces_are_in_flight():
    """Pieces are asked for as results are taken, so memory is bounded; a closed run takes none."""
    taken = []

    def pieces():
        for number in count():
            taken.append(number)
            yield number

    results = Workers(jobs=2).each(_later_first, pieces())
    pids = [next(results)[1] for _ in range(3)]
    assert len(taken) <= 2 * 8
    results.close()
    asked = len(taken)
    assert _ends(pids)
    assert len(taken) == asked


def test_two_processes_find_the_same():
    """Every figure of the answer is equal, bit for bit."""
    assert plain(case(jobs=2)) == plain(case())


def test_a_fault_comes_back_from_a_process():
    """What is wrong is told as if it had happened here."""
    with pytest.raises(InputError) as caught:
        list(Workers(jobs=2).each(_refuse, [1]))
    assert caught.value.faults == (Fault(field="tp", value=1, has_value=True, problem="is odd"),)


def test_a_process_that_dies_is_a_fault():
    """A worker killed for lack of memory is no traceback.

    Of several items: loky notices at once where another item follows the one that kills.
    """
    with pytest.raises(InputError, match="jobs: 2: a worker died, perhaps for lack of memory"):
        list(Workers(jobs=2).each(_die, range(8)))


@each_row("jobs", [0, -1, 1.5, True, "two"])
def test_jobs_are_a_number_of_processes(jobs):
    """There is at least one."""
    with pytest.raises(InputError, match=r"jobs: .*: must be a whole number from 1 to 100000"):
        case(jobs=jobs)


def test_a_backend_is_one_of_those_known():
    """A wrong word is told with what is allowed."""
    with pytest.raises(InputError, match="backend: 'rai': allowed: loky, ray, dask; did you mean"):
        case(backend="rai")


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "loky"])
def test_a_missing_package_names_the_extra(backend, monkeypatch):
    """What a cluster needs is not installed with the rest."""
    monkeypatch.setattr(workers, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"not installed: pip install 'shardwise\[cluster\]'"):
        case(backend=backend)
