"""`compare`: hold scenarios against the first of them."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError
from shardwise.planning.compare.causes import FOLDED, INPUTS, bearing_on, followed_by
from shardwise.planning.compare.results import Asked, Change, Comparison, Outcome, PartChange
from shardwise.planning.compare.scenario import ScenarioLike, Told, told_of

__all__ = ["compare"]

_FEWEST = 2
_MILLION = 1e6
# It says the same as tp_exchange.
_DERIVED = ("sequence_parallel",)
_FOLLOWING = ("parameters", "stage_layout", "micro_batches", "tokens_per_step")
# Less than this share of the step is rounding, not a difference.
_ROUNDING = 1e-12


def compare(*scenarios: ScenarioLike, names: Sequence[str] | None = None) -> Comparison:
    """Say what differs between scenarios, in what was asked and in what came out.

    Parameters
    ----------
    scenarios
        Two or more, the first being what the others are held against: estimates; files of
        estimates or results of searches (their best plan); scenarios of a model, a system and a
        strategy, as files or mappings, which are estimated.
    names
        What they are called; by default as their files, or A, B, ...

    Raises
    ------
    InputError
        If there are fewer than two, or one is none of these; one fault for each thing.

    Examples
    --------
    >>> from shardwise import compare, estimate
    >>> run = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
    >>> found = compare(
    ...     estimate("llama3-70b", "h100-sxm", run),
    ...     estimate("llama3-70b", "h100-sxm", run | {"tp": 4}),
    ... )
    >>> [one.field for one in found.asked], found.best["step_time_s"]
    (['tp', 'dp', 'micro_batches'], 'A')
    """
    if len(scenarios) < _FEWEST:
        problem = f"takes two scenarios or more; {len(scenarios)} given"
        raise InputError(Fault(source="compare", problem=problem))
    told = _named(_all(scenarios), names)
    per: Literal["step", "million tokens"] = "step"
    if len({one.estimate.tokens_per_step for one in told}) > 1:
        per = "million tokens"
    asked = _asked(told)
    outcomes = tuple(_outcome(one, _scale(one.estimate, per)) for one in told)
    changes = tuple(_change(told[0], other, per) for other in told[1:])
    return Comparison(
        per=per,
        asked=asked,
        scenarios=outcomes,
        changes=changes,
        best=_best(outcomes, told, per),
        notes=(*_notes(told, per), *_unexplained(changes)),
    )


def _all(scenarios: Sequence[ScenarioLike]) -> list[Told]:
    """Each with its estimate; faults of all of them together."""
    told: list[Told] = []
    faults: list[Fault] = []
    for position, scenario in enumerate(scenarios):
        try:
            told.append(told_of(scenario, position))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return told


def _named(told: Sequence[Told], names: Sequence[str] | None) -> list[Told]:
    """Give each a name of its own: as asked, else the file's, with its folder if that is needed."""
    if names is not None:
        if len(names) != len(told) or len(set(names)) != len(names):
            problem = f"must be {len(told)} different names, one for each scenario"
            value = list(names)
            raise InputError(
                Fault(source="compare", field="names", value=value, has_value=True, problem=problem)
            )
        return [_renamed(one, name) for one, name in zip(told, names, strict=True)]
    for better in (lambda one: one.source or one.name, None):
        counts = Counter(one.name for one in told)
        if max(counts.values()) == 1:
            break
        if better is not None:
            told = [_renamed(one, better(one)) if counts[one.name] > 1 else one for one in told]
        else:  # the same file, or the same name, twice
            told = [_renamed(one, f"{one.name} ({i})") for i, one in enumerate(told, start=1)]
    return list(told)


def _renamed(one: Told, name: str) -> Told:
    return Told(name=name, source=one.source, estimate=one.estimate)


def _scale(estimate: Estimate, per: str) -> float:
    """What times of a step are multiplied by."""
    return 1.0 if per == "step" else _MILLION / estimate.tokens_per_step


def _inputs(estimate: Estimate) -> dict[str, Any]:
    """What an estimate was asked, and what follows from it, as plain values."""
    plain: dict[str, Any] = json.loads(json.dumps(estimate.strategy))
    stack = plain.pop("stack", None)
    fields = {name: value for name, value in plain.items() if name not in _DERIVED}
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


def _stack(stack: Any) -> dict[str, Any]:
    """A stack's name, and each of its fields that is not as of that name."""
    if not isinstance(stack, Mapping):
        return {"stack": stack}
    name = stack.get("base", stack.get("name"))
    rest = {f"stack.{k}": v for k, v in stack.items() if k not in ("base", "name")}
    return {"stack": name, **rest}


