"""From any `torch.nn.Module` to a `Profile`: one step on fake tensors, timed for a named system."""

from shardwise.fsdp.trace.factory import Loaded, load_module
from shardwise.fsdp.trace.step import trace

__all__ = ["Loaded", "load_module", "trace"]
