"""Small models, systems and software with round figures, so that results are worked out by hand."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from shardwise import estimate
from shardwise.analysis.results import Estimate
from shardwise.arrays import Floats, gather
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy_table import Table
from shardwise.config.system import EfficiencyCurve, FusedAttention, System
from shardwise.cost.attention import AttentionRates, attention_times
from shardwise.cost.collective import collective_time
from shardwise.cost.matmul import MatmulRates, matmul_times
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.memory import StageMemory, stage_memory
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations
from shardwise.ops.operation import (
    CollectiveKind,
    FlashAttention,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
)
from shardwise.parallel.pipeline_layout import by_stage

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
TFLOPS, TB, GB = 1e12, 1e12, 1e9
_POSITIONS = ("attention", "cp_exchange", "quantization", "loss")
_FLAGS = frozenset({"sequence_parallel", "flash", "regather", "fused_activation"})
_FLAGS |= {"loops_experts", "summa", "training", "fused_norm", "fused_layer_norm", "fused_swiglu"}
_FLAGS |= {"fused_rope"}
_FLAGS |= {"fused_accumulation", "gathers_tokens", "sends_once", "dense_table"}
_FLAGS |= {"unpacks_frozen", "adds_expert_bias", "own_loss"}
_FLAGS |= {"quantized_attention", "quantized_head", "masked_selection"}
_FLAGS |= {"compares_answers", "runs_reference", "fp32_log_probabilities", "rates_answers"}


def stack(**fields: Any) -> Stack:
    """Software that adds nothing: no launches, no overheads, nothing hidden, nothing in the way."""
    plain: dict[str, Any] = {
        "name": "plain",
        "attention_kernel": "best",
        "memory_traffic_factor": 1,
        "loss_forward_bytes": 10,
        "loss_backward_bytes": 6,
        "loss_saved_bytes": 4,
        "weight_gradient_buffers": False,
        "gradient_dtype": "fp32",
        "dense_embedding_gradient": False,
        "host_launch": 0,
        "tp_hidden": 0,
        "tp_backward_async": False,
        "pp_hidden": 0,
        "pp_scatter_gather": False,
        "dp_contention": 1,
        "dp_tail": 0,
        "step_overhead": 0,
        "straggler_per_doubling": 0,
        "allocator_slack": 1,
        "runtime_memory": 0,
    }
    return Stack.validated(plain | fields)


def tier(
    name: str = "link", *, domain: int | None = None, bandwidth: float = 100 * GB, **fields: Any
) -> dict[str, Any]:
    """One tier of a network whose collectives start at once and reach its bandwidth."""
    rates = {"latency": 0, "latency_per_member": 0, "efficiency": {1: 1}} | fields
    links = rates.pop("links_per_node", None)
    return {
        "name": name,
        "domain": domain,
        "bandwidth": bandwidth,
        "links_per_node": links,
        "collectives": dict.fromkeys(KINDS, rates),
    }


def system(
    *,
    network: list[dict[str, Any]] | None = None,
    matmul: dict[str, Any] | None = None,
    attention: dict[str, Any] | None = None,
    memory_bound: dict[str, Any] | None = None,
    node: int = 8,
    **accelerator: Any,
) -> System:
    """100 TFLOP/s (fp32: 50), 10 TFLOP/s of vectors, 1 TB/s, all reached; 100 and 10 GB/s links."""
    product = {
        "efficiency": 1,
        "fill_depth": 0,
        "fill_tiles": 0,
        "memory_efficiency": 1,
        "launch": 0,
    } | (matmul or {})
    flash = {
        "tile": 128,
        "efficiency": {64: 1},
        "longest_weight": 0,
        "memory_efficiency": 1,
        "launch": 0,
        "backward_ratio": 2.5,
    } | (attention or {})
    peaks = {"bf16": 100 * TFLOPS, "fp16": 100 * TFLOPS, "fp32": 50 * TFLOPS}
    chip = {
        "name": "sample chip",
        "multiprocessors": 100,
        "matrix": peaks,
        "vector": {"fp32": 10 * TFLOPS},
        "memory": [{"name": "hbm", "capacity": 80 * GB, "bandwidth": 1 * TB}],
        "matmul": dict.fromkeys(accelerator.get("matrix", peaks), product),
        "attention": flash,
        "memory_bound": {"efficiency": 1, "launch": 0} | (memory_bound or {}),
    } | accelerator
    tiers = network or [tier("inside", domain=8), tier("between", bandwidth=10 * GB)]
    fields = {
        "name": "sample",
        "accelerator": chip,
        "node": {"accelerators": node},
        "network": tiers,
    }
    return System.validated(fields)


def layer(
    *,
    count: int = 4,
    attention: dict[str, Any] | None = None,
    mlp: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """GPT's layer: 8 heads of width 8, 4 x 64 wide GELU, biases everywhere."""
    heads = {"heads": 8, "kv_heads": 8, "head_dim": 8, "bias": "all"} | (attention or {})
    inner = {"ffn": 256, "activation": "gelu", "bias": True} | (mlp or {})
    return {"count": count, "attention": heads, "mlp": inner} | fields


