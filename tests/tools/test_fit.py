"""Fit of figures to runs: parameters, least squares, sources left out, what the catalog says."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from catalog_fit.features import memory_table
from catalog_fit.fit import (
    SOURCE_LEVEL,
    Linear,
    MovedFigures,
    Parameter,
    fitted,
    left_out,
    linear,
    load_parameters,
    single_sources,
)
from measured_samples import run_of
from profiles import examples
from rows import each_row
from shardwise import InputError, Stack, System, catalog
from shardwise.analysis.validated_runs import validated_runs
from shardwise.arrays import Floats
from shardwise.config.stack import Stack as StackNoun
from shardwise.config.strategy import Strategy
from shardwise.validate.measured.runs import Case, Run, load_runs

pytestmark = pytest.mark.any_software

some = examples(40)
NOUNS: dict[str, Any] = {"systems": System, "stacks": Stack}
PARAMETERS = load_parameters()


def parameter(**fields: Any) -> Parameter:
    plain = {"name": "p", "of": "stacks", "names": ["plain"], "fields": ["host_launch"]}
    return Parameter.validated(plain | {"spread": 10, "source": "by hand"} | fields)


def test_a_logarithm_and_a_share_over_the_rest_are_moved() -> None:
    """exp(log 2) times as much; 1/4 of the whole over the rest is 1/3, and 2/3 is 2/5."""
    software = samples.stack(host_launch=3e-6, tp_hidden=0.25)
    moved = parameter().apply(software, np.log(2))
    assert moved.host_launch == pytest.approx(6e-6)
    assert moved == software.model_copy(update={"host_launch": moved.host_launch})
    share = parameter(fields=["tp_hidden"], scale="logit")
    assert share.apply(software, np.log(2)).tp_hidden == pytest.approx(0.4)
    for edge in (0, 1):
        assert share.apply(samples.stack(tp_hidden=edge), 1).tp_hidden == edge


def test_dotted_fields_lead_into_mappings_and_lists() -> None:
    """All of a mapping, one type of several, one tier by position; what is not there is left."""
    system = samples.system(attention={"efficiency": {64: 0.25, 128: 0.5}})
    every = parameter(of="systems", fields=["accelerator.attention.efficiency.*"])
    found = every.apply(system, np.log(1.5)).accelerator.attention
    assert found is not None
    assert found.efficiency == pytest.approx({64: 0.375, 128: 0.75})
    one = parameter(of="systems", fields=["accelerator.matmul.bf16.efficiency"])
    chip = one.apply(system, np.log(0.5)).accelerator
    assert {str(t): k.efficiency for t, k in chip.matmul.items()} == pytest.approx(
        {"bf16": 0.5, "fp16": 1, "fp32": 1}
    )
    far = parameter(of="systems", fields=["network.1.collectives.p2p.efficiency.*"])
    network = far.apply(system, np.log(0.5)).network
    assert network[0] == system.network[0]
    shares = {kind: rates.efficiency[1] for kind, rates in network[1].collectives.items()}
    assert shares == pytest.approx(dict.fromkeys(samples.KINDS, 1) | {"p2p": 0.5})
    missing = parameter(of="systems", fields=["accelerator.matmul.fp8.efficiency", "price.x"])
    assert missing.apply(system, 1) == system


@some
@given(st.floats(-0.5, 0.5), st.sampled_from(PARAMETERS))
def test_moving_back_is_as_before(offset: float, one: Parameter) -> None:
    """On an entry of the catalog that it moves; and nothing else changes."""
    noun = NOUNS[one.of].load(one.names[0])
    there = one.apply(noun, offset)
    back = one.apply(there, -offset).to_dict()
    before = flat(noun.to_dict())
    assert flat(back) == pytest.approx(before, rel=1e-9)
    changed = {place for place, value in flat(there.to_dict()).items() if value != before[place]}
    heads = {field.split(".*")[0] for field in one.fields}
    assert all(any(place.startswith(head) for head in heads) for place in changed)
    assert bool(changed) <= bool(offset)


def flat(value: Any, *path: str) -> dict[str, Any]:
    """Numbers by dotted place."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {".".join(path): value} if plain else {}
    return {k: v for key, item in items for k, v in flat(item, *path, str(key)).items()}


