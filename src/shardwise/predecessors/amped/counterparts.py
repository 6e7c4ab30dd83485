"""AMPeD's figures of a step and what stands for each of them in an `Estimate`.

Some are sums of its lines, as ours are split differently. None means quite the same in both: the
reasons say what differs. docs/from/amped.md shows the sizes.
"""

from collections.abc import Mapping

from shardwise.predecessors.counterpart import Counterpart

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
