"""Code emitted from a wrapping says exactly the wrapping, in the order `fully_shard` needs."""

import ast
import sys
from types import ModuleType
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import InputError
from shardwise.fsdp.emit import Form, bottom_up, huggingface_form, python_code, torchtitan_form
from shardwise.fsdp.plan import Setting, Unit, Wrapping
from shardwise.fsdp.verify import verify

LAYERS = [f"model.layers.{i}" for i in range(32)]
PLAIN = Setting(shards=8, compute_dtype="fp32")


def unit(*modules, reshard=True):
    return Unit(modules=modules, reshard_after_forward=reshard)


def wrapping(*units, checkpointed=()):
    return Wrapping(units=units, checkpointed=tuple(checkpointed))


class Node:
    """A module that knows its name; its children are attributes, or places in a list."""

    def __init__(self, name, keyed):
        self.name, self.children, self.keyed = name, {}, keyed

    def __getattr__(self, name):
        try:
            return self.__dict__["children"][name]
        except KeyError:
            raise AttributeError(name) from None

    def _all(self):
        return [self.children[str(i)] for i in range(len(self.children))]

    def __getitem__(self, place):
        if self.name in self.keyed:
            return self.children[{str: place}[type(place)]]
        return self._all()[place]

    def __iter__(self):
        return iter(self.children if self.name in self.keyed else self._all())

    def values(self):
        assert self.name in self.keyed
        return self.children.values()


def tree(names, keyed=()):
    """A model with these modules, and those that hold them; lists are whole from 0."""
    root = Node("", keyed)
    for name in names:
        at = root
        for part in name.split("."):
            missing = range(len(at.children), int(part) + 1) if part.isdecimal() else [part]
            for child in map(str, missing):
                if child not in at.children:
                    at.children[child] = Node(f"{at.name}.{child}".strip("."), keyed)
            at = at.children[part]
    return root


def ran(code, model, function="shard", **arguments):
    """What emitted code calls, with a PyTorch that only writes it down."""
    told = {"calls": [], "policies": []}

    def fully_shard(what, *, mesh, mp_policy=None, reshard_after_forward=None, **_rest):
        modules = what if isinstance(what, list) else [what]
        names = tuple(module.name for module in modules)
        told["calls"].append((names, reshard_after_forward is not False))
        told.update(mesh=mesh, policy=mp_policy)

    def apply_activation_checkpointing(root, *, check_fn):
        assert not told["calls"], "checkpointing comes before sharding"
        every, at = [], [root]
        while at:
            node = at.pop()
            every.append(node)
            at += node.children.values()
        told["checkpointed"] = {node.name for node in every if check_fn(node)}

    fake = {
        "torch": {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        "torch.distributed": {},
        "torch.distributed.device_mesh": {
            "init_device_mesh": lambda device, shape, mesh_dim_names: (
                device,
                shape,
                mesh_dim_names,
            )
        },
        "torch.distributed.fsdp": {
            "fully_shard": fully_shard,
            "MixedPrecisionPolicy": lambda *given, **named: (*given, named),
            "CPUOffloadPolicy": lambda: "cpu",
        },
        "torch.distributed.algorithms": {},
        "torch.distributed.algorithms._checkpoint": {},
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": {
            "apply_activation_checkpointing": apply_activation_checkpointing
        },
    }
    modules = {}
    for name, held in fake.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(held)
    with patch.dict(sys.modules, modules):
        space = {}
        exec(compile(code, "emitted", "exec"), space)  # noqa: S102 - it is what we test
        told["returned"] = space[function](model, **arguments)
    return told


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


def test_outer_units_come_after_all_that_is_inside():
    """Also where a group takes a part from each of two units."""
    units = [unit("a"), unit("b"), unit("a.x", "b.x"), unit("a.x.y")]
    assert [u.modules for u in bottom_up(units)] == [("a.x.y",), ("a.x", "b.x"), ("a",), ("b",)]


@pytest.mark.parametrize(
    ("units", "problem"),
    [
        ([unit()], "needs modules"),
        ([unit("")], "below the root"),
        ([unit("a..b")], "below the root"),
        ([unit("a"), unit("b", "a")], "more than one unit"),
        ([unit("a", "b.x"), unit("b", "a.x")], "in turn"),
    ],
)
def test_what_no_call_can_say_is_refused(units, problem):
    with pytest.raises(InputError, match=problem):
        bottom_up(units)


