"""Choices of software by hand: what CUDA graphs capture and hold, compiled layers, expert GEMMs."""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Stack, Strategy, estimate, estimate_many
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError

GB = 1e9
AUTOMODEL = {"base": "automodel-2025", "master_weights": False, "gradient_dtype": "compute"}
"""Weights, gradients and state in 16 bits."""


def of_experts(**fields: Any) -> Any:
    """Qwen3 30B-A3B on 8 H100 with 2 x 1024 tokens each, by AutoModel."""
    return estimate(
        "qwen3-30b-a3b",
        "h100-sxm",
        gpus=8,
        ep=8,
        mbs=2,
        gbs=16,
        seq_len=1024,
        zero=3,
        stack=AUTOMODEL,
        optimizer="adamw-bf16",
        any_software=True,
        **fields,
    )


@each_row(("scope", "measured_gb"), [(("attn",), 45.5 - 39.0), (("moe",), 54.0 - 39.0)])
def test_pools_of_layers_hold_what_was_measured(scope: tuple[str, ...], measured_gb: float) -> None:
    """One pool a layer (NVIDIA-NeMo/Automodel issue 2932): 6.5 and 15 GB more than eager."""
    eager = of_experts().memory_bytes.total
    graphs = of_experts(cuda_graphs="partial", graph_scope=scope).memory_bytes.total
    assert (graphs - eager) / GB == pytest.approx(measured_gb, rel=0.1)


