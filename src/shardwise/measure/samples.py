"""From samples of one machine to its system: tables of medians, the fit, what was measured.

Everything that no sample determines stays as in the system that the fit starts from, and its source
says so.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.config import files
from shardwise.config.base import Source
from shardwise.config.system import ShapeTable, System, TablePhase
from shardwise.errors import InputError
from shardwise.validate.calibrate.fit import Calibration, Fit, calibrated
from shardwise.validate.calibrate.tables import KernelTable, table_of

Sample = Mapping[str, Any]
_TABLES = ("train_gemm", "train_attention", "elementwise", "collective")
_KINDS = {
    "accelerator.matmul": "products",
    "accelerator.attention": "attention",
    "accelerator.memory_bound": "memory",
    "network": "collectives",
}
"""Kinds of what was measured, by the prefix of the figures that it determines."""
_REACHED = 0.9
"""Share of its peak that the fastest product of a processor is assumed to reach, whose peak no data
sheet says for the clocks and cores at hand."""
_LINEAR_S = 13.5e-6
"""Forward call of a small `Linear` on the hosts of the stacks' figures (`Host.launch_speed`)."""
_UPDATE_BYTES = 28.0
"""Bytes that a fused AdamW step moves per weight with all of its state in fp32."""
_CACHED = 2**20
_FIRST_RELEASES = "2025-01"
"""Month from which `Stack.kernel_time_factor` counts."""
_UNUSED = ("round", "us", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of one machine, and what the machine is."""

    source: str
    machine: Mapping[str, Any]
    """Device, name, memory_bytes, cores, ranks, local_ranks, threads, torch, on (a date)."""
    times: Mapping[tuple[tuple[str, Any], ...], Floats]
    """Times of the rounds [us] by the columns of a benchmark."""
    refused: Mapping[str, str]
    """Why a benchmark does not run here, by its columns."""

    @property
    def rounds(self) -> int:
        """Rounds with every benchmark."""
        return min((len(one) for one in self.times.values()), default=0)

    @property
    def spread(self) -> float:
        """Noise floor: median over the benchmarks of half the range between quartiles."""
        several = [one for one in self.times.values() if len(one) > 1]
        if not several:
            return 0.0
        quartiles = [np.quantile(one, (0.25, 0.5, 0.75)) for one in several]
        return float(np.median([(high - low) / 2 / mid for low, mid, high in quartiles]))

    def medians(self, **columns: Any) -> list[tuple[dict[str, Any], float]]:
        """Benchmarks with some columns, and the median of their times [us]."""
        wanted = columns.items()
        found = [(dict(key), float(np.median(times))) for key, times in self.times.items()]
        return [(key, us) for key, us in found if wanted <= key.items()]

    def median(self, **columns: Any) -> float | None:
        """Median time of the one benchmark with these columns [us]; None without one."""
        found = self.medians(**columns)
        return found[0][1] if found else None


def read_samples(path: str | Path) -> Samples:
    """Read the samples of a machine: its description, then one sample a line.

    Raises
    ------
    InputError
        Naming file, line and what is wrong.
    """
    first: Mapping[str, Any] | None = None
    times: dict[tuple[tuple[str, Any], ...], list[float]] = defaultdict(list)
    refused: dict[str, str] = {}
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        try:
            one = json.loads(line)
            if first is None:
                first = one["machine"]
                continue
            key = tuple(sorted((k, v) for k, v in one.items() if k not in _UNUSED))
            if "refused" in one:
                refused[" ".join(str(value) for _, value in key)] = str(one["refused"])
            elif one["us"] > 0:
                times[key].append(float(one["us"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            problem = (
                "is no sample of calibrate measure"
                if first is not None
                else "does not say its machine"
            )
            raise InputError.at(path, problem, f"line {number}") from None
    if first is None:
        raise InputError.at(path, "has no samples")
    return Samples(
        source=str(path),
        machine=first,
        times={key: np.array(some) for key, some in times.items()},
        refused=refused,
    )


def fitted(base: System, samples: Samples, name: str) -> Calibration:
    """Fit the figures of a system to the samples of a machine.

    Parameters
    ----------
    base
        System with the priors: of the same accelerator, or `cpu-server`.
    name
        Name of the new system.

    Raises
    ------
    InputError
        If scipy is missing or no sample determines a figure.
    """
    cpu = samples.machine["device"] == "cpu"
    start = described(base, samples, name)
    tables = tables_of(samples, less_us=_dispatch_us(samples) if cpu else 0.0)
    best, start = _best_attention(start, tables)
    start = _attention_tables(start, best)
    found = calibrated(start, best)
    system = _shared(found.system, samples) if cpu else found.system
    system = _with_host(_alike(system, base), samples)
    measured = _measured(samples, found.fits)
    system = _with_sources(system, base, samples, measured)
    return replace(found, system=system)


def tables_of(samples: Samples, *, less_us: float = 0.0) -> list[KernelTable]:
    """Tables of the medians; of processors without the time that the host takes to dispatch."""
    found = []
    for kind in _TABLES:
        rows = [
            key | {"gpu": "here", "latency_us": max(us - less_us, us / 3)}
            if kind != "collective"
            else key | {"gpu": "here", "latency_us": us}
            for key, us in samples.medians(kind=kind)
        ]
        if rows:
            found.append(table_of(samples.source, kind, rows))
    return found


def _dispatch_us(samples: Samples) -> float:
    """Time of an operation on one element, which is the host's [us]."""
    return samples.median(kind="launch", call="add") or 0.0


def described(base: System, samples: Samples, name: str) -> System:
    """The base with what is known of the machine: ranks, threads, memory, peaks, caches."""
    machine, record = samples.machine, base.to_dict()
    ranks, chip = machine["local_ranks"], record["accelerator"]
    record |= {"name": name, "price": None, "board_power": None, "site": None}
    record["description"] = (
        f"{machine['name']}, {ranks} rank{'s' if ranks > 1 else ''} of {machine['threads']} "
        f"thread{'s' if machine['threads'] > 1 else ''} a server; calibrate measure on "
        f"{machine['on']} with PyTorch {machine['torch']}"
    )
    host = base.server.to_dict()
    record["host"] = host | {"cores": machine["cores"]}
    if machine["device"] != "cpu":
        # Measured rates are those of the libraries at hand: no release makes them faster.
        chip["tuned_until"] = _FIRST_RELEASES
        if chip["attention"] is not None:
            chip["attention"]["release_times"] = {}
        return System.validated(record, source=name)
    chip |= {"name": machine["name"], "multiprocessors": machine["threads"]}
    record["node"] = {"accelerators": ranks, "power": None}
    network = [tier for tier in record["network"] if tier["domain"] is None]
    if ranks > 1:
        network.insert(0, record["network"][0] | {"domain": ranks})
    share = _short(min(1 / machine["threads"], 0.9))  # a thread of gloo takes one core
    record["network"] = [tier | {"processor_share": share} for tier in network]
    first = chip["memory"][0] | {"capacity": machine["memory_bytes"] / ranks}
    chip["memory"][1]["host"]["shared_by"] = ranks
    for dtype in tuple(chip["matrix"]):
        rates = [
            2.0 * key["m"] * key["n"] * key["k"] * key["groups"] / us * 1e6
            for key, us in samples.medians(kind="train_gemm", dtype=dtype)
        ]
        if rates:
            chip["matrix"][dtype] = _short(max(rates) / _REACHED)
        else:
            del chip["matrix"][dtype]
            chip["matmul"].pop(dtype, None)
    less = _dispatch_us(samples)
    vector = [
        key["flops"] / max(us - less, us / 3) * 1e6
        for key, us in samples.medians(kind="elementwise")
        if 4 * key["flops"] > 2 * key["bytes"] and key["bytes"] <= _CACHED
    ]
    if vector:  # where a fit begins: what norms and activations reach in caches
        chip["vector"] = {"fp32": _short(float(np.median(vector)))}
    rate, curve = _caches(samples)
    if rate is not None:
        first |= {"bandwidth": rate, "efficiency": curve, "shared_bandwidth": None}
        host |= {"memory_bandwidth": rate * ranks}
        record["host"] = record["host"] | {"memory_bandwidth": rate * ranks}
    chip["memory"] = (first, *chip["memory"][1:])
    return System.validated(record, source=name)


def _caches(samples: Samples) -> tuple[float | None, dict[str, Any] | None]:
    """Rate of copies beyond caches while all ranks copy [byte/s], and shares of it by bytes."""
    less = _dispatch_us(samples)
    found = sorted(
        (key["bytes"], key["bytes"] / max(us - less, us / 3) * 1e6)
        for key, us in samples.medians(kind="elementwise", kernel="copy")
    )
    if not found:
        return None, None
    last = _short(found[-1][1])
    # A larger copy is no faster than a smaller one: what says so is the start of the kernel.
    rates = np.maximum.accumulate([rate for _, rate in reversed(found)])[::-1].tolist()
    shares = [round(min(rate / last, 100.0), 3) for rate in rates]
    sizes = [float(size) for size, _ in found]
    return last, {"points": [(0.0, shares[0]), *zip(sizes, shares, strict=True)], "interpolate": 1}


def _shared(system: System, samples: Samples) -> System:
    """The memory of a processor as one rank alone sees it, and what all ranks get together."""
    alone = samples.medians(kind="alone")
    ranks = system.node.accelerators
    record = system.to_dict()
    first = record["accelerator"]["memory"][0]
    if not alone or ranks == 1:
        return system
    ((key, us),) = alone
    together = first["bandwidth"]
    rate = max(_short(key["bytes"] / us * 1e6), together)
    points = [
        (size, _short(share * together / rate)) for size, share in first["efficiency"]["points"]
    ]
    points[-1] = (points[-1][0], 1.0)
    first["efficiency"]["points"] = points
    first |= {"bandwidth": rate, "shared_bandwidth": together * ranks}
    return System.validated(record, source=system.name)


def _alike(system: System, base: System) -> System:
    """The other 16-bit type with the figures of the measured one, where the base has them equal."""
    old, new = ({str(n): f for n, f in one.accelerator.matmul.items()} for one in (base, system))
    pairs = (("bf16", "fp16"), ("fp16", "bf16"))
    for one, other in pairs:
        if old.get(one) == old.get(other) and new.get(one) != old.get(one) and other in new:
            chip = system.accelerator
            chip = chip.model_copy(update={"matmul": {**chip.matmul, other: new[one]}})
            return system.model_copy(update={"accelerator": chip})
    return system


def _best_attention(
    system: System, tables: Sequence[KernelTable]
) -> tuple[list[KernelTable], System]:
    """Call the fastest kernel of attention the best; times of the others over its own."""
    chip, found = system.accelerator, []
    for table in tables:
        if table.kind != "train_attention" or chip.attention is None:
            found.append(table)
            continue
        columns = dict(table.columns)
        kernels, times = columns["kernel"], columns["latency_us"]
        own_type = columns["dtype"] == _main_type(system)
        shape = ("dtype", "direction", "seq", "head_dim", "heads", "batch")
        keys = np.array([repr(key) for key in zip(*(columns[n] for n in shape), strict=True)])
        times_of = {
            name: dict(zip(keys[rows], times[rows], strict=True))
            for name in np.unique(kernels[own_type]).tolist()
            if (rows := (kernels == name) & own_type).any()
        }
        fused = [name for name in times_of if name != "unfused"] or list(times_of)
        if not fused:
            continue
        all_ran = set.intersection(*(set(times_of[name]) for name in fused))
        best = min(fused, key=lambda name: sum(times_of[name][key] for key in all_ran))
        others: dict[str, Any] = {}
        for name in fused:
            ratios = [times_of[name][key] / times_of[best][key] for key in all_ran]
            if name != best and ratios:
                others[name] = round(float(np.median(ratios)), 3)
        columns["kernel"] = np.where(kernels == best, "best", kernels)
        keep = columns["kernel"] == "best"
        found.append(replace(table, columns=columns).take(keep))
        attention = chip.attention.model_copy(
            update={"other_kernels": dict(chip.attention.other_kernels) | others}
        )
        chip = chip.model_copy(update={"attention": attention})
    return found, system.model_copy(update={"accelerator": chip})


def _main_type(system: System) -> str:
    """The type that the closed form of attention is of: a training type of the chip."""
    chip = system.accelerator
    types = ("bf16", "fp16") if chip.asynchronous else ()
    return next((dtype for dtype in types if dtype in map(str, chip.matrix)), "fp32")


def _attention_tables(system: System, tables: Sequence[KernelTable]) -> System:
    """Shares of the peak by shape for the types that the closed form of attention does not fit.

    Kernels of attention reach other shares of the peak in other types; the closed form has those of
    the type with the most rows, of fp32 on a processor.
    """
    chip = system.accelerator
    main = _main_type(system)
    found: dict[str, ShapeTable] = {}
    for table in tables:
        if table.kind != "train_attention":
            continue
        known = set(table.columns["dtype"].tolist()) & set(map(str, chip.matrix))
        for dtype in sorted(known - {main}):
            of = table.take(table.columns["dtype"] == dtype).columns
            rows: dict[TablePhase, Any] = {"forward": [], "input_grad": []}
            for at, us in enumerate(of["latency_us"].tolist()):
                batch, seq, heads, _, dim, v_dim = sizes = [
                    float(of[name][at])
                    for name in ("batch", "seq", "heads", "kv_heads", "head_dim", "head_dim_v")
                ]
                backward = of["direction"][at] == "bwd"
                widths = 3 * dim + 2 * v_dim if backward else dim + v_dim
                share = batch * heads * seq**2 * widths / (us * 1e-6) / chip.matrix[dtype]
                rows["input_grad" if backward else "forward"].append(
                    (*sizes, min(_short(share), 1.0))
                )
            every = [row[-1] for some in rows.values() for row in some]
            found[dtype] = ShapeTable(
                sizes=("sequences", "seq_len", "heads", "kv_heads", "head_dim", "v_head_dim"),
                rows=rows,
                fallback=float(np.median(every)),
            )
    kinds: dict[str, ShapeTable] = {str(name): one for name, one in chip.attention_table.items()}
    chip = chip.model_copy(update={"attention_table": kinds | found})
    return system.model_copy(update={"accelerator": chip})


def _with_host(system: System, samples: Samples) -> System:
    """The host with its measured speed at launches, updates and copies."""
    record = system.to_dict()
    linear = samples.median(kind="launch", call="linear")
    if linear is not None:
        record["host"]["launch_speed"] = round(_LINEAR_S * 1e6 / linear, 3)
    chip = record["accelerator"]
    for key, us in samples.medians(kind="optimizer", place="device"):
        first, ranks = chip["memory"][0], samples.machine["local_ranks"]
        together = min(first["bandwidth"], (first["shared_bandwidth"] or np.inf) / ranks)
        rate = _UPDATE_BYTES * key["elements"] / us * 1e6
        chip["update_efficiency"] = _short(rate / together)
    for key, us in samples.medians(kind="optimizer", place="host"):
        rate = _UPDATE_BYTES * key["elements"] / us * 1e6
        record["host"]["core_bandwidth"] = _short(rate / samples.machine["threads"])
    copies = {key["direction"]: _short(key["bytes"] / us * 1e6)
              for key, us in samples.medians(kind="host_copy")}  # fmt: skip
    memory = record["accelerator"]["memory"]
    if {"h2d", "d2h", "both"} <= set(copies) and len(memory) > 1 and memory[1]["host"]:
        rate = memory[1]["bandwidth"] = max(memory[1]["bandwidth"], copies["h2d"], copies["d2h"])
        alone = (copies["h2d"] + copies["d2h"]) / 2
        memory[1]["host"] |= {
            "h2d_efficiency": _short(copies["h2d"] / rate),
            "d2h_efficiency": _short(copies["d2h"] / rate),
            "duplex": _short(float(np.clip(2 * copies["both"] / alone, 1.0, 2.0))),
        }
    return System.validated(record, source=system.name)


def _measured(samples: Samples, fits: Sequence[Fit]) -> dict[str, Any]:
    """What was measured, with the mean error of its figures."""
    errors: dict[str, list[float]] = defaultdict(list)
    for fit in fits:
        kind = next(kind for prefix, kind in _KINDS.items() if fit.prefix.startswith(prefix))
        errors[kind].append(fit.after.mean)
    found = {kind: round(min(float(np.mean(some)), 10.0), 4) for kind, some in errors.items()}
    if samples.medians(kind="launch"):
        found["launches"] = round(samples.spread, 4)
    if samples.medians(kind="host_copy"):
        found["copies"] = round(samples.spread, 4)
    return {"on": date.fromisoformat(samples.machine["on"]), "errors": found}


def _with_sources(
    system: System, base: System, samples: Samples, measured: Mapping[str, Any]
) -> System:
    """Sources: what was measured how, and that all other figures are priors of the base."""
    record, machine = system.to_dict(), samples.machine
    own = {name for name in system.sources if system.sources[name] != base.sources.get(name)}
    sources: dict[str, Any] = {}
    for name, source in system.sources.items():
        text = source.text if name in own else f"prior of {base.name}, not measured: {source.text}"
        sources[name] = Source(kind=source.kind if name in own else "assumed", text=text)
    how = (
        f"shardwise calibrate measure on {machine['on']}: medians of {samples.rounds} or more "
        f"rounds, spread {100 * samples.spread:.1f} %"
    )
    direct = ["host.cores"]
    if samples.medians(kind="launch"):
        direct += ["host.launch_speed"]
    if samples.medians(kind="host_copy"):
        direct += ["accelerator.memory.1.bandwidth", "accelerator.memory.1.host"]
    if samples.medians(kind="optimizer", place="device"):
        direct += ["accelerator.update_efficiency"]
    if samples.medians(kind="optimizer", place="host"):
        direct += ["host.core_bandwidth"]
    if machine["device"] == "cpu":
        direct += ["node", "accelerator.memory.0", "accelerator.matrix", "accelerator.vector"]
        direct += ["accelerator.multiprocessors", "accelerator.memory.0.efficiency"]
        direct += ["host.memory_bandwidth"]
    sources |= {name: Source(kind="measured", text=how) for name in direct}
    record |= {"sources": sources, "measured": measured}
    return System.validated(record, source=system.name)


def _short(value: float) -> float:
    """Four digits: no measurement has more."""
    return float(f"{value:.4g}")
