"""Run random inputs through the command line and the Python API, and report what goes wrong.

    python scripts/fuzz.py --count 20000 --calls 3000 --processes 500 --seed 1 --workers 2

Cases run in workers; a case that ends its worker, or that a worker does not finish, counts as a
fault. Exit code 1 if there are faults: each kind is printed once, as small as it can be made.
"""

import argparse
import collections
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

_LIMIT_S = 5.0
"""CPU time of a case that counts as too long."""
_GIVE_UP_S = 30.0
"""CPU time after which a case is interrupted."""
_SILENT_S = 300.0
"""Time after which a worker that reports nothing is ended."""
_MEMORY_BYTES = 8 * 2**30
_BATCH = 500


class OverTimeError(BaseException):
    """A case took `_GIVE_UP_S` of CPU time; no `except Exception` may catch it."""


def main() -> int:
    """Run cases and print the report."""
    options = _options()
    if options.worker:
        _work(options)
        return 0
    if options.show is not None:
        import fuzz  # noqa: PLC0415 - found by the path above

        case = fuzz.case_of(options.seed, options.show, kind=options.kind, cheap=False)
        print(json.dumps(case, ensure_ascii=False))
        return 0
    jobs: Queue[tuple[str, int, int]] = Queue()
    for kind, count in _counts(options).items():
        for start in range(0, count, _BATCH):
            jobs.put((kind, start, min(start + _BATCH, count)))
    records: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=_supervise, args=(jobs, options, records), daemon=True)
        for _ in range(options.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _report(records)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="commands")
    parser.add_argument("--calls", type=int, default=3_000, help="calls of Python")
    parser.add_argument("--processes", type=int, default=500, help="of --count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--save", help="add a JSON record of each case to FILE")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one case and stop")
    parser.add_argument("--kind", default="command", choices=("command", "call", "process"))
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def _counts(options: argparse.Namespace) -> dict[str, int]:
    processes = min(options.processes, options.count)
    commands = options.count - processes
    return {"process": processes, "command": commands, "call": options.calls}


def _work(options: argparse.Namespace) -> None:
    """Run a range of cases; print one record before and one after each."""
    import fuzz  # noqa: PLC0415
    import fuzz_runs  # noqa: PLC0415

    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # no input may reach a network
    report, sys.stdout = sys.stdout, sys.stderr
    kind, (start, stop) = options.worker[0], map(int, options.worker[1:])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _over_time)
    for number in range(start, stop):
        print(json.dumps({"kind": kind, "number": number}), file=report, flush=True)
        drawn = "call" if kind == "call" else "command"
        # Numbers of processes are apart from those in this process.
        shift = 10**6 if kind == "process" else 0
        case = fuzz.case_of(options.seed, number + shift, kind=drawn, cheap=False)
        record: dict[str, Any] = {"kind": kind, "number": number + shift}
        signal.setitimer(signal.ITIMER_PROF, _GIVE_UP_S)
        try:
            done = fuzz_runs.outcome(case, process=kind == "process")
            record |= {"code": done.code, "cpu_s": done.cpu_s, "faults": done.faults}
        except OverTimeError:
            record |= {"code": None, "cpu_s": _GIVE_UP_S, "faults": ["interrupted"]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if record["faults"]:
            signal.setitimer(signal.ITIMER_PROF, _GIVE_UP_S)
            try:
                record["case"] = case if kind == "process" else fuzz_runs.minimal(case)
            except OverTimeError:
                record["case"] = case
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        elif record["cpu_s"] > _LIMIT_S:
            record["case"] = case
        print(json.dumps(record), file=report, flush=True)


def _over_time(_signal: int, _frame: object) -> None:
    raise OverTimeError


def _supervise(
    jobs: Queue[Any], options: argparse.Namespace, records: list[dict[str, Any]]
) -> None:
    """Run batches in workers; after the end of a worker, go on behind its last case."""
    while True:
        try:
            kind, start, stop = jobs.get_nowait()
        except Empty:
            return
        while start < stop:
            start = _batch(kind, start, stop, options, records)


def _batch(
    kind: str, start: int, stop: int, options: argparse.Namespace, records: list[dict[str, Any]]
) -> int:
    """Run one worker; return the first number that is still to run."""
    words = [sys.executable, __file__, "--seed", str(options.seed), "--worker", kind]
    worker = subprocess.Popen(  # noqa: S603 - this script itself
        [*words, str(start), str(stop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said: Queue[str | None] = Queue()
    errors: list[str] = []
    threading.Thread(target=_pump, args=(worker.stdout, said), daemon=True).start()
    threading.Thread(target=lambda: errors.extend(worker.stderr or ()), daemon=True).start()
    running: dict[str, Any] | None = None
    while True:
        try:
            line = said.get(timeout=_SILENT_S)
        except Empty:
            worker.kill()
            line = None
        if line is None:
            break
        record = json.loads(line)
        if "faults" in record:
            _keep(record, records, options)
            running, start = None, start + 1
        else:
            running = record
    code = worker.wait()
    if running is not None or (code and start < stop):
        last = " ".join("".join(errors[-3:]).split())[-300:]
        lost = {"code": None, "cpu_s": 0.0, "faults": [f"ended its worker ({code}): {last}"]}
        _keep((running or {"kind": kind, "number": start}) | lost, records, options)
        start += 1
    return start


def _keep(
    record: dict[str, Any], records: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    records.append(record)
    if options.save:
        with Path(options.save).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _pump(stream: Any, said: Queue[str | None]) -> None:
    for line in stream:
        said.put(line)
    said.put(None)


def _report(records: list[dict[str, Any]]) -> int:
    by_kind: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        by_kind[record["kind"]].append(record)
    for kind, some in sorted(by_kind.items()):
        codes = collections.Counter(str(record["code"]) for record in some)
        legal = sum(record["code"] in (0, 1) for record in some)
        counts = ", ".join(f"{code}: {number:,}" for code, number in sorted(codes.items()))
        longest = max(record["cpu_s"] for record in some)
        total = sum(record["cpu_s"] for record in some)
        print(f"{kind}: {len(some):,} cases, {legal:,} legal; exit codes {counts}; ", end="")
        print(f"CPU {total:.0f} s, slowest {longest:.2f} s")
    bad = [one for one in records if one["faults"] or one["cpu_s"] > _LIMIT_S]
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for one in bad:
        first = one["faults"][0].split(":")[0] if one["faults"] else f"over {_LIMIT_S:g} s"
        groups[first].append(one)
    for name, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        one = min(group, key=lambda record: len(json.dumps(record.get("case", ""))))
        print(f"\n{len(group)} x {name}\n  {'; '.join(one['faults'])[:400]}")
        case = json.dumps(one.get("case"), ensure_ascii=False)
        print(f"  {one['kind']} {one['number']}: {case[:1500]}")
    print(f"\n{len(bad):,} of {len(records):,} cases at fault, of {len(groups)} kinds")
    return 1 if bad else 0


if __name__ == "__main__":
    start_s = time.perf_counter()
    exit_code = main()
    sys.exit(exit_code)
