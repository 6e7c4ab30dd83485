"""The bubble, and the totals of the training run (sections 3 and 4)."""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

from collections.abc import Mapping

from shardwise.arrays import Floats
from shardwise.predecessors.amped.formulas import Derived, as_derived, formulas

TOTALS: dict[str, Derived] = {}
"""Times of the training run, by the names of AMPeD's methods."""
_of = formulas(TOTALS)

_DAY, _YEAR = 86_400.0, 365.0
_TERA = 1e12


@_of("s")
def waiting_time_due_to_pipeline_bubbles(
    r_non_overlapping: Floats,
    pipeline_parallel_degree: Floats,
    compute_time_forward_pass: Floats,
    compute_time_backward_pass: Floats,
    number_of_accelerators_required: Floats,
    layers: Floats,
    communication_time_forward_pass: Floats,
    communication_time_backward_pass: Floats,
    number_of_microbatches_per_minibatch: Floats,
) -> Floats:
    """W = r (N_PP - 1) ((U_f + U_b) / (N L) + M_f + M_b) / N_ub, of one layer and batch.

    Fault: multiplied by L layers later, the compute part is that of one layer of a stage.
    """
    compute = compute_time_forward_pass + compute_time_backward_pass
    communication = communication_time_forward_pass + communication_time_backward_pass
    pass_time = compute / (number_of_accelerators_required * layers) + communication
    waits = r_non_overlapping * (pipeline_parallel_degree - 1)
    return waits * pass_time / number_of_microbatches_per_minibatch


def layer_shapes(values: Mapping[str, float]) -> tuple[tuple[int, int, int], ...]:
    """Rows, inner, columns of the products of one layer, as AMPeD writes them for DeepFlow.

    With B sequences of s tokens, H heads of width a, widths d, f1 and f2: (3 B s, d, a H),
    (B s, a, s H), (B s, s, a H), (B s, d, d), (B s, d, f1), (B s, f1, f2). Nothing is divided by
    degrees.

    Parameters
    ----------
    values
        By AMPeD's names, written and calculated ones.
    """
    rows, sequence = values["batch_size"] * values["context"], values["context"]
    width, heads = (
        values["hidden_layer_dimension_for_attention_sublayers"],
        values["attention_heads"],
    )
    model = values["dimensionality"]
    inner = values["hidden_layer_dimension_MLP_1"], values["hidden_layer_dimension_MLP_2"]
    shapes = (
        (3 * rows, model, width * heads),
        (rows, width, sequence * heads),
        (rows, sequence, width * heads),
        (rows, model, model),
        (rows, model, inner[0]),
        (rows, *inner),
    )
    return tuple((int(m), int(k), int(n)) for m, k, n in shapes)


def _add_total(term: str, name: str) -> None:
    """Add a total: a term in all layers and batches."""
    TOTALS[name] = Derived(
        inputs=("number_of_batches", "layers", term),
        function=lambda batches, layers, time: batches * layers * time,
        unit="s",
        description="Batches x layers x the term.",
    )


def _add_shared_total(term: str, name: str) -> None:
    """Add a total of compute, which N accelerators share: 1 / N of it."""
    TOTALS[name] = Derived(
        inputs=("number_of_batches", "layers", term, "number_of_accelerators_required"),
        function=lambda batches, layers, time, accelerators: batches * layers * time / accelerators,
        unit="s",
        description="Batches x layers x the term / accelerators.",
    )


_add_shared_total("compute_time_forward_pass", "total_computation_time_forward_pass")
_add_shared_total("compute_time_backward_pass", "total_computation_time_backward_pass")
_add_shared_total("weight_update_time", "total_computation_time_weight_updates")
_add_shared_total("gating_network_compute_overhead", "total_MoE_gating_network_compute_overhead")
for _pass in ("forward", "backward"):
    for _part in ("tensor_model_intra", "tensor_parallel_inter", "pipeline_parallelism", "zero_DP"):
        _add_total(f"{_pass}_{_part}", f"total_{_pass}_{_part}")
    _add_total(f"communication_time_{_pass}_pass", f"total_communication_time_{_pass}_pass")
