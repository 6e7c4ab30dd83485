"""Which cluster: the cheapest in time, the fastest within a budget, and the front between both."""

import json
import math

import pytest

from profiles import sampled
from remembered import remembered
from rows import each_row
from shardwise import InputError, System, choose_cluster, search
from shardwise.planning.search.run import best_by_size
from shardwise.planning.search.space import Space
from shardwise.report.charts.cluster import cluster_front
from shardwise.units import parse_money, parse_time_span

SYSTEMS = ("h100-sxm", "a100-80gb-sxm", "b200-sxm")
FEW = {
    "tp": [1, 2],
    "pp": 1,
    "zero": 1,
    "recompute": "none",
    "mbs": 1,
    "tp_overlap": "stack",
    "tp_exchange": "rs_ag",
    "tp_regather": True,
    "dp_overlap": True,
    "fused_activation": False,
    "placement": "tp-cp-dp-pp",
    "offload_weights": False,
    "offload_activations": False,
    "offload_optimizer": False,
}
SIZES = {"gpus": [64, 128], "gbs": [256, 512]}
FAILING = {"accelerator_mtbf": "20000 h", "checkpoint_time": "60 s", "restart_time": "10 min"}


def choice(**words):
    """A choice for Llama 3 8B on 100 billion tokens."""
    asked = {"systems": SYSTEMS, "tokens": "100B", "space": FEW} | SIZES | words
    return choose_cluster("llama3-8b", **asked)


@pytest.fixture(scope="module", autouse=True)
def _once():
    """The same system with the same sizes is searched once: limits and prices come after it."""
    with remembered("shardwise.planning.cluster_choice.best_by_size"):
        yield


@pytest.fixture(scope="module")
def every():
    """Without limits, with failures; `within` sets limits, as the arguments do."""
    return choice(reliability=FAILING)


def test_one_system_needs_no_list():
    """Its name alone is a list of one."""
    assert choice(systems="h100-sxm", gpus=64, gbs=256).systems == ("h100-sxm",)


def test_each_option_is_a_search_of_its_own(every):
    """Each system, number of GPUs and batch alone: the same plan, days and dollars."""
    assert len(every.options) == 3 * 2 * 2
    where = [(one.system, one.gpus, one.global_batch_size) for one in every.options]
    assert where == [(s, g, b) for s in SYSTEMS for g in (64, 128) for b in (256, 512)]
    run = {"tokens": "100B", "reliability": FAILING}
    for one in sampled(every.options, 7):
        fields = FEW | {"gpus": one.gpus, "gbs": one.global_batch_size}
        alone = search("llama3-8b", one.system, fields, top=1, run=run, counts=True)
        best = alone.best[0]
        assert one.plan.strategy == best.strategy
        assert one.days == best.whole_run.goodput.days.expected
        assert one.usd == best.whole_run.goodput.usd.expected
        assert one.software == best.software
        assert one.candidates == alone.candidates
        assert one.feasible == alone.feasible
        assert one.rejected == alone.rejected
        assert one.counts_exact
        assert one.problem is None


def test_of_a_large_space_what_is_too_slow_is_not_counted_in_full() -> None:
    """The best of each size is that of a search that counts all; its counts are lower bounds."""
    fields = {"gpus": [32, 64], "gbs": 512, "vpp": "all", "pp": [1, 2, 4]}
    found = choose_cluster("qwen3-30b-a3b", "h100-sxm", tokens="100B", **fields)
    for one in found.options:
        at = fields | {"gpus": one.gpus}
        alone = search("qwen3-30b-a3b", "h100-sxm", at, top=1, counts=True, objective="step_time")
        assert one.plan is not None
        assert one.plan.step_time_s == alone.best[0].step_time_s
        assert one.candidates == alone.candidates
        assert not one.counts_exact
        assert 0 < one.feasible < alone.feasible
        memory = {"memory", "may_not_fit"}
        assert {n: k for n, k in one.rejected.items() if n not in memory} == {
            n: k for n, k in alone.rejected.items() if n not in memory
        }


