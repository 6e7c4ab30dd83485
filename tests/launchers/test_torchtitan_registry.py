"""Registries of torchtitan's main branch: several functions, products, families by import."""

from pathlib import Path

import pytest

from shardwise import InputError, Model, read_launch

HEAD = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
{registry}
"""
BODY = """

def {name}() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("{flavor}"),
        training=TrainingConfig({training}),
        parallelism=ParallelismConfig({parallelism}),
    )
"""
LLAMA = "from torchtitan.models.llama3 import model_registry"
DERIVED = """

def big_cp() -> Trainer.Config:
    config = base()
    config.parallelism.context_parallel_degree = 2
    return config
"""


def file(folder: Path, text: str, name: str = "config_registry.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def one(name="base", flavor="8B", training="", parallelism="", registry=LLAMA) -> str:
    return HEAD.format(registry=registry) + BODY.format(
        name=name, flavor=flavor, training=training, parallelism=parallelism
    )


@pytest.mark.parametrize(
    ("training", "length", "micro"),
    [
        ("num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192", 8192, 2),
        ("num_tokens_per_microbatch_per_dp_rank=(4 + 4) * SEQ, max_context_length=SEQ", 4096, 8),
        ("local_batch_size=32 // 4, seq_len=2 * 1024", 2048, 8),
        ("max_context_length=8192", 8192, 2),
    ],
)
def test_products(tmp_path: Path, training: str, length: int, micro: int) -> None:
    """Arithmetic with literal numbers and names is a number; 16384 tokens are the default."""
    text = one(training=training).replace("def base", "SEQ = 4096\n\n\ndef base")
    strategy = read_launch(file(tmp_path, text), gpus=8).strategy
    assert (strategy["seq_len"], strategy["micro_batch_size"]) == (length, micro)


def test_counts_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """A count that cannot be calculated is no default."""
    text = one(training="num_tokens_per_microbatch_per_dp_rank=2 * tokens()")
    with pytest.raises(InputError, match=r"num_tokens_per_microbatch_per_dp_rank.*no literal"):
        read_launch(file(tmp_path, text), gpus=8)


def test_one_of_several(tmp_path: Path) -> None:
    """FILE.py:NAME names a configuration; a derived one has the other values of its base."""
    path = file(tmp_path, one(flavor="70B", parallelism="tensor_parallel_degree=8") + DERIVED)
    with pytest.raises(InputError, match=r"name one, FILE\.py:NAME of base, big_cp"):
        read_launch(path, gpus=64)
    found = read_launch(f"{path}:big_cp", gpus=64)
    assert found.model == Model.load("llama3-70b")
    assert (found.strategy["cp"], found.strategy["tp"]) == (2, 8)
    assert read_launch(f"{path}:base", gpus=64).strategy["cp"] == 1
    with pytest.raises(InputError, match="allowed: base, big_cp; did you mean 'big_cp'"):
        read_launch(f"{path}:big", gpus=64)


def test_what_is_set_under_a_condition_is_not_known(tmp_path: Path) -> None:
    """A value that depends on a condition is refused where it counts."""
    branch = "    if config.compile.enable:\n    "
    changed = DERIVED.replace("    config.parallelism", f"{branch}    config.parallelism")
    path = file(tmp_path, one() + changed)
    with pytest.raises(InputError, match="under a condition"):
        read_launch(f"{path}:big_cp", gpus=64)


@pytest.mark.parametrize(
    ("folder", "name", "more", "model"),
    [
        ("models/qwen3", "base", "", "qwen3-8b"),
        ("models/llama3", "qwen3_8b", "", "llama3-8b"),
        ("mine", "qwen3_8b", "", "qwen3-8b"),
        ("mine", "base", "from .model import Qwen3Model", "qwen3-8b"),
        ("mine", "base", "", "set a model"),
        ("models/qwen3_5", "qwen3_8b", "", "'qwen3_5'"),
        ("mine", "qwen35_8b", "", "set a model"),
    ],
)
def test_a_family_by_relative_import(tmp_path: Path, folder, name, more, model) -> None:
    """The folder of a registry names the family, else its function or class; none is guessed."""
    text = one(name=name, registry=f"from . import model_registry\n{more}")
    path = file(tmp_path / folder, text)
    if "-" in model:
        assert read_launch(path, gpus=8).model.name == model
    else:
        with pytest.raises(InputError, match=model):
            read_launch(path, gpus=8)
