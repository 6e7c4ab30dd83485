"""A way to wrap a model in FSDP2 units, and the setting it runs in: what code is emitted from."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["adamw", "sgd", "none"]
Reshard = Literal["always", "never", "choose"]
"""Whether weights are freed after forward: of every unit, of none, or what is best for each."""
Checkpointing = Literal["none", "all", "choose"]
"""Which blocks are recomputed in backward."""
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How FSDP2 is set up around the units."""

    shards: int
    """Ranks that weights are split over."""
    replicas: int = 1
    """Groups of them with the same weights (hybrid sharding); 1: none."""
    stored_dtype: Dtype = "fp32"
    """Type of the sharded weights, their gradients and the optimizer's state."""
    compute_dtype: Dtype = "bf16"
    """`MixedPrecisionPolicy.param_dtype`: of gathered weights and their gradients."""
    reduce_dtype: Dtype = "fp32"
    """`MixedPrecisionPolicy.reduce_dtype`: that gradients are summed in."""
    optimizer: Optimizer = "adamw"

    @property
    def gpus(self) -> int:
        """All ranks."""
        return self.shards * self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One call of `fully_shard`, on a module or on a group of neighbors."""

    modules: tuple[str, ...]
    """Fully qualified names, in the order they run."""
    reshard_after_forward: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """All units except the root, which is always one, and the checkpointed modules."""

    units: tuple[Unit, ...]
    """In the order they run forward; a unit inside another comes after it."""
    checkpointed: tuple[str, ...] = ()
    """Modules whose activations are recomputed in backward."""
