"""Profiles of models without torch agree with an estimate, and have the names of checkpoints."""

import time
from functools import cache
from itertools import product

import numpy as np
import pytest

import samples
from profile_samples import catalog, named, sample, shapes
from profiles import sampled
from rows import each_row
from shardwise import Model, estimate
from shardwise.fsdp.from_catalog import STACK, profile_of
from shardwise.ops.param_count import count_parameters

MODELS = (
    "llama3-8b",
    "gpt3-175b",
    "mixtral-8x7b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "vit-era5",
    "llama2-7b",
    "gemma2-2b",
    "gpt-oss-20b",
    "chinchilla-70b",
    "lamda-137b",
    "palm-540b",
    "olmo2-7b",
    "llama4-scout",
    "qwen2-57b-a14b",
)
every_model = pytest.mark.parametrize("name", MODELS)


@cache
def estimated(name, stack=STACK):
    """The same step in an estimate."""
    run = {"gpus": 1, "mbs": 1, "gbs": 1, "zero": 0, "stack": stack}
    return estimate(name, "h100-sxm", run)


def numbers(profile):
    """Weights in all."""
    return sum(parameter.numel for parameter in profile.parameters)


def begun_gradients(profile):
    """Bytes of gradients from the first part made of each; only tied tensors have several."""
    made = np.zeros(len(profile.seconds))
    for parameter in profile.parameters:
        if parameter.gradient_segment >= 0:
            runs = [profile.modules[place].forward[1] for place in parameter.holders]
            alone = len(runs) == 1
            first = parameter.gradient_segment if alone else len(made) - max(runs)
            made[first] += parameter.numel * parameter.element_bytes
    return np.cumsum(made)


@pytest.mark.parametrize(
    ("name", "stack"),
    sampled(product(MODELS, [STACK, "megatron-core-2025", "torchtitan-eager"]), 4),
)
def test_times_are_those_of_an_estimate(name, stack):
    """Forward and backward of its one micro-batch, whatever the host adds to the kernels."""
    profile, known = catalog(name, stack), estimated(name, stack).time_s
    ahead = profile.forward_segments
    assert profile.seconds[:ahead].sum() == pytest.approx(known["forward"], rel=1e-9)
    assert profile.seconds[ahead:].sum() == pytest.approx(known["backward"], rel=1e-9)


@every_model
def test_weights_are_those_of_the_model(name):
    """Every one is there once, with multi-token prediction, without padding of the vocabulary."""
    counted = count_parameters(Model.load(name))
    assert numbers(catalog(name)) == counted.total + counted.mtp
    assert numbers(catalog(name, "megatron-core-2025")) == counted.total + counted.mtp


@every_model
def test_activations_are_those_of_an_estimate(name):
    """Before the head all that layers and embedding save is there: of one micro-batch in flight."""
    profile, memory = catalog(name), estimated(name).memory_bytes
    inside = [m for m in profile.modules[1:] if m.name.startswith(("layers.", "mtp."))]
    last = max(module.forward[1] for module in inside)
    assert profile.end_bytes[last - 1] == pytest.approx(memory.activations, rel=1e-12)


@every_model
def test_the_fullest_moment_is_that_of_an_estimate(name):
    """Gradients of weights set apart: activations and what lives for a moment beside them."""
    profile, memory = catalog(name), estimated(name).memory_bytes
    most = (profile.resident_bytes - begun_gradients(profile)).max()
    assert most == pytest.approx(memory.activations + memory.buffers, rel=1e-12)


@every_model
def test_modules_make_a_tree_whose_segments_nest(name):
    """Children follow one another inside their parents; backward is forward the other way round."""
    profile = catalog(name)
    whole, half = len(profile.seconds), profile.forward_segments
    assert whole == 2 * half
    assert profile.modules[0].forward == (0, half)
    assert profile.modules[0].backward == (half, whole)
    for place, module in enumerate(profile.modules):
        begin, end = module.forward
        assert module.backward == (whole - end, whole if module.reduced_last else whole - begin)
        assert begin < end
        at = begin
        for child in profile.children(place):
            inner = profile.modules[child]
            assert inner.parent == place
            assert at <= inner.forward[0] < inner.forward[1] <= end
            at = inner.forward[1]


