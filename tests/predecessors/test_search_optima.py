"""Our searches beside Calculon's over the same spaces: what is tried, and what is found best."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calculon_runs import DATA, RUNS, calculon_model, calculon_system, system_of
from generated import check
from naive_search import FEW
from rows import each_row, first_of
from shardwise import Estimate, Model, System, estimate, estimate_many
from shardwise.analysis.estimate_table import EstimateTable
from shardwise.arrays import gather
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.results import SearchResult
from shardwise.planning.search.run import count, search
from shardwise.planning.search.scan import merged, scan
from shardwise.planning.search.space import Space
from shardwise.predecessors.calculon.reader import strategy_fields
from shardwise.predecessors.calculon.reference import Columns, Infeasible, rows
from shardwise.predecessors.calculon.translation import calculon_case

pytestmark = pytest.mark.any_software

PAGE = Path(__file__).parents[2] / "docs/from/calculon.md"
OPTIMA = {case["id"]: case for case in json.loads((DATA / "optima.json").read_bytes())}
FITTING = ("C", "D", "E", "H")
GIB = 2.0**30
SLACK = 1 + 1e-9
TOP = 10
# In this order; each is tried here and not there, or there and not here.
DIFFERENCES = {
    "one_exchange": "one kind of collective where tp is 1, not three",
    "regather": "inputs saved or gathered again under full recompute, too",
    "offload": "activations offloaded under full recompute, too",
    "any_micro": "micro-batches of tokens that tp does not divide",
    "beyond": "more replicas than sequences, refused by rule before they are placed",
}


@cache
def inputs(name: str) -> tuple[Model, System]:
    """Its model and system as ours."""
    case = OPTIMA[name]
    return Model.load(RUNS["models"][case["model"]]), System.load(system_of(case))


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def space(name: str) -> dict[str, Any]:
    """What Calculon's search varies: whole blocks on every stage, a network for each axis."""
    limits, blocks = OPTIMA[name]["limits"], inputs(name)[0].depth
    return {
        "scope": "full",
        **FEW,
        "batch": "largest",
        "gpus": limits["num_procs"],
        "gbs": limits["max_batch_size"],
        "pp": [pp for pp in divisors(limits["num_procs"]) if blocks % pp == 0],
        **dict.fromkeys(("tp_tier", "dp_tier", "pp_tier"), "all"),
        "placement": "tp-cp-dp-pp",
        "tp_overlap": ["none", "ring", "pipe"] if limits.get("tp_overlap", True) else "none",
        "dp_overlap": "all" if limits.get("dp_overlap", True) else False,
        "fused_activation": True,
        "dtype": "fp16",
        "stack": "calculon",
    }


def options(case: dict[str, Any], tp: int, dp: int, differing: frozenset[str]) -> int:
    """How many combinations of options are tried with these degrees."""
    limits, found = case["limits"], 0
    offload = 1 if case["overrides"].get("mem2.GiB") == 0 else 2
    for recompute in ("none", "attn_only", "full"):
        redone = recompute != "full" or (tp > 1 and "regather" in differing)
        exchanges = 1 if tp == 1 and "one_exchange" in differing else 4 if redone else 3
        kept = offload if recompute != "full" or "offload" in differing else 1
        found += exchanges * offload**2 * kept
    overlaps = 3 if tp > 1 and limits.get("tp_overlap", True) else 1
    replicas = (4 if limits.get("dp_overlap", True) else 2) if dp > 1 else 1
    return found * overlaps * replicas


