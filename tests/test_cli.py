"""The command line, as people and scripts run it."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from rows import each_row
from shardwise import Strategy, __version__, catalog
from shardwise.cli import VERBS
from shardwise.engine.step_time import TIME_PARTS

pytestmark = pytest.mark.any_software

JOB = [
    "llama3-70b",
    "h100-sxm",
    "--gpus",
    "64",
    "--tp",
    "8",
    "--pp",
    "2",
    "--mbs",
    "1",
    "--gbs",
    "128",
]
MAIN_JOB = ["estimate", *JOB]


def test_the_json_contract_of_estimate(shardwise):
    """`estimate --json` has every promised field; time parts are disjoint and sum to the step."""
    code, out, err = shardwise(*MAIN_JOB, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert set(result) >= {
        "model",
        "system",
        "strategy",
        "parameters",
        "step_time_s",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "model_tflops_per_gpu",
        "mfu",
        "hfu",
        "fits",
        "time_s",
        "comm_s",
        "memory_bytes",
        "stages",
    }
    assert list(result["time_s"]) == list(TIME_PARTS)
    assert sum(result["time_s"].values()) == pytest.approx(result["step_time_s"], rel=1e-12)
    assert set(result["strategy"]) == set(Strategy.model_fields)
    assert result["strategy"]["dp"] == 4
    assert result["parameters"] == 70_553_706_496
    assert 0.3 < result["mfu"] < 0.6
    memory = result["memory_bytes"]
    parts = ("weights", "gradients", "optimizer", "activations", "buffers")
    assert sum(memory[part] for part in parts) == pytest.approx(memory["total"], rel=1e-12)
    assert memory["total"] < memory["reserved"] < memory["capacity"]
    assert len(result["stages"]) == 2
    stage = result["stages"][0]
    assert {name: stage[name] for name in memory} == memory
    assert set(stage["peak"]) == {"bytes", "operation", "phase"}
    assert stage["peak"]["bytes"] == stage["total"]
    assert {"total", "exposed"} == set(result["comm_s"]["dp"])


def test_a_strategy_that_does_not_fit_is_printed_whole_with_exit_code_1(shardwise):
    """No room is an answer: fits is false, everything is printed, the exit code is 1."""
    code, out, _ = shardwise(
        "estimate", "llama3-70b", "h100-sxm", "--gpus", 8, "--gbs", 8, "--json"
    )
    result = json.loads(out)
    assert code == 1
    assert result["fits"] is False
    assert result["step_time_s"] > 0
    code, out, _ = shardwise("estimate", "llama3-70b", "h100-sxm", "--gpus", 8, "--gbs", 8)
    assert code == 1
    assert "does not fit" in out


def test_the_table_shows_time_memory_and_verdict(shardwise):
    """People see where step and memory go, what was assumed, and whether it fits."""
    code, out, _ = shardwise(*MAIN_JOB)
    assert code == 0
    for shown in ("step time", "MFU", "backward", "pipeline bubble", "activations", "fits:"):
        assert shown in out
    assert "assumed: dp 4" in out
    assert "…" not in out


def test_operations_are_listed_forward_and_backward(shardwise, monkeypatch):
    """`--ops` lists FLOPs, bytes, exchange, group, weights, activations, times and bound."""
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = shardwise(*MAIN_JOB, "--ops")
    assert code == 0
    assert "…" not in out
    for shown in ("mlp.up", "weight grad", "reduce-scatter", "8 / 8", "compute", "exposed"):
        assert shown in out
    _, out, _ = shardwise(*MAIN_JOB, "--ops", "--json")
    operations = json.loads(out)["operations"]
    up = [row for row in operations if row["operation"] == "mlp.up" and row["kind"] == "matmul"]
    assert {row["phase"] for row in up} == {"forward", "input_grad", "weight_grad"}
    # 8192 tokens x 8192 wide x two projections of 28672 / 8
    assert up[0]["flops"] == 2 * 8192 * 8192 * 2 * 28672 / 8
    assert up[0]["weight_bytes"] == 2 * 8192 * 2 * 28672 / 8


@each_row("field", sorted(Strategy.model_fields))
def test_every_field_of_a_strategy_has_a_flag(shardwise, field):
    """No field can only be set in a file."""
    _, out, _ = shardwise("estimate", "--help-all")
    assert f"--{field.replace('_', '-')} " in out


def test_flags_override_the_strategy_file(shardwise, tmp_path):
    """A file gives the strategy, flags change single fields of it."""
    path = tmp_path / "s.yaml.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("gpus: 64\ntp: 8\npp: 2\ngbs: 128\nrecompute: full\n")
    job = ("estimate", "llama3-70b", "h100-sxm", "--strategy", path, "--json")
    _, out, _ = shardwise(*job)
    assert json.loads(out)["strategy"]["recompute"] == "full"
    _, out, _ = shardwise(*job, "--recompute", "none", "--gbs", 64)
    strategy = json.loads(out)["strategy"]
    assert (strategy["recompute"], strategy["global_batch_size"]) == ("none", 64)
    assert strategy["tp"] == 8


def test_output_is_written_to_a_file(shardwise, tmp_path):
    """`--output` writes what `--json` prints, gzipped by its ending."""
    path = tmp_path / "result.json.gz"
    code, out, _ = shardwise(*MAIN_JOB, "--output", path)
    assert (code, out) == (0, "")
    _, printed, _ = shardwise(*MAIN_JOB, "--json")
    assert json.loads(gzip.decompress(path.read_bytes())) == json.loads(printed)


BAD = [
    (("estimate", "llama3-7b", "h100-sxm", "--gpus", 8, "--gbs", 8), "did you mean 'llama3-8b'?"),
    (
        ("estimate", "llama3-70b", "h300", "--gpus", 8, "--gbs", 8),
        "'h300': no such system; to list them: shardwise systems",
    ),
    (
        ("estimate", "h100-sxm", "llama3-8b", "--gpus", 8, "--gbs", 8),
        "model: 'h100-sxm': is a system, not a model; the order is MODEL SYSTEM",
    ),
    (
        ("search", "h100", "llama3-8b", "--gpus", 8, "--gbs", 8),
        "model: 'h100': is a system, not a model; the order is MODEL SYSTEM",
    ),
    (("models", "h100-sxm"), "'h100-sxm': is a system: shardwise systems h100-sxm"),
    (("systems", "llama3-8b"), "'llama3-8b': is a model: shardwise models llama3-8b"),
    (
        ("stacks", "foo"),
        "to list them: shardwise stacks; for software that none stands for: unknown",
    ),
    (("estimate", "--recipe", "nope"), "no such recipe; to list them: shardwise recipes"),
    ((*MAIN_JOB, "--tp", 3), "--tp: 3: must divide gpus 64"),
    ((*MAIN_JOB, "--gpus", 96, "--tp", 48), "tp: 48: must divide the heads of the model, 64"),
    (
        (*MAIN_JOB, "--gbs", 127),
        "dp x micro_batch_size = 4 x 1 = 4; nearest: 124, 128",
    ),
    ((*MAIN_JOB, "--tp", "x"), "--tp: 'x': must be a whole number"),
    ((*MAIN_JOB, "--tpp", 8), "no such option: --tpp"),
    ((*MAIN_JOB, "--dtype", "fp99"), "dtype: 'fp99': allowed: bf16, fp16, fp32"),
    ((*MAIN_JOB, "--stack", "megatrn"), "no such stack"),
    ((*MAIN_JOB, "--flops-convention", "mine"), "flops-convention: 'mine': allowed: causal"),
    ((*MAIN_JOB, "--strategy", "none.yaml"), "none.yaml: no such file"),
    ((*MAIN_JOB, "--output", "result.txt"), "result.txt: cannot be written; allowed endings"),
    ((*MAIN_JOB, "--log", "none/such/x.log"), "none/such/x.log: cannot be written"),
    (("estimate", "llama3-70b", "v100-sxm-32gb", "--gpus", 8, "--gbs", 8), "allowed: fp16, fp32"),
    (("estimate", "llama3-70b", "h100-sxm"), "--gpus is missing"),
    (("estimate", "llama3-70b"), "Missing argument"),
    (("peers", *JOB, "--tp", 3), "tp: 3: must divide gpus 64"),
    (("peers", *JOB, "--rank", 64), "rank: 64: no such rank; allowed: 0 to 63"),
    (("peers", *JOB, "--rank", "first"), "rank: 'first': must be a whole number; allowed: 0 to 63"),
    (("estimat",), "No such command 'estimat'"),
    (("schema", "modle"), "did you mean 'model'"),
    (("models", "llama9"), "no such model"),
    (("systems", "."), "is a directory"),
]


@each_row(("words", "told"), BAD)
def test_bad_input_is_one_clear_line_per_fault_and_exit_code_2(shardwise, words, told):
    """Bad input never shows a traceback; each line says what to mend."""
    code, out, err = shardwise(*words)
    assert code == 2
    assert out == ""
    assert told in err
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert "Traceback" not in err


def test_models_json_counts_parameters(shardwise):
    """`models NAME --json` gives total, active, embedding and the breakdown that adds up."""
    code, out, _ = shardwise("models", "llama3-8b", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["parameters"] == 8_030_261_248
    assert result["active_parameters"] == 8_030_261_248
    assert result["embedding_parameters"] == 128256 * 4096
    assert sum(result["breakdown"].values()) == result["parameters"]
    assert result["mtp_parameters"] == 0


def test_modules_of_multi_token_prediction_stand_beside_the_published_count(shardwise):
    """671.0 B with 37 B active, and one module of 11.6 B (arXiv 2412.19437, section 2)."""
    result = json.loads(shardwise("models", "deepseek-v3", "--json")[1])
    assert result["parameters"] == 671_026_419_200
    assert round(result["active_parameters"] / 1e9, 1) == 37.6
    assert result["mtp_parameters"] == 11_610_068_224
    assert "11,610,068,224" in shardwise("models", "deepseek-v3")[1]


def test_a_model_is_shown_with_the_share_of_each_part(shardwise):
    """128256 x 4096 of 8030261248 parameters are embeddings."""
    _, out, _ = shardwise("models", "llama3-8b")
    parts = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if words}
    assert parts["embedding"] == ["525,336,576", "6.5", "%"]
    assert parts["total"] == ["8,030,261,248"]


@each_row("verb", ["models", "systems", "stacks"])
def test_listings_name_every_entry(shardwise, verb):
    """Without a name the whole catalog is listed, as a table and as JSON."""
    code, out, _ = shardwise(verb)
    assert code == 0
    assert all(name in out for name in catalog.names(verb))
    _, out, _ = shardwise(verb, "--json")
    assert list(json.loads(out)) == catalog.names(verb)


@each_row(("verb", "part"), [("models", "llama"), ("systems", "rtx-5"), ("stacks", "torchtitan")])
def test_part_of_a_name_lists_what_contains_it(shardwise, verb, part):
    """As a table and as JSON; a part that no name has is refused with how to list all."""
    named = [name for name in catalog.names(verb) if part in name]
    assert len(named) > 1
    assert all(name in shardwise(verb, part)[1] for name in named)
    assert list(json.loads(shardwise(verb, part, "--json")[1])) == named
    assert f"to list them: shardwise {verb}" in shardwise(verb, "zzzz")[2]


@pytest.mark.parametrize(
    ("verb", "name"),
    [("models", "qwen3-8b"), ("systems", "a100-80gb-sxm"), ("stacks", "nemo-2025")],
)
def test_an_entry_is_shown_with_its_sources_and_written_to_a_file(shardwise, tmp_path, verb, name):
    """One entry shows every figure with its origin, and can be copied as a start of one's own."""
    code, out, _ = shardwise(verb, name)
    assert code == 0
    assert "origin" in out
    path = tmp_path / "mine.yaml"
    assert shardwise(verb, name, "--output", path) == (0, "", "")
    _, from_file, _ = shardwise(verb, path, "--json")
    _, from_catalog, _ = shardwise(verb, name, "--json")
    assert json.loads(from_file) == json.loads(from_catalog)


