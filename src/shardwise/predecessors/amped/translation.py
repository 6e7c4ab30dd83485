"""Runs as AMPeD describes them: shardwise configurations, or its own parameters."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.config.enums import Optimizer, Quantization
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.system import System, SystemLike
from shardwise.predecessors.amped import reference as amped
from shardwise.predecessors.amped.parameters import BY_DEFINITION
from shardwise.predecessors.amped.reference import EFFICIENCY, LABELS, MEMORY, MicrobatchEfficiency
from shardwise.predecessors.amped.writer import (
    BITS,
    mapping_for_amped,
    model_for_amped,
    system_for_amped,
)
from shardwise.predecessors.translation import with_dtype_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AmpedCase:
    """A run as AMPeD describes it."""

    parameters: Mapping[str, float]
    """By its names, without what follows from them."""
    efficiency: float | MicrobatchEfficiency = EFFICIENCY
    rows: Mapping[str, str] = field(default_factory=dict)
    """Rows of the lookup tables: `transformer`, `accelerator`."""
    assumed: Mapping[str, float] = field(default_factory=dict)
    """Those of the parameters that were assumed."""
    source: str = "parameters"

    def figures(self) -> dict[str, float]:
        """Return all that its formulas give, by the names of its parameters and methods."""
        found = amped.evaluate(self.parameters, efficiency=self.efficiency, source=self.source)
        return {name: float(value) for name, value in found.items()}

    def answer(self) -> dict[str, Any]:
        """Return the lines of its breakdown, memory, batches, and what was assumed, if anything."""
        figures = self.figures()
        found: dict[str, object] = {label: figures[name] for label, name in LABELS.items()}
        found |= {name: figures[name] for name in MEMORY}
        found["number_of_batches"] = figures["number_of_batches"]
        return found | ({"assumed": dict(self.assumed)} if self.assumed else {})

    def layers(self) -> list[dict[str, Any]]:
        """Return the terms of its time model, of one layer and batch [s]."""
        figures = self.figures()
        return [{"name": name, "seconds": figures[name]} for name in amped.TERMS]

    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Return rows, inner, columns of one layer's products, not divided by any degree."""
        return amped.layer_shapes({**self.figures(), **self.parameters})

    def breakdown_text(self) -> str:
        """Return its training_time_breakdown.txt."""
        return amped.breakdown_text(self.answer())

    def summary_text(self) -> str:
        """Return its config_summary.txt."""
        return amped.summary_text({**self.parameters, **self.figures()}, **self.rows)


def amped_case_of_parameters(
    parameters: Mapping[str, float],
    *,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
    rows: Mapping[str, str] | None = None,
    fill: bool = False,
    source: str = "parameters",
) -> AmpedCase:
    """Return a run described by AMPeD's own parameters.

    Parameters
    ----------
    parameters
        By its names; bandwidths in bit/s. What it can calculate need not be there, but for
        `decoder_flag`; what is, is used as it is.
    rows
        Rows of the lookup tables that were used: `transformer`, `accelerator`.
    fill
        Whether to assume what is not there, as an import of a configuration does: one expert, a
        head that counts, activations as weights, 32 bits of gradients and state, OPS_per_MAC 2,
        one member of an axis, one batch to train on.
    source
        What faults call them.
    """
    assumed = _assumed(parameters) if fill else {}
    case = AmpedCase(
        parameters={**parameters, **assumed},
        efficiency=efficiency,
        rows=rows or {},
        assumed=assumed,
        source=source,
    )
    case.figures()
    return case


_ASSUMED = {
    "number_of_experts": 1.0,
    "decoder_flag": 1.0,
    "OPS_per_MAC": 2.0,
    "gradient_precision": 32.0,
    "optimizer_state_precision": 32.0,
    **dict.fromkeys(amped.DEGREES, 1.0),
}
_WIDTH = "hidden_layer_dimension_for_attention_sublayers"
_LIKE = {"activation_precision": "weight_precision", "key_query_value_length": _WIDTH}


def _assumed(parameters: Mapping[str, float]) -> dict[str, float]:
    """What an import assumes of what is not there."""
    found = {name: value for name, value in _ASSUMED.items() if name not in parameters}
    if _WIDTH not in parameters and {"dimensionality", "attention_heads"} <= parameters.keys():
        found[_WIDTH] = parameters["dimensionality"] / max(parameters["attention_heads"], 1.0)
    for name, other in _LIKE.items():
        if name not in parameters and (value := {**parameters, **found}.get(other)) is not None:
            found[name] = value
    batches = {"tokens_to_train", "samples", "number_of_batches"} & parameters.keys()
    if not batches and {"batch_size", "context"} <= parameters.keys():
        found["tokens_to_train"] = parameters["batch_size"] * parameters["context"]
    return found


def free_parameters(parameters: Mapping[str, float]) -> dict[str, float]:
    """Parameters that do not follow from degrees and batch, and so are valid for any of these."""
    follow = {*BY_DEFINITION}
    if "tokens_to_train" in parameters:
        follow |= {"samples", "number_of_batches"}
    return {name: value for name, value in parameters.items() if name not in follow}


def amped_case_with(
    parameters: Mapping[str, float],
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    changed: Collection[str],
    rows: Mapping[str, str],
    source: str,
) -> AmpedCase:
    """Return a run described by AMPeD's own parameters, with another strategy.

    Degrees, batch and length are the strategy's; its type of weights and activations counts where
    it was changed. All else, such as efficiency and tokens to train, stays as it is set.
    """
    resolved = strategy.resolved(model)
    # Types of the parameters are among them: only changed ones must be expressed.
    known = {"optimizer": Optimizer.ADAMW, "quantization": Quantization.NONE}
    resolved = resolved.model_copy(update={n: v for n, v in known.items() if n not in changed})
    mapping = mapping_for_amped(model, system, resolved, "strategy")
    for own in ("number_of_accelerators_per_node", "tokens_to_train"):
        del mapping[own]
    mapping["context"] = float(resolved.seq_len or 0)
    if "dtype" in changed:
        types = ("weight_precision", "activation_precision")
        mapping |= dict.fromkeys(types, float(BITS[resolved.dtype]))
    changed_parameters = free_parameters(parameters) | mapping
    return amped_case_of_parameters(changed_parameters, rows=rows, fill=True, source=source)


def amped_case(
    model: ModelLike,
    system: SystemLike,
    strategy: Strategy | Mapping[str, object] | str | Path,
    *,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
    source: str = "strategy",
) -> AmpedCase:
    """Describe a run in AMPeD's words."""
    loaded, machine = Model.load(model), System.load(system)
    complete = with_dtype_of(machine, Strategy.load(strategy))
    resolved = complete.resolved(loaded, machine.stack)
    in_words = loaded.with_attention(resolved.attention)
    parameters = model_for_amped(in_words, seq_len=resolved.seq_len, dtype=resolved.dtype)
    parameters |= system_for_amped(machine, dtype=resolved.dtype)
    parameters |= mapping_for_amped(in_words, machine, resolved, source)
    rows = {"transformer": loaded.name, "accelerator": machine.name}
    return amped_case_of_parameters(parameters, efficiency=efficiency, rows=rows, source=source)
