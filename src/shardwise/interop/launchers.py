"""Launchers: their files read into shardwise's words, and plans written as their files.

A new launcher is one folder with a `LAUNCHER` in its `__init__`, and one line here.
"""

from pathlib import Path

from shardwise.config import files
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError, nearest
from shardwise.interop.launch import Launch, Launcher, LaunchFile, LaunchPlan, LaunchText

LAUNCHERS: tuple[Launcher, ...] = ()


def launcher_of(name: str, field: str = "launcher") -> Launcher:
    """Return a launcher by its name.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    names = [one.name for one in LAUNCHERS]
    for one in LAUNCHERS:
        if one.name == name.strip().lower():
            return one
    problem = f"allowed: {', '.join(names)}{nearest(name, names)}"
    raise InputError(Fault.of(field, name, problem))


def recognised_launcher(text: str, source: str) -> Launcher | None:
    """Return the launcher that a text is written for; None if it is none of ours."""
    return next((one for one in LAUNCHERS if one.recognise(text, source)), None)


def read_launch(path: str | Path, *, model: Model | None = None, gpus: int | None = None) -> Launch:
    """Read a launch file of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed or accelerate.

    Parameters
    ----------
    model
        Model of the run, for files that do not hold one.
    gpus
        Accelerators of the run, for files that do not hold their number.

    Raises
    ------
    InputError
        If it is no launch file, a value is wrong, or a variable has no value.
    """
    source, text = str(path), files.read_text(path)
    launcher = recognised_launcher(text, source)
    if launcher is None:
        titles = ", ".join(one.title for one in LAUNCHERS)
        raise InputError(Fault(source=source, problem=f"is no launch file of {titles}"))
    return launcher.read(LaunchText(source=source, text=text, model=model, gpus=gpus))


def launch_files(
    launcher: Launcher, plan: LaunchPlan, *, release: str | None = None, ending: str | None = None
) -> tuple[LaunchFile, ...]:
    """Return the files of a plan.

    Raises
    ------
    InputError
        If the launcher cannot express the plan, or has no such release or file ending.
    """
    used = release or launcher.releases[0]
    if used not in launcher.releases:
        problem = f"allowed: {', '.join(launcher.releases)}"
        raise InputError(Fault.of("release", used, problem))
    form = ending or launcher.endings[0]
    if form not in launcher.endings:
        problem = f"allowed endings: {', '.join(launcher.endings)}"
        raise InputError(Fault.of("output", form, problem))
    if faults := list(launcher.faults(plan.model, plan.strategy)):
        raise InputError(faults)
    return launcher.write(plan, used, form)
