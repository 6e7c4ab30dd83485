"""Software of launch files: of the release that a file or a log names, or as it is typed."""

import json
from pathlib import Path
from typing import Any

from rows import each_row
from shardwise import Launch, Strategy, System, diagnose
from shardwise.launchers import deepspeed, megatron
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.logs import read_log
from shardwise.launchers.registry import read_by
from shardwise.launchers.software import described_as, of_its_release, of_run
from written_logs import Run, write_log
from written_logs import deepspeed as deepspeed_log

H100 = System.load("h100-sxm")
OPTIONS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16 "
    "--vocab-size 50000 --tokenizer-type NullTokenizer"
)


def script(release: str = "", more: str = "") -> Launch:
    """A script of Megatron-LM with a release in a remark."""
    remark = f"# Megatron-LM core_v{release}\n" if release else ""
    return read_by(megatron.LAUNCHER, LaunchText(source="t.sh", text=f"{remark}{OPTIONS} {more}\n"))


def stack_of(launch: Launch) -> Any:
    """The stack on H100."""
    return Strategy.validated(launch.strategy).loaded_stack(H100, launch.model)


@each_row(
    ("launch", "name", "month"),
    [
        (script, "megatron-lm-2026", ""),
        (lambda: script("0.12.0"), "megatron-lm-2024", "2025-05"),
        (lambda: script("0.19.0"), "megatron-lm-2026", ""),  # as exported: the launcher's own
        (lambda: script("0.19.2"), "megatron-lm-2026", ""),
        (lambda: described_as(script(), "megatron-core-2025"), "megatron-core-2025", ""),
        (lambda: described_as(script(), "Megatron-LM 2025-05"), "megatron-lm-2024", "2025-05"),
        (lambda: described_as(script("0.12.0"), "Megatron-LM"), "megatron-lm-2024", "2025-05"),
        (lambda: described_as(script("0.12.0"), "FlashAttention-2"), "megatron-lm-2024", "2025-05"),
        (lambda: described_as(script("0.12.0"), "mcore core_v0.17"), "megatron-lm-2026", "2026-04"),
        (lambda: described_as(script("0.12.0"), "NeMo 25.04"), "nemo-2025", "2025-04"),
    ],
)
def test_software_of_a_script(launch: Any, name: str, month: str) -> None:
    """What is typed, else the release in the file if shardwise writes another one."""
    stack = stack_of(launch())
    assert stack.name == name
    assert not month or stack.released in (month, "")  # empty: figures without a trend


@each_row("text", ["", "Megatron-LM", "megatron-core-2025", "NeMo 25.04"])
def test_what_a_file_sets_stays(text: str) -> None:
    """16-bit gradients of a script with any software; a word that is typed counts more."""
    launch = script("0.12.0", "--grad-reduce-in-bf16")
    launch = described_as(launch, text) if text else launch
    assert stack_of(launch).gradient_dtype == "compute"
    typed = described_as(script("0.12.0"), "Megatron-LM unfused attention")
    assert stack_of(typed).attention_kernel == "unfused"


def test_sizes_of_a_file_stay() -> None:
    """What the Trainer fills in does not replace buckets that a file sets, or leaves out."""
    for sizes in ({}, {"reduce_bucket_size": 5e8}):
        text = json.dumps({"zero_optimization": {"stage": 3, **sizes}})
        launch = read_by(deepspeed.LAUNCHER, LaunchText(source="ds.json", text=text))
        typed = stack_of(described_as(launch, "LLaMA-Factory, DeepSpeed ZeRO-3, 2025-03"))
        assert (typed.name, typed.reduce_bucket_size) == ("deepspeed-2024", 5e8)
        assert not typed.buckets_by_width


def test_options_newer_than_the_figures_of_a_release() -> None:
    """They keep the launcher's stack, and the release is listed."""
    launch = script("0.8.0", "--overlap-moe-expert-parallel-comm --cuda-graph-impl full_iteration")
    assert stack_of(launch).name == "megatron-lm-2026"
    [one] = [one for one in launch.not_understood if one.option == "release"]
    assert "cuda_graphs" in one.because


def test_release_of_another_launcher_does_not_count() -> None:
    """A file that names none keeps its stack, whatever a log of something else printed."""
    text = LaunchText(source="ds.json", text='{"zero_optimization": {"stage": 2}}')
    launch = read_by(deepspeed.LAUNCHER, text)
    assert of_its_release(launch, deepspeed.LAUNCHER.releases, None) is launch
    older = of_its_release(launch, deepspeed.LAUNCHER.releases, "0.14.0")
    assert stack_of(older).name == "deepspeed-2024"


CONFIG = json.dumps(
    {
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 8,
    }
)


def written(folder: Path, line: str) -> Path:
    """A log of DeepSpeed that begins with a line."""
    log = folder / "run.log"
    write_log(log, deepspeed_log, Run(seconds=(5.0,) * 4, batch=8, memory=1e10))
    log.write_text(f"[2024-05-01 00:00:00] {line}\n{log.read_text()}")
    return log


@each_row(
    ("line", "typed", "stack"),
    [
        ("", None, "deepspeed-2026"),
        ("DeepSpeed info: version=0.14.0, git-hash=unknown", None, "deepspeed-2024"),
        ("DeepSpeed info: version=0.19.5, git-hash=unknown", None, "deepspeed-2026"),
        ("torchtitan version: 0.1.0", None, "deepspeed-2026"),
        ("", "DeepSpeed 0.14", "deepspeed-2024"),
        ("DeepSpeed info: version=0.14.0", "LLaMA-Factory, DeepSpeed, 2026-03", "deepspeed-2026"),
    ],
)
def test_software_of_a_run(tmp_path: Any, line: str, typed: str | None, stack: str) -> None:
    """The release that a log prints, unless software is typed."""
    launch = read_by(deepspeed.LAUNCHER, LaunchText(source="ds.json", text=CONFIG))
    log = read_log(written(tmp_path, line))
    release = log.releases.get("deepspeed")
    found = of_run(launch, deepspeed.LAUNCHER.releases, named=typed, release=release)
    assert stack_of(found).name == stack


def test_diagnosed_software(tmp_path: Any) -> None:
    """A diagnosis compares the run with the release in its log."""
    (tmp_path / "ds.json").write_text(CONFIG)
    log = written(tmp_path, "DeepSpeed info: version=0.14.0")
    run = {"log": log, "model": "llama3.2-1b", "changes": 0}
    found = diagnose(tmp_path / "ds.json", H100, strategy={"gpus": 8}, **run)
    named = found.strategy["stack"]
    assert (named if isinstance(named, str) else named["base"]) == "deepspeed-2024"


def test_import_prints_how_software_is_understood(shardwise: Any, tmp_path: Any) -> None:
    """The most probable stack, and the record in JSON."""
    file = tmp_path / "t.sh"
    file.write_text(OPTIONS)
    words = ("import", str(file), "--stack", "Megatron-LM core_v0.12")
    code, out, _ = shardwise(*words)
    assert code == 0
    assert "stack: megatron-lm-2024, as Megatron-LM core_v0.12 is understood" in out
    record = json.loads(shardwise(*words, "--json")[1])
    assert record["software"]["candidates"][0]["stack"] == "megatron-lm-2024"
    assert record["stack"]["release"] == "0.12"
    plain = json.loads(shardwise("import", str(file), "--json")[1])
    assert plain["software"] is None
    code, _, err = shardwise("import", str(file), "--stack", "no such thing")
    assert code != 0
    assert "no such stack" in err
