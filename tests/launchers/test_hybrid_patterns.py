"""Hybrid models as layer patterns of Megatron-Core."""

from pathlib import Path
from typing import Any

import pytest

from shardwise import Model, Strategy, estimate, export, read_launch
from shardwise.errors import InputError
from shardwise.launchers.megatron.core_hybrid import hybrid_faults, pattern_of

# Nemotron's own strings are in the catalog; those of the others follow from their layers (a GPT
# layer is `*-` or `*E`).
PATTERNS = {
    "nemotron-h-8b": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "nemotron-3-nano": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "qwen3-next-80b-a3b": "GEGEGE*E" * 12,
    "glm-5": "D-" * 3 + "DE" * 75,
    "deepseek-v3.2": "D-" * 3 + "DE" * 58,
}
_ALL: dict[str, Any] = {
    "global_batch_size": 128,
    "seq_len": 4096,
    "recompute": "full",
    "stack": "megatron-lm-2026",
}
PLANS = {
    "nemotron-h-8b": Strategy(gpus=8, tp=4, **_ALL),
    "nemotron-3-nano": Strategy(gpus=64, pp=2, ep=8, **_ALL),
    "qwen3-next-80b-a3b": Strategy(gpus=128, pp=4, ep=16, stage_layers=(11, 13, 13, 11), **_ALL),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_the_catalog(name: str) -> None:
    """The pattern of a model has one symbol for each mixer and each MLP or mixture of experts."""
    model = Model.load(name)
    assert pattern_of(model) == PATTERNS[name]
    assert not list(hybrid_faults(model))


@pytest.mark.parametrize("name", PLANS)
def test_a_script_read_back_takes_the_same_time(name: str, tmp_path: Path) -> None:
    """A plan of a hybrid model, written and read back, has the same step time and memory."""
    system = "h100-sxm"
    plan = PLANS[name]
    file = export("megatron", name, system, plan).files[0]
    path = tmp_path / "train.sh"
    path.write_text(file.text)
    found = read_launch(path)
    assert found.model is not None
    assert found.model.depth * 2 >= Model.load(name).depth
    then = estimate(found.model, system, found.strategy)
    now = estimate(name, system, plan)
    assert then.step_time_s == pytest.approx(now.step_time_s, rel=1e-9)
    assert then.memory_bytes.total == pytest.approx(now.memory_bytes.total, rel=1e-9)


def test_what_has_no_symbol_is_refused() -> None:
    """Kimi delta attention and mixers next to attention have no symbol."""
    (field, value, problem), *_ = hybrid_faults(Model.load("kimi-linear-48b-a3b"))
    assert (field, value) == ("layers.0.mixer", "kimi_delta")
    assert "allowed: mamba2, gated_delta" in problem
    falcon = Model.load("falcon-h1-7b")
    assert any(problem == "no mixer next to attention" for *_, problem in hybrid_faults(falcon))


@pytest.mark.parametrize(("pattern", "problem"), [("MX*-", "has 'X'"), ("M-|*-|M-", "must be a")])
def test_wrong_patterns_are_named(pattern: str, problem: str, tmp_path: Path) -> None:
    """An unknown symbol, or stages that do not come out even, are one line each."""
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc-per-node 8 --nnodes 1 pretrain_hybrid.py"
        f" --hybrid-layer-pattern '{pattern}' --hidden-size 1024 --num-attention-heads 8"
        " --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1"
        " --global-batch-size 8 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16"
        " --mamba-num-heads 32 --pipeline-model-parallel-size 2\n"
    )
    with pytest.raises(InputError, match=problem):
        read_launch(path)
