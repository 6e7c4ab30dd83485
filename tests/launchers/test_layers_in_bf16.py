"""First and last layers in bf16: options of Megatron-LM, presets and fields of Megatron-Bridge."""

from pathlib import Path
from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model, estimate, export, read_launch
from shardwise.config.layer_precision import ends_in_16_bits, with_16_bit_ends
from shardwise.launchers.megatron_bridge.precision import effective_precision

GPT = (
    "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 12 --hidden-size 1024"
    " --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048"
    " --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --bf16"
    " --tokenizer-type NullTokenizer --transformer-impl transformer_engine"
)
HYBRID = GPT.replace("pretrain_gpt", "pretrain_hybrid").replace(
    "--num-layers 12", "--mamba-num-heads 32 --hybrid-layer-pattern M-*-M-*-"
)
ON = " --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16"
COUNTS = " --num-layers-at-start-in-bf16 {} --num-layers-at-end-in-bf16 {}"


def read(tmp_path: Path, text: str) -> tuple[Model, list[str]]:
    """Model of a launch file, and the options that it does not use."""
    path = tmp_path / "train.sh"
    path.write_text(text + "\n")
    launch = read_launch(path)
    assert launch.model is not None
    return launch.model, [one.option for one in launch.not_understood]


@each_row(
    ("text", "ends"),
    [
        (GPT + ON, (1, 1)),
        (GPT + ON + COUNTS.format(0, 4), (0, 4)),
        (GPT + COUNTS.format(0, 4), (0, 0)),
        (GPT + " --first-last-layers-bf16", (0, 0)),
        (HYBRID + ON + COUNTS.format(0, 4), (0, 2)),
    ],
)
def test_options(text: str, ends: tuple[int, int], tmp_path: Path) -> None:
    """One layer at each end unless counts say more; without a recipe none. A layer has 2 blocks."""
    found, left = read(tmp_path, text)
    assert ends_in_16_bits(found) == ends
    assert not [option for option in left if "bf16" in option]


def test_an_end_inside_of_a_layer(tmp_path: Path) -> None:
    """Three blocks are one layer and a half."""
    found, left = read(tmp_path, HYBRID + ON + COUNTS.format(0, 3))
    assert ends_in_16_bits(found) == (0, 1)
    assert "--num-layers-at-end-in-bf16" in left


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    problem = r"num-layers-at-start-in-bf16: 13: must be at most the 12 layers"
    with pytest.raises(InputError, match=problem):
        read(tmp_path, GPT + ON + COUNTS.format(13, 0))


PLANS: dict[str, dict[str, Any]] = {
    "nemotron-3-super": {
        "gpus": 64,
        "tp": 2,
        "ep": 64,
        "etp": 1,
        "gbs": 512,
        "quantization": "nvfp4",
    },
    "qwen3-next-80b-a3b": {"gpus": 32, "ep": 32, "gbs": 64, "quantization": "mxfp8"},
    "llama3-8b": {"gpus": 8, "gbs": 64, "quantization": "fp8_tensor"},
    "deepseek-v3": {"gpus": 512, "ep": 64, "gbs": 512, "quantization": "mxfp8"},
}


@pytest.mark.parametrize("launcher", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_read_back_takes_the_same_time(launcher: str, name: str, tmp_path: Path) -> None:
    """With 2 layers at the start and 14 at the end."""
    system, plan = "b200-sxm", PLANS[name] | {"mbs": 1, "recompute": "full", "seq_len": 4096}
    ends = with_16_bit_ends(Model.load(name), 2, 14)
    plan |= {"stack": "megatron-lm-2026" if launcher == "megatron" else "megatron-bridge-2026"}
    file = export(launcher, ends, system, **plan).files[0]
    path = tmp_path / f"train{file.ending}"
    path.write_text(file.text)
    launch = read_launch(path)
    assert launch.model is not None
    found = ends_in_16_bits(launch.model)
    assert found == (2, 14)
    assert not [one for one in launch.not_understood if "bf16" in one.option]
    then, now = estimate(launch.model, system, launch.strategy), estimate(ends, system, **plan)
    assert then.step_time_s == pytest.approx(now.step_time_s, rel=1e-9)
    assert then.memory_bytes.total == pytest.approx(now.memory_bytes.total, rel=1e-9)


@each_row(
    ("launcher", "quantized", "problem"),
    [
        ("megatron", (True, False, True), "first and the last ones"),
        ("torchtitan", (True, True, False), r"layers\[2\]\.quantized: false: torchtitan has no"),
        ("accelerate", (True, True, False), r"layers\[2\]\.quantized: false: accelerate has no"),
    ],
)
def test_what_cannot_be_written(launcher: str, quantized: tuple[bool, ...], problem: str) -> None:
    """Layers in the middle; any, by launchers without such an option."""
    llama = Model.load("llama3-8b")
    (layer,) = llama.layers
    parts = [layer.model_copy(update={"count": 8, "quantized": one}) for one in quantized]
    inner = llama.model_copy(update={"layers": tuple(parts)})
    with pytest.raises(InputError, match=problem):
        export(launcher, inner, "h100-sxm", gpus=8, gbs=8, quantization="fp8_tensor")


@each_row(
    ("preset", "recipe", "ends"),
    [
        ("bf16_with_fp8_current_scaling_mixed", "tensorwise", (1, 1)),
        ("nemotron_h_bf16_with_fp8_current_scaling_mixed", "tensorwise", (2, 2)),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", "blockwise", (2, 2)),
        ("nemotron_3_super_bf16_with_nvfp4_mixed", "nvfp4", (0, 14)),
        ("bf16_with_mxfp8_mixed", "mxfp8", (0, 0)),
    ],
)
def test_presets_of_bridge(preset: str, recipe: str, ends: tuple[int, int]) -> None:
    """Fields of training/mixed_precision.py, whose default is no layer (067f987)."""
    found = effective_precision(preset, "p", "f")
    assert isinstance(found, dict)
    assert bool(found["first_last_layers_bf16"]) == any(ends)
    assert (found["num_layers_at_start_in_bf16"], found["num_layers_at_end_in_bf16"]) == ends
    assert recipe in (found["fp8_recipe"], found["fp4_recipe"])
    assert found["bf16"]