@every_model
def test_gradients_are_whole_in_the_end(name):
    """They only grow, and nothing else is left; what no gradient reaches has none."""
    profile = catalog(name)
    assert np.all(np.diff(profile.gradient_bytes) >= 0)
    graded = [p for p in profile.parameters if p.gradient_segment >= 0]
    expected = sum(p.numel * p.element_bytes for p in graded)
    assert profile.gradient_bytes[-1] == profile.end_bytes[-1] == expected
    without = {p.name.split(".")[-1] for p in profile.parameters if p.gradient_segment < 0}
    assert without <= {"e_score_correction_bias"}


@each_row("name", ["llama3-8b", "deepseek-v3", "gpt-oss-20b"])
def test_equal_layers_take_and_keep_the_same(name):
    """Of a kind: times in each direction, bytes saved, weights."""
    profile, model = catalog(name), Model.load(name)
    left = np.concatenate([[0.0], profile.end_bytes])
    seen = {}
    for i, kind in enumerate(model.order):
        module = named(profile, f"layers.{i}")
        first, after = module.forward
        ahead, back = (slice(*span) for span in (module.forward, module.backward))
        kept = float(left[after] - left[first])
        assert kept > 0
        figures = (profile.seconds[ahead].tolist(), profile.seconds[back].tolist(), kept)
        assert seen.setdefault(kind, figures) == figures
    assert len(seen) == len(model.layers)


def test_a_llama_has_the_names_and_shapes_of_its_checkpoint():
    """Llama 3 8B: 32 query heads over 8 of keys and values, 14336 wide."""
    profile = catalog("llama3-8b")
    assert shapes(profile, "layers.31") == {
        "input_layernorm.weight": (4096,),
        "self_attn.q_proj.weight": (4096, 4096),
        "self_attn.k_proj.weight": (1024, 4096),
        "self_attn.v_proj.weight": (1024, 4096),
        "self_attn.o_proj.weight": (4096, 4096),
        "post_attention_layernorm.weight": (4096,),
        "mlp.gate_proj.weight": (14336, 4096),
        "mlp.up_proj.weight": (14336, 4096),
        "mlp.down_proj.weight": (4096, 14336),
    }
    outside = [p.name for p in profile.parameters if not p.name.startswith("layers.")]
    assert outside == ["embed_tokens.weight", "norm.weight", "lm_head.weight"]
    assert named(profile, "layers.0").kind == "DecoderLayer"
    assert named(profile, "layers.0").output_bytes == 8192 * 4096 * 2
    assert named(profile, "lm_head").output_bytes == 8192 * 128256 * 2
    assert not profile.shared


def test_experts_and_latent_attention_have_theirs():
    """DeepSeek V3: 3 dense layers, then 256 experts of width 2048 and one that all tokens meet."""
    profile = catalog("deepseek-v3")
    assert "mlp.experts" not in shapes(profile, "layers.2")
    found = shapes(profile, "layers.3")
    assert found["self_attn.q_a_proj.weight"] == (1536, 7168)
    assert found["self_attn.kv_a_proj_with_mqa.weight"] == (512 + 64, 7168)
    assert found["self_attn.kv_b_proj.weight"] == (128 * (128 + 128), 512)
    assert found["mlp.experts.gate_up_proj"] == (256, 2 * 2048, 7168)
    assert found["mlp.experts.down_proj"] == (256, 7168, 2048)
    assert found["mlp.router.weight"] == (256, 7168)
    assert found["mlp.shared_experts.down_proj.weight"] == (7168, 2048)
    experts = named(profile, "layers.3.mlp.experts")
    assert experts.kind == "Experts"
    assert named(profile, "layers.3.mlp").kind == "MoE"
    assert named(profile, "layers.2.mlp").kind == "MLP"


