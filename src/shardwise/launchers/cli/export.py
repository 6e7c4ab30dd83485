"""`shardwise export LAUNCHER`: the configuration of a trainer for a plan."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise.cli.flags import strategy_of
from shardwise.cli.inputs import read_inputs
from shardwise.cli.options import refuse_options
from shardwise.cli.output import log, note
from shardwise.cli.recipes import Chosen
from shardwise.config import files
from shardwise.config.inputs import Inputs
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers import registry as launchers
from shardwise.launchers.export import CannotExportError, Export, change_words, export, file_names
from shardwise.launchers.launch import Launcher
from shardwise.launchers.registry import known_release, launcher_of
from shardwise.planning.nearest import NearestPlan
from shardwise.planning.saved_plan import read_plan
from shardwise.units import readable

_LAUNCHER = "Launchers"
_TWICE = "has no effect with --plan, which sets the strategy"
# Fields of a resolved strategy that follow from others, which flags may change.
_FOLLOWING = ("dp", "tp_exchange", "sequence_parallel", "schedule", "dispatcher")
_READABLE = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of an export to a launcher."""

    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE[#N]",
            help="Plan of a saved `estimate --json`, or plan N of a saved `search --json` (default "
            "1), in place of MODEL and SYSTEM; flags override its fields.",
            rich_help_panel=_LAUNCHER,
        ),
    ] = None
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            metavar="R",
            help="Release whose options to write.",
            rich_help_panel=_LAUNCHER,
        ),
    ] = None
    nearest: Annotated[
        bool,
        typer.Option(
            "--nearest",
            help="Write the nearest plan that fits and that the launcher can run, if this one "
            "does not.",
            rich_help_panel=_LAUNCHER,
        ),
    ] = False


def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers."""
    return tuple(one.name for one in launchers.LAUNCHERS)


def export_launch(
    name: str,
    options: LaunchOptions,
    *,
    model: str | None,
    system: str | None,
    strategy: str | None,
    flags: Mapping[str, Any],
    output: str | None,
) -> int:
    """Write the files of a launcher; return the exit code.

    Parameters
    ----------
    output
        The launch file; other files stand next to it. None: it is printed, alone.
    """
    launcher = launcher_of(name, "what")
    known_release(launcher, options.release)
    ending = None if output is None else _ending(launcher, output)
    case: tuple[Any, Any, Strategy]
    if options.plan is not None:
        refuse_options(_TWICE, strategy=strategy)
        case = _of_plan(options.plan, launcher, model, system, flags)
    else:
        found = chosen_inputs(model, system, strategy, flags, launcher=launcher.name)
        case = found.model, found.system, strategy_of(found.strategy, found.fields)
    arguments: dict[str, Any] = {"release": options.release, "ending": ending}
    try:
        written = export(launcher, *case, nearest=options.nearest, **arguments)
    except CannotExportError as error:
        if error.too_large:
            note(str(error))
        if error.nearest is not None:
            note(_offer(launcher, error.nearest))
        if error.too_large:
            return 1
        raise
    if written.changes:
        seconds = readable(written.estimate.step_time_s, "seconds")
        note(f"written with {change_words(written.changes)}; step time {seconds}")
    _write(written, output)
    for line in written.read_back.lines(written.estimate):
        note(line)
    return 0


def _offer(launcher: Launcher, near: NearestPlan) -> str:
    seconds = readable(near.step_time_s, "seconds")
    return (
        f"nearest plan that {launcher.title} can run: {change_words(near.changes)}; step time "
        f"{seconds} (--nearest writes it)"
    )


def chosen_inputs(
    model: str | None,
    system: str | None,
    strategy: str | None,
    flags: Mapping[str, Any],
    tables: str | None = None,
    launcher: str | None = None,
) -> Inputs:
    """Return the inputs of an export, of which a launch file may set model and strategy."""
    named = {"model": model, "system": system, "strategy": strategy}
    chosen = Chosen.of(None, **named, gpus=flags.get("gpus"), optional_with="a launcher and --plan")
    return read_inputs(
        chosen.model,
        chosen.system,
        strategy=chosen.strategy,
        flags=chosen.fields(flags, launcher),
        run={},
        tables=tables,
    )


def _of_plan(
    plan: str,
    launcher: Launcher,
    model: str | None,
    system: str | None,
    flags: Mapping[str, Any],
) -> tuple[str, str, Strategy]:
    """Model, system and strategy of a saved plan; what is entered has precedence."""
    saved = read_plan(plan)
    used = saved.model().name if model is None else model
    own, stack = saved.estimate.strategy, saved.estimate.software.stack
    if "stack" not in flags and stack != launcher.stack:
        note(f"{saved.source}: is of stack {stack}; rules and times are of {launcher.stack}")
    left_out = {"stack", "any_software", *(_FOLLOWING if flags else ())}
    fields = {name: value for name, value in own.items() if name not in left_out} | dict(flags)
    return used, system or saved.estimate.system, strategy_of(None, fields)


def _ending(launcher: Launcher, output: str) -> str:
    """The ending of a file that a launcher can write; the file must be one that can be written."""
    fitting = [one for one in launcher.endings if output.lower().endswith(one)]
    if not fitting:
        problem = f"cannot be written for {launcher.title}; allowed endings: "
        raise InputError(Fault(source=output, problem=problem + ", ".join(launcher.endings)))
    files.check_output_path(output)
    return max(fitting, key=len)


def _write(written: Export, output: str | None) -> None:
    """Write all files, or print the first."""
    if output is None:
        sys.stdout.write(written.files[0].text)
        if len(written.files) > 1:
            others = ", ".join(f"*{one.ending}" for one in written.files[1:])
            note(f"{len(written.files) - 1} more with -o FILE: {others}")
        return
    named = file_names(output, written.files)
    for path in named:
        files.check_output_path(path)
    for path, one in named.items():
        files.write_text(path, one.text)
        if one.executable:
            mode = Path(path).stat().st_mode
            Path(path).chmod(mode | (mode & _READABLE) >> 2)
        log.info("wrote %s", path)
    if len(named) > 1:
        note("wrote " + ", ".join(named))