def _changed(inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of inputs that are not the same everywhere, in their order."""
    names = dict.fromkeys(name for each in inputs for name in each)
    found = [n for n in names if any(each.get(n) != inputs[0].get(n) for each in inputs)]
    if "model" in found and "parameters" in found:
        found.remove("parameters")  # another model has others
    return found


def _asked(told: Sequence[Told]) -> tuple[Asked, ...]:
    inputs = [_inputs(one.estimate) for one in told]
    return tuple(
        Asked(
            field=name,
            values=tuple(each.get(name) for each in inputs),
            given=tuple(
                name not in _FOLLOWING and name.split(".")[0] not in one.estimate.assumed
                for one in told
            ),
            words=INPUTS[name.split(".")[0]].words,
        )
        for name in _changed(inputs)
    )


def _outcome(told: Told, scale: float) -> Outcome:
    found, cost, run = told.estimate, told.estimate.cost, told.estimate.whole_run
    energy = cost.kwh_per_step
    return Outcome(
        name=told.name,
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
    )


def _change(first: Told, other: Told, per: str) -> Change:
    """Attribute what the time of a step, or of tokens, changes by to its parts.

    sum over parts (after - before) = delta; before and after are those of the whole.
    """
    one, two = first.estimate, other.estimate
    scales = _scale(one, per), _scale(two, per)
    inputs = [name.split(".")[0] for name in _changed([_inputs(one), _inputs(two)])]
    before = {part: scales[0] * one.time_s[part] for part in TIME_PARTS}
    after = {part: scales[1] * two.time_s[part] for part in TIME_PARTS}
    whole = scales[0] * one.step_time_s
    for part in TIME_PARTS:  # so that no difference is told that is none
        if abs(after[part] - before[part]) <= _ROUNDING * whole:
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
        before_s=whole,
        after_s=scales[1] * two.step_time_s,
        delta_s=delta,
        share=delta / whole,
        parts=parts,
    )


def _hidden(estimate: Estimate, part: str) -> float:
    """What of the exchange that is this part does not lengthen the step [s]."""
    moved = estimate.comm_s.get(part.removesuffix("_comm"))
    return 0.0 if moved is None else max(0.0, moved.total - moved.exposed)


def _best(outcomes: Sequence[Outcome], told: Sequence[Told], per: str) -> dict[str, str | None]:
    """Name of the best that fits, by each measure that all of those have in common."""
    fitting = [one for one in outcomes if one.fits]
    asked = {_days_of(one.estimate.whole_run) for one in told if one.estimate.fits}

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
        "effective_days": least(lambda one: one.effective_days, comparable=len(asked) == 1),
    }


def _days_of(run: TrainingTime | None) -> tuple[object, ...]:
    """What the days of a whole run are the days of, which must be alike to compare them."""
    if run is None:
        return ()
    return run.tokens_asked, run.goodput is None, "waiting" in run.unknown


def _notes(told: Sequence[Told], per: str) -> list[str]:
    """What to mind when reading the figures."""
    estimates = [one.estimate for one in told]
    notes = []
    if per != "step":
        notes.append("a step has not as many tokens in each: times are compared per million tokens")
    if len({one.model for one in estimates}) > 1:
        notes.append("the models differ: a token is not the same work in each")
    if len({one.strategy["training"] for one in estimates}) > 1:
        notes.append("some train and some go forward only: a token is not the same work in each")
    if len({one.flops_convention for one in estimates}) > 1:
        notes.append("MFU and HFU count FLOPs by different conventions")
    whole = [one.whole_run for one in estimates if one.whole_run is not None]
    if len({run.tokens_asked for run in whole}) > 1:
        notes.append("the whole runs train on different numbers of tokens: days are not compared")
    if len({_days_of(run)[1:] for run in whole}) > 1:
        notes.append(
            "failures, or waiting for repairs, are known of some whole runs only: days are not "
            "compared"
        )
    lacks = [one.name for one in told if not one.estimate.fits]
    if lacks:
        notes.append(f"does not fit, and so is best by nothing: {', '.join(lacks)}")
    return notes


def _unexplained(changes: Sequence[Change]) -> list[str]:
    """Say where a part changes that no changed input acts on."""
    found = [
        f"{change.name}: {part.part}"
        for change in changes
        for part in change.parts
        if part.delta_s and not (part.inputs or part.follows)
    ]
    if not found:
        return []
    told = f"nothing that was asked explains what differs in {', '.join(found)}: "
    return [told + "a model or system may have other figures under the same name, or the version"]
