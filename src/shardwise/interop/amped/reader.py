"""Taking parameters of an AMPeD configuration for a noun, and gathering what is wrong with them."""

from typing import Any

from shardwise.errors import Fault, InputError, nearest
from shardwise.interop.amped.checks import Parameter
from shardwise.interop.amped.files import AmpedConfig
from shardwise.interop.amped.words import KNOWN

__all__ = ["Reader", "has_network"]

_HINTS = {
    "dimensionality": "width of the network, such as 1024",
    "attention_heads": "such as 16",
    "layers": "such as 24",
    "context": "tokens per sequence, such as 2048",
    "number_of_tokens_in_vocabulary": "such as 50257",
    "hidden_layer_dimension_MLP_2": "inner width of the MLP, such as 4096",
    "batch_size": "sequences in a step, of all replicas together",
    "weight_precision": "bits: 8, 16, 32",
    "frequency": "such as 1.41 GHz",
    "number_of_accelerators_per_node": "such as 8",
    "inter_accelerator_bandwidth": "in bit/s, such as 2.4 T",
    "inter_accelerator_latency": "in seconds, such as 1 us",
    "bandwidth_per_network_card": "in bit/s, such as 200 G",
    "inter_node_latency": "in seconds, such as 5 us",
}


def has_network(config: AmpedConfig) -> bool:
    """Whether a configuration tells of a network between nodes."""
    return "inter_node_bandwidth" in config or "bandwidth_per_network_card" in config


class Reader:
    """Numbers by name; what is missing or wrong is kept until `done`.

    A number that cannot be had is 1, so that whoever asks can go on to the next.
    """

    def __init__(self, config: AmpedConfig) -> None:
        self.config = config
        self._faults: list[Fault] = []

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter's value, or the default where the file does not have it."""
        if name in self.config:
            return self.config[name].value
        if default is None:
            self.missing(name, _HINTS.get(name, "such as another accelerator's row has it"))
            return 1.0
        return float(default)

    def whole(self, name: str, default: int | None = None) -> int:
        """The same of a count or a number of bits."""
        value = self.number(name, default)
        if not value.is_integer() or value < 1:
            self.fault(name, "must be a whole number of at least 1")
            return 1
        return int(value)

    def fault(self, name: str, problem: str) -> None:
        """Keep a fault of a parameter that is there, or of what it is calculated from."""
        self._faults.append(self._named(name, problem))

    def missing(self, name: str, what: str) -> None:
        """Keep a fault of a parameter that is not there."""
        hint = nearest(name, [one for one in self.config.parameters if one not in KNOWN])
        fault = Fault(source=self.config.source, field=name, problem=f"is missing: {what}{hint}")
        self._faults.append(fault)

    def done(self) -> None:
        """Raise an `InputError` if anything was wrong."""
        if self._faults:
            raise InputError(list(dict.fromkeys(self._faults)))

    def _named(self, name: str, problem: str) -> Fault:
        place: dict[str, Any] = {"source": self.config.source, "field": name, "problem": problem}
        one: Parameter | None = self.config.parameters.get(name)
        if one is None:
            return Fault(**place)
        value = one.taken if one.taken is not None else one.value
        return Fault(**(place | {"field": one.place, "value": value, "has_value": True}))
