"""Micro-benchmarks of one machine: what is timed, in rounds, by all ranks at once.

A round times every benchmark once, so that a disturbance spreads over all of them; their medians
over the rounds count. Ranks run each benchmark together, as in training, where they share memory
and clocks; a few are repeated by one rank alone. Rank 0 writes one JSON line for each sample.

Run as `python -m shardwise.measure.benchmarks PLAN.json RANK`; `machine` starts the ranks.
"""

import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

from shardwise.measure.device import Call, Device

Key = dict[str, Any]
_SAMPLE_S = 0.02
_LEAST_CALLS, _MOST_CALLS = 3, 100
_LONG_S = 0.5
"""A call that takes longer is timed once a round."""
_TIMEOUT = timedelta(minutes=10)
_MIB = 2**20
_FIRST = 0.5
"""Share of the time by which the first round, which has to be complete, may be late."""
_HEADS, _EXPERTS = 8, 8
_RESULT_BYTES = 2**27
"""Of results of a kernel that stay in memory while it is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the ranks are to measure, as it is written to `plan.json`."""

    device: str
    ranks: int
    """Of all servers."""
    local_ranks: int
    """Of one server."""
    threads: int
    """Of each rank."""
    quick: bool
    samples: str
    """File that samples are appended to."""
    rounds: int
    seconds: float
    """No round begins after this time, except the first."""
    done: int = 0
    """Rounds that the file has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A call to be timed: the columns that say what it does, and how to prepare it."""

    key: Key
    prepare: Callable[[], Call]
    host: bool = False
    """Whether the time of the host counts."""
    alone: bool = False
    """Whether rank 0 runs it while the others wait."""


def _grid(plan: Plan) -> dict[str, Any]:
    """Sizes: by decades of work that training has on the kind of device."""
    if plan.device == "cpu":
        widths = [(256, 256), (1024, 1024), (4096, 1024), (1024, 4096)]
        more = [] if plan.quick else [(512, 512), (2048, 512), (512, 2048), (8192, 1024)]
        rows = [128, 512, 2048] if plan.quick else [64, 128, 256, 512, 1024, 2048]
        return {
            "rows": rows,
            "widths": widths + more,
            "flops": 5e9 if plan.quick else 2e10,
            "seq": (128, 512, 1024) if plan.quick else (128, 256, 512, 1024, 2048),
            "bytes": [2**p for p in (14, 18, 20, 22, 24, 26)] if plan.quick
            else [2**p for p in range(14, 27, 2)],
            "largest": 2**28,
            "messages": [2**p for p in (12, 16, 20, 25)] if plan.quick
            else [2**p for p in range(10, 27, 2)],
            "elements": 2**22,
        }  # fmt: skip
    widths = [(1024, 1024), (4096, 4096), (14336, 4096), (4096, 14336)]
    more = [] if plan.quick else [(2048, 2048), (8192, 2048), (8192, 8192), (28672, 8192)]
    rows = [512, 2048, 8192] if plan.quick else [128, 512, 1024, 2048, 4096, 8192, 16384]
    return {
        "rows": rows,
        "widths": widths + more,
        "flops": 2e13,
        "seq": (1024, 4096) if plan.quick else (512, 1024, 2048, 4096, 8192, 16384),
        "bytes": [2**p for p in range(14, 31, 2)],
        "largest": 2**32,
        "messages": [2**p for p in (12, 20, 26)] if plan.quick
        else [2**p for p in range(10, 31, 2)],
        "elements": 2**26,
    }  # fmt: skip


def benchmarks(device: Device, plan: Plan) -> Iterator[Benchmark]:
    """Yield what is timed on a device, without communication."""
    grid = _grid(plan)
    yield from _products(device, grid, grouped=not plan.quick)
    yield from _attention(device, grid, every=not plan.quick)
    yield from _elementwise(device, grid, alone=plan.local_ranks > 1 and plan.device == "cpu")
    yield from _launches(device)
    yield from _optimizers(device, grid)
    if device.asynchronous:
        yield from _copies(device)