@each_row("noun", ["model", "system", "strategy", "stack", "reliability", "scenario", "estimate"])
def test_schema_prints_a_json_schema(shardwise, noun):
    """`schema` prints the schema of each noun."""
    code, out, _ = shardwise("schema", noun)
    assert code == 0
    assert json.loads(out)["$schema"].startswith("https://json-schema.org")


def test_version_and_help(shardwise):
    """`--version` names it; `--help` names every verb."""
    assert shardwise("--version") == (0, f"shardwise {__version__}\n", "")
    code, out, _ = shardwise("--help")
    assert code == 0
    assert all(verb in out for verb in VERBS)


def test_verbose_and_log_tell_what_was_done(shardwise, tmp_path):
    """`--verbose` speaks on stderr, `--log` to a file, before or after the verb."""
    path = tmp_path / "run.log"
    _, _, err = shardwise(*MAIN_JOB, "--json", "--verbose", "--log", path)
    assert "model llama3-70b, system h100-sxm" in err
    assert "estimated in" in path.read_text()
    _, _, err = shardwise("--verbose", *MAIN_JOB, "--json")
    assert "estimated in" in err
    _, _, err = shardwise(*MAIN_JOB, "--json")
    assert err == ""


def test_the_command_works_as_a_process_and_survives_a_closed_pipe(tmp_path):
    """As a whole process: exit code, and no complaint when the reader stops early."""
    program = [sys.executable, "-c", "from shardwise.cli import main; main()"]
    done = subprocess.run([*program, *MAIN_JOB], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with subprocess.Popen(
        [*program, "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_help_imports_nothing_heavy():
    """`--help` answers before numpy or polars are imported: it stays far below half a second."""
    code = (
        "import sys; from shardwise.cli import run; run(['--help']);"
        "heavy = {'numpy', 'polars', 'yaml'} & set(sys.modules); sys.exit(len(heavy))"
    )
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0


def test_sequence_parallelism_without_tensor_parallelism_is_not_shown(shardwise):
    """The header has what has an effect."""
    job = ("estimate", "llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 64, "--sequence-parallel")
    for tp in (1, 2):
        assert ("sequence parallel" in " ".join(shardwise(*job, "--tp", tp)[1].split())) == (tp > 1)
