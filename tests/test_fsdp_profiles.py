"""Profiles without torch: from models by our own operations, and from module statistics.

By hand: a Llama of one layer in a machine of 100 TFLOP/s and 1 TB/s, whose kernels start at once.
"""

import json
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import samples
from shardwise import InputError, Model, estimate
from shardwise.formats.fsdp_ilp import module_info
from shardwise.fsdp.check import check
from shardwise.fsdp.from_catalog import OVERRIDES, STACK, profile_of
from shardwise.fsdp.from_statistics import profile_of_statistics
from shardwise.ops.kinds import register_layer
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import linear
from shardwise.ops.parameters import count_parameters

DATA = Path(__file__).parent / "data"
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
def catalog(name, stack=STACK):
    """One sequence on one H100."""
    return profile_of(name, "h100-sxm", batch=1, stack=stack)


@cache
def estimated(name, stack=STACK):
    """The same step in an estimate."""
    return estimate(name, "h100-sxm", {"gpus": 1, "mbs": 1, "gbs": 1, "stack": stack})


def named(profile, name):
    """The first run of a module."""
    return profile.modules[profile.positions[name]]


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


@every_model
@pytest.mark.parametrize("stack", [STACK, "megatron-core-2025", "torchtitan-eager"])
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
    assert profile.left_bytes[last - 1] == pytest.approx(memory.activations, rel=1e-12)


@every_model
def test_the_fullest_moment_is_that_of_an_estimate(name):
    """Gradients of weights set apart: activations and what lives for a moment beside them."""
    profile, memory = catalog(name), estimated(name).memory_bytes
    most = (profile.held_bytes - begun_gradients(profile)).max()
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
        assert module.backward == (whole - end, whole if module.late else whole - begin)
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
    assert profile.gradient_bytes[-1] == profile.left_bytes[-1] == expected
    without = {p.name.split(".")[-1] for p in profile.parameters if p.gradient_segment < 0}
    assert without <= {"e_score_correction_bias"}


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt-oss-20b"])
def test_equal_layers_take_and_keep_the_same(name):
    """Of a kind: times in each direction, bytes saved, weights."""
    profile, model = catalog(name), Model.load(name)
    left = np.concatenate([[0.0], profile.left_bytes])
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


def shapes(profile, below):
    """Shapes of the weights of a module and all inside it."""
    found = {p.name: p.shape for p in profile.parameters}
    return {n.removeprefix(f"{below}."): s for n, s in found.items() if n.startswith(f"{below}.")}


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
    assert again.late
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
    assert table.late
    assert position.late
    normed = named(profile, "norm").forward[1] - 1
    assert profile.left_bytes[head] - profile.left_bytes[normed] == size


def test_one_table_of_relative_positions_serves_all_layers():
    """The first layer holds it, as in T5, and its gradient is complete there."""
    profile = catalog("lamda-137b")
    (table,) = (p for p in profile.parameters if "relative" in p.name)
    first = named(profile, "layers.0.self_attn")
    assert table.name == "layers.0.self_attn.relative_attention_bias"
    assert table.shape == (32, 128)
    assert [profile.modules[h] for h in table.holders] == [first]
    assert first.backward[0] <= table.gradient_segment < first.backward[1]


def one_layer(**fields):
    """Llama's kind, width 64: 8 heads of 8 over 2, 192 wide, 1000 words, 32 tokens."""
    heads = {"kv_heads": 2, "bias": "none"}
    mlp = {"ffn": 192, "activation": "swiglu", "bias": False}
    return samples.llama(layers=[samples.layer(count=1, attention=heads, mlp=mlp)], **fields)


def sample(model, **more):
    """One sequence on the sample machine."""
    return profile_of(model, samples.system(), batch=1, stack=samples.stack(), **more)


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
    assert profile.held_bytes[: len(RUN)].tolist() == held
    assert profile.left_bytes[: len(RUN)].tolist() == left
    assert profile.fixed_bytes == 2 * 8 * 32


def test_bytes_by_hand_backward():
    """The loss, the head and the last product: 2 bytes of gradient for each weight beside.

    200704 are saved in all; 72704 before the loss, of which 4096 are the head's; 64512 in the
    layer, of which 12288 are the last product's.
    """
    profile = sample(one_layer())
    back = profile.held_bytes[len(RUN) :].tolist()
    left = profile.left_bytes[len(RUN) :].tolist()
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


def test_deep_models_take_no_time():
    """Layers of a kind are done once: 126 layers in a fifth of a second, here with room."""
    catalog("llama3-405b")
    taken = []
    for _ in range(3):
        begin = time.process_time()
        profile_of("llama3-405b", "h100-sxm", batch=1)
        taken.append(time.process_time() - begin)
    assert min(taken) < 0.4


