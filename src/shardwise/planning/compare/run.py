"""`compare`: what differs between scenarios, and how that changes the time."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

from shardwise.analysis.comparison import (
    Change,
    Comparison,
    InputDifference,
    Outcome,
    PartChange,
)
from shardwise.analysis.prediction_interval import distinguishable_ratio, separable
from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config.plain import plain
from shardwise.config.system import SystemLike
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError
from shardwise.planning.compare.causes import FOLDED, INPUTS, bearing_on, followed_by
from shardwise.planning.compare.scenario import NamedEstimate, ScenarioLike, load_scenario

_FEWEST = 2
_MILLION = 1e6
# It has the same meaning as tp_exchange.
_DERIVED = ("sequence_parallel",)
_FOLLOWING = ("parameters", "stage_layout", "micro_batches", "tokens_per_step")
# Less than this share of the step is rounding, not a difference.
_ROUNDING = 1e-12


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
    asked = _input_differences(named)
    outcomes = tuple(_outcome(one, _scale(one.estimate, per)) for one in named)
    changes = tuple(_change(named[0], other, per) for other in named[1:])
    return Comparison(
        per=per,
        asked=asked,
        scenarios=outcomes,
        changes=changes,
        best=_best(outcomes, named, per),
        notes=(*_notes(named, per), *_unexplained(changes)),
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


def _input_differences(loaded: Sequence[NamedEstimate]) -> tuple[InputDifference, ...]:
    inputs = [_inputs(one.estimate) for one in loaded]
    return tuple(
        InputDifference(
            field=name,
            values=tuple(each.get(name) for each in inputs),
            given=tuple(
                name not in _FOLLOWING and name.split(".")[0] not in one.estimate.assumed
                for one in loaded
            ),
            words=INPUTS[name.split(".")[0]].words,
        )
        for name in _changed(inputs)
    )


def _outcome(named: NamedEstimate, scale: float) -> Outcome:
    found, cost, run = named.estimate, named.estimate.cost, named.estimate.whole_run
    energy = cost.kwh_per_step
    return Outcome(
        name=named.name,
        model=found.model,
        system=found.system,
        gpus=found.strategy["gpus"],
        fits=found.fits,
        step_time_s=found.step_time_s,
        tokens_per_step=found.tokens_per_step,
        tokens_per_s=found.tokens_per_s,
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
        mfu=found.mfu,
        hfu=found.hfu,
        memory_bytes=found.memory_bytes,
        usd_per_billion_tokens=cost.usd_per_billion_tokens,
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
