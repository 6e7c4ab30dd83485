"""Load on the explorer's server: clients with one distinct question per second each.

    python benchmarks/explore_load.py --clients 50 --seconds 20

Prints errors, the median and the 95th percentile of the response times, and the memory of the
server and its processes at the start and at the end.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

_MODELS = ("llama3-8b", "llama3-70b", "gpt3-175b", "mixtral-8x7b", "qwen3-30b-a3b")
_PAGE = 4096


def _memory_mib(process: int) -> float:
    """Resident memory of a process and its children [MiB]."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(folder.name) == process or int(fields[1]) == process:
                total += int((folder / "statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return total / 2**20


def _question(number: int, draw: random.Random) -> dict[str, object]:
    """A question that no other client sends."""
    tp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4))
    strategy = {"gpus": 256, "tp": tp, "pp": pp, "gbs": 256 * (1 + number), "zero": 1}
    return {"model": draw.choice(_MODELS), "system": "h100-sxm", "strategy": strategy}


async def _client(http: httpx.AsyncClient, number: int, seconds: int, times: list[float]) -> int:
    draw, errors = random.Random(number), 0  # noqa: S311 - a benchmark
    await asyncio.sleep(draw.random())
    for second in range(seconds):
        started = time.perf_counter()
        try:
            answer = await http.post(
                "/api/v1/estimate", json=_question(number * seconds + second, draw)
            )
            errors += answer.status_code != httpx.codes.OK
        except httpx.HTTPError:
            errors += 1
        times.append(time.perf_counter() - started)
        await asyncio.sleep(max(0.0, 1.0 - (time.perf_counter() - started)))
    return errors


async def _measure(base: str, clients: int, seconds: int, process: int) -> int:
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=base, timeout=30, limits=limits) as http:
        for _ in range(100):
            try:
                await http.get("/api/v1/models")
                break
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
        await asyncio.sleep(4)
        warm: list[float] = []
        await asyncio.gather(*(_client(http, 10_000 + n, 2, warm) for n in range(8)))
        before, times = _memory_mib(process), list[float]()
        tasks = [_client(http, number, seconds, times) for number in range(clients)]
        errors = sum(await asyncio.gather(*tasks))
    after = _memory_mib(process)
    times.sort()
    high = times[int(0.95 * len(times))]
    print(
        f"{len(times)} questions of {clients} clients, {errors} errors, median "
        f"{1e3 * statistics.median(times):.0f} ms, 95 % below {1e3 * high:.0f} ms, "
        f"memory {before:.0f} MiB before, {after:.0f} MiB after"
    )
    return errors


def main() -> int:
    """Start a server, measure it, and stop it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--port", type=int, default=8799)
    options = parser.parse_args()
    code = "from shardwise.cli import main; main()"
    words = [sys.executable, "-c", code, "explore", "--no-open", "--port", str(options.port)]
    with subprocess.Popen(words) as server:  # noqa: S603 - our own
        try:
            base = f"http://127.0.0.1:{options.port}"
            return asyncio.run(_measure(base, options.clients, options.seconds, server.pid))
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