def stored(name):
    """Module information as scyther writes it."""
    golden = json.loads((DATA / "fsdp_ilp.json").read_text(encoding="utf-8"))
    one = golden["module_infos"][name]
    names, columns = one["names"], one["columns"]
    rows = zip(*columns.values(), strict=True)
    stats = [dict(zip(columns, row, strict=True)) for row in rows]
    stats = [{"fqn": n, **row} for n, row in zip(names, stats, strict=True)]
    for row in stats:
        row["grad_per_module"] = row["param_per_module"]
    post = [names[i] for i in one["fw_post_order"]]
    return {"fw_pre_order": names, "fw_post_order": post, "modstats": stats}


@cache
def golden(name):
    """Statistics and their profile."""
    info = module_info(stored(name), source=name)
    return info, profile_of_statistics(info)


@pytest.mark.parametrize("name", ["seed_gpt6", "llama4", "tiny12"])
def test_statistics_become_segments(name):
    """A pair for each module; times and weights add up to the root's."""
    info, profile = golden(name)
    count = len(info.names)
    assert profile.forward_segments == len(profile.seconds) / 2 == count
    assert profile.seconds[:count].sum() == pytest.approx(info.forward_ms[0] / 1e3)
    assert profile.seconds[count:].sum() == pytest.approx(info.backward_ms[0] / 1e3)
    held = sum(p.numel * p.element_bytes for p in profile.parameters)
    assert held == info.parameter_bytes[0]
    leaves = np.flatnonzero(info.end == np.arange(count) + 1)
    for place in range(count):  # what is alive at a module's end is held in its last segment
        last = leaves[leaves < info.end[place]].max()
        assert profile.held_bytes[last] >= info.activation_total_bytes[place]
    assert profile.held_bytes[:count].max() == info.activation_total_bytes.max()
    assert profile.modules[0].kind == info.names[0]
    assert profile.modules[1].name == info.names[1].split(".", 1)[1]
    assert profile.source == name
    assert {p.element_bytes for p in profile.parameters} == {4}


@pytest.mark.parametrize("name", ["seed_gpt6", "llama4"])
def test_gradients_so_far_are_those_of_the_statistics(name):
    """TG of every module of two traced models, and with it the fullest moment max(TA + AG + TG)."""
    info, profile = golden(name)
    begins = [module.backward[0] for module in profile.modules]
    before = [profile.gradient_bytes[begin - 1] for begin in begins]
    assert before == info.gradient_total_bytes.tolist()
    parts = (info.activation_total_bytes, info.activation_gradient_bytes, before)
    assert profile.held_bytes.max() == np.sum(parts, axis=0).max()


def test_modules_of_statistics_take_what_they_say():
    """Layers and forward passes exactly; k_proj's hook counts others' backward, and is scaled."""
    info, profile = golden("llama4")
    for place, module in enumerate(profile.modules):
        ahead = profile.seconds[slice(*module.forward)].sum() * 1e3
        assert ahead == pytest.approx(info.forward_ms[place])
        end = module.backward[0] + module.end - place
        back = profile.seconds[module.backward[0] : end].sum() * 1e3
        known = info.backward_ms[place]
        assert back <= known * (1 + 1e-12)
        if not module.name.endswith("_proj"):
            assert back == pytest.approx(known)
    attention, projections = info.backward_ms[4], info.backward_ms[5:9]
    assert projections.sum() > attention
    key = profile.modules[6]
    scaled = profile.seconds[key.backward[0]] * 1e3
    assert scaled == pytest.approx(projections[1] * attention / projections.sum())
    late = [module.name for module in profile.modules if module.late]
    assert late == ["", "embed_tokens"]


def test_tied_weights_are_found_in_statistics():
    """GPT's head and table: the root has their 96 MiB once, the modules twice."""
    _, profile = golden("seed_gpt6")
    (tied,) = profile.shared
    assert [profile.modules[h].name for h in tied.holders] == ["transformer.wte", "lm_head"]
    assert tied.numel == 8192 * 3072
    assert not golden("llama4")[1].shared


def hand(*rows):
    """Statistics of modules: name, bytes of weights, ms forward, ms backward; pre-order."""
    names = [row[0] for row in rows]
    stats = [
        {
            "fqn": name,
            "param_per_module": size,
            "grad_per_module": size if name != "R.frozen" else 0,
            "grad_total": 0,
            "act_total": 1000,
            "act_grad_per_module": 10,
            "input_per_module": 8,
            "fw_runtime_per_module": ahead,
            "bw_runtime_per_module": back,
        }
        for name, size, ahead, back in rows
    ]
    orders = {"fw_pre_order": names, "fw_post_order": [*names[1:], names[0]]}
    return module_info({**orders, "modstats": stats}, source="by hand")


def test_identity_modules_are_held_to_three_times_their_forward():
    """A dropout that returns its input says 90 of 100 ms: 3 x 1 are believed."""
    profile = profile_of_statistics(
        hand(("R", 400, 10, 100), ("R.a", 400, 4, 8), ("R.drop", 0, 1, 90))
    )
    assert profile.seconds == pytest.approx(np.array([5, 4, 1, 89, 3, 8]) / 1e3)


