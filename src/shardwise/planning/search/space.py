"""`Space`: which strategies a search tries, and what `all` stands for in it."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from shardwise import catalog
from shardwise.config.base import ConfigBase
from shardwise.config.capabilities import ANY, SET, Reported, Values, is_among
from shardwise.config.degrees import LEVELS_PATTERN, plain_only
from shardwise.config.enums import CudaGraphs, GradSync, Recompute, RecomputePart, WeightDtype
from shardwise.config.expressions.records import Resolved
from shardwise.config.expressions.resolve import Chain
from shardwise.config.model import Model
from shardwise.config.recipe import Recipe
from shardwise.config.roles import Group, Tries
from shardwise.config.software.resolve import DECIDING_FIELDS, is_description, stack_on
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import (
    COLUMNS,
    OFFLOADS,
    SHORT_NAMES,
    Kind,
    StrategyField,
    names_of,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import known_of
from shardwise.errors import Fault, InputError, shorten
from shardwise.parallel.constraints import faults_of, first_violation, software
from shardwise.parallel.constraints.options import is_recomputable
from shardwise.planning.search.keywords import SpaceKeywords


def every_value(field: StrategyField, system: System | None = None) -> tuple[Any, ...]:
    """All values of a field with finitely many, independent of the layout."""
    if field.kind is Kind.TIER:
        return tuple(range(len(system.network))) if system is not None else ()
    if field.kind is Kind.FLAG:
        return (False, True)
    if field.kind is Kind.SET and not field.role.work:
        return ((None,) if field.optional else ()) + presets(field.name)
    return field.role.every or (field.words if field.kind is Kind.WORD else ())


def has_all(field: StrategyField) -> bool:
    """Whether `all` has a meaning."""
    by_layout = field.role.tries in (Tries.DIVISORS, Tries.DEFAULT_DIVISOR)
    is_finite = field.kind is Kind.TIER or (field.kind is Kind.SET and not field.role.work)
    return by_layout or is_finite or bool(every_value(field))


def instead_of_all(field: StrategyField, word: str | None) -> str:
    """What to write for a field whose values cannot all be tried."""
    name = field.name
    if field.kind is Kind.SET:
        some = f"{field.words[0]},{'+'.join(field.words[:2])}"
        return f"give sets to try, as in {name}={some}; allowed: {', '.join(field.words)}"
    if word is not None:
        return f"give values, or {name}={word}"
    is_whole = field.kind is Kind.WHOLE
    return f"give values, as in {name}=A,B{f', or a range {name}=A..B' if is_whole else ''}"


@cache
def presets(field: str) -> tuple[Any, ...]:
    """Sets of a field that stacks or recipes of the catalog use.

    Where none uses the field, these are the sets that the stacks list one by one as what their
    releases can run.
    """
    used = {frozenset(words): words for words in _used(field)}
    return tuple((used or {frozenset(words): words for words in _listed(field)}).values())


def _stacks() -> Iterator[Stack]:
    return map(Stack.load, catalog.names("stacks"))


def _used(field: str) -> Iterator[Any]:
    for stack in _stacks():
        if field in stack.defaults:
            yield stack.defaults[field]
        if field == "recompute_parts":
            yield from stack.recompute_sets
    for recipe in map(Recipe.load, catalog.names("recipes")):
        if field in recipe.strategy.model_fields_set:
            yield getattr(recipe.strategy, field)


def _listed(field: str) -> Iterator[Any]:
    for stack in _stacks():
        values = stack.capabilities.fields.get(field, ()) if stack.capabilities else ()
        for value in values:
            if isinstance(value, str) and value not in (ANY, SET):
                yield getattr(Strategy.validated({field: value}), field)


_RANGE = re.compile(r"(\d{1,18})\s*\.\.\s*(\d{1,18})(?:\s*:\s*(\d{1,18}))?")
_MOST_VALUES = 10_000
_TEXT = r"\s*\d+\s*(\.\.\s*\d+\s*(:\s*\d+\s*)?)?"
_NUMBERS = f"^{_TEXT}(,{_TEXT})*$"
"""Numbers and ranges as one text, as a pattern of JSON Schema."""

_TOGETHER = (*names_of(Kind.SET), "stage_layers", "data_lengths")
"""Fields whose values are lists, with items joined by `+` in a text."""
_NEVER_VARIED = tuple(
    name
    for name, field in COLUMNS.items()
    if field.kind is Kind.FLAG
    and field.role.tries is Tries.DEFAULT
    and field.role.group is not Group.LAYOUT
    and name not in ("training", "any_software")
)
_BY_PLACEMENT = ("none", "placement")
_SELECTED_BY = {
    "recompute_layers": "fit",
    "micro_batch_size": "largest",
    "stage_layers": "balanced",
}
"""Fields of which a search may select one value, with the word for it, in order of selection."""
_AS_TP = "tp"
# Other fields of a row that tries values of one.
_ALONE = {"dp": 1, "gbs": 1, "seq_len": 1, "any_software": True}
# Longer sequences are split over context-parallel ranks, too: their activations alone fill an
# accelerator (Llama 3 was trained with cp 16 at 131,072 tokens: arXiv 2407.21783, table 4).
_LONG = 32_768
# The practical space splits a sequence down to this many tokens on a rank: performance recipes of
# Megatron-Bridge and NeMo split 8,192 tokens in two, and 4,096 not at all.
_LEAST_TOKENS = 4096
# CUDA graphs of recipes for mixtures of experts, by accelerator (NVIDIA-NeMo/Megatron-Bridge
# 067f987, perf_recipes: 25.09 to 26.08).
_RECIPE_GRAPHS = {
    **dict.fromkeys(("B200", "B300"), (CudaGraphs.PARTIAL,)),
    **dict.fromkeys(("GB200", "GB300"), (CudaGraphs.PARTIAL, CudaGraphs.FULL)),
}
_GRAPH_STACKS = "Megatron-Bridge"
Scope = Literal["practical", "full"]
PRACTICAL: Scope = "practical"
FULL: Scope = "full"
SCOPES = (PRACTICAL, FULL)
SPLIT_FIELDS = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")
"""Fields of an uneven split of the layers that is not listed by stage."""
SPACE_FIELDS = tuple(COLUMNS)
"""Fields of `Strategy` in a space: all but the short form of `tp_exchange`."""

# The values to try, in order, "all", or a word of `_SELECTED_BY`; None for the default ones.
Choices = tuple[Any, ...] | str | None


def _describe(schema: dict[str, Any]) -> None:
    """Describe each field in the JSON Schema by the values of `Strategy`."""
    strategy = Strategy.model_json_schema()
    schema["$defs"], fields = strategy["$defs"], strategy["properties"]
    for name in SPACE_FIELDS:
        one = {key: item for key, item in fields[name].items() if key not in ("title", "default")}
        title = {"title": name, "description": one.pop("description", ""), "default": None}
        kinds = one.get("anyOf", [])
        one["anyOf"] = [kind for kind in kinds if LEVELS_PATTERN not in kind.values()]
        one = {key: item for key, item in one.items() if item != []}
        numbers = '"integer"' in json.dumps(one)
        text = {"type": "string", "pattern": _NUMBERS if numbers else ","}
        words = _words(name)
        if words:
            one = {"anyOf": [one, {"type": "string", "enum": words}]}
        items = {"anyOf": [one, text]} if numbers else one
        several = [{"type": "array", "items": items, "minItems": 1}, text, {"type": "null"}]
        words_for_all = [{"const": "all"}] if has_all(COLUMNS[name]) else []
        words_for_all += [{"const": _SELECTED_BY[name]}] if name in _SELECTED_BY else []
        schema["properties"][name] = title | {"anyOf": [one, *several, *words_for_all]}
    for short, name in SHORT_NAMES.items():
        schema["properties"][short] = schema["properties"][name] | {"title": short}


def _words(name: str) -> list[str]:
    """Words that a field of numbers allows."""
    if COLUMNS[name].kind is Kind.TIER:
        return list(_BY_PLACEMENT)
    if COLUMNS[name].optional:
        return ["none"]
    return [_AS_TP] if name == "etp" else []


def _values_of_fields() -> dict[str, object]:
    """A field of a space for each column of a strategy."""
    found: dict[str, object] = {}
    for name in COLUMNS:
        words = Literal["all", _SELECTED_BY[name]] if name in _SELECTED_BY else Literal["all"]
        alias = Strategy.model_fields[name].validation_alias
        found[name] = (tuple[Any, ...] | words | None, Field(default=None, validation_alias=alias))
    return found


if TYPE_CHECKING:

    class _Values(ConfigBase):
        def __getattr__(self, name: str) -> Choices: ...

else:
    _Values = create_model("_Values", __base__=ConfigBase, **_values_of_fields())


class Space(_Values):
    """Values to try for each field of `Strategy`.

    A field is one value, a list, a range of numbers (``64..512`` doubles, ``64..512:64`` steps) or
    ``all``. What a space leaves open has the values of its scope, as far as the stack can run them.

    The practical scope tries what recipes use: all degrees, chunks and micro-batches that divide
    what they split, with tensor parallelism inside the fast domain, shards of a sequence of
    4,096 tokens or more, and etp 1; recompute of the stack's own modules; reduce-scatter and
    all-gather (all-reduce if the stack has nothing else); ZeRO 1 to 3; overlapped experts; the
    stack's dispatchers; and, of Megatron-Bridge on Blackwell, the CUDA graphs of its recipes for
    mixtures of experts. What was reported broken or slower on the system is avoided unless its
    values are named.
    Where the stages cannot share the layers evenly, it tries uneven stages as the stack can
    have them: layers listed by stage, or fewer on the first and the last stage, embedding and loss
    counted as layers. The best plans get the layers of each chunk by what the layers cost.

    The full scope tries tensor parallelism across domains, every cp, etp 1 or tp, every ZeRO stage,
    dispatcher, overlap and placement and, where there is a second memory tier, offload, too. With
    `any_software` both try in addition what the stack cannot run: a wider space contains every
    narrower one.

    Every other field has the default of the stack.

    Some fields can select one value for each combination of the others:
    ``recompute_layers: fit``, ``micro_batch_size: largest`` and ``stage_layers: balanced``.

    Examples
    --------
    >>> from shardwise import Space
    >>> Space(gpus="8..32", tp=[1, 2], zero=1)
    Space(gpus=(8, 16, 32), tp=(1, 2), zero=(1,))
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)
    _model: Model | None = PrivateAttr(default=None)

    WORDS: ClassVar[tuple[str, ...]] = SCOPES

    scope: Scope = PRACTICAL
    """Values of fields that the space leaves open."""
    batch: Literal["fixed", "largest"] = "fixed"
    """Whether every strategy has exactly the global batch, or the largest multiple of its replicas
    up to it."""

    if TYPE_CHECKING:

        def __init__(self, **fields: Unpack[SpaceKeywords]) -> None: ...

    @classmethod
    def explained(
        cls, name: "str | Path | Mapping[str, Any] | Self", chain: Chain | None = None
    ) -> tuple[Self, Resolved]:
        """Load a space of a file or, by the name of its scope, one that leaves all else open."""
        scope = name.strip().lower() if isinstance(name, str) else ""
        return super().explained({"scope": scope} if scope in SCOPES else name, chain)

    @field_validator(*SPACE_FIELDS, mode="before")
    @classmethod
    def _listed(cls, written: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        if written is None or (isinstance(written, str) and written.strip().lower() == "all"):
            if written is not None and not has_all(COLUMNS[name]):
                raise InputError(
                    Fault(field=name, problem=instead_of_all(COLUMNS[name], _SELECTED_BY.get(name)))
                )
            return written if written is None else "all"
        if isinstance(written, str) and written.strip().lower() == _SELECTED_BY.get(name):
            return _SELECTED_BY[name]
        values = _items(name, written)
        if not values:
            raise ValueError("has no value to try")
        canonical, problems = [], []
        for value in values:
            try:
                canonical.append(_value(name, value))
            except ValueError as error:
                problems.append(str(error) if value == written else f"{shorten(value)}: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return tuple(v for i, v in enumerate(canonical) if v not in canonical[:i])

    @model_validator(mode="after")
    def _one_balance(self) -> Self:
        ends = ("first_stage_layers", "last_stage_layers")
        named = next((name for name in ends if getattr(self, name)), None)
        if self.stage_layers == _SELECTED_BY["stage_layers"] and named is not None:
            problem = "is chosen by stage_layers balanced; give one"
            raise InputError(Fault(field=named, problem=problem))
        return self

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON Schema of a space file."""
        schema = super().model_json_schema(*args, **options)
        _describe(schema)
        return schema

    def fixed(self, fields: Mapping[str, object], *, source: str) -> Self:
        """Return the space with other values for some fields."""
        own = {name: value for name, value in self if name in self.model_fields_set}
        others = {SHORT_NAMES.get(name, name): value for name, value in fields.items()}
        return self.validated(own | others, source=source)

    @property
    def selected(self) -> tuple[str, ...]:
        """Fields of which one value is selected, among strategies that are equal in all others.

        The fewest recomputed layers that fit, the largest micro-batch that fits, the layers of the
        stages with the shortest step.
        """
        return tuple(name for name, word in _SELECTED_BY.items() if getattr(self, name) == word)

    def settled(self, model: Model, system: System) -> Self:
        """Return the space with the default degrees of a model.

        These are every ep, with etp 1 (in the full scope 1 or tp), for models with experts; what
        recipes of the stacks recompute; and, where 2D products are requested, every tp2 and number
        of panels.
        """
        if self._model is not model:
            return self.for_model(model).settled(model, system)
        defaults: dict[str, object] = {}
        practical = self.scope == PRACTICAL
        if model.has_experts:
            defaults |= {"ep": "all"} if self.ep is None else {}
            etps = (1,) if practical and not self._splits_experts(system) else (1, _AS_TP)
            defaults |= {"etp": etps} if self.etp is None else {}
        if model.has_experts and self.cuda_graphs is None and self.graph_scope is None:
            defaults |= self._graphs(system)
        if self.quantized_weights is None:
            defaults |= self._quantized_weights(system)
        defaults |= self._grad_sync(system)
        if self.recompute_parts is None:
            defaults |= self._recompute(model, system)
        elif self.recompute_parts == "all":
            defaults["recompute_parts"] = self._recompute_presets(model, system)
        if self.offload_parts is not None and self.offload_activations is None:
            defaults |= {"offload_activations": "all"} if len(system.accelerator.memory) > 1 else {}
        if self.tp_exchange == "all" or "summa" in (self.tp_exchange or ()):
            defaults |= {"tp2": "all"} if self.tp2 is None else {}
            defaults |= {"summa_panels": "all"} if self.summa_panels is None else {}
        if self.tp_exchange == ("summa",) and self.tp_overlap is None:
            defaults["tp_overlap"] = ("stack", "none")
        return self.model_copy(update=defaults) if defaults else self

    def for_model(self, model: Model) -> Self:
        """Return the space of a model: what described software has by default may depend on it."""
        found = self.model_copy()
        found._model = model  # noqa: SLF001 - a copy of its own
        return found

    def most(self, axis: str, model: Model, system: System) -> float:
        """Largest degree of an axis that the space leaves open."""
        if self.scope == FULL or getattr(self, axis) is not None:
            return math.inf
        if axis == "tp":
            return system.fast_domain or math.inf
        if axis == "cp" and self._longest(model) < _LONG:
            return max(self._longest(model) // _LEAST_TOKENS, 1)
        return math.inf

    def _longest(self, model: Model) -> int:
        """Tokens of the longest sequence."""
        lengths = self.seq_len if isinstance(self.seq_len, tuple) else (None,)
        return max(length or model.seq_len or 1 for length in lengths)

    def _graphs(self, system: System) -> dict[str, object]:
        """CUDA graphs that recipes of the stacks capture for experts on an accelerator.

        A full step needs fused experts, and so their recipes of quantization.
        """
        stacks = self.stacks(system)
        fused = [set(self.quantization or ()) <= {*one.fused_expert_recipes} for one in stacks]
        quantized = bool(self.quantization) and all(fused)
        words = _RECIPE_GRAPHS.get(system.accelerator.name.split()[-1], ())
        graphs = [
            word
            for word in words
            if (word != CudaGraphs.FULL or quantized)
            and any(one.cuda_graphs != word for one in stacks)
        ]
        of_recipes = all(_GRAPH_STACKS in one.release for one in stacks)
        return {"cuda_graphs": (CudaGraphs.STACK, *graphs)} if graphs and of_recipes else {}

    def _quantized_weights(self, system: System) -> dict[str, object]:
        """Weights in the type of a recipe, where stacks store them so by default.

        Both are tried where some strategies of the space cannot have them.
        """
        zeros = self.values("zero", system) or ()
        if any(self.lora_rank or ()) or WeightDtype.FP32 in (self.weight_dtype or ()):
            return {}
        stored = [
            recipe in one.quantized_weight_recipes
            for one in self.stacks(system)
            for recipe in self.values("quantization", system) or ()
        ]
        if not any(stored) or not any(zeros):
            return {}
        return {"quantized_weights": (True,) if all(stored) and all(zeros) else (True, False)}

    def _grad_sync(self, system: System) -> dict[str, object]:
        """Gradients reduced with every micro-batch too, where stacks reduce them once per step.

        That takes more time to communicate, and no memory for gradients that are not sharded yet,
        which are small if only adapters are trained.
        """
        both = GradSync.STACK, GradSync.MICRO_BATCH
        named = self.grad_sync is not None or any(self.lora_rank or ())
        if named or not all(self.training or (True,)):
            return {}
        once = [one for one in self.stacks(system) if one.grad_sync == GradSync.STEP]
        runs = any(software.can_run(stack, "grad_sync", both[1]) for stack in once)
        return {"grad_sync": both} if runs else {}

    def _recompute(self, model: Model, system: System) -> dict[str, object]:
        """What recipes of the stacks recompute together, where the model has all of it."""
        bound = [s for s in self.stacks(system) if software.capabilities_of(s) is not None]
        sets = [parts for stack in bound for parts in stack.recompute_sets]
        own = [parts for parts in sets if all(is_recomputable(model, part) for part in parts)]
        if self._lifted:
            own = [*self._defaults("recompute_parts", system), *own]
            return {"recompute_parts": tuple(dict.fromkeys(own))}
        if not sets:
            return {}
        runs = [parts for parts in own if self._recomputes(model, system, parts)]
        if found := tuple(dict.fromkeys(runs)):
            return {"recompute_parts": found}
        if self.recompute is not None:
            return {}
        every = self.values("recompute", system) or ()
        return {"recompute": tuple(one for one in every if one != Recompute.SELECTIVE)}

    def _recompute_presets(self, model: Model, system: System) -> tuple[Any, ...]:
        """What any recipe recomputes, as far as the model has it and a stack can run it."""
        every = [*self._defaults("recompute_parts", system), *presets("recompute_parts")]
        has = [part for part in RecomputePart if is_recomputable(model, part)]
        own = dict.fromkeys(tuple(part for part in has if part in parts) for parts in every)
        own.pop((), None)
        runs = tuple(one for one in own if self._lifted or self._recomputes(model, system, one))
        return runs or tuple(own)

    def _recomputes(self, model: Model, system: System, parts: tuple[RecomputePart, ...]) -> bool:
        """Whether some stack recomputes these parts of a model."""
        return any(_recomputes(model, system, stack, parts) for stack in self.stacks(system))

    def _splits_experts(self, system: System) -> bool:
        """Whether some stack splits experts as tensor parallelism splits the other layers."""
        return any(stack.splits_experts_as_tp(alone=True) for stack in self.stacks(system))

    @property
    def named(self) -> frozenset[str] | None:
        """Fields whose values it names, of a space that avoids what was reported; else None.

        Naming every ep is what a space does that leaves it open.
        """
        if self.scope == FULL or self._lifted:
            return None
        own = {name: getattr(self, name) for name in SPACE_FIELDS}
        return frozenset(n for n, v in own.items() if v is not None and (n, v) != ("ep", "all"))

    def avoided(self, model: Model, system: System) -> tuple[Reported, ...]:
        """Return what its stacks can run and it avoids, as it was reported broken or slower."""
        if (named := self.named) is None:
            return ()
        settled = self.settled(model, system)
        found = {
            str(one): one
            for stack in settled.stacks(system)
            for one in software.reported_on(stack, model, system)
            if not named.issuperset(one.named)
            and all(_tries_one_of(settled, f, v, stack, system) for f, v in one.when.items())
        }
        return tuple(found.values())

    @property
    def _lifted(self) -> bool:
        """Whether the rules of software do not apply."""
        return self.any_software == (True,)

    def with_offload(self, system: System) -> Self | None:
        """Return the space with the offload that it leaves open; None if there is nothing more."""
        if self.scope == FULL:
            return None
        more = {name: "all" for name in OFFLOADS if getattr(self, name) is None}
        wider = self.model_copy(update=more)
        adds = any(wider.values(name, system) != self.values(name, system) for name in more)
        return wider if adds and len(system.accelerator.memory) > 1 else None

    def not_tried(self, model: Model, system: System) -> dict[str, tuple[Any, ...]]:
        """Return values that the stacks can run and only the full scope tries, by field.

        Of a degree that the space leaves open it is a text such as `above 8`. Flags that no scope
        varies, such as `quantized_weights`, are among them where the fields of the space give
        them an effect.
        """
        if self.scope == FULL:
            return {}
        named = {
            n: values[0]
            for n in SPACE_FIELDS
            if isinstance(values := getattr(self, n), tuple) and len(values) == 1
            if n not in ("gpus", "global_batch_size")
        }
        wide = self.model_copy(update={"scope": FULL})
        mine, theirs = self.settled(model, system), wide.settled(model, system)
        owners = model, system, *mine.stacks(system)
        known: dict[Any, tuple[Any, ...]] = known_of(dict, _with_meaning, *owners)
        found: dict[str, tuple[Any, ...]] = {}
        for field in SPACE_FIELDS:
            most = self.most(field, model, system)
            if most < max(map(float, self.gpus or (math.inf,))):
                found[field] = (f"above {most:g}",)
            if getattr(self, field) is not None or most < math.inf:
                continue
            tried, every = mine.values(field, system), theirs.values(field, system)
            if tried is not None and every is not None:
                context: dict[str, Any] = {}
                if field in _NEVER_VARIED:
                    every, context = self._that_run(field, (False, True), system), named
                more = [value for value in every if value not in tried]
                row = context | _ALONE
                key = field, *more, *row.items()
                if key not in known:
                    known[key] = _with_meaning(model, system, field, more, row)
                found[field] = known[key]
        if self._balances(system):
            found["stage_layers"] = (_SELECTED_BY["stage_layers"],)
        return {field: values for field, values in found.items() if values}

    def _balances(self, system: System) -> bool:
        """Whether a search could balance stages that share the layers evenly, and does not."""
        fields = ("stage_layers", *SPLIT_FIELDS)
        if {(1,)} & {self.pp, self.gpus} or any(getattr(self, name) is not None for name in fields):
            return False
        means = ("pp", *SPLIT_FIELDS[:2])
        stacks = self.stacks(system)
        return self._lifted or any(all(software.can_run(s, n, 2) for n in means) for s in stacks)

    def never_run(self, system: System) -> dict[str, tuple[Any, ...]]:
        """Return values that the space sets and none of its stacks lists, by field."""
        own = {name: getattr(self, name) for name in SPACE_FIELDS if name != "stack"}
        listed = {name: values for name, values in own.items() if isinstance(values, tuple)}
        each = [] if self._lifted else self.stacks(system)
        return {
            name: values
            for name, values in listed.items()
            if each and not any(software.can_run(s, name, v) for s in each for v in values)
        }

    def stacks(self, system: System) -> tuple[Stack, ...]:
        """Return the stacks of the space."""
        at = id(system), id(self._model)
        if at not in self._known_stacks:
            found = tuple(self.stack_of(one, system) for one in self.stack or (system.stack,))
            self._known_stacks[at] = (system, self._model), found
        return self._known_stacks[at][1]

    def stack_of(self, one: Any, system: System) -> Stack:
        """Return a stack of the space, of described software the most probable one.

        Fields that have one value decide on it, as those that a strategy sets.
        """
        own = {name: getattr(self, name) for name in DECIDING_FIELDS}
        stated = {n: v[0] for n, v in own.items() if isinstance(v, tuple) and len(v) == 1}
        return stack_on(one, system, self._model, stated=stated)

    @cached_property
    def _known_stacks(self) -> dict[tuple[int, int], tuple[object, tuple[Stack, ...]]]:
        """Stacks by the identity of a system and a model, which stay alive with them."""
        return {}

    def values(self, field: str, system: System) -> tuple[Any, ...] | None:
        """Return the values of a field to try, in order; None for all that divide what they split.

        A value of None is filled in by `Strategy.resolved`.
        """
        choices: Choices = getattr(self, field)
        if field == "stack":
            named = choices if isinstance(choices, tuple) else (system.stack,)
            return tuple(self.stack_of(o, system) if is_description(o) else o for o in named)
        if isinstance(choices, tuple):
            return choices
        tries = self._tries(field)
        if field in self.selected or tries is Tries.DIVISORS:
            return None
        usual = self._defaults(field, system)
        unlisted = choices is None and _is_left_to_stacks(field)
        unlisted &= not self._is_listed(field, system)  # nobody looked up what the software has
        if unlisted or tries in (Tries.DEFAULT, Tries.DEFAULT_DIVISOR):
            return usual
        if choices is None and field in OFFLOADS and len(system.accelerator.memory) == 1:
            return (False,)
        every = tries if isinstance(tries, tuple) else every_value(COLUMNS[field], system)
        found = self._that_run(field, every, system)
        if choices is None and _is_left_to_stacks(field):
            stacks = self.stacks(system)
            found = tuple(v for v in found if any(getattr(one, field) != v for one in stacks))
        return tuple(sorted(found, key=lambda value: value not in usual))

    def _tries(self, field: str) -> Tries | tuple[Any, ...]:
        """What to try of a field that is not listed."""
        role = COLUMNS[field].role
        if getattr(self, field) != "all":
            narrow = role.practical if self.scope == PRACTICAL else None
            return role.tries if narrow is None else narrow
        by_layout = role.tries in (Tries.DIVISORS, Tries.DEFAULT_DIVISOR)
        return Tries.DIVISORS if by_layout else Tries.ALL

    def _defaults(self, field: str, system: System) -> tuple[Any, ...]:
        """Defaults of a field by stack."""
        if field == "dispatcher":
            return tuple(dict.fromkeys(stack.dispatcher for stack in self.stacks(system)))
        default = COLUMNS[field].default
        own = [stack.field_defaults.get(field, default) for stack in self.stacks(system)]
        return tuple(value for i, value in enumerate(own) if value not in own[:i])

    def _is_listed(self, field: str, system: System) -> bool:
        """Whether all stacks list the values of a field that they can run."""
        bound = [software.capabilities_of(stack) for stack in self.stacks(system)]
        return all(one is not None and field in one.fields for one in bound)

    def _that_run(self, field: str, values: tuple[Any, ...], system: System) -> tuple[Any, ...]:
        """The values that some stack of the space can run; if none can, all that it can run.

        The full scope has all that the stacks list. Any software adds the values that none can run.
        """
        stacks, every = self.stacks(system), every_value(COLUMNS[field], system)
        is_wide = getattr(self, field) is None and self.scope == FULL
        wide = every if is_wide and self._is_listed(field, system) else values
        runs = [
            tuple(v for v in vs if any(software.can_run(s, field, v) for s in stacks))
            for vs in (wide, every)
        ]
        found = runs[0] or runs[1] or values
        return tuple(dict.fromkeys((*values, *found))) if self._lifted else found


def _tries_one_of(space: Space, field: str, values: Values, stack: Stack, system: System) -> bool:
    """Whether a space tries one of some values of a field, with a stack."""
    tried = space.values(field, system)
    own = {value: getattr(stack, field, value) for value in (None, "stack")}
    return tried is None or any(is_among(own.get(value, value), values) for value in tried)


@lru_cache(256)
def _recomputes(
    model: Model, system: System, stack: Stack, parts: tuple[RecomputePart, ...]
) -> bool:
    """Whether a stack recomputes these parts of a model."""
    fields = {"dp": 1, "gbs": 1, "seq_len": 1, "recompute": "selective", "stack": stack}
    row = Table.of(model, fields | {"recompute_parts": [parts]})
    faults = faults_of(model, system, row).values()
    return all(fault.field != "recompute_parts" for fault in faults)


def _is_left_to_stacks(field: str) -> bool:
    """Whether a field is a choice that stacks have a word of their own for."""
    words = COLUMNS[field].words
    return bool(words) and words[0] == "stack" and field in Stack.model_fields


def _with_meaning(
    model: Model, system: System, field: str, values: Sequence[Any], row: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Values that a model and a system allow at all, as experts allow dispatchers."""
    words = [value for value in values if value != _AS_TP]
    without = []
    if words:
        table = Table.of(model, {**row, field: words})
        for at in np.flatnonzero(first_violation(model, system, table) >= 0).tolist():
            faults = faults_of(model, system, table.take(slice(at, at + 1)))
            if any(fault.field == field for fault in faults.values()):
                without.append(words[at])
    return tuple(value for value in values if value not in without)


def _items(name: str, value: object) -> Sequence[object]:
    """The list of one value, several, or a range of numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if name in _TOGETHER and isinstance(value, (list, tuple)):
        several = any(
            item is None or isinstance(item, (list, tuple)) or "+" in str(item) for item in value
        )
        return list(value) if several else [value]
    if isinstance(value, str):
        texts = [text.strip() for text in value.split(",")]
        if name == "stack":
            return [value] if any(map(is_description, texts)) else texts
        return [item for text in texts for item in _expanded(text)]
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, Stack)):
        return [item for one in value for item in _items(name, one)]
    return [value]


def _expanded(text: str) -> list[Any]:
    """Values of a range: ``64..512`` doubles, ``64..512:64`` steps; anything else is itself."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    low, high, step = (None if part is None else int(part) for part in match.groups())
    if not low or high is None or high < low or step == 0:
        raise ValueError("a range runs from a number of at least 1 up to a larger one")
    if step is not None and (high - low) // step >= _MOST_VALUES:
        raise ValueError(f"a range has at most {_MOST_VALUES} values")
    if step is not None:
        return list(range(low, high + 1, step))
    doubled = [low]
    while doubled[-1] * 2 <= high:
        doubled.append(doubled[-1] * 2)
    return doubled


def _value(name: str, value: object) -> object:
    """One value in the form of `Strategy`."""
    word = str(value).strip().lower()
    by_placement = COLUMNS[name].kind is Kind.TIER and (value is None or word in _BY_PLACEMENT)
    if by_placement or (COLUMNS[name].optional and word == "none"):
        return None
    if name == "etp" and word == _AS_TP:
        return _AS_TP
    if value is None:
        raise ValueError("has an empty value; leave the field out for its usual ones")
    plain_only(name, value)
    try:
        return getattr(Strategy.validated({name: value}), name)
    except InputError as error:
        parts_of = [(f.field.removeprefix(name).strip("."), f.problem) for f in error.faults]
        problem = "; ".join(": ".join(part for part in parts if part) for parts in parts_of)
        raise ValueError(problem) from None