@each_row("limit", [0.3, 0.6, 0.9])
def test_the_answers_are_those_of_brute_force(every, limit):
    """Of all options: the cheapest in time, the fastest in budget, what nothing beats."""
    days = sorted(one.days for one in every.options)
    usd = sorted(one.usd for one in every.options)
    deadline_s, budget = days[int(limit * len(days))] * 86400, usd[int(limit * len(usd))]
    found = every.within(deadline=deadline_s, budget=budget)
    options = found.options
    assert [one.days for one in options] == [one.days for one in every.options]
    in_time = [one for one in options if one.days * 86400 <= deadline_s]
    in_budget = [one for one in options if one.usd <= budget]
    assert [one for one in options if one.meets_deadline] == in_time
    assert [one for one in options if one.within_budget] == in_budget
    assert options[found.cheapest].usd == min(one.usd for one in in_time)
    assert options[found.fastest].days == min(one.days for one in in_budget)
    front = [
        one
        for one in options
        if not any(
            other.days <= one.days
            and other.usd <= one.usd
            and (other.days, other.usd) != (one.days, one.usd)
            for other in options
        )
    ]
    assert [options[n] for n in found.front] == sorted(front, key=lambda one: one.days)
    assert [one for one in options if one.on_front] == front
    assert found.feasible == any(one in in_budget for one in in_time)
    assert (found.nearest_in_time, found.nearest_in_budget) == (None, None)


def test_days_and_dollars_by_hand():
    """10 B tokens in steps of 256 x 8192: 4,769 steps; days x 24 x GPUs x price."""
    prices = {"h100-sxm": 2.0, "a100-80gb-sxm": 1.0}
    found = choice(systems=list(prices), tokens="10B", gpus=64, gbs=256, prices=prices)
    for one in found.options:
        assert math.ceil(10e9 / (256 * 8192)) == 4769 == one.run.steps
        days = 4769 * one.plan.step_time_s / 86400
        assert one.days == pytest.approx(days, rel=1e-12)
        assert one.usd == pytest.approx(days * 24 * 64 * prices[one.system], rel=1e-12)
        assert one.run.sources["price"] == "set for this choice"
        assert one.run.goodput is None


def test_limits_are_inclusive(every):
    """A run that ends at the deadline meets it, one that costs the budget is within it."""
    fast = min(every.options, key=lambda one: one.days)
    cheap = min(every.options, key=lambda one: one.usd)
    at = every.within(deadline=fast.days * 86400, budget=cheap.usd)
    assert at.options[at.cheapest].days == fast.days
    assert at.options[at.fastest].usd == cheap.usd
    below = {"deadline": fast.days * 86400 * (1 - 1e-9), "budget": cheap.usd * (1 - 1e-9)}
    under = every.within(**below)
    assert (under.cheapest, under.fastest, under.feasible) == (None, None, False)
    assert under.options[under.nearest_in_time].days == fast.days
    assert under.options[under.nearest_in_budget].usd == cheap.usd


def test_limits_are_arguments_too():
    """The same choice as with the limits set afterwards."""
    one = {"systems": ["h100-sxm"], "gpus": 64, "gbs": 256}
    plain, limited = choice(**one), choice(**one, deadline="1d", budget="1k")
    again = plain.within(deadline="1d", budget="1k")
    assert again.to_dict() | {"elapsed_s": 0} == limited.to_dict() | {"elapsed_s": 0}
    assert again.within().to_dict() == plain.to_dict()
    assert (again.deadline_s, again.budget_usd) == (86400, 1000)


def test_each_limit_may_be_met_but_not_both(every):
    """The fastest is not the cheapest: with its days and the other's dollars nothing is left."""
    fast, cheap = every.options[every.front[0]], every.options[every.front[-1]]
    assert fast != cheap
    found = every.within(deadline=fast.days * 86400, budget=cheap.usd)
    assert found.options[found.cheapest].usd == fast.usd
    assert found.options[found.fastest].days == cheap.days
    assert not found.feasible


def test_failures_lengthen_runs_more_on_more_gpus(every):
    """The same plans without failures; days and dollars grow by the same factor."""
    plain = choice(systems=SYSTEMS[:1])
    pairs = list(zip(every.options, plain.options, strict=False))
    assert len(pairs) == 4
    for one, other in pairs:
        assert one.plan == other.plan
        factor = one.days / other.days
        assert factor > 1
        assert one.usd / other.usd == pytest.approx(factor, rel=1e-9)
        assert one.run.goodput.goodput == pytest.approx(1 / factor, rel=1e-3)
    factors = [one.days / other.days for one, other in pairs]
    assert factors[2] > factors[0]


