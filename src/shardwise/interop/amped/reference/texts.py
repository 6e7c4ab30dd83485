"""AMPeD's two files of text: the breakdown of the time and the summary of the configuration."""

from collections.abc import Mapping

from shardwise.interop.amped.derived import DERIVED
from shardwise.interop.amped.machine_formulas import MACHINE
from shardwise.interop.amped.reference.compute import COMPUTE
from shardwise.interop.amped.reference.evaluation import CONSTANTS, LABELS, TERMS

__all__ = ["breakdown_text", "summary_text"]

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
_WHOLE = 1e15


def breakdown_text(figures: Mapping[str, float]) -> str:
    """Return its breakdown: every label filled up with dashes to the longest, a blank, the value.

    Programs that read it split lines at five dashes and take the last word.

    Parameters
    ----------
    figures
        By label (see `LABELS`).
    """
    longest = max(map(len, LABELS))
    lines = [f"{label:-<{longest}} {figures[label]!r}" for label in LABELS]
    return "\n".join(["TRAINING TIME BREAKDOWN", "", *lines])


def summary_text(
    figures: Mapping[str, float], *, transformer: str = "", accelerator: str = ""
) -> str:
    """Return its summary: a table for each category, "name : value  # description".

    Parameters
    ----------
    figures
        Parameters and what follows from them, by name; terms of the time model are left out.
    transformer, accelerator
        Rows of the lookup tables that were used.
    """
    lines = [f"Transformer: {transformer or '-'} | Accelerator: {accelerator or '-'}"]
    for number, category in enumerate(_CATEGORIES):
        names = [name for name in figures if _category(name) == number]
        lines += ["", f"{number + 1}: {category}"]
        width = max(map(len, names), default=0)
        lines += [f"{name:<{width}} : {_told(figures[name])}{_described(name)}" for name in names]
    return "\n".join(lines)


def _category(name: str) -> int | None:
    if name in _NO_PARAMETERS:
        return None
    if name in _SYSTEM:
        return 2
    if name in _CHIP:
        return 3
    return int(name in MACHINE or name.endswith("parallel_degree"))


def _told(value: float) -> str:
    """A whole number without a point, as programs that read it expect."""
    return str(int(value)) if value == int(value) and abs(value) < _WHOLE else repr(value)


def _described(name: str) -> str:
    return f"  # {DERIVED[name].description}" if name in DERIVED else ""
