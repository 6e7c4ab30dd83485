"""Measurements on the machine at hand, with PyTorch."""

from shardwise.registry import Additions, Verb

ADDS = Additions(
    functions={"measured_machine": "measure.machine:measured_machine"},
    verbs={
        "measure": Verb(
            group="Check",
            summary="Train a small model on this machine: measured next to predicted.",
            home="measure.training_cli:command",
        ),
    },
)