def test_a_run_that_never_finishes_is_listed():
    """Failures undo more than is done: no days, no dollars, the reason, and nothing feasible."""
    often = {"accelerator_mtbf": "1 h", "checkpoint_time": "3 h", "restart_time": "1 h"}
    found = choice(systems=["h100-sxm"], gpus=64, gbs=256, reliability=often, deadline="30d")
    (one,) = found.options
    assert (one.days, one.usd, one.meets_deadline) == (None, None, False)
    assert "never finishes" in one.problem
    assert one.plan is not None
    assert (found.cheapest, found.fastest, found.feasible) == (None, None, False)
    json.dumps(found.to_dict(), allow_nan=False)


def test_sizes_that_do_not_fit_the_batch_are_listed():
    """With the reason, in the order of the request."""
    found = choice(systems=["h100-sxm"], gpus=[64, 96, 7, 128], gbs=256)
    assert [one.gpus for one in found.options] == [64, 96, 7, 128]
    problems = [one.problem for one in found.options]
    assert problems[0] is problems[3] is None
    assert problems[1] == "no degrees of the space split a batch of 256 over 96 GPUs"
    assert problems[2] == "no degrees of the space split a batch of 256 over 7 GPUs"
    assert all(one.days is one.usd is one.plan is None for one in found.options[1:3])
    rounded = choice(systems=["h100-sxm"], gpus=[64, 96], gbs=256, batch="largest")
    plan = rounded.options[1].plan.strategy
    assert plan["global_batch_size"] == 256 - 256 % plan["dp"] < 256
    assert rounded.options[1].global_batch_size == 256


def test_what_does_not_fit_into_memory_says_so():
    """With the smallest number of GPUs that is feasible, if all sizes are too small."""
    words = {"space": FEW | {"tp": 1, "recompute": "none"}, "gbs": 64, "tokens": "1B"}
    found = choose_cluster("llama3-70b", ["h100-sxm"], gpus=[8, 16], **words)
    assert [one.days for one in found.options] == [None, None]
    assert "nothing fits: " in found.options[0].problem
    assert found.options[0].problem.endswith("strategies need more memory")
    assert not found.feasible
    few = {"space": FEW | {"tp": 8, "pp": [1, 2, 4]}, "gbs": 64, "tokens": "1B"}
    small = choose_cluster("llama3-70b", ["h100-sxm", "a100-40gb-sxm"], gpus=[8, 16], **few)
    alone = search("llama3-70b", "a100-40gb-sxm", few["space"], gpus=[8, 16], gbs=64)
    assert small.smallest["a100-40gb-sxm"] == alone.smallest.gpus > 16


def test_systems_without_a_price_have_days_only():
    """They may be the fastest, not the cheapest, and are refused by name with a budget."""
    words = {"systems": ["h100-sxm", "mi355x", "b300-sxm"], "gpus": 64, "gbs": 256}
    found = choice(**words)
    assert found.unpriced == ("mi355x", "b300-sxm")
    assert [one.usd is None for one in found.options] == [False, True, True]
    assert found.options[found.cheapest].system == "h100-sxm"
    assert found.options[found.fastest].system == "b300-sxm"
    assert found.front == (0,)
    with pytest.raises(InputError) as refused:
        choice(**words, budget="1M")
    named = [fault.field for fault in refused.value.faults]
    assert named == ["mi355x", "b300-sxm"]
    assert "has no price, which a budget needs" in str(refused.value)
    with pytest.raises(InputError, match="mi355x: has no price"):
        found.within(budget="1M")
    priced = choice(**words, budget="1M", prices={"mi355x": 1.0, "b300-sxm": 5.0})
    assert priced.unpriced == ()
    assert priced.options[1].usd == pytest.approx(priced.options[1].days * 24 * 64)


