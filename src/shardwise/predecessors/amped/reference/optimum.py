"""From AMPeD's parameters to its figures, one run or a column of them, and its two text files.

AMPeD's search: every batch size and all six degrees, the best by time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwise.arrays import Floats, Ints, divisors
from shardwise.errors import Fault, InputError, nearest, refuse
from shardwise.predecessors.amped.files import DERIVED
from shardwise.predecessors.amped.formulas import (
    COMMUNICATION,
    COMPUTE,
    MACHINE,
    TOTALS,
    Derived,
    resolve,
)

EFFICIENCY = 0.51
"""Share of the peak in the version that was described."""
CAP = 0.91
"""Largest share of its curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchEfficiency:
    """Share of the peak by the sequences of a micro-batch.

    Linear between points, as at the nearest one beyond them, never more than the cap. AMPeD's own
    curve, fitted to measured runs, was not found.
    """

    points: tuple[tuple[float, float], ...]
    """(sequences, share), sequences ascending."""
    cap: float = CAP

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or any(later <= size for size, later in pairwise(sizes)):
            raise _fault("points", self.points, "needs sizes of micro-batches in ascending order")
        if not all(size > 0 and 0 < share <= 1 for size, share in self.points):
            raise _fault("points", self.points, "sizes must be above 0, shares in (0, 1]")
        if not 0 < self.cap <= 1:
            raise _fault("cap", self.cap, "must be in (0, 1]")

    def at(self, microbatch_size: Floats) -> Floats:
        """Return the share at micro-batches of so many sequences, fractions too."""
        sizes, shares = zip(*self.points, strict=True)
        share: Floats = np.minimum(np.interp(microbatch_size, sizes, shares), self.cap)
        return share

    def derived(self) -> Derived:
        """Return the curve as a quantity derived from the parameters."""
        return Derived(
            inputs=("microbatch_size",), function=self.at, unit="", description="Share of the peak."
        )


def _fault(field: str, value: object, problem: str) -> InputError:
    return InputError(Fault.of(field, value, problem, "efficiency"))


CONSTANTS: Mapping[str, float] = {
    "W_FU_MAC": 32.0,
    "W_FU_NONLIN": 32.0,
    "M_f_DP": 0.25,
    "r_non_overlapping": 1.0,
}
"""Numbers fixed in its program: bits of the functional units, z of the weights gathered again, and
the share of gradients and bubble that nothing hides."""

LABELS: Mapping[str, str] = {
    "Total time to train (s)": "total_time_to_train",
    "Total time to train (days)": "total_time_to_train_days",
    "Total time to train (years)": "total_time_to_train_years",
    "Computation time forward pass (s)": "total_computation_time_forward_pass",
    "Computation time backward pass (s)": "total_computation_time_backward_pass",
    "Computation time weight updates (s)": "total_computation_time_weight_updates",
    "Total computation time (s)": "total_computation_time",
    "Communication time forward pass: tensor parallelism intra node (s)": (
        "total_forward_tensor_model_intra"
    ),
    "Communication time forward pass: tensor parallelism inter node (s)": (
        "total_forward_tensor_parallel_inter"
    ),
    "Communication time forward pass: pipeline parallelism (s)": (
        "total_forward_pipeline_parallelism"
    ),
    "Communication time forward pass: Zero-DP (ad-hoc model gathering) (s)": (
        "total_forward_zero_DP"
    ),
    "Total communication time forward pass (s)": "total_communication_time_forward_pass",
    "Communication time backward pass: tensor parallelism intra node (s)": (
        "total_backward_tensor_model_intra"
    ),
    "Communication time backward pass: tensor parallelism inter node (s)": (
        "total_backward_tensor_parallel_inter"
    ),
    "Communication time backward pass: pipeline parallelism (s)": (
        "total_backward_pipeline_parallelism"
    ),
    "Communication time backward pass: Zero-DP (ad-hoc model gathering) (s)": (
        "total_backward_zero_DP"
    ),
    "Total communication time backward pass (s)": "total_communication_time_backward_pass",
    "Communication time: all-reduce gradients for DP intra node (s)": (
        "total_all_reduce_gradients_for_DP_intra"
    ),
    "Communication time: all-reduce gradients for DP inter node (s)": (
        "total_all_reduce_gradients_for_inter"
    ),
    "Communication time: all-reduce gradients for DP total (s)": (
        "total_all_reduce_gradients_for_DP"
    ),
    "Total communication time (s)": "total_communication_time",
    "Waiting Time due to pipeline bubbles (s)": "total_waiting_time_due_to_pipeline_bubbles",
    "total MACs": "total_MACs",
    "TFLOPS": "total_TFLOPS",
    "total TFLOPS/sec": "total_TFLOPS_per_second",
    "TFLOP/sec/GPU": "total_TFLOPS_per_second_per_gpu",
    "TFLOP/sec/GPU (peak)": "total_TFLOPS_per_second_per_gpu_peak",
    "MoE FW pass communication overhead time (s)": "total_MoE_overhead_fw_pass",
    "MoE BW pass communication overhead time (s)": "total_MoE_overhead_bw_pass",
    "MoE Gating network: compute overhead time (s)": "total_MoE_gating_network_compute_overhead",
    "Total MoE communication overhead time": "total_MoE_overhead",
}
"""Lines of its breakdown, in order, with the quantity that each shows."""

