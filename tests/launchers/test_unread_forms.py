"""Launch files of trainers that nobody reads: one clear line, wherever they stand."""

from pathlib import Path

import pytest

from shardwise import InputError, Model, read_launch

FORMS = {
    "nanotron.yaml": "model: {}\nparallelism:\n  tp: 2\ntokens:\n  micro_batch_size: 2\n",
    "foundry.yaml": "max_seq_len: 2048\nglobal_train_batch_size: 512\nmodel: {name: mpt}\n",
    "flagscale.yaml": "experiment:\n  exp_name: x\n  task:\n    type: train\naction: run\n",
    "maxtext.yml": "base_emb_dim: 2048\nici_fsdp_parallelism: 4\n",
    "primus.yaml": "modules:\n  pre_trainer:\n    framework: maxtext\n",
    "olmo.py": "from olmo_core.config import DType\n",
    "config_DGX.sh": "export DGXNNODES=8\nexport DGXNGPU=8\nexport TENSOR_MODEL_PARALLEL=4\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_a_known_form_is_named(tmp_path: Path, name: str) -> None:
    """One fault says what the file is, and what to do instead; as a model, too."""
    path = tmp_path / name
    path.write_text(FORMS[name])
    for read in (read_launch, lambda file: Model.load(str(file))):
        with pytest.raises(InputError) as refused:
            read(path)
        (fault,) = refused.value.faults
        assert "is a launch file of" in fault.problem
        assert "set the plan as flags" in fault.problem
