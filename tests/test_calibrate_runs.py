"""`shardwise calibrate SYSTEM --from-runs FILE`: the speed of a machine from some of its runs."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError, System, estimate
from shardwise.analysis.prediction_interval import error_levels
from shardwise.analysis.validated_runs import ValidatedRuns
from shardwise.validate.calibrate.from_runs import (
    calibrated_by_runs,
    level_of,
    read_run_times,
    robust_mean,
)

NAME = "h100-sxm"
ROWS = [
    {"model": "llama3-8b", "gpus": 8, "tp": 2, "gbs": 32, "mbs": 1},
    {"model": "llama3-8b", "gpus": 16, "tp": 1, "gbs": 32, "mbs": 1},
    {"model": "gpt3-175b", "gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "mbs": 1},
    {"model": "llama3-8b", "gpus": 8, "tp": 4, "gbs": 16, "mbs": 1},
]


def at(speed, name=NAME):
    system = System.load(name)
    chip = system.accelerator.model_copy(update={"speed": speed})
    return system.model_copy(update={"accelerator": chip})


def steps(system, rows=ROWS):
    strategies = [{k: v for k, v in row.items() if k != "model"} for row in rows]
    return [
        estimate(row["model"], system, strategy).step_time_s
        for row, strategy in zip(rows, strategies, strict=True)
    ]


def saved(path, rows, **common):
    path.write_text(yaml.safe_dump({"common": common, "runs": rows}))
    return path


def timed(system, factor=1.0, rows=ROWS):
    pairs = zip(rows, steps(system, rows), strict=True)
    return [{**row, "step_time_s": factor * time} for row, time in pairs]


def problems(caught):
    return [str(fault) for fault in caught.value.faults]


def test_the_level_by_hand():
    """Four runs 12 % too fast at 10 % and 8 %: 0.01 / (0.01 + 0.0064 / 4) of it counts."""
    found = level_of(np.full(4, -0.12), prior=0.1, scatter=0.08)
    assert found.mean == pytest.approx(-0.12)
    assert found.expected == pytest.approx(-0.12 * 0.01 / 0.0116)
    assert found.deviation == pytest.approx((0.01 * 0.0016 / 0.0116) ** 0.5)
    assert (found.prior, found.scatter, found.scatter_of) == (0.1, 0.08, "validated runs")


def test_runs_that_scatter_more_say_less():
    """Deviations of 0.1 to both sides, weighed by 1 / sqrt(1.25): variance 0.02 x 0.894."""
    found = level_of(np.array([-0.2, -0.1, 0.0]), prior=0.1, scatter=0.05)
    assert found.scatter_of == "these runs"
    assert found.scatter == pytest.approx((0.02 / 1.25**0.5 / 2) ** 0.5)
    assert found.expected == pytest.approx(-0.1 * 0.01 / (0.01 + found.scatter**2 / 3))


@examples(50)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9), st.floats(-1, 1), st.randoms())
def test_the_robust_mean_moves_with_its_values(values, shift, random):
    """Whatever their order; between the least and the largest."""
    values = np.array(values)
    mean = robust_mean(values)
    assert values.min() - 1e-9 <= mean <= values.max() + 1e-9
    assert robust_mean(values + shift) == pytest.approx(mean + shift, abs=1e-6)
    mixed = values.copy()
    random.shuffle(mixed)
    assert robust_mean(mixed) == pytest.approx(mean, abs=1e-9)


def test_a_run_far_off_moves_the_mean_little():
    """By the plain mean 0.18, as the median 0."""
    assert 0 < robust_mean(np.array([0, 0, 0, 0, 0.9])) < 0.07


def test_the_spreads_are_those_of_plain_runs(monkeypatch):
    """Sources off by 0.2 either way, their runs by 0.04; experts and guesses do not count."""
    random, count = np.random.default_rng(0), 400
    place = np.repeat(np.arange(count), 6)
    experts, assumed = place % 4 == 0, place % 4 == 1
    plain = ~(experts | assumed)
    levels = random.normal(0, np.where(np.arange(count) % 4 < 2, 0.6, 0.2))
    errors = levels[place] + random.normal(0, np.where(plain, 0.04, 0.4))
    names = ("stack", "software", "pair", "accelerator", "generation")
    known = ValidatedRuns(
        ids=tuple(map(str, place)),
        sources=np.array([f"source {n}" for n in place]),
        features={
            **dict.fromkeys(names, np.array(["x"] * len(place))),
            "framework": np.array(["megatron"] * len(place)),
            "experts": experts,
            "assumed": assumed,
            **dict.fromkeys(("eager", "adapters"), np.zeros(len(place), dtype=np.bool_)),
            "tuned": np.zeros(len(place), dtype=np.int64),
        },
        errors=errors,
        unseen=errors,
        accelerator_out=errors,
        fitted=plain,
    )
    monkeypatch.setattr("shardwise.analysis.prediction_interval.validated_runs", lambda: known)
    found = error_levels.__wrapped__()
    assert found.sources == count
    assert found.between == pytest.approx(0.2, rel=0.15)
    assert found.within == pytest.approx(0.04, rel=0.15)


def test_the_shipped_runs_spread_as_servers_do():
    """Servers of one type differ by 10 to 20 %; releases of one configuration by 3 to 8 %."""
    assert 0.05 < error_levels().between < 0.2
    assert 0.04 < error_levels().within < 0.12


def test_a_machine_as_its_figures_say_keeps_its_speed(tmp_path):
    """Nothing is off, so nothing is changed."""
    found = calibrated_by_runs(at(1.0), saved(tmp_path / "runs.yaml", timed(at(1.0))))
    assert found.speed == pytest.approx(1, abs=1e-3)
    assert found.speed_range[0] < 1 < found.speed_range[1]
    assert found.after.mape < 1e-3


@pytest.mark.parametrize("speed", [0.8, 1.25])
def test_the_speed_leaves_what_does_not_count(tmp_path, speed):
    """The mean of errors afterwards is that of before, less what counts; on from other speeds."""
    path = saved(tmp_path / "runs.yaml", timed(at(speed)))
    for begin in (1.0, 0.9):
        found = calibrated_by_runs(at(begin), path)
        after = [np.log(run.after_s / run.measured_s) for run in found.runs]
        left = found.level.mean - found.level.expected
        assert robust_mean(np.array(after)) == pytest.approx(left, abs=1e-3)
        assert min(begin, speed) < found.speed < max(begin, speed)
        assert abs(found.after.bias) < 0.35 * abs(found.before.bias)
        assert found.system.accelerator.speed == found.speed


def test_speeds_are_sought_about_the_present_one(tmp_path):
    """A machine that was said to be six times as fast, and is."""
    found = calibrated_by_runs(at(6.0), saved(tmp_path / "runs.yaml", timed(at(6.0))))
    assert found.speed == pytest.approx(6.0, abs=0.05)


@pytest.mark.nightly
def test_many_runs_find_the_speed(tmp_path):
    """Of 60 runs nearly all of the level counts: the machine's speed comes out."""
    rows = [{**row, "gbs": row["gbs"] * (1 + n)} for n in range(30) for row in ROWS[:2]]
    found = calibrated_by_runs(at(1.0), saved(tmp_path / "runs.yaml", timed(at(0.85), rows=rows)))
    assert len(found.runs) == 60
    assert found.speed == pytest.approx(0.85, abs=0.01)
    assert found.speed_range[1] - found.speed_range[0] < 0.05