def dense(software: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Four gated layers on one accelerator, with a slow host."""
    stack = samples.stack(**{"host_launch": 20e-6, "host_call": 50e-6, **(software or {})})
    given = {"dp": 1, "gbs": 2, "mbs": 1, "seq_len": 32, "stack": stack}
    return estimate(samples.model(), samples.system(), **given | fields, operations=True)


def test_a_pool_by_hand() -> None:
    """Of each layer: what the operations of attention save, and the largest that one works on."""
    own = {"shared_graph_pools": False}
    graphs = {"cuda_graphs": "partial", "graph_scope": ("attn",)}
    eager, captured = dense(own), dense(own, **graphs)
    assert dense(None, **graphs).memory_bytes == dense().memory_bytes  # a pool for all of them
    attention = samples.operations(samples.model(), sequences=1, seq_len=32)
    inside = [one for name, one in attention.items() if name.startswith("attention.")]
    saved = sum(float(one.saved_bytes[0]) for one in inside)
    works = max(
        max(float(one.working_bytes[0]), float((one.forward_working_bytes or [0.0])[0]))
        for one in inside
    )
    more = captured.memory_bytes.buffers - eager.memory_bytes.buffers
    assert more == pytest.approx(samples.model().depth * (saved + works))


@each_row("graphs", ["partial", "full"])
@each_row("scope", [None, ("attn",), ("mlp",)])
def test_graphs_only_save_time_of_the_host(graphs: str, scope: tuple[str, ...] | None) -> None:
    """A step is not slower than without them, and not faster than with no host at all."""
    fields = {"cuda_graphs": graphs} | ({"graph_scope": scope} if graphs == "partial" else {})
    eager, found = dense(), dense(None, **fields)
    alone = dense({"host_launch": 0, "host_call": 0})
    assert alone.step_time_s < found.step_time_s < eager.step_time_s
    without = dense({"host_launch": 0, "host_call": 0}, **fields)
    assert without.step_time_s == alone.step_time_s


def test_scopes_add_up() -> None:
    """Attention and MLP together are the usual scope; each alone leaves more to the host."""
    usual, both, one = (
        dense(None, cuda_graphs="partial", graph_scope=scope).step_time_s
        for scope in (None, ("attn", "mlp"), ("attn",))
    )
    assert usual == both < one


def test_eager_layers_are_those_of_the_eager_stack() -> None:
    """torchtitan without compiled layers takes as long as the stack that was measured so.

    With a loss that is neither stack's own, whose figures are the standard ones in both.
    """
    run = {"gpus": 8, "gbs": 8, "zero": 3, "seq_len": 2048, "tp": 2, "loss": "loss_parallel"}
    compiled, eager = Stack.load("torchtitan-2025"), Stack.load("torchtitan-eager")
    assert compiled.as_compiled(True) is compiled
    for name in ("host_call", "memory_traffic_factor", "fused_norm", "fused_swiglu"):
        changed = getattr(compiled.as_compiled(False), name)
        assert changed == pytest.approx(getattr(eager, name)), name
        assert getattr(eager.as_compiled(True), name) == pytest.approx(getattr(compiled, name))
    times = [
        estimate("llama3-8b", "h100-sxm", **run, stack=stack, compile=word).step_time_s
        for stack, word in (
            ("torchtitan-2025", "none"),
            ("torchtitan-2025", "loss"),
            ("torchtitan-eager", "stack"),
            ("torchtitan-2025", "layers"),
            ("torchtitan-2025", "stack"),
            ("torchtitan-eager", "layers"),
        )
    ]
    assert times[:2] == pytest.approx([times[2]] * 2)
    assert times[3:5] == pytest.approx([times[5]] * 2)
    assert times[2] > 1.01 * times[3]


def test_what_compile_says_of_the_loss() -> None:
    """Its own word decides; without one the loss is that of the stack."""
    words = ["stack", "none", "loss", "layers", "whole"]
    table = Table.of(samples.model(), {"dp": 1, "gbs": 1, "compile": words, "stack": "unknown"})
    assert table.compiles_loss.tolist() == [0, -1, 1, 1, 1]
    assert table.compiles_layers.tolist() == [False, False, False, True, True]


def test_expert_kernels_have_the_figures_of_a_stack_that_runs_them() -> None:
    """Fused kernels are those of the stack for NVL72, which fuses in mxfp8 by itself."""
    run = {"gpus": 8, "ep": 8, "gbs": 64, "quantization": "mxfp8", "seq_len": 2048}
    run |= {"cuda_graphs": "none", "expert_overlap": False}

    def time_s(stack: str, kernel: str) -> float:
        found = estimate("qwen3-30b-a3b", "gb200-nvl72", **run, stack=stack, expert_kernel=kernel)
        return found.step_time_s

    rack, plain = "megatron-bridge-nvl72", "megatron-bridge-2026"
    assert time_s(rack, "stack") == time_s(rack, "fused") == time_s(plain, "fused")
    assert time_s(rack, "calls") == time_s(plain, "stack") > time_s(plain, "fused")


def test_a_loop_over_experts_runs_the_host_for_each() -> None:
    """Three modules for each expert of transformers 4; five calls for all in a grouped kernel."""
    software = {"host_call": 1.0, "host_launch": 0.0}
    stack = samples.stack(**software, expert_kernel="grouped")
    model = samples.deepseek()

    def forward(kernel: str) -> float:
        run = {"dp": 1, "gbs": 1, "stack": stack, "expert_kernel": kernel}
        return estimate(model, samples.system(), **run).time_s["forward"]

    moe = next(layer for layer in model.layers if layer.moe is not None)
    assert moe.moe is not None
    more = moe.count * (3 * moe.moe.experts - 5)
    assert forward("loop") - forward("grouped") == pytest.approx(more, rel=1e-6)


def test_old_words_of_stack_files() -> None:
    """`grouped_products` of older files: loop was a call for each expert, fused one kernel."""
    for old, new in (("loop", "calls"), ("fused", "grouped")):
        stack = Stack.load({"base": "unknown", "name": "mine", "grouped_products": old})
        assert stack.expert_kernel == new
    with pytest.raises(InputError, match="is what a stack does; allowed: none, partial, full"):
        Stack.load({"base": "unknown", "name": "mine", "cuda_graphs": "stack"})


def test_a_choice_is_that_of_the_stack_unless_it_is_set() -> None:
    """In effect is the word of the strategy, or that of its stack."""
    found = Strategy(gpus=1, gbs=1, stack="mlperf-2024").in_effect("cuda_graphs")
    own = Strategy(gpus=1, gbs=1, stack="mlperf-2024", cuda_graphs="none")
    assert (found, own.in_effect("cuda_graphs")) == ("full", "none")


@each_row("software", ["TRL, FSDP2, 2026-07", "HF Trainer FSDP1 2025-01"])
def test_types_follow_the_weights_of_a_trainer(software: str) -> None:
    """FSDP has no masters: gradients and moments have the 16 bits of weights, in a column too."""
    run = {"gpus": 8, "zero": 3, "gbs": 8, "seq_len": 1024, "stack": software, "any_software": True}
    words = ("stack", "fp32", "compute")
    model = samples.llama(vocab=10)
    each = [estimate(model, "h100-sxm", weight_dtype=word, **run).memory_bytes for word in words]
    usual, wide, half = ([one.weights, one.gradients, one.optimizer] for one in each)
    assert usual == wide == pytest.approx([2 * size for size in half])
    rows = estimate_many(model, "h100-sxm", {"weight_dtype": [*words], "mbs": 1, **run})
    assert rows.memory_total_bytes.tolist() == pytest.approx([one.total for one in each])


def test_memory_of_experts_trained_in_16_bits() -> None:
    """Qwen3 30B-A3B on 8 H100, fully trained: 34 GB (huggingface/trl pull request 6869)."""
    run = {"gpus": 8, "ep": 8, "zero": 3, "gbs": 8, "seq_len": 2048, "recompute": "full"}
    software = {"stack": "TRL, FSDP2, 2026-08", "weight_dtype": "compute", "any_software": True}
    found = estimate("qwen3-30b-a3b", "h100-sxm", **run, **software)
    assert found.memory_bytes.total / GB == pytest.approx(34, rel=0.05)