def tried(name: str, *differing: str) -> int:
    """Executions of Calculon's space (section 1.14), with some differences of ours."""
    case = OPTIMA[name]
    model, limits, found = calculon_model(case["model"]), case["limits"], 0
    for tp, pp in product(divisors(limits["num_procs"]), divisors(model.num_blocks)):
        dp, rest = divmod(limits["num_procs"], tp * pp)
        if rest or any(n % tp for n in (model.hidden, model.attn_heads, model.feedforward)):
            continue
        share = limits["max_batch_size"] // dp
        whole = "any_micro" in differing
        micro = [m for m in divisors(share) if whole or m * model.seq_size % tp == 0]
        micro += [1] if share == 0 and "beyond" in differing else []
        chunks = len(divisors(model.num_blocks // pp)) if pp > 1 else 1
        networks = 2 ** sum(degree > 1 for degree in (tp, pp, dp)) if share else 1
        found += len(micro) * chunks * networks * options(case, tp, dp, frozenset(differing))
    return found


def steps(name: str) -> list[int]:
    """Executions tried there, and what each difference adds to them."""
    names = list(DIFFERENCES)
    counts = [tried(name, *names[:some]) for some in range(len(names) + 1)]
    return [counts[0], *np.diff(counts).tolist()]


@each_row("name", list(OPTIMA))
def test_the_differences_of_the_spaces_add_up(name):
    """From Calculon's own number of executions to our number of strategies, difference by
    difference."""
    candidates, _ = count(*inputs(name), space(name))
    assert steps(name)[0] == OPTIMA[name]["candidates"]
    assert sum(steps(name)) == candidates


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where our best strategies stand among the executions that Calculon finds feasible."""

    result: SearchResult
    theirs: list[float | None]
    """Calculon's sample rate of each of ours, None where it has no room for it."""
    better: list[int]
    """Feasible executions there that are faster by its rate than each of ours."""
    of: int
    """Feasible executions there."""
    above: Columns
    """Those faster than our best."""
    here: EstimateTable | None
    """What we say of these."""

    @property
    def fitting(self) -> np.ndarray:
        """Those of them that fit here, too."""
        return np.zeros(0, np.bool_) if self.here is None else self.here.fits


@cache
def ranks(name: str) -> Ranks:
    """Put our best ten through Calculon, and what it finds better than the first through ours."""
    case, (model, system) = OPTIMA[name], inputs(name)
    asked: dict[str, Any] = {"objective": "tokens_per_s_per_gpu", "all_variants": True}
    result = search(model, system, space(name), top=TOP, counts=True, fits=None, **asked)
    theirs = [sample_rate(name, one) for one in result.best]
    files = calculon_model(case["model"]), calculon_system(case["system"], case["overrides"])
    chunks = [(columns, f["sample_rate"]) for columns, f in rows(*files, **case["limits"])]
    every = np.concatenate([rate for _, rate in chunks])
    first = next(rate for rate in theirs if rate is not None) * SLACK
    above = [gather(columns, np.flatnonzero(rate > first)) for columns, rate in chunks]
    executions = [columns.row(i) for columns in above for i in range(len(columns))]
    here = None
    if executions:
        given = [strategy_fields(execution) for execution in executions]
        table = {field: [row[field] for row in given] for field in given[0]}
        here = estimate_many(model, system, table)
    return Ranks(
        result=result,
        theirs=theirs,
        better=[int(np.sum(every > rate * SLACK)) for rate in theirs if rate is not None],
        of=every.size,
        above=Columns.of(executions) if executions else above[0],
        here=here,
    )


def sample_rate(name: str, ours: Estimate) -> float | None:
    """What Calculon says of one of ours; None where it refuses it."""
    try:
        case = calculon_case(RUNS["models"][OPTIMA[name]["model"]], inputs(name)[1], ours.strategy)
        return case.statistics()["sample_rate"]
    except Infeasible:
        return None


def theirs_here(name: str) -> Estimate:
    """Our estimate of Calculon's optimum."""
    return estimate(*inputs(name), OPTIMA[name]["best_execution"])


@pytest.mark.parametrize("name", first_of(2, ["D", "H", "E"]))
def test_our_best_is_among_the_first_percent_there(name):
    """By Calculon's own rate; of large spaces all ten of ours are, and among what both have room
    for at most one execution is better."""
    found = ranks(name)
    assert found.better[0] < 0.01 * found.of
    assert np.count_nonzero(found.fitting) <= 1
    if found.of > 100_000:
        assert max(found.better) < 0.01 * found.of


def test_the_same_strategy_is_best_where_nothing_may_overlap():
    """Search D, and the next best there is the next best here."""
    found = ranks("D")
    assert found.better[:2] == [0, 1]
    best = theirs_here("D")
    assert best.step_time_s == found.result.best[0].step_time_s
    assert best.fits


def test_what_is_better_in_search_c_overlaps_no_gradients():
    """In none of the few that fit in both do gradients travel beside compute, which Calculon takes
    to be slower than waiting for them; the others are too large here, or split sequences where tp
    does not divide their length."""
    found = ranks("C")
    assert found.result.best[0].strategy["dp_overlap"]
    assert 0 < np.count_nonzero(found.fitting) < 10
    assert not np.any(found.above.data_par_overlap[found.fitting])
    reasons = {found.here.reason(row) for row in np.flatnonzero(~found.fitting)}
    assert reasons == {None, "sequence"}
    overlapped = found.result.best[0].strategy
    waiting = estimate(*inputs("C"), overlapped | {"dp_overlap": False})
    assert sample_rate("C", waiting) > found.theirs[0]


@each_row("name", ["A", "C", "E", "H"])
def test_calculons_best_has_no_room_for_what_it_leaves_out(name):
    """It never gathers again the inputs of which it keeps a part, and splits gradients over the
    replicas with the optimizer state, though it exchanges them once a step; so it would fit."""
    execution = OPTIMA[name]["best_execution"]
    assert not theirs_here(name).fits
    gathered = estimate(*inputs(name), execution | {"seq_par_ag_redo": True})
    replicas = execution["data_par"] if execution["optimizer_sharding"] else 1
    memory = gathered.memory_bytes
    left_out = memory.gradients * (1 - 1 / replicas)
    assert memory.reserved - left_out < memory.capacity


def test_nothing_fits_in_search_a():
    """Even of the one that lacks least memory the gradients alone are more than there is."""
    model, system = inputs("A")
    capacity = system.accelerator.memory[0].capacity
    question = SearchQuery(model=model, system=system, capacity_bytes=capacity)
    candidates = Candidates.of(model, system, Space.validated(space("A")))
    found = merged([scan(question, box) for box in candidates.legal], question)
    assert found.feasible == 0
    assert found.rejected.keys() == {"memory"}
    nearest = candidates.strategies(found.nearest.number).strategy(0)
    assert estimate(model, system, nearest).memory_bytes.gradients > capacity


def test_what_does_not_fit_there_holds_more_than_there_is():
    """Two of ours in search H: with 2 micro-batches on 2 stages in v chunks, Calculon counts
    2 (1 + 1 / (2 v)) of them in flight."""
    found = ranks("H")
    refused = [e for e, rate in zip(found.result.best, found.theirs, strict=True) if rate is None]
    assert len(refused) == 2
    for one in refused:
        assert (one.micro_batches, one.strategy["pp"]) == (2, 2)
        assert one.strategy["vpp"] > 1
        assert one.stages[0].in_flight == 2


def spaces_table() -> list[str]:
    """By search: executions there, each difference, strategies here."""
    counts = {name: [*steps(name), sum(steps(name))] for name in OPTIMA}
    names = ["executions there", *DIFFERENCES.values(), "**strategies here**"]
    return [
        f"| {what} | "
        + " | ".join(
            f"{counts[n][i]:,}" if i in (0, len(names) - 1) else f"{counts[n][i]:+,}"
            for n in OPTIMA
        )
        + " |"
        for i, what in enumerate(names)
    ]


def ranks_table() -> list[str]:
    """By search: what is feasible, how good our best are there, and what is better."""
    lines = []
    for name, case in OPTIMA.items():
        best = theirs_here(name)
        memory = best.memory_bytes
        here = "fits, and is ours" if best.fits else f"needs {memory.reserved / GIB:.0f} GiB"
        here += "" if best.fits else f" of {memory.capacity / GIB:.0f}"
        cells = [name, f"{case['good']:,}", "0", "-", "-", "-", "-", here]
        if name in FITTING:
            found = ranks(name)
            rate = found.theirs[0] / case["best_stats"]["sample_rate"] - 1
            last = f"{100 * max(found.better) / found.of:.2g} %"
            last += "" if len(found.better) == TOP else f" ({len(found.better)} of {TOP})"
            cells[2:7] = [
                f"{found.result.feasible:,}",
                f"{100 * rate:+.1f} %",
                f"{found.better[0]:,}",
                f"{np.count_nonzero(found.fitting):,}",
                last,
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


HEADS = {
    f"| search | {' | '.join(OPTIMA)} |\n|---|{'---|' * len(OPTIMA)}\n": spaces_table,
    "| search | feasible there | feasible here | our best, by its rate | better there "
    "| of these, fit here | our ten are among the first | its best here |\n"
    "|---|---|---|---|---|---|---|---|\n": ranks_table,
}


def test_the_page_shows_both_tables():
    """The page has them as the searches give them."""
    expected = PAGE.read_text(encoding="utf-8")
    for head, lines in HEADS.items():
        before, found, rest = expected.partition(head)
        assert found
        expected = before + head + "\n".join(lines()) + rest[rest.find("\n\n") :]
    check(PAGE, expected)
