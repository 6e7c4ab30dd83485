"""Small training runs: models as `ops` counts them, and the same training in every layout."""
# ruff: noqa: E402 - torch may be missing

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from samples import operations, saved
from shardwise import Model
from shardwise.measure.job import Job
from shardwise.measure.modules import Transformer
from shardwise.ops.operation import FlashAttention, Matmul, Phase
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

TOKENS, VOCABULARY, HIDDEN = 64, 80, 48
MLP = {"mlp": {"ffn": 72, "activation": "swiglu"}}
GROUPED = {"attention": {"heads": 6, "kv_heads": 2, "head_dim": 16}}
LATENT = {"q_rank": 20, "kv_rank": 12, "rope_dim": 8}
EXPERTS = {"experts": 4, "top_k": 2, "ffn": 24, "activation": "swiglu"}
LAYERS = {
    "dense": {"attention": {"heads": 6, "kv_heads": 6, "head_dim": 16}} | MLP,
    "grouped": GROUPED | MLP,
    "latent": {"attention": {"heads": 6, "kv_heads": 6, "head_dim": 16, "latent": LATENT}} | MLP,
    "experts": GROUPED | {"moe": EXPERTS | {"shared_ffn": 32}},
}
GPT = {
    "attention": {"heads": 6, "kv_heads": 6, "head_dim": 8, "bias": "all"},
    "mlp": {"ffn": 96, "activation": "gelu", "bias": True},
}


def described(layer, **fields):
    usual = {"name": "small", "hidden": HIDDEN, "vocab": VOCABULARY, "seq_len": TOKENS}
    usual |= {"norm": "rmsnorm", "position": "rope", "layers": [layer | {"count": 2}]}
    return Model.load(usual | fields)


def built(model):
    return Transformer(model, TOKENS, range(model.depth), first=True, last=True)


def loss_of(module):
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    return cross_entropy(module(ids).flatten(0, 1), ids.flatten())


LEARNED = {"norm": "layernorm", "position": "learned", "tied_embeddings": True}
NAMED = [*((layer, {}) for layer in LAYERS.values()), (GPT, LEARNED), (GPT, {"head_bias": True})]


@pytest.mark.parametrize(("layer", "fields"), NAMED, ids=range(len(NAMED)))
def test_built_models_have_the_parameters_that_are_counted(layer, fields):
    model = described(layer, **fields)
    held = sum(one.numel() for one in built(model).parameters())
    assert held == count_parameters(model).total


def each_layer(model):
    work = {"sequences": 1, "seq_len": TOKENS, "document_len": TOKENS}
    return operations(model, **work).values()


@pytest.mark.parametrize("kind", LAYERS)
def test_products_are_those_that_pytorch_counts(kind):
    """Forward and backward, to the last one.

    The unfused kernel computes all scores, of which a causal one computes half, and no scores
    again in backward: 2 products forward and 4 backward.
    """
    model = described(LAYERS[kind])
    module = built(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(module).backward()
    kernels = [kernel for one in each_layer(model) for kernel in one.kernels]
    products = sum(float(one.flops[0]) for one in kernels if isinstance(one, Matmul))
    core = [one for one in kernels if isinstance(one, FlashAttention)]
    scores = sum(float(one.flops[0]) for one in core if one.phase is Phase.FORWARD)
    head = 6 * TOKENS * HIDDEN * VOCABULARY
    assert counter.get_total_flops() == 2 * (products + 3 * 2 * scores) + head


def saved_by(module):
    """Bytes that autograd saves in layers, by hooks on the module, without weights."""
    kept = {}
    weights = {one.untyped_storage().data_ptr() for one in module.parameters()}

    def pack(tensor):
        stored = tensor.untyped_storage()
        if stored.data_ptr() not in weights:
            kept[stored.data_ptr()] = stored
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(module)
    del loss
    return sum(one.nbytes() for one in kept.values())


@pytest.mark.parametrize("kind", LAYERS)
def test_saved_bytes_are_those_that_pytorch_saves(kind):
    one, two = (described(LAYERS[kind] | {"count": n}) for n in (1, 2))
    layer = saved_by(built(two)) - saved_by(built(one))
    print(kind, layer, saved(each_layer(one)))