MEMORY = (
    "required_memory_per_accelerator_weights",
    "required_memory_per_accelerator_activations",
    "total_required_memory_per_accelerator",
    "min_required_memory_per_accelerator",
)
"""Its figures of memory [GB]."""

TERMS = (
    *("reciprocal_of_OPS", "C_NONLIN"),
    *("compute_time_forward_pass", "compute_time_backward_pass", "weight_update_time"),
    *("forward_tensor_model_intra", "forward_tensor_parallel_inter"),
    *("forward_pipeline_parallelism", "MoE_overhead_per_layer_fw_pass", "forward_zero_DP"),
    "communication_time_forward_pass",
    *("backward_tensor_model_intra", "backward_tensor_parallel_inter"),
    *("backward_pipeline_parallelism", "MoE_overhead_per_layer_bw_pass", "backward_zero_DP"),
    "communication_time_backward_pass",
    *("all_reduce_gradients_for_DP_intra", "all_reduce_gradients_for_DP_inter"),
    *("communication_time_backwards_DP_all_reduce", "waiting_time_due_to_pipeline_bubbles"),
)
"""Terms of its time model, of one layer and batch [s]."""

_TABLE: Mapping[str, Derived] = {**DERIVED, **COMPUTE, **COMMUNICATION, **TOTALS}
_WANTED = (*LABELS.values(), *MEMORY, *TERMS, "number_of_batches", "microbatch_size")
# As published its formula gives no flag: it must be set.
_NEVER_CALCULATED = "decoder_flag"
_MAY_BE_ZERO = frozenset(
    {
        *("decoder_flag", "expert_flag", "decoder_NMACs", "gating_MAC_operations", "M_f_DP"),
        *("number_of_gating_parameters", "number_of_expert_parameters", "number_of_MoE_layers"),
        *("inter_accelerator_latency", "inter_node_latency", "r_non_overlapping"),
        *("number_of_tokens_in_vocabulary", "embedding_layer_parameters"),
    }
)


