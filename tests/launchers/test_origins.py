"""Where imported fields come from, and which options that nobody understands come first."""

from pathlib import Path

import numpy as np
import pytest

from shardwise import read_launch
from shardwise.config.launch import Effect, Origin
from shardwise.launchers.importance import effect_of

READ, DEFAULT, DERIVED, ASSUMED = Origin
SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 1024"
    " --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --bf16"
    " --vocab-size 32000 --micro-batch-size 2 --tensor-model-parallel-size 2"
)
TITAN = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def one() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""
JSON = '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}'
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("name", "text", "gpus", "origins", "missing"),
    [
        (
            "train.sh",
            SCRIPT,
            None,
            {"gpus": READ, "tp": READ, "pp": DEFAULT, "global_batch_size": DERIVED}
            | {"seq_len": READ, "zero": DEFAULT, "stack": ASSUMED},
            (),
        ),
        (
            "one.py",
            TITAN,
            8,
            {"gpus": READ, "micro_batch_size": READ, "seq_len": DEFAULT, "dp": DERIVED}
            | {"global_batch_size": DERIVED, "tp": READ, "pp": DEFAULT},
            (),
        ),
        (
            "ds.json",
            JSON,
            None,
            {"micro_batch_size": READ, "dtype": READ, "zero": DEFAULT, "stack": ASSUMED},
            ("gpus", "seq_len", "global_batch_size"),
        ),
        (
            "acc.yaml",
            ACCELERATE,
            None,
            {"gpus": READ, "dtype": DEFAULT, "stack": ASSUMED},
            ("seq_len", "micro_batch_size", "global_batch_size"),
        ),
    ],
)
def test_origins(tmp_path: Path, name, text, gpus, origins, missing) -> None:
    """Every field has an origin; what a file lacks of batch, sequence and GPUs is listed."""
    (tmp_path / name).write_text(text)
    launch = read_launch(tmp_path / name, gpus=gpus)
    assert set(launch.origins) == set(launch.strategy)
    assert {field: launch.origins[field] for field in origins} == origins
    assert launch.missing == missing


WORDS = ["dense", "expert", "latent", "hash", "mixer", "residual", "shared", "zero", "looped", "qk"]
KINDS = ["-layers 3", "-experts 4", "-heads 2", "-dim 64", "-ratio 0.5", "-type x", "-topk 2"]
COSMETIC = ["--codecarbon-dir x", "--kill-switch-file y", "--swap-optimizer", "--fused-thing"]


def test_options_that_change_the_model_come_first(tmp_path: Path) -> None:
    """Of 300 random scripts with one unknown option of the model, all name it first."""
    draw = np.random.default_rng(43)
    for number in range(300):
        own = f"--{draw.choice(WORDS)}{draw.choice(KINDS)}"
        others = draw.permutation([*draw.choice(COSMETIC, draw.integers(5)), own])
        file = tmp_path / f"{number}.sh"
        file.write_text(f"{SCRIPT} {' '.join(others)}")
        first = read_launch(file).not_understood[0]
        assert (first.option, first.effect) == (own.partition(" ")[0], Effect.MODEL)


@pytest.mark.parametrize(
    ("option", "effect"),
    [
        ("--noop-layers", Effect.MODEL),
        ("--n-shared-experts", Effect.MODEL),
        ("--expert-interval", Effect.MODEL),
        ("model.altupNumInputs", Effect.MODEL),
        ("--hc-mult", Effect.UNKNOWN),
        ("--swap-optimizer", Effect.COST),
        ("--recompute-odd-layers", Effect.COST),
        ("--use-fused-swiglu", Effect.COST),
        ("--log-layer-norms", Effect.NONE),
        ("--run-name", Effect.NONE),
    ],
)
def test_effects(option: str, effect: Effect) -> None:
    """Words of a name say what an option may change; an unknown name outranks known costs."""
    assert effect_of(option) == effect
