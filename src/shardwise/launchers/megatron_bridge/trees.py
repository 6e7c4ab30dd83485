"""Trees of sections, as YAML and Hydra's overrides have them, and their values as plain words."""

import re
from collections.abc import Iterator, Mapping

from shardwise.units import read_number

Leaf = bool | int | float | str | None | list["Leaf"] | dict[str, "Leaf"]
"""Value of a configuration file."""
Tree = dict[str, Leaf]
"""Section or field to what it holds."""

TARGET = "_target_"
"""Key with the Python class or function that a node of a tree stands for."""
_NODE_KEYS = (TARGET, "_call_", "_partial_", "_args_", "_name_", "_convert_", "_recursive_")
_SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_MODULES = ("torch.nn.functional.", "torch.")


def put(tree: Tree, path: str, value: Leaf) -> None:
    """Set the value at a path of names with dots between them.

    Mappings merge; what else stands on the way is replaced.
    """
    *sections, name = path.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            inner = {}
            tree[section] = inner
        tree = inner
    known = tree.get(name)
    if isinstance(value, dict) and isinstance(known, dict):
        for key, item in value.items():
            put(known, key, item)
    else:
        tree[name] = value


def remove(tree: Tree, path: str) -> None:
    """Remove the value at a path, if there is one."""
    *sections, name = path.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            return
        tree = inner
    tree.pop(name, None)


def section(tree: Tree, path: str) -> Tree:
    """Return the section at a path; an empty one if there is none."""
    for name in path.split("."):
        inner = tree.get(name)
        if not isinstance(inner, dict):
            return {}
        tree = inner
    return tree


def leaves(tree: Mapping[str, Leaf], within: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield the path and value of every field; classes of nodes and empty sections are none."""
    for name, value in tree.items():
        path = f"{within}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        elif name not in _NODE_KEYS:
            yield path, value


def plain(value: Leaf) -> Leaf:
    """Return a value with types and functions as words, and numbers such as 1e-5 as numbers.

    A node that stands for a type or a function of PyTorch is its name: bfloat16, silu.
    """
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        target = value.get(TARGET)
        if "_name_" in value:  # a member of an enumeration
            return value["_name_"]
        if isinstance(target, str) and set(value) <= set(_NODE_KEYS) and "_call_" in value:
            return _short(target)
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str):
        number = read_number(value) if _SCIENTIFIC.fullmatch(value) else None
        return _short(value) if number is None else number
    return value


def torch_type(name: str) -> Tree:
    """Return the node of a type of PyTorch."""
    return {TARGET: f"torch.{name}", "_call_": False}


def _short(name: str) -> str:
    """A name of PyTorch without its module."""
    for module in _MODULES:
        if name.startswith(module):
            return name.removeprefix(module)
    return name