def evaluate(
    parameters: Mapping[str, Floats | float],
    *,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
    wanted: Iterable[str] = _WANTED,
    source: str = "parameters",
) -> dict[str, Floats]:
    """Compute AMPeD's figures of runs.

    Parameters
    ----------
    parameters
        By AMPeD's names: numbers, or columns of equal length, one run a row. What AMPeD can
        calculate need not be among them, but for `decoder_flag`, 0 or 1; what is, is used as it
        is, also `CONSTANTS`. Bandwidths are in bit/s, latencies in seconds.
    efficiency
        Share of the peak of products, unless `parameters` has it.
    wanted
        Names of what to compute; by default all that it prints.
    source
        What faults call the parameters.

    Returns
    -------
    All parameters and quantities that this used, by AMPeD's names.
    """
    table = dict(_TABLE)
    given: dict[str, Floats | float] = {**CONSTANTS, **parameters}
    if isinstance(efficiency, MicrobatchEfficiency):
        table["efficiency"] = efficiency.derived()
    else:
        given.setdefault("efficiency", efficiency)
    names = list(wanted)
    if unknown := [name for name in names if name not in table and name not in given]:
        raise InputError([_unknown(name, table, source) for name in unknown])
    calculated, needed = _needed(names, given, table)
    used = {name: value for name, value in given.items() if name in needed}
    if faults := list(_faults(used, source)):
        raise InputError(faults)
    return resolve(used, calculated, table=table, source=source)


def _needed(
    wanted: Iterable[str], given: Mapping[str, object], table: Mapping[str, Derived]
) -> tuple[list[str], set[str]]:
    """What has to be computed, and everything that this reads."""
    seen: dict[str, None] = {}
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen[name] = None
        if name in table and name not in given and name != _NEVER_CALCULATED:
            pending.extend(table[name].inputs)
    calculated = [n for n in seen if n in table and n not in given and n != _NEVER_CALCULATED]
    return calculated, set(seen)


def _faults(values: Mapping[str, Floats | float], source: str) -> Iterator[Fault]:
    for name, value in values.items():
        try:
            column = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            problem = "must be a number, or a column of them"
            yield Fault.of(name, value, problem, source)
            continue
        least = 0.0 if name in _MAY_BE_ZERO else np.nextafter(0.0, 1.0)
        bad = ~(np.isfinite(column) & (column >= least))
        if name.endswith("parallel_degree"):
            bad |= column < 1
        if name == "efficiency":
            bad |= column > 1
        if name == "decoder_flag":
            bad |= (column != 0) & (column != 1)
        if np.any(bad):
            found = float(column[bad].ravel()[0])
            yield Fault.of(name, found, _allowed(name), source)


def _unknown(name: str, table: Mapping[str, Derived], source: str) -> Fault:
    problem = f"is no quantity of AMPeD's{nearest(name, table)}"
    return Fault(source=source, field=name, problem=problem)


def _allowed(name: str) -> str:
    if name == "decoder_flag":
        return "must be 0 or 1"
    if name == "efficiency":
        return "must be above 0 and at most 1"
    if name.endswith("parallel_degree"):
        return "must be at least 1"
    return "must be 0 or more" if name in _MAY_BE_ZERO else "must be above 0"


_CATEGORIES = (
    "NEURAL NETWORK TRAINING PARAMETERS",
    "MAPPING PARAMETERS",
    "SYSTEM ARCHITECTURE PARAMETERS",
    "ACCELERATOR ARCHITECTURE PARAMETERS",
)
_SYSTEM = frozenset(
    {
        *("number_of_accelerators_per_node", "number_of_network_cards_per_node"),
        *("bandwidth_per_network_card", "inter_node_bandwidth", "inter_node_latency"),
        *("inter_accelerator_bandwidth", "inter_accelerator_latency"),
        *("total_intra_node_bandwidth", "number_of_nodes", "total_number_of_accelerators"),
    }
)
_CHIP = frozenset(
    {
        *("frequency", "number_of_cores", "functional_units_per_core"),
        *("functional_unit_hardware_8bit_MAC_per_cycle", "non_linear_functional_units_per_core"),
        "non_linear_functional_unit_hardware_8bit_NLIN_per_cycle",
        *("peak_compute_8bit_MACs", "peak_compute_8bit_OPS", "peak_compute_8bit_NLINs"),
    }
)
_NO_PARAMETERS = frozenset({*LABELS.values(), *TERMS, *CONSTANTS, *COMPUTE, "efficiency"})
_LARGEST_INTEGER = 1e15


