"""Facts of trainers in the catalog: words that exist, months in order, weights, names."""

import re
from collections.abc import Mapping
from itertools import pairwise

import pytest
from pydantic import TypeAdapter

from shardwise import Stack, Strategy, catalog
from shardwise.config.enums import Generation
from shardwise.config.software.record import (
    Choice,
    Condition,
    Fact,
    Trainer,
    library_releases,
    option_words,
    trainers,
)

# Words that a release and an accelerator turn into a kernel.
RESOLVED = {"attention_kernel": {"sdpa", "flash", "te"}}
# Fields that strategies and stacks do not have yet.
COMING = {
    *("attention_kernel", "loss", "compile", "expert_kernel", "weight_dtype", "master_dtype"),
    *("moment_dtype", "reduce_dtype"),
} - (Strategy.model_fields.keys() | Stack.model_fields.keys())
FAMILIES = {one.family for one in Generation}
SYSTEMS = {part for name in catalog.names("systems") for part in (name, *name.split("-"))}
PLACES = FAMILIES | {one.value for one in Generation} | SYSTEMS
CONDITIONS = {"experts", "many_experts", "attends_to_all", "windows", "says", "alone"}
each_trainer = pytest.mark.parametrize("trainer", trainers().values(), ids=list(trainers()))


def _words(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple, Mapping)) else [value]


def _conditions(trainer: Trainer) -> list[Condition]:
    choices = [one for each in trainer.unversioned.values() for one in each]
    choices += [*trainer.engines, *trainer.backends]
    return [*choices, *trainer.stacks, *trainer.facts, *trainer.refuses]


def _check_words(field: str, value: object) -> None:
    """Check that a strategy or a stack has the field, and that it may have these words."""
    if field in COMING:
        return
    of = Strategy if field in Strategy.model_fields else Stack
    known = TypeAdapter(of.__annotations__[field])
    for word in _words(value):
        if word not in RESOLVED.get(field, ()):
            known.validate_python(word)


@each_trainer
def test_facts_are_words_of_fields(trainer):
    """Fields of a strategy or a stack, with words that they have, each with a source."""
    for fact in (*trainer.facts, *trainer.refuses):
        _check_words(fact.field, fact.value)
        assert fact.source, fact
    for one in _conditions(trainer):
        for name, value in one.when.items():
            if name not in CONDITIONS:
                _check_words(name, value)


@each_trainer
def test_sources_of_probabilities(trainer):
    """They say what was counted, or that they are judgement."""
    mixtures = [(one, one.value) for one in trainer.facts if isinstance(one.value, Mapping)]
    mixtures += [(one, one.weights) for one in _conditions(trainer) if isinstance(one, Choice)]
    for one, weights in mixtures:
        counted = re.search(r"\bin \d+ of \d+ ", one.source)
        assert len(weights) == 1 or counted or "judgement" in one.source, one


@each_trainer
def test_conditions_are_of_places_and_months_in_order(trainer):
    """Months do not end before they begin, and accelerators are those of the catalog."""
    for one in _conditions(trainer):
        assert not one.until or one.since <= one.until, one
        assert set(one.on) <= PLACES, one
    assert set(trainer.on) <= FAMILIES


@each_trainer
def test_trainers_refer_to_what_exists(trainer):
    """Stacks of the catalog, and other trainers."""
    assert {name for one in trainer.stacks for name in one.stack} <= set(catalog.names("stacks"))
    others = {name for choice in trainer.backends for name in choice.weights}
    assert others | {trainer.based_on or trainer.name} <= set(trainers())


@each_trainer
def test_weights_add_up_to_one(trainer):
    """Weights of engines, back ends and facts with several values."""
    choices = [one.weights for one in _conditions(trainer) if isinstance(one, Choice)]
    facts = [one.value for one in trainer.facts if isinstance(one, Fact)]
    for weights in (*choices, *(value for value in facts if isinstance(value, Mapping))):
        assert sum(weights.values()) == pytest.approx(1), weights


@each_trainer
def test_each_month_has_engines(trainer):
    """A trainer, or one that it is based on or its back end, has an engine in any month."""
    if trainer.engines and not any(one.since or one.until for one in trainer.engines):
        return
    months = sorted(one.since for one in trainer.engines)
    assert not trainer.engines or months[0] == ""
    for before, after in pairwise(trainer.engines):
        assert after.since > before.until, trainer.name
        assert int(after.since[-2:]) == int(before.until[-2:]) % 12 + 1


def test_one_trainer_has_a_name():
    """No two trainers of one family of accelerators have the same name."""
    owner: dict[tuple[str, str], str] = {}
    for trainer in trainers().values():
        for name in {each.replace(" ", "-") for each in (trainer.name, *trainer.names)}:
            for family in trainer.on:
                assert owner.setdefault((name, family), trainer.name) == trainer.name, name


@pytest.mark.parametrize("name", library_releases())
def test_releases_of_libraries_are_in_order(name):
    """A newer release is not of an earlier month."""
    months = list(library_releases()[name].values())
    assert months == sorted(months)


def test_words_of_descriptions_are_words_of_fields():
    """What descriptions may state are words of fields too."""
    for option in option_words()["options"]:
        _check_words(option["field"], option["value"])
