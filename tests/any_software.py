"""What the marker `any_software` does: tests of formulas, whatever software runs."""

from shardwise import distinct
from shardwise.analysis import validated_runs
from shardwise.config.stack import DEFAULT_STACK
from shardwise.config.system import System
from shardwise.parallel.constraints import software


def _default(system):
    """The stack of a system, as if the catalog's systems named none."""
    own = vars(system)["stack"]
    return own if own in ("calculon", "simumax") else DEFAULT_STACK


def lift(monkeypatch):
    """Let strategies need any software; systems have the stack that formulas were tested with."""
    monkeypatch.setattr(software, "capabilities_of", lambda _: None)
    monkeypatch.setattr(System, "stack", property(_default), raising=False)
    # What is saved between calls is for the stacks and rules of the catalog.
    monkeypatch.setattr(distinct, "_known", {})
    monkeypatch.setattr(validated_runs, "_defaults", validated_runs._defaults.__wrapped__)  # noqa: SLF001