def breakdown_text(figures: Mapping[str, float]) -> str:
    """Return its breakdown: every label filled up with dashes to the longest, a blank, the value.

    Programs that read it split lines at five dashes and use the last word.
    """
    longest = max(map(len, LABELS))
    lines = [f"{label:-<{longest}} {figures[label]!r}" for label in LABELS]
    return "\n".join(["TRAINING TIME BREAKDOWN", "", *lines])


def summary_text(
    figures: Mapping[str, float], *, transformer: str = "", accelerator: str = ""
) -> str:
    """Return its summary: a table for each category, "name : value  # description"."""
    lines = [f"Transformer: {transformer or '-'} | Accelerator: {accelerator or '-'}"]
    for number, category in enumerate(_CATEGORIES):
        names = [name for name in figures if _category(name) == number]
        lines += ["", f"{number + 1}: {category}"]
        width = max(map(len, names), default=0)
        lines += [
            f"{name:<{width}} : {_number_text(figures[name])}{_described(name)}" for name in names
        ]
    return "\n".join(lines)


def _category(name: str) -> int | None:
    if name in _NO_PARAMETERS:
        return None
    if name in _SYSTEM:
        return 2
    if name in _CHIP:
        return 3
    return int(name in MACHINE or name.endswith("parallel_degree"))


def _number_text(value: float) -> str:
    """A whole number without a point, as programs that read it expect."""
    return str(int(value)) if value == int(value) and abs(value) < _LARGEST_INTEGER else repr(value)


def _described(name: str) -> str:
    return f"  # {DERIVED[name].description}" if name in DERIVED else ""


DEGREES = (
    "intra_node_data_parallel_degree",
    "inter_node_data_parallel_degree",
    "intra_node_tensor_parallel_degree",
    "inter_node_tensor_parallel_degree",
    "intra_node_pipeline_parallel_degree",
    "inter_node_pipeline_parallel_degree",
)
"""What it permutes besides the batch size."""

MOST_ACCELERATORS = 1 << 20
"""Limit of a search: beyond it there are too many permutations for memory."""
# Candidates timed at a time: their columns use about 50 MB.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One permutation that a search found."""

    time_s: float
    """Of the training run."""
    batch_size: int
    degrees: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    candidates: int
    """Permutations whose degrees multiply to the accelerators."""
    good: int
    """Those whose degrees within a node divide its accelerators."""
    best: tuple[Found, ...]
    """Best first; of equals the first tried, batch sizes in their order."""


def count(*, accelerators: int, per_node: int, batch_sizes: Sequence[int]) -> tuple[int, int]:
    """Count the permutations in all, and those that are valid.

    Six ordered factors of a product of primes p^e: prod of C(e + 5, 5) of them.
    """
    _check(accelerators, per_node, batch_sizes)
    ways = math.prod(math.comb(e + 5, 5) for e in _exponents(accelerators))
    return ways * len(batch_sizes), len(_permutations(accelerators, per_node)[0]) * len(batch_sizes)


