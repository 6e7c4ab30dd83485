"""AMPeD's figures of a step and what stands for each of them in an `Estimate`.

Some are sums of its lines, as ours are split differently. None means quite the same in both: the
reasons say what differs. docs/from/amped.md shows the sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.predecessors.tables import Counterpart, print_figures, print_pairs
from shardwise.report.console import plain_table, show
from shardwise.units import readable

_GB = 1e9
_FORWARD, _BACKWARD = "Communication time forward pass: ", "Communication time backward pass: "
_PARTS: Mapping[str, tuple[str, ...]] = {
    "Tensor parallelism, both passes (s)": (
        _FORWARD + "tensor parallelism intra node (s)",
        _FORWARD + "tensor parallelism inter node (s)",
        _BACKWARD + "tensor parallelism intra node (s)",
        _BACKWARD + "tensor parallelism inter node (s)",
    ),
    "Pipeline parallelism, both passes (s)": (
        _FORWARD + "pipeline parallelism (s)",
        _BACKWARD + "pipeline parallelism (s)",
    ),
    "All-reduce of gradients and Zero-DP (s)": (
        "Communication time: all-reduce gradients for DP total (s)",
        _FORWARD + "Zero-DP (ad-hoc model gathering) (s)",
        _BACKWARD + "Zero-DP (ad-hoc model gathering) (s)",
    ),
}
_MEMORY = (
    "required_memory_per_accelerator_weights",
    "required_memory_per_accelerator_activations",
    "total_required_memory_per_accelerator",
)
_RATES = ("TFLOP/sec/GPU",)

_EFFICIENCY = "one efficiency for every product there; here kernels are timed by their shape"

AMPED: tuple[Counterpart, ...] = (
    Counterpart(
        "Total time to train (s)", "step_time_s", "follows from the rows below; of one batch"
    ),
    Counterpart(
        "Computation time forward pass (s)",
        "time_s.forward",
        _EFFICIENCY + "; stages are never uneven there, the head lacks the length of a sequence",
    ),
    Counterpart(
        "Computation time backward pass (s)",
        "time_s.backward",
        "products of inputs alone there: those of weights stand in the next row",
    ),
    Counterpart(
        "Computation time weight updates (s)",
        "time_s.optimizer",
        "there as long as the products of the forward pass; the update of the state is not timed",
    ),
    Counterpart(
        "Total computation time (s)",
        "time_s.forward + time_s.backward + time_s.optimizer",
        _EFFICIENCY + "; all pairs of a causal mask are scored there, half of them here",
    ),
    Counterpart(
        "Tensor parallelism, both passes (s)",
        "comm_s.tp.exposed",
        "volumes there are as wide as one head, of the global batch over all nodes, and links have "
        "their full bandwidth; embedding and head communicate too here",
    ),
    Counterpart(
        "Pipeline parallelism, both passes (s)",
        "comm_s.pp.exposed",
        "one message of the global batch as wide as one head there; here what the critical stage "
        "waits for",
    ),
    Counterpart(
        "All-reduce of gradients and Zero-DP (s)",
        "comm_s.dp.exposed",
        "nothing is hidden there, all cards of a node serve each ring, gradients of all layers "
        "are reduced, not of a stage; a quarter of the other communication is added for weights",
    ),
    Counterpart(
        "Total MoE communication overhead time",
        "comm_s.ep.exposed",
        "the expression there is not known (low trust); counted in every layer",
    ),
    Counterpart(
        "Waiting Time due to pipeline bubbles (s)",
        "time_s.bubble",
        "its compute part is that of one layer of a stage there, so too small by the layers",
    ),
    Counterpart(
        "TFLOP/sec/GPU",
        "model_tflops_per_gpu",
        "all pairs of a causal mask count there, half of them here; no head",
    ),
    Counterpart(
        "required_memory_per_accelerator_weights",
        "memory_bytes.weights + memory_bytes.gradients + memory_bytes.optimizer",
        "there always divided by all accelerators; here as ZeRO says, gradients in the stack's "
        "type",
    ),
    Counterpart(
        "required_memory_per_accelerator_activations",
        "memory_bytes.activations",
        "one micro-batch there, without most of what a layer saves, divided by replicas twice",
    ),
    Counterpart(
        "total_required_memory_per_accelerator",
        "memory_bytes.total",
        "follows from the rows above; working sets and buffers here",
    ),
)


def in_our_units(statistics: Mapping[str, float]) -> dict[str, float]:
    """Figures with a counterpart, of one step: seconds, bytes and TFLOP/s."""
    batches = statistics["number_of_batches"]

    def figure(name: str) -> float:
        if name in _PARTS:
            return sum(statistics[part] for part in _PARTS[name]) / batches
        if name in _MEMORY:
            return statistics[name] * _GB
        return statistics[name] if name in _RATES else statistics[name] / batches

    return {row.name: figure(row.name) for row in AMPED}


_DEGREES = ("data", "tensor", "pipeline")


def _own(name: str, value: float) -> str:
    """A figure in its own unit, which its name implies."""
    if name.endswith(("(s)", "overhead time")):
        return readable(value, "seconds") if value else "0"
    if name.startswith(("required_memory", "total_required", "min_required")):
        return f"{value:.6g} GB"
    return f"{value:.6g}"


def _ours(name: str, value: float | None) -> str:
    """A figure in seconds, bytes or TFLOP/s."""
    if not value:
        return "0"
    if "memory" in name:
        return readable(value, "bytes")
    return f"{value:.4g}" if name.startswith("TFLOP") else readable(value, "seconds")


def print_statistics(statistics: Mapping[str, Any]) -> None:
    """Print all lines of its breakdown under their own labels, memory, and what was assumed."""
    figures = ((name, _own(name, one)) for name, one in statistics.items() if name != "assumed")
    print_figures(("line", "value"), "AMPeD", figures)
    if assumed := [f"{name} {value:g}" for name, value in statistics.get("assumed", {}).items()]:
        show(Text(f"assumed: {', '.join(assumed)}"))


def print_comparison(result: Estimate, statistics: Mapping[str, Any], *, everything: bool) -> None:
    """Print AMPeD's figures next to those of shardwise; `everything` adds nothing."""
    del everything
    print_pairs("AMPeD", AMPED, result, in_our_units(statistics), _ours)


