"""Exported files load in the Trainer's own class, and in TRL's where it is installed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise import export

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that older releases need

PLANS: dict[str, dict[str, Any]] = {
    "full": {"gpus": 2, "zero": 3, "recompute": "full", "fsdp_reshard": False},
    "lora": {"gpus": 1, "zero": 0, "lora_rank": 8, "lora_targets": "qv", "base_weights": "nf4"},
    "8bit": {"gpus": 2, "zero": 2, "optimizer": "adamw-8bit", "recompute": "full"},
}
OWN = {
    "trl": (
        *("model_name_or_path", "dtype", "dataset_name", "max_length", "packing", "loss_type"),
        *("packing_strategy", "use_peft", "lora_r", "lora_target_modules", "load_in_4bit"),
        "use_bnb_nested_quant",
    ),
    "llama-factory": (
        *("model_name_or_path", "stage", "packing", "finetuning_type", "dataset", "template"),
        *("cutoff_len", "disable_gradient_checkpointing", "lora_rank", "lora_target"),
        "quantization_bit",
    ),
}
"""Options that are not the Trainer's: of TRL v1.9.0 (sft_config.py, model_config.py, utils.py) and
of LLaMA-Factory ff6d4d12 (hparams)."""


def written(trainer: str, plan: str) -> dict[str, Any]:
    fields = {"gbs": 8, "seq_len": 1024, "task": "sft"} | PLANS[plan]
    found: dict[str, Any] = yaml.safe_load(
        export(trainer, "llama3.2-1b", "h100-sxm", fields).files[0].text
    )
    return found


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("trainer", OWN)
def test_options_of_the_trainer_load_in_its_class(
    trainer: str, plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TrainingArguments` of transformers; the others are those of the trainer."""
    monkeypatch.chdir(tmp_path)
    settings = written(trainer, plan)
    known = {name: value for name, value in settings.items() if name not in OWN[trainer]}
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    [found] = parser.parse_dict(known | {"use_cpu": True})
    assert found.per_device_train_batch_size == settings["per_device_train_batch_size"]
    assert found.optim.value == settings["optim"]
    assert bool(found.fsdp) == (PLANS[plan]["gpus"] > 1)
    if found.fsdp:
        assert int(found.fsdp_config["version"]) == 2
        assert found.fsdp_config["reshard_after_forward"] is False


def test_trl_reads_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser of its scripts."""
    trl = pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(written("trl", "lora")))
    parser = trl.TrlParser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    _, config, model = parser.parse_args_and_config(["--config", "run.yaml", "--use_cpu", "true"])
    assert (config.max_length, model.lora_r, model.load_in_4bit) == (1024, 8, True)
