"""`compare`: what differs between scenarios, and how that changes the time."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

from shardwise import registry
from shardwise.analysis.comparison import Change, Comparison, InputDifference, Outcome, PartChange
from shardwise.analysis.prediction_interval import distinguishable_ratio, separable
from shardwise.analysis.results import Estimate
from shardwise.analysis.saved import MOST_BYTES, kind_of_saved, read_saved
from shardwise.analysis.saved_plan import read_plan, split_plan
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.plain import plain
from shardwise.config.roles import (
    ALL_TIME,
    COMMUNICATION,
    COMPUTE,
    INSIDE_LAYERS,
    ONCE_PER_STEP,
    STAGES,
)
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS
from shardwise.config.system import System, SystemLike
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate
from shardwise.foreign import find_launch
from shardwise.planning.break_even import break_even
from shardwise.planning.search.results import RankedPlan
from shardwise.planning.training_time import TrainingRun, with_training

FOLDED = ("zb-v", "dualpipe")
"""Schedules that lay the stages out there and back."""


@dataclass(frozen=True, slots=True)
class Input:
    """What an input is in plain words, and the parts of the step it acts on."""

    words: str
    parts: tuple[str, ...]


INPUTS = {
    "model": Input("the architecture", ALL_TIME),
    "parameters": Input("the architecture, though it has the same name", ALL_TIME),
    "system": Input("rates, networks and memory of the machine", ALL_TIME),
    "flops_convention": Input("what MFU counts; no time", ()),
    "micro_batches": Input(
        "micro-batches of a replica, one after the other",
        (*COMPUTE, *COMMUNICATION, "offload", "bubble"),
    ),
    "tokens_per_step": Input(
        "tokens of all sequences, which share what is done once per step",
        (*ONCE_PER_STEP, "bubble", "other"),
    ),
    "stage_layout": Input("which layers of the model are on which rank", STAGES),
} | {name: Input(field.about, field.role.acts_on) for name, field in FIELDS.items()}
"""Every field of `Strategy` and what else changes the step: what an input is, what it acts on."""

PER_TOKEN = {"dp": STAGES, "micro_batches": ("dp_comm", "offload", "bubble")}
"""What some inputs act on where times are those of tokens: twice the replicas take twice as many
in the same time; twice the passes make a step longer but not a token."""

FOLLOWS = {
    "bubble": (*COMPUTE, *INSIDE_LAYERS, "pp_comm", "offload"),
    "pp_comm": COMPUTE,
    "dp_comm": (*COMPUTE, *INSIDE_LAYERS, "pp_comm"),
    "offload": (*COMPUTE, *INSIDE_LAYERS, "pp_comm", "dp_comm", "optimizer"),
    "other": tuple(part for part in TIME_PARTS if part != "other"),
}
"""Parts that change where others do: stages wait for each other's passes, collectives and transfers
hide behind work, overheads are a share of all."""


def bearing_on(part: str, changed: Collection[str], *, per_token: bool = False) -> tuple[str, ...]:
    """Return the changed inputs that act on a part, in the order of the inputs."""
    instead = PER_TOKEN if per_token else {}
    acts = {name: instead.get(name, INPUTS[name].parts) for name in changed if name in INPUTS}
    return tuple(name for name, parts in acts.items() if part in parts)


def followed_by(part: str, changed: Collection[str]) -> tuple[str, ...]:
    """Return the changed parts that a part changes with."""
    return tuple(other for other in FOLLOWS.get(part, ()) if other in changed)


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
    """Return a scenario as its estimate, read from a file or computed."""
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
    if split_plan(path)[1] is not None:
        plan = read_plan(path)
        return NamedEstimate(name=_stem(path), source=plan.source, estimate=plan.estimate)
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
        raise InputError.at(launch.source, f"is a launch file without a {missing}")
    strategy = Strategy.validated(launch.strategy, source=launch.source)
    the_system = System.load(system)
    try:
        return estimate(launch.model, the_system, strategy)
    except InputError as error:
        named = [replace(f, source=_placed(launch.source, f.source)) for f in error.faults]
        raise InputError(named) from None


def _stem(path: str) -> str:
    """Name of a file without its suffixes."""
    file, number = split_plan(path)
    name = Path(file).name.removesuffix(".gz")
    for ending in files.SUFFIXES:
        name = name.removesuffix(ending)
    return path if not name else name if number is None else f"{name}#{number}"


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
        estimated = read_saved(data, source)
        assert isinstance(estimated, Estimate)  # noqa: S101 - as all of that command
        return NamedEstimate(name=name, source="", estimate=estimated)
    if command == "search":
        return NamedEstimate(name=name, source="", estimate=_best_plan(data, source))
    if kind is None and {"model", "system"} <= set(data):
        return _estimated(Scenario.validated(data, source=source), name, source, folder)
    other = "" if kind is None else f": it is that of {command}"
    raise InputError.at(source, f"is not {_EXPECTED}{other}")


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


def _best_plan(data: Mapping[str, object], source: str) -> Estimate:
    field = "advised" if data.get("advised") else "best"  # the plan that the search recommends
    best = data[field]
    if not isinstance(best, Sequence) or not best:
        problem = "the search found no plan that is feasible, so there is none to compare"
        raise InputError.at(source, problem, field)
    if not isinstance(best[0], Mapping):
        raise InputError.at(source, "must be an estimate", f"{field}[0]")
    return RankedPlan.read(best[0], source=source, field=f"{field}[0]")


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
            Fault.of(field, value, problem) for field, value in options.items() if value is not None
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


_FEWEST = 2
_MILLION = 1e6
# It has the same meaning as tp_exchange.
_DERIVED = ("sequence_parallel",)
_FOLLOWING = ("parameters", "stage_layout", "micro_batches", "tokens_per_step")
# Less than this share of the step is rounding, not a difference.
_ROUNDING = 1e-12
_BILLION = 1e9
_SECONDS_PER_HOUR = 3600


def compare(
    *scenarios: ScenarioLike,
    names: Sequence[str] | None = None,
    system: SystemLike | None = None,
) -> Comparison:
    """Compare the inputs and the results of scenarios.

    Parameters
    ----------
    scenarios
        Two or more; the first is the reference of the others. Estimates, files of estimates,
        results of searches (their best plan), launch files, or scenarios of a model, a system and
        a strategy, as files or mappings, which are estimated.
    names
        Their names; by default those of their files, or A, B, ...
    system
        System of launch files, which do not hold one.

    Returns
    -------
    Comparison
        The scenarios side by side and what differs; `help(shardwise.Comparison)` lists its fields.

    Raises
    ------
    InputError
        If there are fewer than two, or one is invalid; one fault for each.

    Examples
    --------
    >>> from shardwise import compare, estimate
    >>> found = compare(
    ...     estimate("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128),
    ...     estimate("llama3-70b", "h100-sxm", gpus=64, tp=4, pp=2, gbs=128),
    ... )
    >>> [one.field for one in found.asked], found.best["step_time_s"]
    (['tp', 'dp', 'micro_batches'], 'A')
    """
    if len(scenarios) < _FEWEST:
        problem = f"needs two or more scenarios, not {len(scenarios)}"
        raise InputError.at("compare", problem)
    named = _named(_all(scenarios, system), names)
    per: Literal["step", "million tokens"] = "step"
    if len({one.estimate.tokens_per_step for one in named}) > 1:
        per = "million tokens"
    inputs = [_inputs(one.estimate) for one in named]
    asked = tuple(
        InputDifference(
            field=name,
            values=tuple(each.get(name) for each in inputs),
            given=tuple(
                name not in _FOLLOWING and name.split(".")[0] not in one.estimate.assumed
                for one in named
            ),
            words=INPUTS[name.split(".")[0]].words,
        )
        for name in _changed(inputs)
    )
    outcomes = tuple(_outcome(one, _scale(one.estimate, per)) for one in named)
    changes = tuple(_change(named[0], other, per) for other in named[1:])
    return Comparison(
        per=per,
        asked=asked,
        scenarios=outcomes,
        changes=changes,
        best=_best(outcomes, named, per),
        notes=(*_notes(named, per), *_unexplained(changes)),
        break_even=_break_even(outcomes, named),
        **_alike(outcomes, named, per),
    )


def _alike(outcomes: Sequence[Outcome], named: Sequence[NamedEstimate], per: str) -> dict[str, Any]:
    """Scenarios that measurements cannot separate, by the rule of searches."""
    one_kind = {(o.model, o.system) for o in outcomes}
    if len(one_kind) > 1 or not all(one.estimate.strategy["training"] for one in named):
        return {}
    fitting = [
        (o, _scale(one.estimate, per) * o.step_time_s)
        for o, one in zip(outcomes, named, strict=True)
        if o.fits
    ]
    fitting.sort(key=lambda one: one[1])
    count = separable([time_s for _, time_s in fitting]) if fitting else 0
    if count < _FEWEST:
        return {}
    tied = sorted((o for o, _ in fitting[:count]), key=lambda o: len(o.unmeasured_features))
    return {"alike": tuple(o.name for o in tied), "within": distinguishable_ratio() - 1}


def _all(scenarios: Sequence[ScenarioLike], system: SystemLike | None) -> list[NamedEstimate]:
    """Load each scenario; raise the faults of all together."""
    loaded: list[NamedEstimate] = []
    faults: list[Fault] = []
    for position, scenario in enumerate(scenarios):
        try:
            loaded.append(load_scenario(scenario, position, system))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return loaded


def _named(loaded: Sequence[NamedEstimate], names: Sequence[str] | None) -> list[NamedEstimate]:
    """Name each uniquely: as requested, else by its file, with the folder if necessary."""
    if names is not None:
        are_texts = isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names)
        if not are_texts or len(names) != len(loaded) or len(set(names)) != len(names):
            problem = f"must be {len(loaded)} different names, one for each scenario"
            raise InputError.of("names", names, problem, source="compare")
        return [_renamed(one, name) for one, name in zip(loaded, names, strict=True)]
    for better in (lambda one: one.source or one.name, None):
        counts = Counter(one.name for one in loaded)
        if max(counts.values()) == 1:
            break
        if better is not None:
            loaded = [_renamed(one, better(one)) if counts[one.name] > 1 else one for one in loaded]
        else:  # the same file, or the same name, twice
            loaded = [_renamed(one, f"{one.name} ({i})") for i, one in enumerate(loaded, start=1)]
    return list(loaded)


def _renamed(one: NamedEstimate, name: str) -> NamedEstimate:
    return replace(one, name=name)


def _scale(estimate: Estimate, per: str) -> float:
    """Factor of the times of a step."""
    return 1.0 if per == "step" else _MILLION / estimate.tokens_per_step


def _inputs(estimate: Estimate) -> dict[str, object]:
    """The inputs of an estimate, and what follows from them, as plain values."""
    inputs: dict[str, object] = plain(estimate.strategy)
    stack = inputs.pop("stack", None)
    fields = {name: value for name, value in inputs.items() if name not in _DERIVED}
    return {
        "model": estimate.model,
        "parameters": estimate.parameters,
        "system": estimate.system,
        **fields,
        **_stack(stack),
        "stage_layout": fields["schedule"] if fields["schedule"] in FOLDED else "in order",
        "micro_batches": estimate.micro_batches,
        "tokens_per_step": estimate.tokens_per_step,
        "flops_convention": estimate.flops_convention,
    }


def _stack(stack: object) -> dict[str, Any]:
    """The name of a stack, and its overridden fields."""
    if not isinstance(stack, Mapping):
        return {"stack": stack}
    name = stack.get("base", stack.get("name"))
    rest = {f"stack.{k}": v for k, v in stack.items() if k not in ("base", "name")}
    return {"stack": name, **rest}


def _changed(inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of inputs that differ, in their order."""
    names = dict.fromkeys(name for each in inputs for name in each)
    found = [n for n in names if any(each.get(n) != inputs[0].get(n) for each in inputs)]
    if "model" in found and "parameters" in found:
        found.remove("parameters")  # they follow from the model
    return found


def _outcome(named: NamedEstimate, scale: float) -> Outcome:
    found, cost, run = named.estimate, named.estimate.cost, named.estimate.whole_run
    energy = cost.kwh_per_step
    return Outcome(
        name=named.name,
        model=found.model,
        system=found.system,
        gpus=found.strategy["gpus"],
        fits=found.fits,
        fits_probability=found.fits_probability,
        step_time_s=found.step_time_s,
        tokens_per_step=found.tokens_per_step,
        tokens_per_s=found.tokens_per_s,
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
        mfu=found.mfu,
        hfu=found.hfu,
        memory_bytes=found.memory_bytes,
        usd_per_billion_tokens=cost.usd_per_billion_tokens,
        price=cost.price,
        kwh_per_billion_tokens=None if energy is None else energy / found.tokens_per_step * 1e9,
        effective_days=None if run is None else run.effective_days,
        effective_usd=None if run is None else run.effective_usd,
        time_s={part: scale * found.time_s[part] for part in TIME_PARTS},
        interval=found.interval,
        unmeasured_features=found.unmeasured_features,
    )


def _change(first: NamedEstimate, other: NamedEstimate, per: str) -> Change:
    """Attribute the change of the time of a step, or of tokens, to its parts.

    sum over parts (after - before) = delta of the total time.
    """
    one, two = first.estimate, other.estimate
    scales = _scale(one, per), _scale(two, per)
    inputs = [name.split(".")[0] for name in _changed([_inputs(one), _inputs(two)])]
    before = {part: scales[0] * one.time_s[part] for part in TIME_PARTS}
    after = {part: scales[1] * two.time_s[part] for part in TIME_PARTS}
    total = scales[0] * one.step_time_s
    for part in TIME_PARTS:  # rounding is no difference
        if abs(after[part] - before[part]) <= _ROUNDING * total:
            after[part] = before[part]
    moved = [part for part in TIME_PARTS if after[part] != before[part]]
    parts = tuple(
        PartChange(
            part=part,
            before_s=before[part],
            after_s=after[part],
            delta_s=after[part] - before[part],
            share=(after[part] - before[part]) / before[part] if before[part] else None,
            hidden_before_s=scales[0] * _hidden(one, part),
            hidden_after_s=scales[1] * _hidden(two, part),
            inputs=bearing_on(part, inputs, per_token=per != "step") if part in moved else (),
            follows=followed_by(part, moved) if part in moved else (),
        )
        for part in TIME_PARTS
        if before[part] or after[part]
    )
    delta = sum(part.delta_s for part in parts)
    return Change(
        name=other.name,
        against=first.name,
        before_s=total,
        after_s=scales[1] * two.step_time_s,
        delta_s=delta,
        share=delta / total,
        parts=parts,
    )


def _hidden(estimate: Estimate, part: str) -> float:
    """Hidden communication of a part of the step [s]."""
    comm = estimate.comm_s.get(part.removesuffix("_comm"))
    return 0.0 if comm is None else max(0.0, comm.total - comm.exposed)


def _best(
    outcomes: Sequence[Outcome], named: Sequence[NamedEstimate], per: str
) -> dict[str, str | None]:
    """Name of the best that fits, by each figure that all of them have."""
    fitting = [one for one in outcomes if one.fits]
    runs = {_days_basis(one.estimate.whole_run) for one in named if one.estimate.fits}

    def least(of: Callable[[Outcome], float | None], *, comparable: bool = True) -> str | None:
        values = [of(one) for one in fitting]
        known = [value for value in values if value is not None]
        if not comparable or len(known) < len(values) or not any(map(isfinite, known)):
            return None
        return fitting[values.index(min(known))].name

    return {
        "step_time_s": least(lambda one: one.step_time_s, comparable=per == "step"),
        "tokens_per_s": least(lambda one: -one.tokens_per_s),
        "tokens_per_s_per_gpu": least(lambda one: -one.tokens_per_s_per_gpu),
        "usd_per_billion_tokens": least(lambda one: one.usd_per_billion_tokens),
        "effective_days": least(lambda one: one.effective_days, comparable=len(runs) == 1),
    }


def _break_even(outcomes: Sequence[Outcome], named: Sequence[NamedEstimate]) -> dict[str, float]:
    """Break-even price of each system, of scenarios that fit and do the same work for a token."""
    work = {(one.estimate.model, one.estimate.strategy["training"]) for one in named}
    fitting = [one for one in outcomes if one.fits] if len(work) == 1 else []
    hours: dict[str, float] = {}
    for one in fitting:
        own = _BILLION / one.tokens_per_s_per_gpu / _SECONDS_PER_HOUR
        hours[one.system] = min(own, hours.get(one.system, inf))
    costs = [(one.system, one.usd_per_billion_tokens) for one in fitting]
    return break_even([(name, usd) for name, usd in costs if usd is not None], hours)


def _days_basis(run: TrainingTime | None) -> tuple[object, ...]:
    """What must be equal to compare the days of training runs."""
    if run is None:
        return ()
    return run.tokens_asked, run.goodput is None, "waiting" in run.unknown


def _notes(named: Sequence[NamedEstimate], per: str) -> list[str]:
    """Caveats of the figures."""
    estimates = [one.estimate for one in named]
    notes = []
    if per != "step":
        notes.append("steps differ in tokens: times are compared per million tokens")
    if len({one.model for one in estimates}) > 1:
        notes.append("the models differ: a token is not the same work in each")
    if len({one.strategy["training"] for one in estimates}) > 1:
        notes.append("some train and some are forward only: a token is not the same work in each")
    if len({one.flops_convention for one in estimates}) > 1:
        notes.append("MFU and HFU count FLOPs by different conventions")
    runs = [one.whole_run for one in estimates if one.whole_run is not None]
    if len({run.tokens_asked for run in runs}) > 1:
        notes.append("the training runs have different numbers of tokens: days are not compared")
    if len({_days_basis(run)[1:] for run in runs}) > 1:
        notes.append(
            "failures, or waiting for repairs, are known for some training runs only: days are not "
            "compared"
        )
    too_big = [one.name for one in named if not one.estimate.fits]
    if too_big:
        notes.append(f"does not fit, so it cannot be the best: {', '.join(too_big)}")
    return notes


def _unexplained(changes: Sequence[Change]) -> list[str]:
    """A note on parts that change although no changed input acts on them."""
    found = [
        f"{change.name}: {part.part}"
        for change in changes
        for part in change.parts
        if part.delta_s and not (part.inputs or part.follows)
    ]
    if not found:
        return []
    problem = f"no input explains the difference in {', '.join(found)}: a model or system may have "
    return [problem + "other figures under the same name or in another version"]