def test_translations_are_moved_by_what_concerns_them() -> None:
    """Each noun is made once; without an offset it is the one that was given."""
    mine = [
        parameter(),
        parameter(names=["other"]),
        parameter(of="systems", names=["sample"], fields=["accelerator.matmul.bf16.efficiency"]),
    ]
    said = Case(
        model=samples.model(),
        system=samples.system(),
        strategy=Strategy.validated({"dp": 1, "gbs": 1, "stack": samples.stack(host_launch=1e-6)}),
    )
    moved = MovedFigures(mine)
    assert moved.applying(said) == [0, 2]
    system, strategy = moved.apply(said, np.array([0.0, 1.0, 0.0]))
    assert system is said.system
    assert strategy.stack is said.strategy.stack
    offsets = np.array([1.0, 0.0, -1.0])
    first, again = moved.apply(said, offsets), moved.apply(said, offsets)
    assert first[0] is again[0]
    assert first[1].stack is again[1].stack
    assert isinstance(first[1].stack, StackNoun)
    assert first[1].stack.host_launch == pytest.approx(np.e * 1e-6)
    assert first[0].accelerator.matmul["bf16"].efficiency == pytest.approx(1 / np.e)  # type: ignore[index]


def runs_of(**sources: int) -> list[Run]:
    """So many dense runs of each source; of those that end in `moe`, of experts."""
    made = []
    for source, count in sources.items():
        kind = "moe" if source.endswith("moe") else "dense"
        made += [run_of(f"{source}-{n}", step=1.0, source=source, kind=kind) for n in range(count)]
    return made


def synthetic(
    runs: Sequence[Run], slopes: Floats, true: Floats, wrong: Floats | float = 0.0
) -> Linear:
    """Runs measured at the offsets `true`, but for what is wrong with them, seen from 0."""
    return Linear(
        runs=runs,
        offsets=np.zeros(len(true)),
        errors=-(slopes @ true) + wrong,
        derivatives=slopes,
    )


