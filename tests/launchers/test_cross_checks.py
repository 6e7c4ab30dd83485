"""Launch file, log, trace and system of a diagnosis belong together, or it says otherwise."""

import json
from pathlib import Path

import pytest

from shardwise import InputError, diagnose, read_launch
from shardwise.launchers.diagnose.cross_checks import product_of

LINE = " iteration {:>8}/ 100 | elapsed time per iteration (ms): {} | global batch size: {} |\n"


def files(folder: Path, *, device: str, step_us: int, batch: int = 8) -> dict[str, Path]:
    """A launch file of 4 ranks on a node, its log of 100 ms, and a trace."""
    script = (
        "torchrun --nproc-per-node 4 --nnodes 2 pretrain_gpt.py --num-layers 4 --hidden-size 1024"
        " --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512"
        " --vocab-size 32000 --micro-batch-size 1 --global-batch-size 8 --fp16"
        " --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    )
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": at, "dur": dur}
        for step in range(3)
        for cat, name, at, dur in (
            ("user_annotation", f"ProfilerStep#{step}", step * step_us, step_us - 10),
            ("kernel", "sm80_xmma_gemm", step * step_us, step_us // 2),
        )
    ]
    trace = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}
    texts = {
        "train.sh": script,
        "run.log": "".join(LINE.format(n, 100.0, batch) for n in range(1, 21)),
        "trace.json": json.dumps(trace),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


@pytest.mark.parametrize(
    ("device", "step_us", "problem"),
    [
        ("Tesla V100-SXM2-32GB", 110_000, None),
        ("", 110_000, None),
        ("AMD Instinct MI300X", 110_000, "of another machine"),
        ("Tesla V100-SXM2-32GB", 1_000, "those of the log 100 ms: the trace is of another run"),
        ("Tesla V100-SXM2-32GB", 900_000, "the trace is of another run"),
    ],
)
def test_a_trace_of_another_run_is_refused(tmp_path: Path, device, step_us, problem) -> None:
    """Its steps are far from those of the log, or it names another accelerator."""
    made = files(tmp_path, device=device, step_us=step_us)
    words = {"log": made["run.log"], "trace": made["trace.json"], "changes": 0}
    if problem is None:
        assert diagnose(made["train.sh"], "v100-sxm-32gb", **words).components
    else:
        with pytest.raises(InputError, match=problem):
            diagnose(made["train.sh"], "v100-sxm-32gb", **words)


def test_nodes_of_the_launch_file(tmp_path: Path) -> None:
    """No change has a tensor-parallel group that is larger than a node of the file."""
    made = files(tmp_path, device="", step_us=100_000, batch=16)
    assert read_launch(made["train.sh"]).per_node == 4
    found = diagnose(made["train.sh"], "v100-sxm-32gb", log=made["run.log"], changes=20)
    assert found.changes
    degrees = [one.value for change in found.changes for one in change.fields if one.field == "tp"]
    assert [tp for tp in degrees if tp > 4] == []
    notes = " ".join(found.notes)
    assert "starts 4 ranks on a node, and v100-sxm-32gb has 8" in notes
    assert "has a global batch of 16, and the launch file 8" in notes


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GB200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GeForce RTX 4090", ""),
    ],
)
def test_products(name: str, product: str) -> None:
    """The product is found in names of drivers and of the catalog."""
    assert product_of(name) == product
