"""Wrappings in short, and what emitted code calls: a PyTorch that only writes it down."""

import sys
from types import ModuleType
from unittest.mock import patch

from shardwise.fsdp.plan import Setting, Unit, Wrapping

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
