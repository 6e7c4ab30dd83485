"""Families with parts that no field describes; their counts are in test_huggingface_families."""

import copy
from typing import Any

import pytest

from huggingface_configs import FAMILIES
from rows import each_row
from shardwise import InputError, Model
from shardwise.huggingface.families import SECTIONS

KINDS = [
    kind for family in SECTIONS["uncommon"].values() for kind in family.kinds if kind in FAMILIES
]


def small(kind: str, **changes: Any) -> Model:
    """A family's configuration of odd sizes, with other values of some keys."""
    return Model.load(copy.deepcopy(FAMILIES[kind]["small"]) | changes)


@each_row("kind", sorted(set(KINDS)))
def test_what_is_counted_and_not_timed_is_named(kind: str) -> None:
    """Scales of a few vectors alone go without saying."""
    model = small(kind)
    most = max(layer.more_parameters for layer in model.layers)
    if most + model.more_parameters > 8 * model.hidden:
        assert model.left_out


def test_layers_of_a_text_model_attend_to_images() -> None:
    """Llama 3.2 Vision: 8 of 40 layers, with norms of queries and keys and two gates."""
    model = Model.load(FAMILIES["mllama"]["default"])
    crossing = [layer for layer in model.layers if layer.more_parameters]
    assert sum(layer.count for layer in crossing) == 8
    assert {layer.attention.rotary_dim for layer in crossing} == {0}
    assert model.more_parameters == 8 * 4096


def test_kinds_of_layers_without_rotary_parameters_have_no_positions() -> None:
    """In the file of odd sizes those with full attention."""
    model = small("cohere_compass_text")
    full = [layer.attention.rotary_dim for layer in model.layers if not layer.attention.window]
    assert full == [0]
    assert {one.attention.rotary_dim for one in model.layers if one.attention.window} == {None}


def test_blocks_of_keys_are_named_where_there_are_any() -> None:
    """BigBird with full attention leaves nothing out."""
    assert small("big_bird").left_out == ("block-sparse attention: all keys are counted",)
    assert small("big_bird", attention_type="original_full").left_out == ()


def test_assistants_have_no_keys_of_their_own() -> None:
    """Two projections, 3 x 44 x 60 together, and 11 centroids as wide as the model, 60."""
    model = small("gemma4_assistant")
    assert all(layer.attention.shared_keys for layer in model.layers)
    assert model.more_parameters == 60 * (3 * 44 + 11)


def test_a_token_passes_through_the_adapter_of_one_language() -> None:
    """3 languages, 5 layers, 60 to 20 and back with biases: none in the layers."""
    model = small("xmod")
    assert model.more_parameters == 3 * 5 * (2 * 60 * 20 + 60 + 20)
    assert {layer.more_parameters for layer in model.layers} == {0}


def test_older_files_of_inkling_list_layers_by_number() -> None:
    """Two of 5 without a window; the first without experts, of `dense_intermediate_size`."""
    older = {"layer_types": None, "local_layer_ids": [0, 2, 3], "mlp_layer_types": None}
    widths = {"dense_mlp_idx": 1, "intermediate_size": 35, "dense_intermediate_size": 77}
    model = small("inkling_text", **older, **widths)
    layers = [model.layers[kind] for kind in model.order]
    assert [layer.attention.window for layer in layers] == [16, None, 16, 16, None]
    assert layers[0].mlp.ffn == 77
    assert {layer.moe.ffn for layer in layers[1:]} == {35}


def test_rows_of_an_embedding_may_exceed_the_head() -> None:
    """Inkling 2: 103 rows, 97 words; a query of the head is as wide as the model, 60."""
    model = small("inkling2_text")
    assert (model.vocab, model.more_parameters) == (97, 60 * (103 - 97 + 1))


def test_a_nested_text_model_of_images_is_read() -> None:
    """Its file names the class around it, and what that adds is left out."""
    text = {"model_type": "mllama_text_model", "cross_attention_layers": [3, 8]}
    whole = {"architectures": ["MllamaForConditionalGeneration"], "text_config": text}
    model = Model.load(whole)
    assert sum(layer.count for layer in model.layers if layer.more_parameters) == 2
    assert "what MllamaForConditionalGeneration adds to its language model" in model.left_out


@each_row(
    ("kind", "changes", "message"),
    [
        ("doge", {"is_moe": True}, "retrieval of experts by product keys is not modeled"),
        ("xlnet", {"attn_type": "both"}, "attn_type: 'both': allowed: bi, uni"),
        ("xmod", {"pre_norm": True}, "norms before the blocks are not modeled"),
        ("cpmant", {"segment_types": 1, "position_bias_num_buckets": 2}, "must be at least 32"),
        ("gemma3n_text", {"intermediate_size": [77, 0]}, "must be 5 integers"),
        ("lara_mini", {"layer_types": ["full_attention"]}, "must be a list of 5 words"),
        ("apertus1p5_text", {"output_vocab_size": 90}, "a head of fewer words is not modeled"),
    ],
)
def test_wrong_values_are_named(kind: str, changes: dict[str, Any], message: str) -> None:
    """With the key, and what is allowed."""
    with pytest.raises(InputError) as caught:
        small(kind, **changes)
    assert message in str(caught.value)