def model(*layers: dict[str, Any], **fields: Any) -> Model:
    """GPT of width 64, 1000 words and 4 layers over 32 tokens; every figure may be replaced."""
    plain: dict[str, Any] = {
        "name": "sample",
        "hidden": 64,
        "vocab": 1000,
        "seq_len": 32,
        "layers": list(layers) or [layer()],
        "norm": "layernorm",
        "position": "learned",
        "tied_embeddings": True,
        "dropout": True,
    }
    return Model.validated(plain | fields)


def llama(**fields: Any) -> Model:
    """Llama's kind: grouped queries (8 over 2), SwiGLU, RMSNorm, RoPE, no biases, no dropout."""
    grouped = layer(
        attention={"kv_heads": 2, "bias": "none"},
        mlp={"ffn": 192, "activation": "swiglu", "bias": False},
    )
    plain = {"norm": "rmsnorm", "position": "rope", "tied_embeddings": False, "dropout": False}
    return model(grouped, **(plain | fields))


def deepseek(moe: dict[str, Any] | None = None, **fields: Any) -> Model:
    """DeepSeek's kind: a dense layer, then 3 of 8 experts, 2 for each token, and a shared one."""
    latent = {"q_rank": 24, "kv_rank": 16, "rope_dim": 4}
    narrow = {"head_dim": 12, "v_head_dim": 8, "bias": "none", "latent": latent}
    dense = layer(count=1, attention=narrow, mlp={"activation": "swiglu", "bias": False})
    experts = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu", "shared_ffn": 64}
    sparse = dense | {"count": 3, "mlp": None, "moe": experts | (moe or {})}
    return llama(**({"layers": [dense, sparse]} | fields))


def rank_work(**fields: Any) -> RankWork:
    """One rank's work in one row: two sequences of 32 tokens in 2 bytes, gradients in 4, flash."""
    plain = (
        {
            "sequences": 2,
            "seq_len": 32,
            "tp": 1,
            "tp2": 1,
            "summa": False,
            "panels": 1,
            "cp": 1,
            "cp_exchange": 0,
            "ep": 1,
            "etp": 1,
            "capacity": 0,
            "imbalance": 1,
            "vocab_multiple": 1,
            "sequence_parallel": False,
            "attention": 0,
            "regather": True,
            "fused_activation": False,
            "element_bytes": 2,
            "quantization": 0,
            "quantized_attention": False,
            "quantized_head": False,
            "masked_selection": False,
            "sends_once": False,
            "gathers_tokens": False,
            "dispatch_bytes": fields.get("element_bytes", 2),
            "frozen_bytes": fields.get("element_bytes", 2),
            "unpacks_frozen": False,
            "activation_input_bytes": fields.get("element_bytes", 2),
            "training": True,
            "gradient_bytes": 4,
            "flash": True,
            "fused_norm": True,
            "fused_layer_norm": True,
            "fused_swiglu": True,
            "fused_rope": True,
            "adds_expert_bias": False,
            "loops_experts": False,
            "fused_accumulation": True,
            "dense_table": False,
            "loss_forward_bytes": 10,
            "loss_backward_bytes": 6,
            "loss_saved_bytes": 4,
            "loss_chunk_tokens": 0,
            "loss": 1,
            "own_loss": True,
            "loss_tokens": 1,
            **dict.fromkeys(
                ("compares_answers", "runs_reference", "fp32_log_probabilities", "rates_answers"),
                False,
            ),
        }
        | {"document_len": fields.get("seq_len", 32) * fields.get("cp", 1)}
        | fields
    )
    types = dict.fromkeys(_FLAGS, np.bool_) | dict.fromkeys(_POSITIONS, np.int64)
    columns = {
        name: np.atleast_1d(np.asarray(value, dtype=types.get(name, np.float64)))
        for name, value in plain.items()
    }
    return RankWork(**columns)


def operations(model: Model, **work: object) -> dict[str, Operation]:
    """Operations of the first layer by name."""
    return {o.name: o for o in layer_operations(model, model.layers[0], rank_work(**work))}


def head(model: Model, *, copy: bool = True, **work: object) -> dict[str, Operation]:
    """Operations of the head by name."""
    columns = rank_work(**work)
    return {o.name: o for o in head_operations(model, columns, holds_copy=np.array([copy]))}


def embedding(model: Model, **work: object) -> Operation:
    """Return the embedding."""
    return embedding_operations(model, rank_work(**work))[0]


def flops(operation: Operation, phase: Phase) -> float:
    """FLOPs of matrix products and attention in a phase."""
    kernels = [k for k in operation.kernels if isinstance(k, Matmul | FlashAttention)]
    return sum(float(k.flops[0]) for k in kernels if k.phase is phase)


def moved(operation: Operation, phase: Phase, kind: type = MemoryBound) -> float:
    """Bytes of the kernels of a kind in a phase."""
    kernels = [k for k in operation.kernels if isinstance(k, kind) and k.phase is phase]
    return sum(float(k.bytes[0]) for k in kernels)


def saved(group: Iterable[Operation]) -> float:
    """Bytes kept for backward by a group of operations."""
    return sum(float(o.saved_bytes[0]) for o in group)


