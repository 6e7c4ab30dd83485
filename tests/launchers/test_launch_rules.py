"""Conditions of launchers that stacks switch on by name: what each refuses and what it does not."""

import re
from pathlib import Path
from typing import Any

import samples
from drawn_strategies import with_host
from rows import each_row
from shardwise import Model, catalog
from shardwise.config.enums import LaunchRule
from shardwise.config.stack import Stack
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import illegal_faults
from shardwise.parallel.constraints.software import LAUNCH_RULES

MODEL = samples.model(position="rope", tied_embeddings=False)
GROUPED = samples.llama()
EXPERTS = samples.deepseek()
SYSTEM = with_host(samples.system(), 1e9)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "stack-files.md"


def stack(**capabilities: Any) -> Stack:
    """Software with capabilities."""
    return samples.stack(release="Plain 1.0", capabilities=capabilities)


def refused(model: Model, of: Stack, **columns: Any) -> str:
    """The refusal of a strategy for what its stack can run; empty if there is none."""
    table = Table.of(model, {"dp": 1, "gbs": 16, "stack": of} | columns)
    fault = illegal_faults(model, SYSTEM, table).get("software")
    return "" if fault is None else str(fault)


def _rule_rows() -> list[tuple[str, Model, dict[str, Any], dict[str, Any]]]:
    parts = {"recompute": "selective", "recompute_parts": ("attention_norm", "mlp_norm")}
    act = {"recompute": "selective", "recompute_parts": "activation"}
    host = {"offload_activations": True, "offload_parts": "mlp_norm"}
    chunks = {"pp": 2, "vpp": 2}
    tied = samples.model(position="rope", tied_embeddings=True)
    biased = EXPERTS.model_copy(
        update={
            "layers": tuple(
                layer.model_copy(
                    update={"moe": layer.moe and layer.moe.model_copy(update={"bias": True})}
                )
                for layer in EXPERTS.layers
            )
        }
    )
    streams = MODEL.model_copy(update={"streams": 2})
    grid = {"pp": 2, "dp": 2, "placement": "tp-cp-pp-dp"}
    return [
        ("chunked_micro_batches", MODEL, chunks | {"gbs": 15}, chunks),
        ("staged_micro_batches", MODEL, {"pp": 2, "gbs": 15}, {"pp": 2}),
        ("even_stages", MODEL, {"pp": 3}, {"pp": 2}),
        (
            "even_stages",
            MODEL,
            {"pp": 3, "first_stage_layers": 1},
            {"pp": 3, "stage_layers": (2, 1, 1)},
        ),
        (
            "even_stages",
            MODEL,
            {"pp": 2, "loss_as_layer": True},
            {"pp": 3, "embedding_as_layer": True, "loss_as_layer": True},
        ),
        (
            "recomputed_chunks",
            MODEL,
            chunks | {"recompute": "full", "recompute_layers": 1},
            chunks | {"recompute": "full", "recompute_layers": 2},
        ),
        (
            "recomputed_chunks",
            MODEL,
            {"pp": 2, "recompute": "full", "recompute_layers": 3},
            {"recompute": "full", "recompute_layers": 3},
        ),
        ("kv_heads", GROUPED, {"tp": 4}, {"tp": 2}),
        (
            "all_to_all_heads",
            GROUPED,
            {"cp": 4, "cp_exchange": "all_to_all"},
            {"cp": 2, "cp_exchange": "all_to_all"},
        ),
        (
            "split_tokens",
            MODEL,
            {"tp": 4, "seq_len": 30, "tp_exchange": "rs_ag"},
            {"tp": 4, "seq_len": 32},
        ),
        ("tied_stages", tied, {"pp": 2}, {"pp": 1}),
        ("expert_grid", EXPERTS, grid | {"ep": 2}, grid | {"tp": 2, "ep": 2}),
        ("expert_grid", MODEL, grid | {"cp": 2}, grid | {"tp": 2}),
        ("expert_shards", EXPERTS, {"dp": 4, "ep": 4, "zero": 0}, {"dp": 4, "ep": 4, "zero": 3}),
        ("expert_replicas", EXPERTS, {"tp": 2, "dp": 2, "ep": 4}, {"tp": 2, "dp": 4, "ep": 4}),
        ("expert_tensors", EXPERTS, {"dp": 4, "etp": 2}, {"dp": 4, "tp": 2, "etp": 2}),
        ("expert_tensors_alone", EXPERTS, {"tp": 2, "etp": 1}, {"tp": 2, "ep": 2, "etp": 1}),
        ("expert_tensors_alone", EXPERTS, {"tp": 2, "etp": 1}, {"tp": 2}),
        (
            "dispatched_ranks",
            EXPERTS,
            {"dispatcher": "deepep"},
            {"dispatcher": "deepep", "dp": 2, "ep": 2},
        ),
        (
            "expert_sequence",
            EXPERTS,
            {"tp": 2, "tp_exchange": "all_reduce"},
            {"tp": 2, "tp_exchange": "rs_ag"},
        ),
        ("expert_biases", biased, {"dp": 2, "etp": 2}, {"dp": 2, "ep": 2}),
        ("fused_norms", MODEL, parts, {}),
        ("grouped_activation", MODEL, act, {}),
        (
            "present_parts",
            MODEL,
            {"recompute": "selective", "recompute_parts": ("mlp", "moe")},
            {"recompute": "selective", "recompute_parts": ("mlp", "core_attention")},
        ),
        (
            "present_parts",
            GROUPED,
            {"recompute": "selective", "recompute_parts": ("mla_up", "mlp")},
            {"recompute": "selective", "recompute_parts": "mlp"},
        ),
        ("selective_streams", streams, {"recompute": "full"}, {"recompute": "selective"}),
        (
            "untied_shards",
            tied,
            {"dp": 2, "zero": 3, "fsdp_reshard": False},
            {"dp": 2, "zero": 3},
        ),
        ("offload_shards", MODEL, {"zero": 3, "offload_weights": True}, {"zero": 3}),
        (
            "offload_shards",
            MODEL,
            {"zero": 3, "offload_weights": True, "tp": 2},
            {"zero": 3, "offload_weights": True, "cp": 2},
        ),
        ("experts_split_as_tp", EXPERTS, {"tp": 2, "etp": 1}, {"tp": 2, "etp": 2}),
        ("experts_split_as_tp", EXPERTS, {"etp": 2, "dp": 2}, {"dp": 2}),
        ("dense_tensors", EXPERTS, {"tp": 2}, {"dp": 2}),
        ("fused_norm_offload", MODEL, host, {"offload_activations": True, "offload_parts": "qkv"}),
    ]


@each_row(("rule", "model", "wrong", "right"), _rule_rows())
def test_a_rule_refuses_what_its_launcher_does(
    rule: str, model: Model, wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    """By hand, one strategy that breaks it and one that just does not."""
    one = stack(rules={rule: True})
    assert refused(model, one, **wrong).endswith("; --any-software lifts this")
    assert refused(model, one, **right) == ""
    assert refused(model, stack(rules={rule: False}), **wrong) == ""


def test_each_rule_is_described_tested_and_used() -> None:
    """In the documentation, above, and by a stack of the catalog."""
    text = DOCS.read_text(encoding="utf-8")
    used = set()
    for name in catalog.names("stacks"):
        one = Stack.load(name).capabilities
        used |= {word for word, on in one.rules.items() if on} if one is not None else set()
    tested = {row[0] for row in _rule_rows()}
    assert set(LAUNCH_RULES) == set(LaunchRule) == tested == used
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == tested
