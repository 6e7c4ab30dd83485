"""Profiles of models of the catalog, and of a Llama of one layer on the sample machine."""

from functools import cache

import samples
from shardwise.fsdp.from_catalog import STACK, profile_of


@cache
def catalog(name, stack=STACK):
    """One sequence on one H100."""
    return profile_of(name, "h100-sxm", batch=1, stack=stack)


def named(profile, name):
    """The first run of a module."""
    return profile.modules[profile.positions[name]]


def shapes(profile, below):
    """Shapes of the weights of a module and all inside it."""
    found = {p.name: p.shape for p in profile.parameters}
    return {n.removeprefix(f"{below}."): s for n, s in found.items() if n.startswith(f"{below}.")}


def one_layer(**fields):
    """Llama's kind, width 64: 8 heads of 8 over 2, 192 wide, 1000 words, 32 tokens."""
    heads = {"kv_heads": 2, "bias": "none"}
    mlp = {"ffn": 192, "activation": "swiglu", "bias": False}
    return samples.llama(layers=[samples.layer(count=1, attention=heads, mlp=mlp)], **fields)


def sample(model, **more):
    """One sequence on the sample machine."""
    return profile_of(model, samples.system(), batch=1, stack=samples.stack(), **more)