def test_nothing_is_checkpointed_by_the_name_of_the_root():
    with pytest.raises(InputError, match="checkpointed"):
        python_code(wrapping(checkpointed=[""]), PLAIN, model_name="m")


@pytest.mark.parametrize(
    ("stored", "compute", "reduce", "policy"),
    [
        ("bf16", "bf16", "bf16", None),
        ("fp32", "bf16", "bf16", {"param_dtype": "bfloat16"}),
        ("bf16", "bf16", "fp32", {"reduce_dtype": "float32"}),
        ("fp32", "fp16", "fp32", {"param_dtype": "float16", "reduce_dtype": "float32"}),
    ],
)
def test_only_what_is_cast_is_in_the_policy(stored, compute, reduce, policy):
    setting = Setting(shards=2, stored_dtype=stored, compute_dtype=compute, reduce_dtype=reduce)
    told = ran(python_code(wrapping(), setting, model_name="m"), tree([]))
    assert told["policy"] == (None if policy is None else (policy,))


def test_the_mesh_can_be_given():
    code = python_code(wrapping(), PLAIN, model_name="m", device="cpu")
    assert ran(code, tree([]))["mesh"] == ("cpu", (8,), ("shard",))
    assert ran(code, tree([]), mesh="mine")["mesh"] == "mine"


def test_checkpointed_names_are_noted_once():
    code = python_code(wrapping(checkpointed=["a", "a"]), PLAIN, model_name="m")
    assert code.count("recomputed.add(") == 1


@st.composite
def wrapped_trees(draw):
    """A model with lists in lists, and units on any of its modules or on neighbours, in order."""
    names, units = [], []
    keyed = set()

    def grow(path, depth):
        listed = draw(st.booleans()) and depth > 0
        count = draw(st.integers(1, 4))
        named = list(map(str, range(count))) if listed else ["x", "mlp", "b-c", "for"][:count]
        if listed and draw(st.booleans()):
            keyed.add(".".join(path))
        children = [(*path, name) for name in named]
        at = 0
        while at < len(children):
            width = draw(st.sampled_from([1, 1, 1, 2, 3]))
            group = children[at : at + width]
            at += width
            if draw(st.booleans()):
                reshard = draw(st.integers(0, 4)) > 0
                units.append(unit(*(".".join(c) for c in group), reshard=reshard))
            for child in group:
                names.append(".".join(child))
                if depth < 3 and draw(st.booleans()):
                    grow(child, depth + 1)

    grow((), 0)
    return names, keyed, units, draw(st.booleans())


@settings(max_examples=120, deadline=None)
@given(wrapped_trees(), st.data())
def test_the_code_calls_the_units_and_nothing_else(drawn, data):
    """Each unit once, with what it keeps; inner before outer; the root last."""
    names, keyed, units, known = drawn
    recomputed = data.draw(st.lists(st.sampled_from(names), unique=True))
    code = python_code(
        wrapping(*units, checkpointed=recomputed),
        PLAIN,
        model_name="m",
        modules=names if known else (),
        keyed=keyed,
    )
    told = ran(code, tree(names, keyed))
    *calls, root = told["calls"]
    assert root == (("",), True)
    assert sorted(calls) == sorted((u.modules, u.reshard_after_forward) for u in units)
    assert told.get("checkpointed", set()) == set(recomputed)
    for place, (outer, _) in enumerate(calls):
        for inner, _ in calls[place + 1 :]:
            assert not any(i.startswith(f"{o}.") for i in inner for o in outer)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["", ".mlp"]))
def test_groups_in_loops_call_what_was_planned(groups, width, part):
    units = [unit(*(f"layers.{g * width + i}{part}" for i in range(width))) for g in range(groups)]
    names = [name for u in units for name in u.modules]
    told = ran(python_code(wrapping(*units), PLAIN, model_name="m"), tree(names))
    assert [call for call, _ in told["calls"][:-1]] == [u.modules for u in units]


