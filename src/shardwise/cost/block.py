"""Totals of a run of operations: one layer, the embedding, or the head, on one rank."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, total
from shardwise.cost.operations import Machine, OperationCost, with_host
from shardwise.ops.operation import Matmul, MemoryBound, Phase

__all__ = ["BlockCost", "BlockWork", "block_cost", "block_work"]

_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
# What equal layers share, so that it does not add up over them.
_ONE_AT_A_TIME = ("working_bytes", "again_bytes", "gradient_buffer_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Columns of times [s], bytes and FLOPs of one rank and one micro-batch."""

    forward_s: Floats
    """Kernels, exchanges not included."""
    backward_s: Floats
    recompute_s: Floats
    tp_forward_s: Floats
    """Tensor-parallel exchanges, alone."""
    tp_backward_s: Floats
    """With those that recompute repeats."""
    tp_forward_exposed_s: Floats
    tp_backward_exposed_s: Floats
    parameters: Floats
    saved_bytes: Floats
    """Kept for backward under the row's recompute."""
    again_bytes: Floats
    """Rebuilt by recompute and live during backward of one layer."""
    working_bytes: Floats
    """Largest working set of an operation's backward."""
    gradient_buffer_bytes: Floats
    """One buffer for each distinct shape of weights, in the type of the weights."""
    recompute_flops: Floats
    """FLOPs of the matrix products and attention that recompute runs again."""
    offload_forward_s: Floats
    """Transfers to and from the second memory tier, alone."""
    offload_backward_s: Floats
    offload_forward_exposed_s: Floats
    offload_backward_exposed_s: Floats

    @property
    def offload_exposed_s(self) -> Floats:
        """Transfers to and from the second memory tier as far as they lengthen the step."""
        return self.offload_forward_exposed_s + self.offload_backward_exposed_s

    @property
    def tp_s(self) -> Floats:
        """Tensor-parallel exchanges, alone."""
        return self.tp_forward_s + self.tp_backward_s

    @property
    def tp_exposed_s(self) -> Floats:
        """Tensor-parallel exchanges as far as they lengthen the step."""
        return self.tp_forward_exposed_s + self.tp_backward_exposed_s

    @property
    def forward_pass_s(self) -> Floats:
        """Forward with its exposed exchanges and transfers."""
        return self.forward_s + self.tp_forward_exposed_s + self.offload_forward_exposed_s

    @property
    def backward_pass_s(self) -> Floats:
        """Backward with recompute, their exposed exchanges and transfers."""
        exposed = self.tp_backward_exposed_s + self.offload_backward_exposed_s
        return self.backward_s + self.recompute_s + exposed

    @property
    def time_s(self) -> Floats:
        """Forward and backward."""
        return self.forward_pass_s + self.backward_pass_s

    def plus(self, other: "BlockCost", count: int = 1) -> "BlockCost":
        """Add `count` blocks on the same rank: everything adds, but only one works at a time."""
        summed = {
            f.name: getattr(self, f.name) + count * getattr(other, f.name) for f in fields(self)
        }
        for name in _ONE_AT_A_TIME:
            summed[name] = np.maximum(getattr(self, name), getattr(other, name))
        return BlockCost(**summed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """What a run of operations adds up to, whatever is recomputed."""

    forward_s: Floats
    """Kernels, exchanges not included, as in backward."""
    backward_s: Floats
    core_s: Floats
    """Forward kernels of the attention core."""
    exchange_forward_s: Floats
    exchange_backward_s: Floats
    exposed_forward_s: Floats
    exposed_backward_s: Floats
    parameters: Floats
    saved_bytes: Floats
    """Of all operations, for backward."""
    core_bytes: Floats
    """What of it the attention core saves and can rebuild."""
    working_bytes: Floats
    gradient_buffer_bytes: Floats
    forward_flops: Floats
    """Of matrix products and attention."""
    core_flops: Floats


def block_work(costs: Sequence[OperationCost], machine: Machine) -> BlockWork:
    """Add up operations.

    Time of a direction: (kernels^4 + host^4)^(1/4), host = launches x time of a launch.
    """
    zero = np.zeros_like(machine.host_launch_s)

    def kernels(phases: Sequence[Phase]) -> Floats:
        busy = total([c.kernel_s(phase) for c in costs for phase in phases], zero)
        launches = total([c.launches(phase) for c in costs for phase in phases], zero)
        return with_host(busy, launches * machine.host_launch_s)

    exchanges = [e for c in costs for e in c.exchanges]
    ahead = [e for e in exchanges if e.collective.phase is Phase.FORWARD]
    back = [e for e in exchanges if e.collective.phase is not Phase.FORWARD]
    core = [c for c in costs if c.operation.core]
    dropped = [c.operation.core_bytes for c in costs if c.operation.core_bytes is not None]
    return BlockWork(
        forward_s=kernels((Phase.FORWARD,)),
        backward_s=kernels(_BACKWARD),
        core_s=total([c.kernel_s(Phase.FORWARD) for c in core], zero),
        exchange_forward_s=total([e.time_s for e in ahead], zero),
        exchange_backward_s=total([e.time_s for e in back], zero),
        exposed_forward_s=total([e.exposed_s for e in ahead], zero),
        exposed_backward_s=total([e.exposed_s for e in back], zero),
        parameters=total([c.operation.parameters for c in costs], zero),
        saved_bytes=total([c.operation.saved_bytes for c in costs], zero),
        core_bytes=total(dropped, zero),
        working_bytes=np.maximum.reduce([c.operation.working_bytes for c in costs]) + zero,
        gradient_buffer_bytes=_gradient_buffers(costs, zero),
        forward_flops=total([_forward_flops(c) for c in costs], zero),
        core_flops=total([_forward_flops(c) for c in core], zero),
    )


def block_cost(
    work: BlockWork,
    *,
    training: Bools,
    full: Bools | None = None,
    selective: Bools | None = None,
    checkpoint_bytes: Floats | None = None,
) -> BlockCost:
    """What a run of operations costs under each row's recompute.

    Where nothing is trained, only forward counts. With `full` recompute forward runs again,
    exchanges included, and only `checkpoint_bytes` are kept; with `selective`, the attention core.

    Parameters
    ----------
    training
        Rows that go backward too.
    full, selective
        Rows that recompute whole layers, or the attention core; none where omitted.
    checkpoint_bytes
        What full recompute keeps [byte].
    """
    zero = np.zeros_like(work.parameters)
    never = np.zeros(zero.shape, dtype=np.bool_)
    full = never if full is None else full & training
    selective = never if selective is None else selective & training
    kept = zero if checkpoint_bytes is None else checkpoint_bytes

    def again(whole: Floats, core: Floats) -> Floats:
        return np.where(full, whole, np.where(selective, core, 0.0))

    def trained(amount: Floats) -> Floats:
        return np.where(training, amount, 0.0)

    dropped = np.where(selective, work.core_bytes, 0.0)
    saved = trained(work.saved_bytes) - dropped
    again_exchanged = np.where(full, work.exchange_forward_s, 0.0)
    again_exposed = np.where(full, work.exposed_forward_s, 0.0)
    return BlockCost(
        forward_s=work.forward_s,
        backward_s=trained(work.backward_s),
        recompute_s=again(work.forward_s, work.core_s),
        tp_forward_s=work.exchange_forward_s,
        tp_backward_s=trained(work.exchange_backward_s) + again_exchanged,
        tp_forward_exposed_s=work.exposed_forward_s,
        tp_backward_exposed_s=trained(work.exposed_backward_s) + again_exposed,
        parameters=work.parameters,
        saved_bytes=np.where(full, kept, saved),
        again_bytes=np.where(full, work.saved_bytes - kept, dropped),
        working_bytes=work.working_bytes,
        gradient_buffer_bytes=work.gradient_buffer_bytes,
        recompute_flops=again(work.forward_flops, work.core_flops),
        offload_forward_s=zero,
        offload_backward_s=zero,
        offload_forward_exposed_s=zero,
        offload_backward_exposed_s=zero,
    )


def _gradient_buffers(costs: Sequence[OperationCost], zero: Floats) -> Floats:
    """Bytes of one buffer for each distinct shape among the products that give weight gradients."""
    products = [
        k.kernel
        for c in costs
        for k in c.kernels
        if isinstance(k.kernel, Matmul) and k.kernel.phase is Phase.WEIGHT_GRAD
    ]
    buffers = []
    for index, product in enumerate(products):
        seen = np.zeros(zero.shape, dtype=np.bool_)
        for earlier in products[:index]:
            seen |= (earlier.m == product.m) & (earlier.n == product.n)
        buffers.append(np.where(seen, 0.0, product.m * product.n * product.input_bytes))
    return total(buffers, zero)


def _forward_flops(cost: OperationCost) -> Floats:
    """FLOPs of the forward matrix products and attention."""
    flops = [
        k.kernel.flops
        for k in cost.kernels
        if k.kernel.phase is Phase.FORWARD and not isinstance(k.kernel, MemoryBound)
    ]
    return total(flops, cost.operation.parameters)
