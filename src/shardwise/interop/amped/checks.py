"""What is wrong with the decided parameters of an AMPeD configuration.

AMPeD divides as real numbers do: with degrees that do not divide it computes with fractions of
layers, heads, sequences and nodes, without a word. Here each is a fault.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from shardwise.errors import Fault, InputError
from shardwise.interop.amped.derived import DERIVED
from shardwise.interop.amped.words import CATEGORIES, KNOWN, WHOLE

__all__ = ["BY_DEFINITION", "Parameter", "check", "check_numbers"]

_SAME = 1e-6
_ALIKE = 0.88
# More tokens in a step than any published training has, sixteen times over (DeepSeek-V3: 63 M).
_MOST_TOKENS = 1e9
BY_DEFINITION = (
    *("data_parallel_degree", "tensor_parallel_degree", "pipeline_parallel_degree"),
    *("minibatch_size", "microbatch_size", "accelerators_per_node_required"),
    *("number_of_accelerators_required", "number_of_nodes_required"),
)
"""Quantities that are what their formula says, so that another value contradicts its inputs."""
# Pairs of a number and what must divide it.
_DIVIDE = (
    ("tensor_parallel_degree", "attention_heads"),
    ("tensor_parallel_degree", "hidden_layer_dimension_MLP_2"),
    ("pipeline_parallel_degree", "layers"),
    ("data_parallel_degree", "batch_size"),
    ("number_of_microbatches_per_minibatch", "minibatch_size"),
    ("accelerators_per_node_required", "number_of_accelerators_per_node"),
)
_POSITIVE = ("bandwidth", "frequency", "per_cycle", "units_per_core", "precision", "peak_compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, with its value and where it is from."""

    name: str
    category: str
    value: float = math.nan
    origin: Literal["given", "looked up", "calculated"] = "given"
    taken: object = None
    """What was read, as it is written; None for what was calculated."""
    written: object = None
    """The value in the configuration, whether or not it was taken."""
    also_calculated: bool = False
    """Whether it was looked up though it is marked calculated too."""
    lookup_name: str | None = None
    description: str = ""

    @property
    def place(self) -> str:
        """Category and name, as faults tell them."""
        return f"{self.category}.{self.name}"


def check_numbers(parameters: Iterable[Parameter], source: str) -> None:
    """Raise an `InputError` with one fault for each number that its parameter cannot have.

    For those that are told: what is calculated of them would be wrong for the same reason.
    """
    known = {one.name: one for one in parameters}
    if faults := [*_not_numbers(known, source), *_misspelt(known, source)]:
        raise InputError(faults)


def check(parameters: Mapping[str, Parameter], source: str) -> None:
    """Raise an `InputError` with one fault for each thing that contradicts or cannot be."""
    if numbers := [*_not_numbers(parameters, source)]:  # the others would follow from these
        raise InputError(numbers)
    faults = [
        *_contradicting(parameters, source),
        *_dividing(parameters, source),
        *_too_many_tokens(parameters, source),
    ]
    if faults:
        raise InputError(faults)


def _fault(one: Parameter, source: str, problem: str) -> Fault:
    value = one.taken if one.taken is not None else _plain(one.value)
    return Fault(source=source, field=one.place, value=value, has_value=True, problem=problem)


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _not_numbers(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    for one in parameters.values():
        if not math.isfinite(one.value):
            yield _fault(one, source, "is not finite: look at the figures it is calculated from")
        elif one.name in WHOLE and (one.value < 1 or not one.value.is_integer()):
            rest = "" if one.origin != "calculated" else f" ({_formula(one.name, parameters)})"
            yield _fault(one, source, f"must be a whole number of at least 1{rest}")
        elif one.value < 0 or (one.value == 0 and any(word in one.name for word in _POSITIVE)):
            least = "above 0" if any(word in one.name for word in _POSITIVE) else "at least 0"
            yield _fault(one, source, f"must be {least}")


def _misspelt(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """Parameters that nothing knows, but for a letter or two."""
    for one in parameters.values():
        if one.name in KNOWN:
            continue
        free = KNOWN - set(parameters)
        if alike := get_close_matches(one.name, free, n=1, cutoff=_ALIKE):
            yield _fault(one, source, f"unknown parameter; did you mean {alike[0]!r}?")


def _formula(name: str, parameters: Mapping[str, Parameter]) -> str:
    """What a quantity is calculated from."""
    inputs = DERIVED[name].inputs
    return " and ".join(f"{i} {_plain(parameters[i].value):g}" for i in inputs if i in parameters)


def _values(parameters: Mapping[str, Parameter]) -> Callable[[str], float | None]:
    """Look a value up, or work it out where AMPeD's formula and all its inputs are there."""

    def value(name: str) -> float | None:
        if name in parameters:
            return parameters[name].value
        if name not in DERIVED:
            return None
        inputs = [value(needed) for needed in DERIVED[name].inputs]
        return None if None in inputs else float(DERIVED[name].function(*inputs))

    return value


def _contradicting(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """Two ways of saying one thing that differ."""
    value = _values(parameters)
    for name in BY_DEFINITION:
        one = parameters.get(name)
        if one is None or one.origin == "calculated":
            continue
        inputs = [value(needed) for needed in DERIVED[name].inputs]
        if None in inputs:
            continue
        worked_out = float(DERIVED[name].function(*inputs))
        if abs(worked_out - one.value) > _SAME * abs(worked_out):
            told = f"{_formula(name, parameters)} make it {_plain(worked_out):g}"
            yield _fault(one, source, f"{told}; mark it calculated")
    nodes, per_node = value("number_of_nodes"), value("number_of_accelerators_per_node")
    needed, one = value("number_of_accelerators_required"), parameters.get("number_of_nodes")
    if one is not None and nodes and per_node and needed and nodes * per_node < needed - _SAME:
        problem = f"with {per_node:g} accelerators each, fewer than the {needed:g} of the degrees"
        yield _fault(one, source, problem)


def _dividing(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    value = _values(parameters)
    for divisor, whole in _DIVIDE:
        small, large = value(divisor), value(whole)
        if small and large and large.is_integer() and large % small:
            one = parameters.get(divisor) or Parameter(
                name=divisor, category=CATEGORIES[1], value=small
            )
            yield _fault(one, source, f"must divide {whole} {_plain(large):,}")


def _too_many_tokens(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """A batch told in tokens where AMPeD counts sequences."""
    batch, context = parameters.get("batch_size"), parameters.get("context")
    if batch is None or context is None:
        return
    tokens = batch.value * context.value
    trained = parameters.get("tokens_to_train")
    of = (
        f"counts sequences, of {_plain(context.value):,} tokens each: {tokens:.3g} tokens in a step"
    )
    if tokens > _MOST_TOKENS:
        meant = f"{batch.value / context.value:.0f}"
        problem = f"{of}, more than any training has; if tokens were meant, give {meant}"
        yield _fault(batch, source, problem)
    elif trained is not None and trained.value < tokens:
        yield _fault(batch, source, f"{of}, more than the tokens_to_train {trained.value:.3g}")
