"""Bytes and seconds of a Llama of one layer, and what changes them.

By hand: in a machine of 100 TFLOP/s and 1 TB/s, whose kernels start at once.
"""

from pathlib import Path

import numpy as np
import pytest

from profile_samples import catalog, named, one_layer, sample, shapes
from shardwise import InputError, Model
from shardwise.fsdp.from_catalog import OVERRIDES, profile_of
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import linear
from shardwise.ops.registry import register_layer

DATA = Path(__file__).parents[1] / "data"
RUN = (
    "embed_tokens", "input_layernorm", "q_proj", "k_proj", "v_proj", "rope", "core", "softmax",
    "o_proj", "residual", "post_attention_layernorm", "gate_proj", "up_proj", "activation",
    "down_proj", "residual", "norm", "lm_head", "loss",
)  # fmt: skip
# One stream is 32 x 64 x 2 = 4096 bytes. Saved: inputs of norms and products, queries, keys and
# values (6144), the fp32 statistics of 8 x 32 rows, both projections (24576), 4 bytes per logit.
SAVED = (0, 4096, 4096, 0, 0, 0, 6144, 1024, 4096, 0, 4096, 4096, 0, 24576, 12288, 0)
SAVED += (4096, 4096, 128000)
# Inputs and outputs; of the core, its inputs and two outputs; of the loss, what it saves.
LIVE = (4096, 8192, 10240, 10240, 10240, 5120, 14336, 0, 8192, 4096, 8192, 28672, 28672, 36864)
LIVE += (16384, 4096, 8192, 68096, 0)
# Weights of each segment.
OWN = (64000, 64, 4096, 1024, 1024, 0, 0, 0, 4096, 0, 64, 12288, 12288, 0, 12288, 0, 64, 64000, 0)


def test_bytes_by_hand_forward():
    """Beside what is saved before: what lives while it runs, or what it saves, if that is more.

    Products of one input follow one another inside what they take together.
    """
    profile = sample(one_layer())
    assert profile.forward_segments == len(RUN)
    before = np.concatenate([[0], np.cumsum(SAVED)])
    start = {"k_proj": 2, "v_proj": 2, "up_proj": 11}
    saved = {"k_proj": 4096, "v_proj": 4096, "up_proj": 4096}
    held, left = [], []
    for i, name in enumerate(RUN):
        base = before[start.get(name, i)]
        held.append(base + max(LIVE[i], SAVED[i], saved.get(name, 0)))
        left.append(held[i] if name in ("q_proj", "k_proj", "gate_proj") else before[i + 1])
    assert profile.resident_bytes[: len(RUN)].tolist() == held
    assert profile.end_bytes[: len(RUN)].tolist() == left
    assert profile.fixed_bytes == 2 * 8 * 32


def test_bytes_by_hand_backward():
    """The loss, the head and the last product: 2 bytes of gradient for each weight beside.

    200704 are saved in all; 72704 before the loss, of which 4096 are the head's; 64512 in the
    layer, of which 12288 are the last product's.
    """
    profile = sample(one_layer())
    back = profile.resident_bytes[len(RUN) :].tolist()
    left = profile.end_bytes[len(RUN) :].tolist()
    assert back[:4] == [
        200704,
        72704 + 68096 + 128000,
        68608 + 8192 + 128128,
        64512 + 4096 + 128128,
    ]
    assert left[:4] == [72704, 68608 + 128000, 64512 + 128128, 64512 + 128128]
    assert back[4] == 64512 + 16384 + 128128 + 2 * 12288
    assert left[4] == 52224 + 128128 + 2 * 12288
    assert left[-1] == 2 * sum(OWN)
    made = np.diff(np.concatenate([[0], profile.gradient_bytes[len(RUN) :]]))
    assert made.tolist() == [2 * own for own in OWN[::-1]]