def print_layers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Print the terms of its time model."""
    title = "One layer, one batch; times of compute as if one accelerator did all of it"
    times = ((term["name"], term["seconds"]) for term in layers)
    print_figures(
        ("term", "time"), title, ((name, readable(s, "seconds") if s else "0") for name, s in times)
    )


def print_permutations(found: Sequence[Mapping[str, Any]], summary: str) -> None:
    """Print the best permutations of a search, best first."""
    show(Text(summary))
    if not found:
        return
    words = [f"{word} {place}" for word in ("DP", "TP", "PP") for place in ("intra", "inter")]
    table = plain_table("", *words, "batch", "step", "time")
    for rank, entry in enumerate(found, start=1):
        degrees = (
            entry["degrees"][f"{place}_node_{word}_parallel_degree"]
            for word in _DEGREES
            for place in ("intra", "inter")
        )
        table.add_row(
            str(rank),
            *map(str, degrees),
            str(entry["batch_size"]),
            readable(entry["step_time_s"], "seconds", digits=5),
            readable(entry["time_s"], "seconds", digits=5),
        )
    show(table)


def print_imported(imported: Mapping[str, object]) -> None:
    """Print where it is from, what has no meaning here by reason, and what else there is to say.

    What AMPeD would calculate is counted only; --json lists it too.
    """
    show("\n".join(_import_lines(imported)), style="dim")


def _import_lines(imported: Mapping[str, Any]) -> Iterator[str]:
    tables = imported["tables"]
    rows = ", ".join(dict.fromkeys(imported["rows"].values()))
    yield f"imported from AMPeD: {imported['file']}" + (f"; {rows} of {tables}" if tables else "")
    used, unused = imported["taken"], imported["not_used"]
    yield f"{len(used)} of {len(used) + len(unused)} parameters say something here; not used:"
    by_reason: dict[str, list[str]] = {}
    for one in unused:
        if one["origin"] != "calculated":
            by_reason.setdefault(one["why"], []).append(f"{one['parameter']} {one['value']}")
    for why, found in by_reason.items():
        yield f"  {', '.join(found)}: {why}"
    calculated = sum(one["origin"] == "calculated" for one in unused)
    if calculated:
        yield f"  {calculated} that AMPeD calculates: other formulas here (--json lists them)"
    for note in imported["notes"]:
        yield f"note: {note}"
