"""What several test modules of the FSDP planner use."""

import json

import pytest

import fsdp_ilp_samples


@pytest.fixture(scope="session")
def statistics(tmp_path_factory):
    """Files of module statistics by name of the model, in both layouts."""
    folder = tmp_path_factory.mktemp("statistics")
    for name in fsdp_ilp_samples.GOLDEN["module_infos"]:
        (folder / f"{name}.json").write_text(json.dumps(fsdp_ilp_samples.flat(name)))
        (folder / f"{name}-torch.json").write_text(json.dumps(fsdp_ilp_samples.nested(name)))
    return folder
