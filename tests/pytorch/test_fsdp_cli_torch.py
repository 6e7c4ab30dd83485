"""`shardwise fsdp` on torch modules: traced, planned, verified with PyTorch's own FSDP2."""

import json

import pytest

from shardwise import plan_fsdp

torch = pytest.importorskip("torch")
tools = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")

MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Toy(nn.Module):
    def __init__(self, width=256, frozen=False):
        super().__init__()
        self.table = nn.Embedding(1000, width)
        self.layers = nn.ModuleDict({str(i): Block(width) for i in range(3)})
        self.head = nn.Linear(width, 1000, bias=False)
        self.never = nn.Linear(width, width)
        if frozen:
            self.layers["0"].norm.weight.requires_grad_(False)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x).float().logsumexp(-1).mean()


def make():
    return Toy()


def partly_frozen():
    return Toy(frozen=True)


def of_one_size():
    return Toy(), torch.zeros((2, 64), dtype=torch.int64)
"""
WORDS = ("--gpus", 8, "--batch", 2, "--seq-len", 64, "--reshard", "always", "--seconds", 1)


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    """A module of the user's in the working folder."""
    (tmp_path / "toy_of_fsdp.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "toy_of_fsdp", raising=False)


def test_a_factory_is_planned_and_verified(plan):
    """The predicted peak is what FSDP2 holds on fake tensors."""
    code, record = plan("toy_of_fsdp:make", *WORDS, "--verify", "--optimizer", "sgd")
    found = record["verified"]
    assert code == 0
    assert record["kind"] == "module"
    assert found["predicted_bytes"] == record["peak_memory_bytes"]
    assert found["tracked_bytes"] == max(found["forward_bytes"], found["backward_bytes"])
    assert abs(found["error"]) < 0.03
    assert record["profile_s"] > 0


def test_the_table_tells_both_peaks(shardwise):
    code, out, _ = shardwise("fsdp", "toy_of_fsdp:make", *WORDS, "--verify")
    assert code == 0
    assert "verified with torch on fake tensors: " in out
    assert "; predicted " in out
    assert "note: without the allocator's rounding" in out


def test_a_module_in_python():
    """Given itself; its own inputs have one size, so no batch is the largest."""
    made = torch.nn.Sequential(torch.nn.Embedding(100, 32), torch.nn.Linear(32, 32))
    words = {"gpus": 4, "seq_len": 16, "seconds": 1}
    assert plan_fsdp(made, **words).feasible
    found = plan_fsdp("toy_of_fsdp:of_one_size", **words, memory_budget="1GiB", what_if=True)
    assert found.what_if.batch is None
    assert found.what_if.notes == ("the module makes its own inputs, of one size",)
    most = plan_fsdp("toy_of_fsdp:make", **words, memory_budget="30MiB", what_if=True)
    assert most.what_if.batch > 1


def test_layers_in_a_dictionary_are_called_by_key(shardwise):
    """A list would be called by number."""
    words = ("toy_of_fsdp:make", *WORDS, "--group", 1, "--emit", "python")
    code, out, _ = shardwise("fsdp", *words)
    compile(out, "emitted", "exec")
    assert code == 0
    assert 'model.layers["' in out or "model.layers.values()" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("toy_of_fsdp:make", "--units", "never"), "never runs in the forward pass"),
        (("toy_of_fsdp:make", "--units", "layers"), "no forward of its own"),
        (("toy_of_fsdp:partly_frozen", "--units", "layers.0"), "mixes frozen and trainable"),
        (("toy_of_fsdp:nothing",), "has no nothing"),
        (("no_such_package:make",), "cannot be imported"),
    ],
)
def test_refusals_say_what_is_wrong(shardwise, words, said):
    code, out, err = shardwise("fsdp", *words, *WORDS)
    assert (code, out) == (2, "")
    assert said in err


def test_a_config_is_traced(plan, tmp_path):
    """In the types of the setting; its tokens must be given."""
    pytest.importorskip("transformers")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, record = plan(tmp_path, *WORDS, "--verify", "--units", "model.layers.*")
    assert code == 0
    assert abs(record["verified"]["error"]) < 0.03
    assert record["own"]["units"] == ["model.layers.0", "model.layers.1"]
    assert not {"lm_head", "model.embed_tokens"} & {str(one) for one in record["units"]}