@some
@given(st.integers(0, 1000))
def test_a_fit_recovers_what_made_the_times(seed: int) -> None:
    """Where little was known before: offsets to a thousandth, all errors gone."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(-0.3, 0.3, 3)
    runs = runs_of(a=12, b=5, c=3)
    at = synthetic(runs, rng.uniform(0, 1, (20, 3)), true)
    found = fitted(at, [parameter()] * 3)
    assert found == pytest.approx(true, abs=1e-3)
    assert at.errors_at(found) == pytest.approx(0, abs=1e-3)
    assert left_out(at, [parameter()] * 3) == pytest.approx(0, abs=2e-3)


def test_what_was_known_before_holds_against_few_runs() -> None:
    """One run that is 10 % off moves a figure known to 1 % hardly, one known to 100 % wholly."""
    at = synthetic(runs_of(a=1), np.ones((1, 1)), np.array([0.1]))
    narrow, wide = (fitted(at, [parameter(spread=s)])[0] for s in (0.01, 1.0))
    assert 0 < narrow < 0.01
    assert 0.09 < wide < 0.1


def test_no_step_is_longer_than_where_derivatives_hold() -> None:
    """0.35 from where they were taken; the next round goes on from there."""
    at = synthetic(runs_of(a=5), np.ones((5, 1)), np.array([2.0]))
    assert fitted(at, [parameter()]) == pytest.approx([0.35])


def test_rows_with_faults_of_their_own_pull_less() -> None:
    """One run of twenty that is 20 times off moves the others by less than their noise."""
    wrong = np.zeros(20)
    wrong[0] = 3.0
    at = synthetic(runs_of(a=20), np.ones((20, 1)), np.array([0.0]), wrong)
    assert abs(fitted(at, [parameter()])[0]) < 0.02
    assert fitted(at, [parameter()])[0] < 0


def test_dense_runs_decide_what_both_kinds_share() -> None:
    """Runs of experts that are 30 % off move the figure of experts, not the other one."""
    runs = runs_of(a=6, moe=6)
    slopes = np.array([[1.0, 0.0]] * 6 + [[1.0, 1.0]] * 6)
    at = synthetic(runs, slopes, np.array([0.1, 0.2]))
    shared, of_experts = fitted(at, [parameter(), parameter(experts=True)])
    assert (shared, of_experts) == pytest.approx((0.1, 0.2), abs=2e-3)
    unlike = slopes.copy()
    unlike[6:, 0] = np.linspace(0, 1, 6)
    off = synthetic(runs, unlike, np.array([0.1, 0.2]), -0.3 * unlike[:, 0] * (unlike[:, 1] > 0))
    assert fitted(off, [parameter(), parameter(experts=True)])[0] == pytest.approx(0.1, abs=2e-3)


def test_a_stack_with_one_source_is_closer_to_its_framework_by_hand() -> None:
    """Of an error E the stack has the share of its variance, and its source the rest; what several
    sources have measured, and figures of systems, are not shared out."""
    runs = runs_of(a=40, b=40)
    of_a = np.array([[float(run.source == "a")] for run in runs])
    mine = [parameter(spread=0.1)]
    alone = synthetic(runs, of_a, np.array([0.1]))
    assert single_sources(runs, of_a, mine) == ("a",)
    share = 0.1**2 / (0.1**2 + SOURCE_LEVEL**2)
    assert fitted(alone, mine)[0] == pytest.approx(0.1 * share, rel=0.05)
    chip = parameter(of="systems", names=["sample"], spread=0.1)
    assert single_sources(runs, of_a, [chip]) == ()
    assert fitted(alone, [chip])[0] == pytest.approx(0.1, rel=0.05)
    both = np.ones((80, 1))
    assert single_sources(runs, both, mine) == ()
    assert fitted(synthetic(runs, both, np.array([0.1])), mine)[0] == pytest.approx(0.1, rel=0.05)


@some
@given(st.floats(-0.3, 0.3), st.sampled_from(["a", "b", "amoe"]))
def test_a_source_does_not_move_its_own_left_out_errors(wrong: float, source: str) -> None:
    """They are as far off as it is; those of the others, whoever's they are, feel it."""
    runs = runs_of(a=6, b=5, amoe=4, bmoe=4)
    experts = np.array([run.kind == "moe" for run in runs])
    rng = np.random.default_rng(7)
    slopes = np.column_stack([rng.uniform(0.5, 1, 19), np.where(experts, 1.0, 0.0)])
    off = np.where([run.source == source for run in runs], wrong, 0.0)
    noise = rng.normal(0, 0.01, 19)
    mine = [parameter(), parameter(experts=True)]
    right = synthetic(runs, slopes, np.array([0.1, -0.1]), noise)
    # Derivatives are taken where the fit of all runs has come to, the wrong ones too.
    wronged = synthetic(runs, slopes, np.array([0.1, -0.1]), noise + off)
    there = fitted(wronged, mine)
    at = Linear(runs=runs, offsets=there, errors=wronged.errors_at(there), derivatives=slopes)
    own = off != 0 if wrong else np.zeros(19, dtype=np.bool_)
    expected = left_out(right, mine)
    found = left_out(at, mine)
    assert found[own] - off[own] == pytest.approx(expected[own], abs=1e-9)


def test_a_fit_of_runs_recovers_moved_figures() -> None:
    """Published runs, with the times that the model gives when two figures are moved."""
    wanted = [run for run in load_runs() if run.grade == "A" and "torchtitan" in run.source.lower()]
    said = {place: run.case() for place, run in enumerate(wanted[:8])}
    names = sorted({one.system.name for one in said.values()})
    mine = [
        parameter(of="systems", names=names, fields=["accelerator.matmul.bf16.efficiency"]),
        parameter(
            names=["torchtitan-2024", "torchtitan-2025", "torchtitan-eager"],
            fields=["memory_traffic_factor"],
        ),
    ]
    true = np.array([-0.12, 0.2])
    timed = linear(said, wanted, mine, true, derivatives=False)
    measured = np.array([run.measured_step_time_s for run in timed.runs], dtype=np.float64)
    times = {run.id: t for run, t in zip(timed.runs, measured * np.exp(timed.errors), strict=True)}
    runs = [
        run.model_copy(
            update={"measured": run.measured.model_copy(update={"step_time_s": times.get(run.id)})}
        )
        for run in wanted[:8]
    ]
    offsets = np.zeros(2)
    for _ in range(3):
        at = linear(said, runs, mine, offsets)
        offsets = fitted(at, mine)
    assert offsets == pytest.approx(true, abs=5e-3)
    # Faster products take less time, more traffic more.
    assert (at.derivatives[:, 0] < 0).all()
    assert (at.derivatives[:, 1] > 0).all()