def test_a_slower_machine_waits_as_long_for_what_is_no_product():
    """Attention and products take longer by 1 / speed; exchanges do not."""
    base, slow = (estimate("llama3-8b", at(s), {"gpus": 8, "tp": 2, "gbs": 32}) for s in (1.0, 0.5))
    assert 1 < slow.step_time_s / base.step_time_s < 2
    assert slow.comm_s["tp"].total == base.comm_s["tp"].total
    assert slow.mfu == pytest.approx(base.mfu * base.step_time_s / slow.step_time_s)


@each_row(
    ("name", "dtype"), [(NAME, "bf16"), ("simumax-b200", "bf16"), ("calculon-a100-80g", "fp16")]
)
def test_speed_is_of_attention_too(name, dtype):
    """By closed form, on tables of shapes and on curves; nothing that moves bytes is slower."""
    strategy = {"gpus": 2, "tp": 2, "gbs": 1, "dtype": dtype}
    fast, slow = (
        estimate("llama3-8b", at(s, name), strategy, operations=True).operations for s in (1.0, 0.5)
    )
    ratios = {
        (one.operation, one.phase, one.kind): other.compute_s / one.compute_s
        for one, other in zip(fast, slow, strict=True)
        if one.compute_s
    }
    assert {round(ratio, 6) for ratio in ratios.values()} == {1.0, 2.0}
    slower = {operation for (operation, *_), ratio in ratios.items() if ratio > 1.5}
    products = {"attention.qkv", "attention.out", "mlp.up", "mlp.down", "head"}
    assert slower == products | {"attention.core"}