def test_three_may_share_a_tensor_and_some_may_be_frozen():
    """Three leaves of 120 bytes in 120; a frozen one gets no gradient; 9 bytes are two numbers."""
    leaves = [(f"R.{name}", 120, 1, 1) for name in ("a", "b", "c")]
    rows = [("R", 120 + 40 + 9, 9, 9), *leaves, ("R.frozen", 40, 1, 1), ("R.odd", 9, 1, 1)]
    profile = profile_of_statistics(hand(*rows))
    found = {p.name: p for p in profile.parameters}
    assert found["a.weight"].holders == (1, 2, 3)
    assert found["frozen.weight"].gradient_segment == -1
    assert not found["frozen.weight"].trainable
    odd = found["odd.weight"]
    assert odd.numel * odd.element_bytes == 9


@pytest.mark.parametrize(
    "leaves",
    [
        [("R.a", 100, 1, 1), ("R.b", 100, 1, 1), ("R.c", 100, 1, 1), ("R.d", 60, 1, 1)],
        [("R.a", 100, 1, 1), ("R.b", 108, 1, 1)],
    ],
)
def test_ties_that_cannot_be_told_are_refused(leaves):
    """Which two of three leaves of one size, or leaves of different sizes (a bias beside)."""
    whole = sum(leaf[1] for leaf in leaves) - 100
    with pytest.raises(InputError, match=r"by hand: R.param_per_module: .* has 100 bytes less"):
        profile_of_statistics(hand(("R", whole, 9, 9), *leaves))


def changed(place, **fields):
    """The hand-computed profile with another module."""
    profile = sample(one_layer())
    modules = list(profile.modules)
    modules[place] = replace(modules[place], **fields)
    return replace(profile, modules=tuple(modules))


def swapped(name, at, value):
    """The same with another figure of a segment."""
    profile = sample(one_layer())
    values = getattr(profile, name).copy()
    values[at] = value
    return replace(profile, **{name: values})


def tensor(**fields):
    """The same with another first parameter."""
    profile = sample(one_layer())
    first, *rest = profile.parameters
    return replace(profile, parameters=(replace(first, **fields), *rest))


BROKEN = {
    r"modules\[3\] 'layers.0.input_layernorm'.parent: 1: must be 2": lambda: changed(3, parent=1),
    r"modules\[2\] 'layers.0'.end: 99: must be 3 to 16": lambda: changed(2, end=99),
    r"modules\[0\] ''.end: 5: must be 16": lambda: changed(0, end=5),
    r"modules\[0\] ''.forward: .* must begin at 0 and end by 19": lambda: changed(
        0, forward=(1, 19)
    ),
    r"modules\[4\] .*forward: \(1, 9\): must lie in \(2, 16\)": lambda: changed(4, forward=(1, 9)),
    r"modules\[4\] .*backward: .* must be empty or lie": lambda: changed(4, backward=(19, 36)),
    r"modules\[1\] 'embed_tokens'.run: 2: must be 0": lambda: changed(1, run=2),
    r"seconds\[3\]: nan: must be finite": lambda: swapped("seconds", 3, np.nan),
    r"held_bytes\[2\]: -1.0: must be finite": lambda: swapped("held_bytes", 2, -1.0),
    r"held_bytes\[6\]: .* is less than the": lambda: swapped("held_bytes", 6, 1.0),
    r"held_bytes\[7\]: .* left by the segment": lambda: swapped("left_bytes", 6, 28672.0 - 1),
    r"forward_segments: 0: must be 1 to 38": lambda: replace(changed(0), forward_segments=0),
    r"left_bytes: \(3,\): must have one": lambda: replace(changed(0), left_bytes=np.zeros(3)),
    r"fixed_bytes: inf": lambda: replace(changed(0), fixed_bytes=np.inf),
    r"modules: 0: must have one module": lambda: replace(changed(0), modules=()),
    r"holders: \(\): must be one position": lambda: tensor(holders=()),
    r"holders: \(2, 1\): .* ascending": lambda: tensor(holders=(2, 1)),
    r"holders: \(1, 16\): must be positions": lambda: tensor(holders=(1, 16)),
    r"shape: \(0, 64\): must have no": lambda: tensor(shape=(0, 64)),
    r"element_bytes: 0: must be finite": lambda: tensor(element_bytes=0),
    r"gradient_segment: 4: must be -1 or .* 19 to 37": lambda: tensor(gradient_segment=4),
    r"gradient_segment: 37: .* not trained": lambda: tensor(trainable=False),
    r"'norm.weight': 'norm.weight': is there twice": lambda: tensor(name="norm.weight"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_profiles_that_contradict_themselves_are_refused(problem):
    """With what is wrong, where, and what it must be."""
    with pytest.raises(InputError, match=problem):
        check(BROKEN[problem]())