def test_a_batch_is_assumed_and_said(shardwise):
    """8 Mi tokens are 1,024 sequences of 8,192, or 2,048 of 4,096."""
    one = {"systems": ["h100-sxm"], "gpus": 64}
    found = choice(**one, gbs=None)
    assert found.options == choice(**one, gbs=1024).options
    assert found.notes[0].startswith("global batch 1024 x 8192 tokens, assumed (Llama 3 405B had")
    assert choice(**one, gbs=None, seq_len=4096).options[0].global_batch_size == 2048
    assert choice(**one, gbs=1024).notes == ()
    words = [word for word in WORDS if word not in ("--gbs", 256)]
    assert "global batch 1024 x 8192 tokens, assumed" in shardwise(*words)[1]


def test_systems_are_configs_too():
    """A `System` of one's own, with its price."""
    own = System.load("h100-sxm").to_dict() | {"name": "ours"}
    own["price"]["usd_per_accelerator_hour"] = 1.0
    found = choice(systems=["h100-sxm", System.validated(own)], gpus=64, gbs=256)
    theirs, ours = found.options
    assert (theirs.system, ours.system) == ("h100-sxm", "ours")
    assert ours.days == theirs.days
    assert ours.usd == pytest.approx(theirs.usd / 6.155)
    assert found.cheapest == 1


def test_one_progress_over_all_searches(monkeypatch):
    """From 0 to the number of systems, never back; an interruption leaves what is done."""
    monkeypatch.setattr("shardwise.planning.cluster_choice.best_by_size", best_by_size)
    seen = []
    choice(gpus=64, gbs=256, progress=lambda *words: seen.append(words))
    shares = [done for done, _, _ in seen]
    assert shares == sorted(shares)
    assert {total for _, total, _ in seen} == {3}
    assert shares[-1] == 3
    assert list(dict.fromkeys(name for _, _, name in seen)) == list(SYSTEMS)

    def stop(*words):
        if words[-1] == SYSTEMS[1]:
            raise KeyboardInterrupt

    found = choice(gpus=64, gbs=256, progress=stop)
    assert not found.complete
    assert [one.system for one in found.options] == [SYSTEMS[0]]


@each_row(
    ("words", "message"),
    [
        ({"systems": []}, "systems: is missing: name one or more"),
        ({"systems": "h101-sxm"}, "system: 'h101-sxm': no such system"),
        ({"systems": ["h100-sxm", "h100-sxm"]}, "systems: h100-sxm: is listed twice"),
        ({"gpus": None}, "cluster: gpus: is missing: number of GPUs, such as gpus=64"),
        ({"deadline": "30"}, "deadline: '30': must be a duration above 0 such as '30d'"),
        ({"deadline": -1}, "deadline: -1: must be a duration above 0"),
        ({"budget": "5 apples"}, "budget: '5 apples': must be an amount in USD above 0"),
        ({"budget": 0}, "budget: 0: must be an amount in USD above 0"),
        ({"prices": {"h100": 2}}, "prices: h100: is none of the systems: h100-sxm, a100-80gb-sxm"),
        ({"prices": {"h100-sxm": -2}}, "prices: h100-sxm: -2: must be at least"),
        ({"prices": {"h100-sxm": None}}, "prices: h100-sxm: null: "),
        ({"prices": 5}, "prices: 5: must be USD per accelerator-hour by system"),
        ({"tokens": "many"}, "tokens: 'many'"),
    ],
)
def test_bad_arguments_are_one_fault_each(words, message):
    """Each names the argument, the value and what is allowed."""
    with pytest.raises(InputError) as refused:
        choice(**words)
    assert message in str(refused.value)


@each_row(
    ("text", "seconds"),
    [
        ("30d", 30 * 86400),
        ("12h", 43200),
        ("6w", 6 * 604800),
        ("1.5 days", 129600),
        ("2 weeks", 1209600),
        ("1 week", 604800),
        ("90 min", 5400),
        ("90 mins", 5400),
        (60, 60),
    ],
)
def test_durations_are_read(text, seconds):
    """With a unit; a number is in seconds."""
    assert parse_time_span(text) == seconds


@each_row("text", ["30", "d", "30 m", "-1d", "0d", "1e99d", "nan d", True, None, "6W"])
def test_other_durations_are_refused(text):
    """Months are not minutes."""
    with pytest.raises(ValueError, match="must be a duration above 0"):
        parse_time_span(text)


