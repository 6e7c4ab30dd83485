"""Every field of a strategy is said, ignored or refused by a launcher; new ones are refused."""

from typing import Annotated

import pytest

from shardwise import InputError, Model, Strategy, System
from shardwise.config.roles import Role, Section
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.registry import LAUNCHERS
from shardwise.launchers.writing import bound_fields, launch_files, refused

MODEL, SYSTEM = Model.load("llama3-8b"), System.load("h100-sxm")


class Wider(Strategy):
    """A strategy with a field that no launcher knows."""

    new: Annotated[bool, Role(Section.MEMORY, ())] = False


def plan_of(launcher: Launcher, **fields: object) -> Strategy:
    words = {"gpus": 8, "gbs": 8, "zero": 2, "stack": launcher.stack} | fields
    return Strategy(**words).resolved(MODEL)


def blamed(launcher: Launcher, strategy: Strategy) -> list[str]:
    return [fault.field for fault in refused(launcher, strategy)]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_every_field_is_said_or_ignored_or_refused(launcher: Launcher) -> None:
    """In exactly one of these ways; values that a stack binds are refused by its own rules."""
    strategy, bound = plan_of(launcher), bound_fields(launcher)
    assert not launcher.says & launcher.ignores.keys()
    assert launcher.says | launcher.ignores.keys() < Strategy.model_fields.keys()
    assert all(launcher.ignores.values())
    assert blamed(launcher, strategy) == []
    for name in Strategy.model_fields:
        named = name in launcher.says or name in launcher.ignores
        changed = strategy.model_copy(update={name: object()} if name != "stack" else {})
        assert blamed(launcher, changed) == ([] if named or name in bound else [name])


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.name)
def test_a_new_field_is_refused(launcher: Launcher) -> None:
    """By its name; at its default it changes nothing."""
    own = plan_of(launcher, zero=3 if launcher.name in ("torchtitan", "automodel") else 2)
    values = {name: getattr(own, name) for name in Strategy.model_fields}
    assert blamed(launcher, Wider.model_construct(**values)) == []
    strategy = Wider.model_construct(**values, new=True)
    with pytest.raises(InputError) as caught:
        launch_files(launcher, LaunchPlan(model=MODEL, system=SYSTEM, strategy=strategy))
    problem = f"new: true: {launcher.title} has no option for it; leave it out"
    assert str(caught.value) == problem
