"""From a description of software to stacks, with how sure that is.

A description names a trainer, a release or a month, an engine, libraries and options. What it
leaves open follows from facts of the trainer (catalog/software/trainers) by month, accelerator and
engine. What stays open makes several candidates with probabilities.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

from shardwise import catalog
from shardwise.config import files
from shardwise.config.capabilities import Capabilities, Values, is_among
from shardwise.config.enums import AttentionKernel, Generation
from shardwise.config.software.attention import attention_facts, kernel_of, runs_on
from shardwise.config.software.record import (
    Condition,
    Engine,
    Fact,
    Software,
    Trainer,
    library_releases,
    trainers,
)
from shardwise.config.software.words import lineage, software_of
from shardwise.config.stack import Stack
from shardwise.records import dataclass, field, replace

if TYPE_CHECKING:
    from shardwise.config.model import Model
    from shardwise.config.system import System

UNKNOWN_STACK = "unknown"
_YEAR = len("2026")
# Month of figures where only the year is known.
_MIDDLE = "07"
_Value = TypeVar("_Value")
How = Literal["stack", "matched", "nearest release", "several candidates", "unknown"]
_OFFLOADS = ("offload_weights", "offload_optimizer")
DECIDING_FIELDS = (
    *("zero", "quantization", "optimizer", "cp", "weight_dtype", "gpus", "fused_activation"),
    *_OFFLOADS,
)
"""Fields of strategies on which facts of software depend, or which rule candidates out."""
# Stages of ZeRO that one accelerator has only where its user names them.
_SHARDED = ("2", "3")
_MOST = 6
# The same 3 % in another sum: what a candidate must weigh to be kept.
_LEAST_WEIGHT = 0.03
_KERNEL = "attention_kernel"
_UNFUSED, _FLASH = AttentionKernel.UNFUSED, "flash"
# Fields of which a stack has figures for its own value: another one is a choice of the strategy.
_OWN_FIGURES = frozenset({"loss", "compile"})
_NEWEST = "9999-12"
_GAP_MONTHS = 9
_MANY_EXPERTS = 256
_PATHS = ("/", ".", "~")
_EARLY = re.compile(r"dev|a\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Software that may be meant."""

    weight: float
    """Its probability."""
    trainer: str
    engine: Engine | None
    stack: Stack
    """Its figures; `defaults` has what it does where a strategy says nothing."""
    options: Mapping[str, Any]
    """Fields that facts of its release set."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Sources of these facts, by field."""
    backend: str = ""
    """Trainer that does its work, if it is another one."""
    hand_tuned: bool = False
    described: str = ""
    """What tells it from the other candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a description of software was resolved to."""

    software: Software
    how: How
    candidates: tuple[Candidate, ...]
    """The most probable first."""
    notes: tuple[str, ...] = ()
    """What contradicts, what was assumed, what may be meant; the most important first."""
    conflicts: int = 0
    """Facts of the description that contradict each other or the machine."""
    month: str = ""
    """Month of the facts, from a release or a date; empty: the newest."""

    @property
    def stack(self) -> Stack:
        """Figures of the most probable candidate."""
        return self.candidates[0].stack

    @property
    def in_words(self) -> Iterator[str]:
        """How the description was understood: a line, then one for each note and candidate."""
        first = self.candidates[0]
        engine = f", {first.engine}" if first.engine else ""
        yield f"software: {first.trainer or 'unknown'}{engine} ({self.how})"
        yield from (f"  {note}" for note in self.notes)
        if len(self.candidates) > 1:
            yield from (f"  {one.weight:.0%} {one.described}" for one in self.candidates)