@each_row(
    ("text", "usd"),
    [("5M", 5e6), ("250k", 250e3), ("$1.2 million", 1.2e6), ("1,200,000", 1.2e6), (7, 7.0)],
)
def test_amounts_are_read(text, usd):
    """With a suffix or without."""
    assert parse_money(text) == usd


@each_row("text", ["5 apples", "", "M", "-5M", "0", float("inf"), float("nan"), False, "5e99M"])
def test_other_amounts_are_refused(text):
    """They must be above 0 and finite."""
    with pytest.raises(ValueError, match="must be an amount in USD"):
        parse_money(text)


def test_the_chart_has_every_option_the_front_and_the_limits(every):
    """Points by system, the front as a line, a ring for each answer, a line for each limit."""
    pytest.importorskip("plotly")
    update = {"deadline_s": 86400.0 * 2, "budget_usd": 2e4}
    figure = cluster_front(every.model_copy(update=update))
    traces = {trace.name: trace for trace in figure.data}
    for system in SYSTEMS:
        own = [one for one in every.options if one.system == system]
        assert list(traces[system].x) == [one.days for one in own]
        assert list(traces[system].y) == pytest.approx([one.usd / 1e6 for one in own])
    assert list(traces["front"].x) == [every.options[n].days for n in every.front]
    assert list(traces["cheapest in time"].x) == [every.options[every.cheapest].days]
    assert list(traces["fastest in budget"].x) == [every.options[every.fastest].days]
    assert [note.text for note in figure.layout.annotations] == [
        "deadline 2 days",
        "budget $20,000",
    ]
    assert [(line.x0, line.y1) for line in figure.layout.shapes] == [(2.0, 1), (0, 0.02)]


def test_a_chart_needs_a_price():
    """Money is one of its axes."""
    pytest.importorskip("plotly")
    found = choice(systems=["mi355x"], gpus=64, gbs=256)
    with pytest.raises(InputError, match="has not an option with days and a price"):
        cluster_front(found)


NARROW = [f"{name}={value}" for name, value in FEW.items() if not isinstance(value, list)]
NARROW = ("--fix", ",".join(NARROW).replace("True", "true").replace("False", "false"))
WORDS = ("search", "llama3-8b", "--systems", "h100-sxm,a100-80gb-sxm", *NARROW)
WORDS = (*WORDS, "--fix", "tp=2", "--gpus", "64..128", "--gbs", 256, "--tokens", "100B")


def test_the_command_line_draws(shardwise, tmp_path):
    """A chart, where there is something to show."""
    pytest.importorskip("plotly")
    chart = tmp_path / "front.json"
    assert shardwise(*WORDS, "--deadline", "30d", "--plot", chart)[0] == 0
    assert json.loads(chart.read_text())["data"]
    chart = tmp_path / "front.html"
    words = [word if word != "64..128" else "96" for word in WORDS]
    code, _, err = shardwise(*words, "--plot", chart)
    assert code == 1
    assert "front.html: no chart: no option has days and a price" in err
    assert not chart.exists()


