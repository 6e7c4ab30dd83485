"""Files of NeMo and Megatron-Bridge for other classes of models are refused."""

from pathlib import Path

import pytest

from shardwise import InputError, read_launch

NEMO = """
name: {name}
trainer: {{devices: 8, num_nodes: 1, precision: bf16}}
model:
  micro_batch_size: 1
  global_batch_size: 8
  tensor_model_parallel_size: 1
  vocab_size: 32000
  encoder_seq_length: 4096
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 8
{more}"""


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("megatron_gpt", "", None),
        ("megatron_mamba", "", "'megatron_mamba': is no GPT"),
        ("megatron_griffin", "", "'megatron_griffin': is no GPT"),
        ("megatron_t5", "", "is no GPT"),
        ("mamba-vs-llama", "", None),
        ("mine", "  mamba_ssm_ngroups: 8\n", "model.mamba_ssm_ngroups: 8: is no option of a GPT"),
        ("mine", "  hybrid_override_pattern: null\n", "is no option of a GPT"),
    ],
)
def test_nemo(tmp_path: Path, name: str, more: str, problem: str | None) -> None:
    """The class of a file is its name; options of other classes say it, too."""
    (tmp_path / "job.yaml").write_text(NEMO.format(name=name, more=more))
    if problem is None:
        assert read_launch(tmp_path / "job.yaml").strategy["gpus"] == 8
    else:
        with pytest.raises(InputError, match=problem):
            read_launch(tmp_path / "job.yaml")


def test_nodes_are_not_guessed(tmp_path: Path) -> None:
    """Without num_nodes the number of GPUs is left to who launches the file."""
    text = NEMO.format(name="megatron_gpt", more="").replace("num_nodes: 1, ", "")
    (tmp_path / "job.yaml").write_text(text)
    launch = read_launch(tmp_path / "job.yaml")
    assert (launch.missing, launch.per_node) == (("gpus",), 8)
    assert read_launch(tmp_path / "job.yaml", gpus=256).strategy["gpus"] == 256


@pytest.mark.parametrize("kind", ["MambaModelProvider1P3B", "T5ModelProvider"])
def test_providers_of_megatron_bridge(tmp_path: Path, kind: str) -> None:
    """A provider of another class is refused."""
    (tmp_path / "job.yaml").write_text(
        f"model:\n  _target_: megatron.bridge.models.{kind}\n  tensor_model_parallel_size: 1\n"
        "train:\n  micro_batch_size: 1\n  global_batch_size: 8\n"
    )
    with pytest.raises(InputError, match="is no GPT"):
        read_launch(tmp_path / "job.yaml")
