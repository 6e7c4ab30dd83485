"""NERSC's answers and searches on the command line, and options that do not go together."""

import json

import pytest

from nersc_runs import BATCH, RUNS, our_system
from shardwise import estimate
from shardwise.predecessors.nersc.tables import NERSC, ComparedRun, in_our_units
from shardwise.predecessors.nersc.translation import nersc_case

CASE = RUNS["layers"][0]
BARE = {"base": "calculon", "tp_hidden": 0, "pp_hidden": 0, "gradient_dtype": "compute"}
LINE = ["--gpus", 16384, "--tp", 8, "--pp", 64, "--gbs", BATCH, "--dtype", "fp16"]


@pytest.fixture
def b200(tmp_path):
    """Its B200 with domains of 8 as a file of ours."""
    path = tmp_path / "b200.yaml"
    our_system("B200", 8).to_file(path)
    return path


def test_reference_prints_its_own_statistics(shardwise, b200):
    """Those of a run of its code, under its names; with --ops its layers."""
    words = ["estimate", "gpt3-1t", b200, *LINE, "--reference", "nersc"]
    code, out, err = shardwise(*words, "--ops", "--json")
    answer = json.loads(out)
    layers = answer.pop("layers")
    assert (code, err) == (0, "")
    inside = {"nv_tp": 8, "nv_dp": 1, "nv_pp": 1}
    assert answer == pytest.approx(CASE["totals"] | inside, rel=1e-12)
    names = [layer["name"] for layer in (*CASE["mlp_layers"], *CASE["attention_layers"])]
    assert [layer["name"] for layer in layers] == [*names, "dp_comms", "pp_comms"]
    code, out, _ = shardwise(*words, "--ops")
    assert code == 0
    assert [name for name in (*CASE["totals"], *names) if name not in out] == []
    assert "65.6666 GB" in out


def test_a_strategy_file_and_flags_over_it_are_taken(shardwise, b200, tmp_path):
    """The same run from a file; written to a file; a fault names the file."""
    strategy, answer = tmp_path / "strategy.yaml", tmp_path / "answer.json"
    strategy.write_text("{gpus: 16384, tp: 8, pp: 32, gbs: 4096, dtype: fp16}")
    words = ["estimate", "gpt3-1t", b200, "--strategy", strategy, "--reference", "nersc"]
    code, out, _ = shardwise(*words, "--pp", 64, "--output", answer)
    assert (code, out) == (0, "")
    assert json.loads(answer.read_text())["t"] == pytest.approx(CASE["totals"]["t"], rel=1e-12)
    code, out, err = shardwise(*words, "--vpp", 2)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {strategy}: vpp: 2: NERSC's model does not know it; allowed: 1")


def test_what_does_not_fit_is_told_with_exit_code_1(shardwise, b200):
    """Its statistics stand all the same."""
    words = ["estimate", "gpt3-1t", b200, "--gpus", 64, "--tp", 8, "--gbs", 64]
    code, out, _ = shardwise(*words, "--reference", "nersc", "--json")
    answer = json.loads(out)
    assert code == 1
    assert answer["mem"] > 192
    assert (answer["infeasible"], answer["message"][:10]) == ("mem", "mem needs ")
    code, out, _ = shardwise(*words, "--reference", "nersc")
    assert code == 1
    assert f"It does not fit by NERSC's model: {answer['message']}" in " ".join(out.split())


def test_also_prints_both(shardwise, b200, monkeypatch):
    """Our estimate whole, its figures beside ours in our units."""
    monkeypatch.setenv("COLUMNS", "160")
    words = ["estimate", "gpt3-1t", b200, *LINE, "--also", "nersc"]
    code, out, _ = shardwise(*words, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["also"]["nersc"]["t"] == pytest.approx(CASE["totals"]["t"], rel=1e-12)
    code, out, _ = shardwise(*words, "--ops")
    assert code == 0
    assert [row.name for row in NERSC if row.name not in out] == []
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["acts_mem"])
    assert "53.1 GiB" in line  # 57.06 GB
    assert "gathered inputs of products are saved unsplit there" in line


def reasons(model, system, **fields):
    """What a comparison says of each statistic."""
    given = {"gbs": BATCH, "dtype": "fp16"} | fields
    case, result = nersc_case(model, system, given), estimate(model, system, given)
    run = ComparedRun(case=case, result=result, statistics=in_our_units(case.answer()))
    return {row.name: row.reason for row in run.counterparts()}, result


