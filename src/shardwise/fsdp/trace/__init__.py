"""From any `torch.nn.Module` to a `Profile`: one step on fake tensors, timed for a named system."""

from shardwise.fsdp.trace.factory import LoadedModel, load_module
from shardwise.fsdp.trace.step import trace

__all__ = ["LoadedModel", "load_module", "trace"]
