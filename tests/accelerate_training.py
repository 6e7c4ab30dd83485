"""A tiny Llama trained under a configuration of accelerate, on CPUs; run by `accelerate launch`.

Prints the losses of two steps, over all replicas, and those of one process with the same batch.
"""

import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
SIZES = {
    "hidden_size": 32,
    "vocab_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SEQUENCES, TOKENS, STEPS = 4, 16, 2


def tiny(family: str) -> nn.Module:
    """Llama, or Qwen 3 with norms of queries and keys; random weights."""
    torch.manual_seed(0)
    config_class, model_class = FAMILIES[family]
    config = config_class(
        **SIZES,
        max_position_embeddings=TOKENS,
        initializer_range=0.2,
        attn_implementation="sdpa",
        use_cache=False,
        tie_word_embeddings=False,
    )
    model: nn.Module = model_class(config)
    return model


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens).logits[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def alone(family: str, tokens: torch.Tensor) -> list[float]:
    """Losses of one process that has the full batch."""
    model, losses = tiny(family), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def split(model: nn.Module, plan: str, mesh: Any) -> None:
    """Apply an exported tensor-parallel plan."""
    spec = importlib.util.spec_from_file_location("plan", plan)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.parallelize(model, mesh)


def together(family: str, tokens: torch.Tensor, plan: str) -> dict[str, Any]:
    """Losses under accelerate, with a tensor-parallel plan or without (`none`)."""
    accelerator, model = Accelerator(), tiny(family)
    mesh = accelerator.torch_device_mesh
    if plan != "none":
        split(model, plan, mesh["tp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    dp, losses = mesh["dp_shard"], []
    own = tokens.chunk(dp.size())[dp.get_local_rank()]
    for _ in range(STEPS):
        loss = loss_of(model, own)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total, group=dp.get_group())
        losses.append(total.item() / dp.size())
    weight = model.model.layers[0].self_attn.q_proj.weight
    version = accelerator.state.fsdp_plugin.fsdp_version
    return {"losses": losses, "local": list(weight.to_local().shape), "fsdp": version}


def main() -> None:
    """Train as the arguments say: a file for the results, a family, and plans."""
    warnings.simplefilter("ignore")
    out, family, *plans = sys.argv[1:]
    PartialState(cpu=True)
    # FSDP is of accelerators, says accelerate; its collectives run on CPUs too.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU  # noqa: SLF001
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(SIZES["vocab_size"], (SEQUENCES, TOKENS), generator=source)
    trained = [together(family, tokens, plan) for plan in plans]
    found = {"alone": alone(family, tokens), "together": trained}
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