def stack_on(
    value: "str | Stack | Software | None",
    on: "System | str",
    model: "Model | None" = None,
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> Stack:
    """Return the stack of a strategy on a system: a name, a file, or a description of software.

    Parameters
    ----------
    on
        The system, whose stack holds where the strategy names none; or the name of that stack.
    stated
        Fields of the strategy that are set and on which facts of software depend.
    """
    if value is None:
        return Stack.load(on if isinstance(on, str) else on.stack)
    if isinstance(value, Software) or is_description(value):
        return resolve(value, None if isinstance(on, str) else on, model, stated).stack
    return Stack.load(value)


def is_description(value: object) -> TypeGuard[Software | str]:
    """Whether a value describes software: known words, and no name or file of a stack."""
    if not isinstance(value, str):
        return isinstance(value, Software)
    if catalog.find("stacks", value) is not None:
        return value == UNKNOWN_STACK
    found = software_of(value)
    repository = "/" in value and bool(found.trainer) and not value.startswith(_PATHS)
    if files.is_file_name(value) and not (repository and not _is_file(value)):
        return False
    return bool(found.trainer or found.engine or found.options)


def _is_file(value: str) -> bool:
    known = files.has_known_ending(value) or bool(files.file_and_name(value)[1])
    return known or (not files.is_catalog_only() and files.exists(value))


def match_of(
    value: "str | Stack | Software | None",
    system: "System",
    model: "Model | None" = None,
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> Match:
    """Return how the software of a strategy was found; of a stack by name, that."""
    if is_description(value):
        return resolve(value, system, model, stated)
    stack = stack_on(value, system)
    only = Candidate(weight=1.0, trainer="", engine=None, stack=stack, options={})
    return Match(software=Software(text=stack.name), how="stack", candidates=(only,))


def resolve(
    software: Software | str,
    system: "System | None" = None,
    model: "Model | None" = None,
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> Match:
    """Resolve a description of software to stacks with their probabilities.

    Parameters
    ----------
    system
        Where it runs; None: facts that depend on the accelerator do not hold.
    model
        What is trained; None: facts that depend on experts do not hold.
    stated
        Fields of the strategy that are set and on which facts of software depend.

    Examples
    --------
    >>> resolve("torchtitan 0.2 + torch.compile").stack.name
    'torchtitan-2025'
    """
    record = software_of(software) if isinstance(software, str) else software
    options = {name: value for name, value in stated.items() if value != "stack"}
    cp = int(options.pop("cp", None) or 1)
    offloads = [options.pop(name, False) for name in _OFFLOADS]
    shards = str(options.get("zero")) in _SHARDED
    alone = options.pop("gpus", None) == 1 and not (shards or any(offloads))
    if options:
        record = record.model_copy(update={"options": {**options, **record.options}})
    places: tuple[str, ...] = ()
    if system is not None:
        generation = system.accelerator.generation
        places = (system.name, *system.name.split("-"), generation.value, generation.family)
    kind: tuple[tuple[str, bool], ...] = ()
    if model is not None:
        most = max((one.moe.experts for one in model.layers if one.moe is not None), default=0)
        kind = ("experts", most > 0), ("many_experts", most >= _MANY_EXPERTS)
        windows = any(one.window is not None for one in model.attentions)
        kind = (*kind, ("attends_to_all", model.attends_to_all), ("windows", windows))
    return _resolved(record, places, kind, splits_context=cp > 1, alone=alone)


@lru_cache(512)
def _resolved(
    software: Software,
    places: tuple[str, ...],
    kind: tuple[tuple[str, bool], ...],
    *,
    splits_context: bool,
    alone: bool,
) -> Match:
    notes: list[str] = []
    conflicts: list[str] = []
    month, nearest, in_year = _month(software, places, notes, conflicts)
    context = {"says": software.text, "alone": alone, **software.options, **dict(kind)}
    libraries = software.libraries
    at = _At(
        month=month,
        in_year=in_year,
        places=places,
        engine=software.engine,
        context=context,
        libraries=libraries,
    )
    software = _with_kernel(software, at, conflicts)
    named = _trainers(software, at, conflicts)
    named = [one for one in named if _has_engine(one[1], software.engine)] or named
    meant = [
        (weight * share, chain, replace(at, engine=engine))
        for weight, chain in named
        for engine, share in _over_months(partial(_engines, software, chain), at)
    ]
    meant = [one for one in meant if one[2].has_stage] or meant
    total = sum(weight for weight, *_ in meant)
    found: list[Candidate] = []
    for weight, chain, here in meant:
        accepted = _accepted(software, chain, here, conflicts)
        found += _candidates(accepted, chain, here, weight / total)
    if splits_context:  # which needs a fused kernel
        found = [one for one in found if one.stack.attention_kernel != _UNFUSED] or found
    is_known = bool(found)
    if not found:
        notes.append(
            f"{software.text or 'this software'} is not known; figures of unknown software"
        )
        found = [*_candidates(software, (trainers()[UNKNOWN_STACK],), at, 1.0)]
    kept = _most_probable(found)
    kept = tuple(replace(one, described=_described(one, kept)) for one in kept)
    how: How = "several candidates" if len(kept) > 1 else "matched"
    if not is_known:
        how = "unknown"
    if how == "matched" and nearest:
        how = "nearest release"
    return Match(
        software=software,
        how=how,
        candidates=kept,
        notes=(*conflicts, *notes),
        conflicts=len(conflicts),
        month=month,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """Where conditions are evaluated."""

    month: str
    in_year: bool
    """Whether only the year of the month is known."""
    places: tuple[str, ...]
    engine: Engine | None
    context: Mapping[str, Any]
    libraries: Mapping[str, str]
    """Releases that are stated."""

    @property
    def generation(self) -> Generation | None:
        """Architecture of the accelerator, if one is known."""
        return next((Generation(one) for one in self.places if one in [*Generation]), None)

    def holds(self, one: Condition) -> bool:
        """Whether something is so here."""
        month = self.month or _NEWEST
        return (
            one.since <= month
            and (not one.until or month <= one.until)
            and (not one.on or bool(set(one.on) & set(self.places)))
            and (not one.engine or any(e.covers(self.engine) for e in one.engine))
            and all(self._has(name, value) for name, value in one.when.items())
        )

    def _has(self, name: str, value: object) -> bool:
        known = self.context.get(name)
        wanted = value if isinstance(value, (list, tuple)) else (value,)
        if name == "says":
            return any(_said(str(phrase), str(known or "")) for phrase in wanted)
        return bool({known, *(known if isinstance(known, tuple) else ())} & set(wanted))

    @property
    def has_stage(self) -> bool:
        """Whether the engine has the stage of ZeRO that is stated, if any."""
        stage, engine = self.context.get("zero"), self.engine
        possible = () if engine is None else engine.zero_stages
        return stage is None or not possible or stage in possible

    def earlier(self, months: int) -> "_At":
        """The same so many months before."""
        if not self.month or not months:
            return self
        year, month = divmod(_months(self.month) - 1 - months, 12)
        return replace(self, month=f"{year}-{month + 1:02}")

    @property
    def months(self) -> list["_At"]:
        """The same in each month that may be meant."""
        if not self.in_year:
            return [self]
        return [replace(self, month=f"{self.month[:4]}-{n:02}") for n in range(1, 13)]

    def with_options(self, options: Mapping[str, Any]) -> "_At":
        """The same where facts have set options."""
        return replace(self, context={**options, **self.context})


def _said(phrase: str, text: str) -> bool:
    pattern = rf"(?<![^\W_]){re.escape(phrase)}(?![^\W_])"  # pretrain_performance has two words
    return re.search(pattern, text, re.IGNORECASE) is not None


def _names(software: Software) -> tuple[str, ...]:
    """Trainers that a description names."""
    return tuple(n for n in (software.trainer, *software.others) if n in trainers())


_USUAL = ("nvidia",)


def _runs_on(trainer: Trainer, places: tuple[str, ...]) -> bool:
    return not trainer.on or bool(set(trainer.on) & set(places or _USUAL))


def _most_specific(names: Sequence[str], places: tuple[str, ...]) -> list[str]:
    """Trainers that count of those that are named.

    Those that run on the accelerator; not what another one is based on, nor libraries and
    benchmarks next to a trainer.
    """
    known = trainers()
    here = [name for name in names if _runs_on(known[name], places)] or list(names)
    left = [name for name in here if known[name].kind == "trainer"] or here
    based = {base for name in left for base in lineage(name)[1:]}
    left = [name for name in left if name not in based]
    return [name for name in left if known[name].based_on] or left


def _trainers(
    software: Software, at: _At, conflicts: list[str]
) -> list[tuple[float, tuple[Trainer, ...]]]:
    """Trainers that may be meant, with probabilities that add up to 1.

    Each with those whose facts hold where its own say nothing: its back end, and what both are
    based on.
    """
    known, named = trainers(), _names(software)
    names = _most_specific(named, at.places)
    if not names and software.engine is not None:
        names = [
            one.name
            for one in known.values()
            if one.kind == "library"
            and any(software.engine.covers(Engine(e)) for c in one.engines for e in c.weights)
        ][:1]
    found: list[tuple[float, list[str]]] = []
    for name in [name for name in names if known[name].backends] or names:
        choice = next((c for c in reversed(known[name].backends) if at.holds(c)), None)
        weights = {} if choice is None else dict(choice.weights)
        weights = {
            one: w for one, w in weights.items() if set(lineage(one)) & {*named} - {*lineage(name)}
        } or weights
        total = sum(weights.values()) or 1.0
        chains = {one: [name, *lineage(one), *lineage(name)[1:]] for one in weights}
        found += [(weights[one] / total, chain) for one, chain in chains.items()]
        found += [] if weights else [(1.0, lineage(name))]
    if found and not any(_runs_on(known[chain[0]], at.places) for _, chain in found):
        place = at.places[0] if at.places else "GPUs of NVIDIA"  # `_USUAL`
        conflicts.append(f"{found[0][1][0]} does not run on {place}, as far as is known")
    total = sum(weight for weight, _ in found)
    return [
        (weight / total, tuple(known[name] for name in dict.fromkeys(chain)))
        for weight, chain in found
    ]


def _engines(
    software: Software, chain: tuple[Trainer, ...], at: _At
) -> Mapping[Engine | None, float]:
    """Engines that may be meant, with probabilities: those of a trainer that its back end has."""
    stated, at = software.engine, replace(at, engine=None)
    runs = _engines_of(chain[1:]) if _has_backend(chain) else None
    for trainer in chain:
        unversioned = () if stated is None else trainer.unversioned.get(stated, ())
        choices = [one for one in unversioned or trainer.engines if at.holds(one)]
        if not choices:
            continue
        weights = {Engine(word): weight for word, weight in choices[-1].weights.items()}
        if stated is not None:
            weights = {one: weight for one, weight in weights.items() if stated.covers(one)}
        if at.context["alone"] and Engine.DDP in weights:  # nothing to shard
            weights = {one: w for one, w in weights.items() if 0 in (one.zero_stages or (0,))}
        if runs is not None and trainer is chain[0]:
            weights = {one: weight for one, weight in weights.items() if one in runs}
        if weights:
            total = sum(weights.values())
            return {one: weight / total for one, weight in weights.items()}
    return {stated: 1.0}


def _has_engine(chain: tuple[Trainer, ...], stated: Engine | None) -> bool:
    """Whether the back end of these trainers has the engine that is stated, as far as is known."""
    runs = _engines_of(chain[1:]) if _has_backend(chain) else set()
    return stated is None or not runs or any(stated.covers(e) or e.covers(stated) for e in runs)


def _has_backend(chain: tuple[Trainer, ...]) -> bool:
    """Whether the second of these trainers does the work of the first."""
    names = {name for choice in chain[0].backends for name in choice.weights}
    return len(chain) > 1 and chain[1].name in names


def _engines_of(chain: tuple[Trainer, ...]) -> set[Engine]:
    """All engines that the first of these trainers with engines may use."""
    for trainer in chain:
        choices = [*trainer.engines, *(c for each in trainer.unversioned.values() for c in each)]
        if choices:
            return {Engine(word) for choice in choices for word in choice.weights}
    return set()


def _behind(chain: tuple[Trainer, ...]) -> list[tuple[Trainer, int]]:
    """Trainers with the months that the first of them is behind."""
    return [(one, sum(each.lag for each in chain[:i])) for i, one in enumerate(chain)]


def _accepted(
    software: Software, chain: tuple[Trainer, ...], at: _At, conflicts: list[str]
) -> Software:
    """The software with what a trainer uses in place of options that it refuses."""
    options = dict(software.options)
    refusals = [(one, lag) for trainer, lag in _behind(chain) for one in trainer.refuses]
    for refusal in (one for one, lag in refusals if at.earlier(lag).holds(one)):
        refused = refusal.value if isinstance(refusal.value, (list, tuple)) else (refusal.value,)
        if options.get(refusal.field) not in refused:
            continue
        place = f" on {at.places[0]}" if refusal.on else ""
        text = f"{chain[0].name} has no {refusal.field} {options[refusal.field]}{place}"
        text += f"; {refusal.instead} is used" if refusal.instead else ""
        if text not in conflicts:
            conflicts.append(text)
        if refusal.instead:
            options[refusal.field] = refusal.instead
    return software.model_copy(update={"options": options})


def _candidates(
    software: Software,
    chain: tuple[Trainer, ...],
    at: _At,
    weight: float,
) -> Iterator[Candidate]:
    """Candidates of a trainer and engine: one for each combination of what stays open."""
    says_flash = software.options.get(_KERNEL) == _FLASH
    if says_flash:  # any fused kernel: those of the trainer, else FlashAttention of that time
        options = {name: value for name, value in software.options.items() if name != _KERNEL}
        software = software.model_copy(update={"options": options})
    by_field: dict[str, list[tuple[Fact, int]]] = {}
    for trainer, lag in reversed(_behind(chain)):
        for fact in trainer.facts:
            if fact.field not in software.options:
                by_field.setdefault(fact.field, []).append((fact, lag))
    open_ones: list[tuple[float, dict[str, Any]]] = [(weight, {})]
    for name, facts in by_field.items():
        values = partial(_values, name, facts)
        values = partial(_fused, values) if says_flash and name == _KERNEL else values
        open_ones = [
            (share * part, chosen if value is None else {**chosen, name: value})
            for share, chosen in open_ones
            for value, part in _over_months(values, at.with_options(chosen))
        ]
        open_ones = sorted(open_ones, key=lambda one: -one[0])[:_MOST]
    for share, chosen in open_ones:
        here = at.with_options(chosen)
        sources = {
            name: _source(name, facts, here, chosen[name])
            for name, facts in by_field.items()
            if name in chosen
        }
        backend = chain[1].name if _has_backend(chain) else ""
        for stack, part in _figures(chain, here).items():
            found, own = Stack.load(stack), chosen
            if says_flash and _KERNEL not in chosen and found.attention_kernel == _UNFUSED:
                own = {**chosen, _KERNEL: _flash(at)}
            one = _with_options(found, own, software, chain, at, share * part)
            yield replace(one, backend=backend, hand_tuned=chain[0].hand_tuned, sources=sources)


def _figures(chain: tuple[Trainer, ...], at: _At) -> Mapping[str, float]:
    """Stacks whose figures hold: of the trainer, else of what it runs on or is based on."""
    for trainer in chain:
        held = [one.stack for one in trainer.stacks if at.holds(one)]
        if held:
            return held[-1]
    return {UNKNOWN_STACK: 1.0}


def _over_months(
    of: Callable[[_At], Mapping[_Value, float]], at: _At
) -> Iterable[tuple[_Value, float]]:
    """What may be, with its probabilities, over the months that may be meant."""
    found: dict[_Value, float] = {}
    for here in at.months:
        for value, part in of(here).items():
            found[value] = found.get(value, 0.0) + part / len(at.months)
    return found.items()


def _source(field: str, facts: Sequence[tuple[Fact, int]], at: _At, value: object) -> str:
    """Source of a value, in the first month that may be meant and has it."""
    for here in at.months:
        held = [fact for fact, lag in facts if here.earlier(lag).holds(fact)]
        if held and (len(at.months) == 1 or value in _values(field, facts, here)):
            return held[-1].source
    return ""


_UNDECIDED: Mapping[Any, float] = {None: 1.0}


def _values(field: str, facts: Iterable[tuple[Fact, int]], at: _At) -> Mapping[Any, float]:
    """Values of a field with their probabilities: of the last fact that holds; None without one.

    Each fact comes with the months that what has it is behind.
    """
    held = [fact for fact, lag in facts if at.earlier(lag).holds(fact)]
    if not held:
        return _UNDECIDED
    value = held[-1].value
    weights = value if isinstance(value, Mapping) else {value: 1.0}
    if field != _KERNEL:
        return {word: float(weight) for word, weight in weights.items()}
    kernels: dict[Any, float] = {}
    for word, weight in weights.items():
        kernel = kernel_of(word, at.generation, at.libraries, at.month)
        kernel = kernel if runs_on(kernel, at.generation) else AttentionKernel.BEST
        kernels[kernel] = kernels.get(kernel, 0.0) + weight
    return kernels


def _fused(values: Callable[[_At], Mapping[Any, float]], at: _At) -> Mapping[Any, float]:
    """Fused ones of the attention kernels that may be; without any, FlashAttention."""
    fused = {kernel: w for kernel, w in values(at).items() if kernel != _UNFUSED}
    total = sum(fused.values())
    return {kernel: w / total for kernel, w in fused.items()} or {_flash(at): 1.0}


def _flash(at: _At) -> AttentionKernel:
    return kernel_of(_FLASH, at.generation, at.libraries, at.month)


def _with_kernel(software: Software, at: _At, conflicts: list[str]) -> Software:
    """The software with the kernel that a stated choice of a library amounts to."""
    if software.options.get(_KERNEL, _FLASH) == _FLASH:
        return software
    kernel = kernel_of(software.options[_KERNEL], at.generation, at.libraries, at.month)
    if not runs_on(kernel, at.generation):
        conflicts.append(f"{attention_facts().kernels[kernel].because}, not on {at.places[0]}")
    return software.model_copy(update={"options": {**software.options, _KERNEL: kernel}})


def _with_options(
    stack: Stack,
    options: Mapping[str, Any],
    software: Software,
    chain: tuple[Trainer, ...],
    at: _At,
    weight: float,
) -> Candidate:
    """A candidate whose stack has what its release does as defaults."""
    from shardwise.config.strategy import Strategy  # noqa: PLC0415 - a strategy has a stack

    trainer, engine, month = chain[0].name, at.engine, at.month
    own: Mapping[str, Values] = {}
    for one in reversed(chain):
        own = {**own, **one.capabilities}
    known = {**options, **software.options}
    of_stack = {n: v for n, v in known.items() if n in Stack.model_fields.keys() - _OWN_FIGURES}
    usual = {
        name: value
        for name, value in known.items()
        if name in Strategy.model_fields.keys() - of_stack and value != getattr(stack, name, None)
    }
    if engine is not None and engine.zero_stages:
        usual.setdefault("zero", engine.zero_stages[0])
    if stack.released and month and "released" not in of_stack:
        of_stack["released"] = month
    if usual or of_stack or own:
        fields = stack.fields_with(of_stack)
        fields["defaults"] = {**fields["defaults"], **usual}
        fields["capabilities"] = _with_values(stack.capabilities, usual, own)
        stack = Stack.validated(fields, source=trainer)
    return Candidate(weight=weight, trainer=trainer, engine=engine, stack=stack, options=known)


def _with_values(
    capabilities: Capabilities | None, values: Mapping[str, Any], own: Mapping[str, Values]
) -> Capabilities | None:
    """Capabilities that have values which software has by default too, and its own ones."""
    if capabilities is None:
        return None
    more = {
        name: (*capabilities.fields[name], value)
        for name, value in values.items()
        if not capabilities.allows(name, value)
    }
    # Offload and the like need shards, whatever the stage is by default.
    by_default = {name: value for name, value in values.items() if name != "zero"}
    combinations = {
        name: None
        if one is None
        else one.model_copy(update={"then": _with_each(one.then, by_default)})
        for name, one in capabilities.combinations.items()
    }
    fields = {**capabilities.fields, **more, **own}
    update = {"fields": fields, "combinations": combinations}
    return capabilities.model_copy(update=update)


def _with_each(then: Mapping[str, Values], values: Mapping[str, Any]) -> Mapping[str, Values]:
    """What a combination allows, and these values of its fields."""
    return {
        name: (*some, values[name]) if name in values and not is_among(values[name], some) else some
        for name, some in then.items()
    }


def _most_probable(found: list[Candidate]) -> tuple[Candidate, ...]:
    """Join equal candidates, and keep the most probable of them."""
    joined: list[Candidate] = []
    for one in found:
        same = next((i for i, o in enumerate(joined) if o.stack == one.stack), None)
        if same is None:
            joined.append(one)
        else:
            joined[same] = replace(joined[same], weight=joined[same].weight + one.weight)
    joined.sort(key=lambda one: -one.weight)
    kept = [one for one in joined[:_MOST] if one.weight >= _LEAST_WEIGHT]
    total = sum(one.weight for one in kept)
    return tuple(replace(one, weight=one.weight / total) for one in kept)


def _described(one: Candidate, others: Iterable[Candidate]) -> str:
    """A candidate by what tells it from the others."""
    words = [one.trainer]
    if len({other.backend for other in others}) > 1:
        words.append(one.backend)
    if len({other.engine for other in others}) > 1 and one.engine is not None:
        words.append(str(one.engine))
    for name, value in one.options.items():
        if len({str(other.options.get(name)) for other in others}) > 1:
            words.append(f"{name} {value}")
    if len({other.stack.name for other in others if other.options == one.options}) > 1:
        words.append(f"with figures of {one.stack.name}")
    return " ".join(words)


def _month(
    software: Software, places: tuple[str, ...], notes: list[str], conflicts: list[str]
) -> tuple[str, bool, bool]:
    """Month of the software, empty for the newest, and what is not known.

    That is: its release itself, the month of its year.
    """
    named = _most_specific(_names(software), places)
    known = trainers()[named[0]] if named else None
    nearest, of_release, release = False, "", ""
    if known is not None:
        release = software.release if known.name == software.trainer else ""
        release = software.libraries.get(known.name) or release
    releases = _releases_of(known.name) if known is not None else {}
    if release and known is not None and releases:
        of_release, nearest = _released(release, releases)
        if nearest:
            notes.append(
                f"{known.name} {release} is not known; facts of "
                f"{of_release or 'the newest release'}"
            )
    dated = _months_of_libraries(software, known)
    of_libraries = max(dated.values(), default="")
    stated = {f"release {release}": of_release} | {
        name: month for name, month in dated.items() if not _is_benchmark(name)
    }
    conflicts += [
        f"{name} is of {month}, later than the date {software.date}"
        for name, month in stated.items()
        if _is_later(month, software.date)
    ]
    in_year = not of_release and len(software.date) == _YEAR
    date = f"{software.date}-{_MIDDLE}" if in_year else software.date
    month = of_release or date or of_libraries
    if not month and known is not None and releases:
        notes.append(f"no release or month stated: the newest {known.name} is assumed")
    elif month and known is not None and releases and not of_release:
        last = max(releases.values())
        if _months(month) - _months(last) > _GAP_MONTHS:
            notes.append(f"the newest {known.name} known is of {last}")
            nearest = True
    return month, nearest, in_year


def _months_of_libraries(software: Software, trainer: Trainer | None) -> dict[str, str]:
    """Months of the releases of libraries and other trainers that are stated, by name."""
    found: dict[str, str] = {}
    for name, release in software.libraries.items():
        releases = {} if trainer is not None and name == trainer.name else _releases_of(name)
        early = _EARLY.search(release) is not None  # built before the release
        if not early and any(_version(known) <= _version(release) for known in releases):
            found[f"{name} {release}"] = _released(release, releases)[0]
    return found


def _is_benchmark(name: str) -> bool:
    trainer = trainers().get(name.split(maxsplit=1)[0])
    return trainer is not None and trainer.kind == "benchmark"


def _is_later(month: str, date: str) -> bool:
    """Whether a month is after a date, which may be a year."""
    return bool(date) and month[: len(date)] > date


def _releases_of(name: str) -> Mapping[str, str]:
    """Months of releases of a library or a trainer."""
    of_trainer = trainers()[name].releases if name in trainers() else {}
    return library_releases().get(name) or of_trainer


def _released(release: str, releases: Mapping[str, str]) -> tuple[str, bool]:
    """Month of a release, and whether it is that of the nearest one known.

    A release with fewer numbers is the newest of those; tags of containers are months.
    """
    wanted = _version(release)
    same = [name for name in releases if _same(_version(name), wanted)]
    if wanted and same:
        return releases[max(same, key=_version)], False
    if tag := re.match(r"(2\d)\.(0?[1-9]|1[0-2])(?!\d)", release):
        return f"20{tag[1]}-{int(tag[2]):02}", False
    # Megatron-LM counts from 0 again after 3.
    major = [name for name in releases if _version(name)[:1] == wanted[:1]] or list(releases)
    before = [name for name in major if _version(name) <= wanted]
    known = max(before, key=_version) if before else min(major, key=_version, default="")
    return releases.get(known, ""), _version(known)[:2] != wanted[:2]


def _same(known: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a release is the one that is wanted, or one of it: 0.2 is 0.2.0, and has 0.2.1."""
    return known[: len(wanted)] == wanted or (*known, 0, 0)[: len(wanted)] == wanted


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", release)[:3])


def _months(month: str) -> int:
    year, number = map(int, month.split("-"))
    return 12 * year + number
