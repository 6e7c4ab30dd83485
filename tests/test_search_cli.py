"""`shardwise search` as people call it."""

import json
import re
from pathlib import Path

import pytest

from remembered import remembered
from rows import each_row
from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.planning.search import bounded, pieces, scan
from shardwise.report.tables.search import reason_words
from written import record_of

pytestmark = pytest.mark.any_software

SMALL = ("search", "llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 32)
SOME = ("--fix", "offload_weights=false,offload_activations=false,offload_optimizer=false")
SOME = (*SOME, "--fix", "fused_activation=false,dp_overlap=true,placement=tp-cp-dp-pp")
FEW = (*SOME, "--fix", "cp=1,vpp=1")


@pytest.fixture(scope="module", autouse=True)
def _once():
    """The same search is made once, however many tests look at what it gives."""
    with remembered("shardwise.cli.search.search", "shardwise.cli.search.explain"):
        yield


def test_the_json_has_what_the_contract_names(shardwise):
    """Counts add up, and the best are estimates of strategies, best first."""
    code, out, err = shardwise(*SMALL, *FEW, "--top", 4, "--json")
    record = json.loads(out)

    assert code == 0
    assert record["candidates"] == record["feasible"] + sum(record["rejected"].values())
    assert record["counts_exact"] is True
    assert record["timed"] <= record["feasible"] <= record["evaluated"] <= record["candidates"]
    times = [estimate["step_time_s"] for estimate in record["best"]]
    assert len(times) == 4
    assert times == sorted(times)
    assert all(e["fits"] and e["strategy"]["gpus"] == 8 for e in record["best"])
    assert record["elapsed_s"] > 0
    assert "strategies in" in err


def test_the_best_of_a_search_is_what_estimate_says(shardwise):
    """Its figures are those of the strategy put through `estimate`."""
    _, out, _ = shardwise(*SMALL, *FEW, "--top", 4, "--json")
    best = json.loads(out)["best"][0]
    flags = []
    for field in ("tp", "pp", "vpp", "micro_batch_size", "recompute", "tp_exchange", "tp_overlap"):
        flags += [f"--{field.replace('_', '-')}", best["strategy"][field]]
    for field in ("fused_activation", "dp_overlap", "tp_regather"):
        flags.append(f"--{'' if best['strategy'][field] else 'no-'}{field.replace('_', '-')}")
    words = ("estimate", *SMALL[1:], *flags, "--zero", best["strategy"]["zero"], "--json")
    _, out, _ = shardwise(*words)

    assert json.loads(out)["step_time_s"] == best["step_time_s"]


def test_the_table_shows_the_best_and_the_reasons(shardwise):
    """One line for each of the best, what they have in common, and why others were rejected."""
    code, out, _ = shardwise(*SMALL, *FEW, "--top", 3, "--axes", "tp,pp", "--pareto")

    assert code == 0
    for words in ("llama3-8b on h100-sxm", "step time", "all of them: 8 GPUs", "not possible:"):
        assert words in out
    for words in ("Pareto front: time and memory", "Step time of the best of each", "tp 8"):
        assert words in out


@each_row(
    ("flags", "same"),
    [
        (("--tp", 2), ("--fix", "tp=2")),
        (("--tp", "2,4", "--pp", "1..4"), ("--allow", "tp=2,4", "--allow", "pp=1..4")),
        (("--mbs", 2, "--vpp", 1), ("--fix", "mbs=2,vpp=1")),
        (("--zero", 3, "--recompute", "full"), ("--fix", "zero=3,recompute=full")),
        (("--no-dp-overlap",), ("--fix", "dp_overlap=false")),
        (("--tp-overlap", "ring,none"), ("--allow", "tp_overlap=ring,none")),
        (("--no-tp-overlap",), ("--fix", "tp_overlap=none")),
        (
            ("--fused-activation", "--any-software"),
            ("--any-software", "--fix", "fused_activation=1"),
        ),
        (("--fused-activation", "both"), ("--allow", "fused_activation")),
        (("--no-fused-activation",), ("--fix", "fused_activation=false")),
        (("--sequence-parallel",), ("--fix", "tp_exchange=rs_ag")),
        (("--no-sequence-parallel",), ("--fix", "tp_exchange=all_reduce")),
        (
            ("--recompute-parts", "attention+mlp,mlp"),
            ("--allow", "recompute_parts=attention+mlp,mlp"),
        ),
    ],
)
def test_flags_of_fields_set_the_values_to_try(shardwise, flags, same):
    """As --fix does with one value, and --allow with a list."""
    counted = []
    for words in (flags, same):
        code, out, err = shardwise(*SMALL, *words, "--count", "--json")
        assert code == 0, err
        counted.append(json.loads(out))
    assert counted[0] == counted[1]


def test_counts_are_lower_bounds_unless_they_are_requested(shardwise, monkeypatch):
    """The table says so, and how few strategies were timed; the plans are the same."""
    monkeypatch.setattr(pieces, "FEW_CANDIDATES", 0)
    monkeypatch.setattr(bounded, "_FIRST_ROWS", 1)
    monkeypatch.setattr(scan, "_FIRST_TIMED", 1)  # so that limits leave out what follows
    records, tables = {}, {}
    for flag in ("--top=3", "--counts", "--no-bounds"):
        words = (*SMALL, *SOME, "--fix", "pp=1", "--top", 3, flag)
        records[flag] = json.loads(shardwise(*words, "--json")[1])
        tables[flag] = shardwise(*words)[1]
    fast, counted, timed = records.values()
    assert fast["best"] == counted["best"] == timed["best"]
    assert fast["counts_exact"] is False
    assert counted["counts_exact"] is timed["counts_exact"] is True
    for name in ("evaluated", "feasible", "rejected"):
        assert counted[name] == timed[name]
    assert fast["timed"] <= fast["feasible"] < counted["feasible"]
    assert counted["timed"] < timed["timed"] == timed["feasible"]
    total = f"{fast['candidates']:,}"
    for words in (
        f"{total} strategies, at least {fast['feasible']:,} of them feasible",
        f"{fast['timed']:,} of {total} timed; the rest cannot be among the 3 best",
        "not possible, at least:",
    ):
        assert words in tables["--top=3"]
    for flag in ("--counts", "--no-bounds"):
        assert f"{total} strategies, {counted['feasible']:,} of them feasible" in tables[flag]
        assert "timed" not in tables[flag]
        assert "at least" not in tables[flag]
    _, out, _ = shardwise(*SMALL, *SOME, "--fix", "pp=1", "--top", 3, "--axes", "tp")
    assert "timed; the rest cannot be in any of these tables" in out


def test_fixed_and_allowed_fields_narrow_the_space(shardwise):
    """Every strategy found has the value fixed, and one of those allowed."""
    words = ("--fix", "tp=2,zero=0", "--fix", "pp=1", "--allow", "mbs=1,2", "--top", 15, "--json")
    code, out, _ = shardwise(*SMALL, *words)
    found = [estimate["strategy"] for estimate in json.loads(out)["best"]]

    assert code == 0
    assert {(s["tp"], s["zero"], s["pp"]) for s in found} == {(2, 0, 1)}
    assert {s["micro_batch_size"] for s in found} <= {1, 2}


def test_flags_go_over_the_fields_of_a_space_file(shardwise, tmp_path):
    """A field that is fixed on the command line no longer has the values of the file."""
    path = tmp_path / "space.yaml"
    path.write_text("tp: [1, 2]\npp: 1\nrecompute: full\nbatch: largest\n", encoding="utf-8")
    _, out, _ = shardwise(*SMALL, "--space", path, "--fix", "tp=4", "--json")
    record = json.loads(out)

    assert record["space"]["tp"] == [4]
    assert record["space"]["recompute"] == ["full"]
    assert record["space"]["batch"] == "largest"
    assert {e["strategy"]["tp"] for e in record["best"]} == {4}


def test_several_scales_are_searched_in_one_call(shardwise):
    """Each number of GPUs with each batch has a best of its own; the first sets the scale."""
    words = ("search", "llama3-8b", "h100-sxm", "--gpus", "8..32", "--gbs", "32,64")
    code, out, _ = shardwise(*words, *FEW, "--fix", "tp=2,pp=1,recompute=full", "--json")
    scales = json.loads(out)["scales"]

    assert code == 0
    assert [(s["gpus"], s["global_batch_size"]) for s in scales] == [
        (gpus, batch) for gpus in (8, 16, 32) for batch in (32, 64)
    ]
    assert scales[0]["speedup"] == scales[0]["efficiency"] == 1.0
    assert scales[4]["speedup"] > 2
    assert all(s["best"]["strategy"]["gpus"] == s["gpus"] for s in scales)


def test_memory_that_may_not_be_used_is_not(shardwise):
    """With a smaller limit, or some memory kept free, what is found needs less."""
    _, out, _ = shardwise(*SMALL, *FEW, "--top", 4, "--json")
    free = json.loads(out)["best"][0]["memory_bytes"]["reserved"]
    for words in (("--max-memory", "40GiB"), ("--reserve", "39.65 GiB")):
        _, out, _ = shardwise(*SMALL, *FEW, *words, "--top", 1, "--json")
        record = json.loads(out)
        assert record["best"][0]["memory_bytes"]["reserved"] <= record["capacity_bytes"] < free


def test_counting_needs_no_search(shardwise):
    """`--count` tells the size that the search then has."""
    _, out, _ = shardwise(*SMALL, *FEW, "--count", "--json")
    counted = json.loads(out)
    _, out, _ = shardwise(*SMALL, *FEW, "--json")

    assert counted["candidates"] == json.loads(out)["candidates"]
    code, out, _ = shardwise(*SMALL, *FEW, "--count")
    assert code == 0
    assert f"{counted['candidates']:,} strategies" in out


def test_nothing_feasible_is_exit_code_1_with_reasons(shardwise):
    """The reasons are counted and the nearest miss is told; --ok-if-none makes it 0."""
    words = ("search", "llama3-70b", "h100-sxm", "--gpus", 8, "--gbs", 8, *FEW)
    words = (*words, "--fix", "mbs=1,recompute=full")
    code, out, _ = shardwise(*words)

    assert code == 1
    for told in (
        "nothing is feasible",
        "not possible:",
        "nearest:",
        "more GPU memory",
        "smallest number of GPUs",
    ):
        assert told in out
    assert shardwise(*words, "--ok-if-none", "--json")[0] == 0


@each_row(
    ("words", "told"),
    [
        (("--fix", "tpp=8"), "did you mean 'tp', 'pp', 'vpp', 'tp2' or 'etp'? to list them: "),
        (("--fix", "foo=8"), "'foo': no such field; to list them: shardwise schema space\n"),
        (("--allow", "foo"), "'foo': no such field; to list them: shardwise schema space\n"),
        (("--space", "big"), "'big': no such file; allowed: practical, full or a file\n"),
        (("--fix", "tp"), "must be FIELD=VALUE"),
        (("--fix", "tp=8", "--fix", "tp=4"), "set twice"),
        (("--fix", "tp=eight"), "tp: 'eight': must be a whole number"),
        (("--allow", "recompute=some"), "allowed: none, selective, full"),
        (("--objective", "speed"), "allowed: step_time"),
        (("--against", "cost"), "needs --pareto"),
        (("--pareto", "--against", "money"), "against: 'money': allowed: memory, gpus, cost"),
        (("--axes", "tp,qq"), "axes: 'qq': no such field; to list them: shardwise schema space\n"),
        (("--batch", "some"), "allowed: fixed, largest"),
        (("--max-memory", "70 gallons"), "unit 'gallons'"),
        (("--reserve", "90GiB"), "leaves nothing"),
        (("--max-memory", "0"), "max-memory: '0': must be at least 1 bytes"),
        (("--max-memory", "80"), "is its unit missing"),
        (("--fix", "tp=8", "--allow", "tp=1"), "tp is set twice"),
        (("--fix", "gpus=16"), "gpus is set twice"),
        (("--fix", "tp=4..8"), "takes one value; for several use --allow tp=4..8"),
        (("--fix", "tp=2,4"), "'tp=2,4': takes one value; for several use --allow tp=2,4"),
        (("--fix", "pp=1,tp=2,4,vpp=1"), "'tp=2,4': takes one value"),
        (("--tp", "2", "--fix", "tp=4"), "'tp=4': tp is set twice"),
        (("--tp", "two"), "--tp: 'two': must be a whole number"),
        (("--tp-overlap",), "--tp-overlap: needs a value (stack, none, ring, pipe)"),
        (("--sequence-parallel", "--tp-exchange", "rs_ag"), "contradicts --tp-exchange"),
        (("--reference", "calculon", "--tp", "2"), "tp: '2': has no effect with --reference"),
        (("--reference", "calculon", "--tp-overlap", "ring"), "has no value with --reference"),
        (("--axes", "tp,tp"), "axes: 'tp': is set twice"),
        (("--top", "2000"), "from 1 to 1000"),
        (("--explain", "tp=3", "--ok-if-none"), "no effect with --explain"),
        (("--output", "nowhere/x.json"), "no such folder"),
        (("--output", "a.json", "--save", "a.json"), "is also the file of output"),
        (
            ("--allow", "seq_len=1..9999:1", "--allow", "attention=all"),
            "combinations for each layout",
        ),
        (("--save-all",), "needs --save"),
        (("--layers",), "needs --reference"),
        (("--reference", "calculon", "--pareto"), "no effect with --reference"),
        (("--count", "--pareto"), "--count only counts"),
        (("--count", "--counts"), "--count only counts"),
        (("--explain", "tp=2", "--no-bounds"), "no effect with --explain"),
        (("--gpus", "8..4"), "a range runs"),
        (("--gpus", "0"), "at least 1"),
        (("--space", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_clear_line(shardwise, words, told):
    """Each fault names the flag or field, the value, and what is allowed; no traceback."""
    code, out, err = shardwise(*SMALL, *words)

    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_what_is_missing_is_named(shardwise):
    """Without GPUs or a batch there is nothing to search."""
    code, _, err = shardwise("search", "llama3-8b", "h100-sxm")

    assert code == 2
    assert "--gpus is missing" in err
    assert "--gbs is missing" in err


def test_a_legal_strategy_is_held_against_the_best(shardwise):
    """Its rank, where it loses time, what the best does otherwise, and the smallest changes."""
    code, out, _ = shardwise(*SMALL, *FEW, "--explain", "tp=8,recompute=full,zero=0")

    assert code == 0
    for told in ("legal, and it fits", "number", "lost in", "recompute", "of the loss"):
        assert told in out
    for told in ("Differences", "Smallest changes that make it better"):
        assert told in out


def test_a_batch_that_no_replicas_can_share_has_a_remedy(shardwise):
    """Batches that the message names, and the flag that it names, give plans."""
    job = ("search", "llama3-8b", "h100-sxm", "--gpus", 56, "--fix", "tp=4,pp=2,cp=1", "--top", 1)
    code, out, _ = shardwise(*job, "--gbs", 30)

    assert code == 1
    assert "the replicas can share --gbs 28 or 35; --batch largest takes the largest" in out
    for batch in ("28", "35"):
        assert shardwise(*job, "--gbs", batch)[0] == 0
    assert shardwise(*job, "--gbs", 30, "--batch", "largest")[0] == 0
    code, out, _ = shardwise(*job, "--gbs", 5, "--batch", "largest")
    assert "the replicas can share --gbs 7\n" in out


def test_an_illegal_strategy_is_told_its_rules_and_the_way_out(shardwise):
    """Exit code 1, the field, the value, what is allowed, and what to change."""
    code, out, _ = shardwise(*SMALL, *FEW, "--explain", "tp=8,mbs=3", "--fix", "tp_overlap=stack")

    assert code == 1
    assert "not legal" in out
    assert "must be a multiple of dp x micro_batch_size" in out
    assert "Smallest changes that make it feasible" in out
    assert "micro_batch_size" in out.split("Smallest changes")[1]


def test_a_strategy_that_is_too_big_is_told_by_how_much(shardwise):
    """The stage, the parts it holds, and what is outside the space."""
    words = ("--fix", "tp=2", "--explain", "tp=1,pp=1,mbs=4", "--max-memory", "40GiB")
    code, out, _ = shardwise(*SMALL, *FEW, *words)

    assert code == 1
    for told in (
        "does not fit: stage 0 needs",
        "too much",
        "activations",
        "outside the space: tp 1",
    ):
        assert told in out


def test_a_strategy_outside_the_space_has_no_rank(shardwise):
    """How many are better is told; more GPUs are not the same work, so no loss is."""
    code, out, _ = shardwise(*SMALL, *FEW, "--explain", "gpus=16,tp=8")

    assert code == 0
    assert "outside the space: gpus 16; tried: 8" in out
    assert "feasible strategies of the space 0 are better" in out
    assert "Smallest changes" not in out
    assert "lost in" not in out


def test_steps_of_different_work_are_compared_by_token(shardwise):
    """With several batches the default objective is the rate of a GPU."""
    words = ("search", "llama3-8b", "h100-sxm", "--gpus", 8, "--fix", "tp=2,pp=1", "--json", *FEW)
    words = (*words, "--top", 1)
    for batch, objective in (("32", "step_time"), ("32,64", "tokens_per_s_per_gpu")):
        _, out, _ = shardwise(*words, "--gbs", batch)
        assert json.loads(out)["objective"] == objective


def test_an_explanation_is_json_too(shardwise):
    """The same as a record; parts of the loss add up."""
    _, out, _ = shardwise(*SMALL, *FEW, "--explain", "tp=4,zero=2", "--json")
    record = json.loads(out)

    assert record["rank"] == record["better"] + 1
    assert sum(record["loss"]["parts_s"].values()) == pytest.approx(record["loss"]["difference_s"])


def test_every_feasible_strategy_is_saved(shardwise, tmp_path):
    """As many rows as are feasible; with --save-all, as there are candidates."""
    words = (*SMALL, *FEW, "--fix", "tp_overlap=stack,tp_exchange=rs_ag,pp=1", "--json")
    words = (*words, "--top", 1)
    for flag, counted in (((), "feasible"), (("--save-all",), "candidates")):
        path = tmp_path / f"{counted}.csv"
        code, out, _ = shardwise(*words, "--save", path, *flag)
        assert code == 0
        assert len(path.read_text().splitlines()) == json.loads(out)[counted] + 1


def test_explaining_lists_plans_too_if_requested(shardwise):
    """The explanation comes first; both are what they are alone."""
    words, explain = (*SMALL, *FEW), ("--explain", "tp=8,recompute=full,zero=0")
    explained = shardwise(*words, *explain)[1]
    listed = shardwise(*words, "--top", 3, "--pareto")[1]
    code, out, _ = shardwise(*words, *explain, "--top", 3, "--pareto")
    assert code == 0
    assert out == explained + listed

    _, out, _ = shardwise(*words, *explain, "--top", 3, "--json")
    record = json.loads(out)
    alone = record_of(shardwise(*words, *explain, "--json")[1])
    assert len(record["best"]) == 3
    assert {**record["explanation"], "elapsed_s": 0} == {**alone, "elapsed_s": 0}


def test_explaining_alone_takes_no_flags_of_a_search(shardwise):
    """One line that says so."""
    code, _, err = shardwise(*SMALL, "--explain", "tp=2", "--axes", "tp")

    assert code == 2
    assert "axes: 'tp': has no effect with --explain alone; add --top or --pareto" in err


def test_degrees_that_no_gpus_allow_are_explained_in_words(shardwise):
    """The rule, not its name: 3 divides no number of heads of the model."""
    code, out, _ = shardwise(*SMALL, "--fix", "tp=3")

    assert code == 1
    words = r"on any number of GPUs: [\d,]+ because tp does not divide the heads"
    assert re.search(words, " ".join(out.split()))


def test_memory_above_the_capacity_is_noted(shardwise):
    """The limit is the memory of the GPU."""
    words = (*SMALL, *FEW, "--fix", "tp=8,zero=1,recompute=none")
    _, out, err = shardwise(*words, "--max-memory", "600GiB")

    assert "note: --max-memory 600GiB has no effect: a GPU has 79.6 GiB" in err
    assert out == shardwise(*words)[1]


AMPED = Path(__file__).parents[1] / "docs/from/amped/config.json"
SIMUMAX = Path(__file__).parent / "data/simumax"


def test_an_amped_configuration_needs_nothing_else(shardwise):
    """Model, system, GPUs, batch, sequence and tokens are those of the file, as in `estimate`."""
    fixed = ("--tp", 8, "--mbs", 1, "--zero", 1)  # of variants a search shows the best measured
    found = json.loads(shardwise("search", AMPED, *fixed, "--top", 2, "--json")[1])
    one = json.loads(shardwise("estimate", AMPED, "--json")[1])
    work = ("gpus", "global_batch_size", "seq_len", "dtype", "stack")
    for plan in found["best"]:
        assert [plan["strategy"][name] for name in work] == [one["strategy"][name] for name in work]
    assert (found["model"], found["system"]) == (one["model"], one["system"])
    assert found["best"][0]["whole_run"]["tokens"] == one["whole_run"]["tokens"]
    assert found["imported"]["format"] == "amped"
    swept = json.loads(shardwise("sweep", AMPED, *fixed, "--vary", "hbm.bandwidth=1x", "--json")[1])
    assert swept["points"][0]["best"][0]["step_time_s"] == found["best"][0]["step_time_s"]


def test_a_search_starts_from_a_strategy_file(shardwise):
    """Its work and software stay, degrees are searched; flags override; never slower than it."""
    files = (SIMUMAX / "mixtral-8x7b.json", SIMUMAX / "b200.json")
    strategy = SIMUMAX / "ep4_pp2_dp4_mbs1_selective_recompute.json"
    words = (*files, "--strategy", strategy, "--gpus", 32, "--json")
    one = json.loads(shardwise("estimate", *words, "--dp", 16)[1])
    words = (*words, "--top", 1)
    best = json.loads(shardwise("search", *words, "--tp", 1)[1])["best"][0]
    work = ("gpus", "global_batch_size", "seq_len", "dtype", "stack")
    assert [best["strategy"][name] for name in work] == [one["strategy"][name] for name in work]
    assert best["step_time_s"] <= one["step_time_s"] * (1 + 1e-9)
    larger = json.loads(shardwise("search", *words, "--gbs", 64, "--pp", 1)[1])
    assert larger["best"][0]["strategy"]["global_batch_size"] == 64


def test_lists_of_reasons_say_what_happens():
    """Every rule has words of its own for counts of strategies, none of them its short name."""
    for rule in CONSTRAINTS:
        words = reason_words(rule.reason, "2")
        assert words.split()[1] in {"because", "do", "are", "break", "not", "avoided:"}
        assert "by the rule" not in words
