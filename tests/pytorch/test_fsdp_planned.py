"""Traced, planned, verified: what we predict is what PyTorch's FSDP memory tracker counts."""

import json

import pytest

from shardwise.config.system import System
from shardwise.fsdp.plan import Setting, Unit, Wrapping
from shardwise.fsdp.planner.collectives import SystemTimes
from shardwise.fsdp.planner.planner import Planner, compare_common_wrappings
from shardwise.fsdp.profile import check

torch = pytest.importorskip("torch")
nn = torch.nn

from shardwise.fsdp.trace import load_module, trace  # noqa: E402 - after what it needs
from shardwise.fsdp.verify import verify  # noqa: E402
from traced_modules import Captions  # noqa: E402

WITHIN = 0.03
"""Of the tracker's peak; what is seen is below 0.003."""
BASE = {"vocab_size": 8000, "max_position_embeddings": 512, "tie_word_embeddings": False}
CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 256,
             "n_layer": 3, "n_head": 4, "n_positions": 512, "vocab_size": 8000},
    "llama": BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                     "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 3,
                     "num_attention_heads": 8, "num_key_value_heads": 4},
    "qwen3-moe": BASE | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                         "hidden_size": 256, "intermediate_size": 512,
                         "moe_intermediate_size": 128, "num_experts": 8,
                         "num_experts_per_tok": 2, "num_hidden_layers": 3,
                         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32},
}  # fmt: skip


class Pictures(Captions):
    """Large enough that weights and activations decide."""

    def __init__(self):
        super().__init__(width=192, layers=3, words=4000, side=64)


def source(name, folder):
    if name == "captions":
        return Pictures
    pytest.importorskip("transformers")
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return folder / "config.json"


# Few tokens, so that weights decide; many, so that activations do.
SETTINGS = {
    "mixed": (Setting(shards=8), 1, 32),
    "bf16": (Setting(shards=2, stored_dtype="bf16", reduce_dtype="bf16"), 1, 32),
    "replicas": (Setting(shards=4, replicas=2), 2, 256),
}


CASES = [(name, "mixed") for name in (*CONFIGS, "captions")]
CASES += [(name, kind) for name in ("llama", "captions") for kind in ("bf16", "replicas")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_predicted_peak_is_the_trackers(name, kind, tmp_path):
    """For the usual wrappings, the fastest plan and the one of least memory."""
    setting, batch, seq_len = SETTINGS[kind]
    system, origin = System.load("h100-sxm"), source(name, tmp_path)
    profile = trace(origin, system=system, batch=batch, seq_len=seq_len)
    check(profile)
    planner = Planner(
        profile=profile,
        setting=setting,
        collectives=SystemTimes(system=system, setting=setting),
        seconds=2.0,
    )
    fastest, least = planner.best(), planner.best(planner.least_peak_bytes)
    assert fastest is not None
    assert least is not None
    assert least.plan.peak.total_bytes <= fastest.plan.peak.total_bytes
    plans = [named.plan for named in compare_common_wrappings(planner)] + [fastest.plan, least.plan]
    for plan in plans if kind == "mixed" else plans[-2:]:
        told = verify(
            load_module(origin, batch=batch, seq_len=seq_len),
            plan.wrapping, setting, batch=batch, seq_len=seq_len,
        )  # fmt: skip
        assert plan.peak.total_bytes == pytest.approx(told.peak_bytes, rel=WITHIN)


@pytest.mark.parametrize("name", ["llama", "captions"])
def test_checkpointed_blocks_are_predicted_too(name, tmp_path):
    """With all blocks computed again in backward."""
    setting, system, origin = Setting(shards=8), System.load("h100-sxm"), source(name, tmp_path)
    profile = trace(origin, system=system, batch=2, seq_len=512)
    collectives = SystemTimes(system=system, setting=setting)
    planner = Planner(profile=profile, setting=setting, collectives=collectives, checkpoint="all")
    best = planner.best()
    assert best is not None
    assert best.plan.wrapping.checkpointed
    load = load_module(origin, batch=2, seq_len=512)
    told = verify(load, best.plan.wrapping, setting, batch=2, seq_len=512)
    assert best.plan.peak.total_bytes == pytest.approx(told.peak_bytes, rel=WITHIN)


@pytest.mark.parametrize("kind", ["mixed", "bf16"])
def test_units_inside_units_are_predicted(kind, tmp_path):
    """The planner makes none, but a user's are worked out: blocks with their MLPs inside."""
    setting, batch, seq_len = SETTINGS[kind]
    system, origin = System.load("h100-sxm"), source("llama", tmp_path)
    profile = trace(origin, system=system, batch=batch, seq_len=seq_len)
    collectives = SystemTimes(system=system, setting=setting)
    planner = Planner(profile=profile, setting=setting, collectives=collectives)
    units = [Unit(modules=("model.embed_tokens",))]
    for layer in ("model.layers.0", "model.layers.1", "model.layers.2"):
        units += [Unit(modules=(layer,)), Unit(modules=(f"{layer}.mlp",))]
    wrapping = Wrapping(units=(*units, Unit(modules=("model.norm", "lm_head"))))
    load = load_module(origin, batch=batch, seq_len=seq_len)
    told = verify(load, wrapping, setting, batch=batch, seq_len=seq_len)
    plan = planner.evaluate(wrapping)
    assert len(plan.units) == 1 + len(wrapping.units)
    assert plan.peak.total_bytes == pytest.approx(told.peak_bytes, rel=WITHIN)
