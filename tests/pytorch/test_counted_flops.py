"""FLOPs of layers against PyTorch's counter, on modules of transformers and the meta device."""

from functools import partial
from importlib import import_module

import pytest

from described_layers import gqa, mlp, model, moe
from samples import flops, operations, rank_work
from shardwise.ops.operation import FlashAttention, Matmul, Phase, Scan
from shardwise.ops.sparse import sparse_keys
from shardwise.ops.streams import joined_streams
from test_mixers import MIXERS

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402 - only where torch is
from transformers import AutoConfig  # noqa: E402 - only where transformers is

pytestmark = pytest.mark.any_software

HIDDEN = 96
# The configuration of transformers for the fields of a mixer.
CLASSES = {
    "gated_delta": ("qwen3_next", "Qwen3NextGatedDeltaNet"),
    "kimi_delta": ("kimi_linear", "KimiLinearDeltaAttention"),
    "mamba2": ("nemotron_h", "NemotronHMamba2Mixer"),
    "mamba1": ("jamba", "JambaMambaMixer"),
    "lightning": ("minimax", "MiniMaxLightningAttention"),
    "short_conv": ("lfm2", "Lfm2ShortConv"),
}
KEYS = {
    "gated_delta": {
        "linear_num_key_heads": "key_heads",
        "linear_num_value_heads": "value_heads",
        "linear_key_head_dim": "key_dim",
        "linear_value_head_dim": "value_dim",
        "linear_conv_kernel_dim": "conv",
    },
    "kimi_delta": {
        "linear_num_heads": "heads",
        "linear_head_dim": "head_dim",
        "linear_conv_kernel_dim": "conv",
    },
    "mamba2": {
        "mamba_num_heads": "heads",
        "mamba_head_dim": "head_dim",
        "n_groups": "groups",
        "ssm_state_size": "state",
        "conv_kernel": "conv",
        "chunk_size": "chunk",
    },
    "mamba1": {"mamba_d_state": "state", "mamba_dt_rank": "rank", "mamba_d_conv": "conv"},
    "lightning": {"num_attention_heads": "heads", "head_dim": "head_dim", "block_size": "block"},
    "short_conv": {"conv_L_cache": "conv"},
}
LAYER_TYPES = {
    "gated_delta": {"layer_types": ["linear_attention"], "num_hidden_layers": 1},
    "kimi_delta": {"layer_types": ["linear_attention"], "num_hidden_layers": 1},
    "mamba2": {"layers_block_type": ["mamba"]},
    "mamba1": {"mamba_expand": 2},
    "lightning": {"layer_types": ["linear_attention"], "num_hidden_layers": 1},
    "short_conv": {"layer_types": ["conv"], "num_hidden_layers": 1},
}
ODD = {
    "mamba2": {"heads": 9, "head_dim": 10, "groups": 3, "state": 14, "conv": 3, "chunk": 32},
    "mamba1": {"width": 192, "state": 5, "rank": 7, "conv": 3},
    "gated_delta": {"key_heads": 3, "value_heads": 9, "key_dim": 10, "value_dim": 22, "conv": 2},
    "kimi_delta": {"heads": 5, "head_dim": 14, "conv": 3},
    "lightning": {"heads": 5, "head_dim": 14, "block": 32},
    "short_conv": {"conv": 7},
}


def module(family, name, *positions, **keys):
    """A module of transformers on the meta device."""
    config = AutoConfig.for_model(family, hidden_size=HIDDEN, **keys)
    config._attn_implementation = "eager"  # noqa: SLF001 - plain products, which are counted
    with torch.device("meta"):
        return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)(
            config, *positions
        )


def zeros(*shape):
    return torch.zeros(*shape, device="meta")


def counted(run, *inputs):
    """FLOPs that PyTorch counts."""
    with FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops()


def forward_flops(layer, tokens, seen=None, masked=False, **fields):
    """FLOPs of the products and cores of a layer forward, and of its convolution with its padding.

    Parameters
    ----------
    seen
        What the reference code computes of some operations, in parts of what kernels do.
    masked
        Whether it scores all keys where an indexer selects some.
    """
    described = model(HIDDEN, 64, {"count": 1} | layer, seq_len=tokens, **fields)
    work = {"sequences": 1, "seq_len": tokens, "document_len": tokens, "masked_selection": masked}
    total = 0.0
    for name, operation in operations(described, **work).items():
        kernels = [kernel for kernel in operation.kernels if kernel.phase is Phase.FORWARD]
        if name.endswith(".conv"):
            padded = tokens + layer["mixer"]["conv"] - 1
            total += sum(float(kernel.flops[0]) for kernel in kernels) * padded / tokens
            continue
        products = [k for k in kernels if isinstance(k, Matmul | FlashAttention | Scan)]
        total += sum(float(k.flops[0]) for k in products) * (seen or {}).get(name, 1.0)
    return total


