"""Saved bytes and products of layers against autograd, with kernels that save what real ones do.

Saved bytes agree within 2 %: statistics of norms are not counted. Products agree to the last one,
forward and backward.
"""

import pytest

from described_layers import mlp, model
from fused_layers import (
    MIXERS,
    Attention,
    Block,
    Compressed,
    Experts,
    Latent,
    Mlp,
    Streams,
    measured,
)
from samples import operations, saved
from shardwise.config.model import Model
from shardwise.ops.operation import Matmul

pytestmark = pytest.mark.any_software

TOKENS = 4096
OF_MIXERS = [
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "olmo-hybrid-7b",
    "kimi-linear-48b-a3b",
    "nemotron-3-nano",
    "nemotron-h-56b",
    "jamba-1.5-mini",
    "minimax-text-01",
    "lfm2-1.2b",
]
OF_ATTENTION = [
    ("llama3-8b", 0, Attention),
    ("qwen3-30b-a3b", 0, Attention),
    ("qwen3-next-80b-a3b", 1, Attention),
    ("step-3.7-flash", 0, Attention),
    ("deepseek-v3", 0, Latent),
    ("deepseek-v3.2", 0, Latent),
    ("minimax-m3", 1, Attention),
    *(("deepseek-v4-flash", kind, Compressed) for kind in range(3)),
]


def check(module, hidden, layer, **fields):
    """Whether a layer saves as much as a module, and has as many products."""
    described = model(hidden, 64, {"count": 1} | layer, seq_len=TOKENS, **fields)
    work = {"sequences": 1, "seq_len": TOKENS, "document_len": TOKENS}
    ops = operations(described, **work).values()
    products = [k for one in ops for k in one.kernels if isinstance(k, Matmul)]
    bytes_, flops = measured(module, hidden * described.streams, TOKENS)
    assert saved(ops) / TOKENS == pytest.approx(bytes_, rel=0.02)
    assert sum(float(one.flops[0]) for one in products) / TOKENS == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize("name", OF_MIXERS)
def test_mixers(name):
    """The first of a published model."""
    known = Model.load(name)
    mixer = known.mixers[0]
    module = MIXERS[mixer.kind](known.hidden, mixer)
    check(Block(module), known.hidden, {"mixer": mixer.to_dict()})


@pytest.mark.parametrize(("name", "place", "kind"), OF_ATTENTION)
def test_attention(name, place, kind):
    """Grouped and latent, with gates, over selected and compressed keys."""
    known = Model.load(name)
    attention = known.layers[place].attention
    module = kind(known.hidden, attention)
    check(Block(module), known.hidden, {"attention": attention.to_dict()})


def test_gated_mlp():
    """Of Llama 3 8B."""
    check(Block(Mlp(4096, 14336, gated=True)), 4096, mlp(14336))


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "nemotron-3-nano", "nemotron-3-super"])
def test_experts(name):
    """In the width of the model, and in a smaller one."""
    known = Model.load(name)
    one = next(layer.moe for layer in known.layers if layer.moe is not None)
    check(Block(Experts(known.hidden, one)), known.hidden, {"moe": one.to_dict()})


def test_streams():
    """An MLP of the width of DeepSeek-V4 Flash that reads 4 streams."""
    module = Streams(4096, 4, Mlp(4096, 2048, gated=True))
    check(module, 4096, mlp(2048), streams=4, streams_mixed=True)
