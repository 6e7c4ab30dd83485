"""Launch files of trainers that shardwise knows and does not read."""

import re
from pathlib import Path

from shardwise.config import files
from shardwise.errors import InputError

_YAML, _SHELL, _PYTHON = (".yaml", ".yml"), (".sh", ".slurm", ".sbatch", ".conf", ""), (".py",)
_FORMS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("nanotron", _YAML, (r"^parallelism:", r"^tokens:", r"^model:")),
    ("llm-foundry", _YAML, (r"^max_seq_len:", r"^(fsdp_config|global_train_batch_size):")),
    ("FlagScale", _YAML, (r"^experiment:", r"^\s+(exp_name|task):", r"^action:")),
    ("MaxText", _YAML, (r"^(base_emb_dim|base_num_decoder_layers|ici_\w+_parallelism):",)),
    ("Primus with another framework", _YAML, (r"^modules:", r"^\s+framework:\s*(?!megatron\b)\w")),
    ("OLMo-core", _PYTHON, (r"^\s*(from|import) olmo_core",)),
    (
        "open-instruct",
        _YAML,
        (r"^model_name_or_path:", r"^(use_slow_tokenizer|dataset_mix_dir|dataset_mixer_list):"),
    ),
    ("MLPerf", _SHELL, (r"\bDGX(NNODES|NGPU|SYSTEM)=|STARTING TIMING RUN",)),
)
"""Trainer, endings of its files, and patterns of lines that every one of them has."""
HINT = "name the model, and set the plan as flags (--gpus --tp --pp --mbs --gbs)"


def unread_form(text: str, source: str) -> str | None:
    """Return what a file is that no reader reads; None if it is not known either."""
    plain = source.removesuffix(".gz")
    ending = Path(plain).suffix.lower()
    for title, endings, patterns in _FORMS:
        if ending in endings and all(re.search(one, text, re.MULTILINE) for one in patterns):
            return f"is a launch file of {title}, which shardwise does not read: {HINT}"
    return None


def unread_file(path: str) -> str | None:
    """Return what a file is that no reader reads; None where it is not known or not text."""
    try:
        return unread_form(files.read_text(path), path)
    except InputError:
        return None
