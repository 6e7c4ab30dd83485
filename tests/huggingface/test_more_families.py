"""Published files of families whose layers differ in more than a window, next to the catalog."""

from typing import Any

import pytest

from huggingface_configs import MORE
from rows import each_row
from shardwise import InputError, Model, catalog
from shardwise.ops.param_count import count_parameters

PUBLISHED: dict[str, dict[str, Any]] = MORE
IN_CATALOG = [name for name in PUBLISHED if name in catalog.names("models")]


def layers(model: Model) -> list[Any]:
    """All layers in order, without their symbols and counts."""
    plain = [layer.model_copy(update={"symbol": None, "count": 1}) for layer in model.layers]
    return [plain[kind] for kind in model.order]


@each_row("name", IN_CATALOG)
def test_the_catalog_has_the_published_shapes(name: str) -> None:
    """Every layer, and what is around the layers."""
    found, known = Model.load(PUBLISHED[name]), Model.load(name)
    assert layers(found) == layers(known)
    for field in ("hidden", "vocab", "mtp", "streams", "tied_embeddings", "layer_embedding"):
        assert getattr(found, field) == getattr(known, field)


@each_row(
    ("name", "billions"),
    [("mimo-7b", 7.623), ("nemotron-super-49b", 49.867)],
)
def test_files_of_classes_that_transformers_lacks(name: str, billions: float) -> None:
    """Of the first the card says 7.83 B with its module of prediction, of the second 49.9 B."""
    counted = count_parameters(Model.load(PUBLISHED[name]))
    assert round(counted.total / 1e9, 3) == billions


def test_layers_of_pruned_models_may_lack_attention() -> None:
    """Llama-Nemotron: 80 layers with an MLP, 49 of them with attention."""
    model = Model.load(PUBLISHED["nemotron-super-49b"])
    kinds = layers(model)
    assert len(kinds) == 80
    assert sum(layer.attention is not None for layer in kinds) == 49


def test_owners_of_indexers() -> None:
    """GLM-5.2: 21 of 78 layers; a pattern or every n-th layer say the same."""
    data = PUBLISHED["glm-5.2"]
    shared = [layer.attention.indexer.shared for layer in layers(Model.load(data))]
    assert shared.count(False) == 21
    plain = {key: value for key, value in data.items() if key != "indexer_types"}
    assert layers(Model.load(plain)) == layers(Model.load(data))
    letters = "".join("S" if one else "F" for one in shared)
    assert layers(Model.load(plain | {"index_topk_pattern": letters})) == layers(Model.load(data))


def test_embeddings_of_layers_are_in_no_file_that_has_none() -> None:
    """Gemma 4 26B says 0 for their width, and shares no keys."""
    model = Model.load(PUBLISHED["gemma-4-26b-a4b"])
    assert model.layer_embedding == 0
    assert not any(layer.attention.shared_keys for layer in layers(model))
    assert "soft-capping of output logits" in model.left_out


@each_row(
    ("name", "changes", "message"),
    [
        ("deepseek-v4-flash", {"compress_ratios": [0, 8]}, "must be a list of 0, 4 and 128"),
        ("deepseek-v4-flash", {"n_shared_experts": 2}, "n_shared_experts: 2"),
        ("glm-5.2", {"indexer_types": ["half"] * 78}, "'half': not modeled; allowed: full, shared"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [1, 0]}, "must be a list of 48 integers"),
        ("nemotron-super-49b", {"block_configs": []}, "must be a list of 80 mappings"),
        ("minimax-m3", {"attention_output_gate": True}, "gates of the output are not modeled"),
    ],
)
def test_wrong_values_are_named(name: str, changes: dict[str, Any], message: str) -> None:
    """With the key, and what is allowed."""
    with pytest.raises(InputError) as caught:
        Model.load(PUBLISHED[name] | changes)
    assert message in str(caught.value)
