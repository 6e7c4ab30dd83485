"""Launch files of trainers where verbs expect a model or a strategy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardwise import catalog
from shardwise.cli.output import note
from shardwise.config import files
from shardwise.config.launch import NEEDED, Effect, Origin
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import overriding, work_fields
from shardwise.errors import InputError, one_line
from shardwise.units import counted, read_whole

if TYPE_CHECKING:
    from shardwise.config.launch import Launch
    from shardwise.planning.search.results import SearchResult
    from shardwise.planning.sweep.results import SweepResult

_MOST_NOTES = 20
_MAY_CHANGE = {
    Effect.MODEL: "not used, may change the model",
    Effect.COST: "not used, may change time or memory",
}
_NOTE_WIDTH = 300


def find_launch(
    path: str | None, *, model: Model | str | None = None, gpus: object = None
) -> "Launch | None":
    """Read a launch file; None for a catalog name or a file of anything else.

    What it does not understand is printed on stderr.
    """
    name = "" if path is None else path.strip()
    if not files.is_file_name(name) or catalog.find("models", name) is not None:
        return None
    from shardwise.foreign import find_launch as found_in  # noqa: PLC0415 - slow to import

    found = found_in(name, model=model, gpus=read_whole(str(gpus)))
    if found is not None:
        show_not_understood(found)
    return found


def show_not_understood(launch: "Launch") -> None:
    """Print options that the prediction does not use on stderr, a line for each."""
    found = launch.not_understood
    for one in found[:_MOST_NOTES]:
        may = _MAY_CHANGE.get(one.effect, "not used")
        note(one_line(f"{launch.source}: {may}: {one}", _NOTE_WIDTH))
    if len(found) > _MOST_NOTES:
        rest = len(found) - _MOST_NOTES
        note(f"{launch.source}: {rest} more options not used; `shardwise import` lists all")


def note_left_out(found: "SearchResult | SweepResult") -> None:
    """Print how many plans are not listed because the launcher cannot run them."""
    if found.left_out:
        plans = counted(found.left_out, "plan")
        note(f"{plans} left out: {found.launcher} has no options for them")


def show_assumed(launch: "Launch", flags: Mapping[str, Any]) -> None:
    """Print on stderr what neither the launch file nor flags set, and the estimate uses."""
    own = launch.strategy
    for origin, words in _ASSUMED.items():
        found = [
            f"{name} {_brief(own[name])}"
            for name, one in launch.origins.items()
            if one == origin and name in own and name not in flags
            if origin != Origin.DEFAULT or name in NEEDED
        ]
        if origin == Origin.ASSUMED:
            lacks = [name for name in launch.missing if name not in flags]
            found += [f"{name} {_FILLED_IN[name]}" for name in lacks if name in _FILLED_IN]
        if found:
            note(f"{launch.source}: {words}: {', '.join(found)}")


_FILLED_IN = {"seq_len": "of the model", "micro_batch_size": "1"}
"""What an estimate uses where nothing sets a field; without the others there is no estimate."""
_ASSUMED = {Origin.ASSUMED: "assumed", Origin.DEFAULT: "default of the trainer"}


def _brief(value: object) -> object:
    return value.get("base") if isinstance(value, Mapping) else value


def launch_record(launch: "Launch") -> dict[str, Any]:
    """Return what a result says of the launch file that it is of."""
    return {
        "source": launch.source,
        "launcher": launch.launcher,
        "release": launch.release,
        "origins": {name: str(one) for name, one in launch.origins.items()},
        "incomplete": list(launch.missing),
        "not_understood": not_understood(launch),
    }


def not_understood(launch: "Launch") -> list[dict[str, Any]]:
    """Return options that the prediction does not use, as plain values."""
    return [
        {
            "option": one.option,
            "value": one.value,
            "because": one.because,
            "effect": str(one.effect),
        }
        for one in launch.not_understood
    ]


def launch_model(launch: "Launch") -> Model:
    """Return the model of a launch file."""
    if launch.model is None:
        problem = "holds no model: name the model as MODEL, and this file with --strategy"
        raise InputError.at(launch.source, problem)
    return launch.model


def overridden(own: Mapping[str, Any], flags: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fields of a recipe or launch file under flags; what follows from those is left out."""
    fields, left_out = overriding(own, flags, resolved=False)
    for other, flag in left_out.items():
        note(f"note: {other} of {source} left out: it belongs to its {flag}")
    return fields


def launch_fields(
    launch: "Launch", flags: Mapping[str, Any], launcher: str | None = None
) -> dict[str, Any]:
    """Return strategy fields of a launch file, overridden by flags."""
    Strategy.validated(launch.strategy, source=launch.source)
    own = dict(launch.strategy)
    if launcher not in (None, launch.launcher):
        own.pop("stack", None)
    return overridden(own, flags, launch.source)


def launch_work(launch: "Launch") -> dict[str, Any]:
    """Return the fields that a search leaves as the launch file has them: what is trained."""
    own = Strategy.validated(launch.strategy, source=launch.source).explicit_fields(launch.strategy)
    return work_fields(own)