def other_products(kind, mixer, tokens):
    """FLOPs of the products of the reference code beyond those of kernels.

    A triangle is solved in place of a product with its inverse; Mamba-2 multiplies B and C for each
    head in place of each group, and the states of all chunks with one another; of Mamba-1's scan
    only one product of states is no element-wise one.
    """
    match kind:
        case "gated_delta":
            return -2 * 64 * tokens * mixer["value_heads"] * (mixer["key_dim"] + mixer["value_dim"])
        case "kimi_delta":
            return -4 * 64 * tokens * mixer["heads"] * mixer["head_dim"]
        case "mamba2":
            states = mixer["heads"] * mixer["head_dim"] * mixer["state"]
            per_head = 2 * mixer["chunk"] * mixer["state"] * (mixer["heads"] - mixer["groups"])
            return tokens * per_head + 2 * (tokens // mixer["chunk"] + 1) ** 2 * states
        case "mamba1":
            return (2 - 9) * tokens * mixer["width"] * mixer["state"]
    return 0


@pytest.mark.parametrize(("mixers", "tokens"), [(MIXERS, 512), (ODD, 192)], ids=["even", "odd"])
@pytest.mark.parametrize("kind", list(CLASSES))
def test_mixers(kind, mixers, tokens):
    """To the last one, but for what the reference code computes in another way."""
    fields = mixers[kind]
    keys = {key: fields[name] for key, name in KEYS[kind].items()} | LAYER_TYPES[kind]
    one = module(*CLASSES[kind], 0, **keys)
    more = (None, None) if kind == "lightning" else ()
    found = counted(one, zeros(1, tokens, HIDDEN), *more)
    layer = {"mixer": {"kind": kind} | fields}
    assert found == forward_flops(layer, tokens) + other_products(kind, fields, tokens)


TOKENS = 128
ROTARY = 8
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24}
LATENT = {
    "heads": 6,
    "kv_heads": 6,
    "head_dim": 10 + ROTARY,
    "v_head_dim": 14,
    "latent": {"q_rank": 20, "kv_rank": 12, "rope_dim": ROTARY},
}
LATENT_KEYS = {
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": 14,
}
ATTENTION = [
    ("llama", "LlamaAttention", GROUPED, gqa(6, 2, 24)),
    ("qwen3_next", "Qwen3NextAttention", GROUPED, gqa(6, 2, 24, gate="full")),
    ("deepseek_v3", "DeepseekV3Attention", LATENT_KEYS, {"attention": LATENT}),
]


@pytest.mark.parametrize(
    ("family", "name", "keys", "layer"), ATTENTION, ids=["grouped", "gated", "latent"]
)
def test_dense_attention(family, name, keys, layer):
    """Scores of all pairs, of which a causal kernel computes half."""
    one = module(family, name, 0, **keys)
    width = ROTARY if "latent" in layer["attention"] else 24
    angles = (zeros(1, TOKENS, width), zeros(1, TOKENS, width))
    found = counted(one, zeros(1, TOKENS, HIDDEN), angles, None)
    assert found == forward_flops(layer, TOKENS, {"attention.core": 2.0})


def keys_of(layer):
    """Mean number of keys of a query in a sparse core."""
    (one,) = model(HIDDEN, 64, {"count": 1} | layer).layers
    return float(sparse_keys(one.attention, torch.full((1,), float(TOKENS)).numpy())[0])


class Absorbed(torch.nn.Module):
    """Latent attention over the compressed keys, which are all scored and then masked."""

    def __init__(self, indexer):
        super().__init__()
        linear = partial(torch.nn.Linear, bias=False, device="meta")
        self.indexer = indexer
        self.q_down, self.q_up = linear(HIDDEN, 20), linear(20, 6 * 18)
        self.kv_down, self.out = linear(HIDDEN, 12 + ROTARY), linear(6 * 14, HIDDEN)
        self.up = torch.empty(6, 12, 10 + 14, device="meta")

    def forward(self, x):
        """Queries to the width of the compressed keys; the output back from it."""
        compressed = self.q_down(x)
        angles = (zeros(1, TOKENS, ROTARY), zeros(1, TOKENS, ROTARY))
        mask = zeros(1, TOKENS, TOKENS)
        mask = mask.scatter(-1, self.indexer(x, compressed, angles, mask, None).long(), 1.0)
        queries = self.q_up(compressed).view(TOKENS, 6, 18).transpose(0, 1)
        plain, rotary = queries.split([10, ROTARY], -1)
        queries = torch.cat([plain @ self.up[..., :10].transpose(1, 2), rotary], -1)
        keys = self.kv_down(x)[0]
        scores = torch.softmax(queries @ keys.T + mask, -1)
        heads = (scores @ keys[:, :12]) @ self.up[..., 10:]
        return self.out(heads.transpose(0, 1).reshape(1, TOKENS, 6 * 14))


@pytest.mark.parametrize("top_k", [16, 512])
def test_selected_keys(top_k):
    """Indexer and absorbed attention of DeepSeek-V3.2, below and above the keys of a query."""
    index = {"index_n_heads": 5, "index_head_dim": 12, "index_topk": top_k}
    one = Absorbed(module("deepseek_v32", "DeepseekV32Indexer", 0, **LATENT_KEYS, **index))
    indexer = {"heads": 5, "head_dim": 12, "top_k": top_k}
    layer = {"attention": LATENT | {"indexer": indexer}}
    seen = {"attention.index_scores": 2.0, "attention.core": TOKENS / keys_of(layer)}
    found = counted(one, zeros(1, TOKENS, HIDDEN))
    assert found == pytest.approx(forward_flops(layer, TOKENS, seen), rel=1e-12)


