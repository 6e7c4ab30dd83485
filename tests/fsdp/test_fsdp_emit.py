"""Code emitted from a wrapping is what one would write: loops, groups and names, on one page."""

from emitted_calls import LAYERS, PLAIN, unit, wrapping
from shardwise.fsdp.emit import python_code
from shardwise.fsdp.plan import Setting


def test_a_page_one_would_paste():
    """Embedding, layers with a nested unit, and a group that is kept: one page, exactly this."""
    units = [unit("model.embed_tokens")]
    for layer in LAYERS:
        units += [unit(layer), unit(f"{layer}.mlp")]
    units.append(unit("model.norm", "lm_head", reshard=False))
    code = python_code(
        wrapping(*units, checkpointed=LAYERS),
        Setting(shards=4, replicas=2),
        model_name="Llama\n3 8B",
        modules=LAYERS,
    )
    assert (
        code
        == '''\
# FSDP2 units of Llama 3 8B on 8 GPUs (2 replicas of 4 shards), planned by shardwise.
# Weights stored in fp32, gathered in bf16, gradients reduced in fp32.
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, mesh=None):
    """Shard the model in place; all ranks call it, before the optimizer is made."""
    if mesh is None:
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    # A cache would be filled a second time when layers are computed again.
    if getattr(getattr(model, "config", None), "use_cache", False):
        model.config.use_cache = False
    recomputed = set()
    for layer in model.model.layers:
        recomputed.add(layer)
    apply_activation_checkpointing(model, check_fn=lambda module: module in recomputed)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shared = {"mesh": mesh, "mp_policy": mixed}
    fully_shard(model.model.embed_tokens, **shared)
    for layer in model.model.layers:
        fully_shard(layer.mlp, **shared)
        fully_shard(layer, **shared)
    fully_shard(
        [model.model.norm, model.lm_head],
        **shared,
        reshard_after_forward=False,
    )
    fully_shard(model, **shared)
    return model
'''
    )


def body(*units, **more):
    """The lines between the shared arguments and the call on the root."""
    code = python_code(wrapping(*units), PLAIN, model_name="m", **more)
    lines = code.partition("    shared = ")[2].splitlines()
    end = lines.index("    fully_shard(model, **shared)")
    return [line.removeprefix("    ") for line in lines[1:end]]


def test_root_alone_is_one_call():
    assert body() == []


def test_without_names_of_the_model_loops_have_bounds():
    assert body(*map(unit, LAYERS)) == [
        "for layer in model.model.layers[:32]:",
        "    fully_shard(layer, **shared)",
    ]


def test_a_list_wrapped_in_part_has_bounds_too():
    assert body(*map(unit, LAYERS[1:31]), modules=LAYERS)[0] == (
        "for layer in model.model.layers[1:31]:"
    )


def test_a_change_between_layers_ends_the_loop():
    units = [unit(layer, reshard=i < 30) for i, layer in enumerate(LAYERS)]
    assert body(*units, modules=LAYERS) == [
        "for layer in model.model.layers[:30]:",
        "    fully_shard(layer, **shared)",
        "for layer in model.model.layers[30:32]:",
        "    fully_shard(layer, **shared, reshard_after_forward=False)",
    ]


def test_one_layer_alone_is_no_loop():
    assert body(unit("h.3"), unit("h.3.mlp.0")) == [
        "fully_shard(model.h[3].mlp[0], **shared)",
        "fully_shard(model.h[3], **shared)",
    ]


def test_groups_of_neighbours_are_cut_from_the_list():
    pairs = [unit(*LAYERS[i : i + 2]) for i in range(0, 32, 2)]
    assert body(*pairs) == [
        "for i in range(0, 32, 2):",
        "    fully_shard([*model.model.layers[i : i + 2]], **shared)",
    ]


def test_groups_of_parts_of_neighbours():
    groups = [unit(*(f"h.{j}.mlp" for j in range(i, i + 3))) for i in (0, 3)]
    assert body(*groups) == [
        "for i in range(0, 6, 3):",
        "    fully_shard([*(block.mlp for block in model.h[i : i + 3])], **shared)",
    ]


def test_lists_in_lists_keep_their_variables_apart():
    units = [
        unit(f"layers.{i}.layers.{j}.layers.{k}") for i in (0, 1) for j in (0, 1) for k in (0, 1)
    ]
    assert body(*units) == [
        "for layer in model.layers[:2]:",
        "    for layer_ in layer.layers[:2]:",
        "        for layer__ in layer_.layers[:2]:",
        "            fully_shard(layer__, **shared)",
    ]


def test_names_that_are_no_python():
    assert body(unit("a.b-c.lambda"), unit("0.01")) == [
        'fully_shard(getattr(getattr(model.a, "b-c"), "lambda"), **shared)',
        'fully_shard(getattr(model[0], "01"), **shared)',
    ]


def test_dictionaries_are_asked_for_values():
    units = [unit(f"layers.{i}") for i in range(4)]
    assert body(*units, keyed=["layers"], modules=[f"layers.{i}" for i in range(4)]) == [
        "for layer in model.layers.values():",
        "    fully_shard(layer, **shared)",
    ]
    assert body(unit("layers.2"), keyed=["layers"]) == ['fully_shard(model.layers["2"], **shared)']
    assert body(*units[1:], keyed=["layers"]) == [
        "for layer in (model.layers[str(i)] for i in range(1, 4)):",
        "    fully_shard(layer, **shared)",
    ]
    group = unit("layers.0.a", "layers.1.a"), unit("layers.2.a", "layers.3.a")
    assert body(*group, keyed=["layers"]) == [
        "for i in range(0, 4, 2):",
        "    fully_shard([*(model.layers[str(j)].a for j in range(i, i + 2))], **shared)",
    ]


def test_a_list_among_dictionaries_is_no_dictionary():
    """Of four layers the second holds a dictionary: it is called by itself."""
    units = [unit(f"layers.{i}.parts.{j}") for i in range(4) for j in range(2)]
    assert body(*units, keyed=["layers.1.parts"])[2:5] == [
        "for part in (model.layers[1].parts[str(i)] for i in range(0, 2)):",
        "    fully_shard(part, **shared)",
        "for layer in model.layers[2:4]:",
    ]
    assert len(body(*units, keyed=["layers.*.parts"])) == 3


def test_a_list_with_gaps_has_bounds():
    """A stage of a pipeline holds layers 0 and 1 under these keys, and 5 besides."""
    names = ["layers.0", "layers.1", "layers.5"]
    assert body(unit("layers.0"), unit("layers.1"), modules=names, keyed=["layers"])[0] == (
        "for layer in (model.layers[str(i)] for i in range(0, 2)):"
    )


def test_a_long_list_is_broken():
    names = [f"encoder.a_rather_long_name_{i}" for i in range(3)]
    assert body(unit(*names)) == [
        "fully_shard(",
        "    [",
        *(f"        model.{name}," for name in names),
        "    ],",
        "    **shared,",
        ")",
    ]