def test_torchtitan_form_takes_the_place_of_apply_fsdp():
    units = [unit("tok_embeddings"), *(unit(f"layers.{i}") for i in range(4))]
    units.append(unit("norm", "output", reshard=False))
    form = torchtitan_form(
        wrapping(*units, checkpointed=["layers.0"]),
        Setting(shards=4, replicas=2),
        model_name="Llama",
        modules=[f"layers.{i}" for i in range(4)],
    )
    assert "    for layer in model.layers.values():\n" in form.text
    names = [name for u in units for name in u.modules]
    given = {"dp_mesh": "mesh", "param_dtype": "p", "reduce_dtype": "r", "pp_enabled": False}
    told = ran(form.text, tree(names, {"layers"}), "apply_fsdp", **given, cpu_offload=True)
    assert told["mesh"] == "mesh"
    assert told["policy"] == ("p", "r", {})
    assert told["calls"][:-1] == [(u.modules, u.reshard_after_forward) for u in units]
    with pytest.raises(ValueError, match="pipeline"):
        ran(form.text, tree(names, {"layers"}), "apply_fsdp", **given | {"pp_enabled": True})
    notes = "\n".join(form.notes)
    assert "data_parallel_shard_degree = 4, data_parallel_replicate_degree = 2" in notes
    assert 'mixed_precision_param = "bfloat16"' in notes
    assert "planned: layers.*" in notes
    assert "disable_fsdp_gradient_division" in notes


def plan_of(form):
    """The dictionary in the text."""
    found = [n for n in ast.parse(form.text).body if isinstance(n, ast.Assign)]
    return ast.literal_eval(found[0].value)


def test_huggingface_form_of_what_it_can_say():
    """Embedding, layers, and norm with head kept: what transformers does by itself."""
    units = [unit("model.embed_tokens"), *map(unit, LAYERS)]
    units.append(unit("model.norm", "lm_head", reshard=False))
    form = huggingface_form(wrapping(*units), Setting(shards=8, replicas=2), modules=LAYERS)
    assert plan_of(form) == {
        "model.embed_tokens": "free_full_weight",
        "model.layers.*": "free_full_weight",
        "model.norm": "keep_full_weight",
        "lm_head": "keep_full_weight",
    }
    assert (
        "DistributedConfig(fsdp_size=8, dp_replicate_size=2, fsdp_plan=fsdp_plan, "
        "fsdp_mixed_precision=True)"
    ) in form.text
    assert form.notes == (
        "rules of the model's own plan stay in force where none here has the same name",
    )


@pytest.mark.parametrize(
    ("units", "more", "note"),
    [
        (map(unit, LAYERS[:30]), {}, "takes in 2 more than planned, such as model.layers.30"),
        ([unit(*LAYERS[:2])], {}, "model.layers.*: planned in groups of 2"),
        ([unit("norm", "lm_head")], {}, "norm, lm_head: planned in groups of 2"),
        (
            [unit("norm", reshard=False), unit("lm_head", reshard=False)],
            {},
            "lm_head, norm: planned as two units",
        ),
        (
            [unit(LAYERS[0]), unit(LAYERS[1], reshard=False)],
            {},
            "model.layers.*: planned keep_full_weight in part",
        ),
        ([], {"checkpointed": LAYERS}, "checkpointing is no part of a plan: model.layers.*"),
        ([], {"compute_dtype": "fp16"}, "bf16 reduced in fp32, not fp16 in fp32"),
    ],
)
def test_what_a_huggingface_plan_cannot_say_is_noted(units, more, note):
    checkpointed = more.pop("checkpointed", ())
    setting = Setting(shards=8, **more)
    planned = wrapping(*units, checkpointed=checkpointed)
    form = huggingface_form(planned, setting, modules=LAYERS)
    assert any(note in told for told in form.notes), form.notes


def test_a_rule_of_unknown_reach_is_noted():
    form = huggingface_form(wrapping(unit("h.0")), PLAIN)
    assert isinstance(form, Form)
    assert "a rule holds for all layers of its list, planned or not" in form.notes
    assert "fsdp_mixed_precision" not in form.text


def test_checking_needs_torch_and_says_so():
    problem = r"pip install 'shardwise\[torch\]'"
    with patch.dict(sys.modules, {"torch": None}), pytest.raises(InputError, match=problem):
        verify(None, wrapping(), PLAIN, batch=1, seq_len=1)
