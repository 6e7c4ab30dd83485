"""Time of the compute of one layer, whole batch, as if one accelerator did it (section 3)."""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.amped.formula import Derived, formulas

__all__ = ["COMPUTE"]

COMPUTE: dict[str, Derived] = {}
"""Times of compute, by the names of AMPeD's methods."""
_of = formulas(COMPUTE)


@_of("s")
def reciprocal_of_OPS(
    frequency: Floats,
    number_of_cores: Floats,
    functional_units_per_core: Floats,
    efficiency: Floats,
    functional_unit_hardware_8bit_MAC_per_cycle: Floats,
) -> Floats:
    """C_mac, time of a multiply-accumulate: 1 / (frequency cores units efficiency MAC/cycle)."""
    units = number_of_cores * functional_units_per_core
    rate = frequency * units * functional_unit_hardware_8bit_MAC_per_cycle
    return 1 / (rate * efficiency)


@_of("s")
def C_NONLIN(
    frequency: Floats,
    non_linear_functional_units_per_core: Floats,
    non_linear_functional_unit_hardware_8bit_NLIN_per_cycle: Floats,
) -> Floats:
    """C_nl, time of a non-linear operation: 1 / (frequency units NLIN/cycle).

    Fault: of one core, though an accelerator has many.
    """
    units = non_linear_functional_units_per_core
    return 1 / (frequency * units * non_linear_functional_unit_hardware_8bit_NLIN_per_cycle)


@_of("s")
def compute_time_forward_pass(
    reciprocal_of_OPS: Floats,
    C_NONLIN: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
    decoder_NMACs: Floats,
    non_linear_operations_for_attention_sublayer: Floats,
    non_linear_operations_for_MLP_sublayer: Floats,
    weight_precision: Floats,
    activation_precision: Floats,
    W_FU_MAC: Floats,
    W_FU_NONLIN: Floats,
) -> Floats:
    """U_f = C_mac (attention + MLP + gating / 2 + head) ceil(Sw / W) + C_nl nl ceil(Sa / W).

    Faults: the head counts in each layer, and gating is that of all layers.
    """
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    products = layer + gating_MAC_operations / 2 + decoder_NMACs
    others = non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer
    of_products = reciprocal_of_OPS * products * np.ceil(weight_precision / W_FU_MAC)
    return of_products + C_NONLIN * others * np.ceil(activation_precision / W_FU_NONLIN)


@_of("s")
def compute_time_backward_pass(
    reciprocal_of_OPS: Floats,
    C_NONLIN: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
    non_linear_operations_for_attention_sublayer: Floats,
    non_linear_operations_for_MLP_sublayer: Floats,
    weight_precision: Floats,
    gradient_precision: Floats,
    W_FU_MAC: Floats,
    W_FU_NONLIN: Floats,
) -> Floats:
    """U_b = C_mac (attention + MLP + gating / 2) ceil(max(Sw, Sg) / W) + C_nl nl ceil(Sw / W).

    As many products as forward: those of gradients of weights are in the update.
    """
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    products = layer + gating_MAC_operations / 2
    others = non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer
    widest = np.maximum(weight_precision, gradient_precision)
    of_products = reciprocal_of_OPS * products * np.ceil(widest / W_FU_MAC)
    return of_products + C_NONLIN * others * np.ceil(weight_precision / W_FU_NONLIN)


@_of("s")
def weight_update_time(
    reciprocal_of_OPS: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
) -> Floats:
    """U_w = C_mac (attention + MLP + gating)."""
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    return reciprocal_of_OPS * (layer + gating_MAC_operations)


@_of("s")
def gating_network_compute_overhead(
    reciprocal_of_OPS: Floats,
    gating_MAC_operations: Floats,
    weight_precision: Floats,
    gradient_precision: Floats,
    W_FU_MAC: Floats,
) -> Floats:
    """Part of gating in U_f + U_b + U_w."""
    forward = np.ceil(weight_precision / W_FU_MAC)
    backward = np.ceil(np.maximum(weight_precision, gradient_precision) / W_FU_MAC)
    return reciprocal_of_OPS * gating_MAC_operations * (forward / 2 + backward / 2 + 1)
