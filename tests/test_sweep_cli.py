"""`shardwise sweep` as people call it."""

import json

import pytest

from rows import each_row
from shardwise import Strategy, sweep
from written import record_of

pytestmark = pytest.mark.any_software

SMALL = ("sweep", "llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 32, "--fix", "pp=1,zero=1")
NARROW = (*SMALL, "--recompute", "none", "--no-offload-weights", "--no-offload-activations")
PYTHON = {"gpus": 8, "gbs": 32, "pp": 1, "zero": 1, "recompute": "none"}
PYTHON |= {"offload_weights": False, "offload_activations": False}


def test_the_command_is_the_function(shardwise):
    vary = {"nvlink.bandwidth": "0.5x,2x", "hbm.capacity": "60 GiB, 96 GiB"}
    words = [word for name, values in vary.items() for word in ("--vary", f"{name}={values}")]
    code, out, err = shardwise(*NARROW, *words, "--top", 2, "--json")
    found, same = record_of(out), sweep("llama3-8b", "h100-sxm", vary=vary, top=2, **PYTHON)
    expected = same.to_dict()
    for record in (found, expected):
        record.pop("elapsed_s")
    assert code == 0
    assert found == expected
    assert [point["at"] for point in found["points"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert err.startswith("4 points in ")


def test_the_table_names_axes_points_and_the_best(shardwise):
    code, out, _ = shardwise(*NARROW, "--vary", "nvlink.bandwidth=0.5x,1x", "--vary", "domain=16")
    lines = out.splitlines()
    assert code == 0
    assert "llama3-8b on h100-sxm" in out
    assert [word in lines[5] for word in ("nvlink.bandwidth", "domain", "step time", "strategy")]
    assert sum(line.startswith((" 0.5x", " 1x")) for line in lines) == 2
    assert "assumed: h100-sxm, domain 16: nodes of 8" in out


def test_several_systems_stand_under_one_another(shardwise):
    code, out, _ = shardwise(
        *("sweep", "llama3-8b", "h100-sxm,b200-sxm", "--gpus", 8, "--gbs", 16, "--tp", 2),
        *("--fixed", "--vary", "mbs=1,2", "--json"),
    )
    points = json.loads(out)["points"]
    assert code == 0
    _, same, _ = shardwise(
        *("sweep", "llama3-8b", "h100-sxm", "--system", "b200-sxm", "--gpus", 8, "--gbs", 16),
        *("--tp", 2, "--fixed", "--vary", "mbs=1,2", "--json"),
    )
    assert json.loads(same)["points"] == points
    assert [point["system"] for point in points] == ["h100-sxm"] * 2 + ["b200-sxm"] * 2
    assert [point["best"][0]["strategy"]["micro_batch_size"] for point in points] == [1, 2, 1, 2]


def test_a_strategy_file_is_held_fixed_and_broken_down(shardwise, tmp_path):
    file = tmp_path / "strategy.yaml"
    Strategy(gpus=8, tp=4, dp=2, global_batch_size=16, zero=1).to_file(file)
    words = ("sweep", "llama3-8b", "h100-sxm", "--strategy", file, "--vary", "tp=1,2,3")
    code, out, _ = shardwise(*words)
    assert code == 0
    for head in ("step time", "forward", "backward", "dp", "memory GiB"):
        assert head in out
    assert "tp: 3: must divide gpus 8" in out
    assert sum(line.startswith((" 1 ", " 2 ", " 3 ")) for line in out.splitlines()) == 3


def test_what_would_help_most_is_said_in_words(shardwise):
    words = (*NARROW, "--tp", 2, "--mbs", 2, "--sensitivity")
    code, out, _ = shardwise(*words)
    assert code == 0
    assert "Sensitivity to the hardware on h100-sxm" in out
    assert "2x matrix.bf16 would save" in out
    assert "Constants of the cost model, with the same plan" in out
    assert "saves, costs," in " ".join(out.split())  # of the same plan, on two lines
    assert "other constants change the step by less than 0.1 %" in out
    hardware, fitted = out.split("Constants of the cost model")
    assert "matmul.bf16.efficiency" in fitted
    assert "matmul.bf16.efficiency" not in hardware
    code, again, _ = shardwise(*words, "--reoptimise")
    assert again == shardwise(*words, "--reoptimize")[1]
    assert again == out
    code, out, _ = shardwise(*words, "--fixed-plan")
    assert code == 0
    assert "costs," not in out
    assert "would save" in out


def test_speed_up_is_of_tokens_where_steps_differ_in_them(shardwise):
    """Half the sequence takes half the time: as many tokens/s; by step time it would be 2."""
    words = ("sweep", "llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 16, "--fix", "tp=2,pp=1")
    words = (*words, "--fix", "recompute=none,zero=1,mbs=1,tp_exchange=rs_ag")
    _, out, _ = shardwise(*words, "--vary", "seq_len=4096,8192")
    rows = [line.split() for line in out.splitlines() if line.startswith((" 4096", " 8192"))]
    rates = [float(row[3].replace(",", "")) for row in rows]
    assert [float(row[4]) for row in rows] == pytest.approx([1, rates[1] / rates[0]], abs=1e-3)
    assert 0.8 < float(rows[1][4]) < 1.2
    assert "speed-up: by tokens/s" in out
    _, out, _ = shardwise(*words, "--vary", "hbm.bandwidth=1x,2x")
    assert "tokens/s" not in out


def test_figures_are_listed(shardwise):
    code, out, _ = shardwise("sweep", "llama3-8b", "h100-sxm", "--figures", "--json")
    listed = {figure["figure"]: figure["value"] for figure in json.loads(out)["h100-sxm"]}
    assert code == 0
    assert listed["nvlink.bandwidth"] == 450e9
    assert listed["nvlink.domain"] == 8
    code, out, _ = shardwise("sweep", "llama3-8b", "h100-sxm", "--figures")
    assert "450 GB/s" in out


def test_nothing_feasible_is_exit_code_1_with_the_reason(shardwise):
    words = ("sweep", "llama3-70b", "h100-sxm", "--gpus", 1, "--gbs", 1, "--vary", "nics=1,2")
    code, out, _ = shardwise(*words)
    assert code == 1
    assert "strategies is feasible: memory" in out
    assert shardwise(*words, "--ok-if-none")[0] == 0


@each_row(
    ("words", "told"),
    [
        (
            ("--vary", "nics"),
            "--vary: 'nics': must be NAME=V1,V2,..., as in nvlink.bandwidth=1x,2x",
        ),
        (
            ("--vary", "nics=1", "--vary", "nics=2"),
            "--vary: 'nics=2': nics is set twice",
        ),
        (("--vary", "gbs=8,16"), "--vary: 'gbs=8,16': gbs is set twice"),
        (
            ("--vary", "nics=0"),
            (
                "--vary: nics: '0': on h100-sxm: makes 0 in a node of 8; must be a whole number of "
                "them"
            ),
        ),
        (("--reoptimize",), "--reoptimize: needs --sensitivity"),
        (("--fixed-plan",), "--fixed-plan: needs --sensitivity"),
        (
            ("--fixed", "--top", 2),
            ("--top: '2': has no effect with --strategy or --fixed, which evaluate one strategy"),
        ),
        (("--top", "x"), "--top: 'x': must be a whole number of at least 1"),
    ],
)
def test_faults_are_one_line_each(shardwise, words, told):
    code, out, err = shardwise(*SMALL, *words)
    assert code == 2
    assert out == ""
    assert err == f"error: {told}\n"


def test_a_point_without_strategies_says_why(shardwise):
    """Three tensor-parallel ranks do not make up 8 GPUs."""
    code, out, _ = shardwise(*NARROW, "--vary", "tp=3", "--json")
    (point,) = json.loads(out)["points"]

    assert code == 1
    assert point["problem"] == "no degrees and chunks of the space use exactly these GPUs"