def test_all_forms_of_a_file_say_the_same(tmp_path):
    """YAML with what is common, CSV with empty cells, TOML, a rate in place of a time; gzipped."""
    rows = timed(at(0.9))
    path = saved(tmp_path / "a.yaml", rows)
    names = ["model", "gpus", "tp", "pp", "gbs", "mbs", "step_time_s"]
    lines = [", ".join(names), *(", ".join(str(r.get(n, "")) for n in names) for r in rows)]
    (tmp_path / "b.csv").write_text("\n".join(lines))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    toml = "".join(
        "[[runs]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in r.items()) for r in rows
    )
    (tmp_path / "d.toml").write_text("common = {mbs = 1}\n" + toml)
    tokens = [{**r, "tokens_per_s_per_gpu": r["gbs"] * seq / r["step_time_s"] / r["gpus"]}
              for r, seq in zip(rows, (8192, 8192, 2048, 8192), strict=True)]  # fmt: skip
    rates = [{k: v for k, v in row.items() if k != "step_time_s"} for row in tokens]
    saved(tmp_path / "e.yaml", rates)
    system = at(1.0)
    first = read_run_times(path, system)[0]
    assert len(first) == 4
    for name in ("b.csv", "c.csv.gz", "d.toml", "e.yaml"):
        others, unusable = read_run_times(tmp_path / name, system)
        assert unusable == []
        for one, other in zip(first, others, strict=True):
            assert (other.name, other.model) == (one.name, one.model)
            assert other.strategy.resolved(one.model) == one.strategy.resolved(one.model)
            assert other.measured_s == pytest.approx(one.measured_s)


def test_runs_on_other_systems_are_listed(tmp_path):
    """Those of this system with a time; the others are listed with their reasons."""
    row = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "tp": 2, "mbs": 1}
    rows = [
        {**row, "id": f"m{n}", "gbs": n, "measured": {"step_time_s": 0.3 * n}} for n in (8, 16, 32)
    ]
    rows.append({**rows[0], "id": "other", "system": "b200-sxm"})
    rows.append({**rows[0], "id": "untimed", "measured": {"memory": 1}})
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": rows}))
    found = calibrated_by_runs(at(1.0), path)
    assert [run.name for run in found.runs] == ["m8", "m16", "m32"]
    told = {one.name: one.reason for one in found.unusable}
    assert told == {"other": "ran on b200-sxm", "untimed": "has no time of a step"}
    own = at(1.0).model_copy(update={"name": "ours"})
    assert len(read_run_times(path, own)[0]) == 3
    chip = replace_name(own, "another")
    assert read_run_times(path, chip)[0] == []


def replace_name(system, name):
    chip = system.accelerator.model_copy(update={"name": name})
    return system.model_copy(update={"accelerator": chip})


def test_fewer_than_three_runs_are_refused(tmp_path):
    """With the reason, and why others do not count."""
    rows = timed(at(1.0))
    rows[2] |= {"tp": 128, "gpus": 1024, "name": "wide"}
    del rows[3]
    path = saved(tmp_path / "runs.yaml", rows)
    with pytest.raises(InputError) as caught:
        calibrated_by_runs(at(1.0), path)
    first, second = problems(caught)
    assert first == (
        f"{path}: has 2 usable runs; at least 3 are needed: a level of one or two is mostly their "
        "own scatter and would make others worse"
    )
    assert second.startswith(f"{path}: wide: ")
    saved(path, [])
    with pytest.raises(InputError, match="holds no runs"):
        calibrated_by_runs(at(1.0), path)


