"""Models that are sharded and trained, and their wrappings; needs torch.

Run as a script this file is one of two ranks that train sharded models on CPUs.
"""

import json
import sys
from importlib.util import find_spec

import pytest

from emitted_calls import unit, wrapping
from shardwise.fsdp.emit import python_code
from shardwise.fsdp.plan import Setting

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

HUB = find_spec("transformers") is not None
BATCH, TOKENS, STEPS = 4, 8, 2
ALL_FP32 = Setting(shards=2, compute_dtype="fp32")


class Chain:
    """Square matrices in a row: every unit holds N = width² numbers and saves width numbers."""

    def __init__(self, count=4, width=64, wrong=""):
        self.count, self.width, self.wrong = count, width, wrong

    def build(self):
        if self.wrong == "build":
            raise KeyError("cannot be built")
        return nn.Sequential(
            *(nn.Linear(self.width, self.width, bias=False) for _ in range(self.count))
        )

    def inputs(self, _module, batch, _seq_len):
        return (torch.zeros(batch, self.width),)

    def loss(self, output):
        if self.wrong == "loss":
            raise KeyError("no loss")
        return output.float().sum()


# --- the emitted code, run by two ranks ---------------------------------------------------------


class Pictures(nn.Module):
    """Pictures and tokens: a tower, a projection, and layers that see both."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Flatten(2))
        self.seeing = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.projector = nn.Linear(16, 24)
        self.embed = nn.Embedding(50, 24)
        self.layers = nn.ModuleDict(
            {
                str(i): nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU())
                for i in range(3)
            }
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 50)
        self.tower.requires_grad_(False)

    def forward(self, pictures, input_ids):
        seen = self.tower(pictures).transpose(1, 2)
        for layer in self.seeing:
            seen = seen + torch.tanh(layer(seen))
        both = torch.cat([self.projector(seen), self.embed(input_ids)], dim=1)
        for layer in self.layers.values():
            both = both + layer(both)
        return self.head(self.norm(both))[:, -TOKENS:]


def toy():
    blocks = [nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)) for _ in range(5)]
    return nn.Sequential(nn.Embedding(50, 24), *blocks, nn.LayerNorm(24), nn.Linear(24, 50))


def hub(name, **more):
    import transformers  # noqa: PLC0415 - not needed by all

    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 50, "use_cache": False}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{name}Config")(**sizes | more)
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, kind)(config)


def gpt2():
    return hub("GPT2", n_head=4, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


def qwen():
    return hub(
        "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8
    )


BLOCKS = [f"model.layers.{i}" for i in range(4)]
HEADS = [f"transformer.h.{i}" for i in range(4)]
CASES = {
    "toy": (
        toy,
        wrapping(
            *(unit(str(i)) for i in (0, 1, 2)),
            *(unit("2.2"), unit("3", "4"), unit("5", reshard=False), unit("6", "7")),
            checkpointed=["1", "2", "3", "5", "5.0"],
        ),
        Setting(shards=2, compute_dtype="fp32"),
    ),
    "replicas": (
        toy,
        wrapping(*(unit(str(i)) for i in range(1, 6))),
        Setting(shards=1, replicas=2, compute_dtype="fp32"),
    ),
    "pictures": (
        Pictures,
        wrapping(
            *(unit("tower"), *(unit(f"seeing.{i}") for i in range(4)), unit("projector")),
            *(unit("embed"), *(unit(f"layers.{i}") for i in range(3))),
            unit("norm", "head", reshard=False),
            checkpointed=["layers.1"],
        ),
        ALL_FP32,
    ),
    "gpt2": (
        gpt2,
        wrapping(
            unit("transformer.wte", "transformer.ln_f", "lm_head"),
            unit("transformer.wpe"),
            *map(unit, HEADS),
            checkpointed=HEADS,
        ),
        ALL_FP32,
    ),
    "llama": (
        lambda: hub("Llama"),
        wrapping(
            unit("model.embed_tokens"),
            *(u for name in BLOCKS for u in (unit(name), unit(f"{name}.mlp"))),
            unit("model.norm", "lm_head", reshard=False),
            checkpointed=BLOCKS[:2],
        ),
        ALL_FP32,
    ),
    "qwen": (
        qwen,
        wrapping(
            unit("model.embed_tokens"),
            *(u for n in BLOCKS for u in (unit(f"{n}.self_attn"), unit(f"{n}.mlp"))),
            unit("lm_head"),
            checkpointed=[f"{name}.mlp" for name in BLOCKS],
        ),
        ALL_FP32,
    ),
}
OF_HUB = {"gpt2", "llama", "qwen"}


def emitted(name):
    """The code for a case, for CPUs."""
    make, wrapped, setting = CASES[name]
    modules = [n for n, _ in make().named_modules() if n]
    told = {"modules": modules, "keyed": ["layers"], "device": "cpu"}  # the dictionary of Pictures
    return python_code(wrapped, setting, model_name=name, **told)


def loss_of(model, ids, pictures):
    """Of the next token; the same number on every position."""
    given = (pictures, ids) if isinstance(model, Pictures) else (ids,)
    output = model(*given)
    scores = output if torch.is_tensor(output) else output.logits
    return nn.functional.cross_entropy(scores.flatten(0, 1), ids.roll(-1, 1).flatten())


def trained(model, ids, pictures, rank=None):
    """Losses before each step and after the last, over all ranks."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    part = slice(None) if rank is None else slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    losses = []
    for step in range(STEPS + 1):
        loss = loss_of(model, ids[part], pictures[part])
        told = loss.detach().clone()
        if rank is not None:
            torch.distributed.all_reduce(told)
            told /= 2
        losses.append(told.item())
        if step < STEPS:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


def main(rank, store, names):
    """Train each model alone and sharded over two ranks, and print the losses."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{store}", rank=rank, world_size=2
    )
    told = {}
    for name in names:
        torch.manual_seed(0)
        ids, pictures = torch.randint(50, (BATCH, TOKENS)), torch.randn(BATCH, 3, 8, 8)
        alone, sharded = CASES[name][0](), CASES[name][0]()
        sharded.load_state_dict(alone.state_dict())
        space = {}
        exec(compile(emitted(name), name, "exec"), space)  # noqa: S102 - it is what we test
        assert space["shard"](sharded) is sharded
        told[name] = [trained(alone, ids, pictures), trained(sharded, ids, pictures, rank)]
    torch.distributed.destroy_process_group()
    print(json.dumps(told))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