def test_the_command_line_chooses(shardwise):
    """A table for people, JSON for scripts."""
    words = (*WORDS, "--deadline", "30d", "--budget", "5M")
    code, out, _ = shardwise(*words)
    assert code == 0
    assert "cheapest within 30 days: 64 x h100-sxm" in out
    assert "fastest for up to $5 M: 128 x h100-sxm" in out
    assert "cheapest: of those that meet the deadline; fastest: of those within the budget" in out
    rows = {int(line.split()[1]): line for line in out.splitlines() if line.startswith(" h100-")}
    assert [word for word in ("cheapest", "fastest") if word in rows[64]] == ["cheapest"]
    assert [word for word in ("cheapest", "fastest") if word in rows[128]] == ["fastest"]
    assert "failures and checkpoints are unknown and left out" in out
    assert "on h100-sxm, a100-80gb-sxm" in out.split("software: ")[1].splitlines()[0]
    code, out, _ = shardwise(*words, "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["deadline_s"], record["budget_usd"]) == (30 * 86400, 5e6)
    assert [one["gpus"] for one in record["options"]] == [64, 128, 64, 128]
    assert record["options"][record["cheapest"]]["plan"]["strategy"]["gpus"] == 64


def test_nothing_in_time_is_exit_code_1_with_the_nearest(shardwise):
    """For deadline, budget, and both."""
    code, out, _ = shardwise(*WORDS, "--deadline", "1h")
    assert code == 1
    assert "nothing meets the deadline of 0.0417 days; nearest: 128 x h100-sxm" in out
    code, out, _ = shardwise(*WORDS, "--budget", "$1")
    assert code == 1
    assert "nothing is within the budget of $1; nearest: 64 x h100-sxm" in out
    code, _, err = shardwise(*WORDS, "--deadline", "1h", "--json", "--ok-if-none")
    assert code == 0
    assert "nothing meets the deadline" in err
    code, out, _ = shardwise(*(word if word != "64..128" else "96" for word in WORDS))
    assert code == 1
    assert "nothing is feasible with any system and size" in out
    assert "no degrees of the space split a batch of 256 over 96 GPUs" in out


def test_prices_of_the_command_line_replace_those_of_systems(shardwise):
    """And give one to a system without."""
    words = [word if word != "h100-sxm,a100-80gb-sxm" else "h100-sxm,mi355x" for word in WORDS]
    code, out, err = shardwise(*words, "--budget", "5M")
    assert code == 2
    assert err.startswith("error: --systems: mi355x: has no price, which a budget needs")
    code, out, _ = shardwise(*words, "--budget", "5M", "--price", "mi355x=0.5,h100-sxm=9", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["options"][record["cheapest"]]["system"] == "mi355x"
    code, out, _ = shardwise(*words)
    assert "no price, so days only: mi355x; set it with --price NAME=USD" in out


@each_row(
    ("words", "message"),
    [
        (("--deadline", "30"), "deadline: '30': must be a duration above 0 such as '30d'"),
        (("--budget", "cheap"), "budget: 'cheap': must be an amount in USD above 0 such as '5M'"),
        (("--price", "h100-sxm"), "--price: 'h100-sxm': must be NAME=USD"),
        (("--price", "h100-sxm=x"), "--price: 'x': must be a number above 0 of USD"),
        (("--pareto",), "--pareto: has no effect with --systems"),
        (("--top", 3), "--top: '3': has no effect with --systems"),
        (("--objective", "step_time"), "objective: 'step_time': has no effect with --systems"),
        (("--save", "x.csv"), "--save: 'x.csv': has no effect with --systems"),
        (("--count",), "--count: has no effect with --systems"),
        (("--reference", "calculon"), "reference: 'calculon': has no effect with --systems"),
        (("--plot", "x.gif"), "x.gif: charts are written as"),
        (("--output", "x.txt"), "x.txt: cannot be written; allowed endings"),
    ],
)
def test_bad_flags_are_one_line(shardwise, words, message):
    """Each names the flag and what is allowed."""
    code, out, err = shardwise(*WORDS, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_one_system_or_several(shardwise):
    """Both, neither, no tokens, and flags that need --systems."""
    scale = ("--gpus", 8, "--gbs", 8)
    for words, message in (
        (("h100-sxm", "--systems", "h100-sxm"), "system: 'h100-sxm': --systems is set, too"),
        ((), "Missing argument SYSTEM"),
        (("--systems", "h100-sxm"), "--tokens is missing: --systems compares training runs"),
        (("h100-sxm", "--deadline", "3d"), "deadline: '3d': needs --systems"),
        (("h100-sxm", "--price", "x=1"), "system: 'x': no such system"),
    ):
        code, out, err = shardwise("search", "llama3-8b", *words, *scale)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_a_space_may_have_one_size():
    """As with several; batches of several systems stay in order."""
    space = Space.validated(FEW | {"gpus": 64, "gbs": 256})
    one = choose_cluster("llama3-8b", ["h100-sxm"], space, tokens="100B")
    two = choice(systems=["h100-sxm"], gbs=256)
    assert one.options[0].plan == two.options[0].plan
    assert one.options[0].rejected == two.options[0].rejected
    assert (one.cheapest, one.fastest, one.front) == (0, 0, (0,))
