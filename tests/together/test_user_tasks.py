"""Tasks of users, each from the shell in a few commands, without reading the source.

A task is a row of `TASKS`; add others there.
"""

import json
import shlex
from typing import NamedTuple

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}
SMALL = "megatron-126m h100-sxm --gpus 8 --gbs 16"
SCENARIO = {"model": "megatron-126m", "system": "h100-sxm"}
FILES = {
    "mine/config.json": CONFIG,
    "before.json": SCENARIO | {"strategy": {"gpus": 8, "gbs": 16}},
    "after.json": SCENARIO | {"strategy": {"gpus": 8, "gbs": 16, "tp": 4, "recompute": "full"}},
}
"""What the user has."""


class Step(NamedTuple):
    """A command, and what it prints or writes."""

    command: str
    texts: tuple[str, ...] = ()
    """In what it prints, on standard output and standard error."""
    code: int = 0
    file: str = ""
    """That it writes."""


TASKS = {
    "3: pretrain a model of experts on 32 GPUs": [
        Step(
            "search qwen3-30b-a3b h100-sxm --gpus 32 --gbs 512",
            ("run:      tp", "sure:     fits with 9", "safer:    plan", "measured: "),
        )
    ],
    "4: my own config.json in a folder": [
        Step("estimate mine h100-sxm --gpus 8 --gbs 16 --seq-len 512", ("mine on h100-sxm", "fits"))
    ],
    "8: which ZeRO stage, at the same tp and pp": [
        Step(
            f"sweep {SMALL} --stack deepspeed-2026 --tp 1 --pp 1 --fixed --vary zero=0,1,2,3",
            ("zero  step time", "memory GiB", "fits"),
        )
    ],
    "9: export to torchtitan, and what it contains": [
        Step(
            f"export torchtitan {SMALL.replace('megatron-126m', 'llama3-8b')} --tp 2 -o run.toml",
            ("the file, read back, is the plan", "still to set: data set, tokenizer"),
            file="run.toml",
        )
    ],
    "10: why is my plan slower than the best": [
        Step("search --help", ("--explain",)),
        Step(f"search {SMALL} --pp 1 --explain tp=4,mbs=1,zero=1", ("better",)),
    ],
    "11: save a search, show plan 3 tomorrow, trace it": [
        Step(f"search {SMALL} --pp 1 --top 3 -o found.json", file="found.json"),
        Step("show found.json#3", ("megatron-126m on h100-sxm", "8 GPUs")),
        Step("trace found.json#3 -o step.json", file="step.json"),
    ],
    "13: what would more bandwidth buy, as a chart": [
        Step(
            f"sweep {SMALL} --pp 1 --vary nvlink.bandwidth=0.5x,1x,2x --plot gain.html",
            ("speed-up",),
            file="gain.html",
        )
    ],
    "14: my run is slow, here are script and log": [
        Step("diagnose --example", ("slow link: gain", "changes of the strategy"))
    ],
    "15: a pull request changes the plan": [
        Step(
            "compare before.json after.json --markdown --fail-if-slower 2% --fail-if-unfit",
            ("| results |", "**failed:** after takes", "| recompute |"),
            code=1,
        )
    ],
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_these_commands(shardwise, tmp_path, monkeypatch, task):
    """Each prints what the user looks for, and writes the file that was named and no other."""
    if ".html" in str(TASKS[task]):
        pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    for step in TASKS[task]:
        before = set(tmp_path.iterdir())
        code, out, err = shardwise(*shlex.split(step.command))
        assert code == step.code, err
        for text in step.texts:
            assert text in out + err, out + err
        written = {path.name for path in set(tmp_path.iterdir()) - before}
        assert written == ({step.file} if step.file else set())
