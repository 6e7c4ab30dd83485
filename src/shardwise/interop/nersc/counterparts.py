"""NERSC's statistics and what stands for each of them in an `Estimate`.

Where both mean the same, the figures agree to rounding (tests check that); where not, the
reason says what differs. Its shares of the step (`*_frac`) follow from its times.
"""

from collections.abc import Mapping

from shardwise.interop.counterpart import Counterpart

_GB, _TERA = 1e9, 1e12

_RUNS = " * stages.0.layers * micro_batches"
_ON_STAGE = "layers.0.{}_bytes * stages.0.layers"
_PASSES = ("forward", "input_grad", "weight_grad")
_ENDS = "embedding, head and loss stand at the ends here"


def _in_passes(figure: str, sign: str = "+") -> str:
    """A figure of one layer over all passes of a step."""
    return f" {sign} ".join(f"layers.0.{name}.{figure}{_RUNS}" for name in _PASSES)


NERSC: tuple[Counterpart, ...] = (
    Counterpart(
        "flops_per_gpu",
        _in_passes("flops"),
        "vector FLOPs count there as what the matrix units would do in their time; all pairs of a "
        "causal mask are scored there, half of them here",
    ),
    Counterpart(
        "t_comp",
        _in_passes("compute_s"),
        "0.8 of either peak there, and 20 us for every pass of every layer; " + _ENDS,
    ),
    Counterpart(
        "t_mem",
        f"{_in_passes('time_s')} - {_in_passes('compute_s', '-')}",
        "each layer is a kernel at the full bandwidth there; element-wise kernels are fused here, "
        "and have launches",
    ),
    Counterpart(
        "t_tp_comm",
        "comm_s.tp.exposed + comm_s.cp.exposed",
        "all of it is exposed there but panels of SUMMA, what the stack hides is not here; each "
        "member adds the latency of a hop there; embedding and head communicate too",
    ),
    Counterpart(
        "t_pp_comm",
        "comm_s.pp.exposed",
        "messages of all micro-batches there, those the critical stage waits for here; messages "
        "between domains cost nothing there where some stages share one",
    ),
    Counterpart(
        "t_bubble",
        "time_s.bubble",
        "the critical stage waits here, with its end of the model; messages count in it there",
    ),
    Counterpart(
        "t_dp_comm",
        "comm_s.dp.exposed",
        _ENDS
        + ", with gradients of their own; there only the pass of one layer hides a collective",
    ),
    Counterpart(
        "t", "step_time_s", "follows from the rows above; the optimizer step is timed here"
    ),
    Counterpart(
        "wts_mem",
        _ON_STAGE.format("weight"),
        "there 1d has unsplit biases after a row split, and query, key and value have none; "
        "norms of SUMMA are l / m1 wide",
    ),
    Counterpart(
        "wts_grad_mem",
        _ON_STAGE.format("gradient"),
        "gradients have the type of the weights there, the stack's here",
    ),
    Counterpart(
        "wts_optimizer_states_mem", _ON_STAGE.format("optimizer"), "as the weights, 12 bytes each"
    ),
    Counterpart(
        "acts_mem",
        _ON_STAGE.format("kept") + " * stages.0.in_flight",
        "gathered inputs of products are saved unsplit there; dropout saves a mask, attention 2 "
        "numbers per row",
    ),
    Counterpart(
        "mem",
        "memory_bytes.total",
        f"follows from the rows above; {_ENDS}, with working sets and buffers",
    ),
)


def in_our_units(statistics: Mapping[str, float]) -> dict[str, float]:
    """Statistics with a counterpart in seconds, bytes and FLOP."""

    def unit(name: str) -> float:
        if name == "flops_per_gpu":
            return _TERA
        return _GB if name.endswith("mem") and not name.startswith("t_") else 1.0

    return {row.name: statistics[row.name] * unit(row.name) for row in NERSC}
