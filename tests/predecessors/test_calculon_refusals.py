"""What the command line refuses of Calculon's files and words: one line that says what to mend."""

import json
from functools import partial

import pytest

from calculon_runs import RUNS, write_files
from rows import each_row

GPT3 = ("calculon-gpt3-175b", "calculon-a100-80g")
SEARCH = ("search", *GPT3, "--reference", "calculon")
TYPES = "float8, float16, bfloat16, float32"
THEIRS = "--reference calculon takes it where the strategy is an execution file without flags"


@pytest.fixture
def files(tmp_path):
    """Calculon's model, system and execution of its README, each changed as a test likes."""
    return partial(write_files, tmp_path)


def estimate_words(paths):
    """Words of an estimate of three files."""
    return ["estimate", paths["model"], paths["system"], "--strategy", paths["execution"]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((6, 100), "networks[1].size: 100: must be a larger multiple of networks[0].size 6"),
        ((65536, 8), "networks[1].size: 8: must be a larger multiple of networks[0].size 65536"),
        ((8, 8), "networks[1].size: 8: must be a larger multiple of networks[0].size 8"),
    ],
)
def test_a_system_that_does_not_nest_is_refused_where_it_must_nest(
    shardwise, files, sizes, message
):
    """Ours lays networks inside one another; Calculon itself does not mind."""

    def resize(system):
        for network, size in zip(system["networks"], sizes, strict=True):
            network["size"] = size

    paths = files(system=resize, execution=lambda e: e.update(tensor_par_net=1))
    code, out, err = shardwise(*estimate_words(paths))
    assert (code, out) == (2, "")
    place = f"error: {paths['system']}: {message}"
    assert err == f"{place}, as networks lie inside one another here; {THEIRS}\n"
    code, _, err = shardwise(*estimate_words(paths), "--reference", "calculon", "--mbs", 2)
    assert (code, err.startswith(place)) == (2, True)
    code, _, err = shardwise(*estimate_words(paths), "--reference", "calculon")
    assert (code in (0, 1), err) == (True, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s["vector"].update(int8=s["vector"]["float16"]),
            f"vector.int8: unknown datatype; allowed: {TYPES}",
        ),
        (
            lambda s: s["matrix"].update(flaot16=s["matrix"]["float16"]),
            f"matrix.flaot16: unknown datatype; allowed: {TYPES}; did you mean 'float16'?",
        ),
        (
            lambda s: s["matrix"].update(float8=s["matrix"]["float16"]),
            "vector.float8: is missing; matrix has it, and vector no float32 to go by instead",
        ),
        (
            lambda s: s["matrix"]["float16"]["gflops_efficiency"][0].__setitem__(1, 1e-6),
            "matrix.float16.gflops_efficiency[0][1]: 1e-06: must be at least 0.0001 here",
        ),
        (
            lambda s: s["mem2"].update(GBps=1e300),
            "mem2.GBps: 1e+300: is too large to compute with here",
        ),
        (
            lambda s: s["vector"]["float16"].update(tflops=1e-13),
            "vector.float16.tflops: 1e-13: must be at least 1e-12 here",
        ),
        (
            lambda s: s["networks"][1].update(efficiency=9e-5),
            "networks[1].efficiency: 9e-05: must be at least 0.0001 here",
        ),
        (
            lambda s: s["networks"][0].update(bandwidth=1e-10),
            "networks[0].bandwidth: 1e-10: must be at least 1e-09 here",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_calculon_takes_and_we_do_not_is_said_in_its_words(shardwise, files, change, message):
    """The key of the file, not ours of what it becomes; Calculon's own formulas take it."""
    paths = files(system=change)
    code, out, err = shardwise(*estimate_words(paths))
    assert (code, out) == (2, "")
    assert err == f"error: {paths['system']}: {message}; {THEIRS}\n"
    code, _, err = shardwise(*estimate_words(paths), "--reference", "calculon")
    assert (code in (0, 1), err) == (True, "")


@pytest.mark.parametrize("mode", [[], ["--reference", "calculon"]], ids=["ours", "theirs"])
def test_a_threshold_beyond_all_reason_is_refused(shardwise, files, mode):
    """10^305 of anything leaves the finite numbers, there too."""
    paths = files(system=lambda s: s["mem1"]["MB_efficiency"][0].__setitem__(0, 1e305))
    words = ["estimate", paths["model"], paths["system"], "--strategy", paths["execution"]]
    code, _, err = shardwise(*words, *mode)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {paths['system']}: mem1.MB_efficiency[0][0]: 1e+305: ")


def test_the_least_figures_are_those_of_our_systems(shardwise, files):
    """What is just large enough is taken, and one that nobody uses is not looked at."""

    def least(system):
        system["vector"]["float16"]["gflops_efficiency"][0][1] = 1e-4
        system["networks"][1].update(efficiency=1e-4, bandwidth=1e-9)
        system["mem2"].update(GiB=0, GBps=1e300)

    code, _, err = shardwise("convert", files(system=least)["system"])
    assert (code, err) == (0, "")


def test_calculon_answers_where_our_rules_refuse(shardwise, files, tmp_path):
    """64 stages of 48 layers, as its own tests run them: its answer, our reason, exit code 1."""
    paths = files(model=lambda m: m.update(RUNS["models"]["megatron-22B"]))
    words = (*estimate_words(paths), "--also", "calculon")
    reason = "pp: 64: must be at most the 48 layers"
    code, out, err = shardwise(*words)
    assert code == 1
    assert err.startswith("shardwise refuses this run: ")
    assert reason in err
    assert "total_time" in out
    alone = json.loads(shardwise(*estimate_words(paths), "--reference", "calculon", "--json")[1])
    code, out, err = shardwise(*words, "--json", "--output", tmp_path / "both.json")
    found = json.loads((tmp_path / "both.json").read_text())
    assert (code, out, err) == (1, "", "")
    assert found["also"] == {"calculon": alone}
    assert reason in found["refused"][0]


@pytest.mark.parametrize("more", [["--graph", "a.json"], ["--gemms"], ["--report", "a.txt"]])
def test_what_needs_our_estimate_is_refused_where_there_is_none(shardwise, files, more, tmp_path):
    """Exit code 2 with our reason; so is what both refuse."""
    paths = files(model=lambda m: m.update(RUNS["models"]["megatron-22B"]))
    more = [word if word.startswith("--") else tmp_path / word for word in more]
    code, out, err = shardwise(*estimate_words(paths), "--also", "calculon", *more)
    assert (code, out) == (2, "")
    assert "pp: 64: must be at most the 48 layers" in err
    paths = files(execution=lambda e: e.update(num_procs=3000))
    code, out, err = shardwise(*estimate_words(paths), "--also", "calculon")
    assert (code, out) == (2, "")
    assert "num_procs: 3000" in err


def test_float8_is_estimated_as_quantized_products(shardwise, files):
    """In our model, in Calculon's formulas with flags and without, and next to each other."""
    paths = files(
        execution=lambda e: e.update(datatype="float8"),
        system=lambda s: s.update(RUNS["systems"]["h100_80g_nvl8"]),
    )
    for words, expected in (
        ([], "fp16 with fp8_tensor"),
        (["--reference", "calculon", "--mbs", 2], "total_time"),
        (["--reference", "calculon"], "total_time"),
        (["--also", "calculon"], "everything has one byte in Calculon"),
    ):
        code, out, err = shardwise(*estimate_words(paths), *words)
        assert (code, err) == (0, "")
        assert expected in " ".join(out.split())


@pytest.mark.parametrize(("kept", "lacking"), [(3, 3), (4, 2)])
def test_half_a_model_of_calculons_is_told_what_it_lacks(shardwise, files, kept, lacking):
    """Not what a model of ours would lack."""
    keys = ["hidden", "attn_heads", "num_blocks", "seq_size", "feedforward", "attn_size"]
    paths = files(model=lambda m: [m.pop(key) for key in keys[kept:]])
    code, _, err = shardwise(*estimate_words(paths))
    assert code == 2
    assert err.count("is missing") == len(err.splitlines()) == lacking
    assert all(f"{paths['model']}: {key}: is missing" in err for key in keys[kept:])


def test_a_strategy_that_does_not_fit_is_named_by_its_file(shardwise, tmp_path, files):
    """With flags beside it too."""
    paths = files(model=lambda m: m.update(hidden=25601))
    for words in ([], ["--mbs", 2]):
        code, _, err = shardwise(*estimate_words(paths), "--reference", "calculon", *words)
        assert code == 2
        message = "tensor_par: 4: must divide the model's hidden 25601"
        assert err == f"error: {paths['execution']}: {message}\n"
    ours = tmp_path / "zero.yaml"
    ours.write_text("gpus: 64\ntp: 8\npp: 4\ngbs: 64\ndtype: fp16\nzero: 2\n")
    job = ("estimate", *GPT3, "--strategy", ours, "--reference", "calculon")
    for words in ([], ["--mbs", 2]):
        _, _, err = shardwise(*job, *words)
        assert err == f"error: {ours}: zero: 2: Calculon shards the optimizer; allowed: 0, 1\n"


JOB = ("--gpus", 64, "--tp", 8, "--pp", 8, "--gbs", 64, "--dtype", "fp16")


@each_row(
    ("words", "message"),
    [
        (
            ["--also", "calculon"],
            "--also: 'calculon': has no effect with --reference",
        ),
        (["--flops-convention", "parameters"], "flops-convention: 'parameters': has no effect"),
        (["--flops-convention", "causal"], "flops-convention: 'causal': has no effect"),
        (["--flops-convention", ""], "flops-convention: '': has no effect"),
    ],
)
def test_words_without_effect_are_refused_beside_a_reference(shardwise, words, message):
    """One answer is asked for; nothing that was asked for beside it is dropped."""
    code, out, err = shardwise("estimate", *GPT3, *JOB, "--reference", "calculon", *words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message in line


def test_a_closed_form_system_has_no_form_in_calculon(shardwise):
    """--also on a native system says why, and which systems have one; nothing else is lost."""
    words = ["estimate", "gpt3-175b", "a100-80gb-sxm", "--gpus", 64, "--tp", 8, "--pp", 8]
    code, out, err = shardwise(*words, "--gbs", 64, "--also", "calculon")
    assert (code, out) == (2, "")
    assert "accelerator.matmul" in err
    assert "calculon-..." in err
    code, _, err = shardwise(*words, "--gbs", 64, "--reference", "nobody")
    assert code == 2
    assert "reference: 'nobody': allowed: calculon" in err


def test_a_reference_has_one_name(shardwise):
    """However it was spelt."""
    for name in ("calculon", "CALCULON", " Calculon"):
        _, out, _ = shardwise("estimate", *GPT3, *JOB, "--also", name, "--json")
        assert list(json.loads(out)["also"]) == ["calculon"]


def test_convert_refuses_a_model_or_system_that_it_does_not_need(shardwise, files):
    """They place a strategy that is written for Calculon, and do nothing else."""
    paths = files()
    message = "is for a strategy for Calculon"
    for words in (
        [paths["execution"]],
        [paths["system"], "--to", "calculon"],
        ["calculon", "--kind", "stack"],
    ):
        for flag in ("model", "system"):
            code, out, err = shardwise("convert", *words, f"--{flag}", "x.json")
            assert (code, out) == (2, "")
            assert err == f"error: --{flag}: 'x.json': {message}\n"


def test_convert_gives_back_what_only_calculon_takes(shardwise, files):
    """A file of Calculon's written for Calculon need not be one that our model takes."""
    paths = files(system=lambda s: s["networks"][0].update(size=12))
    code, out, _ = shardwise("convert", paths["system"], "--to", "calculon")
    assert (code, json.loads(out)) == (0, json.loads(paths["system"].read_text()))


@each_row(
    ("words", "message"),
    [
        (["--reference", "calcolon", "--gpus", 8, "--gbs", 8], "did you mean 'calculon'"),
        (
            ["--reference", "calculon", "--gbs", 8],
            "--gpus is missing: number of GPUs, such as --gpus 64",
        ),
        (
            ["--reference", "calculon", "--gpus", 8],
            "--gbs is missing: sequences per step, such as --gbs 128",
        ),
        (["--reference", "calculon", "--gpus", 0, "--gbs", 8], "gpus: '0'"),
        (["--reference", "calculon", "--gpus", 8, "--gbs", "8,16"], "whole number"),
        (
            ["--reference", "calculon", "--gpus", "8..64", "--gbs", 8, "--save", "a.csv"],
            "needs one number of GPUs",
        ),
    ],
)
def test_a_search_by_reference_needs_gpus_and_one_batch(shardwise, words, message):
    """One line, exit code 2."""
    code, out, err = shardwise("search", *GPT3, *words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message in line


@each_row(
    ("words", "message"),
    [
        (["--dtype", "bf16"], "dtype: 'bf16': allowed: float16"),
        (["--dtype", "fp17"], "dtype: 'fp17': allowed: fp8, fp16, bf16, fp32; did you mean 'fp16'"),
        (["--fused-activation", "maybe"], "fused-activation: 'maybe': allowed: true, false, both"),
        (["--gbs", 2**45], f"gbs: {2**45}: a block of this model has tensors of more than 2^53"),
        (["--count", "--layers"], "layers: needs a search; --count only counts"),
        (["--count", "--mbs-break"], "mbs-break: needs a search; --count only counts"),
    ],
)
@each_row("count", [[], ["--count"]])
def test_a_search_says_what_is_wrong_by_its_flags(shardwise, count, words, message):
    """Not by the names that they have within Calculon."""
    code, out, err = shardwise(*SEARCH, "--gpus", 8, "--gbs", 8, *count, *words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: --{message}")


@each_row("dtype", ["fp16", "FP16", "half", "float16", "FLOAT16"])
def test_a_search_takes_every_name_of_a_type(shardwise, dtype):
    """Calculon's and ours."""
    code, _, err = shardwise(*SEARCH, "--gpus", 8, "--gbs", 8, "--count", "--dtype", dtype)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("count", [[], ["--count"]], ids=["search", "count"])
def test_where_a_search_is_written_is_checked_before_it(shardwise, monkeypatch, count):
    """An hour of search is not lost to the ending of a file."""
    for name in ("search", "count"):
        monkeypatch.setattr(f"shardwise.predecessors.calculon.reference.{name}", None)
    words = [*SEARCH, "--gpus", 8, "--gbs", 8, *count, "--output", "best.txt"]
    code, out, err = shardwise(*words)
    message = "best.txt: cannot be written; allowed endings: .json, .yaml, each also .gz"
    assert (code, out, err) == (2, "", f"error: {message}\n")


@each_row("verb", ["estimate", "peers", "search"])
def test_help_says_whose_files_are_taken(shardwise, verb):
    """Ours and Calculon's."""
    _, out, _ = shardwise(verb, "--help-all")
    words = " ".join(out.split())
    assert words.count("shardwise, Calculon, SimuMax, NERSC") == 2
    assert ("Calculon execution" in words) == (verb != "search")