def search(
    parameters: Mapping[str, float],
    *,
    accelerators: int,
    per_node: int,
    batch_sizes: Sequence[int],
    top_n: int = 10,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
) -> SearchResult:
    """Find the degrees and the batch size with the least time to train.

    Neither memory nor divisors of layers, heads or batch are checked, as in AMPeD.

    Parameters
    ----------
    parameters
        As for `evaluate`, without degrees, batch size, micro-batches (one for each stage) and
        accelerators of a node (as many as a permutation has within one).
    accelerators
        Product of the six degrees.
    per_node
        Accelerators of a node.
    batch_sizes
        Those to try [sequences].
    top_n
        How many to return.
    """
    _check(accelerators, per_node, batch_sizes, top_n)
    degrees = np.stack(_permutations(accelerators, per_node))
    batches = np.repeat(np.array(batch_sizes, dtype=np.int64), degrees.shape[1])
    rows = np.tile(np.arange(degrees.shape[1]), len(batch_sizes))
    times = np.concatenate(list(_times(parameters, degrees, rows, batches, efficiency)))
    order = np.argsort(times, kind="stable")[:top_n]
    ways = math.prod(math.comb(e + 5, 5) for e in _exponents(accelerators))
    return SearchResult(
        candidates=ways * len(batch_sizes),
        good=times.size,
        best=tuple(
            Found(
                time_s=float(times[row]),
                batch_size=int(batches[row]),
                degrees=dict(zip(DEGREES, degrees[:, rows[row]].tolist(), strict=True)),
            )
            for row in order
        ),
    )


def _times(
    parameters: Mapping[str, float],
    degrees: Ints,
    rows: Ints,
    batches: Ints,
    efficiency: float | MicrobatchEfficiency,
) -> Iterator[Floats]:
    """Time to train of each candidate, some tens of thousands at a time."""
    for start in range(0, rows.size, _CHUNK):
        some = slice(start, start + _CHUNK)
        columns = dict(zip(DEGREES, degrees[:, rows[some]].astype(np.float64), strict=True))
        columns["number_of_accelerators_per_node"] = np.prod(list(columns.values())[::2], axis=0)
        columns["batch_size"] = batches[some].astype(np.float64)
        found = evaluate(
            {**parameters, **columns}, efficiency=efficiency, wanted=["total_time_to_train"]
        )
        yield np.broadcast_to(found["total_time_to_train"], rows[some].shape)


def _permutations(accelerators: int, per_node: int) -> tuple[Ints, ...]:
    """Columns of `DEGREES`: all with this product, the intra product dividing a node.

    Ordered by the product within a node, largest first, then by the degrees as they stand.
    """
    blocks = []
    for inside in reversed(divisors(math.gcd(accelerators, per_node))):
        intra, inter = _triples(inside), _triples(accelerators // inside)
        first = np.repeat(np.arange(len(intra)), len(inter))
        second = np.tile(np.arange(len(inter)), len(intra))
        block = np.empty((first.size, len(DEGREES)), dtype=np.int64)
        block[:, ::2], block[:, 1::2] = intra[first], inter[second]
        blocks.append(block[np.lexsort(block.T[::-1])])
    return tuple(np.concatenate(blocks).T)


def _triples(number: int) -> Ints:
    """All (a, b, c) whose product it is."""
    every = np.array(divisors(number))
    a, b = (column.ravel() for column in np.meshgrid(every, every, indexing="ij"))
    fits = number % (a * b) == 0
    return np.stack([a[fits], b[fits], number // (a[fits] * b[fits])], axis=1)


def _exponents(number: int) -> list[int]:
    """Exponents of the primes of a number."""
    found, prime = [], 2
    while prime * prime <= number:
        exponent = 0
        while number % prime == 0:
            number //= prime
            exponent += 1
        found.append(exponent)
        prime += 1
    return [*found, 1] if number > 1 else found


def _check(accelerators: int, per_node: int, batch_sizes: Sequence[int], top_n: int = 1) -> None:
    numbers = {"accelerators": accelerators, "per_node": per_node, "top_n": top_n}
    faults = [
        _wrong(name, value, f"must be from 1 to {MOST_ACCELERATORS:,}")
        for name, value in numbers.items()
        if not 1 <= value <= MOST_ACCELERATORS
    ]
    faults += [_wrong("batch_sizes", b, "must be at least 1") for b in batch_sizes if b < 1]
    if not batch_sizes:
        faults.append(Fault(field="batch_sizes", problem="needs at least one"))
    refuse(faults)


def _wrong(field: str, value: object, problem: str) -> Fault:
    return Fault.of(field, value, problem)
