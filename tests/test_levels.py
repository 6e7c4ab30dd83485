"""Degrees by level: what they stand for, the rule for axes without, and what contradicts them."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import InputError, estimate, estimate_many, search
from shardwise.cli import run
from shardwise.config.degrees import levels_text, with_levels_text
from shardwise.config.enums import EXTENT_AXES, PLACEMENTS
from shardwise.config.extents import axis_order
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.placement import place
from shardwise.report.tables.search import levels_note, levels_table

pytestmark = pytest.mark.any_software

MODEL = samples.model()
DEGREES = ("tp", "tp2", "cp", "dp", "pp", "ep")


def cluster(*domains: int | None, node: int = 8) -> System:
    tiers = [samples.tier(f"t{n}", domain=domain) for n, domain in enumerate(domains)]
    return samples.system(network=tiers, node=node)


def strategy(**fields: Any) -> Strategy:
    return Strategy.validated(fields)


@each_row(
    ("fields", "extents"),
    [
        # Plain axes that stand before the last one with members inside are inside, others not.
        ({"tp": 8, "dp": "2x16"}, "tp=8+dp=2"),
        ({"tp": 8, "pp": 4, "dp": "2x16"}, "tp=8+dp=2"),
        ({"tp": 8, "pp": 4, "dp": "2x16", "placement": "tp-pp-dp"}, "tp=8+dp=2+pp=4"),
        ({"tp": "4x2", "dp": "2x4"}, "tp=4+dp=2"),
        ({"tp": 4, "cp": "2x2", "dp": 8, "pp": 2}, "tp=4+cp=2"),
        ({"tp": 2, "tp2": "2x2", "dp": 4}, "tp=2+tp2=2"),
        ({"tp": "2x2", "tp2": 2, "dp": 4}, "tp=2"),
        # Nothing inside: those before the first axis with levels are.
        ({"tp": 8, "dp": "1x16"}, "tp=8"),
        ({"tp": 4, "dp": "1x4", "pp": 2}, "tp=4"),
        ({"tp": "1x4", "dp": 2}, "tp=1"),
        # Replicas that follow from the accelerators.
        ({"gpus": 64, "tp": 2, "pp": "2x4"}, "tp=2+dp=4+pp=2"),
        ({"gpus": 64, "tp": "8x1"}, "tp=8"),
        # Three levels: a tier further out takes what stands before its last axis, too.
        ({"tp": 8, "dp": "2x4x4"}, "tp=8+dp=2/dp=4"),
        ({"tp": "4x2x1", "dp": "2x1x4", "pp": 2}, "tp=4+dp=2/tp=2"),
        ({"tp": "4x1x1", "cp": 2, "dp": "1x2x4", "pp": 3}, "tp=4/cp=2+dp=2"),
        ({"dp": "4x8", "ep": "2x4"}, "dp=4+ep=2"),
        ({"dp": "4x8", "ep": 8}, "dp=4"),
    ],
)
def test_levels_are_products_and_extents(fields: dict[str, Any], extents: str) -> None:
    """By hand."""
    read = strategy(**fields)
    assert read.extents == extents
    for axis in DEGREES:
        if isinstance(text := fields.get(axis), str):
            assert getattr(read, axis) == prod(map(int, text.split("x")))


def test_python_takes_levels_as_well() -> None:
    """The noun itself, and as any other strategy it is then equal to that with extents."""
    levels: Any = "2x16"
    assert Strategy(dp=levels, tp=8) == Strategy(dp=32, tp=8, extents="tp=8+dp=2")
    assert Strategy.load(Strategy(dp=levels, tp=8).to_dict()).extents == "tp=8+dp=2"


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 5])), min_size=4, max_size=4
    ),
    st.sampled_from(PLACEMENTS),
)
@examples(40)
def test_members_sit_as_the_levels_say(levels: list[tuple[int, int]], order: str) -> None:
    """Where all axes have levels the order does not matter; the placed extents are the levels."""
    by_axis = dict(zip(("tp", "cp", "dp", "pp"), levels, strict=True))
    fields: dict[str, Any] = {axis: levels_text(parts) for axis, parts in by_axis.items()}
    read = Strategy.validated(fields | {"placement": order, "gbs": 64}).resolved(MODEL)
    found = place(cluster(128, None, node=1), Table.of(MODEL, [read]))
    for axis, parts in by_axis.items():
        assert getattr(found, axis)[:, 0].tolist() == [parts[0], prod(parts)]


@given(st.sampled_from(PLACEMENTS), st.sampled_from(["tp", "cp", "dp", "pp"]))
@examples(30)
def test_plain_axes_lie_on_one_tier(order: str, axis: str) -> None:
    """Inside if they stand before the axis that is split, else across."""
    degrees = {"tp": 2, "cp": 3, "dp": 5, "pp": 7} | {axis: "2x2"}
    read = Strategy.validated(degrees | {"placement": order, "gbs": 64}).resolved(MODEL)
    found = place(cluster(1024, None, node=1), Table.of(MODEL, [read]))
    places = axis_order(order)
    for other in {*degrees} - {axis}:
        inside = places.index(other) < places.index(axis)
        whole = int(degrees[other])
        assert getattr(found, other)[:, 0].tolist() == [whole if inside else 1, whole]


@each_row(
    ("fields", "field", "problem"),
    [
        ({"dp": "2*16"}, "dp", "levels are written as 2x16"),
        ({"dp": "2X16"}, "dp", "levels are written as 2x16"),
        ({"dp": "2x0"}, "dp", "each at least 1"),
        ({"dp": "2x"}, "dp", "levels are written as 2x16"),
        ({"etp": "2x2"}, "etp", "has no levels; allowed for: tp, tp2, cp, dp, pp, ep"),
        ({"dp": "2x16", "extents": "dp=2"}, "dp", "contradicts extents; give one, or dp=32"),
        ({"dp": "2x16", "tp_tier": 0}, "dp", "contradicts tp_tier; give one, or dp=32"),
        ({"tp": "2x2", "dp": "2x2x2"}, "dp", "has 3 levels, tp 2x2 has 2; give each axis as many"),
        ({"ep": "2x4", "dp": 8}, "ep", "needs levels of tp, tp2, cp, dp or pp too"),
        ({"vpp": "2x4"}, "vpp", "must be a whole number"),
    ],
)
def test_what_contradicts_is_one_clear_line(
    fields: dict[str, Any], field: str, problem: str
) -> None:
    """With what would be allowed."""
    with pytest.raises(InputError) as error:
        Strategy.validated(fields)
    (fault,) = error.value.faults
    assert fault.field == field
    assert problem in fault.problem


def test_a_domain_that_is_too_small_says_what_would_do() -> None:
    """Nodes of 8."""
    with pytest.raises(InputError) as error:
        estimate("llama3-8b", "h100-sxm", {"tp": 8, "dp": "2x16", "gbs": 64})
    (fault,) = error.value.faults
    assert fault.problem.endswith("its 8 accelerators; allowed: tp 4x2 or dp 1x32")
    fits = estimate("llama3-8b", "h100-sxm", {"tp": 8, "dp": "1x32", "gbs": 64})
    assert fits.extents["dp"] == (1, 32)


def test_a_domain_that_must_be_filled_says_what_would_fill_it() -> None:
    """3 of 8 leave 2 idle, 2 do not."""
    tiers = [samples.tier("near", domain=8) | {"must_be_filled": True}, samples.tier("far")]
    machine = samples.system(network=tiers, node=8)
    with pytest.raises(InputError) as error:
        estimate(MODEL, machine, {"dp": "3x2", "gbs": 12})
    (fault,) = error.value.faults
    assert fault.problem == (
        "dp 3 in a domain of near must divide (and so fill) its 8 accelerators; allowed: dp 2x3"
    )


def test_flags_go_over_the_levels_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extents follow what is put over the file; all is told."""
    path = tmp_path / "plan.yaml"
    path.write_text("tp: 4\ndp: 2x4\ngbs: 64\n")
    args = ["estimate", "llama3-8b", "h100-sxm", "--strategy", str(path)]
    assert run([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["extents"] == "tp=4+dp=2"
    assert run([*args, "--tp", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["strategy"]["dp"], told["strategy"]["extents"]) == (8, "tp=2+dp=2")
    assert told["extents"]["dp"] == [2, 8]
    assert run([*args, "--dp", "16"]) == 0
    out = capsys.readouterr().out
    assert "tp 4 x dp 16" in out
    assert "in a domain" not in out


def test_overrides_of_a_strategy_without_levels_stay() -> None:
    """Extents that were given as such stay."""
    assert with_levels_text({"dp": 8, "extents": "dp=2"}, {"dp": 8}) == {"dp": 8, "extents": "dp=2"}
    assert with_levels_text({"dp": 8, "extents": "dp=2"}, {"dp": "2x4"}) == {"dp": "2x4"}


@pytest.mark.parametrize(
    "args",
    [
        ["search", "llama3-8b", "h100-sxm", "--gpus", "16", "--gbs", "64", "--fix", "dp=2x4"],
        ["sweep", "llama3-8b", "h100-sxm", "--vary", "dp=2x4", "--fixed", "--gbs", "64"],
    ],
)
def test_where_degrees_are_varied_levels_are_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """They name what to give instead."""
    assert run(args) == 2
    assert "give dp=8, and extents=all (search --levels)" in capsys.readouterr().err


SMALL: dict[str, Any] = {"gpus": 16, "seq_len": 32, "tp": [1, 4], "pp": [1, 2], "mbs": 1}
SMALL |= {"vpp": 1, "schedule": "1f1b", "zero": 1, "recompute": "none", "tp_regather": True}
SMALL |= {"tp_overlap": "none", "tp_exchange": "all_reduce", "dp_overlap": True}
SMALL |= {"fused_activation": False, "offload_weights": False}
SMALL |= {"offload_activations": False, "offload_optimizer": False}


def test_the_best_of_every_split_is_exact() -> None:
    """Against every candidate, one by one, of two batches; best first by tokens a second."""
    machine = System.load("h100-sxm")
    fields = SMALL | {"gbs": [32, 64], "mbs": [1, 2], "tp": 4}
    found = search(MODEL, machine, fields, levels=True, top=1000)
    every = search(MODEL, machine, fields, extents="all", top=1000, all_variants=True)
    assert found.levels is not None
    assert (every.feasible, found.feasible) == (len(every.best), every.feasible)
    best: dict[tuple[Any, ...], float] = {}
    for one in every.best:
        split = tuple((a, m, n // m) for a, (m, n) in one.extents.items())
        key = (one.strategy["global_batch_size"], split)
        best[key] = min(best.get(key, 1e9), one.step_time_s)
    here = {}
    for plan in found.levels:
        split = tuple((a, *map(int, plan.levels[a].split("x"))) for a in EXTENT_AXES)
        here[plan.plan.strategy["global_batch_size"], split] = plan.plan.step_time_s
    assert here == pytest.approx(best, rel=1e-12)
    rates = [plan.plan.tokens_per_s for plan in found.levels]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(found.best[0].tokens_per_s)


def test_a_plan_runs_by_its_levels() -> None:
    """What the table says, given as levels, is the same strategy."""
    found = search(MODEL, "h100-sxm", SMALL | {"gbs": 32}, levels=True, top=1000)
    assert found.levels
    for one in found.levels:
        degrees = {axis: one.levels[axis] for axis in EXTENT_AXES}
        fields = {n: v for n, v in one.plan.strategy.items() if n not in ("extents", "ep")}
        again = estimate(MODEL, "h100-sxm", fields | degrees)
        assert again.step_time_s == pytest.approx(one.plan.step_time_s, rel=1e-12)


def test_two_numbers_of_accelerators_keep_their_own_extents() -> None:
    """Cells by extents: a text is one cell, however many lists it stands in."""
    fields = SMALL | {"tp": 4, "gbs": 32, "gpus": [8, 16], "extents": "all"}
    cells = search(MODEL, "h100-sxm", fields, axes=["extents"]).cells
    told = [cell.values["extents"] for cell in cells]
    both = {
        one.strategy["extents"]
        for one in search(MODEL, "h100-sxm", fields, top=1000, all_variants=True).best
    }
    assert len(told) == len({*told})
    assert {*told} == both


def test_levels_are_a_table_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A column for each axis; what all have in common is told once."""
    args = ["search", "llama3-8b", "h100-sxm", "--gpus", "16", "--gbs", "32,64", "--levels"]
    args += ["--fix", "recompute=none,vpp=1,mbs=1,cp=1,zero=1,tp_overlap=none", "--top", "4"]
    args += ["--fix", "fused_activation=false,dp_overlap=true"]
    assert run(args) == 0
    out = capsys.readouterr().out
    assert " batch   tp   pp   dp " in out
    assert "levels: members in a domain" in out
    assert run([*args, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["levels"]
    assert len(told) == 4
    assert told[0]["levels"]["dp"].count("x") == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--axes", "tp,pp"], "axes: 'tp,pp': has no effect with --levels"),
        (["--fix", "extents=tp=4"], "extents: 'tp=4': contradicts levels, which tries all extents"),
        (["--count"], "levels: needs a search"),
    ],
)
def test_what_contradicts_a_search_by_levels_is_refused(
    more: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name."""
    args = ["search", "llama3-8b", "h100-sxm", "--gpus", "16", "--gbs", "32", "--levels"]
    assert run([*args, *more]) == 2
    assert problem in capsys.readouterr().err


def test_the_page_says_what_is_done() -> None:
    """The table of the page on levels, row by row: flags, members in a domain, groups across."""
    page = Path(__file__).parent.parent / "docs" / "reference" / "levels.md"
    rows = [line.split("|")[1:4] for line in page.read_text().splitlines() if "| `--" in line]
    assert len(rows) > 4
    for flags, inside, across in rows:
        words = flags.strip(" `").split()
        named = dict(zip([w.lstrip("-") for w in words[::2]], words[1::2], strict=True))
        read = Strategy.validated(named | {"gbs": 1024}).resolved(samples.model(samples.layer()))
        seated = dict(part.split("=") for part in str(read.extents).split("+"))
        told = dict(part.split() for part in inside.split(";")[0].strip().split(", "))
        assert {**told, "ep": seated.get("ep", "-")} == {"ep": "-", **seated}, flags
        outside = dict(part.split() for part in across.split(";")[0].strip().split(", "))
        left = {axis: getattr(read, axis) // int(seated.get(axis, 1)) for axis in EXTENT_AXES}
        assert {a: int(n) for a, n in outside.items()} == {a: n for a, n in left.items() if n > 1}


def test_a_sweep_places_the_axes_again_at_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor parallelism that is varied lies inside, as the rule says, not where 1 did."""
    args = ["sweep", "llama3-8b", "h100-sxm", "--vary", "tp=2,4", "--fixed", "--dp", "2x4"]
    assert run([*args, "--gbs", "64", "--json"]) == 0
    times = [p["best"][0]["step_time_s"] for p in json.loads(capsys.readouterr().out)["points"]]
    for tp, time in zip((2, 4), times, strict=True):
        fields = {"tp": tp, "dp": 8, "gbs": 64, "extents": f"tp={tp}+dp=2"}
        assert estimate("llama3-8b", "h100-sxm", fields).step_time_s == pytest.approx(time)
    assert run([*args, "--gpus", "64", "--gbs", "64"]) != 0
    assert "must equal tp 2 x cp 1 x pp 1 x dp 8 = 16" in capsys.readouterr().out


def test_columns_take_extents_in_place_of_levels() -> None:
    """One value for all rows, or one for each."""
    for column in ("2x4", [8, "2x4"]):
        with pytest.raises(InputError, match=r"dp: '2x4': levels are those of one strategy"):
            estimate_many(MODEL, "h100-sxm", {"dp": column, "gbs": 64})


def test_levels_of_a_base_may_be_set_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file over a file is as flags over it: extents follow from what both tell together."""
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text("tp: 4\ndp: {value: 2x8, description: replicas}\n")
    for told, extents in (
        ("tp: 2", "tp=2+dp=2"),
        ("dp: 4x4", "tp=4+dp=4"),
        ("dp: 16", None),
        ("pp: 2", "tp=4+dp=2"),
    ):
        Path("second.yaml").write_text(f"base: first.yaml\n{told}\n")
        second = Strategy.load("second.yaml")
        assert second.extents == extents
        Path("third.yaml").write_text("base: second.yaml\nglobal_batch_size: 64\n")
        assert Strategy.load("third.yaml").extents == extents
    Path("second.yaml").write_text("base: first.yaml\nglobal_batch_size: 64\n")
    given = ["estimate", "llama3-8b", "h100-sxm", "--strategy", "second.yaml", "--dp", "16"]
    assert run([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["extents"] is None


def test_the_best_of_every_split_of_experts_is_exact() -> None:
    """One text of extents is several splits of experts that are cut, and two texts may be one."""
    feed = {"experts": 8, "top_k": 1, "ffn": 64, "activation": "gelu"}
    model = samples.model(samples.layer() | {"mlp": None, "moe": feed})
    machine = samples.system(
        network=[samples.tier("near", domain=8, bandwidth=1e12), samples.tier("far")]
    )
    space = SMALL | {"gbs": 32, "tp": 2, "pp": 1, "ep": 8, "etp": [1, 2], "tp_exchange": "rs_ag"}
    found = search(model, machine, space, levels=True, top=100).levels or ()
    best: dict[tuple[tuple[int, int], ...], float] = {}
    for one in search(model, machine, space, extents="all", top=100, all_variants=True).best:
        extents = place(machine, Table.of(model, [strategy(**one.strategy)]))
        inside = [int(getattr(extents, axis)[0, 0]) for axis in DEGREES]
        split = tuple((m, one.strategy[a] // m) for a, m in zip(DEGREES, inside, strict=True))
        best[split] = min(best.get(split, 1e9), one.step_time_s)
    here = [tuple(tuple(map(int, one.levels[a].split("x"))) for a in DEGREES) for one in found]
    assert len(here) == len(set(here))
    assert {s: one.plan.step_time_s for s, one in zip(here, found, strict=True)} == best
    split = search(model, machine, space | {"etp": 2}, levels=True).levels or ()
    told = levels_table(split)
    shown = next(column for column in told.columns if column.header == "etp")
    assert [*shown.cells] == ["2"] * len(split)
    other = search(model, machine, space | {"tp_regather": False}, levels=True).levels or ()
    assert "regather no" in levels_note(other)
    assert "regather" not in levels_note(found)