# --- what the catalog says ---


def test_parameters_are_of_accelerators_and_software_alone() -> None:
    """None is chosen by model, row or source: all it knows are entries and fields of these."""
    selecting = set(Parameter.model_fields) - {"name", "scale", "spread", "moved", "source"}
    assert selecting == {"of", "names", "fields", "experts"}
    models = {name.replace("-", "") for name in catalog.names("models")}
    for one in PARAMETERS:
        assert set(one.names) <= set(catalog.names(one.of)), one.name
        called = one.name.lower().replace("-", "").replace(" ", "")
        assert not any(model in called for model in models)
        for field in one.fields:
            assert field.split(".")[0] in NOUNS[one.of].model_fields


def test_no_parameter_is_there_twice() -> None:
    """Names are distinct, and no two move the same figures of the same entries."""
    assert len({one.name for one in PARAMETERS}) == len(PARAMETERS)
    moved = [(one.of, one.names, one.fields) for one in PARAMETERS]
    assert len(set(moved)) == len(moved)
    for one in PARAMETERS:
        assert len(set(one.names)) == len(one.names)
        assert len(set(one.fields)) == len(one.fields)


@each_row("one", PARAMETERS)
def test_every_parameter_moves_something(one: Parameter) -> None:
    """Each of its fields, in one of its entries at least; in each entry one field at least."""
    entries = {name: NOUNS[one.of].load(name) for name in one.names}
    for field in one.fields:
        single = one.model_copy(update={"fields": (field,)})
        assert any(single.apply(noun, 0.01) != noun for noun in entries.values()), field
    if one.of == "systems":
        assert all(one.apply(noun, 0.01) != noun for noun in entries.values())


@each_row("of", NOUNS)
def test_what_was_known_before_is_possible_too(of: str) -> None:
    """Entries with all moves taken back are still valid: no share above 1."""
    for name in catalog.names(of):
        noun = NOUNS[of].load(name)
        for one in PARAMETERS:
            if one.of == of and one.moves(name):
                noun = one.apply(noun, -one.moved)
        NOUNS[of].validated(noun.to_dict(), source=name)


def test_a_move_is_of_the_order_of_what_was_not_known() -> None:
    """Four standard deviations at most: more would be another figure, not a better one."""
    for one in PARAMETERS:
        assert abs(one.moved) <= 4 * one.spread, one.name


def test_errors_of_the_catalog_are_those_of_its_runs() -> None:
    """Each of a run of its source, once; accelerators that the catalog has; sane."""
    known = validated_runs()
    runs = {run.id: run for run in load_runs()}
    assert len(set(known.ids)) == len(known.ids) > 500
    assert all(
        runs[name].source == source for name, source in zip(known.ids, known.sources, strict=True)
    )
    assert set(known.features["accelerator"]) <= set(catalog.names("systems"))
    assert np.isfinite(known.errors).all()
    assert np.median(np.abs(known.errors)) < 0.15


def test_a_parameter_says_how_little_was_known() -> None:
    """A spread of nothing would leave nothing to fit."""
    with pytest.raises(InputError, match="spread"):
        parameter(spread=0)


def test_runs_without_a_measured_peak_do_not_count() -> None:
    """Only the names of the columns remain."""
    some = [run for run in load_runs()[:20] if run.measured_memory_gib is None]
    assert len(memory_table(some)) == 1