@pytest.mark.parametrize("top_k", [16, 512])
def test_masked_selection(top_k):
    """Attention of DeepSeek-V3.2 as transformers runs it: scores of all pairs, at any top-k."""
    index = {"index_n_heads": 5, "index_head_dim": 12, "index_topk": top_k}
    one = module("deepseek_v32", "DeepseekV32Attention", 0, **LATENT_KEYS, **index)
    angles = (zeros(1, TOKENS, ROTARY), zeros(1, TOKENS, ROTARY))
    found = counted(one, zeros(1, TOKENS, HIDDEN), angles, zeros(1, 1, TOKENS, TOKENS))
    indexer = {"heads": 5, "head_dim": 12, "top_k": top_k}
    assert found == forward_flops({"attention": LATENT | {"indexer": indexer}}, TOKENS, masked=True)


@pytest.mark.parametrize("ratio", [None, 4, 16])
def test_compressed_keys(ratio):
    """DeepSeek-V4: a window, with selected keys of 4 tokens each, or all of 16 tokens."""
    name = {
        None: "sliding_attention",
        4: "compressed_sparse_attention",
        16: "heavily_compressed_attention",
    }[ratio]
    keys = {
        "num_attention_heads": 6,
        "head_dim": 20,
        "q_lora_rank": 28,
        "o_groups": 3,
        "o_lora_rank": 10,
        "sliding_window": 24,
        "index_n_heads": 5,
        "index_head_dim": 12,
        "index_topk": 8,
        "layer_types": [name],
        "mlp_layer_types": ["moe"],
        "num_hidden_layers": 1,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
        "qk_rope_head_dim": 8,
    }
    one = module("deepseek_v4", "DeepseekV4Attention", 0, **keys)
    places = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    pair = (zeros(1, TOKENS, 4), zeros(1, TOKENS, 4))
    angles = {"main": pair, "compress": pair}
    found = counted(one, zeros(1, TOKENS, HIDDEN), angles, places, zeros(1, 1, TOKENS, TOKENS))
    narrow = {"q_rank": 28, "output_groups": 3, "output_rank": 10}
    attention = {
        "heads": 6,
        "kv_heads": 1,
        "head_dim": 20,
        "window": 24,
        "sinks": True,
        "rotary_dim": 8,
        "compressed": narrow | ({"ratio": ratio} if ratio else {}),
    }
    if ratio == 4:
        attention["indexer"] = {"heads": 5, "head_dim": 12, "top_k": 8}
    layer = {"attention": attention}
    entries = TOKENS // ratio if ratio else 0
    # Weights of heads are multiplied and added up element by element.
    seen = {
        "attention.index_scores": 2.0 * 12 / 13,
        "attention.core": (TOKENS + entries) / keys_of(layer),
    }
    assert found == pytest.approx(forward_flops(layer, TOKENS, seen), rel=1e-12)


@pytest.mark.parametrize("latent", [None, 20])
def test_experts(latent):
    """Router, experts in the width of the model or a smaller one, and the shared expert."""
    keys = {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56,
        "moe_latent_size": latent,
        "n_group": 1,
        "topk_group": 1,
    }
    one = module("nemotron_h", "NemotronHMoE", 0, **keys).to_empty(device="cpu")
    for tensor in (*one.parameters(), *one.buffers()):
        torch.nn.init.uniform_(tensor, -1, 1)
    words = {"activation": "relu2", "shared_ffn": 56, "latent": latent}
    found = counted(one, torch.rand(1, TOKENS, HIDDEN))
    assert found == forward_flops(moe(8, 3, 40, **words), TOKENS)


def test_gated_mlp():
    """Three products."""
    one = module("llama", "LlamaMLP", intermediate_size=40)
    assert counted(one, zeros(1, TOKENS, HIDDEN)) == forward_flops(mlp(40), TOKENS)


def test_hyper_connections():
    """Shares of 4 streams before each of two blocks, and before the head."""
    before = module("deepseek_v4", "DeepseekV4HyperConnection", hc_mult=4)
    joined = module("deepseek_v4", "DeepseekV4HyperHead", hc_mult=4)
    streams = zeros(1, TOKENS, 4, HIDDEN)
    layer = gqa(6, 2, 24) | mlp(40)
    words = {"streams": 4, "streams_mixed": True, "streams_joined": True}
    more = forward_flops(layer, TOKENS, **words) - forward_flops(layer, TOKENS)
    assert 2 * counted(before, streams) == more
    work = rank_work(sequences=1, seq_len=TOKENS, document_len=TOKENS)
    last = joined_streams(model(HIDDEN, 64, {"count": 1} | layer, **words), work)
    assert counted(joined, streams) == flops(last, Phase.FORWARD)
