"""Scenarios: saved estimates, the best plans of searches, or inputs to estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise import registry
from shardwise.analysis.results import Estimate
from shardwise.analysis.saved import MOST_BYTES, kind_of_saved
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate
from shardwise.foreign import find_launch
from shardwise.planning.search.results import RankedPlan
from shardwise.planning.training_time import TrainingRun, with_training

_EXPECTED = "an estimate, the result of a search, or a scenario of model, system and strategy"


class Scenario(ConfigBase):
    """The inputs of an estimate: a model, a system and a strategy."""

    name: str | None = None
    """Its name in the comparison; None: that of its file."""
    model: str | Mapping[str, Any]
    """Catalog name, file, or its fields. Files are relative to the scenario's file, or to the
    working directory."""
    system: str | Mapping[str, Any]
    """Likewise."""
    strategy: str | Mapping[str, Any] | None = None
    """File, or its fields; None: that of the launch file that sets the model."""
    tokens: float | str | None = None
    """Tokens of the training run, as in 1.4 trillion; None: only a step is estimated."""
    reliability: str | Mapping[str, Any] | None = None
    """Failure rates, with tokens: a file, or the fields of a `Reliability`."""
    site: Mapping[str, Any] | None = None
    """Carbon intensity and PUE, with tokens; overrides those of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEstimate:
    """A scenario as its estimate."""

    name: str
    source: str
    """Its file, or empty."""
    estimate: Estimate


ScenarioLike = str | Path | Estimate | Scenario | Mapping[str, Any]


def load_scenario(
    scenario: object, position: int, system: SystemLike | None = None
) -> NamedEstimate:
    """Return a scenario as its estimate, read from a file or computed.

    Parameters
    ----------
    position
        Its position in the comparison, which names it without a file: A, B, ...
    system
        System of launch files.

    Raises
    ------
    InputError
        If it is invalid; one fault for each problem.
    """
    letter = chr(ord("A") + position % 26)
    if isinstance(scenario, Estimate):
        return NamedEstimate(name=letter, source="", estimate=scenario)
    if isinstance(scenario, Scenario):
        return _estimated(scenario, letter, "", Path())
    if isinstance(scenario, Mapping):
        return _of_mapping(scenario, letter, f"scenario {letter}", Path())
    if not isinstance(scenario, (str, Path)):
        problem = f"is not {_EXPECTED}, nor a file of one"
        place = f"scenario {letter}"
        raise InputError(Fault(source=place, value=scenario, has_value=True, problem=problem))
    path = str(scenario)
    launch = find_launch(path)
    if launch is not None:
        return NamedEstimate(name=_stem(path), source=path, estimate=_of_launch(launch, system))
    data = files.read_mapping(path, most_bytes=MOST_BYTES)
    return replace(_of_mapping(data, _stem(path), path, Path(path).parent), source=path)


def _of_launch(launch: Launch, system: SystemLike | None) -> Estimate:
    """Estimate a launch file, which has no system."""
    if launch.model is None or system is None:
        missing = "model: write a scenario of model, system, strategy"
        missing = missing if system else "system: add one, such as system=h100-sxm"
        raise InputError(
            Fault(source=launch.source, problem=f"is a launch file without a {missing}")
        )
    strategy = Strategy.validated(launch.strategy, source=launch.source)
    the_system = System.load(system)
    try:
        return estimate(launch.model, the_system, strategy)
    except InputError as error:
        named = [replace(f, source=_placed(launch.source, f.source)) for f in error.faults]
        raise InputError(named) from None


def _stem(path: str) -> str:
    """Name of a file without its suffixes."""
    name = Path(path).name.removesuffix(".gz")
    for ending in files.SUFFIXES:
        name = name.removesuffix(ending)
    return name or path