def dropped(group: Iterable[Operation], part: str) -> float:
    """Bytes that recompute of a part drops of what a group of operations keeps."""
    return sum(float(o.rebuilt_by({part})[0]) for o in group)


def held(group: Iterable[Operation]) -> float:
    """Parameters of a group of operations."""
    return sum(float(o.parameters[0]) for o in group)


def exchanges(operation: Operation, axis: str | None = None) -> list[tuple[str, str, float]]:
    """Kind, phase and bytes of every exchange that takes place, among the members of an axis."""
    return [
        (c.kind.value, c.phase.value, float(c.bytes[0]))
        for c in operation.collectives
        if c.bytes[0] > 0 and axis in (None, c.axis)
    ]


def column(*values: float) -> Floats:
    """Return a column of the given values."""
    return np.array(values, dtype=np.float64)


def passes(result: Estimate) -> tuple[float, float]:
    """Forward and backward pass of one layer, with nothing but kernels."""
    layer = result.layers[0]
    back = layer.input_grad.time_s + layer.weight_grad.time_s + layer.recompute.time_s
    return layer.forward.time_s, back


def product(m: float, n: float, k: float, moved: float = 0.0, **given: Any) -> Floats:
    """Whole times of one product on 100 TFLOP/s and 1 TB/s over 100 multiprocessors."""
    batch, weight_grad = given.pop("batch", 1), given.pop("weight_grad", False)
    figures = {"efficiency": 1, "fill_depth": 0, "fill_tiles": 0, "launch_s": 0} | given
    columns = {name: column(value) for name, value in figures.items()}
    rates = MatmulRates(
        peak=column(100 * TFLOPS), memory_rate=column(1 * TB), multiprocessors=100, **columns
    )
    shape = (column(m), column(n), column(k), column(batch), column(moved))
    return matmul_times(*shape, rates, weight_grad=weight_grad)[2]


def flash(
    sequences: float, seq_len: float, heads: float, moved: float = 0.0, **given: Any
) -> float:
    """Whole time of one attention kernel of head width 64, by default causal and forward."""
    keys = given.pop("keys", seq_len)
    call = {"causal": True, "backward": False, "head_dim": 64.0, "factor": 1.0} | given
    kernel = {
        "tile": 128,
        "efficiency": {64: 1},
        "longest_weight": 0,
        "memory_efficiency": 1,
        "launch": 0,
        "backward_ratio": 3,
    } | {name: call.pop(name) for name in list(call) if name in FusedAttention.model_fields}
    rates = AttentionRates(
        peak=column(100 * TFLOPS),
        memory_rate=column(1 * TB),
        time_factor=column(call.pop("factor")),
        kernel=FusedAttention.validated(kernel),
        multiprocessors=100,
    )
    shape = {"sequences": sequences, "seq_len": seq_len, "heads": heads, "moved_bytes": moved}
    shape["keys"] = keys
    columns = {name: column(value) for name, value in shape.items()}
    return float(attention_times(**columns, rates=rates, **call)[2][0])


def exchange(
    kind: CollectiveKind, size: float, extents: list[int], *tiers: dict[str, Any]
) -> float:
    described = system(network=list(tiers))
    return float(collective_time(described, kind, column(size), np.array(extents)[:, None])[0])


def run(
    architecture: Model | None = None,
    software: dict[str, Any] | None = None,
    machine: System | None = None,
    *,
    operations: bool = False,
    **columns: Any,
) -> Estimate:
    """Estimate one micro-batch of 2 sequences on one accelerator, unless told otherwise."""
    given = {"dp": 1, "mbs": 2, "gbs": 2, "stack": stack(**(software or {}))}
    described = machine or system()
    return estimate(architecture or model(), described, given | columns, operations=operations)


def every_stage(result: Evaluation, table: Table, row: int) -> StageMemory:
    """Memory of every stage of one row of a table."""
    one = slice(row, row + 1)
    blocks, runs = gather((result.step.costs, result.step.groups), one)
    return stage_memory(table.take(one), blocks, by_stage(runs))


MATRIX = [[0, 0.1], [1e6, 0.5], [1e9, 0.8]]
VECTOR = [[0, 0.2], [1e6, 0.5]]
BYTES = [[0, 0.25], [1e6, 0.5], [1e9, 0.75]]


def curve(points: Any, *, interpolate: bool = False) -> EfficiencyCurve:
    """Shares by size."""
    return EfficiencyCurve.validated({"points": points, "interpolate": interpolate})


def curved(**fields: Any) -> System:
    """100 TFLOP/s of bf16, 10 TFLOP/s of vectors and 1 TB/s, all by curves; no closed form."""
    chip = system().to_dict()["accelerator"] | {
        "multiprocessors": None,
        "matrix": {"bf16": 1e14},
        "matmul": {},
        "matmul_curve": {"bf16": {"points": MATRIX}},
        "vector_curve": {"fp32": {"points": VECTOR}},
        "attention": None,
        "processing": "no_overlap",
    }
    chip["memory"][0]["efficiency"] = {"points": BYTES}
    return System.validated(system().to_dict() | {"accelerator": chip | fields})