def test_what_no_speed_explains_is_refused(tmp_path):
    """Runs ten times faster or slower than any machine of that type."""
    for factor, kind in ((0.05, "faster"), (20.0, "slower")):
        path = saved(tmp_path / "runs.yaml", timed(at(1.0), factor))
        with pytest.raises(InputError) as caught:
            calibrated_by_runs(at(1.0), path)
        told = f"these runs are {kind} than at any speed from 0.25 to 4: look at their strategies"
        assert problems(caught) == [f"{path}: {told} and the stack, or at the model"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": None}, "run 1: model: is missing"),
        (
            {"step_time_s": None},
            "run 1: has no measured value: step_time_s, tokens_per_s_per_gpu, memory",
        ),
        ({"tokens_per_s_per_gpu": 5.0}, "run 1: step_time_s: give one of"),
        ({"step_time_s": "fast"}, "run 1: measured: step_time_s: 'fast': "),
        ({"step_time_s": -1.0}, "run 1: measured: step_time_s: -1.0: must be "),
        ({"tpp": 2}, "run 1: tpp: unknown key; did you mean 'tp'?"),
        ({"model": "llama9-8b"}, "llama9-8b"),
    ],
)
def test_wrong_rows_are_refused(tmp_path, change, problem):
    """Each names the file, the run and the field."""
    row = {key: v for key, v in ({**ROWS[0], "step_time_s": 1.0} | change).items() if v is not None}
    path = saved(tmp_path / "runs.yaml", [row, {**ROWS[1], "step_time_s": 1.0, "mbs": 0}])
    with pytest.raises(InputError) as caught:
        read_run_times(path, at(1.0))
    told = problems(caught)
    assert problem in told[0]
    assert told[1].startswith(f"{path}: run 2: ")


def test_wrong_files_are_refused(tmp_path):
    """Of no known ending; without runs; with a row that is too long."""
    (tmp_path / "runs.txt").write_text("x")
    with pytest.raises(InputError, match=r"allowed endings: \.yaml, \.yml, \.toml, \.csv, \.json"):
        read_run_times(tmp_path / "runs.txt", at(1.0))
    (tmp_path / "a.yaml").write_text("rows: []")
    with pytest.raises(InputError, match="runs: is missing"):
        read_run_times(tmp_path / "a.yaml", at(1.0))
    (tmp_path / "a.csv").write_text("model,step_time_s\nllama3-8b,1,2\n")
    with pytest.raises(InputError, match="run 1"):
        read_run_times(tmp_path / "a.csv", at(1.0))
    (tmp_path / "a.csv").write_text("model,step_time_s\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(InputError, match="not CSV: field larger than field limit"):
        read_run_times(tmp_path / "a.csv", at(1.0))


def test_the_verb_writes_a_system_that_is_used_at_once(tmp_path, shardwise):
    """With its source; the estimate is that with the speed."""
    runs, new = saved(tmp_path / "runs.yaml", timed(at(0.8))), tmp_path / "mine.yaml"
    code, out, err = shardwise("calibrate", NAME, "--from-runs", runs, "--out", new)
    assert (code, err) == (0, "")
    system = System.load(new)
    speed = system.accelerator.speed
    assert out.splitlines()[1].startswith(f"{NAME}: speed {speed:g} (")
    assert "run 4" in out
    assert "robust mean error of 4 runs: " in out
    assert "; attributed to this system: " in out
    source = system.source_of("accelerator.speed")
    assert source.kind == "fitted"
    assert source.text.startswith("by shardwise calibrate on 4 runs of runs.yaml; mean error of ")
    assert steps(new) == steps(at(speed))
    assert system.sources == System.load(NAME).sources | {"accelerator.speed": source}
    assert system == at(speed).model_copy(update={"sources": system.sources})
    code, out, _ = shardwise("calibrate", NAME, "--from-runs", runs, "--json")
    found = json.loads(out)
    assert (code, found["speed"], len(found["runs"])) == (0, speed, 4)
    assert found["before"]["n"] == found["after"]["n"] == 4
    assert found["level"]["prior"] == error_levels().between
    assert found["system"]["accelerator"]["speed"] == speed


@each_row(
    ("words", "problem"),
    [
        ((), "--from-runs: use one of --from-runs, --from-table, --from-nccl-tests and"),
        (("--from-runs", "a", "--from-table", "b"), "--from-runs: use one of"),
        (("--from-runs", "a.yaml", "--gpu", "x"), "gpu: 'x': is not for --from-runs"),
        (("--from-runs", "a.yaml", "--folds", "3"), "folds: '3': is not for --from-runs"),
        (("--from-runs", "a.yaml"), "a.yaml: no such file"),
    ],
)
def test_wrong_words_are_refused(shardwise, words, problem):
    """Before anything is read."""
    code, out, err = shardwise("calibrate", NAME, *words)
    assert (code, out) == (2, "")
    assert problem in err


def test_the_file_of_the_page_is_read():
    """The example of the guide on figures of one's own."""
    found = calibrated_by_runs(at(1.0), Path(__file__).parents[1] / "docs/examples/runs.yaml")
    assert [run.name for run in found.runs] == ["two-stages", "four-stages", "long"]
    assert found.unusable == ()
