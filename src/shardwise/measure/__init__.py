"""Measurements on the machine at hand, with PyTorch."""

from shardwise.registry import Additions

ADDS = Additions(functions={"measured_machine": "measure.machine:measured_machine"})