def _of_mapping(data: Mapping[str, object], name: str, source: str, folder: Path) -> NamedEstimate:
    """Recognize a mapping by its keys."""
    amped = registry.find("amped_inputs")
    found = None if amped is None else amped.scenario_fields(data, source)
    if found is not None:
        fields, tokens = found
        return NamedEstimate(name=name, source="", estimate=_of_fields(fields, tokens, source))
    kind = kind_of_saved(data)
    command = None if kind is None else kind.command
    if command == "estimate":
        return NamedEstimate(name=name, source="", estimate=Estimate.read(data, source=source))
    if command == "search":
        return NamedEstimate(name=name, source="", estimate=_best(data, source))
    if kind is None and {"model", "system"} <= set(data):
        return _estimated(Scenario.validated(data, source=source), name, source, folder)
    other = "" if kind is None else f": it is that of {command}"
    raise InputError(Fault(source=source, problem=f"is not {_EXPECTED}{other}"))


def _of_fields(
    fields: Mapping[str, Mapping[str, Any]], tokens: float | None, source: str
) -> Estimate:
    """Estimate a file of another tool, which has all inputs."""
    strategy = Strategy.validated(fields["strategy"], source=source)
    the_system = System.validated(fields["system"], source=source)
    found = estimate(Model.validated(fields["model"], source=source), the_system, strategy)
    if tokens is None:
        return found
    return with_training(found, the_system, TrainingRun.validated({"tokens": tokens}))


def _best(data: Mapping[str, object], source: str) -> Estimate:
    best = data["best"]
    if not isinstance(best, Sequence) or not best:
        problem = "the search found no plan that is feasible, so there is none to compare"
        raise InputError(Fault(source=source, field="best", problem=problem))
    if not isinstance(best[0], Mapping):
        raise InputError(Fault(source=source, field="best[0]", problem="must be an estimate"))
    return RankedPlan.read(best[0], source=source, field="best[0]")


def _estimated(scenario: Scenario, name: str, source: str, folder: Path) -> NamedEstimate:
    """Estimate a scenario; faults name its file."""
    try:
        run = _run(scenario, folder)
        system = System.load(_relative(scenario.system, folder))
        model = _relative(scenario.model, folder)
        strategy = _strategy(scenario, model, folder)
        result = estimate(Model.load(model), system, Strategy.load(strategy))
        if run is not None:
            result = with_training(result, system, run)
    except InputError as error:
        named = [replace(f, source=_placed(source, f.source)) for f in error.faults]
        raise InputError(named) from None
    return NamedEstimate(name=scenario.name or name, source=source, estimate=result)


def _strategy(
    scenario: Scenario, model: str | Mapping[str, Any], folder: Path
) -> str | Mapping[str, Any]:
    """The strategy of a scenario; by default that of the launch file that sets the model."""
    if scenario.strategy is not None:
        return _relative(scenario.strategy, folder)
    is_file = isinstance(model, str) and files.is_file_name(model)
    if is_file and find_launch(str(model)) is not None:
        return model
    raise InputError(Fault(field="strategy", problem="is missing and has no default"))


def _run(scenario: Scenario, folder: Path) -> TrainingRun | None:
    """The training run of a scenario, if it has one."""
    options = {"reliability": scenario.reliability, "site": scenario.site}
    if scenario.tokens is None:
        problem = "needs tokens, as it describes a training run"
        faults = [
            Fault(field=field, value=value, has_value=True, problem=problem)
            for field, value in options.items()
            if value is not None
        ]
        if faults:
            raise InputError(faults)
        return None
    reliable = scenario.reliability
    reliability = None if reliable is None else _relative(reliable, folder)
    return TrainingRun.validated(
        {"tokens": scenario.tokens, "site": scenario.site, "reliability": reliability}
    )


def _placed(source: str, inside: str) -> str:
    """Source of a fault: the scenario's file, and the source inside it."""
    return ": ".join(dict.fromkeys(part for part in (source, inside) if part))


def _relative(value: str | Mapping[str, object], folder: Path) -> str | Mapping[str, object]:
    """A file name relative to the scenario's folder, if that file exists; else unchanged."""
    if isinstance(value, str) and files.is_file_name(value) and files.is_file(folder / value):
        return str(folder / value)
    return value