_add_total("all_reduce_gradients_for_DP_intra", "total_all_reduce_gradients_for_DP_intra")
_add_total("all_reduce_gradients_for_DP_inter", "total_all_reduce_gradients_for_inter")
_add_total("communication_time_backwards_DP_all_reduce", "total_all_reduce_gradients_for_DP")
_add_total("waiting_time_due_to_pipeline_bubbles", "total_waiting_time_due_to_pipeline_bubbles")


def _both_all_to_alls(number_of_batches: Floats, layers: Floats, all_to_all_s: Floats) -> Floats:
    """Both all-to-alls of all layers and batches."""
    return number_of_batches * layers * 2 * all_to_all_s


for _short in ("fw", "bw"):
    TOTALS[f"total_MoE_overhead_{_short}_pass"] = Derived(
        inputs=("number_of_batches", "layers", f"MoE_overhead_per_layer_{_short}_pass"),
        function=_both_all_to_alls,
        unit="s",
        description="Both all-to-alls of all layers and batches.",
    )


@_of("s")
def total_MoE_overhead(
    total_MoE_overhead_fw_pass: Floats, total_MoE_overhead_bw_pass: Floats
) -> Floats:
    """All communication of experts."""
    return total_MoE_overhead_fw_pass + total_MoE_overhead_bw_pass


@_of("s")
def total_computation_time(
    total_computation_time_forward_pass: Floats,
    total_computation_time_backward_pass: Floats,
    total_computation_time_weight_updates: Floats,
) -> Floats:
    """(U_f + U_b + U_w) / N in all layers and batches."""
    passes = total_computation_time_forward_pass + total_computation_time_backward_pass
    return passes + total_computation_time_weight_updates


@_of("s")
def total_communication_time(
    total_communication_time_forward_pass: Floats,
    total_communication_time_backward_pass: Floats,
    total_all_reduce_gradients_for_DP: Floats,
) -> Floats:
    """M_f + M_b + M_g in all layers and batches."""
    passes = total_communication_time_forward_pass + total_communication_time_backward_pass
    return passes + total_all_reduce_gradients_for_DP


@_of("s")
def total_time_to_train(
    total_computation_time: Floats,
    total_communication_time: Floats,
    total_waiting_time_due_to_pipeline_bubbles: Floats,
) -> Floats:
    """Batches x layers x ((U_f + U_b + U_w) / N + M_f + M_g + M_b + W)."""
    busy = total_computation_time + total_communication_time
    return busy + total_waiting_time_due_to_pipeline_bubbles


@_of("days")
def total_time_to_train_days(total_time_to_train: Floats) -> Floats:
    """Of 24 hours."""
    return total_time_to_train / _DAY


@_of("years")
def total_time_to_train_years(total_time_to_train_days: Floats) -> Floats:
    """Of 365 days."""
    return total_time_to_train_days / _YEAR


@_of("MAC")
def total_MACs(
    number_of_batches: Floats,
    layers: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
    decoder_NMACs: Floats,
) -> Floats:
    """Multiply-accumulates that its times count: L (3 (attention + MLP) + 2 gating + head).

    Low trust: the label is known, not the formula.
    """
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    return number_of_batches * layers * (3 * layer + 2 * gating_MAC_operations + decoder_NMACs)


@_of("TFLOP")
def total_TFLOPS(total_MACs: Floats, OPS_per_MAC: Floats) -> Floats:
    """The same in operations."""
    return total_MACs * OPS_per_MAC / _TERA


@_of("TFLOP/s")
def total_TFLOPS_per_second(total_TFLOPS: Floats, total_time_to_train: Floats) -> Floats:
    """Of all accelerators."""
    return total_TFLOPS / total_time_to_train


@_of("TFLOP/s")
def total_TFLOPS_per_second_per_gpu(
    total_TFLOPS_per_second: Floats, number_of_accelerators_required: Floats
) -> Floats:
    """Of one accelerator."""
    return total_TFLOPS_per_second / number_of_accelerators_required


def _peak(peak_compute_8bit_OPS: Floats) -> Floats:
    """Peak of one accelerator; low trust: the label is known, not the formula."""
    return peak_compute_8bit_OPS / _TERA


TOTALS["total_TFLOPS_per_second_per_gpu_peak"] = as_derived(_peak, "TFLOP/s")
