"""Where imported fields come from, and which options that nobody understands come first."""

from collections.abc import Sequence
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


BRIDGE = (
    "model: {{num_layers: 4, hidden_size: 64, num_attention_heads: 4, vocab_size: 512,"
    " seq_length: 64, tensor_model_parallel_size: 1{0}}}\n"
    "train: {{micro_batch_size: 1, global_batch_size: 8}}\n"
)
NEMO = (
    "trainer: {{devices: 8, num_nodes: 1, precision: bf16}}\n"
    "model: {{num_layers: 4, hidden_size: 64, num_attention_heads: 4, override_vocab_size: 512,"
    " encoder_seq_length: 64, micro_batch_size: 1, global_batch_size: 8,"
    " tensor_model_parallel_size: 1{0}}}\n"
)
PRIMUS = (
    "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3_8B.yaml\n"
    "    overrides: {{micro_batch_size: 1, global_batch_size: 8{0}}}\n"
)
NEOX = (
    "{{pipe_parallel_size: 1, num_layers: 4, hidden_size: 64, num_attention_heads: 4,"
    " seq_length: 64, train_micro_batch_size_per_gpu: 1{0}}}\n"
)
TOML = (
    '[model]\nname = "llama3"\nflavor = "8B"\n{0}\n[training]\nlocal_batch_size = 1\n'
    "[parallelism]\ntensor_parallel_degree = 1\n[job]\n"
)
BESIDE = ["enable_fused_thing: true", "swap_buffers: 3", "run_name: x"]
"""Options of other kinds, which the option of the model precedes."""


def _yaml(form: str, name: str, value: str, others: Sequence[str]) -> str:
    more = [*others, f"{name.replace('-', '_')}: {value}"]
    return form.format("".join(f", {one}" for one in more))


def _script(_: str, name: str, value: str, others: Sequence[str]) -> str:
    flags = [f"--{one.replace('_', '-').replace(': true', '').replace(':', '')}" for one in others]
    return " ".join([SCRIPT, *flags, f"--{name} {value}"])


def _toml(form: str, name: str, value: str, others: Sequence[str]) -> str:
    lines = [*others, f"{name.replace('-', '_')}: '{value}'"]
    lines = [one.replace(": x", ": 'x'").replace(":", " =", 1) for one in lines]
    return form.format("\n".join(lines))


FORMS = {
    "train.sh": (_script, ""),
    "bridge.yaml": (_yaml, BRIDGE),
    "nemo.yaml": (_yaml, NEMO),
    "primus.yaml": (_yaml, PRIMUS),
    "neox.yml": (_yaml, NEOX),
    "titan.toml": (_toml, TOML),
}


def test_options_that_change_the_model_come_first(tmp_path: Path) -> None:
    """Of 300 random files with one unknown option of the model, all name it first."""
    draw = np.random.default_rng(43)
    for number in range(300):
        name, (written, form) = list(FORMS.items())[number % len(FORMS)]
        kind, value = str(draw.choice(KINDS)).split()
        option = f"{draw.choice(WORDS)}{kind}"
        others = draw.permutation(BESIDE)[: draw.integers(len(BESIDE) + 1)]
        (tmp_path / name).write_text(written(form, option, value, others))
        words = {"gpus": 8, "variables": {"vocab_size": "512"}}
        first = read_launch(tmp_path / name, **words).not_understood[0]
        own = first.option.removeprefix("--").rpartition(".")[2].replace("_", "-")
        assert (own, first.effect) == (option, Effect.MODEL), (name, first)


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