def test_times_by_hand():
    """A lookup and a norm move their bytes; one product is shared by the widths of its results.

    (32 x 64 + 64 x 96 + 32 x 96) x 2 bytes, 64 x 128 x 64 multiplications with whole tiles, joined
    with exponent 2.3; 64 of 96 columns are queries.
    """
    profile = sample(one_layer())

    def taken(name, span="forward"):
        return profile.seconds[slice(*getattr(named(profile, name), span))].sum() * 1e12

    assert taken("embed_tokens") == pytest.approx(2 * 4096)
    assert taken("norm") == pytest.approx(2 * 4096)
    assert taken("norm", "backward") == pytest.approx(3 * 4096)
    moved, computed = (32 * 64 + 64 * 96 + 32 * 96) * 2, 2 * 64 * 128 * 64 / 100
    together = (moved**2.3 + computed**2.3) ** (1 / 2.3)
    attention = "layers.0.self_attn"
    for name, columns in (("q_proj", 64), ("k_proj", 16), ("v_proj", 16)):
        assert taken(f"{attention}.{name}") == pytest.approx(together * columns / 96)
        whole = taken(f"{attention}.q_proj", "backward")
        assert taken(f"{attention}.{name}", "backward") == pytest.approx(whole * columns / 64)
    assert taken("layers.0.mlp.gate_proj") == taken("layers.0.mlp.up_proj")


def test_a_config_of_hugging_face_gives_the_same_as_the_catalog():
    """Without torch; only the sequence length must be told."""
    config = Model.load(DATA / "huggingface" / "gemma2-2b.json")
    told = profile_of(config, "h100-sxm", batch=1, seq_len=8192)
    known = catalog("gemma2-2b")
    assert [m.name for m in told.modules] == [m.name for m in known.modules]
    assert [p.shape for p in told.parameters] == [p.shape for p in known.parameters]
    np.testing.assert_allclose(told.seconds, known.seconds)
    with pytest.raises(InputError, match="seq_len"):
        profile_of(config, "h100-sxm", batch=1)


def test_fields_that_change_a_rank_may_be_given():
    """Fewer keys and values, another length of documents; nothing that splits or recomputes."""
    model = one_layer()
    multiquery = sample(model, strategy={"attention": "multiquery"})
    assert shapes(multiquery, "layers.0.self_attn")["k_proj.weight"] == (8, 64)
    shorter = sample(model, strategy={"document_len": 8})
    assert shorter.seconds.sum() <= sample(model).seconds.sum()
    with pytest.raises(InputError, match=r"strategy: tp: 2: cannot change .*document_len") as told:
        sample(model, strategy={"tp": 2, "recompute": "full"})
    assert [fault.field for fault in told.value.faults] == ["tp", "recompute"]
    assert "stack" not in OVERRIDES


def test_types_change_bytes_and_times():
    """In fp32 weights and streams take 4 bytes."""
    profile = sample(one_layer(), dtype="fp32")
    assert {p.element_bytes for p in profile.parameters} == {4}
    assert profile.modules[1].output_bytes == 32 * 64 * 4
    assert "bf16" in sample(one_layer(), dtype="bfloat16").source
    with pytest.raises(InputError, match="dtype"):
        sample(one_layer(), dtype="int3")


def mixed(model, layer, work):
    """Our layer, and a product with a bias under another name."""
    plain = layer.model_copy(update={"kind": "transformer", "options": {}})
    more = linear("mix.in", work, tokens=work.tokens, inputs=model.hidden, outputs=40.0, bias=40.0)
    return [*layer_operations(model, plain, work), more]


def test_layers_of_a_registered_kind_have_a_module_for_each_operation():
    """By its name, in the shape of its product; what it does inside others is not known."""
    register_layer("mixed for profiles", mixed)
    fields = one_layer().to_dict()
    fields["layers"][0]["kind"] = "mixed for profiles"
    model = Model.validated(fields)
    found = shapes(sample(model), "layers.0")
    assert found["mix_in.weight"] == (40, 64)
    assert found["mix_in.bias"] == (40,)
    assert found["attention_qkv.weight"] == (96, 64)