def _products(device: Device, grid: Key, *, grouped: bool) -> Iterator[Benchmark]:
    """Products of a linear layer: forward, gradient of the input, gradient of the weight."""
    torch = device.torch
    for dtype, m, (n, k) in product(device.dtypes, grid["rows"], grid["widths"]):
        if 2.0 * m * n * k > grid["flops"]:
            continue
        shape = {"groups": 1, "out_dtype": dtype, "accumulate": 0, "dtype": dtype}
        sizes = {"TN": (m, n, k), "NN": (m, k, n), "NT": (n, k, m)}

        def prepare(layout: str, m: int = m, n: int = n, k: int = k, dtype: str = dtype) -> Call:
            x, weight = device.randn(m, k, dtype=dtype), device.randn(n, k, dtype=dtype)
            gradient = device.randn(m, n, dtype=dtype)
            calls: dict[str, Call] = {
                "TN": lambda: torch.nn.functional.linear(x, weight),
                "NN": lambda: gradient @ weight,
                "NT": lambda: gradient.t() @ x,
            }
            return calls[layout]

        for layout, (a, b, c) in sizes.items():
            key = {"kind": "train_gemm", "layout": layout, "m": a, "n": b, "k": c} | shape
            yield Benchmark(key=key, prepare=partial(prepare, layout))
        if grouped and m >= 512 and dtype == device.dtypes[0]:  # noqa: PLR2004 - enough for 8 experts

            def calls(m: int = m // _EXPERTS, n: int = n, k: int = k, dtype: str = dtype) -> Call:
                x = [device.randn(m, k, dtype=dtype) for _ in range(_EXPERTS)]
                weights = [device.randn(k, n, dtype=dtype) for _ in range(_EXPERTS)]
                return lambda: [one @ weight for one, weight in zip(x, weights, strict=True)]

            key = {"kind": "train_gemm", "layout": "grouped_fwd", "m": m // _EXPERTS}
            key |= shape | {"n": n, "k": k, "groups": _EXPERTS}
            yield Benchmark(key=key, prepare=calls)


def _attention(device: Device, grid: Key, *, every: bool) -> Iterator[Benchmark]:
    """Causal attention forward and backward, with each kernel that runs here."""
    torch = device.torch
    kernels = device.attention_kernels()
    for (name, kernel), dtype, seq, dim, direction in product(
        kernels.items(), device.dtypes, grid["seq"], (64, 128), ("fwd", "bwd")
    ):
        if not every and name == "unfused":
            continue
        if device.asynchronous and name != "unfused" and dtype == "fp32" and name != "efficient":
            continue

        def prepare(
            kernel: Any = kernel, dtype: str = dtype, seq: int = seq, dim: int = dim,
            direction: str = direction,
        ) -> Call:  # fmt: skip
            q, k, v = (device.randn(1, _HEADS, seq, dim, dtype=dtype) for _ in range(3))
            run = torch.nn.functional.scaled_dot_product_attention

            def forward() -> Any:
                with kernel():
                    return run(q, k, v, is_causal=True)

            if direction == "fwd":
                return forward
            for one in (q, k, v):
                one.requires_grad_()
            out = forward()
            gradient = torch.randn_like(out)
            return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        key = {"kind": "train_attention", "kernel": name, "dtype": dtype, "direction": direction}
        key |= {"batch": 1, "seq": seq, "heads": _HEADS, "kv_heads": _HEADS}
        yield Benchmark(key=key | {"head_dim": dim, "head_dim_v": dim}, prepare=prepare)


def _elementwise(device: Device, grid: Key, *, alone: bool) -> Iterator[Benchmark]:
    """Kernels that the memory limits, with the bytes that they read and write."""
    f = device.torch.nn.functional
    width = 1024

    def add(x: Any) -> Call:
        y = x.clone()
        return lambda: x + y

    # Elements read and written, and FLOPs as `ops` counts them, for each element.
    calls: dict[str, tuple[int, int, Callable[[Any], Call]]] = {
        "copy": (2, 0, lambda x: x.clone),
        "add": (3, 1, add),
        "norm": (2, 8, lambda x: lambda: f.layer_norm(x, (x.shape[-1],))),
        "softmax": (2, 6, lambda x: lambda: f.softmax(x, -1)),
        "gelu": (2, 8, lambda x: lambda: f.gelu(x)),
    }
    cases = [*product(calls.items(), grid["bytes"]), (("copy", calls["copy"]), grid["largest"])]
    for (name, (passes, flops, make)), size in cases:
        elements = size // (4 * passes)
        columns = min(width, elements)

        def prepare(make: Any = make, rows: int = elements // columns, c: int = columns) -> Call:
            # Results stay, as activations do until backward, so that others are not in caches.
            call: Call = make(device.randn(rows, c))
            results: deque[Any] = deque(maxlen=max(1, _RESULT_BYTES // (4 * rows * c)))
            results.extend(call() for _ in range(results.maxlen or 1))
            return lambda: results.append(call())

        elements = columns * (elements // columns)
        key = {"kind": "elementwise", "kernel": name, "bytes": 4 * passes * elements}
        key |= {"flops": flops * elements}
        yield Benchmark(key=key, prepare=prepare)
        if alone and name == "copy" and size == grid["largest"]:
            yield Benchmark(key=key | {"kind": "alone"}, prepare=prepare, alone=True)


def _launches(device: Device) -> Iterator[Benchmark]:
    """Time of the host for one small operation, and for a small layer with autograd."""
    torch = device.torch

    def add() -> Call:
        x = device.randn(1)
        return lambda: x.add_(1.0)

    def linear() -> Call:
        layer, x = torch.nn.Linear(8, 8).to(device.place), device.randn(8, 8)
        return lambda: layer(x)

    for name, prepare in (("add", add), ("linear", linear)):
        yield Benchmark(key={"kind": "launch", "call": name}, prepare=prepare, host=True)


def _optimizers(device: Device, grid: Key) -> Iterator[Benchmark]:
    """A fused AdamW step with fp32 state on the device, and on the host of an accelerator."""
    torch = device.torch
    for place in ("device", "host") if device.asynchronous else ("device",):

        def prepare(place: str = place) -> Call:
            on = device.place if place == "device" else "cpu"
            weight = torch.randn(grid["elements"], device=on, requires_grad=True)
            weight.grad = torch.randn_like(weight)
            call: Call = torch.optim.AdamW([weight], fused=True).step
            return call

        key = {"kind": "optimizer", "place": place, "elements": grid["elements"]}
        yield Benchmark(key=key, prepare=prepare, host=place == "host")


def _copies(device: Device) -> Iterator[Benchmark]:
    """Copies between pinned memory of the host and the device, one way and both at once."""
    torch = device.torch
    size = 256 * _MIB

    def prepare(direction: str) -> Call:
        here, there = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
        a, b = (torch.empty(size, dtype=torch.uint8, device=device.place) for _ in range(2))
        aside = torch.cuda.Stream()

        def both() -> None:
            aside.wait_stream(torch.cuda.current_stream())
            a.copy_(here, non_blocking=True)
            with torch.cuda.stream(aside):
                there.copy_(b, non_blocking=True)
            torch.cuda.current_stream().wait_stream(aside)

        calls: dict[str, Call] = {
            "h2d": lambda: a.copy_(here, non_blocking=True),
            "d2h": lambda: there.copy_(b, non_blocking=True),
            "both": both,
        }
        return calls[direction]

    for direction in ("h2d", "d2h", "both"):
        key = {"kind": "host_copy", "direction": direction, "bytes": size}
        yield Benchmark(key=key, prepare=partial(prepare, direction))


def collectives(device: Device, plan: Plan, groups: list[tuple[int, int, Any]]) -> list[Benchmark]:
    """Collectives of groups of ranks: (servers, ranks of each, group)."""
    import torch.distributed as dist  # noqa: PLC0415 - an extra

    found: list[Benchmark] = []
    sizes = _grid(plan)["messages"]
    for nodes, inside, group in groups:
        members = nodes * inside
        for name, size in product(
            ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"), sizes
        ):
            elements = max(size // 4 // members, 1) * members
            if name == "p2p" and members > 2:  # noqa: PLR2004 - a pair on one server
                continue

            def prepare(
                name: str = name, elements: int = elements, members: int = members,
                group: Any = group,
            ) -> Call:  # fmt: skip
                # Gradients and weights come from memory: buffers take turns, as in `_elementwise`.
                copies = max(2, min(_RESULT_BYTES // (4 * elements), _MOST_CALLS))
                fulls = cycle([device.randn(elements) for _ in range(copies)])
                parts = cycle([device.randn(elements // members) for _ in range(copies)])
                rank = dist.get_rank(group)
                if name == "p2p":  # there and back: what one message takes is half of it
                    turn = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
                    peer = dist.get_global_rank(group, 1 - rank)
                    return lambda: [act(next(fulls), peer, group=group) for act in turn]
                calls: dict[str, Call] = {
                    "all_reduce": lambda: dist.all_reduce(next(fulls), group=group),
                    "all_gather": lambda: dist.all_gather_single(
                        next(fulls), next(parts), group=group
                    ),
                    "reduce_scatter": lambda: dist.reduce_scatter_single(
                        next(parts), next(fulls), group=group
                    ),
                    "all_to_all": lambda: dist.all_to_all_single(
                        next(fulls), next(fulls), group=group
                    ),
                }
                return calls[name]

            key = {"kind": "collective", "op": name, "nodes": nodes, "gpus_per_node": inside}
            key |= {"size_bytes": 4 * elements}
            found.append(Benchmark(key=key, prepare=prepare))
    return found


class Ranks:
    """The ranks that measure together; without PyTorch's distributed package, one alone."""

    def __init__(self, device: Device, plan: Plan, rank: int, store: str | None) -> None:
        self.rank, self.size = rank, plan.ranks
        if plan.ranks == 1:
            return
        import torch.distributed as dist  # noqa: PLC0415 - an extra

        self.dist = dist
        rendezvous: Key = {}
        if store is not None:
            rendezvous["store"] = dist.FileStore(store, plan.ranks)
        dist.init_process_group(
            device.backend, rank=rank, world_size=plan.ranks, timeout=_TIMEOUT, **rendezvous
        )
        self.control = dist.new_group(backend="gloo", timeout=_TIMEOUT)

    def agreed(self, value: Any) -> Any:
        """Return the value of rank 0 on every rank, after all of them have come here."""
        if self.size == 1:
            return value
        box = [value]
        self.dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def all_of(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        self.dist.all_gather_object(box, value, group=self.control)
        return box

    def groups(self, plan: Plan) -> list[tuple[int, int, Any]]:
        """Return groups to measure: the ranks of the first server, in powers of two, and all."""
        if self.size == 1:
            return []
        found = []
        inside = 2
        while inside <= plan.local_ranks:
            found.append((1, inside, self.dist.new_group(list(range(inside)))))
            inside *= 2
        nodes = plan.ranks // plan.local_ranks
        every = (nodes, plan.local_ranks, self.dist.group.WORLD)
        return [*found, every] if nodes > 1 else found

    def close(self) -> None:
        """Leave the others."""
        if self.size > 1:
            self.dist.destroy_process_group()


def measure(plan: Plan, rank: int, store: str | None = None) -> None:
    """Measure in rounds until the plan's number of them or its time is reached."""
    import torch  # noqa: PLC0415 - an extra

    begin = time.monotonic()
    torch.set_num_threads(plan.threads)
    device = Device(torch, plan.device, rank % plan.local_ranks, plan.threads)
    if rank == 0:
        Path(plan.samples).touch()
    ranks = Ranks(device, plan, rank, store)
    try:
        device.dtypes = ranks.agreed(device.dtypes)
        every = list(benchmarks(device, plan))
        every += collectives(device, plan, ranks.groups(plan))
        if rank == 0 and not device.asynchronous and "bf16" not in device.dtypes:
            _leave_out_bf16(device, plan)
        refused: set[int] = set()
        for number in range(plan.done, plan.rounds):
            if not _round(device, ranks, every, refused, plan, number, begin + plan.seconds):
                break
    finally:
        ranks.close()


def _leave_out_bf16(device: Device, plan: Plan) -> None:
    """Say in the file why it has no samples in bf16."""
    text = f"takes {device.bf16_time_factor:.0f} times as long as fp32 on this processor"
    line = {"kind": "train_gemm", "dtype": "bf16", "refused": text, "round": plan.done}
    with Path(plan.samples).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")


def _round(
    device: Device,
    ranks: Ranks,
    every: list[Benchmark],
    refused: set[int],
    plan: Plan,
    number: int,
    until: float,
) -> bool:
    """Time every benchmark once, in another order each round, unless the time is up.

    Rank 0 appends the samples and shows progress.
    """
    lines: list[str] = []
    until += 0.0 if number > plan.done else _FIRST * plan.seconds
    order = [place for place in range(len(every)) if place not in refused]
    random.Random(number).shuffle(order)  # noqa: S311 - an order, no secret
    complete = True
    for count, place in enumerate(order, start=1):
        one = every[place]
        if ranks.agreed(time.monotonic() > until):
            complete = False
            break
        took, problem = _sample(device, ranks, one)
        problems = [text for text in ranks.all_of(problem) if text]
        times = [seconds for seconds in ranks.all_of(took) if seconds]
        if problems:
            refused.add(place)
            lines.append(json.dumps(one.key | {"refused": problems[0], "round": number}))
        elif times:
            us = 1e6 * sum(times) / len(times)
            us /= 2 if one.key.get("op") == "p2p" else 1
            lines.append(json.dumps(one.key | {"us": round(us, 3), "round": number}))
        if ranks.rank == 0 and (count % 20 == 0 or count == len(order)):
            sys.stderr.write(f"\rround {number + 1} of {plan.rounds}: {count} of {len(order)} ")
            sys.stderr.flush()
    if ranks.rank == 0:
        with Path(plan.samples).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        sys.stderr.write("\n")
    return complete


def _sample(device: Device, ranks: Ranks, one: Benchmark) -> tuple[float | None, str]:
    """Time of one call [s], or why it does not run here; ranks begin together."""
    idle = one.alone and ranks.rank > 0
    members = one.key.get("nodes", 1) * one.key.get("gpus_per_node", 1)
    idle |= one.key["kind"] == "collective" and ranks.rank >= members
    call: Call = lambda: None  # noqa: E731 - stands for the one below
    problem = ""
    if not idle:
        try:
            call = one.prepare()
            call()
            device.wait()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if any(ranks.all_of(problem)):
        return None, problem
    first = 1.0 if idle else max(device.host_s(call, 1), 1e-9)
    least = _LEAST_CALLS if first < _LONG_S else 1
    calls = ranks.agreed(max(least, min(int(_SAMPLE_S / first), _MOST_CALLS)))
    if idle:
        return None, ""
    if one.host and device.asynchronous:
        return device.host_s(call, calls), ""
    return device.time_s(call, calls, waits=one.key["kind"] == "collective"), ""


def main(plan_file: str, rank: int) -> None:
    """Measure as one rank of a plan in a file."""
    path = Path(plan_file)
    plan = Plan(**json.loads(path.read_text(encoding="utf-8")))
    try:
        measure(plan, rank, str(path.parent / "store"))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is said by the parent
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}"
        (path.parent / f"{rank}.error").write_text(text, encoding="utf-8")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
