"""What `shardwise fsdp` refuses, in one line."""

import json

import pytest

from fsdp_words import CONFIG

BY_REFERENCE = ("--gpus", 8, "--reference", "fsdp-ilp", "--memory-budget", "9GiB")
REFUSED = {
    "one GPU": (("llama3-8b", "--gpus", 1), "gpus: 1: FSDP shards over two ranks or more"),
    "no GPUs": (("llama3-8b",), "--gpus is missing"),
    "replicas": (("llama3-8b", "--gpus", 8, "--replicas", 8), "replicas: 8: must divide"),
    "rule for replicas": (("{tiny}", "--gpus", 8, "--replicas", 2), "give a system"),
    "type": (("llama3-8b", "--gpus", 8, "--dtype", "fp8"), "dtype: 'fp8': allowed: fp32, bf16"),
    "type of a file": (("{tiny}", "--gpus", 8, "--dtype", "bf16"), "numbers of 4 bytes"),
    "word": (("llama3-8b", "--gpus", 8, "--reshard", "nevr"), "did you mean 'never'?"),
    "budget": (("llama3-8b", "--gpus", 8, "--memory-budget", "9 apples"), "unit 'apples'"),
    "no module": (("llama3-8b", "--gpus", 8, "--units", "layer.0"), "did you mean 'layers.0'?"),
    "pattern": (("llama3-8b", "--gpus", 8, "--units", "layer.*"), "did you mean 'layers.*'?"),
    "the root": (("{tiny}", "--gpus", 8, "--units", "m1,m1"), "stands in more than one unit"),
    "no forward": (("llama3-8b", "--gpus", 8, "--units", "layers"), "no forward of its own"),
    "no weights": (
        ("{gpt}", "--gpus", 8, "--units", "transformer.drop"),
        "has no parameters: FSDP2 ignores it",
    ),
    "tied": (
        ("{gpt}", "--gpus", 8, "--units", "lm_head"),
        "shares the parameter 'transformer.wte.weight'",
    ),
    "nothing to verify": (("llama3-8b", "--gpus", 8, "--verify"), "needs a torch module"),
    "code": (("llama3-8b", "--gpus", 8, "--emit", "perl"), "allowed: python, torchtitan"),
    "code alone": (("llama3-8b", "--gpus", 8, "--emit", "python", "--pareto"), "--output FILE"),
    "no model": (("nothing", "--gpus", 8), "no such model; to list them"),
    "no file": (("nothing.json", "--gpus", 8), "no such file"),
    "no tokens": (("{config}", "--gpus", 8, "--no-trace"), "--seq-len is missing"),
    "no config": (("{folder}", "--gpus", 8), "the folder has no config.json"),
    "node": (("llama3-8b", "--gpus", 8, "--gpus-per-node", 4), "has no effect with a system"),
    "seconds": (("llama3-8b", "--gpus", 8, "--seconds", 0), "must be a number above 0"),
    "group": (("llama3-8b", "--gpus", 8, "--group", 99), "group: 99: must be"),
    "solver alone": (("{tiny}", "--gpus", 8, "--solver", "highs"), "needs --reference fsdp-ilp"),
    "other reference": (("{tiny}", "--gpus", 8, "--reference", "nersc"), "allowed: fsdp-ilp"),
    "reference of a model": (
        ("llama3-8b", "--gpus", 8, "--reference", "fsdp-ilp"),
        "is not module information",
    ),
    "reference without budget": (
        ("{tiny}", "--gpus", 8, "--reference", "fsdp-ilp"),
        "--memory-budget is missing: set it",
    ),
    "reference with ours": (
        ("{tiny}", "--gpus", 8, "--reference", "fsdp-ilp", "--pareto"),
        "pareto: has no effect with --reference",
    ),
    "no such solver": (
        ("{tiny}", *BY_REFERENCE, "--solver", "glpk"),
        "allowed: highs, scipy, cbc, exact",
    ),
    "exact without programme": (
        ("{tiny}", *BY_REFERENCE, "--solver", "exact", "--formulation", "flow"),
        "has no effect with the solver exact",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_is_wrong(shardwise, statistics, tmp_path, words, said):
    """In one line, with exit code 2."""
    config = tmp_path / "some.json"
    config.write_text(json.dumps(CONFIG))
    places = {
        "{tiny}": statistics / "tiny12.json",
        "{gpt}": statistics / "seed_gpt6.json",
        "{config}": config,
        "{folder}": statistics,
    }
    code, out, err = shardwise("fsdp", *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