def test_reasons_are_those_of_the_run():
    """Only what the model has, the stack does and the strategy splits."""
    bare, result = reasons("nersc-gpt3-1t", "nersc-b200", gpus=16384, tp=8, pp=64)
    assert not any("embedding" in reason or "causal" in reason for reason in bare.values())
    assert "20 us for the full backward pass of a product" in bare["t_comp"]
    assert (bare["wts_mem"], bare["wts_grad_mem"]) == (
        "biases after a row split are not split there",
        "gradients have 4 bytes per weight here, 2 there",
    )
    assert f"overhead and stragglers take {1e3 * result.time_s['other']:.0f} ms" in bare["t"]
    full, _ = reasons("gpt3-1t", "h200-sxm", gpus=16384, tp=8, pp=64)
    assert "embedding and head communicate too" in full["t_tp_comm"]
    assert "embedding, head and loss are timed here" in full["t"]
    assert "half of them here" in full["flops_per_gpu"]
    assert full["t_comp"].startswith("0.8 of either peak there")
    assert "query, key and value have no bias there" in full["wts_mem"]
    alone, _ = reasons("gpt3-1t", "h200-sxm", gpus=64, pp=64)
    assert "gathered" not in alone["acts_mem"] + alone["t_tp_comm"]
    assert "row split" not in alone["wts_mem"]
    plain, _ = reasons("gpt3-1t", "h200-sxm", gpus=64, tp=8, pp=8, tp_overlap="none", stack=BARE)
    assert "the stack hides" not in plain["t_tp_comm"]
    assert "gradients have" not in plain["wts_grad_mem"]


def test_every_statistic_but_shares_and_placement_has_a_counterpart_in_our_units():
    """GB become bytes, TFLOP FLOP; seconds stay. On its own system they are near one another."""
    given = {"gpus": 16384, "tp": 8, "pp": 64, "gbs": BATCH, "dtype": "fp16", "stack": "calculon"}
    statistics = nersc_case("gpt3-1t", our_system("B200", 8), given).answer()
    named = {name for name in statistics if not name.endswith("_frac") and name[:3] != "nv_"}
    theirs = in_our_units(statistics)
    assert set(theirs) == named
    units = {name: theirs[name] / statistics[name] for name in named if statistics[name]}
    times = {name: unit for name, unit in units.items() if name == "t" or name.startswith("t_")}
    assert set(times.values()) == {1.0}
    assert units["flops_per_gpu"] == pytest.approx(1e12)
    assert units["mem"] == units["acts_mem"] == pytest.approx(1e9)
    tight = nersc_case("gpt3-1t", our_system("A100", 4), given | {"tp": 32, "pp": 16}).answer()
    assert in_our_units(tight)["t_mem"] == tight["t_mem"] > 0
    ours = estimate("gpt3-1t", our_system("B200", 8), given)
    value = {row.name: row.value(ours) for row in NERSC}
    assert value["flops_per_gpu"] == pytest.approx(theirs["flops_per_gpu"], rel=0.02)
    assert value["t_comp"] == pytest.approx(theirs["t_comp"], rel=0.1)
    assert value["t_tp_comm"] == pytest.approx(theirs["t_tp_comm"], rel=0.5)
    assert value["wts_mem"] == pytest.approx(theirs["wts_mem"], rel=1e-4)
    assert value["wts_grad_mem"] == pytest.approx(theirs["wts_grad_mem"], rel=1e-4)
    assert value["t"] == ours.step_time_s
    assert value["t_mem"] >= 0


