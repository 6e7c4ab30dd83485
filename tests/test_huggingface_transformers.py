"""Stored figures of families against transformers itself; where it is not installed, nothing."""

import pytest

from huggingface_configs import FAMILIES

pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = [kind for kind, row in FAMILIES.items() if row.get("small_parameters")]
BIASES = ("e_score_correction_bias", "expert_bias")
TOWERS = ("vision", "visual", "audio", "multi_modal_projector")


@pytest.mark.parametrize("kind", SMALL)
def test_stored_parameters_are_those_of_the_modules(kind):
    """With odd sizes, on the meta device."""
    keys = {k: v for k, v in FAMILIES[kind]["small"].items() if k != "model_type"}
    config = AutoConfig.for_model(kind, pad_token_id=0, **keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = [p for n, p in model.named_parameters() if not any(part in n for part in TOWERS)]
    held += [b for n, b in model.named_buffers() if n.endswith(BIASES)]
    assert sum(tensor.numel() for tensor in held) == FAMILIES[kind]["small_parameters"]