def test_prediction_runs_the_table_and_the_head_again():
    """By their own names, so that a unit of one of them would be refused; inside the module."""
    profile = catalog("deepseek-v3")
    shared = {p.name: [profile.modules[h] for h in p.holders] for p in profile.shared}
    assert sorted(shared) == ["embed_tokens.weight", "lm_head.weight"]
    for holders in shared.values():
        assert [holder.run for holder in holders] == [0, 1]
        assert holders[0].name == holders[1].name
    module = profile.positions["mtp.layers.0"]
    again = shared["embed_tokens.weight"][1]
    assert again.parent == shared["lm_head.weight"][0].parent == module
    assert again.reduced_last
    assert shapes(profile, "mtp.layers.0")["eh_proj.weight"] == (7168, 2 * 7168)


def test_a_tied_head_shares_the_table():
    """One tensor; its gradient is held from the head on, complete with the embedding."""
    profile = catalog("gpt3-175b")
    (tied,) = profile.shared
    assert [profile.modules[h].name for h in tied.holders] == ["embed_tokens", "lm_head"]
    assert tied.name == "embed_tokens.weight"
    assert tied.gradient_segment == len(profile.seconds) - 1
    head = named(profile, "lm_head").backward[1] - 1
    assert profile.gradient_bytes[head] == 0
    size = tied.numel * tied.element_bytes
    table, position = (named(profile, n) for n in ("embed_tokens", "embed_positions"))
    assert table.reduced_last
    assert position.reduced_last
    normed = named(profile, "norm").forward[1] - 1
    assert profile.end_bytes[head] - profile.end_bytes[normed] == size


def test_one_table_of_relative_positions_serves_all_layers():
    """The first layer holds it, as in T5, and its gradient is complete there."""
    profile = catalog("lamda-137b")
    (table,) = (p for p in profile.parameters if "relative" in p.name)
    first = named(profile, "layers.0.self_attn")
    assert table.name == "layers.0.self_attn.relative_attention_bias"
    assert table.shape == (32, 128)
    assert [profile.modules[h] for h in table.holders] == [first]
    assert first.backward[0] <= table.gradient_segment < first.backward[1]


@each_row(
    ("layer", "fields", "name"),
    [
        ({"parallel": True, "second_norm": True}, {}, "layers.0.post_attention_layernorm.weight"),
        ({"mlp": {"activation": "xielu"}}, {}, "layers.0.mlp.act_fn.alpha_p"),
        ({}, {"embedding_norm": True}, "embedding_norm.weight"),
        ({}, {"head_bias": True}, "lm_head.bias"),
        ({}, {"norm_weight": False}, "lm_head.weight"),
        ({"norms": "stream"}, {}, "layers.0.post_feedforward_layernorm.weight"),
        ({}, {"head_transform": True}, "head_transform.bias"),
        ({}, {"token_types": 2}, "embed_token_types.weight"),
    ],
)
def test_weights_of_other_architectures_are_those_of_the_model(layer, fields, name):
    """Norms, biases and scalars that few families have."""
    model = samples.model(samples.layer(**layer), tied_embeddings=False, **fields)
    profile = sample(model)
    assert numbers(profile) == count_parameters(model).total
    assert name in {parameter.name for parameter in profile.parameters}


def test_deep_models_take_no_time():
    """Layers of a kind are done once: 126 layers in a fifth of a second, here with room."""
    catalog("llama3-405b")
    taken = []
    for _ in range(3):
        begin = time.process_time()
        profile_of("llama3-405b", "h100-sxm", batch=1)
        taken.append(time.process_time() - begin)
    assert min(taken) < 0.4