def test_search_finds_its_optimum(shardwise, b200):
    """Its space and rules, its counts, its ten best."""
    top = next(t for t in RUNS["top"] if RUNS["points"][_point(t)][:4] == _asked("2d-seqp"))
    *_, gpus, candidates = RUNS["points"][_point(top)]
    words = ["search", "gpt3-1t", b200, "--reference", "nersc", "--gpus", gpus, "--gbs", BATCH]
    words += ["--method", "2d-seqp", "--domain", 8]
    code, out, err = shardwise(*words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["candidates"] == candidates
    assert 10 <= found["feasible"] < candidates
    assert found["elapsed_s"] > 0
    rates = [entry["throughput"] for entry in found["best"]]
    assert rates == pytest.approx(top["throughput"], rel=1e-12)
    both = zip(found["best"], top["configs"], strict=True)
    assert all(entry["config"].items() <= row.items() for entry, row in both)
    best = found["best"][0]
    assert best["memory"] == best["stats"]["mem"]
    assert best["throughput"] == pytest.approx(BATCH / best["stats"]["t"])
    code, out, _ = shardwise(*words, "--top", 2, "--layers")
    assert code == 0
    assert f"{candidates:,} candidates; {found['feasible']:,} are feasible" in out
    assert out.count("fusedla") == 2
    code, out, _ = shardwise(*words, "--count", "--json")
    counted = json.loads(out)
    assert (counted["candidates"], "best" in counted) == (candidates, False)


def _point(top):
    return RUNS["optima"][top["optimum"]]["point"]


def _asked(method):
    return ["gpt3_1T", method, "B200", 8]


def test_the_domain_is_the_systems_unless_it_is_given(shardwise, b200):
    """As 8 in the file; of another size, other candidates, whose layers may fill it."""
    words = ["search", "gpt3-1t", b200, "--reference", "nersc", "--gpus", 256, "--gbs", BATCH]
    words += ["--method", "1d", "--top", 1, "--json"]
    given, taken, wide = (
        json.loads(shardwise(*words, *more)[1])
        for more in ([], ["--domain", 8], ["--domain", 64, "--layers"])
    )
    assert given["domain"] == taken["domain"] == 8
    assert given["best"] == taken["best"]
    stats = wide["best"][0]["stats"]
    assert stats["nv_tp"] * stats["nv_dp"] * stats["nv_pp"] == 64


@pytest.mark.parametrize(
    ("gpus", "batch", "told"),
    [
        (4, BATCH, "every candidate needs at least 4114 GB of memory; the GPU has 192 GB"),
        (
            12,
            12,
            "no layout of the groups fills a domain of 8: it must divide 12 GPUs as the groups do",
        ),
        (7, 8, "no degrees divide 7 GPUs and 8 sequences, heads, embedding and depth"),
    ],
)
def test_a_search_without_a_feasible_run_exits_with_1_and_says_why(
    shardwise, b200, gpus, batch, told
):
    """Too large, no filled domains, nothing that divides; --ok-if-none makes it 0."""
    words = ["search", "gpt3-1t", b200, "--reference", "nersc", "--gpus", gpus, "--gbs", batch]
    words += ["--method", "1d"]
    code, out, _ = shardwise(*words)
    assert code == 1
    assert told in out
    code, out, _ = shardwise(*words, "--ok-if-none", "--json")
    found = json.loads(out)
    assert (code, found["best"], found["feasible"]) == (0, [], 0)
    assert found["reason"].startswith(told)


_NERSC = ["--reference", "nersc", "--gpus", 64, "--gbs", 64]
_WITH_METHOD = [*_NERSC, "--method", "1d"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            [*_NERSC, "--method", "2dd"],
            "method: '2dd': allowed: 1d, 2d, 2d-seqp; did you mean '2d'?",
        ),
        (
            [*_WITH_METHOD[:4], "--method", "1d"],
            "--gbs is missing: sequences per step, such as --gbs 128",
        ),
        (
            [*_WITH_METHOD, "--domain", "0"],
            "domain: '0': must be a whole number of at least 1",
        ),
        (
            [*_WITH_METHOD, "--domain", 10**12],
            "domain: '1000000000000': must be at most 2147483648",
        ),
        (
            [*_WITH_METHOD, "--dtype", "fp32"],
            "dtype: 'fp32': NERSC's model has 2 bytes per element; allowed: fp16, bf16",
        ),
        (
            [*_WITH_METHOD, "--mbs-break"],
            "--mbs-break: NERSC's model has no such option; Calculon has",
        ),
        (
            [*_WITH_METHOD, "--no-tp-overlap"],
            "--no-tp-overlap: NERSC's model has no such option; Calculon has",
        ),
        (
            [*_WITH_METHOD, "--count", "--layers"],
            "layers: needs a search; --count only counts",
        ),
        (
            ["--reference", "calculon", "--gpus", 64, "--gbs", 64, "--method", "1d"],
            "method: '1d': Calculon has no such option; NERSC's model has",
        ),
        (
            ["--gpus", 64, "--gbs", 64, "--domain", 8],
            "domain: '8': needs --reference: it selects part of the space of another model",
        ),
        (["--reference", "nersk"], "allowed: calculon, nersc, amped; did you mean 'nersc'?"),
    ],
)
def test_options_that_do_not_go_together_are_one_clear_line(shardwise, b200, words, told):
    """Exit code 2, nothing on standard output."""
    code, out, err = shardwise("search", "gpt3-1t", b200, *words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.endswith(told)
